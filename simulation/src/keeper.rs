//! What the workers of `net` share of the journal, over the real log and a model disk: commits, checkpoints, reading back.
//!
//! The log is flushed when the world says so, and the workers hear of it later still: a sync that takes long is one that nobody has
//! been told of.

use std::collections::VecDeque;

use broker::durable::moves::MovePart;
use broker::durable::record::Position;
use broker::durable::{GIVER, MOVER};
use broker::{Checkpointed, Shard};
use journal::{Health, Log, Lsn, ReadError};

use storage::model::Random;

pub struct Keeper {
    pub log: Log,
    /// What the workers may hear of.
    told: Lsn,
    /// Checkpoints that have been begun.
    begun: u64,
    checkpoint: Option<Checkpoint>,
    /// Of the last one that was finished.
    oldest_before: Option<u64>,
    fetches: VecDeque<Fetch>,
    temper: Temper,
    /// Records that were there and were not given back.
    pub rotten: u64,
}

/// What is hard to live with.
#[derive(Clone, Copy)]
pub struct Temper {
    /// Single records of waiting messages cannot be read back.
    pub has_rot: bool,
    /// Questions are turned away now and then.
    pub is_reader_busy: bool,
    /// Checkpoints may move a part of what they are told to.
    pub has_little_room: bool,
    /// With more that is not committed it is behind.
    pub backlog_bytes_max: u64,
    /// A start replays from the first segment, and checkpoints leave what the one before had. Otherwise they leave what is needed only, as
    /// those of a full journal: what they forget is lost the sooner.
    pub replays_all: bool,
    /// What has expired may not have by the next clock.
    pub has_jumps: bool,
}

struct Checkpoint {
    replay_from: Lsn,
    /// What is written once more.
    part: MovePart,
    /// Workers that have not finished.
    left: usize,
    oldest: Option<u64>,
}

struct Fetch {
    worker: usize,
    session: u32,
    connects: u32,
    positions: Vec<Position>,
}

/// One worker's side.
#[derive(Default)]
pub struct Follower {
    committed: Lsn,
    health: Health,
    checkpoints: u64,
    checkpointed: Option<(Checkpointed, Lsn)>,
}

impl Follower {
    /// What the shard still waits for, although it has been told that the journal has it: where that ends, and what it has been told.
    pub fn overdue(&self, shard: &Shard) -> Option<(u64, u64)> {
        let told = self.committed.0;
        shard
            .waits_for_journal()
            .filter(|end| *end <= told)
            .map(|end| (end, told))
    }
}

impl Keeper {
    pub fn new(log: Log, temper: Temper) -> Keeper {
        Keeper {
            log,
            told: Lsn(0),
            begun: 0,
            checkpoint: None,
            oldest_before: None,
            fetches: VecDeque::new(),
            temper,
            rotten: 0,
        }
    }

    // --- what the commit thread does ---

    /// Writes and syncs what has been appended. Whether that succeeds shows in the log's state.
    pub fn flush(&mut self) {
        let _ = self.log.flush();
    }

    pub fn sync(&mut self) {
        let _ = self.log.sync();
    }

    /// The workers can hear how far the log is.
    pub fn tell(&mut self) {
        self.told = self.log.committed();
    }

    /// Everything that was appended is committed.
    pub fn is_level(&self) -> bool {
        self.log.committed() == self.log.stats().next
    }

    pub fn has_failed(&self) -> bool {
        self.log.health() == Health::Failed
    }

    /// Whether clients have to wait until it has caught up; one that has failed never does.
    pub fn is_behind(&self) -> bool {
        self.log.stats().next.0 - self.log.committed().0 > self.temper.backlog_bytes_max && !self.has_failed()
    }

    // --- what a worker does ---

    /// At the beginning of a tick, between two letters or after them, as in `net`.
    pub fn hear(&mut self, follower: &mut Follower, shard: &mut Shard, now: broker::Now) {
        let health = self.log.health();
        if health != follower.health {
            follower.health = health;
            shard.journal_health(health);
        }
        if self.told > follower.committed {
            follower.committed = self.told;
            shard.committed(now, self.told.0);
        }
        if health == Health::Failed {
            shard.give_up_waiting(now);
        }
        let committed = follower.committed;
        if let Some((part, _)) = follower.checkpointed.take_if(|(_, end)| *end <= committed) {
            self.finish_checkpoint(part);
        }
    }

