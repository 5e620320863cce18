//! Columns of integers: timestamps, longs, bools, lengths. The encoder picks the smallest of several codecs; the first
//! byte identifies it.
//!
//! ```text
//! 0 constant      value
//! 1 linear        first, step
//! 2 packed        groups of 128: minimum, width u8, then each value minus the minimum in `width` bits
//! 3 packed deltas first, then the differences as in 2
//! 4 pco           length, one chunk with one page
//! ```
//!
//! Packed columns decode ten times as fast as pco's. Pco is therefore used only in blocks that are written to stay, and
//! only if its result is clearly smaller.

use pco::wrapped::{FileCompressor, FileDecompressor};
use pco::{ChunkConfig, ModeSpec};

use crate::bytes::{BytesReader, InvalidBytes, ParseResult, put_signed, put_varint};

const CONSTANT: u8 = 0;
const LINEAR: u8 = 1;
const PACKED: u8 = 2;
const PACKED_DELTAS: u8 = 3;
const PCO: u8 = 4;

const GROUP: usize = 128;
/// Minimum number of values for pco. Below, its header outweighs the savings.
const PCO_MIN: usize = 256;
const PCO_LEVEL: usize = 4;
/// Maximum size of pco's result, in percent of the packed size.
const PCO_PERCENT_MAX: usize = 70;

/// Trade-off between encoding time and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncodeEffort {
    /// For blocks that are merged soon.
    Fast,
    Small,
}

pub(crate) fn encode(values: &[i64], effort: EncodeEffort, out: &mut Vec<u8>) {
    let Some(&first) = values.first() else { return };
    let deltas: Vec<i64> = values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    let step = deltas.first().copied().unwrap_or(0);
    if deltas.iter().all(|&delta| delta == step) {
        out.push(if step == 0 { CONSTANT } else { LINEAR });
        put_signed(out, first);
        if step != 0 {
            put_signed(out, step);
        }
        return;
    }
    let start = out.len();
    if packed_bits(&deltas) < packed_bits(values) {
        out.push(PACKED_DELTAS);
        put_signed(out, first);
        pack(&deltas, out);
    } else {
        out.push(PACKED);
        pack(values, out);
    }
    if effort == EncodeEffort::Small && values.len() >= PCO_MIN {
        let limit = (out.len() - start) * PCO_PERCENT_MAX / 100;
        if let Some(smaller) = pco_encode(values).filter(|bytes| bytes.len() < limit) {
            out.truncate(start);
            out.push(PCO);
            put_varint(out, smaller.len() as u64);
            out.extend_from_slice(&smaller);
        }
    }
}

fn packed_bits(values: &[i64]) -> usize {
    let bits = |group: &[i64]| 24 + group.len() * width_of(group).1 as usize;
    values.chunks(GROUP).map(bits).sum()
}

/// Returns the minimum of a group, and the number of bits needed for the differences to it.
fn width_of(group: &[i64]) -> (i64, u32) {
    let (min, max) = group.iter().fold((i64::MAX, i64::MIN), |(min, max), &value| {
        (min.min(value), max.max(value))
    });
    (min, 64 - (max.wrapping_sub(min) as u64).leading_zeros())
}

fn pack(values: &[i64], out: &mut Vec<u8>) {
    for group in values.chunks(GROUP) {
        let (min, width) = width_of(group);
        put_signed(out, min);
        out.push(width as u8);
        let (mut held, mut bits) = (0u128, 0);
        for value in group {
            held |= u128::from(value.wrapping_sub(min) as u64) << bits;
            bits += width;
            while bits >= 8 {
                out.push(held as u8);
                held >>= 8;
                bits -= 8;
            }
        }
        if bits > 0 {
            out.push(held as u8);
        }
    }
}

fn unpack(count: usize, from: &mut BytesReader<'_>, out: &mut Vec<i64>) -> ParseResult<()> {
    let mut left = count;
    while left > 0 {
        let group = left.min(GROUP);
        let min = from.signed()?;
        let width = u32::from(from.u8()?);
        if width > 64 {
            return Err(InvalidBytes("a width of at most 64 bits"));
        }
        let bytes = from.take((group * width as usize).div_ceil(8))?;
        unpack_group(group, width, min, bytes, out);
        left -= group;
    }
    Ok(())
}

fn unpack_group(count: usize, width: u32, min: i64, bytes: &[u8], out: &mut Vec<i64>) {
    // The longest group, plus padding so that 16 bytes can be read at every offset.
    let mut padded = [0; GROUP * 8 + 16];
    padded[..bytes.len()].copy_from_slice(bytes);
    if width <= 56 {
        let mask = (1u64 << width) - 1;
        out.extend((0..count).map(|index| {
            let bit = index * width as usize;
            let word = padded[bit / 8..]
                .first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word));
            min.wrapping_add((word >> (bit % 8) & mask) as i64)
        }));
        return;
    }
    let mask = (1u128 << width) - 1;
    out.extend((0..count).map(|index| {
        let bit = index * width as usize;
        let word = padded[bit / 8..]
            .first_chunk()
            .map_or(0, |word| u128::from_le_bytes(*word));
        min.wrapping_add((word >> (bit % 8) & mask) as i64)
    }));
}

