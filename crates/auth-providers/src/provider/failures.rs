//! Limits the log lines of a failing source.

use std::time::{Duration, Instant};

/// Minimum time between two log lines about failures.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct FailureLog {
    /// Failures since the last log line.
    unlogged: u64,
    /// Failures since the last success.
    failed: u64,
    last_line: Option<Instant>,
    /// A log line reports these failures.
    is_logged: bool,
}

impl FailureLog {
    /// Records a failure. Returns the number of failures since the last line, if it is time for a line.
    pub fn failed(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        self.failed += 1;
        let is_recent = |line: Instant| now.saturating_duration_since(line) < LINE_INTERVAL;
        if self.last_line.is_some_and(is_recent) {
            return None;
        }
        self.last_line = Some(now);
        self.is_logged = true;
        Some(std::mem::take(&mut self.unlogged))
    }

    /// Records a success. Returns the number of failures before it, if a line has reported them.
    pub fn succeeded(&mut self) -> Option<u64> {
        let failed = std::mem::take(&mut self.failed);
        std::mem::take(&mut self.is_logged).then_some(failed)
    }

    pub fn is_failing(&self) -> bool {
        self.failed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_one_line_per_interval_and_one_at_their_end() {
        let mut log = FailureLog::default();
        let start = Instant::now();
        assert_eq!(log.succeeded(), None);
        assert_eq!(log.failed(start), Some(1));
        for second in 1..10 {
            assert_eq!(log.failed(start + Duration::from_secs(second)), None);
        }
        assert_eq!(log.failed(start + LINE_INTERVAL), Some(10));
        assert!(log.is_failing());
        assert_eq!(log.succeeded(), Some(11));
        assert!(!log.is_failing());
        // A source that alternates does not log each change.
        assert_eq!(log.failed(start + LINE_INTERVAL), None);
        assert_eq!(log.succeeded(), None);
    }
}
