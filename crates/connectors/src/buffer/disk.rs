//! The journal of a buffer: opening it, finding out what waits in it, and where the cursor stands.
//!
//! A chunk is one record of the journal, alone in its block. Between chunks stand cursors:
//!
//! ```text
//! cursor  kind u8 = 2 | zeros to 8 | base u64 | position u64
//! ```
//!
//! The last one in the log counts. The journal's checkpoint is always at or before it, so that replay finds it or what it
//! speaks of; what the last cursor before a crash did not say yet is sent once more.

use std::path::Path;
use std::sync::Arc;
use std::{fmt, fs, io};

use journal::{
    Batch, DirectoryError, DirectoryStorage, FlushError, Follower, Journal, Log, LogConfig, Lsn, OpenError, Policy,
    ReadError, ReplayError,
};

use super::queue::{Cursor, FRAME_BYTES, Queue};
use crate::config::{BufferConfig, SyncMode};
use crate::record;

const KIND_CURSOR: u8 = 2;
const CURSOR_BYTES: usize = 24;
/// Beyond the quota, for what stands in segments that cannot go yet.
const SLACK_SEGMENTS: u64 = 6;
/// Free space of the disk that is left alone.
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
    /// The journal has a record that this version does not know.
    Unknown {
        position: u64,
    },
    Close(FlushError),
}

impl fmt::Display for BufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BufferError::Directory(_) => f.write_str("opening the directory of the buffer"),
            BufferError::Create { path, .. } => write!(f, "creating the directory {path} for the buffer"),
            BufferError::Open(_) => f.write_str("opening the buffer's journal"),
            BufferError::Threads(_) => f.write_str("starting the threads of the buffer's journal"),
            BufferError::Read(_) => f.write_str("reading the buffer's journal"),
            BufferError::Unknown { position } => write!(
                f,
                "the buffer has something at position {position} that this version does not know: was it written by a newer one?"
            ),
            BufferError::Close(_) => f.write_str("closing the buffer's journal"),
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
            BufferError::Unknown { .. } => None,
            BufferError::Close(source) => Some(source),
        }
    }
}

/// Opens the journal in `directory`, or creates it, and finds what waits there.
pub(super) fn open(directory: &Path, config: &BufferConfig) -> Result<(Log, Queue), BufferError> {
    create(directory)?;
    let storage = DirectoryStorage::open(directory).map_err(BufferError::Directory)?;
    let mut found = Found::default();
    let mut replay = |position: Lsn, payload: &[u8]| {
        found.record(position, payload);
        Ok::<(), ReplayError>(())
    };
    let opened = Log::open(Arc::new(storage), log_config(config), &mut replay, &mut |_, _| ());
    let (log, opened) = opened.map_err(BufferError::Open)?;
    let queue = found.queue(opened.replayed_from.0, opened.next.0, &log)?;
    Ok((log, queue))
}

/// Empties the directory of a buffer whose contents end with the process.
pub(super) fn wipe(directory: &Path) -> Result<(), BufferError> {
    let path = directory.join(journal::DIRECTORY_NAME);
    match fs::remove_dir_all(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(BufferError::Create {
            path: path.display().to_string(),
            source,
        }),
        _ => Ok(()),
    }
}

pub(super) fn start(log: Log, on_commit: impl Fn() + Send + Sync + 'static) -> Result<Journal, BufferError> {
    Journal::start(log, on_commit).map_err(BufferError::Threads)
}

/// The new names survive a crash.
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
    LogConfig {
        policy: match config.sync {
            SyncMode::Fsync => Policy::Fsync,
            SyncMode::Os => Policy::Os,
        },
        segment_bytes: config.segment_bytes,
        max_bytes: config.max_bytes.saturating_add(SLACK_SEGMENTS * config.segment_bytes),
        reserve_bytes: RESERVE_BYTES,
    }
}

/// Writes the cursor into a batch.
pub(super) fn cursor_batch(cursor: Cursor) -> Batch {
    let mut batch = Batch::new();
    batch.record(|bytes| {
        bytes.extend_from_slice(&[KIND_CURSOR, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&cursor.base.to_le_bytes());
        bytes.extend_from_slice(&cursor.position.to_le_bytes());
    });
    batch
}

pub(super) fn is_cursor(payload: &[u8]) -> bool {
    cursor_of(payload).is_some()
}

fn cursor_of(payload: &[u8]) -> Option<Cursor> {
    let payload: &[u8; CURSOR_BYTES] = payload.try_into().ok()?;
    let u64_at = |at: usize| u64::from_le_bytes(*payload[at..].first_chunk().expect("24 bytes"));
    (payload[0] == KIND_CURSOR).then(|| Cursor {
        base: u64_at(8),
        position: u64_at(16),
    })
}

/// What replay finds.
#[derive(Default)]
struct Found {
    queue: Option<Queue>,
    cursor: Option<Cursor>,
    unknown: Option<u64>,
}

impl Found {
    fn record(&mut self, position: Lsn, payload: &[u8]) {
        let base = position.0 - (FRAME_BYTES - journal::RECORD_HEADER_BYTES as u64);
        if let Some(cursor) = cursor_of(payload) {
            self.cursor = Some(cursor);
        } else if let Some(records) = record::count(payload) {
            let queue = self.queue.get_or_insert_with(|| Queue::new(base));
            queue.extend(base, base + FRAME_BYTES + payload.len() as u64, u64::from(records));
        } else {
            self.unknown.get_or_insert(position.0);
        }
    }

    /// Without what the last cursor says is done with.
    fn queue(self, from: u64, next: u64, log: &Log) -> Result<Queue, BufferError> {
        if let Some(position) = self.unknown {
            return Err(BufferError::Unknown { position });
        }
        let mut queue = self.queue.unwrap_or_else(|| Queue::new(from));
        queue.read = from;
        queue.next = next;
        queue.cursor = queue.at_read();
        if let Some(cursor) = self.cursor
            && cursor.position > from
        {
            queue.skip_spans(cursor.base);
            let done = records_before(&queue, cursor, log)?;
            queue.advance(cursor.base, done);
            queue.cursor = cursor;
        }
        Ok(queue)
    }
}

/// Records of the first span that stand in blocks before the cursor's.
fn records_before(queue: &Queue, cursor: Cursor, log: &Log) -> Result<u64, BufferError> {
    let Some(span) = queue.front_span() else {
        return Ok(0);
    };
    let mut follower = Follower::new(log.reader(), Lsn(span.base.min(cursor.base)));
    let mut records = 0;
    while follower.next().0 < cursor.base {
        let read = follower.read_block(|_, payload| records += u64::from(record::count(payload).unwrap_or(0)));
        if read.map_err(BufferError::Read)?.is_none() {
            break;
        }
    }
    Ok(records)
}
