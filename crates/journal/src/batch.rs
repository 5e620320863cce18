//! What one shard appends at the end of one tick: framed and checksummed where it is made, so that appending is a copy.
//!
//! The bytes are those of a block, with room in front for its header, which [`crate::tail`] fills in once the
//! position is known.

use crate::layout::{BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES, record_header};

/// No batch is longer: the length of a block has 32 bits.
pub const BATCH_BYTES_MAX: usize = 1 << 30;

/// Records that are appended together: after a crash all of them are there, or none. Pure memory.
#[derive(Debug, Default)]
pub struct Batch {
    /// Empty, or room for the header of a block and framed records.
    bytes: Vec<u8>,
    records: u32,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes that it takes in the log.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn records(&self) -> u32 {
        self.records
    }

    /// Appends a record whose payload `write` appends to the vector; what the vector has already is not its business. Returns the record's offset: its position is
    /// [`crate::position`]`(base, offset)` once the batch is appended at `base`.
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
            "a record only appends, and a batch has at most {BATCH_BYTES_MAX} bytes"
        );
        let header = record_header(&self.bytes[payload_at..]);
        self.bytes[at..payload_at].copy_from_slice(&header);
        self.records += 1;
        at as u32
    }

    /// Takes all records of another, which is empty then: they are appended together, or not at all. Returns by how much their offsets have
    /// grown.
    pub fn take(&mut self, other: &mut Batch) -> u64 {
        let shift = self.bytes.len().saturating_sub(BLOCK_HEADER_BYTES);
        let head = if self.bytes.is_empty() { 0 } else { BLOCK_HEADER_BYTES };
        self.bytes.extend(other.bytes.get(head..).unwrap_or_default());
        self.records += other.records;
        other.clear();
        shift as u64
    }

    /// Empties it but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records = 0;
    }

    /// The block, its header still to be filled in. `None` for a batch without records.
    pub(crate) fn block(&mut self) -> Option<&mut Vec<u8>> {
        (self.records > 0).then_some(&mut self.bytes)
    }
}
