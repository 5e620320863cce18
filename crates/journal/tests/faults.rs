//! A disk that is full and comes back, and one that fails for good.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use storage::model::{Fault, ModelDisk};
use tidewire_journal::{Appended, Batch, FlushError, Journal, Log, LogConfig, Lsn, Policy, State};

const SEGMENT_BYTES: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

fn config() -> LogConfig {
    LogConfig {
        policy: Policy::Fsync,
        segment_bytes: SEGMENT_BYTES,
        max_bytes: 1 << 30,
        reserve_bytes: 0,
    }
}

fn open(disk: &ModelDisk, config: LogConfig) -> Log {
    Log::open(disk.storage(), config, &mut |_, _| Ok(()), &mut |_, _| {})
        .unwrap()
        .0
}

fn replayed(disk: &ModelDisk) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    let mut replay = |_, payload: &[u8]| {
        payloads.push(payload.to_vec());
        Ok(())
    };
    Log::open(disk.storage(), config(), &mut replay, &mut |_, _| {}).unwrap();
    payloads
}

fn append(log: &mut Log, number: u8) -> Appended {
    let mut batch = Batch::new();
    batch.record(|bytes| bytes.extend([number; 1000]));
    log.append(&mut batch)
}

fn is_full(state: &State) -> bool {
    matches!(state, State::Full { .. })
}

/// Appends and flushes until the log says that it is full.
fn fill(log: &mut Log) -> Vec<u8> {
    let mut numbers = Vec::new();
    while log.state() == State::Ok {
        numbers.push(numbers.len() as u8);
        append(log, numbers.len() as u8 - 1);
        log.flush().expect("a log that is not yet full takes what comes");
    }
    numbers
}

fn payloads(numbers: &[u8]) -> Vec<Vec<u8>> {
    numbers.iter().map(|&number| vec![number; 1000]).collect()
}

#[test]
fn a_log_is_full_before_an_append_has_to_wait_and_recovers_by_itself() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    disk.set_free_bytes(3 * SEGMENT_BYTES);
    let mut numbers = fill(&mut log);
    assert!(is_full(&log.state()), "{:?}", log.state());
    // There is room for three batches in the segment that was the spare one; one of them is there.
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
    assert_eq!((log.state(), log.committed()), (State::Ok, waiting.end));
    drop(log);
    assert_eq!(replayed(&disk), payloads(&numbers));
}

#[test]
fn the_reserve_of_the_disk_is_left_alone() {
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
    let State::Full { because } = log.state() else {
        panic!("{:?}", log.state());
    };
    assert!(because.contains("are to be left alone"), "{because}");
    // A little more than the reserve is not enough: it would be full again with the next segment.
    disk.set_free_bytes(reserve_bytes + 2 * SEGMENT_BYTES);
    log.flush().unwrap();
    assert!(is_full(&log.state()));
    disk.set_free_bytes(reserve_bytes + 20 * SEGMENT_BYTES);
    log.flush().unwrap();
    assert_eq!(log.state(), State::Ok);
}

#[test]
fn the_quota_holds_and_ends_when_a_tenth_of_it_is_free() {
    let disk = ModelDisk::from_seed(1);
    let max_bytes = 20 * SEGMENT_BYTES;
    let mut log = open(&disk, LogConfig { max_bytes, ..config() });
    fill(&mut log);
    assert!(log.stats().file_bytes <= max_bytes);
    let State::Full { because } = log.state() else {
        panic!("{:?}", log.state());
    };
    assert_eq!(
        because,
        format!("the journal has reached its limit of {max_bytes} bytes")
    );
    let segments = log.stats().segments;
    log.set_checkpoint(log.committed()).unwrap();
    // One segment less is not yet a tenth.
    let second = Lsn(log.stats().first.0 + SEGMENT_BYTES);
    assert_eq!(log.truncate_before(second).unwrap(), 1);
    log.flush().unwrap();
    assert!(is_full(&log.state()));
    assert_eq!(u64::from(log.truncate_before(log.committed()).unwrap()), segments - 2);
    log.flush().unwrap();
    assert_eq!(log.state(), State::Ok);
}

/// What tidies up has to be written, or there would never be room again.
#[test]
fn what_is_appended_to_a_full_log_is_written_beyond_quota_and_reserve() {
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
    let mut large = Batch::new();
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
    assert_eq!(log.state(), State::Ok);
    assert!(log.stats().file_bytes <= max_bytes);
    drop(log);
    assert_eq!(open(&disk, config).committed(), end);
}

#[test]
fn a_write_without_space_is_tried_again_until_there_is_some() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    let before = append(&mut log, 1);
    log.flush().unwrap();
    disk.fail(Fault::NoSpace, 0);
    let after = append(&mut log, 2);
    for _ in 0..3 {
        assert!(matches!(log.flush(), Err(FlushError::Full { .. })));
        assert!(is_full(&log.state()));
        assert_eq!(log.committed(), before.end);
    }
    disk.heal();
    log.flush().unwrap();
    assert_eq!((log.state(), log.committed()), (State::Ok, after.end));
    drop(log);
    assert_eq!(replayed(&disk), payloads(&[1, 2]));
}

