//! Dropped records that wait in memory for fallback actions.
//!
//! The queue is bounded. When it is full, further records are not accepted. Tickets of records in the queue are due
//! when fallback actions have received them. Records that are in the queue when the process ends are lost; their
//! publishers have received no acknowledgement.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::record::{self, Record, Records};

/// Maximum size of the queue.
const BYTES_MAX: usize = 8 << 20;

/// The queue of dropped records is full. Nothing was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackQueueFull;

pub(super) struct FallbackQueue {
    waiting: Mutex<FallbackQueueState>,
    /// One below the oldest ticket in the queue.
    due_before: AtomicU64,
}

#[derive(Default)]
struct FallbackQueueState {
    chunks: VecDeque<(u64, DroppedChunk)>,
    bytes: usize,
    /// Number of leading chunks that the pump has taken.
    taken: usize,
}

/// The records of one append.
#[derive(Clone)]
pub(crate) struct DroppedChunk(Arc<Vec<u8>>);

impl DroppedChunk {
    pub fn records(&self, each: &mut dyn FnMut(Record)) {
        // The chunk was built by this process and is valid.
        let _ = record::records(&self.0, 0, each);
    }
}

impl Default for FallbackQueue {
    fn default() -> FallbackQueue {
        FallbackQueue {
            waiting: Mutex::default(),
            due_before: AtomicU64::new(u64::MAX),
        }
    }
}

impl FallbackQueue {
    /// Adds all of the records or none.
    pub fn push(&self, records: &mut Records, ticket: u64) -> Result<(), FallbackQueueFull> {
        let mut waiting = self.waiting();
        if !waiting.has_space_for(records.len()) {
            return Err(FallbackQueueFull);
        }
        waiting.bytes += records.len();
        waiting
            .chunks
            .push_back((ticket, DroppedChunk(Arc::new(records.take()))));
        self.update_due(&waiting);
        Ok(())
    }

    pub fn has_space_for(&self, bytes: usize) -> bool {
        self.waiting().has_space_for(bytes)
    }

    /// Returns the limit above which tickets are not due. It is `u64::MAX` for an empty queue.
    pub fn due_before(&self) -> u64 {
        self.due_before.load(Acquire)
    }

    pub fn take(&self) -> Vec<DroppedChunk> {
        let mut waiting = self.waiting();
        waiting.taken = waiting.chunks.len();
        waiting.chunks.iter().map(|(_, chunk)| chunk.clone()).collect()
    }

    /// Removes the chunks that were taken, after fallback actions have received them.
    pub fn remove_taken(&self) {
        let mut waiting = self.waiting();
        let taken = std::mem::take(&mut waiting.taken);
        let bytes: usize = waiting.chunks.drain(..taken).map(|(_, chunk)| chunk.0.len()).sum();
        waiting.bytes -= bytes;
        self.update_due(&waiting);
    }

    pub fn return_taken(&self) {
        self.waiting().taken = 0;
    }

    /// Empties the queue. Returns the number of removed records.
    pub fn clear(&self) -> u64 {
        let mut waiting = self.waiting();
        let counts = waiting.chunks.iter().filter_map(|(_, chunk)| record::count(&chunk.0));
        let count = counts.map(u64::from).sum();
        *waiting = FallbackQueueState::default();
        self.update_due(&waiting);
        count
    }

    fn update_due(&self, waiting: &FallbackQueueState) {
        let oldest = waiting.chunks.front();
        let due_before = oldest.map_or(u64::MAX, |(ticket, _)| ticket.saturating_sub(1));
        self.due_before.store(due_before, Release);
    }

    fn waiting(&self) -> MutexGuard<'_, FallbackQueueState> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FallbackQueueState {
    /// An empty queue accepts a chunk of any size.
    fn has_space_for(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= BYTES_MAX
    }
}
