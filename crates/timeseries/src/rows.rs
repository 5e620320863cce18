//! Points of one series in memory, as columns. Blocks are encoded from rows and decoded to rows.
//!
//! Every value is 64 bits: a number, a bool, or the location of its text in `text` (offset in the upper half, length in
//! the lower). Decoding and merging therefore allocate per block, not per point.

use crate::value::{PointValueKind, ValueRef};

#[derive(Clone, Debug, Default)]
pub(crate) struct PointRows {
    pub ts: Vec<i64>,
    pub kinds: Vec<PointValueKind>,
    pub bits: Vec<u64>,
    pub text: String,
}

impl PointRows {
    pub fn with_capacity(rows: usize) -> PointRows {
        PointRows {
            ts: Vec::with_capacity(rows),
            kinds: Vec::with_capacity(rows),
            bits: Vec::with_capacity(rows),
            text: String::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.ts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ts.is_empty()
    }

    pub fn clear(&mut self) {
        self.ts.clear();
        self.kinds.clear();
        self.bits.clear();
        self.text.clear();
    }

    pub fn push(&mut self, ts_ms: i64, value: ValueRef<'_>) {
        let bits = match value {
            ValueRef::Bool(value) => u64::from(value),
            ValueRef::Long(value) => value as u64,
            ValueRef::Double(value) => value.to_bits(),
            ValueRef::String(text) | ValueRef::Json(text) => self.push_text(text),
        };
        self.ts.push(ts_ms);
        self.kinds.push(value.kind());
        self.bits.push(bits);
    }

    fn push_text(&mut self, text: &str) -> u64 {
        let location = (self.text.len() as u64) << 32 | text.len() as u64;
        self.text.push_str(text);
        location
    }

    pub fn value(&self, row: usize) -> ValueRef<'_> {
        let bits = self.bits[row];
        match self.kinds[row] {
            PointValueKind::Bool => ValueRef::Bool(bits != 0),
            PointValueKind::Long => ValueRef::Long(bits as i64),
            PointValueKind::Double => ValueRef::Double(f64::from_bits(bits)),
            PointValueKind::String => ValueRef::String(self.text_at(bits)),
            PointValueKind::Json => ValueRef::Json(self.text_at(bits)),
        }
    }

    /// Returns the text of a row, or an empty string if the value is not a text.
    pub fn text_of(&self, row: usize) -> &str {
        if self.kinds[row].is_text() {
            self.text_at(self.bits[row])
        } else {
            ""
        }
    }

    pub fn text_bytes(&self, row: usize) -> usize {
        self.text_of(row).len()
    }

    fn text_at(&self, location: u64) -> &str {
        let offset = (location >> 32) as usize;
        let len = (location & 0xFFFF_FFFF) as usize;
        // Locations come from `push_text`, or were checked when the block was decoded.
        self.text.get(offset..offset + len).unwrap_or_default()
    }

    pub fn push_row(&mut self, from: &PointRows, row: usize) {
        if from.kinds[row].is_text() {
            self.push(from.ts[row], from.value(row));
            return;
        }
        self.ts.push(from.ts[row]);
        self.kinds.push(from.kinds[row]);
        self.bits.push(from.bits[row]);
    }

    pub fn is_sorted(&self) -> bool {
        self.ts.windows(2).all(|pair| pair[0] < pair[1])
    }

    /// Sorts by time. Of points with the same time the one pushed last remains.
    pub fn sort(&mut self) {
        if self.is_sorted() {
            return;
        }
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        order.sort_by_key(|&row| (self.ts[row as usize], std::cmp::Reverse(row)));
        order.dedup_by_key(|row| self.ts[*row as usize]);
        let mut sorted = PointRows::with_capacity(order.len());
        for row in order {
            sorted.push_row(self, row as usize);
        }
        *self = sorted;
    }

    /// Returns a copy of rows `from..to`.
    pub fn slice(&self, from: usize, to: usize) -> PointRows {
        let mut slice = PointRows::with_capacity(to - from);
        for row in from..to {
            slice.push_row(self, row);
        }
        slice
    }

    pub fn retain(&mut self, mut keep: impl FnMut(i64) -> bool) {
        if self.ts.iter().all(|&ts| keep(ts)) {
            return;
        }
        let mut retained = PointRows::with_capacity(self.len());
        for row in 0..self.len() {
            if keep(self.ts[row]) {
                retained.push_row(self, row);
            }
        }
        *self = retained;
    }
}
