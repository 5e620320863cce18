//! What a session has in its queue, 16 bytes each; what only some of them carry is kept apart.

use mqtt::QoS;

use super::order::InOrder;
use crate::durable::record::{Entry, GroupKey, Position, Seq};

/// Numbers of messages stay below: the rest of their 64 bits are flags.
pub(super) const SEQ_MAX: Seq = u64::MAX >> FLAG_BITS;

const FLAG_BITS: u32 = 8;
const QOS: u64 = 0b11;
const RETAIN: u64 = 1 << 2;
const RELEASED: u64 = 1 << 3;
const TAGGED: u64 = 1 << 4;
const GONE: u64 = 1 << 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    message: Position,
    /// The number, and below it the flags.
    packed: u64,
}

impl StoredEntry {
    pub(super) fn new(entry: &Entry) -> StoredEntry {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let is_tagged = entry.group.is_some() || !entry.identifiers.is_empty();
        StoredEntry {
            message: entry.message,
            packed: entry.seq << FLAG_BITS
                | entry.qos as u64
                | flag(entry.retain, RETAIN)
                | flag(entry.is_released, RELEASED)
                | flag(is_tagged, TAGGED),
        }
    }

    pub fn message(&self) -> Position {
        self.message
    }

    pub fn seq(&self) -> Seq {
        self.packed >> FLAG_BITS
    }

    pub fn qos(&self) -> QoS {
        QoS::from_bits((self.packed & QOS) as u8).expect("made from a QoS")
    }

    pub fn retain(&self) -> bool {
        self.packed & RETAIN != 0
    }

    /// PUBREC has come: the message may be gone.
    pub fn is_released(&self) -> bool {
        self.packed & RELEASED != 0
    }

    /// `Tags` has more about it.
    pub fn is_tagged(&self) -> bool {
        self.packed & TAGGED != 0
    }

    pub(super) fn release(&mut self) {
        self.packed |= RELEASED;
    }
}

impl InOrder for StoredEntry {
    fn order(&self) -> u64 {
        self.seq()
    }

    fn is_gone(&self) -> bool {
        self.packed & GONE != 0
    }

    fn go(&mut self) {
        self.packed |= GONE;
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
