//! The mark of a backup that is whole: the file `backup.json`, written last, with the name and the length of every other file.
//!
//! A backup that was interrupted has none, and of one that was copied elsewhere it tells whether all of it has come. What is in the files is
//! not its business: journals and stores have checksums of their own.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use storage::copy::{sync_directory, write_synced};

pub const NAME: &str = "backup.json";
/// Stands in a data directory for as long as a backup is being restored into it.
const RESTORING: &str = "restore-unfinished";
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Mark {
    format: u32,
    version: String,
    made_unix_ms: u64,
    files: Vec<Listed>,
}

#[derive(Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    path: String,
    bytes: u64,
}

/// Says that the backup is whole. All that it lists is on the disk.
pub fn write(backup: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{} cannot be written: {error}", backup.join(NAME).display());
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mark = Mark {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        made_unix_ms: since_epoch.as_millis() as u64,
        files: list(backup).map_err(failed)?,
    };
    let mut text = serde_json::to_vec_pretty(&mark).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    storage::copy::replace(&backup.join(NAME), &text).map_err(failed)
}

/// Refuses what is not whole.
pub fn check(backup: &Path) -> Result<(), String> {
    let (path, shown) = (backup.join(NAME), backup.display());
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && backup.is_dir() => {
            return Err(format!(
                "{shown} has no {NAME}: the backup was interrupted, or an earlier version of tidewire made it. \
                 Nothing has been restored; with --incomplete, what is there is"
            ));
        }
        Err(error) => return Err(format!("{} cannot be read: {error}", path.display())),
    };
    let mark: Mark =
        serde_json::from_slice(&text).map_err(|error| format!("{} is damaged: {error}", path.display()))?;
    if mark.format > FORMAT {
        return Err(format!(
            "{shown} is of a later version of tidewire ({}), which can restore it",
            mark.version
        ));
    }
    let found = list(backup).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    match mark.files.iter().find(|listed| found.binary_search(listed).is_err()) {
        None => Ok(()),
        Some(Listed { path, bytes }) => Err(format!(
            "{shown} is not what was backed up: {path} is missing, or has not its {bytes} bytes. \
             Nothing has been restored; with --incomplete, what is there is"
        )),
    }
}

/// Refuses the copy of a backup without the end of a log. Of a server's log, what is not valid at the end is what was not finished, and is
/// left out; a backup has nothing unfinished.
pub fn check_copied(backup: &Path, copy: &Path) -> Result<(), String> {
    let listed =
        |directory: &Path| list(directory).map_err(|error| format!("{} cannot be read: {error}", directory.display()));
    let copied = listed(copy)?;
    for Listed { path, bytes } in listed(backup)?.iter().filter(|file| file.path.ends_with(".log")) {
        if let Some(short) = copied.iter().find(|file| file.path == *path && file.bytes < *bytes) {
            return Err(format!(
                "{} is damaged at byte {}; with --incomplete, what is before that is restored",
                backup.join(path).display(),
                short.bytes
            ));
        }
    }
    Ok(())
}

/// Of an empty data directory: what follows is not whole.
pub fn begin_restore(data_dir: &Path) -> Result<(), String> {
    let path = data_dir.join(RESTORING);
    write_synced(&path, &mut &b""[..])
        .and_then(|()| sync_directory(data_dir))
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

/// All of it is on the disk.
pub fn end_restore(data_dir: &Path) -> Result<(), String> {
    let path = data_dir.join(RESTORING);
    sync_directory(data_dir)
        .and_then(|()| fs::remove_file(&path))
        .and_then(|()| sync_directory(data_dir))
        .map_err(|error| format!("{} cannot be removed: {error}", path.display()))
}

/// Refuses a data directory that a backup was restored into in part.
pub fn check_data_dir(data_dir: &Path) -> Result<(), String> {
    match data_dir.join(RESTORING).exists() {
        false => Ok(()),
        true => Err(format!(
            "{} has a part of a backup only: restoring was interrupted. Remove all that is in it, and restore again",
            data_dir.display()
        )),
    }
}

/// All files but the mark.
fn list(backup: &Path) -> io::Result<Vec<Listed>> {
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
            files.push(Listed { path, bytes });
        }
    }
    files.retain(|file| !file.path.starts_with(NAME));
    files.sort();
    Ok(files)
}
