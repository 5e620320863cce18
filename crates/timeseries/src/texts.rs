//! Columns of strings and JSON: lengths, then all bytes in one, compressed with LZ4 when that helps.
//!
//! ```text
//! lengths (ints.rs) | codec u8: 0 raw, 1 lz4 | raw_bytes | stored_bytes | bytes
//! ```

use crate::bytes::{Invalid, Read, Reader, put_varint};
use crate::ints::{self, Effort};

const RAW: u8 = 0;
const LZ4: u8 = 1;
/// Below, LZ4 finds nothing to refer back to.
const LZ4_MIN: usize = 32;
/// No block has so much text (block.rs cuts them); a damaged length must not ask for all memory.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 30;

pub(crate) fn encode<'a>(texts: impl Iterator<Item = &'a str> + Clone, effort: Effort, out: &mut Vec<u8>) {
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

/// Appends to `text`; gives the place of each: offset above, length below.
pub(crate) fn decode(count: usize, from: &mut Reader<'_>, text: &mut String) -> Read<Vec<u64>> {
    let lengths = ints::decode(count, from)?;
    let codec = from.u8()?;
    let (raw_bytes, stored_bytes) = (from.size()?, from.size()?);
    let stored = from.take(stored_bytes)?;
    if raw_bytes > TEXT_BYTES_MAX {
        return Err(Invalid("text of at most 1 GiB"));
    }
    let unpacked = match codec {
        RAW => stored.to_vec(),
        LZ4 => lz4_flex::block::decompress(stored, raw_bytes).map_err(|_| Invalid("text that LZ4 can read"))?,
        _ => return Err(Invalid("a known codec of texts")),
    };
    let base = text.len();
    text.push_str(std::str::from_utf8(&unpacked).map_err(|_| Invalid("UTF-8 text"))?);
    places(&lengths, base, text)
}

fn places(lengths: &[i64], base: usize, text: &str) -> Read<Vec<u64>> {
    let mut offset = base;
    let mut places = Vec::with_capacity(lengths.len());
    for &len in lengths {
        let len = usize::try_from(len).map_err(|_| Invalid("a length"))?;
        let end = offset.checked_add(len).ok_or(Invalid("a length"))?;
        if text.get(offset..end).is_none() {
            return Err(Invalid("lengths that fit the text"));
        }
        places.push((offset as u64) << 32 | len as u64);
        offset = end;
    }
    Ok(places)
}
