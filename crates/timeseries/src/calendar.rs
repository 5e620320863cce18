//! Buckets of an aggregation, by ThingsBoard's rules. The first bucket begins at the start of the range, even within a
//! week or month. The others begin at boundaries of the interval; the last ends with the range. An empty or reversed
//! range is one millisecond long.

use std::ops::Range;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

use crate::error::QueryError;
use crate::store::BUCKETS_MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketInterval {
    /// Zero or less: no buckets, single points.
    Millis(i64),
    /// Calendar interval in a time zone, given by its IANA name.
    Calendar { unit: CalendarUnit, time_zone: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// Starts on Sunday.
    Week,
    /// Starts on Monday.
    WeekIso,
    Month,
    Quarter,
}

/// Bucket boundaries. Bucket `n` is `bounds[n]..bounds[n + 1]`.
#[derive(Debug)]
pub(crate) struct BucketBounds {
    bounds: Vec<i64>,
}

impl BucketBounds {
    pub fn new(range: &Range<i64>, interval: &BucketInterval) -> Result<BucketBounds, QueryError> {
        let end = range.end.max(range.start.checked_add(1).ok_or(QueryError::Range)?);
        let mut bounds = vec![range.start];
        let next: Box<dyn Fn(i64) -> Result<i64, QueryError>> = match interval {
            BucketInterval::Millis(millis) => {
                let millis = *millis;
                Box::new(move |start| Ok(start.saturating_add(millis)))
            }
            BucketInterval::Calendar { unit, time_zone } => {
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
        Ok(BucketBounds { bounds })
    }

    pub fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    pub fn range(&self) -> Range<i64> {
        self.bounds[0]..self.bounds[self.len()]
    }

    /// Returns the bucket of `ts_ms`, which must be in the range. `near` is the result of the previous call.
    #[inline]
    pub fn find(&self, ts_ms: i64, near: usize) -> usize {
        if self.bounds[near] <= ts_ms && ts_ms < self.bounds[near + 1] {
            return near;
        }
        self.bounds.partition_point(|&bound| bound <= ts_ms) - 1
    }

    /// Returns the end of a bucket.
    pub fn end(&self, bucket: usize) -> i64 {
        self.bounds[bucket + 1]
    }

    pub fn midpoint(&self, bucket: usize) -> i64 {
        let (start, end) = (self.bounds[bucket], self.bounds[bucket + 1]);
        start + (end - start) / 2
    }
}

impl CalendarUnit {
    /// Returns the end of the week, month or quarter that contains this time.
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
    use super::{BucketBounds, BucketInterval, CalendarUnit};

    fn bounds(range: std::ops::Range<i64>, interval: BucketInterval) -> Vec<i64> {
        BucketBounds::new(&range, &interval).unwrap().bounds
    }

    fn calendar(unit: CalendarUnit, time_zone: &str, start: &str, end: &str) -> Vec<String> {
        let ms = |text: &str| text.parse::<jiff::Zoned>().unwrap().timestamp().as_millisecond();
        let time_zone = time_zone.to_owned();
        let zone = jiff::tz::TimeZone::get(&time_zone).unwrap();
        bounds(ms(start)..ms(end), BucketInterval::Calendar { unit, time_zone })
            .into_iter()
            .map(|bound| {
                let zoned = jiff::Timestamp::from_millisecond(bound).unwrap().to_zoned(zone.clone());
                zoned.strftime("%Y-%m-%dT%H:%M").to_string()
            })
            .collect()
    }

    #[test]
    fn millis_buckets_start_and_end_with_the_range() {
        assert_eq!(bounds(1..3000, BucketInterval::Millis(2000)), [1, 2001, 3000]);
        assert_eq!(bounds(1..3000, BucketInterval::Millis(3001)), [1, 3000]);
        assert_eq!(bounds(0..0, BucketInterval::Millis(1)), [0, 1]);
        let reversed = std::ops::Range { start: 5, end: 2 };
        assert_eq!(bounds(reversed, BucketInterval::Millis(10)), [5, 6]);
        let last = BucketBounds::new(&(1..3000), &BucketInterval::Millis(2000)).unwrap();
        assert_eq!((last.midpoint(0), last.midpoint(1)), (1001, 2500));
        assert!(BucketBounds::new(&(0..1_000_000), &BucketInterval::Millis(1)).is_err());
    }

    #[test]
    fn weeks_begin_on_sunday_or_monday_in_the_time_zone() {
        // 2024-03-31 has 23 hours in Kyiv (start of daylight saving time).
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
    fn unknown_time_zone_is_an_error() {
        let interval = BucketInterval::Calendar {
            unit: CalendarUnit::Month,
            time_zone: "Mars/Olympus".to_owned(),
        };
        assert!(BucketBounds::new(&(0..1), &interval).is_err());
    }
}
