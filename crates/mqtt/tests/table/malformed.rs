//! Malformed packets, each with the reason.

use tidewire_mqtt::DecodeErrorKind as Kind;
use tidewire_mqtt::{PacketField, PacketType, PropertyContext, ProtocolVersion, ReasonCode};

use super::*;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(fixed_header());
    cases.extend(connect());
    cases.extend(connect_3());
    cases.extend(connect_5());
    cases.extend(strings());
    cases.extend(publish());
    cases.extend(subscribe());
    cases.extend(acknowledgements());
    cases.extend(properties_5());
    cases
}

fn err(name: &'static str, versions: &'static [ProtocolVersion], bytes: &[u8], kind: Kind) -> Case {
    case(name, versions, bytes.to_vec(), Expected::Error(kind))
}

fn err_in(name: &'static str, versions: &'static [ProtocolVersion], first: u8, body: &[u8], kind: Kind) -> Case {
    case(name, versions, framed(first, body), Expected::Error(kind))
}

fn fixed_header() -> Vec<Case> {
    let flags = |packet, found| Kind::FixedHeaderFlags { packet, found };
    let length = |packet, found, expected| Kind::PacketLength { packet, found, expected };
    let no_auth = |version| Kind::PacketTypeNotInVersion { packet: PacketType::Auth, version };
    vec![
        err("packet type 0", ALL, b"\0\0", Kind::ReservedPacketType),
        err("auth in 3.1", &[V3_1], b"\xf0\0", no_auth(V3_1)),
        err("auth in 3.1.1", &[V3_1_1], b"\xf0\0", no_auth(V3_1_1)),
        err("remaining length of five bytes", ALL, b"\x30\xff\xff\xff\xff\x01", Kind::RemainingLengthTooLong),
        err("remaining length not minimal", &[V5], b"\x30\x86\0\0\x03a/b\0", Kind::RemainingLengthNotMinimal),
        err("connect 5 remaining length not minimal", &[V5], b"\x10\x8f\0\0\x04MQTT\x05\x02\0\x3c\0\0\x02id", Kind::RemainingLengthNotMinimal),
        err("pingreq with a remaining length of two zero bytes", &[V5], b"\xc0\x80\0", Kind::RemainingLengthNotMinimal),
        err("connect flags", ALL, b"\x16\0", flags(PacketType::Connect, 6)),
        err("connack flags", ALL, b"\x21\x02\0\0", flags(PacketType::ConnAck, 1)),
        err("puback flags", ALL, b"\x42\x02\0\x01", flags(PacketType::PubAck, 2)),
        err("pubrec flags", ALL, b"\x58\x02\0\x01", flags(PacketType::PubRec, 8)),
        err("pubrel without its flag", ALL, b"\x60\x02\0\x01", flags(PacketType::PubRel, 0)),
        err("pubrel dup after 3.1", SINCE_3_1_1, b"\x6a\x02\0\x01", flags(PacketType::PubRel, 0b1010)),
        err("pubrel with one flag too many", ALL, b"\x63\x02\0\x01", flags(PacketType::PubRel, 3)),
        err("pubcomp flags", ALL, b"\x72\x02\0\x01", flags(PacketType::PubComp, 2)),
        err("subscribe without its flag", ALL, b"\x80\x06\0\x01\0\x01a\0", flags(PacketType::Subscribe, 0)),
        err("subscribe dup after 3.1", SINCE_3_1_1, b"\x8a\x06\0\x01\0\x01a\0", flags(PacketType::Subscribe, 0b1010)),
        err("suback flags", ALL, b"\x92\x03\0\x01\0", flags(PacketType::SubAck, 2)),
        err("unsubscribe without its flag", ALL, b"\xa0\x05\0\x01\0\x01a", flags(PacketType::Unsubscribe, 0)),
        err("unsubscribe dup after 3.1", SINCE_3_1_1, b"\xaa\x05\0\x01\0\x01a", flags(PacketType::Unsubscribe, 0b1010)),
        err("unsuback flags", ALL, b"\xb1\x02\0\x01", flags(PacketType::UnsubAck, 1)),
        err("pingreq flags", ALL, b"\xc1\0", flags(PacketType::PingReq, 1)),
        err("pingresp flags", ALL, b"\xd2\0", flags(PacketType::PingResp, 2)),
        err("disconnect flags", ALL, b"\xe2\0", flags(PacketType::Disconnect, 2)),
        err("auth flags", ALL, b"\xf1\0", flags(PacketType::Auth, 1)),
        err("pingreq with a body", ALL, b"\xc0\x01\0", length(PacketType::PingReq, 1, 0)),
        err("pingresp with a body", ALL, b"\xd0\x02\0\0", length(PacketType::PingResp, 2, 0)),
        err("disconnect 3 with a body", V3, b"\xe0\x01\0", length(PacketType::Disconnect, 1, 0)),
        err("connack 3 too long", V3, b"\x20\x03\0\0\0", length(PacketType::ConnAck, 3, 2)),
        err("connack 3 too short", V3, b"\x20\x01\0", length(PacketType::ConnAck, 1, 2)),
        err("puback 3 too long", V3, b"\x40\x03\0\x01\0", length(PacketType::PubAck, 3, 2)),
        err("puback 3 too short", V3, b"\x40\x01\0", length(PacketType::PubAck, 1, 2)),
        err("pubrec 3 too long", V3, b"\x50\x04\0\x01\0\0", length(PacketType::PubRec, 4, 2)),
        err("pubrel 3 too long", V3, b"\x62\x03\0\x01\0", length(PacketType::PubRel, 3, 2)),
        err("pubcomp 3 too long", V3, b"\x70\x03\0\x01\0", length(PacketType::PubComp, 3, 2)),
        err("unsuback 3 too long", V3, b"\xb0\x03\0\x01\0", length(PacketType::UnsubAck, 3, 2)),
        err("puback 5 too short", &[V5], b"\x40\x01\0", Kind::Truncated(PacketField::PacketId)),
        err("publish without a body", ALL, b"\x30\0", Kind::Truncated(PacketField::TopicName)),
        err("connect without a body", ALL, b"\x10\0", Kind::Truncated(PacketField::ProtocolName)),
    ]
}

