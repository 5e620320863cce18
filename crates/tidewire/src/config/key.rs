//! Keys: `listeners.tcp.default.bind` as a list of words, and the patterns that options are declared under.

use std::fmt;

/// The full name of one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub Vec<String>);

/// One word of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    Fixed(&'static str),
    OneOf(&'static [&'static str]),
    /// Any word; the name is for documentation.
    Any(&'static str),
}

pub type Pattern = &'static [Segment];

impl Segment {
    pub fn matches(&self, word: &str) -> bool {
        match self {
            Segment::Fixed(fixed) => *fixed == word,
            Segment::OneOf(words) => words.contains(&word),
            Segment::Any(_) => !word.is_empty(),
        }
    }
}

impl Key {
    pub fn of(words: &[&str]) -> Key {
        Key(words.iter().map(|word| (*word).into()).collect())
    }

    /// Reads a dotted key with TOML's quoting: `access.users."a.b"`.
    pub fn parse(text: &str) -> Option<Key> {
        let mut words = Vec::new();
        let mut rest = text.trim();
        loop {
            let (word, after) = match rest.chars().next() {
                Some(quote @ ('"' | '\'')) => rest[1..].split_once(quote)?,
                _ => rest.split_at(rest.find('.').unwrap_or(rest.len())),
            };
            words.push(word.to_string());
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None if after.is_empty() => break,
                None => return None,
            }
        }
        words.iter().all(|word| !word.is_empty()).then_some(Key(words))
    }

    pub fn child(&self, word: &str) -> Key {
        let mut words = self.0.clone();
        words.push(word.into());
        Key(words)
    }

    pub fn words(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl fmt::Display for Key {
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
    if is_bare {
        word.into()
    } else {
        toml::Value::String(word.into()).to_string()
    }
}

/// `listeners.(tcp|ws).<name>`, as the reference page shows a pattern.
pub fn pattern_text(pattern: Pattern) -> String {
    let words: Vec<String> = pattern
        .iter()
        .map(|segment| match segment {
            Segment::Fixed(word) => (*word).to_string(),
            Segment::OneOf(words) => format!("({})", words.join("|")),
            Segment::Any(name) => format!("<{name}>"),
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
            let key = Key::parse(text).expect(text);
            assert_eq!((key.words(), key.to_string().as_str()), (words, printed));
        }
        for text in ["", "a..b", ".a", "a.", "a.\"b", "\"a\"b"] {
            assert_eq!(Key::parse(text), None, "{text}");
        }
    }
}
