//! Numbers, the series log and the manifest: what only one at a time may change on disk.

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::file_name::{FileName, write_all};
use crate::manifest::{Manifest, ReplaceError, SegmentRecord, Tombstone};
use crate::segment::Segment;
use crate::series_log::{self, Saved};
use crate::state::State;
use crate::value::{Class, Position};

/// A series log is written anew when it is so many times what it was when it began.
const LOG_GROWTH: u64 = 4;
const LOG_BYTES_MIN: u64 = 1 << 20;

pub(crate) struct Files {
    pub next_seq: u64,
    next_file: u64,
    /// Number and bytes that count; no bytes: there is none yet.
    series_log: (u64, u64),
    series_log_began: u64,
    /// A write or sync failed: what is behind the bytes that count is not to be built on.
    is_log_tainted: bool,
    saved: Saved,
    /// Why nothing may be changed any more.
    failed: Option<String>,
}

/// What the manifest is to say next, where it differs from now.
pub(crate) struct Change {
    pub segments: Vec<Arc<Segment>>,
    pub tombstones: Vec<Tombstone>,
    pub position: Position,
    /// Series whose latest values are to be durable, with all that is new in the catalog.
    pub latest_of: Option<Vec<u32>>,
}

impl Change {
    /// Nothing.
    pub fn of(state: &State) -> Change {
        Change {
            segments: state.segments.to_vec(),
            tombstones: state.tombstones.to_vec(),
            position: state.durable_position,
            latest_of: None,
        }
    }
}

impl ReplaceError {
    pub fn into_inner(self) -> StoreError {
        match self {
            ReplaceError::Before(error) | ReplaceError::Unknown(error) => error,
        }
    }
}

impl Files {
    pub fn new(manifest: &Manifest, catalog: &Catalog) -> Files {
        Files {
            next_seq: manifest.next_seq,
            next_file: manifest.next_file,
            series_log: manifest.series_log,
            series_log_began: manifest.series_log.1,
            is_log_tainted: false,
            saved: Saved::all(catalog),
            failed: None,
        }
    }

    pub fn saved(&self) -> Saved {
        self.saved
    }

    pub fn take_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    pub fn take_file(&mut self) -> u64 {
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
    /// Makes the change durable, then visible. After an error nothing has changed, or the store has failed for good.
    pub(crate) fn commit(&self, files: &mut Files, change: Change) -> Result<(), StoreError> {
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
            // What stays is removed when the store is opened the next time.
            let _ = self.disk.remove(&series_log::file_name(log_before.0));
        }
        Ok(())
    }

    fn replace_manifest(&self, files: &mut Files, change: &Change) -> Result<(), StoreError> {
        let record = |segment: &Arc<Segment>| -> SegmentRecord { segment.record };
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
            ReplaceError::Before(error) => error,
            ReplaceError::Unknown(error) => {
                files.failed = Some(match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                });
                error
            }
        })
    }

    fn install(&self, files: &mut Files, change: Change, saved: Option<SavedCatalog>) {
        let mut state = self.change();
        state.segments = Arc::new(change.segments);
        state.tombstones = Arc::new(change.tombstones);
        state.durable_position = change.position;
        if let Some(saved) = saved {
            files.saved = saved.upto;
            // What has changed since is saved the next time.
            state.changed.retain(|_, change| *change > saved.changes);
            state.reclassified.drain(..saved.reclassified);
            state.reclassified_series.drain(..saved.reclassified_series);
            state.saved = saved.upto;
        }
    }

    fn save_catalog(&self, files: &mut Files, latest_of: &[u32]) -> Result<SavedCatalog, StoreError> {
        let (number, bytes) = files.series_log;
        let is_long = bytes > LOG_BYTES_MIN && bytes > files.series_log_began * LOG_GROWTH;
        let is_new = bytes == 0 || files.is_log_tainted || is_long;
        let (batch, saved) = {
            let state = self.read();
            let mut changed = latest_of.to_vec();
            changed.extend(state.changed.keys());
            changed.sort_unstable();
            changed.dedup();
            let batch = if is_new {
                series_log::snapshot(&state.catalog)
            } else {
                let changed = series_log::Changed {
                    latest: &changed,
                    entities: &state.reclassified,
                    series: &state.reclassified_series,
                };
                series_log::batch(&state.catalog, files.saved, &changed)
            };
            let saved = SavedCatalog {
                upto: Saved::all(&state.catalog),
                changes: state.changes,
                reclassified: state.reclassified.len(),
                reclassified_series: state.reclassified_series.len(),
            };
            (batch, saved)
        };
        let (number, offset) = if is_new {
            (files.take_file(), 0)
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
            files.is_log_tainted = false;
        }
        Ok(saved)
    }

    /// What was appended does not count; the next batch goes to a new file.
    fn discard_log(&self, files: &mut Files, before: (u64, u64)) {
        if files.series_log.0 != before.0 {
            // What stays is removed when the store is opened the next time.
            let _ = self.disk.remove(&series_log::file_name(files.series_log.0));
        }
        files.series_log = before;
        files.is_log_tainted = true;
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

    pub(crate) fn change_ttl(&self, class: Class, ttl_ms: Option<u64>) -> Result<(), StoreError> {
        let mut files = lock(&self.files);
        let before = self.put_ttl(class, ttl_ms);
        let change = Change::of(&self.read());
        let result = self.commit(&mut files, change);
        if result.is_err() {
            self.put_ttl(class, before);
        }
        result
    }

    /// What it was before.
    fn put_ttl(&self, class: Class, ttl_ms: Option<u64>) -> Option<u64> {
        let ttl = &mut self.change().ttl_ms;
        match ttl_ms {
            Some(ttl_ms) => ttl.insert(class.0, ttl_ms),
            None => ttl.remove(&class.0),
        }
    }
}

/// How much of the catalog a batch of the log has.
struct SavedCatalog {
    upto: Saved,
    changes: u64,
    reclassified: usize,
    reclassified_series: usize,
}
