//! The log without threads: what the commit thread drives in production, and a simulator on virtual time.
//!
//! Two halves that share no lock: the tail takes what is appended, the writer brings it to the disk. `Log` holds both for
//! one owner; [`crate::Journal`] puts them on two sides of a mutex.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::batch::Batch;
use crate::config::LogConfig;
use crate::lsn::Lsn;
use crate::open::{Opened, Progress, Replay, recover};
use crate::open_error::OpenError;
use crate::reader::LogReader;
use crate::status::{Health, LogStats, State, Status};
use crate::tail::{Appended, Tail};
use crate::writer::{FlushError, Start, Writer};
use storage::Storage;

pub struct Log {
    tail: Tail,
    writer: Writer,
    status: Arc<Status>,
    reader: LogReader,
}

/// The parts of a log, for threads to share.
pub(crate) struct Parts {
    pub tail: Tail,
    pub writer: Writer,
    pub status: Arc<Status>,
    pub reader: LogReader,
}

impl Log {
    /// Opens the log in `storage`, or creates one. Calls `replay` with position and payload of every record from the
    /// checkpoint on, in order, and `progress` with the bytes done and in total every few megabytes.
    pub fn open(
        storage: Arc<dyn Storage>,
        config: LogConfig,
        replay: &mut Replay<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(Log, Opened), OpenError> {
        let recovered = recover(&storage, &config, replay, progress)?;
        let (catalog, opened) = (recovered.catalog, recovered.opened);
        let status = Arc::new(Status::default());
        status.torn_bytes_cut.store(opened.torn_bytes_cut, Relaxed);
        let journal_id = catalog.checkpoint.journal_id;
        let tail = Tail::new(opened.next, journal_id, Arc::clone(&status));
        let writer = Writer::new(Start {
            storage,
            config,
            checkpoint: catalog.checkpoint,
            segments: catalog.segments,
            next: opened.next,
            status: Arc::clone(&status),
        });
        let reader = LogReader::new(Arc::clone(writer.segments()), Arc::clone(&status), journal_id);
        let log = Log {
            tail,
            writer,
            status,
            reader,
        };
        Ok((log, opened))
    }

    /// Memory only: assigns the position and leaves the batch empty. Never fails; what cannot be written shows in
    /// [`Log::state`] and in that [`Log::committed`] does not move.
    pub fn append(&mut self, batch: &mut Batch) -> Appended {
        self.tail.append(batch)
    }

    /// Writes all that was appended and, under [`crate::Policy::Fsync`], syncs it.
    pub fn flush(&mut self) -> Result<(), FlushError> {
        self.writer.enqueue(self.tail.take());
        let result = self.writer.flush();
        self.tail.recycle(self.writer.spent());
        result
    }

    /// Syncs what was written, whatever the policy. Under [`crate::Policy::Os`] to be called about once a second.
    pub fn sync(&mut self) -> Result<(), FlushError> {
        self.writer.sync()
    }

    /// The orderly end: flushes, syncs, and leaves a mark by which the next start tells any later damage from a torn tail.
    pub fn close(mut self) -> Result<(), FlushError> {
        let flushed = self.flush();
        self.sync()?;
        flushed?;
        self.tail.append_seal();
        // All that somebody appended is safe: without the mark the next start only proves less.
        let _ = self.flush();
        let _ = self.sync();
        Ok(())
    }

    /// All before it may be acknowledged under the policy.
    pub fn committed(&self) -> Lsn {
        self.status.lsn(|status| &status.committed)
    }

    /// All before it survives a power cut.
    pub fn synced(&self) -> Lsn {
        self.status.lsn(|status| &status.synced)
    }

    pub fn state(&self) -> State {
        self.status.state()
    }

    pub fn health(&self) -> Health {
        self.status.health()
    }

    /// The next start replays from here on. `replay_from` is where a batch begins or the end of the log, and committed;
    /// anything else is refused as [`io::ErrorKind::InvalidInput`].
    pub fn set_checkpoint(&mut self, replay_from: Lsn) -> io::Result<()> {
        self.writer.set_checkpoint(replay_from)
    }

    /// Replay begins at this batch from now on. Unlike after [`Log::set_checkpoint`] the batch itself is on the disk then, for an
    /// owner that keeps there what replay would otherwise have to find before it. An error while it has not been written.
    pub fn set_checkpoint_at(&mut self, batch: Appended) -> io::Result<()> {
        self.writer.set_checkpoint_at(batch)
    }

    /// Removes the segments that end at or before both `lsn` and the checkpoint; returns how many. After an error some of
    /// their files are left, which the next start removes.
    pub fn truncate_before(&mut self, lsn: Lsn) -> io::Result<u32> {
        self.writer.truncate_before(lsn)
    }

    pub fn stats(&self) -> LogStats {
        self.status.stats()
    }

    pub fn reader(&self) -> LogReader {
        self.reader.clone()
    }

    pub(crate) fn into_parts(self) -> Parts {
        Parts {
            tail: self.tail,
            writer: self.writer,
            status: self.status,
            reader: self.reader,
        }
    }
}
