//! From blocks that may overlap to points in order of time, each time once: what queries, flushes and merges of files share.
//!
//! The blocks of a series, from wherever they are, are laid out in time. A block that overlaps no other is a window of its
//! own, of which often the summary is enough, or which is copied as it is. Where blocks overlap, windows are cut so that only
//! a few have to be decoded at once, whatever the length of the range.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::block::{self, Entry};
use crate::error::StoreError;
use crate::head::Sealed;
use crate::manifest::Tombstone;
use crate::rows::Rows;
use crate::segment::{Located, SegmentReader};

/// Blocks that begin in a window where blocks overlap.
const WINDOW_BLOCKS: usize = 8;

/// Which of two points with the same time wins: the larger. In memory `seq` is beyond all segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub seq: u64,
    pub order: u32,
}

pub(crate) enum Data<'a> {
    Disk(&'a SegmentReader<'a>, Located),
    Memory(Arc<Sealed>),
    /// Sorted; not empty.
    Rows(Rows),
}

pub(crate) struct Source<'a> {
    pub rank: Rank,
    /// Deletions up to this one are carried out.
    pub clean_seq: u64,
    pub data: Data<'a>,
}

impl Source<'_> {
    /// `None` for rows, which are no block yet.
    pub fn entry(&self) -> Option<&Entry> {
        match &self.data {
            Data::Disk(_, located) => Some(&located.entry),
            Data::Memory(sealed) => Some(&sealed.entry),
            Data::Rows(_) => None,
        }
    }

    fn span(&self) -> (i64, i64) {
        match (&self.data, self.entry()) {
            (_, Some(entry)) => (entry.min_ts, entry.max_ts),
            (Data::Rows(rows), _) => (rows.ts[0], rows.ts[rows.len() - 1]),
            // Everything but rows has an entry.
            (_, None) => (i64::MAX, i64::MIN),
        }
    }

    fn rows(&self, counters: &ReadCounters) -> Result<Cow<'_, Rows>, StoreError> {
        match &self.data {
            Data::Rows(rows) => Ok(Cow::Borrowed(rows)),
            Data::Disk(reader, located) => {
                counters.blocks_read.fetch_add(1, Ordering::Relaxed);
                reader.rows(located).map(Cow::Owned)
            }
            Data::Memory(sealed) => {
                // It was encoded by this process.
                let rows = block::decode(sealed.entry.rows(), &sealed.payload).unwrap_or_default();
                Ok(Cow::Owned(rows))
            }
        }
    }

    pub fn with_payload<T>(&self, then: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, StoreError> {
        match &self.data {
            Data::Disk(reader, located) => Ok(Some(then(&reader.payload(located)?))),
            Data::Memory(sealed) => Ok(Some(then(&sealed.payload))),
            Data::Rows(_) => Ok(None),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    pub blocks_read: AtomicU64,
    pub summaries_used: AtomicU64,
}

/// What is hidden from one series: deleted ranges, and what is too old.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    pub tombstones: Vec<Tombstone>,
    /// Points before are gone.
    pub cutoff: i64,
}

impl Default for Mask {
    fn default() -> Mask {
        Mask {
            tombstones: Vec::new(),
            cutoff: i64::MIN,
        }
    }
}

impl Mask {
    fn hides(&self, ts_ms: i64, clean_seq: u64) -> bool {
        let is_deleted = |tombstone: &Tombstone| tombstone.seq > clean_seq && tombstone.touches(ts_ms, ts_ms);
        ts_ms < self.cutoff || self.tombstones.iter().any(is_deleted)
    }

    fn touches(&self, min_ts: i64, max_ts: i64, clean_seq: u64) -> bool {
        let is_deleted = |tombstone: &Tombstone| tombstone.seq > clean_seq && tombstone.touches(min_ts, max_ts);
        min_ts < self.cutoff || self.tombstones.iter().any(is_deleted)
    }
}

/// A stretch of time, both ends included, and the sources that have points in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub min_ts: i64,
    pub max_ts: i64,
    members: Vec<u32>,
}

/// The sources of one series, laid out over a range, both ends included.
pub(crate) struct Plan<'a> {
    sources: Vec<Source<'a>>,
    mask: &'a Mask,
    counters: &'a ReadCounters,
    pub windows: Vec<Window>,
}

