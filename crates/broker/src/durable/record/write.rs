//! Encodes records.

use mqtt::QoS;

use super::tags::*;
use super::*;

impl JournalRecord<'_> {
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            JournalRecord::Boot {
                unix_ms,
                shards,
                last_key,
            } => put_all(out, BOOT, [*unix_ms, u64::from(*shards), *last_key]),
            JournalRecord::Checkpoint {
                unix_ms,
                shards,
                last_key,
            } => put_all(out, CHECKPOINT, [*unix_ms, u64::from(*shards), *last_key]),
            JournalRecord::Time { unix_ms, ahead_ms: 0 } => put_all(out, TIME, [*unix_ms]),
            JournalRecord::Time { unix_ms, ahead_ms } => put_all(out, TIME_AFTER_STEP, [*unix_ms, *ahead_ms]),
            JournalRecord::Message(message) => message.put(out),
            JournalRecord::Queued { message, size, targets } => {
                put_all(out, SIZED_QUEUED, [message.0]);
                out.push(size.0);
                out.extend_from_slice(targets.0);
            }
            JournalRecord::Routed { by, from, up_to } => {
                put_all(out, ROUTED, [u64::from(*by), u64::from(*from), up_to.0])
            }
            JournalRecord::Settled(items) => {
                out.push(SETTLED);
                out.extend_from_slice(items.0);
            }
            JournalRecord::PacketIdFreed { session, packet_id } => {
                put_all(out, PACKET_ID_FREED, [session.0, u64::from(*packet_id)])
            }
            JournalRecord::Session(session) => session.put(out),
            JournalRecord::Entries { session, entries } => {
                put_all(out, ENTRIES, [session.0]);
                out.extend_from_slice(entries.0);
            }
            JournalRecord::Page { session, entries } => {
                put_all(out, PAGE, [session.0]);
                out.extend_from_slice(entries.0);
            }
            JournalRecord::PageLoaded { session, entries } => {
                put_all(out, PAGE_LOADED, [session.0]);
                out.extend_from_slice(entries.0);
            }
            JournalRecord::Pages { session, pages } => {
                put_all(out, if pages.is_sized { SIZED_PAGES } else { PAGES }, [session.0]);
                out.extend_from_slice(pages.bytes);
            }
            JournalRecord::Connected { session, terms } => {
                put_all(out, CONNECTED, [session.0]);
                terms.put(out);
            }
            JournalRecord::Disconnected {
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
            JournalRecord::WillPublished { session } => put_all(out, WILL_PUBLISHED, [session.0]),
            JournalRecord::Ended { session } => put_all(out, ENDED, [session.0]),
            JournalRecord::Subscribed { session, subscription } => {
                put_all(out, SUBSCRIBED, [session.0]);
                subscription.put(out);
            }
            JournalRecord::Unsubscribed { session, filter } => {
                put_all(out, UNSUBSCRIBED, [session.0]);
                put_bytes(out, filter.as_bytes());
            }
            JournalRecord::Replayed { session, filter } => {
                put_all(out, REPLAYED, [session.0]);
                put_bytes(out, filter.as_bytes());
            }
            JournalRecord::Group {
                group,
                share_name,
                filter,
            } => {
                put_all(out, GROUP, [group.0]);
                put_bytes(out, share_name.as_bytes());
                put_bytes(out, filter.as_bytes());
            }
            JournalRecord::GroupEntries { group, messages } => {
                let tag = if messages.is_sized {
                    SIZED_GROUP_ENTRIES
                } else {
                    GROUP_ENTRIES
                };
                put_all(out, tag, [group.0]);
                out.extend_from_slice(messages.bytes);
            }
            JournalRecord::GroupEnded { group } => put_all(out, GROUP_ENDED, [group.0]),
            JournalRecord::Returned {
                session,
                seq,
                group,
                message,
                size,
            } => {
                put_all(out, SIZED_RETURNED, [session.0, *seq, group.0, message.0]);
                out.push(size.0);
            }
            JournalRecord::GroupDropped { group, message } => put_all(out, GROUP_DROPPED, [group.0, message.0]),
            JournalRecord::Retained {
                message,
                expires_unix_ms,
                topic,
            } => {
                put_all(out, RETAINED, [message.0, expires_unix_ms.map_or(0, |ms| ms + 1)]);
                put_bytes(out, topic.as_bytes());
            }
            JournalRecord::RetainedCleared { topic } => {
                out.push(RETAINED_CLEARED);
                put_bytes(out, topic.as_bytes());
            }
            JournalRecord::Delayed { message, due_unix_ms } => put_all(out, DELAYED, [message.0, *due_unix_ms]),
            JournalRecord::DelayedDone { message } => put_all(out, DELAYED_DONE, [message.0]),
            JournalRecord::HeldDropped { session, message } => put_all(out, HELD_DROPPED, [session.0, message.0]),
            JournalRecord::Damaged => out.push(DAMAGED),
        }
    }
}

