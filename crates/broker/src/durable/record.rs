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
//!              [publisher key, packet id], topic, properties, targets bytes, targets, payload (the rest)
//! target    := flags u8, key, seq, [group key], [count, identifiers]
//! ```
//! Times are Unix milliseconds: the monotonic clock begins anew with every process.

use mqtt::{QoS, RetainHandling, SubscriptionOptions};

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
    /// A `$delayed` message that is still to be published.
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

const BOOT: u8 = 1;
const MESSAGE: u8 = 2;
const QUEUED: u8 = 3;
const ROUTED: u8 = 4;
const SETTLED: u8 = 5;
const FREED: u8 = 6;
const SESSION: u8 = 7;
const ENTRIES: u8 = 8;
const CONNECTED: u8 = 9;
const DISCONNECTED: u8 = 10;
const WILL_DONE: u8 = 11;
const ENDED: u8 = 12;
const SUBSCRIBED: u8 = 13;
const UNSUBSCRIBED: u8 = 14;
const GROUP: u8 = 15;
const GROUP_ENTRIES: u8 = 16;
const GROUP_ENDED: u8 = 17;
const RETURNED: u8 = 18;
const GROUP_DROPPED: u8 = 19;
const RETAINED: u8 = 20;
const RETAINED_GONE: u8 = 21;
const DELAYED: u8 = 22;
const DELAYED_DONE: u8 = 23;
const CHECKPOINT: u8 = 24;
const UNHELD: u8 = 25;
const BACK: u8 = 26;

/// The low two bits of a message's, target's or entry's flags are its QoS.
const QOS: u8 = 0b11;
const RETAIN: u8 = 1 << 2;

const HAS_EXPIRY: u8 = 1 << 3;
const HAS_DUE: u8 = 1 << 4;
const IS_RETAINED: u8 = 1 << 5;
const HAS_PUBLISHER: u8 = 1 << 6;

const IS_GROUP: u8 = 1 << 3;
const HAS_GROUP: u8 = 1 << 4;
const HAS_IDENTIFIERS: u8 = 1 << 5;
const IS_RELEASED: u8 = 1 << 6;

impl Record<'_> {
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Record::Boot {
                unix_ms,
                shards,
                last_key,
            } => put_all(out, BOOT, [*unix_ms, u64::from(*shards), *last_key]),
            Record::Checkpoint {
                unix_ms,
                shards,
                last_key,
            } => put_all(out, CHECKPOINT, [*unix_ms, u64::from(*shards), *last_key]),
            Record::Message(message) => message.put(out),
            Record::Queued { message, targets } => {
                put_all(out, QUEUED, [message.0]);
                out.extend_from_slice(targets.0);
            }
            Record::Routed { by, from, up_to } => put_all(out, ROUTED, [u64::from(*by), u64::from(*from), up_to.0]),
            Record::Settled(items) => {
                out.push(SETTLED);
                out.extend_from_slice(items.0);
            }
            Record::Freed { session, packet_id } => put_all(out, FREED, [session.0, u64::from(*packet_id)]),
            Record::Session(session) => session.put(out),
            Record::Entries { session, entries } => {
                put_all(out, ENTRIES, [session.0]);
                out.extend_from_slice(entries.0);
            }
            Record::Connected { session, terms } => {
                put_all(out, CONNECTED, [session.0]);
                terms.put(out);
            }
            Record::Disconnected {
                session,
                unix_ms,
                expiry_s,
                has_will,
                started,
            } => put_all(
                out,
                DISCONNECTED,
                [
                    session.0,
                    *unix_ms,
                    u64::from(*expiry_s),
                    u64::from(*has_will),
                    *started,
                ],
            ),
            Record::WillDone { session } => put_all(out, WILL_DONE, [session.0]),
            Record::Ended { session } => put_all(out, ENDED, [session.0]),
            Record::Subscribed { session, subscription } => {
                put_all(out, SUBSCRIBED, [session.0]);
                subscription.put(out);
            }
            Record::Unsubscribed { session, filter } => {
                put_all(out, UNSUBSCRIBED, [session.0]);
                put_bytes(out, filter.as_bytes());
            }
            Record::Group {
                group,
                share_name,
                filter,
            } => {
                put_all(out, GROUP, [group.0]);
                put_bytes(out, share_name.as_bytes());
                put_bytes(out, filter.as_bytes());
            }
            Record::GroupEntries { group, messages } => {
                put_all(out, GROUP_ENTRIES, [group.0]);
                out.extend_from_slice(messages.0);
            }
            Record::GroupEnded { group } => put_all(out, GROUP_ENDED, [group.0]),
            Record::Returned {
                session,
                seq,
                group,
                message,
            } => put_all(out, RETURNED, [session.0, *seq, group.0, message.0]),
            Record::GroupDropped { group, message } => put_all(out, GROUP_DROPPED, [group.0, message.0]),
            Record::Retained {
                message,
                expires_unix_ms,
                topic,
            } => {
                put_all(out, RETAINED, [message.0, expires_unix_ms.map_or(0, |ms| ms + 1)]);
                put_bytes(out, topic.as_bytes());
            }
            Record::RetainedGone { topic } => {
                out.push(RETAINED_GONE);
                put_bytes(out, topic.as_bytes());
            }
            Record::Delayed { message, due_unix_ms } => put_all(out, DELAYED, [message.0, *due_unix_ms]),
            Record::DelayedDone { message } => put_all(out, DELAYED_DONE, [message.0]),
            Record::Unheld { session, message } => put_all(out, UNHELD, [session.0, message.0]),
        }
    }
}

