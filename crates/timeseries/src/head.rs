//! The newest points in memory. Each series has a byte stream that grows with every point, and a list of sealed blocks.
//!
//! A point usually takes 2 to 5 bytes, so heads of a few megabytes hold minutes of data of a whole fleet. Points are
//! stored in arrival order and sorted when they are read. A full stream becomes a sealed block, whose summary queries
//! can use.
//!
//! ```text
//! point    control u8 | rest of the time as a varint, if any | value
//! control  low 3 bits: 0 false, 1 true, 2 long, 3 double, 4 string, 5 JSON
//!          high 5 bits: change of the step between timestamps, zigzag; 31: the change follows as a varint
//! long     difference to the previous long, zigzag varint
//! double   XOR with the previous double: count of leading zero bytes u8, the other bytes
//! text     length, bytes
//! ```
//!
//! Byte streams never leave the process, so decoding does not fail. An invalid stream would end early.

use std::sync::Arc;

use crate::block::{self, BlockEntry, ROWS_MAX};
use crate::bytes::{BytesReader, ParseResult, put_signed, put_text, put_varint, unzigzag, zigzag};
use crate::index::{HeadSlot, SeriesIndex};
use crate::ints::EncodeEffort;
use crate::rows::PointRows;
use crate::value::ValueRef;

const LONG: u8 = 2;
const DOUBLE: u8 = 3;
const STRING: u8 = 4;
const JSON: u8 = 5;
const FAR: u64 = 31;
/// A stream with this much text is sealed early.
const STREAM_BYTES_MAX: usize = 64 << 10;
/// Memory of a series besides its points: map entry, slot and allocator overhead.
const SLOT_BYTES: usize = size_of::<SeriesHead>() + 32;

#[derive(Debug)]
pub(crate) struct SealedBlock {
    pub entry: BlockEntry,
    pub payload: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct SeriesHead {
    pub series: SeriesIndex,
    count: u32,
    last_ts: i64,
    last_step: i64,
    last_long: i64,
    last_double: u64,
    stream: Vec<u8>,
    pub sealed: Vec<Arc<SealedBlock>>,
}

impl SeriesHead {
    fn new(series: SeriesIndex) -> SeriesHead {
        SeriesHead {
            series,
            count: 0,
            last_ts: 0,
            last_step: 0,
            last_long: 0,
            last_double: 0,
            stream: Vec::new(),
            sealed: Vec::new(),
        }
    }

    fn push(&mut self, ts_ms: i64, value: ValueRef<'_>) {
        let step = ts_ms.wrapping_sub(self.last_ts);
        let change = zigzag(step.wrapping_sub(self.last_step));
        (self.last_ts, self.last_step) = (ts_ms, step);
        self.count += 1;
        let tag = match value {
            ValueRef::Bool(value) => u8::from(value),
            ValueRef::Long(_) => LONG,
            ValueRef::Double(_) => DOUBLE,
            ValueRef::String(_) => STRING,
            ValueRef::Json(_) => JSON,
        };
        self.stream.push(tag | (change.min(FAR) as u8) << 3);
        if change >= FAR {
            put_varint(&mut self.stream, change);
        }
        self.push_value(value);
    }

    fn push_value(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Bool(_) => {}
            ValueRef::Long(value) => {
                put_signed(&mut self.stream, value.wrapping_sub(self.last_long));
                self.last_long = value;
            }
            ValueRef::Double(value) => {
                let differs = value.to_bits() ^ self.last_double;
                self.last_double = value.to_bits();
                let zeros = differs.leading_zeros() / 8;
                self.stream.push(zeros as u8);
                self.stream.extend_from_slice(&differs.to_be_bytes()[zeros as usize..]);
            }
            ValueRef::String(text) | ValueRef::Json(text) => put_text(&mut self.stream, text),
        }
    }

    /// Returns the points that are not sealed, sorted and without duplicate times.
    pub fn open_rows(&self) -> PointRows {
        let mut rows = PointRows::with_capacity(self.count as usize);
        // Cannot fail; see the module documentation.
        let _ = read_stream(&self.stream, &mut rows);
        rows.sort();
        rows
    }

    fn seal(&mut self) {
        let rows = self.open_rows();
        self.clear_stream();
        self.seal_rows(&rows);
    }

    fn seal_rows(&mut self, rows: &PointRows) {
        let mut from = 0;
        for to in block::block_ends(rows) {
            let (entry, mut payload) = block::encode(&rows.slice(from, to), EncodeEffort::Fast);
            payload.shrink_to_fit();
            self.sealed.push(Arc::new(SealedBlock { entry, payload }));
            from = to;
        }
    }

    fn clear_stream(&mut self) {
        self.stream = Vec::new();
        self.count = 0;
        (self.last_ts, self.last_step, self.last_long, self.last_double) = (0, 0, 0, 0);
    }

    fn bytes(&self) -> usize {
        let sealed = |sealed: &Arc<SealedBlock>| sealed.payload.len() + size_of::<SealedBlock>() + 32;
        self.stream.capacity() + self.sealed.iter().map(sealed).sum::<usize>()
    }

