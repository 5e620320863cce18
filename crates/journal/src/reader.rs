//! Reads single records by position, from any thread, while the log is written and old segments are removed.

use std::sync::Arc;
use std::{fmt, io};

use crate::layout::{RECORD_HEADER_BYTES, first_record, u32_at};
use crate::lsn::Lsn;
use crate::segments::{LogSegment, SegmentList};
use crate::status::LogStatus;
use storage::read_full;

/// Size of the first read: enough for header and payload of most records.
const FIRST_READ_BYTES: u64 = 4 << 10;
/// Size of one read when several of the requested records are near each other.
const WINDOW_BYTES: u64 = 256 << 10;

/// Reader of single records. Cheap to clone.
#[derive(Clone)]
pub struct LogReader {
    segments: Arc<SegmentList>,
    status: Arc<LogStatus>,
    journal_id: u64,
}

/// Why a record cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The segment that held the record was removed.
    Removed { position: Lsn },
    /// The position is beyond the written part of the log.
    NotWritten { position: Lsn },
    /// The bytes at the position are not a valid record.
    Damaged { position: Lsn, file: String, offset: u64 },
    Io {
        file: String,
        offset: u64,
        source: io::Error,
    },
    /// The read queue was full.
    Busy,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Removed { position } => write!(f, "journal record at position {position} was removed"),
            ReadError::NotWritten { position } => {
                write!(f, "journal position {position} is not written yet")
            }
            ReadError::Damaged { position, file, offset } => {
                write!(
                    f,
                    "journal record is damaged: {file}, offset {offset} (position {position})"
                )
            }
            ReadError::Io { file, offset, .. } => write!(f, "cannot read {file} at offset {offset}"),
            ReadError::Busy => f.write_str("too many journal reads are queued"),
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
pub(crate) struct SegmentWindow {
    start: Lsn,
    bytes: Vec<u8>,
}

/// A segment, and the position up to which its records may be read.
pub(crate) struct ReadableSegment {
    segment: Arc<LogSegment>,
    end: Lsn,
}

impl LogReader {
    pub(crate) fn new(segments: Arc<SegmentList>, status: Arc<LogStatus>, journal_id: u64) -> LogReader {
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

    /// Replaces the contents of `into` with the payload of the record at `position`. The checksum is verified. A
    /// position that no append returned is an error, or in rare cases yields other bytes.
    pub fn read(&self, position: Lsn, into: &mut Vec<u8>) -> Result<(), ReadError> {
        let mut window = SegmentWindow::default();
        into.clear();
        into.extend_from_slice(self.record(position, FIRST_READ_BYTES, &mut window)?);
        Ok(())
    }

    /// Calls `each` with the index of each position and the payload of its record, in ascending order of positions.
    /// Records that are near each other are read together.
    pub fn read_many(&self, positions: &[Lsn], mut each: impl FnMut(usize, Result<&[u8], ReadError>)) {
        let mut order: Vec<usize> = (0..positions.len()).collect();
        order.sort_by_key(|&index| positions[index]);
        let mut window = SegmentWindow::default();
        for (at, &index) in order.iter().enumerate() {
            let position = positions[index];
            let near = order[at..].partition_point(|&other| positions[other].0 - position.0 < WINDOW_BYTES);
            let farthest = positions[order[at + near - 1]];
            let read_ahead = farthest.0 - position.0 + FIRST_READ_BYTES;
            each(index, self.record(position, read_ahead, &mut window));
        }
    }

    /// Returns the payload at `position`, from the window if it is there. Otherwise reads up to `read_ahead` bytes into
    /// the window.
    fn record<'a>(&self, position: Lsn, read_ahead: u64, window: &'a mut SegmentWindow) -> Result<&'a [u8], ReadError> {
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
        first_record(window.from(position)).map_err(|_| damaged())
    }

    pub(crate) fn readable(&self, position: Lsn) -> Result<ReadableSegment, ReadError> {
        let written = self.status.lsn(|status| &status.written);
        if position >= written {
            return Err(ReadError::NotWritten { position });
        }
        let located = self.segments.locate(position).ok_or(ReadError::Removed { position })?;
        Ok(ReadableSegment {
            segment: located.segment,
            end: located.end.unwrap_or(written),
        })
    }
}

impl ReadableSegment {
    /// Fills the window with `needed` bytes from `position` on, at most up to the end of the segment: a damaged length
    /// field cannot allocate more memory than a segment.
    pub(crate) fn load(
        &self,
        position: Lsn,
        needed: u64,
        read_ahead: u64,
        window: &mut SegmentWindow,
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

impl SegmentWindow {
    /// Returns the bytes of the window from `position` on.
    pub(crate) fn from(&self, position: Lsn) -> &[u8] {
        let at = position.0.checked_sub(self.start.0).map(|at| at as usize);
        at.and_then(|at| self.bytes.get(at..)).unwrap_or_default()
    }
}
