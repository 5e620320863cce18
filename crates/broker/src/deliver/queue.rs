//! The queue of a session: its limits, and sending from it when the connection accepts more.

use std::sync::Arc;

use mqtt::{PacketId, PacketType, PublishExtras, QoS};

use crate::config::QueueDropPolicy;
use crate::deliver::{DeliverResult, ShardCore};
use crate::delivery::{Delivery, DeliveryOptions, GroupRef};
use crate::durable::record::JournalRecord;
use crate::effect::{DropReason, Now};
use crate::encode::{EncodedForms, PublishForm};
use crate::fault::{Fault, is_planted};
use crate::message::RecordLocation;
use crate::session_link::{LinkFlag, SessionLink};
use crate::slots::{ConnSlot, ConnectNumber, SessionRef, SessionSlot};

impl ShardCore {
    /// Sends messages of a session: first those in flight from an earlier connection, in order [MQTT-4.4.0-1], then the
    /// queue.
    pub fn pump(&mut self, now: Now, slot: SessionSlot) {
        let link = self.sessions.link(slot);
        if link.conn == ConnSlot::NONE {
            return;
        }
        let conn = link.conn;
        while self.outbox.has_tick_capacity(conn, &self.config) {
            let session = self.sessions.at(slot);
            let out = &session.outgoing;
            let has_more = if out.sent < out.inflight.len() {
                let is_in_window = out.sent < usize::from(session.window);
                if is_in_window {
                    let out = &mut self.sessions.at_mut(slot).outgoing;
                    let entry = &out.inflight[out.sent];
                    let (id, delivery) = (entry.id(), entry.delivery.clone());
                    out.sent += 1;
                    self.resend(now, slot, link, id, delivery);
                }
                is_in_window
            } else {
                self.send_queued(now, slot, link)
            };
            if !has_more {
                let session = self.sessions.at(slot);
                if link.must_check_queue() && session.outgoing.is_idle() && session.replays.is_done() {
                    self.sessions.link_mut(slot).set(LinkFlag::MustCheckQueue, false);
                }
                return self.sessions.fetch_more(&mut self.ledger, &mut self.effects, slot);
            }
        }
        self.continue_later(conn, slot);
    }

    /// Schedules the session for the next tick. A session with a backlog continues when that has drained.
    pub fn continue_later(&mut self, conn: ConnSlot, slot: SessionSlot) {
        let has_backlog = self.outbox.has_backlog(conn);
        let session = self.sessions.at_mut(slot);
        if !has_backlog && !session.is_unfinished {
            session.is_unfinished = true;
            self.unfinished.push_back(slot);
        }
    }

    /// Resends messages that a client has not acknowledged in time. Returns false if the session has another connection
    /// now, or none.
    pub fn resend_unacknowledged(&mut self, now: Now, slot: SessionSlot, connect_number: ConnectNumber) -> bool {
        let Some(session) = self.sessions.get(slot) else {
            return false;
        };
        if session.connect_number != connect_number || session.conn.is_none() {
            return false;
        }
        let link = self.sessions.link(slot);
        for at in 0..session.outgoing.sent {
            let Some(entry) = self.sessions.at(slot).outgoing.inflight.get(at) else {
                break;
            };
            let (id, delivery) = (entry.id(), entry.delivery.clone());
            if self.outbox.queued_bytes(link.conn) > self.config.output_buffer_bytes {
                break;
            }
            self.resend(now, slot, link, id, delivery);
        }
        true
    }

