//! Disk access of the journal and the time series store. [`StorageDirectory`] is a real directory. Tests and the
//! simulator use [`model::ModelDisk`], which loses unsynced data and fails on demand.
//!
//! A storage is a flat directory of files. Contents are durable after [`StorageFile::sync`], names after
//! [`Storage::sync_directory`]. Until then a crash may preserve any part of either. Clock and randomness are part of
//! the trait, because they are external inputs like the disk.

pub mod copy;
mod directory;
#[cfg(feature = "model")]
pub mod model;
#[cfg(feature = "model")]
mod random;
mod writes;

use std::io;

pub use directory::{DirectoryError, StorageDirectory};
pub use writes::StoreKind;

/// A directory that is used by one log or store only.
pub trait Storage: Send + Sync {
    /// Returns the names of all files, in any order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file, or truncates an existing one, and opens it for reading and writing. The file is
    /// `preallocate` bytes long, reads as zeros, and has its space reserved on disk. If there is no space, no file
    /// remains.
    fn create(&self, name: &str, preallocate: u64) -> io::Result<Box<dyn StorageFile>>;

    /// Opens an existing file. Fails with [`io::ErrorKind::NotFound`] if there is none.
    fn open(&self, name: &str) -> io::Result<Box<dyn StorageFile>>;

    /// Removes a file. Open handles remain readable.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file atomically, and replaces an existing file with the name `to`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes earlier creations, removals and renames durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Returns the free space of the disk, in bytes.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Returns the data directory that contains this directory, for messages: the operator's `--data-dir`.
    fn location(&self) -> String;

    /// Returns the path of the directory, for errors that name a file in it.
    fn directory(&self) -> String;

    fn unix_ms(&self) -> u64;

    /// Returns a random number for identifiers: unpredictable, except in a simulation.
    fn random(&self) -> io::Result<u64>;
}

/// An open file. Reads and writes at different offsets may run concurrently.
pub trait StorageFile: Send + Sync {
    /// Writes all bytes. After an error, any part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads up to `into.len()` bytes and returns their number. Only 0 means the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Makes contents and length durable, as `fdatasync` does.
    fn sync(&self) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file, or extends it with zeros without reserving space.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Extends the file to at least `bytes` with reserved space. New bytes read as zeros.
    fn allocate(&self, bytes: u64) -> io::Result<()>;
}

/// Reads until `into` is full or the file ends.
pub fn read_full(file: &dyn StorageFile, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(offset + done as u64, &mut into[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes all bytes, and retries after an interruption by a signal.
pub fn write_all(file: &dyn StorageFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    loop {
        match file.write_at(offset, bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Returns whether the disk or a quota is full. Only these errors can clear without intervention in the program.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
