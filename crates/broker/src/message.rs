//! Application messages on their way: borrowed while they are routed, owned when someone has to wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqtt::QoS;

use crate::durable::record::Position;
use crate::provenance::Provenance;
use crate::{Now, ShardId};

/// Which session of the node published a message; for No Local [MQTT-3.8.3-3]. Server-made messages have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub shard: ShardId,
    /// `Session::epoch`: the slot may be another's when the message arrives.
    pub epoch: u32,
}

impl Origin {
    pub const NONE: Origin = Origin {
        shard: ShardId(u16::MAX),
        epoch: u32::MAX,
    };
}

/// Whether a message stands in the journal, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

impl Place {
    /// Nowhere.
    pub const NONE: Place = Place(0);
    /// Marks an offset in the batch of the tick, which has no position yet.
    const PENDING: u64 = 1 << 63;

    pub fn pending(offset: u32) -> Place {
        Place(Self::PENDING | u64::from(offset))
    }

    pub fn at(position: Position) -> Place {
        Place(position.0)
    }

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// None for a message that is not in the journal, or in a batch that has not been appended.
    pub fn position(self) -> Option<Position> {
        (!self.is_none() && self.0 & Self::PENDING == 0).then_some(Position(self.0))
    }

    /// Of a record in a batch that has not been appended.
    pub fn offset(self) -> Option<u32> {
        (self.0 & Self::PENDING != 0).then_some(self.0 as u32)
    }

    /// Where it is now that the batch has been appended.
    pub fn placed(self, base: u64) -> Place {
        match self.0 & Self::PENDING {
            0 => self,
            _ => Place(base + (self.0 & !Self::PENDING)),
        }
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Place {
        Place(bits)
    }
}

/// A message while it is routed. Nothing is copied for a QoS 0 message that goes to connected sessions of this shard.
#[derive(Clone, Copy, Debug)]
pub struct Publication<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// The MQTT 5 properties that are forwarded unaltered, as wire bytes.
    pub properties: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Monotonic milliseconds after which it must not be delivered [MQTT-3.3.2-5].
    pub expires_at_ms: Option<u64>,
    pub origin: Origin,
    /// Hash of the publisher's client id, for the strategy of shared subscriptions that uses it.
    pub publisher_hash: u32,
    pub place: Place,
    /// None unless a tap wants to be told of deliveries.
    pub provenance: Provenance<'a>,
}

impl<'a> Publication<'a> {
    /// A message that no client sent: at QoS 0, without properties, not in the journal.
    pub fn of_server(topic: &'a str, payload: &'a [u8]) -> Publication<'a> {
        Publication {
            topic,
            payload,
            properties: &[],
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at_ms: None,
            origin: Origin::NONE,
            publisher_hash: 0,
            place: Place::NONE,
            provenance: Provenance::NONE,
        }
    }

    pub fn is_expired(&self, now: Now) -> bool {
        self.expires_at_ms.is_some_and(|at| at <= now.monotonic_ms)
    }

    /// What is left of the Message Expiry Interval, in whole seconds, never 0 [MQTT-3.3.2-6].
    pub fn remaining_expiry_s(&self, now: Now) -> Option<u32> {
        let left_ms = self.expires_at_ms?.saturating_sub(now.monotonic_ms);
        Some(u32::try_from(left_ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1))
    }

    /// Bytes that keeping it costs, near enough for limits.
    pub fn kept_bytes(&self) -> usize {
        self.topic.len() + self.properties.len() + self.payload.len() + self.trailer_bytes() + size_of::<Message>()
    }

    /// Of the provenance in a kept message.
    fn trailer_bytes(&self) -> usize {
        match self.provenance.as_bytes().len() {
            0 => 0,
            length => length + PROVENANCE_LENGTH_BYTES,
        }
    }

    pub fn to_message(self) -> Arc<Message> {
        let length = self.topic.len() + self.properties.len() + self.payload.len() + self.trailer_bytes();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(self.topic.as_bytes());
        bytes.extend_from_slice(self.properties);
        bytes.extend_from_slice(self.payload);
        let provenance = self.provenance.as_bytes();
        if !provenance.is_empty() {
            bytes.extend_from_slice(provenance);
            bytes.extend_from_slice(&(provenance.len() as u32).to_ne_bytes());
        }
        Arc::new(Message {
            bytes: bytes.into_boxed_slice(),
            topic_bytes: self.topic.len() as u32,
            properties_bytes: self.properties.len() as u32,
            expires_at_ms: self.expires_at_ms.unwrap_or(u64::MAX),
            origin: self.origin,
            publisher_hash: self.publisher_hash,
            qos: self.qos,
            retain: self.retain,
            has_provenance: !provenance.is_empty(),
            place: AtomicU64::new(self.place.0),
        })
    }
}

/// Behind the provenance, how long it is.
const PROVENANCE_LENGTH_BYTES: usize = size_of::<u32>();

/// A kept message: topic, properties, payload and provenance in one allocation, shared by all who wait for it.
#[derive(Debug)]
pub struct Message {
    bytes: Box<[u8]>,
    topic_bytes: u32,
    properties_bytes: u32,
    expires_at_ms: u64,
    origin: Origin,
    publisher_hash: u32,
    qos: QoS,
    retain: bool,
    /// In the padding, so that a message without costs nothing for it.
    has_provenance: bool,
    /// Set once more when the batch that has it is appended, by the thread that owns the shard.
    place: AtomicU64,
}

impl Message {
    pub fn publication(&self) -> Publication<'_> {
        let (topic, rest) = self.bytes.split_at(self.topic_bytes as usize);
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

    pub fn place(&self) -> Place {
        Place(self.place.load(Ordering::Relaxed))
    }

    pub fn set_place(&self, place: Place) {
        self.place.store(place.0, Ordering::Relaxed);
    }

    pub fn kept_bytes(&self) -> usize {
        self.bytes.len() + size_of::<Message>()
    }

    pub fn is_expired(&self, now: Now) -> bool {
        self.expires_at_ms <= now.monotonic_ms
    }
}
