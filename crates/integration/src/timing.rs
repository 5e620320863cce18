//! Evaluation times of rules. They decide which rules run in the slow lane (`slow_lane.rs`).
//!
//! `meter.rs` measures evaluations on the threads of the shards. The slow lane measures every evaluation. A rule
//! returns to the shards' threads when none took more than half of the threshold for [`RETURN_AFTER_MS`].

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

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
