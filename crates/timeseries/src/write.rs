//! Writes points to the heads.

use std::sync::atomic::Ordering;

use crate::column_store::{ColumnStore, lock};
use crate::config::StoreConfig;
use crate::error::WriteError;
use crate::index::SeriesIndex;
use crate::manifest::Tombstone;
use crate::state::StoreState;
use crate::store::{RejectReason, RejectedPoints, Series, TEXT_BYTES_MAX, WriteOutcome};
use crate::value::{LogPosition, Point, PointDestination, RetentionClass, TelemetryEntityId, ValueRef};

/// Maximum number of entities that one call reports as rejected.
const REJECTED_ENTITIES_MAX: usize = 100;

impl ColumnStore {
    pub(crate) fn write_points(&self, points: &[Point<'_>], position: LogPosition) -> Result<WriteOutcome, WriteError> {
        loop {
            let mut state = self.change();
            if position <= state.last_position {
                return Ok(WriteOutcome {
                    is_replay: true,
                    ..WriteOutcome::default()
                });
            }
            if state.active.bytes() < self.config.head_bytes_max / 2 {
                return Ok(self.apply(&mut state, points, position));
            }
            let head_bytes = state.active.bytes();
            drop(state);
            let flushed = self.flush_frozen_or_active();
            self.record_result(flushed)
                .map_err(|source| WriteError::Busy { head_bytes, source })?;
            // A failed merge is reported in the statistics and does not prevent the write.
            let merged = self.merge_backlog();
            let _ = self.record_result(merged);
        }
    }

    fn apply(&self, state: &mut StoreState, points: &[Point<'_>], position: LogPosition) -> WriteOutcome {
        let mut written = WriteOutcome::default();
        let deletes = state.deletes_after(position);
        let mut last = None;
        for point in points {
            let series = match state.find_or_add(point, last, &self.config) {
                Ok(series) => series,
                Err(reason) => {
                    written.reject(point, reason);
                    continue;
                }
            };
            last = Some((point.entity, series));
            written.points += 1;
            if deletes.is_empty() {
                state.put(series, point, point.destination);
            } else {
                state.put_replayed(series, point, &deletes);
            }
        }
        state.last_position = position;
        self.counters
            .written_points
            .fetch_add(written.points, Ordering::Relaxed);
        self.counters
            .rejected_points
            .fetch_add(written.rejected_points, Ordering::Relaxed);
        written
    }

    /// Frees head memory: writes the frozen heads to disk, or else the active ones.
    pub(crate) fn flush_frozen_or_active(&self) -> Result<(), crate::StoreError> {
        let _flushing = lock(&self.flushing);
        let frozen = {
            let mut state = self.change();
            match state.frozen.clone() {
                Some(frozen) => frozen,
                // Another thread has flushed already.
                None if state.active.bytes() < self.config.head_bytes_max / 4 => return Ok(()),
                None => state.freeze(),
            }
        };
        self.write_frozen(&frozen)
    }
}

impl WriteOutcome {
    fn reject(&mut self, point: &Point<'_>, reason: RejectReason) {
        self.rejected_points += 1;
        if let Some(last) = self.rejected.last_mut()
            && last.entity == point.entity
        {
            last.points += 1;
        } else if self.rejected.len() < REJECTED_ENTITIES_MAX {
            self.rejected.push(RejectedPoints {
                entity: point.entity,
                key: point.key.into(),
                reason,
                points: 1,
            });
        }
    }
}

impl StoreState {
    #[inline]
    fn put(&mut self, series: SeriesIndex, point: &Point<'_>, destination: PointDestination) {
        let Point { ts_ms, value, .. } = *point;
        if destination != PointDestination::HistoryOnly {
            self.catalog.offer_latest(series, ts_ms, value);
        }
        if destination == PointDestination::LatestOnly {
            return self.mark_changed(series);
        }
        let slot = &mut self.catalog.series[series.index()].slot;
        self.active.push(series, slot, ts_ms, value);
    }

    /// Applies a replayed point. A point that was deleted after it was first written must not reappear.
    fn put_replayed(&mut self, series: SeriesIndex, point: &Point<'_>, deletes: &[Tombstone]) {
        let hit = |delete: &&Tombstone| delete.series == series && delete.overlaps(point.ts_ms, point.ts_ms);
        match deletes.iter().filter(hit).map(|delete| delete.has_latest).max() {
            None => self.put(series, point, point.destination),
            Some(false) if point.destination != PointDestination::HistoryOnly => {
                self.put(series, point, PointDestination::LatestOnly)
            }
            Some(_) => {}
        }
    }

    /// Returns the deletions made after this position. Empty unless the position is replayed.
    fn deletes_after(&self, position: LogPosition) -> Vec<Tombstone> {
        if position.0 > self.delete_position {
            return Vec::new();
        }
        let later = self
            .tombstones
            .iter()
            .filter(|tombstone| tombstone.position >= position.0);
        later.copied().collect()
    }

    /// Finds or creates the series of a point. `last` holds the entity and series of the previous point.
    #[inline]
    fn find_or_add(
        &mut self,
        point: &Point<'_>,
        last: Option<(TelemetryEntityId, SeriesIndex)>,
        config: &StoreConfig,
    ) -> Result<SeriesIndex, RejectReason> {
        let is_long = match point.value {
            ValueRef::String(text) | ValueRef::Json(text) => text.len() > TEXT_BYTES_MAX,
            _ => false,
        };
        if is_long {
            return Err(RejectReason::TextTooLong);
        }
        let catalog = &mut self.catalog;
        let entity = match last {
            Some((entity, series)) if entity == point.entity => {
                if let Some(next) = catalog.follows(series, point.key) {
                    return Ok(next);
                }
                Some(catalog.series[series.index()].entity)
            }
            _ => catalog.entity(point.entity),
        };
        if let Some(entity) = entity
            && let Some(series) = catalog.first_or_series_of(entity, point.key)
        {
            return Ok(series);
        }
        catalog.check_capacity(entity, config)?;
        let entity = entity.unwrap_or_else(|| catalog.add_entity(point.entity, 0));
        let key = catalog.key(point.key).unwrap_or_else(|| catalog.add_key(point.key));
        Ok(catalog.add_series(entity, key))
    }

    pub(crate) fn set_class(&mut self, id: TelemetryEntityId, class: RetentionClass) {
        let Some(entity) = self.catalog.entity(id) else {
            let entity = self.catalog.add_entity(id, class.0);
            return self.reclassified.push(entity);
        };
        let entry = &mut self.catalog.entities[entity.index()];
        if entry.class != class.0 {
            entry.class = class.0;
            self.reclassified.push(entity);
            self.classes_version += u64::from(entity.index() < self.saved.entities);
        }
    }

    /// Sets the class override of a series, and creates the series if needed. Does nothing at the series limit, because
    /// the points of such a series are rejected as well.
    pub(crate) fn set_series_class(&mut self, name: Series<'_>, class: Option<RetentionClass>, config: &StoreConfig) {
        let known = self.catalog.find(name.entity, name.key);
        let check_capacity = || self.catalog.check_capacity(self.catalog.entity(name.entity), config);
        let series = match (known, class) {
            (Some(series), _) => series,
            (None, None) => return,
            (None, Some(_)) if check_capacity().is_err() => return,
            (None, Some(_)) => {
                let catalog = &mut self.catalog;
                let entity = catalog.entity(name.entity);
                let entity = entity.unwrap_or_else(|| catalog.add_entity(name.entity, 0));
                let key = catalog.key(name.key).unwrap_or_else(|| catalog.add_key(name.key));
                catalog.add_series(entity, key)
            }
        };
        let class = class.map(|class| class.0);
        if self.catalog.own_class(series) == class {
            return;
        }
        self.catalog.set_own_class(series, class);
        self.reclassified_series.push(series);
        self.classes_version += u64::from(series.index() < self.saved.series);
    }
}
