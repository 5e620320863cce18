//! Decodes a packet with our decoder and converts the result for the comparison.

use tidewire_mqtt::{Ack, ConnAck, Connect, Packet, PacketId, Properties, ProtocolVersion, Publish, SubscribeFilter};

use super::{Fields, hex, text};

pub fn fields(packet: &Packet<'_>, version: ProtocolVersion) -> Fields {
    match packet {
        Packet::Connect(p) => connect(p),
        Packet::ConnAck(p) => connack(p, version),
        Packet::Publish(p) => publish(p),
        Packet::PubAck(p) | Packet::PubRec(p) | Packet::PubRel(p) | Packet::PubComp(p) => ack(p, version),
        Packet::Subscribe(p) => {
            let filters = p.filters.iter().map(entry).collect::<Vec<_>>().join(", ");
            with_id(p.packet_id, p.properties, ("filters", filters))
        }
        Packet::SubAck(p) => with_id(p.packet_id, p.properties, ("reasons", hex(p.reasons))),
        Packet::Unsubscribe(p) => {
            let filters = p.filters.iter().collect::<Vec<_>>();
            with_id(p.packet_id, p.properties, ("filters", format!("{filters:?}")))
        }
        Packet::UnsubAck(p) => with_id(p.packet_id, p.properties, ("reasons", hex(p.reasons))),
        Packet::Disconnect(p) => vec![("reason", text(p.reason as u8)), properties(p.properties)],
        Packet::Auth(p) => vec![("reason", text(p.reason as u8)), properties(p.properties)],
        Packet::PingReq | Packet::PingResp => vec![],
    }
}

fn properties(properties: Properties<'_>) -> (&'static str, String) {
    ("properties", hex(properties.as_bytes()))
}

fn with_id(packet_id: PacketId, list: Properties<'_>, rest: (&'static str, String)) -> Fields {
    vec![("packet id", text(packet_id)), properties(list), rest]
}

fn connect(p: &Connect<'_>) -> Fields {
    let will = p.will.as_ref().map(|will| {
        (
            will.topic,
            Some(will.payload),
            will.qos as u8,
            will.retain,
            hex(will.properties.as_bytes()),
        )
    });
    vec![
        ("version", text(p.version as u8)),
        ("clean", text(p.clean_start)),
        ("keep alive", text(p.keep_alive)),
        properties(p.properties),
        ("client id", text(p.client_id)),
        ("will", format!("{will:?}")),
        ("user name", format!("{:?}", p.user_name)),
        ("password", format!("{:?}", p.password)),
    ]
}

fn connack(p: &ConnAck<'_>, version: ProtocolVersion) -> Fields {
    let session_present = ("session present", text(p.session_present));
    match version {
        ProtocolVersion::V5 => vec![
            session_present,
            ("reason", text(p.reason as u8)),
            properties(p.properties),
        ],
        _ => vec![session_present, ("code", text(p.reason.to_connect_return_code() as u8))],
    }
}

fn publish(p: &Publish<'_>) -> Fields {
    vec![
        ("dup", text(p.dup)),
        ("qos", text(p.qos as u8)),
        ("retain", text(p.retain)),
        ("topic", text(p.topic)),
        ("packet id", format!("{:?}", p.packet_id.map(|id| id.get()))),
        properties(p.properties),
        ("payload", hex(p.payload)),
    ]
}

fn ack(p: &Ack<'_>, version: ProtocolVersion) -> Fields {
    let packet_id = ("packet id", text(p.packet_id));
    match version {
        ProtocolVersion::V5 => vec![packet_id, ("reason", text(p.reason as u8)), properties(p.properties)],
        _ => vec![packet_id],
    }
}

fn entry(entry: SubscribeFilter<'_>) -> String {
    let options = entry.options;
    let (qos, retain_handling) = (options.maximum_qos as u8, options.retain_handling as u8);
    format!(
        "{:?} {qos} {} {} {retain_handling}",
        entry.filter, options.no_local, options.retain_as_published
    )
}
