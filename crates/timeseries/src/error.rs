//! Errors of the store: a failed write, damaged files, invalid queries.

use std::{fmt, io};

/// The batch was not applied. The caller can write the same batch again.
#[derive(Debug)]
pub enum WriteError {
    /// The memory for new points is full, and flushing failed. The caller should pause, then retry.
    Busy { head_bytes: usize, source: StoreError },
}

#[derive(Debug)]
pub enum StoreError {
    /// Reading or writing failed. A retry may succeed, for example when a full disk has space again.
    Io {
        operation: &'static str,
        file: String,
        source: io::Error,
    },
    /// The bytes are not those that were written: a failing disk, or another program. Nothing is skipped.
    Corrupt {
        file: String,
        offset: u64,
        expected: &'static str,
    },
    /// A newer version of the program wrote the file.
    Version {
        file: String,
        version: u32,
    },
    /// A sync of the directory failed, so the state on disk is unknown. The store must be opened again.
    Failed {
        since: String,
    },
    /// Too many deletions are pending. [`crate::Store::maintain`] applies them.
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
    /// The range contains times outside of the calendar.
    Range,
    /// Texts and buckets of one answer exceed the limit.
    TooLarge {
        max: usize,
    },
}

impl StoreError {
    /// Returns whether the same call can succeed later without a change of the request or the configuration.
    pub fn is_retryable(&self) -> bool {
        matches!(self, StoreError::Io { .. } | StoreError::TooManyDeletes { .. })
    }

    /// Returns whether a file is damaged or missing.
    pub fn is_loss(&self) -> bool {
        match self {
            StoreError::Corrupt { .. } => true,
            StoreError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
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
            "cannot flush {head_bytes} bytes of new points from memory; retry the write later"
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Io {
                operation: doing, file, ..
            } if self.is_full_disk() => {
                write!(
                    f,
                    "cannot {doing} {file}: the disk is full; the store resumes when space is available"
                )
            }
            StoreError::Io {
                operation: doing, file, ..
            } => write!(f, "cannot {doing} {file}"),
            StoreError::Corrupt { file, offset, expected } => {
                write!(f, "{file} is damaged at offset {offset}: expected {expected}")
            }
            StoreError::Version { file, version } => write!(
                f,
                "{file} has format version {version}, but this program supports versions up to {}. Use the newer tidewire that wrote it, or restore a backup",
                crate::FORMAT_VERSION
            ),
            StoreError::Failed { since } => write!(
                f,
                "the time series store has failed, because the state on disk is unknown ({since}); restart tidewire to recover"
            ),
            StoreError::TooManyDeletes { max } => {
                write!(
                    f,
                    "{max} deletions are still pending; retry after the store has merged its files"
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
                    "the query has more than {max} intervals; use a longer interval or a shorter range"
                )
            }
            QueryError::TimeZone { name } => write!(
                f,
                "unknown time zone {name:?}: expected an IANA name such as Europe/Kyiv"
            ),
            QueryError::TooLarge { max } => write!(
                f,
                "the answer has more than {} MiB of texts or intervals; use fewer keys, a smaller limit, a shorter range or a longer interval",
                max >> 20
            ),
            QueryError::Range => write!(f, "the range contains times outside of the calendar"),
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
