//! Format of the journal: one record per change of durable state.
//!
//! Replay of the records in order, starting at a checkpoint, rebuilds the state (`recovery.rs`). Replay skips a record
//! of an unknown session or group: either that has ended, or its snapshot follows later in the checkpoint.
//!
//! ```text
//! record    := tag u8, fields in the order of the variant
//! integers  := LEB128, low bits first              bytes, text := length, bytes
//! position  := LSN of the `Message` record; if the tag is followed by BACK u8, its distance before this record
//! message   := flags u8, shard, others, publisher_hash, [expires_unix_ms], [due_unix_ms],
//!              [retain_expires_unix_ms + 1],
//!              [publisher key, packet id], [provenance], [owner], topic, properties, targets bytes, targets,
//!              payload (the rest)
//! target    := flags u8, key, seq, [group key], [count, identifiers]
//! size      := size of a message, one byte (`MessageSize`)
//! ```
//! The tag is the version of a record: a changed layout gets a new tag, and the reader of the former one stays.
//! [`RECORD_VERSION`] is the version of all tags. docs/internals/formats.md tells how to change a record.
//!
//! Times are Unix milliseconds of the journal's own time (`Now::journal_ms`), because the monotonic clock restarts with
//! every process.

mod read;
mod tags;
mod write;

use std::net::IpAddr;

use mqtt::{QoS, SubscriptionOptions};

use crate::message_size::MessageSize;
use crate::provenance::Provenance;

pub(super) use read::Reader;
pub(super) use write::put_integer;

/// Version of the record kinds, stored in each block of the journal. A new tag or flag raises it, so that an earlier
/// program rejects the journal.
pub const RECORD_VERSION: u32 = 5;

/// Position of a record in the journal (its LSN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordPosition(pub u64);

/// A queued message that is only in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizedMessage {
    pub position: RecordPosition,
    pub size: MessageSize,
}

/// Identifies a durable session in the journal. Keys are never reused; 0 means no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub u64);

/// Identifies a durable shared subscription in the journal. Keys are never reused; 0 means no group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey(pub u64);

/// Number of a message in a session's queue, counted from 1. The packet identifier is derived from it (`Outgoing`). 0
/// marks a message that is held until the retained messages before it are sent, and has no number yet.
pub type Seq = u64;

/// Value of `due_unix_ms` for a `$delayed` message that has been routed but not yet stored by the tap.
pub const WITH_TAP: u64 = 0;

