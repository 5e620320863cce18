//! The counts of a worker since its last report, and the combination of the reports of several workers.

use std::collections::HashMap;

use crate::driver::{LoadCounts, LoadInterval};

/// Most distinct reasons; others are counted together.
const REASONS_MAX: usize = 50;

#[derive(Default)]
pub struct Meter {
    pub interval: LoadInterval,
    pub errors: HashMap<String, u64>,
    begun_ns: u64,
    cpu_ns: u64,
    waited_ns: u64,
}

impl Meter {
    pub fn new(now_ns: u64) -> Meter {
        Meter {
            begun_ns: now_ns,
            cpu_ns: thread_cpu_ns(),
            waited_ns: thread_waited_ns(),
            ..Meter::default()
        }
    }

    pub fn error(&mut self, reason: &str) {
        if let Some(count) = self.errors.get_mut(reason) {
            *count += 1;
            return;
        }
        let reason = if self.errors.len() < REASONS_MAX {
            reason
        } else {
            "other reasons"
        };
        *self.errors.entry(reason.to_string()).or_default() += 1;
    }

    /// Ends the interval, returns it and begins the next one.
    pub fn take(&mut self, end_ns: u64, connected: u64) -> LoadInterval {
        let (cpu_ns, waited_ns) = (thread_cpu_ns(), thread_waited_ns());
        let mut interval = std::mem::take(&mut self.interval);
        interval.end_ns = end_ns;
        interval.length_ns = end_ns.saturating_sub(self.begun_ns);
        interval.counts.connected = connected;
        interval.counts.cpu_ns = cpu_ns.saturating_sub(self.cpu_ns);
        interval.counts.busiest_thread_cpu_ns = interval.counts.cpu_ns;
        interval.counts.longest_wait_ns = waited_ns.saturating_sub(self.waited_ns);
        (self.begun_ns, self.cpu_ns, self.waited_ns) = (end_ns, cpu_ns, waited_ns);
        interval
    }
}

pub fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns how long this thread was ready to run but had no core; 0 if the kernel does not report it.
fn thread_waited_ns() -> u64 {
    // The fields: time on a core, time waiting for a core, number of time slices.
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    waited.unwrap_or(0)
}

/// Adds the interval of another thread for the same time.
pub fn add_parallel(sum: &mut LoadInterval, other: &LoadInterval) {
    sum.end_ns = sum.end_ns.max(other.end_ns);
    sum.length_ns = sum.length_ns.max(other.length_ns);
    add_counts(&mut sum.counts, &other.counts);
    sum.end_to_end.add(&other.end_to_end);
    sum.acknowledgement.add(&other.acknowledgement);
    sum.connect.add(&other.connect);
    sum.handshake.add(&other.handshake);
    sum.subscribe.add(&other.subscribe);
    sum.lateness.add(&other.lateness);
}

/// Adds the counts of another thread for the same interval.
pub fn add_counts(sum: &mut LoadCounts, other: &LoadCounts) {
    // Destructured, so that a new field cannot be forgotten.
    let LoadCounts {
        connected,
        connects,
        connects_failed,
        disconnects,
        tls_full,
        tls_resumed,
        subscribes,
        subscribes_failed,
        due,
        published,
        acknowledged,
        refused,
        received,
        bytes_out,
        bytes_in,
        segments_in,
        segments_out,
        cpu_ns,
        busiest_thread_cpu_ns,
        longest_wait_ns,
    } = *other;
    sum.connected += connected;
    sum.connects += connects;
    sum.connects_failed += connects_failed;
    sum.disconnects += disconnects;
    sum.tls_full += tls_full;
    sum.tls_resumed += tls_resumed;
    sum.subscribes += subscribes;
    sum.subscribes_failed += subscribes_failed;
    sum.due += due;
    sum.published += published;
    sum.acknowledged += acknowledged;
    sum.refused += refused;
    sum.received += received;
    sum.bytes_out += bytes_out;
    sum.bytes_in += bytes_in;
    sum.segments_in += segments_in;
    sum.segments_out += segments_out;
    sum.cpu_ns += cpu_ns;
    sum.busiest_thread_cpu_ns = sum.busiest_thread_cpu_ns.max(busiest_thread_cpu_ns);
    sum.longest_wait_ns = sum.longest_wait_ns.max(longest_wait_ns);
}
