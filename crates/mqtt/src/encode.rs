//! Encoding of packets.
//!
//! The encoder computes lengths. The caller ensures that values are valid in the packet. Strings and binary data are
//! truncated at 65535 bytes, the maximum of their length field.

use crate::wire::{
    MAXIMUM_REMAINING_LENGTH, fitting, properties_size, put_binary, put_properties, put_string,
    put_variable_byte_integer, variable_byte_integer_size,
};
use crate::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketId, PacketType, Properties, ProtocolVersion, Publish, QoS,
    ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe, Will,
};

/// Properties of an MQTT 5 PUBLISH that differ per subscriber. Written before `Publish::properties`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishExtras<'a> {
    pub message_expiry_interval: Option<u32>,
    pub topic_alias: Option<u16>,
    pub subscription_identifiers: &'a [u32],
}

impl Packet<'_> {
    /// Appends the packet. 3.1 and 3.1.1 omit properties and reason codes. CONNECT is encoded in its own version. AUTH
    /// exists only in 5.0; in other versions nothing is appended.
    ///
    /// Panics if the packet exceeds the maximum length of MQTT (256 MiB).
    pub fn encode(&self, version: ProtocolVersion, out: &mut Vec<u8>) {
        match self {
            Packet::Connect(connect) => encode_connect(connect, out),
            Packet::ConnAck(connack) => encode_connack(connack, version, out),
            Packet::Publish(publish) => {
                encode_publish(publish, PublishExtras::default(), version, out);
            }
            Packet::PubAck(ack) => encode_ack(PacketType::PubAck, ack, version, out),
            Packet::PubRec(ack) => encode_ack(PacketType::PubRec, ack, version, out),
            Packet::PubRel(ack) => encode_ack(PacketType::PubRel, ack, version, out),
            Packet::PubComp(ack) => encode_ack(PacketType::PubComp, ack, version, out),
            Packet::Subscribe(subscribe) => encode_subscribe(subscribe, version, out),
            Packet::SubAck(suback) => encode_suback(suback, version, out),
            Packet::Unsubscribe(unsubscribe) => encode_unsubscribe(unsubscribe, version, out),
            Packet::UnsubAck(unsuback) => encode_unsuback(unsuback, version, out),
            Packet::PingReq => put_header(PacketType::PingReq, 0, out),
            Packet::PingResp => put_header(PacketType::PingResp, 0, out),
            Packet::Disconnect(disconnect) => encode_disconnect(disconnect, version, out),
            Packet::Auth(auth) => encode_auth(auth, version, out),
        }
    }
}

/// Appends a PUBACK, PUBREC, PUBREL or PUBCOMP with Success: four bytes, identical in every version.
#[inline]
pub fn encode_bare_ack(kind: PacketType, packet_id: PacketId, out: &mut Vec<u8>) {
    // [MQTT-3.6.1-1]
    let flags = if kind == PacketType::PubRel { 0b0010 } else { 0 };
    let [high, low] = packet_id.get().to_be_bytes();
    out.extend_from_slice(&[(kind as u8) << 4 | flags, 2, high, low]);
}

/// Appends a PUBLISH and returns the offset of the packet identifier from the start of the packet (meaningless at QoS
/// 0), so that one encoding can serve many subscribers. At QoS > 0 without a packet identifier, two zero bytes are
/// written for the caller to fill in.
///
/// Panics if the packet exceeds the maximum length of MQTT (256 MiB); see [`publish_size`].
#[inline]
pub fn encode_publish(
    publish: &Publish<'_>,
    extras: PublishExtras<'_>,
    version: ProtocolVersion,
    out: &mut Vec<u8>,
) -> usize {
    let topic = fitting(publish.topic);
    let properties_length = extras.size(version) + publish.properties.as_bytes().len();
    let remaining = publish_remaining_length(publish, topic, properties_length, version);
    let start = out.len();
    out.reserve(1 + 4 + remaining);
    out.push(publish_first_byte(publish));
    put_variable_byte_integer(remaining, out);
    put_string(topic, out);
    let packet_id_at = out.len() - start;
    if publish.qos != QoS::AtMostOnce {
        out.extend_from_slice(&publish.packet_id.map_or(0, PacketId::get).to_be_bytes());
    }
    if version.has_properties() {
        put_variable_byte_integer(properties_length, out);
        extras.put(out);
        out.extend_from_slice(publish.properties.as_bytes());
    }
    out.extend_from_slice(publish.payload);
    packet_id_at
}

/// Returns the number of bytes that `encode_publish` appends, for the receiver's Maximum Packet Size [MQTT-3.1.2-24].
/// The result may exceed the maximum length of MQTT.
pub fn publish_size(publish: &Publish<'_>, extras: PublishExtras<'_>, version: ProtocolVersion) -> usize {
    let properties_length = extras.size(version) + publish.properties.as_bytes().len();
    let remaining = publish_remaining_length(publish, fitting(publish.topic), properties_length, version);
    1 + variable_byte_integer_size(remaining) + remaining
}

