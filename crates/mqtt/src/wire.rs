//! The data types of section 1.5: reading from a slice and appending to a buffer.
//!
//! Lengths are checked against the available bytes first. Reading allocates nothing.

use crate::error::{DecodeErrorKind, PacketField};
use crate::topic::{TopicError, scan_topic_name};
use crate::{PacketId, ProtocolVersion};

/// The largest Variable Byte Integer: four bytes with seven bits each.
pub const MAXIMUM_REMAINING_LENGTH: usize = 0x0FFF_FFFF;

type Result<T> = std::result::Result<T, DecodeErrorKind>;

/// A Variable Byte Integer at the start of `bytes`.
pub(crate) enum VariableByteInteger {
    Incomplete,
    TooLong,
    /// `value` in `size` bytes.
    Complete {
        value: u32,
        size: usize,
    },
}

impl VariableByteInteger {
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> VariableByteInteger {
        match bytes {
            [first, ..] if *first < 0x80 => VariableByteInteger::Complete {
                value: u32::from(*first),
                size: 1,
            },
            _ => VariableByteInteger::read_long(bytes),
        }
    }

    fn read_long(bytes: &[u8]) -> VariableByteInteger {
        let mut value = 0;
        for (i, &byte) in bytes.iter().take(4).enumerate() {
            value |= u32::from(byte & 0x7F) << (7 * i);
            if byte < 0x80 {
                return VariableByteInteger::Complete { value, size: i + 1 };
            }
        }
        if bytes.len() >= 4 {
            VariableByteInteger::TooLong
        } else {
            VariableByteInteger::Incomplete
        }
    }
}

/// Returns the minimum number of bytes for the value [MQTT-1.5.5-1].
#[inline]
pub(crate) const fn variable_byte_integer_size(value: usize) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}

/// Reads consecutive fields of a complete packet or property list.
#[derive(Clone, Debug)]
pub(crate) struct PacketReader<'a> {
    rest: &'a [u8],
}

impl<'a> PacketReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> PacketReader<'a> {
        PacketReader { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Fails if bytes remain after the last field.
    pub(crate) fn finish(self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(DecodeErrorKind::TrailingBytes(count)),
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, count: usize, field: PacketField) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(DecodeErrorKind::Truncated(field))?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn take_array<const N: usize>(&mut self, field: PacketField) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(DecodeErrorKind::Truncated(field))?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(crate) fn byte(&mut self, field: PacketField) -> Result<u8> {
        self.take_array(field).map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn two_byte_integer(&mut self, field: PacketField) -> Result<u16> {
        self.take_array(field).map(u16::from_be_bytes)
    }

    pub(crate) fn four_byte_integer(&mut self, field: PacketField) -> Result<u32> {
        self.take_array(field).map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn variable_byte_integer(&mut self, field: PacketField) -> Result<u32> {
        match VariableByteInteger::read(self.rest) {
            VariableByteInteger::Complete { value, size } => {
                if size != variable_byte_integer_size(value as usize) {
                    return Err(DecodeErrorKind::VariableByteIntegerNotMinimal(field));
                }
                self.rest = &self.rest[size..];
                Ok(value)
            }
            VariableByteInteger::Incomplete => Err(DecodeErrorKind::Truncated(field)),
            VariableByteInteger::TooLong => Err(DecodeErrorKind::VariableByteIntegerTooLong(field)),
        }
    }

    #[inline]
    pub(crate) fn binary(&mut self, field: PacketField) -> Result<&'a [u8]> {
        let length = self.two_byte_integer(field)?;
        self.take(usize::from(length), field)
    }

    pub(crate) fn string(&mut self, field: PacketField) -> Result<&'a str> {
        let bytes = self.binary(field)?;
        // [MQTT-1.5.4-1]
        let string = str::from_utf8(bytes).map_err(|_| DecodeErrorKind::InvalidUtf8(field))?;
        // [MQTT-1.5.4-2]
        if bytes.contains(&0) {
            Err(DecodeErrorKind::NulCharacter(field))
        } else {
            Ok(string)
        }
    }

    /// Reads a Topic Name, which may be empty.
    #[inline]
    pub(crate) fn topic_name(&mut self, field: PacketField) -> Result<&'a str> {
        let bytes = self.binary(field)?;
        let topic = str::from_utf8(bytes).map_err(|_| DecodeErrorKind::InvalidUtf8(field))?;
        match scan_topic_name(bytes) {
            Ok(()) => Ok(topic),
            Err(TopicError::NulCharacter) => Err(DecodeErrorKind::NulCharacter(field)),
            Err(_) => Err(DecodeErrorKind::TopicWildcard(field)),
        }
    }

    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<PacketId> {
        PacketId::new(self.two_byte_integer(PacketField::PacketId)?).ok_or(DecodeErrorKind::PacketIdZero)
    }

    /// Returns the bytes of a property list without the preceding length.
    #[inline]
    pub(crate) fn property_bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.variable_byte_integer(PacketField::PropertyLength)?;
        self.take(length as usize, PacketField::Properties)
    }
}

/// Appends a Variable Byte Integer. Panics above `MAXIMUM_REMAINING_LENGTH`.
#[inline]
pub(crate) fn put_variable_byte_integer(value: usize, out: &mut Vec<u8>) {
    assert!(
        value <= MAXIMUM_REMAINING_LENGTH,
        "a packet or property exceeds the maximum length of MQTT"
    );
    let mut value = value;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends binary data with its length. Data beyond 65535 bytes is truncated.
#[inline]
pub(crate) fn put_binary(bytes: &[u8], out: &mut Vec<u8>) {
    let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a string with its length. Text beyond 65535 bytes is truncated at a character boundary.
#[inline]
pub(crate) fn put_string(string: &str, out: &mut Vec<u8>) {
    put_binary(fitting(string).as_bytes(), out);
}

/// Returns the part of the string that fits a two-byte length.
#[inline]
pub(crate) fn fitting(string: &str) -> &str {
    if string.len() <= usize::from(u16::MAX) {
        return string;
    }
    &string[..string.floor_char_boundary(usize::from(u16::MAX))]
}

/// Appends a property list with its length. Appends nothing before 5.0.
#[inline]
pub(crate) fn put_properties(properties: &[u8], version: ProtocolVersion, out: &mut Vec<u8>) {
    if version.has_properties() {
        put_variable_byte_integer(properties.len(), out);
        out.extend_from_slice(properties);
    }
}

/// Returns the number of bytes that `put_properties` appends.
#[inline]
pub(crate) fn properties_size(properties: &[u8], version: ProtocolVersion) -> usize {
    if version.has_properties() {
        variable_byte_integer_size(properties.len()) + properties.len()
    } else {
        0
    }
}
