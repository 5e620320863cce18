//! Compares the decoder with copies of the tables of the standard: the properties allowed in each packet (MQTT 5, table
//! 2-4), the reason codes of each packet (MQTT 5, table 2-6), and the Connect Return codes of MQTT 3.1.1.

use tidewire_mqtt::{
    ConnectReturnCode, Decoded, Packet, PacketType, Properties, PropertiesError, Property, PropertyContext,
    PropertyWriter, ProtocolVersion, ReasonCode, decode,
};

use PropertyContext::{Ack, Auth, ConnAck, Connect, Disconnect, Publish, Subscribe, Unsubscribe, Will};

const CONTEXTS: [PropertyContext; 9] = [
    Connect,
    Will,
    ConnAck,
    Publish,
    Ack,
    Subscribe,
    Unsubscribe,
    Disconnect,
    Auth,
];

type PropertyRow = (
    u8,
    &'static str,
    Property<'static>,
    &'static [u8],
    &'static [PropertyContext],
);

/// Identifier, name, an example, the bytes of its value, and the packets that allow it.
#[rustfmt::skip] // one property, one line
const PROPERTIES: &[PropertyRow] = &[
    (1, "Payload Format Indicator", Property::PayloadFormatIndicator(1), b"\x01", &[Publish, Will]),
    (2, "Message Expiry Interval", Property::MessageExpiryInterval(0x01020304), b"\x01\x02\x03\x04", &[Publish, Will]),
    (3, "Content Type", Property::ContentType("ab"), b"\0\x02ab", &[Publish, Will]),
    (8, "Response Topic", Property::ResponseTopic("a/b"), b"\0\x03a/b", &[Publish, Will]),
    (9, "Correlation Data", Property::CorrelationData(b"\0\xff"), b"\0\x02\0\xff", &[Publish, Will]),
    (11, "Subscription Identifier", Property::SubscriptionIdentifier(300), b"\xac\x02", &[Publish, Subscribe]),
    (17, "Session Expiry Interval", Property::SessionExpiryInterval(u32::MAX), b"\xff\xff\xff\xff", &[Connect, ConnAck, Disconnect]),
    (18, "Assigned Client Identifier", Property::AssignedClientIdentifier("c"), b"\0\x01c", &[ConnAck]),
    (19, "Server Keep Alive", Property::ServerKeepAlive(258), b"\x01\x02", &[ConnAck]),
    (21, "Authentication Method", Property::AuthenticationMethod("m"), b"\0\x01m", &[Connect, ConnAck, Auth]),
    (22, "Authentication Data", Property::AuthenticationData(b"d"), b"\0\x01d", &[Connect, ConnAck, Auth]),
    (23, "Request Problem Information", Property::RequestProblemInformation(false), b"\0", &[Connect]),
    (24, "Will Delay Interval", Property::WillDelayInterval(1), b"\0\0\0\x01", &[Will]),
    (25, "Request Response Information", Property::RequestResponseInformation(true), b"\x01", &[Connect]),
    (26, "Response Information", Property::ResponseInformation("i"), b"\0\x01i", &[ConnAck]),
    (28, "Server Reference", Property::ServerReference("s"), b"\0\x01s", &[ConnAck, Disconnect]),
    (31, "Reason String", Property::ReasonString("r"), b"\0\x01r", &[ConnAck, Ack, Disconnect, Auth]),
    (33, "Receive Maximum", Property::ReceiveMaximum(1), b"\0\x01", &[Connect, ConnAck]),
    (34, "Topic Alias Maximum", Property::TopicAliasMaximum(0), b"\0\0", &[Connect, ConnAck]),
    (35, "Topic Alias", Property::TopicAlias(u16::MAX), b"\xff\xff", &[Publish]),
    (36, "Maximum QoS", Property::MaximumQoS(0), b"\0", &[ConnAck]),
    (37, "Retain Available", Property::RetainAvailable(false), b"\0", &[ConnAck]),
    (38, "User Property", Property::UserProperty("k", "v"), b"\0\x01k\0\x01v", &CONTEXTS),
    (39, "Maximum Packet Size", Property::MaximumPacketSize(1), b"\0\0\0\x01", &[Connect, ConnAck]),
    (40, "Wildcard Subscription Available", Property::WildcardSubscriptionAvailable(true), b"\x01", &[ConnAck]),
    (41, "Subscription Identifier Available", Property::SubscriptionIdentifierAvailable(false), b"\0", &[ConnAck]),
    (42, "Shared Subscription Available", Property::SharedSubscriptionAvailable(true), b"\x01", &[ConnAck]),
];

