//! Messages that a session has not acknowledged: in flight at QoS 1 and 2, and the queue behind them.
//!
//! A message gets its number when it is queued or sent at once. The packet identifier is derived from the number, so it
//! is the same after a restart. Identifiers wrap around and stop at the oldest one in use. An acknowledgement finds its
//! message by binary search. The caller bounds both lists (Receive Maximum, queue limits).

use mqtt::{PacketId, QoS};

use crate::config::ShardConfig;
use crate::delivery::{Delivery, DeliveryTag, GroupRef};
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::TaggedEntry;
use crate::durable::journaled_queue::ColdEntries;
use crate::durable::record::Seq;
use crate::lazy_deque::LazyDeque;
use crate::message::RecordLocation;
use crate::message_size::MessageSize;
use crate::queued_bytes::QueuedBytes;

#[derive(Debug)]
pub struct Inflight {
    pub seq: Seq,
    /// `None` after PUBREC: only PUBREL and PUBCOMP are outstanding [MQTT-4.3.3-7].
    pub delivery: Option<Delivery>,
}

impl Inflight {
    pub fn id(&self) -> PacketId {
        packet_id(self.seq)
    }
}

/// Returns the packet identifier of a session's n-th message. Identifiers wrap around and skip 0.
pub fn packet_id(seq: Seq) -> PacketId {
    let id = seq.wrapping_sub(1) % IDS + 1;
    PacketId::new(id as u16).expect("between 1 and 65,535")
}

const IDS: u64 = u16::MAX as u64;

#[derive(Debug, Default)]
pub struct OutgoingMessages {
    pub inflight: LazyDeque<Inflight>,
    pub queue: LazyDeque<Delivery>,
    /// Bytes of the queued messages, in memory or not (`Delivery::queued_bytes`).
    pub queued_bytes: QueuedBytes,
    /// Queued QoS 0 messages. Later QoS 0 messages must not overtake them.
    pub queued_qos0: u32,
    /// Number of the latest message. Numbers are never reused.
    pub last_seq: Seq,
    /// Messages up to this one are committed to the journal and may be sent at QoS 2.
    pub committed_seq: Seq,
    /// How many of `inflight`, from the front, have been sent on the current connection.
    pub sent: usize,
    /// Counts the evictions that moved messages from memory to the front of `cold`.
    pub evictions: u32,
    /// Entries after `inflight` and `queue` whose messages are only in the journal.
    pub cold: Option<Box<ColdEntries>>,
}

/// Result of an acknowledgement.
#[derive(Debug)]
pub enum AckResult {
    /// The exchange is complete. Contains the delivery if it was still stored.
    Done(Option<Delivery>),
    /// PUBREC received; PUBREL follows.
    Release,
    Unknown,
}

impl OutgoingMessages {
    /// Returns whether the packet identifier of a message is free. It is not while a message that is 65,535 numbers
    /// older is in flight.
    #[inline]
    pub fn is_free(&self, seq: Seq) -> bool {
        self.oldest_in_flight().is_none_or(|oldest| seq - oldest < IDS)
    }

    #[inline]
    fn oldest_in_flight(&self) -> Option<Seq> {
        let cold = self.cold.as_ref().and_then(|cold| cold.entries.earlier().front());
        self.inflight
            .front()
            .map(|entry| entry.seq)
            .or(cold.map(|entry| entry.seq()))
    }

    /// Adds a message to the ones in flight.
    pub fn start(&mut self, delivery: Delivery) {
        debug_assert_eq!(
            self.sent,
            self.inflight.len(),
            "all messages in flight are sent again before new ones"
        );
        self.inflight.push_back(Inflight {
            seq: delivery.seq,
            delivery: Some(delivery),
        });
        self.sent += 1;
    }

    /// Moves the first QoS 1 messages of a disconnected session to the ones in flight, because they may have been sent.
    /// A QoS 2 message is never sent before its commit, and later messages do not overtake it. Returns the number of
    /// moved messages.
    pub fn count_as_sent(&mut self) -> usize {
        let mut count = 0;
        while let Some(Delivery { qos, seq, .. }) = self.queue.front()
            && *qos == QoS::AtLeastOnce
            && self.is_free(*seq)
            && let Some(delivery) = self.pop_queue()
        {
            self.inflight.push_back(Inflight {
                seq: delivery.seq,
                delivery: Some(delivery),
            });
            count += 1;
        }
        let oldest = self.oldest_in_flight();
        if let Some(cold) = &mut self.cold {
            let oldest = oldest
                .or(cold.entries.queue().front().map(|next| next.seq()))
                .unwrap_or(0);
            let may_be = |next: &StoredEntry| next.qos() == QoS::AtLeastOnce && next.seq() - oldest < IDS;
            let (moved, bytes) = cold.entries.move_to_earlier_while(may_be);
            count += moved;
            self.queued_bytes.remove(bytes);
        }
        count
    }

