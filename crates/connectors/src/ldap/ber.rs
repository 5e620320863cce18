//! The Basic Encoding Rules, as far as LDAP uses them [RFC 4511, 5.1]: tags of one byte and definite lengths.
//!
//! The reader borrows from its input and does not recurse, so a nested value cannot exhaust the stack.

use super::message::MalformedLdap;

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const ENUMERATED: u8 = 0x0A;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

/// Bits of a tag that say that its number follows in further bytes.
const LONG_TAG: u8 = 0x1F;
/// Maximum number of bytes of a length.
const LENGTH_BYTES_MAX: usize = 4;

/// The elements of a constructed value.
#[derive(Clone, Copy)]
pub(super) struct BerReader<'a> {
    rest: &'a [u8],
}

impl<'a> BerReader<'a> {
    pub fn new(bytes: &'a [u8]) -> BerReader<'a> {
        BerReader { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the tag and the content of the next element.
    pub fn element(&mut self) -> Result<(u8, &'a [u8]), MalformedLdap> {
        let header = header(self.rest)?.ok_or(MalformedLdap("the value ends early"))?;
        let end = header.header_bytes.checked_add(header.content_bytes);
        let (element, rest) = end
            .and_then(|end| self.rest.split_at_checked(end))
            .ok_or(MalformedLdap("the value ends early"))?;
        self.rest = rest;
        Ok((header.tag, &element[header.header_bytes..]))
    }

    /// Returns the content of the next element, which must have this tag.
    pub fn expect(&mut self, tag: u8) -> Result<&'a [u8], MalformedLdap> {
        match self.element()? {
            (found, content) if found == tag => Ok(content),
            _ => Err(MalformedLdap("a value has another type than expected")),
        }
    }

    /// Returns the elements of the next element, which must have this tag.
    pub fn constructed(&mut self, tag: u8) -> Result<BerReader<'a>, MalformedLdap> {
        self.expect(tag).map(BerReader::new)
    }

    /// Returns a number from 0 to `i32::MAX`, the range of message IDs and result codes.
    pub fn number(&mut self, tag: u8) -> Result<u32, MalformedLdap> {
        let bytes = self.expect(tag)?;
        let out_of_range = MalformedLdap("a number is out of range");
        match bytes {
            [] => Err(out_of_range),
            [first, ..] if *first > 0x7F || bytes.len() > 4 => Err(out_of_range),
            _ => Ok(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))),
        }
    }

    /// Returns text. Other bytes are an error.
    pub fn text(&mut self, tag: u8) -> Result<&'a str, MalformedLdap> {
        str::from_utf8(self.expect(tag)?).map_err(|_| MalformedLdap("a text is not UTF-8"))
    }

    /// Reads the remaining elements without using them.
    pub fn skip_rest(&mut self) -> Result<(), MalformedLdap> {
        while !self.is_empty() {
            self.element()?;
        }
        Ok(())
    }
}

pub(super) struct BerHeader {
    pub tag: u8,
    pub header_bytes: usize,
    pub content_bytes: usize,
}

/// Reads tag and length. `None`: more bytes are needed.
pub(super) fn header(bytes: &[u8]) -> Result<Option<BerHeader>, MalformedLdap> {
    let [tag, length, rest @ ..] = bytes else {
        return match bytes.first() {
            Some(tag) if tag & LONG_TAG == LONG_TAG => Err(MalformedLdap("a tag has several bytes")),
            _ => Ok(None),
        };
    };
    if tag & LONG_TAG == LONG_TAG {
        return Err(MalformedLdap("a tag has several bytes"));
    }
    if *length < 0x80 {
        return Ok(Some(BerHeader {
            tag: *tag,
            header_bytes: 2,
            content_bytes: usize::from(*length),
        }));
    }
    let count = usize::from(length & 0x7F);
    if count == 0 || count > LENGTH_BYTES_MAX {
        return Err(MalformedLdap("a length has an unsupported form"));
    }
    let Some(bytes) = rest.get(..count) else {
        return Ok(None);
    };
    let length = bytes.iter().fold(0u64, |length, byte| length << 8 | u64::from(*byte));
    Ok(Some(BerHeader {
        tag: *tag,
        header_bytes: 2 + count,
        content_bytes: usize::try_from(length).map_err(|_| MalformedLdap("a length is out of range"))?,
    }))
}

/// Appends an element.
pub(super) fn push(out: &mut Vec<u8>, tag: u8, content: &[u8]) {
    out.push(tag);
    if content.len() < 0x80 {
        out.push(content.len() as u8);
    } else {
        let length = content.len().to_be_bytes();
        let zeros = length.iter().take_while(|byte| **byte == 0).count();
        out.push(0x80 | (length.len() - zeros) as u8);
        out.extend_from_slice(&length[zeros..]);
    }
    out.extend_from_slice(content);
}

/// Appends an element whose content `write` appends.
pub(super) fn push_with(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let mut content = Vec::new();
    write(&mut content);
    push(out, tag, &content);
}

/// Appends a number as INTEGER or ENUMERATED.
pub(super) fn push_number(out: &mut Vec<u8>, tag: u8, number: u32) {
    let bytes = number.to_be_bytes();
    // Without zeros in front, but with one if the number would be negative otherwise.
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(3);
    let mut content = Vec::with_capacity(5);
    if bytes[zeros] > 0x7F {
        content.push(0);
    }
    content.extend_from_slice(&bytes[zeros..]);
    push(out, tag, &content);
}
