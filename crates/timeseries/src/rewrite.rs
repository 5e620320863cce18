//! Writes blocks of one series to a new segment. Last step of every flush and every merge of files.

use crate::block::{self, ROWS_MAX};
use crate::error::StoreError;
use crate::index::SeriesIndex;
use crate::ints::EncodeEffort;
use crate::merge::MergePlan;
use crate::rows::PointRows;
use crate::segment::SegmentWriter;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RewriteStyle {
    pub effort: EncodeEffort,
    /// Minimum number of points of a block that is copied unchanged, if it overlaps no other.
    pub copy_rows_min: usize,
}

impl RewriteStyle {
    pub const FLUSH: RewriteStyle = RewriteStyle {
        effort: EncodeEffort::Fast,
        copy_rows_min: 1,
    };
    /// Fresh segments were compressed for speed, so all of their blocks are encoded again.
    pub const FIRST_MERGE: RewriteStyle = RewriteStyle {
        effort: EncodeEffort::Small,
        copy_rows_min: usize::MAX,
    };
    pub const MERGE: RewriteStyle = RewriteStyle {
        effort: EncodeEffort::Small,
        copy_rows_min: ROWS_MAX / 2,
    };
}

pub(crate) fn rewrite(
    series: SeriesIndex,
    plan: &MergePlan<'_>,
    style: RewriteStyle,
    writer: &mut SegmentWriter,
) -> Result<(), StoreError> {
    let mut pending = PointRows::default();
    for window in &plan.windows {
        let copied = plan.whole_block(window).and_then(|source| {
            let entry = source.entry()?;
            (entry.rows() >= style.copy_rows_min).then_some((source, entry))
        });
        if let Some((source, entry)) = copied {
            write_rows(series, &pending, style, writer)?;
            pending.clear();
            source
                .with_payload(|payload| writer.add(series, entry, payload))?
                .transpose()?;
            continue;
        }
        let rows = plan.rows(window)?;
        (0..rows.len()).for_each(|row| pending.push_row(&rows, row));
        if pending.len() >= 4 * ROWS_MAX {
            let whole = pending.len() / ROWS_MAX * ROWS_MAX;
            write_rows(series, &pending.slice(0, whole), style, writer)?;
            pending = pending.slice(whole, pending.len());
        }
    }
    write_rows(series, &pending, style, writer)
}

fn write_rows(
    series: SeriesIndex,
    rows: &PointRows,
    style: RewriteStyle,
    writer: &mut SegmentWriter,
) -> Result<(), StoreError> {
    let mut from = 0;
    for to in block::block_ends(rows) {
        let (entry, payload) = if to - from == rows.len() {
            block::encode(rows, style.effort)
        } else {
            block::encode(&rows.slice(from, to), style.effort)
        };
        writer.add(series, &entry, &payload)?;
        from = to;
    }
    Ok(())
}