/// Returns the properties that the context requires in addition to the property under test.
fn companion(context: PropertyContext, id: u8) -> &'static [u8] {
    match (context, id) {
        (Auth, 21) => b"",
        (Auth, _) | (Connect, 22) => b"\x15\0\x01m",
        _ => b"",
    }
}

#[test]
fn every_property_stands_where_it_may_and_nowhere_else() {
    for &(id, name, property, value, allowed) in PROPERTIES {
        assert_eq!((property.id(), property.name()), (id, name));
        let mut written = Vec::new();
        PropertyWriter::new(&mut written).put(property);
        assert_eq!(written, [&[id], value].concat(), "{name}");
        for context in CONTEXTS {
            let bytes = [companion(context, id), &written].concat();
            let parsed = Properties::parse(&bytes, context);
            if allowed.contains(&context) {
                assert_eq!(parsed.unwrap().iter().last(), Some(property), "{name} in {context}");
            } else {
                assert_eq!(parsed, Err(PropertiesError::Protocol), "{name} in {context}");
            }
        }
    }
}

#[test]
fn unknown_identifiers_are_refused_everywhere() {
    for id in (0..=255u8).filter(|id| PROPERTIES.iter().all(|property| property.0 != *id)) {
        for context in CONTEXTS {
            assert!(
                Properties::parse(&[id, 1, 0, 0, 0, 0], context).is_err(),
                "{id} in {context}"
            );
        }
    }
}

#[test]
fn truncated_property_is_malformed() {
    for &(id, name, _, value, allowed) in PROPERTIES {
        for end in 0..value.len() {
            let bytes = [companion(allowed[0], id), &[id], &value[..end]].concat();
            assert_eq!(
                Properties::parse(&bytes, allowed[0]),
                Err(PropertiesError::Malformed),
                "{name} cut to {end}"
            );
        }
    }
}

#[test]
fn only_user_properties_and_forwarded_subscription_identifiers_repeat() {
    for &(id, name, property, _, allowed) in PROPERTIES {
        for &context in allowed {
            let mut bytes = companion(context, id).to_vec();
            PropertyWriter::new(&mut bytes).put(property).put(property);
            let may_repeat = id == 38 || (id == 11 && context == Publish);
            assert_eq!(
                Properties::parse(&bytes, context).is_ok(),
                may_repeat,
                "{name} twice in {context}"
            );
        }
    }
}

