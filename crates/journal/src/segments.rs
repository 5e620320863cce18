//! The segments that exist, shared by the writer, which adds and removes, and the readers.
//!
//! Invariants: sorted by base, without gaps; only the last one is written to. A reader that holds a segment can read it
//! to the end even when it is removed meanwhile.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::layout::SEGMENT_HEADER_BYTES;
use crate::lsn::Lsn;
use storage::StorageFile;

const SUFFIX: &str = ".log";
const NAME_DIGITS: usize = 16;

pub(crate) struct Segment {
    pub base: Lsn,
    pub name: String,
    pub file: Box<dyn StorageFile>,
    /// Of the file: with what is preallocated.
    pub file_bytes: AtomicU64,
}

impl Segment {
    pub fn new(base: Lsn, file: Box<dyn StorageFile>, file_bytes: u64) -> Segment {
        Segment {
            base,
            name: segment_name(base),
            file,
            file_bytes: AtomicU64::new(file_bytes),
        }
    }

    /// Where in the file a position is.
    pub fn offset(&self, lsn: Lsn) -> u64 {
        SEGMENT_HEADER_BYTES as u64 + (lsn.0 - self.base.0)
    }

    /// Position at which the file ends.
    pub fn file_end(&self) -> Lsn {
        let bytes = self.file_bytes.load(Relaxed);
        Lsn(self.base.0 + bytes.saturating_sub(SEGMENT_HEADER_BYTES as u64))
    }
}

pub(crate) fn segment_name(base: Lsn) -> String {
    format!("{:016x}{SUFFIX}", base.0)
}

/// The base of a segment of that name; `None` if it is no segment's name.
pub(crate) fn base_of_name(name: &str) -> Option<Lsn> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_ours = digits.len() == NAME_DIGITS && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_ours.then(|| u64::from_str_radix(digits, 16).ok().map(Lsn))?
}

/// A segment and where it ends, if it is not the last one.
pub(crate) struct Located {
    pub segment: Arc<Segment>,
    pub end: Option<Lsn>,
}

pub(crate) struct Segments {
    list: RwLock<Vec<Arc<Segment>>>,
}

impl Segments {
    pub fn new(list: Vec<Arc<Segment>>) -> Segments {
        Segments {
            list: RwLock::new(list),
        }
    }

    pub fn len(&self) -> usize {
        self.read().len()
    }

    pub fn file_bytes(&self) -> u64 {
        self.read().iter().map(|segment| segment.file_bytes.load(Relaxed)).sum()
    }

    /// The segment that has `lsn`, `None` if it was removed.
    pub fn locate(&self, lsn: Lsn) -> Option<Located> {
        let list = self.read();
        let at = list.partition_point(|segment| segment.base <= lsn).checked_sub(1)?;
        Some(Located {
            segment: Arc::clone(&list[at]),
            end: list.get(at + 1).map(|next| next.base),
        })
    }

    pub fn push(&self, segment: Arc<Segment>) {
        self.write().push(segment);
    }

    /// How many whole segments end at or before `limit`, and where the last of them ends.
    pub fn ending_before(&self, limit: Lsn) -> Option<(usize, Lsn)> {
        let list = self.read();
        let count = list.iter().skip(1).take_while(|next| next.base <= limit).count();
        (count > 0).then(|| (count, list[count].base))
    }

    pub fn remove_first(&self, count: usize) -> Vec<Arc<Segment>> {
        self.write().drain(..count).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Segment>>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<Segment>>> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }
}
