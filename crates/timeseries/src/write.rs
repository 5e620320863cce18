//! Points into the heads.

use std::sync::atomic::Ordering;

use crate::column_store::{ColumnStore, lock};
use crate::config::Config;
use crate::error::WriteError;
use crate::manifest::Tombstone;
use crate::state::State;
use crate::store::{Series, TEXT_BYTES_MAX, Written};
use crate::value::{Class, EntityId, Kept, Point, Position, ValueRef};

/// Entities whose points were refused, of one call.
const REFUSED_TOLD_MAX: usize = 100;

impl ColumnStore {
    pub(crate) fn write_points(&self, points: &[Point<'_>], position: Position) -> Result<Written, WriteError> {
        loop {
            let mut state = self.change();
            if position <= state.last_position {
                self.counters.replayed_batches.fetch_add(1, Ordering::Relaxed);
                return Ok(Written {
                    is_replay: true,
                    ..Written::default()
                });
            }
            if state.active.bytes() < self.config.head_bytes_max / 2 {
                return Ok(self.apply(&mut state, points, position));
            }
            let head_bytes = state.active.bytes();
            drop(state);
            let flushed = self.flush_frozen_or_active();
            self.note(flushed)
                .map_err(|source| WriteError::Busy { head_bytes, source })?;
            // A merge that fails is in the statistics; there is room for the points all the same.
            let merged = self.merge_backlog();
            let _ = self.note(merged);
        }
    }

    fn apply(&self, state: &mut State, points: &[Point<'_>], position: Position) -> Written {
        let mut written = Written::default();
        let deletes = state.deletes_after(position);
        let mut last = None;
        for point in points {
            let Some(series) = state.find_or_add(point, last, &self.config) else {
                written.refused_points += 1;
                let of = &mut written.refused_of;
                if of.len() < REFUSED_TOLD_MAX && of.last() != Some(&point.entity) {
                    of.push(point.entity);
                }
                continue;
            };
            last = Some((point.entity, series));
            written.points += 1;
            if deletes.is_empty() {
                state.put(series, point, point.kept);
            } else {
                state.put_replayed(series, point, &deletes);
            }
        }
        state.last_position = position;
        self.counters
            .written_points
            .fetch_add(written.points, Ordering::Relaxed);
        self.counters
            .refused_points
            .fetch_add(written.refused_points, Ordering::Relaxed);
        written
    }

    /// Makes room: what is frozen goes to disk, or else what is active.
    pub(crate) fn flush_frozen_or_active(&self) -> Result<(), crate::StoreError> {
        let _flushing = lock(&self.flushing);
        let frozen = {
            let mut state = self.change();
            match state.frozen.clone() {
                Some(frozen) => frozen,
                // Another thread was faster.
                None if state.active.bytes() < self.config.head_bytes_max / 4 => return Ok(()),
                None => state.freeze(),
            }
        };
        self.write_frozen(&frozen)
    }
}

impl State {
    #[inline]
    fn put(&mut self, series: u32, point: &Point<'_>, kept: Kept) {
        let Point { ts_ms, value, .. } = *point;
        if kept != Kept::InHistory {
            self.catalog.offer_latest(series, ts_ms, value);
        }
        if kept == Kept::AsLatest {
            return self.note_changed(series);
        }
        let slot = &mut self.catalog.series[series as usize].slot;
        self.active.push(series, slot, ts_ms, value);
    }

    /// A point that was there when something was deleted must not come back.
    fn put_replayed(&mut self, series: u32, point: &Point<'_>, deletes: &[Tombstone]) {
        let hit = |delete: &&Tombstone| delete.series == series && delete.touches(point.ts_ms, point.ts_ms);
        match deletes.iter().filter(hit).map(|delete| delete.has_latest).max() {
            None => self.put(series, point, point.kept),
            Some(false) if point.kept != Kept::InHistory => self.put(series, point, Kept::AsLatest),
            Some(_) => {}
        }
    }

    /// Deletions that came after this position; none unless it is replayed.
    fn deletes_after(&self, position: Position) -> Vec<Tombstone> {
        if position.0 > self.delete_position {
            return Vec::new();
        }
        let later = self
            .tombstones
            .iter()
            .filter(|tombstone| tombstone.position >= position.0);
        later.copied().collect()
    }

    /// `last`: entity and series of the point before.
    #[inline]
    fn find_or_add(&mut self, point: &Point<'_>, last: Option<(EntityId, u32)>, config: &Config) -> Option<u32> {
        let is_long = match point.value {
            ValueRef::String(text) | ValueRef::Json(text) => text.len() > TEXT_BYTES_MAX,
            _ => false,
        };
        if is_long {
            return None;
        }
        let catalog = &mut self.catalog;
        let entity = match last {
            Some((entity, series)) if entity == point.entity => {
                if let Some(next) = catalog.follows(series, point.key) {
                    return Some(next);
                }
                Some(catalog.series[series as usize].entity)
            }
            _ => catalog.entity(point.entity),
        };
        if let Some(entity) = entity
            && let Some(series) = catalog.first_or_series_of(entity, point.key)
        {
            return Some(series);
        }
        if !catalog.has_room(entity, config) {
            return None;
        }
        let entity = entity.unwrap_or_else(|| catalog.add_entity(point.entity, 0));
        let key = catalog.key(point.key).unwrap_or_else(|| catalog.add_key(point.key));
        Some(catalog.add_series(entity, key))
    }

    pub(crate) fn set_class(&mut self, entity: EntityId, class: Class) {
        let Some(index) = self.catalog.entity(entity) else {
            let index = self.catalog.add_entity(entity, class.0);
            return self.reclassified.push(index);
        };
        let entry = &mut self.catalog.entities[index as usize];
        if entry.class != class.0 {
            entry.class = class.0;
            self.reclassified.push(index);
            self.classes_version += u64::from((index as usize) < self.saved.entities);
        }
    }

    /// Without room for the series nothing happens: its points are refused, too.
    pub(crate) fn set_series_class(&mut self, series: Series<'_>, class: Option<Class>, config: &Config) {
        let known = self.catalog.find(series.entity, series.key);
        let has_room = || self.catalog.has_room(self.catalog.entity(series.entity), config);
        let index = match (known, class) {
            (Some(index), _) => index,
            (None, None) => return,
            (None, Some(_)) if !has_room() => return,
            (None, Some(_)) => {
                let catalog = &mut self.catalog;
                let entity = catalog.entity(series.entity);
                let entity = entity.unwrap_or_else(|| catalog.add_entity(series.entity, 0));
                let key = catalog.key(series.key).unwrap_or_else(|| catalog.add_key(series.key));
                catalog.add_series(entity, key)
            }
        };
        let class = class.map(|class| class.0);
        if self.catalog.own_class(index) == class {
            return;
        }
        self.catalog.set_own_class(index, class);
        self.reclassified_series.push(index);
        self.classes_version += u64::from((index as usize) < self.saved.series);
    }
}
