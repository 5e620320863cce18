//! Tests the inspection, repair and copying of journals in a real directory.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::scratch::Scratch;
use tidewire_journal::inspect::{InspectError, RepairMode, copy_around, copy_to, inspect, repair, verify};
use tidewire_journal::{
    BLOCK_HEADER_BYTES, DIRECTORY_NAME, Damage, InvalidBlock, Journal, LogBatch, LogConfig, Lsn, OpenError, ReadError,
    RecordLog, StorageDirectory, position,
};

const BATCHES: u32 = 40;

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 4096,
        max_bytes: 64 << 20,
        reserve_bytes: 0,
        ..LogConfig::default()
    }
}

/// Opens the log. Returns it with the numbers of the replayed batches.
fn try_open(directory: &Path) -> Result<(RecordLog, Vec<u32>), OpenError> {
    let storage = Arc::new(StorageDirectory::open(directory, DIRECTORY_NAME).unwrap());
    let mut replayed = Vec::new();
    let mut replay = |_, payload: &[u8]| {
        replayed.push(u32::from_le_bytes(*payload.first_chunk().unwrap()));
        Ok(())
    };
    let (log, _) = RecordLog::open(storage, config(), &mut replay, &mut |_, _| {})?;
    Ok((log, replayed))
}

fn batch(number: u32) -> LogBatch {
    let mut batch = LogBatch::new();
    batch.record(|bytes| {
        bytes.extend(number.to_le_bytes());
        bytes.extend([number as u8; 456]);
    });
    batch
}

/// Creates a journal with the batches 0 to `BATCHES`, each flushed. Returns their positions.
fn journal(directory: &Path) -> Vec<Lsn> {
    let (mut log, _) = try_open(directory).unwrap();
    (0..BATCHES)
        .map(|number| {
            let base = log.append(&mut batch(number)).base;
            log.flush().unwrap();
            base
        })
        .collect()
}

/// Creates such a journal with a checkpoint at batch 20 and without the first segment.
fn journal_with_checkpoint(directory: &Path) -> Vec<Lsn> {
    let bases = journal(directory);
    let (mut log, _) = try_open(directory).unwrap();
    log.set_checkpoint(bases[20]).unwrap();
    log.truncate_before(bases[10]).unwrap();
    bases
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("journal")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    paths
}

