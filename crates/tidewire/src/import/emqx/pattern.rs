//! Patterns of bans. EMQX compiles them with PCRE for bytes, and the server with the crate `regex`.
//!
//! Both read many patterns differently, some without an error in either. So only the syntax below is accepted, which
//! has one meaning:
//!
//! - ASCII characters, `.`, `^`, `$`, `|`, groups `(…)` and `(?:…)`;
//! - the flags `i` and `s`;
//! - the quantifiers `*`, `+`, `?`, `{2}`, `{2,}`, `{2,3}`, each also lazy;
//! - `\d`, `\D`, `\A`, `\z`, `\t`, `\n`, `\r`, `\f`, and `\` before punctuation;
//! - classes of ASCII characters and ranges;
//! - other characters outside of classes, without a quantifier and without flags.
//!
//! `$` of PCRE also matches before a line feed at the end, which no usual client ID or user name has.

use std::iter::Peekable;
use std::str::Chars;

/// Kind of the last part of a pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The beginning of the pattern, a group or an alternative, or an anchor.
    None,
    /// It can have a quantifier.
    Ascii,
    /// A character with several bytes: a quantifier of PCRE would apply to the last byte.
    Other,
    Quantifier,
    /// A lazy quantifier.
    Lazy,
}

/// Returns why a pattern could mean something else in tidewire.
pub fn difference(pattern: &str) -> Option<String> {
    Scan {
        rest: pattern.chars().peekable(),
        has_flags: false,
        has_other: false,
    }
    .pattern()
    .err()
}

struct Scan<'t> {
    rest: Peekable<Chars<'t>>,
    has_flags: bool,
    /// Whether a character is not ASCII.
    has_other: bool,
}

fn differs(part: &str) -> String {
    format!("`{part}` has another meaning in the patterns of tidewire, or none")
}

