//! Chooses files to merge, rewrite or remove, and does it.
//!
//! Fresh segments, written from heads, are merged several at a time, oldest first, into segments of one time window and
//! class. Within a window, segments of similar size are merged again. Merged segments are always adjacent in sequence,
//! regardless of class, so that the sequence number of the newest can replace all of them.
//!
//! A file is removed if all its points have expired. It is rewritten if half of its time span has expired, if it has
//! deleted points, or if it has points of another class than its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::files::ManifestChange;
use crate::manifest::Tombstone;
use crate::segment::StoreSegment;
use crate::state::StoreState;
use crate::store::MaintenanceResult;

/// Minimum number of units of a window in one merge.
const UNITS_MIN: usize = 4;
/// With more units in a window, some are merged regardless of their sizes.
const UNITS_MAX: usize = 12;
/// Maximum number of fresh segments in one merge.
const FRESH_MAX: usize = 16;
/// Minimum time between two class checks of all files.
const CLASS_CHECK_INTERVAL_MS: i64 = 60_000;
/// Multiple of the usual number of fresh segments at which writers wait for a merge.
const FRESH_BACKLOG: usize = 4;

impl ColumnStore {
    pub(crate) fn maintain_once(&self, now_ms: i64) -> Result<MaintenanceResult, StoreError> {
        let is_due = {
            let mut state = self.change();
            state.now_ms = Some(now_ms);
            state.frozen.is_some() || state.active.bytes() >= self.config.head_bytes_max / 4
        };
        if is_due {
            self.flush_frozen_or_active()?;
            return Ok(MaintenanceResult { has_more: true });
        }
        let has_more = self.compact_once(now_ms)?;
        Ok(MaintenanceResult { has_more })
    }

    /// Merges on the writer's thread if there are too many fresh segments. Slows down writers that are faster than
    /// merges.
    pub(crate) fn merge_backlog(&self) -> Result<(), StoreError> {
        let is_fresh = |segment: &&Arc<StoreSegment>| segment.record.group.is_none();
        let fresh = self.read().segments.iter().filter(is_fresh).count();
        if fresh >= self.config.fresh_segments_max.max(1) * FRESH_BACKLOG {
            let now_ms = self.read().now_ms.unwrap_or(i64::MIN);
            self.compact_once(now_ms)?;
        }
        Ok(())
    }

    /// Does one unit of work. Returns whether there was any.
    fn compact_once(&self, now_ms: i64) -> Result<bool, StoreError> {
        let _compacting = lock(&self.compacting);
        lock(&self.files).check()?;
        if self.remove_expired()? {
            return Ok(true);
        }
        let inputs = pick(&self.read(), self.config.fresh_segments_max.max(1));
        let inputs = match inputs {
            Some(inputs) => inputs,
            None => match self.retire_tombstones()? {
                Some(dirty) => with_older_fresh(&self.read(), &dirty),
                None => return self.check_classes_of_one(now_ms),
            },
        };
        self.merge(&inputs)?;
        Ok(true)
    }

    /// Removes segments whose points have all expired. Returns whether there were any.
    fn remove_expired(&self) -> Result<bool, StoreError> {
        let segments = self.read().segments.clone();
        let mut expired = Vec::new();
        for segment in segments.iter() {
            if self.is_expired(segment)? {
                expired.push(segment.clone());
            }
        }
        if expired.is_empty() {
            return Ok(false);
        }
        self.replace_segments(&expired, Vec::new())?;
        Ok(true)
    }

    /// Checks the current classes of the series, which may differ from the class at the time of the merge.
    fn is_expired(&self, segment: &StoreSegment) -> Result<bool, StoreError> {
        let max_ts = segment.extent.max_ts;
        let is_class_expired = |class: u8| max_ts < self.read().cutoff(class);
        let is_hint = match segment.record.group {
            Some(group) => is_class_expired(group.class),
            None => (0..=u8::MAX).any(is_class_expired),
        };
        if !is_hint {
            return Ok(false);
        }
        let reader = segment.reader()?;
        let mut cursor = reader.cursor();
        let mut skipped = Vec::new();
        while let Some(series) = cursor.series()? {
            let class = self.read().catalog.class_of(series);
            if !is_class_expired(class) {
                return Ok(false);
            }
            cursor.take(series, &mut skipped)?;
            skipped.clear();
        }
        Ok(true)
    }

