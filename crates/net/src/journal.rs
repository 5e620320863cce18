//! The worker's side of the journal: a batch per tick goes there before mail and output leave, and what is kept comes back.
//!
//! The commit thread wakes a worker only if that waits for something, and what nobody waits for has no commit of its own. A worker reads no socket while the journal is too far behind:
//! the clients are slowed, nothing is lost and nothing grows.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use ::journal::{Batch, Health, Journal, Log, LogStats, Lsn, ReadError};
use broker::durable::moves::MovePart;
use broker::durable::record::Position;
use broker::durable::recovery::Recovered;
use broker::durable::restore::{Restored, restore};
use broker::durable::{GIVER, MOVER};
use broker::{Checkpointed, Shard};

use crate::compaction::{Compaction, Part, Room, is_long};
use crate::letter::Letter;
use crate::mailbox::Address;
use crate::server::{Common, Observer};
use crate::worker::{Clock, Worker};

/// Appended by all workers and not yet kept: more is not read from sockets meanwhile.
const BACKLOG_BYTES_MAX: usize = 32 * 1024 * 1024;

/// What a server begins with that goes on where a process before it ended.
pub struct Restart {
    pub log: Log,
    /// What the log's records came to.
    pub recovered: Recovered,
    /// `LogConfig::max_bytes`.
    pub quota_bytes: u64,
    /// `LogConfig::segment_bytes`.
    pub segment_bytes: u64,
}

impl Restart {
    /// Fills the shards. What they record thereby is in the log when this returns, and kept with the first commit. An error: a disk that
    /// cannot be read now may be the next time, and nothing is given up for it.
    pub(crate) fn restore(self, common: &Common, shards: &mut [Shard]) -> Result<(Log, Restored), ReadError> {
        let Restart { mut log, recovered, .. } = self;
        let now = Clock { origin: common.origin }.now();
        for shard in &mut *shards {
            shard.keep_journal(recovered.last_key);
        }
        let reader = log.reader();
        let mut failed = None;
        let mut read = |positions: &[Position], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
            let positions: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
            reader.read_many(&positions, |index, record| match record {
                Ok(record) => each(index, Some(record)),
                Err(error) => {
                    match error {
                        ReadError::Io { .. } => _ = failed.get_or_insert(error),
                        error => common.observer.journal_error(UNREADABLE, &error),
                    }
                    each(index, None);
                }
            });
        };
        let mut append = |batch: &mut Batch| {
            let at = log.append(batch);
            (at.base.0, at.end.0)
        };
        let restored = restore(now, shards, recovered, &mut read, &mut append);
        match failed {
            // Nothing of what restoring has recorded reaches the disk.
            Some(error) => Err(error),
            None => Ok((log, restored)),
        }
    }
}

/// What the operator is told with the file and the place.
const UNREADABLE: &str = "a message cannot be read back from the journal";
const UNREADABLE_NOW: &str =
    "the disk does not give back messages of the journal: their clients wait, and it is asked again";

/// A checkpoint is made when so much has been appended since the last one …
const CHECKPOINT_BYTES: u64 = 256 * 1024 * 1024;

/// … or this part of the quota, but so many times what the last one took; and while the journal is full, as often as this.
const CHECKPOINT_PART: u64 = 64;
const CHECKPOINT_TIMES: u64 = 4;
const CHECKPOINT_WHEN_FULL_MS: u64 = 1000;

/// So many of a full journal have to find room: the less there is, the longer each waits, so that they never take it all.
const CHECKPOINTS_WITHIN_ROOM: u64 = 256;

/// How often of a long one that is written to, however little: what has been delivered since gives its space back.
const CHECKPOINT_WHEN_LONG_MS: u64 = 60_000;

/// How many are made of a full or long journal while nothing else is written: removing what was needed takes two of them, begun after that.
const CHECKPOINTS_WHEN_IDLE: u64 = 3;

/// When a disk that could not be read is asked again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// How soon a worker looks again whether a full journal has space.
const LOOK_MS: u64 = 100;

