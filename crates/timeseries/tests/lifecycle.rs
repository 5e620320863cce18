//! Tests the effects of merges, time to live and deletions on disk: the files and their sizes.

#![allow(clippy::unwrap_used, reason = "tests")]

use storage::model::ModelDisk;
use timeseries::{
    Aggregation, BucketInterval, ColumnStore, Delete, LatestAfterDelete, LogPosition, Point, PointDestination,
    PointOrder, PointValue, Query, QueryError, RetentionClass, Series, StoreConfig, StoreError, TelemetryEntityId,
    TimeseriesStore, ValueRef,
};

const DAY: i64 = 86_400_000;

fn device(index: u8) -> TelemetryEntityId {
    TelemetryEntityId([index; 16])
}

/// Writes `days` of values from three devices, one every 10 s, with a flush every six hours.
fn fill(store: &ColumnStore, days: i64) {
    for quarter in 0..days * 4 {
        for index in 0..3 {
            let points: Vec<Point<'_>> = (0..2160)
                .map(|n| Point {
                    entity: device(index),
                    key: "k",
                    ts_ms: quarter * DAY / 4 + n * 10_000 + n % 7,
                    value: ValueRef::Long((n * 7919) % 1000),
                    destination: PointDestination::HistoryAndLatest,
                })
                .collect();
            store
                .write(&points, LogPosition((quarter * 3 + i64::from(index) + 1) as u64))
                .unwrap();
        }
        store.flush().unwrap();
        while store.maintain((quarter + 1) * DAY / 4).unwrap().has_more {}
    }
}

fn count(store: &dyn TimeseriesStore, entity: TelemetryEntityId, range: std::ops::Range<i64>) -> i64 {
    let query = Query::Aggregate {
        interval: BucketInterval::Millis(range.end - range.start),
        range,
        aggregation: Aggregation::Count,
        order: PointOrder::Ascending,
        limit: 1,
    };
    match store.query(entity, &["k"], &query).unwrap()[0]
        .first()
        .map(|value| value.value.clone())
    {
        Some(PointValue::Long(count)) => count,
        _ => 0,
    }
}

#[test]
fn merges_keep_files_few_and_points_complete() {
    let disk = ModelDisk::from_seed(1);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    fill(&store, 21);
    let stats = store.stats();
    assert!(stats.segments <= 12, "{}", stats.segments);
    assert_eq!(stats.stored_points, 21 * 8640 * 3);
    assert_eq!(disk.file_names().len() as u64, stats.segments + 2);
    assert_eq!(count(&store, device(1), 0..21 * DAY), 21 * 8640);
    assert!(stats.compactions_total > 10);
}

#[test]
fn expired_points_are_removed_from_the_disk() {
    let disk = ModelDisk::from_seed(2);
    let config = StoreConfig {
        window_ms: DAY,
        ..StoreConfig::default()
    };
    let store = ColumnStore::open(disk.storage(), config).unwrap();
    fill(&store, 3);
    let before = store.stats().stored_bytes;
    store.set_ttl(RetentionClass(0), Some(DAY as u64)).unwrap();
    while store.maintain(3 * DAY).unwrap().has_more {}
    let stats = store.stats();
    assert!(stats.stored_bytes < before / 2, "{} of {before}", stats.stored_bytes);
    assert_eq!(count(&store, device(2), 0..3 * DAY), 8640);
    assert_eq!(disk.file_names().len() as u64, stats.segments + 2);
    while store.maintain(10 * DAY).unwrap().has_more {}
    assert_eq!((store.stats().segments, store.stats().stored_bytes), (0, 0));
}

#[test]
fn a_class_with_a_longer_time_to_live_keeps_its_points() {
    let store = ColumnStore::open(ModelDisk::from_seed(3).storage(), StoreConfig::default()).unwrap();
    store.set_ttl(RetentionClass(0), Some(DAY as u64)).unwrap();
    fill(&store, 1);
    store.set_class(device(1), RetentionClass(9)).unwrap();
    while store.maintain(20 * DAY).unwrap().has_more {}
    assert_eq!(count(&store, device(0), 0..DAY), 0);
    assert_eq!(count(&store, device(1), 0..DAY), 8640);
}

