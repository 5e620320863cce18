//! A JSON document as a list of positions: one pass over the bytes, nothing is copied, and memory is reused.
//!
//! There is one node per value and per key, in document order. `next` is the node after the subtree, so that unused
//! values can be skipped. `parse` validates the complete document, also the parts that no rule reads, so that a payload
//! is valid for all rules or for none. Texts and numbers are created when `value` is called.

use std::fmt;

use crate::number;
use crate::text::Text;
use crate::value::{Map, Value};

#[derive(Clone, Copy, Debug)]
pub struct JsonLimits {
    pub depth_max: usize,
    /// Maximum number of values and keys together.
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
    /// Byte position in the document, from 0.
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
enum TapeKind {
    Null,
    True,
    False,
    Int,
    Float,
    String,
    /// A string that contains a backslash.
    EscapedString,
    Array,
    Object,
}

/// A value or a key of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapeNode(u32);

#[derive(Clone, Copy, Debug)]
struct TapeEntry {
    kind: TapeKind,
    /// Start in bytes, without the quotes.
    start: u32,
    end: u32,
    next: u32,
}

#[derive(Debug, Default)]
pub struct Tape {
    entries: Vec<TapeEntry>,
}

impl Tape {
    pub const ROOT: TapeNode = TapeNode(0);

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

    /// Returns the number of values and keys.
    pub fn node_count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the value of a key of an object, and the cost of the search: one per key and one per 64 compared bytes.
    pub fn get_key(&self, bytes: &[u8], node: TapeNode, key: &[u8]) -> (Option<TapeNode>, u64) {
        let object = self.entry(node);
        if object.kind != TapeKind::Object {
            return (None, 0);
        }
        let (mut found, mut cost) = (None, 0);
        let mut at = node.0 + 1;
        while at < object.next {
            let name = self.entry(TapeNode(at));
            cost += match name.kind {
                TapeKind::EscapedString => 4 + key.len() as u64 / 4,
                _ if (name.end - name.start) as usize == key.len() => 1 + key.len() as u64 / 64,
                _ => 1,
            };
            if self.is_text(bytes, name, key) {
                found = Some(TapeNode(at + 1));
            }
            at = self.entry(TapeNode(at + 1)).next;
        }
        (found, cost)
    }

    /// Returns an element of an array, and the number of skipped elements. Indexes begin with 1; -1 is the last
    /// element.
    pub fn get_index(&self, node: TapeNode, index: i128) -> (Option<TapeNode>, u64) {
        let array = self.entry(node);
        if array.kind != TapeKind::Array || index == 0 {
            return (None, 0);
        }
        let mut stepped_over = 0;
        let wanted = if index > 0 {
            index - 1
        } else {
            let count = self.children(node).count();
            stepped_over += count as u64;
            count as i128 + index
        };
        let Ok(wanted) = usize::try_from(wanted) else {
            return (None, stepped_over);
        };
        let found = self.children(node).inspect(|_| stepped_over += 1).nth(wanted);
        (found, stepped_over)
    }

    /// Returns roughly how many bytes the subtree needs as a value.
    pub fn size(&self, node: TapeNode) -> usize {
        let entry = self.entry(node);
        (entry.end - entry.start) as usize + 32 * (entry.next - node.0) as usize
    }

    pub fn is_string(&self, node: TapeNode) -> bool {
        matches!(self.entry(node).kind, TapeKind::String | TapeKind::EscapedString)
    }

    pub fn value(&self, bytes: &[u8], node: TapeNode) -> Value {
        let entry = self.entry(node);
        let slice = &bytes[entry.start as usize..entry.end as usize];
        match entry.kind {
            TapeKind::Null => Value::Null,
            TapeKind::True => Value::Bool(true),
            TapeKind::False => Value::Bool(false),
            TapeKind::Int => integer(slice),
            TapeKind::Float => Value::Float(number::parse_float(slice).unwrap_or(0.0)),
            TapeKind::String => Value::Text(Text::new(slice)),
            TapeKind::EscapedString => Value::Text(unescape(slice).into()),
            TapeKind::Array => Value::array(self.children(node).map(|child| self.value(bytes, child)).collect()),
            TapeKind::Object => Value::Map(self.object(bytes, node)),
        }
    }

