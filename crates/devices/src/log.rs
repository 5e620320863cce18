//! The log of what devices said: a journal of its own, read by one thread.
//!
//! A record's position, as the platform knows it, is one behind where it begins ([`position`]): greater than that of all
//! records before it, and no greater than where the next one begins.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use journal::{Batch, Directory, Follower, Health, Journal, LogConfig, Lsn, State};
use timeseries::Position;
use tokio::sync::oneshot;

use crate::devices::OpenError;
use crate::entry::Entry;

/// Within the platform's directory.
pub const DIRECTORY_NAME: &str = "log";

/// Appended and not yet written: beyond it the log counts as full.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// From one commit to the next, at least: what many shards append shares a sync and a wake-up.
const COMMIT_EVERY: Duration = Duration::from_millis(2);

/// Where a record that begins here ends, for the platform.
pub fn position(lsn: Lsn) -> Position {
    Position(lsn.0 + 1)
}

/// Where the record of this position begins.
pub fn begin(at: Position) -> Lsn {
    Lsn(at.0.saturating_sub(1))
}

/// Nothing was taken: the log has no room now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Full {
    pub because: String,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the log of devices takes nothing now: {}; try again later",
            self.because
        )
    }
}

impl std::error::Error for Full {}

/// Done when what was appended is kept. Dropped without waiting it does no harm.
#[derive(Debug)]
pub struct Kept {
    receiver: oneshot::Receiver<Result<(), Full>>,
    end: Lsn,
}

type Waiter = oneshot::Sender<Result<(), Full>>;

fn server_stops() -> Full {
    Full {
        because: "the server stops".to_owned(),
    }
}

impl Future for Kept {
    type Output = Result<(), Full>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let told = Pin::new(&mut self.receiver).poll(context);
        told.map(|told| told.unwrap_or_else(|_| Err(server_stops())))
    }
}

impl Kept {
    /// Where it ends in the log.
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// On a thread that may wait.
    pub fn wait(self) -> Result<(), Full> {
        self.receiver.blocking_recv().unwrap_or_else(|_| Err(server_stops()))
    }
}

pub struct Log {
    journal: Journal,
    shared: Arc<Shared>,
}

/// What the commit thread touches.
#[derive(Default)]
struct Shared {
    waiters: Mutex<VecDeque<(Lsn, Waiter)>>,
    has_news: Mutex<bool>,
    news: Condvar,
    net: OnceLock<net::Handle>,
    committed: OnceLock<Journal>,
}

/// What was found.
pub struct Found {
    pub follower: Follower,
    /// Records before it are of the process before.
    pub next: Lsn,
    pub records: u64,
}

impl Log {
    pub fn open(directory: &Path, config: LogConfig) -> Result<(Log, Found), OpenError> {
        let storage =
            Directory::open(directory, DIRECTORY_NAME).map_err(|error| OpenError::Directory(Box::new(error)))?;
        let opened = journal::Log::open(Arc::new(storage), config, &mut |_, _| Ok(()), &mut |_, _| {});
        let (log, opened) = opened.map_err(|error| OpenError::Log(Box::new(error)))?;
        let shared = Arc::new(Shared::default());
        let of_commits = Arc::clone(&shared);
        let journal =
            Journal::start_paced(log, COMMIT_EVERY, move || of_commits.committed()).map_err(OpenError::Thread)?;
        let _ = shared.committed.set(journal.clone());
        let found = Found {
            follower: Follower::new(journal.reader(), opened.replayed_from),
            next: opened.next,
            records: opened.records,
        };
        Ok((Log { journal, shared }, found))
    }

    /// Workers are woken from now on when something is kept.
    pub fn serve(&self, net: net::Handle) {
        let _ = self.shared.net.set(net);
    }

    /// Never waits. What is kept ends at the position that is returned.
    pub fn append(&self, batch: &mut Batch) -> Lsn {
        self.journal.append(batch).end
    }

