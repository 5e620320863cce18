//! The journal of a node: its checkpoints, and the workers that wait for a commit.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ::journal::{Journal, LogHealth, LogStats, Lsn, RecordLog};
use broker::FinishedCheckpoint;

use crate::compaction::{Compaction, FreeSpace, RewritePart, is_long};
use crate::observer::ConnectionObserver;

/// A checkpoint is made when this many bytes have been appended since the last one …
const CHECKPOINT_BYTES: u64 = 256 * 1024 * 1024;

/// … or this part of the quota, but at least this multiple of the last snapshot. While the journal is full, checkpoints
/// have at least this interval.
const CHECKPOINT_QUOTA_DIVISOR: u64 = 64;
const CHECKPOINT_SNAPSHOT_FACTOR: u64 = 4;
const CHECKPOINT_WHEN_FULL_MS: u64 = 1000;

/// The free space of a full journal must suffice for this many checkpoints. The less space there is, the longer the
/// interval, so that checkpoints never use all of it.
const CHECKPOINTS_IN_FREE_SPACE: u64 = 256;

/// Interval of checkpoints of a long journal, regardless of the appended bytes: delivered messages free space only at a
/// checkpoint.
const CHECKPOINT_WHEN_LONG_MS: u64 = 60_000;

/// Number of checkpoints of a full or long journal while nothing else is appended. Removing unneeded segments takes two
/// checkpoints that start after the segments are no longer needed.
const CHECKPOINTS_WHEN_IDLE: u64 = 3;

/// The journal of this node, its checkpoints, and the workers that wait for it.
pub(crate) struct NodeJournal {
    journal: OnceLock<Journal>,
    waits: Vec<AtomicBool>,
    /// Position at which the next checkpoint is due; `u64::MAX` while one is being made.
    checkpoint_at: AtomicU64,
    /// Minimum number of bytes appended between two checkpoints.
    checkpoint_bytes: AtomicU64,
    /// Size of the last snapshot, in bytes.
    snapshot_bytes: AtomicU64,
    /// The last checkpoint left the journal much longer than the checkpoint interval.
    is_long: AtomicBool,
    /// End of the last checkpoint, or the first tick, in monotonic milliseconds.
    checkpointed_ms: AtomicU64,
    /// Number of checkpoints that were started.
    checkpoints: AtomicU64,
    /// Value of `checkpoints` when something other than a checkpoint was last appended.
    checkpoints_when_used: AtomicU64,
    checkpoint: Mutex<CheckpointProgress>,
    /// `LogConfig::max_bytes`.
    quota_bytes: AtomicU64,
    /// `LogConfig::segment_bytes`.
    segment_bytes: AtomicU64,
}

/// Limits with which the log was opened.
#[derive(Clone, Copy)]
pub(crate) struct JournalLimits {
    pub quota_bytes: u64,
    pub segment_bytes: u64,
}

/// The checkpoint that is being made, or the last one.
#[derive(Default)]
struct CheckpointProgress {
    replay_from: Lsn,
    /// Messages that the workers together rewrite.
    part: RewritePart,
    compaction: Compaction,
    /// Number of workers that have not finished.
    left: usize,
    /// Bytes written by the workers that have finished.
    bytes: u64,
    /// Oldest message that the finished workers still refer to.
    oldest: Option<u64>,
    /// `oldest` of the previous checkpoint. A message that moves between shards may be included only in that one.
    oldest_before: Option<u64>,
}

