//! Measures the time that nodes take.
//!
//! On a busy machine, a thread waits for a core. This must not use up the time of a message. Reading the CPU time is a
//! system call, so it is measured only for messages whose nodes take long.

use std::time::{Duration, Instant};

use super::host::{Host, NodeTime};
use crate::cpu_time::cpu_time;

/// Measures from its last lap.
pub(super) struct NodeTimer {
    run: Instant,
    cpu: Option<Duration>,
}

impl NodeTimer {
    pub fn begin(host: &dyn Host) -> NodeTimer {
        NodeTimer {
            run: Instant::now(),
            cpu: host.have_nodes_taken_long().then(cpu_time),
        }
    }

    /// Adds the time since the last lap to that of the message.
    pub fn lap(&mut self, host: &mut dyn Host) {
        let from = std::mem::replace(&mut self.run, Instant::now());
        let run = self.run.saturating_duration_since(from);
        let cpu_from = self.cpu.take();
        let cpu = cpu_from.map_or(run, |from| cpu_time().saturating_sub(from));
        host.add_node_time(NodeTime { run, cpu });
        self.cpu = host.have_nodes_taken_long().then(cpu_time);
    }

    /// Leaves out the time of `work`.
    pub fn without<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let cpu_begun = self.cpu.map(|_| cpu_time());
        let result = work();
        self.run += begun.elapsed();
        if let (Some(cpu), Some(begun)) = (&mut self.cpu, cpu_begun) {
            *cpu += cpu_time().saturating_sub(begun);
        }
        result
    }
}
