//! Quantities with a unit: durations, byte sizes and rates, as people write them.
//!
//! A unit is required: `15` is rejected as a duration, because products differ in the unit that they assume. Only 0
//! needs none.

use std::fmt;
use std::time::Duration;

use super::value::{OptionValue, Reject};

const MILLISECOND: u64 = 1;
const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;

/// Largest first, so that printing takes out the largest first.
const DURATION_UNITS: [(&str, u64); 5] = [
    ("d", DAY),
    ("h", HOUR),
    ("m", MINUTE),
    ("s", SECOND),
    ("ms", MILLISECOND),
];

const BYTE_UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1000),
    ("B", 1),
];

/// "1MiB", "64 KB", 65536. KB, MB and GB are powers of 1000; KiB, MiB and GiB of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// So many things per time: "100/s", "6000/m", "50/10s".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub amount: u64,
    pub per: Duration,
}

/// So many bytes per time: "1MiB/s".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate(pub Rate);

impl Rate {
    pub fn per_second(self) -> f64 {
        self.amount as f64 / self.per.as_secs_f64()
    }
}

/// "1h30m", "15s", "1500ms", "0".
pub fn parse_duration(text: &str) -> Result<Duration, Reject> {
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total_ms: u64 = 0;
    if rest.is_empty() {
        return Err(Reject::Mismatch);
    }
    while !rest.is_empty() {
        let (number, unit, after) = split_quantity(rest);
        let number: u64 = number.parse().map_err(|_| Reject::Mismatch)?;
        if unit.is_empty() {
            return Err(Reject::WithReason(format!(
                "a unit is missing: is it \"{text}s\" or \"{text}ms\"?"
            )));
        }
        let factor = duration_unit(unit).ok_or_else(|| {
            Reject::WithReason(format!(
                "`{unit}` is not a unit of time; units are ms, s, m, h, d and w"
            ))
        })?;
        let part = number.checked_mul(factor).ok_or(Reject::Mismatch)?;
        total_ms = total_ms.checked_add(part).ok_or(Reject::Mismatch)?;
        rest = after.trim_start();
    }
    Ok(Duration::from_millis(total_ms))
}

fn duration_unit(unit: &str) -> Option<u64> {
    let short = match unit {
        "sec" | "second" | "seconds" => "s",
        "min" | "minute" | "minutes" => "m",
        "hour" | "hours" => "h",
        "day" | "days" => "d",
        // Accepted but not printed: "7d" stays as it is.
        "w" | "week" | "weeks" => return Some(WEEK),
        other => other,
    };
    DURATION_UNITS
        .iter()
        .find(|(name, _)| *name == short)
        .map(|(_, factor)| *factor)
}

/// The fewest parts that say it exactly: "1h30m", "1d12h".
pub fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    for (name, factor) in DURATION_UNITS {
        if rest >= factor {
            text.push_str(&format!("{}{name}", rest / factor));
            rest %= factor;
        }
    }
    text
}

/// "64 KB" to ("64", "KB", ""): a run of digits, then a run of letters.
fn split_quantity(text: &str) -> (&str, &str, &str) {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '_')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    let rest = rest.trim_start();
    let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    let (unit, after) = rest.split_at(letters);
    (number, unit, after)
}

fn parse_bytes(text: &str) -> Result<u64, Reject> {
    let (number, unit, rest) = split_quantity(text.trim());
    let number: u64 = number.replace('_', "").parse().map_err(|_| Reject::Mismatch)?;
    if !rest.is_empty() {
        return Err(Reject::Mismatch);
    }
    let factor = match unit {
        "" => 1,
        _ => BYTE_UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|(_, factor)| *factor)
            .ok_or_else(|| {
                Reject::WithReason(format!(
                    "`{unit}` is not a unit of size; units are B, KB, KiB, MB, MiB, GB and GiB"
                ))
            })?,
    };
    number.checked_mul(factor).ok_or(Reject::Mismatch)
}

/// `amount/period`, with the amount read by `parse_amount`; a period without a number counts once.
fn parse_rate(text: &str, parse_amount: fn(&str) -> Result<u64, Reject>) -> Result<Rate, Reject> {
    let (amount, period) = text
        .split_once('/')
        .ok_or_else(|| Reject::WithReason("`/s` is missing".into()))?;
    let period = period.trim();
    let per = if period.starts_with(|c: char| c.is_ascii_digit()) {
        parse_duration(period)?
    } else {
        parse_duration(&format!("1{period}"))?
    };
    if per.is_zero() {
        return Err(Reject::Mismatch);
    }
    let amount = parse_amount(amount.trim())?;
    if amount == 0 {
        return Err(Reject::WithReason("0 would stop all traffic".into()));
    }
    Ok(Rate { amount, per })
}

fn format_period(per: Duration) -> String {
    let text = format_duration(per);
    match text.strip_prefix('1') {
        Some(unit) if unit.chars().all(|c| c.is_ascii_alphabetic()) => unit.into(),
        _ => text,
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = BYTE_UNITS
            .iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match unit {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => f.write_str("0B"),
        }
    }
}

impl OptionValue for Duration {
    fn type_name() -> String {
        "duration".into()
    }

