//! Compares random work on a disk that fails and loses power with a naive model of the records that must survive.
//!
//! After each crash, committed records are replayed in order and byte by byte, no record appears that was not appended
//! at that position, and the log accepts new records. A failure message contains the seed. `SEED=n cargo test -p
//! tidewire-journal --test it crashes` runs only this seed.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::env;

use crate::scale::scaled;
use storage::model::{DiskFault, ModelDisk, Random};
use tidewire_journal::{
    FlushPolicy, LogBatch, LogConfig, LogState, Lsn, OpenError, OpenReport, ReadError, RecordLog, position,
};

const SEEDS: u64 = 8000;
const STEPS: usize = 60;

/// A batch that was appended.
#[derive(Clone, Debug)]
struct Block {
    base: Lsn,
    end: Lsn,
    records: Vec<(Lsn, Vec<u8>)>,
}

/// The log, and the model of the records that it must preserve.
struct World {
    random: Random,
    disk: ModelDisk,
    config: LogConfig,
    /// All batches have the same length, so the remains of one may be exactly behind another after a crash.
    is_uniform: bool,
    log: RecordLog,
    blocks: Vec<Block>,
    /// Records that survive the end of the process.
    committed: Lsn,
    /// Records that survive a power failure.
    synced: Lsn,
    /// Positions at which replay may begin: two if a change was interrupted.
    replay_from: Vec<Lsn>,
}

type Replayed = Vec<(Lsn, Vec<u8>)>;

