//! Measures the evaluation times of rules, and decides which rules run in the slow lane (`slow_lane.rs`).
//!
//! A [`RuleMeter`] belongs to one shard. It reads the clock at the beginning and at the end of a tick, and after every
//! [`WINDOW`] evaluations. A cheap rule therefore costs only a counter. If a window takes longer than the threshold,
//! the meter measures each of the next [`WATCHED`] evaluations. It uses the thread's CPU time, so that a busy machine
//! does not make a rule slow. One evaluation at or above the threshold moves its rule to the slow lane, on all shards.
//!
//! The slow lane measures every evaluation. A rule returns to the shards' threads when none took more than half of the
//! threshold for [`RETURN_AFTER_MS`].

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use crate::environment::unix_ms;
use crate::set::LiveRule;
use crate::slow_lane::SlowLane;

/// Number of evaluations per clock read.
const WINDOW: u32 = 16;

/// Number of evaluations that are measured individually after a slow window.
const WATCHED: u32 = 64;

/// A rule stays in the slow lane for this long after its last expensive evaluation.
pub const RETURN_AFTER_MS: u64 = 30_000;

/// Evaluation times of one rule, and its load in the slow lane. Shared by all shards. A rule whose text changes gets a
/// new one.
#[derive(Debug, Default)]
pub struct Timing {
    is_slow: AtomicBool,
    /// Time of the last expensive evaluation, in Unix milliseconds.
    last_expensive_ms: AtomicU64,
    /// Exponentially weighted mean of the measured evaluations.
    mean_ns: AtomicU64,
    pub load: SlowLaneLoad,
}

/// Messages of one rule that are queued in the slow lane. Written only under the lane's lock.
#[derive(Debug, Default)]
pub struct SlowLaneLoad {
    pub messages: AtomicUsize,
    pub bytes: AtomicUsize,
    /// The queue is at least half full. Shards then check it before they accept messages.
    pub is_half_full: AtomicBool,
    /// The queue has been full and is still at least half full.
    pub is_full: AtomicBool,
}

/// Evaluation time of a rule, and its queue in the slow lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RuleTiming {
    /// The rule is evaluated in the slow lane, because a recent evaluation took longer than
    /// `integration.slow_rule_threshold`.
    pub is_slow: bool,
    /// Mean CPU time of recently measured evaluations, in microseconds. 0 for a cheap rule, which is not measured.
    pub evaluation_us: u64,
    /// Messages and events that wait in the slow lane.
    pub queued: u64,
    /// Approximate memory of the waiting messages and events.
    pub queued_bytes: u64,
    /// Whether the queue is full. Publishers at QoS 1 and 2 then wait or receive reason code 0x97. Other messages are
    /// dropped.
    pub is_queue_full: bool,
}

impl Timing {
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Relaxed)
    }

    pub fn shown(&self) -> RuleTiming {
        RuleTiming {
            is_slow: self.is_slow(),
            evaluation_us: self.mean_ns.load(Relaxed).div_ceil(1000),
            queued: self.load.messages.load(Relaxed) as u64,
            queued_bytes: self.load.bytes.load(Relaxed) as u64,
            is_queue_full: self.load.is_full.load(Relaxed),
        }
    }

    /// Adds a measured evaluation. Returns whether the rule is slow now, if that has changed.
    pub fn measure(&self, took: Duration, threshold: Duration, now_ms: u64) -> Option<bool> {
        let (mean, took_ns) = (self.mean_ns.load(Relaxed), took.as_nanos() as u64);
        let mean = if mean == 0 {
            took_ns
        } else {
            mean - mean / 8 + took_ns / 8
        };
        self.mean_ns.store(mean, Relaxed);
        if took >= threshold {
            self.last_expensive_ms.store(now_ms, Relaxed);
            return (!self.is_slow.swap(true, Relaxed)).then_some(true);
        }
        if !self.is_slow() {
            return None;
        }
        if took > threshold / 2 {
            self.last_expensive_ms.store(now_ms, Relaxed);
            return None;
        }
        let quiet_ms = now_ms.saturating_sub(self.last_expensive_ms.load(Relaxed));
        (quiet_ms >= RETURN_AFTER_MS && self.is_slow.swap(false, Relaxed)).then_some(false)
    }
}

/// Finds rules that take too long, for one shard.
#[derive(Default)]
pub struct RuleMeter {
    window_since: Option<Instant>,
    /// Number of evaluations in the window.
    evaluations: u32,
    /// Number of remaining evaluations that are measured individually.
    watched: u32,
}

impl RuleMeter {
    /// Starts a tick. The time between ticks does not count.
    pub fn begin_tick(&mut self) {
        self.window_since = None;
        self.evaluations = 0;
    }

    /// Called before each evaluation. Returns the thread's CPU time if this evaluation is measured individually.
    #[inline]
    pub fn start(&mut self) -> Option<Duration> {
        if self.watched > 0 {
            self.watched -= 1;
            return Some(cpu_time());
        }
        if self.window_since.is_none() {
            self.window_since = Some(Instant::now());
        }
        None
    }

    /// Called after each evaluation, with the result of `start`.
    #[inline]
    pub fn stop(&mut self, started: Option<Duration>, live: &LiveRule, lane: &SlowLane) {
        match started {
            Some(started) => lane.measure(live, cpu_time().saturating_sub(started), unix_ms()),
            None => {
                self.evaluations += 1;
                if self.evaluations >= WINDOW {
                    self.end_window(lane);
                }
            }
        }
    }

    /// Ends a window. Called at the latest at the end of a tick.
    pub fn end_window(&mut self, lane: &SlowLane) {
        self.evaluations = 0;
        if let Some(since) = self.window_since {
            let now = Instant::now();
            if now - since >= lane.threshold() {
                self.watched = WATCHED;
            }
            self.window_since = Some(now);
        }
    }
}

/// Returns the CPU time of this thread.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Duration = Duration::from_millis(1);

    fn measure(timing: &Timing, took_us: u64, now_ms: u64) -> Option<bool> {
        timing.measure(Duration::from_micros(took_us), THRESHOLD, now_ms)
    }

    #[test]
    fn a_rule_is_slow_after_an_expensive_evaluation() {
        let timing = Timing::default();
        assert_eq!(measure(&timing, 999, 0), None);
        assert_eq!(measure(&timing, 1000, 10), Some(true));
        assert_eq!(measure(&timing, 2000, 20), None, "the rule is already slow");
        assert_eq!(measure(&timing, 1, 20 + RETURN_AFTER_MS - 1), None);
        assert_eq!(
            measure(&timing, 501, 20 + RETURN_AFTER_MS),
            None,
            "above half of the threshold"
        );
        assert_eq!(measure(&timing, 1, 20 + 2 * RETURN_AFTER_MS - 1), None);
        assert_eq!(measure(&timing, 1, 20 + 2 * RETURN_AFTER_MS), Some(false));
        assert!(!timing.is_slow());
    }

    #[test]
    fn a_rule_stays_slow_after_the_clock_is_set_back() {
        let timing = Timing::default();
        measure(&timing, 1000, 50_000);
        assert_eq!(measure(&timing, 1, 10), None);
        assert!(timing.is_slow());
    }
}
