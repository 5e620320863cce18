//! Blocks: up to [`ROWS_MAX`] points of one series, in order of time, each time once. The unit of compression, of reading
//! and of what an index entry describes, in memory and on disk.
//!
//! ```text
//! payload  kind u8 (value.rs), or 255 and a column of kinds | timestamps | a column for each kind that occurs
//! entry    payload_bytes | crc32c u32 of the payload | min_ts | max_ts - min_ts | summary (summary.rs has the count)
//! ```

use crate::bytes::{Invalid, Read, Reader, put_signed, put_varint};
use crate::ints::{self, Effort};
use crate::rows::Rows;
use crate::summary::{Summary, kinds_of};
use crate::value::Kind;
use crate::{doubles, texts};

/// Larger blocks are hardly smaller per point, and a chart decodes one at each edge of an interval.
pub(crate) const ROWS_MAX: usize = 512;
/// A block with so much text is not made longer.
const TEXT_BYTES_TARGET: usize = 256 << 10;
const MIXED: u8 = 255;

/// What an index says of a block.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub payload_bytes: u32,
    pub crc: u32,
    pub min_ts: i64,
    pub max_ts: i64,
    pub summary: Summary,
}

impl Entry {
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.payload_bytes));
        out.extend_from_slice(&self.crc.to_le_bytes());
        put_signed(out, self.min_ts);
        put_varint(out, self.max_ts.wrapping_sub(self.min_ts) as u64);
        self.summary.encode(out);
    }

    pub fn decode(from: &mut Reader<'_>) -> Read<Entry> {
        let payload_bytes = u32::try_from(from.varint()?).map_err(|_| Invalid("a block below 4 GiB"))?;
        let crc = from.u32()?;
        let min_ts = from.signed()?;
        Ok(Entry {
            payload_bytes,
            crc,
            min_ts,
            max_ts: min_ts.wrapping_add(from.varint()? as i64),
            summary: Summary::decode(from)?,
        })
    }

    pub fn rows(&self) -> usize {
        self.summary.count() as usize
    }
}

/// Entry and payload of rows that are sorted and not empty.
pub(crate) fn encode(rows: &Rows, effort: Effort) -> (Entry, Vec<u8>) {
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
    let entry = Entry {
        payload_bytes: payload.len() as u32,
        crc: crc32c::crc32c(&payload),
        min_ts: rows.ts.first().copied().unwrap_or_default(),
        max_ts: rows.ts.last().copied().unwrap_or_default(),
        summary: Summary::of(rows),
    };
    (entry, payload)
}

fn encode_column(rows: &Rows, kind: Kind, effort: Effort, out: &mut Vec<u8>) {
    let bits = (0..rows.len()).filter(|&row| rows.kinds[row] == kind);
    match kind {
        Kind::Bool | Kind::Long => {
            let values: Vec<i64> = bits.map(|row| rows.bits[row] as i64).collect();
            ints::encode(&values, effort, out);
        }
        Kind::Double => {
            let values: Vec<f64> = bits.map(|row| f64::from_bits(rows.bits[row])).collect();
            doubles::encode(&values, effort, out);
        }
        Kind::String | Kind::Json => texts::encode(bits.map(|row| rows.text_of(row)), effort, out),
    }
}

pub(crate) fn decode(count: usize, payload: &[u8]) -> Read<Rows> {
    if count > ROWS_MAX {
        return Err(Invalid("at most 512 points in a block"));
    }
    let mut from = Reader::new(payload);
    let kinds = decode_kinds(count, &mut from)?;
    let present = kinds_of(&kinds);
    let mut rows = Rows {
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
        return Err(Invalid("the end of the block"));
    }
    Ok(rows)
}

fn decode_kinds(count: usize, from: &mut Reader<'_>) -> Read<Vec<Kind>> {
    let kind = |tag: u64| Kind::from_tag(tag).ok_or(Invalid("a known type of values"));
    match from.u8()? {
        MIXED => ints::decode(count, from)?
            .into_iter()
            .map(|tag| kind(tag as u64))
            .collect(),
        tag => Ok(vec![kind(u64::from(tag))?; count]),
    }
}

fn decode_column(kind: Kind, count: usize, from: &mut Reader<'_>, text: &mut String) -> Read<Vec<u64>> {
    match kind {
        Kind::Bool | Kind::Long => Ok(ints::decode(count, from)?
            .into_iter()
            .map(|value| value as u64)
            .collect()),
        Kind::Double => Ok(doubles::decode(count, from)?.into_iter().map(f64::to_bits).collect()),
        Kind::String | Kind::Json => texts::decode(count, from, text),
    }
}

/// Where to cut rows into blocks of nearly one size; ends of ranges.
pub(crate) fn cuts(rows: &Rows) -> Vec<usize> {
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
    use super::{Effort, Entry, Reader, decode, encode};
    use crate::rows::Rows;
    use crate::value::ValueRef;

    #[test]
    fn mixed_blocks_come_back() {
        let mut rows = Rows::default();
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
        for effort in [Effort::Fast, Effort::Small] {
            let (entry, payload) = encode(&rows, effort);
            let back = decode(500, &payload).unwrap();
            assert!((0..500).all(|row| back.ts[row] == rows.ts[row] && back.value(row) == rows.value(row)));
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            let again = Entry::decode(&mut Reader::new(&bytes)).unwrap();
            assert_eq!(again.summary, entry.summary);
            assert_eq!((again.min_ts, again.max_ts, again.rows()), (0, entry.max_ts, 500));
        }
    }
}
