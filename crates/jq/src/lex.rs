//! Tokens of the jq language, read when the parser needs them, and strings with interpolated programs.

use rule_values::Value;

use super::parse::{JqParser, Parsed};
use super::term::{StringPart, Term, TermKind, TextFormat};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum JqToken<'a> {
    /// `.name`
    Field(&'a str),
    Name(&'a str),
    Variable(&'a str),
    Format(&'a str),
    Number(&'a str),
    /// The opening quote. The parser reads the rest, because a string can contain programs.
    Quote,
    Symbol(&'static str),
    End,
}

/// Longer symbols first.
const SYMBOLS: [&str; 36] = [
    "//=", "|=", "+=", "-=", "*=", "/=", "%=", "==", "!=", "<=", ">=", "//", "..", "and", "or", "|", ",", "=", "<",
    ">", "+", "-", "*", "/", "%", "(", ")", "[", "]", "{", "}", ":", ";", ".", "?", "$",
];

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl<'a> JqParser<'a> {
    pub(super) fn skip_blank(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            match byte {
                b'#' => {
                    let rest = &bytes[self.at..];
                    self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                }
                byte if byte.is_ascii_whitespace() => self.at += 1,
                _ => return,
            }
        }
    }

    pub(super) fn name_at(&self, at: usize) -> &'a str {
        let rest = &self.text[at..];
        let length = rest.bytes().position(|byte| !is_name(byte)).unwrap_or(rest.len());
        &rest[..length]
    }

    /// Returns the next token and its end.
    pub(super) fn peek(&mut self) -> Parsed<(JqToken<'a>, usize)> {
        self.skip_blank();
        let (at, bytes) = (self.at, self.text.as_bytes());
        let Some(&first) = bytes.get(at) else {
            return Ok((JqToken::End, at));
        };
        let starts_name = |at: usize| {
            bytes
                .get(at)
                .is_some_and(|byte| is_name(*byte) && !byte.is_ascii_digit())
        };
        let named = |at: usize, token: fn(&'a str) -> JqToken<'a>| {
            let name = self.name_at(at);
            Ok((token(name), at + name.len()))
        };
        match first {
            b'"' => return Ok((JqToken::Quote, at + 1)),
            b'.' if starts_name(at + 1) => return named(at + 1, JqToken::Field),
            b'$' if starts_name(at + 1) => return named(at + 1, JqToken::Variable),
            b'@' if starts_name(at + 1) => return named(at + 1, JqToken::Format),
            b'0'..=b'9' => return Ok(self.number(at)),
            b'.' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => return Ok(self.number(at)),
            _ if starts_name(at) => {
                let name = self.name_at(at);
                let token = match name {
                    "and" => JqToken::Symbol("and"),
                    "or" => JqToken::Symbol("or"),
                    name => JqToken::Name(name),
                };
                return Ok((token, at + name.len()));
            }
            _ => {}
        }
        match SYMBOLS.iter().find(|symbol| self.text[at..].starts_with(**symbol)) {
            Some(symbol) => Ok((JqToken::Symbol(symbol), at + symbol.len())),
            None => {
                let found = self.text[at..].chars().next().unwrap_or_default();
                self.error(at, format!("found {found:?}, which is not valid in jq"))
            }
        }
    }

    pub(super) fn number(&self, at: usize) -> (JqToken<'a>, usize) {
        let bytes = self.text.as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            at
        };
        let mut end = digits(at);
        if bytes.get(end) == Some(&b'.') {
            end = digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
                end = digits(end + 1 + sign);
            }
        }
        (JqToken::Number(&self.text[at..end]), end)
    }

    /// Parses a string from its opening quote.
    pub(super) fn string(&mut self, format: Option<TextFormat>) -> Parsed<Term> {
        self.skip_blank();
        let at = self.at;
        self.at += 1;
        let (mut parts, mut text) = (Vec::new(), String::new());
        loop {
            let Some(char) = self.text[self.at..].chars().next() else {
                return self.error(at, "the string is not closed");
            };
            self.at += char.len_utf8();
            match char {
                '"' => break,
                '\\' if self.text[self.at..].starts_with('(') => {
                    self.at += 1;
                    if !text.is_empty() {
                        parts.push(StringPart::Text(std::mem::take(&mut text)));
                    }
                    parts.push(StringPart::Term(self.pipe()?));
                    self.expect(")")?;
                }
                '\\' => text.push(self.escape()?),
                char => text.push(char),
            }
        }
        if parts.is_empty() {
            return self.term(at, TermKind::Literal(Value::from(text)));
        }
        if !text.is_empty() {
            parts.push(StringPart::Text(text));
        }
        self.term(at, TermKind::Text(format, parts))
    }

    fn escape(&mut self) -> Parsed<char> {
        let at = self.at;
        let Some(char) = self.text[at..].chars().next() else {
            return self.error(at, "the string is not closed");
        };
        self.at += char.len_utf8();
        Ok(match char {
            '"' | '\\' | '/' => char,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => return self.unicode(at),
            _ => return self.error(at, format!("\\{char} is not an escape sequence")),
        })
    }

    fn unicode(&mut self, at: usize) -> Parsed<char> {
        let Some(high) = self.hex() else {
            return self.error(at, "\\u must be followed by four hexadecimal digits");
        };
        let mut code = high;
        if (0xD800..0xDC00).contains(&high) && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            if let Some(low) = self.hex().filter(|low| (0xDC00..0xE000).contains(low)) {
                code = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
            }
        }
        Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let code = u32::from_str_radix(digits, 16).ok()?;
        self.at += 4;
        Some(code)
    }
}