#[inline]
fn publish_remaining_length(
    publish: &Publish<'_>,
    topic: &str,
    properties_length: usize,
    version: ProtocolVersion,
) -> usize {
    let packet_id = if publish.qos == QoS::AtMostOnce { 0 } else { 2 };
    let properties = match version.has_properties() {
        true => variable_byte_integer_size(properties_length) + properties_length,
        false => 0,
    };
    2 + topic.len() + packet_id + properties + publish.payload.len()
}

#[inline]
fn publish_first_byte(publish: &Publish<'_>) -> u8 {
    // [MQTT-3.3.1-2]
    let dup = publish.dup && publish.qos != QoS::AtMostOnce;
    PacketType::Publish.first_byte() | u8::from(dup) << 3 | (publish.qos as u8) << 1 | u8::from(publish.retain)
}

impl PublishExtras<'_> {
    /// Returns the number of bytes that `put` appends: 0 before 5.0.
    #[inline]
    fn size(&self, version: ProtocolVersion) -> usize {
        if !version.has_properties() {
            return 0;
        }
        let expiry = if self.message_expiry_interval.is_some() { 5 } else { 0 };
        let alias = if self.topic_alias.is_some() { 3 } else { 0 };
        let identifier_size = |&identifier: &u32| 1 + variable_byte_integer_size(identifier as usize);
        expiry + alias + self.subscription_identifiers.iter().map(identifier_size).sum::<usize>()
    }

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        use crate::{Property, PropertyWriter};
        let mut writer = PropertyWriter::new(out);
        if let Some(seconds) = self.message_expiry_interval {
            writer.put(Property::MessageExpiryInterval(seconds));
        }
        if let Some(alias) = self.topic_alias {
            writer.put(Property::TopicAlias(alias));
        }
        for &identifier in self.subscription_identifiers {
            writer.put(Property::SubscriptionIdentifier(identifier));
        }
    }
}

/// Appends the fixed header of a packet other than PUBLISH.
#[inline]
fn put_header(packet: PacketType, remaining: usize, out: &mut Vec<u8>) {
    debug_assert!(remaining <= MAXIMUM_REMAINING_LENGTH);
    out.reserve(1 + 4 + remaining);
    out.push(packet.first_byte());
    put_variable_byte_integer(remaining, out);
}

fn put_packet_id(packet_id: PacketId, out: &mut Vec<u8>) {
    out.extend_from_slice(&packet_id.get().to_be_bytes());
}

/// Appends a packet whose size is not known in advance: writes the body, then inserts the header before it.
fn put_packet(packet: PacketType, out: &mut Vec<u8>, put_body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put_body(out);
    let mut header = Vec::with_capacity(5);
    put_header(packet, out.len() - start, &mut header);
    out.splice(start..start, header);
}

fn encode_connect(connect: &Connect<'_>, out: &mut Vec<u8>) {
    let version = connect.version;
    // 3.1.1 forbids a password without a user name [MQTT-3.1.2-22].
    let password = connect
        .password
        .filter(|_| version.has_properties() || connect.user_name.is_some());
    put_packet(PacketType::Connect, out, |out| {
        put_string(version.protocol_name(), out);
        let bridge_bit = if connect.is_bridge && !version.has_properties() {
            0x80
        } else {
            0
        };
        out.push(version as u8 | bridge_bit);
        out.push(connect_flags(connect, password.is_some()));
        out.extend_from_slice(&connect.keep_alive.to_be_bytes());
        put_properties(connect.properties.as_bytes(), version, out);
        put_string(connect.client_id, out);
        if let Some(will) = &connect.will {
            put_properties(will.properties.as_bytes(), version, out);
            put_string(will.topic, out);
            put_binary(will.payload, out);
        }
        if let Some(user_name) = connect.user_name {
            put_string(user_name, out);
        }
        if let Some(password) = password {
            put_binary(password, out);
        }
    });
}

fn connect_flags(connect: &Connect<'_>, has_password: bool) -> u8 {
    let will_flags = |will: &Will<'_>| 0x04 | (will.qos as u8) << 3 | u8::from(will.retain) << 5;
    u8::from(connect.clean_start) << 1
        | connect.will.as_ref().map_or(0, will_flags)
        | u8::from(has_password) << 6
        | u8::from(connect.user_name.is_some()) << 7
}

fn encode_connack(connack: &ConnAck<'_>, version: ProtocolVersion, out: &mut Vec<u8>) {
    let properties = connack.properties.as_bytes();
    put_header(PacketType::ConnAck, 2 + properties_size(properties, version), out);
    // [MQTT-3.2.2-6]; 3.1 reserves the bit.
    let session_present =
        connack.session_present && connack.reason == ReasonCode::Success && version != ProtocolVersion::V3_1;
    out.push(u8::from(session_present));
    out.push(match version.has_properties() {
        true => connack.reason as u8,
        false => connack.reason.to_connect_return_code() as u8,
    });
    put_properties(properties, version, out);
}

