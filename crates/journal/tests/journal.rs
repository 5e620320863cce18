//! Tests the journal with its threads in a real directory.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::scratch::Scratch;
use tidewire_journal::{
    DIRECTORY_NAME, DirectoryError, FlushPolicy, Journal, LogBatch, LogConfig, LogReader, LogState, Lsn, ReadError,
    RecordLog, StorageDirectory, position,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 64 << 10,
        max_bytes: 64 << 20,
        reserve_bytes: 0,
        ..LogConfig::default()
    }
}

/// Opens the log in `directory`. Returns it with the replayed payloads.
fn open(directory: &Path, config: LogConfig) -> (RecordLog, Vec<(Lsn, Vec<u8>)>) {
    let storage = Arc::new(StorageDirectory::open(directory, DIRECTORY_NAME).unwrap());
    let mut replayed = Vec::new();
    let mut replay = |position, payload: &[u8]| {
        replayed.push((position, payload.to_vec()));
        Ok(())
    };
    let (log, _) = RecordLog::open(storage, config, &mut replay, &mut |_, _| {}).unwrap();
    (log, replayed)
}

/// Opens a journal. Returns it with a channel that signals changes.
fn start(log: RecordLog) -> (Journal, Receiver<()>) {
    let (changed, changes) = channel();
    let on_commit = move || {
        // At the end of a test the receiver is closed.
        let _ = changed.send(());
    };
    (Journal::start(log, on_commit).unwrap(), changes)
}

fn wait_for_commit(journal: &Journal, changes: &Receiver<()>, end: Lsn) {
    let deadline = Instant::now() + PATIENCE;
    while journal.committed() < end {
        changes.recv_timeout(deadline - Instant::now()).unwrap();
    }
}

fn batch_of(payloads: &[&[u8]]) -> (LogBatch, Vec<u32>) {
    let mut batch = LogBatch::new();
    let offsets = payloads
        .iter()
        .map(|payload| batch.record(|bytes| bytes.extend_from_slice(payload)))
        .collect();
    (batch, offsets)
}

fn read(reader: &LogReader, position: Lsn) -> Result<Vec<u8>, ReadError> {
    let mut payload = Vec::new();
    reader.read(position, &mut payload).map(|()| payload)
}

#[test]
fn committed_records_are_read_and_replayed() {
    for policy in [FlushPolicy::Fsync, FlushPolicy::Os] {
        let scratch = Scratch::new();
        let config = LogConfig { policy, ..config() };
        let (journal, changes) = start(open(scratch.path(), config.clone()).0);
        let (mut batch, offsets) = batch_of(&[b"one", b"", b"three"]);
        let appended = journal.append(&mut batch);
        assert!(batch.is_empty());
        wait_for_commit(&journal, &changes, appended.end);
        assert_eq!(journal.backlog_bytes(), 0);
        assert_eq!(journal.state(), LogState::Ok);
        let positions: Vec<Lsn> = offsets.iter().map(|&offset| position(appended.base, offset)).collect();
        assert_eq!(read(&journal.reader(), positions[2]).unwrap(), b"three");
        journal.shut_down().unwrap();
        let (_, replayed) = open(scratch.path(), config);
        let expected: Vec<_> = positions
            .into_iter()
            .zip([b"one".to_vec(), b"".to_vec(), b"three".to_vec()])
            .collect();
        assert_eq!(replayed, expected);
    }
}

#[test]
fn concurrent_appends_keep_the_order_of_each_thread() {
    const THREADS: u8 = 4;
    const BATCHES: u32 = 500;
    let scratch = Scratch::new();
    let (journal, changes) = start(open(scratch.path(), config()).0);
    let ends: Vec<Lsn> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let journal = journal.clone();
                scope.spawn(move || append_numbered(&journal, thread, BATCHES))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    wait_for_commit(&journal, &changes, ends.into_iter().max().unwrap());
    let stats = journal.stats();
    assert!(
        stats.segments > 2 && stats.flushes < u64::from(THREADS) * u64::from(BATCHES),
        "{stats:?}"
    );
    assert_eq!(journal.commit_bytes().sum, stats.appended_bytes);
    journal.shut_down().unwrap();
    let (_, replayed) = open(scratch.path(), config());
    for thread in 0..THREADS {
        let of_thread = replayed.iter().filter(|(_, payload)| payload[0] == thread);
        let numbers: Vec<u32> = of_thread
            .map(|(_, payload)| u32::from_le_bytes(payload[1..5].try_into().unwrap()))
            .collect();
        assert_eq!(numbers, (0..BATCHES).collect::<Vec<_>>());
    }
}

