//! The queue of a group: journal positions, followed by the newest messages in memory.
//!
//! ```text
//! returned | cold | warm        oldest first; a few bytes each, except warm: a whole message each
//! ```
//! Returned messages are older than the present ones and arrive in parts. New messages are warm, because they have no
//! position before the batch of the tick is appended. When there are twice as many as the window, the older half
//! becomes cold. A non-durable group has all messages in memory. Independent of sessions.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use mqtt::QoS;

use crate::delivery::DeliveryTag;
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{EntryList, TaggedEntry};
use crate::durable::journaled_queue::JournaledQueue;
use crate::durable::record::{RecordPosition, Seq, SizedMessage};
use crate::effect::Now;
use crate::fault::{Fault, is_planted};
use crate::message::Message;

const FIRST_COLD: Seq = 1 << 40;

/// First number of returned messages. It leaves equal space for messages inserted before and after.
const FIRST_RETURNED: Seq = FIRST_COLD / 2;

pub(crate) struct GroupQueue {
    /// `earlier` has the returned messages. It and the queue have consecutive numbers each, so that a checkpoint can
    /// write them in parts.
    cold: JournaledQueue,
    /// Numbers of the next message that is returned after the present ones, and of the next one that becomes cold.
    next_returned: Seq,
    next_cold: Seq,
    warm: VecDeque<Arc<Message>>,
    /// Bytes of all messages, in memory or not.
    bytes: usize,
    /// Bytes of the returned messages.
    returned_bytes: usize,
    /// The shard continues to dispatch the queue in its next tick.
    pub(super) is_due: bool,
    /// No connected member has space. A timer checks again.
    pub(super) waits_for_space: bool,
    /// Messages published since the last part was dispatched. More are dispatched next time, so that the queue shrinks.
    pub(super) published: usize,
}

/// Messages removed from the front of a list.
pub(crate) struct RemovedMessages {
    pub(super) messages: Vec<SizedMessage>,
    was_returned: bool,
}

impl RemovedMessages {
    pub fn bytes(&self) -> usize {
        sum_of_bytes(&self.messages)
    }
}

impl Default for GroupQueue {
    fn default() -> Self {
        GroupQueue {
            cold: JournaledQueue::default(),
            next_returned: FIRST_RETURNED,
            next_cold: FIRST_COLD,
            warm: VecDeque::new(),
            bytes: 0,
            returned_bytes: 0,
            is_due: false,
            waits_for_space: false,
            published: 0,
        }
    }
}

impl GroupQueue {
    pub fn len(&self) -> usize {
        self.cold.earlier().len() + self.new_len()
    }

    /// Returns the number of messages that no member has returned.
    pub fn new_len(&self) -> usize {
        self.cold.queued() + self.warm.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cold.is_empty() && self.warm.is_empty()
    }

    /// Returns the bytes of all messages, in memory or not.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of the messages that no member has returned.
    pub fn new_bytes(&self) -> usize {
        self.bytes - self.returned_bytes
    }

    /// Adds up the bytes of all messages. Equals `bytes`.
    pub fn sum_of_bytes(&self) -> usize {
        let warm: usize = self.warm.iter().map(|message| message.size().bytes()).sum();
        self.cold.earlier().bytes() + self.cold.queued_bytes() + warm
    }

    /// Returns the cold messages.
    pub(super) fn cold(&self) -> &JournaledQueue {
        &self.cold
    }

    pub(super) fn cold_mut(&mut self) -> &mut JournaledQueue {
        &mut self.cold
    }

    pub fn warm(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.warm.iter()
    }

    /// A replacement must have the same size.
    pub fn warm_mut(&mut self) -> impl Iterator<Item = &mut Arc<Message>> {
        self.warm.iter_mut()
    }

    pub fn warm_len(&self) -> usize {
        self.warm.len()
    }

    /// Returns whether the oldest new message is expired, as far as that is known without reading it.
    pub fn is_oldest_expired(&self, now: Now) -> bool {
        self.is_all_warm() && self.warm.front().is_some_and(|oldest| oldest.is_expired(now))
    }

    /// Returns whether all new messages are in memory.
    pub fn is_all_warm(&self) -> bool {
        self.cold.queue().is_empty()
    }

    /// Returns the size of the first message in memory.
    pub fn front_bytes(&self) -> Option<usize> {
        self.warm.front().map(|message| message.stored_bytes())
    }

