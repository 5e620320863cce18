//! What all clients of a run share: how far it is, and what was found wrong.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// More faults than these are counted only.
const FAULTS_SHOWN_MAX: usize = 20;

#[derive(Default)]
pub struct Load {
    /// Packets of publishers and subscribers that got something done.
    pub progress: AtomicU64,
    round: AtomicU32,
    is_draining: AtomicBool,
    faults: Mutex<Faults>,
}

#[derive(Default)]
struct Faults {
    shown: Vec<String>,
    count: usize,
}

impl Load {
    pub fn round(&self) -> u32 {
        self.round.load(Relaxed)
    }

    pub fn begin_round(&self, round: u32) {
        self.round.store(round, Relaxed);
        self.progress.store(0, Relaxed);
    }

    /// Nothing new is published any more.
    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    pub fn report(&self, fault: String) {
        let mut faults = self.faults.lock().expect("nobody panics while holding it");
        faults.count += 1;
        if faults.shown.len() < FAULTS_SHOWN_MAX {
            let round = self.round();
            faults.shown.push(format!("round {round}: {fault}"));
        }
    }

    /// Fails if anything was reported.
    #[track_caller]
    pub fn assert_no_faults(&self, seed: u64) {
        let faults = self.faults.lock().expect("nobody panics while holding it");
        assert!(
            faults.count == 0,
            "seed {seed}, {} faults:\n{}",
            faults.count,
            faults.shown.join("\n")
        );
    }
}
