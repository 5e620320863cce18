//! The clock that all workers of a server share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use broker::Now;
use broker::durable::recovery::RecoveredState;

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Start of the monotonic clock. It is not 0, so that times before the start of the process can be represented.
pub(crate) const MONOTONIC_START_MS: u64 = 1 << 42;

/// Clock with the same origin for all workers of a server, so that deadlines are comparable.
pub(crate) struct ServerClock {
    pub(crate) origin: Instant,
    /// `Now::journal_ms` at the origin.
    journal_start_ms: AtomicU64,
}

impl ServerClock {
    pub(crate) fn start() -> ServerClock {
        ServerClock {
            origin: Instant::now(),
            journal_start_ms: AtomicU64::new(unix_ms()),
        }
    }

    /// Continues the journal's time. Called once, before the workers start.
    pub(crate) fn continue_journal_time(&self, recovered: &RecoveredState) {
        let unix_ms = self.journal_start_ms.load(Ordering::Relaxed);
        self.journal_start_ms
            .store(recovered.journal_ms_at_start(unix_ms), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Now {
        self.read().1
    }

    /// Returns the current time as `Instant` and as `Now`.
    pub(crate) fn read(&self) -> (Instant, Now) {
        let instant = Instant::now();
        let since_start_ms = millis(instant.saturating_duration_since(self.origin));
        let now = Now {
            monotonic_ms: MONOTONIC_START_MS + since_start_ms,
            unix_ms: unix_ms(),
            journal_ms: self.journal_start_ms.load(Ordering::Relaxed) + since_start_ms,
        };
        (instant, now)
    }
}

fn unix_ms() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    millis(unix.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    /// Returns the difference between the journal's time after a start and the system's clock, in milliseconds. The
    /// latest record is `latest_ms` later than the start.
    fn difference_after_start(latest_ms: i64, clock_ahead_ms: u64) -> i64 {
        let clock = ServerClock::start();
        let start_ms = clock.now().journal_ms;
        clock.continue_journal_time(&RecoveredState {
            latest_unix_ms: start_ms.saturating_add_signed(latest_ms),
            clock_ahead_ms,
            ..RecoveredState::default()
        });
        let now = clock.now();
        now.journal_ms as i64 - now.unix_ms as i64
    }

    #[test]
    fn journal_time_continues_when_the_system_clock_is_behind() {
        const HOUR: i64 = HOUR_MS as i64;
        for (latest_ms, ahead_ms, expected_ms) in [
            (-HOUR, 0, 0),
            (HOUR, 0, HOUR),
            (-3 * HOUR, 2 * HOUR_MS, -2 * HOUR),
            (-HOUR, 2 * HOUR_MS, -HOUR),
            (HOUR, 2 * HOUR_MS, HOUR),
        ] {
            let found_ms = difference_after_start(latest_ms, ahead_ms);
            assert!(
                found_ms.abs_diff(expected_ms) < 60_000,
                "{found_ms} instead of {expected_ms} ms"
            );
        }
    }
}
