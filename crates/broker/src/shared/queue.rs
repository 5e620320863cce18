//! What a group holds while no member has it: positions in the journal, and behind them the newest as messages.
//!
//! ```text
//! returned | cold | warm        oldest first; a few bytes, and a whole message each
//! ```
//! What members give back is older than what is there, and comes a part at a time.
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

const FIRST_COLD: Seq = 1 << 40;

/// So many can be put before all others, and so many behind them.
const FIRST_RETURNED: Seq = FIRST_COLD / 2;

pub(crate) struct GroupQueue {
    /// Numbered in a row, as is what is cold, for a checkpoint that writes them in parts.
    returned: EntryList,
    cold: EntryList,
    /// Of what is given back next, if it comes behind what was, and of what goes cold next.
    next_returned: Seq,
    next_cold: Seq,
    warm: VecDeque<Arc<Message>>,
    /// Of what is warm.
    bytes: usize,
    /// The oldest have been asked for, or wait for the journal to have them, or for their turn.
    pub is_fetching: bool,
    /// The shard goes on giving it out in its next tick.
    pub is_due: bool,
    /// No member that is connected has space for more: a timer looks again.
    pub waits_for_space: bool,
    /// Published since a part was given out last: it is to become shorter all the same.
    pub published: usize,
}

/// Off the front of what is in the journal only.
pub(crate) struct Taken {
    pub positions: Vec<Position>,
    was_returned: bool,
}

impl Default for GroupQueue {
    fn default() -> Self {
        GroupQueue {
            returned: EntryList::default(),
            cold: EntryList::default(),
            next_returned: FIRST_RETURNED,
            next_cold: FIRST_COLD,
            warm: VecDeque::new(),
            bytes: 0,
            is_fetching: false,
            is_due: false,
            waits_for_space: false,
            published: 0,
        }
    }
}

impl GroupQueue {
    pub fn len(&self) -> usize {
        self.returned.len() + self.cold.len() + self.warm.len()
    }

    /// What was published to it, and no member has given back.
    pub fn new_len(&self) -> usize {
        self.cold.len() + self.warm.len()
    }

    pub fn is_empty(&self) -> bool {
        !self.has_cold() && self.warm.is_empty()
    }

