//! A document as a list of positions: one pass over the bytes, nothing copied, no memory of its own once it is warm.
//!
//! A node per value and per key, in the order of the document; `next` is the node behind the subtree, so that what is not
//! wanted is stepped over. `parse` validates everything, also what nobody asks for: a payload is JSON for all rules or for
//! none. Text and numbers are made when `value` is called.

use std::fmt;

use crate::number;
use crate::text::Text;
use crate::value::{Map, Value};

#[derive(Clone, Copy, Debug)]
pub struct JsonLimits {
    pub depth_max: usize,
    /// Values and keys together.
    pub nodes_max: usize,
}

impl Default for JsonLimits {
    fn default() -> JsonLimits {
        JsonLimits {
            depth_max: 64,
            nodes_max: 500_000,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Byte of the document, from 0.
    pub offset: usize,
    pub expected: &'static str,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not JSON: expected {} at byte {}", self.expected, self.offset)
    }
}

impl std::error::Error for JsonError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Null,
    True,
    False,
    Int,
    Float,
    String,
    /// A string with a backslash in it.
    EscapedString,
    Array,
    Object,
}

/// A value or a key of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node(u32);

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    /// Bytes of the document; without the quotes.
    start: u32,
    end: u32,
    next: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Tape {
    entries: Vec<Entry>,
}

impl Tape {
    pub const ROOT: Node = Node(0);

    pub fn parse(&mut self, bytes: &[u8], limits: &JsonLimits) -> Result<(), JsonError> {
        self.entries.clear();
        if let Err(error) = std::str::from_utf8(bytes) {
            return Err(JsonError {
                offset: error.valid_up_to(),
                expected: "UTF-8",
            });
        }
        if u32::try_from(bytes.len()).is_err() {
            return Err(JsonError {
                offset: 0,
                expected: "less than 4 GiB",
            });
        }
        let mut scanner = Scanner {
            bytes,
            at: 0,
            entries: &mut self.entries,
            nodes_max: limits.nodes_max,
        };
        scanner.value(limits.depth_max)?;
        scanner.skip_space();
        if scanner.at < bytes.len() {
            return scanner.fail("the end of the document");
        }
        Ok(())
    }

    /// The value of a key of an object.
    pub fn get_key(&self, bytes: &[u8], node: Node, key: &[u8]) -> Option<Node> {
        let object = self.entry(node);
        if object.kind != Kind::Object {
            return None;
        }
        let mut found = None;
        let mut at = node.0 + 1;
        while at < object.next {
            let name = self.entry(Node(at));
            if self.is_text(bytes, name, key) {
                found = Some(Node(at + 1));
            }
            at = self.entry(Node(at + 1)).next;
        }
        found
    }

    /// The element of an array: from 1, or from the end with -1.
    pub fn get_index(&self, node: Node, index: i128) -> Option<Node> {
        let array = self.entry(node);
        if array.kind != Kind::Array || index == 0 {
            return None;
        }
        let wanted = if index > 0 {
            index - 1
        } else {
            self.children(node).count() as i128 + index
        };
        self.children(node).nth(usize::try_from(wanted).ok()?)
    }

    /// What a subtree needs as a value, in bytes and roughly.
    pub fn size(&self, node: Node) -> usize {
        let entry = self.entry(node);
        (entry.end - entry.start) as usize + 32 * (entry.next - node.0) as usize
    }

    pub fn is_string(&self, node: Node) -> bool {
        matches!(self.entry(node).kind, Kind::String | Kind::EscapedString)
    }

    pub fn value(&self, bytes: &[u8], node: Node) -> Value {
        let entry = self.entry(node);
        let slice = &bytes[entry.start as usize..entry.end as usize];
        match entry.kind {
            Kind::Null => Value::Null,
            Kind::True => Value::Bool(true),
            Kind::False => Value::Bool(false),
            Kind::Int => integer(slice),
            Kind::Float => Value::Float(number::parse_float(slice).unwrap_or(0.0)),
            Kind::String => Value::Text(Text::new(slice)),
            Kind::EscapedString => Value::Text(unescape(slice).into()),
            Kind::Array => Value::array(self.children(node).map(|child| self.value(bytes, child)).collect()),
            Kind::Object => Value::Map(self.object(bytes, node)),
        }
    }

