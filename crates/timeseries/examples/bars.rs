//! Measures the embedded store on a real directory: bytes per point, ingest, queries, latest values, memory of idle
//! series.
//!
//! `cargo run --profile fast -p tidewire-timeseries --example bars [-- directory]`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use timeseries::{
    Aggregation, BucketInterval, ColumnStore, DIRECTORY_NAME, LogPosition, Point, PointDestination, PointOrder, Query,
    StorageDirectory, StoreConfig, TelemetryEntityId, TimeseriesStore, ValueRef,
};

const DAY: i64 = 86_400_000;
const START: i64 = 1_700_000_000_000;

fn main() {
    let base = std::env::args()
        .nth(1)
        .map_or_else(|| std::env::temp_dir().join("timeseries-bars"), PathBuf::from);
    std::fs::create_dir_all(&base).unwrap();
    let only = std::env::args().nth(2);
    if only.as_deref() == Some("month") {
        return month(&base.join("month"));
    }
    meter(&base.join("meter"), Meter::Realistic);
    meter(&base.join("uniform"), Meter::Uniform);
    ingest(&base.join("ingest"), false);
    ingest(&base.join("ingest-merge"), true);
    month(&base.join("month"));
    idle(&base.join("idle"));
    std::fs::remove_dir_all(&base).unwrap();
}

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn device(index: u64) -> TelemetryEntityId {
    let mut id = [0x11; 16];
    id[..8].copy_from_slice(&index.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    TelemetryEntityId(id)
}

fn open(path: &Path, config: StoreConfig) -> ColumnStore {
    std::fs::create_dir_all(path).unwrap();
    ColumnStore::open(Arc::new(StorageDirectory::open(path, DIRECTORY_NAME).unwrap()), config).unwrap()
}

fn fresh(path: &Path) -> ColumnStore {
    let _ = std::fs::remove_dir_all(path);
    open(path, StoreConfig::default())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Meter {
    /// A growing counter, a flag that is nearly always the same, a slowly falling battery level.
    Realistic,
    /// The load tool's values: a counter uniform in 0..1,000,000, a flag true in 98 of 100, a battery level uniform in
    /// 50..100.
    Uniform,
}

struct Fleet {
    random: Random,
    meter: Meter,
    counters: Vec<i64>,
    position: u64,
}

impl Fleet {
    fn new(meter: Meter, devices: u64) -> Fleet {
        Fleet {
            random: Random(42),
            meter,
            counters: (0..devices as i64).map(|index| index * 1000).collect(),
            position: 0,
        }
    }

    /// Fills `points` with one message per device, with up to 20 ms of jitter.
    fn round(&mut self, round: i64, interval_ms: i64, points: &mut Vec<Point<'static>>) {
        points.clear();
        for index in 0..self.counters.len() {
            let ts_ms = START + round * interval_ms + index as i64 % interval_ms + self.random.below(20) as i64;
            let (counter, leakage, battery) = self.values(index, round);
            let entity = device(index as u64);
            let point = |key, value| Point {
                entity,
                key,
                ts_ms,
                value,
                destination: PointDestination::HistoryAndLatest,
            };
            points.push(point("pulseCounter", ValueRef::Long(counter)));
            points.push(point("leakage", ValueRef::Bool(leakage)));
            points.push(point("batteryLevel", ValueRef::Long(battery)));
        }
    }

    fn values(&mut self, index: usize, round: i64) -> (i64, bool, i64) {
        match self.meter {
            Meter::Realistic => {
                self.counters[index] += self.random.below(8) as i64;
                let battery = 100 - (round + index as i64) / 500 % 100;
                (self.counters[index], self.random.below(1000) == 0, battery)
            }
            Meter::Uniform => (
                self.random.below(1_000_000) as i64,
                self.random.below(100) > 1,
                50 + self.random.below(50) as i64,
            ),
        }
    }

    fn write(&mut self, store: &ColumnStore, points: &[Point<'_>]) {
        for chunk in points.chunks(3000) {
            self.position += 1;
            store.write(chunk, LogPosition(self.position)).unwrap();
        }
    }
}

fn directory_bytes(path: &Path) -> u64 {
    let files = std::fs::read_dir(path.join("timeseries")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

fn merge_all(store: &ColumnStore) {
    while store.maintain(START).unwrap().has_more {}
}

fn meter(path: &Path, meter: Meter) {
    let store = fresh(path);
    let mut fleet = Fleet::new(meter, 1000);
    let mut points = Vec::new();
    let rounds = 4000;
    for round in 0..rounds {
        fleet.round(round, 10_000, &mut points);
        fleet.write(&store, &points);
    }
    store.flush().unwrap();
    let total = (rounds * 3000) as f64;
    let fresh_bytes = directory_bytes(path) as f64 / total;
    // A few more small flushes, so that the fresh segments are merged.
    for round in rounds..rounds + 4 {
        fleet.round(round, 10_000, &mut points);
        fleet.write(&store, &points);
        store.flush().unwrap();
    }
    merge_all(&store);
    let stats = store.stats();
    println!(
        "{meter:?} meter, 1,000 devices x 3 keys x {rounds} messages: {fresh_bytes:.2} bytes/point flushed, {:.2} merged (all files), {} segments",
        directory_bytes(path) as f64 / stats.stored_points as f64,
        stats.segments,
    );
}

/// Measures ingest of 15,000 devices x 3 keys at full speed on one thread.
fn ingest(path: &Path, merges: bool) {
    let store = fresh(path);
    let mut fleet = Fleet::new(Meter::Uniform, 15_000);
    let mut points = Vec::new();
    let mut rounds = Vec::new();
    for round in 0..20 {
        fleet.round(round, 10_000, &mut points);
        rounds.push(points.clone());
    }
    let (started, cpu) = (Instant::now(), cpu_ms());
    let mut total = 0;
    for repeat in 0..20 {
        for points in &mut rounds {
            points
                .iter_mut()
                .for_each(|point| point.ts_ms += if repeat > 0 { 200_000 } else { 0 });
            fleet.write(&store, points);
            total += points.len();
            if merges {
                merge_all(&store);
            }
        }
    }
    store.flush().unwrap();
    let (wall, cpu) = (started.elapsed().as_secs_f64(), (cpu_ms() - cpu) / 1000.0);
    let stats = store.stats();
    println!(
        "ingest, 45,000 series, flushes{}: {total} points in {wall:.1} s, {cpu:.1} s of CPU: {:.2} M points/s, {:.2} M points per CPU second; {} flushes, {} merges, {:.2} bytes/point",
        if merges { " and merges" } else { "" },
        total as f64 / wall / 1e6,
        total as f64 / cpu / 1e6,
        stats.flushes_total,
        stats.compactions_total,
        stats.stored_bytes as f64 / stats.stored_points as f64,
    );
}

/// Measures a query over 30 days of one point per second in 700 buckets.
fn month(path: &Path) {
    let mut random = Random(7);
    {
        let store = fresh(path);
        let mut position = 0;
        for hour in 0..30 * 24 {
            let points: Vec<Point<'_>> = (0..3600)
                .map(|second| Point {
                    entity: device(1),
                    key: "temperature",
                    ts_ms: START + (hour * 3600 + second) * 1000 + random.below(20) as i64,
                    value: ValueRef::Double((200 + random.below(50)) as f64 / 10.0),
                    destination: PointDestination::HistoryAndLatest,
                })
                .collect();
            position += 1;
            store.write(&points, LogPosition(position)).unwrap();
            if hour % 6 == 5 {
                store.flush().unwrap();
                merge_all(&store);
            }
        }
    }
    let query = |aggregation| Query::Aggregate {
        range: START..START + 30 * DAY,
        interval: BucketInterval::Millis(30 * DAY / 700),
        aggregation,
        order: PointOrder::Ascending,
        limit: 1,
    };
    drop_caches(path);
    let store = open(path, StoreConfig::default());
    let started = Instant::now();
    let values = store
        .query(device(1), &["temperature"], &query(Aggregation::Avg))
        .unwrap();
    println!(
        "30 days x 1 Hz in {} buckets: cold {:.1} ms (files out of the page cache), {} blocks read, {} summaries, {} segments",
        values[0].len(),
        started.elapsed().as_secs_f64() * 1e3,
        store.stats().blocks_read_total,
        store.stats().summaries_used_total,
        store.stats().segments,
    );
    let best = |query: &Query, key: &str| {
        let time = |_| {
            let started = Instant::now();
            store.query(device(1), &[key], query).unwrap();
            started.elapsed().as_secs_f64() * 1e3
        };
        let cpu = cpu_ms();
        let mut times: Vec<f64> = (0..101).map(time).collect();
        times.sort_by(f64::total_cmp);
        (times[50], (cpu_ms() - cpu) / 101.0)
    };
    let (median, cpu) = best(&query(Aggregation::Avg), "temperature");
    println!("  warm: median {median:.2} ms, {cpu:.2} ms of CPU");
    let newest = Query::Points {
        range: START..START + 30 * DAY,
        order: PointOrder::Descending,
        limit: 100,
    };
    let (median, _) = best(&newest, "temperature");
    println!("  newest 100 points: median {median:.3} ms");
}

/// Asks the kernel to drop the files from the page cache.
fn drop_caches(path: &Path) {
    let files = std::fs::read_dir(path.join("timeseries")).unwrap();
    let names = files.map(|file| file.unwrap().path());
    for name in names {
        // dd is the only commonly installed program that can do this.
        let argument = format!("of={}", name.display());
        let _ = std::process::Command::new("dd")
            .args([&argument, "oflag=nocache", "conv=notrunc,fdatasync", "count=0"])
            .stderr(std::process::Stdio::null())
            .status();
    }
}

/// Measures the memory of 100,000 devices x 3 keys that sent one message each.
fn idle(path: &Path) {
    let store = fresh(path);
    let before = resident_bytes();
    let mut fleet = Fleet::new(Meter::Uniform, 100_000);
    let mut points = Vec::new();
    fleet.round(0, 10_000, &mut points);
    fleet.write(&store, &points);
    store.flush().unwrap();
    drop(points);
    let stats = store.stats();
    println!(
        "{} idle series: {:.0} bytes each by the store's own count; process grew by {:.0} each",
        stats.series,
        stats.catalog_bytes as f64 / stats.series as f64,
        resident_bytes().saturating_sub(before) as f64 / stats.series as f64,
    );
    let keys = ["pulseCounter", "leakage", "batteryLevel"];
    let started = Instant::now();
    for index in 0..1000 {
        let latest = store.latest(device(index * 97), &keys).unwrap();
        assert!(latest.iter().all(Option::is_some));
    }
    println!(
        "latest of 1,000 devices x 3 keys: {:.2} ms",
        started.elapsed().as_secs_f64() * 1e3
    );
    drop(store);
    let started = Instant::now();
    let store = open(path, StoreConfig::default());
    println!(
        "open with {} series: {:.0} ms",
        store.stats().series,
        started.elapsed().as_secs_f64() * 1e3
    );
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Returns the user and system time of this process, in milliseconds.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks * 10.0
}
