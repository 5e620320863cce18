//! Which files to merge, rewrite or remove, and doing it.
//!
//! Fresh segments, straight from memory, are merged a few at a time, oldest first, into windows of time and classes. Within a
//! window those of similar size are merged again. What is merged is always adjacent in sequence, whatever the class, so that
//! the number of the newest can stand for all. A file whose points are all too old is removed; one of which half the time is
//! too old, which has deleted points, or points that are to be kept for another time than the file says, is rewritten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::files::Change;
use crate::manifest::Tombstone;
use crate::segment::Segment;
use crate::state::State;
use crate::store::Maintained;

/// Units of a window that are merged at least.
const UNITS_MIN: usize = 4;
/// With more units in a window some are merged whatever their sizes.
const UNITS_MAX: usize = 12;
/// Fresh segments that are merged at most.
const FRESH_MAX: usize = 16;
/// Between looks at all files, because something in them got another class.
const JUDGE_PAUSE_MS: i64 = 60_000;
/// Before this many times the usual number of fresh segments writers wait for a merge.
const FRESH_BACKLOG: usize = 4;

impl ColumnStore {
    pub(crate) fn maintain_once(&self, now_ms: i64) -> Result<Maintained, StoreError> {
        let is_due = {
            let mut state = self.change();
            state.now_ms = Some(now_ms);
            state.frozen.is_some() || state.active.bytes() >= self.config.head_bytes_max / 4
        };
        if is_due {
            self.flush_frozen_or_active()?;
            return Ok(Maintained { has_more: true });
        }
        let has_more = self.compact_once(now_ms)?;
        Ok(Maintained { has_more })
    }

    /// Writers that are faster than merges wait here.
    pub(crate) fn merge_backlog(&self) -> Result<(), StoreError> {
        let is_fresh = |segment: &&Arc<Segment>| segment.record.group.is_none();
        let fresh = self.read().segments.iter().filter(is_fresh).count();
        if fresh >= self.config.fresh_segments_max.max(1) * FRESH_BACKLOG {
            let now_ms = self.read().now_ms.unwrap_or(i64::MIN);
            self.compact_once(now_ms)?;
        }
        Ok(())
    }

