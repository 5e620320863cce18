//! Inspects a journal from outside: `tidewire journal inspect`, `verify` and `repair`, and backups.
//!
//! All functions take the data directory, as `--data-dir` does. Inspecting and copying work while a broker uses the
//! journal; repair needs exclusive access. Unlike opening, inspection continues behind damage, and also reads segments
//! before the checkpoint.

mod copy;
mod repair;
mod skip;
mod survey;

use std::path::{Path, PathBuf};
use std::{fmt, io};

pub use copy::{copy_around, copy_to};
pub use repair::{DamagePolicy, RepairMode, RepairOptions, RepairReport, repair, repair_log, replay_all};
pub use skip::{LostRange, LostThing, extend_to};

use crate::DIRECTORY_NAME;
use crate::lsn::Lsn;
use crate::open_error::OpenError;
use storage::{DirectoryError, StorageDirectory};
use survey::Survey;

/// Contents and problems of a journal.
#[derive(Debug)]
pub struct InspectionReport {
    /// `None` if no header is readable.
    pub journal_id: Option<u64>,
    /// `None` without a checkpoint: replay begins at the first segment.
    pub replay_from: Option<Lsn>,
    pub first: Lsn,
    /// End of the valid blocks.
    pub next: Lsn,
    pub segments: Vec<SegmentReport>,
    pub blocks: u64,
    pub records: u64,
    /// Records that a repair replaced because they were damaged.
    pub lost_records: u64,
    /// Size of all segments, including preallocated space.
    pub file_bytes: u64,
    /// Bytes of an unfinished write at the end, which the next start truncates. In a journal in use, a write in
    /// progress.
    pub torn_bytes: u64,
    /// Problems as opening would report them. Damage before `replay_from` does not prevent opening.
    pub problems: Vec<OpenError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    pub name: String,
    pub base: Lsn,
    /// End of its valid blocks.
    pub end: Lsn,
    pub file_bytes: u64,
    /// `None` if the header is damaged.
    pub created_unix_ms: Option<u64>,
    pub blocks: u64,
    pub records: u64,
}

#[derive(Debug)]
pub enum InspectError {
    Directory(DirectoryError),
    /// The directory has neither a segment nor a checkpoint.
    NoJournal {
        path: PathBuf,
    },
    /// The target directory of a copy already has a journal.
    TargetExists {
        path: PathBuf,
    },
    /// Segments were removed during every attempt to copy them.
    SegmentsRemoved,
    Journal(OpenError),
    Io {
        operation: String,
        source: io::Error,
    },
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InspectError::Directory(error) => error.fmt(f),
            InspectError::NoJournal { path } => write!(f, "no journal in {}", path.display()),
            InspectError::TargetExists { path } => write!(f, "{} already exists", path.display()),
            InspectError::SegmentsRemoved => {
                f.write_str("cannot copy the journal: segments were removed during each attempt; try again")
            }
            InspectError::Journal(error) => error.fmt(f),
            InspectError::Io { operation: doing, .. } => f.write_str(doing),
        }
    }
}

impl std::error::Error for InspectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Their text already includes the text of the wrapped error.
            InspectError::Directory(error) => error.source(),
            InspectError::Journal(error) => error.source(),
            InspectError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Returns a function for `map_err` that adds the operation and the file.
fn io_error(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> InspectError + use<> {
    let doing = format!("{doing} {}", path.display());
    |source| InspectError::Io {
        operation: doing,
        source,
    }
}

/// Returns the position at which replay would begin.
pub fn replay_from(data_directory: &Path) -> Result<Lsn, InspectError> {
    let storage = StorageDirectory::open_read_only(data_directory, DIRECTORY_NAME).map_err(InspectError::Directory)?;
    let survey = Survey::take(&storage).map_err(InspectError::Journal)?;
    let first = survey.first();
    Ok(survey.checkpoint.map_or(first, |checkpoint| checkpoint.replay_from))
}

/// Receives every valid record in order, including those before the checkpoint and behind damage.
pub type RecordVisitor<'a> = dyn FnMut(Lsn, &[u8]) + 'a;

/// Reads and checks the whole journal.
pub fn inspect(data_directory: &Path) -> Result<InspectionReport, InspectError> {
    inspect_records(data_directory, &mut |_, _| {})
}

/// As [`inspect`], and passes every record to `visit`.
pub fn inspect_records(data_directory: &Path, visit: &mut RecordVisitor<'_>) -> Result<InspectionReport, InspectError> {
    inspect_log(data_directory, DIRECTORY_NAME, visit)
}

/// As [`inspect_records`], for a log in any directory.
pub fn inspect_log(parent: &Path, name: &str, visit: &mut RecordVisitor<'_>) -> Result<InspectionReport, InspectError> {
    let storage = StorageDirectory::open_read_only(parent, name).map_err(InspectError::Directory)?;
    let survey = Survey::take(&storage).map_err(InspectError::Journal)?;
    if survey.is_empty() {
        let path = storage.path().to_owned();
        return Err(InspectError::NoJournal { path });
    }
    survey.report(&storage, visit).map_err(InspectError::Journal)
}

/// As [`inspect`], but returns the first problem as an error.
pub fn verify(data_directory: &Path) -> Result<InspectionReport, InspectError> {
    verify_named(data_directory, DIRECTORY_NAME)
}

pub(super) fn verify_named(parent: &Path, name: &str) -> Result<InspectionReport, InspectError> {
    let mut report = inspect_log(parent, name, &mut |_, _| {})?;
    match report.problems.is_empty() {
        true => Ok(report),
        false => Err(InspectError::Journal(report.problems.swap_remove(0))),
    }
}
