//! Runs random operations from a seed on the embedded store on a model disk and on the naive store, and compares their
//! query results. It also models the caller's log, which is replayed from the durable position after a crash.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test uses a part")]

use timeseries::{
    Aggregation, BucketInterval, ColumnStore, Delete, LatestAfterDelete, LogPosition, Point, PointDestination,
    PointOrder, PointValue, Query, RetentionClass, StoreConfig, StoreError, TelemetryEntityId, TimedValue,
    TimeseriesStore,
};

use crate::model::NaiveStore;
use storage::model::{ModelDisk, Random};

pub const KEYS: [&str; 4] = ["counter", "flag", "mixed", "text"];
const ENTITIES: usize = 5;
const HOUR: i64 = 3_600_000;
const SPAN: i64 = 20 * 24 * HOUR;

#[derive(Clone, Debug)]
pub struct Owned {
    entity: TelemetryEntityId,
    key: &'static str,
    ts_ms: i64,
    value: PointValue,
    kept: PointDestination,
}

pub struct Runner {
    pub random: Random,
    pub disk: ModelDisk,
    config: StoreConfig,
    /// `None` while the power is off.
    store: Option<ColumnStore>,
    naive: NaiveStore,
    log: Vec<(u64, Vec<Owned>)>,
    position: u64,
    now_ms: i64,
    /// Current time of each series.
    clock_ms: i64,
    pub crashes: u64,
}

pub fn entity(index: usize) -> TelemetryEntityId {
    TelemetryEntityId([index as u8 + 1; 16])
}

impl Runner {
    pub fn new(seed: u64) -> Runner {
        let mut random = Random::new(seed);
        let config = StoreConfig {
            head_bytes_max: [8 << 10, 64 << 10, 1 << 20][random.below(3)],
            window_ms: [24, 24 * 7, 24 * 100][random.below(3)] * HOUR,
            fresh_segments_max: 2 + random.below(3),
            ..StoreConfig::default()
        };
        let disk = ModelDisk::from_seed(seed);
        let store = ColumnStore::open(disk.storage(), config).unwrap();
        let mut runner = Runner {
            random,
            disk,
            config,
            store: Some(store),
            naive: NaiveStore::default(),
            log: Vec::new(),
            position: 0,
            now_ms: 0,
            clock_ms: 1_700_000_000_000,
            crashes: 0,
        };
        runner.now_ms = runner.clock_ms;
        runner
    }

    pub fn store(&self) -> &ColumnStore {
        self.store.as_ref().unwrap()
    }

    /// One entity has points that expire.
    pub fn with_ttl(self) -> Runner {
        let ttl_ms = 5 * 24 * HOUR as u64;
        for store in [self.store() as &dyn TimeseriesStore, &self.naive] {
            store.set_class(entity(0), RetentionClass(1)).unwrap();
            store.set_ttl(RetentionClass(1), Some(ttl_ms)).unwrap();
            store.flush().unwrap();
        }
        self
    }

    pub fn step(&mut self) {
        match self.random.below(100) {
            0..60 => self.write(),
            60..66 => self.flush(),
            66..80 => self.maintain(),
            80..86 => self.delete(),
            86..88 => self.reopen(),
            _ => self.ask(),
        }
    }

