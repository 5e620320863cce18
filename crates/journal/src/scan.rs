//! Reads the blocks of one segment in order, and looks at what stands behind the last valid one.
//!
//! A block is valid when its header is, it ends within the file, and every record in it is. Only then is any of it shown.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use crate::layout::{
    BLOCK_HEADER_BYTES, BLOCK_MAGIC, BlockHeader, Invalid, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, split_record,
    u32_at,
};
use crate::lsn::Lsn;
use crate::segments::Segment;
use storage::{StorageFile, read_full};

/// Read at a time; a longer block is read as a whole.
const WINDOW_BYTES: usize = 1 << 20;

pub(crate) struct BlockScan<'a> {
    segment: &'a Segment,
    journal_id: u64,
    position: Lsn,
    end: Lsn,
    window: Window<'a>,
}

pub(crate) struct Block<'a> {
    pub header: BlockHeader,
    pub records: &'a [u8],
}

pub(crate) enum Scanned<'a> {
    Block(Block<'a>),
    /// The file ends here.
    End,
    Invalid(Invalid),
}

impl<'a> BlockScan<'a> {
    /// From `from` to the end of the file or, at the latest, to `end`.
    pub fn new(segment: &'a Segment, journal_id: u64, from: Lsn, end: Option<Lsn>) -> BlockScan<'a> {
        let file_end = segment.file_end();
        BlockScan {
            segment,
            journal_id,
            position: from,
            end: end.map_or(file_end, |end| end.min(file_end)),
            window: Window::new(segment),
        }
    }

    /// Where the next block stands, or where it should.
    pub fn position(&self) -> Lsn {
        self.position
    }

    pub fn next(&mut self) -> io::Result<Scanned<'_>> {
        if self.position >= self.end {
            return Ok(Scanned::End);
        }
        let (lsn, offset) = (self.position, self.segment.offset(self.position));
        let header = self.window.get(offset, BLOCK_HEADER_BYTES)?;
        let header = match BlockHeader::decode(header, self.journal_id, lsn) {
            Ok(header) => header,
            Err(invalid) => return Ok(Scanned::Invalid(invalid)),
        };
        if header.block_bytes() > self.end.0 - lsn.0 {
            return Ok(Scanned::Invalid(Invalid::Cut));
        }
        let block = self.window.get(offset, header.block_bytes() as usize)?;
        let records = block.get(BLOCK_HEADER_BYTES..).unwrap_or_default();
        if records.len() as u64 != u64::from(header.records_bytes) {
            return Ok(Scanned::Invalid(Invalid::Cut));
        }
        if let Err(invalid) = check_records(records) {
            return Ok(Scanned::Invalid(invalid));
        }
        self.position.0 += header.block_bytes();
        Ok(Scanned::Block(Block { header, records }))
    }
}

fn check_records(mut records: &[u8]) -> Result<(), Invalid> {
    while !records.is_empty() {
        (_, records) = split_record(records)?;
    }
    Ok(())
}