impl<'a> Plan<'a> {
    pub fn new(
        mut sources: Vec<Source<'a>>,
        (min_ts, max_ts): (i64, i64),
        mask: &'a Mask,
        counters: &'a ReadCounters,
    ) -> Plan<'a> {
        sources.retain(|source| {
            let (first, last) = source.span();
            first <= max_ts && min_ts <= last
        });
        sources.sort_by_key(Source::span);
        let spans: Vec<(i64, i64)> = sources.iter().map(Source::span).collect();
        let mut windows = lay_out(&spans);
        for window in &mut windows {
            window.min_ts = window.min_ts.max(min_ts);
            window.max_ts = window.max_ts.min(max_ts);
        }
        windows.retain(|window| window.min_ts <= window.max_ts);
        Plan {
            sources,
            mask,
            counters,
            windows,
        }
    }

    /// The block that is the whole window, nothing of it hidden or outside.
    pub fn whole_block(&self, window: &Window) -> Option<&Source<'a>> {
        let [member] = window.members[..] else { return None };
        let source = &self.sources[member as usize];
        let entry = source.entry()?;
        let is_whole = (entry.min_ts, entry.max_ts) == (window.min_ts, window.max_ts);
        let is_hidden = self.mask.touches(entry.min_ts, entry.max_ts, source.clean_seq);
        (is_whole && !is_hidden).then_some(source)
    }

    pub fn count_summary(&self) {
        self.counters.summaries_used.fetch_add(1, Ordering::Relaxed);
    }

    /// The points of a window, sorted, each time once.
    pub fn rows(&self, window: &Window) -> Result<Cow<'_, Rows>, StoreError> {
        let shown = |source: &Source<'_>, ts_ms: i64| {
            window.min_ts <= ts_ms && ts_ms <= window.max_ts && !self.mask.hides(ts_ms, source.clean_seq)
        };
        if let [member] = window.members[..] {
            let source = &self.sources[member as usize];
            let mut rows = source.rows(self.counters)?;
            let (min_ts, max_ts) = source.span();
            let is_inside = window.min_ts <= min_ts && max_ts <= window.max_ts;
            if !is_inside || self.mask.touches(min_ts, max_ts, source.clean_seq) {
                rows.to_mut().retain(|ts_ms| shown(source, ts_ms));
            }
            return Ok(rows);
        }
        let mut members: Vec<&Source<'_>> = window
            .members
            .iter()
            .map(|&member| &self.sources[member as usize])
            .collect();
        members.sort_by_key(|source| source.rank);
        let mut merged = Rows::default();
        for source in members {
            let rows = source.rows(self.counters)?;
            for row in (0..rows.len()).filter(|&row| shown(source, rows.ts[row])) {
                merged.push_row(&rows, row);
            }
        }
        // What was pushed last wins, which is what has the largest rank.
        merged.sort();
        Ok(Cow::Owned(merged))
    }
}

/// `spans` are sorted.
fn lay_out(spans: &[(i64, i64)]) -> Vec<Window> {
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

/// Windows for the spans `from..to`, which hang together and end at `end`.
fn cut_cluster(spans: &[(i64, i64)], from: usize, to: usize, end: i64, windows: &mut Vec<Window>) {
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
        windows.push(Window {
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
    fn blocks_that_do_not_overlap_stand_alone() {
        let windows = lay_out(&[(0, 9), (10, 19), (30, 30)]);
        assert_eq!(
            windows.iter().map(|w| (w.min_ts, w.max_ts)).collect::<Vec<_>>(),
            [(0, 9), (10, 19), (30, 30)]
        );
        assert!(windows.iter().all(|window| window.members.len() == 1));
    }

    #[test]
    fn overlapping_blocks_are_read_a_few_at_a_time() {
        let mut spans = vec![(0, 100_000)];
        spans.extend((0..1000).map(|n| (n * 100, n * 100 + 99)));
        spans.sort_unstable();
        let windows = lay_out(&spans);
        assert!(windows.iter().all(|window| window.members.len() <= 10));
        assert!(windows.windows(2).all(|pair| pair[0].max_ts + 1 == pair[1].min_ts));
        assert_eq!((windows[0].min_ts, windows.last().unwrap().max_ts), (0, 100_000));
    }
}
