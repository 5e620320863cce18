//! Tests concurrent writers, readers, maintenance and deletions: no thread blocks for ever, and no result has a gap.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as Memory};

use storage::model::ModelDisk;
use timeseries::{
    ColumnStore, Delete, LatestAfterDelete, LogPosition, Point, PointDestination, PointOrder, Series, StoreConfig,
    TelemetryEntityId, TimeseriesStore, ValueRef,
};

const DEVICE: TelemetryEntityId = TelemetryEntityId([1; 16]);
const VICTIM: TelemetryEntityId = TelemetryEntityId([2; 16]);
const BATCHES: u64 = 600;
const BATCH: u64 = 200;

/// Returns an incompressible point.
fn point_of(n: u64) -> (i64, i64) {
    let noise = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    (n as i64 * 1000 + (noise % 500) as i64, noise as i64)
}

fn batch(store: &ColumnStore, index: u64) {
    let point = |entity, n: u64| Point {
        entity,
        key: "k",
        ts_ms: point_of(n).0,
        value: ValueRef::Long(point_of(n).1),
        destination: PointDestination::HistoryAndLatest,
    };
    let numbers = index * BATCH..(index + 1) * BATCH;
    let points: Vec<Point<'_>> = numbers.flat_map(|n| [point(DEVICE, n), point(VICTIM, n)]).collect();
    store.write(&points, LogPosition(index + 1)).unwrap();
}

/// Checks that the times have no gap and that the values match. Returns the number of points.
fn check(store: &ColumnStore) -> u64 {
    let mut next = 0;
    let series = Series {
        entity: DEVICE,
        key: "k",
    };
    let mut visit = |ts_ms: i64, value: ValueRef<'_>| {
        let (expected_ts, expected) = point_of(next);
        assert_eq!((ts_ms, value), (expected_ts, ValueRef::Long(expected)));
        next += 1;
        ControlFlow::Continue(())
    };
    store
        .scan(series, 0..i64::MAX, PointOrder::Ascending, &mut visit)
        .unwrap();
    next
}

/// Stops all threads when one of them ends, also by a panic.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Memory::SeqCst);
    }
}

#[test]
fn everything_at_once_stays_consistent() {
    let config = StoreConfig {
        head_bytes_max: 48 << 10,
        fresh_segments_max: 2,
        ..StoreConfig::default()
    };
    let store = ColumnStore::open(ModelDisk::from_seed(1).storage(), config).unwrap();
    let written = AtomicU64::new(0);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = EndsAll(&is_done);
            for index in 0..BATCHES {
                batch(&store, index);
                written.store((index + 1) * BATCH, Memory::SeqCst);
            }
        });
        scope.spawn(|| {
            let _ends = EndsAll(&is_done);
            while !is_done.load(Memory::SeqCst) {
                store.maintain(0).unwrap();
            }
        });
        scope.spawn(|| {
            let _ends = EndsAll(&is_done);
            let mut deleted = 0;
            while !is_done.load(Memory::SeqCst) {
                // Deletions without writes between them would only fill the disk.
                if written.load(Memory::SeqCst) == deleted {
                    std::thread::yield_now();
                    continue;
                }
                deleted = written.load(Memory::SeqCst);
                let delete = Delete {
                    entity: VICTIM,
                    keys: None,
                    range: 0..i64::MAX,
                    latest: LatestAfterDelete::Remove,
                };
                store.delete(&delete).unwrap();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let _ends = EndsAll(&is_done);
                while !is_done.load(Memory::SeqCst) {
                    let before = written.load(Memory::SeqCst);
                    assert!(check(&store) >= before);
                }
            });
        }
    });
    store.flush().unwrap();
    while store.maintain(0).unwrap().has_more {}
    assert_eq!(check(&store), BATCHES * BATCH);
    assert!(store.stats().compactions_total > 0 && store.stats().flushes_total > 5);
}
