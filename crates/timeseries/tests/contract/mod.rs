//! The contract of every store: one function over `&dyn Store`. The test of each backend calls it with an empty store.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test uses a part")]

use std::ops::Range;

use timeseries::{
    Aggregation, BucketInterval, CalendarUnit, Delete, LatestAfterDelete, LogPosition, Point, PointDestination,
    PointOrder, PointValue, Query, RetentionClass, Series, TelemetryEntityId, TimedValue, TimeseriesStore, ValueRef,
    export_csv,
};

const DAY: i64 = 86_400_000;

type Test = fn(&mut Client<'_>);

/// Runs all checks, each on its own store.
pub fn run(make: &dyn Fn() -> Box<dyn TimeseriesStore>) {
    run_without_calendars(make);
    run_tests(make, &[calendars_have_time_zones]);
}

pub fn run_without_calendars(make: &dyn Fn() -> Box<dyn TimeseriesStore>) {
    let tests: &[Test] = &[
        points_come_back_with_their_types,
        ranges_are_half_open_and_limits_hold,
        the_same_time_is_overwritten,
        latest_is_the_newest_time,
        keys_are_those_with_a_latest_value,
        history_and_latest_can_be_kept_alone,
        aggregates_follow_the_rules,
        mixed_types_aggregate,
        buckets_have_their_middle,
        deletes_hide_a_range_and_no_more,
        deletes_rewrite_or_remove_latest,
        positions_are_applied_once,
        time_to_live_is_per_class,
        a_series_can_have_a_class_of_its_own,
        classes_and_entities_are_listed,
        exports_are_csv,
        unknown_things_are_empty,
    ];
    run_tests(make, tests);
}

fn run_tests(make: &dyn Fn() -> Box<dyn TimeseriesStore>, tests: &[Test]) {
    for test in tests {
        for flushes in [false, true] {
            let store = make();
            test(&mut Client {
                store: &*store,
                position: 0,
                flushes,
            });
        }
    }
}

/// Writes points, and reads them from memory and from disk.
struct Client<'a> {
    store: &'a dyn TimeseriesStore,
    position: u64,
    flushes: bool,
}

const DEVICE: TelemetryEntityId = TelemetryEntityId([7; 16]);
const OTHER: TelemetryEntityId = TelemetryEntityId([8; 16]);

