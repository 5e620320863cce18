//! The journal of a buffer: opening it, finding out what waits in it, and where the cursor stands.
//!
//! A chunk is one record of the journal, alone in its block. Between chunks stand notes for the next start:
//!
//! ```text
//! cursor  kind u8 = 2 | zeros to 8 | base u64 | records u64 | position u64
//! index   kind u8 = 3 | zeros to 8 | cursor as above, without kind | records u64 | a base u64 and records u64 for each mark
//! ```
//!
//! `records`: how many were appended before that block since the log began. The last cursor or index in the log says what is done
//! with; what it did not say yet before a crash is sent once more. The journal's checkpoint stands at an index, or at the
//! beginning where there is none yet, and what waits may stand before it: a start reads no more than what was
//! appended since.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use journal::{
    Batch, DIRECTORY_NAME, Directory, DirectoryError, FlushError, Journal, Log, LogConfig, Lsn, OpenError, Policy,
    ReadError, ReplayError,
};

use super::aside;
use super::queue::{Cursor, FRAME_BYTES, Place, Queue};
use crate::config::{BufferConfig, Overflow, SyncMode};
use crate::record;

const KIND_CURSOR: u8 = 2;
const KIND_INDEX: u8 = 3;
const KIND_BYTES: usize = 8;
const CURSOR_BYTES: usize = 24;
const RECORDS_BYTES: usize = 8;
const MARK_BYTES: usize = 16;
/// What comes within this shares a commit: it costs a sync, and wakes the pump and those who wait for acknowledgements.
const COMMIT_EVERY: Duration = Duration::from_millis(2);
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
    /// What was set aside cannot be read.
    Aside {
        path: String,
        source: io::Error,
    },
    AsideDamaged {
        path: String,
    },
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
            BufferError::Aside { path, .. } => write!(f, "reading the messages that were set aside in {path}"),
            BufferError::AsideDamaged { path } => write!(
                f,
                "the messages that were set aside in {path} are damaged: what follows them is untouched; move the file away to go on without them"
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
            BufferError::Unknown { .. } | BufferError::AsideDamaged { .. } => None,
            BufferError::Aside { source, .. } => Some(source),
            BufferError::Close(source) => Some(source),
        }
    }
}

/// Opens the journal in `directory`, or creates it, and finds what waits there.
pub(super) fn open(directory: &Path, config: &BufferConfig) -> Result<(Log, Queue), BufferError> {
    create(directory)?;
    let storage = Directory::open(directory, DIRECTORY_NAME).map_err(BufferError::Directory)?;
    let mut found = Found {
        queue: None,
        unknown: None,
        quota_bytes: config.quota_bytes(),
    };
    let mut replay = |position: Lsn, payload: &[u8]| {
        found.record(position, payload);
        Ok::<(), ReplayError>(())
    };
    let opened = Log::open(Arc::new(storage), log_config(config), &mut replay, &mut |_, _| ());
    let (log, opened) = opened.map_err(BufferError::Open)?;
    let queue = found.queue(opened.next.0)?;
    Ok((log, queue))
}

/// Empties the directory of a buffer whose contents end with the process.
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

pub(super) fn start(log: Log, on_commit: impl Fn() + Send + Sync + 'static) -> Result<Journal, BufferError> {
    Journal::start_paced(log, COMMIT_EVERY, on_commit).map_err(BufferError::Threads)
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
    let given_up = match config.overflow {
        Overflow::DropOldest => super::given_up_bytes_max(config.max_bytes),
        Overflow::BackPressure | Overflow::DropNewest => 0,
    };
    LogConfig {
        policy: match config.sync {
            SyncMode::Fsync => Policy::Fsync,
            SyncMode::Os => Policy::Os,
        },
        segment_bytes: config.file_bytes(),
        max_bytes: config
            .max_bytes
            .saturating_add(given_up + SLACK_SEGMENTS * config.file_bytes()),
        reserve_bytes: RESERVE_BYTES,
    }
}

pub(super) fn cursor_batch(cursor: Cursor) -> Batch {
    let mut batch = Batch::new();
    batch.record(|bytes| {
        bytes.extend_from_slice(&[KIND_CURSOR, 0, 0, 0, 0, 0, 0, 0]);
        write_cursor(bytes, cursor);
    });
    batch
}

