//! Reading single records by position, from any thread, while the log is written and its old segments go.

use std::sync::Arc;
use std::{fmt, io};

use crate::layout::{RECORD_HEADER_BYTES, split_record, u32_at};
use crate::lsn::Lsn;
use crate::segments::{Segment, Segments};
use crate::status::Status;
use storage::read_full;

/// Read at first: header and payload of most records.
const FIRST_READ_BYTES: u64 = 4 << 10;
/// Read at once when several of the wanted records stand near each other.
const WINDOW_BYTES: u64 = 256 << 10;

/// Cheap to clone.
#[derive(Clone)]
pub struct LogReader {
    segments: Arc<Segments>,
    status: Arc<Status>,
    journal_id: u64,
}

/// Why a record cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The segment that had it was removed.
    Removed { position: Lsn },
    /// It was appended but not yet written, or never.
    NotWritten { position: Lsn },
    /// No record stands there, or not the one that was written.
    Damaged { position: Lsn, file: String, offset: u64 },
    Io {
        file: String,
        offset: u64,
        source: io::Error,
    },
    /// Too many reads were waiting.
    Busy,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Removed { position } => write!(f, "the record at position {position} was removed"),
            ReadError::NotWritten { position } => {
                write!(f, "the log has not been written as far as position {position}")
            }
            ReadError::Damaged { position, file, offset } => {
                write!(
                    f,
                    "{file}, offset {offset} (position {position}): the record is damaged"
                )
            }
            ReadError::Io { file, offset, .. } => write!(f, "reading {file} at offset {offset}"),
            ReadError::Busy => f.write_str("too many reads of the journal are waiting"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Consecutive bytes of one segment.
#[derive(Default)]
pub(crate) struct Window {
    start: Lsn,
    bytes: Vec<u8>,
}

/// A segment, and how far records in it may be read.
pub(crate) struct Readable {
    segment: Arc<Segment>,
    end: Lsn,
}

impl LogReader {
    pub(crate) fn new(segments: Arc<Segments>, status: Arc<Status>, journal_id: u64) -> LogReader {
        LogReader {
            segments,
            status,
            journal_id,
        }
    }

    pub(crate) fn journal_id(&self) -> u64 {
        self.journal_id
    }

    pub(crate) fn committed(&self) -> Lsn {
        self.status.lsn(|status| &status.committed)
    }

    /// Replaces the contents of `into` by the payload of the record at `position`, checked. A position that was never given
    /// out is an error, or by accident some other payload.
    pub fn read(&self, position: Lsn, into: &mut Vec<u8>) -> Result<(), ReadError> {
        let mut window = Window::default();
        into.clear();
        into.extend_from_slice(self.record(position, FIRST_READ_BYTES, &mut window)?);
        Ok(())
    }

    /// Calls `each` with the index of each position and the payload of its record, in the order of positions. Records that
    /// stand near each other are read together.
    pub fn read_many(&self, positions: &[Lsn], mut each: impl FnMut(usize, Result<&[u8], ReadError>)) {
        let mut order: Vec<usize> = (0..positions.len()).collect();
        order.sort_by_key(|&index| positions[index]);
        let mut window = Window::default();
        for (at, &index) in order.iter().enumerate() {
            let position = positions[index];
            let near = order[at..].partition_point(|&other| positions[other].0 - position.0 < WINDOW_BYTES);
            let farthest = positions[order[at + near - 1]];
            let read_ahead = farthest.0 - position.0 + FIRST_READ_BYTES;
            each(index, self.record(position, read_ahead, &mut window));
        }
    }

    /// The payload, from the window or read into it, with at least `read_ahead` bytes if there are so many.
    fn record<'a>(&self, position: Lsn, read_ahead: u64, window: &'a mut Window) -> Result<&'a [u8], ReadError> {
        let readable = self.readable(position)?;
        readable.load(position, RECORD_HEADER_BYTES as u64, read_ahead, window)?;
        let header = window.from(position);
        let damaged = || readable.damaged(position);
        let payload_bytes = header
            .get(..RECORD_HEADER_BYTES)
            .map(|header| u32_at(header, 0))
            .ok_or_else(damaged)?;
        let record_bytes = RECORD_HEADER_BYTES as u64 + u64::from(payload_bytes);
        readable.load(position, record_bytes, read_ahead, window)?;
        match split_record(window.from(position)) {
            Ok((payload, _)) => Ok(payload),
            _ => Err(damaged()),
        }
    }

    pub(crate) fn readable(&self, position: Lsn) -> Result<Readable, ReadError> {
        let written = self.status.lsn(|status| &status.written);
        if position >= written {
            return Err(ReadError::NotWritten { position });
        }
        let located = self.segments.locate(position).ok_or(ReadError::Removed { position })?;
        Ok(Readable {
            segment: located.segment,
            end: located.end.unwrap_or(written),
        })
    }
}

impl Readable {
    /// Sees to it that the window has `needed` bytes from `position` on, as far as the segment has them: a damaged length
    /// costs no more memory than a segment.
    pub(crate) fn load(
        &self,
        position: Lsn,
        needed: u64,
        read_ahead: u64,
        window: &mut Window,
    ) -> Result<(), ReadError> {
        if window.from(position).len() as u64 >= needed {
            return Ok(());
        }
        let wanted = needed.max(read_ahead).min(self.end.0 - position.0) as usize;
        window.start = position;
        window.bytes.resize(wanted, 0);
        let offset = self.segment.offset(position);
        match read_full(&*self.segment.file, offset, &mut window.bytes) {
            Ok(count) => {
                window.bytes.truncate(count);
                Ok(())
            }
            Err(source) => {
                window.bytes.clear();
                Err(ReadError::Io {
                    file: self.segment.name.clone(),
                    offset,
                    source,
                })
            }
        }
    }

    pub(crate) fn damaged(&self, position: Lsn) -> ReadError {
        ReadError::Damaged {
            position,
            file: self.segment.name.clone(),
            offset: self.segment.offset(position),
        }
    }
}

impl Window {
    /// What the window has from `position` on.
    pub(crate) fn from(&self, position: Lsn) -> &[u8] {
        let at = position.0.checked_sub(self.start.0).map(|at| at as usize);
        at.and_then(|at| self.bytes.get(at..)).unwrap_or_default()
    }
}
