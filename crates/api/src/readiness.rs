//! Whether the node accepts traffic, for load balancers.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Whether the node accepts traffic.
#[derive(Debug, Default)]
pub struct Readiness {
    is_started: AtomicBool,
    is_stopping: AtomicBool,
    /// Share of the journal that the start has read, in percent.
    journal_percent: AtomicU8,
}

impl Readiness {
    pub fn started(&self) {
        self.is_started.store(true, Ordering::Release);
    }

    pub fn stopping(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub fn reading_journal(&self, percent: u8) {
        self.journal_percent.store(percent, Ordering::Release);
    }

    pub fn is_started(&self) -> bool {
        self.is_started.load(Ordering::Acquire)
    }

    /// Returns why the node is not ready. Empty if it is ready.
    pub fn not_ready_reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if !self.is_started() {
            reasons.push(match self.journal_percent.load(Ordering::Acquire) {
                0 => "the server is starting".to_owned(),
                percent => format!("the server is starting: {percent} % of the journal read"),
            });
        }
        if self.is_stopping.load(Ordering::Acquire) {
            reasons.push("the server is shutting down".to_owned());
        }
        reasons
    }
}
