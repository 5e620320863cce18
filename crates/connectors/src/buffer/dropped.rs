//! Records that had no room in the buffer and that fallback actions are to get: in memory until they have them.
//!
//! It is bounded: when fallback actions do not keep up, nothing more is taken. Whoever has the ticket of something here waits until that is
//! handed over. What is here when the process ends is lost, and was acknowledged to nobody.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::record::{self, Record, Records};

/// Bytes that may be here.
const BYTES_MAX: usize = 8 << 20;

/// Nothing was taken: there is too much here already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

pub(super) struct Dropped {
    waiting: Mutex<Waiting>,
    /// One less than the oldest ticket here.
    due_before: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    chunks: VecDeque<(u64, DroppedChunk)>,
    bytes: usize,
    /// Of the first chunks, so many are with the pump.
    taken: usize,
}

/// The records of one append.
#[derive(Clone)]
pub(crate) struct DroppedChunk(Arc<Vec<u8>>);

impl DroppedChunk {
    pub fn records(&self, each: &mut dyn FnMut(Record)) {
        // It was made here, and is whole.
        let _ = record::records(&self.0, 0, each);
    }
}

impl Default for Dropped {
    fn default() -> Dropped {
        Dropped {
            waiting: Mutex::default(),
            due_before: AtomicU64::new(u64::MAX),
        }
    }
}

impl Dropped {
    /// All of them, or none.
    pub fn keep(&self, records: &mut Records, ticket: u64) -> Result<(), NoRoom> {
        let mut waiting = self.waiting();
        if !waiting.has_room_for(records.len()) {
            return Err(NoRoom);
        }
        waiting.bytes += records.len();
        waiting
            .chunks
            .push_back((ticket, DroppedChunk(Arc::new(records.take()))));
        self.follow(&waiting);
        Ok(())
    }

    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.waiting().has_room_for(bytes)
    }

    /// Tickets above this are not due; the highest of all when there is nothing here.
    pub fn due_before(&self) -> u64 {
        self.due_before.load(Acquire)
    }

    pub fn take(&self) -> Vec<DroppedChunk> {
        let mut waiting = self.waiting();
        waiting.taken = waiting.chunks.len();
        waiting.chunks.iter().map(|(_, chunk)| chunk.clone()).collect()
    }

    /// What was taken is with others now.
    pub fn took(&self) {
        let mut waiting = self.waiting();
        let taken = std::mem::take(&mut waiting.taken);
        let bytes: usize = waiting.chunks.drain(..taken).map(|(_, chunk)| chunk.0.len()).sum();
        waiting.bytes -= bytes;
        self.follow(&waiting);
    }

    pub fn put_back(&self) {
        self.waiting().taken = 0;
    }

    /// Returns how many records it was.
    pub fn clear(&self) -> u64 {
        let mut waiting = self.waiting();
        let counts = waiting.chunks.iter().filter_map(|(_, chunk)| record::count(&chunk.0));
        let count = counts.map(u64::from).sum();
        *waiting = Waiting::default();
        self.follow(&waiting);
        count
    }

    fn follow(&self, waiting: &Waiting) {
        let oldest = waiting.chunks.front();
        let due_before = oldest.map_or(u64::MAX, |(ticket, _)| ticket.saturating_sub(1));
        self.due_before.store(due_before, Release);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Where nothing is, anything is taken.
    fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= BYTES_MAX
    }
}
