//! The waiting records as counters and in-memory chunks. Plain data behind the buffer's mutex.
//!
//! Positions grow by the bytes that chunks take in a log, even without a journal. `cursor <= read <= next`: records
//! before `cursor` are finished, records before `read` were passed to the pump, and the next chunk goes to `next`.
//! `in_memory` holds unread chunks in order; unread chunks before its first one are on the disk only.
//!
//! *Marks* are sparse samples of position and record count. They allow evicting the oldest records without reading
//! them. At most [`MARKS_MAX`] exist; in a longer queue they are further apart.
//!
//! Records before `evicted` no longer count as waiting, although they stay until the pump has removed them.

use std::collections::VecDeque;
use std::sync::Arc;

use journal::{BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES};

/// Distance from the beginning of a block to its chunk.
pub(super) const FRAME_BYTES: u64 = (BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES) as u64;
/// The distance of two marks is this part of the quota, within the limits below. It bounds how many records too many an
/// eviction drops.
const MARKS_OF_QUOTA: u64 = 64;
const MARK_EVERY_MAX: u64 = 1 << 20;
const MARK_EVERY_MIN: u64 = 1 << 10;
const MARKS_MAX: usize = 4096;

/// The records of one append.
#[derive(Clone, Debug)]
pub(crate) struct RecordChunk {
    pub block: BlockStart,
    pub end: u64,
    pub records: u32,
    pub bytes: Arc<Vec<u8>>,
}

impl RecordChunk {
    /// Returns the position of the chunk itself.
    pub fn position(&self) -> u64 {
        self.block.base + FRAME_BYTES
    }
}

/// The beginning of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockStart {
    pub base: u64,
    /// Number of records appended before it since the log began.
    pub records: u64,
}

/// The end of the finished records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferCursor {
    /// The block that contains `position`.
    pub block: BlockStart,
    /// Everything before this position is finished.
    pub position: u64,
}

/// The last recovery record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastRecoveryRecord {
    /// Position of the cursor in the record.
    pub position: u64,
    /// End of the record itself.
    pub end: u64,
}

#[derive(Debug)]
pub(super) struct BufferQueue {
    pub next: BlockStart,
    pub read: BlockStart,
    pub cursor: BufferCursor,
    /// Records before it are evicted in favour of later ones. It may be behind the cursor.
    pub evicted: BlockStart,
    /// Number of records that were read and are not finished. Between two counts of the pump, finished records are
    /// included.
    pub held_records: u64,
    pub in_memory: VecDeque<RecordChunk>,
    pub hot_bytes: usize,
    pub last_recovery_record: LastRecoveryRecord,
    /// Marks from the cursor on.
    marks: VecDeque<BlockStart>,
    mark_every: u64,
    /// Distance of marks while there are few of them.
    mark_every_least: u64,
}

impl BufferQueue {
    pub fn new(start: BlockStart, quota_bytes: u64) -> BufferQueue {
        let mark_every = (quota_bytes / MARKS_OF_QUOTA).clamp(MARK_EVERY_MIN, MARK_EVERY_MAX);
        BufferQueue {
            next: start,
            read: start,
            cursor: BufferCursor {
                block: start,
                position: start.base,
            },
            evicted: BlockStart::default(),
            held_records: 0,
            in_memory: VecDeque::new(),
            hot_bytes: 0,
            last_recovery_record: LastRecoveryRecord::default(),
            marks: VecDeque::new(),
            mark_every,
            mark_every_least: mark_every,
        }
    }

    /// Creates a queue from marks in the log. Nothing has been read since `cursor`.
    pub fn restored(
        next: BlockStart,
        cursor: BufferCursor,
        marks: VecDeque<BlockStart>,
        quota_bytes: u64,
    ) -> BufferQueue {
        let mut queue = BufferQueue::new(cursor.block, quota_bytes);
        (queue.next, queue.marks) = (next, marks);
        queue.set_cursor(cursor);
        queue
    }

    /// Returns the size of waiting and in-flight records, which counts against the quota.
    pub fn used_bytes(&self) -> u64 {
        self.next.base - self.oldest().base
    }

