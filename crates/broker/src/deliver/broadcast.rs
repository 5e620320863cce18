//! Batches consecutive messages that go to the same connections in the same bytes, and queues them once for the whole
//! run.
//!
//! The buffer of a publisher, or the mail of another shard, often contains many messages in a row for one list of
//! subscribers. If they are QoS 0 and all subscribers accept the same form, they are encoded into one growing range of
//! the arena, and no work is done per subscriber. `ShardCore::end_broadcast_run` ends the run and queues it for all
//! subscribers. That happens before anything else is queued for any connection, before a link or a subscription
//! changes, and at the end of the shard's input.

use mqtt::QoS;

use crate::config::ShardConfig;
use crate::deliver::ShardCore;
use crate::effect::{DropReason, Now};
use crate::encode::PublishForm;
use crate::message::Publication;
use crate::outbox::{Outbox, Range};
use crate::router::{InterestedSession, Subscriber};
use crate::sessions::Sessions;
use crate::slots::{ConnSlot, SessionSlot};
use crate::subscriptions::{ListId, SubscriptionEntry};

/// Below this the normal path costs no more.
const MEMBERS_MIN: usize = 2;

#[derive(Default)]
pub struct Broadcast {
    /// The shard is handling input. At other times nothing would end a run.
    is_open: bool,
    /// List of the last message that took the normal path. If the next message has the same list, an audience is built.
    last_list: Option<ListId>,
    recipients: Option<RecipientList>,
    run: BroadcastRun,
}

/// Subscribers of a list. Valid until a subscription or a link of the shard changes.
struct RecipientList {
    list: ListId,
    is_v5: bool,
    maximum_packet_size: usize,
    /// Empty if some subscribers need their own form.
    members: Vec<BroadcastRecipient>,
}

struct BroadcastRecipient {
    session: SessionSlot,
    conn: ConnSlot,
}

#[derive(Default)]
struct BroadcastRun {
    now: Now,
    start: u32,
    messages: Vec<EncodedMessage>,
    payload_bytes: usize,
}

#[derive(Clone, Copy)]
struct EncodedMessage {
    end: u32,
    payload_bytes: u32,
}

impl Broadcast {
    /// The shard handles input from now on.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// Returns whether other output has been encoded since the last message of the run.
    fn is_interrupted(&self, outbox: &Outbox) -> bool {
        let last = self.run.messages.last();
        last.is_some_and(|last| last.end as usize != outbox.mark())
    }

    /// Adds a message to the run. Returns false if it must take the normal path.
    fn add(&mut self, outbox: &mut Outbox, now: Now, p: &Publication<'_>) -> bool {
        let Some(audience) = self.recipients.as_ref().filter(|audience| !audience.members.is_empty()) else {
            return false;
        };
        let (range, _) = outbox.encode_publish(now, p, PublishForm::qos0(audience.is_v5, false));
        if range.len() > audience.maximum_packet_size {
            outbox.arena.truncate(range.start as usize);
            return false;
        }
        let run = &mut self.run;
        if run.messages.is_empty() {
            run.now = now;
            run.start = range.start;
        }
        run.messages.push(EncodedMessage {
            end: range.end,
            payload_bytes: p.payload.len() as u32,
        });
        run.payload_bytes += p.payload.len();
        true
    }
}

impl RecipientList {
    fn of(
        list: ListId,
        entries: &[SubscriptionEntry<InterestedSession>],
        sessions: &Sessions,
        config: &ShardConfig,
    ) -> RecipientList {
        let mut audience = RecipientList {
            list,
            is_v5: false,
            maximum_packet_size: usize::MAX,
            members: Vec::new(),
        };
        // A share group selects a member for each message.
        let Subscriber::Session(first) = Subscriber::from_key(entries[0].key) else {
            return audience;
        };
        audience.is_v5 = sessions.link(first).is_v5();
        let can_share = |entry: &SubscriptionEntry<_>| can_share_encoding(sessions, entry, audience.is_v5);
        if config.queue_qos0 || !entries.iter().all(can_share) {
            return audience;
        }
        for entry in entries {
            let Subscriber::Session(slot) = Subscriber::from_key(entry.key) else {
                continue;
            };
            let link = sessions.link(slot);
            let limit = link.maximum_packet_size as usize;
            audience.maximum_packet_size = audience.maximum_packet_size.min(limit);
            audience.members.push(BroadcastRecipient {
                session: slot,
                conn: link.conn,
            });
        }
        audience
    }
}