impl Record<'_> {
    /// Of a message whose record is in the same batch, and so has no position yet: `message` is how far before this record.
    pub fn put_back(&self, out: &mut Vec<u8>) {
        out.push(BACK);
        self.put(out);
    }

    fn message_mut(&mut self) -> Option<&mut Position> {
        match self {
            Record::Queued { message, .. }
            | Record::Returned { message, .. }
            | Record::GroupDropped { message, .. }
            | Record::Retained { message, .. }
            | Record::Delayed { message, .. }
            | Record::DelayedDone { message }
            | Record::Unheld { message, .. } => Some(message),
            _ => None,
        }
    }
}

impl<'a> Record<'a> {
    /// A record that stands at `position`.
    pub fn read_at(position: Position, bytes: &'a [u8]) -> Result<Record<'a>, NotARecord> {
        let Some((&BACK, rest)) = bytes.split_first() else {
            return Record::read(bytes);
        };
        let mut record = Record::read(rest)?;
        let before = record.message_mut().and_then(|message| {
            message.0 = position.0.checked_sub(message.0)?;
            Some(())
        });
        before.map(|()| record).ok_or(NotARecord {
            expected: "a message before this record",
        })
    }

    /// A record that speaks of no message of its own batch.
    pub fn read(bytes: &'a [u8]) -> Result<Record<'a>, NotARecord> {
        let mut r = Reader(bytes);
        let record = match r.u8()? {
            BOOT => Record::Boot {
                unix_ms: r.integer()?,
                shards: r.small()?,
                last_key: r.integer()?,
            },
            CHECKPOINT => Record::Checkpoint {
                unix_ms: r.integer()?,
                shards: r.small()?,
                last_key: r.integer()?,
            },
            MESSAGE => Record::Message(r.message()?),
            QUEUED => Record::Queued {
                message: r.position()?,
                targets: Targets(r.rest()),
            },
            ROUTED => Record::Routed {
                by: r.small()?,
                from: r.small()?,
                up_to: r.position()?,
            },
            SETTLED => Record::Settled(SettledItems(r.rest())),
            FREED => Record::Freed {
                session: r.session()?,
                packet_id: r.small()?,
            },
            SESSION => Record::Session(r.session_record()?),
            ENTRIES => Record::Entries {
                session: r.session()?,
                entries: Entries(r.rest()),
            },
            CONNECTED => Record::Connected {
                session: r.session()?,
                terms: r.terms()?,
            },
            DISCONNECTED => Record::Disconnected {
                session: r.session()?,
                unix_ms: r.integer()?,
                expiry_s: r.small()?,
                has_will: r.integer()? != 0,
                started: r.integer()?,
            },
            WILL_DONE => Record::WillDone { session: r.session()? },
            ENDED => Record::Ended { session: r.session()? },
            SUBSCRIBED => Record::Subscribed {
                session: r.session()?,
                subscription: r.subscription()?,
            },
            UNSUBSCRIBED => Record::Unsubscribed {
                session: r.session()?,
                filter: r.text()?,
            },
            GROUP => Record::Group {
                group: r.group()?,
                share_name: r.text()?,
                filter: r.text()?,
            },
            GROUP_ENTRIES => Record::GroupEntries {
                group: r.group()?,
                messages: Positions(r.rest()),
            },
            GROUP_ENDED => Record::GroupEnded { group: r.group()? },
            RETURNED => Record::Returned {
                session: r.session()?,
                seq: r.integer()?,
                group: r.group()?,
                message: r.position()?,
            },
            GROUP_DROPPED => Record::GroupDropped {
                group: r.group()?,
                message: r.position()?,
            },
            RETAINED => Record::Retained {
                message: r.position()?,
                expires_unix_ms: r.integer()?.checked_sub(1),
                topic: r.text()?,
            },
            RETAINED_GONE => Record::RetainedGone { topic: r.text()? },
            DELAYED => Record::Delayed {
                message: r.position()?,
                due_unix_ms: r.integer()?,
            },
            DELAYED_DONE => Record::DelayedDone { message: r.position()? },
            UNHELD => Record::Unheld {
                session: r.session()?,
                message: r.position()?,
            },
            _ => {
                return Err(NotARecord {
                    expected: "a record tag of this version",
                });
            }
        };
        if r.0.is_empty() {
            Ok(record)
        } else {
            Err(NotARecord {
                expected: "the end of the record",
            })
        }
    }
}

impl MessageRecord<'_> {
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(MESSAGE);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.push(
            self.qos as u8
                | flag(self.retain, RETAIN)
                | flag(self.expires_unix_ms.is_some(), HAS_EXPIRY)
                | flag(self.due_unix_ms.is_some(), HAS_DUE)
                | flag(self.retained.is_some(), IS_RETAINED)
                | flag(self.publisher.is_some(), HAS_PUBLISHER),
        );
        put_integer(out, u64::from(self.shard));
        put_integer(out, self.others);
        put_integer(out, u64::from(self.publisher_hash));
        if let Some(ms) = self.expires_unix_ms {
            put_integer(out, ms);
        }
        if let Some(ms) = self.due_unix_ms {
            put_integer(out, ms);
        }
        if let Some(terms) = self.retained {
            put_integer(out, terms.expires_unix_ms.map_or(0, |ms| ms + 1));
        }
        if let Some((session, packet_id)) = self.publisher {
            put_integer(out, session.0);
            put_integer(out, u64::from(packet_id));
        }
        put_bytes(out, self.topic.as_bytes());
        put_bytes(out, self.properties);
        put_bytes(out, self.targets.0);
        out.extend_from_slice(self.payload);
    }
}