impl NodeJournal {
    pub(crate) fn new(shards: u16) -> NodeJournal {
        NodeJournal {
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

    /// Starts the journal's threads. Must be called only once.
    pub(crate) fn start(
        self: &Arc<Self>,
        log: RecordLog,
        limits: JournalLimits,
        wake_worker: impl Fn(usize) + Send + Sync + 'static,
        observer: Arc<dyn ConnectionObserver>,
    ) -> io::Result<()> {
        let node_journal = Arc::downgrade(self);
        let reported = AtomicU8::new(LogHealth::Ok as u8);
        let on_commit = move || {
            let Some(node_journal) = node_journal.upgrade() else {
                return;
            };
            if let Some(journal) = node_journal.journal.get()
                && let health = journal.health() as u8
                && reported.swap(health, Ordering::Relaxed) != health
            {
                observer.journal_state(&journal.state());
                node_journal
                    .waits
                    .iter()
                    .for_each(|wait| wait.store(true, Ordering::Release));
            }
            node_journal.wake(&wake_worker);
        };
        let JournalLimits {
            quota_bytes,
            segment_bytes,
        } = limits;
        let checkpoint_bytes = CHECKPOINT_BYTES.min(quota_bytes / CHECKPOINT_QUOTA_DIVISOR);
        self.segment_bytes.store(segment_bytes, Ordering::Relaxed);
        self.checkpoint_bytes.store(checkpoint_bytes, Ordering::Relaxed);
        self.quota_bytes.store(quota_bytes, Ordering::Relaxed);
        // Count from the last checkpoint: otherwise a node that restarts often would never make one.
        self.checkpoint_at
            .store(log.stats().replay_from.0 + checkpoint_bytes, Ordering::Relaxed);
        self.update_is_long(&log.stats());
        let journal = Journal::start(log, on_commit)?;
        self.journal
            .set(journal)
            .map_err(|_| io::Error::other("the journal runs already"))
    }

    /// Calls `wake_worker` with each worker that waits for a commit.
    pub(crate) fn wake(&self, wake_worker: impl Fn(usize)) {
        for (worker, wait) in self.waits.iter().enumerate() {
            if wait.swap(false, Ordering::AcqRel) {
                wake_worker(worker);
            }
        }
    }

    /// Makes the next commit wake the worker.
    pub(crate) fn wait(&self, worker: usize) {
        self.waits[worker].swap(true, Ordering::AcqRel);
    }

    /// Returns the number of checkpoints that were started.
    pub(crate) fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::Acquire)
    }

