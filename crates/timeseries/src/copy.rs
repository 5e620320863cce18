//! A consistent copy (backup) of a store, also while it is in use.
//!
//! Segments never change, and the manifest contains the valid length of the series log. The files of one manifest are
//! therefore a complete store at the manifest's position. If a file is removed during the copy, the copy starts again.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use storage::{StorageDirectory, copy};

use crate::column_store::ColumnStore;
use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::manifest::{Manifest, NAME};
use crate::value::LogPosition;
use crate::{segment, series_log};

/// Maximum number of attempts.
const ATTEMPTS: u32 = 10;

/// Copies the store `name` in `parent` to the same name in `target`, which must not have it, and opens the copy to
/// verify it. Returns the number of bytes, or `None` if there is no store. After an error the copy is removed.
pub fn copy_to(parent: &Path, name: &str, target: &Path) -> Result<Option<u64>, StoreError> {
    let (from, to) = (parent.join(name), target.join(name));
    if !from.join(NAME).is_file() {
        return Ok(None);
    }
    let result = copy_and_open(parent, name, target);
    if result.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_dir_all(&to);
    }
    result.map(Some)
}

/// Returns the durable position of the store `name` in `parent` without opening it. `None` if there is no store.
pub fn durable_position_of(parent: &Path, name: &str) -> Result<Option<LogPosition>, StoreError> {
    let directory = parent.join(name);
    if !directory.join(NAME).is_file() {
        return Ok(None);
    }
    let disk = StorageDirectory::open_read_only(parent, name)
        .map_err(|error| failed("open", &directory)(io::Error::other(error)))?;
    let manifest = Manifest::read(&disk)?;
    Ok(manifest.map(|manifest| LogPosition(manifest.durable_position)))
}

/// Returns the number of the next file of the store `name` in `parent`, without opening it. It only grows. `None` if
/// there is no usable manifest, which opening the store reports.
pub fn next_file_of(parent: &Path, name: &str) -> Option<u64> {
    let disk = StorageDirectory::open_read_only(parent, name).ok()?;
    let manifest = Manifest::read(&disk).ok()??;
    Some(manifest.next_file)
}

fn copy_and_open(parent: &Path, name: &str, target: &Path) -> Result<u64, StoreError> {
    let to = target.join(name);
    for _ in 0..ATTEMPTS {
        fs::create_dir_all(&to).map_err(failed("create", &to))?;
        if let Some(bytes) = copy_once(parent, name, &to)? {
            copy::sync_directory(&to).map_err(failed("sync", &to))?;
            copy::sync_directory(target).map_err(failed("sync", target))?;
            let disk =
                StorageDirectory::open(target, name).map_err(|error| failed("open", &to)(io::Error::other(error)))?;
            ColumnStore::open(Arc::new(disk), StoreConfig::default())?;
            return Ok(bytes);
        }
        fs::remove_dir_all(&to).map_err(failed("remove", &to))?;
    }
    let replaced = io::Error::other("its files were replaced during each attempt; try again");
    Err(failed("copy", &parent.join(name))(replaced))
}

/// Copies the files of the current manifest. Returns their bytes, or `None` if a file was removed during the copy.
fn copy_once(parent: &Path, name: &str, to: &Path) -> Result<Option<u64>, StoreError> {
    let from = parent.join(name);
    let disk = StorageDirectory::open_read_only(parent, name)
        .map_err(|error| failed("open", &from)(io::Error::other(error)))?;
    let Some(manifest) = Manifest::read(&disk)? else {
        return Ok(None);
    };
    let (number, length) = manifest.series_log;
    let mut total = length;
    if length > 0 {
        let file = series_log::file_name(number);
        let path = from.join(&file);
        if !copy::copy_prefix(&path, &to.join(file), length).map_err(failed("copy", &path))? {
            return Ok(None);
        }
    }
    for segment in &manifest.segments {
        let file = segment::file_name(segment.number);
        let path = from.join(&file);
        if !copy::link_or_copy(&path, &to.join(file)).map_err(failed("copy", &path))? {
            return Ok(None);
        }
        total += segment.bytes;
    }
    let path = to.join(NAME);
    copy::write_synced(&path, &mut &manifest.encode()[..]).map_err(failed("write", &path))?;
    Ok(Some(total))
}

pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let file = path.display().to_string();
    move |source| StoreError::Io {
        operation: doing,
        file,
        source,
    }
}
