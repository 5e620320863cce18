//! The text of a rule as tokens with their positions.

use crate::error::{Position, RuleError};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// Bare, or in double quotes (which never make a keyword of it).
    Name(String),
    Keyword(&'static str),
    /// In single quotes; two of them stand for one.
    Text(String),
    Int(String),
    Float(String),
    Symbol(&'static str),
    End,
}

impl Token {
    /// As an error message shows it.
    pub fn describe(&self) -> String {
        match self {
            Token::Name(name) => format!("{name:?}"),
            Token::Keyword(word) | Token::Symbol(word) => (*word).to_owned(),
            Token::Text(text) => format!("'{text}'"),
            Token::Int(digits) | Token::Float(digits) => digits.clone(),
            Token::End => "the end of the rule".to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub token: Token,
    pub position: Position,
}

const KEYWORDS: &[&str] = &[
    "AND", "AS", "CASE", "DO", "ELSE", "ELSIF", "END", "FOREACH", "FROM", "IF", "IN", "INCASE", "NOT", "OR", "SELECT",
    "THEN", "WHEN", "WHERE",
];

/// Longest first.
const SYMBOLS: &[&str] = &[
    "..", "=~", "!=", "<>", "<=", ">=", "(", ")", "[", "]", "*", "+", ",", "-", ".", "/", "=", "<", ">",
];

pub(crate) fn tokens(text: &str) -> Result<Vec<Placed>, RuleError> {
    let mut lexer = Lexer {
        rest: text,
        position: Position { line: 1, column: 1 },
    };
    let mut tokens: Vec<Placed> = Vec::new();
    loop {
        lexer.skip_space();
        let position = lexer.position;
        // Behind a point stands a key, so that `a.1.2` is a path and no number.
        let is_key = tokens.last().is_some_and(|last| last.token == Token::Symbol("."));
        let token = lexer.token(is_key)?;
        let is_end = token == Token::End;
        tokens.push(Placed { token, position });
        if is_end {
            return Ok(tokens);
        }
    }
}

/// What is meant by who writes as elsewhere.
fn habit(first: char) -> Option<&'static str> {
    match first {
        '#' => Some("a topic filter stands in quotes, a comment begins with --"),
        '`' => Some("a string stands in single quotes, a name in double quotes"),
        _ => None,
    }
}

struct Lexer<'a> {
    rest: &'a str,
    position: Position,
}

impl<'a> Lexer<'a> {
    /// Takes the first bytes off, which end at a character.
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

    fn token(&mut self, is_key: bool) -> Result<Token, RuleError> {
        let Some(first) = self.rest.chars().next() else {
            return Ok(Token::End);
        };
        match first {
            '\'' => self.quoted('\'').map(Token::Text),
            '"' => self.quoted('"').map(Token::Name),
            '0'..='9' => Ok(self.number(is_key)),
            _ if first.is_ascii_alphabetic() || first == '_' => Ok(self.word()),
            _ => {
                let symbol = SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol));
                let Some(symbol) = symbol else {
                    let expected = "a name, a number, a string in single quotes or an operator";
                    let error = RuleError::new(self.position, format!("{first:?}"), expected);
                    return Err(error.suggest(habit(first).map(str::to_owned)));
                };
                self.take(symbol.len());
                Ok(Token::Symbol(symbol))
            }
        }
    }

    fn word(&mut self) -> Token {
        let word = self.take_while(|character| character.is_ascii_alphanumeric() || "_$@~".contains(character));
        match KEYWORDS.iter().find(|keyword| keyword.eq_ignore_ascii_case(word)) {
            Some(keyword) => Token::Keyword(keyword),
            None => Token::Name(word.to_owned()),
        }
    }

    fn number(&mut self, is_key: bool) -> Token {
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
        if is_float { Token::Float(text) } else { Token::Int(text) }
    }

    fn quoted(&mut self, quote: char) -> Result<String, RuleError> {
        let start = self.position;
        let mut text = String::new();
        loop {
            self.take(1);
            text.push_str(self.take_while(|character| character != quote));
            if self.rest.is_empty() {
                let expected = format!("a closing {quote}");
                return Err(RuleError::new(start, "a quote that is never closed", expected));
            }
            self.take(1);
            if !self.rest.starts_with(quote) {
                return Ok(text);
            }
            text.push(quote);
        }
    }
}
