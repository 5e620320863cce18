//! Measures for how long threads are busy, as the base of thread sharing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::millis;

/// Total time for which a thread was not blocked in a poll. Published when the thread blocks and at each decision. Has
/// a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct BusyTime {
    nanoseconds: AtomicU64,
}

impl BusyTime {
    pub(crate) fn publish(&self, time: Duration) {
        self.nanoseconds.store(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Relaxed)
    }
}

/// Measures the busy time of this thread, in total and in the current window.
pub(crate) struct BusyTimer {
    /// Time of the last measurement: when the thread last blocked or woke up.
    pub(crate) now: Instant,
    /// Total busy time at `now`.
    busy: Duration,
    window: LoadWindow,
}

struct LoadWindow {
    since: Instant,
    since_ms: u64,
    busy: Duration,
    /// Busy time of all threads together.
    busy_all: Duration,
}

impl BusyTimer {
    pub(crate) fn new() -> BusyTimer {
        let now = Instant::now();
        BusyTimer {
            now,
            busy: Duration::ZERO,
            window: LoadWindow {
                since: now,
                since_ms: 0,
                busy: Duration::ZERO,
                busy_all: Duration::ZERO,
            },
        }
    }

    /// Adds the time since the last measurement. Returns the total.
    pub(crate) fn sleep(&mut self) -> Duration {
        let now = Instant::now();
        self.busy += now - self.now;
        self.now = now;
        self.busy
    }

    pub(crate) fn wake(&mut self) {
        self.now = Instant::now();
    }

    pub(crate) fn is_over(&self, now_ms: u64, window: Duration) -> bool {
        now_ms.saturating_sub(self.window.since_ms) >= millis(window)
    }

    /// Starts a new window. Returns the busy time of this thread and of all threads in the previous window, as shares
    /// of one core.
    pub(crate) fn end_window(&mut self, now_ms: u64, busy_all: Duration) -> (f64, f64) {
        let window = LoadWindow {
            since: self.now,
            since_ms: now_ms,
            busy: self.busy,
            busy_all,
        };
        let before = std::mem::replace(&mut self.window, window);
        let seconds = (self.now - before.since).as_secs_f64();
        let share = |busy: Duration, before: Duration| busy.saturating_sub(before).as_secs_f64() / seconds;
        (share(self.busy, before.busy), share(busy_all, before.busy_all))
    }
}
