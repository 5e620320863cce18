//! Documents in BSON [bsonspec.org, version 1.1].
//!
//! Decoding never panics, and its depth and memory are bounded. Types that lookups do not use are skipped.

use std::fmt;

/// Maximum depth of documents and arrays, as in MongoDB.
const DEPTH_MAX: u32 = 100;
/// Maximum number of values in a decoded document: a value of one byte takes about 60 bytes of memory.
const VALUES_MAX: usize = 200_000;

/// Length of a document without elements.
const EMPTY_BYTES: usize = 5;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Bson {
    Double(f64),
    Text(String),
    Document(BsonDocument),
    Array(Vec<Bson>),
    Binary(Vec<u8>),
    Bool(bool),
    Null,
    Int32(i32),
    Int64(i64),
    /// A value of a type that is not used, such as a date. It is written as null.
    Other(u8),
}

/// Names and values in order. Names contain no NUL: the caller checks those of the configuration, and values of MQTT
/// clients are never names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BsonDocument(Vec<(String, Bson)>);

/// Bytes that are no document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedBson(pub(super) &'static str);

impl fmt::Display for MalformedBson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer is malformed: {}", self.0)
    }
}

impl std::error::Error for MalformedBson {}

const ENDS_EARLY: MalformedBson = MalformedBson("a value ends early");

impl BsonDocument {
    pub fn new() -> BsonDocument {
        BsonDocument::default()
    }

    /// Appends a value.
    pub fn with(mut self, name: &str, value: impl Into<Bson>) -> BsonDocument {
        self.0.push((name.to_owned(), value.into()));
        self
    }

    /// Returns the first value with this name.
    pub fn get(&self, name: &str) -> Option<&Bson> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value)
    }

    /// Returns a text. `None`: it is missing or has another type.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Bson::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns a document. `None`: it is missing or has another type.
    pub fn document(&self, name: &str) -> Option<&BsonDocument> {
        match self.get(name) {
            Some(Bson::Document(document)) => Some(document),
            _ => None,
        }
    }

    /// Returns the elements of an array. A missing array has none.
    pub fn array(&self, name: &str) -> &[Bson] {
        match self.get(name) {
            Some(Bson::Array(values)) => values,
            _ => &[],
        }
    }

    /// Returns whether a value is `true` or the number 1, as servers write flags.
    pub fn is_true(&self, name: &str) -> bool {
        match self.get(name) {
            Some(Bson::Bool(value)) => *value,
            Some(value) => value.as_f64() == Some(1.0),
            None => false,
        }
    }

    pub fn into_fields(self) -> Vec<(String, Bson)> {
        self.0
    }

    /// Appends the bytes of the document.
    pub fn write(&self, out: &mut Vec<u8>) {
        let elements = self.0.iter().map(|(name, value)| (name.as_str(), value));
        write_elements(out, elements);
    }

    /// Decodes a document that takes up all bytes.
    pub fn decode(bytes: &[u8]) -> Result<BsonDocument, MalformedBson> {
        let (mut rest, mut values_left) = (bytes, VALUES_MAX);
        let document = BsonDocument(read_elements(&mut rest, DEPTH_MAX, &mut values_left)?);
        match rest.is_empty() {
            true => Ok(document),
            false => Err(MalformedBson("bytes follow the document")),
        }
    }
}

impl Bson {
    /// Returns a number of any type.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Bson::Double(value) => Some(*value),
            Bson::Int32(value) => Some(f64::from(*value)),
            Bson::Int64(value) => Some(*value as f64),
            _ => None,
        }
    }

    fn type_byte(&self) -> u8 {
        match self {
            Bson::Double(_) => 0x01,
            Bson::Text(_) => 0x02,
            Bson::Document(_) => 0x03,
            Bson::Array(_) => 0x04,
            Bson::Binary(_) => 0x05,
            Bson::Bool(_) => 0x08,
            Bson::Null | Bson::Other(_) => 0x0A,
            Bson::Int32(_) => 0x10,
            Bson::Int64(_) => 0x12,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Bson::Double(value) => out.extend_from_slice(&value.to_le_bytes()),
            Bson::Text(text) => {
                push_length(out, text.len() + 1);
                out.extend_from_slice(text.as_bytes());
                out.push(0);
            }
            Bson::Document(document) => document.write(out),
            Bson::Array(values) => {
                let names: Vec<String> = (0..values.len()).map(|index| index.to_string()).collect();
                write_elements(out, names.iter().map(String::as_str).zip(values));
            }
            Bson::Binary(bytes) => {
                push_length(out, bytes.len());
                // Generic subtype.
                out.push(0);
                out.extend_from_slice(bytes);
            }
            Bson::Bool(value) => out.push(u8::from(*value)),
            Bson::Null | Bson::Other(_) => {}
            Bson::Int32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Bson::Int64(value) => out.extend_from_slice(&value.to_le_bytes()),
        }
    }
}

/// Appends a length. A longer document is refused by the server, and no caller has one.
fn push_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&i32::try_from(length).unwrap_or(i32::MAX).to_le_bytes());
}

fn write_elements<'a>(out: &mut Vec<u8>, elements: impl Iterator<Item = (&'a str, &'a Bson)>) {
    let mut body = Vec::new();
    for (name, value) in elements {
        body.push(value.type_byte());
        body.extend_from_slice(name.as_bytes());
        body.push(0);
        value.write(&mut body);
    }
    push_length(out, body.len() + EMPTY_BYTES);
    out.extend_from_slice(&body);
    out.push(0);
}

