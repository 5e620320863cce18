//! Tests a full disk that gets space again, and a disk that fails permanently.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use storage::model::{DiskFault, ModelDisk};
use tidewire_journal::{Appended, FlushError, FlushPolicy, Journal, LogBatch, LogConfig, LogState, Lsn, RecordLog};

const SEGMENT_BYTES: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

fn config() -> LogConfig {
    LogConfig {
        policy: FlushPolicy::Fsync,
        segment_bytes: SEGMENT_BYTES,
        max_bytes: 1 << 30,
        reserve_bytes: 0,
        ..LogConfig::default()
    }
}

fn open(disk: &ModelDisk, config: LogConfig) -> RecordLog {
    RecordLog::open(disk.storage(), config, &mut |_, _| Ok(()), &mut |_, _| {})
        .unwrap()
        .0
}

fn replayed(disk: &ModelDisk) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    let mut replay = |_, payload: &[u8]| {
        payloads.push(payload.to_vec());
        Ok(())
    };
    RecordLog::open(disk.storage(), config(), &mut replay, &mut |_, _| {}).unwrap();
    payloads
}

fn append(log: &mut RecordLog, number: u8) -> Appended {
    let mut batch = LogBatch::new();
    batch.record(|bytes| bytes.extend([number; 1000]));
    log.append(&mut batch)
}

fn is_full(state: &LogState) -> bool {
    matches!(state, LogState::Full { .. })
}

/// Appends and flushes until the log reports that it is full.
fn fill(log: &mut RecordLog) -> Vec<u8> {
    let mut numbers = Vec::new();
    while log.state() == LogState::Ok {
        numbers.push(numbers.len() as u8);
        append(log, numbers.len() as u8 - 1);
        log.flush().expect("a log that is not full accepts records");
    }
    numbers
}

fn payloads(numbers: &[u8]) -> Vec<Vec<u8>> {
    numbers.iter().map(|&number| vec![number; 1000]).collect()
}

// fault: Disk full; Journal
#[test]
fn log_is_full_before_an_append_blocks_and_recovers() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    disk.set_free_bytes(3 * SEGMENT_BYTES);
    let mut numbers = fill(&mut log);
    assert!(is_full(&log.state()), "{:?}", log.state());
    // The former spare segment has space for three batches and contains one.
    for number in 100..102 {
        append(&mut log, number);
        log.flush().unwrap();
        numbers.push(number);
    }
    let committed = log.committed();
    let waiting = append(&mut log, 102);
    assert!(matches!(log.flush(), Err(FlushError::Full { .. })));
    assert_eq!(log.committed(), committed);
    disk.set_free_bytes(10 * SEGMENT_BYTES);
    log.flush().unwrap();
    numbers.push(102);
    assert_eq!((log.state(), log.committed()), (LogState::Ok, waiting.end));
    drop(log);
    assert_eq!(replayed(&disk), payloads(&numbers));
}

// fault: Disk full; Journal
#[test]
fn disk_reserve_is_not_used() {
    let disk = ModelDisk::from_seed(1);
    let reserve_bytes = 100 * SEGMENT_BYTES;
    let mut log = open(
        &disk,
        LogConfig {
            reserve_bytes,
            ..config()
        },
    );
    disk.set_free_bytes(reserve_bytes + SEGMENT_BYTES);
    fill(&mut log);
    let LogState::Full { reason: because } = log.state() else {
        panic!("{:?}", log.state());
    };
    assert!(because.contains("bytes free, but the next segment needs"), "{because}");
    // Slightly more than the reserve is not enough, because the next segment would exceed it again.
    disk.set_free_bytes(reserve_bytes + 2 * SEGMENT_BYTES);
    log.flush().unwrap();
    assert!(is_full(&log.state()));
    disk.set_free_bytes(reserve_bytes + 20 * SEGMENT_BYTES);
    log.flush().unwrap();
    assert_eq!(log.state(), LogState::Ok);
}

