//! Tests repairs that skip damage: every whole record behind it remains at its position.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::scratch::Scratch;
use tidewire_journal::inspect::{
    DamagePolicy, LostThing, RepairMode, RepairOptions, RepairReport, inspect, repair_log,
};
use tidewire_journal::{
    BLOCK_HEADER_BYTES, BlockFollower, DIRECTORY_NAME, Journal, LogBatch, LogConfig, Lsn, OpenError,
    RECORD_HEADER_BYTES, ReadError, RecordLog, StorageDirectory,
};

const BLOCKS: u8 = 30;
const RECORDS: usize = 4;
const PAYLOAD: usize = 200;

type Replayed = Vec<(Lsn, Vec<u8>)>;

fn try_open(directory: &Path) -> Result<(RecordLog, Replayed), OpenError> {
    let config = LogConfig {
        segment_bytes: 4096,
        max_bytes: 64 << 20,
        reserve_bytes: 0,
        ..LogConfig::default()
    };
    let storage = Arc::new(StorageDirectory::open(directory, DIRECTORY_NAME).unwrap());
    let mut replayed = Vec::new();
    let mut replay = |position, payload: &[u8]| {
        replayed.push((position, payload.to_vec()));
        Ok(())
    };
    let (log, _) = RecordLog::open(storage, config, &mut replay, &mut |_, _| {})?;
    Ok((log, replayed))
}

/// Creates a journal of blocks with four records each, and returns its records.
fn journal(directory: &Path) -> Replayed {
    let (mut log, _) = try_open(directory).unwrap();
    for block in 0..BLOCKS {
        let mut batch = LogBatch::new();
        for record in 0..RECORDS {
            batch.record(|bytes| bytes.extend(vec![block * 7 + record as u8; PAYLOAD]));
        }
        log.append(&mut batch);
        log.flush().unwrap();
    }
    log.close().unwrap();
    try_open(directory).unwrap().1
}

fn repair(directory: &Path, mode: RepairMode) -> RepairReport {
    let options = RepairOptions {
        mode,
        damage: DamagePolicy::Skip,
    };
    repair_log(directory, DIRECTORY_NAME, options).unwrap()
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join(DIRECTORY_NAME)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    paths
}

fn base_of(path: &Path) -> u64 {
    u64::from_str_radix(path.file_stem().unwrap().to_str().unwrap(), 16).unwrap()
}

/// Changes bytes from a position on.
fn damage(directory: &Path, lsn: u64, bytes: usize) {
    let path = segments(directory)
        .into_iter()
        .rfind(|path| base_of(path) <= lsn)
        .unwrap();
    let offset = 64 + (lsn - base_of(&path)) as usize;
    let mut contents = fs::read(&path).unwrap();
    contents[offset..offset + bytes]
        .iter_mut()
        .for_each(|byte| *byte ^= 0x55);
    fs::write(&path, contents).unwrap();
}

/// Repairs, checks that everything but `lost` remains, and that the log accepts new records.
#[track_caller]
fn assert_only_lost(directory: &Path, whole: &Replayed, lost: &[usize]) -> RepairReport {
    assert!(try_open(directory).is_err());
    let plan = repair(directory, RepairMode::Plan);
    assert!(try_open(directory).is_err(), "a dry run changes nothing");
    let done = repair(directory, RepairMode::Repair);
    assert_eq!(plan.lost, done.lost);
    assert!(done.saved_to.is_some());
    let mut expected = whole.clone();
    lost.iter().rev().for_each(|at| _ = expected.remove(*at));
    let (mut log, replayed) = try_open(directory).unwrap();
    assert!(
        replayed == expected,
        "{:?}",
        replayed.iter().map(|record| record.0).collect::<Vec<_>>()
    );
    let mut batch = LogBatch::new();
    batch.record(|bytes| bytes.push(99));
    log.append(&mut batch);
    log.flush().unwrap();
    drop(log);
    let (_, replayed) = try_open(directory).unwrap();
    assert_eq!(replayed.last().unwrap().1, [99]);
    assert!(inspect(directory).unwrap().problems.is_empty());
    assert!(repair(directory, RepairMode::Plan).is_empty());
    done
}

// fault: Damaged bytes; Journal
#[test]
fn damaged_record_is_the_only_loss() {
    let scratch = Scratch::new();
    let whole = journal(scratch.path());
    let (lsn, payload) = &whole[41];
    damage(scratch.path(), lsn.0 + 50, 1);
    let report = assert_only_lost(scratch.path(), &whole, &[41]);
    let [lost] = &report.lost[..] else { panic!("{report:?}") };
    assert_eq!((lost.lsn, lost.thing), (*lsn, LostThing::Record));
    assert_eq!(lost.bytes, (RECORD_HEADER_BYTES + PAYLOAD) as u64);
    assert_eq!(lost.payload.len(), payload.len());
    let journal = Journal::start(try_open(scratch.path()).unwrap().0, || {}).unwrap();
    let mut bytes = Vec::new();
    assert!(matches!(
        journal.reader().read(*lsn, &mut bytes),
        Err(ReadError::Damaged { .. })
    ));
    journal.reader().read(whole[42].0, &mut bytes).unwrap();
    assert_eq!(bytes, whole[42].1);
    let mut follower = BlockFollower::new(journal.reader(), Lsn(0));
    let mut followed = 0;
    while follower.read_block(|_, _| followed += 1).unwrap().is_some() {}
    assert_eq!(followed, whole.len());
}

