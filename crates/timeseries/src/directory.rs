//! A store's directory on a real disk: `timeseries/` in the data directory.
//!
//! A lock on the file `lock` keeps a second process out; the operating system drops it with the process, however that ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::disk::{Disk, DiskFile};

/// Name of the store's directory within the data directory.
pub const DIRECTORY_NAME: &str = "timeseries";
pub(crate) const LOCK_NAME: &str = "lock";

pub struct DirectoryDisk {
    path: PathBuf,
    directory: File,
    /// Held as long as this lives.
    _lock: File,
}

#[derive(Debug)]
pub enum DirectoryError {
    InUse { path: PathBuf },
    Io { path: PathBuf, source: io::Error },
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryError::InUse { path } => write!(
                f,
                "another process uses the time series in {}: stop it first, or give this one a data directory of its own",
                path.display()
            ),
            DirectoryError::Io { path, .. } => write!(f, "cannot open the time series in {}", path.display()),
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

impl DirectoryDisk {
    /// Makes `timeseries/` in the data directory if it is not there, and keeps other processes out of it.
    pub fn open(data_directory: &Path) -> Result<DirectoryDisk, DirectoryError> {
        let path = data_directory.join(DIRECTORY_NAME);
        let failed = |source| DirectoryError::Io {
            path: path.clone(),
            source,
        };
        if !path.is_dir() {
            fs::create_dir_all(&path).map_err(failed)?;
            File::open(data_directory)
                .and_then(|directory| directory.sync_all())
                .map_err(failed)?;
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(LOCK_NAME))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DirectoryError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let directory = File::open(&path).map_err(failed)?;
        Ok(DirectoryDisk {
            path,
            directory,
            _lock: lock,
        })
    }
}

impl Disk for DirectoryDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // A name that is no text is none of ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path.join(name))?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(Box::new(file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }
}

impl DiskFile for File {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, into, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}
