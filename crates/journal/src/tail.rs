//! The end of the log in memory. Assigns positions, and holds blocks until the writer takes them. Never accesses a
//! file, so appending continues while the writer waits for the disk.
//!
//! Blocks are collected in chunks that are written as they are. Small blocks are copied into a common chunk; a large
//! block becomes a chunk of its own without a copy. Invariant: chunks hold whole blocks, in order and without gaps up
//! to `next`.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::batch::LogBatch;
use crate::layout::{BLOCK_HEADER_BYTES, BlockHeader};
use crate::lsn::Lsn;
use crate::status::LogStatus;

/// Capacity of a chunk of small blocks.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum size of a copied block. Copying a larger one takes longer than a separate write.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Maximum number of empty chunks retained for reuse.
const SPENT_MAX: usize = 16;

/// Position of an appended batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub base: Lsn,
    /// The batch is committed when the log's `committed()` is at least this position.
    pub end: Lsn,
}

pub(crate) struct LogTail {
    next: u64,
    /// `next` at the last [`LogTail::take`].
    taken: u64,
    journal_id: u64,
    record_version: u32,
    chunks: Vec<TailChunk>,
    free_buffers: Vec<Vec<u8>>,
    is_closed: bool,
    status: Arc<LogStatus>,
}

/// Consecutive blocks.
pub(crate) struct TailChunk {
    pub bytes: Vec<u8>,
}

impl LogTail {
    pub fn new(next: Lsn, journal_id: u64, record_version: u32, status: Arc<LogStatus>) -> LogTail {
        status.next.store(next.0, Release);
        LogTail {
            next: next.0,
            taken: next.0,
            journal_id,
            record_version,
            chunks: Vec::new(),
            free_buffers: Vec::new(),
            is_closed: false,
            status,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the size of the batches appended since the last [`LogTail::take`].
    pub fn pending_bytes(&self) -> u64 {
        self.next - self.taken
    }

    /// Appends the batch and leaves it empty. A batch without records takes no space.
    pub fn append(&mut self, batch: &mut LogBatch) -> Appended {
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

    /// Appends a block without records. Its `synced` field tells the next start that everything before it was synced.
    pub fn append_seal(&mut self) {
        self.push_block(&mut vec![0; BLOCK_HEADER_BYTES]);
    }

    /// Closes the tail. Later batches get a position and are dropped.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Takes the chunks collected since the last call.
    pub fn take(&mut self) -> Vec<TailChunk> {
        self.taken = self.next;
        std::mem::take(&mut self.chunks)
    }

    /// Retains the buffers of written chunks for reuse.
    pub fn recycle(&mut self, spent: &mut Vec<Vec<u8>>) {
        for mut bytes in spent.drain(..) {
            if self.free_buffers.len() < SPENT_MAX && bytes.capacity() == CHUNK_BYTES {
                bytes.clear();
                self.free_buffers.push(bytes);
            }
        }
    }

    fn push_block(&mut self, block: &mut Vec<u8>) {
        let header = BlockHeader {
            records_bytes: (block.len() - BLOCK_HEADER_BYTES) as u32,
            lsn: Lsn(self.next),
            synced: Lsn(self.status.synced.load(Acquire)),
            record_version: self.record_version,
        };
        block[..BLOCK_HEADER_BYTES].copy_from_slice(&header.encode(self.journal_id));
        let bytes = block.len() as u64;
        // The writer has stopped. Retaining the block would only use memory.
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
            self.chunks.push(TailChunk { bytes });
            return;
        }
        match self.chunks.last_mut() {
            Some(chunk) if chunk.bytes.len() + block.len() <= chunk.bytes.capacity() => {
                chunk.bytes.extend_from_slice(block);
            }
            _ => {
                let mut bytes = self
                    .free_buffers
                    .pop()
                    .unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES));
                bytes.extend_from_slice(block);
                self.chunks.push(TailChunk { bytes });
            }
        }
    }
}
