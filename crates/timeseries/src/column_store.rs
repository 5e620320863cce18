//! The embedded store. It has no thread, clock or log of its own. The caller replays its log after a crash, and calls
//! [`TimeseriesStore::maintain`] on a thread of its own.
//!
//! # Locks, in the order in which they are taken
//!
//! - `flushing`: one flush or deletion at a time, so that sequence numbers follow the order of writes.
//! - `compacting`: one merge of files at a time.
//! - `files`: file numbers, series log, manifest. Held while the manifest is replaced.
//! - `state`: all data in memory. Held briefly, never during disk access.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use storage::Storage;

use crate::catalog::SeriesCatalog;
use crate::config::StoreConfig;
use crate::error::{StoreError, WriteError};
use crate::file_name::FileName;
use crate::files::StoreFiles;
use crate::head::Heads;
use crate::manifest::{self, Manifest};
use crate::merge::ReadCounters;
use crate::read::AnswerBudget;
use crate::segment::{self, StoreSegment};
use crate::series_log;
use crate::state::StoreState;
use crate::store::{
    Delete, MaintenanceResult, PointOrder, PointVisitor, Query, Series, StoreStats, TimeseriesStore, WriteOutcome,
};
use crate::value::{LogPosition, Point, RetentionClass, TelemetryEntityId, TimedValue};

pub struct ColumnStore {
    pub(crate) disk: Arc<dyn Storage>,
    pub(crate) config: StoreConfig,
    pub(crate) flushing: Mutex<()>,
    pub(crate) compacting: Mutex<()>,
    pub(crate) files: Mutex<StoreFiles>,
    state: RwLock<StoreState>,
    pub(crate) counters: ColumnStoreCounters,
}

#[derive(Default)]
pub(crate) struct ColumnStoreCounters {
    pub read: ReadCounters,
    pub written_points: AtomicU64,
    pub rejected_points: AtomicU64,
    pub flushes: AtomicU64,
    pub flush_errors: AtomicU64,
    pub compactions: AtomicU64,
    pub last_error: Mutex<Option<String>>,
}

impl ColumnStore {
    /// Opens the store in `disk`, or creates one. The caller must replay its log from
    /// [`TimeseriesStore::durable_position`] before reading.
    pub fn open(disk: Arc<dyn Storage>, config: StoreConfig) -> Result<ColumnStore, StoreError> {
        let manifest = match Manifest::read(&*disk)? {
            Some(manifest) => manifest,
            None => create_manifest(&disk)?,
        };
        remove_leftovers(&*disk, &manifest)?;
        let mut catalog = SeriesCatalog::new(config.hash_seed);
        let (number, bytes) = manifest.series_log;
        if bytes > 0 {
            series_log::read(&*disk, number, bytes, &mut catalog)?;
        }
        let segments: Result<Vec<_>, StoreError> = manifest
            .segments
            .iter()
            .map(|&record| StoreSegment::open(&disk, record).map(Arc::new))
            .collect();
        let position = LogPosition(manifest.durable_position);
        let files = StoreFiles::new(&manifest, &catalog);
        let state = StoreState {
            catalog,
            active: Heads::default(),
            frozen: None,
            segments: Arc::new(segments?),
            delete_position: manifest
                .tombstones
                .iter()
                .map(|tombstone| tombstone.position)
                .max()
                .unwrap_or(0),
            tombstones: Arc::new(manifest.tombstones),
            ttl_ms: manifest.ttl_ms.into_iter().collect::<BTreeMap<_, _>>(),
            now_ms: None,
            last_position: position,
            durable_position: position,
            changed: BTreeMap::new(),
            changes: 0,
            reclassified: Vec::new(),
            reclassified_series: Vec::new(),
            saved: files.saved(),
            classes_version: 1,
            checked_classes_version: 0,
            next_class_check_ms: i64::MIN,
        };
        Ok(ColumnStore {
            disk,
            config,
            flushing: Mutex::new(()),
            compacting: Mutex::new(()),
            files: Mutex::new(files),
            state: RwLock::new(state),
            counters: ColumnStoreCounters::default(),
        })
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, StoreState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change(&self) -> RwLockWriteGuard<'_, StoreState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of a flush or merge for the statistics, and returns it.
    pub(crate) fn record_result<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        *lock(&self.counters.last_error) = result.as_ref().err().map(|error| {
            let source = std::error::Error::source(error).map_or(String::new(), |source| format!(": {source}"));
            format!("{error}{source}")
        });
        result
    }

    fn collect_stats(&self) -> StoreStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let state = self.read();
        let frozen = state.frozen.as_ref();
        StoreStats {
            entities: state.catalog.entities.len() as u64,
            series: state.catalog.series.len() as u64,
            keys: state.catalog.keys.len() as u64,
            stored_points: state.segments.iter().map(|segment| segment.extent.points).sum(),
            stored_bytes: state.segments.iter().map(|segment| segment.extent.bytes).sum(),
            segments: state.segments.len() as u64,
            tombstones: state.tombstones.len() as u64,
            head_points: state.active.points + frozen.map_or(0, |frozen| frozen.heads.points),
            head_bytes: (state.active.bytes() + frozen.map_or(0, |frozen| frozen.heads.bytes())) as u64,
            head_bytes_max: self.config.head_bytes_max as u64,
            catalog_bytes: (state.catalog.bytes()
                + state.segments.iter().map(|segment| segment.root_bytes()).sum::<usize>())
                as u64,
            written_points_total: load(&counters.written_points),
            rejected_points_total: load(&counters.rejected_points),
            flushes_total: load(&counters.flushes),
            flush_errors_total: load(&counters.flush_errors),
            compactions_total: load(&counters.compactions),
            blocks_read_total: load(&counters.read.blocks_read),
            summaries_used_total: load(&counters.read.summaries_used),
            last_error: lock(&counters.last_error).clone(),
        }
    }
}

