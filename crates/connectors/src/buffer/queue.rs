//! What waits, as numbers and as the chunks that are in memory: plain data behind the buffer's mutex.
//!
//! Positions grow by the bytes that chunks take in a log, also when there is none. `cursor <= read <= next`: before
//! `cursor` all is done with, before `read` it was handed to the pump, `next` is where the next chunk goes.
//! `hot` holds chunks that nobody has read yet, in order; what stands before the first of them is on the disk. Spans count
//! what is unread, in pieces, so that the oldest can be dropped without reading it.

use std::collections::VecDeque;
use std::sync::Arc;

use journal::{BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES};

/// From where a chunk's block begins to the chunk.
pub(super) const FRAME_BYTES: u64 = (BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES) as u64;
/// A span is full when it has so many bytes.
const SPAN_BYTES: u64 = 1 << 20;

/// The records of one append.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    /// Where its block begins.
    pub base: u64,
    pub end: u64,
    pub records: u32,
    pub bytes: Arc<Vec<u8>>,
}

impl Chunk {
    /// Where the chunk itself begins.
    pub fn position(&self) -> u64 {
        self.base + FRAME_BYTES
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub base: u64,
    pub records: u64,
}

/// What is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Where the block begins that has `position`.
    pub base: u64,
    /// All before it is done with.
    pub position: u64,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub next: u64,
    pub read: u64,
    pub cursor: Cursor,
    pub hot: VecDeque<Chunk>,
    pub hot_bytes: usize,
    pub unread_records: u64,
    spans: VecDeque<Span>,
}

impl Queue {
    pub fn new(start: u64) -> Queue {
        Queue {
            next: start,
            read: start,
            cursor: Cursor {
                base: start,
                position: start,
            },
            hot: VecDeque::new(),
            hot_bytes: 0,
            unread_records: 0,
            spans: VecDeque::new(),
        }
    }

    /// What waits or is being sent, as it counts against the quota.
    pub fn used_bytes(&self) -> u64 {
        self.next - self.cursor.base
    }

    /// A chunk stands at `base` now.
    pub fn extend(&mut self, base: u64, end: u64, records: u64) {
        match self.spans.back_mut() {
            Some(span) if end - span.base <= SPAN_BYTES => span.records += records,
            _ => self.spans.push_back(Span { base, records }),
        }
        self.unread_records += records;
        self.next = end;
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
        if front.base != self.read || front.end > committed {
            return None;
        }
        let chunk = self.pop_hot()?;
        self.advance(chunk.end, u64::from(chunk.records));
        Some(chunk)
    }

    /// What stands before `end` has been read; it was so many records.
    pub fn advance(&mut self, end: u64, records: u64) {
        self.read = end;
        self.unread_records -= records;
        if let Some(span) = self.spans.front_mut() {
            span.records -= records;
        }
        while self.spans.get(1).is_some_and(|span| span.base <= end) {
            self.spans.pop_front();
        }
        if self.read == self.next {
            self.spans.clear();
        }
        while self.hot.front().is_some_and(|chunk| chunk.base < end) {
            self.pop_hot();
        }
    }

    /// Drops the oldest that nobody has read, at least `bytes` if there are so many. Returns how many records it was.
    pub fn drop_oldest(&mut self, bytes: u64) -> u64 {
        let from = self.read;
        let mut dropped = 0;
        while let Some(span) = self.spans.front().copied()
            && self.read - from < bytes
        {
            let end = self.spans.get(1).map_or(self.next, |next| next.base);
            dropped += span.records;
            self.advance(end, span.records);
        }
        // Without anything being sent, nobody would move the cursor.
        if self.cursor.base == from {
            self.cursor = self.at_read();
        }
        dropped
    }

    /// The cursor when nothing is being sent.
    pub fn at_read(&self) -> Cursor {
        Cursor {
            base: self.read,
            position: self.read,
        }
    }

    pub fn front_span(&self) -> Option<Span> {
        self.spans.front().copied()
    }

    /// Forgets the spans that end before `base`.
    pub fn skip_spans(&mut self, base: u64) {
        while let Some(span) = self.spans.front().copied()
            && self.spans.get(1).map_or(self.next, |next| next.base) <= base
        {
            self.spans.pop_front();
            self.unread_records -= span.records;
        }
    }

    fn pop_hot(&mut self) -> Option<Chunk> {
        let chunk = self.hot.pop_front()?;
        self.hot_bytes -= chunk.bytes.capacity();
        Some(chunk)
    }
}