    pub fn push(&mut self, message: Arc<Message>) {
        self.bytes += message.size().bytes();
        self.warm.push_back(message);
    }

    pub fn pop_warm(&mut self) -> Option<Arc<Message>> {
        let message = self.warm.pop_front()?;
        self.bytes -= message.size().bytes();
        Some(message)
    }

    /// Removes the oldest new message that is cold.
    pub fn pop_cold(&mut self) -> Option<SizedMessage> {
        let dropped = self.cold.drop_oldest()?;
        self.bytes -= dropped.bytes;
        dropped.message
    }

    /// Evicts all but the newest `kept` messages, as far as they are in the journal.
    pub fn evict(&mut self, newest: usize) {
        let mut messages = Vec::new();
        while self.warm.len() > newest
            && let Some(message) = self.warm.front().and_then(|oldest| oldest.recorded())
        {
            self.warm.pop_front();
            messages.push(message);
        }
        if is_planted(Fault::DropHeld) {
            messages.retain(|message| message.position.0 % 8 != 5);
        }
        self.extend_cold(messages);
    }

    /// Restores messages.
    pub fn push_cold(&mut self, messages: Vec<SizedMessage>) {
        self.bytes += sum_of_bytes(&messages);
        self.extend_cold(messages);
    }

    /// Appends cold messages. Requires that no message is warm, or that they precede the warm ones.
    fn extend_cold(&mut self, messages: Vec<SizedMessage>) {
        let first = self.next_cold;
        self.next_cold += messages.len() as Seq;
        self.cold.extend_queue(numbered(first, messages));
    }

    /// Inserts messages that a member has returned.
    pub fn push_returned(&mut self, messages: Vec<SizedMessage>) {
        let bytes = sum_of_bytes(&messages);
        self.bytes += bytes;
        self.returned_bytes += bytes;
        let latest = self.cold.earlier().back().map(|entry| entry.message());
        if latest < messages.first().map(|message| message.position) {
            let first = self.next_returned;
            self.next_returned += messages.len() as Seq;
            self.cold.extend_earlier(numbered(first, messages));
        } else {
            self.prepend_returned(messages);
        }
    }

    /// Reinserts messages that could not be dispatched.
    pub fn put_back(&mut self, taken: RemovedMessages) {
        self.bytes += taken.bytes();
        match taken.was_returned {
            true => {
                self.returned_bytes += taken.bytes();
                self.prepend_returned(taken.messages);
            }
            false => {
                let first = first_before(self.cold.queue(), self.next_cold, &taken.messages);
                self.cold.prepend_queue(numbered(first, taken.messages));
            }
        }
    }

    fn prepend_returned(&mut self, messages: Vec<SizedMessage>) {
        let first = first_before(self.cold.earlier(), self.next_returned, &messages);
        self.cold.prepend_earlier(numbered(first, messages));
    }

    /// Removes messages that have been read from the front.
    pub fn take_cold(&mut self, has_arrived: impl Fn(RecordPosition) -> bool) -> RemovedMessages {
        let was_returned = !self.cold.earlier().is_empty();
        let taken = self.cold.take_oldest_while(|entry| has_arrived(entry.message()));
        let taken = RemovedMessages {
            messages: taken.iter().map(|(entry, _)| entry.sized_message()).collect(),
            was_returned,
        };
        self.bytes -= taken.bytes();
        if was_returned {
            self.returned_bytes -= taken.bytes();
        }
        taken
    }

    /// Returns cold messages after a number, with their numbers.
    pub fn part(&self, behind: Seq, max: usize) -> Vec<(Seq, SizedMessage)> {
        let all = self.cold.iter_behind(behind);
        all.take(max)
            .map(|(entry, _)| (entry.seq(), entry.sized_message()))
            .collect()
    }

    /// Updates the positions of moved messages with these numbers. Returns the old positions and the moved messages.
    pub fn moved(
        &mut self,
        numbers: RangeInclusive<Seq>,
        place_of: impl Fn(RecordPosition) -> Option<RecordPosition>,
    ) -> Vec<(RecordPosition, SizedMessage)> {
        self.cold.moved_consecutive(numbers, place_of)
    }
}