/// Locks a mutex, and ignores poisoning: each change under these locks is a single step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the first manifest. Fails if the directory already has data files: then the manifest was lost.
fn create_manifest(disk: &Arc<dyn Storage>) -> Result<Manifest, StoreError> {
    let name = FileName::of(&**disk, manifest::NAME);
    let names = disk.names().map_err(name.io("list the directory of"))?;
    if names
        .iter()
        .any(|name| segment::is_file_name(name) || series_log::is_file_name(name))
    {
        return Err(name.corrupt(0, "a manifest next to the data files"));
    }
    let manifest = Manifest {
        next_seq: 1,
        next_file: 1,
        ..Manifest::default()
    };
    manifest
        .replace(disk)
        .map_err(manifest::ManifestReplaceError::into_inner)?;
    Ok(manifest)
}

/// Removes files of unfinished flushes and merges, and files that were replaced.
fn remove_leftovers(disk: &dyn Storage, manifest: &Manifest) -> Result<(), StoreError> {
    let directory = FileName::of(disk, "");
    let mut in_use: HashSet<String> = HashSet::new();
    in_use.extend(manifest.segments.iter().map(|record| segment::file_name(record.number)));
    in_use.insert(series_log::file_name(manifest.series_log.0));
    for name in disk.names().map_err(directory.io("list the directory"))? {
        let is_ours = segment::is_file_name(&name) || series_log::is_file_name(&name) || name == manifest::NEW_NAME;
        if is_ours && !in_use.contains(&name) {
            disk.remove(&name).map_err(FileName::of(disk, &name).io("remove"))?;
        }
    }
    Ok(())
}

impl TimeseriesStore for ColumnStore {
    fn write(&self, points: &[Point<'_>], position: LogPosition) -> Result<WriteOutcome, WriteError> {
        self.write_points(points, position)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.flush_all()
    }

    fn durable_position(&self) -> LogPosition {
        self.read().durable_position
    }

    fn latest(&self, entity: TelemetryEntityId, keys: &[&str]) -> Result<Vec<Option<TimedValue>>, StoreError> {
        Ok(self.latest_values(entity, keys))
    }

    fn keys(&self, entity: TelemetryEntityId) -> Result<Vec<Box<str>>, StoreError> {
        Ok(self.keys_of(entity))
    }

    fn scan(
        &self,
        series: Series<'_>,
        range: Range<i64>,
        order: PointOrder,
        visit: &mut PointVisitor<'_>,
    ) -> Result<(), StoreError> {
        self.scan_series(series, range, order, visit)
    }

    fn query(
        &self,
        entity: TelemetryEntityId,
        keys: &[&str],
        query: &Query,
    ) -> Result<Vec<Vec<TimedValue>>, StoreError> {
        let mut budget = AnswerBudget::default();
        keys.iter()
            .map(|key| self.query_series(Series { entity, key }, query, &mut budget))
            .collect()
    }

    fn delete(&self, delete: &Delete<'_>) -> Result<(), StoreError> {
        self.delete_points(delete)
    }

    fn set_class(&self, entity: TelemetryEntityId, class: RetentionClass) -> Result<(), StoreError> {
        self.change().set_class(entity, class);
        Ok(())
    }

    fn set_series_classes(&self, classes: &[(Series<'_>, Option<RetentionClass>)]) -> Result<(), StoreError> {
        let mut state = self.change();
        for (series, class) in classes {
            state.set_series_class(*series, *class, &self.config);
        }
        Ok(())
    }

    fn has_series_classes(&self) -> bool {
        self.read().catalog.series_with_own_class().next().is_some()
    }

    fn set_ttl(&self, class: RetentionClass, ttl_ms: Option<u64>) -> Result<(), StoreError> {
        self.change_ttl(class, ttl_ms)
    }

    fn ttls(&self) -> Vec<(RetentionClass, u64)> {
        let state = self.read();
        state
            .ttl_ms
            .iter()
            .map(|(class, ttl_ms)| (RetentionClass(*class), *ttl_ms))
            .collect()
    }

    fn used_classes(&self) -> Vec<RetentionClass> {
        self.read()
            .catalog
            .used_classes()
            .into_iter()
            .map(RetentionClass)
            .collect()
    }

    fn entities(&self, from: usize, limit: usize) -> Vec<(TelemetryEntityId, RetentionClass)> {
        let state = self.read();
        let entities = state.catalog.entities.iter().skip(from).take(limit);
        entities
            .map(|entity| (entity.id, RetentionClass(entity.class)))
            .collect()
    }

    fn maintain(&self, now_ms: i64) -> Result<MaintenanceResult, StoreError> {
        let result = self.maintain_once(now_ms);
        self.record_result(result)
    }

    fn stats(&self) -> StoreStats {
        self.collect_stats()
    }
}
