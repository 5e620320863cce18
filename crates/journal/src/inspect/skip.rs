//! Replaces damage in a segment by lost records of the same length, so that all other records stay at their positions.
//!
//! - A damaged record whose length is plausible becomes a lost record. The length is plausible if the rest of the block
//!   consists of frames that end with the block.
//! - If it is not, everything up to the end of the block is lost.
//! - A damaged block header is built again: the block then ends where the next valid block begins. Only block headers
//!   are searched for, because a client cannot forge them (layout.rs). Records are never searched for.
//! - Positions that no file contains become blocks of lost records at the end of the file before them.
//!
//! At the end of the log nothing has to stay in place. Damage there is cut off, except records of a block with a valid
//! header.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::catalog::SegmentCatalog;
use crate::checkpoint::Checkpoint;
use crate::inspect::copy::{sync_directory, write_synced};
use crate::inspect::repair::REWRITTEN_NAME;
use crate::inspect::{InspectError, io_error};
use crate::layout::{
    BLOCK_HEADER_BYTES, BlockHeader, RECORD_HEADER_BYTES, SegmentHeader, lost_frame, split_frame, u32_at,
};
use crate::lsn::Lsn;
use crate::scan::{BlockScan, ScannedBlock, examine_rest, find_block};
use crate::segments::{LogSegment, segment_name};
use storage::{Storage, StorageDirectory, read_full};

/// Longest block of lost records, because a block is read at once.
const LOST_BLOCK_BYTES: u64 = 1 << 20;
/// Smallest block with a lost record: the headers of the block and of the record.
const LOST_BLOCK_BYTES_MIN: u64 = (BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES) as u64;

/// Kind of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostThing {
    /// One record. Its length is known.
    Record,
    /// Records of a block: their number is unknown.
    Records,
    /// Positions that are in no file.
    Missing,
}

/// Damage that a repair skips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    pub file: String,
    pub offset: u64,
    pub lsn: Lsn,
    pub bytes: u64,
    pub thing: LostThing,
    /// The damaged bytes of a record.
    pub payload: Vec<u8>,
}

/// New contents of parts of a segment.
#[derive(Default)]
pub(super) struct SegmentPatch {
    /// Offset and bytes, in ascending order. They may extend the file.
    parts: Vec<(u64, Vec<u8>)>,
    pub lost: Vec<LostRange>,
}

/// The bytes of a damaged block.
struct DamagedBlock<'a> {
    segment: &'a LogSegment,
    journal_id: u64,
    lsn: Lsn,
    /// From the header of the block on.
    bytes: Vec<u8>,
}

impl SegmentPatch {
    /// Examines a segment from a position on, and returns the end of its blocks after the patch.
    /// `reached`: the log was synced up to this position.
    pub fn of(
        segment: &LogSegment,
        journal_id: u64,
        (from, next_base): (Lsn, Option<Lsn>),
        reached: Lsn,
    ) -> io::Result<(SegmentPatch, Lsn)> {
        let mut patch = SegmentPatch::default();
        let mut position = from;
        loop {
            let mut scan = BlockScan::new(segment, journal_id, position, next_base);
            while let ScannedBlock::Block(_) = scan.next()? {}
            position = scan.position();
            if next_base.is_some_and(|next| position >= next) {
                return Ok((patch, position));
            }
            if next_base.is_none() && position >= reached && !examine_rest(segment, journal_id, position)?.is_damage() {
                return Ok((patch, position));
            }
            let behind = find_block(segment, journal_id, position)?;
            let behind = behind
                .filter(|behind| next_base.is_none_or(|next| *behind < next))
                .or(next_base);
            let Some(end) = patch.replace(segment, journal_id, position, behind)? else {
                return Ok((patch, position));
            };
            position = end;
        }
    }