/// The first and last byte of each part of a block in the middle of the log.
// fault: Damaged bytes; Journal
#[test]
fn each_part_of_a_block_is_mended() {
    let block = 10;
    let first = block * RECORDS;
    let header = |lsn: u64| lsn - BLOCK_HEADER_BYTES as u64;
    let cases: [(u64, &[usize]); 7] = [
        // The header can be built again.
        (0, &[]),
        (5, &[]),
        (BLOCK_HEADER_BYTES as u64 - 8, &[]),
        // The length of the first record: the rest of the block is lost.
        (BLOCK_HEADER_BYTES as u64, &[0, 1, 2, 3]),
        (BLOCK_HEADER_BYTES as u64 + 4, &[0]),
        // The checksum and the end of the last record.
        (
            (BLOCK_HEADER_BYTES + 3 * (RECORD_HEADER_BYTES + PAYLOAD) + 4) as u64,
            &[3],
        ),
        (
            (BLOCK_HEADER_BYTES + 4 * (RECORD_HEADER_BYTES + PAYLOAD) - 1) as u64,
            &[3],
        ),
    ];
    for (offset, lost) in cases {
        let scratch = Scratch::new();
        let whole = journal(scratch.path());
        damage(scratch.path(), header(whole[first].0.0) + offset, 1);
        let lost: Vec<usize> = lost.iter().map(|at| first + at).collect();
        assert_only_lost(scratch.path(), &whole, &lost);
    }
}

// fault: Damaged bytes; Journal
#[test]
fn damage_over_several_blocks_loses_only_those() {
    let scratch = Scratch::new();
    let whole = journal(scratch.path());
    let from = whole[9 * RECORDS + 2].0.0 + 10;
    let to = whole[12 * RECORDS + 1].0.0 + 10;
    let segment = segments(scratch.path())
        .into_iter()
        .rfind(|path| base_of(path) <= from)
        .unwrap();
    let next = segments(scratch.path())
        .into_iter()
        .find(|path| base_of(path) > base_of(&segment))
        .map_or(u64::MAX, |path| base_of(&path));
    let to = to.min(next);
    damage(scratch.path(), from, (to - from) as usize);
    assert!(try_open(scratch.path()).is_err());
    repair(scratch.path(), RepairMode::Repair);
    let (_, replayed) = try_open(scratch.path()).unwrap();
    assert!(replayed.iter().all(|record| whole.contains(record)));
    let first_behind = whole
        .iter()
        .position(|record| record.0.0 > to)
        .unwrap()
        .next_multiple_of(RECORDS);
    assert!(replayed.ends_with(&whole[first_behind..]));
    assert!(replayed.starts_with(&whole[..9 * RECORDS + 2]));
}

// fault: Damaged bytes; Journal
#[test]
fn damaged_segment_header_loses_nothing() {
    let scratch = Scratch::new();
    let whole = journal(scratch.path());
    for number in [0, 2] {
        let path = &segments(scratch.path())[number];
        let mut bytes = fs::read(path).unwrap();
        bytes[20] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let report = assert_only_lost(scratch.path(), &whole, &[]);
    assert_eq!(report.rewritten.len(), 2);
}

// fault: Missing files; Journal
#[test]
fn missing_and_truncated_segments_become_lost_records() {
    let scratch = Scratch::new();
    let whole = journal(scratch.path());
    let (cut, removed) = (&segments(scratch.path())[1], &segments(scratch.path())[3]);
    let ends = |path: &Path| {
        let bases: Vec<u64> = segments(scratch.path()).iter().map(|path| base_of(path)).collect();
        *bases.iter().find(|base| **base > base_of(path)).unwrap()
    };
    let holes = [(base_of(cut) + 1500, ends(cut)), (base_of(removed), ends(removed))];
    fs::OpenOptions::new()
        .write(true)
        .open(cut)
        .unwrap()
        .set_len(64 + 1500)
        .unwrap();
    fs::remove_file(removed).unwrap();
    // The block in which the file ends is lost, too.
    let lost: Vec<usize> = (0..whole.len())
        .filter(|at| {
            let block = whole[at / RECORDS * RECORDS + RECORDS - 1].0.0 + (RECORD_HEADER_BYTES + PAYLOAD) as u64;
            holes.iter().any(|(from, to)| block > *from && block <= *to)
        })
        .collect();
    let report = assert_only_lost(scratch.path(), &whole, &lost);
    assert!(
        report.lost.iter().all(|lost| lost.thing == LostThing::Missing),
        "{report:?}"
    );
}

/// No block follows that could be lost, but the other records of the last block remain.
// fault: Damaged bytes; Journal
#[test]
fn damage_in_the_last_block_keeps_its_other_records() {
    let scratch = Scratch::new();
    let whole = journal(scratch.path());
    let last = whole.len() - 2;
    damage(scratch.path(), whole[last].0.0 + 30, 1);
    assert_only_lost(scratch.path(), &whole, &[last]);
}
