//! From a routed message to bytes in a connection's lane: encode once, per wire form; patch what differs.
//!
//! `Core` is what delivery needs of a shard, apart from the subscriptions that it is called for, so that the two can be
//! borrowed side by side. Here is what is to happen to a message; `encode` makes its bytes, `send` queues them for
//! connections, `queue` keeps what has to wait.

mod encode;
mod link;
mod queue;
mod send;

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::QoS;

use crate::broadcast::Broadcast;
use crate::config::ShardConfig;
use crate::connection::Connection;
use crate::durable::keep::Keeping;
use crate::durable::ledger::Ledger;
use crate::effect::{ConnSlot, DropReason, Effect, Event, Now, ShardId};
use crate::mail::SessionRef;
use crate::message::Publication;
use crate::outbox::Outbox;
use crate::outgoing::{Delivery, GroupRef, Tag};
use crate::session::Session;
use crate::shard::hash;
use crate::stats::Stats;
use crate::tapping::TapSeat;
use crate::timer::TimerWheel;
use crate::timers::Timer;
use crate::trace::Traces;

pub use encode::Forms;
pub use link::{Link, NO_CONN};

pub struct Core {
    pub id: ShardId,
    pub shards: u16,
    pub config: Arc<ShardConfig>,
    pub outbox: Outbox,
    pub sessions: Vec<Option<Box<Session>>>,
    /// Parallel to `sessions`: what delivery looks at first.
    pub(crate) links: Vec<Link>,
    pub broadcast: Broadcast,
    pub connections: Vec<Option<Box<Connection>>>,
    pub stats: Stats,
    pub effects: Vec<Effect>,
    pub timers: TimerWheel<Timer>,
    /// Sessions with more to send than fitted into this tick.
    pub unfinished: VecDeque<u32>,
    /// Until when nothing was read from clients.
    pub deaf_ms: u64,
    /// While messages are routed that the shards before had left: to sessions and groups whose home, of so many shards, is one of
    /// the mask's.
    pub only_homes: Option<(u16, u64)>,
    /// None where nothing outlives the process.
    pub ledger: Option<Box<Ledger>>,
    pub tap: TapSeat,
    /// None while nobody looks.
    pub traces: Option<Box<Traces>>,
    /// Members that are rid of a message which they have not acknowledged; their groups are told in the next tick.
    pub let_go: Vec<(SessionRef, GroupRef)>,
}

/// How a subscription wants a message.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    pub qos: QoS,
    /// The retain flag that goes out.
    pub retain: bool,
    pub identifiers: &'a [u32],
    pub group: Option<GroupRef>,
}

/// What became of a message for one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    Sent,
    Queued,
    Dropped(DropReason),
}

impl Core {
    pub fn new(now: Now, id: ShardId, shards: u16, config: Arc<ShardConfig>) -> Core {
        Core {
            id,
            shards,
            config,
            outbox: Outbox::default(),
            sessions: Vec::new(),
            links: Vec::new(),
            broadcast: Broadcast::default(),
            connections: Vec::new(),
            stats: Stats::default(),
            effects: Vec::new(),
            timers: TimerWheel::new(now.monotonic_ms),
            unfinished: VecDeque::new(),
            deaf_ms: 0,
            let_go: Vec::new(),
            only_homes: None,
            ledger: None,
            tap: TapSeat::default(),
            traces: None,
        }
    }

    pub fn session(&self, slot: u32) -> &Session {
        self.sessions[slot as usize]
            .as_ref()
            .expect("subscriptions, timers and connections refer to live sessions only")
    }

    pub fn session_mut(&mut self, slot: u32) -> &mut Session {
        self.sessions[slot as usize]
            .as_mut()
            .expect("subscriptions, timers and connections refer to live sessions only")
    }

    /// The session in a slot if it is still the one meant.
    pub fn live_session(&mut self, slot: u32, epoch: u32) -> Option<&mut Session> {
        self.sessions
            .get_mut(slot as usize)?
            .as_deref_mut()
            .filter(|s| s.epoch == epoch)
    }

    pub fn connection_mut(&mut self, conn: ConnSlot) -> Option<&mut Connection> {
        self.connections.get_mut(conn.0 as usize)?.as_deref_mut()
    }