    fn object(&self, bytes: &[u8], node: TapeNode) -> Map {
        let end = self.entry(node).next;
        let mut entries = Vec::new();
        let mut at = node.0 + 1;
        while at < end {
            let name = self.entry(TapeNode(at));
            let slice = &bytes[name.start as usize..name.end as usize];
            let key = match name.kind {
                TapeKind::EscapedString => unescape(slice).into(),
                _ => Text::new(slice),
            };
            entries.push((key, self.value(bytes, TapeNode(at + 1))));
            at = self.entry(TapeNode(at + 1)).next;
        }
        Map::from_entries(entries)
    }

    fn children(&self, node: TapeNode) -> impl Iterator<Item = TapeNode> {
        let end = self.entry(node).next;
        let mut at = node.0 + 1;
        std::iter::from_fn(move || {
            let child = TapeNode(at);
            (at < end).then(|| {
                at = self.entry(child).next;
                child
            })
        })
    }

    fn entry(&self, node: TapeNode) -> &TapeEntry {
        &self.entries[node.0 as usize]
    }

    fn is_text(&self, bytes: &[u8], entry: &TapeEntry, text: &[u8]) -> bool {
        let slice = &bytes[entry.start as usize..entry.end as usize];
        match entry.kind {
            // An escape sequence has at most six bytes per byte of text, so a long key need not be unescaped.
            TapeKind::EscapedString => slice.len() <= 6 * text.len() && unescape(slice) == text,
            _ => slice == text,
        }
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    entries: &'a mut Vec<TapeEntry>,
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
            b't' => self.word(b"true", TapeKind::True),
            b'f' => self.word(b"false", TapeKind::False),
            b'n' => self.word(b"null", TapeKind::Null),
            _ => self.fail("a value"),
        }
    }

    /// Returns the index of the entry, whose end is known later.
    fn open(&mut self, kind: TapeKind) -> Result<usize, JsonError> {
        if self.entries.len() >= self.nodes_max {
            return self.fail("fewer values");
        }
        self.entries.push(TapeEntry {
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
        let index = self.open(TapeKind::Object)?;
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
        let index = self.open(TapeKind::Array)?;
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

    fn word(&mut self, word: &'static [u8], kind: TapeKind) -> Result<(), JsonError> {
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
        let index = self.open(TapeKind::String)?;
        loop {
            self.at += plain_run(&self.bytes[self.at..]);
            match self.peek() {
                b'"' => break,
                b'\\' => {
                    self.entries[index].kind = TapeKind::EscapedString;
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

    /// Called at the `u` of `\u12AB`.
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
        let index = self.open(TapeKind::Int)?;
        let start = self.at;
        if self.peek() == b'-' {
            self.at += 1;
        }
        match self.peek() {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == b'.' {
            self.entries[index].kind = TapeKind::Float;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.entries[index].kind = TapeKind::Float;
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        // Only long numbers and numbers with an exponent can be out of range.
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

/// Returns the number of bytes before the next quote, backslash or control character.
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

/// Sets the highest bit of every byte that ends a run. Only the lowest set bit is reliable; bits above it can be wrong.
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
        // Beyond 128 bits: use the nearest float. `parse` has checked that it is finite.
        None => Value::Float(number::parse_float(digits).unwrap_or(f64::MAX)),
    }
}

fn hex_unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.get(..4)?;
    digits
        .iter()
        .try_fold(0, |unit, digit| Some(unit * 16 + char::from(*digit).to_digit(16)?))
}

/// Resolves the escape sequences of a string that `parse` has accepted.
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
