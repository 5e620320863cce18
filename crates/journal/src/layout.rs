//! Bytes on disk: headers of segments and blocks, frames of records. `lib.rs` has the picture of the whole. Pure functions;
//! whoever reads or writes files is elsewhere.
//!
//! The checksum of a block header begins with the journal's id. So a block of another journal is no block here, and
//! nobody who only chooses payloads can write one that looks like a header.

use std::fmt;

use crate::lsn::Lsn;

/// Of segments and of the checkpoint. A reader refuses what is newer.
pub const FORMAT_VERSION: u32 = 1;

pub const SEGMENT_HEADER_BYTES: usize = 64;
pub const BLOCK_HEADER_BYTES: usize = 32;
pub const RECORD_HEADER_BYTES: usize = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"TWJOURNL";
/// No byte of it is zero, ASCII or the first of another: what was overwritten with text or zeros is not taken for a block.
pub(crate) const BLOCK_MAGIC: [u8; 4] = [0xB1, 0x0C, 0xF5, 0x9A];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub base: Lsn,
    pub journal_id: u64,
    pub created_unix_ms: u64,
}

/// Why 64 bytes are no segment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentHeaderError {
    Magic,
    Checksum,
    TooNew(u32),
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.base.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.journal_id.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.created_unix_ms.to_le_bytes());
        let checksum = checksum_without(&bytes, 12);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Place and meaning of magic, version and checksum are the same in all versions.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<SegmentHeader, SegmentHeaderError> {
        if bytes[..8] != SEGMENT_MAGIC {
            return Err(SegmentHeaderError::Magic);
        }
        if u32_at(bytes, 12) != checksum_without(bytes, 12) {
            return Err(SegmentHeaderError::Checksum);
        }
        match u32_at(bytes, 8) {
            FORMAT_VERSION => Ok(SegmentHeader {
                base: Lsn(u64_at(bytes, 16)),
                journal_id: u64_at(bytes, 24),
                created_unix_ms: u64_at(bytes, 32),
            }),
            version => Err(SegmentHeaderError::TooNew(version)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub records_bytes: u32,
    /// Where this header stands.
    pub lsn: Lsn,
    /// All before it had been synced when this block was appended.
    pub synced: Lsn,
}

impl BlockHeader {
    pub fn encode(&self, journal_id: u64) -> [u8; BLOCK_HEADER_BYTES] {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[4..8].copy_from_slice(&self.records_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.synced.0.to_le_bytes());
        let checksum = block_checksum(&bytes, journal_id);
        bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Of the block that stands at `lsn`.
    pub fn decode(bytes: &[u8], journal_id: u64, lsn: Lsn) -> Result<BlockHeader, Invalid> {
        let bytes: &[u8; BLOCK_HEADER_BYTES] = bytes.first_chunk().ok_or(Invalid::Cut)?;
        if bytes[..4] != BLOCK_MAGIC {
            return Err(Invalid::Magic);
        }
        if u32_at(bytes, 24) != block_checksum(bytes, journal_id) {
            return Err(Invalid::HeaderChecksum);
        }
        let header = BlockHeader {
            records_bytes: u32_at(bytes, 4),
            lsn: Lsn(u64_at(bytes, 8)),
            synced: Lsn(u64_at(bytes, 16)),
        };
        if header.lsn != lsn || header.synced > lsn {
            return Err(Invalid::Position);
        }
        Ok(header)
    }

    pub fn block_bytes(&self) -> u64 {
        BLOCK_HEADER_BYTES as u64 + u64::from(self.records_bytes)
    }
}

/// Why bytes are not the block that should stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The file ends before the block does.
    Cut,
    Magic,
    HeaderChecksum,
    /// The header is that of another place.
    Position,
    /// A record is longer than what is left of its block.
    RecordLength,
    RecordChecksum,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invalid::Cut => "the file ends within a block",
            Invalid::Magic => "no block begins here",
            Invalid::HeaderChecksum => "the checksum of a block header is wrong",
            Invalid::Position => "a block of another place stands here",
            Invalid::RecordLength => "a record is longer than its block",
            Invalid::RecordChecksum => "the checksum of a record is wrong",
        })
    }
}

/// The payload of the first record, checked, and what follows the record.
pub(crate) fn split_record(bytes: &[u8]) -> Result<(&[u8], &[u8]), Invalid> {
    let (header, rest) = bytes
        .split_first_chunk::<RECORD_HEADER_BYTES>()
        .ok_or(Invalid::RecordLength)?;
    let (payload, rest) = rest
        .split_at_checked(u32_at(header, 0) as usize)
        .ok_or(Invalid::RecordLength)?;
    if u32_at(header, 4) != record_checksum(payload) {
        return Err(Invalid::RecordChecksum);
    }
    Ok((payload, rest))
}

/// The frame for a payload.
pub(crate) fn record_header(payload: &[u8]) -> [u8; RECORD_HEADER_BYTES] {
    let mut header = [0; RECORD_HEADER_BYTES];
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..].copy_from_slice(&record_checksum(payload).to_le_bytes());
    header
}

fn record_checksum(payload: &[u8]) -> u32 {
    let length = (payload.len() as u32).to_le_bytes();
    crc32c::crc32c_append(crc32c::crc32c(&length), payload)
}

fn block_checksum(bytes: &[u8; BLOCK_HEADER_BYTES], journal_id: u64) -> u32 {
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&journal_id.to_le_bytes()), &bytes[..24]);
    crc32c::crc32c_append(checksum, &bytes[28..])
}

/// Of all bytes but the four at `at`.
pub(crate) fn checksum_without(bytes: &[u8], at: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..at]), &bytes[at + 4..])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("callers give enough bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("callers give enough bytes"))
}
