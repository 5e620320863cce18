//! The contents of a journal directory: checkpoint and segments, with their headers checked against each other.
//! Read-only.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::checkpoint::{CHECKPOINT_NAME, Checkpoint, CheckpointError};
use crate::layout::{FORMAT_VERSION, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentHeaderError};
use crate::lsn::Lsn;
use crate::open_error::{Damage, OpenError, VersionOf, io_error};
use crate::scan::{FileEnd, file_end};
use crate::segments::{LogSegment, base_of_name, base_of_newest_name, segment_name};
use storage::{Storage, read_full};

pub(crate) struct SegmentCatalog {
    pub checkpoint: Checkpoint,
    /// Segments in use, sorted. File lengths show no gap between them.
    pub segments: Vec<Arc<LogSegment>>,
    /// File names of segments that the checkpoint no longer includes and that are not removed yet.
    pub obsolete_names: Vec<String>,
}

impl SegmentCatalog {
    /// Reads the directory. `None` if it holds no journal.
    pub fn read(storage: &dyn Storage) -> Result<Option<SegmentCatalog>, OpenError> {
        let checkpoint = read_checkpoint(storage)?;
        let first = checkpoint.map_or(Lsn(0), |checkpoint| checkpoint.first);
        let SegmentNames { mut bases, newest } = SegmentNames::read(storage)?;
        if bases.is_empty() && checkpoint.is_none() && newest.is_none() {
            return Ok(None);
        }
        let counting = bases.partition_point(|base| *base < first);
        if bases.get(counting) != Some(&first) {
            return Err(missing(storage, first));
        }
        if let Some(newest) = newest.filter(|newest| bases.last() < Some(newest)) {
            return Err(missing(storage, newest));
        }
        let leftovers = bases.drain(..counting).map(segment_name).collect();
        let (segments, journal_id) = open_segments(storage, &bases, checkpoint)?;
        let checkpoint = checkpoint.unwrap_or(Checkpoint {
            journal_id,
            replay_from: first,
            first,
            reached: first,
        });
        check_contiguous(storage, &segments, checkpoint)?;
        Ok(Some(SegmentCatalog {
            checkpoint,
            segments,
            obsolete_names: leftovers,
        }))
    }
}

/// Segments by the names in the directory.
pub(crate) struct SegmentNames {
    /// Bases of the segment files, sorted.
    pub bases: Vec<Lsn>,
    /// Base of the newest segment that existed. `None` in a copy, and in a log of an earlier version.
    pub newest: Option<Lsn>,
}

impl SegmentNames {
    pub fn read(storage: &dyn Storage) -> Result<SegmentNames, OpenError> {
        let names = storage.names().map_err(io_error("listing", "the journal directory"))?;
        let mut bases: Vec<Lsn> = names.iter().filter_map(|name| base_of_name(name)).collect();
        bases.sort_unstable();
        // A crash may leave both the previous and the new name.
        let newest = names.iter().filter_map(|name| base_of_newest_name(name)).max();
        Ok(SegmentNames { bases, newest })
    }
}

/// Returns the bases of all segment files from `first` on, sorted.
pub(crate) fn bases_from(storage: &dyn Storage, first: Lsn) -> Result<Vec<Lsn>, OpenError> {
    let mut bases = SegmentNames::read(storage)?.bases;
    bases.retain(|base| *base >= first);
    Ok(bases)
}

