//! Heads to a segment. A flush that fails leaves the heads frozen, and is tried again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::files::Change;
use crate::head::SeriesHead;
use crate::merge::{Data, Mask, Plan, Rank, Source};
use crate::rewrite::{Style, rewrite};
use crate::segment::{Label, Segment, SegmentWriter};
use crate::state::Frozen;

const EVERYTHING: (i64, i64) = (i64::MIN, i64::MAX);

impl ColumnStore {
    pub(crate) fn flush_all(&self) -> Result<(), StoreError> {
        let _flushing = lock(&self.flushing);
        let result = self.flush_until_clean();
        self.note(result)
    }

    /// What was frozen before, then what is active; `flushing` is held.
    fn flush_until_clean(&self) -> Result<(), StoreError> {
        for _ in 0..2 {
            let frozen = {
                let mut state = self.change();
                match state.frozen.clone() {
                    Some(frozen) => frozen,
                    None if state.is_clean() => return Ok(()),
                    None => state.freeze(),
                }
            };
            self.write_frozen(&frozen)?;
        }
        Ok(())
    }

    /// `flushing` is held.
    pub(crate) fn write_frozen(&self, frozen: &Arc<Frozen>) -> Result<(), StoreError> {
        let result = self.try_write_frozen(frozen);
        let counter = match result {
            Ok(()) => &self.counters.flushes,
            Err(_) => &self.counters.flush_errors,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    fn try_write_frozen(&self, frozen: &Arc<Frozen>) -> Result<(), StoreError> {
        let (number, seq) = {
            let mut files = lock(&self.files);
            files.check()?;
            (files.take_file(), files.take_seq())
        };
        let label = Label {
            seq,
            clean_seq: seq,
            group: None,
        };
        let segment = self.write_heads(frozen, number, label)?;
        let mut files = lock(&self.files);
        let mut change = Change::of(&self.read());
        change.segments.extend(segment.iter().cloned());
        change.position = frozen.position;
        change.latest_of = Some(frozen.heads.slots.iter().map(|head| head.series).collect());
        if let Err(error) = self.commit(&mut files, change) {
            // Unless it is unknown which manifest counts, the file is of no use.
            if files.check().is_ok() {
                segment.iter().for_each(|segment| segment.retire());
            }
            return Err(error);
        }
        self.change().frozen = None;
        Ok(())
    }

    fn write_heads(&self, frozen: &Frozen, number: u64, label: Label) -> Result<Option<Arc<Segment>>, StoreError> {
        let mut writer = SegmentWriter::create(&self.disk, number)?;
        let mask = Mask::default();
        for head in &frozen.heads.slots {
            let plan = Plan::new(sources(head, u64::MAX), EVERYTHING, &mask, &self.counters.read);
            if let Err(error) = rewrite(head.series, &plan, Style::FLUSH, &mut writer) {
                writer.discard();
                return Err(error);
            }
        }
        writer.finish(label)
    }
}

/// All that a head has, oldest first.
pub(crate) fn sources(head: &SeriesHead, seq: u64) -> Vec<Source<'static>> {
    let mut sources = Vec::with_capacity(head.sealed.len() + 1);
    let mut push = |data| {
        let order = sources.len() as u32;
        sources.push(Source {
            rank: Rank { seq, order },
            clean_seq: u64::MAX,
            data,
        });
    };
    head.sealed.iter().for_each(|sealed| push(Data::Memory(sealed.clone())));
    let open = head.open_rows();
    if !open.is_empty() {
        push(Data::Rows(open));
    }
    sources
}
