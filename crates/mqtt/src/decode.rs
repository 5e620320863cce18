//! Decoding of packets.
//!
//! The fixed header is checked as soon as it is complete, the rest when the packet is complete. Decoding allocates
//! nothing and never trusts a declared length before the bytes have arrived.

mod connect;

use crate::error::{DecodeError, DecodeErrorKind, PacketField};
use crate::filters::{SubscribeFilters, UnsubscribeFilters};
use crate::wire::{PacketReader, VariableByteInteger, variable_byte_integer_size};
use crate::{
    Ack, Auth, ConnAck, Connect, ConnectReturnCode, Disconnect, Packet, PacketType, Properties, PropertyContext,
    ProtocolVersion, Publish, QoS, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe,
};

pub use connect::connect_answer_version;

#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<T> {
    /// The packet is not complete. `needed` is the total number of bytes, from its start, that the next attempt needs
    /// at least.
    Incomplete { needed: usize },
    /// A packet of `size` bytes.
    Complete { packet: T, size: usize },
}

type Result<T> = std::result::Result<T, DecodeErrorKind>;

/// Decodes the first packet of a connection, before the version is known. Any packet other than CONNECT is an error
/// [MQTT-3.1.0-1], as soon as its first byte has arrived.
pub fn decode_connect(
    bytes: &[u8],
    maximum_packet_size: usize,
) -> std::result::Result<Decoded<Connect<'_>>, DecodeError> {
    if bytes
        .first()
        .is_some_and(|first| first >> 4 != PacketType::Connect as u8)
    {
        return Err(DecodeErrorKind::NotConnect.into());
    }
    // The version affects only the checks of other packets.
    match RawPacket::split(bytes, ProtocolVersion::V5, maximum_packet_size)? {
        Decoded::Incomplete { needed } => Ok(Decoded::Incomplete { needed }),
        Decoded::Complete { packet: frame, size } => {
            let packet = connect::decode(frame.body, frame.flags, frame.is_minimal)?;
            Ok(Decoded::Complete { packet, size })
        }
    }
}

/// Decodes one packet. Checks the size against `maximum_packet_size` as soon as the fixed header has arrived.
pub fn decode(
    bytes: &[u8],
    version: ProtocolVersion,
    maximum_packet_size: usize,
) -> std::result::Result<Decoded<Packet<'_>>, DecodeError> {
    match RawPacket::split(bytes, version, maximum_packet_size)? {
        Decoded::Incomplete { needed } => Ok(Decoded::Incomplete { needed }),
        Decoded::Complete { packet: frame, size } => match frame.packet_type {
            // Frequent packets are constructed directly in the caller's result. If they shared a function with the
            // other packets, the compiler would construct them elsewhere and copy them, which takes as long as decoding
            // an acknowledgement.
            PacketType::Publish => {
                let packet = Packet::Publish(decode_publish(frame.flags, frame.body, version)?);
                Ok(Decoded::Complete { packet, size })
            }
            PacketType::PubAck | PacketType::PubRec | PacketType::PubRel | PacketType::PubComp => {
                let ack = decode_ack(frame.packet_type, frame.body, version)?;
                let packet = match frame.packet_type {
                    PacketType::PubAck => Packet::PubAck(ack),
                    PacketType::PubRec => Packet::PubRec(ack),
                    PacketType::PubRel => Packet::PubRel(ack),
                    _ => Packet::PubComp(ack),
                };
                Ok(Decoded::Complete { packet, size })
            }
            _ => decode_other(frame, size, version),
        },
    }
}

/// A complete packet with a decoded fixed header.
#[derive(Clone, Copy)]
struct RawPacket<'a> {
    packet_type: PacketType,
    flags: u8,
    /// Whether the remaining length is encoded with the minimum number of bytes.
    is_minimal: bool,
    body: &'a [u8],
}

