//! The sender's side of QoS 1 and 2: messages that were sent and are not acknowledged.
//!
//! Packet identifiers are assigned in turn, so that the identifier of a message gives its place in the queue. The queue
//! stores sequence numbers only; a message that is sent again is encoded again.

use std::collections::VecDeque;
use std::ops::Range;

use mqtt::PacketId;

/// Identifiers for PUBLISH; the last one is reserved for SUBSCRIBE.
const IDS: u32 = 65_534;
pub const SUBSCRIBE_ID: PacketId = PacketId(std::num::NonZeroU16::MAX);

#[derive(Debug, Default)]
pub struct OutboundQueue {
    queue: VecDeque<PendingPublish>,
    /// The identifier of the first entry, minus one.
    first: u32,
    /// Entries of the queue that wait for an acknowledgement.
    unacknowledged: u32,
    /// Messages that were refused or never acknowledged.
    pub unaccepted: Vec<Range<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingPublish {
    pub sequence: u32,
    pub due_ns: u64,
    pub stage: PublishStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishStage {
    /// PUBLISH is sent.
    Published,
    /// PUBREC has arrived and PUBREL is sent.
    Released,
    Done,
}

impl OutboundQueue {
    pub fn unacknowledged(&self) -> u32 {
        self.unacknowledged
    }

    /// Whether an identifier is free. The queue may also contain entries that are acknowledged.
    pub fn has_room(&self) -> bool {
        self.queue.len() < IDS as usize
    }

    /// Adds a message and returns its identifier. Requires `has_room`.
    pub fn push(&mut self, sequence: u32, due_ns: u64) -> PacketId {
        let id = self.id_at(self.queue.len());
        self.queue.push_back(PendingPublish {
            sequence,
            due_ns,
            stage: PublishStage::Published,
        });
        self.unacknowledged += 1;
        id
    }

    fn id_at(&self, place: usize) -> PacketId {
        let id = (self.first + place as u32) % IDS + 1;
        PacketId::new(id as u16).expect("at least 1")
    }

    fn place_of(&self, id: PacketId) -> Option<usize> {
        let place = (u32::from(id.get()) + IDS - 1).checked_sub(self.first)? % IDS;
        ((place as usize) < self.queue.len() && u32::from(id.get()) <= IDS).then_some(place as usize)
    }

    /// Handles PUBREC; returns its message if one waited for it.
    pub fn release(&mut self, id: PacketId) -> Option<PendingPublish> {
        let place = self.place_of(id)?;
        let pending = &mut self.queue[place];
        if pending.stage == PublishStage::Done {
            return None;
        }
        pending.stage = PublishStage::Released;
        Some(*pending)
    }

    /// Handles PUBACK, PUBCOMP, or a PUBREC with an error; returns its message if one waited for it.
    pub fn complete(&mut self, id: PacketId) -> Option<PendingPublish> {
        let place = self.place_of(id)?;
        let pending = self.queue[place];
        if pending.stage == PublishStage::Done {
            return None;
        }
        self.queue[place].stage = PublishStage::Done;
        self.unacknowledged -= 1;
        while self
            .queue
            .front()
            .is_some_and(|front| front.stage == PublishStage::Done)
        {
            self.queue.pop_front();
            self.first = (self.first + 1) % IDS;
        }
        Some(pending)
    }

    /// Returns the messages to send again on a resumed session, in the original order [MQTT-4.4.0-1].
    pub fn to_resend(&self) -> impl Iterator<Item = (PacketId, PendingPublish)> {
        let all = self.queue.iter().enumerate();
        all.filter(|(_, pending)| pending.stage != PublishStage::Done)
            .map(|(place, pending)| (self.id_at(place), *pending))
    }

    /// Gives all unacknowledged messages up, because the session is lost or the run ends: their delivery is not
    /// guaranteed.
    pub fn give_up(&mut self) {
        let pending: Vec<u32> = self
            .queue
            .drain(..)
            .filter(|pending| pending.stage != PublishStage::Done)
            .map(|pending| pending.sequence)
            .collect();
        for sequence in pending {
            self.refuse(sequence);
        }
        self.first = 0;
        self.unacknowledged = 0;
    }

    pub fn refuse(&mut self, sequence: u32) {
        match self.unaccepted.last_mut() {
            Some(last) if last.end == sequence => last.end += 1,
            _ => self.unaccepted.push(sequence..sequence + 1),
        }
    }
}

/// The receiver's side of QoS 2: identifiers of messages that were accepted and are not released yet [MQTT-4.3.3-10].
#[derive(Debug, Default)]
pub struct UnreleasedIds {
    taken: VecDeque<PacketId>,
}

impl UnreleasedIds {
    /// Accepts a message; returns whether it is new. Only a message with DUP can be old, so the search is rare.
    pub fn take(&mut self, id: PacketId, is_dup: bool) -> bool {
        if is_dup && self.taken.contains(&id) {
            return false;
        }
        if self.taken.len() > usize::from(u16::MAX) {
            self.taken.pop_front();
        }
        self.taken.push_back(id);
        true
    }

    pub fn release(&mut self, id: PacketId) {
        if self.taken.front() == Some(&id) {
            self.taken.pop_front();
        } else if let Some(place) = self.taken.iter().position(|taken| *taken == id) {
            self.taken.remove(place);
        }
    }

    pub fn clear(&mut self) {
        self.taken.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(id: u16) -> PacketId {
        PacketId::new(id).unwrap()
    }

    #[test]
    fn push_after_wrap_around_assigns_free_ids() {
        let mut outbound = OutboundQueue::default();
        for sequence in 0..200_000u32 {
            let given = outbound.push(sequence, 0);
            assert_eq!(u32::from(given.get()), sequence % IDS + 1);
            assert_eq!(outbound.complete(given).unwrap().sequence, sequence);
            assert_eq!(outbound.complete(given), None);
        }
        assert_eq!(outbound.unacknowledged(), 0);
    }

    #[test]
    fn complete_in_any_order_frees_ids() {
        let mut outbound = OutboundQueue::default();
        let ids: Vec<PacketId> = (0..5).map(|sequence| outbound.push(sequence, 9)).collect();
        assert_eq!(outbound.complete(ids[3]).unwrap().sequence, 3);
        assert_eq!(outbound.release(ids[1]).unwrap().sequence, 1);
        assert_eq!(outbound.complete(ids[0]).unwrap().sequence, 0);
        let again: Vec<(u16, u32, PublishStage)> = outbound
            .to_resend()
            .map(|(id, pending)| (id.get(), pending.sequence, pending.stage))
            .collect();
        assert_eq!(
            again,
            [
                (2, 1, PublishStage::Released),
                (3, 2, PublishStage::Published),
                (5, 4, PublishStage::Published)
            ]
        );
        assert_eq!((outbound.unacknowledged(), outbound.complete(SUBSCRIBE_ID)), (3, None));
        outbound.give_up();
        assert_eq!(outbound.unaccepted, [1..3, 4..5]);
    }

    #[test]
    fn take_of_repeated_message_is_false() {
        let mut inbound = UnreleasedIds::default();
        assert!(inbound.take(id(7), false) && inbound.take(id(8), false));
        assert!(!inbound.take(id(7), true));
        inbound.release(id(8));
        inbound.release(id(7));
        assert!(inbound.take(id(7), true));
    }
}
