//! A consistent copy (backup) of a journal, also while it is in use.
//!
//! Full segments never change. They are hard-linked if the file system supports it, and copied otherwise. Of the active
//! segment, only the blocks that are valid when the copy reaches it are copied. Later bytes are left out: they could
//! belong to a block whose `synced` field covers earlier bytes that were still zeros when they were read. If a segment
//! is removed during the copy, the copy starts again.

use std::fs;
use std::io;
use std::path::Path;

use crate::DIRECTORY_NAME;
use crate::catalog::{bases_from, open_segment, read_checkpoint};
use crate::checkpoint::{CHECKPOINT_NAME, Checkpoint};
use crate::inspect::{InspectError, InspectionReport, io_error, verify_named};
use crate::lsn::Lsn;
use crate::open_error::OpenError;
use crate::scan::{BlockScan, ScannedBlock, examine_rest};
use crate::segments::{LogSegment, segment_name};
use storage::{Storage, StorageDirectory, copy};

/// Maximum number of attempts.
const ATTEMPTS: u32 = 10;

/// Copies the journal of one data directory into another, which must not have one, and verifies the copy. Removes the
/// copy after an error.
pub fn copy_to(data_directory: &Path, target: &Path) -> Result<InspectionReport, InspectError> {
    copy_around(data_directory, DIRECTORY_NAME, target, || Ok(()))
}

/// As [`copy_to`], for a log in any directory. The copy begins at the replay position before `between` is called, and
/// ends at the end of the log after it. It therefore contains all records that a store copied by `between` still needs.
/// `between` may be called several times.
pub fn copy_around<E: From<InspectError>>(
    parent: &Path,
    name: &str,
    target: &Path,
    between: impl FnMut() -> Result<(), E>,
) -> Result<InspectionReport, E> {
    let to = target.join(name);
    if to.exists() {
        return Err(InspectError::TargetExists { path: to }.into());
    }
    let result = copy_and_verify(parent, name, target, between);
    if result.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_dir_all(&to);
    }
    result
}

fn copy_and_verify<E: From<InspectError>>(
    parent: &Path,
    name: &str,
    target: &Path,
    mut between: impl FnMut() -> Result<(), E>,
) -> Result<InspectionReport, E> {
    let storage = StorageDirectory::open_read_only(parent, name).map_err(InspectError::Directory)?;
    let to = &target.join(name);
    for _ in 0..ATTEMPTS {
        fs::create_dir_all(to).map_err(io_error("creating", to))?;
        if let Some(begun) = begin(&storage, to)? {
            between()?;
            if finish(&storage, to, begun)? == CopyAttempt::Done {
                sync_directory(to)?;
                sync_directory(target)?;
                return Ok(verify_named(target, name).map_err(|error| with_original_location(error, &storage))?);
            }
        }
        fs::remove_dir_all(to).map_err(io_error("removing", to))?;
    }
    Err(InspectError::SegmentsRemoved.into())
}

/// Replaces the location in an error of the copy with the original's: the damage was copied, and the copy is removed.
fn with_original_location(mut error: InspectError, original: &StorageDirectory) -> InspectError {
    if let InspectError::Journal(
        OpenError::Damaged { location, .. }
        | OpenError::SegmentMissing { location, .. }
        | OpenError::WrongJournal { location, .. },
    ) = &mut error
    {
        *location = original.location();
    }
    error
}

#[derive(PartialEq, Eq)]
pub(super) enum CopyAttempt {
    Done,
    /// A segment was removed during the copy.
    SegmentRemoved,
}

/// State after the full segments are copied.
struct BegunCopy {
    checkpoint: Option<Checkpoint>,
    /// The active segment at that time.
    last: Lsn,
}

/// Copies the full segments. `None` if a segment was removed during the copy.
fn begin(storage: &StorageDirectory, to: &Path) -> Result<Option<BegunCopy>, InspectError> {
    // Read before the segments: segments that this checkpoint needs are removed only after it has advanced.
    let checkpoint = read_checkpoint(storage).map_err(InspectError::Journal)?;
    let first = checkpoint.map_or(Lsn(0), |checkpoint| checkpoint.first);
    let bases = bases_from(storage, first).map_err(InspectError::Journal)?;
    if bases.first() != Some(&first) && read_checkpoint(storage).ok() != Some(checkpoint) {
        return Ok(None);
    }
    let Some((&last, full)) = bases.split_last() else {
        let path = storage.path().to_owned();
        return Err(InspectError::NoJournal { path });
    };
    let is_done = link_all(storage, full, to)? == CopyAttempt::Done;
    Ok(is_done.then_some(BegunCopy { checkpoint, last }))
}

