//! Tests the journal with its threads on a disk that fails or loses power: records reported as committed survive.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::scale::scaled;
use storage::model::{DiskFault, ModelDisk, Random};
use tidewire_journal::{FlushPolicy, Journal, LogBatch, LogConfig, LogState, Lsn, RecordLog};

const SEEDS: u64 = 300;
const THREADS: u8 = 3;
const BATCHES: u32 = 60;

/// Wakes the appenders.
#[derive(Default)]
struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rings.lock().unwrap() += 1;
        self.rung.notify_all();
    }

    /// Waits until `is_so`. Each change of the condition is followed by a ring.
    fn wait_until(&self, is_so: impl Fn() -> bool) {
        let mut rings = self.rings.lock().unwrap();
        while !is_so() {
            rings = self.rung.wait(rings).unwrap();
        }
    }
}

fn config(random: &mut Random) -> LogConfig {
    LogConfig {
        policy: FlushPolicy::Fsync,
        segment_bytes: 512 + random.below(4000) as u64,
        max_bytes: 1 << 30,
        reserve_bytes: 0,
        commit_interval: Duration::from_micros(300 * random.below(2) as u64),
        record_version: 1,
    }
}

/// Appends numbered batches, and sometimes waits for a commit. Returns how many were reported as committed.
fn append(journal: &Journal, bell: &Bell, thread: u8, seed: u64) -> u32 {
    let mut random = Random::new(seed ^ u64::from(thread) << 32);
    let (mut batch, mut reported) = (LogBatch::new(), 0);
    for number in 0..BATCHES {
        batch.record(|bytes| {
            bytes.push(thread);
            bytes.extend(number.to_le_bytes());
            bytes.extend(vec![thread; random.below(400)]);
        });
        let end = journal.append(&mut batch).end;
        if random.one_in(4) {
            bell.wait_until(|| journal.committed() >= end || matches!(journal.state(), LogState::Failed { .. }));
            if journal.committed() < end {
                return reported;
            }
            reported = number + 1;
        }
        if random.one_in(20) {
            journal.set_checkpoint(Lsn(0), |_| {});
        }
    }
    reported
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let (disk, config) = (ModelDisk::from_seed(seed), config(&mut random));
    let bell = Arc::new(Bell::default());
    let log = RecordLog::open(disk.storage(), config.clone(), &mut |_, _| Ok(()), &mut |_, _| {})
        .unwrap()
        .0;
    let ringer = Arc::clone(&bell);
    let journal = Journal::start(log, move || ringer.ring()).unwrap();
    let faults = [
        DiskFault::PowerCut,
        DiskFault::PowerCut,
        DiskFault::Sync,
        DiskFault::Write,
    ];
    disk.fail(faults[random.below(4)], random.below(120) as u64);
    let reported: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (journal, bell) = (&journal, &bell);
                scope.spawn(move || append(journal, bell, thread, seed))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // The injected fault causes this error.
    let _ = journal.shut_down();
    disk.power_cut();
    let mut replayed = vec![Vec::new(); usize::from(THREADS)];
    let mut replay = |_, payload: &[u8]| {
        replayed[usize::from(payload[0])].push(u32::from_le_bytes(*payload[1..].first_chunk().unwrap()));
        Ok(())
    };
    RecordLog::open(disk.storage(), config, &mut replay, &mut |_, _| {}).unwrap();
    for (numbers, reported) in replayed.into_iter().zip(reported) {
        let left = numbers.len() as u32;
        assert!(left >= reported, "{reported} were reported as committed, {left} remain");
        assert_eq!(numbers, (0..left).collect::<Vec<_>>());
    }
}

#[test]
fn records_reported_as_committed_survive() {
    for seed in 0..scaled(SEEDS) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
