//! The smallest possible key of a block. Most are short and are stored inside the nodes of the index, so that finding a
//! block reads only a few nodes.

use std::borrow::Borrow;
use std::cmp::Ordering;

#[derive(Clone)]
pub(super) enum FirstKey {
    Short { len: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<[u8]>),
}

const SHORT_MAX: usize = 22;

impl FirstKey {
    pub(super) fn new(key: &[u8]) -> Self {
        if key.len() > SHORT_MAX {
            return FirstKey::Long(key.into());
        }
        let mut bytes = [0; SHORT_MAX];
        bytes[..key.len()].copy_from_slice(key);
        FirstKey::Short {
            len: key.len() as u8,
            bytes,
        }
    }

    pub(super) fn key(&self) -> &[u8] {
        match self {
            FirstKey::Short { len, bytes } => &bytes[..*len as usize],
            FirstKey::Long(key) => key,
        }
    }
}

impl Borrow<[u8]> for FirstKey {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl Ord for FirstKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl PartialOrd for FirstKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for FirstKey {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for FirstKey {}