#[derive(Clone, Debug, PartialEq)]
pub enum JournalRecord<'a> {
    /// The node has started. No client is connected, and keys up to `last_key` are in use.
    Boot {
        unix_ms: u64,
        shards: u16,
        last_key: u64,
    },
    /// The current time. Without it, a start whose clock is behind could not continue the journal's time.
    Time {
        unix_ms: u64,
        /// How far the system's clock is ahead of `unix_ms`, because it was set forward while the server ran. Then the
        /// record has another tag.
        ahead_ms: u64,
    },
    /// Start of a checkpoint, with the fields of `Boot`. Changes no state.
    Checkpoint {
        unix_ms: u64,
        shards: u16,
        last_key: u64,
    },
    Message(MessageRecord<'a>),
    /// A message whose record is at another position has been queued for these recipients.
    Queued {
        message: RecordPosition,
        size: MessageSize,
        targets: Targets<'a>,
    },
    /// Shard `by` has routed every message up to `up_to` that shard `from` sent to it.
    Routed {
        by: u16,
        from: u16,
        up_to: RecordPosition,
    },
    /// Acknowledgements that clients sent in one tick.
    Settled(SettledItems<'a>),
    /// PUBREL received: the client may reuse the packet identifier.
    PacketIdFreed {
        session: SessionKey,
        packet_id: u16,
    },
    /// Snapshot of a session without its queue. `Entries` records follow. If replay already knows the session, it keeps
    /// the queue, because the process may have ended before it wrote all entries.
    Session(SessionRecord<'a>),
    /// Part of a session's queue. Entries that are queued during the checkpoint have records of their own; `seq` gives
    /// the order.
    Entries {
        session: SessionKey,
        entries: Entries<'a>,
    },
    /// Part of a long queue, with consecutive numbers. From here on only this record holds the entries; the session
    /// stores just its position.
    Page {
        session: SessionKey,
        entries: PackedEntries<'a>,
    },
    /// The session has loaded the entries of a page into memory. Written before any of them is sent.
    PageLoaded {
        session: SessionKey,
        entries: PackedEntries<'a>,
    },
    /// All pages of a session's queue, as part of its snapshot.
    Pages {
        session: SessionKey,
        pages: PageRefs<'a>,
    },
    Connected {
        session: SessionKey,
        terms: ConnectSettings<'a>,
    },
    Disconnected {
        session: SessionKey,
        unix_ms: u64,
        expiry_s: u32,
        has_will: bool,
        /// Entries up to this one have been sent at least once.
        started: Seq,
    },
    /// The will of a disconnected session has been published.
    WillPublished {
        session: SessionKey,
    },
    Ended {
        session: SessionKey,
    },
    Subscribed {
        session: SessionKey,
        subscription: SubscriptionRecord<'a>,
    },
    Unsubscribed {
        session: SessionKey,
        filter: &'a str,
    },
    /// All retained messages that a new subscription must receive have been queued. `filter` is without `$exclusive/`.
    Replayed {
        session: SessionKey,
        filter: &'a str,
    },
    /// Snapshot of a shared subscription without its queue. `GroupEntries` records follow. As with `Session`, replay
    /// keeps a known queue.
    Group {
        group: GroupKey,
        share_name: &'a str,
        filter: &'a str,
    },
    GroupEntries {
        group: GroupKey,
        messages: SizedMessages<'a>,
    },
    GroupEnded {
        group: GroupKey,
    },
    /// A member returns a message to its group. The group holds it until it is `Queued` for another member or dropped.
    /// `message` is included because the member's `Entries` may follow later than the group's.
    Returned {
        session: SessionKey,
        seq: Seq,
        group: GroupKey,
        message: RecordPosition,
        size: MessageSize,
    },
    GroupDropped {
        group: GroupKey,
        message: RecordPosition,
    },
    /// The shard that owns the topic stores this message as retained.
    Retained {
        message: RecordPosition,
        expires_unix_ms: Option<u64>,
        topic: &'a str,
    },
    RetainedCleared {
        topic: &'a str,
    },
    /// A `$delayed` message that is not published yet or, if `due_unix_ms` is `WITH_TAP`, not stored by the tap yet.
    Delayed {
        message: RecordPosition,
        due_unix_ms: u64,
    },
    DelayedDone {
        message: RecordPosition,
    },
    /// A held message of the session has been dropped.
    HeldDropped {
        session: SessionKey,
        message: RecordPosition,
    },
    /// Written by compaction instead of a message whose record was damaged.
    Damaged,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MessageRecord<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// MQTT 5 properties that are forwarded unaltered, in wire format.
    pub properties: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub expires_unix_ms: Option<u64>,
    pub publisher_hash: u32,
    /// Shard that received the message.
    pub shard: u16,
    /// Bit set of the other shards that must route the message. A shard's bit counts until its `Routed` record.
    pub others: u64,
    /// Publication time of a `$delayed` message.
    pub due_unix_ms: Option<u64>,
    /// Set if the receiving shard owns the topic: it stores the message as retained or, if the payload is empty, clears
    /// the topic.
    pub retained: Option<RetainedTerms>,
    /// Set for a QoS 2 message of a durable session: the packet identifier is in use until `PacketIdFreed`.
    pub publisher: Option<(SessionKey, u16)>,
    pub provenance: Provenance<'a>,
    /// Name of the owner of a retained or delayed message (`owners::owner_name`).
    pub owner: Option<&'a str>,
    pub targets: Targets<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedTerms {
    pub expires_unix_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Recipient {
    Session(SessionKey),
    /// The group holds the message because no member has received it yet.
    Group(GroupKey),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RecordTarget {
    pub to: Recipient,
    pub seq: Seq,
    pub qos: QoS,
    pub retain: bool,
    /// Shared subscription that selected this session.
    pub group: Option<GroupKey>,
    pub identifiers: Vec<u32>,
}

/// One message of a session that is queued or in flight.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionEntry {
    pub message: RecordPosition,
    pub seq: Seq,
    pub qos: QoS,
    pub retain: bool,
    /// PUBREC has been received; only PUBREL and PUBCOMP are outstanding.
    pub is_released: bool,
    pub size: MessageSize,
    pub group: Option<GroupKey>,
    pub identifiers: Vec<u32>,
}

/// Position of a page of a session's queue, and the fields that the session keeps in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Position of the `Page` record.
    pub at: RecordPosition,
    /// First of the remaining entries, which have consecutive numbers.
    pub first: Seq,
    pub count: u32,
    /// Entries before `first` that were dropped after the page was written.
    pub skipped: u32,
    /// Entries at QoS 0, including the dropped ones.
    pub queued_qos0: u32,
    /// Oldest message of the page.
    pub oldest: RecordPosition,
    /// Bytes that the remaining entries count for the limit of the queue. 0 in records of version 1 and 2.
    pub bytes: u64,
}

impl PageRef {
    /// Drops the first of the remaining entries, with its share of the bytes.
    pub fn skip(&mut self) {
        let share = share_of_one(self.bytes, self.count);
        self.first += 1;
        self.count -= 1;
        self.skipped += 1;
        self.bytes -= share;
    }
}

/// Returns the mean of the bytes of `count` entries, whose sizes are not known without reading the page. The last entry
/// gets the rest.
pub fn share_of_one(bytes: u64, count: u32) -> u64 {
    bytes / u64::from(count)
}

/// Entries in the packed format of `entry_list`.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct PackedEntries<'a>(pub(super) &'a [u8]);

/// Acknowledgement by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcknowledgedEntry {
    pub session: SessionKey,
    pub seq: Seq,
    /// True for PUBREC: the message is no longer needed, but the entry is.
    pub is_release: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecord<'a> {
    pub session: SessionKey,
    pub client_id: &'a str,
    pub created_unix_ms: u64,
    /// `None` while the client is connected.
    pub left_unix_ms: Option<u64>,
    pub terms: ConnectSettings<'a>,
    /// Number of the next entry.
    pub next_seq: Seq,
    /// Entries up to this one have been sent at least once.
    pub started: Seq,
    pub subscriptions: Vec<SubscriptionRecord<'a>>,
    /// Packet identifiers of QoS 2 messages that the client has not released.
    pub received: Vec<u16>,
}

/// Values of a CONNECT that stay in force after it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ConnectSettings<'a> {
    pub user_name: Option<&'a str>,
    /// Address of a client without a user name: its owner. `None` in records of version 1.
    pub address: Option<IpAddr>,
    /// Protocol Version of CONNECT: 3, 4 or 5.
    pub version: u8,
    pub is_superuser: bool,
    /// The authenticator gave the login a `LoginGrant`, which is not stored.
    pub has_grant: bool,
    pub is_bridge: bool,
    pub expiry_s: u32,
    /// Prefix of the client's topics. `None` in records before version 5.
    pub mountpoint: Option<&'a str>,
    pub will: Option<WillRecord<'a>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WillRecord<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub properties: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub delay_s: u32,
    pub message_expiry_s: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionRecord<'a> {
    /// Filter as sent by the client, including `$share/`.
    pub filter: &'a str,
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
    /// Retained messages are still to be sent, until `Replayed`. After a crash all of them are sent again.
    pub is_replaying: bool,
}

/// Lists that are decoded item by item. `as_bytes` returns bytes that `put` of the same type has written.
macro_rules! list {
    ($(#[$doc:meta])* $name:ident, $item:ty, $get:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Default)]
        pub struct $name<'a>(&'a [u8]);

        impl<'a> $name<'a> {
            pub fn from_written(bytes: &'a [u8]) -> Self {
                $name(bytes)
            }

            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }

            /// Iterates over the items. Ends with an error if the bytes cannot be decoded.
            pub fn iter(&self) -> impl Iterator<Item = Result<$item, NotARecord>> + 'a {
                let mut reader = Reader(self.0);
                std::iter::from_fn(move || {
                    if reader.0.is_empty() {
                        return None;
                    }
                    let item = reader.$get();
                    if item.is_err() {
                        reader.0 = &[];
                    }
                    Some(item)
                })
            }
        }
    };
}

