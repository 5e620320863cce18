//! The commit thread. It is the only part of the crate that reads a clock, and the only one that waits for the disk
//! while other threads append.
//!
//! Each round takes all batches appended since the previous one, writes and syncs them, and notifies the owner. The
//! mutex is free while the thread waits for the disk; batches that shards append during that time form the next round.
//! A round starts when a client waits for a commit. Deferred batches join the next round, or get their own after
//! [`DEFER_MAX`]. Tasks run between rounds, and every task is answered.
//!
//! After a round that has synced, the thread pauses until the commit interval has passed. A stop and
//! [`PAUSED_BYTES_MAX`] end the pause, so that neither the end of the journal nor its memory depends on the interval.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::batch::LogBatch;
use crate::config::FlushPolicy;
use crate::histogram::{AtomicHistogram, COMMIT_BYTES_BOUNDS, COMMIT_LATENCY_BOUNDS_US};
use crate::lsn::Lsn;
use crate::status::{LogState, LogStatus};
use crate::tail::{Appended, LogTail, TailChunk};
use crate::writer::{FlushError, LogWriter};

/// How often a full log checks for free space.
const FULL_RETRY: Duration = Duration::from_millis(250);
/// How long a deferred batch waits for a round that a client needs.
const DEFER_MAX: Duration = Duration::from_millis(5);
/// Minimum time between the starts of two commits of a busy journal. Each commit costs a sync and wakes the threads
/// that wait for it, so on a fast disk many small commits cost more than the messages.
pub(crate) const BUSY_PACE: Duration = Duration::from_micros(250);
/// Maximum age of written data that is not synced, under [`FlushPolicy::Os`] with a shorter commit interval.
const BACKGROUND_SYNC: Duration = Duration::from_secs(1);
/// Size of appended batches that ends a pause. One sync for that much costs flash memory nothing extra, and it is far
/// below the backlog at which owners stop appending.
const PAUSED_BYTES_MAX: u64 = 1 << 20;

pub(crate) type CommitCallback<T> = Box<dyn FnOnce(io::Result<T>) + Send>;

pub(crate) enum CommitTask {
    SetCheckpoint(Lsn, CommitCallback<()>),
    /// Sets the checkpoint to the start of this batch, which is synced first.
    SetCheckpointAt(Appended, CommitCallback<()>),
    TruncateBefore(Lsn, CommitCallback<u32>),
}

/// State shared by the commit thread and its clients.
pub(crate) struct CommitShared {
    inbox: Mutex<CommitInbox>,
    wake: Condvar,
    pub status: Arc<LogStatus>,
    pub latency_us: AtomicHistogram,
    pub commit_bytes: AtomicHistogram,
}

struct CommitInbox {
    tail: LogTail,
    tasks: Vec<CommitTask>,
    /// When a client first requested a commit of the batches in the tail.
    requested_at: Option<Instant>,
    sleep: CommitThreadSleep,
    is_stopping: bool,
}

/// Sleep state of the commit thread. A client wakes it only if needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitThreadSleep {
    Awake,
    /// Waits for at most [`DEFER_MAX`], then checks the tail itself.
    Short,
    /// Waits until a client wakes it.
    Long,
    /// Waits for the end of the commit interval.
    Paused,
}

impl CommitInbox {
    fn is_round_due(&self) -> bool {
        self.requested_at.is_some() || !self.tasks.is_empty() || self.is_stopping
    }

    fn ends_pause(&self) -> bool {
        self.is_stopping || self.tail.pending_bytes() >= PAUSED_BYTES_MAX
    }
}

/// The work of one round.
struct CommitRound {
    chunks: Vec<TailChunk>,
    tasks: Vec<CommitTask>,
    requested_at: Option<Instant>,
    is_last: bool,
}