/// Returns whether a subscriber receives every message of its list immediately, in the form that all subscribers of its
/// version share.
fn can_share_encoding(sessions: &Sessions, entry: &SubscriptionEntry<InterestedSession>, is_v5: bool) -> bool {
    let Subscriber::Session(slot) = Subscriber::from_key(entry.key) else {
        return false;
    };
    if entry.value.identifier != 0 || entry.value.options.no_local {
        return false;
    }
    let link = sessions.link(slot);
    link.conn != ConnSlot::NONE
        && link.is_v5() == is_v5
        && !link.is_filtered()
        && !link.is_replaying()
        && !link.has_own_form()
}

impl ShardCore {
    /// Adds a message to the run for a list, whose subscribers `entries` returns. Returns false if the message must
    /// take the normal path.
    #[inline]
    pub(crate) fn broadcast<'e>(
        &mut self,
        now: Now,
        list: ListId,
        entries: impl FnOnce() -> &'e [SubscriptionEntry<InterestedSession>],
        p: &Publication<'_>,
    ) -> bool {
        let wants_every_delivery = self.taps.wants_every_delivery();
        let broadcast = &mut self.broadcast;
        if !broadcast.is_open || wants_every_delivery || p.qos != QoS::AtMostOnce || p.retain {
            return false;
        }
        if broadcast
            .recipients
            .as_ref()
            .is_none_or(|audience| audience.list != list)
        {
            let entries = entries();
            if broadcast.last_list != Some(list) || entries.len() < MEMBERS_MIN {
                broadcast.last_list = Some(list);
                return false;
            }
            self.end_broadcast_run();
            self.broadcast.recipients = Some(RecipientList::of(list, entries, &self.sessions, &self.config));
        }
        if self.broadcast.is_interrupted(&self.outbox) {
            self.flush_run();
        }
        self.broadcast.add(&mut self.outbox, now, p)
    }

    pub fn close_broadcast(&mut self) {
        self.end_broadcast_run();
        self.broadcast.is_open = false;
    }

    /// Invalidates the audience before subscriptions or links change.
    pub fn invalidate_recipients(&mut self) {
        self.end_broadcast_run();
        self.broadcast.recipients = None;
        self.broadcast.last_list = None;
    }

    /// Ends the run, if there is one.
    #[inline]
    pub fn end_broadcast_run(&mut self) {
        if !self.broadcast.run.messages.is_empty() {
            self.flush_run();
        }
    }

    #[inline(never)]
    fn flush_run(&mut self) {
        let mut run = std::mem::take(&mut self.broadcast.run);
        let audience = self.broadcast.recipients.take().expect("a run has an audience");
        let whole = run.range();
        let count = run.messages.len() as u64;
        let mut complete = 0;
        for member in &audience.members {
            if self.outbox.queued_bytes(member.conn) + whole.len() <= self.config.output_buffer_bytes {
                self.outbox.push(member.conn, whole);
                self.sessions.count_sent(member.session, count, whole.len());
                complete += 1;
            } else {
                self.flush_run_partially(member, &run);
            }
        }
        self.stats.sent(
            QoS::AtMostOnce,
            complete as u64 * count,
            complete * whole.len(),
            complete * run.payload_bytes,
        );
        run.messages.clear();
        run.payload_bytes = 0;
        self.broadcast.run = run;
        self.broadcast.recipients = Some(audience);
    }

    /// Queues as many messages as fit for a connection that is near its output limit.
    fn flush_run_partially(&mut self, member: &BroadcastRecipient, run: &BroadcastRun) {
        let mut start = run.start;
        for &EncodedMessage { end, payload_bytes } in &run.messages {
            if !self.outbox.accepts_live(member.conn, &self.config) {
                self.dropped(run.now, member.session, DropReason::SlowConsumer);
            } else {
                let range = Range { start, end };
                self.outbox.push(member.conn, range);
                self.count_sent(member.session, QoS::AtMostOnce, range.len(), payload_bytes as usize);
            }
            start = end;
        }
    }
}

impl BroadcastRun {
    fn range(&self) -> Range {
        Range {
            start: self.start,
            end: self.messages.last().map_or(self.start, |last| last.end),
        }
    }
}
