//! What an answer means for the records of its request.
//!
//! | status | means |
//! |---|---|
//! | 2xx | taken |
//! | 401, 407, 429, 502, 503, 504 | the server is away, or not for us: everything waits, as long as `retry-after` says |
//! | 408, 425, other 5xx | not this one now: it is sent again, others go on |
//! | 400, 409, 413, 422 | refused; in a batch, the bad records are looked for |
//! | other 3xx, 4xx | refused |

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

pub(super) fn verdict(answer: &Answer) -> Verdict {
    let status = answer.response.status();
    if status.is_success() {
        return Verdict::Taken;
    }
    let reason = describe(status, &answer.start);
    match status.as_u16() {
        401 | 407 | 429 | 502..=504 => Verdict::Away {
            reason,
            pause: pause(answer.response.headers(), SystemTime::now()),
        },
        408 | 425 | 500..=599 => Verdict::Busy(reason),
        400 | 409 | 413 | 422 => Verdict::Poisoned(reason),
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