impl CommitShared {
    pub fn new(tail: LogTail, status: Arc<LogStatus>) -> CommitShared {
        CommitShared {
            inbox: Mutex::new(CommitInbox {
                tail,
                tasks: Vec::new(),
                requested_at: None,
                sleep: CommitThreadSleep::Awake,
                is_stopping: false,
            }),
            wake: Condvar::new(),
            status,
            latency_us: AtomicHistogram::new(&COMMIT_LATENCY_BOUNDS_US),
            commit_bytes: AtomicHistogram::new(&COMMIT_BYTES_BOUNDS),
        }
    }

    pub fn append(&self, batch: &mut LogBatch) -> Appended {
        let mut inbox = self.inbox();
        let appended = inbox.tail.append(batch);
        self.request(inbox);
        appended
    }

    pub fn append_deferred(&self, batch: &mut LogBatch) -> Appended {
        let mut inbox = self.inbox();
        let appended = inbox.tail.append(batch);
        if matches!(inbox.sleep, CommitThreadSleep::Long | CommitThreadSleep::Paused) && !inbox.tail.is_empty() {
            self.wake(inbox);
        }
        appended
    }

    pub fn request_commit(&self) {
        self.request(self.inbox());
    }

    fn request(&self, mut inbox: MutexGuard<'_, CommitInbox>) {
        if !inbox.tail.is_empty() {
            inbox.requested_at.get_or_insert_with(Instant::now);
            self.wake(inbox);
        }
    }

    /// Queues a task. After the last round no thread would run it, so the task fails immediately.
    pub fn submit(&self, task: CommitTask) {
        let mut inbox = self.inbox();
        if inbox.is_stopping {
            drop(inbox);
            reject(task);
            return;
        }
        inbox.tasks.push(task);
        self.wake(inbox);
    }

    pub fn stop(&self) {
        let mut inbox = self.inbox();
        inbox.is_stopping = true;
        self.wake(inbox);
    }

    fn wake(&self, mut inbox: MutexGuard<'_, CommitInbox>) {
        let is_needed = match inbox.sleep {
            CommitThreadSleep::Awake => false,
            CommitThreadSleep::Short | CommitThreadSleep::Long => true,
            CommitThreadSleep::Paused => inbox.ends_pause(),
        };
        if is_needed {
            inbox.sleep = CommitThreadSleep::Awake;
            drop(inbox);
            self.wake.notify_one();
        }
    }

    fn inbox(&self) -> MutexGuard<'_, CommitInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a round is due or the timeout passes.
    fn next_round(&self, timeout: Option<Duration>, spent: &mut Vec<Vec<u8>>) -> CommitRound {
        let mut inbox = self.inbox();
        inbox.tail.recycle(spent);
        if !inbox.is_round_due() {
            inbox = self.sleep(inbox, timeout);
        }
        CommitRound {
            chunks: inbox.tail.take(),
            tasks: std::mem::take(&mut inbox.tasks),
            requested_at: inbox.requested_at.take(),
            is_last: inbox.is_stopping,
        }
    }

