//! The log without threads. The commit thread drives it in production, a simulator in tests on virtual time.
//!
//! It has two halves that share no lock: the tail accepts batches, the writer writes them to disk. `RecordLog` holds
//! both for a single owner; [`crate::Journal`] separates them by a mutex.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::batch::LogBatch;
use crate::config::LogConfig;
use crate::lsn::Lsn;
use crate::open::{OpenProgress, OpenReport, ReplayVisitor, recover};
use crate::open_error::OpenError;
use crate::reader::LogReader;
use crate::status::{LogHealth, LogState, LogStats, LogStatus};
use crate::tail::{Appended, LogTail};
use crate::writer::{FlushError, LogWriter, WriterStart};
use storage::Storage;

pub struct RecordLog {
    tail: LogTail,
    writer: LogWriter,
    status: Arc<LogStatus>,
    reader: LogReader,
}

/// The parts of a log, for threads to share.
pub(crate) struct LogParts {
    pub tail: LogTail,
    pub writer: LogWriter,
    pub status: Arc<LogStatus>,
    pub reader: LogReader,
}

impl RecordLog {
    /// Opens the log in `storage`, or creates one. Calls `replay` with the position and payload of every record since
    /// the checkpoint, in order, and `progress` every few megabytes with the bytes read and the total.
    pub fn open(
        storage: Arc<dyn Storage>,
        config: LogConfig,
        replay: &mut ReplayVisitor<'_>,
        progress: &mut OpenProgress<'_>,
    ) -> Result<(RecordLog, OpenReport), OpenError> {
        let recovered = recover(&storage, &config, replay, progress)?;
        let (catalog, opened) = (recovered.catalog, recovered.opened);
        let status = Arc::new(LogStatus::default());
        status.torn_bytes_cut.store(opened.torn_bytes_cut, Relaxed);
        let journal_id = catalog.checkpoint.journal_id;
        let tail = LogTail::new(opened.next, journal_id, config.record_version, Arc::clone(&status));
        let writer = LogWriter::new(WriterStart {
            storage,
            config,
            checkpoint: catalog.checkpoint,
            segments: catalog.segments,
            next: opened.next,
            status: Arc::clone(&status),
        });
        let reader = LogReader::new(Arc::clone(writer.segments()), Arc::clone(&status), journal_id);
        let log = RecordLog {
            tail,
            writer,
            status,
            reader,
        };
        Ok((log, opened))
    }

    /// Assigns the position and leaves the batch empty. Works in memory only and never fails: if a write fails,
    /// [`RecordLog::state`] reports it and [`RecordLog::committed`] does not advance.
    pub fn append(&mut self, batch: &mut LogBatch) -> Appended {
        self.tail.append(batch)
    }

    /// Writes all appended batches and, under [`crate::Policy::Fsync`], syncs them.
    pub fn flush(&mut self) -> Result<(), FlushError> {
        self.writer.enqueue(self.tail.take());
        let result = self.writer.flush();
        self.tail.recycle(self.writer.free_buffers());
        result
    }

    /// Syncs all written batches, under any policy. Under [`crate::Policy::Os`] the owner calls this about once a
    /// second.
    pub fn sync(&mut self) -> Result<(), FlushError> {
        self.writer.sync()
    }

    /// Shuts down cleanly: flushes, syncs, and appends a seal that lets the next start tell later damage from a torn
    /// tail.
    pub fn close(mut self) -> Result<(), FlushError> {
        let flushed = self.flush();
        self.sync()?;
        flushed?;
        self.tail.append_seal();
        // All appended records are safe already. Without the seal the next start only detects less damage.
        let _ = self.flush();
        let _ = self.sync();
        let _ = self.writer.record_end();
        Ok(())
    }

    /// Returns the committed position: everything before it may be acknowledged under the policy.
    pub fn committed(&self) -> Lsn {
        self.status.lsn(|status| &status.committed)
    }

    /// Returns the synced position: everything before it survives a power failure.
    pub fn synced(&self) -> Lsn {
        self.status.lsn(|status| &status.synced)
    }

    pub fn state(&self) -> LogState {
        self.status.state()
    }

    pub fn health(&self) -> LogHealth {
        self.status.health()
    }

    /// Makes the next start replay from `replay_from`, which must be the start of a batch or the end of the log, and
    /// committed. Other positions fail with [`io::ErrorKind::InvalidInput`].
    pub fn set_checkpoint(&mut self, replay_from: Lsn) -> io::Result<()> {
        self.writer.set_checkpoint(replay_from)
    }

    /// Makes the next start replay from this batch. Unlike [`RecordLog::set_checkpoint`], guarantees that the batch
    /// itself is on disk: the owner stores in it the state that replay would otherwise read before it. Fails if the
    /// batch has not been written.
    pub fn set_checkpoint_at(&mut self, batch: Appended) -> io::Result<()> {
        self.writer.set_checkpoint_at(batch)
    }

    /// Removes the segments that end at or before both `lsn` and the checkpoint. Returns how many. After an error some
    /// files may remain; the next start removes them.
    pub fn truncate_before(&mut self, lsn: Lsn) -> io::Result<u32> {
        self.writer.truncate_before(lsn)
    }

    pub fn stats(&self) -> LogStats {
        self.status.stats()
    }

    pub fn reader(&self) -> LogReader {
        self.reader.clone()
    }

    pub(crate) fn into_parts(self) -> LogParts {
        LogParts {
            tail: self.tail,
            writer: self.writer,
            status: self.status,
            reader: self.reader,
        }
    }
}
