//! What stands in the journal: every change to the state that outlives the process, one record each.
//!
//! Replaying them in order from a checkpoint on gives the state again (`recovery.rs`). A record that speaks of a session or group
//! that has not been met is about one whose snapshot is still to come, or that has ended: it is passed over.
//!
//! ```text
//! record    := tag u8, fields in the order of the variant
//! integers  := LEB128, low bits first              bytes, text := length, bytes
//! position  := where the `Message` record stands in the journal; after BACK u8, how far before this record
//! message   := flags u8, shard, others, publisher_hash, [expires_unix_ms], [due_unix_ms], [retain_expires_unix_ms + 1],
//!              [publisher key, packet id], [provenance], topic, properties, targets bytes, targets, payload (the rest)
//! target    := flags u8, key, seq, [group key], [count, identifiers]
//! ```
//! Times are Unix milliseconds: the monotonic clock begins anew with every process.

mod read;
mod tags;
mod write;

use mqtt::{QoS, SubscriptionOptions};

use crate::provenance::Provenance;

pub(super) use read::Reader;
pub(super) use write::put_integer;

/// Where a record stands in the journal: its LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

/// Names a durable session in the journal. No number is used twice; 0 is no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub u64);

/// Names a shared subscription in the journal, in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey(pub u64);

/// One entry of a session's queue: the n-th message for it, from 1. The packet identifier follows from it (`Outgoing`). 0 is a
/// message that is held until retained ones before it are sent, and has no number yet.
pub type Seq = u64;

/// `due_unix_ms` of a `$delayed` message that has been routed, while a tap may still lose it.
pub const WITH_TAP: u64 = 0;

