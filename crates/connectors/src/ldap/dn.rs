//! Distinguished names in their text form [RFC 4514].
//!
//! A template is parsed before values are inserted, and [`LdapDn::render`] escapes each value. So a value of a client
//! never adds a component to a name.

use std::fmt::Write;

use super::filter::attribute_name;

/// A name whose values have the type `V`: text, or templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapDn<V> {
    /// Relative names from the entry to the root. Each has one or more attributes.
    components: Vec<Vec<(String, V)>>,
}

impl<V> LdapDn<V> {
    /// Parses a name. `value` converts each value, which has no escapes any more.
    pub fn parse(text: &str, value: &mut dyn FnMut(String) -> Result<V, String>) -> Result<LdapDn<V>, String> {
        let mut components = Vec::new();
        if text.trim().is_empty() {
            return Ok(LdapDn { components });
        }
        for component in split(text, b',')? {
            let mut attributes = Vec::new();
            for attribute in split(component, b'+')? {
                let (name, text) = attribute
                    .split_once('=')
                    .ok_or_else(|| format!("found {attribute:?}, expected a part such as ou=devices"))?;
                attributes.push((attribute_name(name)?, value(unescape(text)?)?));
            }
            components.push(attributes);
        }
        Ok(LdapDn { components })
    }

    pub fn is_empty(&self) -> bool {
        self.components.is_empty()
    }

    /// Returns the attributes of the entry's own component.
    pub fn first(&self) -> &[(String, V)] {
        self.components.first().map_or(&[], Vec::as_slice)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.components.iter().flatten().map(|(_, value)| value)
    }

    /// Returns the text with the values that `value` returns, escaped.
    pub fn render(&self, value: &mut dyn FnMut(&V) -> String) -> String {
        let mut text = String::new();
        for (index, component) in self.components.iter().enumerate() {
            for (position, (name, found)) in component.iter().enumerate() {
                match (index, position) {
                    (0, 0) => {}
                    (_, 0) => text.push(','),
                    _ => text.push('+'),
                }
                text.push_str(name);
                text.push('=');
                escape(&mut text, &value(found));
            }
        }
        text
    }
}

impl LdapDn<String> {
    pub fn of(text: &str) -> Result<LdapDn<String>, String> {
        LdapDn::parse(text, &mut Ok)
    }

    /// Returns a text that is equal for names that differ only in case, spaces, escapes, or the order within a
    /// component. Servers compare names in this way, unless an attribute has another matching rule.
    pub fn normalized(&self) -> String {
        let component = |attributes: &Vec<(String, String)>| {
            let mut parts: Vec<String> = attributes
                .iter()
                .map(|(name, value)| {
                    let mut part = format!("{}=", name.to_ascii_lowercase());
                    escape(&mut part, &folded(value));
                    part
                })
                .collect();
            parts.sort_unstable();
            parts.join("+")
        };
        let components: Vec<String> = self.components.iter().map(component).collect();
        components.join(",")
    }
}

/// Returns the text in lower case, with single spaces, as caseIgnoreMatch compares it.
pub fn folded(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

/// Splits at a separator that is not escaped.
fn split(text: &str, separator: u8) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let (mut start, mut is_escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' | b';' | b'<' | b'>' => {
                return Err(format!("found {:?} without a \\ in front", char::from(byte)));
            }
            byte if byte == separator => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    Ok(parts)
}

/// Removes spaces around a value, and the escapes of its characters.
fn unescape(text: &str) -> Result<String, String> {
    let text = text.trim_start_matches(' ');
    if text.starts_with('#') {
        return Err(format!("found the binary value {text:?}, which is not supported"));
    }
    let (mut bytes, mut length) = (Vec::with_capacity(text.len()), 0);
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => {
                let escaped = rest.next().ok_or_else(|| format!("{text:?} ends with a \\"))?;
                match char::from(escaped).to_digit(16) {
                    None => bytes.push(escaped),
                    Some(high) => {
                        let low = rest.next().and_then(|digit| char::from(digit).to_digit(16));
                        let low = low.ok_or_else(|| format!("found a \\ with one hexadecimal digit in {text:?}"))?;
                        bytes.push((high << 4 | low) as u8);
                    }
                }
                length = bytes.len();
            }
            b' ' => bytes.push(b' '),
            other => {
                bytes.push(other);
                length = bytes.len();
            }
        }
    }
    // Spaces at the end, unless they are escaped.
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|_| format!("the value {text:?} is not UTF-8"))
}

/// Appends a value with escapes [RFC 4514, 2.4].
fn escape(out: &mut String, value: &str) {
    let last = value.char_indices().next_back().map(|(at, _)| at);
    for (at, character) in value.char_indices() {
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => {
                out.push('\\');
                out.push(character);
            }
            '#' if at == 0 => out.push_str("\\#"),
            ' ' if at == 0 || Some(at) == last => out.push_str("\\ "),
            control if control.is_ascii_control() => {
                let _ = write!(out, "\\{:02x}", control as u32);
            }
            other => out.push(other),
        }
    }
}
