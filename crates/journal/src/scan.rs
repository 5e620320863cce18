//! Reads the blocks of one segment in order, and examines the bytes behind the last valid block.
//!
//! A block is valid if its header is valid, it ends within the file, and every record in it is valid. Invalid blocks
//! are never returned, not even in part.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use crate::layout::{
    BLOCK_HEADER_BYTES, BLOCK_MAGIC, BlockHeader, Frame, InvalidBlock, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES,
    split_frame, u32_at,
};
use crate::lsn::Lsn;
use crate::segments::LogSegment;
use storage::{StorageFile, read_full};

/// Bytes per read. A longer block is read at once.
const WINDOW_BYTES: usize = 1 << 20;

pub(crate) struct BlockScan<'a> {
    segment: &'a LogSegment,
    journal_id: u64,
    position: Lsn,
    end: Lsn,
    window: FileWindow<'a>,
}

pub(crate) struct ParsedBlock<'a> {
    pub header: BlockHeader,
    pub records: &'a [u8],
    /// Number of records that a repair replaced because they were damaged.
    pub lost_records: u64,
}

pub(crate) enum ScannedBlock<'a> {
    Block(ParsedBlock<'a>),
    /// The file ends here.
    End,
    Invalid(InvalidBlock),
}

impl<'a> BlockScan<'a> {
    /// Scans from `from` to `end` or the end of the file, whichever comes first.
    pub fn new(segment: &'a LogSegment, journal_id: u64, from: Lsn, end: Option<Lsn>) -> BlockScan<'a> {
        let file_end = segment.file_end();
        BlockScan {
            segment,
            journal_id,
            position: from,
            end: end.map_or(file_end, |end| end.min(file_end)),
            window: FileWindow::new(segment),
        }
    }

    /// Returns the position of the next block.
    pub fn position(&self) -> Lsn {
        self.position
    }

    pub fn next(&mut self) -> io::Result<ScannedBlock<'_>> {
        if self.position >= self.end {
            return Ok(ScannedBlock::End);
        }
        let (lsn, offset) = (self.position, self.segment.offset(self.position));
        let header = self.window.get(offset, BLOCK_HEADER_BYTES)?;
        let header = match BlockHeader::decode(header, self.journal_id, lsn) {
            Ok(header) => header,
            Err(invalid) => return Ok(ScannedBlock::Invalid(invalid)),
        };
        if header.block_bytes() > self.end.0 - lsn.0 {
            return Ok(ScannedBlock::Invalid(InvalidBlock::Cut));
        }
        let block = self.window.get(offset, header.block_bytes() as usize)?;
        let records = block.get(BLOCK_HEADER_BYTES..).unwrap_or_default();
        if records.len() as u64 != u64::from(header.records_bytes) {
            return Ok(ScannedBlock::Invalid(InvalidBlock::Cut));
        }
        let lost_records = match check_records(records) {
            Ok(lost_records) => lost_records,
            Err(invalid) => return Ok(ScannedBlock::Invalid(invalid)),
        };
        self.position.0 += header.block_bytes();
        Ok(ScannedBlock::Block(ParsedBlock {
            header,
            records,
            lost_records,
        }))
    }
}

/// Returns the number of lost records.
fn check_records(mut records: &[u8]) -> Result<u64, InvalidBlock> {
    let mut lost_records = 0;
    while !records.is_empty() {
        let (frame, rest) = split_frame(records)?;
        lost_records += u64::from(frame == Frame::Lost);
        records = rest;
    }
    Ok(lost_records)
}

