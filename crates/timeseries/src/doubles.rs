//! Columns of doubles. Most sensors send decimals with a few places, that is, integers times a power of ten. Such
//! columns are stored as integers if every value round-trips exactly. Other columns are compressed with pco, or stored
//! raw if they are short.
//!
//! ```text
//! 0 raw      8 bytes each
//! 1 decimal  exponent u8, the integers as ints.rs writes them
//! 2 pco      length, one chunk with one page
//! ```

use pco::ChunkConfig;

use crate::bytes::{BytesReader, InvalidBytes, ParseResult, put_varint};
use crate::ints::{self, EncodeEffort, pco_chunk, pco_values};

const RAW: u8 = 0;
const DECIMAL: u8 = 1;
const PCO: u8 = 2;

const POWERS: [f64; 8] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7];
/// Smaller integers are exact in a double.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
const PCO_MIN: usize = 64;

pub(crate) fn encode(values: &[f64], effort: EncodeEffort, out: &mut Vec<u8>) {
    if let Some((exponent, integers)) = decimals(values) {
        out.push(DECIMAL);
        out.push(exponent);
        return ints::encode(&integers, effort, out);
    }
    let compressed = if values.len() < PCO_MIN {
        None
    } else {
        pco_chunk(values, &ChunkConfig::default().with_compression_level(level(effort)))
    };
    match compressed.filter(|bytes| bytes.len() < values.len() * 8) {
        Some(bytes) => {
            out.push(PCO);
            put_varint(out, bytes.len() as u64);
            out.extend_from_slice(&bytes);
        }
        None => {
            out.push(RAW);
            values
                .iter()
                .for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
    }
}

fn level(effort: EncodeEffort) -> usize {
    match effort {
        EncodeEffort::Fast => 1,
        EncodeEffort::Small => 6,
    }
}

fn decimals(values: &[f64]) -> Option<(u8, Vec<i64>)> {
    let mut exponent = 0;
    for &value in values {
        while scaled(value, exponent).is_none() {
            exponent += 1;
            if exponent == POWERS.len() {
                return None;
            }
        }
    }
    // A value that fits a smaller exponent may be too large for the common one.
    let integers: Option<Vec<i64>> = values.iter().map(|&value| scaled(value, exponent)).collect();
    Some((exponent as u8, integers?))
}

fn scaled(value: f64, exponent: usize) -> Option<i64> {
    let integer = (value * POWERS[exponent]).round();
    let is_same = integer.abs() < EXACT_MAX && (integer as i64 as f64 / POWERS[exponent]).to_bits() == value.to_bits();
    is_same.then_some(integer as i64)
}

pub(crate) fn decode(count: usize, from: &mut BytesReader<'_>) -> ParseResult<Vec<f64>> {
    match from.u8()? {
        RAW => (0..count).map(|_| from.f64()).collect(),
        DECIMAL => {
            let power = *POWERS
                .get(usize::from(from.u8()?))
                .ok_or(InvalidBytes("an exponent less than 8"))?;
            let integers = ints::decode(count, from)?;
            Ok(integers.into_iter().map(|integer| integer as f64 / power).collect())
        }
        PCO => {
            let len = from.size()?;
            pco_values(count, from.take(len)?)
        }
        _ => Err(InvalidBytes("a known codec for doubles")),
    }
}

#[cfg(test)]
mod tests {
    use super::{BytesReader, EncodeEffort, decode, encode};

    fn round_trip(values: &[f64]) -> usize {
        let mut size = 0;
        for effort in [EncodeEffort::Fast, EncodeEffort::Small] {
            let mut bytes = Vec::new();
            encode(values, effort, &mut bytes);
            let decoded = decode(values.len(), &mut BytesReader::new(&bytes)).unwrap();
            assert!(decoded.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()));
            size = bytes.len();
        }
        size
    }

    #[test]
    fn doubles_round_trip_bit_for_bit() {
        round_trip(&[0.0, -0.0, f64::MAX, f64::MIN_POSITIVE, 1e300, 0.1, f64::INFINITY]);
        round_trip(&(0..500).map(|n| (f64::from(n)).sin()).collect::<Vec<_>>());
        round_trip(&(0..500).map(|n| (f64::from(n)).sqrt() * 1e17).collect::<Vec<_>>());
        let temperatures: Vec<f64> = (0..1000).map(|n| f64::from(200 + n % 7) / 10.0).collect();
        assert!(round_trip(&temperatures) < 500);
    }
}