impl JournalRecord<'_> {
    /// Encodes a record that refers to a message of the same batch, which has no position yet. `message` is the
    /// distance from the message record to this record.
    pub fn put_back(&self, out: &mut Vec<u8>) {
        out.push(BACK);
        self.put(out);
    }
}

impl MessageRecord<'_> {
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(if self.owner.is_some() { OWNED_MESSAGE } else { MESSAGE });
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.push(
            self.qos as u8
                | flag(self.retain, RETAIN)
                | flag(self.expires_unix_ms.is_some(), HAS_EXPIRY)
                | flag(self.due_unix_ms.is_some(), HAS_DUE)
                | flag(self.retained.is_some(), IS_RETAINED)
                | flag(self.publisher.is_some(), HAS_PUBLISHER)
                | flag(!self.provenance.is_none(), HAS_PROVENANCE),
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
        if !self.provenance.is_none() {
            put_bytes(out, self.provenance.as_bytes());
        }
        if let Some(owner) = self.owner {
            put_bytes(out, owner.as_bytes());
        }
        put_bytes(out, self.topic.as_bytes());
        put_bytes(out, self.properties);
        put_bytes(out, self.targets.0);
        out.extend_from_slice(self.payload);
    }
}

impl RecordTarget {
    pub fn put(&self, out: &mut Vec<u8>) {
        let (key, kind) = match self.to {
            Recipient::Session(session) => (session.0, 0),
            Recipient::Group(group) => (group.0, IS_GROUP),
        };
        let head = PlaceHead {
            kind,
            key,
            seq: self.seq,
            qos: self.qos,
            retain: self.retain,
        };
        put_place(out, head, self.group, &self.identifiers);
    }
}

impl SessionEntry {
    pub fn put(&self, out: &mut Vec<u8>) {
        let is_sized = self.size != MessageSize::UNKNOWN;
        let kind = if self.is_released { IS_RELEASED } else { 0 } | if is_sized { HAS_SIZE } else { 0 };
        let position = self.message.0;
        let head = PlaceHead {
            kind,
            key: position,
            seq: self.seq,
            qos: self.qos,
            retain: self.retain,
        };
        put_place(out, head, self.group, &self.identifiers);
        if is_sized {
            out.push(self.size.0);
        }
    }
}

impl PageRef {
    pub fn put(&self, out: &mut Vec<u8>) {
        let numbers = [self.count, self.skipped, self.queued_qos0].map(u64::from);
        put_integer(out, self.at.0);
        put_integer(out, self.first);
        numbers.into_iter().for_each(|number| put_integer(out, number));
        put_integer(out, self.oldest.0);
        put_integer(out, self.bytes);
    }
}

impl AcknowledgedEntry {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_integer(out, self.session.0);
        put_integer(out, self.seq << 1 | u64::from(self.is_release));
    }
}

impl SizedMessage {
    pub fn put(self, out: &mut Vec<u8>) {
        put_integer(out, self.position.0);
        out.push(self.size.0);
    }
}

/// Fields that every entry and recipient has.
struct PlaceHead {
    /// Flags of the type of entry.
    kind: u8,
    /// Key of the recipient, or position of the message.
    key: u64,
    seq: Seq,
    qos: QoS,
    retain: bool,
}

fn put_place(out: &mut Vec<u8>, head: PlaceHead, group: Option<GroupKey>, identifiers: &[u32]) {
    let PlaceHead {
        kind,
        key,
        seq,
        qos,
        retain,
    } = head;
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

impl ConnectSettings<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.extend_from_slice(&[
            self.version,
            flag(self.is_superuser, IS_SUPERUSER)
                | flag(self.has_grant, HAS_GRANT)
                | flag(self.is_bridge, IS_BRIDGE)
                | flag(self.user_name.is_some(), HAS_USER_NAME)
                | flag(self.address.is_some(), HAS_ADDRESS)
                | flag(self.mountpoint.is_some(), HAS_MOUNTPOINT),
        ]);
        put_integer(out, u64::from(self.expiry_s));
        if let Some(user_name) = self.user_name {
            put_bytes(out, user_name.as_bytes());
        }
        match self.address {
            Some(IpAddr::V4(address)) => put_bytes(out, &address.octets()),
            Some(IpAddr::V6(address)) => put_bytes(out, &address.octets()),
            None => {}
        }
        if let Some(mountpoint) = self.mountpoint {
            put_bytes(out, mountpoint.as_bytes());
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
                | (options.retain_handling as u8) << 4
                | u8::from(self.is_replaying) << 6,
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

pub(in crate::durable) fn put_integer(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
