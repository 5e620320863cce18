//! What a session still has to be sent at QoS 1 and 2: the messages in flight and the queue behind them.
//!
//! A message gets its number when it is queued or sent at once, and its packet identifier follows from the number, so that it is
//! the same after a restart. Identifiers go in a circle that stops at the oldest one in use; an acknowledgement is found by
//! bisection. Both lists are bounded by the caller (Receive Maximum, queue limits).

use std::sync::Arc;

use mqtt::{PacketId, QoS};

use crate::ShardId;
use crate::durable::cold::Cold;
use crate::durable::entry::StoredEntry;
use crate::durable::record::{GroupKey, Seq};
use crate::lazy_deque::LazyDeque;
use crate::message::{Message, Place, Publication};

/// A message for one session, with what differs from the message itself.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub message: Arc<Message>,
    pub qos: QoS,
    pub retain: bool,
    /// Which message of the session it is; 0 while that is open.
    pub seq: Seq,
    pub tag: Tag,
}

impl Delivery {
    /// Bytes that keeping it costs, near enough for limits.
    pub fn kept_bytes(&self) -> usize {
        self.message.kept_bytes() + self.tag.kept_bytes()
    }

    /// As the session gets it.
    pub fn publication(&self) -> Publication<'_> {
        Publication {
            qos: self.qos,
            retain: self.retain,
            ..self.message.publication()
        }
    }
}

/// What only some deliveries carry.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Tag {
    #[default]
    None,
    /// Subscription Identifier.
    Identifier(u32),
    Full(Box<FullTag>),
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct FullTag {
    pub identifiers: Vec<u32>,
    /// The shared subscription that chose this session, to which the message returns if the session cannot take it.
    pub group: Option<GroupRef>,
}

/// A shared subscription, wherever it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRef {
    pub shard: ShardId,
    pub index: u32,
    pub epoch: u32,
    /// Its name in the journal, if it is durable.
    pub key: GroupKey,
}

impl GroupRef {
    /// Whatever it is called in the journal.
    pub fn is_same(self, other: GroupRef) -> bool {
        (self.shard, self.index, self.epoch) == (other.shard, other.index, other.epoch)
    }
}

impl Tag {
    /// Of what a group gives, which carries the group and an identifier at most.
    pub const GROUP_BYTES_MAX: usize = size_of::<FullTag>() + size_of::<u32>();

    pub fn new(identifiers: &[u32], group: Option<GroupRef>) -> Tag {
        match (identifiers, group) {
            ([], None) => Tag::None,
            ([id], None) => Tag::Identifier(*id),
            _ => Tag::Full(Box::new(FullTag {
                identifiers: identifiers.to_vec(),
                group,
            })),
        }
    }

    /// A client may have as many identifiers on one message as it has subscriptions.
    fn kept_bytes(&self) -> usize {
        match self {
            Tag::None | Tag::Identifier(_) => 0,
            Tag::Full(full) => size_of::<FullTag>() + size_of_val(&full.identifiers[..]),
        }
    }

    pub fn identifiers(&self) -> &[u32] {
        match self {
            Tag::None => &[],
            Tag::Identifier(id) => std::slice::from_ref(id),
            Tag::Full(full) => &full.identifiers,
        }
    }

    pub fn group(&self) -> Option<GroupRef> {
        match self {
            Tag::Full(full) => full.group,
            _ => None,
        }
    }

    /// Of the durable group that it comes from.
    pub fn group_key(&self) -> Option<GroupKey> {
        self.group().map(|group| group.key).filter(|key| key.0 != 0)
    }
}

#[derive(Debug)]
pub struct Inflight {
    pub seq: Seq,
    /// `None` once PUBREC came: only PUBREL and PUBCOMP are left [MQTT-4.3.3-7].
    pub delivery: Option<Delivery>,
}

impl Inflight {
    pub fn id(&self) -> PacketId {
        packet_id(self.seq)
    }
}

