//! Accepts the loss of damaged or missing files, so that the store opens again.
//!
//! A segment has points of its own, so the store can do without it. The manifest and the series log say what all other
//! files mean: without one of them, the whole store is lost.
//!
//! Damaged files are moved to a directory of their own. The steps are ordered so that an interrupted call can be
//! repeated.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use storage::{Storage, StorageDirectory, copy};

use crate::catalog::SeriesCatalog;
use crate::copy::failed;
use crate::error::StoreError;
use crate::file_name::FileName;
use crate::manifest::{Manifest, NAME};
use crate::segment::{self, StoreSegment};
use crate::series_log;

/// Loss of a store.
#[derive(Debug, Default)]
pub struct StoreLoss {
    pub files: Vec<LostFile>,
    /// All points and latest values are lost, because of the file in `files`.
    pub is_total: bool,
    /// Directory with the damaged files, or with all files.
    pub saved_to: Option<PathBuf>,
}

impl StoreLoss {
    /// Describes each loss.
    pub fn losses(&self) -> impl Iterator<Item = String> + '_ {
        let saved_to = self.saved_to.as_ref();
        self.files.iter().map(move |LostFile { name, problem }| {
            let what = match self.is_total {
                true => "all points and latest values",
                false => "the points in this file",
            };
            let problem = match std::error::Error::source(problem) {
                Some(source) => format!("{problem}: {source}"),
                None => problem.to_string(),
            };
            let saved_to = saved_to.map_or(String::new(), |path| format!("; saved to {}", path.display()));
            format!("{name}: {what} ({problem}){saved_to}")
        })
    }
}

#[derive(Debug)]
pub struct LostFile {
    pub name: String,
    pub problem: StoreError,
}

/// Returns the damaged and missing files of the store `name` in `parent`, without which it does not open. With
/// `is_accepted`, the store opens without them from now on. Other errors, such as those of the disk, are returned.
///
/// Checks the index of each file, not the points.
pub fn accept_loss(parent: &Path, name: &str, is_accepted: bool) -> Result<StoreLoss, StoreError> {
    let directory = parent.join(name);
    if !has_files(&directory)? {
        return Ok(StoreLoss::default());
    }
    let opened = match is_accepted {
        true => StorageDirectory::open(parent, name),
        false => StorageDirectory::open_read_only(parent, name),
    };
    let disk = opened.map_err(|error| failed("open", &directory)(io::Error::other(error)))?;
    let disk: Arc<dyn Storage> = Arc::new(disk);
    let manifest = match usable_manifest(&*disk) {
        Ok(manifest) => manifest,
        Err((name, problem)) if problem.is_loss() => {
            let saved_to = is_accepted.then(|| move_store(&directory)).transpose()?;
            let files = vec![LostFile { name, problem }];
            return Ok(StoreLoss {
                files,
                is_total: true,
                saved_to,
            });
        }
        Err((_, problem)) => return Err(problem),
    };
    let mut loss = StoreLoss::default();
    let mut kept = Vec::new();
    for record in &manifest.segments {
        match StoreSegment::open(&disk, *record) {
            Ok(_) => kept.push(*record),
            Err(problem) if problem.is_loss() => loss.files.push(LostFile {
                name: segment::file_name(record.number),
                problem,
            }),
            Err(problem) => return Err(problem),
        }
    }
    if is_accepted && !loss.files.is_empty() {
        loss.saved_to = move_files(&directory, &loss.files)?;
        let manifest = Manifest {
            segments: kept,
            ..manifest
        };
        manifest.replace(&disk).map_err(|error| error.into_inner())?;
    }
    Ok(loss)
}

/// Returns whether the store has a file with data. A new store has none before its first manifest.
fn has_files(directory: &Path) -> Result<bool, StoreError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("read", directory)(error)),
    };
    let mut names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.any(|name| name == NAME || segment::is_file_name(&name) || series_log::is_file_name(&name)))
}

/// Returns the manifest if the catalog can be read, too. The error has the name of the file.
fn usable_manifest(disk: &dyn Storage) -> Result<Manifest, (String, StoreError)> {
    let of_manifest = |error| (NAME.to_owned(), error);
    let missing = || FileName::of(disk, NAME).io("open")(io::ErrorKind::NotFound.into());
    let manifest = Manifest::read(disk)
        .and_then(|manifest| manifest.ok_or_else(missing))
        .map_err(of_manifest)?;
    let (number, bytes) = manifest.series_log;
    if bytes > 0 {
        let mut catalog = SeriesCatalog::new(0);
        series_log::read(disk, number, bytes, &mut catalog).map_err(|error| (series_log::file_name(number), error))?;
    }
    Ok(manifest)
}

/// Moves the whole store aside.
fn move_store(directory: &Path) -> Result<PathBuf, StoreError> {
    let target = free_directory(directory);
    fs::rename(directory, &target).map_err(failed("move", directory))?;
    sync_parent(&target)?;
    Ok(target)
}

/// Moves the files that exist.
fn move_files(directory: &Path, files: &[LostFile]) -> Result<Option<PathBuf>, StoreError> {
    let existing: Vec<PathBuf> = files.iter().map(|file| directory.join(&file.name)).collect();
    if !existing.iter().any(|path| path.exists()) {
        return Ok(None);
    }
    let target = free_directory(directory);
    fs::create_dir(&target).map_err(failed("create", &target))?;
    sync_parent(&target)?;
    for path in existing.iter().filter(|path| path.exists()) {
        let name = path.file_name().unwrap_or_default();
        fs::rename(path, target.join(name)).map_err(failed("move", path))?;
    }
    copy::sync_directory(&target).map_err(failed("sync", &target))?;
    Ok(Some(target))
}

/// Returns a path next to the store that does not exist.
fn free_directory(directory: &Path) -> PathBuf {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let mut targets = (1..).map(|number: u32| directory.with_file_name(format!("{name}-damaged-{number}")));
    targets
        .find(|target| !target.exists())
        .unwrap_or_else(|| unreachable!("one number is free"))
}

fn sync_parent(path: &Path) -> Result<(), StoreError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    copy::sync_directory(parent).map_err(failed("sync", parent))
}