#[test]
fn every_getter_finds_its_property_behind_others() {
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    for (.., property, _, _) in PROPERTIES {
        writer.put(*property);
    }
    let p = writer.finish();
    assert_eq!(p.payload_format_indicator(), Some(1));
    assert_eq!(p.message_expiry_interval(), Some(0x01020304));
    assert_eq!(p.content_type(), Some("ab"));
    assert_eq!(p.response_topic(), Some("a/b"));
    assert_eq!(p.correlation_data(), Some(&b"\0\xff"[..]));
    assert_eq!(p.subscription_identifier(), Some(300));
    assert_eq!(p.session_expiry_interval(), Some(u32::MAX));
    assert_eq!(p.assigned_client_identifier(), Some("c"));
    assert_eq!(p.server_keep_alive(), Some(258));
    assert_eq!(p.authentication_method(), Some("m"));
    assert_eq!(p.authentication_data(), Some(&b"d"[..]));
    assert_eq!(p.request_problem_information(), Some(false));
    assert_eq!(p.will_delay_interval(), Some(1));
    assert_eq!(p.request_response_information(), Some(true));
    assert_eq!(p.response_information(), Some("i"));
    assert_eq!(p.server_reference(), Some("s"));
    assert_eq!(p.reason_string(), Some("r"));
    assert_eq!(p.receive_maximum(), Some(1));
    assert_eq!(p.topic_alias_maximum(), Some(0));
    assert_eq!(p.topic_alias(), Some(u16::MAX));
    assert_eq!(p.maximum_qos(), Some(0));
    assert_eq!(p.retain_available(), Some(false));
    assert_eq!(p.maximum_packet_size(), Some(1));
    assert_eq!(p.wildcard_subscription_available(), Some(true));
    assert_eq!(p.subscription_identifier_available(), Some(false));
    assert_eq!(p.shared_subscription_available(), Some(true));
    assert_eq!(p.user_properties().collect::<Vec<_>>(), [("k", "v")]);
    assert_eq!(Properties::EMPTY.topic_alias(), None);
    assert_eq!(Properties::EMPTY.user_properties().next(), None);
}

#[test]
fn server_forwards_standard_properties_in_order() {
    let forwarded = |list: &[Property<'_>]| {
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        let mut writer = PropertyWriter::new(&mut bytes);
        for property in list {
            writer.put(*property);
        }
        let properties = writer.finish();
        properties.append_forwarded(&mut out);
        assert_eq!(properties.is_forwarded_whole(), out == properties.as_bytes());
        Properties::parse(&out, Publish)
            .unwrap()
            .iter()
            .map(|property| format!("{property:?}"))
            .collect::<Vec<_>>()
    };
    let kept = [
        Property::UserProperty("b", "1"),
        Property::PayloadFormatIndicator(1),
        Property::UserProperty("a", "2"),
        Property::ContentType("t"),
        Property::CorrelationData(b"c"),
        Property::ResponseTopic("r"),
        Property::UserProperty("b", "1"),
    ];
    let expected: Vec<String> = kept.iter().map(|property| format!("{property:?}")).collect();
    assert_eq!(forwarded(&kept), expected);
    let mut mixed = kept.to_vec();
    mixed.insert(0, Property::TopicAlias(1));
    mixed.insert(3, Property::MessageExpiryInterval(9));
    mixed.insert(5, Property::SubscriptionIdentifier(200));
    mixed.push(Property::WillDelayInterval(1));
    assert_eq!(forwarded(&mixed), expected);
    assert!(forwarded(&[]).is_empty());
}

#[test]
fn three_thousand_user_properties_stay_in_order() {
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    let texts: Vec<String> = (0..3000).map(|number| number.to_string()).collect();
    for text in &texts {
        writer.put(Property::UserProperty("n", text));
    }
    let properties = Properties::parse(&bytes, Connect).unwrap();
    assert!(
        properties
            .user_properties()
            .map(|(_, value)| value)
            .eq(texts.iter().map(String::as_str))
    );
}

#[test]
fn long_strings_are_truncated_between_characters() {
    let mut bytes = Vec::new();
    let long = "€".repeat(30_000);
    PropertyWriter::new(&mut bytes)
        .put(Property::ReasonString(&long))
        .put(Property::UserProperty("k", &long));
    let properties = Properties::parse(&bytes, Ack).unwrap();
    assert_eq!(properties.reason_string().map(str::len), Some(65535));
    assert_eq!(
        properties.user_properties().next().map(|(_, value)| value.len()),
        Some(65535)
    );
}

use PacketType as P;

const ACKS: [PacketType; 2] = [P::PubAck, P::PubRec];

