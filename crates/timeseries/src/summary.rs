//! Aggregates of many points by type: counts, minima, maxima and sums. Each block on disk has one, so that charts need
//! not read its points, and each bucket of a running query has one.
//!
//! The rules are ThingsBoard's. For MIN and MAX over mixed types, numbers take precedence over strings, strings over
//! bools, bools over JSON. SUM and AVG use numbers only. Sums and extremes are longs if all numbers are longs.

use std::ops::Range;

use crate::bytes::{BytesReader, ParseResult, put_signed, put_varint, put_wide};
use crate::rows::PointRows;
use crate::store::Aggregation;
use crate::value::{KINDS, PointValue, PointValueKind, ValueRef};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BlockSummary {
    pub longs: u64,
    pub long_min: i64,
    pub long_max: i64,
    pub long_sum: i128,
    pub doubles: u64,
    pub double_min: f64,
    pub double_max: f64,
    pub double_sum: f64,
    pub bools: u64,
    pub trues: u64,
    pub strings: u64,
    pub jsons: u64,
}

impl BlockSummary {
    pub fn of(rows: &PointRows) -> BlockSummary {
        let mut summary = BlockSummary::default();
        summary.add_rows(rows, 0..rows.len());
        summary
    }

    fn add_rows(&mut self, rows: &PointRows, range: Range<usize>) {
        let Some(&first) = rows.kinds.get(range.start) else {
            return;
        };
        let bits = &rows.bits[range.clone()];
        let is_one_kind = rows.kinds[range.clone()].iter().all(|&kind| kind == first);
        match first {
            PointValueKind::Long if is_one_kind => self.merge(&BlockSummary::of_longs(bits)),
            PointValueKind::Double if is_one_kind => self.merge(&BlockSummary::of_doubles(bits)),
            _ => range.for_each(|row| self.add(rows.value(row))),
        }
    }

    fn of_longs(bits: &[u64]) -> BlockSummary {
        let (mut min, mut max, mut sum) = (i64::MAX, i64::MIN, 0);
        for &bits in bits {
            let value = bits as i64;
            min = min.min(value);
            max = max.max(value);
            sum += i128::from(value);
        }
        let mut summary = BlockSummary::default();
        summary.add_longs(bits.len() as u64, min, max, sum);
        summary
    }

    /// Aggregates in independent lanes, so that an addition need not wait for the previous one.
    fn of_doubles(bits: &[u64]) -> BlockSummary {
        const LANES: usize = 4;
        let first = f64::from_bits(bits[0]);
        let (mut min, mut max, mut sum) = ([first; LANES], [first; LANES], [0.0; LANES]);
        let (whole, rest) = bits.as_chunks::<LANES>();
        for chunk in whole {
            for lane in 0..LANES {
                let value = f64::from_bits(chunk[lane]);
                min[lane] = if value < min[lane] { value } else { min[lane] };
                max[lane] = if value > max[lane] { value } else { max[lane] };
                sum[lane] += value;
            }
        }
        for (lane, &bits) in rest.iter().enumerate() {
            let value = f64::from_bits(bits);
            min[lane] = min[lane].min(value);
            max[lane] = max[lane].max(value);
            sum[lane] += value;
        }
        let min = min.into_iter().fold(first, f64::min);
        let max = max.into_iter().fold(first, f64::max);
        let mut summary = BlockSummary::default();
        summary.add_doubles(bits.len() as u64, min, max, sum.into_iter().sum());
        summary
    }

