//! Decodes a packet with `mqtt-protocol-core` and converts the result for the comparison.

use std::sync::Arc;

use mqtt_protocol_core::mqtt::packet::{Properties as TheirProperties, SubEntry, v3_1_1, v5_0};
use mqtt_protocol_core::mqtt::result_code::MqttError;
use tidewire_mqtt::{PacketType, ProtocolVersion};

use super::{Fields, hex, text};

/// The fields of an accepted packet.
pub type Answer = Result<Box<dyn FnOnce() -> Fields>, MqttError>;

/// Returns `None` for packets that are not compared. Getters run only if both decoders accept the packet, because
/// those of `mqtt-protocol-core` may panic on values that our decoder rejects.
pub fn fields(first: u8, body: &[u8], version: ProtocolVersion) -> Option<Answer> {
    let packet_type = PacketType::from_bits(first >> 4)?;
    match version {
        ProtocolVersion::V3_1 => None,
        ProtocolVersion::V3_1_1 => fields_3(packet_type, first & 0x0F, body),
        ProtocolVersion::V5 => fields_5(packet_type, first & 0x0F, body),
    }
}

/// A result with unread bytes counts as rejection.
fn whole<T: 'static>(
    parsed: Result<(T, usize), MqttError>,
    body: &[u8],
    fields: impl FnOnce(T) -> Fields + 'static,
) -> Option<Answer> {
    Some(match parsed {
        Ok((packet, consumed)) if consumed == body.len() => Ok(Box::new(move || fields(packet))),
        Ok(_) => Err(MqttError::MalformedPacket),
        Err(error) => Err(error),
    })
}

fn properties(properties: &TheirProperties) -> String {
    hex(&properties
        .iter()
        .flat_map(|property| property.to_continuous_buffer())
        .collect::<Vec<_>>())
}

fn entries(entries: &[SubEntry]) -> String {
    let entry = |entry: &SubEntry| {
        let options = entry.sub_opts();
        let (qos, retain_handling) = (options.qos() as u8, options.rh() as u8);
        format!(
            "{:?} {qos} {} {} {retain_handling}",
            entry.topic_filter(),
            options.nl(),
            options.rap()
        )
    };
    entries.iter().map(entry).collect::<Vec<_>>().join(", ")
}

fn codes(codes: impl Iterator<Item = u8>) -> String {
    hex(&codes.collect::<Vec<_>>())
}

fn fields_3(packet_type: PacketType, flags: u8, body: &[u8]) -> Option<Answer> {
    let arc: Arc<[u8]> = body.into();
    let ack = |packet_id: u16| vec![("packet id", text(packet_id))];
    match packet_type {
        PacketType::Connect => whole(v3_1_1::Connect::parse(body), body, |p| {
            vec![
                ("version", text(p.protocol_version())),
                ("clean", text(p.clean_session())),
                ("keep alive", text(p.keep_alive())),
                ("properties", hex(&[])),
                ("client id", text(p.client_id())),
                (
                    "will",
                    format!(
                        "{:?}",
                        p.will_topic().map(|topic| (
                            topic,
                            p.will_payload(),
                            p.will_qos() as u8,
                            p.will_retain(),
                            hex(&[])
                        ))
                    ),
                ),
                ("user name", format!("{:?}", p.user_name())),
                ("password", format!("{:?}", p.password())),
            ]
        }),
        PacketType::ConnAck => whole(v3_1_1::Connack::parse(body), body, |p| {
            vec![
                ("session present", text(p.session_present())),
                ("code", text(p.return_code() as u8)),
            ]
        }),
        PacketType::Publish => whole(v3_1_1::Publish::parse(flags, arc), body, move |p| {
            vec![
                ("dup", text(p.dup())),
                ("qos", text(p.qos() as u8)),
                ("retain", text(p.retain())),
                ("topic", text(p.topic_name())),
                ("packet id", format!("{:?}", p.packet_id())),
                ("properties", hex(&[])),
                ("payload", hex(p.payload().as_slice())),
            ]
        }),
        PacketType::PubAck => whole(v3_1_1::Puback::parse(body), body, move |p| ack(p.packet_id())),
        PacketType::PubRec => whole(v3_1_1::Pubrec::parse(body), body, move |p| ack(p.packet_id())),
        PacketType::PubRel => whole(v3_1_1::Pubrel::parse(body), body, move |p| ack(p.packet_id())),
        PacketType::PubComp => whole(v3_1_1::Pubcomp::parse(body), body, move |p| ack(p.packet_id())),
        PacketType::Subscribe => whole(v3_1_1::Subscribe::parse(body), body, |p| {
            vec![
                ("packet id", text(p.packet_id())),
                ("properties", hex(&[])),
                ("filters", entries(p.entries())),
            ]
        }),
        PacketType::SubAck => whole(v3_1_1::Suback::parse(body), body, |p| {
            let reasons = codes(p.return_codes().into_iter().map(|code| code as u8));
            vec![
                ("packet id", text(p.packet_id())),
                ("properties", hex(&[])),
                ("reasons", reasons),
            ]
        }),
        PacketType::Unsubscribe => whole(v3_1_1::Unsubscribe::parse(body), body, |p| {
            let filters: Vec<&str> = p.entries().iter().map(|filter| filter.as_str()).collect();
            vec![
                ("packet id", text(p.packet_id())),
                ("properties", hex(&[])),
                ("filters", format!("{filters:?}")),
            ]
        }),
        PacketType::UnsubAck => whole(v3_1_1::Unsuback::parse(body), body, |p| {
            vec![
                ("packet id", text(p.packet_id())),
                ("properties", hex(&[])),
                ("reasons", hex(&[])),
            ]
        }),
        _ => None,
    }
}

