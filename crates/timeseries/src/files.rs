//! File numbers, the series log and the manifest: state on disk that only one thread changes at a time.

use std::sync::Arc;

use crate::catalog::SeriesCatalog;
use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::file_name::{FileName, write_all};
use crate::index::SeriesIndex;
use crate::manifest::{Manifest, ManifestReplaceError, SegmentRecord, Tombstone};
use crate::segment::StoreSegment;
use crate::series_log::{self, SavedPart};
use crate::state::StoreState;
use crate::value::{LogPosition, RetentionClass};

/// A series log is rewritten when it has grown to this multiple of its initial size.
const LOG_GROWTH: u64 = 4;
const LOG_BYTES_MIN: u64 = 1 << 20;

pub(crate) struct StoreFiles {
    pub next_seq: u64,
    next_file: u64,
    /// File number and valid length. Length 0 means that there is no file yet.
    series_log: (u64, u64),
    series_log_began: u64,
    /// A write or sync failed: bytes after the valid length are unknown, and the next batch starts a new file.
    must_start_new_log: bool,
    saved: SavedPart,
    /// Error after which no more changes are allowed.
    failed: Option<String>,
}

/// The next contents of the manifest.
pub(crate) struct ManifestChange {
    pub segments: Vec<Arc<StoreSegment>>,
    pub tombstones: Vec<Tombstone>,
    pub position: LogPosition,
    /// Series whose latest values are saved, together with all new catalog entries. `None` saves nothing of the
    /// catalog.
    pub latest_of: Option<Vec<SeriesIndex>>,
}

impl ManifestChange {
    /// Returns a change that modifies nothing.
    pub fn of(state: &StoreState) -> ManifestChange {
        ManifestChange {
            segments: state.segments.to_vec(),
            tombstones: state.tombstones.to_vec(),
            position: state.durable_position,
            latest_of: None,
        }
    }
}

impl ManifestReplaceError {
    pub fn into_inner(self) -> StoreError {
        match self {
            ManifestReplaceError::Before(error) | ManifestReplaceError::Unknown(error) => error,
        }
    }
}

impl StoreFiles {
    pub fn new(manifest: &Manifest, catalog: &SeriesCatalog) -> StoreFiles {
        StoreFiles {
            next_seq: manifest.next_seq,
            next_file: manifest.next_file,
            series_log: manifest.series_log,
            series_log_began: manifest.series_log.1,
            must_start_new_log: false,
            saved: SavedPart::all(catalog),
            failed: None,
        }
    }

    pub fn saved(&self) -> SavedPart {
        self.saved
    }

    pub fn allocate_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    pub fn allocate_file(&mut self) -> u64 {
        self.next_file += 1;
        self.next_file - 1
    }

    pub fn check(&self) -> Result<(), StoreError> {
        match &self.failed {
            Some(since) => Err(StoreError::Failed { since: since.clone() }),
            None => Ok(()),
        }
    }
}

impl ColumnStore {
    /// Makes the change durable, then visible. After an error nothing has changed, or the store has failed permanently.
    pub(crate) fn commit(&self, files: &mut StoreFiles, change: ManifestChange) -> Result<(), StoreError> {
        files.check()?;
        let log_before = files.series_log;
        let saved = match &change.latest_of {
            Some(latest_of) => Some(self.save_catalog(files, latest_of)?),
            None => None,
        };
        if let Err(error) = self.replace_manifest(files, &change) {
            if files.check().is_ok() && saved.is_some() {
                self.discard_log(files, log_before);
            }
            return Err(error);
        }
        self.install(files, change, saved);
        if log_before.0 != files.series_log.0 && log_before.1 > 0 {
            // If removal fails, the next open removes the file.
            let _ = self.disk.remove(&series_log::file_name(log_before.0));
        }
        Ok(())
    }

