//! Delivery: from a routed message to bytes in the output of connections. A message is encoded once per wire form; only
//! the fields that differ are patched.
//!
//! `ShardCore` is the part of a shard that delivery needs. It does not contain the subscription tree, so both can be
//! borrowed at the same time. This file decides what happens to a message. `send` queues packets for connections, and
//! `queue` handles messages that must wait. The crate's module `encode` writes packets.

mod broadcast;
mod queue;
mod send;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use mqtt::QoS;

use crate::config::ShardConfig;
use crate::connections::Connections;
use crate::delivery::{Delivery, DeliveryOptions, DeliveryTag, GroupRef};
use crate::durable::pending_records::Ledger;
use crate::durable::record::Seq;
use crate::durable::record_fields::RecordFields;
use crate::effect::{ConnectionEvent, DropReason, Effect, Now, ShardId};
use crate::encode::EncodedForms;
use crate::message::Publication;
use crate::message_limits::MessageLimits;
use crate::node_state::hash;
use crate::outbox::Outbox;
use crate::session::Session;
use crate::session_link::{LinkFlag, SessionLink};
use crate::sessions::Sessions;
use crate::slots::{ConnSlot, SessionEpoch, SessionRef, SessionSlot};
use crate::stats::ShardStats;
use crate::taps::Taps;
use crate::timers::Timers;
use crate::trace::{ShardTraces, TracedClients};

use broadcast::Broadcast;

pub struct ShardCore {
    pub id: ShardId,
    pub shards: u16,
    pub config: Arc<ShardConfig>,
    pub outbox: Outbox,
    pub sessions: Sessions,
    pub broadcast: Broadcast,
    pub connections: Connections,
    pub stats: ShardStats,
    pub effects: Vec<Effect>,
    pub timers: Timers,
    /// Sessions with more messages to send than fit into this tick.
    pub unfinished: VecDeque<SessionSlot>,
    /// Set while unrouted messages of the previous run are routed: number of shards of that run, and bit set of the
    /// home shards whose sessions and groups receive them.
    pub home_filter: Option<(u16, u64)>,
    pub ledger: Ledger,
    pub taps: Taps,
    pub(crate) traces: ShardTraces,
    /// Members that have dropped a message of a group without acknowledging it. Their groups are informed in the next
    /// tick.
    pub released_members: Vec<(SessionRef, GroupRef)>,
}

/// A QoS 1 or 2 message that is sent to a session for the first time.
#[derive(Clone, Copy)]
struct OutgoingPublish<'a> {
    p: &'a Publication<'a>,
    terms: DeliveryOptions<'a>,
    seq: Seq,
}

/// Result of delivering a message to one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliverResult {
    Sent,
    Queued,
    Dropped(DropReason),
}

impl ShardCore {
    pub fn new(now: Now, id: ShardId, shards: u16, config: Arc<ShardConfig>) -> ShardCore {
        ShardCore {
            id,
            shards,
            taps: Taps::new(id, MessageLimits::of(&config)),
            config,
            outbox: Outbox::default(),
            sessions: Sessions::default(),
            broadcast: Broadcast::default(),
            connections: Connections::default(),
            stats: ShardStats::default(),
            effects: Vec::new(),
            timers: Timers::new(now),
            unfinished: VecDeque::new(),
            released_members: Vec::new(),
            home_filter: None,
            ledger: Ledger::new(id),
            traces: ShardTraces::default(),
        }
    }

    /// Returns the traces, and the parts of the shard that describe clients.
    #[inline]
    pub(crate) fn traced(&mut self) -> (&mut ShardTraces, TracedClients<'_>) {
        let clients = TracedClients {
            connections: &self.connections,
            sessions: &self.sessions,
        };
        (&mut self.traces, clients)
    }

    /// Requires that the client has no session. The caller sets the terms of the CONNECT.
    pub fn add_session(&mut self, now: Now, client_id: &str, address: SocketAddr, epoch: SessionEpoch) -> SessionSlot {
        let session = Session::new(now, client_id, address, epoch);
        self.invalidate_recipients();
        let slot = self.sessions.add(session);
        self.stats.set_sessions(self.sessions.len());
        slot
    }

    /// Returns the first fields of a session for modification. Invalidates cached broadcasts.
    pub fn link_mut(&mut self, slot: SessionSlot) -> &mut SessionLink {
        self.invalidate_recipients();
        self.sessions.link_mut(slot)
    }

