//! Stores the coarse points of `history.rs` on disk, so that charts of hours and days survive a restart. Uses the
//! embedded time series store in the directory `history` of the data directory, with one entity per resolution. Points
//! older than their resolution covers are deleted, so the store needs a few megabytes. A crash loses the points since
//! the last flush, at most five minutes.
//!
//! Reads and writes files: must not run on the runtime's threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use timeseries::{
    ColumnStore, LogPosition, Point, PointDestination, PointOrder, PointValue, Query, RetentionClass, StorageDirectory,
    StoreConfig, StoreError, StoreKind, TelemetryEntityId, TimeseriesStore, ValueRef, WriteError,
};

use crate::history::{CompletePoint, Sample, TIERS};
use crate::sampler;

/// Directory in the data directory.
pub const DIRECTORY_NAME: &str = "history";

/// Prefix of series that are mostly zero. Zeros are not stored.
const SPARSE: &str = "dropped_per_s.";

/// Limit of background tasks per flush.
const WORK_MAX: usize = 16;

pub struct HistoryStore {
    store: ColumnStore,
    names: Vec<String>,
    position: AtomicU64,
}

impl HistoryStore {
    pub fn open(data_dir: &Path) -> Result<HistoryStore, Box<dyn std::error::Error>> {
        let directory = StorageDirectory::open(data_dir, DIRECTORY_NAME)?.counted_as(StoreKind::History);
        let config = StoreConfig {
            head_bytes_max: 4 << 20,
            series_max: 10_000,
            ..StoreConfig::default()
        };
        let store = ColumnStore::open(Arc::new(directory), config)?;
        for (tier, (step_ms, points_max)) in TIERS.into_iter().enumerate() {
            let class = RetentionClass(tier as u8);
            store.set_class(entity(tier), class)?;
            store.set_ttl(class, Some(step_ms * points_max as u64))?;
        }
        Ok(HistoryStore {
            position: AtomicU64::new(store.durable_position().0),
            names: sampler::names().collect(),
            store,
        })
    }

    /// Returns the points of one resolution, oldest first.
    pub fn load(&self, tier: usize, now_unix_ms: u64) -> Result<Vec<Sample>, StoreError> {
        let (step_ms, points_max) = TIERS[tier];
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let query = Query::Points {
            range: now_unix_ms.saturating_sub(step_ms * points_max as u64) as i64..now_unix_ms as i64 + 1,
            order: PointOrder::Ascending,
            limit: points_max,
        };
        let mut samples: BTreeMap<i64, Box<[f32]>> = BTreeMap::new();
        for (index, values) in self.store.query(entity(tier), &names, &query)?.into_iter().enumerate() {
            for point in values {
                let values = samples.entry(point.ts_ms).or_insert_with(|| self.unknown());
                if let PointValue::Double(value) = point.value {
                    values[index] = value as f32;
                }
            }
        }
        let sample = |(ts_ms, values)| Sample {
            at_unix_ms: ts_ms as u64,
            values,
        };
        Ok(samples.into_iter().map(sample).collect())
    }

    /// Default values of the series: 0 for sparse series, otherwise unknown.
    fn unknown(&self) -> Box<[f32]> {
        let value = |name: &String| if name.starts_with(SPARSE) { 0.0 } else { f32::NAN };
        self.names.iter().map(value).collect()
    }

    pub fn write(&self, ended: &[CompletePoint]) -> Result<(), WriteError> {
        let mut points = Vec::new();
        for (tier, sample) in ended {
            for (name, value) in self.names.iter().zip(&sample.values) {
                let is_default = value.is_nan() || (*value == 0.0 && name.starts_with(SPARSE));
                if !is_default {
                    points.push(Point {
                        entity: entity(*tier),
                        key: name,
                        ts_ms: sample.at_unix_ms as i64,
                        value: ValueRef::Double(f64::from(*value)),
                        destination: PointDestination::HistoryAndLatest,
                    });
                }
            }
        }
        let position = LogPosition(self.position.fetch_add(1, Ordering::Relaxed) + 1);
        self.store.write(&points, position).map(drop)
    }

    /// All points are on disk when this returns. Then old points are deleted in the background.
    pub fn flush(&self, now_unix_ms: u64) -> Result<(), StoreError> {
        self.store.flush()?;
        for _ in 0..WORK_MAX {
            if !self.store.maintain(now_unix_ms as i64)?.has_more {
                break;
            }
        }
        Ok(())
    }
}

fn entity(tier: usize) -> TelemetryEntityId {
    TelemetryEntityId((tier as u128).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::history::History;

    const T0: u64 = 1_800_000_000_000;

    fn sample(second: u64) -> Sample {
        let mut values: Vec<f32> = sampler::names().map(|_| 0.0).collect();
        values[0] = second as f32;
        values[15] = f32::NAN;
        Sample {
            at_unix_ms: T0 + second * 1000,
            values: values.into(),
        }
    }

    #[test]
    fn coarse_points_and_means_survive_a_restart() {
        let directory = std::env::temp_dir().join(format!("tidewire-history-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let before = History::default();
        let store = HistoryStore::open(&directory).unwrap();
        for second in 0..5400 {
            store.write(&before.push(sample(second))).unwrap();
        }
        let now = T0 + 5_400_000;
        store.flush(now).unwrap();
        drop(store);
        let store = HistoryStore::open(&directory).unwrap();
        let after = History::default();
        let again = after.restore(|tier| store.load(tier, now).unwrap());
        assert!(again.is_empty(), "all complete points were written");
        let values = |history: &History, window_s: u64, now: u64| -> Vec<(u64, f32)> {
            let window = history.window(window_s * 1000, now);
            assert!(window.points.iter().all(|point| point.values[15].is_nan()));
            let points = window.points.iter();
            points.map(|point| (point.at_unix_ms, point.values[0])).collect()
        };
        for window_s in [3600, 24 * 3600, 7 * 24 * 3600] {
            assert_eq!(
                values(&after, window_s, now),
                values(&before, window_s, now),
                "{window_s}"
            );
        }
        // The mean of the incomplete hour includes the samples before the restart.
        for second in 5400..7300 {
            store.write(&after.push(sample(second))).unwrap();
            before.push(sample(second));
        }
        let month = |history: &History| values(history, 30 * 24 * 3600, now + 1_900_000);
        let (expected, found) = (month(&before), month(&after));
        assert_eq!(expected.len(), found.len());
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.0, found.0);
            assert!((expected.1 - found.1).abs() < 30.0, "{expected:?} {found:?}");
        }
        drop(store);
        fs::remove_dir_all(&directory).unwrap();
    }
}
