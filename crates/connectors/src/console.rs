//! Console: an action that writes messages to the server's log, for use while a rule is developed.
//!
//! The number of lines per second is limited. The action skips further lines and logs how many it skipped, so that it
//! never delays messages or fills the log.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::sink::{BatchOutcome, BoxFuture, FieldTemplate, Sink, all};

/// Maximum number of bytes of a message in a log line.
const SHOWN_BYTES: usize = 1024;

/// Options of a console action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsoleActionConfig {
    /// Template of the log line. The default writes the whole message as JSON.
    pub line: String,
    /// Maximum number of log lines per second. Further messages are not logged; the next line says how many were
    /// skipped.
    #[schemars(range(min = 1, max = 1000))]
    pub lines_per_second_max: u32,
}

impl Default for ConsoleActionConfig {
    fn default() -> ConsoleActionConfig {
        ConsoleActionConfig {
            line: "${.}".to_owned(),
            lines_per_second_max: 10,
        }
    }
}

impl ConsoleActionConfig {
    /// Returns one message per invalid field: the field, its value and the allowed range.
    pub fn problems(&self) -> Vec<String> {
        match self.lines_per_second_max {
            1..=1000 => Vec::new(),
            is => vec![format!("lines_per_second_max: is {is}, must be 1 to 1000")],
        }
    }

    pub fn templates(&self) -> Vec<FieldTemplate> {
        vec![FieldTemplate::new("line", &self.line)]
    }
}

pub struct ConsoleSink {
    /// The action's name, for the log.
    action: String,
    templates: Vec<FieldTemplate>,
    limit: Mutex<LineLimit>,
}

impl ConsoleSink {
    /// Fails with one message per invalid field.
    pub fn new(action: impl Into<String>, config: &ConsoleActionConfig) -> Result<ConsoleSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(ConsoleSink {
            action: action.into(),
            templates: config.templates(),
            limit: Mutex::new(LineLimit::new(config.lines_per_second_max, Instant::now())),
        })
    }

    pub fn templates(&self) -> &[FieldTemplate] {
        &self.templates
    }

    fn write(&self, record: &Record) {
        let verdict = self
            .limit
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_take(Instant::now());
        if let Some(skipped_lines) = verdict {
            let action = &self.action;
            tracing::info!(
                action,
                skipped_lines,
                "{}",
                printable_line(record.field(0).unwrap_or(b"null"))
            );
        }
    }
}

/// Returns the payload as one line of printable text.
fn printable_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES)]);
    let mut line: String = text.chars().flat_map(printable).collect();
    if bytes.len() > SHOWN_BYTES {
        line.push_str(&format!(" ... ({} bytes)", bytes.len()));
    }
    line
}

fn printable(character: char) -> Vec<char> {
    match character.is_control() {
        true => character.escape_default().collect(),
        false => vec![character],
    }
}

impl Sink for ConsoleSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        for record in batch {
            self.write(record);
        }
        Box::pin(async { all(batch, Ok(())) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// Token bucket with continuous refill.
struct LineLimit {
    per_second: f64,
    left: f64,
    filled: Instant,
    skipped: u64,
}

impl LineLimit {
    fn new(per_second: u32, now: Instant) -> LineLimit {
        LineLimit {
            per_second: per_second.into(),
            left: per_second.into(),
            filled: now,
            skipped: 0,
        }
    }

    /// Takes a token. Returns the number of lines skipped since the previous token, or `None` if the bucket is empty.
    fn try_take(&mut self, now: Instant) -> Option<u64> {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.left = (self.left + since * self.per_second).min(self.per_second);
        self.filled = now;
        if self.left < 1.0 {
            self.skipped += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.skipped))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::record::sample;

    #[test]
    fn lines_above_the_limit_are_skipped_and_counted() {
        let start = Instant::now();
        let mut limit = LineLimit::new(10, start);
        let verdicts: Vec<Option<u64>> = (0..25).map(|_| limit.try_take(start)).collect();
        assert!(verdicts[..10].iter().all(|verdict| *verdict == Some(0)));
        assert!(verdicts[10..].iter().all(Option::is_none));
        assert_eq!(limit.try_take(start + Duration::from_millis(150)), Some(15));
        assert_eq!(limit.try_take(start + Duration::from_millis(150)), None);
    }

    #[test]
    fn messages_are_logged_as_one_bounded_line() {
        assert_eq!(printable_line("a\nb\u{1b}[2Jü".as_bytes()), "a\\nb\\u{1b}[2Jü");
        let long = printable_line(&[b'x'; 5000]);
        assert!(long.len() < 1100 && long.ends_with("(5000 bytes)"), "{long}");
    }

    #[tokio::test]
    async fn console_sink_accepts_every_record() {
        let sink = ConsoleSink::new("look", &ConsoleActionConfig::default()).expect("valid options");
        let records = sample(0, &[&[Some(b"{}")], &[None]]);
        assert_eq!(sink.send(&records).await, vec![Ok(()), Ok(())]);
    }
}