    fn object(&self, bytes: &[u8], node: Node) -> Map {
        let end = self.entry(node).next;
        let mut entries = Vec::new();
        let mut at = node.0 + 1;
        while at < end {
            let name = self.entry(Node(at));
            let slice = &bytes[name.start as usize..name.end as usize];
            let key = match name.kind {
                Kind::EscapedString => unescape(slice).into(),
                _ => Text::new(slice),
            };
            entries.push((key, self.value(bytes, Node(at + 1))));
            at = self.entry(Node(at + 1)).next;
        }
        Map::from_entries(entries)
    }

    fn children(&self, node: Node) -> impl Iterator<Item = Node> {
        let end = self.entry(node).next;
        let mut at = node.0 + 1;
        std::iter::from_fn(move || {
            let child = Node(at);
            (at < end).then(|| {
                at = self.entry(child).next;
                child
            })
        })
    }

    fn entry(&self, node: Node) -> &Entry {
        &self.entries[node.0 as usize]
    }

    fn is_text(&self, bytes: &[u8], entry: &Entry, text: &[u8]) -> bool {
        let slice = &bytes[entry.start as usize..entry.end as usize];
        match entry.kind {
            Kind::EscapedString => unescape(slice) == text,
            _ => slice == text,
        }
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    entries: &'a mut Vec<Entry>,
    nodes_max: usize,
}

impl Scanner<'_> {
    fn fail<T>(&self, expected: &'static str) -> Result<T, JsonError> {
        Err(JsonError {
            offset: self.at,
            expected,
        })
    }

    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        self.skip_space();
        match self.peek() {
            b'"' => self.string(),
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.word(b"true", Kind::True),
            b'f' => self.word(b"false", Kind::False),
            b'n' => self.word(b"null", Kind::Null),
            _ => self.fail("a value"),
        }
    }

    /// Returns the index of the entry, whose end is known later.
    fn open(&mut self, kind: Kind) -> Result<usize, JsonError> {
        if self.entries.len() >= self.nodes_max {
            return self.fail("fewer values");
        }
        self.entries.push(Entry {
            kind,
            start: self.at as u32,
            end: self.at as u32,
            next: 0,
        });
        Ok(self.entries.len() - 1)
    }

    fn close(&mut self, index: usize, end: usize) {
        let next = self.entries.len() as u32;
        let entry = &mut self.entries[index];
        entry.end = end as u32;
        entry.next = next;
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        let Some(inner) = depth.checked_sub(1) else {
            return self.fail("less nesting");
        };
        let index = self.open(Kind::Object)?;
        self.at += 1;
        self.skip_space();
        if self.peek() != b'}' {
            loop {
                self.skip_space();
                if self.peek() != b'"' {
                    return self.fail("a key in quotes");
                }
                self.string()?;
                self.skip_space();
                if self.peek() != b':' {
                    return self.fail("a colon");
                }
                self.at += 1;
                self.value(inner)?;
                self.skip_space();
                match self.peek() {
                    b',' => self.at += 1,
                    b'}' => break,
                    _ => return self.fail("a comma or }"),
                }
            }
        }
        self.at += 1;
        self.close(index, self.at);
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        let Some(inner) = depth.checked_sub(1) else {
            return self.fail("less nesting");
        };
        let index = self.open(Kind::Array)?;
        self.at += 1;
        self.skip_space();
        if self.peek() != b']' {
            loop {
                self.value(inner)?;
                self.skip_space();
                match self.peek() {
                    b',' => self.at += 1,
                    b']' => break,
                    _ => return self.fail("a comma or ]"),
                }
            }
        }
        self.at += 1;
        self.close(index, self.at);
        Ok(())
    }

    fn word(&mut self, word: &'static [u8], kind: Kind) -> Result<(), JsonError> {
        if !self.bytes[self.at..].starts_with(word) {
            return self.fail("a value");
        }
        let index = self.open(kind)?;
        self.at += word.len();
        self.close(index, self.at);
        Ok(())
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        let index = self.open(Kind::String)?;
        loop {
            self.at += plain_run(&self.bytes[self.at..]);
            match self.peek() {
                b'"' => break,
                b'\\' => {
                    self.entries[index].kind = Kind::EscapedString;
                    self.escape()?;
                }
                _ if self.at >= self.bytes.len() => return self.fail("a closing quote"),
                _ => return self.fail("no control character in a string"),
            }
        }
        self.close(index, self.at);
        self.at += 1;
        Ok(())
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            b'u' => {
                let unit = self.unicode()?;
                if (0xDC00..0xE000).contains(&unit) {
                    return self.fail("a high surrogate before a low one");
                }
                if (0xD800..0xDC00).contains(&unit) {
                    if self.peek() != b'\\' {
                        return self.fail("a low surrogate");
                    }
                    self.at += 1;
                    if self.peek() != b'u' || !(0xDC00..0xE000).contains(&self.unicode()?) {
                        return self.fail("a low surrogate");
                    }
                }
            }
            _ => return self.fail("an escape sequence"),
        }
        Ok(())
    }

    /// At the `u` of `\u12AB`.
    fn unicode(&mut self) -> Result<u32, JsonError> {
        let unit = hex_unit(&self.bytes[self.at + 1..]);
        match unit {
            Some(unit) => {
                self.at += 5;
                Ok(unit)
            }
            None => self.fail("four hexadecimal digits"),
        }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        let index = self.open(Kind::Int)?;
        let start = self.at;
        if self.peek() == b'-' {
            self.at += 1;
        }
        match self.peek() {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == b'.' {
            self.entries[index].kind = Kind::Float;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.entries[index].kind = Kind::Float;
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        // Only a long number can be out of range, and one with an exponent.
        let slice = &self.bytes[start..self.at];
        let may_overflow = slice.len() > 300 || slice.iter().any(|byte| matches!(byte, b'e' | b'E'));
        if may_overflow && number::parse_float(slice).is_none() {
            self.at = start;
            return self.fail("a number in the range of a 64-bit float");
        }
        self.close(index, self.at);
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !self.peek().is_ascii_digit() {
            return self.fail("a digit");
        }
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        Ok(())
    }
}

/// How many bytes come before a quote, a backslash or a control character.
fn plain_run(bytes: &[u8]) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return i * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let is_special = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\');
    words.len() * 8 + tail.iter().position(is_special).unwrap_or(tail.len())
}