pub(crate) fn read_checkpoint(storage: &dyn Storage) -> Result<Option<Checkpoint>, OpenError> {
    let error = match Checkpoint::read(storage) {
        Ok(checkpoint) => return Ok(Some(checkpoint)),
        Err(error) => error,
    };
    Err(match error {
        CheckpointError::Io(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        CheckpointError::Io(source) => io_error("reading", CHECKPOINT_NAME)(source),
        CheckpointError::TooNew(version) => too_new(storage, CHECKPOINT_NAME, version),
        CheckpointError::Damaged => OpenError::Damaged {
            location: storage.location(),
            file: CHECKPOINT_NAME.to_owned(),
            offset: 0,
            lsn: Lsn(0),
            damage: Damage::Checkpoint,
        },
    })
}

fn open_segments(
    storage: &dyn Storage,
    bases: &[Lsn],
    checkpoint: Option<Checkpoint>,
) -> Result<(Vec<Arc<LogSegment>>, u64), OpenError> {
    let mut journal_id = checkpoint.map(|checkpoint| checkpoint.journal_id);
    let mut segments = Vec::with_capacity(bases.len());
    for base in bases {
        let (segment, header) = open_segment(storage, *base)?;
        let expected = *journal_id.get_or_insert(header.journal_id);
        if header.journal_id != expected {
            return Err(OpenError::WrongJournal {
                location: storage.location(),
                file: segment.name,
                journal_id: header.journal_id,
                expected,
            });
        }
        segments.push(Arc::new(segment));
    }
    Ok((segments, journal_id.expect("there is a first segment")))
}

pub(crate) fn open_segment(storage: &dyn Storage, base: Lsn) -> Result<(LogSegment, SegmentHeader), OpenError> {
    let name = segment_name(base);
    let read = |file: &dyn storage::StorageFile| -> io::Result<(u64, [u8; SEGMENT_HEADER_BYTES])> {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        if read_full(file, 0, &mut bytes)? < SEGMENT_HEADER_BYTES {
            // A valid header ends with zeros. A header truncated there would look complete in a zeroed buffer.
            bytes.fill(0);
        }
        Ok((file.len()?, bytes))
    };
    let file = storage.open(&name).map_err(io_error("opening", &name))?;
    let (file_bytes, header) = read(&*file).map_err(io_error("reading", &name))?;
    match SegmentHeader::decode(&header) {
        Ok(header) if header.base == base => Ok((LogSegment::new(base, file, file_bytes), header)),
        Err(SegmentHeaderError::TooNew(version)) => Err(too_new(storage, &name, version)),
        Ok(_) | Err(SegmentHeaderError::Magic | SegmentHeaderError::Checksum) => Err(OpenError::Damaged {
            location: storage.location(),
            file: name,
            offset: 0,
            lsn: base,
            damage: Damage::SegmentHeader,
        }),
    }
}

/// Returns the path of a file of the log.
pub(crate) fn path_of(storage: &dyn Storage, name: &str) -> String {
    format!("{}/{name}", storage.directory())
}

fn too_new(storage: &dyn Storage, name: &str, version: u32) -> OpenError {
    OpenError::TooNew {
        file: path_of(storage, name),
        of: VersionOf::Format,
        version,
        supported: FORMAT_VERSION,
    }
}

/// Checks that no segment file is shorter than the distance to the next segment. A short file means that a segment
/// between them is missing, or that the file was truncated. Before the checkpoint, truncation within a block is
/// tolerated like any other damage, and readers report it. Segments that replay reads are not checked here: replay
/// reports their damage more exactly.
fn check_contiguous(
    storage: &dyn Storage,
    segments: &[Arc<LogSegment>],
    checkpoint: Checkpoint,
) -> Result<(), OpenError> {
    let replay_from = checkpoint.replay_from;
    for (at, segment) in segments.iter().enumerate() {
        debug_assert!(segment.file_bytes.load(Relaxed) >= SEGMENT_HEADER_BYTES as u64);
        let old_until = segments
            .get(at + 1)
            .map(|next| next.base)
            .filter(|next| *next <= replay_from);
        if segment.base > replay_from || segment.file_end() >= old_until.unwrap_or(replay_from) {
            continue;
        }
        let end = file_end(segment, checkpoint.journal_id).map_err(io_error("reading", &segment.name))?;
        match (end, old_until) {
            (FileEnd::AtBlock, _) => return Err(missing(storage, segment.file_end())),
            (FileEnd::WithinBlock(_), Some(_)) => {}
            (FileEnd::WithinBlock(lsn), None) => {
                return Err(OpenError::Damaged {
                    location: storage.location(),
                    file: segment.name.clone(),
                    offset: segment.offset(lsn),
                    lsn,
                    damage: Damage::CutShort,
                });
            }
        }
    }
    Ok(())
}

pub(crate) fn missing(storage: &dyn Storage, lsn: Lsn) -> OpenError {
    OpenError::SegmentMissing {
        location: storage.location(),
        file: segment_name(lsn),
        lsn,
    }
}
