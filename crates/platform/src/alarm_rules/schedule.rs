//! When a rule counts: always, between two times of the day on some days, or by a time of its own per day. Times are those
//! of a time zone; a schedule may come from an attribute.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value as Json;
use timeseries::Value;

use super::definition::KeyTable;
use super::predicate::{Dynamic, Values};

const DAY_MS: i64 = 86_400_000;

#[derive(Debug)]
pub(super) struct Schedule {
    fixed: Times,
    dynamic: Option<Dynamic>,
}

#[derive(Debug)]
enum Times {
    Always,
    Weekly { zone: TimeZone, days: [Option<Window>; 7] },
}

/// In milliseconds from the start of the day; `start` after `end` goes over midnight.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: i64,
    end: i64,
}

impl Schedule {
    pub fn parse(json: &Json, table: &mut KeyTable) -> Result<Schedule, String> {
        Ok(Schedule {
            fixed: Times::parse(json)?,
            dynamic: Dynamic::parse(&json["dynamicValue"], table)?.map(|(dynamic, _)| dynamic),
        })
    }

    pub fn is_active(&self, at_ms: i64, values: &Values<'_>) -> bool {
        let from_attribute = match (
            &self.fixed,
            self.dynamic.as_ref().and_then(|dynamic| dynamic.resolve(values)),
        ) {
            (Times::Weekly { .. }, Some(Value::Json(text) | Value::String(text))) => serde_json::from_str(&text)
                .ok()
                .and_then(|json| Times::parse(&json).ok()),
            _ => None,
        };
        from_attribute.as_ref().unwrap_or(&self.fixed).contain(at_ms)
    }
}

impl Times {
    fn parse(json: &Json) -> Result<Times, String> {
        match json["type"].as_str() {
            None | Some("ANY_TIME") => Ok(Times::Always),
            Some("SPECIFIC_TIME") => Ok(Times::Weekly {
                zone: zone(json)?,
                days: specific(json),
            }),
            Some("CUSTOM") => Ok(Times::Weekly {
                zone: zone(json)?,
                days: custom(json),
            }),
            Some(other) => Err(format!("{other:?} is no type of a schedule")),
        }
    }

    fn contain(&self, at_ms: i64) -> bool {
        let Times::Weekly { zone, days } = self else {
            return true;
        };
        let Ok(at) = Timestamp::from_millisecond(at_ms) else {
            return false;
        };
        let local = at.to_zoned(zone.clone());
        let Ok(midnight) = local.start_of_day() else {
            return false;
        };
        let day = usize::from(local.weekday().to_monday_zero_offset().unsigned_abs());
        days[day].is_some_and(|window| window.contains(at_ms - midnight.timestamp().as_millisecond()))
    }
}

impl Window {
    fn parse(json: &Json) -> Window {
        let end = json["endsOn"].as_i64().unwrap_or(0);
        Window {
            start: json["startsOn"].as_i64().unwrap_or(0),
            end: if end == 0 { DAY_MS } else { end },
        }
    }

    fn contains(self, from_midnight_ms: i64) -> bool {
        if self.start <= self.end {
            (self.start..self.end).contains(&from_midnight_ms)
        } else {
            self.start < from_midnight_ms || (0 < from_midnight_ms && from_midnight_ms < self.end)
        }
    }
}

fn zone(json: &Json) -> Result<TimeZone, String> {
    match json["timezone"].as_str() {
        None | Some("") => Ok(TimeZone::UTC),
        Some(name) => TimeZone::get(name).map_err(|_| format!("{name:?} is no time zone")),
    }
}

/// Days are numbered from Monday, 1, on.
fn day_index(day: &Json) -> Option<usize> {
    let day = usize::try_from(day.as_u64()?).ok()?;
    (1..=7).contains(&day).then(|| day - 1)
}

fn specific(json: &Json) -> [Option<Window>; 7] {
    let mut days = [None; 7];
    for day in json["daysOfWeek"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(day_index)
    {
        days[day] = Some(Window::parse(json));
    }
    days
}

/// The first item of a day counts.
fn custom(json: &Json) -> [Option<Window>; 7] {
    let mut days = [None; 7];
    for item in json["items"].as_array().into_iter().flatten().rev() {
        if let Some(day) = day_index(&item["dayOfWeek"]) {
            days[day] = item["enabled"].as_bool().unwrap_or(false).then(|| Window::parse(item));
        }
    }
    days
}
