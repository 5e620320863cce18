//! What only some entries of a queue carry, and how entries are found in the lists of recovery.

use super::order::InOrder;
use crate::durable::entry::StoredEntry;
use crate::durable::record::{Entry, GroupKey, Seq};

impl InOrder for StoredEntry {
    fn order(&self) -> u64 {
        self.seq()
    }

    fn is_gone(&self) -> bool {
        StoredEntry::is_gone(self)
    }

    fn go(&mut self) {
        StoredEntry::go(self);
    }
}

/// What only some entries carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredTag {
    /// Subscription Identifier.
    Identifier(u32),
    /// The shared subscription that chose this session.
    Group(GroupKey),
    Full(Box<FullTag>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullTag {
    pub group: Option<GroupKey>,
    pub identifiers: Box<[u32]>,
}

impl StoredTag {
    pub(super) fn new(entry: &Entry) -> Option<StoredTag> {
        match (entry.group, &entry.identifiers[..]) {
            (None, []) => None,
            (None, [identifier]) => Some(StoredTag::Identifier(*identifier)),
            (Some(group), []) => Some(StoredTag::Group(group)),
            (group, identifiers) => Some(StoredTag::Full(Box::new(FullTag {
                group,
                identifiers: identifiers.into(),
            }))),
        }
    }

    pub fn group(&self) -> Option<GroupKey> {
        match self {
            StoredTag::Identifier(_) => None,
            StoredTag::Group(group) => Some(*group),
            StoredTag::Full(full) => full.group,
        }
    }

    pub fn identifiers(&self) -> &[u32] {
        match self {
            StoredTag::Identifier(identifier) => std::slice::from_ref(identifier),
            StoredTag::Group(_) => &[],
            StoredTag::Full(full) => &full.identifiers,
        }
    }
}

/// No entry has such a tag: identifiers begin at 1 [MQTT-3.8.2.1.2].
const GONE_TAG: StoredTag = StoredTag::Identifier(0);

impl InOrder for (Seq, StoredTag) {
    fn order(&self) -> u64 {
        self.0
    }

    fn is_gone(&self) -> bool {
        self.1 == GONE_TAG
    }

    fn go(&mut self) {
        self.1 = GONE_TAG;
    }
}