#[test]
fn full_quota_recovers_when_a_tenth_is_free() {
    let disk = ModelDisk::from_seed(1);
    let max_bytes = 20 * SEGMENT_BYTES;
    let mut log = open(&disk, LogConfig { max_bytes, ..config() });
    fill(&mut log);
    assert!(log.stats().file_bytes <= max_bytes);
    let LogState::Full { reason: because } = log.state() else {
        panic!("{:?}", log.state());
    };
    assert_eq!(
        because,
        format!("the journal has reached its limit of {max_bytes} bytes")
    );
    let segments = log.stats().segments;
    log.set_checkpoint(log.committed()).unwrap();
    // One free segment is less than a tenth.
    let second = Lsn(log.stats().first.0 + SEGMENT_BYTES);
    assert_eq!(log.truncate_before(second).unwrap(), 1);
    log.flush().unwrap();
    assert!(is_full(&log.state()));
    assert_eq!(u64::from(log.truncate_before(log.committed()).unwrap()), segments - 2);
    log.flush().unwrap();
    assert_eq!(log.state(), LogState::Ok);
}

/// Records that free space must be written to a full log. Otherwise it would stay full.
#[test]
fn appends_to_a_full_log_exceed_quota_and_reserve() {
    let disk = ModelDisk::from_seed(1);
    let max_bytes = 20 * SEGMENT_BYTES;
    let config = LogConfig { max_bytes, ..config() };
    let mut log = open(&disk, config.clone());
    fill(&mut log);
    for number in 0..200 {
        let end = append(&mut log, number).end;
        log.flush().unwrap();
        assert_eq!(log.committed(), end);
        assert!(is_full(&log.state()));
    }
    let mut large = LogBatch::new();
    large.record(|bytes| bytes.resize(3 * SEGMENT_BYTES as usize, 7));
    let end = log.append(&mut large).end;
    log.flush().unwrap();
    assert_eq!(log.committed(), end);
    assert!(is_full(&log.state()));
    let stats = log.stats();
    assert!(stats.file_bytes / stats.segments >= SEGMENT_BYTES / 2, "{stats:?}");
    log.set_checkpoint(end).unwrap();
    log.truncate_before(end).unwrap();
    log.flush().unwrap();
    assert_eq!(log.state(), LogState::Ok);
    assert!(log.stats().file_bytes <= max_bytes);
    drop(log);
    assert_eq!(open(&disk, config).committed(), end);
}

// fault: Disk full; Journal
#[test]
fn write_without_space_is_retried_until_it_succeeds() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    let before = append(&mut log, 1);
    log.flush().unwrap();
    disk.fail(DiskFault::NoSpace, 0);
    let after = append(&mut log, 2);
    for _ in 0..3 {
        assert!(matches!(log.flush(), Err(FlushError::Full { .. })));
        assert!(is_full(&log.state()));
        assert_eq!(log.committed(), before.end);
    }
    disk.clear_faults();
    log.flush().unwrap();
    assert_eq!((log.state(), log.committed()), (LogState::Ok, after.end));
    drop(log);
    assert_eq!(replayed(&disk), payloads(&[1, 2]));
}

// fault: Write or sync fails; Journal
#[test]
fn failed_write_or_sync_is_permanent_and_not_retried() {
    for fault in [DiskFault::Write, DiskFault::Sync] {
        let disk = ModelDisk::from_seed(1);
        let mut log = open(&disk, config());
        let before = append(&mut log, 1);
        log.flush().unwrap();
        // The disk fails once; later operations would succeed.
        disk.fail(fault, 0);
        append(&mut log, 2);
        let Err(FlushError::Failed { reason: because }) = log.flush() else {
            panic!("{fault:?} was not detected");
        };
        assert!(
            because.contains("0000000000000000.log") && because.contains("os error 5"),
            "{because}"
        );
        let calls = disk.calls();
        append(&mut log, 3);
        for result in [log.flush(), log.sync()] {
            assert_eq!(
                result,
                Err(FlushError::Failed {
                    reason: because.clone()
                })
            );
        }
        log.set_checkpoint(before.end).unwrap_err();
        log.truncate_before(before.end).unwrap_err();
        assert_eq!(disk.calls(), calls, "a failed log does not access the disk");
        assert_eq!(log.committed(), before.end);
        assert_eq!(log.state(), LogState::Failed { reason: because });
    }
}