/// Copies segments that became full since `begin`, and the valid part of the active segment.
fn finish(storage: &StorageDirectory, to: &Path, begun: BegunCopy) -> Result<CopyAttempt, InspectError> {
    let bases = bases_from(storage, begun.last).map_err(InspectError::Journal)?;
    let Some((&last, full)) = bases.split_last().filter(|_| bases.first() == Some(&begun.last)) else {
        return Ok(CopyAttempt::SegmentRemoved);
    };
    if link_all(storage, full, to)? == CopyAttempt::SegmentRemoved
        || copy_valid_part(storage, last, to)? == CopyAttempt::SegmentRemoved
    {
        return Ok(CopyAttempt::SegmentRemoved);
    }
    if let Some(checkpoint) = begun.checkpoint {
        write_synced(&to.join(CHECKPOINT_NAME), &mut &checkpoint.encode()[..])?;
    }
    Ok(CopyAttempt::Done)
}

fn link_all(storage: &StorageDirectory, full: &[Lsn], to: &Path) -> Result<CopyAttempt, InspectError> {
    for base in full {
        let name = segment_name(*base);
        if link_or_copy(&storage.path().join(&name), &to.join(&name))? == CopyAttempt::SegmentRemoved {
            return Ok(CopyAttempt::SegmentRemoved);
        }
    }
    Ok(CopyAttempt::Done)
}

fn link_or_copy(from: &Path, to: &Path) -> Result<CopyAttempt, InspectError> {
    attempt(copy::link_or_copy(from, to).map_err(io_error("copying", from))?)
}

pub(super) fn copy_whole(from: &Path, to: &Path) -> Result<CopyAttempt, InspectError> {
    attempt(copy::copy_prefix(from, to, u64::MAX).map_err(io_error("copying", from))?)
}

fn attempt(was_there: bool) -> Result<CopyAttempt, InspectError> {
    Ok(match was_there {
        true => CopyAttempt::Done,
        false => CopyAttempt::SegmentRemoved,
    })
}

/// Copies header and valid blocks of the active segment.
fn copy_valid_part(storage: &StorageDirectory, base: Lsn, to: &Path) -> Result<CopyAttempt, InspectError> {
    let name = segment_name(base);
    let from = storage.path().join(&name);
    let (segment, header) = match open_segment(storage, base) {
        Ok(opened) => opened,
        Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(CopyAttempt::SegmentRemoved);
        }
        Err(error) => return Err(InspectError::Journal(error)),
    };
    let end = valid_end(&segment, header.journal_id).map_err(io_error("reading", &from))?;
    // Damage is copied too, so that verifying the copy reports its position.
    let bytes = end.map_or(u64::MAX, |end| segment.offset(end));
    attempt(copy::copy_prefix(&from, &to.join(&name), bytes).map_err(io_error("copying", &from))?)
}

/// Returns the end of the valid blocks. `None` if later data proves that the position was synced.
fn valid_end(segment: &LogSegment, journal_id: u64) -> io::Result<Option<Lsn>> {
    let mut end = segment.base;
    loop {
        let mut scan = BlockScan::new(segment, journal_id, end, None);
        while let ScannedBlock::Block(_) = scan.next()? {}
        let is_further = scan.position() > end;
        end = scan.position();
        // The proof may have been written after the scan passed this position. In that case a second scan advances.
        if !examine_rest(segment, journal_id, end)?.is_damage() {
            return Ok(Some(end));
        }
        if !is_further {
            return Ok(None);
        }
    }
}

pub(super) fn write_synced(to: &Path, from: &mut dyn io::Read) -> Result<(), InspectError> {
    copy::write_synced(to, from).map_err(io_error("writing", to))
}

pub(super) fn sync_directory(path: &Path) -> Result<(), InspectError> {
    copy::sync_directory(path).map_err(io_error("syncing", path))
}
