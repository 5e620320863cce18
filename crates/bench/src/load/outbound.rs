//! The sender's side of QoS 1 and 2: what has left and is not acknowledged.
//!
//! Packet identifiers are given in turn, so that the place of a message in the queue follows from its identifier. Messages are
//! kept as numbers; whoever sends one again makes its bytes again.

use std::collections::VecDeque;
use std::ops::Range;

use mqtt::PacketId;

/// The last identifier is left to SUBSCRIBE.
const IDS: u32 = 65_534;
pub const SUBSCRIBE_ID: PacketId = PacketId(std::num::NonZeroU16::MAX);

#[derive(Debug, Default)]
pub struct Outbound {
    queue: VecDeque<Pending>,
    /// Identifier of the front minus one.
    first: u32,
    /// Entries of the queue that wait for an acknowledgement.
    unacknowledged: u32,
    /// What will never be acknowledged or was refused.
    pub unaccepted: Vec<Range<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub sequence: u32,
    pub due_ns: u64,
    pub stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// PUBLISH was sent.
    Published,
    /// PUBREC has come and PUBREL was sent.
    Released,
    Done,
}

impl Outbound {
    pub fn unacknowledged(&self) -> u32 {
        self.unacknowledged
    }

    /// Whether an identifier is free. The queue may be longer than what is unacknowledged in it.
    pub fn has_room(&self) -> bool {
        self.queue.len() < IDS as usize
    }

    /// The identifier for a new message; `has_room` was asked.
    pub fn push(&mut self, sequence: u32, due_ns: u64) -> PacketId {
        let id = self.id_at(self.queue.len());
        self.queue.push_back(Pending {
            sequence,
            due_ns,
            stage: Stage::Published,
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

    /// PUBREC: the message it belongs to, if it was waited for.
    pub fn release(&mut self, id: PacketId) -> Option<Pending> {
        let place = self.place_of(id)?;
        let pending = &mut self.queue[place];
        if pending.stage == Stage::Done {
            return None;
        }
        pending.stage = Stage::Released;
        Some(*pending)
    }

    /// PUBACK, PUBCOMP, or a PUBREC that refuses.
    pub fn complete(&mut self, id: PacketId) -> Option<Pending> {
        let place = self.place_of(id)?;
        let pending = self.queue[place];
        if pending.stage == Stage::Done {
            return None;
        }
        self.queue[place].stage = Stage::Done;
        self.unacknowledged -= 1;
        while self.queue.front().is_some_and(|front| front.stage == Stage::Done) {
            self.queue.pop_front();
            self.first = (self.first + 1) % IDS;
        }
        Some(pending)
    }

    /// What has to be sent again on a session that goes on, in the order of the first time [MQTT-4.4.0-1].
    pub fn to_resend(&self) -> impl Iterator<Item = (PacketId, Pending)> {
        let all = self.queue.iter().enumerate();
        all.filter(|(_, pending)| pending.stage != Stage::Done)
            .map(|(place, pending)| (self.id_at(place), *pending))
    }

    /// The session is gone, or nobody waits any longer: nothing that is unacknowledged may be relied on.
    pub fn give_up(&mut self) {
        let pending: Vec<u32> = self
            .queue
            .drain(..)
            .filter(|pending| pending.stage != Stage::Done)
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

/// The receiver's side of QoS 2: identifiers of messages that were taken and not released yet [MQTT-4.3.3-10].
#[derive(Debug, Default)]
pub struct Inbound {
    taken: VecDeque<PacketId>,
}

impl Inbound {
    /// Whether the message is new. Only one marked as sent again can be old, so that the search is rare.
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
    fn identifiers_go_round_and_never_meet() {
        let mut outbound = Outbound::default();
        for sequence in 0..200_000u32 {
            let given = outbound.push(sequence, 0);
            assert_eq!(u32::from(given.get()), sequence % IDS + 1);
            assert_eq!(outbound.complete(given).unwrap().sequence, sequence);
            assert_eq!(outbound.complete(given), None);
        }
        assert_eq!(outbound.unacknowledged(), 0);
    }

    #[test]
    fn acknowledgements_come_in_any_order() {
        let mut outbound = Outbound::default();
        let ids: Vec<PacketId> = (0..5).map(|sequence| outbound.push(sequence, 9)).collect();
        assert_eq!(outbound.complete(ids[3]).unwrap().sequence, 3);
        assert_eq!(outbound.release(ids[1]).unwrap().sequence, 1);
        assert_eq!(outbound.complete(ids[0]).unwrap().sequence, 0);
        let again: Vec<(u16, u32, Stage)> = outbound
            .to_resend()
            .map(|(id, pending)| (id.get(), pending.sequence, pending.stage))
            .collect();
        assert_eq!(
            again,
            [
                (2, 1, Stage::Released),
                (3, 2, Stage::Published),
                (5, 4, Stage::Published)
            ]
        );
        assert_eq!((outbound.unacknowledged(), outbound.complete(SUBSCRIBE_ID)), (3, None));
        outbound.give_up();
        assert_eq!(outbound.unaccepted, [1..3, 4..5]);
    }

    #[test]
    fn a_message_sent_again_is_taken_once() {
        let mut inbound = Inbound::default();
        assert!(inbound.take(id(7), false) && inbound.take(id(8), false));
        assert!(!inbound.take(id(7), true));
        inbound.release(id(8));
        inbound.release(id(7));
        assert!(inbound.take(id(7), true));
    }
}
