//! Marks of action buffers that exist: the empty files `buffers/<action>.exists`. A disk buffer with a mark and without
//! its journal has lost its messages. It does not open until an operator accepts the loss.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const EXTENSION: &str = ".exists";

/// Returns the mark of the buffer in `directory`.
fn mark_of(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(EXTENSION);
    directory.with_file_name(name)
}

fn has_log(directory: &Path) -> bool {
    journal::has_log(&directory.join(journal::DIRECTORY_NAME))
}

/// Returns whether the buffer existed and is missing. A journal with missing files reports those itself.
pub fn is_missing(directory: &Path) -> bool {
    mark_of(directory).exists() && !has_log(directory)
}

/// Marks an open buffer as existing.
pub fn set(directory: &Path) -> io::Result<()> {
    let mark = mark_of(directory);
    if mark.exists() || !has_log(directory) {
        return Ok(());
    }
    File::create(&mark)?;
    sync_parent(&mark)
}

/// Removes the mark of a buffer that is about to be deleted.
pub fn remove(directory: &Path) -> io::Result<()> {
    let mark = mark_of(directory);
    match fs::remove_file(&mark) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_parent(&mark),
    }
}

fn sync_parent(mark: &Path) -> io::Result<()> {
    match mark.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Returns the paths of buffers with a mark within the data directory, sorted.
pub fn marked_buffers(data_dir: &Path) -> io::Result<Vec<String>> {
    let buffers = Path::new(crate::DIRECTORY_NAME).join(crate::BUFFERS_NAME);
    let entries = match fs::read_dir(data_dir.join(&buffers)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut marked = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        if let Some(buffer) = name.to_string_lossy().strip_suffix(EXTENSION) {
            marked.push(buffers.join(buffer).to_string_lossy().into_owned());
        }
    }
    marked.sort();
    Ok(marked)
}

/// Returns the paths of missing buffers within the data directory. With `is_accepted`, new buffers take their place.
pub fn missing_buffers(data_dir: &Path, is_accepted: bool) -> io::Result<Vec<String>> {
    let mut missing = marked_buffers(data_dir)?;
    missing.retain(|buffer| is_missing(&data_dir.join(buffer)));
    if is_accepted {
        for buffer in &missing {
            remove(&data_dir.join(buffer))?;
        }
    }
    Ok(missing)
}
