//! Tests a follower of the log: it reads all committed blocks in order, across segments, and no uncommitted block.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::scale::scaled;
use storage::model::{ModelDisk, Random};
use tidewire_journal::{BlockFollower, BlockRange, FlushPolicy, LogConfig, Lsn, ReadError, RecordLog};

/// A block and the positions and payloads of its records.
type Block = (BlockRange, Vec<(Lsn, Vec<u8>)>);

const SEEDS: u64 = 200;

fn open(disk: &ModelDisk) -> RecordLog {
    let config = LogConfig {
        policy: FlushPolicy::Fsync,
        segment_bytes: 700,
        max_bytes: 1 << 30,
        reserve_bytes: 0,
        ..LogConfig::default()
    };
    RecordLog::open(disk.storage(), config, &mut |_, _| Ok(()), &mut |_, _| ())
        .unwrap()
        .0
}

/// Appends a batch of numbered records. Returns their positions and payloads.
fn append(log: &mut RecordLog, random: &mut Random, number: &mut u32) -> Block {
    let mut batch = tidewire_journal::LogBatch::new();
    let mut offsets = Vec::new();
    for _ in 0..1 + random.below(4) {
        let mut payload = number.to_le_bytes().to_vec();
        let bytes = random.below(600);
        payload.extend(random.bytes(bytes));
        offsets.push((batch.record(|bytes| bytes.extend(&payload)), payload));
        *number += 1;
    }
    let appended = log.append(&mut batch);
    let range = BlockRange {
        base: appended.base,
        end: appended.end,
    };
    let records = offsets
        .into_iter()
        .map(|(offset, payload)| (tidewire_journal::position(appended.base, offset), payload));
    (range, records.collect())
}

fn read_all(follower: &mut BlockFollower) -> Vec<Block> {
    let mut blocks = Vec::new();
    loop {
        let mut records = Vec::new();
        let read = follower.read_block(|at, payload| records.push((at, payload.to_vec())));
        match read.unwrap() {
            None => return blocks,
            Some(range) => blocks.push((range, records)),
        }
    }
}

#[test]
fn follower_sees_each_committed_block_once_in_order() {
    for seed in 0..scaled(SEEDS) {
        let mut random = Random::new(seed);
        let mut log = open(&ModelDisk::from_seed(seed));
        let mut follower = BlockFollower::new(log.reader(), Lsn(0));
        let (mut number, mut waiting) = (0, Vec::new());
        for _ in 0..60 {
            waiting.push(append(&mut log, &mut random, &mut number));
            assert!(read_all(&mut follower).is_empty(), "seed {seed}: not committed yet");
            if random.one_in(3) {
                log.flush().unwrap();
                assert_eq!(read_all(&mut follower), std::mem::take(&mut waiting), "seed {seed}");
                assert_eq!(follower.next(), log.committed());
            }
            if random.one_in(10) {
                log.set_checkpoint(log.committed()).unwrap();
                log.truncate_before(follower.next()).unwrap();
            }
        }
    }
}

#[test]
fn follower_continues_in_a_reopened_log() {
    let (disk, mut random, mut number) = (ModelDisk::from_seed(1), Random::new(1), 0);
    let mut log = open(&disk);
    let blocks: Vec<_> = (0..30).map(|_| append(&mut log, &mut random, &mut number)).collect();
    log.close().unwrap();
    let log = open(&disk);
    let mut follower = BlockFollower::new(log.reader(), blocks[12].0.base);
    let read = read_all(&mut follower);
    assert_eq!(read[..18], blocks[12..]);
    // The end mark of a clean shutdown is a block without records.
    assert!(read[18..].iter().all(|(_, records)| records.is_empty()));
    follower.seek(blocks[3].0.base);
    assert_eq!(read_all(&mut follower)[0], blocks[3]);
}

#[test]
fn inspection_reports_removed_and_damaged_data() {
    let (disk, mut random, mut number) = (ModelDisk::from_seed(2), Random::new(2), 0);
    let mut log = open(&disk);
    let blocks: Vec<_> = (0..30).map(|_| append(&mut log, &mut random, &mut number)).collect();
    log.flush().unwrap();
    // This position is within a block and has no header.
    let inside = Lsn(blocks[20].0.base.0 + 8);
    let mut follower = BlockFollower::new(log.reader(), inside);
    let block = follower.read_block(|_, _| ());
    assert!(matches!(block, Err(ReadError::Damaged { .. })), "{block:?}");
    assert_eq!(follower.next(), inside);
    log.set_checkpoint(blocks[20].0.base).unwrap();
    assert!(log.truncate_before(blocks[20].0.base).unwrap() > 0);
    let mut follower = BlockFollower::new(log.reader(), Lsn(0));
    let block = follower.read_block(|_, _| ());
    assert!(matches!(block, Err(ReadError::Removed { .. })), "{block:?}");
}
