//! Encoding of numbers: little-endian integers, LEB128 varints, and a bounds-checked reader.

/// The bytes are invalid. Contains a description of the expected bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidBytes(pub &'static str);

pub(crate) type ParseResult<T> = Result<T, InvalidBytes>;

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, zigzag(value));
}

pub(crate) fn put_wide(out: &mut Vec<u8>, value: i128) {
    let mut rest = ((value << 1) ^ (value >> 127)) as u128;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BytesReader<'a> {
    bytes: &'a [u8],
}

impl<'a> BytesReader<'a> {
    pub fn new(bytes: &'a [u8]) -> BytesReader<'a> {
        BytesReader { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn take(&mut self, count: usize) -> ParseResult<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(InvalidBytes("more bytes"))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> ParseResult<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(InvalidBytes("more bytes"))?;
        self.bytes = rest;
        Ok(*taken)
    }

    #[inline]
    pub fn u8(&mut self) -> ParseResult<u8> {
        let (&first, rest) = self.bytes.split_first().ok_or(InvalidBytes("more bytes"))?;
        self.bytes = rest;
        Ok(first)
    }

    pub fn u32(&mut self) -> ParseResult<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> ParseResult<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> ParseResult<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn f64(&mut self) -> ParseResult<f64> {
        self.array().map(f64::from_le_bytes)
    }

    #[inline]
    pub fn varint(&mut self) -> ParseResult<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7F) << shift.min(63);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(InvalidBytes("a varint of at most 10 bytes"))
    }

    pub fn signed(&mut self) -> ParseResult<i64> {
        self.varint().map(unzigzag)
    }

    pub fn wide(&mut self) -> ParseResult<i128> {
        let mut value = 0u128;
        for shift in (0..133).step_by(7) {
            let byte = self.u8()?;
            value |= u128::from(byte & 0x7F) << shift.min(127);
            if byte < 0x80 {
                return Ok((value >> 1) as i128 ^ -((value & 1) as i128));
            }
        }
        Err(InvalidBytes("a varint of at most 19 bytes"))
    }

    pub fn size(&mut self) -> ParseResult<usize> {
        usize::try_from(self.varint()?).map_err(|_| InvalidBytes("a size"))
    }

    pub fn text(&mut self) -> ParseResult<&'a str> {
        let len = self.size()?;
        std::str::from_utf8(self.take(len)?).map_err(|_| InvalidBytes("UTF-8 text"))
    }
}