// fault: Write or sync fails; Journal
#[test]
fn failed_sync_of_the_checkpoint_is_permanent() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    let end = append(&mut log, 1).end;
    log.flush().unwrap();
    disk.fail(DiskFault::Sync, 0);
    log.set_checkpoint(end).unwrap_err();
    assert!(matches!(log.state(), LogState::Failed { .. }));
}

/// The next process sees the new checkpoint, but a crash may still revert it.
#[test]
fn segments_stay_until_the_checkpoint_is_durable() {
    for seed in 0..64 {
        let disk = ModelDisk::from_seed(seed);
        let mut log = open(&disk, config());
        for number in 0..20 {
            append(&mut log, number);
            log.flush().unwrap();
        }
        let end = log.committed();
        log.set_checkpoint(end).unwrap();
        // This is the sync of the directory, which follows that of the file.
        disk.fail(DiskFault::Sync, 1);
        log.truncate_before(end).unwrap_err();
        drop(log);
        disk.fail(DiskFault::PowerCut, seed % 8);
        let _ = RecordLog::open(disk.storage(), config(), &mut |_, _| Ok(()), &mut |_, _| {});
        disk.power_cut();
        assert_eq!(open(&disk, config()).committed(), end);
    }
}

// fault: Disk full; Journal
#[test]
fn checkpoint_without_space_preserves_the_old_one() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    let end = append(&mut log, 1).end;
    log.flush().unwrap();
    disk.fail(DiskFault::NoSpace, 0);
    log.set_checkpoint(end).unwrap_err();
    assert_eq!((log.state(), log.stats().replay_from), (LogState::Ok, Lsn(0)));
    disk.clear_faults();
    log.set_checkpoint(end).unwrap();
    assert_eq!(log.stats().replay_from, end);
}

#[test]
fn checkpoint_must_be_at_a_committed_batch() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    let (first, second) = (append(&mut log, 1), append(&mut log, 2));
    log.set_checkpoint(second.base).unwrap_err();
    log.flush().unwrap();
    for wrong in [second.base.0 + 1, second.base.0 + 32, second.end.0 + 1, u64::MAX] {
        let error = log.set_checkpoint(Lsn(wrong)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{wrong}");
    }
    for right in [first.base, second.base, second.end] {
        log.set_checkpoint(right).unwrap();
    }
}

// fault: Disk full; Journal
#[test]
fn existing_log_opens_on_a_full_disk() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    append(&mut log, 1);
    log.flush().unwrap();
    drop(log);
    disk.set_free_bytes(0);
    disk.remove_file("spare");
    let mut log = open(&disk, config());
    assert!(is_full(&log.state()));
    append(&mut log, 2);
    log.flush().unwrap();
    drop(log);
    assert_eq!(replayed(&disk), payloads(&[1, 2]));
}

// fault: Disk full; Journal
#[test]
fn journal_continues_by_itself_when_space_returns() {
    let disk = ModelDisk::from_seed(1);
    let log = open(&disk, config());
    let (changed, changes) = channel();
    let on_commit = move || {
        // At the end of the test the receiver is closed.
        let _ = changed.send(());
    };
    let journal = Journal::start(log, on_commit).unwrap();
    disk.fail(DiskFault::NoSpace, 0);
    let mut batch = LogBatch::new();
    batch.record(|bytes| bytes.extend([1; 1000]));
    let end = journal.append(&mut batch).end;
    let wait_until = |is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            changes.recv_timeout(deadline - Instant::now()).unwrap();
        }
    };
    wait_until(&|| is_full(&journal.state()));
    assert_eq!(journal.backlog_bytes() as u64, end.0);
    disk.clear_faults();
    wait_until(&|| journal.state() == LogState::Ok && journal.committed() == end);
    journal.shut_down().unwrap();
}