impl<'a> ParsedBlock<'a> {
    /// Returns position and payload of each record, without lost records.
    pub fn records(&self) -> impl Iterator<Item = (Lsn, &'a [u8])> + use<'a> {
        let (records, has_lost) = (self.records, self.lost_records > 0);
        let is_record = move |at: usize| !has_lost || matches!(split_frame(&records[at..]), Ok((Frame::Record(_), _)));
        let base = self.header.lsn.0 + BLOCK_HEADER_BYTES as u64;
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let header = records.get(at..at + RECORD_HEADER_BYTES)?;
                let (frame_at, payload_at) = (at, at + RECORD_HEADER_BYTES);
                at = payload_at + u32_at(header, 0) as usize;
                if is_record(frame_at) {
                    return Some((Lsn(base + frame_at as u64), &records[payload_at..at]));
                }
            }
        })
    }
}

/// The bytes behind the last valid block.
pub(crate) struct SegmentTail {
    /// Length up to the last byte that is not zero.
    pub used_bytes: u64,
    /// `synced` position of a later block header, if it is beyond this point.
    pub later_synced: Option<Lsn>,
    /// The file ends within a block that starts here.
    pub is_cut: bool,
}

impl SegmentTail {
    /// Returns whether these bytes cannot be the rest of a write that a crash interrupted.
    pub fn is_damage(&self) -> bool {
        self.later_synced.is_some() || self.is_cut
    }
}

/// Searches behind `from` for a block header that proves that `from` was synced, and checks whether the file ends
/// within a block.
pub(crate) fn examine_rest(segment: &LogSegment, journal_id: u64, from: Lsn) -> io::Result<SegmentTail> {
    let mut rest = SegmentTail {
        used_bytes: 0,
        later_synced: None,
        is_cut: is_cut(segment, journal_id, from)?,
    };
    let start = segment.offset(from);
    let mut search = HeaderSearch::new(segment, journal_id, from);
    while let Some(found) = search.next(|last| rest.used_bytes = last + 1 - start)? {
        if found.synced > from {
            rest.later_synced = Some(found.synced);
            break;
        }
    }
    Ok(rest)
}

/// Returns whether the file ends within a block that starts at `from`. The writer never leaves such a file: it extends
/// the file durably before it writes a block, and truncates only at the end of a block.
fn is_cut(segment: &LogSegment, journal_id: u64, from: Lsn) -> io::Result<bool> {
    let offset = segment.offset(from);
    let mut header = [0; BLOCK_HEADER_BYTES];
    let count = read_full(&*segment.file, offset, &mut header)?;
    if count < BLOCK_HEADER_BYTES {
        return Ok(header.iter().any(|byte| *byte != 0));
    }
    let Ok(header) = BlockHeader::decode(&header, journal_id, from) else {
        return Ok(false);
    };
    // Read after the header: the file of a log in use may have been extended for this block.
    Ok(segment.file.len()? < offset + header.block_bytes())
}

/// End of a segment file that is shorter than expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEnd {
    /// The file ends at the end of a block, or has none. Another segment may have followed.
    AtBlock,
    /// The file ends within an incomplete or damaged block that starts here.
    WithinBlock(Lsn),
}

/// Finds the end of a segment file. Skips damaged blocks that are followed by a valid one.
pub(crate) fn file_end(segment: &LogSegment, journal_id: u64) -> io::Result<FileEnd> {
    let mut from = segment.base;
    loop {
        let mut scan = BlockScan::new(segment, journal_id, from, None);
        while let ScannedBlock::Block(_) = scan.next()? {}
        let end = scan.position();
        if end == segment.file_end() {
            return Ok(FileEnd::AtBlock);
        }
        match find_block(segment, journal_id, end)? {
            Some(behind) => from = behind,
            None => return Ok(FileEnd::WithinBlock(end)),
        }
    }
}

/// Returns the position of the first valid block behind `from`.
pub(crate) fn find_block(segment: &LogSegment, journal_id: u64, from: Lsn) -> io::Result<Option<Lsn>> {
    let mut search = HeaderSearch::new(segment, journal_id, Lsn(from.0 + 1));
    while let Some(header) = search.next(|_| {})? {
        let mut scan = BlockScan::new(segment, journal_id, header.lsn, None);
        if let ScannedBlock::Block(_) = scan.next()? {
            return Ok(Some(header.lsn));
        }
    }
    Ok(None)
}

