//! The number of transactions in the entity database, in a separate file.
//!
//! Each transaction increases the number in the database. The number in the file follows after the commit, without a
//! sync, so the file is never ahead of a database that is complete. A database with a lower number has lost
//! transactions.
//!
//! ```text
//! slot   generation u64 | crc32 u32 of "TWGENERA" and generation | zeros to 512
//! ```
//!
//! Integers are little-endian. Even numbers are in the first slot and odd numbers in the second, so that an interrupted
//! write leaves the previous number.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// File name within the platform's directory.
pub const FILE_NAME: &str = "entities.generation";

const MAGIC: &[u8] = b"TWGENERA";
/// For the owner only.
const FILE_MODE: u32 = 0o600;
/// A sector, which disks write completely or not at all.
const SLOT_BYTES: usize = 512;

#[derive(Debug)]
pub struct GenerationFile {
    file: File,
    is_synced: bool,
}

impl GenerationFile {
    /// Returns the number in the file. `None` without a file, as after a restore and with data of earlier versions.
    pub fn read(directory: &Path) -> io::Result<Option<u64>> {
        match fs::read(directory.join(FILE_NAME)) {
            Ok(bytes) => Ok(bytes.chunks(SLOT_BYTES).filter_map(decode).max()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens or creates the file of a database with this number.
    pub fn open(directory: &Path, generation: u64) -> io::Result<GenerationFile> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(FILE_MODE)
            .open(directory.join(FILE_NAME))?;
        let mut generation_file = GenerationFile { file, is_synced: false };
        generation_file.write(generation)?;
        generation_file.sync()?;
        File::open(directory)?.sync_all()?;
        Ok(generation_file)
    }

    pub fn remove(directory: &Path) -> io::Result<()> {
        match fs::remove_file(directory.join(FILE_NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(directory)?.sync_all(),
        }
    }

    /// Writes the number after a commit. A failure only weakens the detection of missing transactions.
    pub fn advance(&mut self, generation: u64) {
        let _ = self.write(generation);
    }

    fn write(&mut self, generation: u64) -> io::Result<()> {
        self.is_synced = false;
        let offset = (generation % 2) * SLOT_BYTES as u64;
        self.file.write_all_at(&encode(generation), offset)
    }

    pub fn sync(&mut self) -> io::Result<()> {
        if !self.is_synced {
            self.file.sync_data()?;
            self.is_synced = true;
        }
        Ok(())
    }
}

fn encode(generation: u64) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&generation.to_le_bytes());
    slot[8..12].copy_from_slice(&checksum(generation).to_le_bytes());
    slot
}

fn decode(slot: &[u8]) -> Option<u64> {
    let (generation, rest) = slot.split_first_chunk()?;
    let generation = u64::from_le_bytes(*generation);
    (*rest.first_chunk()? == checksum(generation).to_le_bytes()).then_some(generation)
}

fn checksum(generation: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(MAGIC);
    hasher.update(&generation.to_le_bytes());
    hasher.finalize()
}
