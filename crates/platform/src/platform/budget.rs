//! Limits the cost of one message, including its deferred work after checkpoints and alarms. A chain that multiplies
//! messages can use up only its own message's budget.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use crate::chain::NodeTime;

/// Bytes that a message may add to pending changes, deferred work and retries. A device message has at most 16 MiB.
pub(super) const ADDED_BYTES_MAX: usize = 64 << 20;

/// Nodes that a message may pass. A single run passes at most a tenth of that.
pub(super) const STEPS_MAX: u64 = 100_000;
/// CPU time of all scripts for one message: ten of the slowest scripts.
const SCRIPTS_MAX: Duration = Duration::from_secs(5);

/// CPU time of all other nodes for one message. Most nodes need less than a millisecond.
pub(super) const NODES_MAX: Duration = Duration::from_secs(5);
/// Run time of all other nodes for one message: they may also wait for disks and cores.
pub(super) const NODES_RUN_MAX: Duration = Duration::from_secs(60);
/// Run time of the nodes from which their CPU time is measured. Until then it counts as CPU time.
const LONG: Duration = Duration::from_millis(100);

/// The budget, shared with the deferred work of the message.
#[derive(Clone, Debug, Default)]
pub(super) struct MessageBudget(Arc<BudgetUse>);

#[derive(Debug, Default)]
struct BudgetUse {
    added_bytes: AtomicUsize,
    steps: AtomicU64,
    scripts_us: AtomicU64,
    nodes_run_us: AtomicU64,
    nodes_cpu_us: AtomicU64,
}

impl MessageBudget {
    /// Begins the budget of the next message.
    pub fn begin(&mut self) {
        match Arc::get_mut(&mut self.0) {
            Some(used) => *used = BudgetUse::default(),
            None => *self = MessageBudget::default(),
        }
    }

    /// Takes bytes from the budget. Returns false if none are left. The last request may exceed the remaining bytes.
    pub fn take(&self, bytes: usize) -> bool {
        let added = self.0.added_bytes.load(Relaxed);
        if added >= ADDED_BYTES_MAX {
            return false;
        }
        self.0.added_bytes.store(added.saturating_add(bytes), Relaxed);
        true
    }

    pub fn steps_left(&self) -> u64 {
        STEPS_MAX.saturating_sub(self.0.steps.load(Relaxed))
    }

    pub fn passed(&self, steps: u64) {
        self.0.steps.fetch_add(steps, Relaxed);
    }

    /// Adds the CPU time of a script.
    pub fn add_script_time(&self, took: Duration) {
        self.0.scripts_us.fetch_add(micros(took), Relaxed);
    }

    /// Adds the time of nodes other than scripts.
    pub fn add_node_time(&self, took: NodeTime) {
        self.0.nodes_run_us.fetch_add(micros(took.run), Relaxed);
        self.0.nodes_cpu_us.fetch_add(micros(took.cpu), Relaxed);
    }

    /// Run time of nodes other than scripts.
    pub fn node_time(&self) -> Duration {
        Duration::from_micros(self.0.nodes_run_us.load(Relaxed))
    }

    pub fn have_nodes_taken_long(&self) -> bool {
        self.node_time() >= LONG
    }

    pub fn has_time_for_nodes(&self) -> bool {
        let cpu = Duration::from_micros(self.0.nodes_cpu_us.load(Relaxed));
        cpu < NODES_MAX && self.node_time() < NODES_RUN_MAX
    }

    pub fn has_time_for_scripts(&self) -> bool {
        Duration::from_micros(self.0.scripts_us.load(Relaxed)) < SCRIPTS_MAX
    }

    pub fn added_bytes(&self) -> usize {
        self.0.added_bytes.load(Relaxed)
    }
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_work_shares_the_budget_of_its_message() {
        let mut budget = MessageBudget::default();
        let deferred = budget.clone();
        assert!(budget.take(ADDED_BYTES_MAX - 1) && deferred.take(10));
        assert!(!budget.take(1) && !deferred.take(1));
        budget.begin();
        assert!(budget.take(1) && !deferred.take(1));
        deferred.passed(10);
        drop(deferred);
        budget.begin();
        budget.passed(STEPS_MAX - 1);
        assert_eq!(budget.clone().steps_left(), 1);
        let half = SCRIPTS_MAX / 2;
        budget.add_script_time(half);
        assert!(budget.has_time_for_scripts());
        budget.clone().add_script_time(half);
        assert!(!budget.has_time_for_scripts() && budget.has_time_for_nodes());
        for (run, cpu) in [(NODES_MAX, NODES_MAX), (NODES_RUN_MAX, LONG)] {
            let mut budget = budget.clone();
            budget.begin();
            budget.clone().add_node_time(NodeTime { run: LONG, cpu: LONG });
            assert!(budget.has_time_for_nodes() && budget.have_nodes_taken_long());
            budget.clone().add_node_time(NodeTime { run, cpu });
            assert!(!budget.has_time_for_nodes());
        }
        // A busy machine: the thread waits for a core.
        let run = NODES_RUN_MAX - LONG;
        budget.clone().add_node_time(NodeTime { run, cpu: LONG });
        assert!(budget.has_time_for_nodes());
        budget.clone().add_node_time(NodeTime { run: LONG, cpu: LONG });
        assert!(!budget.has_time_for_nodes());
        budget.begin();
        assert!(budget.has_time_for_scripts() && budget.has_time_for_nodes());
        assert!(budget.steps_left() == STEPS_MAX);
        assert_eq!(budget.added_bytes(), 0);
    }
}
