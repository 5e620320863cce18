//! What can go wrong: a store that cannot write now, one that is damaged, a question that makes no sense.

use std::{fmt, io};

/// Nothing of the batch was applied; the same batch can be written again.
#[derive(Debug)]
pub enum WriteError {
    /// The memory for new points is full and a flush does not free it. Hold back, and write again.
    Busy { head_bytes: usize, source: StoreError },
}

#[derive(Debug)]
pub enum StoreError {
    /// Reading or writing failed; trying again may help (a full disk passes by itself).
    Io {
        doing: &'static str,
        file: String,
        source: io::Error,
    },
    /// The bytes are not what was written: a failing disk, or another program. Nothing is skipped.
    Corrupt {
        file: String,
        offset: u64,
        expected: &'static str,
    },
    /// Made by a newer version.
    Version {
        file: String,
        version: u32,
    },
    /// What the disk holds is unknown since a sync of the directory failed. The store must be opened again.
    Failed {
        since: String,
    },
    /// Too many deletions wait for [`crate::Store::maintain`] to carry them out.
    TooManyDeletes {
        max: usize,
    },
    Query(QueryError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryError {
    TooManyBuckets {
        max: usize,
    },
    TimeZone {
        name: String,
    },
    /// Times that no calendar has.
    Range,
    /// Of texts and intervals, in one answer.
    TooLarge {
        max: usize,
    },
}

impl StoreError {
    /// The same call can succeed later without anybody changing anything but the disk.
    pub fn is_retryable(&self) -> bool {
        matches!(self, StoreError::Io { .. } | StoreError::TooManyDeletes { .. })
    }

    pub fn is_full_disk(&self) -> bool {
        let full =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(self, StoreError::Io { source, .. } if full(source))
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WriteError::Busy { head_bytes, .. } = self;
        write!(
            f,
            "{head_bytes} bytes of new points wait in memory and cannot be flushed: write again later"
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Io { doing, file, .. } if self.is_full_disk() => {
                write!(
                    f,
                    "cannot {doing} {file}: the disk is full; the store goes on by itself when there is space"
                )
            }
            StoreError::Io { doing, file, .. } => write!(f, "cannot {doing} {file}"),
            StoreError::Corrupt { file, offset, expected } => write!(
                f,
                "{file} is damaged at offset {offset}: expected {expected}; restore the file from a backup"
            ),
            StoreError::Version { file, version } => write!(
                f,
                "{file} has format version {version}, this program reads up to {}: use a newer one",
                crate::FORMAT_VERSION
            ),
            StoreError::Failed { since } => write!(
                f,
                "the store stopped when it could not tell what is on disk ({since}): restart to go on from what is durable"
            ),
            StoreError::TooManyDeletes { max } => {
                write!(
                    f,
                    "{max} deletions are not carried out yet: try again when the store has merged its files"
                )
            }
            StoreError::Query(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueryError::TooManyBuckets { max } => {
                write!(
                    f,
                    "the query has more than {max} intervals: take a longer interval or a shorter range"
                )
            }
            QueryError::TimeZone { name } => write!(f, "{name:?} is no time zone: expected a name such as Europe/Kyiv"),
            QueryError::TooLarge { max } => write!(
                f,
                "the answer has more than {} MiB of texts or intervals: ask for fewer keys, a smaller limit, a shorter range or a longer interval",
                max >> 20
            ),
            QueryError::Range => write!(f, "the range has times that no calendar has"),
        }
    }
}

impl std::error::Error for QueryError {}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let WriteError::Busy { source, .. } = self;
        Some(source)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::Io { source, .. } => Some(source),
            StoreError::Query(error) => Some(error),
            _ => None,
        }
    }
}

impl From<QueryError> for StoreError {
    fn from(error: QueryError) -> StoreError {
        StoreError::Query(error)
    }
}
