//! The clock that all workers of a server share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use broker::Now;

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

    /// Sets the journal's time to at least this one. Called before the workers start.
    pub(crate) fn continue_journal_time(&self, latest_unix_ms: u64) {
        self.journal_start_ms.fetch_max(latest_unix_ms, Ordering::Relaxed);
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

    #[test]
    fn journal_time_continues_when_the_system_clock_is_behind() {
        let clock = ServerClock::start();
        let start_ms = clock.now().journal_ms;
        clock.continue_journal_time(start_ms - 3_600_000);
        let now = clock.now();
        assert!((start_ms..start_ms + 60_000).contains(&now.journal_ms), "{now:?}");
        clock.continue_journal_time(start_ms + 3_600_000);
        let now = clock.now();
        assert!(now.journal_ms >= start_ms + 3_600_000, "{now:?}");
        assert!(now.unix_ms < start_ms + 3_600_000, "{now:?}");
    }
}
