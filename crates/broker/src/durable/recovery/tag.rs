//! Subscription identifiers and share groups of entries, and how entries are found in the sorted lists of recovery.

use super::order::SortedItem;
use crate::durable::entry::StoredEntry;
use crate::durable::record::{GroupKey, Seq, SessionEntry};

impl SortedItem for StoredEntry {
    fn order(&self) -> u64 {
        self.seq()
    }

    fn is_tombstone(&self) -> bool {
        StoredEntry::is_tombstone(self)
    }

    fn make_tombstone(&mut self) {
        StoredEntry::make_tombstone(self);
    }
}

/// Subscription identifiers and share group of an entry. Most entries have neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredTag {
    /// Subscription Identifier.
    Identifier(u32),
    /// Shared subscription that selected this session.
    Group(GroupKey),
    Full(Box<FullRecoveryTag>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullRecoveryTag {
    pub group: Option<GroupKey>,
    pub identifiers: Box<[u32]>,
}

impl StoredTag {
    pub(super) fn new(entry: &SessionEntry) -> Option<StoredTag> {
        match (entry.group, &entry.identifiers[..]) {
            (None, []) => None,
            (None, [identifier]) => Some(StoredTag::Identifier(*identifier)),
            (Some(group), []) => Some(StoredTag::Group(group)),
            (group, identifiers) => Some(StoredTag::Full(Box::new(FullRecoveryTag {
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

/// Marks a tombstone. No entry has this tag, because subscription identifiers start at 1 [MQTT-3.8.2.1.2].
const TOMBSTONE_TAG: StoredTag = StoredTag::Identifier(0);

impl SortedItem for (Seq, StoredTag) {
    fn order(&self) -> u64 {
        self.0
    }

    fn is_tombstone(&self) -> bool {
        self.1 == TOMBSTONE_TAG
    }

    fn make_tombstone(&mut self) {
        self.1 = TOMBSTONE_TAG;
    }
}
