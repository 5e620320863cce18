//! What the store asks of a disk. The real one is [`crate::DirectoryDisk`]; tests have a model that loses what was not synced
//! and fails on demand.
//!
//! A flat directory of files. Contents are durable after [`DiskFile::sync`], names after [`Disk::sync_directory`]; until
//! then a crash may leave any part of either.

use std::io;

use crate::error::StoreError;

/// A directory that one store has for itself.
pub trait Disk: Send + Sync {
    /// Of all files, in any order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// An empty file, also if there was one, open for reading and writing.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// [`io::ErrorKind::NotFound`] if there is no such file.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Files that are open stay readable.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Atomic; replaces what has the name `to`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// After this, creations, removals and renames of before survive a crash.
    fn sync_directory(&self) -> io::Result<()>;

    /// For messages.
    fn location(&self) -> String;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// All of the bytes or an error, after which any part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// How many bytes were read; zero only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Contents and length, as `fdatasync` does it.
    fn sync(&self) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Names a file for errors.
#[derive(Clone, Debug)]
pub(crate) struct FileName {
    pub directory: String,
    pub name: String,
}

impl FileName {
    pub fn of(disk: &dyn Disk, name: &str) -> FileName {
        FileName {
            directory: disk.location(),
            name: name.to_owned(),
        }
    }

    pub fn path(&self) -> String {
        format!("{}/{}", self.directory, self.name)
    }

    pub fn io(&self, doing: &'static str) -> impl FnOnce(io::Error) -> StoreError + use<> {
        let file = self.path();
        move |source| StoreError::Io { doing, file, source }
    }

    pub fn corrupt(&self, offset: u64, expected: &'static str) -> StoreError {
        StoreError::Corrupt {
            file: self.path(),
            offset,
            expected,
        }
    }
}

/// All of `into`, or an error that names the place where the file ended.
pub(crate) fn read_exact(file: &dyn DiskFile, name: &FileName, offset: u64, into: &mut [u8]) -> Result<(), StoreError> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(offset + done as u64, &mut into[done..]) {
            Ok(0) => return Err(name.corrupt(offset + done as u64, "more bytes")),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(name.io("read")(error)),
        }
    }
    Ok(())
}

/// Writes again what a signal interrupted.
pub(crate) fn write_all(file: &dyn DiskFile, name: &FileName, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
    loop {
        match file.write_at(offset, bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(name.io("write")),
        }
    }
}
