//! A schedule determines when a rule is active: always, between two times on some weekdays, or at own times for each
//! weekday. The times are in the time zone of the schedule. A schedule may come from an attribute.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value as Json;
use timeseries::PointValue;

use super::definition::KeyTable;
use super::predicate::{DynamicValue, Values};

const DAY_MS: i64 = 86_400_000;

#[derive(Debug)]
pub(super) struct AlarmSchedule {
    fixed: ScheduleTimes,
    dynamic: Option<DynamicValue>,
}

#[derive(Debug)]
enum ScheduleTimes {
    Always,
    Weekly {
        zone: TimeZone,
        days: [Option<DailyWindow>; 7],
    },
}

/// In milliseconds from the start of the day. If `start` is after `end`, the window spans midnight.
#[derive(Clone, Copy, Debug)]
struct DailyWindow {
    start: i64,
    end: i64,
}

impl AlarmSchedule {
    pub fn parse(json: &Json, table: &mut KeyTable) -> Result<AlarmSchedule, String> {
        Ok(AlarmSchedule {
            fixed: ScheduleTimes::parse(json)?,
            dynamic: DynamicValue::parse(&json["dynamicValue"], table)?.map(|(dynamic, _)| dynamic),
        })
    }

    pub fn is_active(&self, at_ms: i64, values: &Values<'_>) -> bool {
        let from_attribute = match (
            &self.fixed,
            self.dynamic.as_ref().and_then(|dynamic| dynamic.resolve(values)),
        ) {
            (ScheduleTimes::Weekly { .. }, Some(PointValue::Json(text) | PointValue::String(text))) => {
                serde_json::from_str(&text)
                    .ok()
                    .and_then(|json| ScheduleTimes::parse(&json).ok())
            }
            _ => None,
        };
        from_attribute.as_ref().unwrap_or(&self.fixed).contain(at_ms)
    }
}

impl ScheduleTimes {
    fn parse(json: &Json) -> Result<ScheduleTimes, String> {
        match json["type"].as_str() {
            None | Some("ANY_TIME") => Ok(ScheduleTimes::Always),
            Some("SPECIFIC_TIME") => Ok(ScheduleTimes::Weekly {
                zone: zone(json)?,
                days: specific(json),
            }),
            Some("CUSTOM") => Ok(ScheduleTimes::Weekly {
                zone: zone(json)?,
                days: custom(json),
            }),
            Some(other) => Err(format!("schedule type {other:?} is not supported")),
        }
    }

    fn contain(&self, at_ms: i64) -> bool {
        let ScheduleTimes::Weekly { zone, days } = self else {
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

impl DailyWindow {
    fn parse(json: &Json) -> DailyWindow {
        let end = json["endsOn"].as_i64().unwrap_or(0);
        DailyWindow {
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
        Some(name) => TimeZone::get(name).map_err(|_| format!("{name:?} is not a known time zone")),
    }
}

/// Weekdays are numbered from Monday = 1.
fn day_index(day: &Json) -> Option<usize> {
    let day = usize::try_from(day.as_u64()?).ok()?;
    (1..=7).contains(&day).then(|| day - 1)
}

fn specific(json: &Json) -> [Option<DailyWindow>; 7] {
    let mut days = [None; 7];
    for day in json["daysOfWeek"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(day_index)
    {
        days[day] = Some(DailyWindow::parse(json));
    }
    days
}

/// If several items have the same weekday, the first one applies.
fn custom(json: &Json) -> [Option<DailyWindow>; 7] {
    let mut days = [None; 7];
    for item in json["items"].as_array().into_iter().flatten().rev() {
        if let Some(day) = day_index(&item["dayOfWeek"]) {
            days[day] = item["enabled"]
                .as_bool()
                .unwrap_or(false)
                .then(|| DailyWindow::parse(item));
        }
    }
    days
}