    /// Removes tombstones that no longer hide points. Returns a segment that still has deleted points, if any.
    fn retire_tombstones(&self) -> Result<Option<Arc<StoreSegment>>, StoreError> {
        let (tombstones, segments, durable) = {
            let state = self.read();
            (state.tombstones.clone(), state.segments.clone(), state.durable_position)
        };
        let mut done = Vec::new();
        // A replay from the durable position must not restore deleted points.
        for tombstone in tombstones.iter().filter(|tombstone| tombstone.position <= durable.0) {
            if let Some(dirty) = first_dirty(tombstone, &segments)? {
                return self.remove_tombstones(&done).map(|()| Some(dirty));
            }
            done.push(*tombstone);
        }
        self.remove_tombstones(&done).map(|()| None)
    }

    fn remove_tombstones(&self, done: &[Tombstone]) -> Result<(), StoreError> {
        if done.is_empty() {
            return Ok(());
        }
        let mut files = lock(&self.files);
        let mut change = ManifestChange::of(&self.read());
        change.tombstones.retain(|tombstone| !done.contains(tombstone));
        self.commit(&mut files, change)
    }

    /// Checks the classes of one merged segment, and splits it if a series has another class. Returns whether there was
    /// one to check.
    fn check_classes_of_one(&self, now_ms: i64) -> Result<bool, StoreError> {
        let (version, found) = {
            let mut state = self.change();
            if state.ttl_ms.is_empty() {
                return Ok(false);
            }
            let is_due = now_ms >= state.next_class_check_ms || state.checked_classes_version == 0;
            if state.checked_classes_version != state.classes_version && is_due {
                state.checked_classes_version = state.classes_version;
                state.next_class_check_ms = now_ms.saturating_add(CLASS_CHECK_INTERVAL_MS);
            }
            let version = state.checked_classes_version;
            let is_open = |segment: &&Arc<StoreSegment>| {
                segment.record.group.is_some() && segment.checked_classes_version.load(Ordering::Relaxed) < version
            };
            (version, state.segments.iter().find(is_open).cloned())
        };
        let Some(segment) = found else { return Ok(false) };
        if self.has_wrong_class(&segment)? {
            self.merge(&[segment])?;
        } else {
            segment.checked_classes_version.store(version, Ordering::Relaxed);
        }
        Ok(true)
    }

    fn has_wrong_class(&self, segment: &StoreSegment) -> Result<bool, StoreError> {
        let Some(group) = segment.record.group else {
            return Ok(false);
        };
        let reader = segment.reader()?;
        let mut cursor = reader.cursor();
        let mut skipped = Vec::new();
        while let Some(series) = cursor.series()? {
            if self.read().catalog.class_of(series) != group.class {
                return Ok(true);
            }
            cursor.take(series, &mut skipped)?;
            skipped.clear();
        }
        Ok(false)
    }

