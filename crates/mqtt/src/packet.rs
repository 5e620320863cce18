//! The control packets, as decoded or to be encoded.
//!
//! Every packet borrows from its bytes. In 3.1 and 3.1.1 `properties` is empty and reason codes are
//! `ReasonCode::Success`. Repeated parts (filters, reason codes) are validated wire bytes with an iterator.

use crate::filters::{SubscribeFilters, UnsubscribeFilters};
use crate::{PacketId, PacketType, Properties, ProtocolVersion, QoS, ReasonCode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    Connect(Connect<'a>),
    ConnAck(ConnAck<'a>),
    Publish(Publish<'a>),
    PubAck(Ack<'a>),
    PubRec(Ack<'a>),
    PubRel(Ack<'a>),
    PubComp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(UnsubAck<'a>),
    PingReq,
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

impl Packet<'_> {
    pub const fn packet_type(&self) -> PacketType {
        match self {
            Packet::Connect(_) => PacketType::Connect,
            Packet::ConnAck(_) => PacketType::ConnAck,
            Packet::Publish(_) => PacketType::Publish,
            Packet::PubAck(_) => PacketType::PubAck,
            Packet::PubRec(_) => PacketType::PubRec,
            Packet::PubRel(_) => PacketType::PubRel,
            Packet::PubComp(_) => PacketType::PubComp,
            Packet::Subscribe(_) => PacketType::Subscribe,
            Packet::SubAck(_) => PacketType::SubAck,
            Packet::Unsubscribe(_) => PacketType::Unsubscribe,
            Packet::UnsubAck(_) => PacketType::UnsubAck,
            Packet::PingReq => PacketType::PingReq,
            Packet::PingResp => PacketType::PingResp,
            Packet::Disconnect(_) => PacketType::Disconnect,
            Packet::Auth(_) => PacketType::Auth,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    pub version: ProtocolVersion,
    /// Clean Session in 3.1 and 3.1.1, Clean Start in 5.
    pub clean_start: bool,
    /// The high bit of the protocol level, which bridges of Mosquitto and NanoMQ set. Only in 3.1 and 3.1.1.
    pub is_bridge: bool,
    /// Seconds. 0 disables keep alive.
    pub keep_alive: u16,
    pub properties: Properties<'a>,
    pub client_id: &'a str,
    pub will: Option<Will<'a>>,
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    pub qos: QoS,
    pub retain: bool,
    pub properties: Properties<'a>,
    pub topic: &'a str,
    pub payload: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnAck<'a> {
    pub session_present: bool,
    /// In 3.1 and 3.1.1 the encoder converts it to a Connect Return code, and the decoder back.
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// A valid Topic Name. Empty only in 5.0 with a Topic Alias.
    pub topic: &'a str,
    /// Present if and only if QoS > 0.
    pub packet_id: Option<PacketId>,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    pub packet_id: PacketId,
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    pub filters: SubscribeFilters<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAck<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    /// One byte per filter: the granted QoS 0..=2, or a failure code (0x80 in 3.1 and 3.1.1).
    pub reasons: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    pub filters: UnsubscribeFilters<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    /// One byte per filter in 5; empty in 3.1 and 3.1.1.
    pub reasons: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect<'a> {
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth<'a> {
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}
