//! The journal of a buffer: opens it, and recovers the waiting records and the cursor.
//!
//! Each chunk is one journal record, alone in its block. Between chunks stand recovery records:
//!
//! ```text
//! cursor  kind u8 = 2 | zeros to 8 | base u64 | records u64 | position u64
//! index   kind u8 = 3 | zeros to 8 | cursor as above, without kind | records u64 | mark ...
//! mark    base u64 | records u64
//! ```
//!
//! `records` is the number of records appended before that block since the log began. The last cursor or index in the
//! log marks the finished records. Records finished after it are sent again after a crash.
//!
//! The journal's checkpoint is at an index, or at the beginning of the log if there is none yet. Waiting records may
//! precede the checkpoint, so that opening reads only the records appended since the last index.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use journal::{
    DIRECTORY_NAME, DirectoryError, FlushError, FlushPolicy, Journal, LogBatch, LogConfig, Lsn, OpenError, ReadError,
    RecordLog, ReplayError, StorageDirectory, StoreKind,
};

use super::aside;
use super::queue::{BlockStart, BufferCursor, BufferQueue, FRAME_BYTES};
use crate::config::{BufferConfig, Overflow, SyncMode};
use crate::record;

const KIND_CURSOR: u8 = 2;
const KIND_INDEX: u8 = 3;
const KIND_BYTES: usize = 8;
const CURSOR_BYTES: usize = 24;
const RECORDS_BYTES: usize = 8;
const MARK_BYTES: usize = 16;
/// Appends within this interval share a commit. A commit costs a sync, and wakes the pump and the threads that wait for
/// acknowledgements.
const COMMIT_EVERY: Duration = Duration::from_millis(2);
/// Space above the quota for segments that cannot be deleted yet.
const SLACK_SEGMENTS: u64 = 6;
/// Free disk space that a buffer never uses.
const RESERVE_BYTES: u64 = 256 << 20;

/// Why a buffer cannot be opened, read or closed.
#[derive(Debug)]
pub enum BufferError {
    Directory(DirectoryError),
    Create {
        path: String,
        source: io::Error,
    },
    Open(OpenError),
    Threads(io::Error),
    Read(ReadError),
    /// The journal has a record of an unknown kind.
    Unknown {
        position: u64,
    },
    Close(FlushError),
    /// The side file cannot be read.
    Aside {
        path: String,
        source: io::Error,
    },
    AsideDamaged {
        path: String,
    },
    /// A newer version of the program wrote the side file.
    AsideTooNew {
        path: String,
        version: char,
    },
}

impl fmt::Display for BufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BufferError::Directory(_) => f.write_str("cannot open the buffer's directory"),
            BufferError::Create { path, .. } => write!(f, "cannot create the buffer's directory {path}"),
            BufferError::Open(_) => f.write_str("cannot open the buffer's journal"),
            BufferError::Threads(_) => f.write_str("cannot start the threads of the buffer's journal"),
            BufferError::Read(_) => f.write_str("cannot read the buffer's journal"),
            BufferError::Unknown { position } => write!(
                f,
                "the buffer's journal has an unknown record at position {position}. Use the newer tidewire that wrote it, or restore a backup"
            ),
            BufferError::Close(_) => f.write_str("cannot close the buffer's journal"),
            BufferError::Aside { path, .. } => write!(f, "cannot read the messages that were set aside in {path}"),
            BufferError::AsideDamaged { path } => write!(
                f,
                "the file {path} with messages that were set aside is damaged; later messages are intact; move the file away to continue without its messages"
            ),
            BufferError::AsideTooNew { path, version } => write!(
                f,
                "{path} has format version {version}, but this program supports versions up to {}. Use the newer tidewire that wrote it, or restore a backup",
                aside::VERSION
            ),
        }
    }
}

impl std::error::Error for BufferError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BufferError::Directory(source) => Some(source),
            BufferError::Create { source, .. } | BufferError::Threads(source) => Some(source),
            BufferError::Open(source) => Some(source),
            BufferError::Read(source) => Some(source),
            BufferError::Unknown { .. } | BufferError::AsideDamaged { .. } | BufferError::AsideTooNew { .. } => None,
            BufferError::Aside { source, .. } => Some(source),
            BufferError::Close(source) => Some(source),
        }
    }
}

