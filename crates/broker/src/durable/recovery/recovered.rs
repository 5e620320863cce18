//! Result of recovery: the state after the last record. Owned data, in an order that depends on the records only.

use std::collections::VecDeque;
use std::net::IpAddr;

use mqtt::{QoS, SubscriptionOptions};

use super::tag::StoredTag;
use crate::durable::entry::StoredEntry;
use crate::durable::record::{
    ConnectSettings, GroupKey, PageRef, RecordPosition, Seq, SessionEntry, SessionKey, SizedMessage,
    SubscriptionRecord, WillRecord,
};
use crate::lazy_deque::LazyDeque;
use crate::session::FilterMap;

#[derive(Debug, Default, PartialEq)]
pub struct RecoveredState {
    /// Sorted by key.
    pub sessions: Vec<RecoveredSession>,
    /// Entries that recovery numbered, because the journal had no number for them. The caller must record them.
    pub numbered: Vec<(SessionKey, SessionEntry)>,
    /// Sorted by key.
    pub groups: Vec<RecoveredGroup>,
    /// Sorted by position.
    pub retained: Vec<RecoveredRetained>,
    /// Messages and their due times in Unix milliseconds, sorted by position.
    pub delayed: Vec<(RecordPosition, u64)>,
    /// Sorted by position.
    pub unrouted: Vec<Unrouted>,
    /// Number of shards when the bit sets of `unrouted` were written. 0 if no record contains it.
    pub shards: u16,
    /// No session or group has ever had a higher key.
    pub last_key: u64,
    /// Nothing refers to a message before this one.
    pub lowest: Option<RecordPosition>,
    /// Latest time in any record, Unix milliseconds.
    pub latest_unix_ms: u64,
    /// How far the system's clock was ahead of the journal's time.
    pub clock_ahead_ms: u64,
}

impl RecoveredState {
    /// Returns the time of the journal at a start at which the system's clock shows `unix_ms`. The time since the
    /// previous process counts, but not the step of a clock that was set forward while that process ran.
    pub fn journal_ms_at_start(&self, unix_ms: u64) -> u64 {
        unix_ms.saturating_sub(self.clock_ahead_ms).max(self.latest_unix_ms)
    }
}

#[derive(Debug, PartialEq)]
pub struct RecoveredSession {
    pub key: SessionKey,
    pub client_id: Box<str>,
    pub created_unix_ms: u64,
    /// `None` if the client was connected; see `set_disconnected`.
    pub left_unix_ms: Option<u64>,
    pub terms: RecoveredTerms,
    /// Number of the next entry.
    pub next_seq: Seq,
    /// Entries up to this one were sent at least once before the last disconnect.
    pub started: Seq,
    /// By filter as sent by the client, including `$share/`.
    pub subscriptions: FilterMap<RecoveredSubscription>,
    /// Packet identifiers of QoS 2 messages that the client has not released, ascending.
    pub received: Vec<u16>,
    /// Sorted by `seq`.
    pub entries: VecDeque<StoredEntry>,
    pub tags: Tags,
    /// Parts of the queue that are only in the journal, sorted by number.
    pub pages: LazyDeque<PageRef>,
}

/// Subscription identifiers and share groups of a session's entries. Most entries have none.
#[derive(Debug, Default, PartialEq)]
pub struct Tags(pub(super) Option<Box<TagList>>);

pub(super) type TagList = VecDeque<(Seq, StoredTag)>;

#[derive(Debug, Default, PartialEq)]
pub struct RecoveredTerms {
    pub user_name: Option<Box<str>>,
    /// Address of a client without a user name.
    pub address: Option<IpAddr>,
    pub mountpoint: Option<Box<str>>,
    pub will: Option<Box<RecoveredWill>>,
    pub expiry_s: u32,
    pub version: u8,
    pub is_superuser: bool,
    pub has_grant: bool,
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
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
    pub is_replaying: bool,
}

#[derive(Debug, PartialEq)]
pub struct RecoveredGroup {
    pub key: GroupKey,
    pub share_name: Box<str>,
    pub filter: Box<str>,
    /// Messages that no member has, in ascending order, which is their publication order.
    pub messages: VecDeque<SizedMessage>,
}

#[derive(Debug, PartialEq)]
pub struct RecoveredRetained {
    pub topic: Box<str>,
    pub message: RecordPosition,
    pub expires_unix_ms: Option<u64>,
}

/// A message that some shards have not routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrouted {
    pub message: RecordPosition,
    /// Shard that received it.
    pub from: u16,
    /// Bit set of the shards that have not routed it.
    pub shards: u64,
}

/// At most this many messages can be in flight, because packet identifiers wrap around.
const IN_FLIGHT_MAX: u64 = u16::MAX as u64;

impl RecoveredSession {
    /// Sets the disconnect time of a session that was connected when the process ended. It is unknown which messages
    /// were sent, so all that can have been in flight count as sent.
    pub fn set_disconnected(&mut self, unix_ms: u64) {
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

    /// Iterates in order of `seq`.
    pub fn iter(&self) -> impl Iterator<Item = &(Seq, StoredTag)> {
        self.0.iter().flat_map(|list| list.iter())
    }

    pub fn into_list(self) -> VecDeque<(Seq, StoredTag)> {
        self.0.map_or(VecDeque::new(), |list| *list)
    }
}

impl From<&ConnectSettings<'_>> for RecoveredTerms {
    fn from(terms: &ConnectSettings<'_>) -> Self {
        RecoveredTerms {
            user_name: terms.user_name.map(Box::from),
            address: terms.address,
            mountpoint: terms.mountpoint.map(Box::from),
            will: terms.will.as_ref().map(|will| Box::new(will.into())),
            expiry_s: terms.expiry_s,
            version: terms.version,
            is_superuser: terms.is_superuser,
            has_grant: terms.has_grant,
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
            options: subscription.options,
            identifier: subscription.identifier,
            is_replaying: subscription.is_replaying,
        }
    }
}
