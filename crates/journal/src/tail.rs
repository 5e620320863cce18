//! The end of the log in memory: assigns positions and keeps what is not yet handed to the writer. Never touches a file, so
//! appending goes on while the writer waits for the disk.
//!
//! Blocks are gathered in chunks that are written as they are. Small blocks are copied into one chunk; a large one becomes
//! a chunk of its own, by exchanging vectors. Invariant: chunks hold whole blocks, in order and without gaps up to `next`.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::batch::Batch;
use crate::layout::{BLOCK_HEADER_BYTES, BlockHeader};
use crate::lsn::Lsn;
use crate::status::Status;

/// What is gathered for one write.
const CHUNK_BYTES: usize = 256 << 10;
/// Copying more takes longer than another write.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Empty chunks that are kept for use again.
const SPENT_MAX: usize = 16;

/// Where a batch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub base: Lsn,
    /// The batch is committed once the log's `committed()` is at or above this.
    pub end: Lsn,
}

pub(crate) struct Tail {
    next: u64,
    journal_id: u64,
    chunks: Vec<Chunk>,
    spent: Vec<Vec<u8>>,
    is_closed: bool,
    status: Arc<Status>,
}

/// Blocks that follow each other.
pub(crate) struct Chunk {
    pub bytes: Vec<u8>,
}

impl Tail {
    pub fn new(next: Lsn, journal_id: u64, status: Arc<Status>) -> Tail {
        status.next.store(next.0, Release);
        Tail {
            next: next.0,
            journal_id,
            chunks: Vec::new(),
            spent: Vec::new(),
            is_closed: false,
            status,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Leaves the batch empty. A batch without records takes no space.
    pub fn append(&mut self, batch: &mut Batch) -> Appended {
        let base = self.next;
        if let Some(block) = batch.block() {
            self.push_block(block);
        }
        batch.clear();
        Appended {
            base: Lsn(base),
            end: Lsn(self.next),
        }
    }

    /// A block without records: the next start learns from it that all of what stands before was synced.
    pub fn append_seal(&mut self) {
        self.push_block(&mut vec![0; BLOCK_HEADER_BYTES]);
    }

    /// What is appended from now on gets a position and is dropped.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// What was appended since the last time.
    pub fn take(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.chunks)
    }

    /// Takes back the memory of what was written.
    pub fn recycle(&mut self, spent: &mut Vec<Vec<u8>>) {
        for mut bytes in spent.drain(..) {
            if self.spent.len() < SPENT_MAX && bytes.capacity() == CHUNK_BYTES {
                bytes.clear();
                self.spent.push(bytes);
            }
        }
    }

    fn push_block(&mut self, block: &mut Vec<u8>) {
        let header = BlockHeader {
            records_bytes: (block.len() - BLOCK_HEADER_BYTES) as u32,
            lsn: Lsn(self.next),
            synced: Lsn(self.status.synced.load(Acquire)),
        };
        block[..BLOCK_HEADER_BYTES].copy_from_slice(&header.encode(self.journal_id));
        let bytes = block.len() as u64;
        // Nothing will be written any more: keeping it would only fill the memory.
        if !self.is_closed && !self.status.is_failed() {
            self.gather(block);
        }
        self.next += bytes;
        self.status.next.store(self.next, Release);
        self.status.appended_bytes.fetch_add(bytes, Relaxed);
    }

    fn gather(&mut self, block: &mut Vec<u8>) {
        if block.len() > COPIED_BYTES_MAX {
            let bytes = std::mem::take(block);
            self.chunks.push(Chunk { bytes });
            return;
        }
        match self.chunks.last_mut() {
            Some(chunk) if chunk.bytes.len() + block.len() <= chunk.bytes.capacity() => {
                chunk.bytes.extend_from_slice(block);
            }
            _ => {
                let mut bytes = self.spent.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES));
                bytes.extend_from_slice(block);
                self.chunks.push(Chunk { bytes });
            }
        }
    }
}
