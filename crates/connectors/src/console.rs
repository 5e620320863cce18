//! Console: an action that writes messages into the server's own log, to look at while a rule is being made.
//!
//! It is slower than any target on purpose: beyond so many lines a second it leaves lines out and says how many. So nothing
//! waits for it, and no log fills up because of it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::sink::{BoxFuture, Outcome, Sink, Template, all};

/// Bytes of a message that are shown.
const SHOWN_BYTES: usize = 1024;

/// What is written for each message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsoleActionConfig {
    /// Template.
    pub line: String,
    /// Lines that are written in a second at most. Others are left out.
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
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        match self.lines_per_second_max {
            1..=1000 => Vec::new(),
            is => vec![format!("lines_per_second_max: is {is}, must be 1 to 1000")],
        }
    }

    pub fn templates(&self) -> Vec<Template> {
        vec![Template::new("line", &self.line)]
    }
}

pub struct ConsoleSink {
    /// The action's name, for the log.
    action: String,
    templates: Vec<Template>,
    limit: Mutex<Limit>,
}

impl ConsoleSink {
    /// The errors name the fields.
    pub fn new(action: impl Into<String>, config: &ConsoleActionConfig) -> Result<ConsoleSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(ConsoleSink {
            action: action.into(),
            templates: config.templates(),
            limit: Mutex::new(Limit::new(config.lines_per_second_max, Instant::now())),
        })
    }

    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    fn write(&self, record: &Record) {
        let verdict = self
            .limit
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ask(Instant::now());
        if let Some(left_out) = verdict {
            let action = &self.action;
            tracing::info!(action, left_out, "{}", shown(record.field(0).unwrap_or(b"null")));
        }
    }
}

/// Whatever a client has sent, it is one line of text.
fn shown(bytes: &[u8]) -> String {
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
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        for record in batch {
            self.write(record);
        }
        Box::pin(async { all(batch, Ok(())) })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// So many in a second, evenly refilled.
struct Limit {
    per_second: f64,
    left: f64,
    filled: Instant,
    left_out: u64,
}

impl Limit {
    fn new(per_second: u32, now: Instant) -> Limit {
        Limit {
            per_second: per_second.into(),
            left: per_second.into(),
            filled: now,
            left_out: 0,
        }
    }

    /// `Some`: go on; so many were left out since the last time.
    fn ask(&mut self, now: Instant) -> Option<u64> {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.left = (self.left + since * self.per_second).min(self.per_second);
        self.filled = now;
        if self.left < 1.0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::record::sample;

    #[test]
    fn what_is_too_much_is_left_out_and_told() {
        let start = Instant::now();
        let mut limit = Limit::new(10, start);
        let verdicts: Vec<Option<u64>> = (0..25).map(|_| limit.ask(start)).collect();
        assert!(verdicts[..10].iter().all(|verdict| *verdict == Some(0)));
        assert!(verdicts[10..].iter().all(Option::is_none));
        assert_eq!(limit.ask(start + Duration::from_millis(150)), Some(15));
        assert_eq!(limit.ask(start + Duration::from_millis(150)), None);
    }

    #[test]
    fn a_message_is_one_line_and_not_a_long_one() {
        assert_eq!(shown("a\nb\u{1b}[2Jü".as_bytes()), "a\\nb\\u{1b}[2Jü");
        let long = shown(&[b'x'; 5000]);
        assert!(long.len() < 1100 && long.ends_with("(5000 bytes)"), "{long}");
    }

    #[tokio::test]
    async fn everything_is_taken() {
        let sink = ConsoleSink::new("look", &ConsoleActionConfig::default()).expect("sound");
        let records = sample(0, &[&[Some(b"{}")], &[None]]);
        assert_eq!(sink.send(&records).await, vec![Ok(()), Ok(())]);
    }
}
