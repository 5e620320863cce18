//! Application messages: borrowed while they are routed, owned while they are queued or stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqtt::QoS;

use crate::durable::record::{RecordPosition, SizedMessage};
use crate::message_size::MessageSize;
use crate::owners::ClientAccount;
use crate::provenance::Provenance;
use crate::slots::SessionEpoch;
use crate::{Now, ShardId};

/// Session that published a message, for No Local [MQTT-3.8.3-3]. Messages of the server have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageOrigin {
    pub shard: ShardId,
    /// Value of `Session::client_epoch`, because another session may use the slot when the message arrives.
    pub epoch: SessionEpoch,
}

impl MessageOrigin {
    pub const NONE: MessageOrigin = MessageOrigin {
        shard: ShardId(u16::MAX),
        epoch: SessionEpoch(u32::MAX),
    };
}

/// Where the record of a message is: in the journal, in the batch of this tick, or nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordLocation(u64);

impl RecordLocation {
    /// Not in the journal.
    pub const NONE: RecordLocation = RecordLocation(0);
    /// Marks an offset in the batch of this tick.
    const PENDING: u64 = 1 << 63;

    pub fn pending(offset: u32) -> RecordLocation {
        RecordLocation(Self::PENDING | u64::from(offset))
    }

    pub fn at(position: RecordPosition) -> RecordLocation {
        RecordLocation(position.0)
    }

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Returns the journal position. `None` if the message is not in the journal or its batch has not been appended.
    pub fn position(self) -> Option<RecordPosition> {
        (!self.is_none() && self.0 & Self::PENDING == 0).then_some(RecordPosition(self.0))
    }

    /// Returns the offset in a batch that has not been appended.
    pub fn offset(self) -> Option<u32> {
        (self.0 & Self::PENDING != 0).then_some(self.0 as u32)
    }

    /// Returns the place after the batch has been appended at `base`.
    pub fn placed(self, base: u64) -> RecordLocation {
        match self.0 & Self::PENDING {
            0 => self,
            _ => RecordLocation(base + (self.0 & !Self::PENDING)),
        }
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> RecordLocation {
        RecordLocation(bits)
    }
}

/// A message while it is routed. A QoS 0 message for connected sessions of this shard is not copied.
#[derive(Clone, Copy, Debug)]
pub struct Publication<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// MQTT 5 properties that are forwarded unaltered, in wire format.
    pub properties: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Expiry in monotonic milliseconds; not delivered after that [MQTT-3.3.2-5].
    pub expires_at_ms: Option<u64>,
    pub origin: MessageOrigin,
    /// Hash of the publisher's client id, used by a strategy of shared subscriptions.
    pub publisher_hash: u32,
    pub place: RecordLocation,
    /// Set if a tap subscribes to delivery events.
    pub provenance: Provenance<'a>,
    /// Set for retained and delayed messages of clients, which count for their owner.
    pub owner: Option<&'a Arc<ClientAccount>>,
}

impl<'a> Publication<'a> {
    /// Creates a message of the server: QoS 0, without properties, not in the journal.
    pub fn from_server(topic: &'a str, payload: &'a [u8]) -> Publication<'a> {
        Publication {
            topic,
            payload,
            properties: &[],
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at_ms: None,
            origin: MessageOrigin::NONE,
            publisher_hash: 0,
            place: RecordLocation::NONE,
            provenance: Provenance::NONE,
            owner: None,
        }
    }

    pub fn is_expired(&self, now: Now) -> bool {
        self.expires_at_ms.is_some_and(|at| at <= now.monotonic_ms)
    }

    /// Returns the remaining Message Expiry Interval in whole seconds, at least 1 [MQTT-3.3.2-6].
    pub fn remaining_expiry_s(&self, now: Now) -> Option<u32> {
        let left_ms = self.expires_at_ms?.saturating_sub(now.monotonic_ms);
        Some(u32::try_from(left_ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1))
    }

    /// Returns the memory that the message uses when it is stored, approximately. Used for limits.
    pub fn stored_bytes(&self) -> usize {
        stored_bytes_of(self.topic, self.properties, self.payload, self.provenance)
    }

    /// Returns what the message counts for the limit of a queue.
    pub fn size(&self) -> MessageSize {
        MessageSize::of(self.stored_bytes())
    }

    pub fn to_message(self) -> Arc<Message> {
        let length = self.topic.len() + self.properties.len() + self.payload.len() + trailer_bytes(self.provenance);
        let provenance = self.provenance.as_bytes();
        let provenance_length = (provenance.len() as u32).to_ne_bytes();
        let parts = [
            self.topic.as_bytes(),
            self.properties,
            self.payload,
            provenance,
            match provenance.is_empty() {
                true => &[],
                false => &provenance_length,
            },
        ];
        Arc::new(Message {
            size: MessageSize::of(memory_of(length)),
            bytes: MessageBytes::new(length, parts),
            topic_bytes: self.topic.len() as u32,
            properties_bytes: self.properties.len() as u32,
            expires_at_ms: self.expires_at_ms.unwrap_or(u64::MAX),
            origin: self.origin,
            publisher_hash: self.publisher_hash,
            qos: self.qos,
            retain: self.retain,
            has_provenance: !provenance.is_empty(),
            owner: self.owner.cloned(),
            place: AtomicU64::new(self.place.0),
        })
    }
}