/// Returns the number of the first of these messages, which are inserted before all entries of a list. `next` is the
/// number after the last entry, in case the list is empty.
fn first_before(list: &EntryList, next: Seq, messages: &[SizedMessage]) -> Seq {
    list.front().map_or(next, |entry| entry.seq()) - messages.len() as Seq
}

fn numbered(first: Seq, messages: Vec<SizedMessage>) -> impl Iterator<Item = TaggedEntry> {
    let entry = |(seq, message): (Seq, SizedMessage)| {
        let entry = StoredEntry::of(message.position, seq, QoS::AtLeastOnce, false);
        (entry.sized(message.size), DeliveryTag::None)
    };
    (first..).zip(messages).map(entry)
}

fn sum_of_bytes(messages: &[SizedMessage]) -> usize {
    messages.iter().map(|message| message.size.bytes()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::message::{Publication, RecordLocation};
    use crate::message_size::MessageSize;

    fn message(position: u64) -> Arc<Message> {
        let message = Publication::from_server("t", b"p").to_message();
        message.set_place(RecordLocation::at(RecordPosition(position)));
        message
    }

    fn positions(queue: &GroupQueue) -> Vec<u64> {
        let cold = queue.cold.iter_behind(0).map(|(entry, _)| entry.message().0);
        let warm = queue.warm().map(|message| message.place().position().unwrap().0);
        cold.chain(warm).collect()
    }

    #[test]
    fn evicted_and_returned_messages_stay_in_order() {
        let mut queue = GroupQueue::default();
        (11..=300).for_each(|position| queue.push(message(position)));
        let size = message(1).size();
        queue.evict(10);
        assert_eq!((queue.warm_len(), queue.cold.queued()), (10, 280));
        assert_eq!(queue.bytes(), 290 * size.bytes());
        let sized = |position| SizedMessage {
            position: RecordPosition(position),
            size,
        };
        // Messages of another member that are older, and then the rest of it.
        for part in [5..=7, 1..=4, 8..=10] {
            queue.push_returned(part.map(sized).collect());
        }
        assert_eq!(queue.bytes(), 300 * size.bytes());
        assert_eq!(queue.new_bytes(), 290 * size.bytes());
        assert_eq!(positions(&queue), (1..=300).collect::<Vec<_>>());
        let part = queue.part(0, 1000);
        for in_a_row in [&part[..10], &part[10..]] {
            assert!(in_a_row.is_sorted_by(|(a, _), (b, _)| a + 1 == *b));
        }
        assert_eq!(queue.part(part[9].0, 2), part[10..12]);
        assert_eq!(queue.part(part[99].0, 2), part[100..102]);
        for (given, left) in [(1, 9), (9, 0), (100, 90)] {
            let mut taken = queue.take_cold(|position| position.0 <= 200);
            assert_eq!(taken.messages.len(), given + left);
            assert_eq!(queue.bytes(), queue.sum_of_bytes());
            taken.messages.drain(..given);
            queue.put_back(taken);
            assert_eq!(queue.bytes(), queue.sum_of_bytes());
            assert_eq!(queue.returned_bytes, queue.cold.earlier().bytes());
        }
        assert_eq!(
            queue.part(0, 1000)[..],
            part[110..],
            "the other positions are unchanged"
        );
    }

    #[test]
    fn messages_after_one_without_position_stay_in_memory() {
        let mut queue = GroupQueue::default();
        queue.push(message(1));
        queue.push(Publication::from_server("t", b"p").to_message());
        queue.push(message(2));
        queue.evict(0);
        assert_eq!((queue.part(0, 9).len(), queue.warm_len()), (1, 2));
    }

    #[test]
    fn only_the_requested_numbers_are_moved() {
        let mut queue = GroupQueue::default();
        let size = MessageSize::of(100_000);
        let sized = |position| SizedMessage {
            position: RecordPosition(position),
            size,
        };
        queue.push_cold((1..=200).map(sized).collect());
        let part = queue.part(0, 1000);
        let numbers = part[70].0..=part[140].0;
        let moved = queue.moved(numbers, |old| (old.0 % 2 == 1).then_some(RecordPosition(old.0 + 1000)));
        assert_eq!(moved.len(), 36);
        assert_eq!(moved[0], (RecordPosition(71), sized(1071)));
        let expected = (1..=200).map(|at| at + 1000 * u64::from((71..=141).contains(&at) && at % 2 == 1));
        assert!(expected.eq(positions(&queue)));
    }
}
