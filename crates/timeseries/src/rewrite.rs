//! Blocks of one series into a new segment: the end of every flush and every merge of files.

use crate::block::{self, ROWS_MAX};
use crate::error::StoreError;
use crate::ints::Effort;
use crate::merge::Plan;
use crate::rows::Rows;
use crate::segment::SegmentWriter;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub effort: Effort,
    /// Blocks with at least so many points are taken over as they are, when nothing touches them.
    pub copy_rows_min: usize,
}

impl Style {
    pub const FLUSH: Style = Style {
        effort: Effort::Fast,
        copy_rows_min: 1,
    };
    /// What comes from memory was compressed in a hurry.
    pub const FIRST_MERGE: Style = Style {
        effort: Effort::Small,
        copy_rows_min: usize::MAX,
    };
    pub const MERGE: Style = Style {
        effort: Effort::Small,
        copy_rows_min: ROWS_MAX / 2,
    };
}

pub(crate) fn rewrite(
    series: u32,
    plan: &Plan<'_>,
    style: Style,
    writer: &mut SegmentWriter,
) -> Result<(), StoreError> {
    let mut pending = Rows::default();
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

fn write_rows(series: u32, rows: &Rows, style: Style, writer: &mut SegmentWriter) -> Result<(), StoreError> {
    let mut from = 0;
    for to in block::cuts(rows) {
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
