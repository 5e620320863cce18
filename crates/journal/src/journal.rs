//! The log with its threads: what the workers use. Appending takes one short mutex; asking how far the log is takes none.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::commit::{Committer, Shared, Task};
use crate::fetch::{Fetched, Fetcher};
use crate::histogram::HistogramCounts;
use crate::log::Log;
use crate::lsn::Lsn;
use crate::reader::LogReader;
use crate::status::{Health, LogStats, State};
use crate::tail::Appended;
use crate::writer::FlushError;

/// Cheap to clone. When the last clone is dropped without [`Journal::shut_down`] its threads end by themselves.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    reader: LogReader,
    fetcher: Fetcher,
    commit_thread: Mutex<Option<JoinHandle<Result<(), FlushError>>>>,
}

impl Drop for Inner {
    /// Waits for nobody: this may run on one of the threads.
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Journal {
    /// `on_commit` is called on the commit thread when [`Journal::committed`] or [`Journal::state`] has changed. It should only wake
    /// others: the next commit waits for it.
    pub fn start(log: Log, on_commit: impl Fn() + Send + Sync + 'static) -> io::Result<Journal> {
        Journal::start_paced(log, Duration::ZERO, on_commit)
    }

    /// As [`Journal::start`], with at least `pace` from one commit to the next: what is appended meanwhile shares a sync and a call of
    /// `on_commit`. On a disk that syncs in microseconds these cost more than the writing. A commit after a longer pause does not wait.
    pub fn start_paced(log: Log, pace: Duration, on_commit: impl Fn() + Send + Sync + 'static) -> io::Result<Journal> {
        let parts = log.into_parts();
        let status = parts.status;
        let shared = Arc::new(Shared::new(parts.tail, Arc::clone(&status)));
        let committer = Committer {
            policy: parts.writer.policy(),
            writer: parts.writer,
            shared: Arc::clone(&shared),
            on_commit,
            told: (status.lsn(|status| &status.committed), status.state()),
            wanted: None,
            pace,
            synced_at: Instant::now(),
        };
        let fetcher = Fetcher::start(parts.reader.clone())?;
        let commit_thread = Builder::new()
            .name("journal-commit".to_owned())
            .spawn(move || committer.run())?;
        Ok(Journal {
            inner: Arc::new(Inner {
                shared,
                reader: parts.reader,
                fetcher,
                commit_thread: Mutex::new(Some(commit_thread)),
            }),
        })
    }

    /// Assigns the position and leaves the batch empty. Never fails and never waits for the disk: whoever appends watches
    /// [`Journal::backlog_bytes`] and [`Journal::state`].
    pub fn append(&self, batch: &mut Batch) -> Appended {
        self.inner.shared.append(batch)
    }

    /// As [`Journal::append`], of what nobody waits for: it is committed with the next batch that somebody waits for, but within some
    /// milliseconds. A sync of its own, and its share of the disk, cost more than all the rest.
    pub fn append_at_leisure(&self, batch: &mut Batch) -> Appended {
        self.inner.shared.append_at_leisure(batch)
    }

    /// Somebody waits now for what has been appended.
    pub fn hurry(&self) {
        self.inner.shared.hurry();
    }

    /// All before it may be acknowledged under the policy.
    pub fn committed(&self) -> Lsn {
        self.inner.shared.status.lsn(|status| &status.committed)
    }

    pub fn state(&self) -> State {
        self.inner.shared.status.state()
    }

    /// [`Journal::state`] without the reason: one atomic load.
    pub fn health(&self) -> Health {
        self.inner.shared.status.health()
    }

    /// Appended and not yet committed.
    pub fn backlog_bytes(&self) -> usize {
        self.inner.shared.status.backlog_bytes() as usize
    }

    /// As [`Log::set_checkpoint`]; `done` is called on the commit thread. It takes several syncs, and commits wait for them.
    pub fn set_checkpoint(&self, replay_from: Lsn, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.inner.shared.ask(Task::SetCheckpoint(replay_from, Box::new(done)));
    }

    /// As [`Log::set_checkpoint_at`]; `done` is called on the commit thread, after a try to commit what was appended before.
    pub fn set_checkpoint_at(&self, batch: Appended, done: impl FnOnce(io::Result<()>) + Send + 'static) {
        self.inner.shared.ask(Task::SetCheckpointAt(batch, Box::new(done)));
    }

    /// As [`Log::truncate_before`]; `done` is called on the commit thread.
    pub fn truncate_before(&self, lsn: Lsn, done: impl FnOnce(io::Result<u32>) + Send + 'static) {
        self.inner.shared.ask(Task::TruncateBefore(lsn, Box::new(done)));
    }

    pub fn stats(&self) -> LogStats {
        self.inner.shared.status.stats()
    }

    /// From when a commit is first waited for to its end, in microseconds.
    pub fn commit_latency_us(&self) -> HistogramCounts {
        self.inner.shared.latency_us.counts()
    }

    /// Bytes of each commit.
    pub fn commit_bytes(&self) -> HistogramCounts {
        self.inner.shared.commit_bytes.counts()
    }

    /// For reading on a thread that may wait for the disk.
    pub fn reader(&self) -> LogReader {
        self.inner.reader.clone()
    }

    /// Reads the records at `positions` on a thread of the journal and calls `done` there, with results in the order of
    /// positions given. Records of more than about a megabyte together are not read at once: [`crate::ReadError::Busy`] stands for the
    /// rest. When too many requests are waiting, `done` is called at once with nothing else.
    pub fn fetch(&self, positions: Vec<Lsn>, done: impl FnOnce(Fetched) + Send + 'static) {
        self.inner.fetcher.fetch(positions, done);
    }

    /// Flushes, syncs whatever the policy, and waits for the threads. What is appended later, through another clone, is
    /// never committed. The error says why not all is on the disk.
    pub fn shut_down(self) -> Result<(), FlushError> {
        self.inner.shared.stop();
        let thread = self
            .inner
            .commit_thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let result = thread.map_or(Ok(()), |thread| {
            let because = "the commit thread panicked".to_owned();
            thread.join().unwrap_or(Err(FlushError::Failed { because }))
        });
        self.inner.fetcher.stop();
        result
    }
}
