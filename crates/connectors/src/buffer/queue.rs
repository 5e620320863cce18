//! What waits, as numbers and as the chunks that are in memory: plain data behind the buffer's mutex.
//!
//! Positions grow by the bytes that chunks take in a log, also when there is none. `cursor <= read <= next`: before
//! `cursor` all is done with, before `read` it was handed to the pump, `next` is where the next chunk goes.
//! `hot` holds chunks that nobody has read yet, in order; what stands before the first of them is on the disk. Marks say how
//! many records had been appended when the log was so long, so that the oldest can be dropped without reading it. There are
//! never more than some thousands, however much waits: then they stand further apart.
//!
//! What stands before `given_up` counts no longer as waiting, though it is there until the pump has got rid of it.

use std::collections::VecDeque;
use std::sync::Arc;

use journal::{BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES};

/// From where a chunk's block begins to the chunk.
pub(super) const FRAME_BYTES: u64 = (BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES) as u64;
/// Between two marks, at least: a part of the quota, so that dropping the oldest drops little more than it must, and never more than
/// this, nor less than that.
const MARKS_OF_QUOTA: u64 = 64;
const MARK_EVERY_MAX: u64 = 1 << 20;
const MARK_EVERY_MIN: u64 = 1 << 10;
const MARKS_MAX: usize = 4096;

/// The records of one append.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub place: Place,
    pub end: u64,
    pub records: u32,
    pub bytes: Arc<Vec<u8>>,
}

impl Chunk {
    /// Where the chunk itself begins.
    pub fn position(&self) -> u64 {
        self.place.base + FRAME_BYTES
    }
}

/// Where a block begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub base: u64,
    /// How many records were appended before it, since the log began.
    pub records: u64,
}

/// What is done with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Of the block that has `position`.
    pub place: Place,
    /// All before it is done with.
    pub position: u64,
}

/// A note for the next start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    /// Of its cursor.
    pub position: u64,
    /// Of the note itself.
    pub end: u64,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub next: Place,
    pub read: Place,
    pub cursor: Cursor,
    /// What is older has been dropped in favour of what came later. It may be behind the cursor.
    pub given_up: Place,
    pub hot: VecDeque<Chunk>,
    pub hot_bytes: usize,
    /// The last one.
    pub noted: Noted,
    /// From the cursor on.
    marks: VecDeque<Place>,
    mark_every: u64,
    /// While there are few marks.
    mark_every_least: u64,
}

impl Queue {
    pub fn new(start: Place, quota_bytes: u64) -> Queue {
        let mark_every = (quota_bytes / MARKS_OF_QUOTA).clamp(MARK_EVERY_MIN, MARK_EVERY_MAX);
        Queue {
            next: start,
            read: start,
            cursor: Cursor {
                place: start,
                position: start.base,
            },
            given_up: Place::default(),
            hot: VecDeque::new(),
            hot_bytes: 0,
            noted: Noted::default(),
            marks: VecDeque::new(),
            mark_every,
            mark_every_least: mark_every,
        }
    }

    /// With marks that were written to the log; nothing has been read since `cursor`.
    pub fn restored(next: Place, cursor: Cursor, marks: VecDeque<Place>, quota_bytes: u64) -> Queue {
        let mut queue = Queue::new(cursor.place, quota_bytes);
        (queue.next, queue.marks) = (next, marks);
        queue.set_cursor(cursor);
        queue
    }

    /// What waits or is being sent, as it counts against the quota.
    pub fn used_bytes(&self) -> u64 {
        self.next.base - self.oldest().base
    }

    /// With what was given up and is still there.
    pub fn kept_bytes(&self) -> u64 {
        self.next.base - self.cursor.place.base
    }

    /// Where what waits or is being sent begins.
    fn oldest(&self) -> Place {
        match self.given_up.base > self.cursor.place.base {
            true => self.given_up,
            false => self.cursor.place,
        }
    }

    pub fn unread_records(&self) -> u64 {
        self.next.records - self.read.records
    }

    pub fn marks(&self) -> &VecDeque<Place> {
        &self.marks
    }

    /// A block with so many records stands at `next` now.
    pub fn extend(&mut self, end: u64, records: u64) {
        let is_far = |last: &Place| self.next.base - last.base >= self.mark_every;
        if self.marks.back().is_none_or(is_far) {
            self.mark();
        }
        self.next = Place {
            base: end,
            records: self.next.records + records,
        };
    }

    fn mark(&mut self) {
        if self.marks.len() >= MARKS_MAX {
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.mark_every *= 2;
        }
        self.marks.push_back(self.next);
    }

    pub fn keep(&mut self, chunk: Chunk) {
        self.hot_bytes += chunk.bytes.capacity();
        self.hot.push_back(chunk);
    }

    /// The oldest ones go, which the disk has too.
    pub fn shrink_hot(&mut self, bytes_max: usize) {
        while self.hot_bytes > bytes_max && self.pop_hot().is_some() {}
    }

    /// The chunk that is to be read next, if it is in memory and ends at or before `committed`.
    pub fn take_hot(&mut self, committed: u64) -> Option<Chunk> {
        let front = self.hot.front()?;
        if front.place.base != self.read.base || front.end > committed {
            return None;
        }
        let chunk = self.pop_hot()?;
        self.advance(chunk.end, u64::from(chunk.records));
        Some(chunk)
    }

    /// What stands before `end` has been read; it was so many records.
    pub fn advance(&mut self, end: u64, records: u64) {
        self.go_to(Place {
            base: end,
            records: self.read.records + records,
        });
    }

    /// Gives up the oldest, at least `bytes` if there are so many.
    pub fn give_up_oldest(&mut self, bytes: u64) {
        let target = self.oldest().base + bytes;
        let mark = self.marks.iter().find(|mark| mark.base >= target);
        self.given_up = mark.copied().unwrap_or(self.next);
    }

    /// Nobody is to read what was given up. Returns how many records it was.
    pub fn skip_given_up(&mut self) -> u64 {
        match self.given_up.base > self.read.base {
            true => self.skip_to(self.given_up),
            false => 0,
        }
    }

    /// Drops all that nobody has read yet. Returns how many records it was.
    pub fn skip_unread(&mut self) -> u64 {
        self.skip_to(self.next)
    }

    fn skip_to(&mut self, place: Place) -> u64 {
        let from = self.read;
        self.go_to(place);
        // Without anything being sent, nobody would move the cursor.
        if self.cursor.place.base == from.base {
            self.set_cursor(self.at_read());
        }
        place.records - from.records
    }

    fn go_to(&mut self, place: Place) {
        self.read = place;
        while self.hot.front().is_some_and(|chunk| chunk.place.base < place.base) {
            self.pop_hot();
        }
    }

    /// The cursor when nothing is being sent.
    pub fn at_read(&self) -> Cursor {
        Cursor {
            place: self.read,
            position: self.read.base,
        }
    }

    pub fn set_cursor(&mut self, cursor: Cursor) {
        self.cursor = cursor;
        while self.marks.get(1).is_some_and(|mark| mark.base <= cursor.place.base) {
            self.marks.pop_front();
        }
        if self.marks.len() <= 1 {
            self.mark_every = self.mark_every_least;
        }
    }

    fn pop_hot(&mut self) -> Option<Chunk> {
        let chunk = self.hot.pop_front()?;
        self.hot_bytes -= chunk.bytes.capacity();
        Some(chunk)
    }
}
