//! Records that one shard appends at the end of a tick. The shard frames and checksums them, so that appending is only
//! a copy.
//!
//! The buffer holds a complete block. Space for the block header is reserved at the front; [`crate::tail`] fills it in
//! when the position is known.

use crate::layout::{BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES, record_header};

/// Maximum size of a batch. The length field of a block has 32 bits.
pub const BATCH_BYTES_MAX: usize = 1 << 30;

/// Records that are appended atomically: after a crash all of them are replayed, or none.
#[derive(Debug, Default)]
pub struct LogBatch {
    /// Empty, or space for the block header followed by framed records.
    bytes: Vec<u8>,
    records: u32,
}

impl LogBatch {
    pub fn new() -> LogBatch {
        LogBatch::default()
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Returns the number of bytes that the batch takes in the log.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn records(&self) -> u32 {
        self.records
    }

    /// Appends a record. `write` appends the payload to the vector and must not change its existing contents. Returns
    /// the record's offset: its position is [`crate::position`]`(base, offset)` after the batch is appended at `base`.
    pub fn record(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> u32 {
        if self.bytes.is_empty() {
            self.bytes.resize(BLOCK_HEADER_BYTES, 0);
        }
        let at = self.bytes.len();
        let payload_at = at + RECORD_HEADER_BYTES;
        self.bytes.resize(payload_at, 0);
        write(&mut self.bytes);
        assert!(
            (payload_at..=BATCH_BYTES_MAX).contains(&self.bytes.len()),
            "a record must only append, and a batch has at most {BATCH_BYTES_MAX} bytes"
        );
        let header = record_header(&self.bytes[payload_at..]);
        self.bytes[at..payload_at].copy_from_slice(&header);
        self.records += 1;
        at as u32
    }

    /// Moves all records of another batch into this one, so that both are appended atomically. Returns the number of
    /// bytes by which the offsets of the moved records have grown.
    pub fn take(&mut self, other: &mut LogBatch) -> u64 {
        let shift = self.bytes.len().saturating_sub(BLOCK_HEADER_BYTES);
        let head = if self.bytes.is_empty() { 0 } else { BLOCK_HEADER_BYTES };
        self.bytes.extend(other.bytes.get(head..).unwrap_or_default());
        self.records += other.records;
        other.clear();
        shift as u64
    }

    /// Empties the batch and retains its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records = 0;
    }

    /// Returns the block with an unset header. `None` if the batch has no records.
    pub(crate) fn block(&mut self) -> Option<&mut Vec<u8>> {
        (self.records > 0).then_some(&mut self.bytes)
    }
}
