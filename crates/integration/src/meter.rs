//! Finds the rules that take too long for the threads of the shards.
//!
//! A [`RuleMeter`] belongs to one shard. It reads the clock at the beginning and at the end of a tick, and after every
//! [`WINDOW`] evaluations. A cheap rule therefore costs only a counter. If a window takes longer than the threshold,
//! the meter measures each of the next [`WATCHED`] evaluations. It uses the thread's CPU time, so that a busy machine
//! does not make a rule slow. One evaluation at or above the threshold moves its rule to the slow lane, on all shards.

use std::time::{Duration, Instant};

use crate::clock::{cpu_time, unix_ms};
use crate::set::LiveRule;
use crate::slow_lane::SlowLane;

/// Number of evaluations per clock read.
const WINDOW: u32 = 16;

/// Number of evaluations that are measured individually after a slow window.
const WATCHED: u32 = 64;

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
