//! Search filters in their text form [RFC 4515].
//!
//! A filter is parsed once. Values of clients are inserted into the parsed filter, so they are never part of its text
//! and need no escaping: a `*` or `)` in a user name is compared like any other character.

use super::ber::{self, OCTET_STRING, SEQUENCE};

/// Maximum number of nested parentheses.
const DEPTH_MAX: usize = 32;

/// A filter whose values have the type `V`: templates, or the bytes for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapFilter<V> {
    And(Vec<LdapFilter<V>>),
    Or(Vec<LdapFilter<V>>),
    Not(Box<LdapFilter<V>>),
    /// `=`, `>=`, `<=` or `~=`.
    Compare(Comparison, String, V),
    /// `attribute=*`
    Present(String),
    /// `attribute=a*b*c`
    Substrings(String, Substrings<V>),
    /// `attribute:dn:rule:=value`
    Extensible(MatchingRule, V),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    GreaterOrEqual,
    LessOrEqual,
    Approximate,
}

/// The parts between the asterisks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Substrings<V> {
    initial: Option<V>,
    any: Vec<V>,
    last: Option<V>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchingRule {
    attribute: Option<String>,
    rule: Option<String>,
    with_dn: bool,
}

impl<V> LdapFilter<V> {
    /// Parses a filter. `value` converts each value, which has no escapes any more. White space between parentheses is
    /// allowed, as in EMQX.
    pub fn parse(text: &str, value: &mut dyn FnMut(String) -> Result<V, String>) -> Result<LdapFilter<V>, String> {
        let mut parser = FilterParser {
            rest: text.trim(),
            value,
        };
        let filter = parser.filter(0)?;
        match parser.rest.trim() {
            "" => Ok(filter),
            rest => Err(format!(
                "found {rest:?} after the filter; combine conditions with (&(…)(…))"
            )),
        }
    }

    /// Replaces the values.
    pub fn map<W>(&self, value: &mut dyn FnMut(&V) -> W) -> LdapFilter<W> {
        match self {
            LdapFilter::And(filters) => LdapFilter::And(filters.iter().map(|filter| filter.map(value)).collect()),
            LdapFilter::Or(filters) => LdapFilter::Or(filters.iter().map(|filter| filter.map(value)).collect()),
            LdapFilter::Not(filter) => LdapFilter::Not(Box::new(filter.map(value))),
            LdapFilter::Compare(comparison, attribute, found) => {
                LdapFilter::Compare(*comparison, attribute.clone(), value(found))
            }
            LdapFilter::Present(attribute) => LdapFilter::Present(attribute.clone()),
            LdapFilter::Substrings(attribute, parts) => LdapFilter::Substrings(
                attribute.clone(),
                Substrings {
                    initial: parts.initial.as_ref().map(&mut *value),
                    any: parts.any.iter().map(&mut *value).collect(),
                    last: parts.last.as_ref().map(&mut *value),
                },
            ),
            LdapFilter::Extensible(rule, found) => LdapFilter::Extensible(rule.clone(), value(found)),
        }
    }

    /// Returns the attributes that are compared for equality, with their values. Those of `!` are not returned.
    pub fn equalities(&self) -> Vec<(&str, &V)> {
        match self {
            LdapFilter::And(filters) | LdapFilter::Or(filters) => {
                filters.iter().flat_map(LdapFilter::equalities).collect()
            }
            LdapFilter::Compare(Comparison::Equal, attribute, value) => vec![(attribute, value)],
            _ => Vec::new(),
        }
    }
}

impl LdapFilter<Vec<u8>> {
    /// The filter that every entry matches.
    pub fn any_entry() -> LdapFilter<Vec<u8>> {
        LdapFilter::Present("objectClass".to_owned())
    }

    /// Appends the filter of a search request.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            LdapFilter::And(filters) => ber::push_with(out, 0xA0, |out| filters.iter().for_each(|f| f.write(out))),
            LdapFilter::Or(filters) => ber::push_with(out, 0xA1, |out| filters.iter().for_each(|f| f.write(out))),
            LdapFilter::Not(filter) => ber::push_with(out, 0xA2, |out| filter.write(out)),
            LdapFilter::Compare(comparison, attribute, value) => {
                let tag = match comparison {
                    Comparison::Equal => 0xA3,
                    Comparison::GreaterOrEqual => 0xA5,
                    Comparison::LessOrEqual => 0xA6,
                    Comparison::Approximate => 0xA8,
                };
                ber::push_with(out, tag, |out| {
                    ber::push(out, OCTET_STRING, attribute.as_bytes());
                    ber::push(out, OCTET_STRING, value);
                });
            }
            LdapFilter::Present(attribute) => ber::push(out, 0x87, attribute.as_bytes()),
            LdapFilter::Substrings(attribute, parts) => ber::push_with(out, 0xA4, |out| {
                ber::push(out, OCTET_STRING, attribute.as_bytes());
                ber::push_with(out, SEQUENCE, |out| {
                    parts.initial.iter().for_each(|part| ber::push(out, 0x80, part));
                    parts.any.iter().for_each(|part| ber::push(out, 0x81, part));
                    parts.last.iter().for_each(|part| ber::push(out, 0x82, part));
                });
            }),
            LdapFilter::Extensible(rule, value) => ber::push_with(out, 0xA9, |out| {
                rule.rule.iter().for_each(|rule| ber::push(out, 0x81, rule.as_bytes()));
                rule.attribute
                    .iter()
                    .for_each(|name| ber::push(out, 0x82, name.as_bytes()));
                ber::push(out, 0x83, value);
                ber::push(out, 0x84, &[if rule.with_dn { 0xFF } else { 0 }]);
            }),
        }
    }
}

