//! For looking at a journal from outside: `tidewire journal inspect`, `verify` and `repair`, and backups.
//!
//! Takes the data directory, as `--data-dir` does. Looking and copying work while a broker uses the journal; repairing needs
//! it alone. Unlike opening, looking goes on behind what is damaged, and reads the segments before the checkpoint too.

mod copy;
mod repair;
mod survey;

use std::path::{Path, PathBuf};
use std::{fmt, io};

pub use copy::{copy_around, copy_to};
pub use repair::{Mode, Repaired, repair, replay_all};

use crate::DIRECTORY_NAME;
use crate::lsn::Lsn;
use crate::open_error::OpenError;
use storage::{Directory, DirectoryError};
use survey::Survey;

/// What a journal holds, and what is wrong with it.
#[derive(Debug)]
pub struct Report {
    /// `None` when no header can be read.
    pub journal_id: Option<u64>,
    /// Replay begins at the first segment when there is no checkpoint.
    pub replay_from: Option<Lsn>,
    pub first: Lsn,
    /// Where the valid blocks end.
    pub next: Lsn,
    pub segments: Vec<SegmentReport>,
    pub blocks: u64,
    pub records: u64,
    /// Of all segments, with what is preallocated.
    pub file_bytes: u64,
    /// Bytes of an unfinished write at the end, which the next start cuts; in a journal that is in use, one that is under way.
    pub torn_bytes: u64,
    /// Each as opening would report it. What is damaged before `replay_from` keeps nobody from opening.
    pub problems: Vec<OpenError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    pub name: String,
    pub base: Lsn,
    /// Where its valid blocks end.
    pub end: Lsn,
    pub file_bytes: u64,
    /// `None` when its header is damaged.
    pub created_unix_ms: Option<u64>,
    pub blocks: u64,
    pub records: u64,
}

#[derive(Debug)]
pub enum InspectError {
    Directory(DirectoryError),
    /// The directory has no segment and no checkpoint.
    NoJournal {
        path: PathBuf,
    },
    /// Nothing is copied into a directory that has a journal.
    TargetExists {
        path: PathBuf,
    },
    /// Files kept vanishing while they were being copied.
    Restless,
    Journal(OpenError),
    Io {
        doing: String,
        source: io::Error,
    },
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InspectError::Directory(error) => error.fmt(f),
            InspectError::NoJournal { path } => write!(f, "there is no journal in {}", path.display()),
            InspectError::TargetExists { path } => write!(f, "{} is there already", path.display()),
            InspectError::Restless => {
                f.write_str("the journal's segments were removed faster than they were copied: try again")
            }
            InspectError::Journal(error) => error.fmt(f),
            InspectError::Io { doing, .. } => f.write_str(doing),
        }
    }
}

impl std::error::Error for InspectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // What these say is what the wrapped error says.
            InspectError::Directory(error) => error.source(),
            InspectError::Journal(error) => error.source(),
            InspectError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// For `map_err`: what was being done with which file.
fn io_error(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> InspectError + use<> {
    let doing = format!("{doing} {}", path.display());
    |source| InspectError::Io { doing, source }
}

/// Where replay would begin.
pub fn replay_from(data_directory: &Path) -> Result<Lsn, InspectError> {
    let storage = Directory::open_read_only(data_directory, DIRECTORY_NAME).map_err(InspectError::Directory)?;
    let survey = Survey::take(&storage).map_err(InspectError::Journal)?;
    let first = survey.first();
    Ok(survey.checkpoint.map_or(first, |checkpoint| checkpoint.replay_from))
}

/// Shown every valid record of the journal, in order, also those before the checkpoint and behind what is damaged.
pub type Visit<'a> = dyn FnMut(Lsn, &[u8]) + 'a;

/// Reads the whole journal, checks everything in it, and says what there is.
pub fn inspect(data_directory: &Path) -> Result<Report, InspectError> {
    inspect_records(data_directory, &mut |_, _| {})
}

/// As [`inspect`], for who knows what records mean.
pub fn inspect_records(data_directory: &Path, visit: &mut Visit<'_>) -> Result<Report, InspectError> {
    inspect_named(data_directory, DIRECTORY_NAME, visit)
}

fn inspect_named(parent: &Path, name: &str, visit: &mut Visit<'_>) -> Result<Report, InspectError> {
    let storage = Directory::open_read_only(parent, name).map_err(InspectError::Directory)?;
    let survey = Survey::take(&storage).map_err(InspectError::Journal)?;
    if survey.is_empty() {
        let path = storage.path().to_owned();
        return Err(InspectError::NoJournal { path });
    }
    survey.report(&storage, visit).map_err(InspectError::Journal)
}

/// As [`inspect`], but any problem is an error: the first of them.
pub fn verify(data_directory: &Path) -> Result<Report, InspectError> {
    verify_named(data_directory, DIRECTORY_NAME)
}

pub(super) fn verify_named(parent: &Path, name: &str) -> Result<Report, InspectError> {
    let mut report = inspect_named(parent, name, &mut |_, _| {})?;
    match report.problems.is_empty() {
        true => Ok(report),
        false => Err(InspectError::Journal(report.problems.swap_remove(0))),
    }
}
