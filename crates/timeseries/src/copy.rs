//! A consistent copy of a store, also of one that is in use: a backup.
//!
//! Segments never change, and of the series log the manifest says how many bytes count. So what one manifest names is a whole store, of
//! the position that it has; what is removed meanwhile makes the copy begin anew.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use storage::{Directory, copy};

use crate::column_store::ColumnStore;
use crate::config::Config;
use crate::error::StoreError;
use crate::manifest::{Manifest, NAME};
use crate::{segment, series_log};

/// How often the copy may begin anew.
const ATTEMPTS: u32 = 10;

/// Copies the store `name` in `parent` to the same name in `target`, which must not have it, and opens the copy to see that it is
/// whole; how many bytes. After an error the copy is removed. `None`: there is no store.
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

fn copy_and_open(parent: &Path, name: &str, target: &Path) -> Result<u64, StoreError> {
    let to = target.join(name);
    for _ in 0..ATTEMPTS {
        fs::create_dir_all(&to).map_err(failed("create", &to))?;
        if let Some(bytes) = copy_once(parent, name, &to)? {
            copy::sync_directory(&to).map_err(failed("sync", &to))?;
            copy::sync_directory(target).map_err(failed("sync", target))?;
            let disk = Directory::open(target, name).map_err(|error| failed("open", &to)(io::Error::other(error)))?;
            ColumnStore::open(Arc::new(disk), Config::default())?;
            return Ok(bytes);
        }
        fs::remove_dir_all(&to).map_err(failed("remove", &to))?;
    }
    let restless = io::Error::other("its files were replaced faster than they were copied: try again");
    Err(failed("copy", &parent.join(name))(restless))
}

/// Bytes; `None` if something was removed meanwhile.
fn copy_once(parent: &Path, name: &str, to: &Path) -> Result<Option<u64>, StoreError> {
    let from = parent.join(name);
    let disk =
        Directory::open_read_only(parent, name).map_err(|error| failed("open", &from)(io::Error::other(error)))?;
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

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let file = path.display().to_string();
    move |source| StoreError::Io { doing, file, source }
}