/// Converts acknowledgements such as PUBACK, and DISCONNECT and AUTH without the optional packet id.
macro_rules! tail_5 {
    ($packet:expr, $fields:expr) => {{
        let mut fields: Fields = vec![("reason", text($packet.reason_code().map_or(0, |code| code as u8)))];
        fields.splice(0..0, $fields);
        fields.push((
            "properties",
            $packet.props().as_ref().map_or(hex(&[]), |props| properties(props)),
        ));
        fields
    }};
}

fn fields_5(packet_type: PacketType, flags: u8, body: &[u8]) -> Option<Answer> {
    let arc: Arc<[u8]> = body.into();
    match packet_type {
        PacketType::Connect => whole(v5_0::Connect::parse(body), body, |p| {
            vec![
                ("version", text(p.protocol_version())),
                ("clean", text(p.clean_start())),
                ("keep alive", text(p.keep_alive())),
                ("properties", properties(&p.props)),
                ("client id", text(p.client_id())),
                (
                    "will",
                    format!(
                        "{:?}",
                        p.will_topic().map(|topic| (
                            topic,
                            p.will_payload(),
                            p.will_qos() as u8,
                            p.will_retain(),
                            properties(&p.will_props)
                        ))
                    ),
                ),
                ("user name", format!("{:?}", p.user_name())),
                ("password", format!("{:?}", p.password())),
            ]
        }),
        PacketType::ConnAck => whole(v5_0::Connack::parse(body), body, |p| {
            let properties = properties(p.props());
            let reason = text(p.reason_code() as u8);
            vec![
                ("session present", text(p.session_present())),
                ("reason", reason),
                ("properties", properties),
            ]
        }),
        PacketType::Publish => whole(v5_0::Publish::parse(flags, arc), body, |p| {
            vec![
                ("dup", text(p.dup())),
                ("qos", text(p.qos() as u8)),
                ("retain", text(p.retain())),
                ("topic", text(p.topic_name())),
                ("packet id", format!("{:?}", p.packet_id())),
                ("properties", properties(p.props())),
                ("payload", hex(p.payload().as_slice())),
            ]
        }),
        PacketType::PubAck => whole(v5_0::Puback::parse(body), body, |p| {
            tail_5!(p, [("packet id", text(p.packet_id()))])
        }),
        PacketType::PubRec => whole(v5_0::Pubrec::parse(body), body, |p| {
            tail_5!(p, [("packet id", text(p.packet_id()))])
        }),
        PacketType::PubRel => whole(v5_0::Pubrel::parse(body), body, |p| {
            tail_5!(p, [("packet id", text(p.packet_id()))])
        }),
        PacketType::PubComp => whole(v5_0::Pubcomp::parse(body), body, |p| {
            tail_5!(p, [("packet id", text(p.packet_id()))])
        }),
        PacketType::Subscribe => whole(v5_0::Subscribe::parse(body), body, |p| {
            let properties = properties(p.props());
            vec![
                ("packet id", text(p.packet_id())),
                ("properties", properties),
                ("filters", entries(p.entries())),
            ]
        }),
        PacketType::SubAck => whole(v5_0::Suback::parse(body), body, |p| {
            let reasons = codes(p.reason_codes().into_iter().map(|code| code as u8));
            vec![
                ("packet id", text(p.packet_id())),
                ("properties", properties(p.props())),
                ("reasons", reasons),
            ]
        }),
        PacketType::Unsubscribe => whole(v5_0::Unsubscribe::parse(body), body, |p| {
            let filters: Vec<&str> = p.entries().iter().map(|filter| filter.as_str()).collect();
            let properties = properties(p.props());
            vec![
                ("packet id", text(p.packet_id())),
                ("properties", properties),
                ("filters", format!("{filters:?}")),
            ]
        }),
        PacketType::UnsubAck => whole(v5_0::Unsuback::parse(body), body, |p| {
            let reasons = codes(p.reason_codes().into_iter().map(|code| code as u8));
            vec![
                ("packet id", text(p.packet_id())),
                ("properties", properties(p.props())),
                ("reasons", reasons),
            ]
        }),
        PacketType::Disconnect => whole(v5_0::Disconnect::parse(body), body, |p| tail_5!(p, [])),
        PacketType::Auth => whole(v5_0::Auth::parse(body), body, |p| tail_5!(p, [])),
        PacketType::PingReq | PacketType::PingResp => None,
    }
}
