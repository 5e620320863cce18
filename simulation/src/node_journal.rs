//! The journal state that the workers of `net` share, on the real log and a model disk: commits, checkpoints, reads.
//!
//! The world decides when the log is flushed, and later when the workers learn of it. A delayed report models a slow
//! sync.

use std::collections::VecDeque;

use broker::durable::compaction::MovePart;
use broker::durable::record::RecordPosition;
use broker::{FetchPurpose, FinishedCheckpoint, Shard};
use journal::{LogHealth, Lsn, ReadError, RecordLog};

use storage::model::Random;

pub struct SimulatedJournal {
    pub log: RecordLog,
    /// Position that has been reported to the workers as committed.
    reported: Lsn,
    /// Number of checkpoints started.
    begun: u64,
    checkpoint: Option<SimulatedCheckpoint>,
    /// Oldest message needed by the last finished checkpoint.
    oldest_before: Option<u64>,
    fetches: VecDeque<PendingFetch>,
    conditions: JournalConditions,
    /// Number of existing records that were reported as unreadable.
    pub unreadable: u64,
}

/// Adverse conditions of a run.
#[derive(Clone, Copy)]
pub struct JournalConditions {
    /// Single records of queued messages cannot be read.
    pub has_unreadable_records: bool,
    /// The reader rejects some requests.
    pub is_reader_busy: bool,
    /// Checkpoints may move only a part of the old messages.
    pub has_little_space: bool,
    /// Clients must wait while more bytes than this are uncommitted.
    pub backlog_bytes_max: u64,
    /// A restart replays from the first segment, and a checkpoint also preserves the segments of the previous one.
    /// Otherwise it deletes all unneeded segments, as with a full journal, which reveals errors of checkpoints earlier.
    pub replays_all: bool,
    /// The wall clock jumps, so a message that has expired may not have expired after a restart.
    pub has_jumps: bool,
}

struct SimulatedCheckpoint {
    replay_from: Lsn,
    /// Messages to be moved.
    part: MovePart,
    /// Number of workers that have not finished.
    left: usize,
    oldest: Option<u64>,
}

struct PendingFetch {
    worker: usize,
    purpose: FetchPurpose,
    positions: Vec<RecordPosition>,
}

/// The journal state of one worker.
#[derive(Default)]
pub struct WorkerJournal {
    committed: Lsn,
    health: LogHealth,
    checkpoints: u64,
    checkpointed: Option<(FinishedCheckpoint, Lsn)>,
}

impl WorkerJournal {
    /// Returns what the shard still waits for although it knows of the commit: the position that it waits for, and the
    /// committed position.
    pub fn overdue(&self, shard: &Shard) -> Option<(u64, u64)> {
        let reported = self.committed.0;
        shard
            .inspect()
            .ledger()
            .first_awaited()
            .filter(|end| *end <= reported)
            .map(|end| (end, reported))
    }
}

impl SimulatedJournal {
    pub fn new(log: RecordLog, conditions: JournalConditions) -> SimulatedJournal {
        SimulatedJournal {
            log,
            reported: Lsn(0),
            begun: 0,
            checkpoint: None,
            oldest_before: None,
            fetches: VecDeque::new(),
            conditions,
            unreadable: 0,
        }
    }

    // --- called by the commit thread ---

    /// Writes and syncs appended records. The log's state shows whether that succeeded.
    pub fn flush(&mut self) {
        let _ = self.log.flush();
    }

    pub fn sync(&mut self) {
        let _ = self.log.sync();
    }

    /// Reports the committed position to the workers.
    pub fn report_commit(&mut self) {
        self.reported = self.log.committed();
    }

    /// Returns whether everything that was appended is committed.
    pub fn is_durable(&self) -> bool {
        self.log.committed() == self.log.stats().next
    }

    pub fn has_failed(&self) -> bool {
        self.log.health() == LogHealth::Failed
    }

    /// Returns whether clients must wait for the log to catch up. Always false after a failure.
    pub fn is_behind(&self) -> bool {
        self.log.stats().next.0 - self.log.committed().0 > self.conditions.backlog_bytes_max && !self.has_failed()
    }

    // --- called by a worker ---

    /// Passes commits and state changes to a shard, at the start of a tick or between two messages of other shards, as
    /// in `net`.
    pub fn receive_commit(&mut self, worker_journal: &mut WorkerJournal, shard: &mut Shard, now: broker::Now) {
        let health = self.log.health();
        if health != worker_journal.health {
            worker_journal.health = health;
            shard.journal(now).set_health(health);
        }
        if self.reported > worker_journal.committed {
            worker_journal.committed = self.reported;
            shard.journal(now).committed(self.reported.0);
        }
        if health == LogHealth::Failed {
            shard.disconnect_waiting(now);
        }
        let committed = worker_journal.committed;
        if let Some((part, _)) = worker_journal.checkpointed.take_if(|(_, end)| *end <= committed) {
            self.finish_checkpoint(part);
        }
    }

    /// Continues a checkpoint. Called in every tick.
    pub fn continue_checkpoint(&mut self, worker_journal: &mut WorkerJournal, shard: &mut Shard, now: broker::Now) {
        if std::mem::replace(&mut worker_journal.checkpoints, self.begun) != self.begun {
            let part = self.checkpoint.as_ref().map_or(MovePart::NOTHING, |c| c.part);
            shard.journal(now).begin_checkpoint(part);
        }
        if let Some(part) = shard.journal(now).continue_checkpoint() {
            worker_journal.checkpointed = Some((part, Lsn(u64::MAX)));
        }
    }