impl<'a> RawPacket<'a> {
    #[inline(always)]
    fn split(bytes: &'a [u8], version: ProtocolVersion, maximum_packet_size: usize) -> Result<Decoded<RawPacket<'a>>> {
        let Some((&first, rest)) = bytes.split_first() else {
            return Ok(Decoded::Incomplete { needed: 2 });
        };
        let packet_type = PacketType::from_bits(first >> 4).ok_or(DecodeErrorKind::ReservedPacketType)?;
        let flags = first & 0x0F;
        check_flags(packet_type, flags, version)?;
        let (remaining, length_size) = match VariableByteInteger::read(rest) {
            VariableByteInteger::Complete { value, size } => (value as usize, size),
            VariableByteInteger::Incomplete => {
                return Ok(Decoded::Incomplete {
                    needed: bytes.len() + 1,
                });
            }
            VariableByteInteger::TooLong => return Err(DecodeErrorKind::RemainingLengthTooLong),
        };
        let size = 1 + length_size + remaining;
        if size > maximum_packet_size {
            return Err(DecodeErrorKind::PacketTooLarge {
                size,
                limit: maximum_packet_size,
            });
        }
        let is_minimal = length_size == variable_byte_integer_size(remaining);
        // [MQTT-1.5.5-1] applies only to 5.0. CONNECT is checked later, when its version is known.
        if !is_minimal && version.has_properties() && packet_type != PacketType::Connect {
            return Err(DecodeErrorKind::RemainingLengthNotMinimal);
        }
        check_fixed_length(packet_type, remaining, version)?;
        match rest.get(length_size..length_size + remaining) {
            Some(body) => Ok(Decoded::Complete {
                packet: RawPacket {
                    packet_type,
                    flags,
                    is_minimal,
                    body,
                },
                size,
            }),
            None => Ok(Decoded::Incomplete { needed: size }),
        }
    }
}

/// [MQTT-2.1.3-1]
#[inline]
fn check_flags(packet: PacketType, flags: u8, version: ProtocolVersion) -> Result<()> {
    const DUP: u8 = 0b1000;
    if packet == PacketType::Publish {
        return match flags & 0b0110 {
            0b0110 => Err(DecodeErrorKind::PublishQoS),               // [MQTT-3.3.1-4]
            0 if flags & DUP != 0 => Err(DecodeErrorKind::DupAtQoS0), // [MQTT-3.3.1-2]
            _ => Ok(()),
        };
    }
    // 3.1 ignores the flags of CONNECT. For the other versions they are checked later, when the version is known. QoS 3
    // is not valid in any version, and a TLS handshake begins with these bits.
    if packet == PacketType::Connect && flags & 0b0110 != 0b0110 {
        return Ok(());
    }
    let expected = packet.fixed_flags();
    // 3.1 allows DUP on PUBREL, SUBSCRIBE and UNSUBSCRIBE.
    let may_be_dup = version == ProtocolVersion::V3_1 && expected != 0;
    if flags == expected || may_be_dup && flags == expected | DUP {
        Ok(())
    } else {
        Err(DecodeErrorKind::FixedHeaderFlags { packet, found: flags })
    }
}

/// Rejects a packet with an impossible length, or of a type that the version lacks, before its body has arrived.
#[inline]
fn check_fixed_length(packet: PacketType, found: usize, version: ProtocolVersion) -> Result<()> {
    let expected = match packet {
        PacketType::PingReq | PacketType::PingResp => 0,
        PacketType::Connect | PacketType::Publish | PacketType::Subscribe => return Ok(()),
        PacketType::SubAck | PacketType::Unsubscribe => return Ok(()),
        _ if version.has_properties() => return Ok(()),
        PacketType::Disconnect => 0,
        PacketType::Auth => return Err(DecodeErrorKind::PacketTypeNotInVersion { packet, version }),
        _ => 2,
    };
    if found == expected {
        Ok(())
    } else {
        Err(DecodeErrorKind::PacketLength {
            packet,
            found,
            expected,
        })
    }
}

/// Decodes any packet. The caller handles frequent packet types itself.
#[inline(never)]
fn decode_other(
    frame: RawPacket<'_>,
    size: usize,
    version: ProtocolVersion,
) -> std::result::Result<Decoded<Packet<'_>>, DecodeError> {
    let body = frame.body;
    let packet = match frame.packet_type {
        PacketType::PubAck => Packet::PubAck(decode_ack(PacketType::PubAck, body, version)?),
        PacketType::PubRec => Packet::PubRec(decode_ack(PacketType::PubRec, body, version)?),
        PacketType::PubRel => Packet::PubRel(decode_ack(PacketType::PubRel, body, version)?),
        PacketType::PubComp => Packet::PubComp(decode_ack(PacketType::PubComp, body, version)?),
        PacketType::Publish => Packet::Publish(decode_publish(frame.flags, body, version)?),
        PacketType::PingReq => Packet::PingReq,
        PacketType::PingResp => Packet::PingResp,
        PacketType::Subscribe => Packet::Subscribe(decode_subscribe(body, version)?),
        PacketType::SubAck => Packet::SubAck(decode_suback(body, version)?),
        PacketType::Unsubscribe => Packet::Unsubscribe(decode_unsubscribe(body, version)?),
        PacketType::UnsubAck => Packet::UnsubAck(decode_unsuback(body, version)?),
        PacketType::Connect => Packet::Connect(connect::decode(body, frame.flags, frame.is_minimal)?),
        PacketType::ConnAck => Packet::ConnAck(decode_connack(body, version)?),
        PacketType::Disconnect => Packet::Disconnect(decode_disconnect(body)?),
        PacketType::Auth => Packet::Auth(decode_auth(body)?),
    };
    Ok(Decoded::Complete { packet, size })
}

