//! Classifies responses.
//!
//! | status | result |
//! |---|---|
//! | 2xx | accepted |
//! | 401, 407, 429, 502, 503, 504 | server unavailable or credentials rejected: all records wait for `retry-after` |
//! | 408, 425, other 5xx | temporary error of this record: it is retried, others continue |
//! | 400, 409, 413, 422 | rejected; in a batch, the bad records are isolated |
//! | other 3xx, 4xx | rejected |
//!
//! The second and third line apply to the status codes in `retry_statuses`. Other codes of these lines are rejected,
//! 5xx like 400.

use std::time::{Duration, SystemTime};

use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, StatusCode};

use super::client::ResponseStart;

/// Maximum pause that a server can request.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of bytes of a response in an error.
const SHOWN_BYTES: usize = 200;

pub(super) enum StatusResult {
    Accepted,
    Unreachable {
        reason: String,
        pause: Option<Duration>,
    },
    Temporary(String),
    /// The whole request was rejected.
    Rejected(String),
    /// At least one record of the request was rejected.
    RecordRejected(String),
}

/// Status codes after which a message is retried.
#[derive(Clone, Debug, Default)]
pub(super) struct Statuses {
    single: Vec<u16>,
    /// First digits of the classes.
    classes: Vec<u16>,
}

impl Statuses {
    /// Parses codes and classes. The errors name the field.
    pub fn new(texts: &[String]) -> Result<Statuses, Vec<String>> {
        let (mut statuses, mut problems) = (Statuses::default(), Vec::new());
        for (index, text) in texts.iter().enumerate() {
            match (text.strip_suffix("xx").unwrap_or(text).parse(), text.len()) {
                (Ok(class @ 3..=5), 3) => statuses.classes.push(class),
                (Ok(status @ 300..=599), 3) => statuses.single.push(status),
                _ => problems.push(format!(
                    "retry_statuses[{index}]: {text:?} must be a status from 300 to 599, or 3xx, 4xx or 5xx"
                )),
            }
        }
        match problems.is_empty() {
            true => Ok(statuses),
            false => Err(problems),
        }
    }

    fn has(&self, status: u16) -> bool {
        self.single.contains(&status) || self.classes.contains(&(status / 100))
    }
}

pub(super) fn classify(answer: &ResponseStart, retried: &Statuses) -> StatusResult {
    let status = answer.response.status();
    if status.is_success() {
        return StatusResult::Accepted;
    }
    let reason = describe(status, &answer.start);
    match status.as_u16() {
        401 | 407 | 429 | 502..=504 if retried.has(status.as_u16()) => StatusResult::Unreachable {
            reason,
            pause: pause(answer.response.headers(), SystemTime::now()),
        },
        again if retried.has(again) => StatusResult::Temporary(reason),
        400 | 409 | 413 | 422 | 500..=599 => StatusResult::RecordRejected(reason),
        _ => StatusResult::Rejected(reason),
    }
}

fn describe(status: StatusCode, start: &[u8]) -> String {
    let shown = String::from_utf8_lossy(&start[..start.len().min(SHOWN_BYTES)]);
    let shown: String = shown.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match shown.trim() {
        "" => format!("the server answered {status}"),
        shown => format!("the server answered {status}: {shown}"),
    }
}

/// Parses `retry-after`: seconds or a date.
fn pause(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            SystemTime::from(date).duration_since(now).unwrap_or_default()
        }
    };
    Some(pause.min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbers_or_classes() {
        let given = |texts: &[&str]| Statuses::new(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let statuses = given(&["404", "5xx"]).expect("valid codes");
        let has: Vec<u16> = [400, 404, 409, 500, 599]
            .into_iter()
            .filter(|it| statuses.has(*it))
            .collect();
        assert_eq!(has, [404, 500, 599]);
        for wrong in ["200", "2xx", "600", "5x", "55xx", "xx", "5XX", "+50", ""] {
            let problems = given(&["404", wrong]).expect_err(wrong);
            assert!(
                problems.len() == 1 && problems[0].starts_with("retry_statuses[1]: "),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn a_pause_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, expected) in [
            ("7", Some(7)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("999999", Some(3600)),
            ("soon", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().expect("a value"))]);
            assert_eq!(pause(&headers, now), expected.map(Duration::from_secs), "{text}");
        }
    }
}
