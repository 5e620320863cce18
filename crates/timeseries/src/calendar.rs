//! Buckets of an aggregation, by ThingsBoard's rules: the first begins at the start of the range, wherever in a week or
//! month that is; the others at the boundaries of the interval; the last ends with the range. A range that is empty or
//! turned around is one millisecond long.

use std::ops::Range;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

use crate::error::QueryError;
use crate::store::BUCKETS_MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Not above zero: no buckets, points as they are.
    Millis(i64),
    /// In a time zone by its IANA name.
    Calendar { unit: CalendarUnit, time_zone: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// From Sunday.
    Week,
    /// From Monday.
    WeekIso,
    Month,
    Quarter,
}

/// Bounds of buckets; bucket `n` is `bounds[n]..bounds[n + 1]`.
#[derive(Debug)]
pub(crate) struct Buckets {
    bounds: Vec<i64>,
}

impl Buckets {
    pub fn new(range: &Range<i64>, interval: &Interval) -> Result<Buckets, QueryError> {
        let end = range.end.max(range.start.checked_add(1).ok_or(QueryError::Range)?);
        let mut bounds = vec![range.start];
        let next: Box<dyn Fn(i64) -> Result<i64, QueryError>> = match interval {
            Interval::Millis(millis) => {
                let millis = *millis;
                Box::new(move |start| Ok(start.saturating_add(millis)))
            }
            Interval::Calendar { unit, time_zone } => {
                let zone = TimeZone::get(time_zone).map_err(|_| QueryError::TimeZone {
                    name: time_zone.clone(),
                })?;
                let unit = *unit;
                Box::new(move |start| unit.end_after(start, &zone).ok_or(QueryError::Range))
            }
        };
        let mut last = range.start;
        while last < end {
            if bounds.len() > BUCKETS_MAX {
                return Err(QueryError::TooManyBuckets { max: BUCKETS_MAX });
            }
            last = next(last)?.min(end);
            bounds.push(last);
        }
        Ok(Buckets { bounds })
    }

    pub fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    pub fn range(&self) -> Range<i64> {
        self.bounds[0]..self.bounds[self.len()]
    }

    /// `ts_ms` lies in the range. `near` is where the last one was found.
    #[inline]
    pub fn find(&self, ts_ms: i64, near: usize) -> usize {
        if self.bounds[near] <= ts_ms && ts_ms < self.bounds[near + 1] {
            return near;
        }
        self.bounds.partition_point(|&bound| bound <= ts_ms) - 1
    }

    /// Where the bucket ends.
    pub fn end(&self, bucket: usize) -> i64 {
        self.bounds[bucket + 1]
    }

    pub fn middle(&self, bucket: usize) -> i64 {
        let (start, end) = (self.bounds[bucket], self.bounds[bucket + 1]);
        start + (end - start) / 2
    }
}

impl CalendarUnit {
    /// Where the week, month or quarter ends that holds this time.
    fn end_after(self, ts_ms: i64, zone: &TimeZone) -> Option<i64> {
        let date = Timestamp::from_millisecond(ts_ms).ok()?.to_zoned(zone.clone()).date();
        let end = self.first_day(date)?.checked_add(self.span()).ok()?;
        let end_ms = end.to_zoned(zone.clone()).ok()?.timestamp().as_millisecond();
        (end_ms > ts_ms).then_some(end_ms)
    }

    fn first_day(self, date: Date) -> Option<Date> {
        let weekday = date.weekday();
        match self {
            CalendarUnit::Week => date.checked_sub(i64::from(weekday.since(Weekday::Sunday)).days()).ok(),
            CalendarUnit::WeekIso => date.checked_sub(i64::from(weekday.since(Weekday::Monday)).days()).ok(),
            CalendarUnit::Month => Some(date.first_of_month()),
            CalendarUnit::Quarter => Date::new(date.year(), (date.month() - 1) / 3 * 3 + 1, 1).ok(),
        }
    }

