//! Dates and times: Unix time in four units, RFC 3339, and formats of `%Y` and its kin. The Gregorian calendar, no leap seconds.

use super::{Call, Group, function_table};
use crate::error::Fault;
use crate::value::Value;

function_table! { Group::Date;
    "date_to_unix_ts" (unit: TEXT, format_or_offset: TEXT_OR_INT, text_or_format: TEXT; text: TEXT) -> INT, date_to_unix_ts, "Unix time of a text in the format, `date_to_unix_ts(unit, [offset], format, text)`.", "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S%:z', '2024-02-23 15:00:00+08:00') = 1708671600";
    "format_date" (unit: TEXT, offset: TEXT_OR_INT, format: TEXT; time: INT) -> TEXT, format_date, "A Unix time, or now, in the format: `%Y %m %d %H %M %S`, `%N` nano-, `%6N` micro-, `%3N` milliseconds, `%z` +hhmm, `%:z` +hh:mm, `%::z` +hh:mm:ss.", "format_date('millisecond', '+08:00', '%Y-%m-%d %H:%M:%S.%6N%z', 1708933353472) = '2024-02-26 15:42:33.472000+0800'";
    "now_rfc3339" (; unit: TEXT) -> TEXT, now_rfc3339, "Now as RFC 3339 in local time, to the unit.", "";
    "now_timestamp" (; unit: TEXT) -> INT, now_timestamp, "Now as Unix time, in seconds or the unit.", "";
    "rfc3339_to_unix_ts" (text: TEXT; unit: TEXT) -> INT, rfc3339_to_unix_ts, "Unix time of an RFC 3339 text.", "rfc3339_to_unix_ts('2024-02-23T15:56:30.87Z', 'millisecond') = 1708703790870";
    "timezone_to_offset_seconds" (offset: TEXT_OR_INT) -> INT, |c| offset(c, 0).map(Value::Int), "Seconds east of Greenwich: `'Z'`, `'+08:00'`, `'+0800'`, `'+08:00:00'`, `'local'`.", "timezone_to_offset_seconds('+08:00') = 28800";
    "timezone_to_second" (offset: TEXT_OR_INT) -> INT, |c| offset(c, 0).map(Value::Int), "The same.", "timezone_to_second('Z') = 0";
    "unix_ts_to_rfc3339" (time: INT; unit: TEXT) -> TEXT, unix_ts_to_rfc3339, "A Unix time as RFC 3339 in local time.", "unix_ts_to_rfc3339(1708671600766, 'millisecond') = '2024-02-23T15:00:00.766+08:00'";
}

const NANOSECONDS: i128 = 1_000_000_000;
/// The years 0 to 9999.
const SECONDS_MIN: i128 = -62_167_219_200;
const SECONDS_MAX: i128 = 253_402_300_799;

/// How many there are in a second, and how many digits of a fraction that is.
#[derive(Clone, Copy)]
struct Unit {
    per_second: i128,
    digits: usize,
}

fn unit(call: &Call<'_, '_>, index: usize) -> Result<Unit, Fault> {
    let digits = match call.option(index, "second")? {
        "second" => 0,
        "millisecond" => 3,
        "microsecond" => 6,
        "nanosecond" => 9,
        other => {
            let expected = "'second', 'millisecond', 'microsecond' or 'nanosecond'";
            return Err(call.fault(index, &format!("'{other}'"), expected));
        }
    };
    Ok(Unit {
        per_second: 10_i128.pow(digits as u32),
        digits,
    })
}

/// A point in time in local terms.
struct Moment {
    year: i128,
    month: u32,
    day: u32,
    hour: i128,
    minute: i128,
    second: i128,
    nanosecond: i128,
    offset: i128,
}

/// Days since 1970-01-01 of a date, in eras of 400 years that begin in March.
pub(crate) fn days_of(year: i128, month: u32, day: u32) -> i128 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = i128::from((month + 9) % 12);
    let day_of_year = (153 * month_from_march + 2) / 5 + i128::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

pub(crate) fn date_of(days: i128) -> (i128, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    } as u32;
    (era * 400 + year_of_era + i128::from(month <= 2), month, day)
}