    /// Resends a PUBLISH with DUP set [MQTT-3.3.1-1], or its PUBREL.
    fn resend(&mut self, now: Now, slot: SessionSlot, link: SessionLink, id: PacketId, delivery: Option<Delivery>) {
        let conn = link.conn;
        let Some(delivery) = delivery else {
            self.send_ack(conn, PacketType::PubRel, id);
            return;
        };
        let p = delivery.message.publication();
        let identifiers = if link.is_v5() { delivery.tag.identifiers() } else { &[] };
        let extras = PublishExtras {
            subscription_identifiers: identifiers,
            ..PublishExtras::default()
        };
        let mark = self.outbox.mark();
        let form = PublishForm {
            is_v5: link.is_v5(),
            qos: delivery.qos,
            retain: delivery.retain,
            dup: !is_planted(Fault::ForgetDup),
            id: Some(id),
            extras,
        };
        let shown = self.sessions.shown(slot, &p);
        let (range, _) = self.outbox.encode_publish(now, shown.as_deref().unwrap_or(&p), form);
        // A message that the client may not receive any more counts as acknowledged: its access rules have changed, or
        // its Maximum Packet Size is now smaller [MQTT-3.1.2-25].
        let is_forbidden = link.must_check_queue() && !self.sessions.at(slot).can_receive(p.topic);
        let refusal = if shown.is_none() || is_forbidden {
            Some(DropReason::NotAuthorizedToReceive)
        } else {
            (range.len() > link.maximum_packet_size as usize).then_some(DropReason::TooLargeForClient)
        };
        if let Some(reason) = refusal {
            self.outbox.arena.truncate(mark);
            self.drop_for(now, slot, reason, Some(&delivery.publication()));
            self.ledger
                .record_acknowledged(&self.sessions, slot, delivery.seq, false);
            let out = &mut self.sessions.at_mut(slot).outgoing;
            let is_done = match delivery.qos {
                QoS::ExactlyOnce => matches!(out.pubrec_failed(id), crate::outgoing::AckResult::Done(_)),
                _ => matches!(out.puback(id), crate::outgoing::AckResult::Done(_)),
            };
            self.stats.inflight_messages -= u64::from(is_done);
            if let Some(group) = delivery.tag.group() {
                self.report_group_drop(slot, group, delivery.message.place());
            }
            return;
        }
        self.stats.messages_redelivered += 1;
        self.push(conn, range);
        self.count_sent(slot, delivery.qos, range.len(), p.payload.len());
        self.taps.redelivered(now, self.sessions.at(slot), &delivery);
    }

    fn send_queued(&mut self, now: Now, slot: SessionSlot, link: SessionLink) -> bool {
        let session = self.sessions.at_mut(slot);
        let Some(next) = session.outgoing.queue.front() else {
            return false;
        };
        let needs_id = next.qos != QoS::AtMostOnce;
        let seq = next.seq;
        let out = &session.outgoing;
        // Messages in flight from an earlier connection that are not in memory come first.
        let is_early = out.cold.as_ref().is_some_and(|cold| !cold.entries.earlier().is_empty());
        let needs_commit = link.is_durable() || next.tag.group().is_some_and(|group| group.key.0 != 0);
        let is_uncommitted = needs_commit
            && next.qos == QoS::ExactlyOnce
            && seq > out.committed_seq
            && !is_planted(Fault::DeliverBeforeCommit);
        if is_early
            || needs_id && (out.inflight.len() >= usize::from(session.window) || !out.is_free(seq) || is_uncommitted)
        {
            return false;
        }
        let delivery = session.outgoing.pop_queue().expect("the queue has a front entry");
        self.stats.queued_messages -= 1;
        self.stats.queued_bytes -= delivery.queued_bytes() as u64;
        let is_forbidden = link.must_check_queue() && !self.sessions.at(slot).can_receive(delivery.publication().topic);
        if is_forbidden || delivery.message.is_expired(now) {
            let reason = match is_forbidden {
                true => DropReason::NotAuthorizedToReceive,
                false => DropReason::Expired,
            };
            self.ledger.record_acknowledged(&self.sessions, slot, seq, false);
            self.drop_for(now, slot, reason, Some(&delivery.publication()));
            if let Some(group) = delivery.tag.group() {
                self.report_group_drop(slot, group, delivery.message.place());
            }
            return true;
        }
        let (group, place) = (delivery.tag.group(), delivery.message.place());
        let delivered = match needs_id {
            true => self.start_queued(now, slot, delivery),
            false => {
                let terms = delivery.options();
                let mut forms = EncodedForms::of(Arc::clone(&delivery.message));
                self.send_qos0(now, slot, &delivery.message.publication(), terms, &mut forms)
            }
        };
        if !needs_id || matches!(delivered, DeliverResult::Dropped(_)) {
            self.ledger.record_acknowledged(&self.sessions, slot, seq, false);
        }
        if let (DeliverResult::Dropped(_), Some(group)) = (delivered, group) {
            self.report_group_drop(slot, group, place);
        }
        true
    }