    fn merge(&self, inputs: &[Arc<StoreSegment>]) -> Result<(), StoreError> {
        let outputs = self.merge_files(inputs)?;
        self.replace_segments(inputs, outputs)?;
        self.counters.compactions.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn replace_segments(
        &self,
        inputs: &[Arc<StoreSegment>],
        outputs: Vec<Arc<StoreSegment>>,
    ) -> Result<(), StoreError> {
        let mut files = lock(&self.files);
        let mut change = ManifestChange::of(&self.read());
        let is_input = |segment: &Arc<StoreSegment>| inputs.iter().any(|input| Arc::ptr_eq(input, segment));
        change.segments.retain(|segment| !is_input(segment));
        change.segments.extend(outputs.iter().cloned());
        change.segments.sort_by_key(|segment| segment.record.seq);
        let result = self.commit(&mut files, change);
        match result {
            Ok(()) => inputs.iter().for_each(|input| input.retire()),
            Err(_) if files.check().is_ok() => outputs.iter().for_each(|output| output.retire()),
            // It is unknown which manifest is valid, so both sets of files remain.
            Err(_) => {}
        }
        result
    }
}

/// Returns a segment that may have points that the deletion covers.
fn first_dirty(tombstone: &Tombstone, segments: &[Arc<StoreSegment>]) -> Result<Option<Arc<StoreSegment>>, StoreError> {
    for segment in segments {
        let extent = &segment.extent;
        let may_hide = segment.record.clean_seq < tombstone.seq
            && tombstone.overlaps(extent.min_ts, extent.max_ts)
            && segment.may_have(tombstone.series);
        if !may_hide {
            continue;
        }
        let found = segment
            .reader()?
            .find(tombstone.series, tombstone.start, tombstone.end)?;
        if !found.is_empty() {
            return Ok(Some(segment.clone()));
        }
    }
    Ok(None)
}

/// Returns the segment and, if it is fresh, all older fresh ones: fresh segments are merged in order.
fn with_older_fresh(state: &StoreState, segment: &Arc<StoreSegment>) -> Vec<Arc<StoreSegment>> {
    if segment.record.group.is_some() {
        return vec![segment.clone()];
    }
    let is_older = |other: &&Arc<StoreSegment>| other.record.group.is_none() && other.record.seq <= segment.record.seq;
    state.segments.iter().filter(is_older).cloned().collect()
}

fn pick(state: &StoreState, fresh_max: usize) -> Option<Vec<Arc<StoreSegment>>> {
    let is_fresh = |segment: &&Arc<StoreSegment>| segment.record.group.is_none();
    let fresh: Vec<_> = state
        .segments
        .iter()
        .filter(is_fresh)
        .take(FRESH_MAX)
        .cloned()
        .collect();
    if fresh.len() >= fresh_max {
        return Some(fresh);
    }
    pick_units(state).or_else(|| {
        state
            .segments
            .iter()
            .find(|segment| is_half_expired(state, segment))
            .map(|segment| with_older_fresh(state, segment))
    })
}

/// Returns whether half of the segment's time span has expired. A fresh segment has no class, so the latest cutoff
/// applies.
fn is_half_expired(state: &StoreState, segment: &StoreSegment) -> bool {
    let cutoff = match segment.record.group {
        Some(group) => state.cutoff(group.class),
        None => state.latest_cutoff(),
    };
    let extent = &segment.extent;
    let middle = extent.min_ts + extent.max_ts.saturating_sub(extent.min_ts) / 2;
    cutoff > extent.min_ts && cutoff > middle
}

/// The segments of one window and one sequence number, that is, the output of one merge.
#[derive(Default)]
struct MergeOutput {
    bytes: u64,
    segments: Vec<Arc<StoreSegment>>,
}

fn pick_units(state: &StoreState) -> Option<Vec<Arc<StoreSegment>>> {
    let mut windows: BTreeMap<i64, BTreeMap<u64, MergeOutput>> = BTreeMap::new();
    for segment in state.segments.iter() {
        if let Some(group) = segment.record.group {
            let unit = windows
                .entry(group.window)
                .or_default()
                .entry(segment.record.seq)
                .or_default();
            unit.bytes += segment.extent.bytes;
            unit.segments.push(segment.clone());
        }
    }
    windows.into_values().find_map(|units| {
        let newest_first: Vec<MergeOutput> = units.into_values().rev().collect();
        let count = units_to_merge(&newest_first.iter().map(|unit| unit.bytes).collect::<Vec<_>>())?;
        Some(
            newest_first
                .into_iter()
                .take(count)
                .rev()
                .flat_map(|unit| unit.segments)
                .collect(),
        )
    })
}

/// Returns how many of the newest units to merge: adds a unit as long as it is at most twice as large as all newer ones
/// together.
fn units_to_merge(newest_first: &[u64]) -> Option<usize> {
    let mut total = *newest_first.first()?;
    let mut count = 1;
    while count < newest_first.len() && newest_first[count] <= total.saturating_mul(2) {
        total += newest_first[count];
        count += 1;
    }
    match count {
        UNITS_MIN.. => Some(count),
        _ if newest_first.len() > UNITS_MAX => Some(UNITS_MIN),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::units_to_merge;

    #[test]
    fn units_of_similar_size_are_merged() {
        assert_eq!(units_to_merge(&[]), None);
        assert_eq!(units_to_merge(&[10, 10, 10]), None);
        assert_eq!(units_to_merge(&[10, 10, 10, 10]), Some(4));
        assert_eq!(units_to_merge(&[10, 1000, 10, 10, 10]), None);
        assert_eq!(units_to_merge(&[10, 11, 12, 13, 1000]), Some(4));
        assert_eq!(
            units_to_merge(&[1, 10, 100, 1000, 10_000, 1, 1, 1, 1, 1, 1, 1, 1]),
            Some(4)
        );
    }
}
