//! The data of the store in memory, behind one lock that is held briefly: catalog, heads, list of segments.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalog::SeriesCatalog;
use crate::head::{Heads, SeriesHead};
use crate::index::{EntityIndex, HeadSlot, SeriesIndex};
use crate::manifest::Tombstone;
use crate::merge::PointMask;
use crate::segment::StoreSegment;
use crate::series_log::SavedPart;
use crate::value::LogPosition;

pub(crate) struct StoreState {
    pub catalog: SeriesCatalog,
    pub active: Heads,
    /// Heads that are being written to a segment.
    pub frozen: Option<Arc<FrozenHeads>>,
    /// Ordered by sequence number.
    pub segments: Arc<Vec<Arc<StoreSegment>>>,
    pub tombstones: Arc<Vec<Tombstone>>,
    /// Log position of the last deletion. A later batch cannot be a replay of deleted points.
    pub delete_position: u64,
    pub ttl_ms: BTreeMap<u8, u64>,
    /// Time of the last maintenance.
    pub now_ms: Option<i64>,
    pub last_position: LogPosition,
    pub durable_position: LogPosition,
    /// Series whose latest value changed without a point in a head, each with the value of `changes` at that time.
    pub changed: BTreeMap<SeriesIndex, u64>,
    /// Number of such changes.
    pub changes: u64,
    /// Entities whose class is not saved to disk yet.
    pub reclassified: Vec<EntityIndex>,
    /// Series whose class override is not saved to disk yet.
    pub reclassified_series: Vec<SeriesIndex>,
    /// The part of the catalog that is on disk. Later series have no points in segments.
    pub saved: SavedPart,
    /// Increases when series with points in segments change their class.
    pub classes_version: u64,
    /// Version of the current class check. Segments checked for this version contain only series of their class.
    pub checked_classes_version: u64,
    /// Earliest time of the next class check.
    pub next_class_check_ms: i64,
}

#[derive(Debug)]
pub(crate) struct FrozenHeads {
    /// Ordered by series.
    pub heads: Heads,
    pub position: LogPosition,
}

impl FrozenHeads {
    pub fn of(&self, series: SeriesIndex) -> Option<&SeriesHead> {
        let slots = &self.heads.slots;
        let at = slots.binary_search_by_key(&series, |head| head.series).ok()?;
        slots.get(at)
    }
}

impl StoreState {
    /// Returns whether everything is durable.
    pub fn is_clean(&self) -> bool {
        self.active.is_empty()
            && self.frozen.is_none()
            && self.changed.is_empty()
            && self.reclassified.is_empty()
            && self.reclassified_series.is_empty()
            && self.last_position == self.durable_position
    }

    /// Marks the latest value of a series as unsaved. Needed for changes without a point in a head.
    pub fn mark_changed(&mut self, series: SeriesIndex) {
        self.changes += 1;
        self.changed.insert(series, self.changes);
    }

    pub fn freeze(&mut self) -> Arc<FrozenHeads> {
        let mut heads = std::mem::take(&mut self.active);
        for head in &heads.slots {
            self.catalog.series[head.series.index()].slot = HeadSlot::NONE;
        }
        heads.slots.sort_unstable_by_key(|head| head.series);
        let frozen = Arc::new(FrozenHeads {
            heads,
            position: self.last_position,
        });
        self.frozen = Some(frozen.clone());
        frozen
    }

    /// Returns the time before which points of the class have expired.
    pub fn cutoff(&self, class: u8) -> i64 {
        match (self.now_ms, self.ttl_ms.get(&class)) {
            (Some(now_ms), Some(&ttl_ms)) => now_ms.saturating_sub_unsigned(ttl_ms),
            _ => i64::MIN,
        }
    }

    /// Returns the latest cutoff of all classes.
    pub fn latest_cutoff(&self) -> i64 {
        let cutoffs = self.ttl_ms.keys().map(|class| self.cutoff(*class));
        cutoffs.max().unwrap_or(i64::MIN)
    }

    pub fn mask(&self, series: SeriesIndex) -> PointMask {
        let of_series = self.tombstones.iter().filter(|tombstone| tombstone.series == series);
        PointMask {
            tombstones: of_series.copied().collect(),
            cutoff: self.cutoff(self.catalog.class_of(series)),
        }
    }
}