fn pco_encode(values: &[i64]) -> Option<Vec<u8>> {
    let config = ChunkConfig::default()
        .with_compression_level(PCO_LEVEL)
        .with_mode_spec(ModeSpec::Classic);
    pco_chunk(values, &config)
}

/// Compresses a column. `None` if pco fails; the caller uses another codec.
pub(crate) fn pco_chunk<T: pco::data_types::Number>(values: &[T], config: &ChunkConfig) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut chunk = FileCompressor::default().chunk_compressor(values, config).ok()?;
    chunk.write_meta(&mut out).ok()?;
    if chunk.n_per_page().len() != 1 {
        return None;
    }
    chunk.write_page(0, &mut out).ok()?;
    Some(out)
}

pub(crate) fn pco_values<T: pco::data_types::Number + Default>(count: usize, bytes: &[u8]) -> ParseResult<Vec<T>> {
    let invalid = |_| InvalidBytes("a column that pco can read");
    let mut header = Vec::new();
    FileCompressor::default().write_header(&mut header).map_err(invalid)?;
    let (file, _) = FileDecompressor::new(&header[..]).map_err(invalid)?;
    let (mut chunk, rest) = file.chunk_decompressor::<T, _>(bytes).map_err(invalid)?;
    let mut page = chunk.page_decompressor(rest, count).map_err(invalid)?;
    let mut values = vec![T::default(); count];
    let progress = page.read(&mut values).map_err(invalid)?;
    if progress.n_processed != count {
        return Err(InvalidBytes("one number for each point"));
    }
    Ok(values)
}

pub(crate) fn decode(count: usize, from: &mut BytesReader<'_>) -> ParseResult<Vec<i64>> {
    let mut out = Vec::with_capacity(count);
    if count == 0 {
        return Ok(out);
    }
    match from.u8()? {
        CONSTANT => out.resize(count, from.signed()?),
        LINEAR => {
            let (first, step) = (from.signed()?, from.signed()?);
            out.extend((0..count as i64).map(|index| first.wrapping_add(step.wrapping_mul(index))));
        }
        PACKED => unpack(count, from, &mut out)?,
        PACKED_DELTAS => {
            let mut last = from.signed()?;
            out.push(last);
            unpack(count - 1, from, &mut out)?;
            for value in &mut out[1..] {
                last = last.wrapping_add(*value);
                *value = last;
            }
        }
        PCO => {
            let len = from.size()?;
            return pco_values(count, from.take(len)?);
        }
        _ => return Err(InvalidBytes("a known codec for integers")),
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::{BytesReader, EncodeEffort, decode, encode};

    fn round_trip(values: &[i64]) -> usize {
        let mut sizes = Vec::new();
        for effort in [EncodeEffort::Fast, EncodeEffort::Small] {
            let mut bytes = Vec::new();
            encode(values, effort, &mut bytes);
            let mut reader = BytesReader::new(&bytes);
            assert_eq!(decode(values.len(), &mut reader).unwrap(), values);
            assert!(reader.is_empty());
            sizes.push(bytes.len());
        }
        sizes[1]
    }

    #[test]
    fn integers_round_trip_for_each_codec() {
        assert_eq!(round_trip(&[7; 1000]), 2);
        assert!(round_trip(&(0..1000).map(|n| 1_700_000_000_000 + n * 1000).collect::<Vec<_>>()) < 12);
        round_trip(&[]);
        round_trip(&[i64::MIN, i64::MAX, 0, -1, 1, i64::MIN]);
        for count in [1, 2, 127, 128, 129, 130, 1023, 1024] {
            let mut state = count as u64;
            for shift in [0, 1, 7, 8, 30, 44, 57, 62] {
                let values: Vec<i64> = (0..count)
                    .map(|_| {
                        state = state
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        (state as i64) >> shift
                    })
                    .collect();
                round_trip(&values);
            }
        }
    }

    #[test]
    fn truncated_column_is_rejected() {
        let values: Vec<i64> = (0..300).map(|n| n * n % 97).collect();
        let mut bytes = Vec::new();
        encode(&values, EncodeEffort::Small, &mut bytes);
        for len in 0..bytes.len() {
            assert!(
                decode(values.len(), &mut BytesReader::new(&bytes[..len])).is_err(),
                "{len}"
            );
        }
    }
}
