//! The thread-safe log used by the workers. Appending takes one short mutex; reading the committed position takes none.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::batch::LogBatch;
use crate::commit::{BUSY_PACE, CommitPace, CommitShared, CommitTask, Committer};
use crate::fetch::{Fetched, Fetcher};
use crate::histogram::HistogramCounts;
use crate::log::RecordLog;
use crate::lsn::Lsn;
use crate::reader::LogReader;
use crate::status::{LogHealth, LogState, LogStats};
use crate::tail::Appended;
use crate::writer::FlushError;

/// Handle of a running log. Cheap to clone. If the last clone is dropped without [`Journal::shut_down`], the threads
/// stop by themselves.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<JournalInner>,
}

struct JournalInner {
    shared: Arc<CommitShared>,
    reader: LogReader,
    fetcher: Fetcher,
    commit_thread: Mutex<Option<JoinHandle<Result<(), FlushError>>>>,
}

impl Drop for JournalInner {
    /// Does not join the threads: the last clone may be dropped on one of them.
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Journal {
    /// Starts the threads of the log. `on_commit` is called on the commit thread when [`Journal::committed`] or
    /// [`Journal::state`] has changed. It must only wake other threads, because the next commit waits for it.
    ///
    /// While batches arrive faster than they are synced, commits start at least 250 µs apart. A commit that
    /// follows an idle moment does not wait. With [`LogConfig::commit_interval`](crate::LogConfig::commit_interval),
    /// both wait for the interval.
    pub fn start(log: RecordLog, on_commit: impl Fn() + Send + Sync + 'static) -> io::Result<Journal> {
        Journal::start_with(log, CommitPace::WhileOthersWait(BUSY_PACE), on_commit)
    }

    /// As [`Journal::start`], with at least `pace` between the starts of two commits. Batches appended in between share
    /// one sync and one call of `on_commit`; on a disk that syncs in microseconds these cost more than the write. A
    /// commit after a longer pause does not wait.
    pub fn start_paced(
        log: RecordLog,
        pace: Duration,
        on_commit: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Journal> {
        Journal::start_with(log, CommitPace::Always(pace), on_commit)
    }

    fn start_with(
        log: RecordLog,
        pace: CommitPace,
        on_commit: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Journal> {
        let parts = log.into_parts();
        let status = parts.status;
        let shared = Arc::new(CommitShared::new(parts.tail, Arc::clone(&status)));
        let committer = Committer {
            policy: parts.writer.policy(),
            commit_interval: parts.writer.commit_interval(),
            writer: parts.writer,
            shared: Arc::clone(&shared),
            on_commit,
            reported: (status.lsn(|status| &status.committed), status.state()),
            requested_at: None,
            pace,
            synced_at: Instant::now(),
        };
        let fetcher = Fetcher::start(parts.reader.clone())?;
        let commit_thread = Builder::new()
            .name("journal-commit".to_owned())
            .spawn(move || committer.run())?;
        Ok(Journal {
            inner: Arc::new(JournalInner {
                shared,
                reader: parts.reader,
                fetcher,
                commit_thread: Mutex::new(Some(commit_thread)),
            }),
        })
    }

    /// Assigns the position and leaves the batch empty. Never fails and never waits for the disk: the caller limits its
    /// rate by [`Journal::backlog_bytes`] and [`Journal::state`].
    pub fn append(&self, batch: &mut LogBatch) -> Appended {
        self.inner.shared.append(batch)
    }

    /// As [`Journal::append`], for records that no client waits for. They are committed with the next batch that a
    /// client waits for, or after a few milliseconds. A sync for these records alone would cost more than all their
    /// other work.
    pub fn append_deferred(&self, batch: &mut LogBatch) -> Appended {
        self.inner.shared.append_deferred(batch)
    }

    /// Requests a commit now of everything appended so far.
    pub fn request_commit(&self) {
        self.inner.shared.request_commit();
    }

    /// Returns the committed position: everything before it may be acknowledged under the policy.
    pub fn committed(&self) -> Lsn {
        self.inner.shared.status.lsn(|status| &status.committed)
    }

    pub fn state(&self) -> LogState {
        self.inner.shared.status.state()
    }

    /// Returns [`Journal::state`] without the reason: one atomic load.
    pub fn health(&self) -> LogHealth {
        self.inner.shared.status.health()
    }

    /// Returns the number of bytes that are appended and not yet committed.
    pub fn backlog_bytes(&self) -> usize {
        self.inner.shared.status.backlog_bytes() as usize
    }

    /// As [`RecordLog::set_checkpoint`]. `done` is called on the commit thread. Takes several syncs, and commits wait
    /// for them.
    pub fn set_checkpoint(&self, replay_from: Lsn, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.inner
            .shared
            .submit(CommitTask::SetCheckpoint(replay_from, Box::new(done)));
    }

    /// As [`RecordLog::set_checkpoint_at`]. `done` is called on the commit thread, after an attempt to commit earlier
    /// batches.
    pub fn set_checkpoint_at(&self, batch: Appended, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.inner
            .shared
            .submit(CommitTask::SetCheckpointAt(batch, Box::new(done)));
    }

    /// As [`RecordLog::truncate_before`]. `done` is called on the commit thread.
    pub fn truncate_before(&self, lsn: Lsn, done: impl FnOnce(io::Result<u32>) + Send + 'static) {
        self.inner
            .shared
            .submit(CommitTask::TruncateBefore(lsn, Box::new(done)));
    }

    pub fn stats(&self) -> LogStats {
        self.inner.shared.status.stats()
    }

    /// Returns the time from the first request for a commit to its end, in microseconds.
    pub fn commit_latency_us(&self) -> HistogramCounts {
        self.inner.shared.latency_us.counts()
    }

    /// Returns the distribution of bytes per commit.
    pub fn commit_bytes(&self) -> HistogramCounts {
        self.inner.shared.commit_bytes.counts()
    }

    /// Returns a reader for threads that may wait for the disk.
    pub fn reader(&self) -> LogReader {
        self.inner.reader.clone()
    }

    /// Reads the records at `positions` on a journal thread and calls `done` there, with results in the order of
    /// `positions`. One request reads about one megabyte of payload; the remaining results are
    /// [`crate::ReadError::Busy`]. If too many requests are queued, `done` is called immediately and all results are
    /// `Busy`.
    pub fn fetch(&self, positions: Vec<Lsn>, done: impl FnOnce(Fetched) + Send + 'static) {
        self.inner.fetcher.fetch(positions, done);
    }

    /// Flushes, syncs under any policy, and joins the threads. Batches appended later through another clone are never
    /// committed. The error says why appended records are not on disk.
    pub fn shut_down(self) -> Result<(), FlushError> {
        self.inner.shared.stop();
        let thread = self
            .inner
            .commit_thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let result = thread.map_or(Ok(()), |thread| {
            let reason = "the commit thread panicked".to_owned();
            thread.join().unwrap_or(Err(FlushError::Failed { reason }))
        });
        self.inner.fetcher.stop();
        result
    }
}