list!(Targets, RecordTarget, target);
list!(Entries, SessionEntry, entry);
list!(SettledItems, AcknowledgedEntry, settled);

/// Like `list`, for items that have sizes since record version 3.
macro_rules! sized_list {
    ($(#[$doc:meta])* $name:ident, $item:ty, $get:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Default)]
        pub struct $name<'a> {
            bytes: &'a [u8],
            is_sized: bool,
        }

        impl<'a> $name<'a> {
            pub fn from_written(bytes: &'a [u8]) -> Self {
                $name { bytes, is_sized: true }
            }

            /// Iterates over the items. Ends with an error if the bytes cannot be decoded.
            pub fn iter(&self) -> impl Iterator<Item = Result<$item, NotARecord>> + 'a {
                let (mut reader, is_sized) = (Reader(self.bytes), self.is_sized);
                std::iter::from_fn(move || {
                    if reader.0.is_empty() {
                        return None;
                    }
                    let item = reader.$get(is_sized);
                    if item.is_err() {
                        reader.0 = &[];
                    }
                    Some(item)
                })
            }
        }
    };
}

sized_list!(PageRefs, PageRef, page_ref);
sized_list!(
    /// Messages that are only in the journal.
    SizedMessages, SizedMessage, sized_message
);

/// A record has a valid checksum but cannot be decoded. It was written by another version, or there is a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotARecord {
    pub expected: &'static str,
}

impl std::fmt::Display for NotARecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expected {}", self.expected)
    }
}

impl std::error::Error for NotARecord {}

#[cfg(test)]
mod tests;
