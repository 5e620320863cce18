//! What an answer means for the records of its request.
//!
//! | status | means |
//! |---|---|
//! | 2xx | taken |
//! | 401, 407, 429, 502, 503, 504 | the server is away, or not for us: everything waits, as long as `retry-after` says |
//! | 408, 425, other 5xx | not this one now: it is sent again, others go on |
//! | 400, 409, 413, 422 | refused; in a batch, the bad records are looked for |
//! | other 3xx, 4xx | refused |
//!
//! The second and the third line are of statuses that are retried, which the action's configuration names. Others of these are refused, 5xx
//! as 400 is.

use std::time::{Duration, SystemTime};

use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, StatusCode};

use super::client::Answer;

/// No server may silence us for longer.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Bytes of an answer that an error shows.
const SHOWN_BYTES: usize = 200;

pub(super) enum Verdict {
    Taken,
    Away {
        reason: String,
        pause: Option<Duration>,
    },
    Busy(String),
    /// For the whole request.
    Refused(String),
    /// For one record at least of the request.
    Poisoned(String),
}

/// Those after which a message is sent again.
#[derive(Clone, Debug, Default)]
pub(super) struct Statuses {
    single: Vec<u16>,
    /// First digits.
    classes: Vec<u16>,
}

impl Statuses {
    /// The errors name the field.
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

pub(super) fn verdict(answer: &Answer, retried: &Statuses) -> Verdict {
    let status = answer.response.status();
    if status.is_success() {
        return Verdict::Taken;
    }
    let reason = describe(status, &answer.start);
    match status.as_u16() {
        401 | 407 | 429 | 502..=504 if retried.has(status.as_u16()) => Verdict::Away {
            reason,
            pause: pause(answer.response.headers(), SystemTime::now()),
        },
        again if retried.has(again) => Verdict::Busy(reason),
        400 | 409 | 413 | 422 | 500..=599 => Verdict::Poisoned(reason),
        _ => Verdict::Refused(reason),
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

/// `retry-after`: seconds, or a date.
fn pause(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = chrono::DateTime::parse_from_rfc2822(text).ok()?;
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
        let statuses = given(&["404", "5xx"]).expect("good ones");
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