    fn span(self) -> Span {
        match self {
            CalendarUnit::Week | CalendarUnit::WeekIso => 7.days(),
            CalendarUnit::Month => 1.month(),
            CalendarUnit::Quarter => 3.months(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Buckets, CalendarUnit, Interval};

    fn bounds(range: std::ops::Range<i64>, interval: Interval) -> Vec<i64> {
        Buckets::new(&range, &interval).unwrap().bounds
    }

    fn calendar(unit: CalendarUnit, time_zone: &str, start: &str, end: &str) -> Vec<String> {
        let ms = |text: &str| text.parse::<jiff::Zoned>().unwrap().timestamp().as_millisecond();
        let time_zone = time_zone.to_owned();
        let zone = jiff::tz::TimeZone::get(&time_zone).unwrap();
        bounds(ms(start)..ms(end), Interval::Calendar { unit, time_zone })
            .into_iter()
            .map(|bound| {
                let zoned = jiff::Timestamp::from_millisecond(bound).unwrap().to_zoned(zone.clone());
                zoned.strftime("%Y-%m-%dT%H:%M").to_string()
            })
            .collect()
    }

    #[test]
    fn millis_begin_at_the_start_and_end_with_the_range() {
        assert_eq!(bounds(1..3000, Interval::Millis(2000)), [1, 2001, 3000]);
        assert_eq!(bounds(1..3000, Interval::Millis(3001)), [1, 3000]);
        assert_eq!(bounds(0..0, Interval::Millis(1)), [0, 1]);
        let turned = std::ops::Range { start: 5, end: 2 };
        assert_eq!(bounds(turned, Interval::Millis(10)), [5, 6]);
        let last = Buckets::new(&(1..3000), &Interval::Millis(2000)).unwrap();
        assert_eq!((last.middle(0), last.middle(1)), (1001, 2500));
        assert!(Buckets::new(&(0..1_000_000), &Interval::Millis(1)).is_err());
    }

    #[test]
    fn weeks_begin_on_sunday_or_monday_in_the_time_zone() {
        // 2024-03-31 has 23 hours in Kyiv.
        let days = ("2024-03-27T10:00[Europe/Kyiv]", "2024-04-09T00:00[Europe/Kyiv]");
        assert_eq!(
            calendar(CalendarUnit::Week, "Europe/Kyiv", days.0, days.1),
            [
                "2024-03-27T10:00",
                "2024-03-31T00:00",
                "2024-04-07T00:00",
                "2024-04-09T00:00"
            ]
        );
        assert_eq!(
            calendar(CalendarUnit::WeekIso, "Europe/Kyiv", days.0, days.1),
            [
                "2024-03-27T10:00",
                "2024-04-01T00:00",
                "2024-04-08T00:00",
                "2024-04-09T00:00"
            ]
        );
    }

    #[test]
    fn months_and_quarters_follow_the_calendar() {
        let range = (
            "2023-11-15T12:30[America/New_York]",
            "2024-05-02T00:00[America/New_York]",
        );
        assert_eq!(
            calendar(CalendarUnit::Month, "America/New_York", range.0, range.1)[..4],
            [
                "2023-11-15T12:30",
                "2023-12-01T00:00",
                "2024-01-01T00:00",
                "2024-02-01T00:00"
            ]
        );
        assert_eq!(
            calendar(CalendarUnit::Quarter, "America/New_York", range.0, range.1),
            [
                "2023-11-15T12:30",
                "2024-01-01T00:00",
                "2024-04-01T00:00",
                "2024-05-02T00:00"
            ]
        );
    }

    #[test]
    fn a_zone_that_does_not_exist_is_an_error() {
        let interval = Interval::Calendar {
            unit: CalendarUnit::Month,
            time_zone: "Mars/Olympus".to_owned(),
        };
        assert!(Buckets::new(&(0..1), &interval).is_err());
    }
}