#[inline(always)]
fn decode_publish<'a>(flags: u8, body: &'a [u8], version: ProtocolVersion) -> Result<Publish<'a>> {
    let qos = QoS::from_bits(flags >> 1 & 0b11).ok_or(DecodeErrorKind::PublishQoS)?;
    let mut reader = PacketReader::new(body);
    let topic = reader.topic_name(PacketField::TopicName)?;
    let packet_id = if qos == QoS::AtMostOnce {
        None
    } else {
        Some(reader.packet_id()?)
    };
    let properties = decode_properties(&mut reader, PropertyContext::Publish, version)?;
    // [MQTT-4.7.3-1]; section 3.3.2.1 allows an empty topic with an alias.
    if topic.is_empty() && properties.topic_alias().is_none() {
        return Err(DecodeErrorKind::TopicEmpty(PacketField::TopicName));
    }
    Ok(Publish {
        dup: flags & 0b1000 != 0,
        qos,
        retain: flags & 0b0001 != 0,
        topic,
        packet_id,
        properties,
        payload: reader.rest(),
    })
}

/// Reads the property list of a 5.0 packet. Empty before 5.0.
#[inline(always)]
fn decode_properties<'a>(
    reader: &mut PacketReader<'a>,
    context: PropertyContext,
    version: ProtocolVersion,
) -> Result<Properties<'a>> {
    if !version.has_properties() {
        return Ok(Properties::EMPTY);
    }
    Properties::parse_in(reader.property_bytes()?, context)
}

#[inline]
fn decode_ack<'a>(packet: PacketType, body: &'a [u8], version: ProtocolVersion) -> Result<Ack<'a>> {
    let mut reader = PacketReader::new(body);
    let packet_id = reader.packet_id()?;
    // Section 3.4.2.1: a missing reason code means Success, a missing property length means no properties. Before 5.0
    // the body has two bytes.
    if reader.is_empty() {
        return Ok(Ack {
            packet_id,
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        });
    }
    let reason = decode_reason(&mut reader, packet)?;
    let properties = decode_trailing_properties(reader, PropertyContext::Ack, version)?;
    Ok(Ack {
        packet_id,
        reason,
        properties,
    })
}

/// Reads a property list at the end of a packet. It may be missing together with its length.
fn decode_trailing_properties<'a>(
    mut reader: PacketReader<'a>,
    context: PropertyContext,
    version: ProtocolVersion,
) -> Result<Properties<'a>> {
    if reader.is_empty() {
        return Ok(Properties::EMPTY);
    }
    let properties = decode_properties(&mut reader, context, version)?;
    reader.finish()?;
    Ok(properties)
}

fn decode_reason(reader: &mut PacketReader<'_>, packet: PacketType) -> Result<ReasonCode> {
    check_reason(reader.byte(PacketField::ReasonCode)?, packet)
}

fn check_reason(found: u8, packet: PacketType) -> Result<ReasonCode> {
    ReasonCode::from_u8(found)
        .filter(|reason| reason.is_allowed_in(packet))
        .ok_or(DecodeErrorKind::ReasonCode { packet, found })
}

fn decode_subscribe<'a>(body: &'a [u8], version: ProtocolVersion) -> Result<Subscribe<'a>> {
    let mut reader = PacketReader::new(body);
    let packet_id = reader.packet_id()?;
    let properties = decode_properties(&mut reader, PropertyContext::Subscribe, version)?;
    let filters = SubscribeFilters::parse(reader.rest(), version)?;
    Ok(Subscribe {
        packet_id,
        properties,
        filters,
    })
}

fn decode_unsubscribe<'a>(body: &'a [u8], version: ProtocolVersion) -> Result<Unsubscribe<'a>> {
    let mut reader = PacketReader::new(body);
    let packet_id = reader.packet_id()?;
    let properties = decode_properties(&mut reader, PropertyContext::Unsubscribe, version)?;
    let filters = UnsubscribeFilters::parse(reader.rest())?;
    Ok(Unsubscribe {
        packet_id,
        properties,
        filters,
    })
}

