//! Blocks: up to [`ROWS_MAX`] points of one series, ordered by time without duplicate times. A block is the unit of
//! compression, reading and indexing, in memory and on disk.
//!
//! ```text
//! payload  kind u8 (value.rs), or 255 and a column of kinds | timestamps | a column for each kind that occurs
//! entry    payload_bytes | crc32c u32 of the payload | min_ts | max_ts - min_ts | summary (summary.rs has the count)
//! ```

use crate::bytes::{BytesReader, InvalidBytes, ParseResult, put_signed, put_varint};
use crate::ints::{self, EncodeEffort};
use crate::rows::PointRows;
use crate::summary::{BlockSummary, kinds_of};
use crate::value::PointValueKind;
use crate::{doubles, texts};

/// Larger blocks are hardly smaller per point, and a chart decodes one block at each edge of an interval.
pub(crate) const ROWS_MAX: usize = 512;
/// A block with this much text gets no more points.
const TEXT_BYTES_TARGET: usize = 256 << 10;
const MIXED: u8 = 255;

/// Index entry of a block.
#[derive(Clone, Debug)]
pub(crate) struct BlockEntry {
    pub payload_bytes: u32,
    pub crc: u32,
    pub min_ts: i64,
    pub max_ts: i64,
    pub summary: BlockSummary,
}

impl BlockEntry {
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.payload_bytes));
        out.extend_from_slice(&self.crc.to_le_bytes());
        put_signed(out, self.min_ts);
        put_varint(out, self.max_ts.wrapping_sub(self.min_ts) as u64);
        self.summary.encode(out);
    }

    pub fn decode(from: &mut BytesReader<'_>) -> ParseResult<BlockEntry> {
        let payload_bytes = u32::try_from(from.varint()?).map_err(|_| InvalidBytes("a block smaller than 4 GiB"))?;
        let crc = from.u32()?;
        let min_ts = from.signed()?;
        Ok(BlockEntry {
            payload_bytes,
            crc,
            min_ts,
            max_ts: min_ts.wrapping_add(from.varint()? as i64),
            summary: BlockSummary::decode(from)?,
        })
    }

    pub fn rows(&self) -> usize {
        self.summary.count() as usize
    }
}

/// Encodes rows, which must be sorted and not empty.
pub(crate) fn encode(rows: &PointRows, effort: EncodeEffort) -> (BlockEntry, Vec<u8>) {
    let mut payload = Vec::with_capacity(64 + rows.len() * 4);
    let kinds = kinds_of(&rows.kinds);
    match kinds[..] {
        [kind] => payload.push(kind as u8),
        _ => {
            payload.push(MIXED);
            let tags: Vec<i64> = rows.kinds.iter().map(|&kind| kind as i64).collect();
            ints::encode(&tags, effort, &mut payload);
        }
    }
    ints::encode(&rows.ts, effort, &mut payload);
    for kind in kinds {
        encode_column(rows, kind, effort, &mut payload);
    }
    let entry = BlockEntry {
        payload_bytes: payload.len() as u32,
        crc: crc32c::crc32c(&payload),
        min_ts: rows.ts.first().copied().unwrap_or_default(),
        max_ts: rows.ts.last().copied().unwrap_or_default(),
        summary: BlockSummary::of(rows),
    };
    (entry, payload)
}

fn encode_column(rows: &PointRows, kind: PointValueKind, effort: EncodeEffort, out: &mut Vec<u8>) {
    let bits = (0..rows.len()).filter(|&row| rows.kinds[row] == kind);
    match kind {
        PointValueKind::Bool | PointValueKind::Long => {
            let values: Vec<i64> = bits.map(|row| rows.bits[row] as i64).collect();
            ints::encode(&values, effort, out);
        }
        PointValueKind::Double => {
            let values: Vec<f64> = bits.map(|row| f64::from_bits(rows.bits[row])).collect();
            doubles::encode(&values, effort, out);
        }
        PointValueKind::String | PointValueKind::Json => texts::encode(bits.map(|row| rows.text_of(row)), effort, out),
    }
}