/// The packet identifier of a session's n-th message: a circle without 0.
pub fn packet_id(seq: Seq) -> PacketId {
    let id = seq.wrapping_sub(1) % IDS + 1;
    PacketId::new(id as u16).expect("between 1 and 65,535")
}

const IDS: u64 = u16::MAX as u64;

#[derive(Debug, Default)]
pub struct Outgoing {
    pub inflight: LazyDeque<Inflight>,
    pub queue: LazyDeque<Delivery>,
    pub queued_bytes: usize,
    /// How many are queued at QoS 0, kept while the client was away: what follows at QoS 0 must not pass them.
    pub queued_qos0: u32,
    /// Of the latest message; numbers are never used twice.
    pub last_seq: Seq,
    /// Messages up to this one may be sent at QoS 2: the journal has them.
    pub kept_seq: Seq,
    /// How many of `inflight`, from the front, have been sent on the present connection.
    pub sent: usize,
    /// How often messages have gone from memory to the front of what is cold.
    pub cooled: u32,
    /// What follows `inflight` and `queue` and is in the journal only.
    pub cold: Option<Box<Cold>>,
}

/// What an acknowledgement meant.
#[derive(Debug)]
pub enum Acknowledged {
    /// Done with; the delivery if it was still kept.
    Done(Option<Delivery>),
    /// PUBREC: PUBREL is next.
    Release,
    Unknown,
}

impl Outgoing {
    /// Whether the identifier of a message is free: not so while one that is 65,535 messages older is in flight.
    pub fn is_free(&self, seq: Seq) -> bool {
        self.oldest_in_flight().is_none_or(|oldest| seq - oldest < IDS)
    }

    fn oldest_in_flight(&self) -> Option<Seq> {
        let cold = self.cold.as_ref().and_then(|cold| cold.inflight.front());
        self.inflight
            .front()
            .map(|entry| entry.seq)
            .or(cold.map(|entry| entry.seq()))
    }

    /// Begins to wait for the acknowledgement of a message.
    pub fn start(&mut self, delivery: Delivery) {
        debug_assert_eq!(
            self.sent,
            self.inflight.len(),
            "nothing new is sent before everything old was sent again"
        );
        self.inflight.push_back(Inflight {
            seq: delivery.seq,
            delivery: Some(delivery),
        });
        self.sent += 1;
    }