fn moment(nanoseconds: i128, offset: i128) -> Result<Moment, Fault> {
    let seconds = nanoseconds.div_euclid(NANOSECONDS) + offset;
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
        return Err(Fault::from("the time is not in the years 0 to 9999"));
    }
    let (year, month, day) = date_of(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    Ok(Moment {
        year,
        month,
        day,
        hour: of_day / 3600,
        minute: of_day / 60 % 60,
        second: of_day % 60,
        nanosecond: nanoseconds.rem_euclid(NANOSECONDS),
        offset,
    })
}

impl Moment {
    fn check(&self) -> Result<(), Fault> {
        let is_leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let days = match self.month {
            4 | 6 | 9 | 11 => 30,
            2 if is_leap => 29,
            2 => 28,
            _ => 31,
        };
        let is_right = (1..=12).contains(&self.month)
            && (1..=days).contains(&self.day)
            && self.hour < 24
            && self.minute < 60
            && self.second < 60
            && (0..=9999).contains(&self.year);
        if is_right {
            Ok(())
        } else {
            Err(Fault::from("there is no such date or time"))
        }
    }

    fn unix_nanoseconds(&self) -> i128 {
        let days = days_of(self.year, self.month, self.day);
        let seconds = days * 86_400 + self.hour * 3600 + self.minute * 60 + self.second - self.offset;
        seconds * NANOSECONDS + self.nanosecond
    }

    fn rfc3339(&self, digits: usize) -> String {
        let format = match digits {
            0 => "%Y-%m-%dT%H:%M:%S%:z",
            3 => "%Y-%m-%dT%H:%M:%S.%3N%:z",
            6 => "%Y-%m-%dT%H:%M:%S.%6N%:z",
            _ => "%Y-%m-%dT%H:%M:%S.%N%:z",
        };
        self.format(format)
    }

    fn format(&self, format: &str) -> String {
        let mut out = String::with_capacity(format.len() + 16);
        for piece in pieces(format) {
            let text = match piece {
                Piece::Year => format!("{:04}", self.year),
                Piece::Month => format!("{:02}", self.month),
                Piece::Day => format!("{:02}", self.day),
                Piece::Hour => format!("{:02}", self.hour),
                Piece::Minute => format!("{:02}", self.minute),
                Piece::Second => format!("{:02}", self.second),
                Piece::Nanosecond => format!("{:09}", self.nanosecond),
                Piece::Microsecond => format!("{:06}", self.nanosecond / 1_000),
                Piece::Millisecond => format!("{:03}", self.nanosecond / 1_000_000),
                Piece::Offset(colons) => self.offset_text(colons),
                Piece::Literal(character) => character.to_string(),
            };
            out.push_str(&text);
        }
        out
    }

    fn offset_text(&self, colons: usize) -> String {
        let sign = if self.offset < 0 { '-' } else { '+' };
        let seconds = self.offset.abs();
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        match colons {
            0 => format!("{sign}{hours:02}{minutes:02}"),
            1 => format!("{sign}{hours:02}:{minutes:02}"),
            _ => format!("{sign}{hours:02}:{minutes:02}:{seconds:02}"),
        }
    }
}

#[derive(Clone, Copy)]
enum Piece {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    Nanosecond,
    Microsecond,
    Millisecond,
    /// `%z`, `%:z`, `%::z` by their colons.
    Offset(usize),
    Literal(char),
}

impl Piece {
    /// Digits that a text has for it.
    fn width(self) -> usize {
        match self {
            Piece::Year => 4,
            Piece::Nanosecond => 9,
            Piece::Microsecond => 6,
            Piece::Millisecond => 3,
            _ => 2,
        }
    }
}

const PIECES: &[(&str, Piece)] = &[
    ("%Y", Piece::Year),
    ("%m", Piece::Month),
    ("%d", Piece::Day),
    ("%H", Piece::Hour),
    ("%M", Piece::Minute),
    ("%S", Piece::Second),
    ("%N", Piece::Nanosecond),
    ("%6N", Piece::Microsecond),
    ("%3N", Piece::Millisecond),
    ("%z", Piece::Offset(0)),
    ("%:z", Piece::Offset(1)),
    ("%::z", Piece::Offset(2)),
];

