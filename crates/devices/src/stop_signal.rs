//! Tells the threads of the platform that the server stops.

use std::sync::{Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::mutex::lock;

#[derive(Default)]
pub struct StopSignal {
    set_at: OnceLock<Instant>,
    paused: Mutex<()>,
    resume: Condvar,
}

impl StopSignal {
    /// Ends the pauses of all threads, now and later.
    pub fn set(&self) {
        let _ = self.set_at.set(Instant::now());
        // A thread that holds the lock may be about to wait.
        let _paused = lock(&self.paused);
        self.resume.notify_all();
    }

    pub fn is_set(&self) -> bool {
        self.set_at.get().is_some()
    }

    /// Time since the signal was set.
    pub fn elapsed(&self) -> Option<Duration> {
        self.set_at.get().map(Instant::elapsed)
    }

    /// Waits until the time has passed or the signal is set.
    pub fn pause(&self, time: Duration) {
        let guard = lock(&self.paused);
        if !self.is_set() {
            drop(self.resume.wait_timeout(guard, time));
        }
    }
}