    /// Returns the size including evicted records that are not removed yet.
    pub fn stored_bytes(&self) -> u64 {
        self.next.base - self.cursor.block.base
    }

    /// Returns the beginning of the oldest record that counts.
    fn oldest(&self) -> BlockStart {
        match self.evicted.base > self.cursor.block.base {
            true => self.evicted,
            false => self.cursor.block,
        }
    }

    pub fn unread_records(&self) -> u64 {
        self.next.records - self.read.records
    }

    pub fn marks(&self) -> &VecDeque<BlockStart> {
        &self.marks
    }

    /// Appends a block that ends at `end` and has `records` records.
    pub fn extend(&mut self, end: u64, records: u64) {
        let is_far = |last: &BlockStart| self.next.base - last.base >= self.mark_every;
        if self.marks.back().is_none_or(is_far) {
            self.mark();
        }
        self.next = BlockStart {
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

    pub fn push_hot(&mut self, chunk: RecordChunk) {
        self.hot_bytes += chunk.bytes.capacity();
        self.in_memory.push_back(chunk);
    }

    /// Removes the oldest chunks from memory. They remain on the disk.
    pub fn shrink_hot(&mut self, bytes_max: usize, committed: u64) {
        let is_committed = |chunk: &RecordChunk| chunk.end <= committed;
        while self.hot_bytes > bytes_max && self.in_memory.front().is_some_and(is_committed) {
            self.pop_hot();
        }
    }

    /// Returns the next chunk to read if it is in memory and ends at or before `committed`.
    pub fn take_hot(&mut self, committed: u64) -> Option<RecordChunk> {
        let front = self.in_memory.front()?;
        if front.block.base != self.read.base || front.end > committed {
            return None;
        }
        let chunk = self.pop_hot()?;
        self.advance(chunk.end, u64::from(chunk.records));
        Some(chunk)
    }

    /// Marks everything before `end` as read. It contained `records` records.
    pub fn advance(&mut self, end: u64, records: u64) {
        self.held_records += records;
        self.go_to(BlockStart {
            base: end,
            records: self.read.records + records,
        });
    }

    /// Evicts at least `bytes` of the oldest records, or all of them.
    pub fn evict_oldest(&mut self, bytes: u64) {
        let target = self.oldest().base + bytes;
        let mark = self.marks.iter().find(|mark| mark.base >= target);
        self.evicted = mark.copied().unwrap_or(self.next);
    }

    /// Skips evicted records that are unread. Returns their number.
    pub fn skip_evicted(&mut self) -> u64 {
        match self.evicted.base > self.read.base {
            true => self.skip_to(self.evicted),
            false => 0,
        }
    }

    /// Skips all unread records. Returns their number.
    pub fn skip_unread(&mut self) -> u64 {
        self.skip_to(self.next)
    }

    fn skip_to(&mut self, block: BlockStart) -> u64 {
        let from = self.read;
        self.go_to(block);
        // With nothing in flight, no confirmation would move the cursor.
        if self.cursor.block.base == from.base {
            self.set_cursor(self.at_read());
        }
        block.records - from.records
    }

    fn go_to(&mut self, block: BlockStart) {
        self.read = block;
        while self
            .in_memory
            .front()
            .is_some_and(|chunk| chunk.block.base < block.base)
        {
            self.pop_hot();
        }
    }

    /// Returns the cursor for the case that nothing is in flight.
    pub fn at_read(&self) -> BufferCursor {
        BufferCursor {
            block: self.read,
            position: self.read.base,
        }
    }

    pub fn set_cursor(&mut self, cursor: BufferCursor) {
        self.cursor = cursor;
        while self.marks.get(1).is_some_and(|mark| mark.base <= cursor.block.base) {
            self.marks.pop_front();
        }
        if self.marks.len() <= 1 {
            self.mark_every = self.mark_every_least;
        }
    }

    fn pop_hot(&mut self) -> Option<RecordChunk> {
        let chunk = self.in_memory.pop_front()?;
        self.hot_bytes -= chunk.bytes.capacity();
        Some(chunk)
    }
}