    /// Returns the latest message that has been sent on any connection; 0 if none is in flight.
    pub fn started(&self) -> Seq {
        let cold = self
            .cold
            .as_ref()
            .and_then(|cold| cold.entries.earlier().back())
            .map(|entry| entry.seq());
        cold.or(self.inflight.back().map(|entry| entry.seq)).unwrap_or(0)
    }

    /// Assigns the number of a message that is queued or sent now.
    pub fn next_seq(&mut self) -> Seq {
        self.last_seq += 1;
        self.last_seq
    }

    /// Returns the number that a packet identifier refers to if it is in flight.
    pub fn seq_of(&self, id: PacketId) -> Seq {
        let oldest = self.inflight.front().map_or(1, |entry| entry.seq);
        oldest + (u64::from(id.get()) + IDS - u64::from(packet_id(oldest).get())) % IDS
    }

    #[inline]
    fn position(&self, id: PacketId) -> Option<usize> {
        let oldest = self.inflight.front()?.seq;
        // Clients acknowledge in the order of delivery [MQTT-4.6.0-2].
        if packet_id(oldest) == id {
            return Some(0);
        }
        let seq = self.seq_of(id);
        // The numbers have no gap, unless a client acknowledged out of order.
        let at = usize::try_from(seq.checked_sub(oldest)?).ok()?;
        if self.inflight.get(at).is_some_and(|entry| entry.seq == seq) {
            return Some(at);
        }
        self.inflight.binary_search_by_key(&seq, |entry| entry.seq).ok()
    }

    fn finish(&mut self, at: usize) -> Option<Delivery> {
        if at < self.sent {
            self.sent -= 1;
        }
        let done = if at == 0 {
            self.inflight.pop_front()
        } else {
            self.inflight.remove(at)
        };
        done.and_then(|entry| entry.delivery)
    }

    /// Handles PUBACK. A PUBACK for a QoS 2 message is as unknown as one without a message.
    pub fn puback(&mut self, id: PacketId) -> AckResult {
        match self.position(id) {
            Some(at)
                if self.inflight[at]
                    .delivery
                    .as_ref()
                    .is_some_and(|d| d.qos == QoS::AtLeastOnce) =>
            {
                AckResult::Done(self.finish(at))
            }
            _ => AckResult::Unknown,
        }
    }

    /// Handles a successful PUBREC: the message is no longer needed, but the identifier is [MQTT-4.3.3-4].
    pub fn pubrec(&mut self, id: PacketId) -> (AckResult, Option<Delivery>) {
        let Some(at) = self.position(id) else {
            return (AckResult::Unknown, None);
        };
        let entry = &mut self.inflight[at];
        if entry.delivery.as_ref().is_some_and(|d| d.qos != QoS::ExactlyOnce) {
            return (AckResult::Unknown, None);
        }
        (AckResult::Release, entry.delivery.take())
    }

    /// Handles a PUBREC with an error code: the client rejects the message [MQTT-4.3.3-5].
    pub fn pubrec_failed(&mut self, id: PacketId) -> AckResult {
        match self.position(id) {
            Some(at)
                if self.inflight[at]
                    .delivery
                    .as_ref()
                    .is_some_and(|d| d.qos == QoS::ExactlyOnce) =>
            {
                AckResult::Done(self.finish(at))
            }
            _ => AckResult::Unknown,
        }
    }

    pub fn pubcomp(&mut self, id: PacketId) -> AckResult {
        match self.position(id) {
            Some(at) if self.inflight[at].delivery.is_none() => AckResult::Done(self.finish(at)),
            _ => AckResult::Unknown,
        }
    }

    /// Returns the number of queued messages, in memory or not.
    pub fn queued(&self) -> usize {
        self.queue.len() + self.cold.as_ref().map_or(0, |cold| cold.queued())
    }