    /// Removes the points for which `is_deleted` holds.
    fn delete(&mut self, is_deleted: impl Fn(i64) -> bool) {
        for sealed in std::mem::take(&mut self.sealed) {
            // Encoded by this process, so decoding cannot fail.
            let mut rows = block::decode(sealed.entry.rows(), &sealed.payload).unwrap_or_default();
            rows.retain(|ts| !is_deleted(ts));
            self.seal_rows(&rows);
        }
        let mut open = self.open_rows();
        open.retain(|ts| !is_deleted(ts));
        self.clear_stream();
        (0..open.len()).for_each(|row| self.push(open.ts[row], open.value(row)));
    }
}

fn read_stream(stream: &[u8], rows: &mut PointRows) -> ParseResult<()> {
    let mut from = BytesReader::new(stream);
    let (mut ts, mut step, mut long, mut double) = (0i64, 0i64, 0i64, 0u64);
    while !from.is_empty() {
        let control = from.u8()?;
        let near = u64::from(control >> 3);
        let change = if near == FAR { from.varint()? } else { near };
        step = step.wrapping_add(unzigzag(change));
        ts = ts.wrapping_add(step);
        let value = match control & 7 {
            LONG => {
                long = long.wrapping_add(from.signed()?);
                ValueRef::Long(long)
            }
            DOUBLE => {
                let zeros = usize::from(from.u8()?).min(8);
                let mut differs = [0; 8];
                differs[zeros..].copy_from_slice(from.take(8 - zeros)?);
                double ^= u64::from_be_bytes(differs);
                ValueRef::Double(f64::from_bits(double))
            }
            STRING => ValueRef::String(from.text()?),
            JSON => ValueRef::Json(from.text()?),
            bit => ValueRef::Bool(bit != 0),
        };
        rows.push(ts, value);
    }
    Ok(())
}

/// Heads of all series with points since the last freeze.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    pub slots: Vec<SeriesHead>,
    bytes: usize,
    pub points: u64,
}

impl Heads {
    /// Adds a point. `slot` is the index of the series' head, stored in the catalog.
    pub fn push(&mut self, series: SeriesIndex, slot: &mut HeadSlot, ts_ms: i64, value: ValueRef<'_>) {
        if *slot == HeadSlot::NONE {
            *slot = HeadSlot(self.slots.len() as u32);
            self.slots.push(SeriesHead::new(series));
            self.bytes += SLOT_BYTES;
        }
        self.points += 1;
        let head = &mut self.slots[slot.index()];
        let before = head.stream.capacity();
        head.push(ts_ms, value);
        if head.count as usize >= ROWS_MAX || head.stream.len() > STREAM_BYTES_MAX {
            let before = before + (head.bytes() - head.stream.capacity());
            head.seal();
            self.bytes = (self.bytes + head.bytes()).saturating_sub(before);
        } else {
            self.bytes += head.stream.capacity() - before;
        }
    }

    /// Returns the memory of the heads, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn slot(&self, slot: HeadSlot) -> Option<&SeriesHead> {
        self.slots.get(slot.index())
    }

    pub fn delete(&mut self, slot: HeadSlot, is_deleted: impl Fn(i64) -> bool) {
        if let Some(head) = self.slots.get_mut(slot.index()) {
            let before = head.bytes();
            head.delete(is_deleted);
            self.bytes = (self.bytes + head.bytes()).saturating_sub(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Heads;
    use crate::index::{HeadSlot, SeriesIndex};
    use crate::value::ValueRef;

    #[test]
    fn stream_returns_sorted_points_and_the_last_wins() {
        let mut heads = Heads::default();
        let mut slot = HeadSlot::NONE;
        let values = [
            (5, ValueRef::Long(i64::MIN)),
            (3, ValueRef::String("é")),
            (i64::MAX, ValueRef::Double(-0.5)),
            (i64::MIN, ValueRef::Bool(true)),
            (3, ValueRef::Json("{}")),
            (4, ValueRef::Double(1e300)),
        ];
        for (ts, value) in values {
            heads.push(SeriesIndex(9), &mut slot, ts, value);
        }
        let rows = heads.slot(slot).unwrap().open_rows();
        assert_eq!(rows.ts, [i64::MIN, 3, 4, 5, i64::MAX]);
        assert_eq!(rows.value(1), ValueRef::Json("{}"));
        assert_eq!(rows.value(2), ValueRef::Double(1e300));
        assert_eq!(rows.value(4), ValueRef::Double(-0.5));
        heads.delete(slot, |ts| ts == 3 || ts == 5);
        assert_eq!(heads.slot(slot).unwrap().open_rows().ts, [i64::MIN, 4, i64::MAX]);
    }

    #[test]
    fn sealing_keeps_the_byte_count_exact() {
        let mut heads = Heads::default();
        let mut slot = HeadSlot::NONE;
        for n in 0..10_000 {
            heads.push(SeriesIndex(1), &mut slot, n * 1000, ValueRef::Long(n % 50));
        }
        assert_eq!(heads.slot(slot).unwrap().sealed.len(), 19);
        let head = heads.slot(slot).unwrap();
        assert_eq!(heads.bytes(), super::SLOT_BYTES + head.bytes());
    }
}