/// Reads a document or array, and removes it from `rest`.
fn read_elements(rest: &mut &[u8], depth: u32, values_left: &mut usize) -> Result<Vec<(String, Bson)>, MalformedBson> {
    let depth = depth
        .checked_sub(1)
        .ok_or(MalformedBson("the documents are too deep"))?;
    let length = rest.first_chunk::<4>().ok_or(ENDS_EARLY)?;
    let length = usize::try_from(i32::from_le_bytes(*length)).map_err(|_| MalformedBson("a length is negative"))?;
    let document = take(rest, length)?;
    let Some((0, mut elements)) = document
        .get(4..)
        .and_then(<[u8]>::split_last)
        .map(|(last, all)| (*last, all))
    else {
        return Err(MalformedBson("a document has no end"));
    };
    let mut values = Vec::new();
    while let Some((kind, after)) = elements.split_first() {
        elements = after;
        *values_left = values_left
            .checked_sub(1)
            .ok_or(MalformedBson("it has more than 200,000 values"))?;
        let name = text_until_nul(&mut elements)?.to_owned();
        values.push((name, read_value(*kind, &mut elements, depth, values_left)?));
    }
    Ok(values)
}

fn read_value(kind: u8, rest: &mut &[u8], depth: u32, values_left: &mut usize) -> Result<Bson, MalformedBson> {
    Ok(match kind {
        0x01 => Bson::Double(f64::from_le_bytes(fixed(rest)?)),
        0x02 => Bson::Text(text(rest)?.to_owned()),
        0x03 => Bson::Document(BsonDocument(read_elements(rest, depth, values_left)?)),
        0x04 => {
            let elements = read_elements(rest, depth, values_left)?;
            Bson::Array(elements.into_iter().map(|(_, value)| value).collect())
        }
        0x05 => {
            let length = length(rest)?;
            take(rest, 1)?;
            Bson::Binary(take(rest, length)?.to_vec())
        }
        0x08 => match fixed(rest)? {
            [0] => Bson::Bool(false),
            [1] => Bson::Bool(true),
            _ => return Err(MalformedBson("a boolean is neither true nor false")),
        },
        0x0A => Bson::Null,
        0x10 => Bson::Int32(i32::from_le_bytes(fixed(rest)?)),
        0x12 => Bson::Int64(i64::from_le_bytes(fixed(rest)?)),
        other => {
            skip(other, rest)?;
            Bson::Other(other)
        }
    })
}

/// Removes a value of a type that is not used.
fn skip(kind: u8, rest: &mut &[u8]) -> Result<(), MalformedBson> {
    let bytes = match kind {
        // Undefined, minimum and maximum.
        0x06 | 0x7F | 0xFF => 0,
        // An object id.
        0x07 => 12,
        // A date, and a timestamp.
        0x09 | 0x11 => 8,
        // A decimal number.
        0x13 => 16,
        0x0B => {
            // Pattern and options of a regular expression.
            text_until_nul(rest)?;
            text_until_nul(rest)?;
            0
        }
        0x0C => {
            // A reference: name and object id.
            text(rest)?;
            12
        }
        // JavaScript and symbols.
        0x0D | 0x0E => {
            text(rest)?;
            0
        }
        0x0F => {
            // JavaScript with variables. The length includes itself.
            let length = length(rest)?;
            length.checked_sub(4).ok_or(MalformedBson("a length is too small"))?
        }
        _ => return Err(MalformedBson("a value has an unknown type")),
    };
    take(rest, bytes).map(drop)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], MalformedBson> {
    let (taken, after) = rest.split_at_checked(count).ok_or(ENDS_EARLY)?;
    *rest = after;
    Ok(taken)
}

fn fixed<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], MalformedBson> {
    let (value, after) = rest.split_first_chunk().ok_or(ENDS_EARLY)?;
    *rest = after;
    Ok(*value)
}

fn length(rest: &mut &[u8]) -> Result<usize, MalformedBson> {
    let length = i32::from_le_bytes(fixed(rest)?);
    usize::try_from(length).map_err(|_| MalformedBson("a length is negative"))
}

/// Reads text with a length, which includes the NUL at its end.
fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, MalformedBson> {
    let length = length(rest)?;
    match take(rest, length)?.split_last() {
        Some((0, text)) => str::from_utf8(text).map_err(|_| MalformedBson("a text is not UTF-8")),
        _ => Err(MalformedBson("a text has no end")),
    }
}

fn text_until_nul<'a>(rest: &mut &'a [u8]) -> Result<&'a str, MalformedBson> {
    let end = rest.iter().position(|byte| *byte == 0).ok_or(ENDS_EARLY)?;
    let text = take(rest, end)?;
    take(rest, 1)?;
    str::from_utf8(text).map_err(|_| MalformedBson("a name is not UTF-8"))
}

impl From<&str> for Bson {
    fn from(text: &str) -> Bson {
        Bson::Text(text.to_owned())
    }
}

impl From<String> for Bson {
    fn from(text: String) -> Bson {
        Bson::Text(text)
    }
}

impl From<BsonDocument> for Bson {
    fn from(document: BsonDocument) -> Bson {
        Bson::Document(document)
    }
}

impl From<Vec<Bson>> for Bson {
    fn from(values: Vec<Bson>) -> Bson {
        Bson::Array(values)
    }
}

impl From<bool> for Bson {
    fn from(value: bool) -> Bson {
        Bson::Bool(value)
    }
}

impl From<i32> for Bson {
    fn from(value: i32) -> Bson {
        Bson::Int32(value)
    }
}

impl From<i64> for Bson {
    fn from(value: i64) -> Bson {
        Bson::Int64(value)
    }
}
