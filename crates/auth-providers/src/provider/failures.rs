//! Limits the log lines of a failing source, and stores its last failure.

use std::time::{Duration, Instant, SystemTime};

/// Minimum time between two log lines about failures.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum length of the reason of a stored failure.
const REASON_CHARACTERS_MAX: usize = 500;

/// A failure of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailure {
    pub at: SystemTime,
    /// For operators. Contains no credentials.
    pub reason: String,
}

#[derive(Debug, Default)]
pub(super) struct FailureLog {
    /// Failures since the last log line.
    unlogged: u64,
    /// Failures since the last success.
    failed: u64,
    last_line: Option<Instant>,
    /// A log line reports these failures.
    is_logged: bool,
    last: Option<SourceFailure>,
}

impl FailureLog {
    /// Records a failure. Returns the number of failures since the last line, if it is time for a line.
    pub fn failed(&mut self, now: Instant, at: SystemTime, reason: &str) -> Option<u64> {
        self.last = Some(SourceFailure {
            at,
            reason: reason.chars().take(REASON_CHARACTERS_MAX).collect(),
        });
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

    /// Returns the last failure, also if the source works again.
    pub fn last(&self) -> Option<&SourceFailure> {
        self.last.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_one_line_per_interval_and_one_at_their_end() {
        let mut log = FailureLog::default();
        let (start, time) = (Instant::now(), SystemTime::now());
        assert_eq!(log.succeeded(), None);
        assert_eq!(log.failed(start, time, "no route"), Some(1));
        for second in 1..10 {
            assert_eq!(log.failed(start + Duration::from_secs(second), time, "no route"), None);
        }
        assert_eq!(log.failed(start + LINE_INTERVAL, time, "refused"), Some(10));
        assert!(log.is_failing());
        assert_eq!(log.succeeded(), Some(11));
        assert!(!log.is_failing());
        let last = SourceFailure {
            at: time,
            reason: "refused".to_owned(),
        };
        assert_eq!(log.last(), Some(&last));
        // A source that alternates does not log each change.
        assert_eq!(log.failed(start + LINE_INTERVAL, time, "refused"), None);
        assert_eq!(log.succeeded(), None);
    }
}
