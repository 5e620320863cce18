//! Writes heads to a segment. A failed flush leaves the heads frozen, and is retried.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::column_store::{ColumnStore, lock};
use crate::error::StoreError;
use crate::files::ManifestChange;
use crate::head::SeriesHead;
use crate::merge::{MergePlan, MergeSource, PointMask, SourceData, SourceRank};
use crate::rewrite::{RewriteStyle, rewrite};
use crate::segment::{SegmentLabel, SegmentWriter, StoreSegment};
use crate::state::FrozenHeads;

const EVERYTHING: (i64, i64) = (i64::MIN, i64::MAX);

impl ColumnStore {
    pub(crate) fn flush_all(&self) -> Result<(), StoreError> {
        let _flushing = lock(&self.flushing);
        let result = self.flush_until_clean();
        self.record_result(result)
    }

    /// Writes the frozen heads, then the active ones. The caller holds `flushing`.
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

    /// Writes frozen heads and counts the result. The caller holds `flushing`.
    pub(crate) fn write_frozen(&self, frozen: &Arc<FrozenHeads>) -> Result<(), StoreError> {
        let result = self.try_write_frozen(frozen);
        let counter = match result {
            Ok(()) => &self.counters.flushes,
            Err(_) => &self.counters.flush_errors,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    fn try_write_frozen(&self, frozen: &Arc<FrozenHeads>) -> Result<(), StoreError> {
        let (number, seq) = {
            let mut files = lock(&self.files);
            files.check()?;
            (files.allocate_file(), files.allocate_seq())
        };
        let label = SegmentLabel {
            seq,
            clean_seq: seq,
            group: None,
        };
        let segment = self.write_heads(frozen, number, label)?;
        let mut files = lock(&self.files);
        let mut change = ManifestChange::of(&self.read());
        change.segments.extend(segment.iter().cloned());
        change.position = frozen.position;
        change.latest_of = Some(frozen.heads.slots.iter().map(|head| head.series).collect());
        if let Err(error) = self.commit(&mut files, change) {
            // Remove the file, unless it is unknown which manifest is valid.
            if files.check().is_ok() {
                segment.iter().for_each(|segment| segment.retire());
            }
            return Err(error);
        }
        self.change().frozen = None;
        Ok(())
    }

    fn write_heads(
        &self,
        frozen: &FrozenHeads,
        number: u64,
        label: SegmentLabel,
    ) -> Result<Option<Arc<StoreSegment>>, StoreError> {
        let mut writer = SegmentWriter::create(&self.disk, number)?;
        let mask = PointMask::default();
        for head in &frozen.heads.slots {
            let plan = MergePlan::new(sources(head, u64::MAX), EVERYTHING, &mask, &self.counters.read);
            if let Err(error) = rewrite(head.series, &plan, RewriteStyle::FLUSH, &mut writer) {
                writer.discard();
                return Err(error);
            }
        }
        writer.finish(label)
    }
}

/// Returns all blocks of a head, oldest first.
pub(crate) fn sources(head: &SeriesHead, seq: u64) -> Vec<MergeSource<'static>> {
    let mut sources = Vec::with_capacity(head.sealed.len() + 1);
    let mut push = |data| {
        let order = sources.len() as u32;
        sources.push(MergeSource {
            rank: SourceRank { seq, order },
            clean_seq: u64::MAX,
            data,
        });
    };
    head.sealed
        .iter()
        .for_each(|sealed| push(SourceData::Memory(sealed.clone())));
    let open = head.open_rows();
    if !open.is_empty() {
        push(SourceData::Rows(open));
    }
    sources
}
