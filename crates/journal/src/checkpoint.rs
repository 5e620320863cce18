//! The file `checkpoint`: where replay begins, and which segments are in use. The file is replaced atomically, so that
//! a crash leaves the old or the new version.
//!
//! ```text
//! magic "TWCHKPNT" | version u32 | crc32c u32 of the rest | journal_id u64 | replay_from u64 | first u64 | reached u64
//! | zeros to 64
//! ```
//!
//! `first` is the base of the oldest segment in use. It advances before files are removed. The next start can then
//! remove files that a crash left behind, and can detect a missing segment.
//!
//! `reached`: the log was synced at least up to this position when the checkpoint was written. A log that ends before
//! it has lost its end. Checkpoints of earlier versions have 0 there.

use std::io;

use crate::layout::{FORMAT_VERSION, checksum_without, u32_at, u64_at};
use crate::lsn::Lsn;
use storage::{Storage, read_full, write_all};

/// Name of the file in the directory of a log.
pub const CHECKPOINT_NAME: &str = "checkpoint";
pub(crate) const CHECKPOINT_NEW_NAME: &str = "checkpoint.new";

const BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"TWCHKPNT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub journal_id: u64,
    pub replay_from: Lsn,
    pub first: Lsn,
    pub reached: Lsn,
}

#[derive(Debug)]
pub(crate) enum CheckpointError {
    Io(io::Error),
    Damaged,
    TooNew(u32),
}

/// Error of replacing a checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointReplaceError {
    pub error: io::Error,
    /// A sync failed: the state on disk is uncertain, also of other files.
    pub is_sync: bool,
}

impl Checkpoint {
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.journal_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.replay_from.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.reached.0.to_le_bytes());
        let checksum = checksum_without(&bytes, 12);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Checkpoint, CheckpointError> {
        let is_intact = bytes.len() == BYTES && bytes[..8] == MAGIC && u32_at(bytes, 12) == checksum_without(bytes, 12);
        if !is_intact {
            return Err(CheckpointError::Damaged);
        }
        match u32_at(bytes, 8) {
            FORMAT_VERSION => Ok(Checkpoint {
                journal_id: u64_at(bytes, 16),
                replay_from: Lsn(u64_at(bytes, 24)),
                first: Lsn(u64_at(bytes, 32)),
                reached: Lsn(u64_at(bytes, 40)),
            }),
            version => Err(CheckpointError::TooNew(version)),
        }
    }

    pub fn read(storage: &dyn Storage) -> Result<Checkpoint, CheckpointError> {
        let file = storage.open(CHECKPOINT_NAME).map_err(CheckpointError::Io)?;
        // One byte more, to detect a file that is too long.
        let mut bytes = [0; BYTES + 1];
        let count = read_full(&*file, 0, &mut bytes).map_err(CheckpointError::Io)?;
        Checkpoint::decode(&bytes[..count])
    }

    pub fn replace(&self, storage: &dyn Storage) -> Result<(), CheckpointReplaceError> {
        let failed = |error| CheckpointReplaceError { error, is_sync: false };
        let sync_failed = |error| CheckpointReplaceError { error, is_sync: true };
        let file = storage.create(CHECKPOINT_NEW_NAME, 0).map_err(failed)?;
        write_all(&*file, 0, &self.encode()).map_err(failed)?;
        file.sync().map_err(sync_failed)?;
        storage.rename(CHECKPOINT_NEW_NAME, CHECKPOINT_NAME).map_err(failed)?;
        storage.sync_directory().map_err(sync_failed)
    }
}