    fn replace_manifest(&self, files: &mut StoreFiles, change: &ManifestChange) -> Result<(), StoreError> {
        let record = |segment: &Arc<StoreSegment>| -> SegmentRecord { segment.record };
        let manifest = Manifest {
            durable_position: change.position.0,
            next_seq: files.next_seq,
            next_file: files.next_file,
            series_log: files.series_log,
            ttl_ms: self
                .read()
                .ttl_ms
                .iter()
                .map(|(&class, &ttl_ms)| (class, ttl_ms))
                .collect(),
            segments: change.segments.iter().map(record).collect(),
            tombstones: change.tombstones.clone(),
        };
        manifest.replace(&self.disk).map_err(|error| match error {
            ManifestReplaceError::Before(error) => error,
            ManifestReplaceError::Unknown(error) => {
                files.failed = Some(match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                });
                error
            }
        })
    }

    fn install(&self, files: &mut StoreFiles, change: ManifestChange, saved: Option<SavedCatalog>) {
        let mut state = self.change();
        state.segments = Arc::new(change.segments);
        state.tombstones = Arc::new(change.tombstones);
        state.durable_position = change.position;
        if let Some(saved) = saved {
            files.saved = saved.upto;
            // Changes made during the commit are saved by the next one.
            state.changed.retain(|_, change| *change > saved.changes);
            state.reclassified.drain(..saved.reclassified);
            state.reclassified_series.drain(..saved.reclassified_series);
            state.saved = saved.upto;
        }
    }

    fn save_catalog(&self, files: &mut StoreFiles, latest_of: &[SeriesIndex]) -> Result<SavedCatalog, StoreError> {
        let (number, bytes) = files.series_log;
        let is_long = bytes > LOG_BYTES_MIN && bytes > files.series_log_began * LOG_GROWTH;
        let is_new = bytes == 0 || files.must_start_new_log || is_long;
        let (batch, saved) = {
            let state = self.read();
            let mut changed = latest_of.to_vec();
            changed.extend(state.changed.keys());
            changed.sort_unstable();
            changed.dedup();
            let batch = if is_new {
                series_log::snapshot(&state.catalog)
            } else {
                let changed = series_log::SeriesChanges {
                    latest: &changed,
                    entities: &state.reclassified,
                    series: &state.reclassified_series,
                };
                series_log::batch(&state.catalog, files.saved, &changed)
            };
            let saved = SavedCatalog {
                upto: SavedPart::all(&state.catalog),
                changes: state.changes,
                reclassified: state.reclassified.len(),
                reclassified_series: state.reclassified_series.len(),
            };
            (batch, saved)
        };
        let (number, offset) = if is_new {
            (files.allocate_file(), 0)
        } else {
            (number, bytes)
        };
        let log_before = files.series_log;
        files.series_log = (number, offset + batch.len() as u64);
        if let Err(error) = self.append_log(number, offset, &batch) {
            self.discard_log(files, log_before);
            return Err(error);
        }
        if is_new {
            files.series_log_began = batch.len() as u64;
            files.must_start_new_log = false;
        }
        Ok(saved)
    }

    /// Reverts to the log as it was before a failed append. The next batch goes to a new file.
    fn discard_log(&self, files: &mut StoreFiles, before: (u64, u64)) {
        if files.series_log.0 != before.0 {
            // If removal fails, the next open removes the file.
            let _ = self.disk.remove(&series_log::file_name(files.series_log.0));
        }
        files.series_log = before;
        files.must_start_new_log = true;
    }

    fn append_log(&self, number: u64, offset: u64, batch: &[u8]) -> Result<(), StoreError> {
        let name = FileName::of(&*self.disk, &series_log::file_name(number));
        let file = if offset == 0 {
            self.disk.create(&name.name, 0).map_err(name.io("create"))?
        } else {
            self.disk.open(&name.name).map_err(name.io("open"))?
        };
        write_all(&*file, &name, offset, batch)?;
        file.sync().map_err(name.io("sync"))
    }

    pub(crate) fn change_ttl(&self, class: RetentionClass, ttl_ms: Option<u64>) -> Result<(), StoreError> {
        let mut files = lock(&self.files);
        let before = self.put_ttl(class, ttl_ms);
        let change = ManifestChange::of(&self.read());
        let result = self.commit(&mut files, change);
        if result.is_err() {
            self.put_ttl(class, before);
        }
        result
    }

    /// Sets the TTL in memory and returns the previous one.
    fn put_ttl(&self, class: RetentionClass, ttl_ms: Option<u64>) -> Option<u64> {
        let ttl = &mut self.change().ttl_ms;
        match ttl_ms {
            Some(ttl_ms) => ttl.insert(class.0, ttl_ms),
            None => ttl.remove(&class.0),
        }
    }
}

/// The part of the catalog that a batch of the log contains.
struct SavedCatalog {
    upto: SavedPart,
    changes: u64,
    reclassified: usize,
    reclassified_series: usize,
}
