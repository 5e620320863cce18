//! What was set aside: records that the target turns away, and what waits behind them. They are in a file of their own, so that the
//! cursor can go on: the journal is cut behind them, and what was sent after them is not sent again.
//!
//! The file is written whole and takes the place of the one before when it is on the disk; the cursor moves after that. A crash in between
//! leaves records that are in the journal, too: these are left out.
//!
//! ```text
//! file    "tidewire aside 1" | entry ... | SHA-256 of all before
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
const HEAD: &[u8; 16] = b"tidewire aside 1";
const POSITION_BYTES: usize = 8;
const HASH_BYTES: usize = 32;

/// Where a buffer with a journal keeps them.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// The records as they are to be written, and shared by [`read`] with nothing else: what their chunks have beside goes.
pub(super) fn copy(records: &[Record]) -> Arc<Vec<u8>> {
    let bytes = records
        .iter()
        .map(|record| POSITION_BYTES + record.len())
        .sum::<usize>();
    let mut copy = Vec::with_capacity(HEAD.len() + bytes + HASH_BYTES);
    copy.extend_from_slice(HEAD);
    for record in records {
        copy.extend_from_slice(&record.position().to_le_bytes());
        copy.extend_from_slice(record.bytes());
    }
    Arc::new(copy)
}

/// The records of a copy, in their order. `None`: it is none.
pub(super) fn read(copy: &Arc<Vec<u8>>) -> Option<Vec<Record>> {
    let mut at = copy.starts_with(HEAD).then_some(HEAD.len())?;
    let mut records = Vec::new();
    while at < copy.len() {
        let position = u64::from_le_bytes(*copy[at..].first_chunk()?);
        let record = Record::within(copy, at + POSITION_BYTES, position)?;
        at += POSITION_BYTES + record.len();
        records.push(record);
    }
    Some(records)
}

/// After a crash there is the old file or this one.
pub(super) fn save(path: &Path, copy: &[u8]) -> io::Result<()> {
    storage::copy::replace(path, &[copy, &Sha256::digest(copy)].concat())
}

/// Nothing is aside any more.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What an earlier process left, without what stands in `in_journal`.
pub(super) fn load(path: &Path, in_journal: &Range<u64>) -> Result<Vec<Record>, BufferError> {
    let mut bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes.map_err(|source| BufferError::Aside {
            path: path.display().to_string(),
            source,
        })?,
    };
    let hash = bytes.split_off(bytes.len().saturating_sub(HASH_BYTES));
    let is_whole = Sha256::digest(&bytes)[..] == hash[..];
    let records = is_whole.then(|| read(&Arc::new(bytes))).flatten();
    let mut records = records.ok_or_else(|| BufferError::AsideDamaged {
        path: path.display().to_string(),
    })?;
    records.retain(|record| !in_journal.contains(&record.position()));
    if records.iter().any(|record| record.position() >= in_journal.end) {
        // The journal is an older one, from a backup: others will stand there.
        records
            .iter_mut()
            .for_each(|record| record.forget_position(in_journal.end));
        save(path, &copy(&records)).map_err(|source| BufferError::Aside {
            path: path.display().to_string(),
            source,
        })?;
    }
    Ok(records)
}
