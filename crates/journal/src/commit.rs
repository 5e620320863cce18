//! The commit thread: the only place of the crate that waits for the disk while others append, and that reads a clock.
//!
//! Each round takes what was appended since the last, writes and syncs it, and tells the owner. While it waits for the disk
//! the mutex is free, so what all shards append meanwhile is the next round. What it is asked to do besides is done
//! between rounds, and every request is answered.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::config::Policy;
use crate::histogram::{COMMIT_BYTES_BOUNDS, COMMIT_LATENCY_BOUNDS_US, Histogram};
use crate::lsn::Lsn;
use crate::status::{State, Status};
use crate::tail::{Appended, Chunk, Tail};
use crate::writer::{FlushError, Writer};

/// How often a full log looks for space.
const FULL_RETRY: Duration = Duration::from_millis(250);
/// How old what was written may be before it is synced, under [`Policy::Os`].
const BACKGROUND_SYNC: Duration = Duration::from_secs(1);

pub(crate) type Done<T> = Box<dyn FnOnce(io::Result<T>) + Send>;

pub(crate) enum Task {
    SetCheckpoint(Lsn, Done<()>),
    /// At the beginning of this batch, which is durable then.
    SetCheckpointAt(Appended, Done<()>),
    TruncateBefore(Lsn, Done<u32>),
}

/// What the commit thread and its clients share.
pub(crate) struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    pub status: Arc<Status>,
    pub latency_us: Histogram,
    pub commit_bytes: Histogram,
}

struct Inbox {
    tail: Tail,
    tasks: Vec<Task>,
    /// When the oldest of what is in the tail was appended.
    oldest: Option<Instant>,
    /// The thread waits, and nobody has woken it yet.
    is_asleep: bool,
    is_stopping: bool,
}

/// What one round has to do.
struct Round {
    chunks: Vec<Chunk>,
    tasks: Vec<Task>,
    oldest: Option<Instant>,
    is_last: bool,
}

impl Shared {
    pub fn new(tail: Tail, status: Arc<Status>) -> Shared {
        Shared {
            inbox: Mutex::new(Inbox {
                tail,
                tasks: Vec::new(),
                oldest: None,
                is_asleep: false,
                is_stopping: false,
            }),
            wake: Condvar::new(),
            status,
            latency_us: Histogram::new(&COMMIT_LATENCY_BOUNDS_US),
            commit_bytes: Histogram::new(&COMMIT_BYTES_BOUNDS),
        }
    }

    pub fn append(&self, batch: &mut Batch) -> Appended {
        let mut inbox = self.inbox();
        let appended = inbox.tail.append(batch);
        if !inbox.tail.is_empty() {
            inbox.oldest.get_or_insert_with(Instant::now);
            self.wake(inbox);
        }
        appended
    }