    /// Of a session without a connection: its first messages at QoS 1 count as sent before. One at QoS 2 is never sent before it is kept,
    /// and nothing passes it. Returns how many.
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
            let oldest = oldest.or(cold.queue.front().map(|next| next.seq())).unwrap_or(0);
            let may_be = |next: &StoredEntry| next.qos() == QoS::AtLeastOnce && next.seq() - oldest < IDS;
            loop {
                let sent = cold.queue.take_while(may_be);
                let is_any = !sent.is_empty();
                count += sent.len();
                cold.inflight.extend(sent);
                cold.forget_empty_pages();
                if !is_any {
                    break;
                }
            }
        }
        count
    }

    /// The latest message that has been sent, on this connection or before; 0 if none is in flight.
    pub fn started(&self) -> Seq {
        let cold = self
            .cold
            .as_ref()
            .and_then(|cold| cold.inflight.back())
            .map(|entry| entry.seq());
        cold.or(self.inflight.back().map(|entry| entry.seq)).unwrap_or(0)
    }

    /// The number of a message that is queued or sent now.
    pub fn next_seq(&mut self) -> Seq {
        self.last_seq += 1;
        self.last_seq
    }

    /// The message that an identifier means at present, if it is in flight.
    pub fn seq_of(&self, id: PacketId) -> Seq {
        let oldest = self.inflight.front().map_or(1, |entry| entry.seq);
        oldest + (u64::from(id.get()) + IDS - u64::from(packet_id(oldest).get())) % IDS
    }

    fn position(&self, id: PacketId) -> Option<usize> {
        let seq = self.seq_of(id);
        if self.inflight.front()?.seq == seq {
            return Some(0);
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

    /// PUBACK. A PUBACK for a QoS 2 message is as unknown as one for no message at all.
    pub fn puback(&mut self, id: PacketId) -> Acknowledged {
        match self.position(id) {
            Some(at)
                if self.inflight[at]
                    .delivery
                    .as_ref()
                    .is_some_and(|d| d.qos == QoS::AtLeastOnce) =>
            {
                Acknowledged::Done(self.finish(at))
            }
            _ => Acknowledged::Unknown,
        }
    }

    /// PUBREC with success: the message may be forgotten, the identifier not yet [MQTT-4.3.3-4].
    pub fn pubrec(&mut self, id: PacketId) -> (Acknowledged, Option<Delivery>) {
        let Some(at) = self.position(id) else {
            return (Acknowledged::Unknown, None);
        };
        let entry = &mut self.inflight[at];
        if entry.delivery.as_ref().is_some_and(|d| d.qos != QoS::ExactlyOnce) {
            return (Acknowledged::Unknown, None);
        }
        (Acknowledged::Release, entry.delivery.take())
    }

    /// PUBREC with a failure code: the client will not have the message [MQTT-4.3.3-5].
    pub fn pubrec_failed(&mut self, id: PacketId) -> Acknowledged {
        match self.position(id) {
            Some(at)
                if self.inflight[at]
                    .delivery
                    .as_ref()
                    .is_some_and(|d| d.qos == QoS::ExactlyOnce) =>
            {
                Acknowledged::Done(self.finish(at))
            }
            _ => Acknowledged::Unknown,
        }
    }

    pub fn pubcomp(&mut self, id: PacketId) -> Acknowledged {
        match self.position(id) {
            Some(at) if self.inflight[at].delivery.is_none() => Acknowledged::Done(self.finish(at)),
            _ => Acknowledged::Unknown,
        }
    }

    /// Messages that wait, in memory or not.
    pub fn queued(&self) -> usize {
        self.queue.len() + self.cold.as_ref().map_or(0, |cold| cold.queued())
    }

    /// Nothing has to be sent before a message that comes now.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.sent == self.inflight.len() && self.cold.is_none()
    }

    /// In flight, in memory or not.
    pub fn unacknowledged(&self) -> usize {
        self.inflight.len() + self.cold.as_ref().map_or(0, |cold| cold.inflight.len())
    }

    /// In flight and not known to have arrived.
    pub fn undelivered(&self) -> usize {
        let warm = self.inflight.iter().filter(|entry| entry.delivery.is_some()).count();
        let cold = self.cold.iter().flat_map(|cold| cold.inflight.iter());
        warm + cold.filter(|(entry, _)| !entry.is_released()).count()
    }

    /// What is not known to have arrived, without what is in the journal only.
    pub fn in_memory(&self) -> impl Iterator<Item = &Delivery> {
        let fresh = self.cold.iter().flat_map(|cold| cold.fresh.iter());
        let inflight = self.inflight.iter().filter_map(|entry| entry.delivery.as_ref());
        inflight.chain(self.queue.iter()).chain(fresh)
    }

    pub fn push_queue(&mut self, delivery: Delivery) {
        self.queued_bytes += delivery.kept_bytes();
        self.queued_qos0 += u32::from(delivery.qos == QoS::AtMostOnce);
        match &mut self.cold {
            Some(cold) => cold.fresh.push_back(delivery),
            None => self.queue.push_back(delivery),
        }
    }

    /// Gives up the oldest message that is not in memory, or behind one that is not; with the group that it is of, and where it is: what is
    /// in the journal only is not lent.
    pub fn pop_cold(&mut self) -> Option<(Seq, Option<GroupRef>, Place)> {
        let cold = self.cold.as_mut()?;
        let oldest = match cold.pop_oldest() {
            Some((seq, queued_qos0, tag)) => {
                self.queued_qos0 -= queued_qos0;
                (seq, tag.group(), Place::NONE)
            }
            None => {
                let delivery = cold.fresh.pop_front()?;
                self.queued_bytes -= delivery.kept_bytes();
                self.queued_qos0 -= u32::from(delivery.qos == QoS::AtMostOnce);
                (delivery.seq, delivery.tag.group(), delivery.message.place())
            }
        };
        self.forget_empty_cold();
        Some(oldest)
    }

    pub fn pop_queue(&mut self) -> Option<Delivery> {
        let delivery = self.queue.pop_front()?;
        self.queued_bytes -= delivery.kept_bytes();
        self.queued_qos0 -= u32::from(delivery.qos == QoS::AtMostOnce);
        Some(delivery)
    }

    /// Takes out what `wanted` says of the queue and of the QoS 1 messages in flight, oldest first.
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
                    self.queued_bytes -= delivery.kept_bytes();
                    self.queued_qos0 -= u32::from(delivery.qos == QoS::AtMostOnce);
                    taken.push(delivery);
                } else {
                    queue.push_back(delivery);
                }
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Origin, Publication};

    fn delivery(qos: QoS) -> Delivery {
        let message = Publication {
            topic: "t",
            payload: b"p",
            properties: b"",
            qos,
            retain: false,
            expires_at_ms: None,
            origin: Origin::NONE,
            publisher_hash: 0,
            place: crate::message::Place::NONE,
            provenance: crate::provenance::Provenance::NONE,
        }
        .to_message();
        Delivery {
            message,
            qos,
            retain: false,
            seq: 0,
            tag: Tag::None,
        }
    }

    fn id(n: u16) -> PacketId {
        PacketId::new(n).unwrap()
    }

    fn start(out: &mut Outgoing, qos: QoS) -> PacketId {
        out.last_seq += 1;
        let mut delivery = delivery(qos);
        delivery.seq = out.last_seq;
        out.start(delivery);
        packet_id(out.last_seq)
    }

    #[test]
    fn identifiers_go_round_without_zero_and_stop_at_the_oldest_in_use() {
        let mut out = Outgoing::default();
        for n in 1..=u16::MAX {
            assert!(out.is_free(out.last_seq + 1));
            assert_eq!(start(&mut out, QoS::AtLeastOnce), id(n));
        }
        assert!(!out.is_free(out.last_seq + 1));
        assert!(matches!(out.puback(id(2)), Acknowledged::Done(Some(_))));
        assert!(!out.is_free(out.last_seq + 1), "1 is still in use");
        assert!(matches!(out.puback(id(1)), Acknowledged::Done(Some(_))));
        assert!(out.is_free(out.last_seq + 1));
        assert_eq!(start(&mut out, QoS::AtLeastOnce), id(1));
    }

    #[test]
    fn acknowledgements_in_any_order_find_their_message_across_the_wrap() {
        let mut out = Outgoing {
            last_seq: 65533,
            ..Outgoing::default()
        };
        for _ in 0..5 {
            start(&mut out, QoS::AtLeastOnce);
        }
        for n in [1, 65534, 3, 65535, 2] {
            assert!(matches!(out.puback(id(n)), Acknowledged::Done(_)), "{n}");
            assert!(matches!(out.puback(id(n)), Acknowledged::Unknown), "{n} twice");
        }
        assert_eq!((out.inflight.len(), out.sent), (0, 0));
    }

    #[test]
    fn qos2_needs_its_own_acknowledgements_in_order() {
        let mut out = Outgoing::default();
        start(&mut out, QoS::ExactlyOnce);
        assert!(matches!(out.puback(id(1)), Acknowledged::Unknown));
        assert!(matches!(out.pubcomp(id(1)), Acknowledged::Unknown));
        assert!(matches!(out.pubrec(id(1)), (Acknowledged::Release, Some(_))));
        assert!(matches!(out.pubrec(id(1)), (Acknowledged::Release, None)));
        assert!(matches!(out.pubcomp(id(1)), Acknowledged::Done(None)));
        assert!(matches!(out.pubrec(id(1)), (Acknowledged::Unknown, None)));
    }
}
