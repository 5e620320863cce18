//! The least key of a block, in the index's nodes themselves when it is short, as the parting bytes mostly are: finding a
//! block then reads a few nodes and nothing else.

use std::borrow::Borrow;
use std::cmp::Ordering;

#[derive(Clone)]
pub(super) enum Fence {
    Short { len: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<[u8]>),
}

const SHORT_MAX: usize = 22;

impl Fence {
    pub(super) fn new(key: &[u8]) -> Self {
        if key.len() > SHORT_MAX {
            return Fence::Long(key.into());
        }
        let mut bytes = [0; SHORT_MAX];
        bytes[..key.len()].copy_from_slice(key);
        Fence::Short {
            len: key.len() as u8,
            bytes,
        }
    }

    pub(super) fn key(&self) -> &[u8] {
        match self {
            Fence::Short { len, bytes } => &bytes[..*len as usize],
            Fence::Long(key) => key,
        }
    }
}

impl Borrow<[u8]> for Fence {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl Ord for Fence {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl PartialOrd for Fence {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Fence {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Fence {}
