//! Messages that the client has sent with QoS 1 or 2 and that are not acknowledged, with data `T` of the caller.
//!
//! Packet identifiers are assigned in turn, so that the identifier of a message gives its place in the queue. The
//! identifiers above `ids` are left to SUBSCRIBE and UNSUBSCRIBE.

use std::collections::VecDeque;

use mqtt::{PacketId, PacketType, QoS};

#[derive(Clone, Debug)]
pub struct InFlight<T> {
    queue: VecDeque<Entry<T>>,
    /// The identifier of the first entry, minus one.
    first: u16,
    /// Number of identifiers, from 1.
    ids: u16,
    /// Entries of the queue that are not done.
    unacknowledged: u16,
}

#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    message: T,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    AwaitsPubAck,
    AwaitsPubRec,
    /// PUBREC has arrived and PUBREL is sent.
    AwaitsPubComp,
    Done,
}

/// Effect of an acknowledgement on its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress<T> {
    /// No message waits for this acknowledgement.
    Unknown,
    /// PUBREC: the next packet is PUBREL.
    Received,
    Finished(T),
}

/// A message that is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unacknowledged<T> {
    pub packet_id: PacketId,
    pub message: T,
    /// The server has the message; only PUBCOMP is missing.
    pub is_received: bool,
}

impl<T: Copy> InFlight<T> {
    pub(crate) fn new(ids: u16) -> InFlight<T> {
        InFlight {
            queue: VecDeque::new(),
            first: 0,
            ids,
            unacknowledged: 0,
        }
    }

    /// Number of messages that are not acknowledged.
    pub fn len(&self) -> usize {
        self.unacknowledged.into()
    }

    pub fn is_empty(&self) -> bool {
        self.unacknowledged == 0
    }

    /// Whether an identifier is free. An acknowledged message occupies its identifier until all earlier ones are
    /// acknowledged too.
    pub fn has_room(&self) -> bool {
        self.queue.len() < usize::from(self.ids)
    }

    /// Adds a message of QoS 1 or 2 and returns its identifier. Requires `has_room`.
    pub fn push(&mut self, qos: QoS, message: T) -> PacketId {
        debug_assert!(self.has_room() && qos != QoS::AtMostOnce);
        let id = self.id_at(self.queue.len());
        let stage = match qos {
            QoS::ExactlyOnce => Stage::AwaitsPubRec,
            _ => Stage::AwaitsPubAck,
        };
        self.queue.push_back(Entry { message, stage });
        self.unacknowledged += 1;
        id
    }

    /// Returns the message with this identifier, if it is not acknowledged.
    pub fn get_mut(&mut self, id: PacketId) -> Option<&mut T> {
        let place = self.place_of(id)?;
        let entry = self.queue.get_mut(place)?;
        (entry.stage != Stage::Done).then_some(&mut entry.message)
    }

    /// Returns the unacknowledged messages in the order in which they were sent.
    pub fn iter(&self) -> impl Iterator<Item = Unacknowledged<T>> {
        let pending = self.queue.iter().enumerate();
        let pending = pending.filter(|(_, entry)| entry.stage != Stage::Done);
        pending.map(|(place, entry)| Unacknowledged {
            packet_id: self.id_at(place),
            message: entry.message,
            is_received: entry.stage == Stage::AwaitsPubComp,
        })
    }

    /// Handles PUBACK, PUBREC or PUBCOMP. A PUBREC with an error ends the exchange [MQTT-4.3.3-4].
    pub(crate) fn acknowledge(&mut self, kind: PacketType, id: PacketId, is_error: bool) -> Progress<T> {
        let Some(place) = self.place_of(id) else {
            return Progress::Unknown;
        };
        let entry = &mut self.queue[place];
        match (kind, entry.stage) {
            (PacketType::PubAck, Stage::AwaitsPubAck) | (PacketType::PubComp, Stage::AwaitsPubComp) => {}
            (PacketType::PubRec, Stage::AwaitsPubRec) if is_error => {}
            (PacketType::PubRec, Stage::AwaitsPubRec | Stage::AwaitsPubComp) if !is_error => {
                entry.stage = Stage::AwaitsPubComp;
                return Progress::Received;
            }
            _ => return Progress::Unknown,
        }
        entry.stage = Stage::Done;
        let message = entry.message;
        self.unacknowledged -= 1;
        while self.queue.pop_front_if(|front| front.stage == Stage::Done).is_some() {
            self.first = (self.first + 1) % self.ids;
        }
        Progress::Finished(message)
    }

