//! The time of the platform's threads.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A clock that is set forward counts after this time. If it was wrong and is repaired earlier, no data is deleted.
const TRUSTED_AFTER: Duration = Duration::from_secs(3600);

/// A smaller step counts at once.
const STEP_MS: i64 = 60_000;

/// The time that decides which stored data has expired.
pub struct ExpiryClock {
    /// The last reading that counted.
    read_at: Instant,
    unix_ms: i64,
    ahead_since: Option<Instant>,
}

impl ExpiryClock {
    pub fn new(now: Instant, unix_ms: i64) -> ExpiryClock {
        ExpiryClock {
            read_at: now,
            unix_ms,
            ahead_since: None,
        }
    }

    /// Returns the time when the system's clock shows `unix_ms`.
    pub fn read(&mut self, now: Instant, unix_ms: i64) -> i64 {
        let passed_ms = i64::try_from((now - self.read_at).as_millis()).unwrap_or(i64::MAX);
        let expected_ms = self.unix_ms.saturating_add(passed_ms);
        if unix_ms > expected_ms.saturating_add(STEP_MS) {
            let since = *self.ahead_since.get_or_insert(now);
            if now - since < TRUSTED_AFTER {
                return expected_ms;
            }
        }
        *self = ExpiryClock::new(now, unix_ms);
        unix_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;
    const YEARS_MS: i64 = 80 * 365 * 24 * HOUR_MS;

    /// Returns the times of the readings, each of which is given by its distance from the start and by the step of the
    /// system's clock.
    fn times(readings: &[(i64, i64)]) -> Vec<i64> {
        let start = Instant::now();
        let mut clock = ExpiryClock::new(start, 0);
        let read = |(passed_ms, step_ms): &(i64, i64)| {
            let now = start + Duration::from_millis(passed_ms.unsigned_abs());
            clock.read(now, passed_ms + step_ms)
        };
        readings.iter().map(read).collect()
    }

    #[test]
    fn step_forward_counts_after_an_hour() {
        let readings = [(1_000, YEARS_MS), (HOUR_MS, YEARS_MS), (HOUR_MS + 1_000, YEARS_MS)];
        assert_eq!(times(&readings), [1_000, HOUR_MS, HOUR_MS + 1_000 + YEARS_MS]);
        assert_eq!(times(&[(1_000, STEP_MS)]), [1_000 + STEP_MS]);
    }

    #[test]
    fn step_that_is_repaired_has_no_effect() {
        let readings = [(1_000, YEARS_MS), (2_000, 0), (HOUR_MS + 1_000, YEARS_MS)];
        assert_eq!(times(&readings), [1_000, 2_000, HOUR_MS + 1_000]);
        assert_eq!(times(&[(1_000, -HOUR_MS)]), [1_000 - HOUR_MS]);
    }
}
