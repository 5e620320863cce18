//! The last lines of the server log in memory. The binary adds them, and the API returns them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limit of lines …
pub const LINES_MAX: usize = 5000;
/// … and of bytes of text in them.
pub(crate) const BYTES_MAX: usize = 2 * 1024 * 1024;
/// Limit of one line.
const LINE_BYTES_MAX: usize = 8 * 1024;

/// Most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LogLevel")]
pub enum LogLineLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LogLine {
    /// Sequence number since the start of the server.
    pub number: u64,
    pub at_unix_ms: u64,
    pub level: LogLineLevel,
    /// Component that logged the line.
    pub target: String,
    /// The message, and its fields as `name=value`.
    pub text: String,
}

#[derive(Debug, Default)]
pub struct LogRing {
    lines: Mutex<LogRingLines>,
    /// Lines that the system log did not accept.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct LogRingLines {
    lines: VecDeque<LogLine>,
    bytes: usize,
    number: u64,
}

impl LogRing {
    /// Adds a line, and drops the oldest ones above the limit.
    pub fn push(&self, at_unix_ms: u64, level: LogLineLevel, target: &str, mut text: String) {
        if text.len() > LINE_BYTES_MAX {
            let end = (0..=LINE_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
            text.push('…');
        }
        let mut lines = self.lock();
        lines.number += 1;
        lines.bytes += text.len();
        let line = LogLine {
            number: lines.number,
            at_unix_ms,
            level,
            target: target.to_owned(),
            text,
        };
        lines.lines.push_back(line);
        while lines.lines.len() > LINES_MAX || lines.bytes > BYTES_MAX {
            let Some(oldest) = lines.lines.pop_front() else { break };
            lines.bytes -= oldest.text.len();
        }
    }

    /// Counts a line that the system log did not accept.
    pub fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns up to `limit` lines with numbers below `before`, newest first, and whether there are more.
    pub fn read(&self, wanted: impl Fn(&LogLine) -> bool, before: u64, limit: usize) -> (Vec<LogLine>, bool) {
        let lines = self.lock();
        let newest = lines.lines.iter().rev();
        let mut found: Vec<LogLine> = newest
            .filter(|line| line.number < before && wanted(line))
            .take(limit + 1)
            .cloned()
            .collect();
        let is_more = found.len() > limit;
        found.truncate(limit);
        (found, is_more)
    }

    // A panic in another thread can at most lose or duplicate a line.
    fn lock(&self) -> MutexGuard<'_, LogRingLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_lines_are_dropped_and_long_ones_shortened() {
        let ring = LogRing::default();
        for n in 0..LINES_MAX + 10 {
            ring.push(n as u64, LogLineLevel::Info, "t", format!("line {n}"));
        }
        let (newest, is_more) = ring.read(|_| true, u64::MAX, 2);
        assert_eq!(
            (newest[0].number, newest.len(), is_more),
            (LINES_MAX as u64 + 10, 2, true)
        );
        let (rest, is_more) = ring.read(|_| true, newest[1].number, LINES_MAX);
        assert_eq!(
            (rest.len(), rest[LINES_MAX - 3].number, is_more),
            (LINES_MAX - 2, 11, false)
        );
        for _ in 0..2000 {
            ring.push(0, LogLineLevel::Error, "t", "ü".repeat(LINE_BYTES_MAX));
        }
        let (errors, _) = ring.read(|line| line.level <= LogLineLevel::Warn, u64::MAX, LINES_MAX);
        assert!(errors.len() <= BYTES_MAX / LINE_BYTES_MAX && errors[0].text.ends_with('…'));
    }
}
