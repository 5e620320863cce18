//! The device log: a separate journal for messages of devices, read by one thread.
//!
//! The platform's position of a record is its start plus one ([`position`]). It is greater than the positions of all
//! earlier records, and at most the start of the next record.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use journal::{
    Appended, BlockFollower, Journal, LogBatch, LogConfig, LogHealth, LogState, Lsn, ReplayError, StorageDirectory,
    StoreKind,
};
use timeseries::LogPosition;
use tokio::sync::oneshot;

use crate::entry::{IngestEntry, RECORD_VERSION};
use crate::mutex::lock;
use crate::open_error::DevicesOpenError;
use crate::stats::DeviceCounters;

/// Name of the directory within the platform's directory.
pub const DIRECTORY_NAME: &str = "log";

/// Largest amount of appended and unwritten data. Beyond it the log counts as full.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// Shortest time between commits. Appends of several shards share one sync and one wake-up.
const COMMIT_EVERY: Duration = Duration::from_millis(2);

/// The platform's position of the record that begins here.
pub fn position(lsn: Lsn) -> LogPosition {
    LogPosition(lsn.0 + 1)
}

/// The start of the record with this position.
pub fn begin(at: LogPosition) -> Lsn {
    Lsn(at.0.saturating_sub(1))
}

/// The log is full or failed, and did not accept the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFull {
    pub reason: String,
}

impl fmt::Display for LogFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the device log does not accept records: {}; try again later",
            self.reason
        )
    }
}

impl std::error::Error for LogFull {}

/// Completes when the appended record is durable. Dropping it has no effect on the record.
#[derive(Debug)]
pub struct PendingAppend {
    receiver: oneshot::Receiver<Result<(), LogFull>>,
    range: Range<Lsn>,
}

type CommitWaiter = oneshot::Sender<Result<(), LogFull>>;

fn server_stops() -> LogFull {
    LogFull {
        reason: "the server is stopping".to_owned(),
    }
}

impl Future for PendingAppend {
    type Output = Result<(), LogFull>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.receiver).poll(context);
        result.map(|result| result.unwrap_or_else(|_| Err(server_stops())))
    }
}

impl PendingAppend {
    /// The part of the log with the record, and no other.
    pub fn range(&self) -> Range<Lsn> {
        self.range.clone()
    }

    /// Blocks until the record is durable.
    pub fn wait(self) -> Result<(), LogFull> {
        self.receiver.blocking_recv().unwrap_or_else(|_| Err(server_stops()))
    }
}

/// Rejects a record that the reader of the log would skip.
fn check_record(_: Lsn, payload: &[u8]) -> Result<(), ReplayError> {
    match IngestEntry::read(payload) {
        Some(_) => Ok(()),
        None => Err(ReplayError {
            reason: "expected a known record kind".to_owned(),
        }),
    }
}

pub struct IngestLog {
    counters: Arc<DeviceCounters>,
    journal: Journal,
    shared: Arc<LogShared>,
}

/// State used by the commit thread.
#[derive(Default)]
struct LogShared {
    waiters: Mutex<VecDeque<(Lsn, CommitWaiter)>>,
    has_changed: Mutex<bool>,
    changed: Condvar,
    net: OnceLock<net::ServerHandle>,
    committed: OnceLock<Journal>,
    has_failed: OnceLock<()>,
}

/// Contents of the log at the start.
pub struct LogContents {
    pub follower: BlockFollower,
    /// Records before it were written by the previous process.
    pub next: Lsn,
}

impl IngestLog {
    pub fn open(
        directory: &Path,
        config: LogConfig,
        counters: Arc<DeviceCounters>,
    ) -> Result<(IngestLog, LogContents), DevicesOpenError> {
        let storage = StorageDirectory::open(directory, DIRECTORY_NAME)
            .map_err(|error| DevicesOpenError::Directory(Box::new(error)))?;
        let config = LogConfig {
            record_version: RECORD_VERSION,
            ..config
        };
        let storage = Arc::new(storage.counted_as(StoreKind::IngestLog));
        let opened = journal::RecordLog::open(storage, config, &mut check_record, &mut |_, _| {});
        let (log, opened) = opened.map_err(|error| DevicesOpenError::Log(Box::new(error)))?;
        let shared = Arc::new(LogShared::default());
        let of_commits = Arc::clone(&shared);
        let journal = Journal::start_paced(log, COMMIT_EVERY, move || of_commits.committed())
            .map_err(DevicesOpenError::Thread)?;
        let _ = shared.committed.set(journal.clone());
        let found = LogContents {
            follower: BlockFollower::new(journal.reader(), opened.replayed_from),
            next: opened.next,
        };
        DeviceCounters::add(&counters.appended, opened.records);
        let log = IngestLog {
            counters,
            journal,
            shared,
        };
        Ok((log, found))
    }

    /// Sets the network handle. Workers are woken from now on when records become durable.
    pub fn serve(&self, net: net::ServerHandle) {
        let _ = self.shared.net.set(net);
    }

    /// Appends a batch without waiting. Returns the end of the batch.
    pub fn append(&self, batch: &mut LogBatch) -> Lsn {
        self.append_batch(batch).end
    }

    fn append_batch(&self, batch: &mut LogBatch) -> Appended {
        DeviceCounters::add(&self.counters.appended, u64::from(batch.records()));
        self.journal.append(batch)
    }

    pub fn append_entry(&self, entry: &IngestEntry<'_>) -> Result<PendingAppend, LogFull> {
        if let Some(full) = self.rejection() {
            return Err(full);
        }
        let mut batch = LogBatch::new();
        batch.record(|out| entry.write(out));
        let Appended { base, end } = self.append_batch(&mut batch);
        let (sender, receiver) = oneshot::channel();
        self.shared.waiters().push_back((end, sender));
        // The commit thread may have committed it already.
        if self.committed() >= end || self.journal.health() == LogHealth::Failed {
            self.shared.complete_all(&self.journal);
        }
        Ok(PendingAppend {
            receiver,
            range: base..end,
        })
    }