    pub fn add(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Long(value) => self.add_longs(1, value, value, i128::from(value)),
            ValueRef::Double(value) => self.add_doubles(1, value, value, value),
            ValueRef::Bool(value) => {
                self.bools += 1;
                self.trues += u64::from(value);
            }
            ValueRef::String(_) => self.strings += 1,
            ValueRef::Json(_) => self.jsons += 1,
        }
    }

    pub fn merge(&mut self, other: &BlockSummary) {
        if other.longs > 0 {
            self.add_longs(other.longs, other.long_min, other.long_max, other.long_sum);
        }
        if other.doubles > 0 {
            self.add_doubles(other.doubles, other.double_min, other.double_max, other.double_sum);
        }
        self.bools += other.bools;
        self.trues += other.trues;
        self.strings += other.strings;
        self.jsons += other.jsons;
    }

    fn add_longs(&mut self, count: u64, min: i64, max: i64, sum: i128) {
        if self.longs == 0 {
            (self.long_min, self.long_max) = (min, max);
        }
        self.longs += count;
        self.long_min = self.long_min.min(min);
        self.long_max = self.long_max.max(max);
        self.long_sum += sum;
    }

    fn add_doubles(&mut self, count: u64, min: f64, max: f64, sum: f64) {
        if self.doubles == 0 {
            (self.double_min, self.double_max) = (min, max);
        }
        self.doubles += count;
        self.double_min = self.double_min.min(min);
        self.double_max = self.double_max.max(max);
        self.double_sum += sum;
    }

    fn numbers(&self) -> u64 {
        self.longs + self.doubles
    }

    pub fn count(&self) -> u64 {
        self.numbers() + self.bools + self.strings + self.jsons
    }

    /// Returns whether the summary of a block is sufficient for the aggregation. A summary has no texts.
    pub fn is_sufficient_for(&self, aggregation: Aggregation) -> bool {
        match aggregation {
            Aggregation::Min | Aggregation::Max => self.strings == 0 && self.jsons == 0,
            Aggregation::Avg | Aggregation::Sum | Aggregation::Count => true,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let counts = [self.longs, self.doubles, self.bools, self.strings, self.jsons];
        let present = |(index, &count): (usize, &u64)| u8::from(count > 0) << index;
        out.push(counts.iter().enumerate().map(present).sum());
        counts
            .iter()
            .filter(|count| **count > 0)
            .for_each(|&count| put_varint(out, count));
        if self.longs > 0 {
            put_signed(out, self.long_min);
            put_varint(out, self.long_max.wrapping_sub(self.long_min) as u64);
            put_wide(out, self.long_sum);
        }
        if self.doubles > 0 {
            for value in [self.double_min, self.double_max, self.double_sum] {
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        if self.bools > 0 {
            put_varint(out, self.trues);
        }
    }

    pub fn decode(from: &mut BytesReader<'_>) -> ParseResult<BlockSummary> {
        let present = from.u8()?;
        let mut count = |bit: u8| if present >> bit & 1 == 1 { from.varint() } else { Ok(0) };
        let mut summary = BlockSummary {
            longs: count(0)?,
            doubles: count(1)?,
            bools: count(2)?,
            strings: count(3)?,
            jsons: count(4)?,
            ..BlockSummary::default()
        };
        if summary.longs > 0 {
            summary.long_min = from.signed()?;
            summary.long_max = summary.long_min.wrapping_add(from.varint()? as i64);
            summary.long_sum = from.wide()?;
        }
        if summary.doubles > 0 {
            summary.double_min = from.f64()?;
            summary.double_max = from.f64()?;
            summary.double_sum = from.f64()?;
        }
        if summary.bools > 0 {
            summary.trues = from.varint()?;
        }
        Ok(summary)
    }
}

/// State of one bucket of a query: a summary, and the minimum or maximum text so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accumulator {
    pub summary: BlockSummary,
    string: Option<Box<str>>,
    json: Option<Box<str>>,
}

impl Accumulator {
    pub fn add_rows(&mut self, rows: &PointRows, range: Range<usize>, aggregation: Aggregation) {
        self.summary.add_rows(rows, range.clone());
        if rows.text.is_empty() && rows.kinds[range.clone()].iter().all(|kind| !kind.is_text()) {
            return;
        }
        for row in range {
            match rows.value(row) {
                ValueRef::String(text) => update_extreme(&mut self.string, text, aggregation),
                ValueRef::Json(text) => update_extreme(&mut self.json, text, aggregation),
                _ => {}
            }
        }
    }

    pub fn text_bytes(&self) -> usize {
        let bytes = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        bytes(&self.string) + bytes(&self.json)
    }

    /// Returns the result, or `None` if the bucket has no points that the aggregation uses.
    pub fn result(&self, aggregation: Aggregation) -> Option<PointValue> {
        let summary = &self.summary;
        match aggregation {
            Aggregation::Count => (summary.count() > 0).then(|| PointValue::Long(summary.count() as i64)),
            Aggregation::Sum | Aggregation::Avg if summary.numbers() == 0 => None,
            Aggregation::Sum => Some(sum(summary)),
            Aggregation::Avg => {
                let total = summary.double_sum + summary.long_sum as f64;
                Some(PointValue::Double(total / summary.numbers() as f64))
            }
            Aggregation::Min | Aggregation::Max => self.extreme(aggregation == Aggregation::Max),
        }
    }

    fn extreme(&self, is_max: bool) -> Option<PointValue> {
        let summary = &self.summary;
        let long = if is_max { summary.long_max } else { summary.long_min };
        let double = if is_max { summary.double_max } else { summary.double_min };
        match (summary.longs > 0, summary.doubles > 0) {
            (true, false) => return Some(PointValue::Long(long)),
            (false, true) => return Some(PointValue::Double(double)),
            (true, true) if is_max => return Some(PointValue::Double(double.max(long as f64))),
            (true, true) => return Some(PointValue::Double(double.min(long as f64))),
            (false, false) => {}
        }
        if let Some(string) = &self.string {
            return Some(PointValue::String(string.clone()));
        }
        if summary.bools > 0 {
            let is_true = if is_max {
                summary.trues > 0
            } else {
                summary.trues == summary.bools
            };
            return Some(PointValue::Bool(is_true));
        }
        self.json.clone().map(PointValue::Json)
    }
}

/// Returns the sum. It becomes a double if a long cannot hold it.
fn sum(summary: &BlockSummary) -> PointValue {
    match i64::try_from(summary.long_sum) {
        Ok(sum) if summary.doubles == 0 => PointValue::Long(sum),
        _ => PointValue::Double(summary.double_sum + summary.long_sum as f64),
    }
}

fn update_extreme(extreme: &mut Option<Box<str>>, text: &str, aggregation: Aggregation) {
    let is_better = match (aggregation, extreme.as_deref()) {
        (Aggregation::Min, Some(extreme)) => text < extreme,
        (Aggregation::Max, Some(extreme)) => text > extreme,
        (Aggregation::Min | Aggregation::Max, None) => true,
        _ => false,
    };
    if is_better {
        *extreme = Some(text.into());
    }
}

/// Returns the kinds that occur, ordered by tag.
pub(crate) fn kinds_of(kinds: &[PointValueKind]) -> Vec<PointValueKind> {
    match kinds.first() {
        Some(&first) if kinds.iter().all(|&kind| kind == first) => vec![first],
        _ => KINDS.into_iter().filter(|kind| kinds.contains(kind)).collect(),
    }
}