    /// One piece of work; whether there was any.
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
                None => return self.judge_one(now_ms),
            },
        };
        self.merge(&inputs)?;
        Ok(true)
    }

    /// Removes segments of which nothing is young enough.
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
        let points: u64 = expired.iter().map(|segment| segment.extent.points).sum();
        self.replace_segments(&expired, Vec::new())?;
        self.counters.expired_points.fetch_add(points, Ordering::Relaxed);
        Ok(true)
    }

    /// By the classes as they are now, which may not be those at the time of the merge.
    fn is_expired(&self, segment: &Segment) -> Result<bool, StoreError> {
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

    /// Forgets deletions that hide nothing any more; a segment that still has deleted points.
    fn retire_tombstones(&self) -> Result<Option<Arc<Segment>>, StoreError> {
        let (tombstones, segments, durable) = {
            let state = self.read();
            (state.tombstones.clone(), state.segments.clone(), state.durable_position)
        };
        let mut done = Vec::new();
        // A replay from the durable position must not bring points back.
        for tombstone in tombstones.iter().filter(|tombstone| tombstone.position <= durable.0) {
            if let Some(dirty) = first_dirty(tombstone, &segments)? {
                return self.forget(&done).map(|()| Some(dirty));
            }
            done.push(*tombstone);
        }
        self.forget(&done).map(|()| None)
    }

    fn forget(&self, done: &[Tombstone]) -> Result<(), StoreError> {
        if done.is_empty() {
            return Ok(());
        }
        let mut files = lock(&self.files);
        let mut change = Change::of(&self.read());
        change.tombstones.retain(|tombstone| !done.contains(tombstone));
        self.commit(&mut files, change)
    }

    /// Looks at one segment whose series may have other classes than it says, and splits it if they have; whether there was one.
    fn judge_one(&self, now_ms: i64) -> Result<bool, StoreError> {
        let (version, found) = {
            let mut state = self.change();
            if state.ttl_ms.is_empty() {
                return Ok(false);
            }
            let is_due = now_ms >= state.judge_again_ms || state.judged_version == 0;
            if state.judged_version != state.classes_version && is_due {
                state.judged_version = state.classes_version;
                state.judge_again_ms = now_ms.saturating_add(JUDGE_PAUSE_MS);
            }
            let version = state.judged_version;
            let is_open = |segment: &&Arc<Segment>| {
                segment.record.group.is_some() && segment.judged_version.load(Ordering::Relaxed) < version
            };
            (version, state.segments.iter().find(is_open).cloned())
        };
        let Some(segment) = found else { return Ok(false) };
        if self.is_mislabelled(&segment)? {
            self.merge(&[segment])?;
        } else {
            segment.judged_version.store(version, Ordering::Relaxed);
        }
        Ok(true)
    }

    fn is_mislabelled(&self, segment: &Segment) -> Result<bool, StoreError> {
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

    fn merge(&self, inputs: &[Arc<Segment>]) -> Result<(), StoreError> {
        let outputs = self.merge_files(inputs)?;
        let bytes: u64 = outputs.iter().map(|segment| segment.extent.bytes).sum();
        self.replace_segments(inputs, outputs)?;
        self.counters.compactions.fetch_add(1, Ordering::Relaxed);
        self.counters.compacted_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn replace_segments(&self, inputs: &[Arc<Segment>], outputs: Vec<Arc<Segment>>) -> Result<(), StoreError> {
        let mut files = lock(&self.files);
        let mut change = Change::of(&self.read());
        let is_input = |segment: &Arc<Segment>| inputs.iter().any(|input| Arc::ptr_eq(input, segment));
        change.segments.retain(|segment| !is_input(segment));
        change.segments.extend(outputs.iter().cloned());
        change.segments.sort_by_key(|segment| segment.record.seq);
        let result = self.commit(&mut files, change);
        match result {
            Ok(()) => inputs.iter().for_each(|input| input.retire()),
            Err(_) if files.check().is_ok() => outputs.iter().for_each(|output| output.retire()),
            // Unknown which manifest counts: both sets of files stay.
            Err(_) => {}
        }
        result
    }
}

/// A segment that may have points which the deletion covers.
fn first_dirty(tombstone: &Tombstone, segments: &[Arc<Segment>]) -> Result<Option<Arc<Segment>>, StoreError> {
    for segment in segments {
        let extent = &segment.extent;
        let may_hide = segment.record.clean_seq < tombstone.seq
            && tombstone.touches(extent.min_ts, extent.max_ts)
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

/// Fresh segments leave in the order in which they came.
fn with_older_fresh(state: &State, segment: &Arc<Segment>) -> Vec<Arc<Segment>> {
    if segment.record.group.is_some() {
        return vec![segment.clone()];
    }
    let is_older = |other: &&Arc<Segment>| other.record.group.is_none() && other.record.seq <= segment.record.seq;
    state.segments.iter().filter(is_older).cloned().collect()
}

fn pick(state: &State, fresh_max: usize) -> Option<Vec<Arc<Segment>>> {
    let is_fresh = |segment: &&Arc<Segment>| segment.record.group.is_none();
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

/// Of a segment straight from memory: if one of its classes can be.
fn is_half_expired(state: &State, segment: &Segment) -> bool {
    let cutoff = match segment.record.group {
        Some(group) => state.cutoff(group.class),
        None => state.earliest_end(),
    };
    let extent = &segment.extent;
    let middle = extent.min_ts + extent.max_ts.saturating_sub(extent.min_ts) / 2;
    cutoff > extent.min_ts && cutoff > middle
}

/// Segments of one window and one sequence number: what one merge has left.
#[derive(Default)]
struct Unit {
    bytes: u64,
    segments: Vec<Arc<Segment>>,
}

fn pick_units(state: &State) -> Option<Vec<Arc<Segment>>> {
    let mut windows: BTreeMap<i64, BTreeMap<u64, Unit>> = BTreeMap::new();
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
        let newest_first: Vec<Unit> = units.into_values().rev().collect();
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

/// How many of the newest to merge: as long as the next is not much larger than those before together.
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