    /// Waits for work. The first wait after a round is short, so that deferred appends need not wake the thread.
    fn sleep<'a>(
        &self,
        mut inbox: MutexGuard<'a, CommitInbox>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, CommitInbox> {
        let mut now = Instant::now();
        let deadline = timeout.map(|timeout| now + timeout);
        let mut short_until = Some(now + DEFER_MAX);
        while !inbox.is_round_due() && deadline.is_none_or(|deadline| now < deadline) {
            inbox.sleep = short_until.map_or(CommitThreadSleep::Long, |_| CommitThreadSleep::Short);
            inbox = match short_until.into_iter().chain(deadline).min() {
                None => self.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let waited = self.wake.wait_timeout(inbox, until - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            inbox.sleep = CommitThreadSleep::Awake;
            now = Instant::now();
            short_until = match short_until {
                Some(end) if now < end => Some(end),
                Some(_) if inbox.tail.is_empty() => None,
                Some(_) => break,
                None if inbox.tail.is_empty() => None,
                None => Some(now + DEFER_MAX),
            };
        }
        inbox
    }

    /// Waits until this time, or until the pause must end.
    fn pause(&self, until: Instant) {
        let mut inbox = self.inbox();
        while !inbox.ends_pause() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            inbox.sleep = CommitThreadSleep::Paused;
            let waited = self.wake.wait_timeout(inbox, left);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        inbox.sleep = CommitThreadSleep::Awake;
    }

    /// Closes the tail and returns its last chunks. Batches appended later are dropped, because no thread would write
    /// them.
    fn close(&self, with_seal: bool) -> Vec<TailChunk> {
        let mut inbox = self.inbox();
        if with_seal {
            inbox.tail.append_seal();
        }
        inbox.tail.close();
        inbox.tail.take()
    }
}

/// Minimum time between the starts of two commits.
#[derive(Clone, Copy)]
pub(crate) enum CommitPace {
    Always(Duration),
    /// Only if a client requested the next commit during the previous one. A single client that waits for each
    /// acknowledgement is not slowed down.
    WhileOthersWait(Duration),
}

pub(crate) struct Committer<F> {
    pub writer: LogWriter,
    pub policy: FlushPolicy,
    pub commit_interval: Duration,
    pub shared: Arc<CommitShared>,
    pub on_commit: F,
    /// Position and state of the last `on_commit` call.
    pub reported: (Lsn, LogState),
    /// When a client first requested a commit of the batches that were taken and are not committed.
    pub requested_at: Option<Instant>,
    pub pace: CommitPace,
    pub synced_at: Instant,
}

impl<F: Fn()> Committer<F> {
    /// Runs until it is asked to stop. The error says why appended records are not on disk.
    pub fn run(mut self) -> Result<(), FlushError> {
        loop {
            let mut round = self.shared.next_round(self.timeout(), self.writer.free_buffers());
            let (began, syncs) = (Instant::now(), self.syncs());
            let result = self.commit(&mut round);
            for task in round.tasks {
                self.perform(task);
            }
            self.report();
            if round.is_last {
                return self.finish(result);
            }
            let pace = match self.pace {
                CommitPace::Always(pace) => pace,
                CommitPace::WhileOthersWait(pace) if self.shared.inbox().is_round_due() => pace,
                CommitPace::WhileOthersWait(_) => Duration::ZERO,
            };
            if let Some(left) = pace.checked_sub(began.elapsed()) {
                std::thread::sleep(left);
            }
            if !self.commit_interval.is_zero() && self.policy == FlushPolicy::Fsync && self.syncs() != syncs {
                self.shared.pause(began + self.commit_interval);
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        match self.shared.status.state() {
            LogState::Full { .. } => Some(FULL_RETRY),
            LogState::Ok if self.has_unsynced() => {
                Some(self.background_sync().saturating_sub(self.synced_at.elapsed()))
            }
            _ => None,
        }
    }

    fn background_sync(&self) -> Duration {
        BACKGROUND_SYNC.max(self.commit_interval)
    }

    fn syncs(&self) -> u64 {
        self.shared.status.syncs.load(Relaxed)
    }

    fn has_unsynced(&self) -> bool {
        let status = &self.shared.status;
        status.lsn(|status| &status.synced) < status.lsn(|status| &status.written)
    }

    fn commit(&mut self, round: &mut CommitRound) -> Result<(), FlushError> {
        if !self.has_unsynced() {
            self.synced_at = Instant::now();
        }
        self.requested_at = self.requested_at.or(round.requested_at);
        self.writer.enqueue(std::mem::take(&mut round.chunks));
        let before = self.committed();
        let mut result = self.writer.flush();
        if result.is_ok() {
            self.measure(before);
        }
        self.report();
        if self.policy == FlushPolicy::Os && self.has_unsynced() && self.synced_at.elapsed() >= self.background_sync() {
            result = result.and(self.writer.sync());
            self.synced_at = Instant::now();
        }
        result
    }

    /// Records latency and size after everything that was taken has been committed.
    fn measure(&mut self, before: Lsn) {
        if let Some(requested_at) = self.requested_at.take() {
            self.shared.latency_us.add(requested_at.elapsed().as_micros() as u64);
        }
        let bytes = self.committed().0 - before.0;
        if bytes > 0 {
            self.shared.commit_bytes.add(bytes);
        }
    }

    fn committed(&self) -> Lsn {
        self.shared.status.lsn(|status| &status.committed)
    }

    fn perform(&mut self, task: CommitTask) {
        match task {
            CommitTask::SetCheckpoint(replay_from, done) => done(self.writer.set_checkpoint(replay_from)),
            CommitTask::SetCheckpointAt(batch, done) => done(self.writer.set_checkpoint_at(batch)),
            CommitTask::TruncateBefore(lsn, done) => done(self.writer.truncate_before(lsn)),
        }
    }

    /// Calls `on_commit` if the committed position or the state has changed.
    fn report(&mut self) {
        let status = &self.shared.status;
        let now = (self.committed(), status.state());
        if now != self.reported {
            self.reported = now;
            (self.on_commit)();
        }
    }

    /// Syncs all written batches, also under [`FlushPolicy::Os`], and appends the seal of a clean shutdown.
    fn finish(&mut self, flushed: Result<(), FlushError>) -> Result<(), FlushError> {
        let synced = self.writer.sync();
        let result = flushed.and(synced);
        let seal = self.shared.close(result.is_ok());
        if result.is_ok() {
            self.writer.enqueue(seal);
            // All appended records are safe already. Without the seal the next start only detects less damage.
            let _ = self.writer.flush();
            let _ = self.writer.sync();
            let _ = self.writer.record_end();
        }
        self.report();
        result
    }
}

fn reject(task: CommitTask) {
    let stopped = || io::Error::other("the journal has been shut down");
    match task {
        CommitTask::SetCheckpoint(_, done) | CommitTask::SetCheckpointAt(_, done) => done(Err(stopped())),
        CommitTask::TruncateBefore(_, done) => done(Err(stopped())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn shared() -> CommitShared {
        let status = Arc::new(LogStatus::default());
        CommitShared::new(LogTail::new(Lsn(0), 1, 1, Arc::clone(&status)), status)
    }

    fn batch() -> LogBatch {
        let mut batch = LogBatch::new();
        batch.record(|bytes| bytes.extend_from_slice(b"record"));
        batch
    }

    #[test]
    fn round_is_due_when_a_commit_is_requested() {
        let shared = shared();
        shared.request_commit();
        assert!(!shared.inbox().is_round_due(), "the tail is empty");
        shared.append_deferred(&mut batch());
        assert!(
            !shared.inbox().is_round_due(),
            "deferred batches do not request a commit"
        );
        shared.request_commit();
        assert!(shared.inbox().is_round_due());
        shared.append_deferred(&mut batch());
        let round = shared.next_round(None, &mut Vec::new());
        assert!(round.requested_at.is_some());
        assert!(shared.inbox().tail.is_empty(), "the round includes deferred batches");
        shared.append(&mut batch());
        assert!(shared.inbox().is_round_due());
    }

    #[test]
    fn deferred_batch_gets_a_round_after_the_delay() {
        let shared = shared();
        shared.append_deferred(&mut batch());
        let round = shared.next_round(None, &mut Vec::new());
        assert_eq!((round.chunks.len(), round.requested_at), (1, None));
    }

    /// A deferred batch that wakes the thread from a long wait is held for other batches to join, and then committed.
    #[test]
    fn deferred_batch_wakes_an_idle_thread() {
        let shared = shared();
        std::thread::scope(|scope| {
            let round = scope.spawn(|| shared.next_round(None, &mut Vec::new()));
            while shared.inbox().sleep != CommitThreadSleep::Long {
                std::thread::yield_now();
            }
            shared.append_deferred(&mut batch());
            assert_eq!(round.join().unwrap().chunks.len(), 1);
        });
    }

    #[test]
    fn timeout_returns_an_empty_round() {
        let round = shared().next_round(Some(Duration::from_millis(20)), &mut Vec::new());
        assert!(round.chunks.is_empty() && !round.is_last);
    }
}