fn decode_suback<'a>(body: &'a [u8], version: ProtocolVersion) -> Result<SubAck<'a>> {
    let mut reader = PacketReader::new(body);
    let packet_id = reader.packet_id()?;
    let properties = decode_properties(&mut reader, PropertyContext::Ack, version)?;
    let reasons = decode_reasons(reader.rest(), PacketType::SubAck)?;
    let is_known = |&reason: &u8| version.has_properties() || matches!(reason, 0..=2 | 0x80); // [MQTT-3.9.3-2] of 3.1.1
    match reasons.iter().find(|reason| !is_known(reason)) {
        Some(&found) => Err(DecodeErrorKind::ReasonCode {
            packet: PacketType::SubAck,
            found,
        }),
        None => Ok(SubAck {
            packet_id,
            properties,
            reasons,
        }),
    }
}

fn decode_unsuback<'a>(body: &'a [u8], version: ProtocolVersion) -> Result<UnsubAck<'a>> {
    let mut reader = PacketReader::new(body);
    let packet_id = reader.packet_id()?;
    if !version.has_properties() {
        reader.finish()?;
        return Ok(UnsubAck {
            packet_id,
            properties: Properties::EMPTY,
            reasons: &[],
        });
    }
    let properties = decode_properties(&mut reader, PropertyContext::Ack, version)?;
    let reasons = decode_reasons(reader.rest(), PacketType::UnsubAck)?;
    Ok(UnsubAck {
        packet_id,
        properties,
        reasons,
    })
}

/// Checks the reason codes of a SUBACK or UNSUBACK: one per filter, at least one.
fn decode_reasons(bytes: &[u8], packet: PacketType) -> Result<&[u8]> {
    if bytes.is_empty() {
        return Err(DecodeErrorKind::NoReasonCode(packet));
    }
    for &found in bytes {
        check_reason(found, packet)?;
    }
    Ok(bytes)
}

fn decode_connack<'a>(body: &'a [u8], version: ProtocolVersion) -> Result<ConnAck<'a>> {
    let mut reader = PacketReader::new(body);
    let flags = reader.byte(PacketField::ConnAckFlags)?;
    if flags & !1 != 0 {
        return Err(DecodeErrorKind::ConnAckFlags(flags)); // [MQTT-3.2.2-1]
    }
    let reason = if version.has_properties() {
        decode_reason(&mut reader, PacketType::ConnAck)?
    } else {
        decode_return_code(&mut reader)?
    };
    let properties = decode_properties(&mut reader, PropertyContext::ConnAck, version)?;
    reader.finish()?;
    // 3.1 reserves the bit.
    let session_present = flags == 1 && version != ProtocolVersion::V3_1;
    if session_present && reason != ReasonCode::Success {
        return Err(DecodeErrorKind::SessionPresentWithError(reason)); // [MQTT-3.2.2-6]
    }
    Ok(ConnAck {
        session_present,
        reason,
        properties,
    })
}

fn decode_return_code(reader: &mut PacketReader<'_>) -> Result<ReasonCode> {
    let code = reader.byte(PacketField::ReasonCode)?;
    match ConnectReturnCode::from_u8(code) {
        Some(code) => Ok(code.to_reason_code()),
        None => Err(DecodeErrorKind::ConnectReturnCode(code)),
    }
}

/// Decodes DISCONNECT. Before 5.0 the body is empty. Section 3.14.2: an empty body means Normal disconnection, one byte
/// is a reason code without properties.
fn decode_disconnect(body: &[u8]) -> Result<Disconnect<'_>> {
    let mut reader = PacketReader::new(body);
    if reader.is_empty() {
        return Ok(Disconnect {
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        });
    }
    let reason = decode_reason(&mut reader, PacketType::Disconnect)?;
    let properties = decode_trailing_properties(reader, PropertyContext::Disconnect, ProtocolVersion::V5)?;
    Ok(Disconnect { reason, properties })
}

/// Decodes AUTH. Section 3.15.2.1: reason code and property length may be omitted together, but not the length alone.
/// Success without properties needs no authentication method, whether it is omitted or written explicitly.
fn decode_auth(body: &[u8]) -> Result<Auth<'_>> {
    const SUCCESS: &[u8] = &[ReasonCode::Success as u8, 0];
    if body.is_empty() || body == SUCCESS {
        return Ok(Auth {
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        });
    }
    let mut reader = PacketReader::new(body);
    let reason = decode_reason(&mut reader, PacketType::Auth)?;
    let properties = decode_properties(&mut reader, PropertyContext::Auth, ProtocolVersion::V5)?;
    reader.finish()?;
    Ok(Auth { reason, properties })
}
