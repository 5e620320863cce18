//! The side file of a buffer: records that the target rejected repeatedly, and later records with the same key.
//!
//! The pump *sets records aside* so that the cursor can pass them. The journal can then be truncated, and records sent
//! after them are not sent again.
//!
//! The file is written as a whole and replaced atomically. The cursor moves after that. After a crash in between,
//! records are in the file and in the journal; loading skips those in the journal.
//!
//! ```text
//! file    "tidewire aside " | version u8, a digit | entry ... | SHA-256 of the preceding bytes
//! entry   position u64, little-endian | record, as in a chunk
//! ```

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::BufferError;
use crate::record::Record;

const NAME: &str = "aside";
const MAGIC: &[u8; 15] = b"tidewire aside ";
/// Version of the file. Newer versions are rejected.
pub(super) const VERSION: char = '1';
/// The magic and the version.
const HEAD_BYTES: usize = MAGIC.len() + 1;
const POSITION_BYTES: usize = 8;
const HASH_BYTES: usize = 32;

/// Returns the path of the side file of a buffer with a journal.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// Copies the records into the format of the file, so that they no longer share the memory of their chunks.
pub(super) fn copy(records: &[Record]) -> Arc<Vec<u8>> {
    let bytes = records
        .iter()
        .map(|record| POSITION_BYTES + record.len())
        .sum::<usize>();
    let mut copy = Vec::with_capacity(HEAD_BYTES + bytes + HASH_BYTES);
    copy.extend_from_slice(MAGIC);
    copy.push(VERSION as u8);
    for record in records {
        copy.extend_from_slice(&record.position().to_le_bytes());
        copy.extend_from_slice(record.bytes());
    }
    Arc::new(copy)
}

/// Returns the records of a copy in order, or `None` if the bytes are invalid.
pub(super) fn read(copy: &Arc<Vec<u8>>) -> Option<Vec<Record>> {
    let is_known = copy.starts_with(MAGIC) && copy.get(MAGIC.len()) == Some(&(VERSION as u8));
    let mut at = is_known.then_some(HEAD_BYTES)?;
    let mut records = Vec::new();
    while at < copy.len() {
        let position = u64::from_le_bytes(*copy[at..].first_chunk()?);
        let record = Record::within(copy, at + POSITION_BYTES, position)?;
        at += POSITION_BYTES + record.len();
        records.push(record);
    }
    Some(records)
}

/// Replaces the file. After a crash the old or the new file exists.
pub(super) fn save(path: &Path, copy: &[u8]) -> io::Result<()> {
    storage::copy::replace(path, &[copy, &Sha256::digest(copy)].concat())
}

/// Deletes the file.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Loads the records that an earlier process set aside, without those within `in_journal`.
pub(super) fn load(path: &Path, in_journal: &Range<u64>) -> Result<Vec<Record>, BufferError> {
    let mut bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes.map_err(|source| BufferError::Aside {
            path: path.display().to_string(),
            source,
        })?,
    };
    if let Some((&version, _)) = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first)
        && char::from(version) > VERSION
    {
        return Err(BufferError::AsideTooNew {
            path: path.display().to_string(),
            version: version.into(),
        });
    }
    let hash = bytes.split_off(bytes.len().saturating_sub(HASH_BYTES));
    let is_whole = Sha256::digest(&bytes)[..] == hash[..];
    let records = is_whole.then(|| read(&Arc::new(bytes))).flatten();
    let mut records = records.ok_or_else(|| BufferError::AsideDamaged {
        path: path.display().to_string(),
    })?;
    records.retain(|record| !in_journal.contains(&record.position()));
    if records.iter().any(|record| record.position() >= in_journal.end) {
        // The journal was restored from an older backup and will reuse these positions.
        records
            .iter_mut()
            .for_each(|record| record.reset_position(in_journal.end));
        save(path, &copy(&records)).map_err(|source| BufferError::Aside {
            path: path.display().to_string(),
            source,
        })?;
    }
    Ok(records)
}
