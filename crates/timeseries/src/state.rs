//! What the store knows in memory, behind one lock that is held for moments: the catalog, the heads, which segments count.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::head::{Heads, NO_SLOT, SeriesHead};
use crate::manifest::Tombstone;
use crate::merge::Mask;
use crate::segment::Segment;
use crate::series_log::Saved;
use crate::value::Position;

pub(crate) struct State {
    pub catalog: Catalog,
    pub active: Heads,
    /// On its way to a segment.
    pub frozen: Option<Arc<Frozen>>,
    /// In order of their sequence numbers.
    pub segments: Arc<Vec<Arc<Segment>>>,
    pub tombstones: Arc<Vec<Tombstone>>,
    /// Of the last deletion: what is written behind it is no replay of what it deleted.
    pub delete_position: u64,
    pub ttl_ms: BTreeMap<u8, u64>,
    /// As of the last maintenance.
    pub now_ms: Option<i64>,
    pub last_position: Position,
    pub durable_position: Position,
    /// Series whose latest value changed without a point in a head, each with the number of its last such change.
    pub changed: BTreeMap<u32, u64>,
    /// Such changes there were.
    pub changes: u64,
    /// Entities whose class is not on disk.
    pub reclassified: Vec<u32>,
    /// Series of which it is not on disk whether they have a class of their own.
    pub reclassified_series: Vec<u32>,
    /// What of the catalog is on disk: what is not has no points in segments.
    pub saved: Saved,
    /// Grows when what is in segments gets another class.
    pub classes_version: u64,
    /// Segments that were looked at since this version have the class that they say.
    pub judged_version: u64,
    /// Not before this time are segments looked at again for another version.
    pub judge_again_ms: i64,
}

#[derive(Debug)]
pub(crate) struct Frozen {
    /// In order of their series.
    pub heads: Heads,
    pub position: Position,
}

impl Frozen {
    pub fn of(&self, series: u32) -> Option<&SeriesHead> {
        let slots = &self.heads.slots;
        let at = slots.binary_search_by_key(&series, |head| head.series).ok()?;
        slots.get(at)
    }
}

impl State {
    /// Nothing waits to become durable.
    pub fn is_clean(&self) -> bool {
        self.active.is_empty()
            && self.frozen.is_none()
            && self.changed.is_empty()
            && self.reclassified.is_empty()
            && self.reclassified_series.is_empty()
            && self.last_position == self.durable_position
    }

    /// No head says that it has to be saved.
    pub fn note_changed(&mut self, series: u32) {
        self.changes += 1;
        self.changed.insert(series, self.changes);
    }

    pub fn freeze(&mut self) -> Arc<Frozen> {
        let mut heads = std::mem::take(&mut self.active);
        for head in &heads.slots {
            self.catalog.series[head.series as usize].slot = NO_SLOT;
        }
        heads.slots.sort_unstable_by_key(|head| head.series);
        let frozen = Arc::new(Frozen {
            heads,
            position: self.last_position,
        });
        self.frozen = Some(frozen.clone());
        frozen
    }

    /// Points of the class before this are gone.
    pub fn cutoff(&self, class: u8) -> i64 {
        match (self.now_ms, self.ttl_ms.get(&class)) {
            (Some(now_ms), Some(&ttl_ms)) => now_ms.saturating_sub_unsigned(ttl_ms),
            _ => i64::MIN,
        }
    }

    /// The latest of all cutoffs.
    pub fn earliest_end(&self) -> i64 {
        let cutoffs = self.ttl_ms.keys().map(|class| self.cutoff(*class));
        cutoffs.max().unwrap_or(i64::MIN)
    }

    pub fn mask(&self, series: u32) -> Mask {
        let of_series = self.tombstones.iter().filter(|tombstone| tombstone.series == series);
        Mask {
            tombstones: of_series.copied().collect(),
            cutoff: self.cutoff(self.catalog.class_of(series)),
        }
    }
}