    /// Goes on with a checkpoint, in every tick.
    pub fn walk_on(&mut self, follower: &mut Follower, shard: &mut Shard, now: broker::Now) {
        if std::mem::replace(&mut follower.checkpoints, self.begun) != self.begun {
            let part = self.checkpoint.as_ref().map_or(MovePart::NOTHING, |c| c.part);
            shard.begin_checkpoint(now, part);
        }
        if let Some(part) = shard.walk_on(now) {
            follower.checkpointed = Some((part, Lsn(u64::MAX)));
        }
    }

    /// The end of a tick, before mail leaves and anything is written. Returns whether there was a batch.
    pub fn append(&mut self, follower: &mut Follower, shard: &mut Shard) -> bool {
        let Some(batch) = shard.journal_batch() else {
            return false;
        };
        let at = self.log.append(batch);
        shard.appended(at.base.0, at.end.0);
        if let Some((_, end)) = follower.checkpointed.as_mut().filter(|(_, end)| *end == Lsn(u64::MAX)) {
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
                    before: Position(before),
                    bytes: match self.temper.has_little_room {
                        true => random.between(0, before - first.0),
                        false => u64::MAX,
                    },
                }
            }
        };
        self.begun += 1;
        self.checkpoint = Some(Checkpoint {
            replay_from,
            part,
            left: workers,
            oldest: None,
        });
    }

    fn finish_checkpoint(&mut self, part: Checkpointed) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        let oldest = part.oldest.map(|position| position.0);
        checkpoint.oldest = checkpoint.oldest.into_iter().chain(oldest).min();
        checkpoint.left -= 1;
        if checkpoint.left > 0 {
            return;
        }
        let Checkpoint {
            replay_from, oldest, ..
        } = *checkpoint;
        self.checkpoint = None;
        // What is on its way between shards may have been seen by the checkpoint before and not by this one.
        let needed = oldest.into_iter().chain(self.oldest_before).min();
        self.oldest_before = oldest;
        let before = self.log.stats().replay_from;
        if self.log.set_checkpoint(replay_from).is_ok() {
            let replayable = match self.temper.replays_all && self.log.health() == Health::Ok {
                true => before,
                false => replay_from,
            };
            let needed = needed.map_or(replayable, |at| replayable.min(Lsn(at)));
            // What cannot be removed now can be the next time.
            let _ = self.log.truncate_before(needed);
        }
    }

    // --- reading back ---

    pub fn fetch(&mut self, worker: usize, session: u32, connects: u32, positions: Vec<Position>) {
        self.fetches.push_back(Fetch {
            worker,
            session,
            connects,
            positions,
        });
    }

    pub fn has_fetches(&self, worker: usize) -> bool {
        self.fetches.iter().any(|fetch| fetch.worker == worker)
    }

    /// Answers the oldest of a worker's questions of which anything is kept, at least in part. False if there is none.
    pub fn answer(&mut self, worker: usize, shard: &mut Shard, now: broker::Now, random: &mut Random) -> bool {
        let committed = self.log.committed().0;
        let may_answer = |fetch: &Fetch| {
            let is_kept = fetch.positions.first().is_none_or(|position| position.0 < committed);
            fetch.worker == worker && is_kept
        };
        let Some(fetch) = self
            .fetches
            .iter()
            .position(may_answer)
            .and_then(|at| self.fetches.remove(at))
        else {
            return false;
        };
        if self.temper.is_reader_busy && random.one_in(3) {
            match matches!(fetch.session, MOVER | GIVER) {
                true => shard.fetch_again(fetch.session, fetch.connects, fetch.positions),
                false => shard.fetched(now, fetch.session, fetch.connects, &fetch.positions, Vec::new()),
            }
            return true;
        }
        let kept = fetch.positions.iter().take_while(|position| position.0 < committed);
        let kept: Vec<Position> = kept.copied().collect();
        let count = match random.below(3) {
            0 => 1 + random.below(kept.len()),
            _ => kept.len(),
        };
        let mut records = self.read(&kept[..count.min(kept.len())]);
        if self.temper.has_rot && random.one_in(8) && !records.is_empty() {
            let at = random.below(records.len());
            self.rotten += u64::from(records[at].take().is_some());
        }
        shard.fetched(now, fetch.session, fetch.connects, &fetch.positions, records);
        true
    }

    /// Up to the first that the disk does not give back now.
    fn read(&self, positions: &[Position]) -> Vec<Option<Vec<u8>>> {
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