/// All that a start has to know of what stands before.
pub(super) fn index_batch(queue: &Queue) -> Batch {
    let mut batch = Batch::new();
    batch.record(|bytes| {
        bytes.extend_from_slice(&[KIND_INDEX, 0, 0, 0, 0, 0, 0, 0]);
        write_cursor(bytes, queue.cursor);
        bytes.extend_from_slice(&queue.next.records.to_le_bytes());
        for mark in queue.marks() {
            write_place(bytes, *mark);
        }
    });
    batch
}

fn write_cursor(bytes: &mut Vec<u8>, cursor: Cursor) {
    write_place(bytes, cursor.place);
    bytes.extend_from_slice(&cursor.position.to_le_bytes());
}

fn write_place(bytes: &mut Vec<u8>, place: Place) {
    bytes.extend_from_slice(&place.base.to_le_bytes());
    bytes.extend_from_slice(&place.records.to_le_bytes());
}

/// What the log has for the next start.
enum Note {
    Cursor(Cursor),
    Index {
        cursor: Cursor,
        records: u64,
        marks: VecDeque<Place>,
    },
}

pub(super) fn is_note(payload: &[u8]) -> bool {
    note(payload).is_some()
}

fn note(payload: &[u8]) -> Option<Note> {
    let (kind, rest) = payload.split_first_chunk::<KIND_BYTES>()?;
    let (cursor, rest) = rest.split_first_chunk::<CURSOR_BYTES>()?;
    let cursor = Cursor {
        place: place(cursor),
        position: u64_at(cursor, MARK_BYTES),
    };
    match kind[0] {
        KIND_CURSOR if rest.is_empty() => Some(Note::Cursor(cursor)),
        KIND_INDEX => {
            let (records, marks) = rest.split_first_chunk::<RECORDS_BYTES>()?;
            let (marks, odd) = marks.as_chunks::<MARK_BYTES>();
            odd.is_empty().then(|| Note::Index {
                cursor,
                records: u64::from_le_bytes(*records),
                marks: marks.iter().map(|mark| place(mark)).collect(),
            })
        }
        _ => None,
    }
}

fn place(bytes: &[u8]) -> Place {
    Place {
        base: u64_at(bytes, 0),
        records: u64_at(bytes, 8),
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(
        *bytes[at..]
            .first_chunk()
            .expect("`note` has cut as many bytes as are read"),
    )
}

/// What replay finds.
struct Found {
    queue: Option<Queue>,
    unknown: Option<u64>,
    quota_bytes: u64,
}

impl Found {
    fn record(&mut self, position: Lsn, payload: &[u8]) {
        let base = position.0 - (FRAME_BYTES - journal::RECORD_HEADER_BYTES as u64);
        let (note, records) = (note(payload), record::count(payload));
        if let (None, Some(Note::Index { cursor, records, marks })) = (&self.queue, &note) {
            let next = Place {
                base,
                records: *records,
            };
            self.queue = Some(Queue::restored(next, *cursor, marks.clone(), self.quota_bytes));
        }
        let start = Place { base, records: 0 };
        let quota_bytes = self.quota_bytes;
        let queue = self.queue.get_or_insert_with(|| Queue::new(start, quota_bytes));
        // A block without records may stand before.
        queue.next.base = base;
        queue.extend(base + FRAME_BYTES + payload.len() as u64, records.map_or(0, u64::from));
        match note {
            Some(Note::Cursor(cursor) | Note::Index { cursor, .. }) => queue.set_cursor(cursor),
            None if records.is_none() => _ = self.unknown.get_or_insert(position.0),
            None => {}
        }
    }

    /// Without what the last cursor says is done with.
    fn queue(self, next: u64) -> Result<Queue, BufferError> {
        if let Some(position) = self.unknown {
            return Err(BufferError::Unknown { position });
        }
        let start = Place { base: next, records: 0 };
        let mut queue = self.queue.unwrap_or_else(|| Queue::new(start, self.quota_bytes));
        queue.next.base = next;
        queue.read = queue.cursor.place;
        // What follows the cursor is no more than notes.
        if queue.read.records == queue.next.records && queue.cursor.position == queue.read.base {
            queue.read = queue.next;
            queue.set_cursor(queue.at_read());
        }
        Ok(queue)
    }
}
