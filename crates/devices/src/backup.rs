//! A consistent copy of the platform, also while a server runs on it: a backup.
//!
//! As after a crash: each store says up to where it has the log, and the log has the rest. The log is copied last, so it goes beyond what
//! the stores have. What was removed of its beginning meanwhile makes the copy begin anew.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use journal::inspect::{InspectError, copy_named_to};
use platform::{FILE_NAME, SqliteOpenError, SqliteRepository, applied_position};
use timeseries::{Position, StoreError};

use crate::{DIRECTORY_NAME, LOG_NAME};

/// How often the copy may begin anew.
const ATTEMPTS: u32 = 10;

#[derive(Debug)]
pub enum BackupError {
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    Store(StoreError),
    Repository(SqliteOpenError),
    Position(platform::repository::RepositoryError),
    Log(InspectError),
    /// The log was cut faster than it was copied.
    Restless,
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Io { doing, path, .. } => write!(f, "cannot {doing} {}", path.display()),
            BackupError::Store(_) => f.write_str("the time series cannot be copied"),
            BackupError::Repository(_) => f.write_str("the platform's entities cannot be copied"),
            BackupError::Position(_) => f.write_str("the copy of the platform's entities cannot be read"),
            BackupError::Log(_) => f.write_str("the log of devices cannot be copied"),
            BackupError::Restless => f.write_str("the log of devices was cut faster than it was copied: try again"),
        }
    }
}

impl std::error::Error for BackupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match self {
            BackupError::Io { source, .. } => source,
            BackupError::Store(error) => error,
            BackupError::Repository(error) => error,
            BackupError::Position(error) => error,
            BackupError::Log(error) => error,
            BackupError::Restless => return None,
        })
    }
}

/// Copies the platform of one data directory into another, which must not have one; how many bytes, or `None` if there is none.
/// After an error the copy is removed.
pub fn copy_to(data_dir: &Path, target: &Path) -> Result<Option<u64>, BackupError> {
    let (from, to) = (data_dir.join(DIRECTORY_NAME), target.join(DIRECTORY_NAME));
    if !from.join(LOG_NAME).is_dir() {
        return Ok(None);
    }
    for _ in 0..ATTEMPTS {
        fs::create_dir_all(&to).map_err(failed("create", &to))?;
        let copied = copy_once(&from, &to);
        if let Ok(Some(bytes)) = copied {
            storage_synced(&to, target)?;
            return Ok(Some(bytes));
        }
        // The first error is the one to report.
        let removed = fs::remove_dir_all(&to);
        copied?;
        removed.map_err(failed("remove", &to))?;
    }
    Err(BackupError::Restless)
}

/// `None`: the log begins behind what the stores have.
fn copy_once(from: &Path, to: &Path) -> Result<Option<u64>, BackupError> {
    let series = timeseries::copy_to(from, timeseries::DIRECTORY_NAME, to).map_err(BackupError::Store)?;
    let (mut needed, mut bytes) = series.map_or((Position(0), 0), |copied| (copied.position, copied.bytes));
    match SqliteRepository::copy_to(from, to).map_err(BackupError::Repository)? {
        Some(repository) => needed = needed.min(applied_position(&repository).map_err(BackupError::Position)?),
        None => needed = Position(0),
    }
    let path = to.join(FILE_NAME);
    if let Ok(file) = File::open(&path) {
        bytes += file.metadata().map_or(0, |file| file.len());
        file.sync_all().map_err(failed("sync", &path))?;
    }
    let log = copy_named_to(from, LOG_NAME, to).map_err(BackupError::Log)?;
    let begins_at = log.replay_from.unwrap_or(log.first);
    Ok((begins_at.0 <= needed.0).then_some(bytes + log.file_bytes))
}

fn storage_synced(to: &Path, target: &Path) -> Result<(), BackupError> {
    for path in [to, target] {
        File::open(path)
            .and_then(|directory| directory.sync_all())
            .map_err(failed("sync", path))?;
    }
    Ok(())
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError + use<> {
    let path = path.to_owned();
    move |source| BackupError::Io { doing, path, source }
}
