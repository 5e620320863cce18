//! What one message may cost with all that comes of it: behind checkpoints and because of alarms, too. A chain that makes thousands of one
//! costs its own message, and nobody else.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

/// Of what it has put into what is to be stored, aside, and behind for its retry. A message of a device has 16 MiB at most.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Nodes that it passes: what goes along a chain at once passes a tenth of that at most.
const STEPS_MAX: u64 = 100_000;
/// Of all scripts that get it: ten of the slowest.
const SCRIPTS_MAX: Duration = Duration::from_secs(5);

/// Of all other nodes that it passes: most look something up within a millisecond.
const NODES_MAX: Duration = Duration::from_secs(5);

/// Shared with what was put aside of the same message.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget(Arc<Spent>);

#[derive(Debug, Default)]
struct Spent {
    kept_bytes: AtomicUsize,
    steps: AtomicU64,
    scripts_us: AtomicU64,
    nodes_us: AtomicU64,
}

impl Budget {
    /// Of the next message.
    pub fn begin(&mut self) {
        match Arc::get_mut(&mut self.0) {
            Some(spent) => *spent = Spent::default(),
            None => *self = Budget::default(),
        }
    }

    /// False: it has had its part. The last thing that it puts somewhere may be larger than what was left.
    pub fn keep(&self, bytes: usize) -> bool {
        let kept = self.0.kept_bytes.load(Relaxed);
        if kept >= KEPT_BYTES_MAX {
            return false;
        }
        self.0.kept_bytes.store(kept.saturating_add(bytes), Relaxed);
        true
    }

    pub fn steps_left(&self) -> u64 {
        STEPS_MAX.saturating_sub(self.0.steps.load(Relaxed))
    }

    pub fn passed(&self, steps: u64) {
        self.0.steps.fetch_add(steps, Relaxed);
    }

    /// Returns what scripts took before.
    pub fn script_took(&self, took: Duration) -> Duration {
        Duration::from_micros(self.0.scripts_us.fetch_add(micros(took), Relaxed))
    }

    /// Beside scripts.
    pub fn nodes_took(&self, took: Duration) {
        self.0.nodes_us.fetch_add(micros(took), Relaxed);
    }

    pub fn has_time_for_nodes(&self) -> bool {
        Duration::from_micros(self.0.nodes_us.load(Relaxed)) < NODES_MAX
    }

    pub fn has_time_for_scripts(&self) -> bool {
        Duration::from_micros(self.0.scripts_us.load(Relaxed)) < SCRIPTS_MAX
    }

    pub fn kept_bytes(&self) -> usize {
        self.0.kept_bytes.load(Relaxed)
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_aside_has_the_budget_of_its_message() {
        let mut budget = Budget::default();
        let aside = budget.clone();
        assert!(budget.keep(KEPT_BYTES_MAX - 1) && aside.keep(10));
        assert!(!budget.keep(1) && !aside.keep(1));
        budget.begin();
        assert!(budget.keep(1) && !aside.keep(1));
        aside.passed(10);
        drop(aside);
        budget.begin();
        budget.passed(STEPS_MAX - 1);
        assert_eq!(budget.clone().steps_left(), 1);
        let half = SCRIPTS_MAX / 2;
        assert_eq!(budget.script_took(half), Duration::ZERO);
        assert!(budget.has_time_for_scripts());
        assert_eq!(budget.clone().script_took(half), half);
        assert!(!budget.has_time_for_scripts() && budget.has_time_for_nodes());
        budget.clone().nodes_took(NODES_MAX);
        assert!(!budget.has_time_for_nodes());
        budget.begin();
        assert!(budget.has_time_for_scripts() && budget.has_time_for_nodes());
        assert!(budget.steps_left() == STEPS_MAX);
        assert_eq!(budget.kept_bytes(), 0);
    }
}
