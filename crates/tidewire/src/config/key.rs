//! Keys: `listeners.tcp.default.bind` as a list of words, and the patterns that options are declared under.

use std::fmt::{self, Write as _};
use std::str::Chars;

/// The full name of one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OptionKey(pub Vec<String>);

/// One word of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySegment {
    Fixed(&'static str),
    OneOf(&'static [&'static str]),
    /// Any word; the name is for documentation.
    Any(&'static str),
}

pub type KeyPattern = &'static [KeySegment];

impl KeySegment {
    pub fn matches(&self, word: &str) -> bool {
        match self {
            KeySegment::Fixed(fixed) => *fixed == word,
            KeySegment::OneOf(words) => words.contains(&word),
            KeySegment::Any(_) => !word.is_empty(),
        }
    }
}

impl OptionKey {
    pub fn of(words: &[&str]) -> OptionKey {
        OptionKey(words.iter().map(|word| (*word).into()).collect())
    }

    /// Reads a dotted key with TOML's quoting: `access.users."a.b"`. What `Display` writes comes back.
    pub fn parse(text: &str) -> Option<OptionKey> {
        let mut words = Vec::new();
        let mut rest = text.trim();
        loop {
            let (word, after) = match rest.chars().next() {
                Some('"') => unquoted(&rest[1..])?,
                Some('\'') => rest[1..]
                    .split_once('\'')
                    .map(|(word, after)| (word.to_string(), after))?,
                _ => {
                    let (word, after) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
                    (word.to_string(), after)
                }
            };
            words.push(word);
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None if after.is_empty() => break,
                None => return None,
            }
        }
        words.iter().all(|word| !word.is_empty()).then_some(OptionKey(words))
    }

    pub fn child(&self, word: &str) -> OptionKey {
        let mut words = self.0.clone();
        words.push(word.into());
        OptionKey(words)
    }

    pub fn words(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl fmt::Display for OptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            f.write_str(&quoted(word))?;
        }
        Ok(())
    }
}

/// A word as TOML needs it.
pub fn quoted(word: &str) -> String {
    let is_bare = !word.is_empty()
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if is_bare { word.into() } else { in_quotes(word) }
}

/// A basic TOML string on one line. Values may use other quotes, but a word is always written in one way, because the
/// console builds keys.
fn in_quotes(word: &str) -> String {
    let mut text = String::from('"');
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\u{8}' => text.push_str("\\b"),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\u{c}' => text.push_str("\\f"),
            '\r' => text.push_str("\\r"),
            '\0'..='\u{1f}' | '\u{7f}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

/// Returns a basic string up to its closing quote, and the rest.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut word = String::new();
    let mut rest = text.chars();
    loop {
        match rest.next()? {
            '"' => return Some((word, rest.as_str())),
            '\\' => word.push(escaped(&mut rest)?),
            c => word.push(c),
        }
    }
}

/// Returns the character that an escape sequence stands for.
fn escaped(rest: &mut Chars<'_>) -> Option<char> {
    let digits = match rest.next()? {
        c @ ('"' | '\\') => return Some(c),
        'b' => return Some('\u{8}'),
        't' => return Some('\t'),
        'n' => return Some('\n'),
        'f' => return Some('\u{c}'),
        'r' => return Some('\r'),
        'u' => 4,
        'U' => 8,
        _ => return None,
    };
    let code = rest.as_str().get(..digits)?;
    if !code.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    *rest = rest.as_str()[digits..].chars();
    u32::from_str_radix(code, 16).ok().and_then(char::from_u32)
}

/// `listeners.(tcp|ws).<name>`, as the reference page shows a pattern.
pub fn pattern_text(pattern: KeyPattern) -> String {
    let words: Vec<String> = pattern
        .iter()
        .map(|segment| match segment {
            KeySegment::Fixed(word) => (*word).to_string(),
            KeySegment::OneOf([word]) => (*word).to_string(),
            KeySegment::OneOf(words) => format!("({})", words.join("|")),
            KeySegment::Any(name) => format!("<{name}>"),
        })
        .collect();
    words.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_printed() {
        for (text, words, printed) in [
            ("mqtt.max_qos", vec!["mqtt", "max_qos"], "mqtt.max_qos"),
            (
                "access.users.\"a.b\"",
                vec!["access", "users", "a.b"],
                "access.users.\"a.b\"",
            ),
            ("access.users.'x'", vec!["access", "users", "x"], "access.users.x"),
            ("node", vec!["node"], "node"),
        ] {
            let key = OptionKey::parse(text).expect(text);
            assert_eq!((key.words(), key.to_string().as_str()), (words, printed));
        }
        for text in [
            "",
            "a..b",
            ".a",
            "a.",
            "a.\"b",
            "\"a\"b",
            r#""a\"#,
            r#""\x""#,
            r#""\u12""#,
            r#""\u+041""#,
            r#""\ud800""#,
        ] {
            assert_eq!(OptionKey::parse(text), None, "{text}");
        }
    }

    #[test]
    fn words_of_any_letters_come_back_as_they_were_and_are_toml() {
        for (word, printed) in [
            (r#"a"b"#, r#""a\"b""#),
            (r"a\b", r#""a\\b""#),
            (r#"'"\.""#, r#""'\"\\.\"""#),
            ("a\nb\t\u{8}\u{c}\r", r#""a\nb\t\b\f\r""#),
            ("\u{1}\u{7f}", r#""\u0001\u007f""#),
            ("\u{e4} \u{1f980}", "\"\u{e4} \u{1f980}\""),
            ("=#", r##""=#""##),
        ] {
            let key = OptionKey::of(&["listeners", "tcp", word, "bind"]);
            let text = key.to_string();
            assert_eq!(text, format!("listeners.tcp.{printed}.bind"));
            assert_eq!(OptionKey::parse(&text), Some(key));
            let table: toml::Table = format!("{printed} = 1").parse().expect("TOML");
            assert_eq!(table.keys().collect::<Vec<_>>(), [word]);
        }
        for text in [r#""\u0041\U0001F980""#, "\"A\u{1f980}\""] {
            assert_eq!(OptionKey::parse(text), Some(OptionKey::of(&["A\u{1f980}"])), "{text}");
        }
    }
}
