//! Turns blocks that may overlap into points ordered by time, without duplicate times. Used by queries, flushes and
//! merges.
//!
//! All blocks of a series are laid out on the time axis. A block that overlaps no other is a window of its own; often
//! its summary suffices, or it is copied unchanged. Where blocks overlap, windows are cut so that only a few blocks are
//! decoded at once, regardless of the length of the range.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::block::{self, BlockEntry};
use crate::error::StoreError;
use crate::head::SealedBlock;
use crate::manifest::Tombstone;
use crate::rows::PointRows;
use crate::segment::{LocatedBlock, SegmentReader};

/// Number of blocks that begin in one window if blocks overlap.
const WINDOW_BLOCKS: usize = 8;

/// Precedence of points with the same time: the larger rank wins. Heads use a `seq` larger than that of any segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SourceRank {
    pub seq: u64,
    pub order: u32,
}

pub(crate) enum SourceData<'a> {
    Disk(&'a SegmentReader<'a>, LocatedBlock),
    Memory(Arc<SealedBlock>),
    /// Sorted and not empty.
    Rows(PointRows),
}

pub(crate) struct MergeSource<'a> {
    pub rank: SourceRank,
    /// Deletions up to this sequence number are already applied.
    pub clean_seq: u64,
    pub data: SourceData<'a>,
}

impl MergeSource<'_> {
    /// Returns the index entry of a block. `None` for rows, which are not a block yet.
    pub fn entry(&self) -> Option<&BlockEntry> {
        match &self.data {
            SourceData::Disk(_, located) => Some(&located.entry),
            SourceData::Memory(sealed) => Some(&sealed.entry),
            SourceData::Rows(_) => None,
        }
    }

    fn span(&self) -> (i64, i64) {
        match (&self.data, self.entry()) {
            (_, Some(entry)) => (entry.min_ts, entry.max_ts),
            (SourceData::Rows(rows), _) => (rows.ts[0], rows.ts[rows.len() - 1]),
            // Unreachable: everything except rows has an entry.
            (_, None) => (i64::MAX, i64::MIN),
        }
    }

    fn rows(&self, counters: &ReadCounters) -> Result<Cow<'_, PointRows>, StoreError> {
        match &self.data {
            SourceData::Rows(rows) => Ok(Cow::Borrowed(rows)),
            SourceData::Disk(reader, located) => {
                counters.blocks_read.fetch_add(1, Ordering::Relaxed);
                reader.rows(located).map(Cow::Owned)
            }
            SourceData::Memory(sealed) => {
                // Encoded by this process, so decoding cannot fail.
                let rows = block::decode(sealed.entry.rows(), &sealed.payload).unwrap_or_default();
                Ok(Cow::Owned(rows))
            }
        }
    }

    pub fn with_payload<T>(&self, then: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, StoreError> {
        match &self.data {
            SourceData::Disk(reader, located) => Ok(Some(then(&reader.payload(located)?))),
            SourceData::Memory(sealed) => Ok(Some(then(&sealed.payload))),
            SourceData::Rows(_) => Ok(None),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    pub blocks_read: AtomicU64,
    pub summaries_used: AtomicU64,
}

/// Hidden points of one series: deleted ranges, and expired points.
#[derive(Clone, Debug)]
pub(crate) struct PointMask {
    pub tombstones: Vec<Tombstone>,
    /// Points before this time have expired.
    pub cutoff: i64,
}

impl Default for PointMask {
    fn default() -> PointMask {
        PointMask {
            tombstones: Vec::new(),
            cutoff: i64::MIN,
        }
    }
}

impl PointMask {
    fn is_hidden(&self, ts_ms: i64, clean_seq: u64) -> bool {
        let is_deleted = |tombstone: &Tombstone| tombstone.seq > clean_seq && tombstone.overlaps(ts_ms, ts_ms);
        ts_ms < self.cutoff || self.tombstones.iter().any(is_deleted)
    }

    fn overlaps(&self, min_ts: i64, max_ts: i64, clean_seq: u64) -> bool {
        let is_deleted = |tombstone: &Tombstone| tombstone.seq > clean_seq && tombstone.overlaps(min_ts, max_ts);
        min_ts < self.cutoff || self.tombstones.iter().any(is_deleted)
    }
}

/// A time span with both ends included, and the sources that have points in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MergeWindow {
    pub min_ts: i64,
    pub max_ts: i64,
    members: Vec<u32>,
}

/// The sources of one series, laid out over a time span with both ends included.
pub(crate) struct MergePlan<'a> {
    sources: Vec<MergeSource<'a>>,
    mask: &'a PointMask,
    counters: &'a ReadCounters,
    pub windows: Vec<MergeWindow>,
}