    /// Gives a message to one session on given terms.
    pub fn deliver(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        terms: Terms<'_>,
        forms: &mut Forms,
    ) -> Delivered {
        let link = self.links[slot as usize];
        if self.only_homes.is_some() && terms.group.is_none() && !self.is_home(&self.session(slot).client_id) {
            return Delivered::Queued;
        }
        if link.is_filtered && !self.may_receive(slot, p.topic) {
            return self.drop_delivery(now, slot, DropReason::NotAuthorizedToReceive, p, terms);
        }
        if link.is_replaying && terms.group.is_none() && self.session(slot).replays.must_wait(p.topic) {
            return self.hold(now, slot, p, terms, forms);
        }
        self.deliver_now(now, slot, p, terms, forms)
    }

    /// Whether what has this name had its home on one of the shards that are meant.
    pub fn is_home(&self, name: &str) -> bool {
        self.only_homes
            .is_none_or(|(shards, mask)| mask >> (hash(name) % u64::from(shards)) & 1 == 1)
    }

    /// As `deliver`, whatever the session waits for.
    fn deliver_now(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        terms: Terms<'_>,
        forms: &mut Forms,
    ) -> Delivered {
        let link = self.links[slot as usize];
        if terms.qos == QoS::AtMostOnce {
            return self.deliver_qos0(now, slot, link, p, terms, forms);
        }
        if link.conn != NO_CONN {
            let is_open = self.takes_more(ConnSlot(link.conn)) && !self.must_be_kept(link, terms);
            let session = self.session(slot);
            let out = &session.outgoing;
            if is_open
                && out.is_idle()
                && out.inflight.len() < usize::from(session.window)
                && out.is_free(out.last_seq + 1)
            {
                let seq = self.session_mut(slot).outgoing.next_seq();
                let delivered = self.send_new(now, slot, link, p, terms, forms, seq);
                if delivered == Delivered::Sent {
                    self.note_target(slot, seq, terms);
                }
                return delivered;
            }
        } else if self.session(slot).expiry_s == 0 {
            return self.drop_delivery(now, slot, DropReason::SessionEnded, p, terms);
        }
        let delivery = Delivery {
            message: forms.message(p),
            qos: terms.qos,
            retain: terms.retain,
            seq: 0,
            tag: Tag::new(terms.identifiers, terms.group),
        };
        let delivered = self.enqueue(now, slot, delivery, terms);
        if link.conn != NO_CONN && !self.has_room_in_tick(ConnSlot(link.conn)) {
            self.continue_later(ConnSlot(link.conn), slot);
        }
        delivered
    }

    /// Keeps a live message until the retained ones before it are sent [MQTT-4.6.0-6]; within the limits of the session's queue,
    /// beyond which live messages overtake the replay, because they must not be lost for it.
    fn hold(&mut self, now: Now, slot: u32, p: &Publication<'_>, terms: Terms<'_>, forms: &mut Forms) -> Delivered {
        let delivery = Delivery {
            message: forms.message(p),
            qos: terms.qos,
            retain: terms.retain,
            seq: 0,
            tag: Tag::new(terms.identifiers, terms.group),
        };
        let bytes = delivery.kept_bytes() as u64;
        let (max_messages, max_bytes) = (self.config.queued_messages_max, self.config.queued_bytes_max);
        if self
            .session_mut(slot)
            .replays
            .hold(delivery, max_messages, max_bytes)
            .is_err()
        {
            self.release(now, slot);
            return self.deliver_now(now, slot, p, terms, forms);
        }
        if terms.qos != QoS::AtMostOnce {
            self.note_target(slot, 0, terms);
        }
        self.stats.queued_messages += 1;
        self.stats.queued_bytes += bytes;
        Delivered::Queued
    }

    /// Delivers what was held, in its order; nothing is held any more.
    pub fn release(&mut self, now: Now, slot: u32) {
        self.link_mut(slot).is_replaying = false;
        // It may be in the middle of another message, whose recipients are not these messages'.
        let others = self.ledger.as_mut().map(|ledger| std::mem::take(&mut ledger.targets));
        for delivery in self.session_mut(slot).replays.release() {
            self.stats.queued_messages -= 1;
            self.stats.queued_bytes -= delivery.kept_bytes() as u64;
            if delivery.message.is_expired(now) {
                self.keep_unheld(slot, delivery.message.place());
                self.drop_queued(now, slot, DropReason::Expired, &delivery);
                continue;
            }
            let message = delivery.message.clone();
            let terms = Terms {
                qos: delivery.qos,
                retain: delivery.retain,
                identifiers: delivery.tag.identifiers(),
                group: None,
            };
            let p = message.publication();
            let delivered = self.deliver_now(now, slot, &p, terms, &mut Forms::of(delivery.message));
            if matches!(delivered, Delivered::Dropped(_)) && terms.qos != QoS::AtMostOnce {
                self.keep_unheld(slot, p.place);
            }
            self.keep(now, &p, Some(&message), Keeping::default());
        }
        if let (Some(ledger), Some(others)) = (&mut self.ledger, others) {
            ledger.targets = others;
        }
    }

