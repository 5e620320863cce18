//! A consistent copy of a journal, also of one that is in use: a backup.
//!
//! Full segments never change, so they are linked where the file system can, and copied where not. Of the one that is
//! written to, what is valid when the copy comes to it is copied, and nothing behind that: a byte read later could belong
//! to a block that says that bytes read earlier, as zeros still, were synced. What is removed meanwhile makes the copy begin anew.

use std::fs;
use std::io;
use std::path::Path;

use crate::DIRECTORY_NAME;
use crate::catalog::{bases_from, open_segment, read_checkpoint};
use crate::checkpoint::{CHECKPOINT_NAME, Checkpoint};
use crate::inspect::{InspectError, Report, io_error, verify_named};
use crate::lsn::Lsn;
use crate::open_error::OpenError;
use crate::scan::{BlockScan, Scanned, examine_rest};
use crate::segments::{Segment, segment_name};
use storage::{Directory, Storage, copy};

/// How often the copy may begin anew.
const ATTEMPTS: u32 = 10;

/// Copies the journal of one data directory into another, which must not have one, and verifies the copy. After an error
/// the copy is removed.
pub fn copy_to(data_directory: &Path, target: &Path) -> Result<Report, InspectError> {
    copy_around(data_directory, DIRECTORY_NAME, target, || Ok(()))
}

/// As [`copy_to`], of a log with another name than the broker's. The copy begins where the log would be replayed from before `between`, and
/// ends where it ends after that: so it has all that something that is copied `between`, and says up to where it has the log, is without.
/// `between` may be called again.
pub fn copy_around<E: From<InspectError>>(
    parent: &Path,
    name: &str,
    target: &Path,
    between: impl FnMut() -> Result<(), E>,
) -> Result<Report, E> {
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
) -> Result<Report, E> {
    let storage = Directory::open_read_only(parent, name).map_err(InspectError::Directory)?;
    let to = &target.join(name);
    for _ in 0..ATTEMPTS {
        fs::create_dir_all(to).map_err(io_error("creating", to))?;
        if let Some(begun) = begin(&storage, to)? {
            between()?;
            if finish(&storage, to, begun)? == Attempt::Done {
                sync_directory(to)?;
                sync_directory(target)?;
                return Ok(verify_named(target, name).map_err(|error| of_original(error, &storage))?);
            }
        }
        fs::remove_dir_all(to).map_err(io_error("removing", to))?;
    }
    Err(InspectError::Restless.into())
}

/// What is damaged in a copy is damaged where it was copied from, and the copy does not stay.
fn of_original(mut error: InspectError, original: &Directory) -> InspectError {
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
pub(super) enum Attempt {
    Done,
    /// A segment was removed meanwhile.
    Outrun,
}

/// The full segments are copied.
struct Begun {
    checkpoint: Option<Checkpoint>,
    /// The segment that was written to.
    last: Lsn,
}

/// `None`: a segment was removed meanwhile.
fn begin(storage: &Directory, to: &Path) -> Result<Option<Begun>, InspectError> {
    // Before the segments: those that it needs are removed only after it has moved on.
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
    let is_done = link_all(storage, full, to)? == Attempt::Done;
    Ok(is_done.then_some(Begun { checkpoint, last }))
}

/// What has become full since, and of what is written to now, what is valid.
fn finish(storage: &Directory, to: &Path, begun: Begun) -> Result<Attempt, InspectError> {
    let bases = bases_from(storage, begun.last).map_err(InspectError::Journal)?;
    let Some((&last, full)) = bases.split_last().filter(|_| bases.first() == Some(&begun.last)) else {
        return Ok(Attempt::Outrun);
    };
    if link_all(storage, full, to)? == Attempt::Outrun || copy_valid_part(storage, last, to)? == Attempt::Outrun {
        return Ok(Attempt::Outrun);
    }
    if let Some(checkpoint) = begun.checkpoint {
        write_synced(&to.join(CHECKPOINT_NAME), &mut &checkpoint.encode()[..])?;
    }
    Ok(Attempt::Done)
}

fn link_all(storage: &Directory, full: &[Lsn], to: &Path) -> Result<Attempt, InspectError> {
    for base in full {
        let name = segment_name(*base);
        if link_or_copy(&storage.path().join(&name), &to.join(&name))? == Attempt::Outrun {
            return Ok(Attempt::Outrun);
        }
    }
    Ok(Attempt::Done)
}

fn link_or_copy(from: &Path, to: &Path) -> Result<Attempt, InspectError> {
    attempt(copy::link_or_copy(from, to).map_err(io_error("copying", from))?)
}

pub(super) fn copy_whole(from: &Path, to: &Path) -> Result<Attempt, InspectError> {
    attempt(copy::copy_prefix(from, to, u64::MAX).map_err(io_error("copying", from))?)
}

fn attempt(was_there: bool) -> Result<Attempt, InspectError> {
    Ok(match was_there {
        true => Attempt::Done,
        false => Attempt::Outrun,
    })
}

/// Header and valid blocks of the segment that is written to.
fn copy_valid_part(storage: &Directory, base: Lsn, to: &Path) -> Result<Attempt, InspectError> {
    let name = segment_name(base);
    let from = storage.path().join(&name);
    let (segment, header) = match open_segment(storage, base) {
        Ok(opened) => opened,
        Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Attempt::Outrun);
        }
        Err(error) => return Err(InspectError::Journal(error)),
    };
    let end = valid_end(&segment, header.journal_id).map_err(io_error("reading", &from))?;
    // The copy of what is damaged is damaged too, so that verifying it says where.
    let bytes = end.map_or(u64::MAX, |end| segment.offset(end));
    attempt(copy::copy_prefix(&from, &to.join(&name), bytes).map_err(io_error("copying", &from))?)
}

/// Where the valid blocks end; `None` when something behind that says that they should not.
fn valid_end(segment: &Segment, journal_id: u64) -> io::Result<Option<Lsn>> {
    let mut end = segment.base;
    loop {
        let mut scan = BlockScan::new(segment, journal_id, end, None);
        while let Scanned::Block(_) = scan.next()? {}
        let is_further = scan.position() > end;
        end = scan.position();
        // What was written after the scan had passed is proof of nothing: then the scan gets further when it is repeated.
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