    /// Replaces the damage between two positions, or that of one block. Returns its end. `None` if the rest of the log
    /// is not usable.
    fn replace(
        &mut self,
        segment: &LogSegment,
        journal_id: u64,
        lsn: Lsn,
        behind: Option<Lsn>,
    ) -> io::Result<Option<Lsn>> {
        let file_end = segment.file_end();
        let in_file = behind.unwrap_or(file_end).min(file_end);
        let mut bytes = vec![0; (in_file.0 - lsn.0) as usize];
        let count = read_full(&*segment.file, segment.offset(lsn), &mut bytes)?;
        bytes.truncate(count);
        let header = BlockHeader::decode(&bytes, journal_id, lsn).ok();
        let whole = header
            .map(|header| header.block_bytes())
            .filter(|len| *len <= count as u64);
        let block_bytes = match (whole, behind) {
            (Some(block_bytes), _) => block_bytes,
            // The file ends within the block.
            (None, Some(behind)) if behind > file_end => {
                self.fill(segment, journal_id, lsn, behind);
                return Ok(Some(behind));
            }
            (None, Some(_)) => count as u64,
            // The file ends.
            (None, None) if last_used(&bytes) == 0 => return Ok(None),
            (None, None) => {
                self.lost.push(LostRange {
                    file: segment.name.clone(),
                    offset: segment.offset(lsn),
                    lsn,
                    bytes: last_used(&bytes),
                    thing: LostThing::Records,
                    payload: Vec::new(),
                });
                self.parts.push((segment.offset(lsn), Vec::new()));
                return Ok(None);
            }
        };
        bytes.truncate(block_bytes as usize);
        let mut block = DamagedBlock {
            segment,
            journal_id,
            lsn,
            bytes,
        };
        self.lost.extend(block.mend());
        self.parts.push((segment.offset(lsn), block.bytes));
        Ok(Some(Lsn(lsn.0 + block_bytes)))
    }

    /// Fills positions that no file contains.
    fn fill(&mut self, segment: &LogSegment, journal_id: u64, lsn: Lsn, end: Lsn) {
        self.lost.push(LostRange {
            file: segment.name.clone(),
            offset: segment.offset(lsn),
            lsn,
            bytes: end.0 - lsn.0,
            thing: LostThing::Missing,
            payload: Vec::new(),
        });
        let mut at = lsn;
        while at < end {
            let left = end.0 - at.0;
            let bytes = match left {
                0..=LOST_BLOCK_BYTES => left,
                // The rest must be a block, too.
                _ => LOST_BLOCK_BYTES - LOST_BLOCK_BYTES_MIN,
            };
            self.parts
                .push((segment.offset(at), lost_block(journal_id, at, bytes as usize)));
            at = Lsn(at.0 + bytes);
        }
    }

    pub fn restore_header(&mut self, header: &SegmentHeader) {
        self.parts.insert(0, (0, header.encode().to_vec()));
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Writes the segment again, because a backup may be a hard link to the same file.
    pub fn perform(&self, journal: &Path, name: &str) -> Result<(), InspectError> {
        let (path, rewritten) = (journal.join(name), journal.join(REWRITTEN_NAME));
        let file = File::open(&path).map_err(io_error("opening", &path))?;
        let mut source = PatchedFile {
            file,
            parts: &self.parts,
            offset: 0,
        };
        write_synced(&rewritten, &mut source)?;
        std::fs::rename(&rewritten, &path).map_err(io_error("renaming", &rewritten))?;
        sync_directory(journal)
    }
}

impl DamagedBlock<'_> {
    /// Makes the block valid, and returns the lost ranges.
    fn mend(&mut self) -> Vec<LostRange> {
        let mut lost = Vec::new();
        let mut at = BLOCK_HEADER_BYTES;
        // The start of the frame before `at`, which is lost too if the rest is too short for a frame.
        let mut previous = at;
        while at < self.bytes.len() {
            match split_frame(&self.bytes[at..]) {
                Ok((_, rest)) => (previous, at) = (at, self.bytes.len() - rest.len()),
                Err(_) => {
                    let end = self.end_of_damaged_record(at);
                    let thing = match end {
                        Some(_) => LostThing::Record,
                        None => LostThing::Records,
                    };
                    let end = end.unwrap_or(self.bytes.len());
                    let start = if end - at < RECORD_HEADER_BYTES { previous } else { at };
                    lost.push(self.lose(start..end, thing));
                    (previous, at) = (start, end);
                }
            }
        }
        let record_version = BlockHeader::decode(&self.bytes, self.journal_id, self.lsn).map(|it| it.record_version);
        let header = BlockHeader {
            records_bytes: (self.bytes.len() - BLOCK_HEADER_BYTES) as u32,
            lsn: self.lsn,
            // It proves nothing any more. The caller syncs the whole file.
            synced: Lsn(0),
            record_version: record_version.unwrap_or(0),
        };
        self.bytes[..BLOCK_HEADER_BYTES].copy_from_slice(&header.encode(self.journal_id));
        lost
    }

    /// Returns the end of a damaged record if its length is plausible.
    fn end_of_damaged_record(&self, at: usize) -> Option<usize> {
        let end = self.frame_end(at)?;
        let mut next = end;
        while next < self.bytes.len() {
            next = self.frame_end(next)?;
        }
        Some(end)
    }

    fn frame_end(&self, at: usize) -> Option<usize> {
        let header = self.bytes.get(at..at + RECORD_HEADER_BYTES)?;
        let end = at + RECORD_HEADER_BYTES + u32_at(header, 0) as usize;
        (end <= self.bytes.len()).then_some(end)
    }

