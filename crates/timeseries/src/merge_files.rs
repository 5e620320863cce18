//! Merges segments: for each window and each series, into one segment per class.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::index::SeriesIndex;
use crate::merge::{MergePlan, MergeSource, PointMask, SourceData, SourceRank};
use crate::rewrite::{RewriteStyle, rewrite};
use crate::segment::{
    LocatedBlock, SegmentCursor, SegmentGroup, SegmentLabel, SegmentReader, SegmentWriter, StoreSegment,
};

/// Common properties of the output segments of one window.
#[derive(Clone, Copy)]
struct MergePass {
    window: i64,
    seq: u64,
    clean_seq: u64,
    style: RewriteStyle,
}

impl ColumnStore {
    /// Merges the inputs. The contents of the outputs are durable, but not their names, and nothing refers to them yet.
    pub(crate) fn merge_files(&self, inputs: &[Arc<StoreSegment>]) -> Result<Vec<Arc<StoreSegment>>, StoreError> {
        let seq = inputs.iter().map(|input| input.record.seq).max().unwrap_or_default();
        // Deletions made from now on are not applied to the outputs.
        let deleted = self.read().tombstones.iter().map(|tombstone| tombstone.seq).max();
        let is_fresh = inputs.iter().any(|input| input.record.group.is_none());
        let mut outputs = Vec::new();
        for window in self.windows_of(inputs)? {
            let pass = MergePass {
                window,
                seq,
                clean_seq: deleted.unwrap_or_default().max(seq),
                style: if is_fresh {
                    RewriteStyle::FIRST_MERGE
                } else {
                    RewriteStyle::MERGE
                },
            };
            match self.merge_window(inputs, pass) {
                Ok(merged) => outputs.extend(merged),
                Err(error) => {
                    outputs.iter().for_each(|output: &Arc<StoreSegment>| output.retire());
                    return Err(error);
                }
            }
        }
        Ok(outputs)
    }

    /// Returns the windows in which the inputs have points.
    fn windows_of(&self, inputs: &[Arc<StoreSegment>]) -> Result<BTreeSet<i64>, StoreError> {
        let mut windows = BTreeSet::new();
        for input in inputs {
            match input.record.group {
                Some(group) => {
                    windows.insert(group.window);
                }
                None => self.add_windows(input, &mut windows)?,
            }
        }
        Ok(windows)
    }

    fn add_windows(&self, input: &StoreSegment, windows: &mut BTreeSet<i64>) -> Result<(), StoreError> {
        let window_of = |ts_ms| self.config.window_of(ts_ms);
        if window_of(input.extent.min_ts) == window_of(input.extent.max_ts) {
            windows.insert(window_of(input.extent.min_ts));
            return Ok(());
        }
        let reader = input.reader()?;
        let mut cursor = reader.cursor();
        let mut blocks = Vec::new();
        while let Some(series) = cursor.series()? {
            cursor.take(series, &mut blocks)?;
            for located in blocks.drain(..) {
                let (first, last) = (window_of(located.entry.min_ts), window_of(located.entry.max_ts));
                windows.extend([first, last]);
                if last - first > 1 {
                    windows.extend(reader.rows(&located)?.ts.iter().map(|&ts_ms| window_of(ts_ms)));
                }
            }
        }
        Ok(())
    }

    fn merge_window(
        &self,
        inputs: &[Arc<StoreSegment>],
        pass: MergePass,
    ) -> Result<Vec<Arc<StoreSegment>>, StoreError> {
        let mut writers = BTreeMap::new();
        if let Err(error) = self.fill(inputs, pass, &mut writers) {
            writers.into_values().for_each(SegmentWriter::discard);
            return Err(error);
        }
        let mut outputs: Vec<Arc<StoreSegment>> = Vec::new();
        for (class, writer) in writers {
            let label = SegmentLabel {
                seq: pass.seq,
                clean_seq: pass.clean_seq,
                group: Some(SegmentGroup {
                    class,
                    window: pass.window,
                }),
            };
            match writer.finish(label) {
                Ok(segment) => outputs.extend(segment),
                Err(error) => {
                    outputs.iter().for_each(|output| output.retire());
                    return Err(error);
                }
            }
        }
        Ok(outputs)
    }

    fn fill(
        &self,
        inputs: &[Arc<StoreSegment>],
        pass: MergePass,
        writers: &mut BTreeMap<u8, SegmentWriter>,
    ) -> Result<(), StoreError> {
        let span = self.config.window_span(pass.window);
        let is_touched = |input: &&Arc<StoreSegment>| input.extent.min_ts <= span.1 && span.0 <= input.extent.max_ts;
        let touched: Vec<&Arc<StoreSegment>> = inputs.iter().filter(is_touched).collect();
        let readers: Result<Vec<SegmentReader<'_>>, StoreError> = touched.iter().map(|input| input.reader()).collect();
        let readers = readers?;
        let mut cursors: Vec<SegmentCursor<'_>> = readers.iter().map(SegmentReader::cursor).collect();
        let mut blocks: Vec<LocatedBlock> = Vec::new();
        while let Some(series) = next_series(&mut cursors)? {
            let mut sources = Vec::new();
            for (index, cursor) in cursors.iter_mut().enumerate() {
                cursor.take(series, &mut blocks)?;
                let record = &touched[index].record;
                sources.extend(blocks.drain(..).map(|located| MergeSource {
                    rank: SourceRank {
                        seq: record.seq,
                        order: 0,
                    },
                    clean_seq: record.clean_seq,
                    data: SourceData::Disk(&readers[index], located),
                }));
            }
            let (mask, class) = self.mask_of(series);
            let plan = MergePlan::new(sources, span, &mask, &self.counters.read);
            if plan.windows.is_empty() {
                continue;
            }
            let writer = match writers.entry(class) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let number = lock(&self.files).allocate_file();
                    entry.insert(SegmentWriter::create(&self.disk, number)?)
                }
            };
            rewrite(series, &plan, pass.style, writer)?;
        }
        Ok(())
    }

    fn mask_of(&self, series: SeriesIndex) -> (PointMask, u8) {
        let state = self.read();
        (state.mask(series), state.catalog.class_of(series))
    }
}

fn next_series(cursors: &mut [SegmentCursor<'_>]) -> Result<Option<SeriesIndex>, StoreError> {
    let mut next = None;
    for cursor in cursors {
        next = match (next, cursor.series()?) {
            (Some(least), Some(series)) => Some(std::cmp::min::<SeriesIndex>(least, series)),
            (next, series) => next.or(series),
        };
    }
    Ok(next)
}