    #[inline]
    pub fn count_sent(&mut self, slot: SessionSlot, qos: QoS, packet_bytes: usize, payload_bytes: usize) {
        self.sessions.count_sent(slot, 1, packet_bytes);
        self.stats.sent(qos, 1, packet_bytes, payload_bytes);
    }

    /// Delivers a message to one session.
    pub fn deliver(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let link = self.sessions.link(slot);
        if self.home_filter.is_some()
            && terms.group.is_none()
            && !self.is_selected_home(&self.sessions.at(slot).client_id)
        {
            return DeliverResult::Queued;
        }
        if self.sessions.is_forbidden(slot, p.topic) {
            return self.drop_for(
                now,
                slot,
                DropReason::NotAuthorizedToReceive,
                Some(&terms.applied_to(p)),
            );
        }
        if link.is_replaying() && terms.group.is_none() && self.sessions.at(slot).replays.must_wait(p.topic) {
            return self.hold_for_replay(now, slot, p, terms, forms);
        }
        self.deliver_now(now, slot, p, terms, forms)
    }

    /// Returns whether the home shard of this name is in `home_filter`.
    pub fn is_selected_home(&self, name: &str) -> bool {
        self.home_filter
            .is_none_or(|(shards, mask)| mask >> (hash(name) % u64::from(shards)) & 1 == 1)
    }

    /// Delivers regardless of pending replays.
    fn deliver_now(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let link = self.sessions.link(slot);
        if terms.qos == QoS::AtMostOnce {
            return self.deliver_qos0(now, slot, p, terms, forms);
        }
        if link.conn != ConnSlot::NONE {
            let is_open =
                self.outbox.accepts_live(link.conn, &self.config) && !self.ledger.must_wait_for_commit(link, terms);
            let session = self.sessions.at(slot);
            let out = &session.outgoing;
            if is_open
                && out.is_idle()
                && out.inflight.len() < usize::from(session.window)
                && out.is_free(out.last_seq + 1)
            {
                let outgoing = OutgoingPublish {
                    p,
                    terms,
                    seq: self.sessions.at_mut(slot).outgoing.next_seq(),
                };
                let delivered = self.send_new(now, slot, outgoing, forms);
                if delivered == DeliverResult::Sent {
                    self.ledger.add_recipient(&mut self.sessions, slot, outgoing.seq, terms);
                }
                return delivered;
            }
        } else if self.sessions.at(slot).expiry_s == 0 {
            return self.drop_for(now, slot, DropReason::SessionEnded, Some(&terms.applied_to(p)));
        }
        let delivery = Delivery {
            message: forms.message(p),
            qos: terms.qos,
            retain: terms.retain,
            seq: 0,
            tag: DeliveryTag::new(terms.identifiers, terms.group),
        };
        let delivered = self.enqueue(now, slot, delivery, terms);
        if link.conn != ConnSlot::NONE && !self.outbox.has_tick_capacity(link.conn, &self.config) {
            self.continue_later(link.conn, slot);
        }
        delivered
    }

    /// Holds a live message until the retained messages before it are sent [MQTT-4.6.0-6]. When the queue limits are
    /// reached, live messages overtake the replay, so that they are not lost.
    fn hold_for_replay(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let delivery = Delivery {
            message: forms.message(p),
            qos: terms.qos,
            retain: terms.retain,
            seq: 0,
            tag: DeliveryTag::new(terms.identifiers, terms.group),
        };
        let bytes = delivery.stored_bytes() as u64;
        let session = self.sessions.at_mut(slot);
        if !session
            .replays
            .hold(delivery, &session.outgoing.queued_bytes, &self.config)
        {
            self.release(now, slot);
            return self.deliver_now(now, slot, p, terms, forms);
        }
        if terms.qos != QoS::AtMostOnce {
            self.ledger.add_recipient(&mut self.sessions, slot, 0, terms);
        }
        self.stats.queued_messages += 1;
        self.stats.queued_bytes += bytes;
        DeliverResult::Queued
    }

