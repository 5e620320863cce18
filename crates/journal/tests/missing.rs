//! Tests journals whose newest files are missing or too short. They do not open until an operator accepts the loss.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::scratch::Scratch;
use tidewire_journal::inspect::{InspectError, RepairMode, inspect, repair};
use tidewire_journal::{
    DIRECTORY_NAME, Journal, LogBatch, LogConfig, OpenError, RecordLog, StorageDirectory, reached_position,
};

const BATCHES: u32 = 40;

fn try_open(directory: &Path) -> Result<(RecordLog, usize), OpenError> {
    let config = LogConfig {
        segment_bytes: 4096,
        max_bytes: 64 << 20,
        reserve_bytes: 0,
        ..LogConfig::default()
    };
    let storage = Arc::new(StorageDirectory::open(directory, DIRECTORY_NAME).unwrap());
    let mut records = 0;
    let mut replay = |_, _: &[u8]| {
        records += 1;
        Ok(())
    };
    let (log, _) = RecordLog::open(storage, config, &mut replay, &mut |_, _| {})?;
    Ok((log, records))
}

fn append(log: &mut RecordLog, count: u32) {
    for number in 0..count {
        let mut batch = LogBatch::new();
        batch.record(|bytes| bytes.extend([number as u8; 456]));
        log.append(&mut batch);
        log.flush().unwrap();
    }
}

/// Creates a journal and drops it, as a killed process does.
fn killed(directory: &Path, batches: u32) {
    append(&mut try_open(directory).unwrap().0, batches);
}

fn stopped(directory: &Path, batches: u32) {
    let (mut log, _) = try_open(directory).unwrap();
    append(&mut log, batches);
    log.close().unwrap();
}

#[test]
fn position_of_a_log_without_checkpoint_is_that_of_its_newest_segment() {
    let scratch = Scratch::new();
    let directory = scratch.path().join(DIRECTORY_NAME);
    assert_eq!(reached_position(&directory), None);
    stopped(scratch.path(), BATCHES);
    let stopped = reached_position(&directory).unwrap();
    let newest = segments(scratch.path()).pop().unwrap();
    let newest = newest.file_stem().unwrap().to_str().unwrap();
    fs::remove_file(directory.join("checkpoint")).unwrap();
    let without = reached_position(&directory).unwrap();
    assert_eq!(without.journal_id, stopped.journal_id);
    assert_eq!(format!("{:016x}", without.position.0), newest);
    fs::write(directory.join("checkpoint"), "damaged").unwrap();
    assert_eq!(reached_position(&directory), None);
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join(DIRECTORY_NAME)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    paths
}

/// Checks that neither opening nor verifying accepts the journal, and that it opens after a repair.
#[track_caller]
fn assert_loss_is_reported(directory: &Path) -> OpenError {
    let error = try_open(directory).err().expect("the journal was opened");
    let text = error.to_string();
    let command = format!("tidewire journal repair --data-dir {}", directory.display());
    assert!(text.contains(&command), "{text}");
    let report = inspect(directory).unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert_eq!(report.problems[0].to_string(), text);
    assert!(!repair(directory, RepairMode::Plan).unwrap().is_empty());
    assert!(try_open(directory).is_err(), "a dry run changes nothing");
    let repaired = repair(directory, RepairMode::Repair).unwrap();
    match repair(directory, RepairMode::Plan) {
        Ok(again) => assert!(again.is_empty(), "{again:?}"),
        Err(error) => assert!(
            repaired.is_emptied && matches!(error, InspectError::NoJournal { .. }),
            "{error}"
        ),
    }
    let (mut log, _) = try_open(directory).unwrap();
    append(&mut log, BATCHES);
    drop(log);
    assert!(inspect(directory).unwrap().problems.is_empty());
    try_open(directory).unwrap();
    error
}

#[test]
fn missing_last_segment_is_reported() {
    for create in [killed, stopped] {
        let scratch = Scratch::new();
        create(scratch.path(), BATCHES);
        let last = segments(scratch.path()).pop().unwrap();
        fs::remove_file(&last).unwrap();
        let error = assert_loss_is_reported(scratch.path());
        assert!(
            matches!(&error, OpenError::SegmentMissing { file, .. } if last.ends_with(file)),
            "{error}"
        );
    }
}

#[test]
fn missing_only_segment_is_reported() {
    for create in [killed, stopped] {
        let scratch = Scratch::new();
        create(scratch.path(), 2);
        fs::remove_file(&segments(scratch.path())[0]).unwrap();
        let error = assert_loss_is_reported(scratch.path());
        assert!(matches!(error, OpenError::SegmentMissing { .. }), "{error}");
    }
}

/// The file ends at the end of a block, so its contents do not show that anything is missing.
#[test]
fn last_segment_that_lost_whole_blocks_is_reported() {
    for has_zeros in [false, true] {
        let scratch = Scratch::new();
        killed(scratch.path(), 3);
        let earlier = inspect(scratch.path()).unwrap().next;
        stopped(scratch.path(), 3);
        let path = segments(scratch.path()).pop().unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let bytes = file.metadata().unwrap().len();
        file.set_len(64 + earlier.0).unwrap();
        if has_zeros {
            file.set_len(bytes).unwrap();
        }
        let error = assert_loss_is_reported(scratch.path());
        assert_eq!(
            matches!(error, OpenError::EndMissing { lsn, .. } if lsn == earlier),
            !has_zeros,
            "{error}"
        );
    }
}

#[test]
fn threads_record_the_end_when_they_stop() {
    let scratch = Scratch::new();
    let journal = Journal::start(try_open(scratch.path()).unwrap().0, || {}).unwrap();
    let mut batch = LogBatch::new();
    batch.record(|bytes| bytes.extend([1; 100]));
    journal.append(&mut batch);
    journal.shut_down().unwrap();
    let path = &segments(scratch.path())[0];
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(64)
        .unwrap();
    assert!(matches!(
        assert_loss_is_reported(scratch.path()),
        OpenError::EndMissing { .. }
    ));
}

/// An earlier version wrote neither the name of the newest segment nor how far the log was synced.
#[test]
fn journal_of_an_earlier_version_opens() {
    let scratch = Scratch::new();
    killed(scratch.path(), BATCHES);
    for entry in fs::read_dir(scratch.path().join(DIRECTORY_NAME)).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("newest-") {
            fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(try_open(scratch.path()).unwrap().1, BATCHES as usize);
    fs::remove_file(segments(scratch.path()).pop().unwrap()).unwrap();
    assert_loss_is_reported(scratch.path());
}
