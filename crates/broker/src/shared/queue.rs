//! What a group holds while no member has it: positions in the journal, and behind them the newest as messages.
//!
//! ```text
//! cold | warm        oldest first; a few bytes, and a whole message each
//! ```
//! What comes is warm, because it has no position before the tick's batch is appended; when there are twice as many as the window, the
//! older half goes cold. A group that is not durable has all in memory. Knows nothing of sessions.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use mqtt::QoS;

use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{EntryList, Item};
use crate::durable::record::{Position, Seq};
use crate::effect::Now;
use crate::fault::{Fault, is_planted};
use crate::message::Message;
use crate::outgoing::Tag;

/// What is given back gets numbers below those of what is there.
const FIRST_NUMBER: Seq = 1 << 40;

pub(crate) struct GroupQueue {
    /// Numbered in a row, for a checkpoint that writes it in parts.
    cold: EntryList,
    /// Of what goes cold next.
    next: Seq,
    warm: VecDeque<Arc<Message>>,
    /// Of what is warm.
    bytes: usize,
    /// The oldest have been asked for, or wait for the journal to have them, or for their turn.
    pub is_fetching: bool,
    /// The shard goes on giving it out in its next tick.
    pub is_due: bool,
}

impl Default for GroupQueue {
    fn default() -> Self {
        GroupQueue {
            cold: EntryList::default(),
            next: FIRST_NUMBER,
            warm: VecDeque::new(),
            bytes: 0,
            is_fetching: false,
            is_due: false,
        }
    }
}

impl GroupQueue {
    pub fn len(&self) -> usize {
        self.cold.len() + self.warm.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cold.is_empty() && self.warm.is_empty()
    }

    /// In memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn has_cold(&self) -> bool {
        !self.cold.is_empty()
    }

    pub fn first_cold(&self) -> Option<Position> {
        self.cold.front().map(|entry| entry.message())
    }

    pub fn warm(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.warm.iter()
    }

    pub fn warm_len(&self) -> usize {
        self.warm.len()
    }

    /// As far as that is known without reading.
    pub fn is_oldest_expired(&self, now: Now) -> bool {
        self.cold.is_empty() && self.warm.front().is_some_and(|oldest| oldest.is_expired(now))
    }

    pub fn push(&mut self, message: Arc<Message>) {
        self.bytes += message.kept_bytes();
        self.warm.push_back(message);
    }

    pub fn pop_warm(&mut self) -> Option<Arc<Message>> {
        let message = self.warm.pop_front()?;
        self.bytes -= message.kept_bytes();
        Some(message)
    }

    pub fn pop_cold(&mut self) -> Option<Position> {
        self.cold.pop_front().map(|entry| entry.message())
    }

    /// Lets go of all but the newest messages, as far as the journal has them. Returns how many bytes that were.
    pub fn cool(&mut self, kept: usize) -> usize {
        let before = self.bytes;
        let mut positions = Vec::new();
        while self.warm.len() > kept
            && let Some(position) = self.warm.front().and_then(|oldest| oldest.place().position())
        {
            self.pop_warm();
            positions.push(position);
        }
        if is_planted(Fault::DropHeld) {
            positions.retain(|position| position.0 % 8 != 5);
        }
        self.push_cold(positions);
        before - self.bytes
    }

    /// Only while nothing is warm, or in the order of what is there.
    pub fn push_cold(&mut self, positions: Vec<Position>) {
        let first = self.next;
        self.next += positions.len() as Seq;
        self.cold.extend(numbered(first, positions));
    }

    /// A member had them before: they are older than what is there.
    pub fn give_back(&mut self, positions: Vec<Position>) {
        let oldest = self.cold.front().map_or(self.next, |entry| entry.seq());
        self.cold.prepend(numbered(oldest - positions.len() as Seq, positions));
    }

    /// What to read next; what the journal has not kept yet cannot be read.
    pub fn next_positions(&self, max: usize, kept: u64) -> Vec<Position> {
        let next = self.cold.iter().take(max).map(|(entry, _)| entry.message());
        next.take_while(|position| position.0 < kept).collect()
    }

    /// Takes what has been read off the front.
    pub fn take_cold(&mut self, has_come: impl Fn(Position) -> bool) -> Vec<Position> {
        let taken = self.cold.take_while(|entry| has_come(entry.message()));
        taken.into_iter().map(|(entry, _)| entry.message()).collect()
    }

    /// Numbers and positions of what is cold, behind a number.
    pub fn part(&self, behind: Seq, max: usize) -> Vec<(Seq, Position)> {
        let part = self.cold.iter_behind(behind).take(max);
        part.map(|(entry, _)| (entry.seq(), entry.message())).collect()
    }

    /// Messages of these numbers stand elsewhere now. Returns where they stood and where they stand.
    pub fn moved(
        &mut self,
        numbers: RangeInclusive<Seq>,
        place_of: impl Fn(Position) -> Option<Position>,
    ) -> Vec<(Position, Position)> {
        let mut moved = Vec::new();
        self.cold.change_in_row(numbers, |entry| {
            let old = entry.message();
            place_of(old).is_some_and(|new| {
                entry.move_to(new);
                moved.push((old, new));
                true
            })
        });
        moved
    }
}