    /// After the last round nobody would do it: then the task is answered here.
    pub fn ask(&self, task: Task) {
        let mut inbox = self.inbox();
        if inbox.is_stopping {
            drop(inbox);
            refuse(task);
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

    fn wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        if inbox.is_asleep {
            inbox.is_asleep = false;
            drop(inbox);
            self.wake.notify_one();
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to do or the time is up.
    fn next_round(&self, timeout: Option<Duration>, spent: &mut Vec<Vec<u8>>) -> Round {
        let mut inbox = self.inbox();
        inbox.tail.recycle(spent);
        if inbox.tail.is_empty() && inbox.tasks.is_empty() && !inbox.is_stopping {
            inbox.is_asleep = true;
            inbox = match timeout {
                None => self.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let (inbox, _) = self
                        .wake
                        .wait_timeout(inbox, timeout)
                        .unwrap_or_else(PoisonError::into_inner);
                    inbox
                }
            };
            inbox.is_asleep = false;
        }
        Round {
            chunks: inbox.tail.take(),
            tasks: std::mem::take(&mut inbox.tasks),
            oldest: inbox.oldest.take(),
            is_last: inbox.is_stopping,
        }
    }

    /// What is appended from now on is dropped: nobody would take it.
    fn close(&self, with_seal: bool) -> Vec<Chunk> {
        let mut inbox = self.inbox();
        if with_seal {
            inbox.tail.append_seal();
        }
        inbox.tail.close();
        inbox.tail.take()
    }
}

pub(crate) struct Committer<F> {
    pub writer: Writer,
    pub policy: Policy,
    pub shared: Arc<Shared>,
    pub on_commit: F,
    /// What the owner was last told.
    pub told: (Lsn, State),
    /// When the oldest was appended of what was taken and is not committed.
    pub oldest: Option<Instant>,
    /// From the beginning of one commit to that of the next, at least.
    pub pace: Duration,
    pub synced_at: Instant,
}

impl<F: Fn()> Committer<F> {
    /// Until it is asked to stop. The error says why not all that was appended is on the disk.
    pub fn run(mut self) -> Result<(), FlushError> {
        loop {
            let mut round = self.shared.next_round(self.timeout(), self.writer.spent());
            let began = (!self.pace.is_zero()).then(Instant::now);
            let result = self.commit(&mut round);
            for task in round.tasks {
                self.perform(task);
            }
            self.tell();
            if round.is_last {
                return self.finish(result);
            }
            if let Some(left) = began.and_then(|began| self.pace.checked_sub(began.elapsed())) {
                std::thread::sleep(left);
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        match self.shared.status.state() {
            State::Full { .. } => Some(FULL_RETRY),
            State::Ok if self.has_unsynced() => Some(BACKGROUND_SYNC.saturating_sub(self.synced_at.elapsed())),
            _ => None,
        }
    }

    fn has_unsynced(&self) -> bool {
        let status = &self.shared.status;
        status.lsn(|status| &status.synced) < status.lsn(|status| &status.written)
    }

    fn commit(&mut self, round: &mut Round) -> Result<(), FlushError> {
        if !self.has_unsynced() {
            self.synced_at = Instant::now();
        }
        self.oldest = self.oldest.or(round.oldest);
        self.writer.enqueue(std::mem::take(&mut round.chunks));
        let before = self.committed();
        let mut result = self.writer.flush();
        if result.is_ok() {
            self.measure(before);
        }
        self.tell();
        if self.policy == Policy::Os && self.has_unsynced() && self.synced_at.elapsed() >= BACKGROUND_SYNC {
            result = result.and(self.writer.sync());
            self.synced_at = Instant::now();
        }
        result
    }

    /// All that was taken has been committed.
    fn measure(&mut self, before: Lsn) {
        if let Some(oldest) = self.oldest.take() {
            self.shared.latency_us.add(oldest.elapsed().as_micros() as u64);
            self.shared.commit_bytes.add(self.committed().0 - before.0);
        }
    }

    fn committed(&self) -> Lsn {
        self.shared.status.lsn(|status| &status.committed)
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::SetCheckpoint(replay_from, done) => done(self.writer.set_checkpoint(replay_from)),
            Task::SetCheckpointAt(batch, done) => done(self.writer.set_checkpoint_at(batch)),
            Task::TruncateBefore(lsn, done) => done(self.writer.truncate_before(lsn)),
        }
    }

    /// Calls the owner if there is something new.
    fn tell(&mut self) {
        let status = &self.shared.status;
        let now = (self.committed(), status.state());
        if now != self.told {
            self.told = now;
            (self.on_commit)();
        }
    }

    /// Makes durable what was written, also under [`Policy::Os`], and leaves the mark of an orderly end.
    fn finish(&mut self, flushed: Result<(), FlushError>) -> Result<(), FlushError> {
        let synced = self.writer.sync();
        let result = flushed.and(synced);
        let seal = self.shared.close(result.is_ok());
        if result.is_ok() {
            self.writer.enqueue(seal);
            // All that somebody appended is safe: without the mark the next start only proves less.
            let _ = self.writer.flush();
            let _ = self.writer.sync();
        }
        self.tell();
        result
    }
}

fn refuse(task: Task) {
    let stopped = || io::Error::other("the journal has been shut down");
    match task {
        Task::SetCheckpoint(_, done) | Task::SetCheckpointAt(_, done) => done(Err(stopped())),
        Task::TruncateBefore(_, done) => done(Err(stopped())),
    }
}
