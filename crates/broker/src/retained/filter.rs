//! How a scan goes through sorted keys: what the key at hand means for a filter, and where to look next.
//!
//! Keys are topics with '/' as 0x00, so a topic comes right before its subtree, and a subtree before its next sibling.

use std::cmp::Ordering;

pub(super) struct ScanFilter<'a> {
    levels: Vec<Level<'a>>,
}

enum Level<'a> {
    Literal(&'a [u8]),
    Plus,
    Hash,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Match,
    /// No match; the next key may be one.
    Next,
    /// No match before the key that was left in `target`.
    Seek,
    /// No match from here on.
    Done,
}

const AFTER_DOLLAR: u8 = b'$' + 1;
/// The least byte within a level: appended to a key, it is past the key's subtree.
const LEAST: u8 = 0x01;

impl<'a> ScanFilter<'a> {
    pub(super) fn new(filter: &'a str) -> Self {
        let mut levels: Vec<Level> = filter
            .as_bytes()
            .split(|&byte| byte == b'/')
            .map(|level| {
                if level == b"+" {
                    Level::Plus
                } else {
                    Level::Literal(level)
                }
            })
            .collect();
        if let Some(last @ Level::Literal(b"#")) = levels.last_mut() {
            *last = Level::Hash;
        }
        Self { levels }
    }

    /// Whatever there is, also what no filter of a client reaches.
    pub(super) fn every() -> Self {
        Self { levels: Vec::new() }
    }

    /// The least key that may match.
    pub(super) fn first_key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        for (depth, level) in self.levels.iter().enumerate() {
            let Level::Literal(level) = level else { break };
            if depth > 0 {
                key.push(0);
            }
            key.extend_from_slice(level);
        }
        key
    }

    pub(super) fn verdict(&self, key: &[u8], target: &mut Vec<u8>) -> Verdict {
        if self.levels.is_empty() {
            return Verdict::Match;
        }
        // [MQTT-4.7.2-1]: a leading wildcard matches no topic that begins with $.
        if key.first() == Some(&b'$') && !matches!(self.levels[0], Level::Literal(_)) {
            return seek(target, &[], &[AFTER_DOLLAR]);
        }
        let mut past_plus = None;
        let mut start = 0;
        for level in &self.levels {
            if let Level::Hash = level {
                return Verdict::Match;
            }
            if start > key.len() {
                return Verdict::Next;
            }
            let len = key[start..]
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(key.len() - start);
            let end = start + len;
            match level {
                Level::Literal(literal) => match key[start..end].cmp(literal) {
                    Ordering::Equal => {}
                    Ordering::Less => return seek(target, &key[..start], literal),
                    Ordering::Greater => return skip(target, key, past_plus),
                },
                Level::Plus | Level::Hash => past_plus = Some(end),
            }
            start = end + 1;
        }
        if start > key.len() {
            Verdict::Match
        } else {
            skip(target, key, past_plus)
        }
    }
}

/// Past everything that has the same levels up to the last `+`.
fn skip(target: &mut Vec<u8>, key: &[u8], past_plus: Option<usize>) -> Verdict {
    match past_plus {
        Some(end) => seek(target, &key[..end], &[LEAST]),
        None => Verdict::Done,
    }
}

fn seek(target: &mut Vec<u8>, prefix: &[u8], rest: &[u8]) -> Verdict {
    target.clear();
    target.extend_from_slice(prefix);
    target.extend_from_slice(rest);
    Verdict::Seek
}
