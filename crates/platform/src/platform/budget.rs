//! What one message may cost with all that comes of it: behind checkpoints and because of alarms, too. A chain that makes thousands of one
//! costs its own message, and nobody else.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Of what it has put into what is to be stored, aside, and behind for its retry. A message of a device has 16 MiB at most.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Shared with what was put aside of the same message.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget(Arc<Spent>);

#[derive(Debug, Default)]
struct Spent {
    kept_bytes: AtomicUsize,
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

    pub fn kept_bytes(&self) -> usize {
        self.0.kept_bytes.load(Relaxed)
    }
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
        drop(aside);
        budget.begin();
        assert_eq!(budget.kept_bytes(), 0);
    }
}
