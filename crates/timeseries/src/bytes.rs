//! Numbers to bytes and back: little-endian integers and LEB128 varints, and a reader that ends instead of panicking.

/// The bytes are not what they should be; says what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid(pub &'static str);

pub(crate) type Read<T> = Result<T, Invalid>;

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

/// Takes from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(Invalid("more bytes"))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(Invalid("more bytes"))?;
        self.bytes = rest;
        Ok(*taken)
    }

    #[inline]
    pub fn u8(&mut self) -> Read<u8> {
        let (&first, rest) = self.bytes.split_first().ok_or(Invalid("more bytes"))?;
        self.bytes = rest;
        Ok(first)
    }

    pub fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn f64(&mut self) -> Read<f64> {
        self.array().map(f64::from_le_bytes)
    }

    #[inline]
    pub fn varint(&mut self) -> Read<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7F) << shift.min(63);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Invalid("a varint of at most 10 bytes"))
    }

    pub fn signed(&mut self) -> Read<i64> {
        self.varint().map(unzigzag)
    }

    pub fn wide(&mut self) -> Read<i128> {
        let mut value = 0u128;
        for shift in (0..133).step_by(7) {
            let byte = self.u8()?;
            value |= u128::from(byte & 0x7F) << shift.min(127);
            if byte < 0x80 {
                return Ok((value >> 1) as i128 ^ -((value & 1) as i128));
            }
        }
        Err(Invalid("a varint of at most 19 bytes"))
    }

    pub fn size(&mut self) -> Read<usize> {
        usize::try_from(self.varint()?).map_err(|_| Invalid("a size"))
    }

    pub fn text(&mut self) -> Read<&'a str> {
        let len = self.size()?;
        std::str::from_utf8(self.take(len)?).map_err(|_| Invalid("UTF-8 text"))
    }
}
