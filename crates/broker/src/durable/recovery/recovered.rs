//! What recovery comes to: the state as it was when the last record was written, owned, in an order that depends on the records
//! alone.

use std::collections::VecDeque;

use mqtt::{QoS, SubscriptionOptions};

use super::tag::StoredTag;
use crate::durable::entry::StoredEntry;
use crate::durable::record::{
    Entry, GroupKey, PageRef, Position, Seq, SessionKey, SubscriptionRecord, Terms, WillRecord,
};
use crate::lazy_deque::LazyDeque;

#[derive(Debug, Default, PartialEq)]
pub struct Recovered {
    /// By key.
    pub sessions: Vec<RecoveredSession>,
    /// Entries of them that had no number in the journal: whoever goes on has to record it.
    pub numbered: Vec<(SessionKey, Entry)>,
    /// By key.
    pub groups: Vec<RecoveredGroup>,
    /// By position.
    pub retained: Vec<RecoveredRetained>,
    /// Messages and when they are due, Unix milliseconds; by position.
    pub delayed: Vec<(Position, u64)>,
    /// By position.
    pub unrouted: Vec<Unrouted>,
    /// How many shards there were when the masks of `unrouted` were written. 0: no record said so.
    pub shards: u16,
    /// No session or group has ever had a higher key.
    pub last_key: u64,
    /// Nothing refers to a message before it.
    pub lowest: Option<Position>,
    /// The latest time that a record told, Unix milliseconds.
    pub told_unix_ms: u64,
}

#[derive(Debug, PartialEq)]
pub struct RecoveredSession {
    pub key: SessionKey,
    pub client_id: Box<str>,
    pub created_unix_ms: u64,
    /// `None`: it was connected. `away_since` is for those.
    pub left_unix_ms: Option<u64>,
    pub terms: RecoveredTerms,
    /// Of the next entry.
    pub next_seq: Seq,
    /// Entries up to this one have been sent before, as of the time when it was last away.
    pub started: Seq,
    /// By filter.
    pub subscriptions: Vec<RecoveredSubscription>,
    /// Packet identifiers of QoS 2 messages that the client has not released; ascending.
    pub received: Vec<u16>,
    /// By `seq`.
    pub entries: VecDeque<StoredEntry>,
    pub tags: Tags,
    /// Parts of the queue that are in the journal alone; by number.
    pub pages: LazyDeque<PageRef>,
}

/// What entries of a session carry that most do not.
#[derive(Debug, Default, PartialEq)]
pub struct Tags(pub(super) Option<Box<TagList>>);

pub(super) type TagList = VecDeque<(Seq, StoredTag)>;

#[derive(Debug, Default, PartialEq)]
pub struct RecoveredTerms {
    pub user_name: Option<Box<str>>,
    pub will: Option<Box<RecoveredWill>>,
    pub expiry_s: u32,
    pub version: u8,
    pub is_superuser: bool,
    pub is_bridge: bool,
}

#[derive(Debug, PartialEq)]
pub struct RecoveredWill {
    pub topic: Box<str>,
    pub payload: Box<[u8]>,
    pub properties: Box<[u8]>,
    pub qos: QoS,
    pub retain: bool,
    pub delay_s: u32,
    pub message_expiry_s: Option<u32>,
}

#[derive(Debug, PartialEq)]
pub struct RecoveredSubscription {
    /// As the client wrote it, `$share/` and all.
    pub filter: Box<str>,
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
    pub is_replaying: bool,
}

#[derive(Debug, PartialEq)]
pub struct RecoveredGroup {
    pub key: GroupKey,
    pub share_name: Box<str>,
    pub filter: Box<str>,
    /// What it holds and no member has, ascending: the order in which they were published.
    pub messages: VecDeque<Position>,
}

#[derive(Debug, PartialEq)]
pub struct RecoveredRetained {
    pub topic: Box<str>,
    pub message: Position,
    pub expires_unix_ms: Option<u64>,
}

/// A message that some shards have not routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrouted {
    pub message: Position,
    /// The shard that took it.
    pub from: u16,
    /// One bit each.
    pub shards: u64,
}

/// Packet identifiers go in a circle of so many, so no more can be in flight.
const IN_FLIGHT_MAX: u64 = u16::MAX as u64;

impl RecoveredSession {
    /// For a session that was connected when the process ended. What it has been sent is not known: anything that can have been in
    /// flight may have been.
    pub fn away_since(&mut self, unix_ms: u64) {
        self.left_unix_ms = Some(unix_ms);
        let latest = self.next_seq.saturating_sub(1);
        let (entry, page) = (self.entries.front(), self.pages.front());
        let oldest = entry
            .map(StoredEntry::seq)
            .into_iter()
            .chain(page.map(|page| page.first))
            .min();
        let in_flight = oldest.map(|seq| seq + IN_FLIGHT_MAX - 1);
        self.started = self.started.max(in_flight.map_or(latest, |seq| seq.min(latest)));
    }
}

impl Tags {
    pub fn get(&self, seq: Seq) -> Option<&StoredTag> {
        let list = self.0.as_deref()?;
        let at = list.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(&list[at].1)
    }

    /// By `seq`.
    pub fn iter(&self) -> impl Iterator<Item = &(Seq, StoredTag)> {
        self.0.iter().flat_map(|list| list.iter())
    }

    pub fn into_list(self) -> VecDeque<(Seq, StoredTag)> {
        self.0.map_or(VecDeque::new(), |list| *list)
    }
}

impl From<&Terms<'_>> for RecoveredTerms {
    fn from(terms: &Terms<'_>) -> Self {
        RecoveredTerms {
            user_name: terms.user_name.map(Box::from),
            will: terms.will.as_ref().map(|will| Box::new(will.into())),
            expiry_s: terms.expiry_s,
            version: terms.version,
            is_superuser: terms.is_superuser,
            is_bridge: terms.is_bridge,
        }
    }
}

impl From<&WillRecord<'_>> for RecoveredWill {
    fn from(will: &WillRecord<'_>) -> Self {
        RecoveredWill {
            topic: will.topic.into(),
            payload: will.payload.into(),
            properties: will.properties.into(),
            qos: will.qos,
            retain: will.retain,
            delay_s: will.delay_s,
            message_expiry_s: will.message_expiry_s,
        }
    }
}

impl From<&SubscriptionRecord<'_>> for RecoveredSubscription {
    fn from(subscription: &SubscriptionRecord<'_>) -> Self {
        RecoveredSubscription {
            filter: subscription.filter.into(),
            options: subscription.options,
            identifier: subscription.identifier,
            is_replaying: subscription.is_replaying,
        }
    }
}