    pub(crate) fn clear(&mut self) {
        *self = InFlight::new(self.ids);
    }

    fn id_at(&self, place: usize) -> PacketId {
        let id = (usize::from(self.first) + place) % usize::from(self.ids) + 1;
        PacketId::new(id as u16).expect("at least 1")
    }

    fn place_of(&self, id: PacketId) -> Option<usize> {
        let (id, ids) = (usize::from(id.get()), usize::from(self.ids));
        let place = (id + ids - 1).checked_sub(self.first.into())? % ids;
        (id <= ids && place < self.queue.len()).then_some(place)
    }
}

/// Identifiers of received QoS 2 messages that are not released yet [MQTT-4.3.3-10].
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreleasedIds {
    /// A bit per identifier, up to the largest one that the server has used: at most 8 KiB.
    bits: Vec<u64>,
}

impl UnreleasedIds {
    pub fn contains(&self, id: PacketId) -> bool {
        let (word, bit) = place_of_bit(id);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    pub fn insert(&mut self, id: PacketId) {
        let (word, bit) = place_of_bit(id);
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= bit;
    }

    pub fn remove(&mut self, id: PacketId) {
        let (word, bit) = place_of_bit(id);
        if let Some(bits) = self.bits.get_mut(word) {
            *bits &= !bit;
        }
    }
}

fn place_of_bit(id: PacketId) -> (usize, u64) {
    let id = usize::from(id.get());
    (id / 64, 1 << (id % 64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use super::*;

    const IDS: u16 = 65_534;

    #[test]
    fn push_after_wrap_around_assigns_free_ids() {
        let mut sent = InFlight::new(IDS);
        for sequence in 0..200_000u32 {
            let id = sent.push(QoS::AtLeastOnce, sequence);
            assert_eq!(u32::from(id.get()), sequence % u32::from(IDS) + 1);
            let finished = sent.acknowledge(PacketType::PubAck, id, false);
            assert_eq!(finished, Progress::Finished(sequence));
            assert_eq!(sent.acknowledge(PacketType::PubAck, id, false), Progress::Unknown);
        }
        assert!(sent.is_empty());
    }

    #[test]
    fn acknowledgements_in_any_order_free_ids() {
        let mut sent = InFlight::new(IDS);
        let ids: Vec<PacketId> = (0..5).map(|sequence| sent.push(QoS::ExactlyOnce, sequence)).collect();
        let finish = |sent: &mut InFlight<i32>, id| {
            assert_eq!(sent.acknowledge(PacketType::PubRec, id, false), Progress::Received);
            sent.acknowledge(PacketType::PubComp, id, false)
        };
        assert_eq!(finish(&mut sent, ids[3]), Progress::Finished(3));
        assert_eq!(sent.acknowledge(PacketType::PubRec, ids[1], false), Progress::Received);
        assert_eq!(finish(&mut sent, ids[0]), Progress::Finished(0));
        let again: Vec<(u16, i32, bool)> = sent
            .iter()
            .map(|pending| (pending.packet_id.get(), pending.message, pending.is_received))
            .collect();
        assert_eq!(again, [(2, 1, true), (3, 2, false), (5, 4, false)]);
        assert_eq!((sent.len(), sent.get_mut(ids[3])), (3, None));
    }

    #[test]
    fn acknowledgement_of_another_qos_is_unknown() {
        let mut sent = InFlight::new(2);
        let (one, two) = (sent.push(QoS::AtLeastOnce, 1), sent.push(QoS::ExactlyOnce, 2));
        assert!(!sent.has_room());
        for (kind, id) in [
            (PacketType::PubRec, one),
            (PacketType::PubAck, two),
            (PacketType::PubComp, two),
            (PacketType::PubAck, PacketId::new(3).unwrap()),
        ] {
            assert_eq!(sent.acknowledge(kind, id, false), Progress::Unknown, "{kind} {id}");
        }
        assert_eq!(sent.acknowledge(PacketType::PubRec, two, true), Progress::Finished(2));
        assert_eq!(sent.len(), 1);
    }

    #[test]
    fn released_id_is_forgotten() {
        let id = |id| PacketId::new(id).unwrap();
        let mut received = UnreleasedIds::default();
        for number in [7, 8, 7] {
            received.insert(id(number));
        }
        received.remove(id(8));
        assert!(received.contains(id(7)) && !received.contains(id(8)));
        received.remove(id(7));
        assert!(!received.contains(id(7)));
    }
}
