//! What a session still has to be sent: the queue, its limits, and how it goes on when there is room.

use mqtt::{PacketId, PacketType, PublishExtras, QoS};

use crate::config::QueueDrop;
use crate::deliver::encode::Forms;
use crate::deliver::{Core, Delivered, Link, NO_CONN, Terms};
use crate::durable::record::Record;
use crate::effect::{ConnSlot, DropReason, Now};
use crate::fault::{Fault, is_planted};
use crate::mail::SessionRef;
use crate::message::Place;
use crate::outgoing::{Delivery, GroupRef, Tag};

impl Core {
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
                return self.fetch_more(slot);
            }
        }
        self.continue_later(conn, slot);
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
        let (id, delivery) = (entry.id(), entry.delivery.clone());
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
            !is_planted(Fault::ForgetDup),
            Some(id),
            extras,
        );
        self.stats.messages_redelivered += 1;
        if range.len() > link.maximum_packet_size as usize {
            // The client now accepts less than before: as if it had been acknowledged [MQTT-3.1.2-25].
            self.outbox.arena.truncate(mark);
            self.drop_queued(now, slot, DropReason::TooLargeForClient, &delivery);
            self.keep_settled(slot, delivery.seq, false);
            let out = &mut self.session_mut(slot).outgoing;
            let is_done = match delivery.qos {
                QoS::ExactlyOnce => matches!(out.pubrec_failed(id), crate::outgoing::Acknowledged::Done(_)),
                _ => matches!(out.puback(id), crate::outgoing::Acknowledged::Done(_)),
            };
            self.stats.inflight_messages -= u64::from(is_done);
            if let Some(group) = delivery.tag.group() {
                self.let_go(slot, group, delivery.message.place());
            }
            return;
        }
        self.push(conn, range);
        self.count_sent(slot, delivery.qos, range.len(), p.payload.len());
        self.tap_delivered(now, slot, &p, delivery.qos, delivery.retain, true);
    }

    fn send_queued(&mut self, now: Now, slot: u32, link: Link) -> bool {
        let session = self.session_mut(slot);
        let Some(next) = session.outgoing.queue.front() else {
            return false;
        };
        let needs_id = next.qos != QoS::AtMostOnce;
        let seq = next.seq;
        let out = &session.outgoing;
        // In flight before the last connection broke, and not back in memory: that comes first.
        let is_early = out.cold.as_ref().is_some_and(|cold| !cold.inflight.is_empty());
        let is_kept_first = link.is_durable || next.tag.group().is_some_and(|group| group.key.0 != 0);
        let is_unkept = is_kept_first
            && next.qos == QoS::ExactlyOnce
            && seq > out.kept_seq
            && !is_planted(Fault::DeliverBeforeCommit);
        if is_early || needs_id && (out.inflight.len() >= usize::from(session.window) || !out.is_free(seq) || is_unkept)
        {
            return false;
        }
        let delivery = session.outgoing.pop_queue().expect("`front` was there");
        self.stats.queued_messages -= 1;
        self.stats.queued_bytes -= delivery.kept_bytes() as u64;
        if delivery.message.is_expired(now) {
            self.keep_settled(slot, seq, false);
            self.drop_queued(now, slot, DropReason::Expired, &delivery);
            if let Some(group) = delivery.tag.group() {
                self.let_go(slot, group, delivery.message.place());
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
        let delivered = match needs_id {
            true => self.send_new(now, slot, link, &p, terms, &mut forms, seq),
            false => self.send_qos0(now, slot, link, &p, terms, &mut forms),
        };
        if !needs_id || matches!(delivered, Delivered::Dropped(_)) {
            self.keep_settled(slot, seq, false);
        }
        if let (Delivered::Dropped(_), Some(group)) = (delivered, terms.group) {
            self.let_go(slot, group, p.place);
        }
        true
    }

    /// A message that a group gave to a session is gone without an acknowledgement.
    fn let_go(&mut self, slot: u32, group: GroupRef, place: Place) {
        if self.is_lent(slot, QoS::AtLeastOnce, group.key) {
            let group = group.key;
            self.record_of(place, |message| Record::GroupDropped { group, message });
        }
        if self.config.counts_inflight() {
            let member = SessionRef {
                shard: self.id,
                session: slot,
                epoch: self.session(slot).epoch,
            };
            self.let_go.push((member, group));
        }
    }

    /// Whether a message of a group could go into a session's queue without another's having to go. `bytes`: of the message alone.
    pub fn has_space(&self, slot: u32, bytes: usize) -> bool {
        let out = &self.session(slot).outgoing;
        let bytes = bytes + Tag::GROUP_BYTES_MAX;
        let is_full =
            out.queued() >= self.config.queued_messages_max || out.queued_bytes + bytes > self.config.queued_bytes_max;
        !is_full || out.queued() == 0
    }

    /// Puts a message into a session's queue, within its limits.
    pub fn enqueue(&mut self, now: Now, slot: u32, mut delivery: Delivery, terms: Terms<'_>) -> Delivered {
        let (max_messages, max_bytes) = (self.config.queued_messages_max, self.config.queued_bytes_max);
        let bytes = delivery.kept_bytes();
        let policy = self.config.queue_drop;
        loop {
            let out = &self.session(slot).outgoing;
            let is_full = out.queued() >= max_messages || out.queued_bytes + bytes > max_bytes;
            if is_full && out.queue.front().is_some_and(|oldest| oldest.message.is_expired(now)) {
                // Before a live one has to go, or is refused.
                self.drop_oldest(now, slot, DropReason::Expired);
                continue;
            }
            let reason = if out.queued() >= max_messages {
                DropReason::QueueFullByCount
            } else if out.queued_bytes + bytes > max_bytes {
                DropReason::QueueFullByBytes
            } else {
                break;
            };
            if policy == QueueDrop::Newest || out.queued() == 0 {
                return self.drop_queued(now, slot, reason, &delivery);
            }
            self.drop_oldest(now, slot, reason);
        }
        let out = &mut self.session_mut(slot).outgoing;
        delivery.seq = out.next_seq();
        let seq = delivery.seq;
        out.push_queue(delivery);
        self.note_target(slot, seq, terms);
        self.cool_later(slot);
        self.stats.queued_messages += 1;
        self.stats.queued_bytes += bytes as u64;
        Delivered::Queued
    }

    fn drop_oldest(&mut self, now: Now, slot: u32, reason: DropReason) {
        let out = &mut self.session_mut(slot).outgoing;
        let before = out.queued_bytes;
        if let Some(oldest) = out.pop_queue() {
            self.stats.queued_messages -= 1;
            self.stats.queued_bytes -= oldest.kept_bytes() as u64;
            self.keep_settled(slot, oldest.seq, false);
            self.drop_queued(now, slot, reason, &oldest);
            if let Some(group) = oldest.tag.group() {
                self.let_go(slot, group, oldest.message.place());
            }
        } else if let Some((seq, group, place)) = out.pop_cold() {
            // What came since the others went cold is in memory.
            let freed = before - out.queued_bytes;
            self.stats.queued_messages -= 1;
            self.stats.queued_bytes -= freed as u64;
            self.keep_settled(slot, seq, false);
            self.drop_cold(now, slot, reason);
            if let Some(group) = group {
                self.let_go(slot, group, place);
            }
        }
    }
}
