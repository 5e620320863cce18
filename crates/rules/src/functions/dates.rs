//! Dates and times: Unix time in four units, RFC 3339, and formats with `%Y` and similar specifiers. Gregorian
//! calendar, no leap seconds.

use rule_values::calendar::{date_of, days_of};
use rule_values::{FunctionError, Value};

use super::{FunctionCall, FunctionGroup, function_table};

function_table! { FunctionGroup::Date;
    "date_to_unix_ts" (unit: TEXT, format_or_offset: TEXT_OR_INT, text_or_format: TEXT; text: TEXT) -> INT, date_to_unix_ts, "The Unix time of a formatted text: `date_to_unix_ts(unit, [offset], format, text)`.", "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S%:z', '2024-02-23 15:00:00+08:00') = 1708671600";
    "format_date" (unit: TEXT, offset: TEXT_OR_INT, format: TEXT; time: INT) -> TEXT, format_date, "A Unix time, or the current time, as formatted text: `%Y %m %d %H %M %S`, `%N` nano-, `%6N` micro-, `%3N` milliseconds, `%z` +hhmm, `%:z` +hh:mm, `%::z` +hh:mm:ss.", "format_date('millisecond', '+08:00', '%Y-%m-%d %H:%M:%S.%6N%z', 1708933353472) = '2024-02-26 15:42:33.472000+0800'";
    "now_rfc3339" (; unit: TEXT) -> TEXT, now_rfc3339, "The current local time as RFC 3339, in the precision of the unit.", "now_rfc3339() = '2024-02-23T15:00:00+08:00'";
    "now_timestamp" (; unit: TEXT) -> INT, now_timestamp, "The current Unix time, in seconds or in the unit.", "now_timestamp() = 1708671600";
    "rfc3339_to_unix_ts" (text: TEXT; unit: TEXT) -> INT, rfc3339_to_unix_ts, "The Unix time of an RFC 3339 text.", "rfc3339_to_unix_ts('2024-02-23T15:56:30.87Z', 'millisecond') = 1708703790870";
    "timezone_to_offset_seconds" (offset: TEXT_OR_INT) -> INT, |c| offset(c, 0).map(Value::Int), "The offset in seconds east of Greenwich, of `'Z'`, `'+08:00'`, `'+0800'`, `'+08:00:00'` or `'local'`.", "timezone_to_offset_seconds('+08:00') = 28800";
    "timezone_to_second" (offset: TEXT_OR_INT) -> INT, |c| offset(c, 0).map(Value::Int), "Same as `timezone_to_offset_seconds`.", "timezone_to_second('Z') = 0";
    "unix_ts_to_rfc3339" (time: INT; unit: TEXT) -> TEXT, unix_ts_to_rfc3339, "A Unix time as RFC 3339 in local time.", "unix_ts_to_rfc3339(1708671600766, 'millisecond') = '2024-02-23T15:00:00.766+08:00'";
}

const NANOSECONDS: i128 = 1_000_000_000;
/// The years 0 to 9999.
const SECONDS_MIN: i128 = -62_167_219_200;
const SECONDS_MAX: i128 = 253_402_300_799;

/// Units per second, and the number of digits of the fraction.
#[derive(Clone, Copy)]
struct EpochUnit {
    per_second: i128,
    digits: usize,
}

fn unit(call: &FunctionCall<'_, '_>, index: usize) -> Result<EpochUnit, FunctionError> {
    let digits = match call.option(index, "second")? {
        "second" => 0,
        "millisecond" => 3,
        "microsecond" => 6,
        "nanosecond" => 9,
        other => {
            let expected = "'second', 'millisecond', 'microsecond' or 'nanosecond'";
            return Err(call.type_error(index, &format!("'{other}'"), expected));
        }
    };
    Ok(EpochUnit {
        per_second: 10_i128.pow(digits as u32),
        digits,
    })
}

