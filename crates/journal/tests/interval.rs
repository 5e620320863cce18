//! Tests the commit interval: how often the journal syncs, and what ends the wait early.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use storage::model::ModelDisk;
use tidewire_journal::{FlushPolicy, Journal, LogBatch, LogConfig, Lsn, RecordLog};

const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than a test.
const HOUR: Duration = Duration::from_secs(3600);

fn open(disk: &ModelDisk, config: LogConfig) -> (RecordLog, usize) {
    let mut records = 0;
    let mut replay = |_, _: &[u8]| {
        records += 1;
        Ok(())
    };
    let (log, _) = RecordLog::open(disk.storage(), config, &mut replay, &mut |_, _| {}).unwrap();
    (log, records)
}

struct RunningLog {
    disk: ModelDisk,
    config: LogConfig,
    journal: Journal,
    changes: Receiver<()>,
}

impl RunningLog {
    fn start(policy: FlushPolicy, commit_interval: Duration) -> RunningLog {
        let disk = ModelDisk::from_seed(1);
        let config = LogConfig {
            policy,
            segment_bytes: 4 << 20,
            max_bytes: 1 << 30,
            reserve_bytes: 0,
            commit_interval,
            ..LogConfig::default()
        };
        let (changed, changes) = channel();
        let on_commit = move || {
            // At the end of a test the receiver is closed.
            let _ = changed.send(());
        };
        let journal = Journal::start(open(&disk, config.clone()).0, on_commit).unwrap();
        RunningLog {
            disk,
            config,
            journal,
            changes,
        }
    }

    fn append(&self, bytes: usize) -> Lsn {
        self.journal.append(&mut batch(bytes)).end
    }

    fn wait(&self, end: Lsn) {
        let deadline = Instant::now() + PATIENCE;
        while self.journal.committed() < end {
            self.changes.recv_timeout(deadline - Instant::now()).unwrap();
        }
    }

    fn records_after_a_power_cut(&self) -> usize {
        self.disk.power_cut();
        open(&self.disk, self.config.clone()).1
    }
}

fn batch(bytes: usize) -> LogBatch {
    let mut batch = LogBatch::new();
    batch.record(|record| record.resize(record.len() + bytes, 7));
    batch
}

#[test]
fn commits_within_the_interval_share_a_sync() {
    const INTERVAL: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let log = RunningLog::start(FlushPolicy::Fsync, INTERVAL);
    log.wait(log.append(10));
    let mut end = Lsn(0);
    for _ in 0..100 {
        end = log.append(10);
    }
    log.wait(end);
    let (elapsed, syncs) = (begun.elapsed(), log.journal.stats().syncs);
    assert!(elapsed >= INTERVAL, "the second sync came after {elapsed:?}");
    let syncs_max = 1 + elapsed.as_millis() / INTERVAL.as_millis();
    assert!(u128::from(syncs) <= syncs_max, "{syncs} syncs in {elapsed:?}");
    assert_eq!(log.records_after_a_power_cut(), 101);
}

#[test]
fn shutdown_does_not_wait_for_the_interval() {
    let log = RunningLog::start(FlushPolicy::Fsync, HOUR);
    log.wait(log.append(10));
    let end = log.append(10);
    assert!(log.journal.committed() < end, "nothing is committed before its sync");
    log.journal.clone().shut_down().unwrap();
    assert_eq!(log.records_after_a_power_cut(), 2);
}

#[test]
fn many_bytes_are_committed_within_the_interval() {
    for is_deferred in [false, true] {
        let log = RunningLog::start(FlushPolicy::Fsync, HOUR);
        log.wait(log.append(10));
        let end = match is_deferred {
            false => log.append(2 << 20),
            true => log.journal.append_deferred(&mut batch(2 << 20)).end,
        };
        log.wait(end);
    }
}

#[test]
fn os_policy_commits_without_the_interval() {
    let log = RunningLog::start(FlushPolicy::Os, HOUR);
    for _ in 0..3 {
        log.wait(log.append(10));
    }
    assert_eq!(log.journal.stats().syncs, 0, "only the background sync waits");
}