    fn lose(&mut self, range: std::ops::Range<usize>, thing: LostThing) -> LostRange {
        let lsn = Lsn(self.lsn.0 + range.start as u64);
        let payload = match thing {
            LostThing::Record => self.bytes[range.start + RECORD_HEADER_BYTES..range.end].to_vec(),
            LostThing::Records | LostThing::Missing => Vec::new(),
        };
        let frame = lost_frame(range.len());
        self.bytes[range.clone()].copy_from_slice(&frame);
        LostRange {
            file: self.segment.name.clone(),
            offset: self.segment.offset(lsn),
            lsn,
            bytes: range.len() as u64,
            thing,
            payload,
        }
    }
}

/// Extends a log that has lost its end to a position, with lost records, or creates a log that begins there. For a log
/// with positions that other stores have recorded: new records must not get positions of lost ones. The log must open.
pub fn extend_to(parent: &Path, name: &str, end: Lsn) -> Result<(), InspectError> {
    let storage = StorageDirectory::open(parent, name).map_err(InspectError::Directory)?;
    let journal = storage.path();
    let Some(catalog) = SegmentCatalog::read(&storage).map_err(InspectError::Journal)? else {
        return create_at(&storage, end);
    };
    let last = catalog.segments.last().expect("a journal has a segment");
    let journal_id = catalog.checkpoint.journal_id;
    let read = io_error("reading", journal);
    let mut scan = BlockScan::new(last, journal_id, last.base.max(catalog.checkpoint.replay_from), None);
    let at = loop {
        match scan.next() {
            Ok(ScannedBlock::Block(_)) => {}
            Ok(_) => break scan.position(),
            Err(error) => return Err(read(error)),
        }
    };
    if at >= end {
        return Ok(());
    }
    // The last block may be longer than the positions that are missing, but not shorter than a block.
    let end = end.max(Lsn(at.0 + LOST_BLOCK_BYTES_MIN));
    let mut patch = SegmentPatch::default();
    patch.fill(last, journal_id, at, end);
    patch.parts.push((last.offset(end), Vec::new()));
    patch.perform(journal, &last.name)
}

/// Creates an empty log that begins at a position.
fn create_at(storage: &StorageDirectory, base: Lsn) -> Result<(), InspectError> {
    let journal = storage.path();
    let header = SegmentHeader {
        base,
        journal_id: storage.random().map_err(io_error("creating", journal))?,
        created_unix_ms: storage.unix_ms(),
    };
    let checkpoint = Checkpoint {
        journal_id: header.journal_id,
        replay_from: base,
        first: base,
        reached: base,
    };
    // The checkpoint alone is not a log that opens. So an interrupted creation can be repeated.
    checkpoint
        .replace(storage)
        .map_err(|failure| io_error("creating", journal)(failure.error))?;
    write_synced(&journal.join(segment_name(base)), &mut &header.encode()[..])?;
    sync_directory(journal)
}

/// Returns a block of this length with one lost record, or without a record if it is too short.
fn lost_block(journal_id: u64, lsn: Lsn, bytes: usize) -> Vec<u8> {
    let records_bytes = bytes - BLOCK_HEADER_BYTES;
    let header = BlockHeader {
        records_bytes: records_bytes as u32,
        lsn,
        synced: Lsn(0),
        record_version: 0,
    };
    let mut block = header.encode(journal_id).to_vec();
    if records_bytes > 0 {
        block.extend(lost_frame(records_bytes));
    }
    block
}

fn last_used(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1)
}

/// Reads a file with some parts replaced. An empty part ends it.
struct PatchedFile<'a> {
    file: File,
    parts: &'a [(u64, Vec<u8>)],
    offset: u64,
}

impl Read for PatchedFile<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some((offset, bytes)) = self.parts.first() {
            let end = offset + bytes.len() as u64;
            if *offset == self.offset && bytes.is_empty() {
                return Ok(0);
            }
            if self.offset >= end {
                self.parts = &self.parts[1..];
                continue;
            }
            if self.offset >= *offset {
                let from = &bytes[(self.offset - offset) as usize..];
                let count = from.len().min(into.len());
                into[..count].copy_from_slice(&from[..count]);
                self.offset += count as u64;
                return Ok(count);
            }
            let until = into.len().min((offset - self.offset) as usize);
            return self.read_file(&mut into[..until]);
        }
        self.read_file(into)
    }
}

impl PatchedFile<'_> {
    fn read_file(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.file.seek(SeekFrom::Start(self.offset))?;
        let count = self.file.read(into)?;
        self.offset += count as u64;
        Ok(count)
    }
}