impl Client<'_> {
    fn write(&mut self, key: &str, points: &[(i64, ValueRef<'_>)]) {
        self.write_for(DEVICE, key, points);
    }

    fn write_for(&mut self, entity: TelemetryEntityId, key: &str, points: &[(i64, ValueRef<'_>)]) {
        self.write_kept(entity, key, points, PointDestination::HistoryAndLatest);
    }

    fn keep(&mut self, key: &str, points: &[(i64, i64)], kept: PointDestination) {
        let points: Vec<_> = points
            .iter()
            .map(|&(ts_ms, value)| (ts_ms, ValueRef::Long(value)))
            .collect();
        self.write_kept(DEVICE, key, &points, kept);
    }

    fn write_kept(
        &mut self,
        entity: TelemetryEntityId,
        key: &str,
        points: &[(i64, ValueRef<'_>)],
        kept: PointDestination,
    ) {
        let point = |&(ts_ms, value): &(i64, ValueRef<'_>)| -> (i64, PointValue) { (ts_ms, value.to_owned()) };
        let owned: Vec<(i64, PointValue)> = points.iter().map(point).collect();
        let points: Vec<Point<'_>> = owned
            .iter()
            .map(|(ts_ms, value)| Point {
                entity,
                key,
                ts_ms: *ts_ms,
                value: value.as_ref(),
                destination: kept,
            })
            .collect();
        self.position += 10;
        let written = self.store.write(&points, LogPosition(self.position)).unwrap();
        assert_eq!((written.points, written.rejected_points), (points.len() as u64, 0));
        if self.flushes {
            self.store.flush().unwrap();
            assert_eq!(self.store.durable_position(), LogPosition(self.position));
        }
    }

    fn longs(&mut self, key: &str, points: &[(i64, i64)]) {
        self.keep(key, points, PointDestination::HistoryAndLatest);
    }

    fn points(&self, key: &str, range: Range<i64>, order: PointOrder, limit: usize) -> Vec<TimedValue> {
        let query = Query::Points { range, order, limit };
        self.store.query(DEVICE, &[key], &query).unwrap().remove(0)
    }

    fn times(&self, key: &str, range: Range<i64>, order: PointOrder, limit: usize) -> Vec<i64> {
        self.points(key, range, order, limit)
            .into_iter()
            .map(|point| point.ts_ms)
            .collect()
    }

    fn aggregate(
        &self,
        key: &str,
        range: Range<i64>,
        interval: BucketInterval,
        aggregation: Aggregation,
    ) -> Vec<(i64, PointValue)> {
        let query = Query::Aggregate {
            range,
            interval,
            aggregation,
            order: PointOrder::Descending,
            limit: 1,
        };
        let values = self.store.query(DEVICE, &[key], &query).unwrap().remove(0);
        values.into_iter().map(|point| (point.ts_ms, point.value)).collect()
    }

    fn total(&self, key: &str, aggregation: Aggregation) -> Option<PointValue> {
        self.aggregate(key, 0..1000, BucketInterval::Millis(1000), aggregation)
            .pop()
            .map(|(_, value)| value)
    }

    fn latest(&self, key: &str) -> Option<(i64, PointValue)> {
        let latest = self.store.latest(DEVICE, &[key]).unwrap().remove(0);
        latest.map(|latest| (latest.ts_ms, latest.value))
    }
}

fn points_come_back_with_their_types(client: &mut Client<'_>) {
    let values = [
        (1, ValueRef::Bool(true)),
        (2, ValueRef::Long(i64::MIN)),
        (3, ValueRef::Double(-0.125)),
        (4, ValueRef::String("naïve, \"quoted\"")),
        (5, ValueRef::Json("{\"a\":[1,2]}")),
        (6, ValueRef::Long(i64::MAX)),
        (7, ValueRef::String("")),
    ];
    client.write("k", &values);
    let found = client.points("k", 0..10, PointOrder::Ascending, 100);
    assert_eq!(found.len(), values.len());
    assert!(
        found
            .iter()
            .zip(values)
            .all(|(point, (ts_ms, value))| point.ts_ms == ts_ms && point.value.as_ref() == value)
    );
}

fn ranges_are_half_open_and_limits_hold(client: &mut Client<'_>) {
    client.longs(
        "k",
        &[(30, 3), (10, 1), (-5, 0), (20, 2), (i64::MAX - 1, 9), (i64::MIN, 8)],
    );
    assert_eq!(client.times("k", 10..30, PointOrder::Ascending, 10), [10, 20]);
    assert_eq!(client.times("k", -5..31, PointOrder::Descending, 2), [30, 20]);
    assert_eq!(client.times("k", -5..31, PointOrder::Ascending, 2), [-5, 10]);
    assert_eq!(
        client.times("k", i64::MIN..i64::MAX, PointOrder::Ascending, 10),
        [i64::MIN, -5, 10, 20, 30, i64::MAX - 1]
    );
    assert!(
        client
            .times("k", Range { start: 30, end: 10 }, PointOrder::Ascending, 10)
            .is_empty()
    );
    assert!(client.times("k", 10..10, PointOrder::Ascending, 10).is_empty());
    assert!(client.times("k", 0..100, PointOrder::Ascending, 0).is_empty());
}

fn the_same_time_is_overwritten(client: &mut Client<'_>) {
    client.longs("k", &[(1, 1), (2, 2), (1, 3)]);
    client.write("k", &[(2, ValueRef::String("two"))]);
    let found: Vec<PointValue> = client
        .points("k", 0..9, PointOrder::Ascending, 9)
        .into_iter()
        .map(|point| point.value)
        .collect();
    assert_eq!(found, [PointValue::Long(3), PointValue::String("two".into())]);
    assert_eq!(client.total("k", Aggregation::Count), Some(PointValue::Long(2)));
}

fn latest_is_the_newest_time(client: &mut Client<'_>) {
    client.longs("k", &[(100, 1)]);
    client.longs("k", &[(50, 2)]);
    assert_eq!(client.latest("k"), Some((100, PointValue::Long(1))));
    client.write("k", &[(100, ValueRef::String("equal time"))]);
    assert_eq!(client.latest("k"), Some((100, PointValue::String("equal time".into()))));
    client.longs("other", &[(1, 5)]);
    client.write_for(OTHER, "k", &[(3, ValueRef::Bool(false))]);
    let times = |entity| {
        let latest = client.store.latest(entity, &["k", "other", "none"]).unwrap();
        let times = latest.iter().map(|latest| latest.as_ref().map(|latest| latest.ts_ms));
        times.collect::<Vec<_>>()
    };
    assert_eq!(times(OTHER), [Some(3), None, None]);
    assert_eq!(times(DEVICE), [Some(100), Some(1), None]);
}

fn keys_are_those_with_a_latest_value(client: &mut Client<'_>) {
    client.longs("zeta", &[(1, 1)]);
    client.longs("alpha", &[(1, 1)]);
    client.write_for(OTHER, "elsewhere", &[(1, ValueRef::Long(1))]);
    assert_eq!(client.store.keys(DEVICE).unwrap(), ["alpha".into(), "zeta".into()]);
}

fn history_and_latest_can_be_kept_alone(client: &mut Client<'_>) {
    client.longs("k", &[(100, 1)]);
    client.keep("k", &[(200, 2)], PointDestination::HistoryOnly);
    assert_eq!(client.latest("k"), Some((100, PointValue::Long(1))));
    client.keep("k", &[(150, 3), (120, 4)], PointDestination::LatestOnly);
    assert_eq!(client.latest("k"), Some((150, PointValue::Long(3))));
    assert_eq!(client.times("k", 0..1000, PointOrder::Ascending, 10), [100, 200]);
    client.keep("history", &[(1, 1)], PointDestination::HistoryOnly);
    client.keep("latest", &[(1, 1)], PointDestination::LatestOnly);
    assert_eq!(client.store.keys(DEVICE).unwrap(), ["k".into(), "latest".into()]);
    assert_eq!(client.times("history", 0..1000, PointOrder::Ascending, 10), [1]);
    assert!(client.points("latest", 0..1000, PointOrder::Ascending, 10).is_empty());
}

fn aggregates_follow_the_rules(client: &mut Client<'_>) {
    client.longs("long", &[(1, 4), (2, 1), (3, 8)]);
    assert_eq!(client.total("long", Aggregation::Min), Some(PointValue::Long(1)));
    assert_eq!(client.total("long", Aggregation::Max), Some(PointValue::Long(8)));
    assert_eq!(client.total("long", Aggregation::Sum), Some(PointValue::Long(13)));
    assert_eq!(
        client.total("long", Aggregation::Avg),
        Some(PointValue::Double(13.0 / 3.0))
    );
    assert_eq!(client.total("long", Aggregation::Count), Some(PointValue::Long(3)));
    client.longs("large", &[(1, i64::MAX), (2, i64::MAX)]);
    assert_eq!(
        client.total("large", Aggregation::Sum),
        Some(PointValue::Double(2.0 * i64::MAX as f64))
    );
    client.write(
        "text",
        &[
            (1, ValueRef::String("b")),
            (2, ValueRef::String("a")),
            (3, ValueRef::String("c")),
        ],
    );
    assert_eq!(
        client.total("text", Aggregation::Min),
        Some(PointValue::String("a".into()))
    );
    assert_eq!(
        client.total("text", Aggregation::Max),
        Some(PointValue::String("c".into()))
    );
    assert_eq!(client.total("text", Aggregation::Sum), None);
    assert_eq!(client.total("text", Aggregation::Avg), None);
    assert_eq!(client.total("text", Aggregation::Count), Some(PointValue::Long(3)));
    client.write("flag", &[(1, ValueRef::Bool(true)), (2, ValueRef::Bool(false))]);
    assert_eq!(client.total("flag", Aggregation::Min), Some(PointValue::Bool(false)));
    assert_eq!(client.total("flag", Aggregation::Max), Some(PointValue::Bool(true)));
    assert_eq!(client.total("none", Aggregation::Count), None);
}

fn mixed_types_aggregate(client: &mut Client<'_>) {
    let values = [
        (1, ValueRef::Long(20)),
        (2, ValueRef::Double(20.5)),
        (3, ValueRef::String("zz")),
        (4, ValueRef::Bool(true)),
    ];
    client.write("k", &values);
    assert_eq!(client.total("k", Aggregation::Min), Some(PointValue::Double(20.0)));
    assert_eq!(client.total("k", Aggregation::Max), Some(PointValue::Double(20.5)));
    assert_eq!(client.total("k", Aggregation::Sum), Some(PointValue::Double(40.5)));
    assert_eq!(client.total("k", Aggregation::Avg), Some(PointValue::Double(20.25)));
    assert_eq!(client.total("k", Aggregation::Count), Some(PointValue::Long(4)));
}

fn buckets_have_their_middle(client: &mut Client<'_>) {
    client.longs("k", &[(1, 1), (2000, 1), (2001, 1), (2999, 1), (3000, 1)]);
    let counts = |range, interval| client.aggregate("k", range, BucketInterval::Millis(interval), Aggregation::Count);
    assert_eq!(
        counts(1..3000, 2000),
        [(1001, PointValue::Long(2)), (2500, PointValue::Long(2))]
    );
    assert_eq!(counts(1..3000, 1_000_000), [(1500, PointValue::Long(4))]);
    assert_eq!(counts(3000..3000, 10), [(3000, PointValue::Long(1))]);
    assert_eq!(counts(100..1500, 10), []);
    // Without an interval the result has points, up to the limit, newest first.
    assert_eq!(counts(1..3000, 0), [(2999, PointValue::Long(1))]);
}

fn calendars_have_time_zones(client: &mut Client<'_>) {
    // 2024-02-28T22:30Z is 00:30 of the 29th in Kyiv; the 1st of March begins there at 22:00Z.
    let start = 1_709_159_400_000;
    let march = 1_709_244_000_000;
    client.longs("k", &[(start, 1), (march - 1, 2), (march, 4), (march + 5 * DAY, 8)]);
    let month = |time_zone: &str| BucketInterval::Calendar {
        unit: CalendarUnit::Month,
        time_zone: time_zone.to_owned(),
    };
    let end = march + 10 * DAY;
    let sums = client.aggregate("k", start..end, month("Europe/Kyiv"), Aggregation::Sum);
    let middle = |from: i64, to: i64| from + (to - from) / 2;
    assert_eq!(
        sums,
        [
            (middle(start, march), PointValue::Long(3)),
            (middle(march, end), PointValue::Long(12))
        ]
    );
    let sums = client.aggregate("k", start..end, month("UTC"), Aggregation::Sum);
    assert_eq!(
        sums.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>(),
        [PointValue::Long(7), PointValue::Long(8)]
    );
    let query = Query::Aggregate {
        range: 0..1,
        interval: month("Nowhere/Else"),
        aggregation: Aggregation::Sum,
        order: PointOrder::Ascending,
        limit: 1,
    };
    assert!(client.store.query(DEVICE, &["k"], &query).is_err());
}

fn deletes_hide_a_range_and_no_more(client: &mut Client<'_>) {
    client.longs("k", &[(1, 1), (2, 2), (3, 3), (4, 4)]);
    client.longs("other", &[(2, 2)]);
    let delete = Delete {
        entity: DEVICE,
        keys: Some(&["k"]),
        range: 2..4,
        latest: LatestAfterDelete::Keep,
    };
    client.store.delete(&delete).unwrap();
    assert_eq!(client.times("k", 0..10, PointOrder::Ascending, 10), [1, 4]);
    assert_eq!(client.times("other", 0..10, PointOrder::Ascending, 10), [2]);
    client.longs("k", &[(3, 33)]);
    assert_eq!(client.times("k", 0..10, PointOrder::Ascending, 10), [1, 3, 4]);
    assert_eq!(client.total("k", Aggregation::Sum), Some(PointValue::Long(38)));
    let everything = Delete {
        keys: None,
        range: i64::MIN..i64::MAX,
        latest: LatestAfterDelete::Remove,
        ..delete
    };
    client.store.delete(&everything).unwrap();
    assert!(client.times("k", 0..10, PointOrder::Ascending, 10).is_empty());
    assert!(client.store.keys(DEVICE).unwrap().is_empty());
}

fn deletes_rewrite_or_remove_latest(client: &mut Client<'_>) {
    let delete = |range, latest| Delete {
        entity: DEVICE,
        keys: None,
        range,
        latest,
    };
    client.longs("k", &[(1, 1), (2, 2), (3, 3)]);
    client.store.delete(&delete(1..2, LatestAfterDelete::Remove)).unwrap();
    assert_eq!(client.latest("k"), Some((3, PointValue::Long(3))));
    client.store.delete(&delete(3..4, LatestAfterDelete::Keep)).unwrap();
    assert_eq!(client.latest("k"), Some((3, PointValue::Long(3))));
    client.store.delete(&delete(3..4, LatestAfterDelete::Rewrite)).unwrap();
    assert_eq!(client.latest("k"), Some((2, PointValue::Long(2))));
    client.store.delete(&delete(0..9, LatestAfterDelete::Rewrite)).unwrap();
    assert_eq!(client.latest("k"), None);
    client.longs("k", &[(1, 7)]);
    assert_eq!(client.latest("k"), Some((1, PointValue::Long(7))));
}

fn positions_are_applied_once(client: &mut Client<'_>) {
    client.longs("k", &[(1, 1)]);
    client.longs("k", &[(1, 2)]);
    let old = [Point {
        entity: DEVICE,
        key: "k",
        ts_ms: 1,
        value: ValueRef::Long(1),
        destination: PointDestination::HistoryAndLatest,
    }];
    assert!(client.store.write(&old, LogPosition(10)).unwrap().is_replay);
    assert!(client.store.write(&old, LogPosition(20)).unwrap().is_replay);
    assert_eq!(client.latest("k"), Some((1, PointValue::Long(2))));
    assert_eq!(client.total("k", Aggregation::Sum), Some(PointValue::Long(2)));
}

fn time_to_live_is_per_class(client: &mut Client<'_>) {
    client.store.set_class(OTHER, RetentionClass(1)).unwrap();
    client.store.set_ttl(RetentionClass(1), Some(DAY as u64)).unwrap();
    let points: Vec<(i64, ValueRef<'_>)> = (0..72).map(|hour| (hour * 3_600_000, ValueRef::Long(hour))).collect();
    client.write("k", &points);
    client.write_for(OTHER, "k", &points);
    while client.store.maintain(3 * DAY).unwrap().has_more {}
    let count = |entity| {
        let query = Query::Points {
            range: 0..4 * DAY,
            order: PointOrder::Ascending,
            limit: 1000,
        };
        client.store.query(entity, &["k"], &query).unwrap()[0].len()
    };
    assert_eq!((count(DEVICE), count(OTHER)), (72, 24));
    while client.store.maintain(30 * DAY).unwrap().has_more {}
    assert_eq!((count(DEVICE), count(OTHER)), (72, 0));
    assert!(client.store.latest(OTHER, &["k"]).unwrap()[0].is_some());
}

fn a_series_can_have_a_class_of_its_own(client: &mut Client<'_>) {
    let of = |key| Series { entity: DEVICE, key };
    client.store.set_ttl(RetentionClass(2), Some(DAY as u64)).unwrap();
    client
        .store
        .set_series_classes(&[(of("short"), Some(RetentionClass(2)))])
        .unwrap();
    let points: Vec<(i64, i64)> = (0..72).map(|hour| (hour * 3_600_000, hour)).collect();
    for key in ["short", "long", "short"] {
        client.longs(key, &points);
    }
    let count = |client: &Client<'_>, key| client.times(key, 0..4 * DAY, PointOrder::Ascending, 1000).len();
    client.store.maintain(3 * DAY).unwrap();
    assert_eq!((count(client, "short"), count(client, "long")), (24, 72));
    client
        .store
        .set_series_classes(&[(of("short"), None), (of("long"), Some(RetentionClass(2)))])
        .unwrap();
    assert_eq!(count(client, "long"), 24);
    while client.store.maintain(30 * DAY).unwrap().has_more {}
    assert_eq!(count(client, "long"), 0);
}

fn classes_and_entities_are_listed(client: &mut Client<'_>) {
    client.store.set_ttl(RetentionClass(3), Some(5)).unwrap();
    client.store.set_ttl(RetentionClass(4), Some(6)).unwrap();
    client.store.set_ttl(RetentionClass(4), None).unwrap();
    assert_eq!(client.store.ttls(), [(RetentionClass(3), 5)]);
    client.longs("k", &[(1, 1)]);
    client.write_for(OTHER, "k", &[(1, ValueRef::Long(1))]);
    client.store.set_class(OTHER, RetentionClass(3)).unwrap();
    assert_eq!(client.store.used_classes(), [RetentionClass(0), RetentionClass(3)]);
    assert_eq!(
        client.store.entities(0, 10),
        [(DEVICE, RetentionClass(0)), (OTHER, RetentionClass(3))]
    );
    assert_eq!(client.store.entities(1, 10), [(OTHER, RetentionClass(3))]);
    assert_eq!(client.store.entities(0, 1).len(), 1);
    assert!(client.store.entities(2, 10).is_empty());
}

fn exports_are_csv(client: &mut Client<'_>) {
    client.write("a", &[(2, ValueRef::Double(1.0)), (1, ValueRef::Long(5))]);
    client.write(
        "b,c",
        &[(1, ValueRef::Json("{\"x\":1}")), (2, ValueRef::String("plain"))],
    );
    let mut out = Vec::new();
    let points = export_csv(client.store, DEVICE, &["a", "b,c"], 0..10, &mut out).unwrap();
    assert_eq!(points, 4);
    let expected = "key,ts,type,value\r\na,1,long,5\r\na,2,double,1.0\r\n\"b,c\",1,json,\"{\"\"x\"\":1}\"\r\n\"b,c\",2,string,plain\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

fn unknown_things_are_empty(client: &mut Client<'_>) {
    client.longs("k", &[(1, 1)]);
    assert!(client.times("none", 0..10, PointOrder::Ascending, 10).is_empty());
    assert!(client.store.keys(TelemetryEntityId([0; 16])).unwrap().is_empty());
    assert_eq!(client.store.latest(TelemetryEntityId([0; 16]), &["k"]).unwrap(), [None]);
    let series = Series {
        entity: TelemetryEntityId([0; 16]),
        key: "k",
    };
    client
        .store
        .scan(series, 0..10, PointOrder::Ascending, &mut |_, _| {
            unreachable!("no points")
        })
        .unwrap();
}
