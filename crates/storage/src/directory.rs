//! A directory on a real disk, within the data directory: `journal/`, `timeseries/`.
//!
//! A lock on the file `lock` excludes other processes. The operating system releases it when the process ends, even
//! after a crash. Read-only access takes no lock.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::{Errno, retry_on_intr};

use crate::copy::FILE_MODE;
use crate::writes::WriteCounters;
use crate::{Storage, StorageFile, StoreKind};

const LOCK_NAME: &str = "lock";

const DIRECTORY_MODE: u32 = 0o700;

pub struct StorageDirectory {
    data_directory: PathBuf,
    path: PathBuf,
    directory: File,
    /// Held for the lifetime of the value. `None` means read-only.
    lock: Option<File>,
    /// `None`: writes are not counted.
    counters: Option<&'static WriteCounters>,
}

struct DirectoryFile {
    file: File,
    counters: Option<&'static WriteCounters>,
}

#[derive(Debug)]
pub enum DirectoryError {
    InUse {
        name: String,
        path: PathBuf,
    },
    Io {
        name: String,
        path: PathBuf,
        source: io::Error,
    },
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::InUse { name, path } => write!(
                f,
                "another process uses the {name} {}: stop it first, or use another data directory",
                path.display()
            ),
            DirectoryError::Io { name, path, .. } => write!(f, "cannot open the {name} {}", path.display()),
        }
    }
}

impl std::error::Error for DirectoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DirectoryError::InUse { .. } => None,
            DirectoryError::Io { source, .. } => Some(source),
        }
    }
}

impl StorageDirectory {
    /// Opens the directory for exclusive use, and creates it if it does not exist.
    pub fn open(data_directory: &Path, name: &str) -> Result<StorageDirectory, DirectoryError> {
        let path = data_directory.join(name);
        let failed = |source| io_error(name, &path, source);
        create_directory(&path).map_err(failed)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(FILE_MODE)
            .open(path.join(LOCK_NAME))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Self::with_lock(data_directory, name, Some(lock)),
            Err(TryLockError::WouldBlock) => Err(DirectoryError::InUse {
                name: name.to_owned(),
                path,
            }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// Opens the directory for reading, even if another process uses it. Every change fails.
    pub fn open_read_only(data_directory: &Path, name: &str) -> Result<StorageDirectory, DirectoryError> {
        Self::with_lock(data_directory, name, None)
    }

    fn with_lock(data_directory: &Path, name: &str, lock: Option<File>) -> Result<StorageDirectory, DirectoryError> {
        let path = data_directory.join(name);
        let directory = File::open(&path).map_err(|source| io_error(name, &path, source))?;
        Ok(StorageDirectory {
            data_directory: data_directory.to_owned(),
            path,
            directory,
            lock,
            counters: None,
        })
    }

    /// Counts writes and syncs in the metrics of this kind.
    pub fn counted_as(mut self, kind: StoreKind) -> StorageDirectory {
        self.counters = Some(kind.counters());
        self
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check_writable(&self) -> io::Result<()> {
        match self.lock {
            Some(_) => Ok(()),
            None => Err(io::Error::new(
                io::ErrorKind::ReadOnlyFilesystem,
                "the directory is open for reading only",
            )),
        }
    }
}

fn io_error(name: &str, path: &Path, source: io::Error) -> DirectoryError {
    DirectoryError::Io {
        name: name.to_owned(),
        path: path.to_owned(),
        source,
    }
}

/// Creates the missing parts of a path. Syncs the parent of each new directory, so that it survives a power failure.
fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    create_directory(parent)?;
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        // Another process has created it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        result => result?,
    }
    File::open(parent)?.sync_all()
}

impl Storage for StorageDirectory {
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // Our file names are valid UTF-8, so other names can be skipped.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, name: &str, preallocate: u64) -> io::Result<Box<dyn StorageFile>> {
        self.check_writable()?;
        let path = self.path.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(FILE_MODE)
            .open(&path)?;
        let file = DirectoryFile {
            file,
            counters: self.counters,
        };
        if let Err(error) = file.allocate(preallocate) {
            // The first error is the one to report.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(self.lock.is_some())
            .open(self.path.join(name))?;
        Ok(Box::new(DirectoryFile {
            file,
            counters: self.counters,
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_writable()?;
        fs::remove_file(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_writable()?;
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync_directory(&self) -> io::Result<()> {
        if let Some(counters) = self.counters {
            counters.add_sync();
        }
        self.directory.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let status = fstatvfs(&self.directory)?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn location(&self) -> String {
        self.data_directory.display().to_string()
    }

    fn directory(&self) -> String {
        self.path.display().to_string()
    }

    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_millis() as u64
    }

    fn random(&self) -> io::Result<u64> {
        getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
    }
}

impl StorageFile for DirectoryFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        if let Some(counters) = self.counters {
            counters.add_write(bytes.len());
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(into, offset)
    }

    fn sync(&self) -> io::Result<()> {
        if let Some(counters) = self.counters {
            counters.add_sync();
        }
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    /// If the file system cannot reserve space, a full disk shows only when data is written.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let length = self.len()?;
        if bytes <= length {
            return Ok(());
        }
        match retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), length, bytes - length)) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.set_len(bytes),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_accessible_to_the_owner_only() {
        let parent = std::env::temp_dir().join(format!("tidewire-storage-{}", std::process::id()));
        let data = parent.join("data");
        let storage = StorageDirectory::open(&data, "journal").unwrap();
        storage.create("1.log", 4096).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&data), mode(storage.path())], [0o700; 2]);
        assert_eq!(
            [LOCK_NAME, "1.log"].map(|name| mode(&storage.path().join(name))),
            [0o600; 2]
        );
        fs::remove_dir_all(parent).unwrap();
    }

    /// No other test of this crate counts.
    #[test]
    fn writes_and_syncs_are_counted() {
        let parent = std::env::temp_dir().join(format!("tidewire-writes-{}", std::process::id()));
        let storage = StorageDirectory::open(&parent, "history").unwrap();
        let uncounted = storage.create("before", 0).unwrap();
        let storage = storage.counted_as(StoreKind::History);
        let file = storage.create("file", 4096).unwrap();
        file.write_at(0, b"12345").unwrap();
        file.sync().unwrap();
        storage.open("file").unwrap().write_at(1, b"67").unwrap();
        storage.sync_directory().unwrap();
        uncounted.write_at(0, b"x").unwrap();
        uncounted.sync().unwrap();
        let counted = StoreKind::ALL.map(|kind| (kind.written_bytes(), kind.syncs()));
        assert_eq!(counted, [(0, 0), (0, 0), (0, 0), (0, 0), (7, 2)]);
        fs::remove_dir_all(parent).unwrap();
    }
}