/// The points are merged into files without expiry. After a restart they get a time to live.
#[test]
fn later_time_to_live_removes_existing_points() {
    let disk = ModelDisk::from_seed(7);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    fill(&store, 21);
    let before = store.stats().stored_bytes;
    store.set_ttl(RetentionClass(5), Some(DAY as u64)).unwrap();
    store.set_class(device(0), RetentionClass(5)).unwrap();
    store.set_class(device(1), RetentionClass(5)).unwrap();
    store.flush().unwrap();
    drop(store);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    while store.maintain(21 * DAY).unwrap().has_more {}
    let stats = store.stats();
    assert!(stats.stored_bytes < before / 2, "{} of {before}", stats.stored_bytes);
    assert_eq!(count(&store, device(0), 0..21 * DAY), 8640);
    assert_eq!(count(&store, device(1), 0..21 * DAY), 8640);
    assert_eq!(count(&store, device(2), 0..21 * DAY), 21 * 8640);
    let compactions = stats.compactions_total;
    while store.maintain(21 * DAY + 120_000).unwrap().has_more {}
    assert_eq!(
        store.stats().compactions_total,
        compactions,
        "correct data is not changed"
    );
}

/// Three files are flushed from memory and never merged. Each has two classes.
#[test]
fn points_flushed_from_memory_expire() {
    let disk = ModelDisk::from_seed(8);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    let points = |entity| {
        let value = |n: i64| ValueRef::Long((n * 7919) % 1000);
        let point = move |n| Point {
            entity,
            key: "k",
            ts_ms: n * 10_000,
            value: value(n),
            destination: PointDestination::HistoryAndLatest,
        };
        (0..3 * 8640).map(point).collect::<Vec<_>>()
    };
    store.write(&points(device(0)), LogPosition(1)).unwrap();
    store.write(&points(device(1)), LogPosition(2)).unwrap();
    store.flush().unwrap();
    let before = store.stats().stored_bytes;
    store.set_ttl(RetentionClass(1), Some(DAY as u64)).unwrap();
    store.set_class(device(0), RetentionClass(1)).unwrap();
    while store.maintain(3 * DAY).unwrap().has_more {}
    assert_eq!(
        (
            count(&store, device(0), 0..3 * DAY),
            count(&store, device(1), 0..3 * DAY)
        ),
        (8640, 3 * 8640)
    );
    assert!(store.stats().stored_bytes < before * 3 / 4);
    assert_eq!(store.stats().stored_points, 4 * 8640);
}

#[test]
fn a_class_of_a_series_survives_restarts_and_new_logs() {
    let disk = ModelDisk::from_seed(9);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    let series = Series {
        entity: device(1),
        key: "k",
    };
    store.set_ttl(RetentionClass(1), Some(DAY as u64)).unwrap();
    store.set_series_classes(&[(series, Some(RetentionClass(1)))]).unwrap();
    fill(&store, 3);
    for _ in 0..2 {
        let store = ColumnStore::open(disk.copy().storage(), StoreConfig::default()).unwrap();
        while store.maintain(3 * DAY).unwrap().has_more {}
        assert_eq!(count(&store, device(1), 0..3 * DAY), 8640);
        assert_eq!(count(&store, device(2), 0..3 * DAY), 3 * 8640);
        assert_eq!(store.ttls(), [(RetentionClass(1), DAY as u64)]);
    }
    store.set_series_classes(&[(series, None)]).unwrap();
    store.flush().unwrap();
    drop(store);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    assert_eq!(store.used_classes(), [RetentionClass(0)]);
}

#[test]
fn deleted_points_and_tombstones_leave_the_disk() {
    let disk = ModelDisk::from_seed(4);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    fill(&store, 14);
    let before = store.stats().stored_bytes;
    let delete = Delete {
        entity: device(0),
        keys: None,
        range: i64::MIN..i64::MAX,
        latest: LatestAfterDelete::Remove,
    };
    store.delete(&delete).unwrap();
    assert_eq!(store.stats().tombstones, 1);
    assert_eq!(count(&store, device(0), 0..14 * DAY), 0);
    while store.maintain(14 * DAY).unwrap().has_more {}
    let stats = store.stats();
    assert_eq!(stats.tombstones, 0);
    assert!(
        stats.stored_bytes < before * 3 / 4,
        "{} of {before}",
        stats.stored_bytes
    );
    assert_eq!(count(&store, device(1), 0..14 * DAY), 14 * 8640);
}