fn pieces(format: &str) -> impl Iterator<Item = Piece> {
    let mut rest = format;
    std::iter::from_fn(move || {
        if let Some((text, piece)) = PIECES.iter().find(|piece| rest.starts_with(piece.0)) {
            rest = &rest[text.len()..];
            return Some(*piece);
        }
        let character = rest.chars().next()?;
        rest = &rest[character.len_utf8()..];
        Some(Piece::Literal(character))
    })
}

/// Reads a text in the format; what is no `%` piece stands for any character, as in EMQX. A text may end early: the offset may
/// be missing.
fn parse(text: &str, format: &str) -> Result<Moment, Fault> {
    let mut found: [Option<i128>; 6] = [None; 6];
    let (mut nanosecond, mut offset) = (0, 0);
    let mut rest = text;
    for piece in pieces(format) {
        if rest.is_empty() {
            break;
        }
        let field = match piece {
            Piece::Literal(_) => {
                rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..];
                continue;
            }
            Piece::Offset(_) => {
                let end = rest
                    .bytes()
                    .skip(1)
                    .take_while(|byte| byte.is_ascii_digit() || *byte == b':')
                    .count()
                    + 1;
                offset = parse_offset(rest.get(..end).unwrap_or(rest))?;
                rest = rest.get(end..).unwrap_or_default();
                continue;
            }
            field => field,
        };
        let digits = rest
            .get(..field.width())
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let number: i128 = digits
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| mismatch(text, format))?;
        rest = &rest[field.width()..];
        match field {
            Piece::Year => found[0] = Some(number),
            Piece::Month => found[1] = Some(number),
            Piece::Day => found[2] = Some(number),
            Piece::Hour => found[3] = Some(number),
            Piece::Minute => found[4] = Some(number),
            Piece::Second => found[5] = Some(number),
            Piece::Millisecond => nanosecond += number * 1_000_000,
            Piece::Microsecond => nanosecond += number * 1_000,
            _ => nanosecond += number,
        }
    }
    let [
        Some(year),
        Some(month),
        Some(day),
        Some(hour),
        Some(minute),
        Some(second),
    ] = found
    else {
        return Err(mismatch(text, format));
    };
    let moment = Moment {
        year,
        month: month as u32,
        day: day as u32,
        hour,
        minute,
        second,
        nanosecond,
        offset,
    };
    moment.check()?;
    Ok(moment)
}

fn mismatch(text: &str, format: &str) -> Fault {
    Fault::from(format!(
        "'{text}' does not have year, month, day, hour, minute and second where '{format}' says"
    ))
}

/// `Z`, `±hh:mm`, `±hhmm`, `±hh:mm:ss`.
fn parse_offset(text: &str) -> Result<i128, Fault> {
    let bad = || Fault::from(format!("'{text}' is no offset like Z, +08:00, +0800 or +08:00:00"));
    if matches!(text, "Z" | "z") {
        return Ok(0);
    }
    let (sign, rest) = match text.as_bytes().first() {
        Some(b'+') => (1, &text[1..]),
        Some(b'-') => (-1, &text[1..]),
        _ => return Err(bad()),
    };
    let digits: String = rest.chars().filter(|character| *character != ':').collect();
    let colons = rest.len() - digits.len();
    let is_placed = match colons {
        0 => matches!(digits.len(), 4 | 6),
        1 => rest.as_bytes().get(2) == Some(&b':') && digits.len() == 4,
        2 => rest.as_bytes().get(2) == Some(&b':') && rest.as_bytes().get(5) == Some(&b':') && digits.len() == 6,
        _ => false,
    };
    if !is_placed || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let part = |at: usize| {
        digits
            .get(at..at + 2)
            .and_then(|part| part.parse::<i128>().ok())
            .unwrap_or(0)
    };
    let (hours, minutes, seconds) = (part(0), part(2), part(4));
    if hours > 23 || minutes > 59 || seconds > 59 {
        return Err(bad());
    }
    Ok(sign * (hours * 3600 + minutes * 60 + seconds))
}

