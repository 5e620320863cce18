//! Converts the text of a rule to tokens with positions.

use crate::error::{RuleError, TextPosition};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SqlToken {
    /// Without quotes, or in double quotes. A quoted name is never a keyword.
    Name(String),
    Keyword(&'static str),
    /// In single quotes. Two single quotes inside are one quote.
    Text(String),
    Int(String),
    Float(String),
    Symbol(&'static str),
    End,
}

impl SqlToken {
    /// Returns the text for error messages.
    pub fn describe(&self) -> String {
        match self {
            SqlToken::Name(name) => format!("{name:?}"),
            SqlToken::Keyword(word) | SqlToken::Symbol(word) => (*word).to_owned(),
            SqlToken::Text(text) => format!("'{text}'"),
            SqlToken::Int(digits) | SqlToken::Float(digits) => digits.clone(),
            SqlToken::End => "the end of the rule".to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PositionedToken {
    pub token: SqlToken,
    pub position: TextPosition,
}

const KEYWORDS: &[&str] = &[
    "AND", "AS", "CASE", "DO", "ELSE", "ELSIF", "END", "FOREACH", "FROM", "IF", "IN", "INCASE", "NOT", "OR", "SELECT",
    "THEN", "WHEN", "WHERE",
];

/// Longer symbols first.
const SYMBOLS: &[&str] = &[
    "..", "=~", "!=", "<>", "<=", ">=", "(", ")", "[", "]", "*", "+", ",", "-", ".", "/", "=", "<", ">",
];

pub(crate) fn tokens(text: &str) -> Result<Vec<PositionedToken>, RuleError> {
    let mut lexer = Lexer {
        rest: text,
        position: TextPosition { line: 1, column: 1 },
    };
    let mut tokens: Vec<PositionedToken> = Vec::new();
    loop {
        lexer.skip_space();
        let position = lexer.position;
        // After a point comes a key: `a.1.2` is a path, not a number.
        let is_key = tokens.last().is_some_and(|last| last.token == SqlToken::Symbol("."));
        let token = lexer.token(is_key)?;
        let is_end = token == SqlToken::End;
        tokens.push(PositionedToken { token, position });
        if is_end {
            return Ok(tokens);
        }
    }
}

/// Returns a hint for syntax from other languages.
fn syntax_hint(first: char) -> Option<&'static str> {
    match first {
        '#' => Some("write a topic filter in double quotes; a comment begins with --"),
        '`' => Some("write a string in single quotes and a name in double quotes"),
        _ => None,
    }
}

struct Lexer<'a> {
    rest: &'a str,
    position: TextPosition,
}

impl<'a> Lexer<'a> {
    /// Consumes the first bytes. They must end at a character boundary.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        for character in taken.chars() {
            if character == '\n' {
                self.position.line += 1;
                self.position.column = 1;
            } else {
                self.position.column += 1;
            }
        }
        self.rest = rest;
        taken
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self
            .rest
            .find(|character| !is_part(character))
            .unwrap_or(self.rest.len());
        self.take(end)
    }

    fn skip_space(&mut self) {
        loop {
            self.take_while(char::is_whitespace);
            if !self.rest.starts_with("--") {
                return;
            }
            self.take_while(|character| character != '\n');
        }
    }

    fn token(&mut self, is_key: bool) -> Result<SqlToken, RuleError> {
        let Some(first) = self.rest.chars().next() else {
            return Ok(SqlToken::End);
        };
        match first {
            '\'' => self.quoted('\'').map(SqlToken::Text),
            '"' => self.quoted('"').map(SqlToken::Name),
            '0'..='9' => Ok(self.number(is_key)),
            _ if first.is_ascii_alphabetic() || first == '_' => Ok(self.word()),
            _ => {
                let symbol = SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol));
                let Some(symbol) = symbol else {
                    let expected = "a name, a number, a string in single quotes or an operator";
                    let error = RuleError::new(self.position, format!("{first:?}"), expected);
                    return Err(error.suggest(syntax_hint(first).map(str::to_owned)));
                };
                self.take(symbol.len());
                Ok(SqlToken::Symbol(symbol))
            }
        }
    }

    fn word(&mut self) -> SqlToken {
        let word = self.take_while(|character| character.is_ascii_alphanumeric() || "_$@~".contains(character));
        match KEYWORDS.iter().find(|keyword| keyword.eq_ignore_ascii_case(word)) {
            Some(keyword) => SqlToken::Keyword(keyword),
            None => SqlToken::Name(word.to_owned()),
        }
    }

    fn number(&mut self, is_key: bool) -> SqlToken {
        let start = self.rest;
        self.take_while(|character| character.is_ascii_digit());
        let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
        let mut is_float = false;
        if !is_key && self.rest.starts_with('.') && digits(&self.rest[1..]) > 0 {
            self.take(1 + digits(&self.rest[1..]));
            is_float = true;
        }
        if !is_key && self.rest.starts_with(['e', 'E']) {
            let sign = usize::from(self.rest[1..].starts_with(['+', '-']));
            let exponent = digits(&self.rest[1 + sign..]);
            if exponent > 0 {
                self.take(1 + sign + exponent);
                is_float = true;
            }
        }
        let text = start[..start.len() - self.rest.len()].to_owned();
        if is_float {
            SqlToken::Float(text)
        } else {
            SqlToken::Int(text)
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, RuleError> {
        let start = self.position;
        let mut text = String::new();
        loop {
            self.take(1);
            text.push_str(self.take_while(|character| character != quote));
            if self.rest.is_empty() {
                let expected = format!("a closing {quote}");
                return Err(RuleError::new(start, "a quote that is not closed", expected));
            }
            self.take(1);
            if !self.rest.starts_with(quote) {
                return Ok(text);
            }
            text.push(quote);
        }
    }
}