/// The highest bit of every byte that ends a run; the lowest one that is set is right, those above it may be wrong.
fn special_bytes(word: u64) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let zero_in = |word: u64| word.wrapping_sub(LOW) & !word;
    let control = word.wrapping_sub(LOW * 0x20) & !word;
    let quote = zero_in(word ^ (LOW * b'"' as u64));
    let backslash = zero_in(word ^ (LOW * b'\\' as u64));
    (control | quote | backslash) & HIGH
}

fn integer(digits: &[u8]) -> Value {
    if digits.len() <= 18 {
        let (sign, digits) = match digits {
            [b'-', rest @ ..] => (-1, rest),
            _ => (1, digits),
        };
        let int = digits
            .iter()
            .fold(0_i64, |int, digit| int * 10 + i64::from(digit - b'0'));
        return Value::Int(i128::from(sign * int));
    }
    match number::parse_integer(digits) {
        Some(int) => Value::Int(int),
        // Beyond 128 bits: the nearest float, which `parse` has seen to be finite.
        None => Value::Float(number::parse_float(digits).unwrap_or(f64::MAX)),
    }
}

fn hex_unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.get(..4)?;
    digits
        .iter()
        .try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
}

/// Of a string that `parse` has accepted.
fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let escape = bytes.get(at).copied().unwrap_or(b'\\');
        at += 1;
        match escape {
            b'b' => out.push(0x08),
            b'f' => out.push(0x0C),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'u' => {
                let mut code = hex_unit(&bytes[at..]).unwrap_or(0xFFFD);
                at += 4;
                if (0xD800..0xDC00).contains(&code) {
                    let low = hex_unit(bytes.get(at + 2..).unwrap_or_default()).unwrap_or(0xDC00);
                    at += 6;
                    code = 0x10000 + ((code - 0xD800) << 10) + low.wrapping_sub(0xDC00);
                }
                let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            other => out.push(other),
        }
    }
    out
}