    /// Returns the messages that each worker rewrites for the current checkpoint.
    pub(crate) fn part(&self) -> RewritePart {
        self.lock().part
    }

    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.get()
    }

    /// Shuts down the journal. Everything appended is on disk when this returns.
    pub(crate) fn stop(&self) {
        if let Some(journal) = self.journal.get() {
            // An error has been reported when it occurred.
            let _ = journal.clone().shut_down();
        }
    }

    fn lock(&self) -> MutexGuard<'_, CheckpointProgress> {
        self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a checkpoint is due. `true` for exactly one of the workers that call it.
    pub(crate) fn is_checkpoint_due(&self, end: Lsn, now_ms: u64) -> bool {
        if self
            .journal
            .get()
            .is_some_and(|journal| journal.health() == LogHealth::Failed)
        {
            // A failed journal cannot commit a checkpoint.
            return false;
        }
        let at = self.checkpoint_at.load(Ordering::Relaxed);
        let is_late = || {
            self.early_checkpoint_ms(now_ms)
                .is_some_and(|early_ms| now_ms > early_ms)
        };
        // While the journal is full, only the time decides, so that checkpoints do not use up the space.
        let is_far = end.0 > at && !self.is_full();
        at != u64::MAX
            && (is_far || is_late())
            && self
                .checkpoint_at
                .compare_exchange(at, u64::MAX, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Returns when a checkpoint is due although little has been appended, in order to free space.
    fn early_checkpoint_ms(&self, now_ms: u64) -> Option<u64> {
        let wait_ms = match self.is_full() {
            true => full_checkpoint_interval_ms(self.free_bytes(), self.snapshot_bytes.load(Ordering::Relaxed))?,
            false if self.is_long.load(Ordering::Relaxed) => CHECKPOINT_WHEN_LONG_MS,
            false => return None,
        };
        let last = self
            .checkpointed_ms
            .compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        Some(last.map_or_else(|last_ms| last_ms, |_| now_ms) + wait_ms)
    }

    /// As `early_checkpoint_ms`, while nothing is appended: messages in the journal may no longer be needed.
    pub(crate) fn idle_checkpoint_ms(&self, now_ms: u64) -> Option<u64> {
        let begun = self.checkpoints.load(Ordering::Acquire);
        let used = self.checkpoints_when_used.load(Ordering::Relaxed);
        self.early_checkpoint_ms(now_ms)
            .filter(|_| begun < used + CHECKPOINTS_WHEN_IDLE)
    }

    fn update_is_long(&self, stats: &LogStats) {
        let is_long = is_long(stats.next.0 - stats.first.0, self.interval_bytes());
        self.is_long.store(is_long, Ordering::Relaxed);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.journal
            .get()
            .is_some_and(|journal| journal.health() != LogHealth::Ok)
    }

    /// Returns the number of bytes that can be written behind the appended records.
    fn free_bytes(&self) -> u64 {
        let stats = self.journal.get().map(Journal::stats).unwrap_or_default();
        stats.available_bytes.saturating_sub(stats.next.0 - stats.committed.0)
    }

    /// Returns the number of bytes from one checkpoint to the next.
    fn interval_bytes(&self) -> u64 {
        let snapshot_bytes = self.snapshot_bytes.load(Ordering::Relaxed);
        self.checkpoint_bytes
            .load(Ordering::Relaxed)
            .max(CHECKPOINT_SNAPSHOT_FACTOR * snapshot_bytes)
    }

    pub(crate) fn mark_used(&self) {
        let begun = self.checkpoints.load(Ordering::Acquire);
        self.checkpoints_when_used.store(begun, Ordering::Relaxed);
    }

    /// Starts a checkpoint. Replay will begin at the current committed position, so everything that the shards write
    /// for the checkpoint is after it.
    pub(crate) fn begin_checkpoint(&self, workers: usize) {
        let Some(journal) = self.journal.get() else { return };
        let mut checkpoint = self.lock();
        checkpoint.replay_from = journal.committed();
        let stats = journal.stats();
        let (first, next, interval_bytes) = (stats.first, stats.next, self.interval_bytes());
        let space = FreeSpace {
            bytes: self.free_bytes(),
            segment_bytes: self.segment_bytes.load(Ordering::Relaxed),
            snapshot_bytes: self.snapshot_bytes.load(Ordering::Relaxed),
        };
        checkpoint.part = match journal.health() == LogHealth::Ok {
            true => {
                let quota_bytes = self.quota_bytes.load(Ordering::Relaxed);
                checkpoint
                    .compaction
                    .next_part(first, next, interval_bytes, quota_bytes, space)
            }
            false => {
                let checkpoint_bytes = self.checkpoint_bytes.load(Ordering::Relaxed);
                checkpoint
                    .compaction
                    .next_part_when_full(first, next, checkpoint_bytes, space)
            }
        };
        // Divide among the workers.
        checkpoint.part.bytes /= workers as u64;
        checkpoint.left = workers;
        checkpoint.bytes = 0;
        checkpoint.oldest_before = checkpoint.oldest.take();
        self.checkpoints.fetch_add(1, Ordering::Release);
    }

    /// Completes one worker's part. The last worker sets the checkpoint of the log.
    pub(crate) fn finish_checkpoint(
        self: &Arc<Self>,
        part: FinishedCheckpoint,
        now_ms: u64,
        observer: Arc<dyn ConnectionObserver>,
    ) {
        self.checkpointed_ms.store(now_ms, Ordering::Relaxed);
        let Some(journal) = self.journal.get() else { return };
        let mut checkpoint = self.lock();
        let oldest = part.oldest.map(|position| position.0);
        checkpoint.oldest = min_of(checkpoint.oldest, oldest);
        checkpoint.bytes += part.bytes;
        checkpoint.compaction.record_rewritten(part.moved_bytes);
        checkpoint.left -= 1;
        if checkpoint.left > 0 {
            return;
        }
        self.snapshot_bytes.store(checkpoint.bytes, Ordering::Relaxed);
        let replay_from = checkpoint.replay_from;
        // Retain the data of the previous checkpoint, in case data written by this one is damaged later.
        let replayable = match journal.health() == LogHealth::Ok {
            true => journal.stats().replay_from,
            false => replay_from,
        };
        let needed =
            min_of(checkpoint.oldest, checkpoint.oldest_before).map_or(replayable, |at| replayable.min(Lsn(at)));
        drop(checkpoint);
        let node_journal = Arc::downgrade(self);
        journal.set_checkpoint(replay_from, move |result| {
            let Some(node_journal) = node_journal.upgrade() else {
                return;
            };
            let Some(journal) = node_journal.journal.get() else {
                return;
            };
            match result {
                // A failed removal is repeated with the next checkpoint.
                Ok(()) => {
                    let after = Arc::downgrade(&node_journal);
                    journal.truncate_before(needed, move |removed| {
                        if let Err(error) = removed {
                            observer.journal_error("old segments of the journal cannot be removed", &error);
                        }
                        if let Some(node_journal) = after.upgrade()
                            && let Some(journal) = node_journal.journal.get()
                        {
                            node_journal.update_is_long(&journal.stats());
                        }
                    });
                }
                Err(error) => observer.journal_error("a checkpoint of the journal cannot be written", &error),
            }
            let next = journal.stats().next.0 + node_journal.interval_bytes();
            node_journal.checkpoint_at.store(next, Ordering::Release);
        });
    }
}

/// Returns the interval of checkpoints of a full journal. `None` if there is not enough space for one.
fn full_checkpoint_interval_ms(free_bytes: u64, snapshot_bytes: u64) -> Option<u64> {
    let by_space_ms =
        snapshot_bytes.saturating_mul(CHECKPOINTS_IN_FREE_SPACE * CHECKPOINT_WHEN_FULL_MS) / free_bytes.max(1);
    (snapshot_bytes == 0 || snapshot_bytes < free_bytes).then_some(by_space_ms.max(CHECKPOINT_WHEN_FULL_MS))
}

fn min_of(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a journal whose last checkpoint ended at one second, and whose next one is far away.
    fn node_journal(is_long: bool) -> NodeJournal {
        let node_journal = NodeJournal::new(1);
        node_journal.checkpoint_at.store(1000, Ordering::Relaxed);
        node_journal.checkpointed_ms.store(1_000, Ordering::Relaxed);
        node_journal.is_long.store(is_long, Ordering::Relaxed);
        node_journal
    }

    const LATE_MS: u64 = 1_000 + CHECKPOINT_WHEN_LONG_MS;

    #[test]
    fn long_journal_gets_a_checkpoint_every_minute() {
        let long = node_journal(true);
        assert!(!long.is_checkpoint_due(Lsn(1), LATE_MS));
        assert!(long.is_checkpoint_due(Lsn(1), LATE_MS + 1));
        assert!(!long.is_checkpoint_due(Lsn(1), LATE_MS + 1), "only one worker makes it");
        let short = node_journal(false);
        assert!(!short.is_checkpoint_due(Lsn(1), u64::MAX));
        assert!(short.is_checkpoint_due(Lsn(1001), 0));
    }

    #[test]
    fn unused_long_journal_gets_few_checkpoints() {
        let node_journal = node_journal(true);
        for _ in 0..CHECKPOINTS_WHEN_IDLE {
            assert_eq!(node_journal.idle_checkpoint_ms(LATE_MS), Some(LATE_MS));
            node_journal.checkpoints.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(node_journal.idle_checkpoint_ms(LATE_MS), None);
        node_journal.mark_used();
        assert_eq!(node_journal.idle_checkpoint_ms(LATE_MS), Some(LATE_MS));
    }

    #[test]
    fn checkpoints_of_a_full_journal_leave_disk_space() {
        assert_eq!(
            full_checkpoint_interval_ms(0, 0),
            Some(CHECKPOINT_WHEN_FULL_MS),
            "the snapshot size is not known yet"
        );
        assert_eq!(full_checkpoint_interval_ms(1_000_000, 1), Some(CHECKPOINT_WHEN_FULL_MS));
        assert_eq!(
            full_checkpoint_interval_ms(1_000, 1_000),
            None,
            "there is not enough space"
        );
        let (mut space, mut waited_ms) = (1_000_000, 0);
        while waited_ms < 3_600_000 {
            let Some(wait_ms) = full_checkpoint_interval_ms(space, 10_000) else {
                break;
            };
            waited_ms += wait_ms;
            space -= 10_000;
        }
        assert!(waited_ms > 600_000, "space for ten minutes, not {waited_ms} ms");
        assert!(space >= 10_000 / 2, "{space}");
    }

    #[test]
    fn first_interval_starts_with_the_first_check() {
        let node_journal = node_journal(true);
        node_journal.checkpointed_ms.store(0, Ordering::Relaxed);
        assert_eq!(node_journal.early_checkpoint_ms(5), Some(5 + CHECKPOINT_WHEN_LONG_MS));
        assert_eq!(node_journal.early_checkpoint_ms(9), Some(5 + CHECKPOINT_WHEN_LONG_MS));
    }
}