/// Size of the length that follows the provenance.
const PROVENANCE_LENGTH_BYTES: usize = size_of::<u32>();

/// Messages up to this size are stored in the allocation of the `Arc`. This includes most messages of sensors.
const INLINE_BYTES_MAX: usize = 94;

/// Returns the memory that a message uses when it is stored, approximately.
pub(crate) fn stored_bytes_of(topic: &str, properties: &[u8], payload: &[u8], provenance: Provenance<'_>) -> usize {
    memory_of(topic.len() + properties.len() + payload.len() + trailer_bytes(provenance))
}

/// Returns the size of the provenance in a stored message.
fn trailer_bytes(provenance: Provenance<'_>) -> usize {
    match provenance.as_bytes().len() {
        0 => 0,
        length => length + PROVENANCE_LENGTH_BYTES,
    }
}

fn memory_of(length: usize) -> usize {
    // The `Arc` has two counters.
    let allocation = size_of::<Message>() + 2 * size_of::<usize>();
    match length > INLINE_BYTES_MAX {
        true => allocation + length,
        false => allocation,
    }
}

/// Topic, properties, payload and provenance of a message.
#[derive(Debug)]
enum MessageBytes {
    Inline { length: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Separate(Box<[u8]>),
}

impl MessageBytes {
    /// `length` is the length of all parts together.
    fn new<const N: usize>(length: usize, parts: [&[u8]; N]) -> MessageBytes {
        if length > INLINE_BYTES_MAX {
            let mut bytes = Vec::with_capacity(length);
            parts.into_iter().for_each(|part| bytes.extend_from_slice(part));
            return MessageBytes::Separate(bytes.into_boxed_slice());
        }
        let mut bytes = [0; INLINE_BYTES_MAX];
        let mut end = 0;
        for part in parts {
            bytes[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        MessageBytes::Inline {
            length: end as u8,
            bytes,
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            MessageBytes::Inline { length, bytes } => &bytes[..usize::from(*length)],
            MessageBytes::Separate(bytes) => bytes,
        }
    }
}

/// A stored message, shared by all its recipients.
#[derive(Debug)]
pub struct Message {
    bytes: MessageBytes,
    topic_bytes: u32,
    properties_bytes: u32,
    expires_at_ms: u64,
    origin: MessageOrigin,
    publisher_hash: u32,
    qos: QoS,
    retain: bool,
    /// Fits into padding, so a message without provenance is not larger. The same holds for `size`.
    has_provenance: bool,
    /// Calculated once, because each queue adds and subtracts it.
    size: MessageSize,
    owner: Option<Arc<ClientAccount>>,
    /// Set by the shard's thread when the batch is appended, or when the message is moved.
    place: AtomicU64,
}

impl Message {
    pub fn publication(&self) -> Publication<'_> {
        let (topic, rest) = self.bytes.as_slice().split_at(self.topic_bytes as usize);
        let (properties, rest) = rest.split_at(self.properties_bytes as usize);
        let (payload, provenance) = self.split_provenance(rest);
        Publication {
            topic: std::str::from_utf8(topic).expect("made from a str"),
            payload,
            properties,
            qos: self.qos,
            retain: self.retain,
            expires_at_ms: (self.expires_at_ms != u64::MAX).then_some(self.expires_at_ms),
            origin: self.origin,
            publisher_hash: self.publisher_hash,
            place: self.place(),
            provenance,
            owner: self.owner.as_ref(),
        }
    }

    fn split_provenance<'a>(&self, rest: &'a [u8]) -> (&'a [u8], Provenance<'a>) {
        if !self.has_provenance {
            return (rest, Provenance::NONE);
        }
        let (rest, length) = rest.split_last_chunk().expect("`to_message` wrote the length");
        let (payload, provenance) = rest.split_at(rest.len() - u32::from_ne_bytes(*length) as usize);
        (payload, Provenance::from_written(provenance))
    }

    pub fn place(&self) -> RecordLocation {
        RecordLocation(self.place.load(Ordering::Relaxed))
    }

    /// Returns the position and size of a message that is in the journal.
    pub fn recorded(&self) -> Option<SizedMessage> {
        let position = self.place().position()?;
        let size = self.size();
        Some(SizedMessage { position, size })
    }

    pub fn set_place(&self, place: RecordLocation) {
        self.place.store(place.0, Ordering::Relaxed);
    }

    pub fn owner(&self) -> Option<&Arc<ClientAccount>> {
        self.owner.as_ref()
    }

    pub fn stored_bytes(&self) -> usize {
        memory_of(self.bytes.as_slice().len())
    }

    /// Returns what the message counts for the limit of a queue.
    #[inline]
    pub fn size(&self) -> MessageSize {
        self.size
    }

    pub fn is_expired(&self, now: Now) -> bool {
        self.expires_at_ms <= now.monotonic_ms
    }
}

/// Returns the lower of the published QoS and the maximum QoS of a subscription.
pub(crate) fn granted(published: QoS, maximum: QoS) -> QoS {
    published.min(maximum)
}

/// Returns whether only the server may publish to a topic.
pub(crate) fn is_reserved(topic: &str) -> bool {
    ["$SYS", "$CONTROL", "$share"].iter().any(|reserved| {
        topic
            .strip_prefix(reserved)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
