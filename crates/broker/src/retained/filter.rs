//! How a scan evaluates sorted keys against a filter: whether a key matches, and where to continue.
//!
//! Keys are topics with '/' replaced by 0x00, so a topic directly precedes its subtree, and a subtree precedes the next
//! sibling.

use std::cmp::Ordering;

pub(super) struct ScanFilter<'a> {
    levels: Vec<FilterLevel<'a>>,
}

enum FilterLevel<'a> {
    Literal(&'a [u8]),
    Plus,
    Hash,
}

#[derive(Debug, PartialEq)]
pub(super) enum KeyVerdict {
    Match,
    /// No match; the next key may match.
    Next,
    /// No match before the key in `target`.
    Seek,
    /// No further match.
    Done,
}

const AFTER_DOLLAR: u8 = b'$' + 1;
/// The smallest byte in a level. Appended to a key, it gives a key after the key's subtree.
const LEAST: u8 = 0x01;

impl<'a> ScanFilter<'a> {
    pub(super) fn new(filter: &'a str) -> Self {
        let mut levels: Vec<FilterLevel> = filter
            .as_bytes()
            .split(|&byte| byte == b'/')
            .map(|level| {
                if level == b"+" {
                    FilterLevel::Plus
                } else {
                    FilterLevel::Literal(level)
                }
            })
            .collect();
        if let Some(last @ FilterLevel::Literal(b"#")) = levels.last_mut() {
            *last = FilterLevel::Hash;
        }
        Self { levels }
    }

    /// Matches every topic, including those that no client filter matches.
    pub(super) fn match_all() -> Self {
        Self { levels: Vec::new() }
    }

    /// Returns the smallest key that may match.
    pub(super) fn first_key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        for (depth, level) in self.levels.iter().enumerate() {
            let FilterLevel::Literal(level) = level else { break };
            if depth > 0 {
                key.push(0);
            }
            key.extend_from_slice(level);
        }
        key
    }

    pub(super) fn verdict(&self, key: &[u8], target: &mut Vec<u8>) -> KeyVerdict {
        if self.levels.is_empty() {
            return KeyVerdict::Match;
        }
        // A leading wildcard does not match topics that start with $ [MQTT-4.7.2-1].
        if key.first() == Some(&b'$') && !matches!(self.levels[0], FilterLevel::Literal(_)) {
            return seek(target, &[], &[AFTER_DOLLAR]);
        }
        let mut past_plus = None;
        let mut start = 0;
        for level in &self.levels {
            if let FilterLevel::Hash = level {
                return KeyVerdict::Match;
            }
            if start > key.len() {
                return KeyVerdict::Next;
            }
            let len = key[start..]
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(key.len() - start);
            let end = start + len;
            match level {
                FilterLevel::Literal(literal) => match key[start..end].cmp(literal) {
                    Ordering::Equal => {}
                    Ordering::Less => return seek(target, &key[..start], literal),
                    Ordering::Greater => return skip(target, key, past_plus),
                },
                FilterLevel::Plus | FilterLevel::Hash => past_plus = Some(end),
            }
            start = end + 1;
        }
        if start > key.len() {
            KeyVerdict::Match
        } else {
            skip(target, key, past_plus)
        }
    }
}

/// Skips all keys with the same levels up to the last `+`.
fn skip(target: &mut Vec<u8>, key: &[u8], past_plus: Option<usize>) -> KeyVerdict {
    match past_plus {
        Some(end) => seek(target, &key[..end], &[LEAST]),
        None => KeyVerdict::Done,
    }
}

fn seek(target: &mut Vec<u8>, prefix: &[u8], rest: &[u8]) -> KeyVerdict {
    target.clear();
    target.extend_from_slice(prefix);
    target.extend_from_slice(rest);
    KeyVerdict::Seek
}