    fn write(&mut self) {
        let mut points = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            self.add_points(&mut points);
        }
        self.position += 1 + self.random.below(100) as u64;
        self.log.push((self.position, points));
        loop {
            let (position, points) = self.log.last().unwrap();
            let result = self
                .store
                .as_ref()
                .map(|store| store.write(&borrow(points), LogPosition(*position)));
            match result {
                Some(Ok(_)) => break,
                _ => self.recover(),
            }
            // The replayed log contained this batch.
            if self.store().stats().head_points > 0 || self.store().durable_position().0 >= self.position {
                break;
            }
        }
        let (position, points) = self.log.last().unwrap();
        self.naive.write(&borrow(points), LogPosition(*position)).unwrap();
    }

    fn add_points(&mut self, points: &mut Vec<Owned>) {
        let key = KEYS[self.random.below(KEYS.len())];
        let entity = entity(self.random.below(ENTITIES));
        let count = match self.random.below(10) {
            0 => 1500,
            1..4 => 100,
            _ => 5,
        };
        let mut ts_ms = match self.random.below(6) {
            // The point is late or overwrites another one.
            0 => self.clock_ms - self.random.below(SPAN as usize) as i64,
            1 => self.clock_ms - 1000 * self.random.below(2000) as i64,
            _ => self.clock_ms,
        };
        let kept = match self.random.below(8) {
            0 => PointDestination::HistoryOnly,
            1 => PointDestination::LatestOnly,
            _ => PointDestination::HistoryAndLatest,
        };
        for _ in 0..count {
            let value = self.value(key);
            points.push(Owned {
                entity,
                key,
                ts_ms,
                value,
                kept,
            });
            ts_ms += [1000, 1000, 990, 1, 0, -3000, HOUR][self.random.below(7)];
        }
        self.clock_ms += self.random.below(HOUR as usize) as i64;
    }

    fn value(&mut self, key: &str) -> PointValue {
        let number = self.random.below(1000) as i64;
        match (key, self.random.below(5)) {
            ("counter", _) => PointValue::Long(number - 500),
            ("flag", _) => PointValue::Bool(number > 900),
            // The values are exact in binary, so the order of additions does not matter.
            ("mixed", 0..2) => PointValue::Double(number as f64 / 4.0),
            ("mixed", 2) => PointValue::String(format!("s{number}").into()),
            ("mixed", _) => PointValue::Long(number),
            (_, 0) => PointValue::Json(format!("{{\"n\":{number}}}").into()),
            _ => PointValue::String("x".repeat(number as usize % 40).into()),
        }
    }

    fn flush(&mut self) {
        loop {
            match self.store.as_ref().map(TimeseriesStore::flush) {
                Some(Ok(())) => break,
                _ => self.recover(),
            }
        }
        assert_eq!(self.store().durable_position().0, self.position);
    }

    fn maintain(&mut self) {
        self.now_ms = self.clock_ms;
        self.naive.maintain(self.now_ms).unwrap();
        for _ in 0..1 + self.random.below(5) {
            match self.store.as_ref().map(|store| store.maintain(self.now_ms)) {
                Some(Ok(maintained)) if !maintained.has_more => break,
                Some(Ok(_)) => {}
                _ => self.recover(),
            }
        }
    }

    fn delete(&mut self) {
        let start = self.clock_ms - self.random.below(SPAN as usize) as i64;
        let range = match self.random.below(6) {
            0 => i64::MIN..i64::MAX,
            1 => start..start + 5000,
            _ => start..start + self.random.below(SPAN as usize / 4) as i64,
        };
        let latest = [
            LatestAfterDelete::Keep,
            LatestAfterDelete::Remove,
            LatestAfterDelete::Rewrite,
        ][self.random.below(3)];
        let keys = [KEYS[self.random.below(KEYS.len())]];
        let delete = Delete {
            entity: entity(self.random.below(ENTITIES)),
            keys: (!self.random.one_in(5)).then_some(&keys),
            range,
            latest,
        };
        loop {
            match self.store.as_ref().map(|store| store.delete(&delete)) {
                Some(Ok(())) => break,
                _ => self.recover(),
            }
        }
        self.naive.delete(&delete).unwrap();
    }

    fn reopen(&mut self) {
        if self.random.one_in(2) {
            self.flush();
        }
        self.store = None;
        self.open();
    }

    /// The power may have failed during the removal of a file, which the store does not report.
    fn power_on(&mut self) {
        while self.store.is_none() || !self.disk.has_power() {
            self.recover();
        }
    }

    /// Restores the power after an error and replays the log.
    fn recover(&mut self) {
        self.crashes += 1;
        self.store = None;
        self.disk.power_cut();
        self.open();
    }

    fn open(&mut self) {
        let store = match ColumnStore::open(self.disk.storage(), self.config) {
            Ok(store) => store,
            Err(error) => {
                assert!(
                    !self.disk.has_power() || matches!(error, StoreError::Io { .. }),
                    "{error}"
                );
                return;
            }
        };
        let durable = store.durable_position();
        let mut replayed = self.log.iter().filter(|(position, _)| *position > durable.0);
        let is_done = replayed.all(|(position, points)| store.write(&borrow(points), LogPosition(*position)).is_ok());
        if is_done {
            // The time of the last maintenance is not on disk.
            if store.maintain(self.now_ms).is_ok() {
                self.store = Some(store);
            }
        }
    }

    pub fn ask(&mut self) {
        self.power_on();
        let entity = entity(self.random.below(ENTITIES));
        let start = self.clock_ms - self.random.below(SPAN as usize) as i64;
        let range = start..start + self.random.below(SPAN as usize) as i64;
        let order = if self.random.one_in(2) {
            PointOrder::Ascending
        } else {
            PointOrder::Descending
        };
        let query = if self.random.one_in(3) {
            let limit = [1, 100, 100_000][self.random.below(3)];
            Query::Points { range, order, limit }
        } else {
            let all = [
                Aggregation::Min,
                Aggregation::Max,
                Aggregation::Avg,
                Aggregation::Sum,
                Aggregation::Count,
            ];
            let length = (range.end - range.start).max(1);
            Query::Aggregate {
                interval: BucketInterval::Millis(length / (1 + self.random.below(700)) as i64),
                range,
                aggregation: all[self.random.below(all.len())],
                order,
                limit: 100,
            }
        };
        self.compare(entity, &query);
    }

    fn compare(&self, entity: TelemetryEntityId, query: &Query) {
        let found = self.store().query(entity, &KEYS, query).unwrap();
        let expected = self.naive.query(entity, &KEYS, query).unwrap();
        for (key, (found, expected)) in KEYS.iter().zip(found.iter().zip(&expected)) {
            assert_same(found, expected, &format!("{entity:?} {key} {query:?}"));
        }
    }

    /// Compares the results of all queries.
    pub fn compare_all(&mut self) {
        self.power_on();
        for entity in (0..ENTITIES).map(entity) {
            let latest = self.store().latest(entity, &KEYS).unwrap();
            assert_eq!(latest, self.naive.latest(entity, &KEYS).unwrap(), "{entity:?}");
            assert_eq!(self.store().keys(entity).unwrap(), self.naive.keys(entity).unwrap());
            let query = Query::Points {
                range: i64::MIN..i64::MAX,
                order: PointOrder::Ascending,
                limit: usize::MAX,
            };
            self.compare(entity, &query);
        }
    }
}

fn assert_same(found: &[TimedValue], expected: &[TimedValue], question: &str) {
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    let at = differs.or((found.len() != expected.len()).then(|| found.len().min(expected.len())));
    if let Some(at) = at {
        let (found_len, expected_len) = (found.len(), expected.len());
        panic!(
            "{question}: {found_len} values instead of {expected_len}; at {at} {:?} instead of {:?}",
            found.get(at),
            expected.get(at)
        );
    }
}

fn borrow(points: &[Owned]) -> Vec<Point<'_>> {
    let borrow =
        |point: &'_ Owned| -> (TelemetryEntityId, &'static str, i64) { (point.entity, point.key, point.ts_ms) };
    points
        .iter()
        .map(|point| {
            let (entity, key, ts_ms) = borrow(point);
            Point {
                entity,
                key,
                ts_ms,
                value: point.value.as_ref(),
                destination: point.kept,
            }
        })
        .collect()
}