#[test]
fn charts_read_summaries() {
    let store = ColumnStore::open(ModelDisk::from_seed(5).storage(), StoreConfig::default()).unwrap();
    fill(&store, 14);
    let before = store.stats();
    assert_eq!(count(&store, device(1), 0..14 * DAY), 14 * 8640);
    let after = store.stats();
    let blocks = after.blocks_read_total - before.blocks_read_total;
    let summaries = after.summaries_used_total - before.summaries_used_total;
    assert!(blocks <= 2 && summaries > 100, "{blocks} blocks, {summaries} summaries");
}

#[test]
fn latest_values_survive_a_restart_and_the_end_of_their_history() {
    let disk = ModelDisk::from_seed(6);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    fill(&store, 1);
    store.set_ttl(RetentionClass(0), Some(1)).unwrap();
    while store.maintain(30 * DAY).unwrap().has_more {}
    let latest = store.latest(device(1), &["k"]).unwrap();
    assert!(latest[0].is_some());
    drop(store);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    assert_eq!(store.latest(device(1), &["k"]).unwrap(), latest);
    assert_eq!(store.keys(device(1)).unwrap(), ["k".into()]);
    assert_eq!(store.stats().stored_points, 0);
}

#[test]
fn texts_of_a_result_are_limited() {
    let disk = ModelDisk::from_seed(3);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    let text = "x".repeat(1 << 20);
    for n in 0..40 {
        let point = Point {
            entity: device(1),
            key: if n % 2 == 0 { "a" } else { "b" },
            ts_ms: n,
            value: ValueRef::String(&text),
            destination: PointDestination::HistoryAndLatest,
        };
        store.write(&[point], LogPosition(n as u64 + 1)).unwrap();
    }
    let points = |limit| Query::Points {
        range: 0..100,
        order: PointOrder::Descending,
        limit,
    };
    let largest = |interval| Query::Aggregate {
        range: 0..40,
        interval: BucketInterval::Millis(interval),
        aggregation: Aggregation::Max,
        order: PointOrder::Ascending,
        limit: 0,
    };
    for flushed in [false, true] {
        let is_answered = |query: &Query| {
            let answer = store.query(device(1), &["a", "b"], query);
            match &answer {
                Ok(_) => true,
                Err(StoreError::Query(QueryError::TooLarge { .. })) => false,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(is_answered(&points(16)), "{flushed}");
        assert!(
            !is_answered(&points(17)),
            "the limit applies to both keys together; {flushed}"
        );
        assert!(is_answered(&largest(10)), "{flushed}");
        assert!(!is_answered(&largest(1)), "{flushed}");
        store.flush().unwrap();
    }
}

/// The limit of intervals applies to all keys of a query together.
#[test]
fn intervals_of_a_query_are_limited() {
    const INTERVALS: i64 = 100_000;
    let disk = ModelDisk::from_seed(1);
    let store = ColumnStore::open(disk.storage(), StoreConfig::default()).unwrap();
    let points = (0..INTERVALS).map(|ts_ms| Point {
        entity: device(1),
        key: "k",
        ts_ms,
        value: ValueRef::Long(ts_ms),
        destination: PointDestination::HistoryAndLatest,
    });
    store.write(&points.collect::<Vec<_>>(), LogPosition(1)).unwrap();
    let ask = |keys: usize, end: i64| {
        let query = Query::Aggregate {
            interval: BucketInterval::Millis(1),
            range: 0..end,
            aggregation: Aggregation::Count,
            order: PointOrder::Ascending,
            limit: 1,
        };
        store.query(device(1), &vec!["k"; keys], &query)
    };
    assert_eq!(ask(8, INTERVALS).unwrap()[7].len(), 100_000);
    let refused = ask(30_000, INTERVALS).unwrap_err();
    assert!(
        matches!(refused, StoreError::Query(QueryError::TooLarge { .. })),
        "{refused}"
    );
    assert_eq!(ask(30_000, 10).unwrap().len(), 30_000);
}