/// The journal and the workers that wait for it.
pub(crate) struct Keeper {
    journal: OnceLock<Journal>,
    waits: Vec<AtomicBool>,
    /// Where the next checkpoint is due; none while one is being made.
    checkpoint_at: AtomicU64,
    /// What is appended between two of them, at least.
    checkpoint_bytes: AtomicU64,
    /// What the last one took.
    snapshot_bytes: AtomicU64,
    /// The last one has left it much longer than that.
    is_long: AtomicBool,
    /// When the last one ended, or the first tick was, in monotonic milliseconds.
    checkpointed_ms: AtomicU64,
    /// How many have been begun.
    checkpoints: AtomicU64,
    /// How many of them when something else was last appended.
    checkpoints_when_used: AtomicU64,
    checkpoint: Mutex<Checkpoint>,
    /// `LogConfig::max_bytes`.
    quota_bytes: AtomicU64,
    /// `LogConfig::segment_bytes`.
    segment_bytes: AtomicU64,
}

/// What a log was opened with.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub quota_bytes: u64,
    pub segment_bytes: u64,
}

/// The checkpoint that is being made, or the last one.
#[derive(Default)]
struct Checkpoint {
    replay_from: Lsn,
    /// What is written once more, by all workers.
    part: Part,
    compaction: Compaction,
    /// Workers that have not finished.
    left: usize,
    /// What the others have written.
    bytes: u64,
    /// The oldest message that anything refers to, as far as they have.
    oldest: Option<u64>,
    /// The same of the checkpoint before: what is on its way between shards may have been seen then and not now.
    oldest_before: Option<u64>,
}

impl Keeper {
    pub(crate) fn new(shards: u16) -> Keeper {
        Keeper {
            journal: OnceLock::new(),
            waits: (0..shards).map(|_| AtomicBool::new(false)).collect(),
            checkpoint_at: AtomicU64::new(u64::MAX),
            checkpoint_bytes: AtomicU64::new(CHECKPOINT_BYTES),
            snapshot_bytes: AtomicU64::new(0),
            is_long: AtomicBool::new(false),
            checkpointed_ms: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            checkpoints_when_used: AtomicU64::new(0),
            checkpoint: Mutex::default(),
            quota_bytes: AtomicU64::new(u64::MAX),
            segment_bytes: AtomicU64::new(0),
        }
    }

    /// Starts the journal's threads. Only once.
    pub(crate) fn start(
        self: &Arc<Self>,
        log: Log,
        limits: Limits,
        workers: Vec<Address<Letter>>,
        observer: Arc<dyn Observer>,
    ) -> io::Result<()> {
        let keeper = Arc::downgrade(self);
        let told = AtomicU8::new(Health::Ok as u8);
        let on_commit = move || {
            let Some(keeper) = keeper.upgrade() else { return };
            if let Some(journal) = keeper.journal.get()
                && let health = journal.health() as u8
                && told.swap(health, Ordering::Relaxed) != health
            {
                observer.journal_state(&journal.state());
                keeper.waits.iter().for_each(|wait| wait.store(true, Ordering::Release));
            }
            keeper.wake(&workers);
        };
        let Limits {
            quota_bytes,
            segment_bytes,
        } = limits;
        let checkpoint_bytes = CHECKPOINT_BYTES.min(quota_bytes / CHECKPOINT_PART);
        self.segment_bytes.store(segment_bytes, Ordering::Relaxed);
        self.checkpoint_bytes.store(checkpoint_bytes, Ordering::Relaxed);
        self.quota_bytes.store(quota_bytes, Ordering::Relaxed);
        // From the last one on, or a node that is started anew before it is due would never make one.
        self.checkpoint_at
            .store(log.stats().replay_from.0 + checkpoint_bytes, Ordering::Relaxed);
        self.note_length(&log.stats());
        let journal = Journal::start(log, on_commit)?;
        self.journal
            .set(journal)
            .map_err(|_| io::Error::other("the journal runs already"))
    }

