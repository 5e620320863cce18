//! The commit thread: the only place of the crate that waits for the disk while others append, and that reads a clock.
//!
//! Each round takes what was appended since the last, writes and syncs it, and tells the owner. While it waits for the disk
//! the mutex is free, so what all shards append meanwhile is the next round. A round is worth its sync if somebody waits for it: what
//! nobody waits for goes with the next, or has one to itself soon. What it is asked to do besides is done between rounds, and every
//! request is answered.

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
/// How long what nobody waits for is left to go with something that is waited for.
const LEISURE: Duration = Duration::from_millis(5);
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
    /// Since when somebody waits for what is in the tail.
    wanted: Option<Instant>,
    sleep: Sleep,
    is_stopping: bool,
}

/// What the thread does, as far as those know that might wake it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// It looks by itself within [`LEISURE`].
    Nap,
    Deep,
}

impl Inbox {
    fn is_round_due(&self) -> bool {
        self.wanted.is_some() || !self.tasks.is_empty() || self.is_stopping
    }
}

/// What one round has to do.
struct Round {
    chunks: Vec<Chunk>,
    tasks: Vec<Task>,
    wanted: Option<Instant>,
    is_last: bool,
}

impl Shared {
    pub fn new(tail: Tail, status: Arc<Status>) -> Shared {
        Shared {
            inbox: Mutex::new(Inbox {
                tail,
                tasks: Vec::new(),
                wanted: None,
                sleep: Sleep::Awake,
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
        self.want(inbox);
        appended
    }

    pub fn append_at_leisure(&self, batch: &mut Batch) -> Appended {
        let mut inbox = self.inbox();
        let appended = inbox.tail.append(batch);
        if inbox.sleep == Sleep::Deep && !inbox.tail.is_empty() {
            self.wake(inbox);
        }
        appended
    }

    pub fn hurry(&self) {
        self.want(self.inbox());
    }

    fn want(&self, mut inbox: MutexGuard<'_, Inbox>) {
        if !inbox.tail.is_empty() {
            inbox.wanted.get_or_insert_with(Instant::now);
            self.wake(inbox);
        }
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
        if inbox.sleep != Sleep::Awake {
            inbox.sleep = Sleep::Awake;
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
        if !inbox.is_round_due() {
            inbox = self.sleep(inbox, timeout);
        }
        Round {
            chunks: inbox.tail.take(),
            tasks: std::mem::take(&mut inbox.tasks),
            wanted: inbox.wanted.take(),
            is_last: inbox.is_stopping,
        }
    }

    /// After a round it naps: then those that append need not wake it for what nobody waits for.
    fn sleep<'a>(&self, mut inbox: MutexGuard<'a, Inbox>, timeout: Option<Duration>) -> MutexGuard<'a, Inbox> {
        let mut now = Instant::now();
        let deadline = timeout.map(|timeout| now + timeout);
        let mut nap_ends = Some(now + LEISURE);
        while !inbox.is_round_due() && deadline.is_none_or(|deadline| now < deadline) {
            inbox.sleep = nap_ends.map_or(Sleep::Deep, |_| Sleep::Nap);
            inbox = match nap_ends.into_iter().chain(deadline).min() {
                None => self.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let waited = self.wake.wait_timeout(inbox, until - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            inbox.sleep = Sleep::Awake;
            now = Instant::now();
            nap_ends = match nap_ends {
                Some(end) if now < end => Some(end),
                Some(_) if inbox.tail.is_empty() => None,
                Some(_) => break,
                None if inbox.tail.is_empty() => None,
                None => Some(now + LEISURE),
            };
        }
        inbox
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
    /// Since when somebody waits for what was taken and is not committed.
    pub wanted: Option<Instant>,
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
        self.wanted = self.wanted.or(round.wanted);
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
        if let Some(wanted) = self.wanted.take() {
            self.shared.latency_us.add(wanted.elapsed().as_micros() as u64);
        }
        let bytes = self.committed().0 - before.0;
        if bytes > 0 {
            self.shared.commit_bytes.add(bytes);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn shared() -> Shared {
        let status = Arc::new(Status::default());
        Shared::new(Tail::new(Lsn(0), 1, Arc::clone(&status)), status)
    }

    fn batch() -> Batch {
        let mut batch = Batch::new();
        batch.record(|bytes| bytes.extend_from_slice(b"record"));
        batch
    }

    #[test]
    fn a_round_is_due_when_somebody_waits_for_it() {
        let shared = shared();
        shared.hurry();
        assert!(!shared.inbox().is_round_due(), "there is nothing");
        shared.append_at_leisure(&mut batch());
        assert!(!shared.inbox().is_round_due(), "nobody waits");
        shared.hurry();
        assert!(shared.inbox().is_round_due());
        shared.append_at_leisure(&mut batch());
        let round = shared.next_round(None, &mut Vec::new());
        assert!(round.wanted.is_some());
        assert!(
            shared.inbox().tail.is_empty(),
            "what was appended at leisure goes with it"
        );
        shared.append(&mut batch());
        assert!(shared.inbox().is_round_due());
    }

    #[test]
    fn what_nobody_waits_for_has_a_round_soon() {
        let shared = shared();
        shared.append_at_leisure(&mut batch());
        let round = shared.next_round(None, &mut Vec::new());
        assert_eq!((round.chunks.len(), round.wanted), (1, None));
    }

    /// What wakes the thread from a deep sleep is left for others to join, and is not forgotten.
    #[test]
    fn what_nobody_waits_for_has_a_round_soon_also_after_a_pause() {
        let shared = shared();
        std::thread::scope(|scope| {
            let round = scope.spawn(|| shared.next_round(None, &mut Vec::new()));
            while shared.inbox().sleep != Sleep::Deep {
                std::thread::yield_now();
            }
            shared.append_at_leisure(&mut batch());
            assert_eq!(round.join().unwrap().chunks.len(), 1);
        });
    }

    #[test]
    fn an_end_of_the_time_is_an_empty_round() {
        let round = shared().next_round(Some(Duration::from_millis(20)), &mut Vec::new());
        assert!(round.chunks.is_empty() && !round.is_last);
    }
}