#[inline]
fn encode_ack(packet: PacketType, ack: &Ack<'_>, version: ProtocolVersion, out: &mut Vec<u8>) {
    let [high, low] = ack.packet_id.get().to_be_bytes();
    let is_short = ack.reason == ReasonCode::Success && ack.properties.is_empty();
    if is_short || !version.has_properties() {
        out.extend_from_slice(&[packet.first_byte(), 2, high, low]);
        return;
    }
    let tail = PacketTail::of(ack.reason, ack.properties);
    put_header(packet, 2 + tail.size(), out);
    out.extend_from_slice(&[high, low]);
    tail.put(out);
}

/// Reason code and properties at the end of a 5.0 packet, in the shortest form.
struct PacketTail<'a> {
    reason: ReasonCode,
    properties: Option<&'a [u8]>,
}

impl<'a> PacketTail<'a> {
    /// Omits empty properties together with their length.
    fn of(reason: ReasonCode, properties: Properties<'a>) -> PacketTail<'a> {
        PacketTail {
            reason,
            properties: Some(properties.as_bytes()).filter(|bytes| !bytes.is_empty()),
        }
    }

    fn size(&self) -> usize {
        1 + self
            .properties
            .map_or(0, |bytes| properties_size(bytes, ProtocolVersion::V5))
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.reason as u8);
        if let Some(bytes) = self.properties {
            put_properties(bytes, ProtocolVersion::V5, out);
        }
    }
}

fn encode_subscribe(subscribe: &Subscribe<'_>, version: ProtocolVersion, out: &mut Vec<u8>) {
    let properties = subscribe.properties.as_bytes();
    let filters = subscribe.filters.as_bytes();
    put_header(
        PacketType::Subscribe,
        2 + properties_size(properties, version) + filters.len(),
        out,
    );
    put_packet_id(subscribe.packet_id, out);
    put_properties(properties, version, out);
    if version.has_properties() {
        out.extend_from_slice(filters);
    } else {
        // The options of 5.0 are omitted; the length is the same.
        for filter in subscribe.filters.iter() {
            put_string(filter.filter, out);
            out.push(filter.options.to_byte(version));
        }
    }
}

fn encode_suback(suback: &SubAck<'_>, version: ProtocolVersion, out: &mut Vec<u8>) {
    let properties = suback.properties.as_bytes();
    put_header(
        PacketType::SubAck,
        2 + properties_size(properties, version) + suback.reasons.len(),
        out,
    );
    put_packet_id(suback.packet_id, out);
    put_properties(properties, version, out);
    if version.has_properties() {
        out.extend_from_slice(suback.reasons);
    } else {
        // 3.1.1 has a single failure code [MQTT-3.9.3-2].
        out.extend(suback.reasons.iter().map(|&reason| reason.min(0x80)));
    }
}

fn encode_unsubscribe(unsubscribe: &Unsubscribe<'_>, version: ProtocolVersion, out: &mut Vec<u8>) {
    let properties = unsubscribe.properties.as_bytes();
    let filters = unsubscribe.filters.as_bytes();
    put_header(
        PacketType::Unsubscribe,
        2 + properties_size(properties, version) + filters.len(),
        out,
    );
    put_packet_id(unsubscribe.packet_id, out);
    put_properties(properties, version, out);
    out.extend_from_slice(filters);
}

fn encode_unsuback(unsuback: &UnsubAck<'_>, version: ProtocolVersion, out: &mut Vec<u8>) {
    let properties = unsuback.properties.as_bytes();
    let reasons = if version.has_properties() {
        unsuback.reasons
    } else {
        &[]
    };
    put_header(
        PacketType::UnsubAck,
        2 + properties_size(properties, version) + reasons.len(),
        out,
    );
    put_packet_id(unsuback.packet_id, out);
    put_properties(properties, version, out);
    out.extend_from_slice(reasons);
}

fn encode_disconnect(disconnect: &Disconnect<'_>, version: ProtocolVersion, out: &mut Vec<u8>) {
    let is_short = disconnect.reason == ReasonCode::Success && disconnect.properties.is_empty();
    if is_short || !version.has_properties() {
        return put_header(PacketType::Disconnect, 0, out);
    }
    let tail = PacketTail::of(disconnect.reason, disconnect.properties);
    put_header(PacketType::Disconnect, tail.size(), out);
    tail.put(out);
}

fn encode_auth(auth: &Auth<'_>, version: ProtocolVersion, out: &mut Vec<u8>) {
    if !version.has_properties() {
        return;
    }
    if auth.reason == ReasonCode::Success && auth.properties.is_empty() {
        return put_header(PacketType::Auth, 0, out);
    }
    // Unlike in DISCONNECT, the property length must not be omitted alone (section 3.15.2.1).
    let tail = PacketTail {
        reason: auth.reason,
        properties: Some(auth.properties.as_bytes()),
    };
    put_header(PacketType::Auth, tail.size(), out);
    tail.put(out);
}
