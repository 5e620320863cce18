//! Points of one series in memory, column by column: what blocks are made from and decoded to.
//!
//! Every value is 64 bits: a number, a bool, or where its text lies in `text` (offset above, length below). So decoding and
//! merging allocate per block, not per point.

use crate::value::{Kind, ValueRef};

#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    pub ts: Vec<i64>,
    pub kinds: Vec<Kind>,
    pub bits: Vec<u64>,
    pub text: String,
}

impl Rows {
    pub fn with_capacity(rows: usize) -> Rows {
        Rows {
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
        let place = (self.text.len() as u64) << 32 | text.len() as u64;
        self.text.push_str(text);
        place
    }

    pub fn value(&self, row: usize) -> ValueRef<'_> {
        let bits = self.bits[row];
        match self.kinds[row] {
            Kind::Bool => ValueRef::Bool(bits != 0),
            Kind::Long => ValueRef::Long(bits as i64),
            Kind::Double => ValueRef::Double(f64::from_bits(bits)),
            Kind::String => ValueRef::String(self.text_at(bits)),
            Kind::Json => ValueRef::Json(self.text_at(bits)),
        }
    }

    /// Empty for what is no text.
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

    fn text_at(&self, place: u64) -> &str {
        let offset = (place >> 32) as usize;
        let len = (place & 0xFFFF_FFFF) as usize;
        // Places are made by `push_text` and checked by the decoder of blocks.
        self.text.get(offset..offset + len).unwrap_or_default()
    }

    pub fn push_row(&mut self, from: &Rows, row: usize) {
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

    /// By time; of several points with the same time the one that was pushed last stays.
    pub fn sort(&mut self) {
        if self.is_sorted() {
            return;
        }
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        order.sort_by_key(|&row| (self.ts[row as usize], std::cmp::Reverse(row)));
        order.dedup_by_key(|row| self.ts[*row as usize]);
        let mut sorted = Rows::with_capacity(order.len());
        for row in order {
            sorted.push_row(self, row as usize);
        }
        *self = sorted;
    }

    /// Rows `from..to`, on their own.
    pub fn slice(&self, from: usize, to: usize) -> Rows {
        let mut slice = Rows::with_capacity(to - from);
        for row in from..to {
            slice.push_row(self, row);
        }
        slice
    }

    pub fn retain(&mut self, mut keep: impl FnMut(i64) -> bool) {
        if self.ts.iter().all(|&ts| keep(ts)) {
            return;
        }
        let mut kept = Rows::with_capacity(self.len());
        for row in 0..self.len() {
            if keep(self.ts[row]) {
                kept.push_row(self, row);
            }
        }
        *self = kept;
    }
}
