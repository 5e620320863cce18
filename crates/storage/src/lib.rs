//! What the journal and the time series ask of a disk. The real one is [`Directory`]; tests and the simulator have
//! [`model::ModelDisk`], which loses what was not synced and fails on demand.
//!
//! A flat directory of files. Contents are durable after [`StorageFile::sync`], names after [`Storage::sync_directory`];
//! until then a crash may leave any part of either. Clock and randomness are here too: they come from outside like the disk.

pub mod copy;
mod directory;
#[cfg(feature = "model")]
pub mod model;
#[cfg(feature = "model")]
mod random;

use std::io;

pub use directory::{Directory, DirectoryError};

/// A directory that one log or store has for itself.
pub trait Storage: Send + Sync {
    /// Of all files, in any order.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file (or empties one that is there), open for reading and writing, `preallocate` bytes long; all of it
    /// reads as zero and has space on the disk. When there is no space, no file is left behind.
    fn create(&self, name: &str, preallocate: u64) -> io::Result<Box<dyn StorageFile>>;

    /// [`io::ErrorKind::NotFound`] if there is no such file.
    fn open(&self, name: &str) -> io::Result<Box<dyn StorageFile>>;

    /// Files that are open stay readable.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Atomic; replaces what has the name `to`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// After this, creations, removals and renames of before survive a crash.
    fn sync_directory(&self) -> io::Result<()>;

    /// Free space of the disk.
    fn free_bytes(&self) -> io::Result<u64>;

    /// The data directory in which this lies, for messages: what an operator passes as `--data-dir`.
    fn location(&self) -> String;

    fn unix_ms(&self) -> u64;

    /// For identities: unpredictable, except in a simulation.
    fn random(&self) -> io::Result<u64>;
}

/// An open file. Writes and reads of different places go on at the same time.
pub trait StorageFile: Send + Sync {
    /// All of the bytes or an error, after which any part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// How many bytes were read; fewer than asked for does not mean the end of the file, zero does.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Contents and length, as `fdatasync` does it.
    fn sync(&self) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or lengthens it by zeros without reserving space.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes the file at least so long, with space on the disk; what is new reads as zero.
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

/// Writes again what a signal interrupted.
pub fn write_all(file: &dyn StorageFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    loop {
        match file.write_at(offset, bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The disk or a quota of the operating system is full: the only errors that pass by themselves.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