/// A point in time in local terms.
struct LocalTime {
    year: i128,
    month: u32,
    day: u32,
    hour: i128,
    minute: i128,
    second: i128,
    nanosecond: i128,
    offset: i128,
}

fn moment(nanoseconds: i128, offset: i128) -> Result<LocalTime, FunctionError> {
    let seconds = nanoseconds.div_euclid(NANOSECONDS) + offset;
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
        return Err(FunctionError::from("the time is outside the years 0 to 9999"));
    }
    let (year, month, day) = date_of(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    Ok(LocalTime {
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

impl LocalTime {
    fn check(&self) -> Result<(), FunctionError> {
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
            Err(FunctionError::from("the date or time does not exist"))
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
                DatePart::Year => format!("{:04}", self.year),
                DatePart::Month => format!("{:02}", self.month),
                DatePart::Day => format!("{:02}", self.day),
                DatePart::Hour => format!("{:02}", self.hour),
                DatePart::Minute => format!("{:02}", self.minute),
                DatePart::Second => format!("{:02}", self.second),
                DatePart::Nanosecond => format!("{:09}", self.nanosecond),
                DatePart::Microsecond => format!("{:06}", self.nanosecond / 1_000),
                DatePart::Millisecond => format!("{:03}", self.nanosecond / 1_000_000),
                DatePart::Offset(colons) => self.offset_text(colons),
                DatePart::Literal(character) => character.to_string(),
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
enum DatePart {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    Nanosecond,
    Microsecond,
    Millisecond,
    /// `%z`, `%:z` or `%::z`, by the number of colons.
    Offset(usize),
    Literal(char),
}

impl DatePart {
    /// Number of digits of the field in a text.
    fn width(self) -> usize {
        match self {
            DatePart::Year => 4,
            DatePart::Nanosecond => 9,
            DatePart::Microsecond => 6,
            DatePart::Millisecond => 3,
            _ => 2,
        }
    }
}

const PIECES: &[(&str, DatePart)] = &[
    ("%Y", DatePart::Year),
    ("%m", DatePart::Month),
    ("%d", DatePart::Day),
    ("%H", DatePart::Hour),
    ("%M", DatePart::Minute),
    ("%S", DatePart::Second),
    ("%N", DatePart::Nanosecond),
    ("%6N", DatePart::Microsecond),
    ("%3N", DatePart::Millisecond),
    ("%z", DatePart::Offset(0)),
    ("%:z", DatePart::Offset(1)),
    ("%::z", DatePart::Offset(2)),
];

fn pieces(format: &str) -> impl Iterator<Item = DatePart> {
    let mut rest = format;
    std::iter::from_fn(move || {
        if let Some((text, piece)) = PIECES.iter().find(|piece| rest.starts_with(piece.0)) {
            rest = &rest[text.len()..];
            return Some(*piece);
        }
        let character = rest.chars().next()?;
        rest = &rest[character.len_utf8()..];
        Some(DatePart::Literal(character))
    })
}

/// Parses a text with the format. As in EMQX, a character that is not part of a `%` specifier matches any character.
/// The text may end early: the offset can be missing.
fn parse(text: &str, format: &str) -> Result<LocalTime, FunctionError> {
    let mut found: [Option<i128>; 6] = [None; 6];
    let (mut nanosecond, mut offset) = (0, 0);
    let mut rest = text;
    for piece in pieces(format) {
        if rest.is_empty() {
            break;
        }
        let field = match piece {
            DatePart::Literal(_) => {
                rest = &rest[rest.chars().next().map_or(0, char::len_utf8)..];
                continue;
            }
            DatePart::Offset(_) => {
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
            DatePart::Year => found[0] = Some(number),
            DatePart::Month => found[1] = Some(number),
            DatePart::Day => found[2] = Some(number),
            DatePart::Hour => found[3] = Some(number),
            DatePart::Minute => found[4] = Some(number),
            DatePart::Second => found[5] = Some(number),
            DatePart::Millisecond => nanosecond += number * 1_000_000,
            DatePart::Microsecond => nanosecond += number * 1_000,
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
    let moment = LocalTime {
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

fn mismatch(text: &str, format: &str) -> FunctionError {
    FunctionError::from(format!(
        "'{text}' does not have year, month, day, hour, minute and second where '{format}' says"
    ))
}

/// Accepts `Z`, `±hh:mm`, `±hhmm` and `±hh:mm:ss`.
fn parse_offset(text: &str) -> Result<i128, FunctionError> {
    let bad = || {
        FunctionError::from(format!(
            "'{text}' is not an offset such as Z, +08:00, +0800 or +08:00:00"
        ))
    };
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

/// Reads an argument that is an offset.
fn offset(call: &FunctionCall<'_, '_>, index: usize) -> Result<i128, FunctionError> {
    match call.value(index) {
        Value::Int(seconds) if seconds.abs() < 86_400 => Ok(*seconds),
        Value::Int(seconds) => Err(call.type_error(index, &seconds.to_string(), "less than a day in seconds")),
        _ => match call.str(index)? {
            "local" => Ok(call.run.environment.utc_offset_seconds().into()),
            text => parse_offset(text),
        },
    }
}

fn to_nanoseconds(time: i128, unit: EpochUnit) -> Result<i128, FunctionError> {
    time.checked_mul(NANOSECONDS / unit.per_second)
        .ok_or(FunctionError::from("the time is outside the years 0 to 9999"))
}

fn in_unit(nanoseconds: i128, unit: EpochUnit) -> Value {
    Value::Int(nanoseconds.div_euclid(NANOSECONDS / unit.per_second))
}

fn local(call: &mut FunctionCall<'_, '_>, nanoseconds: i128, unit: EpochUnit) -> Result<Value, FunctionError> {
    let offset = call.run.environment.utc_offset_seconds();
    let text = moment(nanoseconds, offset.into())?.rfc3339(unit.digits);
    call.make(text)
}

fn now_rfc3339(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let unit = unit(call, 0)?;
    let now = call.run.environment.unix_nanoseconds();
    local(call, now, unit)
}

fn unix_ts_to_rfc3339(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let unit = unit(call, 1)?;
    let time = to_nanoseconds(call.int(0)?, unit)?;
    local(call, time, unit)
}

fn now_timestamp(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let unit = unit(call, 0)?;
    Ok(in_unit(call.run.environment.unix_nanoseconds(), unit))
}

fn rfc3339_to_unix_ts(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let unit = unit(call, 1)?;
    let text = call.str(0)?;
    let bad = || {
        FunctionError::from(format!(
            "'{text}' is not an RFC 3339 time such as 2024-02-23T15:56:30.87+08:00"
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

fn format_date(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (unit, offset, format) = (unit(call, 0)?, offset(call, 1)?, call.str(2)?);
    call.run.budget.make(format.len() * 8)?;
    charge_format(call, format)?;
    let nanoseconds = match call.has(3) {
        true => to_nanoseconds(call.int(3)?, unit)?,
        false => call.run.environment.unix_nanoseconds(),
    };
    let text = moment(nanoseconds, offset)?.format(format);
    call.make(text)
}

/// Each letter of the format is compared with all specifiers.
fn charge_format(call: &mut FunctionCall<'_, '_>, format: &str) -> Result<(), FunctionError> {
    call.run.budget.charge_steps(3 * format.len() as u64)
}

fn date_to_unix_ts(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let unit = unit(call, 0)?;
    if !call.has(3) {
        let (text, format) = (call.str(2)?, call.str(1)?);
        charge_format(call, format)?;
        let moment = parse(text, format)?;
        return Ok(in_unit(moment.unix_nanoseconds(), unit));
    }
    let (offset, text, format) = (offset(call, 1)?, call.str(3)?, call.str(2)?);
    charge_format(call, format)?;
    let moment = parse(text, format)?;
    Ok(in_unit(moment.unix_nanoseconds() - offset * NANOSECONDS, unit))
}