    /// Appends the batch of a tick, before mail is sent and output is written. Returns whether there was a batch.
    pub fn append(&mut self, worker_journal: &mut WorkerJournal, shard: &mut Shard, now: broker::Now) -> bool {
        let Some(batch) = shard.journal(now).batch() else {
            return false;
        };
        let at = self.log.append(batch);
        shard.journal(now).appended(at.base.0, at.end.0);
        if let Some((_, end)) = worker_journal
            .checkpointed
            .as_mut()
            .filter(|(_, end)| *end == Lsn(u64::MAX))
        {
            *end = at.end;
        }
        true
    }

    // --- checkpoints ---

    pub fn begin_checkpoint(&mut self, workers: usize, random: &mut Random) {
        if self.checkpoint.is_some() || self.has_failed() {
            return;
        }
        let (first, replay_from) = (self.log.stats().first, self.log.committed());
        let part = match random.below(3) {
            0 => MovePart::NOTHING,
            _ => {
                let before = random.between(first.0, replay_from.0.max(first.0));
                MovePart {
                    before: RecordPosition(before),
                    bytes: match self.conditions.has_little_space {
                        true => random.between(0, before - first.0),
                        false => u64::MAX,
                    },
                }
            }
        };
        self.begun += 1;
        self.checkpoint = Some(SimulatedCheckpoint {
            replay_from,
            part,
            left: workers,
            oldest: None,
        });
    }

    fn finish_checkpoint(&mut self, part: FinishedCheckpoint) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        let oldest = part.oldest.map(|position| position.0);
        checkpoint.oldest = checkpoint.oldest.into_iter().chain(oldest).min();
        checkpoint.left -= 1;
        if checkpoint.left > 0 {
            return;
        }
        let SimulatedCheckpoint {
            replay_from, oldest, ..
        } = *checkpoint;
        self.checkpoint = None;
        // A message in transit between shards may be in the previous checkpoint and not in this one.
        let needed = oldest.into_iter().chain(self.oldest_before).min();
        self.oldest_before = oldest;
        let before = self.log.stats().replay_from;
        if self.log.set_checkpoint(replay_from).is_ok() {
            let replayable = match self.conditions.replays_all && self.log.health() == LogHealth::Ok {
                true => before,
                false => replay_from,
            };
            let needed = needed.map_or(replayable, |at| replayable.min(Lsn(at)));
            // Segments that cannot be deleted now are deleted the next time.
            let _ = self.log.truncate_before(needed);
        }
    }

    // --- reads ---

    pub fn fetch(&mut self, worker: usize, purpose: FetchPurpose, positions: Vec<RecordPosition>) {
        self.fetches.push_back(PendingFetch {
            worker,
            purpose,
            positions,
        });
    }

    pub fn has_fetches(&self, worker: usize) -> bool {
        self.fetches.iter().any(|fetch| fetch.worker == worker)
    }

    /// Answers, at least in part, a worker's oldest request that has committed records. Returns false if there is none.
    pub fn answer(&mut self, worker: usize, shard: &mut Shard, now: broker::Now, random: &mut Random) -> bool {
        let committed = self.log.committed().0;
        let may_answer = |fetch: &PendingFetch| {
            let is_committed = fetch.positions.first().is_none_or(|position| position.0 < committed);
            fetch.worker == worker && is_committed
        };
        let Some(fetch) = self
            .fetches
            .iter()
            .position(may_answer)
            .and_then(|at| self.fetches.remove(at))
        else {
            return false;
        };
        if self.conditions.is_reader_busy && random.one_in(3) {
            match fetch.purpose.is_retried() {
                true => shard.journal(now).retry_fetch(fetch.purpose, fetch.positions),
                false => shard.journal(now).fetched(fetch.purpose, &fetch.positions, Vec::new()),
            }
            return true;
        }
        let committed_positions = fetch.positions.iter().take_while(|position| position.0 < committed);
        let committed_positions: Vec<RecordPosition> = committed_positions.copied().collect();
        let count = match random.below(3) {
            0 => 1 + random.below(committed_positions.len()),
            _ => committed_positions.len(),
        };
        let mut records = self.read(&committed_positions[..count.min(committed_positions.len())]);
        if self.conditions.has_unreadable_records && random.one_in(8) && !records.is_empty() {
            let at = random.below(records.len());
            self.unreadable += u64::from(records[at].take().is_some());
        }
        shard.journal(now).fetched(fetch.purpose, &fetch.positions, records);
        true
    }

    /// Reads records up to the first one that fails with an I/O error.
    fn read(&self, positions: &[RecordPosition]) -> Vec<Option<Vec<u8>>> {
        let wanted: Vec<Lsn> = positions.iter().map(|position| Lsn(position.0)).collect();
        let mut records = vec![None; wanted.len()];
        let mut readable = wanted.len();
        self.log.reader().read_many(&wanted, |index, record| match record {
            Ok(record) => records[index] = Some(record.to_vec()),
            Err(ReadError::Io { .. }) => readable = readable.min(index),
            Err(_) => {}
        });
        records.truncate(readable);
        records
    }
}