fn open(disk: &ModelDisk, config: &LogConfig) -> Result<(RecordLog, OpenReport, Replayed), OpenError> {
    let mut replayed = Vec::new();
    let mut replay = |position, payload: &[u8]| {
        replayed.push((position, payload.to_vec()));
        Ok(())
    };
    let (log, opened) = RecordLog::open(disk.storage(), config.clone(), &mut replay, &mut |_, _| {})?;
    Ok((log, opened, replayed))
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed ^ 0x5EED);
        let disk = ModelDisk::from_seed(seed);
        let segment_bytes = 512 + random.below(4000) as u64;
        let config = LogConfig {
            policy: if random.one_in(3) {
                FlushPolicy::Os
            } else {
                FlushPolicy::Fsync
            },
            segment_bytes,
            max_bytes: segment_bytes * (4 + random.below(60) as u64),
            reserve_bytes: 0,
            ..LogConfig::default()
        };
        let log = open(&disk, &config).unwrap().0;
        World {
            is_uniform: random.one_in(2),
            random,
            disk,
            config,
            log,
            blocks: Vec::new(),
            committed: Lsn(0),
            synced: Lsn(0),
            replay_from: vec![Lsn(0)],
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=7 => self.append(),
            8..=12 => drop(self.log.flush()),
            13 => drop(self.log.sync()),
            14 => self.set_checkpoint(),
            15 => self.truncate(),
            16 => self.read(),
            17 => self.disk.fail(DiskFault::PowerCut, self.random.below(12) as u64),
            18 => self.fail(),
            _ => self.restart(),
        }
        self.committed = self.log.committed();
        self.synced = self.log.synced();
        if !self.disk.has_power() {
            self.restart();
        }
    }

    fn append(&mut self) {
        let mut batch = LogBatch::new();
        let mut payloads = Vec::new();
        let records = if self.is_uniform { 1 } else { self.random.below(4) };
        for _ in 0..records {
            let len = match self.random.below(12) {
                _ if self.is_uniform => 300,
                0 => 0,
                1 => self.random.below(2 * self.config.segment_bytes as usize),
                _ => self.random.below(300),
            };
            let payload = self.random.bytes(len);
            payloads.push((batch.record(|bytes| bytes.extend_from_slice(&payload)), payload));
        }
        let appended = self.log.append(&mut batch);
        assert!(batch.is_empty());
        let records = payloads
            .into_iter()
            .map(|(offset, payload)| (position(appended.base, offset), payload))
            .collect();
        self.blocks.push(Block {
            base: appended.base,
            end: appended.end,
            records,
        });
    }

    fn set_checkpoint(&mut self) {
        let Some(at) = self.any_block() else { return };
        let to = self.blocks[at].base;
        let is_allowed = to <= self.log.committed() && to >= self.log.stats().first;
        match self.log.set_checkpoint(to) {
            Ok(()) => {
                assert!(is_allowed);
                self.replay_from = vec![to];
            }
            // Either the old or the new checkpoint is valid.
            Err(_) if is_allowed => self.replay_from.push(to),
            Err(_) => {}
        }
    }

    fn truncate(&mut self) {
        let Some(at) = self.any_block() else { return };
        let (before, first) = (self.blocks[at].base, self.log.stats().first);
        let _ = self.log.truncate_before(before);
        let now = self.log.stats().first;
        assert!(now >= first && (now <= before || now == first));
        assert!(now <= *self.replay_from.iter().max().unwrap());
    }

    fn read(&mut self) {
        let Some(at) = self.any_block() else { return };
        let (first, committed) = (self.log.stats().first, self.log.committed());
        let block = &self.blocks[at];
        let positions: Vec<Lsn> = block.records.iter().map(|(position, _)| *position).collect();
        self.log.reader().read_many(&positions, |index, read| match read {
            Ok(payload) => assert_eq!(payload, block.records[index].1),
            Err(ReadError::Removed { .. }) => assert!(positions[index] < first),
            Err(ReadError::NotWritten { .. }) => assert!(positions[index] >= committed),
            Err(error) => panic!("{error}"),
        });
    }

    fn fail(&mut self) {
        let fault = match self.random.below(4) {
            0 => DiskFault::Write,
            1 => DiskFault::Sync,
            _ => DiskFault::NoSpace,
        };
        match self.random.one_in(3) {
            true => self.disk.clear_faults(),
            false => self.disk.fail(fault, self.random.below(8) as u64),
        }
    }

    fn any_block(&mut self) -> Option<usize> {
        let count = self.blocks.len();
        (count > 0).then(|| self.random.below(count))
    }

    /// Ends the process in one of three ways and restarts it, possibly after failed attempts.
    fn restart(&mut self) {
        let end = self.random.below(3);
        let mut must_survive = match end {
            _ if !self.disk.has_power() => self.lose_power(),
            0 => self.lose_power(),
            _ => self.committed,
        };
        loop {
            self.disk.clear_faults();
            if self.random.one_in(4) {
                self.disk.fail(DiskFault::PowerCut, self.random.below(10) as u64);
            }
            match open(&self.disk, &self.config) {
                Ok((log, opened, replayed)) if self.disk.has_power() => {
                    self.disk.clear_faults();
                    return self.check(log, opened, replayed, must_survive);
                }
                Err(error) if self.disk.has_power() => panic!("{error}"),
                _ => must_survive = self.lose_power(),
            }
        }
    }

    fn lose_power(&mut self) -> Lsn {
        self.disk.power_cut();
        self.synced
    }

    fn check(&mut self, log: RecordLog, opened: OpenReport, replayed: Replayed, must_survive: Lsn) {
        let end = opened.next;
        assert!(end >= must_survive, "{end} survived, {must_survive} should");
        assert!(
            self.replay_from.contains(&opened.replayed_from),
            "{opened:?} {:?}",
            self.replay_from
        );
        self.blocks.retain(|block| block.end <= end);
        assert!(self.blocks.last().is_none_or(|block| block.end == end));
        let expected: Replayed = self
            .blocks
            .iter()
            .filter(|block| block.base >= opened.replayed_from)
            .flat_map(|block| block.records.clone())
            .collect();
        assert!(
            replayed == expected,
            "the replayed records differ from the appended records"
        );
        assert_eq!((log.synced(), log.committed()), (end, end));
        let files = self.disk.file_names();
        let segments = files.iter().filter(|name| name.ends_with(".log")).count() as u64;
        assert_eq!(log.stats().segments, segments, "{files:?}");
        self.replay_from = vec![opened.replayed_from];
        (self.committed, self.synced) = (end, end);
        self.log = log;
    }

    /// Without faults all appended records are committed, unless the quota is full.
    fn finish(&mut self) {
        self.restart();
        self.append();
        let result = self.log.flush();
        match self.log.state() {
            LogState::Ok => {
                result.unwrap();
                assert_eq!(self.log.committed(), self.log.stats().next);
            }
            LogState::Full { .. } => {}
            LogState::Failed { reason: because } => panic!("{because}"),
        }
        self.restart();
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.finish();
}

#[test]
fn only_appended_records_survive_and_all_committed_ones() {
    if let Ok(seed) = env::var("SEED") {
        return run(seed.parse().unwrap());
    }
    for seed in 0..scaled(SEEDS) {
        let result = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = result {
            eprintln!("SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
