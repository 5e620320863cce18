//! What a session still has to be sent at QoS 1 and 2: the messages in flight and the queue behind them.
//!
//! Messages in flight are kept in the order in which they were first sent; identifiers are handed out in a circle that
//! stops at the oldest one in use, so that the order of the identifiers is the order of the messages and an
//! acknowledgement is found by bisection. Both lists are bounded by the caller (Receive Maximum, queue limits).

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::{PacketId, QoS};

use crate::ShardId;
use crate::message::Message;

/// A message for one session, with what differs from the message itself.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub message: Arc<Message>,
    pub qos: QoS,
    pub retain: bool,
    pub tag: Tag,
}

impl Delivery {
    /// Bytes that keeping it costs, near enough for limits.
    pub fn kept_bytes(&self) -> usize {
        self.message.kept_bytes() + self.tag.kept_bytes()
    }
}

/// What only some deliveries carry.
#[derive(Debug, Default, Clone)]
pub enum Tag {
    #[default]
    None,
    /// Subscription Identifier.
    Identifier(u32),
    Full(Box<FullTag>),
}

#[derive(Debug, Default, Clone)]
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
}

impl Tag {
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
}

#[derive(Debug)]
pub struct Inflight {
    pub id: PacketId,
    /// `None` once PUBREC came: only PUBREL and PUBCOMP are left [MQTT-4.3.3-7].
    pub delivery: Option<Delivery>,
}

#[derive(Debug, Default)]
pub struct Outgoing {
    pub inflight: VecDeque<Inflight>,
    pub queue: VecDeque<Delivery>,
    pub queued_bytes: usize,
    /// How many of `queue` are QoS 0, kept while the client was away: what follows at QoS 0 must not pass them.
    pub queued_qos0: usize,
    last_id: u16,
    /// How many of `inflight`, from the front, have been sent on the present connection.
    pub sent: usize,
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
    /// The next free identifier; `None` while the oldest one in use is next in the circle.
    pub fn next_id(&self) -> Option<PacketId> {
        let next = PacketId::new(self.last_id.wrapping_add(1)).or(PacketId::new(1))?;
        match self.inflight.front() {
            Some(oldest) if oldest.id == next => None,
            _ => Some(next),
        }
    }

    /// Takes the identifier that `next_id` showed.
    pub fn start(&mut self, id: PacketId, delivery: Delivery) {
        debug_assert_eq!(
            self.sent,
            self.inflight.len(),
            "nothing new is sent before everything old was sent again"
        );
        self.last_id = id.get();
        self.inflight.push_back(Inflight {
            id,
            delivery: Some(delivery),
        });
        self.sent += 1;
    }

    fn position(&self, id: PacketId) -> Option<usize> {
        let oldest = self.inflight.front()?.id;
        if oldest == id {
            return Some(0);
        }
        let age = |id: PacketId| id.get().wrapping_sub(oldest.get());
        self.inflight.binary_search_by_key(&age(id), |entry| age(entry.id)).ok()
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

    pub fn push_queue(&mut self, delivery: Delivery) {
        self.queued_bytes += delivery.kept_bytes();
        self.queued_qos0 += usize::from(delivery.qos == QoS::AtMostOnce);
        self.queue.push_back(delivery);
    }

    pub fn pop_queue(&mut self) -> Option<Delivery> {
        let delivery = self.queue.pop_front()?;
        self.queued_bytes -= delivery.kept_bytes();
        self.queued_qos0 -= usize::from(delivery.qos == QoS::AtMostOnce);
        if self.queue.is_empty() && self.queue.capacity() > 64 {
            self.queue = VecDeque::new();
        }
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
        for _ in 0..self.queue.len() {
            let Some(delivery) = self.pop_queue() else { break };
            if wanted(&delivery) {
                taken.push(delivery)
            } else {
                self.push_queue(delivery)
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
        }
        .to_message();
        Delivery {
            message,
            qos,
            retain: false,
            tag: Tag::None,
        }
    }

    fn id(n: u16) -> PacketId {
        PacketId::new(n).unwrap()
    }

    #[test]
    fn identifiers_go_round_without_zero_and_stop_at_the_oldest_in_use() {
        let mut out = Outgoing::default();
        for n in 1..=u16::MAX {
            assert_eq!(out.next_id(), Some(id(n)));
            out.start(id(n), delivery(QoS::AtLeastOnce));
        }
        assert_eq!(out.next_id(), None);
        assert!(matches!(out.puback(id(2)), Acknowledged::Done(Some(_))));
        assert_eq!(out.next_id(), None, "1 is still in use");
        assert!(matches!(out.puback(id(1)), Acknowledged::Done(Some(_))));
        assert_eq!(out.next_id(), Some(id(1)));
    }

    #[test]
    fn acknowledgements_in_any_order_find_their_message_across_the_wrap() {
        let mut out = Outgoing {
            last_id: 65533,
            ..Outgoing::default()
        };
        for _ in 0..5 {
            let next = out.next_id().unwrap();
            out.start(next, delivery(QoS::AtLeastOnce));
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
        out.start(id(1), delivery(QoS::ExactlyOnce));
        assert!(matches!(out.puback(id(1)), Acknowledged::Unknown));
        assert!(matches!(out.pubcomp(id(1)), Acknowledged::Unknown));
        assert!(matches!(out.pubrec(id(1)), (Acknowledged::Release, Some(_))));
        assert!(matches!(out.pubrec(id(1)), (Acknowledged::Release, None)));
        assert!(matches!(out.pubcomp(id(1)), Acknowledged::Done(None)));
        assert!(matches!(out.pubrec(id(1)), (Acknowledged::Unknown, None)));
    }
}