#[derive(Clone, Debug, PartialEq)]
pub enum Record<'a> {
    /// The node has started: nobody is connected, and no key up to `last_key` is given again.
    Boot {
        unix_ms: u64,
        shards: u16,
        last_key: u64,
    },
    /// A checkpoint begins here: what `Boot` said and later records do not. Nothing has changed.
    Checkpoint {
        unix_ms: u64,
        shards: u16,
        last_key: u64,
    },
    Message(MessageRecord<'a>),
    /// A message that stands elsewhere has been queued for these.
    Queued {
        message: Position,
        targets: Targets<'a>,
    },
    /// Shard `by` has routed all that shard `from` has sent it up to here.
    Routed {
        by: u16,
        from: u16,
        up_to: Position,
    },
    /// Acknowledgements from clients, of a whole tick.
    Settled(SettledItems<'a>),
    /// PUBREL: the client may use the packet identifier for another message.
    Freed {
        session: SessionKey,
        packet_id: u16,
    },
    /// A session as it is, apart from its queue, which is empty if the session has not been met before: `Entries` follow. One that has
    /// been met keeps its queue, because the process may end before all of them are written.
    Session(SessionRecord<'a>),
    /// Some of a session's queue, in no particular order with what is queued meanwhile: `seq` is the order.
    Entries {
        session: SessionKey,
        entries: Entries<'a>,
    },
    /// A part of a long queue, with numbers in a row. From now on only this record has them: the session has no more than where it is.
    Page {
        session: SessionKey,
        entries: Packed<'a>,
    },
    /// The session has the entries of a page in memory again, before any of them is sent.
    Unpaged {
        session: SessionKey,
        entries: Packed<'a>,
    },
    /// All pages of a session's queue, as a part of its snapshot.
    Pages {
        session: SessionKey,
        pages: PageRefs<'a>,
    },
    Connected {
        session: SessionKey,
        terms: Terms<'a>,
    },
    Disconnected {
        session: SessionKey,
        unix_ms: u64,
        expiry_s: u32,
        has_will: bool,
        /// Entries up to this one have been sent before.
        started: Seq,
    },
    /// The will of a session that is away has been published.
    WillDone {
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
    /// The retained messages that a subscription was owed have been queued. The filter without `$exclusive/`.
    Replayed {
        session: SessionKey,
        filter: &'a str,
    },
    /// A shared subscription, apart from its queue, as with `Session`: `GroupEntries` follow.
    Group {
        group: GroupKey,
        share_name: &'a str,
        filter: &'a str,
    },
    GroupEntries {
        group: GroupKey,
        messages: Positions<'a>,
    },
    GroupEnded {
        group: GroupKey,
    },
    /// A member gives a message back to its group, which holds it until it is `Queued` for another or dropped. `message` because
    /// the member's `Entries` may be still to come, and the group's have been.
    Returned {
        session: SessionKey,
        seq: Seq,
        group: GroupKey,
        message: Position,
    },
    GroupDropped {
        group: GroupKey,
        message: Position,
    },
    /// The owner of the topic keeps this message for it.
    Retained {
        message: Position,
        expires_unix_ms: Option<u64>,
        topic: &'a str,
    },
    RetainedGone {
        topic: &'a str,
    },
    /// A `$delayed` message that is still to be published; or, if it is due at `WITH_TAP`, to be kept by a tap.
    Delayed {
        message: Position,
        due_unix_ms: u64,
    },
    DelayedDone {
        message: Position,
    },
    /// A message that was held is not to be sent any more.
    Unheld {
        session: SessionKey,
        message: Position,
    },
    /// Stands in for a message that was damaged when it was to be written once more.
    Lost,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MessageRecord<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// MQTT 5 properties that are forwarded unaltered, as wire bytes.
    pub properties: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub expires_unix_ms: Option<u64>,
    pub publisher_hash: u32,
    /// Which shard took it.
    pub shard: u16,
    /// Shards that are to route it too, one bit each, until each has said so (`Routed`).
    pub others: u64,
    /// `$delayed`: when it is to be published.
    pub due_unix_ms: Option<u64>,
    /// The shard that took it keeps it as the retained message of its topic (or clears it, without payload), until then.
    pub retained: Option<RetainedTerms>,
    /// QoS 2 of a durable session: the identifier is taken until it is `Freed`.
    pub publisher: Option<(SessionKey, u16)>,
    pub provenance: Provenance<'a>,
    pub targets: Targets<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedTerms {
    pub expires_unix_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Recipient {
    Session(SessionKey),
    /// The group has it and has not yet given it to a member.
    Group(GroupKey),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub to: Recipient,
    pub seq: Seq,
    pub qos: QoS,
    pub retain: bool,
    /// The shared subscription that chose this session.
    pub group: Option<GroupKey>,
    pub identifiers: Vec<u32>,
}

/// What a session has in its queue or in flight.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub message: Position,
    pub seq: Seq,
    pub qos: QoS,
    pub retain: bool,
    /// PUBREC has come: only PUBREL and PUBCOMP are left.
    pub is_released: bool,
    pub group: Option<GroupKey>,
    pub identifiers: Vec<u32>,
}

/// Where a page of a session's queue is, and what the session knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Of the `Page` record.
    pub at: Position,
    /// Of the entries that are left; they have numbers in a row.
    pub first: Seq,
    pub count: u32,
    /// Entries before them that have been given up since the page was written.
    pub skipped: u32,
    /// Entries at QoS 0, those that were given up included.
    pub queued_qos0: u32,
    /// The oldest message of the page.
    pub oldest: Position,
}

/// Entries as `entry_list` packs them.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Packed<'a>(pub(super) &'a [u8]);

/// What a client acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    pub session: SessionKey,
    pub seq: Seq,
    /// PUBREC: the message may be forgotten, the entry not yet.
    pub is_release: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SessionRecord<'a> {
    pub session: SessionKey,
    pub client_id: &'a str,
    pub created_unix_ms: u64,
    /// `None` while it is connected.
    pub left_unix_ms: Option<u64>,
    pub terms: Terms<'a>,
    /// Of the next entry.
    pub next_seq: Seq,
    /// Entries up to this one have been sent before.
    pub started: Seq,
    pub subscriptions: Vec<SubscriptionRecord<'a>>,
    /// QoS 2 messages that the client has not released.
    pub received: Vec<u16>,
}

/// What a CONNECT says for the time after it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Terms<'a> {
    pub user_name: Option<&'a str>,
    /// Protocol Version of CONNECT: 3, 4 or 5.
    pub version: u8,
    pub is_superuser: bool,
    pub is_bridge: bool,
    pub expiry_s: u32,
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
    /// As the client wrote it, `$share/` and all.
    pub filter: &'a str,
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
    /// Retained messages are owed to it, until `Replayed`: all of them once more after a crash.
    pub is_replaying: bool,
}

/// Lists that are read item by item; `as_bytes` has been written by the `put` of the same type.
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

            /// Ends with an error where the bytes make no sense.
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

list!(Targets, Target, target);
list!(Entries, Entry, entry);
list!(SettledItems, Settled, settled);
list!(PageRefs, PageRef, page_ref);
list!(
    /// Of messages.
    Positions, Position, position
);

/// A record passed its checksum and still makes no sense: it is of another version, or there is a bug.
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
