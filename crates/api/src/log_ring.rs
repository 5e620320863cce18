//! The last lines of the log, in memory, for whoever looks at a node from afar. The binary puts them in, the API shows them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lines that are kept …
pub const LINES_MAX: usize = 5000;
/// … and bytes of text in them.
const BYTES_MAX: usize = 2 * 1024 * 1024;
/// Of one line.
const LINE_BYTES_MAX: usize = 8 * 1024;

/// From what matters most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LogLine {
    /// Lines are numbered from the start of the server.
    pub number: u64,
    pub at_unix_ms: u64,
    pub level: LogLevel,
    /// Which part of the server says it.
    pub target: String,
    /// The message, and its fields as `name=value`.
    pub text: String,
}

#[derive(Debug, Default)]
pub struct LogRing {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<LogLine>,
    bytes: usize,
    number: u64,
}

impl LogRing {
    /// Keeps a line, and forgets the oldest when there is no room.
    pub fn push(&self, at_unix_ms: u64, level: LogLevel, target: &str, mut text: String) {
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
        lines.kept.push_back(line);
        while lines.kept.len() > LINES_MAX || lines.bytes > BYTES_MAX {
            let Some(oldest) = lines.kept.pop_front() else { break };
            lines.bytes -= oldest.text.len();
        }
    }

    /// The newest first: up to `limit` lines with numbers below `before`, and whether there are more.
    pub fn read(&self, wanted: impl Fn(&LogLine) -> bool, before: u64, limit: usize) -> (Vec<LogLine>, bool) {
        let lines = self.lock();
        let newest = lines.kept.iter().rev();
        let mut found: Vec<LogLine> = newest
            .filter(|line| line.number < before && wanted(line))
            .take(limit + 1)
            .cloned()
            .collect();
        let is_more = found.len() > limit;
        found.truncate(limit);
        (found, is_more)
    }

    // A panic elsewhere leaves a line more or less, which is no harm.
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_go_and_long_ones_are_cut() {
        let ring = LogRing::default();
        for n in 0..LINES_MAX + 10 {
            ring.push(n as u64, LogLevel::Info, "t", format!("line {n}"));
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
            ring.push(0, LogLevel::Error, "t", "ü".repeat(LINE_BYTES_MAX));
        }
        let (errors, _) = ring.read(|line| line.level <= LogLevel::Warn, u64::MAX, LINES_MAX);
        assert!(errors.len() <= BYTES_MAX / LINE_BYTES_MAX && errors[0].text.ends_with('…'));
    }
}