    /// Wakes the workers that wait for something to be kept.
    pub(crate) fn wake(&self, workers: &[Address<Letter>]) {
        for (wait, worker) in self.waits.iter().zip(workers) {
            // A worker whose mailbox is full is not asleep.
            if wait.swap(false, Ordering::AcqRel) && worker.offer(Letter::Committed).is_ok() {
                worker.ring();
            }
        }
    }

    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.get()
    }

    /// What has been appended is on the disk when this returns.
    pub(crate) fn stop(&self) {
        if let Some(journal) = self.journal.get() {
            // Why not all is there has been reported where it happened.
            let _ = journal.clone().shut_down();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Checkpoint> {
        self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time for a checkpoint; true for one of the workers that ask.
    fn is_checkpoint_due(&self, end: Lsn, now_ms: u64) -> bool {
        if self
            .journal
            .get()
            .is_some_and(|journal| journal.health() == Health::Failed)
        {
            // Nothing of it would be kept.
            return false;
        }
        let at = self.checkpoint_at.load(Ordering::Relaxed);
        let is_late = || self.early_ms(now_ms).is_some_and(|early_ms| now_ms > early_ms);
        // While it is full, the time says how many of them there is room for.
        let is_far = end.0 > at && !self.is_full();
        at != u64::MAX
            && (is_far || is_late())
            && self
                .checkpoint_at
                .compare_exchange(at, u64::MAX, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// From when on one is made though little has been appended, because space is wanted back.
    fn early_ms(&self, now_ms: u64) -> Option<u64> {
        let wait_ms = match self.is_full() {
            true => wait_when_full_ms(self.room_bytes(), self.snapshot_bytes.load(Ordering::Relaxed))?,
            false if self.is_long.load(Ordering::Relaxed) => CHECKPOINT_WHEN_LONG_MS,
            false => return None,
        };
        let last = self
            .checkpointed_ms
            .compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        Some(last.map_or_else(|last_ms| last_ms, |_| now_ms) + wait_ms)
    }

    /// The same while nothing is appended: what the journal still holds may be needed no more.
    fn early_when_idle_ms(&self, now_ms: u64) -> Option<u64> {
        let begun = self.checkpoints.load(Ordering::Acquire);
        let used = self.checkpoints_when_used.load(Ordering::Relaxed);
        self.early_ms(now_ms).filter(|_| begun < used + CHECKPOINTS_WHEN_IDLE)
    }

    fn note_length(&self, stats: &LogStats) {
        let is_long = is_long(stats.next.0 - stats.first.0, self.interval_bytes());
        self.is_long.store(is_long, Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        self.journal.get().is_some_and(|journal| journal.health() != Health::Ok)
    }

    /// What can be written behind all that has been appended.
    fn room_bytes(&self) -> u64 {
        let stats = self.journal.get().map(Journal::stats).unwrap_or_default();
        stats.room_bytes.saturating_sub(stats.next.0 - stats.committed.0)
    }

    /// From one checkpoint to the next.
    fn interval_bytes(&self) -> u64 {
        let snapshot_bytes = self.snapshot_bytes.load(Ordering::Relaxed);
        self.checkpoint_bytes
            .load(Ordering::Relaxed)
            .max(CHECKPOINT_TIMES * snapshot_bytes)
    }

    fn note_use(&self) {
        let begun = self.checkpoints.load(Ordering::Acquire);
        self.checkpoints_when_used.store(begun, Ordering::Relaxed);
    }

    /// Where replay will begin: what is appended from now on, and what of it the shards write once more, is behind that.
    fn begin_checkpoint(&self, workers: usize) {
        let Some(journal) = self.journal.get() else { return };
        let mut checkpoint = self.lock();
        checkpoint.replay_from = journal.committed();
        let stats = journal.stats();
        let (first, next, interval_bytes) = (stats.first, stats.next, self.interval_bytes());
        let room = Room {
            bytes: self.room_bytes(),
            segment_bytes: self.segment_bytes.load(Ordering::Relaxed),
            snapshot_bytes: self.snapshot_bytes.load(Ordering::Relaxed),
        };
        checkpoint.part = match journal.health() == Health::Ok {
            true => {
                let quota_bytes = self.quota_bytes.load(Ordering::Relaxed);
                checkpoint
                    .compaction
                    .move_before(first, next, interval_bytes, quota_bytes, room)
            }
            false => {
                let checkpoint_bytes = self.checkpoint_bytes.load(Ordering::Relaxed);
                checkpoint
                    .compaction
                    .move_before_when_full(first, next, checkpoint_bytes, room)
            }
        };
        // Each worker its share.
        checkpoint.part.bytes /= workers as u64;
        checkpoint.left = workers;
        checkpoint.bytes = 0;
        checkpoint.oldest_before = checkpoint.oldest.take();
        self.checkpoints.fetch_add(1, Ordering::Release);
    }

    /// One worker's part is kept. The last one has the log begin there.
    fn finish_checkpoint(self: &Arc<Self>, part: Checkpointed, observer: Arc<dyn Observer>) {
        let Some(journal) = self.journal.get() else { return };
        let mut checkpoint = self.lock();
        let oldest = part.oldest.map(|position| position.0);
        checkpoint.oldest = min_of(checkpoint.oldest, oldest);
        checkpoint.bytes += part.bytes;
        checkpoint.compaction.moved(part.moved_bytes);
        checkpoint.left -= 1;
        if checkpoint.left > 0 {
            return;
        }
        self.snapshot_bytes.store(checkpoint.bytes, Ordering::Relaxed);
        let replay_from = checkpoint.replay_from;
        // If what this checkpoint has written is damaged one day, there is still all that the last one had.
        let replayable = match journal.health() == Health::Ok {
            true => journal.stats().replay_from,
            false => replay_from,
        };
        let needed =
            min_of(checkpoint.oldest, checkpoint.oldest_before).map_or(replayable, |at| replayable.min(Lsn(at)));
        drop(checkpoint);
        let keeper = Arc::downgrade(self);
        journal.set_checkpoint(replay_from, move |result| {
            let Some(keeper) = keeper.upgrade() else { return };
            let Some(journal) = keeper.journal.get() else { return };
            match result {
                // What cannot be removed now can be the next time.
                Ok(()) => {
                    let after = Arc::downgrade(&keeper);
                    journal.truncate_before(needed, move |removed| {
                        if let Err(error) = removed {
                            observer.journal_error("old segments of the journal cannot be removed", &error);
                        }
                        if let Some(keeper) = after.upgrade()
                            && let Some(journal) = keeper.journal.get()
                        {
                            keeper.note_length(&journal.stats());
                        }
                    });
                }
                Err(error) => observer.journal_error("a checkpoint of the journal cannot be written", &error),
            }
            let next = journal.stats().next.0 + keeper.interval_bytes();
            keeper.checkpoint_at.store(next, Ordering::Release);
        });
    }
}

/// How long a full journal waits for its next checkpoint; none is begun that would find no room.
fn wait_when_full_ms(room_bytes: u64, snapshot_bytes: u64) -> Option<u64> {
    let of_room = snapshot_bytes.saturating_mul(CHECKPOINTS_WITHIN_ROOM * CHECKPOINT_WHEN_FULL_MS) / room_bytes.max(1);
    (snapshot_bytes == 0 || snapshot_bytes < room_bytes).then_some(of_room.max(CHECKPOINT_WHEN_FULL_MS))
}

fn min_of(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

impl Worker {
    /// The beginning of a tick: what the journal has kept meanwhile.
    pub(crate) fn hear_of_journal(&mut self) {
        if self.shard.is_waiting_for_tap() {
            self.wait_for_journal();
            self.shard.look_at_tap();
        }
        let Some(journal) = self.common.keeper.journal() else {
            return;
        };
        let health = journal.health();
        if health != self.journal_health {
            self.journal_health = health;
            self.shard.journal_health(health);
        }
        let (keeper, now_ms) = (&self.common.keeper, self.now.monotonic_ms);
        let is_early = keeper
            .early_when_idle_ms(now_ms)
            .is_some_and(|early_ms| now_ms > early_ms);
        if is_early && keeper.is_checkpoint_due(Lsn(0), now_ms) {
            self.begin_checkpoint();
        }
        let is_waiting = self.is_waiting_for_journal();
        if is_waiting {
            self.wait_for_journal();
        }
        if is_waiting || self.appended > self.committed {
            self.committed = self.common.keeper.journal().map_or(Lsn(0), Journal::committed);
            self.shard.committed(self.now, self.committed.0);
            self.hand_in_checkpoint();
        }
        if health == Health::Failed {
            self.shard.give_up_waiting(self.now);
        }
    }

    /// Tells when the journal has this worker's part of a checkpoint.
    fn hand_in_checkpoint(&mut self) {
        if let Some((part, _)) = self.checkpointed.take_if(|(_, end)| *end <= self.committed) {
            let now_ms = self.now.monotonic_ms;
            self.common.keeper.checkpointed_ms.store(now_ms, Ordering::Relaxed);
            self.common.keeper.finish_checkpoint(part, self.common.observer.clone());
        }
    }

    /// Whether anything waits for what has been appended. A part of a checkpoint is handed in when it is kept.
    fn is_waiting_for_journal(&self) -> bool {
        self.shard.waits_for_journal().is_some() || self.checkpointed.is_some() || self.shard.is_walking()
    }

    /// The journal may have had what something waits for before it knew that anything does.
    pub(crate) fn is_journal_news(&self) -> bool {
        let is_kept = |end| {
            self.common
                .keeper
                .journal()
                .is_some_and(|journal| journal.committed().0 >= end)
        };
        self.shard.waits_for_journal().is_some_and(is_kept)
    }

    /// When to look at the journal though nobody says anything: publishers may be held until it has space, or it may be long for nothing.
    pub(crate) fn look_at_journal_ms(&self) -> Option<u64> {
        let (now_ms, soon_ms) = (self.now.monotonic_ms, self.now.monotonic_ms + LOOK_MS);
        if self.journal_health != Health::Ok || self.shard.is_tap_full() {
            return Some(soon_ms);
        }
        let early_ms = self.common.keeper.early_when_idle_ms(now_ms)?;
        Some(soon_ms.max(early_ms + 1))
    }

    /// Has the commit thread wake this worker. Before the worker looks how far it is, so that one of the two sees the other.
    fn wait_for_journal(&self) {
        self.common.keeper.waits[usize::from(self.id.0)].swap(true, Ordering::AcqRel);
    }

    /// The end of a tick: before mail leaves, which refers to what is appended here, and before anything is written.
    pub(crate) fn append_to_journal(&mut self) {
        if self.shard.is_tap_used() {
            self.wait_for_journal();
            self.shard.end_tap_tick(self.now);
        }
        let Some(journal) = self.common.keeper.journal() else {
            return;
        };
        let is_waiting = self.is_waiting_for_journal();
        if is_waiting {
            self.wait_for_journal();
        }
        let Some(batch) = self.shard.journal_batch() else {
            if is_waiting && self.at_leisure > self.committed {
                self.at_leisure = Lsn(0);
                journal.hurry();
            }
            return;
        };
        let at = match is_waiting {
            true => journal.append(batch),
            false => journal.append_at_leisure(batch),
        };
        self.at_leisure = if is_waiting { Lsn(0) } else { at.end };
        self.appended = at.end;
        if !self.shard.is_walking() {
            self.common.keeper.note_use();
        }
        self.shard.appended(at.base.0, at.end.0);
        if let Some((_, end)) = self.checkpointed.as_mut().filter(|(_, end)| *end == Lsn(u64::MAX)) {
            *end = at.end;
        }
        if self.common.keeper.is_checkpoint_due(at.end, self.now.monotonic_ms) {
            self.begin_checkpoint();
        }
    }

    /// Has all shards write what they keep.
    fn begin_checkpoint(&mut self) {
        self.common.keeper.begin_checkpoint(self.addresses.len());
        for address in &self.addresses {
            // A worker whose mailbox is full is not asleep.
            if address.offer(Letter::Committed).is_ok() {
                address.ring();
            }
        }
    }

    /// Goes on with a checkpoint.
    pub(crate) fn walk_on(&mut self) {
        let begun = self.common.keeper.checkpoints.load(Ordering::Acquire);
        if std::mem::replace(&mut self.checkpoints, begun) != begun {
            let part = self.common.keeper.lock().part;
            let part = MovePart {
                before: Position(part.before.0),
                bytes: part.bytes,
            };
            self.shard.begin_checkpoint(self.now, part);
        }
        if let Some(part) = self.shard.walk_on(self.now) {
            self.checkpointed = Some((part, Lsn(u64::MAX)));
        }
    }

    /// Whether clients have to wait until the journal has caught up.
    pub(crate) fn is_journal_behind(&self) -> bool {
        let Some(journal) = self.common.keeper.journal() else {
            return false;
        };
        // One that has failed keeps nothing more, and catches up with nothing: what needs no journal goes on.
        if journal.health() == Health::Failed || journal.backlog_bytes() <= BACKLOG_BYTES_MAX {
            return false;
        }
        self.wait_for_journal();
        journal.backlog_bytes() > BACKLOG_BYTES_MAX
    }

    /// Reads messages back, on the journal's own thread: the first of those asked for that are kept. What has been appended and
    /// not yet written cannot be read.
    pub(crate) fn fetch(&mut self, session: u32, connects: u32, positions: Vec<Position>) {
        let Some(journal) = self.common.keeper.journal() else {
            return;
        };
        let address = self.addresses[usize::from(self.id.0)].clone();
        let observer = self.common.observer.clone();
        let wanted = positions.iter().map(|position| Lsn(position.0)).collect();
        journal.fetch(wanted, move |fetched| {
            let (mut is_broken, mut is_early) = (false, false);
            let has_come = |record: &Result<Vec<u8>, ReadError>| match record {
                Err(ReadError::Busy | ReadError::NotWritten { .. }) => {
                    is_early = true;
                    false
                }
                // Nobody gives a message up for that, as for one that is damaged. What is only to be moved stays where it is.
                Err(error @ ReadError::Io { .. }) => {
                    observer.journal_error(UNREADABLE_NOW, error);
                    is_broken = session != MOVER;
                    false
                }
                _ => true,
            };
            let read: Vec<_> = fetched.into_iter().take_while(has_come).collect();
            let told = |error: ReadError| observer.journal_error(UNREADABLE, &error);
            let records: Vec<_> = read.into_iter().map(|record| record.map_err(told).ok()).collect();
            let must_ask_again = matches!(session, MOVER | GIVER) && is_early && records.is_empty();
            let letter = Letter::Call(Box::new(move |shard, now| match must_ask_again {
                true => shard.fetch_again(session, connects, positions),
                false => shard.fetched(now, session, connects, &positions, records),
            }));
            // A worker that is gone needs nothing any more.
            let send = move || _ = address.send(letter);
            match is_broken || must_ask_again {
                true => later(send),
                false => send(),
            }
        });
    }
}

/// Some sessions at most wait for a broken disk at the same time.
fn later(work: impl FnOnce() + Send + 'static) {
    let wait = || {
        thread::sleep(READ_AGAIN);
        work();
    };
    // Without a thread the client has to connect again.
    let _ = thread::Builder::new().name("read-again".into()).spawn(wait);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a checkpoint ended at one second, and the next one due far from here.
    fn keeper(is_long: bool) -> Keeper {
        let keeper = Keeper::new(1);
        keeper.checkpoint_at.store(1000, Ordering::Relaxed);
        keeper.checkpointed_ms.store(1_000, Ordering::Relaxed);
        keeper.is_long.store(is_long, Ordering::Relaxed);
        keeper
    }

    const LATE_MS: u64 = 1_000 + CHECKPOINT_WHEN_LONG_MS;

    #[test]
    fn a_long_journal_gets_a_checkpoint_once_a_minute() {
        let long = keeper(true);
        assert!(!long.is_checkpoint_due(Lsn(1), LATE_MS));
        assert!(long.is_checkpoint_due(Lsn(1), LATE_MS + 1));
        assert!(!long.is_checkpoint_due(Lsn(1), LATE_MS + 1), "one worker makes it");
        let short = keeper(false);
        assert!(!short.is_checkpoint_due(Lsn(1), u64::MAX));
        assert!(short.is_checkpoint_due(Lsn(1001), 0));
    }

    #[test]
    fn a_long_journal_that_is_not_used_gets_a_few_checkpoints_and_no_more() {
        let keeper = keeper(true);
        for _ in 0..CHECKPOINTS_WHEN_IDLE {
            assert_eq!(keeper.early_when_idle_ms(LATE_MS), Some(LATE_MS));
            keeper.checkpoints.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(keeper.early_when_idle_ms(LATE_MS), None);
        keeper.note_use();
        assert_eq!(keeper.early_when_idle_ms(LATE_MS), Some(LATE_MS));
    }

    #[test]
    fn the_checkpoints_of_a_full_journal_do_not_take_the_disk() {
        assert_eq!(
            wait_when_full_ms(0, 0),
            Some(CHECKPOINT_WHEN_FULL_MS),
            "nothing is known yet"
        );
        assert_eq!(wait_when_full_ms(1_000_000, 1), Some(CHECKPOINT_WHEN_FULL_MS));
        assert_eq!(wait_when_full_ms(1_000, 1_000), None, "it would find no room");
        let (mut room, mut waited_ms) = (1_000_000, 0);
        while waited_ms < 3_600_000 {
            let Some(wait_ms) = wait_when_full_ms(room, 10_000) else {
                break;
            };
            waited_ms += wait_ms;
            room -= 10_000;
        }
        assert!(waited_ms > 600_000, "room for ten minutes, not {waited_ms} ms");
        assert!(room >= 10_000 / 2, "{room}");
    }

    #[test]
    fn the_first_minute_begins_with_the_first_look() {
        let keeper = keeper(true);
        keeper.checkpointed_ms.store(0, Ordering::Relaxed);
        assert_eq!(keeper.early_ms(5), Some(5 + CHECKPOINT_WHEN_LONG_MS));
        assert_eq!(keeper.early_ms(9), Some(5 + CHECKPOINT_WHEN_LONG_MS));
    }
}