/// Opens or creates the journal in `directory`, and recovers the waiting records.
pub(super) fn open(
    directory: &Path,
    config: &BufferConfig,
    commit_interval: Duration,
) -> Result<(RecordLog, BufferQueue), BufferError> {
    create(directory)?;
    let storage = StorageDirectory::open(directory, DIRECTORY_NAME).map_err(BufferError::Directory)?;
    let mut found = ReplayState {
        queue: None,
        quota_bytes: config.quota_bytes(),
    };
    let mut replay = |position: Lsn, payload: &[u8]| found.record(position, payload);
    let storage = Arc::new(storage.counted_as(StoreKind::Buffers));
    let config = LogConfig {
        commit_interval,
        ..log_config(config)
    };
    let opened = RecordLog::open(storage, config, &mut replay, &mut |_, _| ());
    let (log, opened) = opened.map_err(BufferError::Open)?;
    let queue = found.queue(opened.next.0);
    Ok((log, queue))
}

/// Deletes the contents of a non-durable buffer's directory.
pub(super) fn wipe(directory: &Path) -> Result<(), BufferError> {
    let path = aside::path(directory);
    aside::remove(&path).map_err(|source| BufferError::Aside {
        path: path.display().to_string(),
        source,
    })?;
    let path = directory.join(DIRECTORY_NAME);
    match fs::remove_dir_all(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(BufferError::Create {
            path: path.display().to_string(),
            source,
        }),
        _ => Ok(()),
    }
}

pub(super) fn start(log: RecordLog, on_commit: impl Fn() + Send + Sync + 'static) -> Result<Journal, BufferError> {
    Journal::start_paced(log, COMMIT_EVERY, on_commit).map_err(BufferError::Threads)
}

/// Creates the directory and syncs its parents, so that the new names survive a crash.
fn create(directory: &Path) -> Result<(), BufferError> {
    let make = || -> io::Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(directory)?;
        for parent in directory.ancestors().skip(1).take(2) {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            fs::File::open(parent)?.sync_all()?;
        }
        Ok(())
    };
    make().map_err(|source| BufferError::Create {
        path: directory.display().to_string(),
        source,
    })
}

fn log_config(config: &BufferConfig) -> LogConfig {
    let evicted = match config.overflow {
        Overflow::DropOldest => super::evicted_bytes_max(config.max_bytes),
        Overflow::BackPressure | Overflow::DropNewest => 0,
    };
    LogConfig {
        policy: match config.sync {
            SyncMode::Fsync => FlushPolicy::Fsync,
            SyncMode::Os => FlushPolicy::Os,
        },
        segment_bytes: config.file_bytes(),
        max_bytes: config
            .max_bytes
            .saturating_add(evicted + SLACK_SEGMENTS * config.file_bytes()),
        reserve_bytes: RESERVE_BYTES,
        record_version: record::RECORD_VERSION,
        ..LogConfig::default()
    }
}

pub(super) fn cursor_batch(cursor: BufferCursor) -> LogBatch {
    let mut batch = LogBatch::new();
    batch.record(|bytes| {
        bytes.extend_from_slice(&[KIND_CURSOR, 0, 0, 0, 0, 0, 0, 0]);
        write_cursor(bytes, cursor);
    });
    batch
}

/// Builds the record with all state that recovery needs from before it.
pub(super) fn index_batch(queue: &BufferQueue) -> LogBatch {
    let mut batch = LogBatch::new();
    batch.record(|bytes| {
        bytes.extend_from_slice(&[KIND_INDEX, 0, 0, 0, 0, 0, 0, 0]);
        write_cursor(bytes, queue.cursor);
        bytes.extend_from_slice(&queue.next.records.to_le_bytes());
        for mark in queue.marks() {
            write_block_start(bytes, *mark);
        }
    });
    batch
}