pub(crate) fn decode(count: usize, payload: &[u8]) -> ParseResult<PointRows> {
    if count > ROWS_MAX {
        return Err(InvalidBytes("at most 512 points in a block"));
    }
    let mut from = BytesReader::new(payload);
    let kinds = decode_kinds(count, &mut from)?;
    let present = kinds_of(&kinds);
    let mut rows = PointRows {
        ts: ints::decode(count, &mut from)?,
        kinds,
        bits: Vec::new(),
        text: String::new(),
    };
    if let [kind] = present[..] {
        rows.bits = decode_column(kind, count, &mut from, &mut rows.text)?;
    } else {
        rows.bits = vec![0; count];
        for kind in present {
            let members: Vec<usize> = (0..count).filter(|&row| rows.kinds[row] == kind).collect();
            let bits = decode_column(kind, members.len(), &mut from, &mut rows.text)?;
            members
                .into_iter()
                .zip(bits)
                .for_each(|(row, bits)| rows.bits[row] = bits);
        }
    }
    if !from.is_empty() {
        return Err(InvalidBytes("the end of the block"));
    }
    Ok(rows)
}

fn decode_kinds(count: usize, from: &mut BytesReader<'_>) -> ParseResult<Vec<PointValueKind>> {
    let kind = |tag: u64| PointValueKind::from_tag(tag).ok_or(InvalidBytes("a known value type"));
    match from.u8()? {
        MIXED => ints::decode(count, from)?
            .into_iter()
            .map(|tag| kind(tag as u64))
            .collect(),
        tag => Ok(vec![kind(u64::from(tag))?; count]),
    }
}

fn decode_column(
    kind: PointValueKind,
    count: usize,
    from: &mut BytesReader<'_>,
    text: &mut String,
) -> ParseResult<Vec<u64>> {
    match kind {
        PointValueKind::Bool | PointValueKind::Long => Ok(ints::decode(count, from)?
            .into_iter()
            .map(|value| value as u64)
            .collect()),
        PointValueKind::Double => Ok(doubles::decode(count, from)?.into_iter().map(f64::to_bits).collect()),
        PointValueKind::String | PointValueKind::Json => texts::decode(count, from, text),
    }
}

/// Returns the ends of row ranges that form blocks of nearly equal size.
pub(crate) fn block_ends(rows: &PointRows) -> Vec<usize> {
    let blocks = rows.len().div_ceil(ROWS_MAX).max(1);
    let rows_each = rows.len().div_ceil(blocks);
    let mut cuts = Vec::with_capacity(blocks);
    let (mut from, mut text_bytes) = (0, 0);
    for row in 0..rows.len() {
        text_bytes += rows.text_bytes(row);
        if row + 1 - from >= rows_each || text_bytes >= TEXT_BYTES_TARGET || row + 1 == rows.len() {
            cuts.push(row + 1);
            (from, text_bytes) = (row + 1, 0);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::{BlockEntry, BytesReader, EncodeEffort, decode, encode};
    use crate::rows::PointRows;
    use crate::value::ValueRef;

    #[test]
    fn block_of_mixed_types_round_trips() {
        let mut rows = PointRows::default();
        for n in 0..500i64 {
            let text = format!("{{\"n\":{n}}}");
            let value = match n * 7 % 11 {
                0 | 1 => ValueRef::Bool(n % 3 == 0),
                2..=4 => ValueRef::Long(n * n),
                5..=7 => ValueRef::Double(n as f64 / 8.0),
                8 | 9 => ValueRef::String(&text[1..]),
                _ => ValueRef::Json(&text),
            };
            rows.push(n * 1000 + n % 13, value);
        }
        for effort in [EncodeEffort::Fast, EncodeEffort::Small] {
            let (entry, payload) = encode(&rows, effort);
            let decoded = decode(500, &payload).unwrap();
            assert!((0..500).all(|row| decoded.ts[row] == rows.ts[row] && decoded.value(row) == rows.value(row)));
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            let decoded = BlockEntry::decode(&mut BytesReader::new(&bytes)).unwrap();
            assert_eq!(decoded.summary, entry.summary);
            assert_eq!((decoded.min_ts, decoded.max_ts, decoded.rows()), (0, entry.max_ts, 500));
        }
    }
}
