//! Messages that no client sent: the server and operators publish them, without session and authorization.

use mqtt::QoS;

use crate::durable::record_fields::PendingCommits;
use crate::effect::DropReason;
use crate::message::Publication;
use crate::message_limits::LimitedMessage;
use crate::provenance::Provenance;
use crate::router::{Destinations, Router};
use crate::tap::TapEventMask;
use crate::tick::Tick;

/// A message that no client sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerMessage<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// MQTT 5 properties that are forwarded unaltered, in wire format.
    pub properties: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Message Expiry Interval.
    pub expiry_s: Option<u32>,
    /// `MadeMessage::mark` if a tap has created it, else 0.
    pub mark: u64,
}

impl ServerMessage<'_> {
    fn publication(&self) -> Publication<'_> {
        Publication {
            properties: self.properties,
            qos: self.qos,
            retain: self.retain,
            ..Publication::from_server(self.topic, self.payload)
        }
    }

    /// Returns the limited parts.
    pub fn limited(&self) -> LimitedMessage<'_> {
        LimitedMessage {
            topic: self.topic,
            payload_bytes: self.payload.len(),
            property_bytes: self.properties.len(),
            qos: self.qos,
            retain: self.retain,
        }
    }
}

/// Publishes messages of the server.
pub struct ServerPublisher<'a> {
    pub(crate) tick: Tick<'a>,
    pub(crate) router: &'a mut Router,
    pub(crate) to: Destinations<'a>,
}

impl ServerPublisher<'_> {
    /// Publishes a message. Returns false if no recipient is known. Drops a message beyond the limits of clients,
    /// except one of `$SYS`.
    pub fn publish(&mut self, message: ServerMessage<'_>) -> bool {
        let (now, core) = (self.tick.now, &mut *self.tick.core);
        let is_limited = !message.topic.starts_with("$SYS/");
        if is_limited && core.taps.message_limits().check(&message.limited()).is_err() {
            core.stats.drop_message(DropReason::TopicInvalid);
            return false;
        }
        let provenance = core
            .taps
            .provenance(now, None, message.mark, TapEventMask::MESSAGE_EVENTS);
        let p = Publication {
            provenance: Provenance::from_written(&provenance),
            expires_at_ms: message.expiry_s.map(|s| now.monotonic_ms + u64::from(s) * 1000),
            ..message.publication()
        };
        let receipt = core.taps.marked(now, None, &p, false, message.mark);
        let published = self.router.publish(&mut self.tick, &mut self.to, &p, None);
        let commits = self.router.commits_of(&mut self.tick, &mut self.to, published, receipt);
        self.tick.core.taps.add_server_commits(commits);
        published.has_recipient
    }

    /// Publishes a statistic or an event of the server. It is not counted as dropped if it has no subscriber.
    pub fn publish_sys(&mut self, topic: &str, payload: &str, retain: bool) {
        let is_wanted = self.publish(ServerMessage {
            topic,
            payload: payload.as_bytes(),
            retain,
            ..ServerMessage::default()
        });
        if !is_wanted {
            self.tick.core.stats.drops[DropReason::NoSubscriber as usize] -= 1;
        }
    }

    /// Returns whether a message at QoS 1 or 2, or a retained one, can be stored everywhere that it must be.
    pub fn can_store(&mut self, message: &ServerMessage<'_>) -> bool {
        let (p, core) = (message.publication(), &mut *self.tick.core);
        let is_journal_full =
            core.ledger.is_unavailable() && self.router.needs_journal(core, None, p.topic, p.qos, p.retain);
        !is_journal_full && !core.taps.rejects(self.tick.now, None, &p)
    }

    /// Calls `done` when all messages of the server in this tick are stored; immediately if they are.
    pub fn call_when_stored(&mut self, done: Box<dyn FnOnce() + Send>) {
        let core = &mut *self.tick.core;
        let commits = core.taps.take_server_commits();
        core.ledger.call_when_stored(&mut core.taps, commits, done);
    }

    /// Like `call_when_stored`, for all records written so far.
    pub fn call_when_all_stored(&mut self, done: Box<dyn FnOnce() + Send>) {
        let core = &mut *self.tick.core;
        let commits = PendingCommits::for_journal(true);
        core.ledger.call_when_stored(&mut core.taps, commits, done);
    }
}
