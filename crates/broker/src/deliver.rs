//! From a routed message to bytes in a connection's lane: encode once, per wire form; patch what differs.
//!
//! `Core` is what delivery needs of a shard, apart from the subscriptions that it is called for, so that the two can be
//! borrowed side by side.

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::{PacketId, PacketType, Properties, ProtocolVersion, Publish, PublishExtras, QoS};

use crate::broadcast::Broadcast;
use crate::config::{QueueDrop, ShardConfig};
use crate::connection::Connection;
use crate::effect::{ConnSlot, DropReason, Effect, Event, Now, ShardId};
use crate::mail::SessionRef;
use crate::message::{Message, Publication};
use crate::outbox::{Outbox, Range};
use crate::outgoing::{Delivery, GroupRef, Tag};
use crate::session::Session;
use crate::stats::Stats;
use crate::timer::TimerWheel;
use crate::timers::Timer;

/// Payloads up to this size are copied with their header per subscriber at QoS 1 and 2; larger ones are referred to.
const COPY_PAYLOAD_BYTES: usize = 512;

pub struct Core {
    pub id: ShardId,
    pub shards: u16,
    pub config: Arc<ShardConfig>,
    pub outbox: Outbox,
    pub sessions: Vec<Option<Box<Session>>>,
    /// Parallel to `sessions`: what delivery looks at first.
    links: Vec<Link>,
    pub broadcast: Broadcast,
    pub connections: Vec<Option<Box<Connection>>>,
    pub stats: Stats,
    pub effects: Vec<Effect>,
    pub timers: TimerWheel<Timer>,
    /// Sessions with more to send than fitted into this tick.
    pub unfinished: VecDeque<u32>,
    /// Members that are rid of a message which they have not acknowledged; their groups are told in the next tick.
    pub let_go: Vec<(SessionRef, GroupRef)>,
}

pub const NO_CONN: u32 = u32::MAX;

/// The hot part of a session: half a cache line.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Connection slot, or `NO_CONN`.
    pub conn: u32,
    /// The client's Maximum Packet Size.
    pub maximum_packet_size: u32,
    /// Marks sessions already met while one message is routed.
    pub stamp: u32,
    pub is_v5: bool,
    /// Some deliveries must be checked with `may_receive`.
    pub is_filtered: bool,
    /// Some deliveries must wait for retained messages (`hold`).
    pub is_replaying: bool,
    /// The server may use topic aliases.
    pub uses_aliases: bool,
    pub messages_sent: u64,
    pub bytes_sent: u64,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            conn: NO_CONN,
            maximum_packet_size: u32::MAX,
            stamp: 0,
            is_v5: false,
            is_filtered: false,
            is_replaying: false,
            uses_aliases: false,
            messages_sent: 0,
            bytes_sent: 0,
        }
    }
}

/// The encodings of one message made so far, and the message itself once someone had to keep it.
#[derive(Default)]
pub struct Forms {
    /// QoS 0, by version class and retain flag.
    plain: [[Option<Range>; 2]; 2],
    /// QoS 1 and 2 likewise.
    templates: [[[Option<Template>; 2]; 2]; 2],
    /// The payload as it stands in the first form that one connection got for itself.
    payload: Option<Range>,
    message: Option<Arc<Message>>,
}

#[derive(Clone, Copy)]
struct Template {
    range: Range,
    id_offset: u32,
}

impl Forms {
    /// For a message that is kept already.
    pub fn of(message: Arc<Message>) -> Forms {
        Forms {
            message: Some(message),
            ..Forms::default()
        }
    }

    pub fn message(&mut self, p: &Publication<'_>) -> Arc<Message> {
        self.message.get_or_insert_with(|| p.to_message()).clone()
    }
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
            let_go: Vec::new(),
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

    #[inline]
    pub fn link(&self, slot: u32) -> Link {
        self.links[slot as usize]
    }

    /// To change what delivery depends on.
    pub fn link_mut(&mut self, slot: u32) -> &mut Link {
        self.forget_audience();
        &mut self.links[slot as usize]
    }

    #[inline]
    pub fn stamp_mut(&mut self, slot: u32) -> &mut u32 {
        &mut self.links[slot as usize].stamp
    }

