//! A merge of segments: window by window, series by series, into one segment per class.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::merge::{Data, Mask, Plan, Rank, Source};
use crate::rewrite::{Style, rewrite};
use crate::segment::{Cursor, Group, Label, Located, Segment, SegmentReader, SegmentWriter};

/// What the outputs of one window have in common.
#[derive(Clone, Copy)]
struct Pass {
    window: i64,
    seq: u64,
    clean_seq: u64,
    style: Style,
}

impl ColumnStore {
    /// The outputs are durable, except for their names, and nothing refers to them.
    pub(crate) fn merge_files(&self, inputs: &[Arc<Segment>]) -> Result<Vec<Arc<Segment>>, StoreError> {
        let seq = inputs.iter().map(|input| input.record.seq).max().unwrap_or_default();
        // Deletions that come from now on are not carried out in the outputs.
        let deleted = self.read().tombstones.iter().map(|tombstone| tombstone.seq).max();
        let is_fresh = inputs.iter().any(|input| input.record.group.is_none());
        let mut outputs = Vec::new();
        for window in self.windows_of(inputs)? {
            let pass = Pass {
                window,
                seq,
                clean_seq: deleted.unwrap_or_default().max(seq),
                style: if is_fresh { Style::FIRST_MERGE } else { Style::MERGE },
            };
            match self.merge_window(inputs, pass) {
                Ok(merged) => outputs.extend(merged),
                Err(error) => {
                    outputs.iter().for_each(|output: &Arc<Segment>| output.retire());
                    return Err(error);
                }
            }
        }
        Ok(outputs)
    }

    /// The windows in which the inputs have points.
    fn windows_of(&self, inputs: &[Arc<Segment>]) -> Result<BTreeSet<i64>, StoreError> {
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

    fn add_windows(&self, input: &Segment, windows: &mut BTreeSet<i64>) -> Result<(), StoreError> {
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

    fn merge_window(&self, inputs: &[Arc<Segment>], pass: Pass) -> Result<Vec<Arc<Segment>>, StoreError> {
        let mut writers = BTreeMap::new();
        if let Err(error) = self.fill(inputs, pass, &mut writers) {
            writers.into_values().for_each(SegmentWriter::discard);
            return Err(error);
        }
        let mut outputs: Vec<Arc<Segment>> = Vec::new();
        for (class, writer) in writers {
            let label = Label {
                seq: pass.seq,
                clean_seq: pass.clean_seq,
                group: Some(Group {
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
        inputs: &[Arc<Segment>],
        pass: Pass,
        writers: &mut BTreeMap<u8, SegmentWriter>,
    ) -> Result<(), StoreError> {
        let span = self.config.window_span(pass.window);
        let is_touched = |input: &&Arc<Segment>| input.extent.min_ts <= span.1 && span.0 <= input.extent.max_ts;
        let touched: Vec<&Arc<Segment>> = inputs.iter().filter(is_touched).collect();
        let readers: Result<Vec<SegmentReader<'_>>, StoreError> = touched.iter().map(|input| input.reader()).collect();
        let readers = readers?;
        let mut cursors: Vec<Cursor<'_>> = readers.iter().map(SegmentReader::cursor).collect();
        let mut blocks: Vec<Located> = Vec::new();
        while let Some(series) = next_series(&mut cursors)? {
            let mut sources = Vec::new();
            for (index, cursor) in cursors.iter_mut().enumerate() {
                cursor.take(series, &mut blocks)?;
                let record = &touched[index].record;
                sources.extend(blocks.drain(..).map(|located| Source {
                    rank: Rank {
                        seq: record.seq,
                        order: 0,
                    },
                    clean_seq: record.clean_seq,
                    data: Data::Disk(&readers[index], located),
                }));
            }
            let (mask, class) = self.mask_of(series);
            let plan = Plan::new(sources, span, &mask, &self.counters.read);
            if plan.windows.is_empty() {
                continue;
            }
            let writer = match writers.entry(class) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let number = lock(&self.files).take_file();
                    entry.insert(SegmentWriter::create(&self.disk, number)?)
                }
            };
            rewrite(series, &plan, pass.style, writer)?;
        }
        Ok(())
    }

    fn mask_of(&self, series: u32) -> (Mask, u8) {
        let state = self.read();
        (state.mask(series), state.catalog.class_of(series))
    }
}

fn next_series(cursors: &mut [Cursor<'_>]) -> Result<Option<u32>, StoreError> {
    let mut next = None;
    for cursor in cursors {
        next = match (next, cursor.series()?) {
            (Some(least), Some(series)) => Some(std::cmp::min::<u32>(least, series)),
            (next, series) => next.or(series),
        };
    }
    Ok(next)
}
