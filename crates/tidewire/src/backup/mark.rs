//! The mark of a complete backup: the file `backup.json`, written last, with the name and length of every other file.
//!
//! An interrupted backup has no mark. For a backup that was copied to another place, the mark shows whether all files
//! arrived. It does not check their contents: journals and stores have checksums of their own.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use storage::copy::{sync_directory, write_synced};

pub const NAME: &str = "backup.json";
/// Exists in a data directory while a backup is being restored into it.
const RESTORING: &str = "restore-unfinished";
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct BackupMark {
    format: u32,
    version: String,
    made_unix_ms: u64,
    files: Vec<ListedFile>,
}

/// The fields that all formats have.
#[derive(Deserialize)]
struct MarkFormat {
    format: u32,
    version: String,
}

#[derive(Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct ListedFile {
    path: String,
    bytes: u64,
}

/// Marks the backup as complete. All files that it lists are on the disk.
pub fn write(backup: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{} cannot be written: {error}", backup.join(NAME).display());
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mark = BackupMark {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        made_unix_ms: since_epoch.as_millis() as u64,
        files: list(backup).map_err(failed)?,
    };
    let mut text = serde_json::to_vec_pretty(&mark).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    storage::copy::replace(&backup.join(NAME), &text).map_err(failed)
}

/// Rejects an incomplete backup.
pub fn check(backup: &Path) -> Result<(), String> {
    let (path, shown) = (backup.join(NAME), backup.display());
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && backup.is_dir() => {
            return Err(format!(
                "{shown} has no {NAME}: the backup was interrupted, or an earlier version of tidewire made it. \
                 Nothing was restored; use --incomplete to restore the files that it has"
            ));
        }
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let damaged = |error: serde_json::Error| format!("{} is damaged: {}", path.display(), input_errors::plain(&error));
    let MarkFormat { format, version } = serde_json::from_slice(&text).map_err(damaged)?;
    if format > FORMAT {
        return Err(format!(
            "{} has format version {format}, but this program supports versions up to {FORMAT}. Restore it with the newer \
             tidewire that made it ({version})",
            path.display()
        ));
    }
    let mark: BackupMark = serde_json::from_slice(&text).map_err(damaged)?;
    let found = list(backup).map_err(|error| format!("cannot read {shown}: {error}"))?;
    match mark.files.iter().find(|listed| found.binary_search(listed).is_err()) {
        None => Ok(()),
        Some(ListedFile { path, bytes }) => Err(format!(
            "the backup {shown} is damaged: {path} is missing or does not have {bytes} bytes. \
             Nothing was restored; use --incomplete to restore the files that it has"
        )),
    }
}

/// Rejects a copy without the end of a log. In the log of a server, an invalid end is an incomplete record and is
/// ignored. A backup has no incomplete records.
pub fn check_copied(backup: &Path, copy: &Path) -> Result<(), String> {
    let listed =
        |directory: &Path| list(directory).map_err(|error| format!("cannot read {}: {error}", directory.display()));
    let copied = listed(copy)?;
    for ListedFile { path, bytes } in listed(backup)?.iter().filter(|file| file.path.ends_with(".log")) {
        if let Some(short) = copied.iter().find(|file| file.path == *path && file.bytes < *bytes) {
            return Err(format!(
                "{} is damaged at byte {}; use --incomplete to restore the data before that position",
                backup.join(path).display(),
                short.bytes
            ));
        }
    }
    Ok(())
}

/// Marks an empty data directory: the files that follow are incomplete.
pub fn begin_restore(data_dir: &Path) -> Result<(), String> {
    let path = data_dir.join(RESTORING);
    write_synced(&path, &mut &b""[..])
        .and_then(|()| sync_directory(data_dir))
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

/// Removes the mark. All files are on the disk.
pub fn end_restore(data_dir: &Path) -> Result<(), String> {
    let path = data_dir.join(RESTORING);
    sync_directory(data_dir)
        .and_then(|()| fs::remove_file(&path))
        .and_then(|()| sync_directory(data_dir))
        .map_err(|error| format!("cannot remove {}: {error}", path.display()))
}

/// Rejects a data directory into which a backup was restored only in part.
pub fn check_data_dir(data_dir: &Path) -> Result<(), String> {
    match data_dir.join(RESTORING).exists() {
        false => Ok(()),
        true => Err(format!(
            "{} has a part of a backup only: restoring was interrupted. Remove all that is in it, and restore again",
            data_dir.display()
        )),
    }
}

/// Returns all files except the mark.
fn list(backup: &Path) -> io::Result<Vec<ListedFile>> {
    let (mut files, mut directories) = (Vec::new(), vec![backup.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
                continue;
            }
            let path = entry.path();
            let path = path
                .strip_prefix(backup)
                .unwrap_or(&path)
                .to_string_lossy()
                .into_owned();
            let bytes = entry.metadata()?.len();
            files.push(ListedFile { path, bytes });
        }
    }
    files.retain(|file| !file.path.starts_with(NAME));
    files.sort();
    Ok(files)
}
