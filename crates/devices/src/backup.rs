//! Creates a consistent copy of the platform's data, also while a server is using it.
//!
//! The copy equals the state after a crash: each store records its log position, and the log has the rest. So the
//! copy of the log begins before the stores are copied, and ends after that.
//!
//! The copy must be quick, because the running log removes old records. For a target on another disk, a copy on the
//! same disk, mostly hard links, is made first.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use journal::inspect::{InspectError, copy_around};
use journal::{DirectoryError, StorageDirectory};
use platform::{FILE_NAME, SqliteOpenError, SqliteRepository};
use timeseries::StoreError;

use crate::{DIRECTORY_NAME, LOG_NAME};

#[derive(Debug)]
pub enum BackupError {
    Io {
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    Store(StoreError),
    Repository(SqliteOpenError),
    Log(InspectError),
    Stage(DirectoryError),
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Io {
                operation: doing, path, ..
            } => write!(f, "cannot {doing} {}", path.display()),
            BackupError::Store(_) => f.write_str("cannot copy the time series"),
            BackupError::Repository(_) => f.write_str("cannot copy the platform's entities"),
            BackupError::Log(_) => f.write_str("cannot copy the device log"),
            BackupError::Stage(_) => f.write_str(
                "cannot create the temporary copy in the data directory, which a target on another disk needs",
            ),
        }
    }
}

impl std::error::Error for BackupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match self {
            BackupError::Io { source, .. } => source,
            BackupError::Store(error) => error,
            BackupError::Repository(error) => error,
            BackupError::Log(error) => error,
            BackupError::Stage(error) => error,
        })
    }
}

impl From<InspectError> for BackupError {
    fn from(error: InspectError) -> BackupError {
        BackupError::Log(error)
    }
}

/// Temporary directory within the data directory, used for a target on another disk.
const STAGE_NAME: &str = "platform.backup";

/// Copies the platform from one data directory to another, which must not have one. Returns the number of bytes, or
/// `None` if there is no platform. After an error the copy is removed.
pub fn copy_to(data_dir: &Path, target: &Path) -> Result<Option<u64>, BackupError> {
    if !data_dir.join(DIRECTORY_NAME).join(LOG_NAME).is_dir() {
        return Ok(None);
    }
    if device(data_dir)? == device(target)? {
        return copy_here(data_dir, target);
    }
    let stage = data_dir.join(STAGE_NAME);
    // Removes the rest of an interrupted copy. The directory lock excludes a concurrent copy.
    let held = StorageDirectory::open(data_dir, STAGE_NAME).map_err(BackupError::Stage)?;
    let (staged, to) = (stage.join(DIRECTORY_NAME), target.join(DIRECTORY_NAME));
    remove(fs::remove_dir_all(&staged), &staged)?;
    let result = copy_here(data_dir, &stage).and_then(|bytes| {
        copy_tree(&staged, &to)?;
        sync_directory(target)?;
        Ok(bytes)
    });
    if result.is_err() {
        let _ = fs::remove_dir_all(&to);
    }
    let removed = remove(fs::remove_dir_all(&stage), &stage);
    drop(held);
    let bytes = result?;
    removed.map(|()| bytes)
}

fn device(path: &Path) -> Result<u64, BackupError> {
    fs::metadata(path)
        .map(|there| there.dev())
        .map_err(failed("read the metadata of", path))
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), BackupError> {
    fs::create_dir_all(to).map_err(failed("create", to))?;
    for entry in fs::read_dir(from).map_err(failed("read", from))? {
        let path = entry.map_err(failed("read", from))?.path();
        let copy = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_tree(&path, &copy)?;
            continue;
        }
        let copied = fs::copy(&path, &copy).and_then(|_| File::open(&copy)?.sync_all());
        copied.map_err(failed("copy", &path))?;
    }
    sync_directory(to)
}

/// Copies to a target on the same disk.
fn copy_here(data_dir: &Path, target: &Path) -> Result<Option<u64>, BackupError> {
    let (from, to) = (data_dir.join(DIRECTORY_NAME), target.join(DIRECTORY_NAME));
    fs::create_dir_all(&to).map_err(failed("create", &to))?;
    let mut bytes = 0;
    let log = copy_around(&from, LOG_NAME, &to, || {
        bytes = copy_stores(&from, &to)?;
        Ok(())
    });
    let result = log.and_then(|log| {
        sync_directory(&to)?;
        sync_directory(target)?;
        Ok(Some(bytes + log.file_bytes))
    });
    if result.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_dir_all(&to);
    }
    result
}

/// Replaces what an earlier attempt copied.
fn copy_stores(from: &Path, to: &Path) -> Result<u64, BackupError> {
    let series = to.join(timeseries::DIRECTORY_NAME);
    remove(fs::remove_dir_all(&series), &series)?;
    let copied = timeseries::copy_to(from, timeseries::DIRECTORY_NAME, to).map_err(BackupError::Store)?;
    let mut bytes = copied.unwrap_or(0);
    let entities = to.join(FILE_NAME);
    remove(fs::remove_file(&entities), &entities)?;
    if from.join(FILE_NAME).is_file() {
        SqliteRepository::copy_to(from, to).map_err(BackupError::Repository)?;
        let file = File::open(&entities).map_err(failed("open", &entities))?;
        file.sync_all().map_err(failed("sync", &entities))?;
        bytes += file.metadata().map_or(0, |file| file.len());
    }
    Ok(bytes)
}

fn remove(removed: io::Result<()>, path: &Path) -> Result<(), BackupError> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

fn sync_directory(path: &Path) -> Result<(), BackupError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("sync", path))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError + use<> {
    let path = path.to_owned();
    move |source| BackupError::Io {
        operation: doing,
        path,
        source,
    }
}
