//! Pauses that also end by the wall clock.
//!
//! The monotonic clock of timers stands still while the machine is suspended. A pause therefore ends as soon as one of
//! both clocks says so, and the wall clock is read every few seconds. A wrong wall clock never makes a pause longer.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Longest time between two looks at the wall clock.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Waits. Calls `look` at the beginning, whenever the wall clock is read, and at the end.
pub async fn pause(length: Duration, look: impl FnMut()) {
    pause_by(length, LOOK_EVERY, crate::now_unix_ms, look).await;
}

async fn pause_by(length: Duration, look_every: Duration, now_unix_ms: impl Fn() -> i64, mut look: impl FnMut()) {
    let length_ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
    let end_unix_ms = now_unix_ms().saturating_add(length_ms);
    let begin = Instant::now();
    loop {
        look();
        let left = length.saturating_sub(begin.elapsed());
        if left.is_zero() || now_unix_ms() >= end_unix_ms {
            return;
        }
        sleep(left.min(look_every)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn run(length: Duration, now_unix_ms: impl Fn() -> i64) -> usize {
        let looks = Cell::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let paused = pause_by(length, Duration::from_millis(1), now_unix_ms, || {
            looks.set(looks.get() + 1)
        });
        runtime.unwrap().block_on(paused);
        looks.get()
    }

    #[test]
    fn pause_ends_by_the_wall_clock_after_a_suspension() {
        let calls = Cell::new(0);
        // The machine sleeps for a day after the first looks.
        let clock = || {
            calls.set(calls.get() + 1);
            if calls.get() > 3 { 86_400_000 } else { 0 }
        };
        assert_eq!(run(Duration::from_secs(3600), clock), 3);
    }

    #[test]
    fn pause_ends_by_the_monotonic_clock_if_the_wall_clock_goes_back() {
        let calls = Cell::new(0);
        let clock = || {
            calls.set(calls.get() + 1);
            -86_400_000 * calls.get()
        };
        assert!(run(Duration::from_millis(3), clock) > 1);
    }
}