    pub fn append_entry(&self, entry: &Entry<'_>) -> Result<Kept, Full> {
        if let Some(full) = self.obstacle() {
            return Err(full);
        }
        let mut batch = Batch::new();
        batch.record(|out| entry.write(out));
        let end = self.append(&mut batch);
        let (sender, receiver) = oneshot::channel();
        self.shared.waiters().push_back((end, sender));
        // The commit thread may have been faster.
        if self.committed() >= end || self.journal.health() == Health::Failed {
            self.shared.tell_all(&self.journal);
        }
        Ok(Kept { receiver, end })
    }

    pub fn committed(&self) -> Lsn {
        self.journal.committed()
    }

    /// Why nothing more is taken.
    pub fn obstacle(&self) -> Option<Full> {
        if self.journal.backlog_bytes() > BACKLOG_BYTES_MAX {
            let because = "the disk is slower than what devices say".to_owned();
            return Some(Full { because });
        }
        if self.journal.health() == Health::Ok {
            return None;
        }
        match self.journal.state() {
            State::Ok => None,
            State::Full { because } | State::Failed { because } => Some(Full { because }),
        }
    }

    /// As `obstacle`, for a look per tick.
    pub fn is_full(&self) -> bool {
        self.journal.health() != Health::Ok || self.journal.backlog_bytes() > BACKLOG_BYTES_MAX
    }

    pub fn stats(&self) -> journal::LogStats {
        self.journal.stats()
    }

    /// Waits for something new to read, or to be woken, until `deadline`.
    pub fn wait_for_news(&self, deadline: Instant) {
        let mut has_news = self.shared.lock(&self.shared.has_news);
        while !*has_news {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            let waited = self.shared.news.wait_timeout(has_news, left);
            has_news = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *has_news = false;
    }

    pub fn wake(&self) {
        self.shared.tell_reader();
    }

    /// Nothing before it is needed any more; a block begins there, or the log ends. Both tasks are asked for at once: the journal
    /// does them in their order, also when it is shut down right afterwards, and cuts nothing that a checkpoint which failed still needs.
    pub fn release(&self, before: Lsn) {
        self.journal.set_checkpoint(before, |result| {
            if let Err(error) = result {
                tracing::warn!(%error, "the log of devices cannot be cut");
            }
        });
        self.journal.truncate_before(before, |result| {
            if let Err(error) = result {
                tracing::warn!(%error, "old files of the log of devices cannot be removed");
            }
        });
    }

    /// All that was appended is on the disk afterwards.
    pub fn shut_down(&self) {
        if let Err(error) = self.journal.clone().shut_down() {
            tracing::error!(%error, "the log of devices could not be closed");
        }
        self.shared.waiters().clear();
    }
}

impl Shared {
    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiters(&self) -> MutexGuard<'_, VecDeque<(Lsn, Waiter)>> {
        self.lock(&self.waiters)
    }

    /// On the commit thread.
    fn committed(&self) {
        if let Some(journal) = self.committed.get() {
            self.tell_all(journal);
        }
        self.tell_reader();
        if let Some(net) = self.net.get() {
            net.wake_waiting();
        }
    }

    fn tell_reader(&self) {
        *self.lock(&self.has_news) = true;
        self.news.notify_one();
    }

    /// Those whose records are kept, and all the others if no more will be.
    fn tell_all(&self, journal: &Journal) {
        let state = journal.state();
        self.tell_waiters(journal.committed());
        let State::Failed { because } = state else { return };
        for (_, sender) in self.waiters().drain(..) {
            let because = because.clone();
            let _ = sender.send(Err(Full { because }));
        }
    }

    fn tell_waiters(&self, committed: Lsn) {
        let mut waiters = self.waiters();
        if waiters.is_empty() {
            return;
        }
        let (due, rest): (VecDeque<_>, VecDeque<_>) = waiters.drain(..).partition(|(end, _)| *end <= committed);
        *waiters = rest;
        for (_, sender) in due {
            // Whoever asked may have gone.
            let _ = sender.send(Ok(()));
        }
    }
}