    /// Adds up the bytes of the queued messages. Equals `queued_bytes`.
    pub fn sum_of_queued_bytes(&self) -> usize {
        let fresh = self.cold.iter().flat_map(|cold| cold.fresh.iter());
        let in_memory: usize = self.queue.iter().chain(fresh).map(Delivery::queued_bytes).sum();
        in_memory + self.cold.as_ref().map_or(0, |cold| cold.entries.queued_bytes())
    }

    /// Returns whether a group's message of `bytes` fits into the queue without dropping another. `window` is that of
    /// the connection, 0 without one: while nothing precedes the message, it needs no space of the user.
    pub fn has_space(&self, bytes: usize, window: u16, config: &ShardConfig) -> bool {
        let bytes = MessageSize::of(bytes).bytes() + DeliveryTag::GROUP_BYTES_MAX;
        let is_full =
            self.queued() >= config.max_queued_messages || self.queued_bytes.get() + bytes > config.max_queued_bytes;
        let has_own = !is_full || self.queued() == 0;
        let is_open = || self.is_idle() && self.inflight.len() < usize::from(window);
        has_own && (self.queued_bytes.is_user_below(bytes, config.shares.user.queued_bytes) || is_open())
    }

    /// Returns whether a new message can be sent at once, because nothing precedes it.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.sent == self.inflight.len() && self.cold.is_none()
    }

    /// Returns the number of messages in flight, in memory or not.
    pub fn unacknowledged(&self) -> usize {
        self.inflight.len() + self.cold.as_ref().map_or(0, |cold| cold.entries.earlier().len())
    }

    /// Returns the number of messages in flight that the client has not confirmed with PUBACK or PUBREC.
    pub fn undelivered(&self) -> usize {
        let warm = self.inflight.iter().filter(|entry| entry.delivery.is_some()).count();
        let cold = self.cold.iter().flat_map(|cold| cold.entries.earlier().iter());
        warm + cold.filter(|(entry, _)| !entry.is_released()).count()
    }

    /// Returns the unconfirmed messages in memory.
    pub fn in_memory(&self) -> impl Iterator<Item = &Delivery> {
        let fresh = self.cold.iter().flat_map(|cold| cold.fresh.iter());
        let inflight = self.inflight.iter().filter_map(|entry| entry.delivery.as_ref());
        inflight.chain(self.queue.iter()).chain(fresh)
    }

    /// Appends a message whose bytes have been added to `queued_bytes`.
    pub fn push_queue(&mut self, delivery: Delivery) {
        self.queued_qos0 += u32::from(delivery.qos == QoS::AtMostOnce);
        match &mut self.cold {
            Some(cold) => cold.fresh.push_back(delivery),
            None => self.queue.push_back(delivery),
        }
    }

    /// Drops the oldest message that is cold or follows a cold one. Also returns its group and place. A cold message
    /// has no place here, because groups retain messages only for non-durable sessions.
    pub fn pop_cold(&mut self) -> Option<(Seq, Option<GroupRef>, RecordLocation)> {
        let cold = self.cold.as_mut()?;
        let oldest = match cold.entries.drop_oldest() {
            Some(dropped) => {
                self.queued_bytes.remove(dropped.bytes);
                self.queued_qos0 -= dropped.queued_qos0;
                (dropped.seq, dropped.tag.group(), RecordLocation::NONE)
            }
            None => {
                let delivery = cold.fresh.pop_front()?;
                self.queued_bytes.remove(delivery.queued_bytes());
                self.queued_qos0 -= u32::from(delivery.qos == QoS::AtMostOnce);
                (delivery.seq, delivery.tag.group(), delivery.message.place())
            }
        };
        self.merge_fresh_if_no_cold();
        Some(oldest)
    }

    #[inline]
    pub fn pop_queue(&mut self) -> Option<Delivery> {
        let delivery = self.queue.pop_front()?;
        self.queued_bytes.remove(delivery.queued_bytes());
        self.queued_qos0 -= u32::from(delivery.qos == QoS::AtMostOnce);
        Some(delivery)
    }

    /// Removes the matching messages from the queue and from the QoS 1 messages in flight, oldest first.
    pub fn extract(&mut self, mut wanted: impl FnMut(&Delivery) -> bool) -> Vec<Delivery> {
        let mut taken = Vec::new();
        let mut at = 0;
        while at < self.inflight.len() {
            let is_wanted = self.inflight[at]
                .delivery
                .as_ref()
                .is_some_and(|d| d.qos == QoS::AtLeastOnce && wanted(d));
            if is_wanted {
                taken.extend(self.finish(at));
            } else {
                at += 1;
            }
        }
        for queue in [Some(&mut self.queue), self.cold.as_mut().map(|cold| &mut cold.fresh)] {
            let Some(queue) = queue else { continue };
            for delivery in queue.take() {
                if wanted(&delivery) {
                    self.queued_bytes.remove(delivery.queued_bytes());
                    self.queued_qos0 -= u32::from(delivery.qos == QoS::AtMostOnce);
                    taken.push(delivery);
                } else {
                    queue.push_back(delivery);
                }
            }
        }
        taken
    }

    /// Removes up to `max` matching cold messages, as `extract` does for messages in memory.
    pub fn extract_cold(&mut self, max: usize, wanted: impl Fn(GroupRef) -> bool) -> Vec<TaggedEntry> {
        let Some(cold) = &mut self.cold else { return Vec::new() };
        let (taken, bytes) = cold.entries.extract_of_groups(max, wanted);
        self.queued_bytes.remove(bytes);
        self.merge_fresh_if_no_cold();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::DeliveryTag;
    use crate::message::{MessageOrigin, Publication};

    fn delivery(qos: QoS) -> Delivery {
        let message = Publication {
            topic: "t",
            payload: b"p",
            properties: b"",
            qos,
            retain: false,
            expires_at_ms: None,
            origin: MessageOrigin::NONE,
            publisher_hash: 0,
            place: crate::message::RecordLocation::NONE,
            provenance: crate::provenance::Provenance::NONE,
            owner: None,
        }
        .to_message();
        Delivery {
            message,
            qos,
            retain: false,
            seq: 0,
            tag: DeliveryTag::None,
        }
    }

    fn id(n: u16) -> PacketId {
        PacketId::new(n).unwrap()
    }

    fn start(out: &mut OutgoingMessages, qos: QoS) -> PacketId {
        out.last_seq += 1;
        let mut delivery = delivery(qos);
        delivery.seq = out.last_seq;
        out.start(delivery);
        packet_id(out.last_seq)
    }

    #[test]
    fn packet_ids_wrap_without_zero_and_stop_at_the_oldest() {
        let mut out = OutgoingMessages::default();
        for n in 1..=u16::MAX {
            assert!(out.is_free(out.last_seq + 1));
            assert_eq!(start(&mut out, QoS::AtLeastOnce), id(n));
        }
        assert!(!out.is_free(out.last_seq + 1));
        assert!(matches!(out.puback(id(2)), AckResult::Done(Some(_))));
        assert!(!out.is_free(out.last_seq + 1), "1 is still in use");
        assert!(matches!(out.puback(id(1)), AckResult::Done(Some(_))));
        assert!(out.is_free(out.last_seq + 1));
        assert_eq!(start(&mut out, QoS::AtLeastOnce), id(1));
    }

    #[test]
    fn acknowledgements_find_their_message_across_the_wrap() {
        let mut out = OutgoingMessages {
            last_seq: 65533,
            ..OutgoingMessages::default()
        };
        for _ in 0..5 {
            start(&mut out, QoS::AtLeastOnce);
        }
        for n in [1, 65534, 3, 65535, 2] {
            assert!(matches!(out.puback(id(n)), AckResult::Done(_)), "{n}");
            assert!(matches!(out.puback(id(n)), AckResult::Unknown), "{n} twice");
        }
        assert_eq!((out.inflight.len(), out.sent), (0, 0));
    }

    #[test]
    fn qos2_accepts_only_its_own_acknowledgements_in_order() {
        let mut out = OutgoingMessages::default();
        start(&mut out, QoS::ExactlyOnce);
        assert!(matches!(out.puback(id(1)), AckResult::Unknown));
        assert!(matches!(out.pubcomp(id(1)), AckResult::Unknown));
        assert!(matches!(out.pubrec(id(1)), (AckResult::Release, Some(_))));
        assert!(matches!(out.pubrec(id(1)), (AckResult::Release, None)));
        assert!(matches!(out.pubcomp(id(1)), AckResult::Done(None)));
        assert!(matches!(out.pubrec(id(1)), (AckResult::Unknown, None)));
    }
}