/// Code, name and packets of table 2-6, including those of the sections per packet.
#[rustfmt::skip] // one code, one line
fn reason_codes() -> Vec<(u8, &'static str, Vec<PacketType>)> {
    let acks = |others: &[PacketType]| [&ACKS, others].concat();
    vec![
        (0x00, "Success", acks(&[P::ConnAck, P::PubRel, P::PubComp, P::UnsubAck, P::Auth, P::Disconnect, P::SubAck])),
        (0x01, "Granted QoS 1", vec![P::SubAck]),
        (0x02, "Granted QoS 2", vec![P::SubAck]),
        (0x04, "Disconnect with Will Message", vec![P::Disconnect]),
        (0x10, "No matching subscribers", acks(&[])),
        (0x11, "No subscription existed", vec![P::UnsubAck]),
        (0x18, "Continue authentication", vec![P::Auth]),
        (0x19, "Re-authenticate", vec![P::Auth]),
        (0x80, "Unspecified error", acks(&[P::ConnAck, P::SubAck, P::UnsubAck, P::Disconnect])),
        (0x81, "Malformed Packet", vec![P::ConnAck, P::Disconnect]),
        (0x82, "Protocol Error", vec![P::ConnAck, P::Disconnect]),
        (0x83, "Implementation specific error", acks(&[P::ConnAck, P::SubAck, P::UnsubAck, P::Disconnect])),
        (0x84, "Unsupported Protocol Version", vec![P::ConnAck]),
        (0x85, "Client Identifier not valid", vec![P::ConnAck]),
        (0x86, "Bad User Name or Password", vec![P::ConnAck]),
        (0x87, "Not authorized", acks(&[P::ConnAck, P::SubAck, P::UnsubAck, P::Disconnect])),
        (0x88, "Server unavailable", vec![P::ConnAck]),
        (0x89, "Server busy", vec![P::ConnAck, P::Disconnect]),
        (0x8A, "Banned", vec![P::ConnAck]),
        (0x8B, "Server shutting down", vec![P::Disconnect]),
        (0x8C, "Bad authentication method", vec![P::ConnAck, P::Disconnect]),
        (0x8D, "Keep Alive timeout", vec![P::Disconnect]),
        (0x8E, "Session taken over", vec![P::Disconnect]),
        (0x8F, "Topic Filter invalid", vec![P::SubAck, P::UnsubAck, P::Disconnect]),
        (0x90, "Topic Name invalid", acks(&[P::ConnAck, P::Disconnect])),
        (0x91, "Packet Identifier in use", acks(&[P::SubAck, P::UnsubAck])),
        (0x92, "Packet Identifier not found", vec![P::PubRel, P::PubComp]),
        (0x93, "Receive Maximum exceeded", vec![P::Disconnect]),
        (0x94, "Topic Alias invalid", vec![P::Disconnect]),
        (0x95, "Packet too large", vec![P::ConnAck, P::Disconnect]),
        (0x96, "Message rate too high", vec![P::Disconnect]),
        (0x97, "Quota exceeded", acks(&[P::ConnAck, P::SubAck, P::Disconnect])),
        (0x98, "Administrative action", vec![P::Disconnect]),
        (0x99, "Payload format invalid", acks(&[P::ConnAck, P::Disconnect])),
        (0x9A, "Retain not supported", vec![P::ConnAck, P::Disconnect]),
        (0x9B, "QoS not supported", vec![P::ConnAck, P::Disconnect]),
        (0x9C, "Use another server", vec![P::ConnAck, P::Disconnect]),
        (0x9D, "Server moved", vec![P::ConnAck, P::Disconnect]),
        (0x9E, "Shared Subscriptions not supported", vec![P::SubAck, P::Disconnect]),
        (0x9F, "Connection rate exceeded", vec![P::ConnAck, P::Disconnect]),
        (0xA0, "Maximum connect time", vec![P::Disconnect]),
        (0xA1, "Subscription Identifiers not supported", vec![P::SubAck, P::Disconnect]),
        (0xA2, "Wildcard Subscriptions not supported", vec![P::SubAck, P::Disconnect]),
    ]
}