fn contents(directory: &Path) -> Vec<Vec<u8>> {
    segments(directory).iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Returns the segment of a position, and the offset in it.
fn place(directory: &Path, lsn: Lsn) -> (PathBuf, usize) {
    let base_of = |path: &Path| u64::from_str_radix(path.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    let path = segments(directory)
        .into_iter()
        .rfind(|path| base_of(path) <= lsn.0)
        .unwrap();
    let offset = 64 + (lsn.0 - base_of(&path)) as usize;
    (path, offset)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn damage(directory: &Path, lsn: Lsn) {
    let (path, offset) = place(directory, lsn);
    flip(&path, offset + 100);
}

#[test]
fn report_counts_records_and_segments() {
    let scratch = Scratch::new();
    let bases = journal_with_checkpoint(scratch.path());
    let report = verify(scratch.path()).unwrap();
    let kept = bases.iter().filter(|base| **base >= report.first).count() as u64;
    assert_eq!((report.blocks, report.records, report.torn_bytes), (kept, kept, 0));
    assert_eq!(report.replay_from, Some(bases[20]));
    assert_eq!(report.segments.len(), segments(scratch.path()).len());
    assert!(report.segments.windows(2).all(|pair| pair[0].end == pair[1].base));
    let (log, _) = try_open(scratch.path()).unwrap();
    assert_eq!((report.first, report.next), (log.stats().first, log.stats().next));
}

#[test]
fn damage_is_reported_and_later_records_are_counted() {
    let scratch = Scratch::new();
    let bases = journal_with_checkpoint(scratch.path());
    // One damaged place is before the checkpoint, two are behind it.
    let damaged = [bases[15], bases[24], bases[30]];
    damaged.iter().for_each(|base| damage(scratch.path(), *base));
    let report = inspect(scratch.path()).unwrap();
    let places: Vec<Lsn> = report
        .problems
        .iter()
        .map(|problem| match problem {
            OpenError::Damaged { lsn, .. } => *lsn,
            error => panic!("{error}"),
        })
        .collect();
    assert_eq!(places, damaged);
    let kept = bases.iter().filter(|base| **base >= report.first).count() as u64;
    assert_eq!(report.blocks, kept - 3);
    let error = verify(scratch.path()).unwrap_err();
    assert!(
        error.to_string().contains(&format!("position {}", bases[15])),
        "{error}"
    );
}

#[test]
fn directory_without_a_journal_is_an_error() {
    let scratch = Scratch::new();
    assert!(matches!(inspect(scratch.path()), Err(InspectError::Directory(_))));
    assert!(matches!(
        repair(scratch.path(), RepairMode::Repair),
        Err(InspectError::NoJournal { .. })
    ));
    drop(StorageDirectory::open(scratch.path(), DIRECTORY_NAME).unwrap());
    assert!(matches!(inspect(scratch.path()), Err(InspectError::NoJournal { .. })));
}

#[test]
fn repair_cuts_at_the_first_damage_and_saves_the_rest() {
    let scratch = Scratch::new();
    let bases = journal(scratch.path());
    damage(scratch.path(), bases[17]);
    damage(scratch.path(), bases[30]);
    let (cut_path, offset) = place(scratch.path(), bases[17]);
    let removed: Vec<PathBuf> = segments(scratch.path())
        .into_iter()
        .filter(|path| *path > cut_path)
        .collect();
    let before: Vec<Vec<u8>> = removed
        .iter()
        .chain([&cut_path])
        .map(|path| fs::read(path).unwrap())
        .collect();

    let plan = repair(scratch.path(), RepairMode::Plan).unwrap();
    assert_eq!(plan.cut, Some((name_of(&cut_path), offset as u64)));
    assert_eq!(
        plan.removed,
        removed.iter().map(|path| name_of(path)).collect::<Vec<_>>()
    );
    assert!(try_open(scratch.path()).is_err(), "a dry run changes nothing");

    let repaired = repair(scratch.path(), RepairMode::Repair).unwrap();
    let saved_to = repaired.saved_to.clone().unwrap();
    assert_eq!(saved_to, scratch.path().join("journal-damaged-1"));
    for (path, bytes) in removed.iter().chain([&cut_path]).zip(before) {
        assert_eq!(fs::read(saved_to.join(path.file_name().unwrap())).unwrap(), bytes);
    }
    let (mut log, replayed) = try_open(scratch.path()).unwrap();
    assert_eq!(replayed, (0..17).collect::<Vec<_>>());
    log.append(&mut batch(99));
    log.flush().unwrap();
    drop(log);
    assert_eq!(try_open(scratch.path()).unwrap().1.last(), Some(&99));
    assert!(repair(scratch.path(), RepairMode::Repair).unwrap().is_empty());
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Checks which batches are replayed after a repair. If data behind the checkpoint is lost, the batches before the
/// checkpoint are replayed, too, because the owner may not have rewritten all of them.
#[test]
fn every_kind_of_damage_can_be_repaired() {
    type Damage = fn(&Path, &[Lsn]);
    let cases: &[(&str, Damage, std::ops::Range<u32>)] = &[
        ("block", |directory, bases| damage(directory, bases[25]), 8..25),
        (
            "first block to be replayed",
            |directory, bases| damage(directory, bases[20]),
            8..20,
        ),
        (
            "header of the last segment",
            |directory, _| flip(segments(directory).last().unwrap(), 20),
            8..32,
        ),
        (
            "header of the segment with the checkpoint",
            |directory, bases| flip(&place(directory, bases[20]).0, 20),
            24..40,
        ),
        (
            "header before the checkpoint",
            |directory, bases| flip(&place(directory, bases[14]).0, 20),
            20..40,
        ),
        (
            "missing behind the checkpoint",
            |directory, bases| fs::remove_file(place(directory, bases[28]).0).unwrap(),
            8..24,
        ),
        (
            "missing before the checkpoint",
            |directory, bases| fs::remove_file(place(directory, bases[14]).0).unwrap(),
            20..40,
        ),
        (
            "missing with the checkpoint",
            |directory, bases| fs::remove_file(place(directory, bases[20]).0).unwrap(),
            24..40,
        ),
        (
            "checkpoint",
            |directory, _| flip(&directory.join("journal/checkpoint"), 30),
            8..40,
        ),
        (
            "all segments",
            |directory, _| {
                segments(directory)
                    .iter()
                    .for_each(|path| fs::remove_file(path).unwrap())
            },
            0..0,
        ),
    ];
    for (name, damage, expected) in cases {
        let scratch = Scratch::new();
        let bases = journal_with_checkpoint(scratch.path());
        damage(scratch.path(), &bases);
        let error = try_open(scratch.path())
            .err()
            .unwrap_or_else(|| panic!("{name}: the journal opens without a repair"));
        assert!(
            error.to_string().contains("tidewire journal repair --data-dir"),
            "{name}: {error}"
        );
        let repaired = repair(scratch.path(), RepairMode::Repair).unwrap();
        let (_, replayed) = try_open(scratch.path()).unwrap_or_else(|error| panic!("{name}: {repaired:?}: {error}"));
        assert_eq!(replayed, expected.clone().collect::<Vec<_>>(), "{name}: {repaired:?}");
        verify(scratch.path()).unwrap();
    }
}

#[test]
fn journal_in_use_is_not_repaired() {
    let scratch = Scratch::new();
    let log = try_open(scratch.path()).unwrap().0;
    assert!(matches!(
        repair(scratch.path(), RepairMode::Repair),
        Err(InspectError::Directory(_))
    ));
    drop(log);
}

#[test]
fn copy_contains_earlier_commits_and_opens() {
    let scratch = Scratch::new();
    let bases = journal_with_checkpoint(&scratch.path().join("a"));
    let target = scratch.path().join("b");
    let report = copy_to(&scratch.path().join("a"), &target).unwrap();
    assert_eq!(report.replay_from, Some(bases[20]));
    assert_eq!(try_open(&target).unwrap().1, (20..BATCHES).collect::<Vec<_>>());
    let again = copy_to(&scratch.path().join("a"), &target);
    assert!(matches!(again, Err(InspectError::TargetExists { .. })));
}

#[test]
fn later_changes_of_the_journal_do_not_affect_a_copy() {
    // Damage within a segment, and in a segment header. The repair makes the previous segment the last one.
    for (damaged, kept) in [(10, 10), (16, 16)] {
        let scratch = Scratch::new();
        let (original, copy) = (scratch.path().join("a"), scratch.path().join("b"));
        let bases = journal(&original);
        copy_to(&original, &copy).unwrap();
        let (path, offset) = place(&original, bases[damaged]);
        // The damage is written to a new file, because the copy may be a hard link to the old one.
        let mut bytes = fs::read(&path).unwrap();
        bytes[if kept == 16 { 20 } else { offset + 100 }] ^= 1;
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let before = contents(&copy);
        repair(&original, RepairMode::Repair).unwrap();
        let (mut log, replayed) = try_open(&original).unwrap();
        assert_eq!(replayed.len(), kept);
        assert!(contents(&copy) == before);
        log.append(&mut batch(99));
        log.flush().unwrap();
        assert!(contents(&copy) == before);
        assert_eq!(try_open(&copy).unwrap().1, (0..BATCHES).collect::<Vec<_>>());
    }
}

#[test]
fn damaged_journal_is_not_copied() {
    for number in [10, BATCHES as usize - 3] {
        let scratch = Scratch::new();
        let (original, copy) = (scratch.path().join("a"), scratch.path().join("b"));
        let bases = journal(&original);
        damage(&original, bases[number]);
        let error = copy_to(&original, &copy).unwrap_err();
        let (error, original) = (error.to_string(), original.display());
        assert!(error.contains("the journal is damaged"), "{error}");
        assert!(
            error.ends_with(&format!("--data-dir {original}")),
            "the partial copy is removed: {error}"
        );
        assert!(!copy.join("journal").exists());
    }
}

#[test]
fn copy_around_a_callback_includes_both_sides() {
    let scratch = Scratch::new();
    let (directory, target) = (scratch.path().join("a"), scratch.path().join("b"));
    let bases = journal_with_checkpoint(&directory);
    let mut end = Lsn(0);
    let copied = copy_around::<InspectError>(&directory, DIRECTORY_NAME, &target, || {
        // The records fill more than a segment. The earlier records are no longer needed.
        let (mut log, _) = try_open(&directory).unwrap();
        for number in 0..BATCHES {
            log.append(&mut batch(number));
        }
        log.flush().unwrap();
        end = log.committed();
        log.set_checkpoint(end).unwrap();
        log.truncate_before(bases[30]).unwrap();
        log.close().unwrap();
        Ok(())
    });
    let copied = copied.unwrap();
    assert_eq!(copied.replay_from, Some(bases[20]));
    assert!(copied.next >= end, "{copied:?}");
    assert!(
        inspect(&directory).unwrap().first > bases[20],
        "the log itself has removed these records"
    );
}

#[test]
fn inspect_and_copy_work_on_an_active_journal() {
    let scratch = Scratch::new();
    let directory = scratch.path().join("a");
    let journal = Journal::start(try_open(&directory).unwrap().0, || {}).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                write_some(&journal, &mut number);
            }
        });
        for round in 0..200 {
            let committed = journal.committed();
            let report = inspect(&directory);
            assert!(
                report.as_ref().is_ok_and(|report| report.problems.is_empty()),
                "{report:?}"
            );
            let target = scratch.path().join(format!("copy-{round}"));
            match copy_to(&directory, &target) {
                Ok(report) => assert!(report.next >= committed, "{} {committed}", report.next),
                Err(InspectError::SegmentsRemoved) => {}
                Err(error) => panic!("{error}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    journal.shut_down().unwrap();
}

fn write_some(journal: &Journal, number: &mut u32) {
    let mut appended = journal.append(&mut batch(*number));
    *number += 1;
    for _ in 0..20 {
        appended = journal.append(&mut batch(*number));
        *number += 1;
    }
    while journal.committed() < appended.end {
        std::thread::yield_now();
    }
    journal.set_checkpoint(appended.base, |result| result.unwrap());
    journal.truncate_before(appended.base, |result| assert!(result.is_ok()));
}

/// Creates a journal with a checkpoint at batch 28, in the fourth segment, and all segments before it.
fn journal_with_old_segments(directory: &Path) -> Vec<Lsn> {
    let bases = journal(directory);
    try_open(directory).unwrap().0.set_checkpoint(bases[28]).unwrap();
    bases
}

/// Returns the offset of a batch's only record, which follows the block's header.
fn record_of(base: Lsn) -> Lsn {
    position(base, BLOCK_HEADER_BYTES as u32)
}

/// Opening, inspection and repair give consistent results for a file that is cut at any position.
#[test]
fn cut_segment_before_the_checkpoint_is_tolerated() {
    let scratch = Scratch::new();
    let original = scratch.path().join("a");
    let bases = journal_with_old_segments(&original);
    let (path, offset) = place(&original, bases[12]);
    let whole = fs::read(&path).unwrap();
    assert!(segments(&original)[0] < path && place(&original, bases[16]).0 > path);
    for keep in [
        64 + 1,
        offset + 1,
        offset + 31,
        offset + 32,
        offset + 200,
        whole.len() - 1,
    ] {
        fs::write(&path, &whole[..keep]).unwrap();
        let report = inspect(&original).unwrap();
        let is_cut = |problem: &OpenError| matches!(problem, OpenError::Damaged { file, damage: Damage::Block(InvalidBlock::Cut), .. } if *file == name_of(&path));
        assert!(
            report.problems.len() == 1 && report.problems.iter().all(is_cut),
            "{keep}: {:?}",
            report.problems
        );
        assert!(repair(&original, RepairMode::Repair).unwrap().is_empty(), "{keep}");
        let (log, replayed) = try_open(&original).unwrap_or_else(|error| panic!("{keep}: {error}"));
        assert_eq!(replayed, (28..BATCHES).collect::<Vec<_>>());
        // Intact records on both sides of the gap can be read. Records in the gap are reported as damaged.
        let mut payload = Vec::new();
        for number in [3, 18, 27] {
            log.reader().read(record_of(bases[number]), &mut payload).unwrap();
            assert_eq!(payload[..4], (number as u32).to_le_bytes());
        }
        let gone = log.reader().read(record_of(bases[15]), &mut payload);
        assert!(matches!(gone, Err(ReadError::Damaged { .. })), "{keep}: {gone:?}");
    }
}

/// The repair preserves intact data before the checkpoint.
#[test]
fn repair_preserves_segments_around_a_cut_one() {
    let scratch = Scratch::new();
    let bases = journal_with_old_segments(scratch.path());
    let (path, offset) = place(scratch.path(), bases[12]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..offset + 100]).unwrap();
    damage(scratch.path(), bases[36]);
    let before = segments(scratch.path());
    let kept = before
        .iter()
        .filter(|segment| **segment <= place(scratch.path(), bases[36]).0);
    let kept: Vec<PathBuf> = kept.cloned().collect();
    repair(scratch.path(), RepairMode::Repair).unwrap();
    assert_eq!(segments(scratch.path()), kept);
    assert_eq!(
        try_open(scratch.path()).unwrap().1,
        (16..36).collect::<Vec<_>>(),
        "replay begins at the first segment behind the cut one"
    );
}

#[test]
fn segment_cut_before_the_replay_start_is_reported() {
    for is_last in [true, false] {
        let scratch = Scratch::new();
        let bases = journal(scratch.path());
        let number = if is_last { BATCHES as usize - 1 } else { 20 };
        let (path, offset) = place(scratch.path(), bases[number]);
        try_open(scratch.path())
            .unwrap()
            .0
            .set_checkpoint(bases[number])
            .unwrap();
        let begins_segment = offset == 64;
        assert!(!begins_segment, "the segment of the checkpoint has an earlier batch");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..offset - 10]).unwrap();
        let said = try_open(scratch.path()).err().unwrap().to_string();
        assert!(
            said.contains(&name_of(&path)) && said.contains("the file is truncated"),
            "{said}"
        );
        let found = verify(scratch.path()).unwrap_err().to_string();
        assert_eq!(found, said);
        repair(scratch.path(), RepairMode::Repair).unwrap();
        try_open(scratch.path()).unwrap();
        verify(scratch.path()).unwrap();
    }
}
