//! The list of segments, shared by the writer, which adds and removes segments, and the readers.
//!
//! Invariants: the list is sorted by base and has no gaps; only the last segment is written to. A reader that holds a
//! segment can read all of it, even if it is removed at the same time.

use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::checkpoint::{CHECKPOINT_NAME, Checkpoint};
use crate::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::lsn::Lsn;
use storage::StorageFile;

const SUFFIX: &str = ".log";
const NAME_DIGITS: usize = 16;

pub(crate) struct LogSegment {
    pub base: Lsn,
    pub name: String,
    pub file: Box<dyn StorageFile>,
    /// Size of the file, including the preallocated part.
    pub file_bytes: AtomicU64,
}

impl LogSegment {
    pub fn new(base: Lsn, file: Box<dyn StorageFile>, file_bytes: u64) -> LogSegment {
        LogSegment {
            base,
            name: segment_name(base),
            file,
            file_bytes: AtomicU64::new(file_bytes),
        }
    }

    /// Returns the file offset of a position.
    pub fn offset(&self, lsn: Lsn) -> u64 {
        SEGMENT_HEADER_BYTES as u64 + (lsn.0 - self.base.0)
    }

    /// Returns the position at which the file ends.
    pub fn file_end(&self) -> Lsn {
        let bytes = self.file_bytes.load(Relaxed);
        Lsn(self.base.0 + bytes.saturating_sub(SEGMENT_HEADER_BYTES as u64))
    }
}

pub(crate) fn segment_name(base: Lsn) -> String {
    format!("{:016x}{SUFFIX}", base.0)
}

/// Returns the base of the segment with this file name. `None` if it is not the name of a segment.
pub(crate) fn base_of_name(name: &str) -> Option<Lsn> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_ours = digits.len() == NAME_DIGITS && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_ours.then(|| u64::from_str_radix(digits, 16).ok().map(Lsn))?
}

const NEWEST_PREFIX: &str = "newest-";

/// Returns the name of the empty file that states the base of the newest segment. It is renamed after the name of a new
/// segment is durable, and needs no sync of its own: it proves that the segment existed, and that is all.
pub(crate) fn newest_name(base: Lsn) -> String {
    format!("{NEWEST_PREFIX}{:016x}", base.0)
}

/// Returns the base in the name of such a file.
pub(crate) fn base_of_newest_name(name: &str) -> Option<Lsn> {
    let digits = name.strip_prefix(NEWEST_PREFIX)?;
    let is_ours = digits.len() == NAME_DIGITS;
    is_ours.then(|| u64::from_str_radix(digits, 16).ok().map(Lsn))?
}

/// Returns whether a directory has or had a log. Opening it reports missing files.
pub fn has_log(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name == CHECKPOINT_NAME || base_of_name(&name).is_some() || base_of_newest_name(&name).is_some()
    })
}

/// How far a log has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachedPosition {
    /// Random. A log that was deleted and created again has another one; a copy has the same.
    pub journal_id: u64,
    pub position: Lsn,
}

/// Returns how far the log in a directory has come, without opening it: the position in its checkpoint or the base of
/// its newest segment. `None` if the checkpoint cannot be used, or if neither exists. A lower value than before means
/// that an earlier copy has replaced the log.
pub fn reached_position(directory: &Path) -> Option<ReachedPosition> {
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let segments = names.iter().filter_map(|name| base_of_name(name));
    let newest = names.iter().filter_map(|name| base_of_newest_name(name));
    let newest = segments.clone().chain(newest).max();
    let (journal_id, reached) = match std::fs::read(directory.join(CHECKPOINT_NAME)) {
        Ok(bytes) => {
            let checkpoint = Checkpoint::decode(&bytes).ok()?;
            (checkpoint.journal_id, checkpoint.reached)
        }
        // A new log has none before its first index, and a copy of such a log neither.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let oldest = segments.min()?;
            let mut bytes = [0; SEGMENT_HEADER_BYTES];
            let mut file = std::fs::File::open(directory.join(segment_name(oldest))).ok()?;
            file.read_exact(&mut bytes).ok()?;
            let header = SegmentHeader::decode(&bytes).ok()?;
            (header.journal_id, oldest)
        }
        Err(_) => return None,
    };
    Some(ReachedPosition {
        journal_id,
        position: newest.map_or(reached, |newest| newest.max(reached)),
    })
}

/// A segment, and its end unless it is the last one.
pub(crate) struct SegmentWithEnd {
    pub segment: Arc<LogSegment>,
    pub end: Option<Lsn>,
}

pub(crate) struct SegmentList {
    list: RwLock<Vec<Arc<LogSegment>>>,
}

impl SegmentList {
    pub fn new(list: Vec<Arc<LogSegment>>) -> SegmentList {
        SegmentList {
            list: RwLock::new(list),
        }
    }

    pub fn len(&self) -> usize {
        self.read().len()
    }

    pub fn file_bytes(&self) -> u64 {
        self.read().iter().map(|segment| segment.file_bytes.load(Relaxed)).sum()
    }

    /// Returns the segment that contains `lsn`. `None` if it was removed.
    pub fn locate(&self, lsn: Lsn) -> Option<SegmentWithEnd> {
        let list = self.read();
        let at = list.partition_point(|segment| segment.base <= lsn).checked_sub(1)?;
        Some(SegmentWithEnd {
            segment: Arc::clone(&list[at]),
            end: list.get(at + 1).map(|next| next.base),
        })
    }

    pub fn push(&self, segment: Arc<LogSegment>) {
        self.write().push(segment);
    }

    /// Returns how many whole segments end at or before `limit`, and the end of the last of them. `None` if there are
    /// none.
    pub fn ending_before(&self, limit: Lsn) -> Option<(usize, Lsn)> {
        let list = self.read();
        let count = list.iter().skip(1).take_while(|next| next.base <= limit).count();
        (count > 0).then(|| (count, list[count].base))
    }

    pub fn remove_first(&self, count: usize) -> Vec<Arc<LogSegment>> {
        self.write().drain(..count).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<LogSegment>>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<LogSegment>>> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }
}
