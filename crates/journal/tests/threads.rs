//! The journal with its threads on a disk that loses power or fails: what an appender was told is committed survives.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Condvar, Mutex};

use storage::model::{Fault, ModelDisk, Random};
use tidewire_journal::{Batch, Journal, Log, LogConfig, Lsn, Policy, State};

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

    /// Until `is_so`; whatever makes it so rings afterwards.
    fn wait_until(&self, is_so: impl Fn() -> bool) {
        let mut rings = self.rings.lock().unwrap();
        while !is_so() {
            rings = self.rung.wait(rings).unwrap();
        }
    }
}

fn config(random: &mut Random) -> LogConfig {
    LogConfig {
        policy: Policy::Fsync,
        segment_bytes: 512 + random.below(4000) as u64,
        max_bytes: 1 << 30,
        reserve_bytes: 0,
    }
}

/// Appends numbered batches, and waits for a commit now and then. Returns how many it was told are committed.
fn append(journal: &Journal, bell: &Bell, thread: u8, seed: u64) -> u32 {
    let mut random = Random::new(seed ^ u64::from(thread) << 32);
    let (mut batch, mut told) = (Batch::new(), 0);
    for number in 0..BATCHES {
        batch.record(|bytes| {
            bytes.push(thread);
            bytes.extend(number.to_le_bytes());
            bytes.extend(vec![thread; random.below(400)]);
        });
        let end = journal.append(&mut batch).end;
        if random.one_in(4) {
            bell.wait_until(|| journal.committed() >= end || matches!(journal.state(), State::Failed { .. }));
            if journal.committed() < end {
                return told;
            }
            told = number + 1;
        }
        if random.one_in(20) {
            journal.set_checkpoint(Lsn(0), |_| {});
        }
    }
    told
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let (disk, config) = (ModelDisk::from_seed(seed), config(&mut random));
    let bell = Arc::new(Bell::default());
    let log = Log::open(disk.storage(), config.clone(), &mut |_, _| Ok(()), &mut |_, _| {})
        .unwrap()
        .0;
    let ringer = Arc::clone(&bell);
    let journal = Journal::start(log, move || ringer.ring()).unwrap();
    let faults = [Fault::PowerCut, Fault::PowerCut, Fault::Sync, Fault::Write];
    disk.fail(faults[random.below(4)], random.below(120) as u64);
    let told: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (journal, bell) = (&journal, &bell);
                scope.spawn(move || append(journal, bell, thread, seed))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // The error is the fault.
    let _ = journal.shut_down();
    disk.power_cut();
    let mut replayed = vec![Vec::new(); usize::from(THREADS)];
    let mut replay = |_, payload: &[u8]| {
        replayed[usize::from(payload[0])].push(u32::from_le_bytes(*payload[1..].first_chunk().unwrap()));
        Ok(())
    };
    Log::open(disk.storage(), config, &mut replay, &mut |_, _| {}).unwrap();
    for (numbers, told) in replayed.into_iter().zip(told) {
        let left = numbers.len() as u32;
        assert!(left >= told, "{told} were committed, {left} are left");
        assert_eq!(numbers, (0..left).collect::<Vec<_>>());
    }
}

#[test]
fn what_appenders_were_told_is_committed_survives() {
    for seed in 0..SEEDS {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