impl<'a> MergePlan<'a> {
    pub fn new(
        mut sources: Vec<MergeSource<'a>>,
        (min_ts, max_ts): (i64, i64),
        mask: &'a PointMask,
        counters: &'a ReadCounters,
    ) -> MergePlan<'a> {
        sources.retain(|source| {
            let (first, last) = source.span();
            first <= max_ts && min_ts <= last
        });
        sources.sort_by_key(MergeSource::span);
        let spans: Vec<(i64, i64)> = sources.iter().map(MergeSource::span).collect();
        let mut windows = lay_out(&spans);
        for window in &mut windows {
            window.min_ts = window.min_ts.max(min_ts);
            window.max_ts = window.max_ts.min(max_ts);
        }
        windows.retain(|window| window.min_ts <= window.max_ts);
        MergePlan {
            sources,
            mask,
            counters,
            windows,
        }
    }

    /// Returns the block that covers exactly the window, if none of its points are hidden.
    pub fn whole_block(&self, window: &MergeWindow) -> Option<&MergeSource<'a>> {
        let [member] = window.members[..] else { return None };
        let source = &self.sources[member as usize];
        let entry = source.entry()?;
        let is_whole = (entry.min_ts, entry.max_ts) == (window.min_ts, window.max_ts);
        let is_hidden = self.mask.overlaps(entry.min_ts, entry.max_ts, source.clean_seq);
        (is_whole && !is_hidden).then_some(source)
    }

    pub fn count_summary(&self) {
        self.counters.summaries_used.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the points of a window, sorted, without duplicate times.
    pub fn rows(&self, window: &MergeWindow) -> Result<Cow<'_, PointRows>, StoreError> {
        let is_visible = |source: &MergeSource<'_>, ts_ms: i64| {
            window.min_ts <= ts_ms && ts_ms <= window.max_ts && !self.mask.is_hidden(ts_ms, source.clean_seq)
        };
        if let [member] = window.members[..] {
            let source = &self.sources[member as usize];
            let mut rows = source.rows(self.counters)?;
            let (min_ts, max_ts) = source.span();
            let is_inside = window.min_ts <= min_ts && max_ts <= window.max_ts;
            if !is_inside || self.mask.overlaps(min_ts, max_ts, source.clean_seq) {
                rows.to_mut().retain(|ts_ms| is_visible(source, ts_ms));
            }
            return Ok(rows);
        }
        let mut members: Vec<&MergeSource<'_>> = window
            .members
            .iter()
            .map(|&member| &self.sources[member as usize])
            .collect();
        members.sort_by_key(|source| source.rank);
        let mut merged = PointRows::default();
        for source in members {
            let rows = source.rows(self.counters)?;
            for row in (0..rows.len()).filter(|&row| is_visible(source, rows.ts[row])) {
                merged.push_row(&rows, row);
            }
        }
        // Among points with the same time, the last one pushed wins: the one with the largest rank.
        merged.sort();
        Ok(Cow::Owned(merged))
    }
}

/// Returns the windows for `spans`, which must be sorted.
fn lay_out(spans: &[(i64, i64)]) -> Vec<MergeWindow> {
    let mut windows = Vec::with_capacity(spans.len());
    let mut from = 0;
    while from < spans.len() {
        let mut end = spans[from].1;
        let mut to = from + 1;
        while to < spans.len() && spans[to].0 <= end {
            end = end.max(spans[to].1);
            to += 1;
        }
        cut_cluster(spans, from, to, end, &mut windows);
        from = to;
    }
    windows
}

/// Adds the windows of the overlapping spans `from..to`, which end at `end`.
fn cut_cluster(spans: &[(i64, i64)], from: usize, to: usize, end: i64, windows: &mut Vec<MergeWindow>) {
    let mut open: Vec<u32> = Vec::new();
    let mut next = from;
    while next < to {
        let min_ts = spans[next].0;
        let mut stop = (next + WINDOW_BLOCKS).min(to);
        while stop < to && spans[stop].0 == min_ts {
            stop += 1;
        }
        let max_ts = if stop < to { spans[stop].0 - 1 } else { end };
        open.retain(|&member| spans[member as usize].1 >= min_ts);
        open.extend(next as u32..stop as u32);
        windows.push(MergeWindow {
            min_ts,
            max_ts,
            members: open.clone(),
        });
        next = stop;
    }
}

#[cfg(test)]
mod tests {
    use super::lay_out;

    #[test]
    fn disjoint_blocks_get_their_own_windows() {
        let windows = lay_out(&[(0, 9), (10, 19), (30, 30)]);
        assert_eq!(
            windows.iter().map(|w| (w.min_ts, w.max_ts)).collect::<Vec<_>>(),
            [(0, 9), (10, 19), (30, 30)]
        );
        assert!(windows.iter().all(|window| window.members.len() == 1));
    }

    #[test]
    fn window_has_few_overlapping_blocks() {
        let mut spans = vec![(0, 100_000)];
        spans.extend((0..1000).map(|n| (n * 100, n * 100 + 99)));
        spans.sort_unstable();
        let windows = lay_out(&spans);
        assert!(windows.iter().all(|window| window.members.len() <= 10));
        assert!(windows.windows(2).all(|pair| pair[0].max_ts + 1 == pair[1].min_ts));
        assert_eq!((windows[0].min_ts, windows.last().unwrap().max_ts), (0, 100_000));
    }
}
