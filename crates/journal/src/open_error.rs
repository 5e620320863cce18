//! Why a journal cannot be opened. Each says what to do about it.

use std::{fmt, io};

use crate::config::ConfigError;
use crate::layout::{FORMAT_VERSION, Invalid};
use crate::lsn::Lsn;

/// What the receiver of the replay says when it cannot take a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayError {
    pub because: String,
}

/// What is wrong at a place that had been synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Block(Invalid),
    /// The file ends before the place that the checkpoint says is in it.
    CutShort,
    /// The header of the segment, or its name.
    SegmentHeader,
    /// The whole file.
    Checkpoint,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Block(invalid) => invalid.fmt(f),
            Damage::CutShort => f.write_str("the file is cut short, before the place where replay begins"),
            Damage::SegmentHeader => f.write_str("the header of the segment is damaged"),
            Damage::Checkpoint => f.write_str("the checkpoint is damaged"),
        }
    }
}

#[derive(Debug)]
pub enum OpenError {
    Config(ConfigError),
    Io {
        /// What was being done.
        doing: String,
        source: io::Error,
    },
    /// Something that had been synced is not what was written.
    Damaged {
        location: String,
        file: String,
        offset: u64,
        lsn: Lsn,
        what: Damage,
    },
    /// Files have been removed or renamed.
    SegmentMissing {
        location: String,
        /// The name that it would have.
        file: String,
        lsn: Lsn,
    },
    /// The file belongs to another journal.
    WrongJournal {
        location: String,
        file: String,
        journal_id: u64,
        expected: u64,
    },
    /// A later version of the program wrote it.
    TooNew {
        file: String,
        version: u32,
    },
    /// The receiver of the records refused one.
    Replay {
        position: Lsn,
        because: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Config(error) => error.fmt(f),
            OpenError::Io { doing, .. } => f.write_str(doing),
            OpenError::Damaged {
                location,
                file,
                offset,
                lsn,
                what,
            } => write!(
                f,
                "the journal is damaged: {file}, offset {offset} (position {lsn}): {what}. Put back a backup, or cut the \
                 journal there, which loses everything behind it: tidewire journal repair --data-dir {location}"
            ),
            OpenError::SegmentMissing { location, file, lsn } => write!(
                f,
                "the segment {file} of the journal is missing (position {lsn}), or the one before it is cut short. Put it \
                 back, or remove all that it separates from the place where replay begins: tidewire journal repair --data-dir \
                 {location}"
            ),
            OpenError::WrongJournal {
                location,
                file,
                journal_id,
                expected,
            } => write!(
                f,
                "{file} is of the journal {journal_id:016x}, the others are of {expected:016x}. Move it out of the journal \
                 directory in {location}, and put back the one that belongs there"
            ),
            OpenError::TooNew { file, version } => write!(
                f,
                "{file} has format version {version}, and this program knows up to {FORMAT_VERSION}: use the version of \
                 tidewire that wrote it, or a later one"
            ),
            OpenError::Replay { position, because } => {
                write!(f, "the record at position {position} cannot be replayed: {because}")
            }
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

/// For `map_err`: what was being done with which file.
pub(crate) fn io_error(doing: &str, file: &str) -> impl FnOnce(io::Error) -> OpenError {
    let doing = format!("{doing} {file}");
    |source| OpenError::Io { doing, source }
}