    /// Delivers the held messages in order.
    pub fn release(&mut self, now: Now, slot: SessionSlot) {
        self.link_mut(slot).set(LinkFlag::Replaying, false);
        // Another message may be in the middle of routing. Its recipients must not be mixed with those of these
        // messages.
        let others = self
            .ledger
            .records_mut()
            .map(|ledger| std::mem::take(ledger.targets_mut()));
        for delivery in self.sessions.at_mut(slot).replays.release() {
            self.stats.queued_messages -= 1;
            self.stats.queued_bytes -= delivery.stored_bytes() as u64;
            let must_check = self.sessions.link(slot).must_check_queue();
            let is_forbidden = must_check && !self.sessions.at(slot).can_receive(delivery.publication().topic);
            if is_forbidden || delivery.message.is_expired(now) {
                let reason = match is_forbidden {
                    true => DropReason::NotAuthorizedToReceive,
                    false => DropReason::Expired,
                };
                self.ledger
                    .record_dropped(self.sessions.at(slot), delivery.message.place());
                self.drop_for(now, slot, reason, Some(&delivery.publication()));
                continue;
            }
            let message = delivery.message.clone();
            let terms = DeliveryOptions {
                qos: delivery.qos,
                retain: delivery.retain,
                identifiers: delivery.tag.identifiers(),
                group: None,
            };
            let p = message.publication();
            let delivered = self.deliver_now(now, slot, &p, terms, &mut EncodedForms::of(delivery.message));
            if matches!(delivered, DeliverResult::Dropped(_)) && terms.qos != QoS::AtMostOnce {
                self.ledger.record_dropped(self.sessions.at(slot), p.place);
            }
            self.ledger
                .record_message(now, &p, Some(&message), RecordFields::default());
        }
        if let (Some(ledger), Some(others)) = (self.ledger.records_mut(), others) {
            *ledger.targets_mut() = others;
        }
    }

    fn deliver_qos0(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let link = self.sessions.link(slot);
        if link.conn == ConnSlot::NONE || (self.config.queue_qos0 && self.sessions.at(slot).outgoing.queued_qos0 > 0) {
            return self.queue_qos0(now, slot, p, terms, forms);
        }
        if !self.outbox.accepts_live(link.conn, &self.config) {
            return self.drop_for(now, slot, DropReason::SlowConsumer, Some(&terms.applied_to(p)));
        }
        self.send_qos0(now, slot, p, terms, forms)
    }

    /// Delivers a message of a replay. It is sent even if the output buffer is full; only the next batch waits for
    /// space.
    pub fn deliver_retained(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let link = self.sessions.link(slot);
        if self.sessions.is_forbidden(slot, p.topic) {
            return self.drop_for(
                now,
                slot,
                DropReason::NotAuthorizedToReceive,
                Some(&terms.applied_to(p)),
            );
        }
        if terms.qos != QoS::AtMostOnce || link.conn == ConnSlot::NONE {
            return self.deliver_now(now, slot, p, terms, forms);
        }
        self.send_qos0(now, slot, p, terms, forms)
    }

    fn queue_qos0(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: &Publication<'_>,
        terms: DeliveryOptions<'_>,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let is_lost = self.sessions.link(slot).conn == ConnSlot::NONE && self.sessions.at(slot).expiry_s == 0;
        if !self.config.queue_qos0 || is_lost {
            return self.drop_for(now, slot, DropReason::OfflineQoS0, Some(&terms.applied_to(p)));
        }
        let delivery = Delivery {
            message: forms.message(p),
            qos: QoS::AtMostOnce,
            retain: terms.retain,
            seq: 0,
            tag: DeliveryTag::new(terms.identifiers, terms.group),
        };
        self.enqueue(now, slot, delivery, terms)
    }

    /// Drops a message that would have been delivered to a session, or is in its queue. `p` is `None` if the message is
    /// only in the journal.
    #[cold]
    pub fn drop_for(
        &mut self,
        now: Now,
        slot: SessionSlot,
        reason: DropReason,
        p: Option<&Publication<'_>>,
    ) -> DeliverResult {
        let session = self.sessions.at(slot);
        self.taps.delivery_dropped(now, session, p, reason);
        self.dropped(now, slot, reason)
    }

    /// Counts a drop for the node and the session. Emits an event for the first drop per reason.
    #[cold]
    pub fn dropped(&mut self, now: Now, slot: SessionSlot, reason: DropReason) -> DeliverResult {
        self.stats.drop_message(reason);
        let session = self.sessions.at_mut(slot);
        if session.count_drop(reason, now.monotonic_ms) {
            let client_id = session.client_id.clone();
            self.effects
                .push(Effect::Event(ConnectionEvent::Dropping { client_id, reason }));
        }
        DeliverResult::Dropped(reason)
    }
}
