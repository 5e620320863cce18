//! Topic names and topic filters, section 4.7 of MQTT 5.
//!
//! Topics are opaque bytes, compared level by level without normalization or case folding [MQTT-4.7.3-4].

use std::fmt;

/// Maximum length of a topic: its length field has two bytes [MQTT-4.7.3-3].
pub const MAXIMUM_TOPIC_BYTES: usize = u16::MAX as usize;

const SHARE_PREFIX: &str = "$share/";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicError {
    Empty,
    Wildcard,
    NulCharacter,
    TooLong,
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TopicError::Empty => "topic name is empty",
            TopicError::Wildcard => "topic name contains a wildcard (+ or #)",
            TopicError::NulCharacter => "topic name contains U+0000",
            TopicError::TooLong => "topic name is longer than 65535 bytes",
        })
    }
}

impl std::error::Error for TopicError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterError {
    Empty,
    NulCharacter,
    TooLong,
    /// `#` is not the last level, or not alone in it [MQTT-4.7.1-1].
    MultiLevelWildcard,
    /// `+` is not alone in its level [MQTT-4.7.1-2].
    SingleLevelWildcard,
    /// `$share` without a share name, with a wildcard in it, or without a filter [MQTT-4.8.2-1], [MQTT-4.8.2-2].
    Shared,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FilterError::Empty => "topic filter is empty",
            FilterError::NulCharacter => "topic filter contains U+0000",
            FilterError::TooLong => "topic filter is longer than 65535 bytes",
            FilterError::MultiLevelWildcard => "# in the topic filter is not alone in its last level",
            FilterError::SingleLevelWildcard => "+ in the topic filter is not alone in its level",
            FilterError::Shared => "shared subscription is not of the form $share/<name without + #>/<filter>",
        })
    }
}

impl std::error::Error for FilterError {}

/// The parts of `$share/{name}/{filter}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedFilter<'a> {
    pub share_name: &'a str,
    pub filter: &'a str,
}

impl<'a> SharedFilter<'a> {
    /// Parses a shared filter. `Ok(None)` if `filter` is not shared. The inner filter is not empty, but not validated
    /// otherwise: [`validate_filter`] accepts both the whole and the inner filter.
    pub fn parse(filter: &'a str) -> Result<Option<SharedFilter<'a>>, FilterError> {
        let Some(rest) = filter.strip_prefix(SHARE_PREFIX) else {
            return Ok(None);
        };
        let (share_name, filter) = rest.split_once('/').ok_or(FilterError::Shared)?;
        // [MQTT-4.8.2-1], [MQTT-4.8.2-2]
        if share_name.is_empty() || filter.is_empty() || has_wildcards(share_name) {
            return Err(FilterError::Shared);
        }
        Ok(Some(SharedFilter { share_name, filter }))
    }
}

/// Checks a Topic Name [MQTT-4.7.3-1], [MQTT-3.3.2-2].
pub fn validate_topic_name(topic: &str) -> Result<(), TopicError> {
    if topic.is_empty() {
        return Err(TopicError::Empty);
    }
    if topic.len() > MAXIMUM_TOPIC_BYTES {
        return Err(TopicError::TooLong);
    }
    scan_topic_name(topic.as_bytes())
}

/// Searches for the three characters that a Topic Name must not contain. The caller checks the length. In UTF-8 these
/// bytes occur only as these characters, so the scan may run before or after UTF-8 validation.
pub(crate) fn scan_topic_name(bytes: &[u8]) -> Result<(), TopicError> {
    let (words, _) = bytes.as_chunks::<8>();
    let has_special = match (words, bytes.last_chunk::<8>()) {
        // The last eight bytes overlap the words before them, which avoids a byte-by-byte tail.
        (words, Some(tail)) => words.iter().any(word_has_special) || word_has_special(tail),
        _ => bytes.iter().copied().any(is_special),
    };
    if has_special { Err(special_found(bytes)) } else { Ok(()) }
}

const fn is_special(byte: u8) -> bool {
    matches!(byte, 0 | b'+' | b'#')
}

/// Returns whether one of eight bytes is NUL, `+` or `#`. The result is exact: a false positive of the borrow trick
/// requires a match in a lower byte.
fn word_has_special(word: &[u8; 8]) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(*word);
    let zero_in = |word: u64| word.wrapping_sub(LOW) & !word;
    let plus = word ^ (LOW * b'+' as u64);
    let hash = word ^ (LOW * b'#' as u64);
    (zero_in(word) | zero_in(plus) | zero_in(hash)) & HIGH != 0
}

#[cold]
fn special_found(bytes: &[u8]) -> TopicError {
    if bytes.contains(&0) {
        TopicError::NulCharacter
    } else {
        TopicError::Wildcard
    }
}

/// Checks a Topic Filter, without interpreting `$share`.
pub fn validate_filter(filter: &str) -> Result<(), FilterError> {
    let bytes = filter.as_bytes();
    if bytes.is_empty() {
        return Err(FilterError::Empty); // [MQTT-4.7.3-1]
    }
    if bytes.len() > MAXIMUM_TOPIC_BYTES {
        return Err(FilterError::TooLong);
    }
    for (i, &byte) in bytes.iter().enumerate() {
        let starts_level = i == 0 || bytes[i - 1] == b'/';
        let next = bytes.get(i + 1).copied();
        match byte {
            0 => return Err(FilterError::NulCharacter), // [MQTT-4.7.3-2]
            b'#' if !starts_level || next.is_some() => return Err(FilterError::MultiLevelWildcard),
            b'+' if !starts_level || !matches!(next, None | Some(b'/')) => {
                return Err(FilterError::SingleLevelWildcard);
            }
            _ => {}
        }
    }
    Ok(())
}

pub fn has_wildcards(filter: &str) -> bool {
    filter.bytes().any(|byte| matches!(byte, b'+' | b'#'))
}

pub fn levels(topic: &str) -> impl Iterator<Item = &str> {
    topic.split('/')
}

/// Reference implementation of matching, for tests and rare paths: simple, not fast. Includes the `$` rule
/// [MQTT-4.7.2-1].
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut topic_levels = levels(topic);
    for filter_level in levels(filter) {
        if filter_level == "#" {
            return true; // includes the parent level: `a/#` matches `a`
        }
        match topic_levels.next() {
            Some(level) if filter_level == "+" || filter_level == level => {}
            _ => return false,
        }
    }
    topic_levels.next().is_none()
}
