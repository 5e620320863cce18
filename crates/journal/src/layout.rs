//! On-disk format: headers of segments and blocks, frames of records. `lib.rs` describes the whole layout. Pure
//! functions without file access.
//!
//! The checksum of a block header starts with the journal's id. Blocks of another journal are therefore invalid, and a
//! client cannot forge a block header by choosing message payloads.

use std::fmt;

use crate::lsn::Lsn;

/// Format version of segments and of the checkpoint. Newer versions are rejected.
pub const FORMAT_VERSION: u32 = 1;

pub const SEGMENT_HEADER_BYTES: usize = 64;
pub const BLOCK_HEADER_BYTES: usize = 32;
pub const RECORD_HEADER_BYTES: usize = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"TWJOURNL";
/// No byte is zero, ASCII, or equal to the first byte, so text or zeros that overwrite a block never match.
pub(crate) const BLOCK_MAGIC: [u8; 4] = [0xB1, 0x0C, 0xF5, 0x9A];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub base: Lsn,
    pub journal_id: u64,
    pub created_unix_ms: u64,
}

/// Why a segment header is invalid.
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

    /// Decodes and checks a header. Magic, version and checksum have the same offset and meaning in all versions.
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
    /// Position of this header.
    pub lsn: Lsn,
    /// Everything before this position was synced when the block was appended.
    pub synced: Lsn,
    /// Version of the owner's record kinds when the block was appended. 0 in a block that a repair wrote.
    pub record_version: u32,
}

impl BlockHeader {
    pub fn encode(&self, journal_id: u64) -> [u8; BLOCK_HEADER_BYTES] {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[4..8].copy_from_slice(&self.records_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.synced.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.record_version.to_le_bytes());
        let checksum = block_checksum(&bytes, journal_id);
        bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes and checks the header of the block at `lsn`.
    pub fn decode(bytes: &[u8], journal_id: u64, lsn: Lsn) -> Result<BlockHeader, InvalidBlock> {
        let bytes: &[u8; BLOCK_HEADER_BYTES] = bytes.first_chunk().ok_or(InvalidBlock::Cut)?;
        if bytes[..4] != BLOCK_MAGIC {
            return Err(InvalidBlock::Magic);
        }
        if u32_at(bytes, 24) != block_checksum(bytes, journal_id) {
            return Err(InvalidBlock::HeaderChecksum);
        }
        let header = BlockHeader {
            records_bytes: u32_at(bytes, 4),
            lsn: Lsn(u64_at(bytes, 8)),
            synced: Lsn(u64_at(bytes, 16)),
            record_version: u32_at(bytes, 28),
        };
        if header.lsn != lsn || header.synced > lsn {
            return Err(InvalidBlock::Position);
        }
        Ok(header)
    }

    pub fn block_bytes(&self) -> u64 {
        BLOCK_HEADER_BYTES as u64 + u64::from(self.records_bytes)
    }
}

/// Why bytes are not the block that is expected at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidBlock {
    /// The file ends before the block does.
    Cut,
    Magic,
    HeaderChecksum,
    /// The header belongs to another position.
    Position,
    /// A record is longer than the rest of its block.
    RecordLength,
    RecordChecksum,
}

impl fmt::Display for InvalidBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidBlock::Cut => "the file ends within a block",
            InvalidBlock::Magic => "no block header at this position",
            InvalidBlock::HeaderChecksum => "bad checksum of a block header",
            InvalidBlock::Position => "block header belongs to another position",
            InvalidBlock::RecordLength => "a record is longer than its block",
            InvalidBlock::RecordChecksum => "bad checksum of a record",
        })
    }
}

/// A frame in a block: a record, or the space of a record that a repair could not save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Record(&'a [u8]),
    Lost,
}

/// Checks the first frame. Returns it and the bytes after it.
pub(crate) fn split_frame(bytes: &[u8]) -> Result<(Frame<'_>, &[u8]), InvalidBlock> {
    let (header, rest) = bytes
        .split_first_chunk::<RECORD_HEADER_BYTES>()
        .ok_or(InvalidBlock::RecordLength)?;
    let (payload, rest) = rest
        .split_at_checked(u32_at(header, 0) as usize)
        .ok_or(InvalidBlock::RecordLength)?;
    let (stored, computed) = (u32_at(header, 4), record_checksum(payload));
    match stored {
        _ if stored == computed => Ok((Frame::Record(payload), rest)),
        _ if stored == !computed => Ok((Frame::Lost, rest)),
        _ => Err(InvalidBlock::RecordChecksum),
    }
}

/// Checks the first record. Returns its payload. A lost record is an error.
pub(crate) fn first_record(bytes: &[u8]) -> Result<&[u8], InvalidBlock> {
    match split_frame(bytes)?.0 {
        Frame::Record(payload) => Ok(payload),
        Frame::Lost => Err(InvalidBlock::RecordChecksum),
    }
}

/// Returns the frame of a lost record that takes `frame_bytes` bytes.
pub(crate) fn lost_frame(frame_bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; frame_bytes];
    let (header, payload) = frame.split_at_mut(RECORD_HEADER_BYTES);
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..].copy_from_slice(&(!record_checksum(payload)).to_le_bytes());
    frame
}

/// Returns the frame header of a payload.
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

/// Returns the CRC32C of all bytes except the four at `at`.
pub(crate) fn checksum_without(bytes: &[u8], at: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..at]), &bytes[at + 4..])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("callers pass at least four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("callers pass at least eight bytes"))
}