fn write_cursor(bytes: &mut Vec<u8>, cursor: BufferCursor) {
    write_block_start(bytes, cursor.block);
    bytes.extend_from_slice(&cursor.position.to_le_bytes());
}

fn write_block_start(bytes: &mut Vec<u8>, block: BlockStart) {
    bytes.extend_from_slice(&block.base.to_le_bytes());
    bytes.extend_from_slice(&block.records.to_le_bytes());
}

/// A record for recovery.
enum RecoveryRecord {
    Cursor(BufferCursor),
    Index {
        cursor: BufferCursor,
        records: u64,
        marks: VecDeque<BlockStart>,
    },
}

pub(super) fn is_recovery_record(payload: &[u8]) -> bool {
    parse_recovery_record(payload).is_some()
}

fn parse_recovery_record(payload: &[u8]) -> Option<RecoveryRecord> {
    let (kind, rest) = payload.split_first_chunk::<KIND_BYTES>()?;
    let (cursor, rest) = rest.split_first_chunk::<CURSOR_BYTES>()?;
    let cursor = BufferCursor {
        block: block_start(cursor),
        position: u64_at(cursor, MARK_BYTES),
    };
    match kind[0] {
        KIND_CURSOR if rest.is_empty() => Some(RecoveryRecord::Cursor(cursor)),
        KIND_INDEX => {
            let (records, marks) = rest.split_first_chunk::<RECORDS_BYTES>()?;
            let (marks, odd) = marks.as_chunks::<MARK_BYTES>();
            odd.is_empty().then(|| RecoveryRecord::Index {
                cursor,
                records: u64::from_le_bytes(*records),
                marks: marks.iter().map(|mark| block_start(mark)).collect(),
            })
        }
        _ => None,
    }
}

fn block_start(bytes: &[u8]) -> BlockStart {
    BlockStart {
        base: u64_at(bytes, 0),
        records: u64_at(bytes, 8),
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(
        *bytes[at..]
            .first_chunk()
            .expect("the caller has split off enough bytes"),
    )
}

/// The state that replay has recovered so far.
struct ReplayState {
    queue: Option<BufferQueue>,
    quota_bytes: u64,
}

impl ReplayState {
    fn record(&mut self, position: Lsn, payload: &[u8]) -> Result<(), ReplayError> {
        let base = position.0 - (FRAME_BYTES - journal::RECORD_HEADER_BYTES as u64);
        let (recovery_record, records) = (parse_recovery_record(payload), record::count(payload));
        if let (None, Some(RecoveryRecord::Index { cursor, records, marks })) = (&self.queue, &recovery_record) {
            let next = BlockStart {
                base,
                records: *records,
            };
            self.queue = Some(BufferQueue::restored(next, *cursor, marks.clone(), self.quota_bytes));
        }
        let start = BlockStart { base, records: 0 };
        let quota_bytes = self.quota_bytes;
        let queue = self.queue.get_or_insert_with(|| BufferQueue::new(start, quota_bytes));
        // A block without records may precede this one.
        queue.next.base = base;
        queue.extend(base + FRAME_BYTES + payload.len() as u64, records.map_or(0, u64::from));
        match recovery_record {
            Some(RecoveryRecord::Cursor(cursor) | RecoveryRecord::Index { cursor, .. }) => queue.set_cursor(cursor),
            None if records.is_none() => {
                return Err(ReplayError {
                    reason: "expected a known record kind".to_owned(),
                });
            }
            None => {}
        }
        Ok(())
    }

    /// Returns the queue without the records that the last cursor marks as finished.
    fn queue(self, next: u64) -> BufferQueue {
        let start = BlockStart { base: next, records: 0 };
        let mut queue = self.queue.unwrap_or_else(|| BufferQueue::new(start, self.quota_bytes));
        queue.next.base = next;
        queue.read = queue.cursor.block;
        // Only recovery records follow the cursor.
        if queue.read.records == queue.next.records && queue.cursor.position == queue.read.base {
            queue.read = queue.next;
            queue.set_cursor(queue.at_read());
        }
        queue
    }
}
