//! CONNECT, the only packet that contains its own version.

use crate::error::{DecodeErrorKind, PacketField};
use crate::wire::{PacketReader, VariableByteInteger};
use crate::{Connect, PacketType, Properties, PropertyContext, ProtocolVersion, QoS, Will};

use super::decode_properties;

type Result<T> = std::result::Result<T, DecodeErrorKind>;

/// Bit in the protocol level that bridges set in 3.1 and 3.1.1.
const BRIDGE_BIT: u8 = 0x80;

/// `header_flags` are the lower four bits of the first byte.
pub(super) fn decode(body: &[u8], header_flags: u8, has_minimal_length: bool) -> Result<Connect<'_>> {
    let mut reader = PacketReader::new(body);
    let (version, is_bridge) = decode_version(&mut reader)?;
    if header_flags != 0 && version != ProtocolVersion::V3_1 {
        return Err(DecodeErrorKind::FixedHeaderFlags {
            packet: PacketType::Connect,
            found: header_flags,
        }); // [MQTT-2.1.3-1]
    }
    if version.has_properties() && !has_minimal_length {
        return Err(DecodeErrorKind::RemainingLengthNotMinimal); // [MQTT-1.5.5-1]
    }
    let flags = ConnectFlags::decode(reader.byte(PacketField::ConnectFlags)?, version)?;
    let keep_alive = reader.two_byte_integer(PacketField::KeepAlive)?;
    let properties = decode_properties(&mut reader, PropertyContext::Connect, version)?;
    let client_id = reader.string(PacketField::ClientId)?;
    let will = decode_will(&mut reader, flags, version)?;
    // In 3.1 the remaining length takes precedence over the flags, so both strings may be missing.
    let may_be_missing = version == ProtocolVersion::V3_1;
    let is_missing = |reader: &PacketReader<'_>| may_be_missing && reader.is_empty();
    let user_name = match flags.has_user_name && !is_missing(&reader) {
        true => Some(reader.string(PacketField::UserName)?),
        false => None,
    };
    let password = match flags.has_password && !is_missing(&reader) {
        true => Some(reader.binary(PacketField::Password)?),
        false => None,
    };
    reader.finish()?;
    let clean_start = flags.clean_start;
    Ok(Connect {
        version,
        clean_start,
        is_bridge,
        keep_alive,
        properties,
        client_id,
        will,
        user_name,
        password,
    })
}

/// Reads the version, and whether the bridge bit is set.
fn decode_version(reader: &mut PacketReader<'_>) -> Result<(ProtocolVersion, bool)> {
    let name = reader.binary(PacketField::ProtocolName)?;
    if !matches!(name, b"MQTT" | b"MQIsdp") {
        return Err(DecodeErrorKind::ProtocolName); // [MQTT-3.1.2-1]
    }
    let level = reader.byte(PacketField::ProtocolLevel)?;
    let is_bridge = matches!(level & !BRIDGE_BIT, 3 | 4) && level & BRIDGE_BIT != 0;
    let bare = if is_bridge { level & !BRIDGE_BIT } else { level };
    ProtocolVersion::from_level(bare)
        .filter(|version| version.protocol_name().as_bytes() == name)
        .map(|version| (version, is_bridge))
        .ok_or(DecodeErrorKind::UnsupportedProtocolVersion(level)) // [MQTT-3.1.2-2]
}

#[derive(Clone, Copy)]
struct ConnectFlags {
    clean_start: bool,
    will: Option<(QoS, bool)>,
    has_user_name: bool,
    has_password: bool,
}

impl ConnectFlags {
    fn decode(flags: u8, version: ProtocolVersion) -> Result<ConnectFlags> {
        let has = |bit: u8| flags & bit != 0;
        // [MQTT-3.1.2-3]; 3.1 does not define the bit.
        if has(0x01) && version != ProtocolVersion::V3_1 {
            return Err(DecodeErrorKind::ConnectFlagsReserved(flags));
        }
        let will_qos = QoS::from_bits(flags >> 3 & 0b11).ok_or(DecodeErrorKind::WillQoS)?; // [MQTT-3.1.2-12]
        let (has_will, will_retain) = (has(0x04), has(0x20));
        if !has_will && will_qos != QoS::AtMostOnce {
            return Err(DecodeErrorKind::WillQoSWithoutWill); // [MQTT-3.1.2-11]
        }
        if !has_will && will_retain {
            return Err(DecodeErrorKind::WillRetainWithoutWill); // [MQTT-3.1.2-13]
        }
        let (has_user_name, has_password) = (has(0x80), has(0x40));
        if has_password && !has_user_name && !version.has_properties() {
            return Err(DecodeErrorKind::PasswordWithoutUserName); // [MQTT-3.1.2-22] of 3.1.1
        }
        let will = has_will.then_some((will_qos, will_retain));
        Ok(ConnectFlags {
            clean_start: has(0x02),
            will,
            has_user_name,
            has_password,
        })
    }
}

fn decode_will<'a>(
    reader: &mut PacketReader<'a>,
    flags: ConnectFlags,
    version: ProtocolVersion,
) -> Result<Option<Will<'a>>> {
    let Some((qos, retain)) = flags.will else {
        return Ok(None);
    };
    let properties: Properties<'a> = decode_properties(reader, PropertyContext::Will, version)?;
    let topic = reader.topic_name(PacketField::WillTopic)?;
    if topic.is_empty() {
        return Err(DecodeErrorKind::TopicEmpty(PacketField::WillTopic)); // [MQTT-4.7.3-1]
    }
    let payload = reader.binary(PacketField::WillPayload)?;
    Ok(Some(Will {
        qos,
        retain,
        properties,
        topic,
        payload,
    }))
}

/// Returns the version in which to encode a negative CONNACK, even if `decode_connect` failed. This is the version of
/// the protocol level, and 3.1.1 for an unknown level: all versions know its answer `20 02 00 01`. `None` if the bytes
/// end before the level or are not an MQTT CONNECT: then the server sends no answer.
pub fn connect_answer_version(bytes: &[u8]) -> Option<ProtocolVersion> {
    let (&first, rest) = bytes.split_first()?;
    if first != 0x10 {
        return None;
    }
    let VariableByteInteger::Complete { size, .. } = VariableByteInteger::read(rest) else {
        return None;
    };
    let mut reader = PacketReader::new(&rest[size..]);
    let name = reader.binary(PacketField::ProtocolName).ok()?;
    if !matches!(name, b"MQTT" | b"MQIsdp") {
        return None;
    }
    let level = reader.byte(PacketField::ProtocolLevel).ok()?;
    Some(match level {
        3 | 0x83 => ProtocolVersion::V3_1,
        5 => ProtocolVersion::V5,
        _ => ProtocolVersion::V3_1_1,
    })
}
