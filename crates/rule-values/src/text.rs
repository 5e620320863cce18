//! `Text`: a string in SQL or a payload in MQTT. Any sequence of bytes, mostly UTF-8.
//!
//! Cloning is cheap: short texts (keys, client ids, most topics) are stored inline, long texts are shared.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

const INLINE_MAX: usize = 22;

#[derive(Clone)]
pub struct Text(TextStorage);

#[derive(Clone)]
enum TextStorage {
    Inline { length: u8, bytes: [u8; INLINE_MAX] },
    Shared(Arc<[u8]>),
}

impl Text {
    pub const EMPTY: Text = Text(TextStorage::Inline {
        length: 0,
        bytes: [0; INLINE_MAX],
    });

    pub fn new(bytes: &[u8]) -> Text {
        if bytes.len() > INLINE_MAX {
            return Text(TextStorage::Shared(bytes.into()));
        }
        let mut inline = [0; INLINE_MAX];
        inline[..bytes.len()].copy_from_slice(bytes);
        Text(TextStorage::Inline {
            length: bytes.len() as u8,
            bytes: inline,
        })
    }

    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            TextStorage::Inline { length, bytes } => &bytes[..usize::from(*length)],
            TextStorage::Shared(bytes) => bytes,
        }
    }

    /// Returns whether clones share the memory of this text, which is so for long texts.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, TextStorage::Shared(_))
    }

    pub fn is_shared_with(&self, other: &Text) -> bool {
        match (&self.0, &other.0) {
            (TextStorage::Shared(bytes), TextStorage::Shared(others)) => Arc::ptr_eq(bytes, others),
            _ => false,
        }
    }

    /// Returns `None` if the bytes are not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()).ok()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text::new(text.as_bytes())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text::from(text.into_bytes())
    }
}

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Text {
        Text::new(&bytes)
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Text {
        Text::new(bytes)
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Borrow<[u8]> for Text {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}