fn connect() -> Vec<Case> {
    let level = Kind::UnsupportedProtocolVersion;
    vec![
        err_in("connect protocol name MQTTX", ALL, 0x10, b"\0\x05MQTTX\x04\x02\0\0\0\0", Kind::ProtocolName),
        err_in("connect protocol name mqtt", ALL, 0x10, b"\0\x04mqtt\x04\x02\0\0\0\0", Kind::ProtocolName),
        err_in("connect protocol name empty", ALL, 0x10, b"\0\0\x04\x02\0\0\0\0", Kind::ProtocolName),
        err_in("connect MQIsdp at level 4", ALL, 0x10, b"\0\x06MQIsdp\x04\x02\0\0\0\0", level(4)),
        err_in("connect MQIsdp at level 5", ALL, 0x10, b"\0\x06MQIsdp\x05\x02\0\0\0\0\0", level(5)),
        err_in("connect MQTT at level 3", ALL, 0x10, b"\0\x04MQTT\x03\x02\0\0\0\0", level(3)),
        err_in("connect level 0", ALL, 0x10, b"\0\x04MQTT\0\x02\0\0\0\0", level(0)),
        err_in("connect level 2", ALL, 0x10, b"\0\x04MQTT\x02\x02\0\0\0\0", level(2)),
        err_in("connect level 6", ALL, 0x10, b"\0\x04MQTT\x06\x02\0\0\0\0\0", level(6)),
        err_in("connect level 99", ALL, 0x10, b"\0\x04MQTT\x63", level(99)),
        err_in("connect level 255", ALL, 0x10, b"\0\x04MQTT\xff\x02\0\0\0\0", level(255)),
        err_in("connect 5 with the bridge bit", ALL, 0x10, b"\0\x04MQTT\x85\x02\0\0\0\0\0", level(0x85)),
        err_in("connect 3.1.1 reserved flag", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x03\0\0\0\0", Kind::ConnectFlagsReserved(3)),
        err_in("connect 5 reserved flag", &[V5], 0x10, b"\0\x04MQTT\x05\x01\0\0\0\0\0", Kind::ConnectFlagsReserved(1)),
        err_in("connect 3.1 will QoS 3", &[V3_1], 0x10, b"\0\x06MQIsdp\x03\x1e\0\0\0\0\0\x01w\0\0", Kind::WillQoS),
        err_in("connect 3.1.1 will QoS 3", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x1e\0\0\0\0\0\x01w\0\0", Kind::WillQoS),
        err_in("connect 5 will QoS 3", &[V5], 0x10, b"\0\x04MQTT\x05\x1e\0\0\0\0\0\0\0\x01w\0\0", Kind::WillQoS),
        err_in("connect 3.1.1 will QoS without will", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x0a\0\0\0\0", Kind::WillQoSWithoutWill),
        err_in("connect 5 will QoS without will", &[V5], 0x10, b"\0\x04MQTT\x05\x12\0\0\0\0\0", Kind::WillQoSWithoutWill),
        err_in("connect 3.1.1 will retain without will", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x22\0\0\0\0", Kind::WillRetainWithoutWill),
        err_in("connect 5 will retain without will", &[V5], 0x10, b"\0\x04MQTT\x05\x22\0\0\0\0\0", Kind::WillRetainWithoutWill),
    ]
}

fn connect_3() -> Vec<Case> {
    vec![
        err_in("connect 3.1 password without user name", &[V3_1], 0x10, b"\0\x06MQIsdp\x03\x42\0\0\0\0\0\x01p", Kind::PasswordWithoutUserName),
        err_in("connect 3.1.1 password without user name", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x42\0\0\0\0\0\x01p", Kind::PasswordWithoutUserName),
        err_in("connect 3.1.1 trailing byte", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x01c!", Kind::TrailingBytes(1)),
        err_in("connect 3.1 trailing byte", &[V3_1], 0x10, b"\0\x06MQIsdp\x03\x02\0\0\0\x01c!", Kind::TrailingBytes(1)),
        err_in("connect 3.1 cut within the user name", &[V3_1], 0x10, b"\0\x06MQIsdp\x03\x82\0\0\0\x01c\0\x02u", Kind::Truncated(PacketField::UserName)),
        err_in("connect 3.1.1 without the user name it announces", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x82\0\0\0\x01c", Kind::Truncated(PacketField::UserName)),
        err_in("connect 3.1.1 without the password it announces", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\xc2\0\0\0\x01c\0\x01u", Kind::Truncated(PacketField::Password)),
        err_in("connect 3.1.1 without the will it announces", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01c", Kind::Truncated(PacketField::WillTopic)),
        err_in("connect 3.1.1 without will payload", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01c\0\x01w", Kind::Truncated(PacketField::WillPayload)),
        err_in("connect 3.1.1 empty will topic", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01c\0\0\0\0", Kind::TopicEmpty(PacketField::WillTopic)),
        err_in("connect 3.1.1 wildcard in will topic", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01c\0\x03w/#\0\0", Kind::TopicWildcard(PacketField::WillTopic)),
        err_in("connect 3.1.1 cut before the keep alive", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x02\0", Kind::Truncated(PacketField::KeepAlive)),
        err_in("connect 3.1.1 cut before the client id", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x02\0\0", Kind::Truncated(PacketField::ClientId)),
        err_in("connect 3.1.1 cut before the flags", &[V3_1_1], 0x10, b"\0\x04MQTT\x04", Kind::Truncated(PacketField::ConnectFlags)),
        err_in("connect cut before the level", ALL, 0x10, b"\0\x04MQTT", Kind::Truncated(PacketField::ProtocolLevel)),
    ]
}

fn connect_5() -> Vec<Case> {
    let property = |found, property| Kind::PropertyValue { property, found };
    let with_properties = |properties: &[u8]| {
        [b"\0\x04MQTT\x05\x02\0\0", &[properties.len() as u8] as &[u8], properties, b"\0\x01c"].concat()
    };
    let with_will_properties = |properties: &[u8]| {
        let length = [properties.len() as u8];
        [b"\0\x04MQTT\x05\x06\0\0\0\0\x01c", &length as &[u8], properties, b"\0\x01w\0\0"].concat()
    };
    let list: &[(&'static str, &[u8], Kind)] = &[
        ("connect 5 receive maximum 0", b"\x21\0\0", property(0, 0x21)),
        ("connect 5 maximum packet size 0", b"\x27\0\0\0\0", property(0, 0x27)),
        ("connect 5 request problem information 2", b"\x17\x02", property(2, 0x17)),
        ("connect 5 request response information 255", b"\x19\xff", property(255, 0x19)),
        ("connect 5 authentication data without method", b"\x16\0\x01d", Kind::AuthenticationDataWithoutMethod),
        ("connect 5 duplicate session expiry", b"\x11\0\0\0\x01\x11\0\0\0\x01", Kind::DuplicateProperty(0x11)),
        (
            "connect 5 with a topic alias",
            b"\x23\0\x01",
            Kind::PropertyNotAllowed { property: 0x23, context: PropertyContext::Connect },
        ),
        (
            "connect 5 with a will property",
            b"\x18\0\0\0\x01",
            Kind::PropertyNotAllowed { property: 0x18, context: PropertyContext::Connect },
        ),
        ("connect 5 property 0", b"\0", Kind::UnknownProperty(0)),
        ("connect 5 property 43", b"\x2b\0", Kind::UnknownProperty(43)),
        ("connect 5 property 255", b"\xff\x01", Kind::UnknownProperty(255)),
        ("connect 5 property 16383", b"\xff\x7f", Kind::UnknownProperty(16383)),
        ("connect 5 property identifier not minimal", b"\x91\0\0\0\0\x01", Kind::VariableByteIntegerNotMinimal(PacketField::PropertyIdentifier)),
        ("connect 5 property cut within its value", b"\x11\0\0\0", Kind::Truncated(PacketField::Property(0x11))),
        ("connect 5 user property without value", b"\x26\0\x01k", Kind::Truncated(PacketField::Property(0x26))),
        ("connect 5 property string overruns the list", b"\x15\0\x09m", Kind::Truncated(PacketField::Property(0x15))),
        ("connect 5 user property not UTF-8", b"\x26\0\x01k\0\x01\xff", Kind::InvalidUtf8(PacketField::Property(0x26))),
        ("connect 5 U+0000 in a user property", b"\x26\0\x01\0\0\0", Kind::NulCharacter(PacketField::Property(0x26))),
    ];
    let mut cases: Vec<Case> =
        list.iter().map(|&(name, bytes, kind)| err_in(name, &[V5], 0x10, &with_properties(bytes), kind)).collect();
    let will: &[(&'static str, &[u8], Kind)] = &[
        (
            "will 5 with a topic alias",
            b"\x23\0\x01",
            Kind::PropertyNotAllowed { property: 0x23, context: PropertyContext::Will },
        ),
        ("will 5 duplicate delay", b"\x18\0\0\0\0\x18\0\0\0\0", Kind::DuplicateProperty(0x18)),
        ("will 5 payload format 2", b"\x01\x02", property(2, 1)),
        ("will 5 wildcard in response topic", b"\x08\0\x01+", Kind::TopicWildcard(PacketField::Property(8))),
    ];
    cases.extend(will.iter().map(|&(name, bytes, kind)| err_in(name, &[V5], 0x10, &with_will_properties(bytes), kind)));
    let bodies: &[(&'static str, &[u8], Kind)] = &[
        ("connect 5 without property length", b"\0\x04MQTT\x05\x02\0\0", Kind::Truncated(PacketField::PropertyLength)),
        ("connect 5 property length overruns", b"\0\x04MQTT\x05\x02\0\0\x05\0\x01c", Kind::Truncated(PacketField::Properties)),
        ("connect 5 property length not minimal", b"\0\x04MQTT\x05\x02\0\0\x80\0\0\x01c", Kind::VariableByteIntegerNotMinimal(PacketField::PropertyLength)),
        ("connect 5 property length of five bytes", b"\0\x04MQTT\x05\x02\0\0\xff\xff\xff\xff\x01", Kind::VariableByteIntegerTooLong(PacketField::PropertyLength)),
        ("connect 5 trailing byte", b"\0\x04MQTT\x05\x02\0\0\0\0\x01c!", Kind::TrailingBytes(1)),
        ("connect 5 empty will topic", b"\0\x04MQTT\x05\x06\0\0\0\0\x01c\0\0\0\0\0", Kind::TopicEmpty(PacketField::WillTopic)),
        ("connect 5 wildcard in will topic", b"\0\x04MQTT\x05\x06\0\0\0\0\x01c\0\0\x01+\0\0", Kind::TopicWildcard(PacketField::WillTopic)),
    ];
    cases.extend(bodies.iter().map(|&(name, body, kind)| err_in(name, &[V5], 0x10, body, kind)));
    cases
}

/// Returns packets with ill-formed UTF-8 and U+0000 in every kind of string.
fn strings() -> Vec<Case> {
    vec![
        err_in("client id not UTF-8", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x01\xff", Kind::InvalidUtf8(PacketField::ClientId)),
        err_in("client id with a surrogate", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x03\xed\xa0\x80", Kind::InvalidUtf8(PacketField::ClientId)),
        err_in("client id with overlong U+0000", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x02\xc0\x80", Kind::InvalidUtf8(PacketField::ClientId)),
        err_in("client id beyond U+10FFFF", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x04\xf4\x90\x80\x80", Kind::InvalidUtf8(PacketField::ClientId)),
        err_in("client id with U+0000", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x02\0\0\0\x02c\0", Kind::NulCharacter(PacketField::ClientId)),
        err_in("3.1 client id with U+0000", &[V3_1], 0x10, b"\0\x06MQIsdp\x03\x02\0\0\0\x02c\0", Kind::NulCharacter(PacketField::ClientId)),
        err_in("5 client id not UTF-8", &[V5], 0x10, b"\0\x04MQTT\x05\x02\0\0\0\0\x01\x80", Kind::InvalidUtf8(PacketField::ClientId)),
        err_in("will topic not UTF-8", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01c\0\x01\xff\0\0", Kind::InvalidUtf8(PacketField::WillTopic)),
        err_in("will topic with U+0000", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x06\0\0\0\x01c\0\x01\0\0\0", Kind::NulCharacter(PacketField::WillTopic)),
        err_in("user name not UTF-8", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x82\0\0\0\x01c\0\x02\xc3(", Kind::InvalidUtf8(PacketField::UserName)),
        err_in("user name with U+0000", &[V3_1_1], 0x10, b"\0\x04MQTT\x04\x82\0\0\0\x01c\0\x01\0", Kind::NulCharacter(PacketField::UserName)),
        err_in("topic not UTF-8", ALL, 0x30, b"\0\x02a\xff", Kind::InvalidUtf8(PacketField::TopicName)),
        err_in("topic with a surrogate", ALL, 0x30, b"\0\x03\xed\xbf\xbf", Kind::InvalidUtf8(PacketField::TopicName)),
        err_in("topic with U+0000", ALL, 0x30, b"\0\x03a\0b", Kind::NulCharacter(PacketField::TopicName)),
        err_in("long topic with U+0000 in the middle", ALL, 0x30, b"\0\x0caaaaaaa\0aaaa", Kind::NulCharacter(PacketField::TopicName)),
        err_in("filter not UTF-8", V3, 0x82, b"\0\x01\0\x01\xff\0", Kind::InvalidUtf8(PacketField::TopicFilter)),
        err_in("filter with U+0000", V3, 0x82, b"\0\x01\0\x01\0\0", Kind::NulCharacter(PacketField::TopicFilter)),
        err_in("5 filter with a surrogate", &[V5], 0x82, b"\0\x01\0\0\x03\xed\xa0\x80\0", Kind::InvalidUtf8(PacketField::TopicFilter)),
        err_in("unsubscribe filter not UTF-8", V3, 0xa2, b"\0\x01\0\x01\xff", Kind::InvalidUtf8(PacketField::TopicFilter)),
        err_in("unsubscribe filter with U+0000", V3, 0xa2, b"\0\x01\0\x01\0", Kind::NulCharacter(PacketField::TopicFilter)),
        err_in("reason string not UTF-8", &[V5], 0x40, b"\0\x01\x80\x04\x1f\0\x01\xff", Kind::InvalidUtf8(PacketField::Property(0x1f))),
    ]
}

fn publish() -> Vec<Case> {
    let wildcard = Kind::TopicWildcard(PacketField::TopicName);
    vec![
        err_in("publish QoS 3", ALL, 0x36, b"\0\x01a\0\x01", Kind::PublishQoS),
        err_in("publish QoS 3 dup retain", ALL, 0x3f, b"\0\x01a\0\x01", Kind::PublishQoS),
        err_in("publish QoS 0 dup", ALL, 0x38, b"\0\x01a", Kind::DupAtQoS0),
        err_in("publish topic #", ALL, 0x30, b"\0\x01#", wildcard),
        err_in("publish topic a/+", ALL, 0x30, b"\0\x03a/+", wildcard),
        err_in("publish long topic with + at its end", ALL, 0x30, b"\0\x0aaaaaaaaaa+", wildcard),
        err_in("publish long topic with # at its start", ALL, 0x30, b"\0\x09#aaaaaaaa", wildcard),
        err_in("publish empty topic", V3, 0x30, b"\0\0hi", Kind::TopicEmpty(PacketField::TopicName)),
        err_in("publish 5 empty topic without alias", &[V5], 0x30, b"\0\0\0hi", Kind::TopicEmpty(PacketField::TopicName)),
        err_in("publish QoS 1 packet id 0", ALL, 0x32, b"\0\x01a\0\0", Kind::PacketIdZero),
        err_in("publish QoS 2 packet id 0", ALL, 0x34, b"\0\x01a\0\0", Kind::PacketIdZero),
        err_in("publish QoS 1 without packet id", ALL, 0x32, b"\0\x01a\0", Kind::Truncated(PacketField::PacketId)),
        err_in("publish topic overruns", ALL, 0x30, b"\0\x05abc", Kind::Truncated(PacketField::TopicName)),
        err_in("publish 5 without property length", &[V5], 0x30, b"\0\x01a", Kind::Truncated(PacketField::PropertyLength)),
        err_in("publish 5 property length overruns", &[V5], 0x30, b"\0\x01a\x02\x01", Kind::Truncated(PacketField::Properties)),
        err_in("publish 5 property length not minimal", &[V5], 0x30, b"\0\x01a\x82\0\x01\x01", Kind::VariableByteIntegerNotMinimal(PacketField::PropertyLength)),
        err_in("publish 5 topic alias 0", &[V5], 0x30, b"\0\x01a\x03\x23\0\0", Kind::TopicAliasZero),
        err_in("publish 5 two topic aliases", &[V5], 0x30, b"\0\x01a\x06\x23\0\x01\x23\0\x01", Kind::DuplicateProperty(0x23)),
        err_in("publish 5 subscription identifier 0", &[V5], 0x30, b"\0\x01a\x02\x0b\0", Kind::PropertyValue { property: 0x0b, found: 0 }),
        err_in("publish 5 payload format 2", &[V5], 0x30, b"\0\x01a\x02\x01\x02", Kind::PropertyValue { property: 1, found: 2 }),
        err_in("publish 5 wildcard in response topic", &[V5], 0x30, b"\0\x01a\x06\x08\0\x03r/#", Kind::TopicWildcard(PacketField::Property(8))),
        err_in("publish 5 empty response topic", &[V5], 0x30, b"\0\x01a\x03\x08\0\0", Kind::TopicEmpty(PacketField::Property(8))),
        err_in("publish 5 with a reason string", &[V5], 0x30, b"\0\x01a\x03\x1f\0\0", Kind::PropertyNotAllowed { property: 0x1f, context: PropertyContext::Publish }),
    ]
}

fn subscribe() -> Vec<Case> {
    vec![
        err_in("subscribe without filter", V3, 0x82, b"\0\x01", Kind::NoTopicFilter(PacketType::Subscribe)),
        err_in("subscribe 5 without filter", &[V5], 0x82, b"\0\x01\0", Kind::NoTopicFilter(PacketType::Subscribe)),
        err_in("subscribe 5 without property length", &[V5], 0x82, b"\0\x01", Kind::Truncated(PacketField::PropertyLength)),
        err_in("subscribe packet id 0", ALL, 0x82, b"\0\0\0\0\x01a\0", Kind::PacketIdZero),
        err_in("subscribe without options", V3, 0x82, b"\0\x01\0\x01a", Kind::Truncated(PacketField::SubscriptionOptions)),
        err_in("subscribe filter overruns", V3, 0x82, b"\0\x01\0\x09a\0", Kind::Truncated(PacketField::TopicFilter)),
        err_in("subscribe QoS 3", V3, 0x82, b"\0\x01\0\x01a\x03", Kind::SubscriptionQoS),
        err_in("subscribe 5 QoS 3", &[V5], 0x82, b"\0\x01\0\0\x01a\x03", Kind::SubscriptionQoS),
        err_in("subscribe option bit of 5 in 3", V3, 0x82, b"\0\x01\0\x01a\x04", Kind::SubscriptionOptionsReserved(4)),
        err_in("subscribe second filter with reserved options", V3, 0x82, b"\0\x01\0\x01a\0\0\x01b\x81", Kind::SubscriptionOptionsReserved(0x81)),
        err_in("subscribe 5 reserved option bit 6", &[V5], 0x82, b"\0\x01\0\0\x01a\x40", Kind::SubscriptionOptionsReserved(0x40)),
        err_in("subscribe 5 reserved option bit 7", &[V5], 0x82, b"\0\x01\0\0\x01a\x81", Kind::SubscriptionOptionsReserved(0x81)),
        err_in("subscribe 5 retain handling 3", &[V5], 0x82, b"\0\x01\0\0\x01a\x30", Kind::RetainHandling),
        err_in("subscribe 5 no local on a shared subscription", &[V5], 0x82, b"\0\x01\0\0\x0a$share/g/a\x04", Kind::NoLocalOnSharedSubscription),
        err_in("subscribe 5 subscription identifier 0", &[V5], 0x82, b"\0\x01\x02\x0b\0\0\x01a\0", Kind::PropertyValue { property: 0x0b, found: 0 }),
        err_in("subscribe 5 two subscription identifiers", &[V5], 0x82, b"\0\x01\x04\x0b\x01\x0b\x02\0\x01a\0", Kind::DuplicateProperty(0x0b)),
        err_in("subscribe 5 subscription identifier not minimal", &[V5], 0x82, b"\0\x01\x03\x0b\x81\0\0\x01a\0", Kind::VariableByteIntegerNotMinimal(PacketField::Property(0x0b))),
        err_in("subscribe 5 subscription identifier of five bytes", &[V5], 0x82, b"\0\x01\x06\x0b\xff\xff\xff\xff\x01\0\x01a\0", Kind::VariableByteIntegerTooLong(PacketField::Property(0x0b))),
        err_in("unsubscribe without filter", V3, 0xa2, b"\0\x01", Kind::NoTopicFilter(PacketType::Unsubscribe)),
        err_in("unsubscribe 5 without filter", &[V5], 0xa2, b"\0\x01\0", Kind::NoTopicFilter(PacketType::Unsubscribe)),
        err_in("unsubscribe packet id 0", ALL, 0xa2, b"\0\0\0\0\x01a", Kind::PacketIdZero),
        err_in("unsubscribe filter overruns", V3, 0xa2, b"\0\x01\0\x02a", Kind::Truncated(PacketField::TopicFilter)),
        err_in("unsubscribe 5 with a subscription identifier", &[V5], 0xa2, b"\0\x01\x02\x0b\x01\0\x01a", Kind::PropertyNotAllowed { property: 0x0b, context: PropertyContext::Unsubscribe }),
    ]
}

fn acknowledgements() -> Vec<Case> {
    let reason = |packet, found| Kind::ReasonCode { packet, found };
    vec![
        err("puback packet id 0", ALL, b"\x40\x02\0\0", Kind::PacketIdZero),
        err("pubrec packet id 0", ALL, b"\x50\x02\0\0", Kind::PacketIdZero),
        err("pubrel packet id 0", ALL, b"\x62\x02\0\0", Kind::PacketIdZero),
        err("pubcomp packet id 0", ALL, b"\x70\x02\0\0", Kind::PacketIdZero),
        err("unsuback packet id 0", V3, b"\xb0\x02\0\0", Kind::PacketIdZero),
        err("puback 5 reason of pubrel", &[V5], b"\x40\x03\0\x01\x92", reason(PacketType::PubAck, 0x92)),
        err("pubrec 5 unknown reason", &[V5], b"\x50\x03\0\x01\x03", reason(PacketType::PubRec, 3)),
        err("pubrel 5 reason of puback", &[V5], b"\x62\x03\0\x01\x10", reason(PacketType::PubRel, 0x10)),
        err("pubcomp 5 reason 255", &[V5], b"\x70\x03\0\x01\xff", reason(PacketType::PubComp, 255)),
        err("puback 5 trailing byte", &[V5], b"\x40\x05\0\x01\0\0!", Kind::TrailingBytes(1)),
        err("puback 5 property length overruns", &[V5], b"\x40\x04\0\x01\0\x01", Kind::Truncated(PacketField::Properties)),
        err("puback 5 duplicate reason string", &[V5], b"\x40\x0a\0\x01\0\x06\x1f\0\0\x1f\0\0", Kind::DuplicateProperty(0x1f)),
        err("suback without reason code", V3, b"\x90\x02\0\x01", Kind::NoReasonCode(PacketType::SubAck)),
        err("suback 5 without reason code", &[V5], b"\x90\x03\0\x01\0", Kind::NoReasonCode(PacketType::SubAck)),
        err("suback 3 failure of 5", V3, b"\x90\x03\0\x01\x87", reason(PacketType::SubAck, 0x87)),
        err("suback reason 3", V3, b"\x90\x04\0\x01\0\x03", reason(PacketType::SubAck, 3)),
        err("suback 5 reason 0x92", &[V5], b"\x90\x05\0\x01\0\0\x92", reason(PacketType::SubAck, 0x92)),
        err("unsuback 5 without reason code", &[V5], b"\xb0\x03\0\x01\0", Kind::NoReasonCode(PacketType::UnsubAck)),
        err("unsuback 5 reason 1", &[V5], b"\xb0\x04\0\x01\0\x01", reason(PacketType::UnsubAck, 1)),
        err("connack reserved flags", ALL, b"\x20\x02\x02\0", Kind::ConnAckFlags(2)),
        err("connack return code 6", V3, b"\x20\x02\0\x06", Kind::ConnectReturnCode(6)),
        err("connack 5 reason 1", &[V5], b"\x20\x03\0\x01\0", reason(PacketType::ConnAck, 1)),
        err("connack session present on refusal", &[V3_1_1], b"\x20\x02\x01\x05", Kind::SessionPresentWithError(ReasonCode::NotAuthorized)),
        err("connack 5 session present on refusal", &[V5], b"\x20\x03\x01\x87\0", Kind::SessionPresentWithError(ReasonCode::NotAuthorized)),
        err("connack 5 without properties", &[V5], b"\x20\x02\0\0", Kind::Truncated(PacketField::PropertyLength)),
        err("connack 5 maximum QoS 2", &[V5], b"\x20\x05\0\0\x02\x24\x02", Kind::PropertyValue { property: 0x24, found: 2 }),
        err("connack 5 trailing byte", &[V5], b"\x20\x04\0\0\0!", Kind::TrailingBytes(1)),
        err("disconnect 5 reason of subscribe", &[V5], b"\xe0\x01\x01", reason(PacketType::Disconnect, 1)),
        err("disconnect 5 reason of connack", &[V5], b"\xe0\x01\x86", reason(PacketType::Disconnect, 0x86)),
        err("disconnect 5 trailing byte", &[V5], b"\xe0\x03\0\0!", Kind::TrailingBytes(1)),
        err("auth 5 reason of an error", &[V5], b"\xf0\x02\x8c\0", reason(PacketType::Auth, 0x8c)),
        err("auth 5 without property length", &[V5], b"\xf0\x01\x18", Kind::Truncated(PacketField::PropertyLength)),
        err("auth 5 without method", &[V5], b"\xf0\x02\x18\0", Kind::AuthenticationMethodMissing),
        err("auth 5 success with a reason string, without method", &[V5], b"\xf0\x05\0\x03\x1f\0\0", Kind::AuthenticationMethodMissing),
        err("auth 5 data without method", &[V5], b"\xf0\x06\x18\x04\x16\0\x01d", Kind::AuthenticationMethodMissing),
        err("auth 5 trailing byte", &[V5], b"\xf0\x07\x18\x04\x15\0\x01m!", Kind::TrailingBytes(1)),
    ]
}

fn properties_5() -> Vec<Case> {
    let elsewhere = |property, context| Kind::PropertyNotAllowed { property, context };
    vec![
        err("disconnect 5 with a topic alias", &[V5], b"\xe0\x05\0\x03\x23\0\x01", elsewhere(0x23, PropertyContext::Disconnect)),
        err("disconnect 5 duplicate session expiry", &[V5], b"\xe0\x0c\0\x0a\x11\0\0\0\0\x11\0\0\0\0", Kind::DuplicateProperty(0x11)),
        err("pubrec 5 with a content type", &[V5], b"\x50\x07\0\x01\0\x03\x03\0\0", elsewhere(3, PropertyContext::Ack)),
        err("suback 5 with a subscription identifier", &[V5], b"\x90\x06\0\x01\x02\x0b\x01\0", elsewhere(0x0b, PropertyContext::Ack)),
        err("subscribe 5 with a reason string", &[V5], b"\x82\x0a\0\x01\x03\x1f\0\0\0\x01a\0", elsewhere(0x1f, PropertyContext::Subscribe)),
        err("auth 5 with a session expiry", &[V5], b"\xf0\x07\x18\x05\x11\0\0\0\0", elsewhere(0x11, PropertyContext::Auth)),
        err("connack 5 with a will delay", &[V5], b"\x20\x08\0\0\x05\x18\0\0\0\0", elsewhere(0x18, PropertyContext::ConnAck)),
    ]
}