/// Returns a packet of this type with the code.
fn packet_with(packet: PacketType, code: u8) -> Option<Vec<u8>> {
    Some(match packet {
        P::ConnAck => vec![0x20, 3, 0, code, 0],
        P::PubAck => vec![0x40, 3, 0, 1, code],
        P::PubRec => vec![0x50, 3, 0, 1, code],
        P::PubRel => vec![0x62, 3, 0, 1, code],
        P::PubComp => vec![0x70, 3, 0, 1, code],
        P::SubAck => vec![0x90, 4, 0, 1, 0, code],
        P::UnsubAck => vec![0xB0, 4, 0, 1, 0, code],
        P::Disconnect => vec![0xE0, 1, code],
        P::Auth => vec![0xF0, 6, code, 4, 0x15, 0, 1, b'm'],
        _ => return None,
    })
}

fn reason_of(packet: &Packet<'_>) -> u8 {
    match packet {
        Packet::ConnAck(packet) => packet.reason.to_u8(),
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => ack.reason.to_u8(),
        Packet::SubAck(packet) => packet.reasons[0],
        Packet::UnsubAck(packet) => packet.reasons[0],
        Packet::Disconnect(packet) => packet.reason.to_u8(),
        Packet::Auth(packet) => packet.reason.to_u8(),
        other => panic!("{other:?} has no reason code"),
    }
}

#[test]
fn every_reason_code_in_every_packet() {
    let table = reason_codes();
    assert_eq!(table.len(), ReasonCode::ALL.len());
    for code in 0..=255u8 {
        let row = table.iter().find(|row| row.0 == code);
        assert_eq!(
            ReasonCode::from_u8(code).map(|code| code.to_string()),
            row.map(|row| row.1.to_owned())
        );
        for packet in (1..=15).filter_map(PacketType::from_bits) {
            let Some(bytes) = packet_with(packet, code) else {
                continue;
            };
            let is_allowed = row.is_some_and(|row| row.2.contains(&packet));
            match decode(&bytes, ProtocolVersion::V5, 100) {
                Ok(Decoded::Complete { packet: decoded, .. }) if is_allowed => assert_eq!(reason_of(&decoded), code),
                Err(_) if !is_allowed => {}
                other => panic!("{code:#x} in {packet}: {other:?}"),
            }
        }
    }
}

#[test]
fn reason_codes_from_0x80_are_errors() {
    for code in ReasonCode::ALL {
        assert_eq!(code.is_error(), code.to_u8() >= 0x80);
        assert_eq!(ReasonCode::from_u8(code.to_u8()), Some(*code));
        assert_eq!(
            code.to_connect_return_code() == ConnectReturnCode::Accepted,
            !code.is_error(),
            "{code}"
        );
    }
}

#[test]
fn connect_return_codes_and_back() {
    for code in 0..=5 {
        let code = ConnectReturnCode::from_u8(code).unwrap();
        assert_eq!(ConnectReturnCode::from(ReasonCode::from(code)), code);
        assert_eq!(code.to_reason_code().is_error(), code != ConnectReturnCode::Accepted);
    }
    assert_eq!(ConnectReturnCode::from_u8(6), None);
    let refused = |reason: ReasonCode| reason.to_connect_return_code() as u8;
    assert_eq!(refused(ReasonCode::UnsupportedProtocolVersion), 1);
    assert_eq!(refused(ReasonCode::ClientIdentifierNotValid), 2);
    assert_eq!(refused(ReasonCode::ServerBusy), 3);
    assert_eq!(refused(ReasonCode::QuotaExceeded), 3);
    assert_eq!(refused(ReasonCode::BadUserNameOrPassword), 4);
    assert_eq!(refused(ReasonCode::NotAuthorized), 5);
    assert_eq!(refused(ReasonCode::Banned), 5);
}