struct FilterParser<'a, 'f, V> {
    rest: &'a str,
    value: &'f mut dyn FnMut(String) -> Result<V, String>,
}

impl<V> FilterParser<'_, '_, V> {
    fn filter(&mut self, depth: usize) -> Result<LdapFilter<V>, String> {
        if depth > DEPTH_MAX {
            return Err(format!("has more than {DEPTH_MAX} nested parentheses"));
        }
        self.take('(')?;
        self.rest = self.rest.trim_start();
        let filter = match self.rest.chars().next() {
            Some('&') => LdapFilter::And(self.list(depth)?),
            Some('|') => LdapFilter::Or(self.list(depth)?),
            Some('!') => {
                self.rest = self.rest[1..].trim_start();
                LdapFilter::Not(Box::new(self.filter(depth + 1)?))
            }
            _ => self.item()?,
        };
        self.take(')')?;
        Ok(filter)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<LdapFilter<V>>, String> {
        self.rest = self.rest[1..].trim_start();
        let mut filters = Vec::new();
        while self.rest.starts_with('(') {
            filters.push(self.filter(depth + 1)?);
            self.rest = self.rest.trim_start();
        }
        match filters.is_empty() {
            true => Err("found & or | without conditions".to_owned()),
            false => Ok(filters),
        }
    }

    fn take(&mut self, character: char) -> Result<(), String> {
        let rest = self.rest.trim_start();
        self.rest = rest.strip_prefix(character).ok_or_else(|| match rest {
            "" => format!("ends early: expected {character}"),
            rest => format!("found {rest:?}, expected {character}"),
        })?;
        Ok(())
    }

    fn item(&mut self) -> Result<LdapFilter<V>, String> {
        let end = self.rest.find(['(', ')']).unwrap_or(self.rest.len());
        let (item, rest) = self.rest.split_at(end);
        self.rest = rest;
        let (left, value) = item
            .split_once('=')
            .ok_or_else(|| format!("found {item:?}, expected a condition such as (uid=${{username}})"))?;
        if let Some(left) = left.strip_suffix(':') {
            return Ok(LdapFilter::Extensible(matching_rule(left)?, self.value(value)?));
        }
        let (left, comparison) = match left.strip_suffix(['>', '<', '~']) {
            None => (left, Comparison::Equal),
            Some(name) if left.ends_with('>') => (name, Comparison::GreaterOrEqual),
            Some(name) if left.ends_with('<') => (name, Comparison::LessOrEqual),
            Some(name) => (name, Comparison::Approximate),
        };
        let attribute = attribute_name(left)?;
        if comparison != Comparison::Equal || !value.contains('*') {
            return Ok(LdapFilter::Compare(comparison, attribute, self.value(value)?));
        }
        if value == "*" {
            return Ok(LdapFilter::Present(attribute));
        }
        self.substrings(attribute, value)
    }

    fn substrings(&mut self, attribute: String, value: &str) -> Result<LdapFilter<V>, String> {
        let parts: Vec<&str> = value.split('*').collect();
        let (first, last) = (parts[0], parts[parts.len() - 1]);
        let mut any = Vec::new();
        for part in &parts[1..parts.len() - 1] {
            match part.is_empty() {
                true => return Err(format!("found ** in {value:?}")),
                false => any.push(self.value(part)?),
            }
        }
        let mut outer = |part: &str| (!part.is_empty()).then(|| self.value(part)).transpose();
        Ok(LdapFilter::Substrings(
            attribute,
            Substrings {
                initial: outer(first)?,
                last: outer(last)?,
                any,
            },
        ))
    }

    fn value(&mut self, text: &str) -> Result<V, String> {
        (self.value)(unescape(text)?)
    }
}

fn matching_rule(text: &str) -> Result<MatchingRule, String> {
    let mut words = text.split(':');
    let attribute = words.next().filter(|name| !name.is_empty());
    let mut rule = MatchingRule {
        attribute: attribute.map(attribute_name).transpose()?,
        rule: None,
        with_dn: false,
    };
    for word in words {
        match word {
            "dn" if !rule.with_dn && rule.rule.is_none() => rule.with_dn = true,
            name if rule.rule.is_none() => rule.rule = Some(attribute_name(name)?),
            _ => return Err(format!("found {text:?}, expected attribute:rule:=value")),
        }
    }
    match rule.attribute.is_none() && rule.rule.is_none() {
        true => Err("found := without an attribute or a rule".to_owned()),
        false => Ok(rule),
    }
}

/// Checks the name of an attribute, with options such as `;binary`, or its number.
pub(super) fn attribute_name(text: &str) -> Result<String, String> {
    let text = text.trim();
    let is_valid = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | ';' | '_');
    match !text.is_empty() && text.chars().all(is_valid) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not the name of an attribute")),
    }
}

/// Replaces `\XX` by the byte.
fn unescape(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next(), rest.next()].map(|digit| char::from(digit.unwrap_or(b' ')).to_digit(16));
        let [Some(high), Some(low)] = digits else {
            return Err(format!(
                "found a \\ without two hexadecimal digits in {text:?}; write \\5c for \\"
            ));
        };
        bytes.push((high << 4 | low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| format!("the value {text:?} is not UTF-8"))
}