fn append_numbered(journal: &Journal, thread: u8, batches: u32) -> Lsn {
    let mut batch = LogBatch::new();
    let mut end = Lsn(0);
    for number in 0..batches {
        batch.record(|bytes| {
            bytes.push(thread);
            bytes.extend(number.to_le_bytes());
            bytes.resize(200, thread);
        });
        end = journal.append(&mut batch).end;
    }
    end
}

#[test]
fn batches_of_any_size_are_replayed() {
    let scratch = Scratch::new();
    let (mut log, _) = open(scratch.path(), config());
    let sizes = [200_000, 1, 65_000, 66_000, 300_000, 0, 70_000];
    for size in sizes {
        let payload = vec![size as u8; size];
        log.append(&mut batch_of(&[&payload]).0);
    }
    log.flush().unwrap();
    let segments = log.stats().segments;
    drop(log);
    let (log, replayed) = open(scratch.path(), config());
    assert_eq!(log.stats().segments, segments);
    assert_eq!(
        replayed.iter().map(|(_, payload)| payload.len()).collect::<Vec<_>>(),
        sizes
    );
}

#[test]
fn replay_begins_at_the_checkpoint() {
    let scratch = Scratch::new();
    let (mut log, _) = open(scratch.path(), config());
    let payload = [7; 10_000];
    let mut bases = Vec::new();
    for _ in 0..50 {
        bases.push(log.append(&mut batch_of(&[&payload]).0).base);
        log.flush().unwrap();
    }
    assert!(log.set_checkpoint(Lsn(bases[40].0 + 1)).is_err());
    log.set_checkpoint(bases[40]).unwrap();
    let removed = log.truncate_before(log.committed()).unwrap();
    let stats = log.stats();
    assert!(
        removed >= 5 && stats.first > Lsn(0) && stats.first <= bases[40],
        "{removed} {stats:?}"
    );
    let gone = read(&log.reader(), position(bases[0], 32));
    assert!(matches!(gone, Err(ReadError::Removed { .. })), "{gone:?}");
    drop(log);
    let (log, replayed) = open(scratch.path(), config());
    assert_eq!(replayed.len(), 10);
    assert_eq!(log.stats().first, stats.first);
}

#[test]
fn checkpoint_waits_until_its_batch_is_synced() {
    for policy in [FlushPolicy::Fsync, FlushPolicy::Os] {
        let scratch = Scratch::new();
        let config = LogConfig { policy, ..config() };
        let (mut log, _) = open(scratch.path(), config.clone());
        log.append(&mut batch_of(&[b"before"]).0);
        log.flush().unwrap();
        let index = log.append(&mut batch_of(&[b"index"]).0);
        log.set_checkpoint_at(index).unwrap_err();
        log.append(&mut batch_of(&[b"after"]).0);
        log.flush().unwrap();
        log.set_checkpoint_at(index).unwrap();
        drop(log);
        let (_, replayed) = open(scratch.path(), config);
        let payloads: Vec<&[u8]> = replayed.iter().map(|(_, payload)| &payload[..]).collect();
        assert_eq!(payloads, [&b"index"[..], b"after"], "{policy:?}");
    }
}

#[test]
fn fetched_records_follow_the_requested_order() {
    let scratch = Scratch::new();
    let (journal, changes) = start(open(scratch.path(), config()).0);
    let payloads: Vec<Vec<u8>> = (0..100_u8).map(|number| vec![number; 3000]).collect();
    let mut positions = Vec::new();
    let mut end = Lsn(0);
    for payload in &payloads {
        let (mut batch, offsets) = batch_of(&[payload]);
        let appended = journal.append(&mut batch);
        positions.push(position(appended.base, offsets[0]));
        end = appended.end;
    }
    wait_for_commit(&journal, &changes, end);
    positions.reverse();
    positions.push(end);
    let (done, answers) = channel();
    journal.fetch(positions, move |fetched| done.send(fetched).unwrap());
    let fetched = answers.recv_timeout(PATIENCE).unwrap();
    for (fetched, payload) in fetched.iter().zip(payloads.iter().rev()) {
        assert_eq!(fetched.as_ref().unwrap(), payload);
    }
    assert!(matches!(fetched[100], Err(ReadError::NotWritten { .. })));
    journal.shut_down().unwrap();
}

#[test]
fn second_opening_is_rejected_with_a_reason() {
    let scratch = Scratch::new();
    let first = StorageDirectory::open(scratch.path(), DIRECTORY_NAME).unwrap();
    let Err(error) = StorageDirectory::open(scratch.path(), DIRECTORY_NAME) else {
        panic!("the journal was opened twice");
    };
    assert!(matches!(error, DirectoryError::InUse { .. }));
    assert!(
        error.to_string().contains("another process uses the journal"),
        "{error}"
    );
    drop(StorageDirectory::open_read_only(scratch.path(), DIRECTORY_NAME).unwrap());
    drop(first);
    StorageDirectory::open(scratch.path(), DIRECTORY_NAME).unwrap();
}