impl Target {
    pub fn put(&self, out: &mut Vec<u8>) {
        let (key, kind) = match self.to {
            Recipient::Session(session) => (session.0, 0),
            Recipient::Group(group) => (group.0, IS_GROUP),
        };
        put_place(
            out,
            kind,
            key,
            self.seq,
            self.qos,
            self.retain,
            self.group,
            &self.identifiers,
        );
    }
}

impl Entry {
    pub fn put(&self, out: &mut Vec<u8>) {
        let kind = if self.is_released { IS_RELEASED } else { 0 };
        let position = self.message.0;
        put_place(
            out,
            kind,
            position,
            self.seq,
            self.qos,
            self.retain,
            self.group,
            &self.identifiers,
        );
    }
}

impl Settled {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_integer(out, self.session.0);
        put_integer(out, self.seq << 1 | u64::from(self.is_release));
    }
}

impl Position {
    pub fn put(self, out: &mut Vec<u8>) {
        put_integer(out, self.0);
    }
}

#[allow(clippy::too_many_arguments)]
fn put_place(
    out: &mut Vec<u8>,
    kind: u8,
    key: u64,
    seq: Seq,
    qos: QoS,
    retain: bool,
    group: Option<GroupKey>,
    identifiers: &[u32],
) {
    let mut flags = kind | qos as u8;
    flags |= if retain { RETAIN } else { 0 };
    flags |= if group.is_some() { HAS_GROUP } else { 0 };
    flags |= if identifiers.is_empty() { 0 } else { HAS_IDENTIFIERS };
    out.push(flags);
    put_integer(out, key);
    put_integer(out, seq);
    if let Some(group) = group {
        put_integer(out, group.0);
    }
    if !identifiers.is_empty() {
        put_integer(out, identifiers.len() as u64);
        for identifier in identifiers {
            put_integer(out, u64::from(*identifier));
        }
    }
}

impl SessionRecord<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        put_all(
            out,
            SESSION,
            [
                self.session.0,
                self.created_unix_ms,
                self.left_unix_ms.map_or(0, |ms| ms + 1),
                self.next_seq,
                self.started,
            ],
        );
        put_bytes(out, self.client_id.as_bytes());
        put_integer(out, self.subscriptions.len() as u64);
        for subscription in &self.subscriptions {
            subscription.put(out);
        }
        put_integer(out, self.received.len() as u64);
        for id in &self.received {
            put_integer(out, u64::from(*id));
        }
        self.terms.put(out);
    }
}