impl<'a> Block<'a> {
    /// Positions and payloads.
    pub fn records(&self) -> impl Iterator<Item = (Lsn, &'a [u8])> + use<'a> {
        let records = self.records;
        let base = self.header.lsn.0 + BLOCK_HEADER_BYTES as u64;
        let mut at = 0;
        std::iter::from_fn(move || {
            let header = records.get(at..at + RECORD_HEADER_BYTES)?;
            let (position, payload_at) = (Lsn(base + at as u64), at + RECORD_HEADER_BYTES);
            at = payload_at + u32_at(header, 0) as usize;
            Some((position, &records[payload_at..at]))
        })
    }
}

/// What stands behind the last valid block.
pub(crate) struct Rest {
    /// Up to the last byte that is not zero.
    pub used_bytes: u64,
    /// A header further back says that all before this position was synced.
    pub proof: Option<Lsn>,
    /// The file ends within a block that begins here.
    pub is_cut: bool,
}

impl Rest {
    /// It cannot be what a crash has left of a write.
    pub fn is_damage(&self) -> bool {
        self.proof.is_some() || self.is_cut
    }
}

/// Looks for a block header behind `from` that says that `from` was synced, and whether the file ends within the block there.
pub(crate) fn examine_rest(segment: &Segment, journal_id: u64, from: Lsn) -> io::Result<Rest> {
    let mut rest = Rest {
        used_bytes: 0,
        proof: None,
        is_cut: is_cut(segment, journal_id, from)?,
    };
    let start = segment.offset(from);
    let mut search = HeaderSearch::new(segment, journal_id, from);
    while let Some(found) = search.next(|last| rest.used_bytes = last + 1 - start)? {
        if found.synced > from {
            rest.proof = Some(found.synced);
            break;
        }
    }
    Ok(rest)
}

/// Whether the file ends within a block that begins at `from`. A file of ours never does: it has the length of a block, on the
/// disk, before the block is written, and is cut only where one ends.
fn is_cut(segment: &Segment, journal_id: u64, from: Lsn) -> io::Result<bool> {
    let offset = segment.offset(from);
    let mut header = [0; BLOCK_HEADER_BYTES];
    let count = read_full(&*segment.file, offset, &mut header)?;
    if count < BLOCK_HEADER_BYTES {
        return Ok(header.iter().any(|byte| *byte != 0));
    }
    let Ok(header) = BlockHeader::decode(&header, journal_id, from) else {
        return Ok(false);
    };
    // Asked for after the header was read: the file of a log that is in use may have been made longer for this block.
    Ok(segment.file.len()? < offset + header.block_bytes())
}

/// How the file of a segment ends that is shorter than it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEnd {
    /// Where a block does, or without any: another segment may have followed.
    AtBlock,
    /// Within what began here and is no whole block.
    WithinBlock(Lsn),
}

/// Damage on the way is passed over.
pub(crate) fn file_end(segment: &Segment, journal_id: u64) -> io::Result<FileEnd> {
    let mut from = segment.base;
    loop {
        let mut scan = BlockScan::new(segment, journal_id, from, None);
        while let Scanned::Block(_) = scan.next()? {}
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

/// The first valid block behind `from`.
pub(crate) fn find_block(segment: &Segment, journal_id: u64, from: Lsn) -> io::Result<Option<Lsn>> {
    let mut search = HeaderSearch::new(segment, journal_id, Lsn(from.0 + 1));
    while let Some(header) = search.next(|_| {})? {
        let mut scan = BlockScan::new(segment, journal_id, header.lsn, None);
        if let Scanned::Block(_) = scan.next()? {
            return Ok(Some(header.lsn));
        }
    }
    Ok(None)
}

/// Finds valid headers of blocks. A block has any length, so the next may begin at any byte.
struct HeaderSearch<'a> {
    segment: &'a Segment,
    journal_id: u64,
    window: Window<'a>,
    /// Of the window, in the file.
    offset: u64,
    /// Within the window.
    at: usize,
}

impl<'a> HeaderSearch<'a> {
    fn new(segment: &'a Segment, journal_id: u64, from: Lsn) -> HeaderSearch<'a> {
        HeaderSearch {
            segment,
            journal_id,
            window: Window::new(segment),
            offset: segment.offset(from),
            at: 0,
        }
    }

    /// Calls `seen` with the offset of the last byte so far that is not zero.
    fn next(&mut self, mut seen: impl FnMut(u64)) -> io::Result<Option<BlockHeader>> {
        let end = self.segment.offset(self.segment.file_end());
        while self.offset < end {
            let wanted = WINDOW_BYTES.min((end - self.offset) as usize);
            let bytes = self.window.get(self.offset, wanted)?;
            // Most of what is searched is zeros.
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

/// By blocks that the compiler compares many bytes at a time: this sees every preallocated byte at each start.
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

/// A part of a file, in memory.
struct Window<'a> {
    file: &'a dyn StorageFile,
    file_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(segment: &'a Segment) -> Window<'a> {
        Window {
            file: &*segment.file,
            file_bytes: segment.file_bytes.load(Relaxed),
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// `len` bytes from `offset` on, fewer if the file ends before. Offsets never go back.
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
        let kept = self.bytes.len();
        let wanted = (len.max(WINDOW_BYTES) as u64).min(self.file_bytes.saturating_sub(offset)) as usize;
        self.bytes.resize(wanted.max(kept), 0);
        let count = read_full(self.file, offset + kept as u64, &mut self.bytes[kept..])?;
        self.bytes.truncate(kept + count);
        Ok(())
    }
}