fn numbered(first: Seq, positions: Vec<Position>) -> impl Iterator<Item = Item> {
    let entry = |(seq, position)| (StoredEntry::of(position, seq, QoS::AtLeastOnce, false), Tag::None);
    (first..).zip(positions).map(entry)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::message::{Place, Publication};

    fn message(position: u64) -> Arc<Message> {
        let message = Publication::of_server("t", b"p").to_message();
        message.set_place(Place::at(Position(position)));
        message
    }

    fn positions(queue: &GroupQueue) -> Vec<u64> {
        let cold = queue.cold.iter().map(|(entry, _)| entry.message().0);
        let warm = queue.warm().map(|message| message.place().position().unwrap().0);
        cold.chain(warm).collect()
    }

    #[test]
    fn what_goes_cold_and_what_is_given_back_keeps_its_order_and_its_numbers_in_a_row() {
        let mut queue = GroupQueue::default();
        (11..=300).for_each(|position| queue.push(message(position)));
        let freed = queue.cool(10);
        assert_eq!(freed, 280 * message(1).kept_bytes());
        assert_eq!(queue.warm_len(), 10);
        assert_eq!(queue.bytes(), 10 * message(1).kept_bytes());
        queue.give_back((1..=10).map(Position).collect());
        assert_eq!(positions(&queue), (1..=300).collect::<Vec<_>>());
        let part = queue.part(0, 1000);
        assert!(part.is_sorted_by(|(a, _), (b, _)| a + 1 == *b));
        assert_eq!(queue.part(part[99].0, 2), part[100..102]);
        let taken = queue.take_cold(|position| position.0 <= 200);
        assert_eq!(taken.len(), 200);
        queue.give_back(taken);
        assert_eq!(queue.part(0, 1000), part, "as if they had not been taken");
    }

    #[test]
    fn what_has_no_position_stays_in_memory_with_all_behind_it() {
        let mut queue = GroupQueue::default();
        queue.push(message(1));
        queue.push(Publication::of_server("t", b"p").to_message());
        queue.push(message(2));
        queue.cool(0);
        assert_eq!((queue.part(0, 9).len(), queue.warm_len()), (1, 2));
    }

    #[test]
    fn only_the_numbers_asked_for_are_moved() {
        let mut queue = GroupQueue::default();
        queue.push_cold((1..=200).map(Position).collect());
        let part = queue.part(0, 1000);
        let numbers = part[70].0..=part[140].0;
        let moved = queue.moved(numbers, |old| (old.0 % 2 == 1).then_some(Position(old.0 + 1000)));
        assert_eq!(moved.len(), 36);
        assert_eq!(moved[0], (Position(71), Position(1071)));
        let expected = (1..=200).map(|at| at + 1000 * u64::from((71..=141).contains(&at) && at % 2 == 1));
        assert!(expected.eq(positions(&queue)));
    }
}