/// An argument that is an offset.
fn offset(call: &Call<'_, '_>, index: usize) -> Result<i128, Fault> {
    match call.value(index) {
        Value::Int(seconds) if seconds.abs() < 86_400 => Ok(*seconds),
        Value::Int(seconds) => Err(call.fault(index, &seconds.to_string(), "less than a day in seconds")),
        _ => match call.str(index)? {
            "local" => Ok(call.run.environment.utc_offset_seconds().into()),
            text => parse_offset(text),
        },
    }
}

fn to_nanoseconds(time: i128, unit: Unit) -> Result<i128, Fault> {
    time.checked_mul(NANOSECONDS / unit.per_second)
        .ok_or(Fault::from("the time is not in the years 0 to 9999"))
}

fn in_unit(nanoseconds: i128, unit: Unit) -> Value {
    Value::Int(nanoseconds.div_euclid(NANOSECONDS / unit.per_second))
}

fn local(call: &mut Call<'_, '_>, nanoseconds: i128, unit: Unit) -> Result<Value, Fault> {
    let offset = call.run.environment.utc_offset_seconds();
    let text = moment(nanoseconds, offset.into())?.rfc3339(unit.digits);
    call.make(text)
}

fn now_rfc3339(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let unit = unit(call, 0)?;
    let now = call.run.environment.unix_nanoseconds();
    local(call, now, unit)
}

fn unix_ts_to_rfc3339(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let unit = unit(call, 1)?;
    let time = to_nanoseconds(call.int(0)?, unit)?;
    local(call, time, unit)
}

fn now_timestamp(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let unit = unit(call, 0)?;
    Ok(in_unit(call.run.environment.unix_nanoseconds(), unit))
}

fn rfc3339_to_unix_ts(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let unit = unit(call, 1)?;
    let text = call.str(0)?;
    let bad = || {
        Fault::from(format!(
            "'{text}' is no RFC 3339 time like 2024-02-23T15:56:30.87+08:00"
        ))
    };
    let (whole, rest) = text.split_at_checked(19).ok_or_else(bad)?;
    let separators = [(4, b"-"), (7, b"-"), (13, b":"), (16, b":")];
    let is_placed = separators
        .iter()
        .all(|(at, byte)| whole.as_bytes().get(*at) == Some(&byte[0]))
        && matches!(whole.as_bytes().get(10), Some(b'T' | b't' | b' '));
    if !is_placed {
        return Err(bad());
    }
    let mut moment = parse(whole, "%Y-%m-%dT%H:%M:%S").map_err(|_| bad())?;
    let mut zone = rest;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let shown = &fraction[..digits.min(9)];
        moment.nanosecond = format!("{shown:0<9}")
            .parse()
            .ok()
            .filter(|_| digits > 0)
            .ok_or_else(bad)?;
        zone = &fraction[digits..];
    }
    moment.offset = parse_offset(zone).map_err(|_| bad())?;
    Ok(in_unit(moment.unix_nanoseconds(), unit))
}

fn format_date(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let (unit, offset, format) = (unit(call, 0)?, offset(call, 1)?, call.str(2)?);
    call.run.budget.make(format.len() * 8)?;
    let nanoseconds = match call.has(3) {
        true => to_nanoseconds(call.int(3)?, unit)?,
        false => call.run.environment.unix_nanoseconds(),
    };
    let text = moment(nanoseconds, offset)?.format(format);
    call.make(text)
}

fn date_to_unix_ts(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let unit = unit(call, 0)?;
    if !call.has(3) {
        let moment = parse(call.str(2)?, call.str(1)?)?;
        return Ok(in_unit(moment.unix_nanoseconds(), unit));
    }
    let offset = offset(call, 1)?;
    let moment = parse(call.str(3)?, call.str(2)?)?;
    Ok(in_unit(moment.unix_nanoseconds() - offset * NANOSECONDS, unit))
}
