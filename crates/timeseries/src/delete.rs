//! Deletion of points. Points in heads are removed immediately. For points in segments, a tombstone is written that
//! hides them until a merge drops them.

use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::files::{ManifestChange, StoreFiles};
use crate::index::SeriesIndex;
use crate::manifest::Tombstone;
use crate::state::StoreState;
use crate::store::{Delete, LatestAfterDelete, PointOrder, Series};
use crate::value::{TelemetryEntityId, TimedValue, ValueRef};

/// Maximum number of tombstones. Further deletions are rejected until merges have removed some.
pub(crate) const TOMBSTONES_MAX: usize = 65_536;

impl ColumnStore {
    pub(crate) fn delete_points(&self, delete: &Delete<'_>) -> Result<(), StoreError> {
        if delete.range.start >= delete.range.end {
            return Ok(());
        }
        let _flushing = lock(&self.flushing);
        // Frozen heads are immutable, so they are flushed first.
        let frozen = self.read().frozen.clone();
        if let Some(frozen) = frozen {
            self.write_frozen(&frozen)?;
        }
        let mut files = lock(&self.files);
        files.check()?;
        let series = self.read().series_to_delete(delete);
        if series.is_empty() {
            return Ok(());
        }
        if self.read().tombstones.len() + series.len() > TOMBSTONES_MAX {
            return Err(StoreError::TooManyDeletes { max: TOMBSTONES_MAX });
        }
        let tombstones = self.add_tombstones(&mut files, delete, &series);
        self.replace_latest(delete, &series)?;
        let mut change = ManifestChange::of(&self.read());
        change.tombstones = tombstones;
        change.latest_of = Some(Vec::new());
        self.commit(&mut files, change)
    }

    /// Hides the points from readers. The tombstones become durable with the commit.
    fn add_tombstones(&self, files: &mut StoreFiles, delete: &Delete<'_>, series: &[SeriesIndex]) -> Vec<Tombstone> {
        let seq = files.allocate_seq();
        let mut state = self.change();
        let position = state.last_position.0;
        let mut tombstones = state.tombstones.to_vec();
        for &series in series {
            let tombstone = Tombstone {
                series,
                start: delete.range.start,
                end: delete.range.end - 1,
                seq,
                position,
                has_latest: delete.latest != LatestAfterDelete::Keep,
            };
            tombstones.push(tombstone);
            let slot = state.catalog.series[series.index()].slot;
            state.active.delete(slot, |ts_ms| tombstone.overlaps(ts_ms, ts_ms));
        }
        state.tombstones = tombstones.clone().into();
        state.delete_position = position;
        tombstones
    }

    fn replace_latest(&self, delete: &Delete<'_>, series: &[SeriesIndex]) -> Result<(), StoreError> {
        for &series in series {
            let (ts_ms, key) = {
                let state = self.read();
                let latest = state.catalog.latest(series).map(|(ts_ms, _)| ts_ms);
                (latest, Box::<str>::from(state.catalog.key_of(series)))
            };
            let is_hit = ts_ms.is_some_and(|ts_ms| delete.range.contains(&ts_ms));
            if !is_hit || delete.latest == LatestAfterDelete::Keep {
                continue;
            }
            let newest = match delete.latest {
                LatestAfterDelete::Rewrite => self.newest_point(delete.entity, &key)?,
                LatestAfterDelete::Keep | LatestAfterDelete::Remove => None,
            };
            let mut state = self.change();
            // A point written since then is newer than the deletion.
            if state.catalog.latest(series).map(|(ts_ms, _)| ts_ms) == ts_ms {
                state.catalog.set_latest(series, newest);
                state.mark_changed(series);
            }
        }
        Ok(())
    }

    fn newest_point(&self, entity: TelemetryEntityId, key: &str) -> Result<Option<TimedValue>, StoreError> {
        let mut newest = None;
        let everything = i64::MIN..i64::MAX;
        self.scan_series(
            Series { entity, key },
            everything,
            PointOrder::Descending,
            &mut |ts_ms, value: ValueRef<'_>| {
                let value = value.to_owned();
                newest = Some(TimedValue { ts_ms, value });
                std::ops::ControlFlow::Break(())
            },
        )?;
        Ok(newest)
    }
}

impl StoreState {
    fn series_to_delete(&self, delete: &Delete<'_>) -> Vec<SeriesIndex> {
        let catalog = &self.catalog;
        let Some(entity) = catalog.entity(delete.entity) else {
            return Vec::new();
        };
        match delete.keys {
            None => catalog.series_of_entity(entity).collect(),
            Some(keys) => keys.iter().filter_map(|key| catalog.series_of(entity, key)).collect(),
        }
    }
}