    /// Room for one more session; its slot.
    pub fn add_session_slot(&mut self) -> u32 {
        self.sessions.push(None);
        self.links.push(Link::default());
        self.sessions.len() as u32 - 1
    }

    /// Queues a stretch of the arena for a connection, after all that it was sent before.
    #[inline]
    pub fn push(&mut self, conn: ConnSlot, range: Range) {
        self.settle();
        self.outbox.push(conn, range);
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
        if link.is_filtered && !self.may_receive(slot, p.topic) {
            return self.dropped(now, slot, DropReason::NotAuthorizedToReceive);
        }
        if link.is_replaying && terms.group.is_none() && self.session(slot).replays.may_bring(p.topic) {
            return self.hold(now, slot, p, terms, forms);
        }
        self.deliver_now(now, slot, p, terms, forms)
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
            let is_open = self.takes_more(ConnSlot(link.conn));
            let session = self.session(slot);
            let out = &session.outgoing;
            if is_open
                && out.queue.is_empty()
                && out.sent == out.inflight.len()
                && out.inflight.len() < usize::from(session.window)
                && let Some(id) = out.next_id()
            {
                return self.send_new(now, slot, link, p, terms, forms, id);
            }
        } else if self.session(slot).expiry_s == 0 {
            return self.dropped(now, slot, DropReason::SessionEnded);
        }
        let delivery = Delivery {
            message: forms.message(p),
            qos: terms.qos,
            retain: terms.retain,
            tag: Tag::new(terms.identifiers, terms.group),
        };
        let delivered = self.enqueue(now, slot, delivery);
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
            tag: Tag::new(terms.identifiers, terms.group),
        };
        let bytes = delivery.message.kept_bytes() as u64;
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
        self.stats.queued_messages += 1;
        self.stats.queued_bytes += bytes;
        Delivered::Queued
    }

    /// Delivers what was held, in its order; nothing is held any more.
    pub fn release(&mut self, now: Now, slot: u32) {
        self.link_mut(slot).is_replaying = false;
        for delivery in self.session_mut(slot).replays.release() {
            self.stats.queued_messages -= 1;
            self.stats.queued_bytes -= delivery.message.kept_bytes() as u64;
            if delivery.message.is_expired(now) {
                self.dropped(now, slot, DropReason::Expired);
                continue;
            }
            let message = delivery.message.clone();
            let terms = Terms {
                qos: delivery.qos,
                retain: delivery.retain,
                identifiers: delivery.tag.identifiers(),
                group: None,
            };
            self.deliver_now(
                now,
                slot,
                &message.publication(),
                terms,
                &mut Forms::of(delivery.message),
            );
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
            return self.dropped(now, slot, DropReason::SlowConsumer);
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
            return self.dropped(now, slot, DropReason::NotAuthorizedToReceive);
        }
        if terms.qos != QoS::AtMostOnce || link.conn == NO_CONN {
            return self.deliver_now(now, slot, p, terms, forms);
        }
        self.send_qos0(now, slot, link, p, terms, forms)
    }

    fn send_qos0(
        &mut self,
        now: Now,
        slot: u32,
        link: Link,
        p: &Publication<'_>,
        terms: Terms<'_>,
        forms: &mut Forms,
    ) -> Delivered {
        let conn = ConnSlot(link.conn);
        let is_shared_form = terms.identifiers.is_empty() && !link.uses_aliases;
        let range = if is_shared_form {
            self.plain_form(now, link.is_v5, terms.retain, p, forms)
        } else {
            self.encode_for(now, link, p, terms, None).0
        };
        if range.len() > link.maximum_packet_size as usize {
            if !is_shared_form {
                self.outbox.arena.truncate(range.start as usize);
            }
            return self.dropped(now, slot, DropReason::TooLargeForClient);
        }
        if is_shared_form {
            self.push(conn, range);
        } else {
            self.push_own(conn, range, p.payload.len(), forms);
        }
        self.count_sent(slot, QoS::AtMostOnce, range.len(), p.payload.len());
        Delivered::Sent
    }

    fn keep_qos0(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        terms: Terms<'_>,
        forms: &mut Forms,
    ) -> Delivered {
        if !self.config.is_qos0_queued || self.session(slot).expiry_s == 0 {
            return self.dropped(now, slot, DropReason::OfflineQoS0);
        }
        let delivery = Delivery {
            message: forms.message(p),
            qos: QoS::AtMostOnce,
            retain: terms.retain,
            tag: Tag::new(terms.identifiers, terms.group),
        };
        self.enqueue(now, slot, delivery)
    }

    /// The encoding that all subscribers of one form share.
    fn plain_form(&mut self, now: Now, is_v5: bool, retain: bool, p: &Publication<'_>, forms: &mut Forms) -> Range {
        if let Some(range) = forms.plain[usize::from(is_v5)][usize::from(retain)] {
            return range;
        }
        let (range, _) = self.encode(
            now,
            is_v5,
            p,
            QoS::AtMostOnce,
            retain,
            false,
            None,
            PublishExtras::default(),
        );
        forms.plain[usize::from(is_v5)][usize::from(retain)] = Some(range);
        range
    }

    #[allow(clippy::too_many_arguments)]
    pub fn encode(
        &mut self,
        now: Now,
        is_v5: bool,
        p: &Publication<'_>,
        qos: QoS,
        retain: bool,
        dup: bool,
        id: Option<PacketId>,
        extras: PublishExtras<'_>,
    ) -> (Range, u32) {
        let mark = self.outbox.mark();
        let topic = if extras.topic_alias.is_some_and(|alias| alias & KNOWN_ALIAS != 0) {
            ""
        } else {
            p.topic
        };
        let publish = Publish {
            dup,
            qos,
            retain,
            topic,
            packet_id: id,
            properties: Properties::from_validated(p.properties),
            payload: p.payload,
        };
        let extras = PublishExtras {
            message_expiry_interval: p.remaining_expiry_s(now),
            topic_alias: extras.topic_alias.map(|alias| alias & !KNOWN_ALIAS),
            ..extras
        };
        let version = if is_v5 {
            ProtocolVersion::V5
        } else {
            ProtocolVersion::V3_1_1
        };
        let id_offset = mqtt::encode_publish(&publish, extras, version, &mut self.outbox.arena);
        (self.outbox.range_from(mark), id_offset as u32)
    }

    /// An encoding for one connection only: with subscription identifiers or a topic alias.
    fn encode_for(
        &mut self,
        now: Now,
        link: Link,
        p: &Publication<'_>,
        terms: Terms<'_>,
        id: Option<PacketId>,
    ) -> (Range, u32) {
        let topic_alias = if link.uses_aliases {
            self.alias_for(ConnSlot(link.conn), p.topic)
        } else {
            None
        };
        let identifiers = if link.is_v5 { terms.identifiers } else { &[] };
        let extras = PublishExtras {
            topic_alias,
            subscription_identifiers: identifiers,
            ..PublishExtras::default()
        };
        let (range, at) = self.encode(now, link.is_v5, p, terms.qos, terms.retain, false, id, extras);
        if range.len() > link.maximum_packet_size as usize
            && let Some(alias) = topic_alias
            && alias & KNOWN_ALIAS == 0
        {
            // Topic and alias together are too much for the client: it goes without, and the client will not learn the alias.
            self.forget_alias(ConnSlot(link.conn), p.topic);
            self.outbox.arena.truncate(range.start as usize);
            return self.encode(
                now,
                link.is_v5,
                p,
                terms.qos,
                terms.retain,
                false,
                id,
                PublishExtras {
                    topic_alias: None,
                    ..extras
                },
            );
        }
        (range, at)
    }

    /// An alias for the topic; marked with `KNOWN_ALIAS` when the client knows it already [MQTT-3.3.2-9].
    fn alias_for(&mut self, conn: ConnSlot, topic: &str) -> Option<u16> {
        let aliases = self.connection_mut(conn)?.aliases.as_mut()?;
        if let Some(alias) = aliases.outgoing.get(topic) {
            return Some(alias | KNOWN_ALIAS);
        }
        let next = aliases.outgoing.len() as u16 + 1;
        if next > aliases.outgoing_max || topic.len() < ALIAS_TOPIC_BYTES_MIN {
            return None;
        }
        aliases.outgoing.insert(topic.into(), next);
        Some(next)
    }

    fn forget_alias(&mut self, conn: ConnSlot, topic: &str) {
        if let Some(aliases) = self.connection_mut(conn).and_then(|c| c.aliases.as_mut()) {
            aliases.outgoing.remove(topic);
        }
    }

    /// Sends a QoS 1 or 2 message for the first time.
    #[allow(clippy::too_many_arguments)]
    fn send_new(
        &mut self,
        now: Now,
        slot: u32,
        link: Link,
        p: &Publication<'_>,
        terms: Terms<'_>,
        forms: &mut Forms,
        id: PacketId,
    ) -> Delivered {
        let conn = ConnSlot(link.conn);
        let mark = self.outbox.mark();
        let is_shared_form = terms.identifiers.is_empty() && !link.uses_aliases;
        let template = &mut forms.templates[usize::from(link.is_v5)][usize::from(terms.retain)][terms.qos as usize - 1];
        let size = match (*template, is_shared_form) {
            (Some(have), true) => {
                if have.range.len() > link.maximum_packet_size as usize {
                    return self.dropped(now, slot, DropReason::TooLargeForClient);
                }
                self.push_copy(conn, have, p.payload.len(), id);
                have.range.len()
            }
            _ => {
                let (range, id_offset) = self.encode_for(now, link, p, terms, Some(id));
                if range.len() > link.maximum_packet_size as usize {
                    self.outbox.arena.truncate(mark);
                    return self.dropped(now, slot, DropReason::TooLargeForClient);
                }
                if is_shared_form {
                    *template = Some(Template { range, id_offset });
                    self.push(conn, range);
                } else {
                    self.push_own(conn, range, p.payload.len(), forms);
                }
                range.len()
            }
        };
        let delivery = Delivery {
            message: forms.message(p),
            qos: terms.qos,
            retain: terms.retain,
            tag: Tag::new(terms.identifiers, terms.group),
        };
        self.session_mut(slot).outgoing.start(id, delivery);
        self.stats.inflight_messages += 1;
        self.count_sent(slot, terms.qos, size, p.payload.len());
        Delivered::Sent
    }

    /// Queues a form that only this connection gets, the last of the arena. A large payload stays there once for all of them.
    fn push_own(&mut self, conn: ConnSlot, range: Range, payload_bytes: usize, forms: &mut Forms) {
        if payload_bytes <= COPY_PAYLOAD_BYTES {
            return self.push(conn, range);
        }
        let header = Range {
            start: range.start,
            end: range.end - payload_bytes as u32,
        };
        let Some(payload) = forms.payload else {
            forms.payload = Some(Range {
                start: header.end,
                end: range.end,
            });
            return self.push(conn, range);
        };
        self.outbox.arena.truncate(header.end as usize);
        self.push(conn, header);
        self.push(conn, payload);
    }

    /// Queues a copy of an encoded PUBLISH with another packet identifier.
    fn push_copy(&mut self, conn: ConnSlot, template: Template, payload_bytes: usize, id: PacketId) {
        let mark = self.outbox.mark();
        let whole = template.range.start as usize..template.range.end as usize;
        let is_copied = payload_bytes <= COPY_PAYLOAD_BYTES;
        let copied = if is_copied {
            whole.clone()
        } else {
            whole.start..whole.end - payload_bytes
        };
        self.outbox.arena.extend_from_within(copied.clone());
        let at = mark + template.id_offset as usize;
        self.outbox.arena[at..at + 2].copy_from_slice(&id.get().to_be_bytes());
        let range = self.outbox.range_from(mark);
        self.push(conn, range);
        if !is_copied {
            self.push(
                conn,
                Range {
                    start: copied.end as u32,
                    end: whole.end as u32,
                },
            );
        }
    }

    /// Sends what waits: first what was in flight when the last connection broke, in order [MQTT-4.4.0-1], then the queue.
    pub fn pump(&mut self, now: Now, slot: u32) {
        let link = self.links[slot as usize];
        if link.conn == NO_CONN {
            return;
        }
        let conn = ConnSlot(link.conn);
        while self.has_room_in_tick(conn) {
            let session = self.session(slot);
            let out = &session.outgoing;
            let has_more = if out.sent < out.inflight.len() {
                out.sent < usize::from(session.window) && self.resend_next(now, slot, link)
            } else {
                self.send_queued(now, slot, link)
            };
            if !has_more {
                return;
            }
        }
        self.continue_later(conn, slot);
    }

    /// Whether a message that has just been published may be queued for a connection.
    #[inline]
    fn takes_more(&self, conn: ConnSlot) -> bool {
        self.outbox.queued_bytes(conn) <= self.config.output_buffer_bytes && !self.outbox.is_full()
    }

    /// Whether more may be queued for a connection in this tick.
    pub fn has_room_in_tick(&self, conn: ConnSlot) -> bool {
        self.outbox.queued_bytes(conn) <= self.config.output_buffer_bytes && !self.outbox.is_over_soft_limit()
    }

    /// Has a session looked at again in the next tick. One with a backlog is looked at when that has drained.
    pub fn continue_later(&mut self, conn: ConnSlot, slot: u32) {
        let has_backlog = self.outbox.has_backlog(conn);
        let session = self.session_mut(slot);
        if !has_backlog && !session.is_unfinished {
            session.is_unfinished = true;
            self.unfinished.push_back(slot);
        }
    }

    fn resend_next(&mut self, now: Now, slot: u32, link: Link) -> bool {
        let out = &mut self.session_mut(slot).outgoing;
        let entry = &out.inflight[out.sent];
        let (id, delivery) = (entry.id, entry.delivery.clone());
        out.sent += 1;
        self.resend(now, slot, link, id, delivery);
        true
    }

    /// Repeats a PUBLISH with DUP set [MQTT-3.3.1-1], or the PUBREL that follows it.
    pub fn resend(&mut self, now: Now, slot: u32, link: Link, id: PacketId, delivery: Option<Delivery>) {
        let conn = ConnSlot(link.conn);
        let Some(delivery) = delivery else {
            self.send_ack(conn, PacketType::PubRel, id);
            return;
        };
        let p = delivery.message.publication();
        let identifiers = if link.is_v5 { delivery.tag.identifiers() } else { &[] };
        let extras = PublishExtras {
            subscription_identifiers: identifiers,
            ..PublishExtras::default()
        };
        let mark = self.outbox.mark();
        let (range, _) = self.encode(
            now,
            link.is_v5,
            &p,
            delivery.qos,
            delivery.retain,
            true,
            Some(id),
            extras,
        );
        self.stats.messages_redelivered += 1;
        if range.len() > link.maximum_packet_size as usize {
            // The client now accepts less than before: as if it had been acknowledged [MQTT-3.1.2-25].
            self.outbox.arena.truncate(mark);
            self.dropped(now, slot, DropReason::TooLargeForClient);
            let out = &mut self.session_mut(slot).outgoing;
            let is_done = match delivery.qos {
                QoS::ExactlyOnce => matches!(out.pubrec_failed(id), crate::outgoing::Acknowledged::Done(_)),
                _ => matches!(out.puback(id), crate::outgoing::Acknowledged::Done(_)),
            };
            self.stats.inflight_messages -= u64::from(is_done);
            if let Some(group) = delivery.tag.group() {
                self.let_go(slot, group);
            }
            return;
        }
        self.push(conn, range);
        self.count_sent(slot, delivery.qos, range.len(), p.payload.len());
    }

    fn send_queued(&mut self, now: Now, slot: u32, link: Link) -> bool {
        let session = self.session_mut(slot);
        let Some(next) = session.outgoing.queue.front() else {
            return false;
        };
        let needs_id = next.qos != QoS::AtMostOnce;
        if needs_id
            && (session.outgoing.inflight.len() >= usize::from(session.window) || session.outgoing.next_id().is_none())
        {
            return false;
        }
        let delivery = session.outgoing.pop_queue().expect("`front` was there");
        let id = session.outgoing.next_id();
        self.stats.queued_messages -= 1;
        self.stats.queued_bytes -= delivery.message.kept_bytes() as u64;
        if delivery.message.is_expired(now) {
            self.dropped(now, slot, DropReason::Expired);
            if let Some(group) = delivery.tag.group() {
                self.let_go(slot, group);
            }
            return true;
        }
        let message = delivery.message.clone();
        let p = message.publication();
        let mut forms = Forms::of(delivery.message);
        let terms = Terms {
            qos: delivery.qos,
            retain: delivery.retain,
            identifiers: delivery.tag.identifiers(),
            group: delivery.tag.group(),
        };
        let delivered = match id {
            Some(id) if needs_id => self.send_new(now, slot, link, &p, terms, &mut forms, id),
            _ => self.send_qos0(now, slot, link, &p, terms, &mut forms),
        };
        if let (Delivered::Dropped(_), Some(group)) = (delivered, terms.group) {
            self.let_go(slot, group);
        }
        true
    }

    /// A message that a group gave to a session is gone without an acknowledgement.
    fn let_go(&mut self, slot: u32, group: GroupRef) {
        if self.config.counts_inflight() {
            let member = SessionRef {
                shard: self.id,
                session: slot,
                epoch: self.session(slot).epoch,
            };
            self.let_go.push((member, group));
        }
    }

    /// Puts a message into a session's queue, within its limits.
    pub fn enqueue(&mut self, now: Now, slot: u32, delivery: Delivery) -> Delivered {
        let (max_messages, max_bytes) = (self.config.queued_messages_max, self.config.queued_bytes_max);
        let bytes = delivery.message.kept_bytes();
        let policy = self.config.queue_drop;
        loop {
            let out = &self.session(slot).outgoing;
            let is_full = out.queue.len() >= max_messages || out.queued_bytes + bytes > max_bytes;
            if is_full && out.queue.front().is_some_and(|oldest| oldest.message.is_expired(now)) {
                // Before a live one has to go, or is refused.
                self.drop_oldest(now, slot, DropReason::Expired);
                continue;
            }
            let reason = if out.queue.len() >= max_messages {
                DropReason::QueueFullByCount
            } else if out.queued_bytes + bytes > max_bytes {
                DropReason::QueueFullByBytes
            } else {
                break;
            };
            if policy == QueueDrop::Newest || out.queue.is_empty() {
                return self.dropped(now, slot, reason);
            }
            self.drop_oldest(now, slot, reason);
        }
        self.session_mut(slot).outgoing.push_queue(delivery);
        self.stats.queued_messages += 1;
        self.stats.queued_bytes += bytes as u64;
        Delivered::Queued
    }

    fn drop_oldest(&mut self, now: Now, slot: u32, reason: DropReason) {
        if let Some(oldest) = self.session_mut(slot).outgoing.pop_queue() {
            self.stats.queued_messages -= 1;
            self.stats.queued_bytes -= oldest.message.kept_bytes() as u64;
            self.dropped(now, slot, reason);
            if let Some(group) = oldest.tag.group() {
                self.let_go(slot, group);
            }
        }
    }

    /// Counts a drop for the node and the session, and reports the first of its kind.
    #[cold]
    pub fn dropped(&mut self, now: Now, slot: u32, reason: DropReason) -> Delivered {
        self.stats.drop_message(reason);
        let session = self.session_mut(slot);
        if session.count_drop(reason, now.unix_ms) {
            let client_id = session.client_id.clone();
            self.effects.push(Effect::Event(Event::Dropping { client_id, reason }));
        }
        Delivered::Dropped(reason)
    }

    #[inline]
    pub fn count_sent(&mut self, slot: u32, qos: QoS, packet_bytes: usize, payload_bytes: usize) {
        let link = &mut self.links[slot as usize];
        link.messages_sent += 1;
        link.bytes_sent += packet_bytes as u64;
        self.stats.messages_sent[qos as usize] += 1;
        self.stats.packets_sent[PacketType::Publish as usize] += 1;
        self.stats.bytes_sent += packet_bytes as u64;
        self.stats.publish_bytes_sent += payload_bytes as u64;
    }

    #[inline]
    pub fn count_broadcast(&mut self, slot: u32, messages: u64, bytes: usize) {
        let link = &mut self.links[slot as usize];
        link.messages_sent += messages;
        link.bytes_sent += bytes as u64;
    }

    /// Queues a bare four-byte acknowledgement, the form that all versions share.
    #[inline]
    pub fn send_ack(&mut self, conn: ConnSlot, kind: PacketType, id: PacketId) {
        let mark = self.outbox.mark();
        mqtt::encode_bare_ack(kind, id, &mut self.outbox.arena);
        let range = self.outbox.range_from(mark);
        self.push(conn, range);
        self.stats.packets_sent[kind as usize] += 1;
        self.stats.bytes_sent += 4;
    }
}

/// A topic this short is not worth the three bytes of an alias.
const ALIAS_TOPIC_BYTES_MIN: usize = 4;

/// Set on an alias that the client has been told already. The server hands out fewer aliases than this bit.
const KNOWN_ALIAS: u16 = 0x8000;
