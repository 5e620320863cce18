//! State shared by all clients of a run: progress and detected faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Number of faults that are stored. Further faults are only counted.
const FAULTS_SHOWN_MAX: usize = 20;

#[derive(Default)]
pub struct Load {
    /// Number of packets that advanced an exchange of a publisher or subscriber.
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

    /// Makes the publishers stop sending new messages.
    pub fn drain(&self) {
        self.is_draining.store(true, Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    pub fn report(&self, fault: String) {
        let mut faults = self.faults.lock().expect("the mutex is not poisoned");
        faults.count += 1;
        if faults.shown.len() < FAULTS_SHOWN_MAX {
            let round = self.round();
            faults.shown.push(format!("round {round}: {fault}"));
        }
    }

    /// Fails if a fault was reported.
    #[track_caller]
    pub fn assert_no_faults(&self, seed: u64) {
        let faults = self.faults.lock().expect("the mutex is not poisoned");
        assert!(
            faults.count == 0,
            "seed {seed}, {} faults:\n{}",
            faults.count,
            faults.shown.join("\n")
        );
    }
}