impl Scan<'_> {
    fn pattern(&mut self) -> Result<(), String> {
        let mut last = Part::None;
        while let Some(c) = self.rest.next() {
            last = match c {
                '^' | '$' | '|' => Part::None,
                '(' => {
                    self.group()?;
                    Part::None
                }
                ')' => Part::Ascii,
                '[' => self.class()?,
                '\\' => self.escape(false)?,
                '*' | '+' | '?' | '{' => self.quantifier(c, last)?,
                c if c.is_ascii() => Part::Ascii,
                _ => {
                    self.has_other = true;
                    Part::Other
                }
            };
        }
        match self.has_flags && self.has_other {
            true => Err("it has flags and characters that are not ASCII".to_owned()),
            false => Ok(()),
        }
    }

    /// Reads what follows `(`.
    fn group(&mut self) -> Result<(), String> {
        if self.rest.peek() != Some(&'?') {
            return Ok(());
        }
        self.rest.next();
        let mut flags = String::new();
        for c in self.rest.by_ref() {
            match c {
                'i' | 's' => flags.push(c),
                ':' => {
                    self.has_flags |= !flags.is_empty();
                    return Ok(());
                }
                ')' if !flags.is_empty() => {
                    self.has_flags = true;
                    return Ok(());
                }
                c => return Err(differs(&format!("(?{flags}{c}"))),
            }
        }
        Err(differs("(?"))
    }

    fn quantifier(&mut self, first: char, last: Part) -> Result<Part, String> {
        match last {
            Part::Ascii => {}
            Part::Quantifier if first == '?' => return Ok(Part::Lazy),
            Part::Other => return Err(format!("`{first}` follows a character that is not ASCII")),
            Part::None | Part::Quantifier | Part::Lazy => return Err(differs(&first.to_string())),
        }
        if first != '{' {
            return Ok(Part::Quantifier);
        }
        let mut range = String::new();
        for c in self.rest.by_ref() {
            match c {
                '}' => break,
                c if c.is_ascii_digit() || c == ',' => range.push(c),
                _ => return Err(differs("{")),
            }
        }
        let (least, most) = range.split_once(',').unwrap_or((range.as_str(), ""));
        match least.is_empty() || most.contains(',') {
            true => Err(differs("{")),
            false => Ok(Part::Quantifier),
        }
    }

    fn escape(&mut self, is_in_class: bool) -> Result<Part, String> {
        match self.rest.next() {
            Some('d' | 'D' | 't' | 'n' | 'r' | 'f') => Ok(Part::Ascii),
            Some('A' | 'z') if !is_in_class => Ok(Part::None),
            // `\<` and `\>` are the ends of words in `regex`.
            Some(c) if c.is_ascii_punctuation() && c != '<' && c != '>' => Ok(Part::Ascii),
            Some(c @ ('w' | 'W' | 's' | 'S' | 'b' | 'B')) => Err(format!(
                "`\\{c}` matches characters of ISO 8859-1 in EMQX, and of ASCII in tidewire: write a class such as \
                 [0-9A-Za-z_]"
            )),
            Some(c) => Err(differs(&format!("\\{c}"))),
            None => Err(differs("\\")),
        }
    }

    /// Reads what follows `[`. Nested and combined classes exist in `regex` only.
    fn class(&mut self) -> Result<Part, String> {
        if self.rest.peek() == Some(&'^') {
            self.rest.next();
        }
        let mut previous = '[';
        while let Some(c) = self.rest.next() {
            match c {
                ']' if previous == '[' => return Err(differs("[]")),
                ']' => return Ok(Part::Ascii),
                '[' => return Err(differs("[[")),
                '&' | '-' | '~' if previous == c => return Err(differs(&format!("{c}{c}"))),
                '\\' => {
                    self.escape(true)?;
                }
                c if c.is_ascii() => {}
                _ => return Err("a class has characters that are not ASCII".to_owned()),
            }
            // An escaped character is none of those that are compared.
            previous = if c == '\\' { 'a' } else { c };
        }
        Err(differs("["))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_with_one_meaning_are_accepted() {
        for pattern in [
            "^device-[0-9]+$",
            "^(sensor|meter)_.*",
            "(?i)^test",
            "(?:a|b){2,3}?c",
            r"^a\.b\-c\/\d{4}$",
            r"\Aa[\d\]\-_.:/ -]*\z",
            "[^a-z]",
            "[a&b-]",
            "Gerät",
            "",
        ] {
            assert_eq!(difference(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn patterns_with_two_meanings_are_refused() {
        for (pattern, part) in [
            ("[a&&b]", "`&&`"),
            ("[a--b]", "`--`"),
            ("[a~~b]", "`~~`"),
            ("[a[b]", "`[[`"),
            ("[[:alpha:]]", "`[[`"),
            ("[]a]", "`[]`"),
            ("[^]a]", "`[]`"),
            ("[a", "`[`"),
            ("a(?=b)", "`(?=`"),
            ("a(?!b)", "`(?!`"),
            ("(?<!a)b", "`(?<`"),
            ("(?>a)b", "`(?>`"),
            ("(?x)a b", "`(?x`"),
            ("(?-i)a", "`(?-`"),
            ("(?R)", "`(?R`"),
            ("(*UTF8)a", "`*`"),
            (r"(a)\1", r"`\1`"),
            (r"\Qa.b\E", r"`\Q`"),
            (r"\x41", r"`\x`"),
            (r"\v", r"`\v`"),
            (r"\h", r"`\h`"),
            (r"\<a", r"`\<`"),
            (r"a\Z", r"`\Z`"),
            (r"^\w+$", "ISO 8859-1"),
            (r"[\s]", "ISO 8859-1"),
            (r"[\b]", "ISO 8859-1"),
            ("a\\", "`\\`"),
            ("a*+", "`+`"),
            ("a++b", "`+`"),
            ("a*??", "`?`"),
            ("a{,3}", "`{`"),
            ("a{x", "`{`"),
            ("a{1,2,3}", "`{`"),
            ("é+", "not ASCII"),
            ("[é]", "not ASCII"),
            ("(?i)é", "not ASCII"),
        ] {
            let because = difference(pattern).unwrap_or_else(|| panic!("{pattern} is accepted"));
            assert!(because.contains(part), "{pattern}: {because}");
        }
    }
}
