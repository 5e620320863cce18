//! Encodes packets of clients with the real codec.

use mqtt::{
    Connect, Disconnect, Packet, PacketId, PacketType, Properties, Property, PropertyWriter, ProtocolVersion, Publish,
    QoS, ReasonCode, Subscribe, SubscribeFilter, SubscribeFilters, SubscriptionOptions, Unsubscribe,
    UnsubscribeFilters, Will, encode_bare_ack,
};

/// Fields of a CONNECT.
#[derive(Clone, Debug)]
pub struct ConnectFields {
    pub version: ProtocolVersion,
    pub clean_start: bool,
    pub keep_alive_s: u16,
    /// Session Expiry Interval. For 3.1.1 it follows from Clean Session.
    pub expiry_s: u32,
    pub receive_maximum: u16,
    pub topic_alias_maximum: u16,
    pub will: Option<WillTerms>,
}

#[derive(Clone, Debug)]
pub struct WillTerms {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    pub delay_s: u32,
    pub serial: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct PublishFields<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub id: u16,
    pub expiry_s: Option<u32>,
}

pub fn connect(terms: &ConnectFields, client_id: &str) -> Vec<u8> {
    let is_v5 = terms.version == ProtocolVersion::V5;
    let (mut properties, mut will_properties) = (Vec::new(), Vec::new());
    let mut writer = PropertyWriter::new(&mut properties);
    if is_v5 {
        writer.put(Property::SessionExpiryInterval(terms.expiry_s));
        writer.put(Property::ReceiveMaximum(terms.receive_maximum));
        writer.put(Property::TopicAliasMaximum(terms.topic_alias_maximum));
    }
    let properties = writer.finish();
    let will = terms.will.as_ref().map(|will| {
        if is_v5 {
            PropertyWriter::new(&mut will_properties).put(Property::WillDelayInterval(will.delay_s));
        }
        Will {
            qos: will.qos,
            retain: will.retain,
            properties: Properties::from_validated(&will_properties),
            topic: &will.topic,
            payload: &will.payload,
        }
    });
    bytes(
        terms.version,
        &Packet::Connect(Connect {
            version: terms.version,
            clean_start: terms.clean_start,
            is_bridge: false,
            keep_alive: terms.keep_alive_s,
            properties,
            client_id,
            will,
            user_name: None,
            password: None,
        }),
    )
}

pub fn publish(version: ProtocolVersion, message: PublishFields<'_>) -> Vec<u8> {
    let mut properties = Vec::new();
    let mut writer = PropertyWriter::new(&mut properties);
    if let Some(expiry_s) = message.expiry_s {
        writer.put(Property::MessageExpiryInterval(expiry_s));
    }
    let properties = writer.finish();
    let packet_id = (message.qos != QoS::AtMostOnce).then(|| id(message.id));
    bytes(
        version,
        &Packet::Publish(Publish {
            dup: message.dup,
            qos: message.qos,
            retain: message.retain,
            topic: message.topic,
            packet_id,
            properties,
            payload: message.payload,
        }),
    )
}

pub fn subscribe(version: ProtocolVersion, packet_id: u16, filter: &str, options: SubscriptionOptions) -> Vec<u8> {
    let mut buffer = Vec::new();
    let filters = SubscribeFilters::encode([SubscribeFilter { filter, options }], version, &mut buffer);
    bytes(
        version,
        &Packet::Subscribe(Subscribe {
            packet_id: id(packet_id),
            properties: Properties::EMPTY,
            filters,
        }),
    )
}

pub fn unsubscribe(version: ProtocolVersion, packet_id: u16, filter: &str) -> Vec<u8> {
    let mut buffer = Vec::new();
    let filters = UnsubscribeFilters::encode([filter], &mut buffer);
    bytes(
        version,
        &Packet::Unsubscribe(Unsubscribe {
            packet_id: id(packet_id),
            properties: Properties::EMPTY,
            filters,
        }),
    )
}

pub fn disconnect(version: ProtocolVersion, expiry_s: Option<u32>, with_will: bool) -> Vec<u8> {
    let mut properties = Vec::new();
    let mut writer = PropertyWriter::new(&mut properties);
    if let Some(expiry_s) = expiry_s {
        writer.put(Property::SessionExpiryInterval(expiry_s));
    }
    let properties = writer.finish();
    let reason = if with_will {
        ReasonCode::DisconnectWithWillMessage
    } else {
        ReasonCode::Success
    };
    bytes(version, &Packet::Disconnect(Disconnect { reason, properties }))
}

pub fn answer(kind: PacketType, packet_id: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_bare_ack(kind, id(packet_id), &mut bytes);
    bytes
}

pub fn ping(version: ProtocolVersion) -> Vec<u8> {
    bytes(version, &Packet::PingReq)
}

fn id(id: u16) -> PacketId {
    PacketId::new(id).expect("clients use identifiers from 1")
}

fn bytes(version: ProtocolVersion, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    bytes
}
