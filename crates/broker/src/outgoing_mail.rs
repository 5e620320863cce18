//! The mail of a tick for other shards.

use crate::effect::ShardId;
use crate::mail::{Envelope, Mail, MailRequest};
use crate::message::Publication;

pub(crate) struct OutgoingMail {
    /// Indexed by the receiving shard.
    mail: Vec<Mail>,
    /// For members of shared subscriptions. Sent when the message has its place in the journal.
    for_members: Vec<(ShardId, Envelope)>,
}

impl OutgoingMail {
    pub(crate) fn new(shards: u16) -> OutgoingMail {
        OutgoingMail {
            mail: (0..shards).map(|_| Mail::default()).collect(),
            for_members: Vec::new(),
        }
    }

    /// Returns the mail for a shard.
    #[inline]
    pub(crate) fn to(&mut self, shard: ShardId) -> &mut Mail {
        &mut self.mail[usize::from(shard.0)]
    }

    pub(crate) fn request(&mut self, shard: ShardId, request: MailRequest) {
        self.to(shard).request(request);
    }

    #[inline]
    pub(crate) fn publication(&mut self, shard: ShardId, envelope: Envelope, p: &Publication<'_>) {
        self.to(shard).publication(envelope, p);
    }

    /// Selects a member on another shard for the message that is being routed.
    pub(crate) fn add_member(&mut self, shard: ShardId, envelope: Envelope) {
        self.for_members.push((shard, envelope));
    }

    /// Sends a message to the selected members, once its place in the journal is known.
    #[inline]
    pub(crate) fn send_to_members(&mut self, p: &Publication<'_>) {
        for (shard, envelope) in self.for_members.drain(..) {
            self.mail[usize::from(shard.0)].publication(envelope, p);
        }
    }

    /// Removes and returns the mail for a shard. `base` is the position of the batch of this tick.
    pub(crate) fn take(&mut self, to: ShardId, from: ShardId, base: u64) -> Option<Mail> {
        let mail = self.to(to);
        if mail.is_empty() {
            return None;
        }
        mail.sent(from, base);
        Some(std::mem::take(mail))
    }
}
