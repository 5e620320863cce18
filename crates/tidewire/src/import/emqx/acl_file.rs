//! Reads terms of Erlang as text: the rules of EMQX's `acl.conf`.
//!
//! The text can come from anyone: its size and the depth of terms are bounded.

use super::term::Term;

const TEXT_BYTES_MAX: usize = 4 << 20;
const DEPTH_MAX: usize = 32;

/// Returns the terms, each with the line on which it begins, starting at 1.
pub fn parse(text: &str) -> Result<Vec<(usize, Term)>, (usize, String)> {
    let mut reader = Reader { text, at: 0, line: 1 };
    if text.len() > TEXT_BYTES_MAX {
        return Err((1, format!("the rules are larger than {TEXT_BYTES_MAX} bytes")));
    }
    let mut terms = Vec::new();
    loop {
        reader.skip_blank();
        if reader.peek().is_none() {
            return Ok(terms);
        }
        let line = reader.line;
        let term = reader.term(0).map_err(|problem| (reader.line, problem))?;
        reader.skip_blank();
        if reader.peek() != Some('.') {
            return Err((reader.line, "expected `.` at the end of a rule".to_owned()));
        }
        reader.bump();
        terms.push((line, term));
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn bump(&mut self) {
        if let Some(c) = self.peek() {
            self.at += c.len_utf8();
            self.line += usize::from(c == '\n');
        }
    }

    fn skip_blank(&mut self) {
        loop {
            while self.peek().is_some_and(char::is_whitespace) {
                self.bump();
            }
            if self.peek() != Some('%') {
                return;
            }
            while self.peek().is_some_and(|c| c != '\n') {
                self.bump();
            }
        }
    }

    fn term(&mut self, depth: usize) -> Result<Term, String> {
        if depth > DEPTH_MAX {
            return Err(format!("terms are nested deeper than {DEPTH_MAX} levels"));
        }
        self.skip_blank();
        match self.peek() {
            Some('{') => self.items('}', depth).map(Term::Tuple),
            Some('[') => self.items(']', depth).map(Term::List),
            Some('"') => self.quoted('"').map(|text| Term::Bytes(text.into_bytes())),
            Some('\'') => self.quoted('\'').map(Term::Atom),
            Some('<') => self.binary(depth),
            Some(c) if c.is_ascii_digit() || c == '-' => {
                let word = self.word(|c| c.is_ascii_digit() || c == '-');
                word.parse()
                    .map(Term::Integer)
                    .map_err(|_| format!("{word:?} is not a number"))
            }
            Some(c) if c.is_ascii_lowercase() => Ok(Term::Atom(
                self.word(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '@')),
            )),
            Some(c) => Err(format!("expected a term, found {c:?}")),
            None => Err("the rules end inside of a term".to_owned()),
        }
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool) -> String {
        let rest = &self.text[self.at..];
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += length;
        rest[..length].to_owned()
    }

    fn items(&mut self, closing: char, depth: usize) -> Result<Vec<Term>, String> {
        self.bump();
        let mut items = Vec::new();
        self.skip_blank();
        if self.peek() == Some(closing) {
            self.bump();
            return Ok(items);
        }
        loop {
            items.push(self.term(depth + 1)?);
            self.skip_blank();
            match self.peek() {
                Some(',') => self.bump(),
                Some(c) if c == closing => {
                    self.bump();
                    return Ok(items);
                }
                _ => return Err(format!("expected `,` or `{closing}`")),
            }
        }
    }

    /// `<<"text">>`, with `/utf8` or without.
    fn binary(&mut self, depth: usize) -> Result<Term, String> {
        for _ in 0..2 {
            if self.peek() != Some('<') {
                return Err("expected `<<`".to_owned());
            }
            self.bump();
        }
        let term = match self.peek() {
            Some('"') => self.term(depth + 1)?,
            _ => return Err("expected a text in `<<`".to_owned()),
        };
        let rest = &self.text[self.at..];
        let rest = rest.strip_prefix("/utf8").unwrap_or(rest);
        let Some(rest) = rest.strip_prefix(">>") else {
            return Err("expected `>>`".to_owned());
        };
        self.at = self.text.len() - rest.len();
        Ok(term)
    }

    fn quoted(&mut self, quote: char) -> Result<String, String> {
        self.bump();
        let mut text = String::new();
        loop {
            let Some(c) = self.peek() else {
                return Err("the rules end inside of a quoted text".to_owned());
            };
            self.bump();
            match c {
                c if c == quote => return Ok(text),
                '\\' => {
                    let escaped = self.peek().ok_or("the rules end inside of a quoted text")?;
                    self.bump();
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        's' => ' ',
                        c if c.is_ascii_alphanumeric() => return Err(format!("unknown escape `\\{c}`")),
                        c => c,
                    });
                }
                c => text.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::term::tests::{atom, bytes, tuple};
    use super::*;

    #[test]
    fn rules_have_their_lines() {
        let text = "%% comment\n{allow, {user, \"a\\\"b\"}, all, [\"x/#\", {eq, <<\"#\">>}]}.\n\n{deny,all}. % end";
        let terms = parse(text).expect("valid");
        let topics = Term::List(vec![bytes("x/#"), tuple(&[atom("eq"), bytes("#")])]);
        let who = tuple(&[atom("user"), bytes("a\"b")]);
        assert_eq!(
            terms,
            [
                (2, tuple(&[atom("allow"), who, atom("all"), topics])),
                (4, tuple(&[atom("deny"), atom("all")])),
            ]
        );
    }

    #[test]
    fn invalid_rules_are_errors() {
        for (text, line, part) in [
            ("{allow, all}", 1, "expected `.`"),
            ("{allow\n, all", 2, "expected `,`"),
            ("{allow, Name}.", 1, "found 'N'"),
            ("\"x", 1, "quoted"),
            ("<<1>>.", 1, "expected a text"),
        ] {
            let (at, problem) = parse(text).unwrap_err();
            assert!(at == line && problem.contains(part), "{text}: {at}: {problem}");
        }
        let deep = "{".repeat(100_000);
        assert!(parse(&deep).unwrap_err().1.contains("nested deeper"));
    }
}