    fn may_receive(&self, slot: u32, topic: &str) -> bool {
        self.session(slot)
            .access
            .as_ref()
            .is_none_or(|access| access.may_receive(topic))
    }

    fn deliver_qos0(
        &mut self,
        now: Now,
        slot: u32,
        link: Link,
        p: &Publication<'_>,
        terms: Terms<'_>,
        forms: &mut Forms,
    ) -> Delivered {
        if link.conn == NO_CONN || (self.config.is_qos0_queued && self.session(slot).outgoing.queued_qos0 > 0) {
            return self.keep_qos0(now, slot, p, terms, forms);
        }
        if !self.takes_more(ConnSlot(link.conn)) {
            return self.drop_delivery(now, slot, DropReason::SlowConsumer, p, terms);
        }
        self.send_qos0(now, slot, link, p, terms, forms)
    }

    /// A message of a replay. The next batch waits for room; what has been read is not dropped for want of it.
    pub fn deliver_retained(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        terms: Terms<'_>,
        forms: &mut Forms,
    ) -> Delivered {
        let link = self.links[slot as usize];
        if link.is_filtered && !self.may_receive(slot, p.topic) {
            return self.drop_delivery(now, slot, DropReason::NotAuthorizedToReceive, p, terms);
        }
        if terms.qos != QoS::AtMostOnce || link.conn == NO_CONN {
            return self.deliver_now(now, slot, p, terms, forms);
        }
        self.send_qos0(now, slot, link, p, terms, forms)
    }

    fn keep_qos0(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        terms: Terms<'_>,
        forms: &mut Forms,
    ) -> Delivered {
        let is_lost = self.links[slot as usize].conn == NO_CONN && self.session(slot).expiry_s == 0;
        if !self.config.is_qos0_queued || is_lost {
            return self.drop_delivery(now, slot, DropReason::OfflineQoS0, p, terms);
        }
        let delivery = Delivery {
            message: forms.message(p),
            qos: QoS::AtMostOnce,
            retain: terms.retain,
            seq: 0,
            tag: Tag::new(terms.identifiers, terms.group),
        };
        self.enqueue(now, slot, delivery, terms)
    }

    /// Whether a message that has just been published may be queued for a connection.
    #[inline]
    fn takes_more(&self, conn: ConnSlot) -> bool {
        self.outbox.queued_bytes(conn) <= self.config.output_buffer_bytes && !self.outbox.is_full()
    }

    /// Gives a message up that a session was to be given on these terms.
    #[cold]
    pub fn drop_delivery(
        &mut self,
        now: Now,
        slot: u32,
        reason: DropReason,
        p: &Publication<'_>,
        terms: Terms<'_>,
    ) -> Delivered {
        let p = Publication {
            qos: terms.qos,
            retain: terms.retain,
            ..*p
        };
        self.tap_delivery_dropped(now, slot, Some(&p), reason);
        self.dropped(now, slot, reason)
    }

    /// Gives a message up that a session has been waiting for.
    #[cold]
    pub fn drop_queued(&mut self, now: Now, slot: u32, reason: DropReason, delivery: &Delivery) -> Delivered {
        self.tap_delivery_dropped(now, slot, Some(&delivery.publication()), reason);
        self.dropped(now, slot, reason)
    }

    /// Gives up a message that is in the journal only.
    #[cold]
    pub fn drop_cold(&mut self, now: Now, slot: u32, reason: DropReason) -> Delivered {
        self.tap_delivery_dropped(now, slot, None, reason);
        self.dropped(now, slot, reason)
    }

    /// Counts a drop for the node and the session, and reports the first of its kind.
    #[cold]
    pub fn dropped(&mut self, now: Now, slot: u32, reason: DropReason) -> Delivered {
        self.stats.drop_message(reason);
        let session = self.session_mut(slot);
        if session.count_drop(reason, now.monotonic_ms) {
            let client_id = session.client_id.clone();
            self.effects.push(Effect::Event(Event::Dropping { client_id, reason }));
        }
        Delivered::Dropped(reason)
    }
}