    fn expected() -> String {
        "a duration such as \"15s\", \"1h30m\" or \"7d\"".into()
    }

    fn from_text(text: &str) -> Result<Duration, Reject> {
        parse_duration(text)
    }

    fn from_toml(value: &toml::Value) -> Result<Duration, Reject> {
        match value {
            toml::Value::String(text) => parse_duration(text),
            toml::Value::Integer(number) => parse_duration(&number.to_string()),
            _ => Err(Reject::Mismatch),
        }
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(format_duration(*self))
    }

    fn is_within(&self, min: &Duration, max: &Duration) -> bool {
        (min..=max).contains(&self)
    }
}

impl OptionValue for ByteSize {
    fn type_name() -> String {
        "byte size".into()
    }

    fn expected() -> String {
        "a size such as \"64KiB\" or \"1MB\"".into()
    }

    fn from_text(text: &str) -> Result<ByteSize, Reject> {
        parse_bytes(text).map(ByteSize)
    }

    fn from_toml(value: &toml::Value) -> Result<ByteSize, Reject> {
        match value {
            toml::Value::String(text) => parse_bytes(text).map(ByteSize),
            toml::Value::Integer(bytes) => u64::try_from(*bytes).map(ByteSize).map_err(|_| Reject::Mismatch),
            _ => Err(Reject::Mismatch),
        }
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.to_string())
    }

    fn is_within(&self, min: &ByteSize, max: &ByteSize) -> bool {
        (min..=max).contains(&self)
    }
}

impl OptionValue for Rate {
    fn type_name() -> String {
        "rate".into()
    }

    fn expected() -> String {
        "a rate such as \"100/s\" or \"6000/m\"".into()
    }

    fn from_text(text: &str) -> Result<Rate, Reject> {
        parse_rate(text, |amount| {
            amount.replace('_', "").parse().map_err(|_| Reject::Mismatch)
        })
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(format!("{}/{}", self.amount, format_period(self.per)))
    }

    fn is_within(&self, min: &Rate, max: &Rate) -> bool {
        (min.per_second()..=max.per_second()).contains(&self.per_second())
    }
}

impl OptionValue for ByteRate {
    fn type_name() -> String {
        "byte rate".into()
    }

    fn expected() -> String {
        "a byte rate such as \"1MiB/s\"".into()
    }

    fn from_text(text: &str) -> Result<ByteRate, Reject> {
        parse_rate(text, parse_bytes).map(ByteRate)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(format!("{}/{}", ByteSize(self.0.amount), format_period(self.0.per)))
    }

    fn is_within(&self, min: &ByteRate, max: &ByteRate) -> bool {
        self.0.is_within(&min.0, &max.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed() {
        for (text, ms, printed) in [
            ("15s", 15_000, "15s"),
            ("1h30m", 5_400_000, "1h30m"),
            ("1h 30m", 5_400_000, "1h30m"),
            ("90 min", 5_400_000, "1h30m"),
            ("1500ms", 1500, "1s500ms"),
            ("7d", 604_800_000, "7d"),
            ("1w", 604_800_000, "7d"),
            ("0", 0, "0s"),
        ] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(duration, Duration::from_millis(ms), "{text}");
            assert_eq!(format_duration(duration), printed, "{text}");
        }
    }

    #[test]
    fn a_duration_without_a_unit_is_asked_about() {
        let Err(Reject::WithReason(why)) = parse_duration("15") else {
            panic!("15 has no unit")
        };
        assert_eq!(why, "a unit is missing: is it \"15s\" or \"15ms\"?");
        for text in ["", "s", "-1s", "1.5h", "99999999999999999999s", "18446744073709551615w"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, bytes, printed) in [
            ("1MiB", 1 << 20, "1MiB"),
            ("64 KB", 64_000, "64KB"),
            ("64kb", 64_000, "64KB"),
            ("65536", 65_536, "64KiB"),
            ("1_000", 1000, "1KB"),
            ("0", 0, "0B"),
            ("1025", 1025, "1025B"),
        ] {
            let size = ByteSize::from_text(text).expect(text);
            assert_eq!((size.0, size.to_string().as_str()), (bytes, printed), "{text}");
        }
        for text in ["", "MB", "1XB", "-1", "1.5MB", "99999999999GiB", "1MB 2KB"] {
            assert!(ByteSize::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_read_and_printed() {
        for (text, per_second, printed) in [
            ("100/s", 100.0, "100/s"),
            ("6000/m", 100.0, "6000/m"),
            ("50/10s", 5.0, "50/10s"),
            ("5/1s", 5.0, "5/s"),
        ] {
            let rate = Rate::from_text(text).expect(text);
            assert_eq!(rate.per_second(), per_second, "{text}");
            assert_eq!(rate.to_toml().as_str(), Some(printed), "{text}");
        }
        assert_eq!(
            ByteRate::from_text("1MiB/s").map(|rate| rate.0.per_second()),
            Ok(1048576.0)
        );
        for text in ["100", "100/", "100/0s", "/s", "1MB/s"] {
            assert!(Rate::from_text(text).is_err(), "{text}");
        }
    }
}