    /// Informs the group that a member dropped a message without acknowledging it.
    fn report_group_drop(&mut self, slot: SessionSlot, group: GroupRef, place: RecordLocation) {
        if self
            .ledger
            .group_retains(self.sessions.link(slot), QoS::AtLeastOnce, group.key)
        {
            let group = group.key;
            self.ledger
                .record_of(place, |message| JournalRecord::GroupDropped { group, message });
        }
        if self.config.counts_inflight() {
            let member = SessionRef {
                shard: self.id,
                session: slot,
                epoch: self.sessions.at(slot).epoch,
            };
            self.released_members.push((member, group));
        }
    }

    /// Appends a message to a session's queue, within its limits.
    pub fn enqueue(
        &mut self,
        now: Now,
        slot: SessionSlot,
        mut delivery: Delivery,
        terms: DeliveryOptions<'_>,
    ) -> DeliverResult {
        let (max_messages, max_bytes) = (self.config.max_queued_messages, self.config.max_queued_bytes);
        // A group has checked the limit of the user (`has_space`). If it was reached since, the message is not lost.
        let user_max = match terms.group {
            Some(_) => u64::MAX,
            None => self.config.shares.user.queued_bytes,
        };
        let bytes = delivery.queued_bytes();
        let policy = self.config.queue_drop;
        if bytes > max_bytes {
            return self.drop_for(now, slot, DropReason::QueueFullByBytes, Some(&delivery.publication()));
        }
        loop {
            let out = &mut self.sessions.at_mut(slot).outgoing;
            let reason = if out.queued() >= max_messages {
                DropReason::QueueFullByCount
            } else if out.queued_bytes.get() + bytes > max_bytes {
                DropReason::QueueFullByBytes
            } else if !out.queued_bytes.try_add(bytes, user_max) {
                DropReason::UserQueueFull
            } else {
                break;
            };
            if out.queue.front().is_some_and(|oldest| oldest.message.is_expired(now)) {
                // Drop expired messages before live ones.
                self.drop_oldest(now, slot, DropReason::Expired);
                continue;
            }
            let is_hopeless = reason == DropReason::UserQueueFull && !out.queued_bytes.can_make_space(bytes, user_max);
            if policy == QueueDropPolicy::Newest || out.queued() == 0 || is_hopeless {
                return self.drop_for(now, slot, reason, Some(&delivery.publication()));
            }
            self.drop_oldest(now, slot, reason);
        }
        let out = &mut self.sessions.at_mut(slot).outgoing;
        delivery.seq = out.next_seq();
        let seq = delivery.seq;
        out.push_queue(delivery);
        self.ledger.add_recipient(&mut self.sessions, slot, seq, terms);
        self.sessions.evict_later(&mut self.ledger, slot);
        self.stats.queued_messages += 1;
        self.stats.queued_bytes += bytes as u64;
        DeliverResult::Queued
    }

    fn drop_oldest(&mut self, now: Now, slot: SessionSlot, reason: DropReason) {
        let out = &mut self.sessions.at_mut(slot).outgoing;
        let before = out.queued_bytes.get();
        if let Some(oldest) = out.pop_queue() {
            self.stats.queued_messages -= 1;
            self.stats.queued_bytes -= oldest.queued_bytes() as u64;
            self.ledger.record_acknowledged(&self.sessions, slot, oldest.seq, false);
            self.drop_for(now, slot, reason, Some(&oldest.publication()));
            if let Some(group) = oldest.tag.group() {
                self.report_group_drop(slot, group, oldest.message.place());
            }
        } else if let Some((seq, group, place)) = out.pop_cold() {
            let freed = before - out.queued_bytes.get();
            self.stats.queued_messages -= 1;
            self.stats.queued_bytes -= freed as u64;
            self.ledger.record_acknowledged(&self.sessions, slot, seq, false);
            self.drop_for(now, slot, reason, None);
            if let Some(group) = group {
                self.report_group_drop(slot, group, place);
            }
        }
    }
}