// fault: Write or sync fails; Journal
#[test]
fn failed_or_full_journal_shuts_down() {
    for fault in [DiskFault::Sync, DiskFault::NoSpace] {
        let disk = ModelDisk::from_seed(1);
        let journal = Journal::start(open(&disk, config()), || {}).unwrap();
        disk.fail(fault, 0);
        let mut batch = LogBatch::new();
        batch.record(|bytes| bytes.push(1));
        journal.append(&mut batch);
        let clone = journal.clone();
        journal.shut_down().unwrap_err();
        assert_eq!(clone.committed(), Lsn(0));
        let (done, answer) = channel();
        clone.set_checkpoint(Lsn(0), move |result| done.send(result).unwrap());
        answer.recv_timeout(PATIENCE).unwrap().unwrap_err();
        clone.shut_down().unwrap();
    }
}

#[test]
fn os_policy_syncs_in_the_background() {
    let disk = ModelDisk::from_seed(1);
    let config = LogConfig {
        policy: FlushPolicy::Os,
        ..config()
    };
    let journal = Journal::start(open(&disk, config), || {}).unwrap();
    let mut batch = LogBatch::new();
    batch.record(|bytes| bytes.push(1));
    let end = journal.append(&mut batch).end;
    let deadline = Instant::now() + PATIENCE;
    while journal.stats().synced < end {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    // The record survives a clean and an unclean end.
    disk.power_cut();
    assert_eq!(replayed(&disk), [[1]]);
}

#[test]
fn os_policy_commits_on_write_and_syncs_later() {
    let disk = ModelDisk::from_seed(1);
    let config = LogConfig {
        policy: FlushPolicy::Os,
        ..config()
    };
    let mut log = open(&disk, config);
    let end = append(&mut log, 1).end;
    log.flush().unwrap();
    assert_eq!((log.committed(), log.synced()), (end, Lsn(0)));
    log.sync().unwrap();
    assert_eq!(log.synced(), end);
}

/// After a checkpoint is set, the rewritten records behind it are the only copy.
#[test]
fn records_behind_a_checkpoint_are_synced_with_every_policy() {
    for seed in 0..20 {
        let disk = ModelDisk::from_seed(seed);
        let os = LogConfig {
            policy: FlushPolicy::Os,
            ..config()
        };
        let mut log = open(&disk, os);
        append(&mut log, 1);
        log.flush().unwrap();
        let replay_from = log.committed();
        log.sync().unwrap();
        append(&mut log, 2);
        log.flush().unwrap();
        log.set_checkpoint(replay_from).unwrap();
        drop(log);
        disk.power_cut();
        assert_eq!(replayed(&disk), payloads(&[2]), "seed {seed}");
    }
}

/// The preallocated space of a larger segment counts against the quota. It stays unused if the log accepts no records.
#[test]
fn empty_log_with_a_large_last_segment_is_not_full() {
    for used in [0, 3] {
        let disk = ModelDisk::from_seed(1);
        let mut log = open(
            &disk,
            LogConfig {
                segment_bytes: 16 * SEGMENT_BYTES,
                ..config()
            },
        );
        let numbers: Vec<u8> = (0..used).collect();
        for number in &numbers {
            append(&mut log, *number);
            log.flush().unwrap();
        }
        drop(log);
        let smaller = LogConfig {
            max_bytes: 16 * SEGMENT_BYTES,
            ..config()
        };
        let mut log = open(&disk, smaller.clone());
        assert_eq!(log.state(), LogState::Ok);
        assert!(log.stats().file_bytes <= 2 * SEGMENT_BYTES, "{:?}", log.stats());
        append(&mut log, 9);
        log.flush().unwrap();
        drop(log);
        // A crash at this point leaves no torn tail.
        let log = open(&disk, smaller);
        assert_eq!(log.state(), LogState::Ok);
        drop(log);
        let expected: Vec<u8> = numbers.into_iter().chain([9]).collect();
        assert_eq!(replayed(&disk), payloads(&expected));
    }
}
