//! Dates: seconds since 1970, and the broken down time of jq, `[year, month from 0, day, hour, minute, second, weekday,
//! day of the year]`.

use rule_values::{
    Value,
    calendar::{date_of, days_of},
};

use super::machine::{JqMachine, JqStop};
use super::values::{described, float, number, text};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The years 0 to 9999.
const SECONDS: std::ops::RangeInclusive<f64> = -62_167_219_200.0..=253_402_300_799.0;

struct Time {
    year: i128,
    month: u32,
    day: u32,
    of_day: f64,
    days: i128,
}

impl Time {
    fn of_seconds(value: &Value) -> Result<Time, JqStop> {
        let seconds = float(value)?;
        if !SECONDS.contains(&seconds) {
            return Err(JqStop::error(format!(
                "{} is not in the years 0 to 9999",
                described(value)
            )));
        }
        let days = (seconds / 86_400.0).floor();
        let (year, month, day) = date_of(days as i128);
        Ok(Time {
            year,
            month,
            day,
            of_day: seconds - days * 86_400.0,
            days: days as i128,
        })
    }

    /// Reads seconds or a broken down time.
    fn of(value: &Value) -> Result<Time, JqStop> {
        match value {
            Value::Array(_) => Time::of_seconds(&number(seconds(value)?)),
            other => Time::of_seconds(other),
        }
    }

    fn weekday(&self) -> usize {
        (self.days + 4).rem_euclid(7) as usize
    }

    fn day_of_year(&self) -> i128 {
        self.days - days_of(self.year, 1, 1)
    }
}

fn seconds(value: &Value) -> Result<f64, JqStop> {
    let parts: Vec<f64> = match value {
        Value::Array(parts) => parts.iter().take(8).map(float).collect::<Result<_, _>>()?,
        _ => Vec::new(),
    };
    let [year, month, day, hour, minute, second, ..] = parts[..] else {
        let value = described(value);
        return Err(JqStop::error(format!(
            "{value} is not a broken down time: at least six numbers are required"
        )));
    };
    if !(0.0..10_000.0).contains(&year) || !(0.0..12.0).contains(&month) {
        return Err(JqStop::error(format!(
            "{} is not in the years 0 to 9999",
            described(value)
        )));
    }
    let days = days_of(year as i128, month as u32 + 1, 1) as f64 + day - 1.0;
    Ok(days * 86_400.0 + hour * 3600.0 + minute * 60.0 + second.floor())
}

pub(super) fn now(machine: &mut JqMachine, _: Value, _: &[Value]) -> Result<Value, JqStop> {
    Ok(number(machine.allowance.unix_nanoseconds as f64 / 1e9))
}

pub(super) fn gmtime(machine: &mut JqMachine, it: Value, _: &[Value]) -> Result<Value, JqStop> {
    let time = Time::of_seconds(&it)?;
    let int = |int: i128| Value::Int(int);
    machine.array(vec![
        int(time.year),
        int(i128::from(time.month) - 1),
        int(i128::from(time.day)),
        int((time.of_day / 3600.0) as i128),
        int((time.of_day / 60.0) as i128 % 60),
        number(time.of_day % 60.0),
        int(time.weekday() as i128),
        int(time.day_of_year()),
    ])
}

pub(super) fn mktime(_: &mut JqMachine, it: Value, _: &[Value]) -> Result<Value, JqStop> {
    Ok(number(seconds(&it)?))
}

pub(super) fn strftime(machine: &mut JqMachine, it: Value, given: &[Value]) -> Result<Value, JqStop> {
    let (time, format) = (Time::of(&it)?, text(&given[0])?.to_string());
    // A few nanoseconds per letter, several hundred per specifier.
    machine.charge_steps(4 * format.len() as u64)?;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        match char {
            '%' => push(&mut out, &time, chars.next().unwrap_or('%'))?,
            char => out.push(char),
        }
    }
    machine.text(out)
}

fn push(out: &mut String, time: &Time, what: char) -> Result<(), JqStop> {
    let (hour, minute, second) = (
        time.of_day as u32 / 3600,
        time.of_day as u32 / 60 % 60,
        time.of_day as u32 % 60,
    );
    let hour_of_12 = (hour + 11) % 12 + 1;
    let (year, month, day) = (time.year, time.month, time.day);
    let weekday = DAYS[time.weekday()];
    let month_name = MONTHS[(month as usize + 11) % 12];
    out.push_str(&match what {
        'Y' => year.to_string(),
        'y' => format!("{:02}", year.rem_euclid(100)),
        'm' => format!("{month:02}"),
        'd' => format!("{day:02}"),
        'e' => format!("{day:2}"),
        'H' => format!("{hour:02}"),
        'I' => format!("{hour_of_12:02}"),
        'M' => format!("{minute:02}"),
        'S' => format!("{second:02}"),
        'j' => format!("{:03}", time.day_of_year() + 1),
        'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
        'A' => weekday.to_owned(),
        'a' => weekday[..3].to_owned(),
        'B' => month_name.to_owned(),
        'b' | 'h' => month_name[..3].to_owned(),
        'u' => ((time.weekday() + 6) % 7 + 1).to_string(),
        'w' => time.weekday().to_string(),
        'F' => format!("{year:04}-{month:02}-{day:02}"),
        'T' => format!("{hour:02}:{minute:02}:{second:02}"),
        'R' => format!("{hour:02}:{minute:02}"),
        'D' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
        'c' => {
            let (weekday, month) = (&weekday[..3], &month_name[..3]);
            format!("{weekday} {month} {day:2} {hour:02}:{minute:02}:{second:02} {year}")
        }
        's' => (time.days * 86_400 + time.of_day as i128).to_string(),
        'Z' => "UTC".to_owned(),
        'z' => "+0000".to_owned(),
        '%' => "%".to_owned(),
        other => return Err(JqStop::error(format!("strftime does not support %{other}"))),
    });
    Ok(())
}

/// Accepts the format of jq: `2015-03-05T23:51:47Z`.
pub(super) fn from_date(_: &mut JqMachine, it: Value, _: &[Value]) -> Result<Value, JqStop> {
    let written = text(&it)?.to_string();
    let bad = || {
        JqStop::error(format!(
            "date {} does not match format \"%Y-%m-%dT%H:%M:%SZ\"",
            described(&it)
        ))
    };
    let bytes = written.as_bytes();
    let is_laid_out = bytes.len() == 20
        && b"0000-00-00T00:00:00Z"
            .iter()
            .zip(bytes)
            .all(|(pattern, byte)| match pattern {
                b'0' => byte.is_ascii_digit(),
                other => byte == other,
            });
    if !is_laid_out {
        return Err(bad());
    }
    let digits = |from: usize, to: usize| written.get(from..to).and_then(|digits| digits.parse::<u32>().ok());
    let parts = [(0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19)].map(|(from, to)| digits(from, to).unwrap_or(0));
    let [year, month, day, hour, minute, second] = parts;
    let days = days_of(i128::from(year), month.clamp(1, 12), day);
    if date_of(days) != (i128::from(year), month, day) || hour > 23 || minute > 59 || second > 60 {
        return Err(bad());
    }
    Ok(Value::Int(
        days * 86_400 + i128::from(hour * 3600 + minute * 60 + second),
    ))
}