    pub fn committed(&self) -> Lsn {
        self.journal.committed()
    }

    /// Returns why the log accepts no more records, if so.
    pub fn rejection(&self) -> Option<LogFull> {
        if self.journal.backlog_bytes() > BACKLOG_BYTES_MAX {
            let reason = "the disk is slower than the incoming messages".to_owned();
            return Some(LogFull { reason });
        }
        if self.journal.health() == LogHealth::Ok {
            return None;
        }
        match self.journal.state() {
            LogState::Ok => None,
            LogState::Full { reason } | LogState::Failed { reason } => Some(LogFull { reason }),
        }
    }

    /// A cheaper form of `rejection`, for each tick.
    pub fn is_full(&self) -> bool {
        self.journal.health() != LogHealth::Ok || self.journal.backlog_bytes() > BACKLOG_BYTES_MAX
    }

    pub fn state(&self) -> LogState {
        self.journal.state()
    }

    pub fn health(&self) -> LogHealth {
        self.journal.health()
    }

    pub fn stats(&self) -> journal::LogStats {
        self.journal.stats()
    }

    /// Waits for new records or a wake-up, until `deadline`.
    pub fn wait_for_records(&self, deadline: Instant) {
        let mut has_news = lock(&self.shared.has_changed);
        while !*has_news {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            let waited = self.shared.changed.wait_timeout(has_news, left);
            has_news = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *has_news = false;
    }

    pub fn wake(&self) {
        self.shared.wake_reader();
    }

    /// Releases the log before this position, which must be the start of a block or the end. Both tasks are queued at
    /// once. The journal runs them in order, also during shutdown, and keeps the files if the checkpoint fails.
    pub fn release(&self, before: Lsn) {
        self.journal.set_checkpoint(before, |result| {
            if let Err(error) = result {
                tracing::warn!(%error, "checkpoint of the device log failed");
            }
        });
        self.journal.truncate_before(before, |result| {
            if let Err(error) = result {
                tracing::warn!(%error, "removing old files of the device log failed");
            }
        });
    }

    /// Writes all appended records to disk and closes the log.
    pub fn shut_down(&self) {
        if let Err(error) = self.journal.clone().shut_down() {
            tracing::error!(%error, "closing the device log failed");
        }
        self.shared.waiters().clear();
    }
}

impl LogShared {
    fn waiters(&self) -> MutexGuard<'_, VecDeque<(Lsn, CommitWaiter)>> {
        lock(&self.waiters)
    }

    /// Runs on the commit thread.
    fn committed(&self) {
        if let Some(journal) = self.committed.get() {
            self.complete_all(journal);
        }
        self.wake_reader();
        if let Some(net) = self.net.get() {
            net.wake_tap_waiters();
        }
    }

    fn wake_reader(&self) {
        *lock(&self.has_changed) = true;
        self.changed.notify_one();
    }

    /// Wakes waiters whose records are durable. If the journal failed, fails all others.
    fn complete_all(&self, journal: &Journal) {
        let state = journal.state();
        self.complete_waiters(journal.committed());
        let LogState::Failed { reason } = state else {
            return;
        };
        if self.has_failed.set(()).is_ok() {
            tracing::error!(
                reason,
                "the ingest log of the device platform has failed: messages of devices are not acknowledged; repair the \
                 disk and restart"
            );
        }
        for (_, sender) in self.waiters().drain(..) {
            let reason = reason.clone();
            let _ = sender.send(Err(LogFull { reason }));
        }
    }

    fn complete_waiters(&self, committed: Lsn) {
        let mut waiters = self.waiters();
        if waiters.is_empty() {
            return;
        }
        let (due, rest): (VecDeque<_>, VecDeque<_>) = waiters.drain(..).partition(|(end, _)| *end <= committed);
        *waiters = rest;
        for (_, sender) in due {
            // The waiter may be gone.
            let _ = sender.send(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use platform::ids::Uuid;

    use super::*;
    use crate::entry::EntryKind;

    #[test]
    fn commits_within_the_interval_share_a_sync() {
        const INTERVAL: Duration = Duration::from_millis(300);
        let directory = std::env::temp_dir().join(format!("tidewire-ingest-log-{}", std::process::id()));
        let config = LogConfig {
            segment_bytes: 64 << 10,
            max_bytes: 1 << 20,
            reserve_bytes: 0,
            commit_interval: INTERVAL,
            ..LogConfig::default()
        };
        let begun = Instant::now();
        let (log, _) = IngestLog::open(&directory, config, Arc::default()).expect("a new log");
        let entry = IngestEntry::new(EntryKind::Mark, Uuid::NULL, 0, &[]);
        let append = || log.append_entry(&entry).expect("the log has space");
        append().wait().expect("a commit");
        let appends: Vec<PendingAppend> = (0..50).map(|_| append()).collect();
        for pending in appends {
            pending.wait().expect("a commit");
        }
        let (elapsed, syncs) = (begun.elapsed(), log.stats().syncs);
        log.shut_down();
        assert!(elapsed >= INTERVAL, "the second sync came after {elapsed:?}");
        let syncs_max = 1 + elapsed.as_millis() / INTERVAL.as_millis();
        assert!(u128::from(syncs) <= syncs_max, "{syncs} syncs in {elapsed:?}");
        // The directory is temporary: a failure to remove it does not matter.
        let _ = std::fs::remove_dir_all(directory);
    }
}