    /// In memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn has_cold(&self) -> bool {
        !self.returned.is_empty() || !self.cold.is_empty()
    }

    pub fn first_cold(&self) -> Option<Position> {
        self.oldest_list().front().map(|entry| entry.message())
    }

    pub fn warm(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.warm.iter()
    }

    /// What is put in a message's place is as long.
    pub fn warm_mut(&mut self) -> impl Iterator<Item = &mut Arc<Message>> {
        self.warm.iter_mut()
    }

    pub fn warm_len(&self) -> usize {
        self.warm.len()
    }

    /// Of what is new, as far as that is known without reading.
    pub fn is_oldest_expired(&self, now: Now) -> bool {
        self.cold.is_empty() && self.warm.front().is_some_and(|oldest| oldest.is_expired(now))
    }

    /// Of what is new.
    pub fn is_all_warm(&self) -> bool {
        self.cold.is_empty()
    }

    /// Of the first in memory.
    pub fn front_bytes(&self) -> Option<usize> {
        self.warm.front().map(|message| message.kept_bytes())
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

    /// Of what is new.
    pub fn pop_cold(&mut self) -> Option<Position> {
        self.cold.pop_front().map(|(entry, _)| entry.message())
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
        let first = self.next_cold;
        self.next_cold += positions.len() as Seq;
        self.cold.extend(numbered(first, positions));
    }

    /// A member had them before.
    pub fn give_back(&mut self, positions: Vec<Position>) {
        let latest = self.returned.back().map(|entry| entry.message());
        if latest < positions.first().copied() {
            let first = self.next_returned;
            self.next_returned += positions.len() as Seq;
            self.returned.extend(numbered(first, positions));
        } else {
            prepend(&mut self.returned, self.next_returned, positions);
        }
    }

    /// What was taken and could not be given goes where it was.
    pub fn put_back(&mut self, taken: Taken) {
        let Taken {
            positions,
            was_returned,
        } = taken;
        match was_returned {
            true => prepend(&mut self.returned, self.next_returned, positions),
            false => prepend(&mut self.cold, self.next_cold, positions),
        }
    }

    fn oldest_list(&self) -> &EntryList {
        match self.returned.is_empty() {
            true => &self.cold,
            false => &self.returned,
        }
    }

    fn oldest_list_mut(&mut self) -> &mut EntryList {
        match self.returned.is_empty() {
            true => &mut self.cold,
            false => &mut self.returned,
        }
    }

    /// What to read next; what the journal has not kept yet cannot be read.
    pub fn next_positions(&self, max: usize, kept: u64) -> Vec<Position> {
        let next = self.oldest_list().iter().take(max).map(|(entry, _)| entry.message());
        next.take_while(|position| position.0 < kept).collect()
    }

    /// Takes what has been read off the front.
    pub fn take_cold(&mut self, has_come: impl Fn(Position) -> bool) -> Taken {
        let was_returned = !self.returned.is_empty();
        let taken = self.oldest_list_mut().take_while(|entry| has_come(entry.message()));
        Taken {
            positions: taken.into_iter().map(|(entry, _)| entry.message()).collect(),
            was_returned,
        }
    }

    /// Numbers and positions of what is cold, behind a number.
    pub fn part(&self, behind: Seq, max: usize) -> Vec<(Seq, Position)> {
        let all = self.returned.iter_behind(behind).chain(self.cold.iter_behind(behind));
        all.take(max).map(|(entry, _)| (entry.seq(), entry.message())).collect()
    }

    /// Messages of these numbers stand elsewhere now. Returns where they stood and where they stand.
    pub fn moved(
        &mut self,
        numbers: RangeInclusive<Seq>,
        place_of: impl Fn(Position) -> Option<Position>,
    ) -> Vec<(Position, Position)> {
        let mut moved = Vec::new();
        let mut change = |entry: &mut StoredEntry| {
            let old = entry.message();
            place_of(old).is_some_and(|new| {
                entry.move_to(new);
                moved.push((old, new));
                true
            })
        };
        self.returned.change_in_row(numbers.clone(), &mut change);
        self.cold.change_in_row(numbers, &mut change);
        moved
    }
}

/// `next`: the number behind the last of the list, if that is empty.
fn prepend(list: &mut EntryList, next: Seq, positions: Vec<Position>) {
    let oldest = list.front().map_or(next, |entry| entry.seq());
    list.prepend(numbered(oldest - positions.len() as Seq, positions));
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
        let cold = queue.returned.iter().chain(queue.cold.iter());
        let cold = cold.map(|(entry, _)| entry.message().0);
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
        // Another member's, older still, and then the rest of it.
        for part in [5..=7, 1..=4, 8..=10] {
            queue.give_back(part.map(Position).collect());
        }
        assert_eq!(positions(&queue), (1..=300).collect::<Vec<_>>());
        let part = queue.part(0, 1000);
        for in_a_row in [&part[..10], &part[10..]] {
            assert!(in_a_row.is_sorted_by(|(a, _), (b, _)| a + 1 == *b));
        }
        assert_eq!(queue.part(part[9].0, 2), part[10..12]);
        assert_eq!(queue.part(part[99].0, 2), part[100..102]);
        for (given, left) in [(1, 9), (9, 0), (100, 90)] {
            let mut taken = queue.take_cold(|position| position.0 <= 200);
            assert_eq!(taken.positions.len(), given + left);
            taken.positions.drain(..given);
            queue.put_back(taken);
        }
        assert_eq!(
            queue.part(0, 1000)[..],
            part[110..],
            "as if the others had not been taken"
        );
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
