//! Columns of strings and JSON: the lengths, then the concatenated bytes, compressed with LZ4 if that makes them
//! smaller.
//!
//! ```text
//! lengths (ints.rs) | codec u8: 0 raw, 1 lz4 | raw_bytes | stored_bytes | bytes
//! ```

use crate::bytes::{BytesReader, InvalidBytes, ParseResult, put_varint};
use crate::ints::{self, EncodeEffort};

const RAW: u8 = 0;
const LZ4: u8 = 1;
/// Minimum number of bytes for LZ4. Shorter input has no matches.
const LZ4_MIN: usize = 32;
/// Maximum text of a block. Real blocks are smaller (see block.rs); the limit bounds the memory that a damaged length
/// can request.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 30;

pub(crate) fn encode<'a>(texts: impl Iterator<Item = &'a str> + Clone, effort: EncodeEffort, out: &mut Vec<u8>) {
    let lengths: Vec<i64> = texts.clone().map(|text| text.len() as i64).collect();
    ints::encode(&lengths, effort, out);
    let raw: Vec<u8> = texts.flat_map(str::bytes).collect();
    let packed = if raw.len() < LZ4_MIN {
        Vec::new()
    } else {
        lz4_flex::block::compress(&raw)
    };
    let is_smaller = !packed.is_empty() && packed.len() < raw.len();
    let (codec, stored) = if is_smaller { (LZ4, &packed) } else { (RAW, &raw) };
    out.push(codec);
    put_varint(out, raw.len() as u64);
    put_varint(out, stored.len() as u64);
    out.extend_from_slice(stored);
}

/// Appends the texts to `text`. Returns the location of each: offset in the upper half, length in the lower.
pub(crate) fn decode(count: usize, from: &mut BytesReader<'_>, text: &mut String) -> ParseResult<Vec<u64>> {
    let lengths = ints::decode(count, from)?;
    let codec = from.u8()?;
    let (raw_bytes, stored_bytes) = (from.size()?, from.size()?);
    let stored = from.take(stored_bytes)?;
    if raw_bytes > TEXT_BYTES_MAX {
        return Err(InvalidBytes("text of at most 1 GiB"));
    }
    let unpacked = match codec {
        RAW => stored.to_vec(),
        LZ4 => lz4_flex::block::decompress(stored, raw_bytes).map_err(|_| InvalidBytes("text that LZ4 can read"))?,
        _ => return Err(InvalidBytes("a known codec for texts")),
    };
    let base = text.len();
    text.push_str(std::str::from_utf8(&unpacked).map_err(|_| InvalidBytes("UTF-8 text"))?);
    locations(&lengths, base, text)
}

fn locations(lengths: &[i64], base: usize, text: &str) -> ParseResult<Vec<u64>> {
    let mut offset = base;
    let mut locations = Vec::with_capacity(lengths.len());
    for &len in lengths {
        let len = usize::try_from(len).map_err(|_| InvalidBytes("a length"))?;
        let end = offset.checked_add(len).ok_or(InvalidBytes("a length"))?;
        if text.get(offset..end).is_none() {
            return Err(InvalidBytes("lengths that fit the text"));
        }
        locations.push((offset as u64) << 32 | len as u64);
        offset = end;
    }
    Ok(locations)
}