#[test]
fn a_failed_write_or_sync_is_for_good_and_never_tried_again() {
    for fault in [Fault::Write, Fault::Sync] {
        let disk = ModelDisk::from_seed(1);
        let mut log = open(&disk, config());
        let before = append(&mut log, 1);
        log.flush().unwrap();
        // The disk fails once; what comes after would succeed.
        disk.fail(fault, 0);
        append(&mut log, 2);
        let Err(FlushError::Failed { because }) = log.flush() else {
            panic!("{fault:?} was not noticed");
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
                    because: because.clone()
                })
            );
        }
        log.set_checkpoint(before.end).unwrap_err();
        log.truncate_before(before.end).unwrap_err();
        assert_eq!(disk.calls(), calls, "a log that has failed leaves the disk alone");
        assert_eq!(log.committed(), before.end);
        assert_eq!(log.state(), State::Failed { because });
    }
}

#[test]
fn a_failed_sync_of_the_checkpoint_is_for_good() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    let end = append(&mut log, 1).end;
    log.flush().unwrap();
    disk.fail(Fault::Sync, 0);
    log.set_checkpoint(end).unwrap_err();
    assert!(matches!(log.state(), State::Failed { .. }));
}

/// The process after the failure sees the new checkpoint, which a crash may still take back.
#[test]
fn segments_are_not_removed_for_a_checkpoint_that_is_not_durable() {
    for seed in 0..64 {
        let disk = ModelDisk::from_seed(seed);
        let mut log = open(&disk, config());
        for number in 0..20 {
            append(&mut log, number);
            log.flush().unwrap();
        }
        let end = log.committed();
        log.set_checkpoint(end).unwrap();
        // The sync of the directory, after that of the file.
        disk.fail(Fault::Sync, 1);
        log.truncate_before(end).unwrap_err();
        drop(log);
        disk.fail(Fault::PowerCut, seed % 8);
        let _ = Log::open(disk.storage(), config(), &mut |_, _| Ok(()), &mut |_, _| {});
        disk.power_cut();
        assert_eq!(open(&disk, config()).committed(), end);
    }
}

#[test]
fn a_checkpoint_without_space_leaves_the_old_one() {
    let disk = ModelDisk::from_seed(1);
    let mut log = open(&disk, config());
    let end = append(&mut log, 1).end;
    log.flush().unwrap();
    disk.fail(Fault::NoSpace, 0);
    log.set_checkpoint(end).unwrap_err();
    assert_eq!((log.state(), log.stats().replay_from), (State::Ok, Lsn(0)));
    disk.heal();
    log.set_checkpoint(end).unwrap();
    assert_eq!(log.stats().replay_from, end);
}

#[test]
fn a_checkpoint_is_only_where_a_batch_begins_and_is_committed() {
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

#[test]
fn a_full_disk_holds_up_the_opening_of_no_log_that_exists() {
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

#[test]
fn the_journal_goes_on_when_space_returns_without_being_asked() {
    let disk = ModelDisk::from_seed(1);
    let log = open(&disk, config());
    let (changed, changes) = channel();
    let on_commit = move || {
        // At the end of the test nobody listens any more.
        let _ = changed.send(());
    };
    let journal = Journal::start(log, on_commit).unwrap();
    disk.fail(Fault::NoSpace, 0);
    let mut batch = Batch::new();
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
    disk.heal();
    wait_until(&|| journal.state() == State::Ok && journal.committed() == end);
    journal.shut_down().unwrap();
}

#[test]
fn a_journal_that_has_failed_or_is_full_still_shuts_down() {
    for fault in [Fault::Sync, Fault::NoSpace] {
        let disk = ModelDisk::from_seed(1);
        let journal = Journal::start(open(&disk, config()), || {}).unwrap();
        disk.fail(fault, 0);
        let mut batch = Batch::new();
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
fn under_os_the_sync_follows_without_being_asked() {
    let disk = ModelDisk::from_seed(1);
    let config = LogConfig {
        policy: Policy::Os,
        ..config()
    };
    let journal = Journal::start(open(&disk, config), || {}).unwrap();
    let mut batch = Batch::new();
    batch.record(|bytes| bytes.push(1));
    let end = journal.append(&mut batch).end;
    let deadline = Instant::now() + PATIENCE;
    while journal.stats().synced < end {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    // Orderly or not, it is there.
    disk.power_cut();
    assert_eq!(replayed(&disk), [[1]]);
}

#[test]
fn under_os_a_commit_is_a_write_and_the_sync_follows() {
    let disk = ModelDisk::from_seed(1);
    let config = LogConfig {
        policy: Policy::Os,
        ..config()
    };
    let mut log = open(&disk, config);
    let end = append(&mut log, 1).end;
    log.flush().unwrap();
    assert_eq!((log.committed(), log.synced()), (end, Lsn(0)));
    log.sync().unwrap();
    assert_eq!(log.synced(), end);
}

/// What is repeated behind a checkpoint stands nowhere else once that is set.
#[test]
fn what_stands_behind_a_checkpoint_is_on_the_disk_whatever_the_policy() {
    for seed in 0..20 {
        let disk = ModelDisk::from_seed(seed);
        let os = LogConfig {
            policy: Policy::Os,
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

/// What is preallocated with a larger segment counts against the quota, and is never filled when the log may take nothing.
#[test]
fn a_log_with_less_than_its_last_segment_has_is_not_full_of_nothing() {
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
        assert_eq!(log.state(), State::Ok);
        assert!(log.stats().file_bytes <= 2 * SEGMENT_BYTES, "{:?}", log.stats());
        append(&mut log, 9);
        log.flush().unwrap();
        drop(log);
        // A crash right behind it leaves nothing that looks cut.
        let log = open(&disk, smaller);
        assert_eq!(log.state(), State::Ok);
        drop(log);
        let expected: Vec<u8> = numbers.into_iter().chain([9]).collect();
        assert_eq!(replayed(&disk), payloads(&expected));
    }
}