/// Finds valid block headers. Blocks have any length, so the next one may start at any byte.
struct HeaderSearch<'a> {
    segment: &'a LogSegment,
    journal_id: u64,
    window: FileWindow<'a>,
    /// File offset of the window.
    offset: u64,
    /// Index within the window.
    at: usize,
}

impl<'a> HeaderSearch<'a> {
    fn new(segment: &'a LogSegment, journal_id: u64, from: Lsn) -> HeaderSearch<'a> {
        HeaderSearch {
            segment,
            journal_id,
            window: FileWindow::new(segment),
            offset: segment.offset(from),
            at: 0,
        }
    }

    /// Returns the next valid header. Calls `seen` with the file offset of the last non-zero byte of each window.
    fn next(&mut self, mut seen: impl FnMut(u64)) -> io::Result<Option<BlockHeader>> {
        let end = self.segment.offset(self.segment.file_end());
        while self.offset < end {
            let wanted = WINDOW_BYTES.min((end - self.offset) as usize);
            let bytes = self.window.get(self.offset, wanted)?;
            // Most of the searched bytes are zeros.
            if let Some(last) = last_nonzero(bytes) {
                seen(self.offset + last as u64);
                while let Some(found) = bytes[self.at..].iter().position(|byte| *byte == BLOCK_MAGIC[0]) {
                    let at = self.at + found;
                    self.at = at + 1;
                    let lsn = Lsn(self.segment.base.0 + self.offset + at as u64 - SEGMENT_HEADER_BYTES as u64);
                    if let Ok(header) = BlockHeader::decode(&bytes[at..], self.journal_id, lsn) {
                        return Ok(Some(header));
                    }
                }
            }
            if wanted < WINDOW_BYTES {
                break;
            }
            // A header may begin in this window and end in the next.
            self.offset += (WINDOW_BYTES - BLOCK_HEADER_BYTES + 1) as u64;
            self.at = 0;
        }
        Ok(None)
    }
}

/// Returns the index of the last non-zero byte. Works by chunks that the compiler vectorises, because each start
/// examines every preallocated byte.
fn last_nonzero(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 4096;
    let mut end = bytes.len();
    for block in bytes.rchunks(BLOCK) {
        let start = end - block.len();
        if block.iter().fold(0, |all, byte| all | byte) != 0 {
            return block.iter().rposition(|byte| *byte != 0).map(|at| start + at);
        }
        end = start;
    }
    None
}

/// A part of a file in memory.
struct FileWindow<'a> {
    file: &'a dyn StorageFile,
    file_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> FileWindow<'a> {
    fn new(segment: &'a LogSegment) -> FileWindow<'a> {
        FileWindow {
            file: &*segment.file,
            file_bytes: segment.file_bytes.load(Relaxed),
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// Returns `len` bytes from `offset` on, or fewer at the end of the file. Offsets must not decrease.
    fn get(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let have = (self.start + self.bytes.len() as u64).saturating_sub(offset);
        if have < len as u64 {
            self.refill(offset, len)?;
        }
        let from = ((offset - self.start) as usize).min(self.bytes.len());
        let to = (from + len).min(self.bytes.len());
        Ok(&self.bytes[from..to])
    }

    fn refill(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let passed = (offset - self.start).min(self.bytes.len() as u64) as usize;
        self.bytes.drain(..passed);
        self.start = offset;
        let retained = self.bytes.len();
        let wanted = (len.max(WINDOW_BYTES) as u64).min(self.file_bytes.saturating_sub(offset)) as usize;
        self.bytes.resize(wanted.max(retained), 0);
        let count = read_full(self.file, offset + retained as u64, &mut self.bytes[retained..])?;
        self.bytes.truncate(retained + count);
        Ok(())
    }
}
