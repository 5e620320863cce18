//! Errors of opening a journal. Each text says what to do.

use std::{fmt, io};

use crate::config::ConfigError;
use crate::layout::InvalidBlock;
use crate::lsn::Lsn;

/// Reason why the receiver of the replay rejects a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayError {
    pub reason: String,
}

/// Kind of damage to data that had been synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Block(InvalidBlock),
    /// The file ends before the position at which the checkpoint starts replay.
    CutShort,
    /// The segment header is invalid or does not match the file name.
    SegmentHeader,
    /// The whole checkpoint file.
    Checkpoint,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Block(invalid) => invalid.fmt(f),
            Damage::CutShort => f.write_str("the file is truncated before the position where replay begins"),
            Damage::SegmentHeader => f.write_str("bad segment header"),
            Damage::Checkpoint => f.write_str("bad checkpoint"),
        }
    }
}

/// The part of a file that has a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionOf {
    /// The file itself: [`crate::FORMAT_VERSION`].
    Format,
    /// The owner's records: [`crate::LogConfig::record_version`].
    Records,
}

#[derive(Debug)]
pub enum OpenError {
    Config(ConfigError),
    Io {
        /// Operation and file.
        operation: String,
        source: io::Error,
    },
    /// Synced data is not intact.
    Damaged {
        location: String,
        file: String,
        offset: u64,
        lsn: Lsn,
        damage: Damage,
    },
    /// A segment file was removed, renamed or truncated.
    SegmentMissing {
        location: String,
        /// Expected file name.
        file: String,
        lsn: Lsn,
    },
    /// The log ends before a position up to which it had been synced.
    EndMissing {
        location: String,
        /// The last segment.
        file: String,
        lsn: Lsn,
        reached: Lsn,
    },
    /// The file belongs to another journal.
    WrongJournal {
        location: String,
        file: String,
        journal_id: u64,
        expected: u64,
    },
    /// A newer version of the program wrote the file.
    TooNew {
        /// Path of the file.
        file: String,
        of: VersionOf,
        version: u32,
        supported: u32,
    },
    /// The receiver of the replay rejected a record.
    Replay {
        /// Path of the segment.
        file: String,
        position: Lsn,
        reason: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Config(error) => error.fmt(f),
            OpenError::Io { operation: doing, .. } => f.write_str(doing),
            OpenError::Damaged {
                location,
                file,
                offset,
                lsn,
                damage: what,
            } => write!(
                f,
                "the journal is damaged: {file}, offset {offset} (position {lsn}): {what}. Restore a backup, or repair \
     the journal. A repair removes all later records; with --skip-damaged, only damaged ones: tidewire journal repair \
     --data-dir {location}"
            ),
            OpenError::SegmentMissing { location, file, lsn } => write!(
                f,
                "journal segment {file} (position {lsn}) is missing, or the previous segment is truncated. Restore the file, or \
     remove the segments that are cut off from the start of replay: tidewire journal repair --data-dir \
     {location}"
            ),
            OpenError::EndMissing {
                location,
                file,
                lsn,
                reached,
            } => write!(
                f,
                "the end of the journal is missing: {file} ends at position {lsn}, but the journal had been synced up to position \
     {reached}. Restore the file, or accept the loss: tidewire journal repair --data-dir {location}"
            ),
            OpenError::WrongJournal {
                location,
                file,
                journal_id,
                expected,
            } => write!(
                f,
                "{file} belongs to journal {journal_id:016x}, the other segments to {expected:016x}. Move it out of the journal \
     directory in {location}, and restore the original file"
            ),
            OpenError::TooNew {
                file,
                of,
                version,
                supported,
            } => write!(
                f,
                "{file} has {of} version {version}, but this program supports versions up to {supported}. Use the newer \
     tidewire that wrote it, or restore a backup",
                of = match of {
                    VersionOf::Format => "format",
                    VersionOf::Records => "record",
                }
            ),
            OpenError::Replay { file, position, reason } => write!(
                f,
                "{file} has an invalid record at position {position}: {reason}. Use the newer tidewire that wrote it, or \
     restore a backup"
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Returns a function for `map_err` that adds the operation and the file.
pub(crate) fn io_error(doing: &str, file: &str) -> impl FnOnce(io::Error) -> OpenError {
    let doing = format!("{doing} {file}");
    |source| OpenError::Io {
        operation: doing,
        source,
    }
}