impl Terms<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[
            self.version,
            u8::from(self.is_superuser) | u8::from(self.is_bridge) << 1 | u8::from(self.user_name.is_some()) << 2,
        ]);
        put_integer(out, u64::from(self.expiry_s));
        if let Some(user_name) = self.user_name {
            put_bytes(out, user_name.as_bytes());
        }
        let Some(will) = &self.will else {
            return out.push(0);
        };
        out.extend_from_slice(&[1, will.qos as u8 | if will.retain { RETAIN } else { 0 }]);
        put_integer(out, u64::from(will.delay_s));
        put_integer(out, will.message_expiry_s.map_or(0, |s| u64::from(s) + 1));
        put_bytes(out, will.topic.as_bytes());
        put_bytes(out, will.payload);
        put_bytes(out, will.properties);
    }
}

impl SubscriptionRecord<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        let options = self.options;
        put_bytes(out, self.filter.as_bytes());
        out.push(
            options.maximum_qos as u8
                | u8::from(options.no_local) << 2
                | u8::from(options.retain_as_published) << 3
                | (options.retain_handling as u8) << 4,
        );
        put_integer(out, u64::from(self.identifier.unwrap_or(0)));
    }
}

fn put_all<const N: usize>(out: &mut Vec<u8>, tag: u8, integers: [u64; N]) {
    out.push(tag);
    for integer in integers {
        put_integer(out, integer);
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_integer(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_integer(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn u8(&mut self) -> Result<u8, NotARecord> {
        let (first, rest) = self.0.split_first().ok_or(NotARecord { expected: "a byte" })?;
        self.0 = rest;
        Ok(*first)
    }

    fn integer(&mut self) -> Result<u64, NotARecord> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(NotARecord {
            expected: "an integer of at most 64 bits",
        })
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Result<T, NotARecord> {
        T::try_from(self.integer()?).map_err(|_| NotARecord {
            expected: "a smaller number",
        })
    }

    fn bytes(&mut self) -> Result<&'a [u8], NotARecord> {
        let length: usize = self.small()?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(NotARecord {
            expected: "as many bytes as the length says",
        })?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, NotARecord> {
        std::str::from_utf8(self.bytes()?).map_err(|_| NotARecord { expected: "UTF-8" })
    }

    fn qos(bits: u8) -> Result<QoS, NotARecord> {
        match bits & QOS {
            0 => Ok(QoS::AtMostOnce),
            1 => Ok(QoS::AtLeastOnce),
            2 => Ok(QoS::ExactlyOnce),
            _ => Err(NotARecord {
                expected: "a QoS of 0, 1 or 2",
            }),
        }
    }

    fn position(&mut self) -> Result<Position, NotARecord> {
        self.integer().map(Position)
    }

    fn session(&mut self) -> Result<SessionKey, NotARecord> {
        self.integer().map(SessionKey)
    }

    fn group(&mut self) -> Result<GroupKey, NotARecord> {
        self.integer().map(GroupKey)
    }

    fn message(&mut self) -> Result<MessageRecord<'a>, NotARecord> {
        let flags = self.u8()?;
        let has = |flag: u8| flags & flag != 0;
        let (shard, others, publisher_hash) = (self.small()?, self.integer()?, self.small()?);
        let expires_unix_ms = has(HAS_EXPIRY).then(|| self.integer()).transpose()?;
        let due_unix_ms = has(HAS_DUE).then(|| self.integer()).transpose()?;
        let retained = match has(IS_RETAINED) {
            false => None,
            true => Some(RetainedTerms {
                expires_unix_ms: self.integer()?.checked_sub(1),
            }),
        };
        let publisher = match has(HAS_PUBLISHER) {
            false => None,
            true => Some((self.session()?, self.small()?)),
        };
        Ok(MessageRecord {
            qos: Self::qos(flags)?,
            retain: has(RETAIN),
            expires_unix_ms,
            publisher_hash,
            shard,
            others,
            due_unix_ms,
            retained,
            publisher,
            topic: self.text()?,
            properties: self.bytes()?,
            targets: Targets(self.bytes()?),
            payload: self.rest(),
        })
    }

    fn target(&mut self) -> Result<Target, NotARecord> {
        let flags = self.u8()?;
        let (key, seq) = (self.integer()?, self.integer()?);
        Ok(Target {
            to: match flags & IS_GROUP {
                0 => Recipient::Session(SessionKey(key)),
                _ => Recipient::Group(GroupKey(key)),
            },
            seq,
            qos: Self::qos(flags)?,
            retain: flags & RETAIN != 0,
            group: self.group_if(flags)?,
            identifiers: self.identifiers_if(flags)?,
        })
    }

    fn entry(&mut self) -> Result<Entry, NotARecord> {
        let flags = self.u8()?;
        let (message, seq) = (self.position()?, self.integer()?);
        Ok(Entry {
            message,
            seq,
            qos: Self::qos(flags)?,
            retain: flags & RETAIN != 0,
            is_released: flags & IS_RELEASED != 0,
            group: self.group_if(flags)?,
            identifiers: self.identifiers_if(flags)?,
        })
    }

    fn group_if(&mut self, flags: u8) -> Result<Option<GroupKey>, NotARecord> {
        (flags & HAS_GROUP != 0).then(|| self.group()).transpose()
    }

    fn identifiers_if(&mut self, flags: u8) -> Result<Vec<u32>, NotARecord> {
        if flags & HAS_IDENTIFIERS == 0 {
            return Ok(Vec::new());
        }
        let count = self.integer()?;
        (0..count).map(|_| self.small()).collect()
    }

    fn settled(&mut self) -> Result<Settled, NotARecord> {
        let (session, packed) = (self.session()?, self.integer()?);
        Ok(Settled {
            session,
            seq: packed >> 1,
            is_release: packed & 1 == 1,
        })
    }

    fn session_record(&mut self) -> Result<SessionRecord<'a>, NotARecord> {
        let session = self.session()?;
        let (created_unix_ms, left) = (self.integer()?, self.integer()?);
        let (next_seq, started) = (self.integer()?, self.integer()?);
        let client_id = self.text()?;
        let count = self.integer()?;
        let subscriptions = (0..count).map(|_| self.subscription()).collect::<Result<_, _>>()?;
        let count = self.integer()?;
        let received = (0..count).map(|_| self.small()).collect::<Result<_, _>>()?;
        Ok(SessionRecord {
            session,
            client_id,
            created_unix_ms,
            left_unix_ms: left.checked_sub(1),
            next_seq,
            started,
            subscriptions,
            received,
            terms: self.terms()?,
        })
    }

    fn terms(&mut self) -> Result<Terms<'a>, NotARecord> {
        let (version, flags) = (self.u8()?, self.u8()?);
        let expiry_s = self.small()?;
        let user_name = (flags & 4 != 0).then(|| self.text()).transpose()?;
        let will = (self.u8()? == 1).then(|| self.will()).transpose()?;
        Ok(Terms {
            user_name,
            version,
            is_superuser: flags & 1 != 0,
            is_bridge: flags & 2 != 0,
            expiry_s,
            will,
        })
    }

    fn will(&mut self) -> Result<WillRecord<'a>, NotARecord> {
        let flags = self.u8()?;
        let (delay_s, expiry) = (self.small()?, self.integer()?);
        let message_expiry_s = match expiry.checked_sub(1) {
            None => None,
            Some(s) => Some(u32::try_from(s).map_err(|_| NotARecord {
                expected: "a Message Expiry Interval of 32 bits",
            })?),
        };
        Ok(WillRecord {
            topic: self.text()?,
            payload: self.bytes()?,
            properties: self.bytes()?,
            qos: Self::qos(flags)?,
            retain: flags & RETAIN != 0,
            delay_s,
            message_expiry_s,
        })
    }

    fn subscription(&mut self) -> Result<SubscriptionRecord<'a>, NotARecord> {
        let filter = self.text()?;
        let flags = self.u8()?;
        let retain_handling = match flags >> 4 & 0b11 {
            0 => RetainHandling::SendAtSubscribe,
            1 => RetainHandling::SendIfNew,
            _ => RetainHandling::DoNotSend,
        };
        let identifier: u32 = self.small()?;
        Ok(SubscriptionRecord {
            filter,
            options: SubscriptionOptions {
                maximum_qos: Self::qos(flags)?,
                no_local: flags & 1 << 2 != 0,
                retain_as_published: flags & 1 << 3 != 0,
                retain_handling,
            },
            identifier: (identifier != 0).then_some(identifier),
        })
    }
}

#[cfg(test)]
mod tests;
