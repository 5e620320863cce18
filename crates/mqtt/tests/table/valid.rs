//! Well-formed packets.

use tidewire_mqtt::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, Properties, Property, ProtocolVersion, Publish, QoS, ReasonCode,
    RetainHandling, SubAck, Subscribe, SubscribeFilter, SubscriptionOptions, UnsubAck, Unsubscribe, Will,
};

use super::*;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(connect());
    cases.extend(connect_5());
    cases.extend(connack());
    cases.extend(publish());
    cases.extend(acks());
    cases.extend(subscribe());
    cases.extend(unsubscribe());
    cases.extend(pings_disconnect_auth());
    cases
}

fn ok(name: &'static str, versions: &'static [ProtocolVersion], bytes: Vec<u8>, packet: Packet<'static>) -> Case {
    case(name, versions, bytes, Expected::Packet(packet))
}

fn other_form(
    name: &'static str,
    versions: &'static [ProtocolVersion],
    bytes: Vec<u8>,
    packet: Packet<'static>,
) -> Case {
    case(name, versions, bytes, Expected::OtherForm(packet))
}

fn bare_connect(version: ProtocolVersion) -> Connect<'static> {
    Connect {
        version,
        clean_start: true,
        is_bridge: false,
        keep_alive: 60,
        properties: Properties::EMPTY,
        client_id: "id",
        will: None,
        user_name: None,
        password: None,
    }
}

fn will() -> Will<'static> {
    Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: Properties::EMPTY,
        topic: "w",
        payload: b"\0\xff",
    }
}

fn connect() -> Vec<Case> {
    let c = |connect| Packet::Connect(connect);
    vec![
        ok(
            "connect 3.1",
            &[V3_1],
            framed(0x10, b"\0\x06MQIsdp\x03\x02\0\x3c\0\x02id"),
            c(bare_connect(V3_1)),
        ),
        ok(
            "connect 3.1.1",
            &[V3_1_1],
            framed(0x10, b"\0\x04MQTT\x04\x02\0\x3c\0\x02id"),
            c(bare_connect(V3_1_1)),
        ),
        ok(
            "connect 5",
            &[V5],
            framed(0x10, b"\0\x04MQTT\x05\x02\0\x3c\0\0\x02id"),
            c(bare_connect(V5)),
        ),
        ok(
            "connect 3.1 bridge",
            &[V3_1],
            framed(0x10, b"\0\x06MQIsdp\x83\x02\0\x3c\0\x02id"),
            c(Connect {
                is_bridge: true,
                ..bare_connect(V3_1)
            }),
        ),
        ok(
            "connect 3.1.1 bridge",
            &[V3_1_1],
            framed(0x10, b"\0\x04MQTT\x84\x02\0\x3c\0\x02id"),
            c(Connect {
                is_bridge: true,
                ..bare_connect(V3_1_1)
            }),
        ),
        ok(
            "connect 3.1 everything",
            &[V3_1],
            framed(
                0x10,
                b"\0\x06MQIsdp\x03\xec\xff\xff\0\x02id\0\x01w\0\x02\0\xff\0\x04user\0\x01\xfe",
            ),
            c(Connect {
                clean_start: false,
                keep_alive: u16::MAX,
                will: Some(will()),
                user_name: Some("user"),
                password: Some(b"\xfe"),
                ..bare_connect(V3_1)
            }),
        ),
        ok(
            "connect 3.1.1 everything",
            &[V3_1_1],
            framed(
                0x10,
                b"\0\x04MQTT\x04\xec\0\0\0\x02id\0\x01w\0\x02\0\xff\0\x04user\0\x01\xfe",
            ),
            c(Connect {
                clean_start: false,
                keep_alive: 0,
                will: Some(will()),
                user_name: Some("user"),
                password: Some(b"\xfe"),
                ..bare_connect(V3_1_1)
            }),
        ),
        ok(
            "connect 3.1.1 empty client id, user name and password",
            &[V3_1_1],
            framed(0x10, b"\0\x04MQTT\x04\xc2\0\0\0\0\0\0\0\0"),
            c(Connect {
                keep_alive: 0,
                client_id: "",
                user_name: Some(""),
                password: Some(b""),
                ..bare_connect(V3_1_1)
            }),
        ),
        ok(
            "connect 3.1.1 empty client id, clean session 0",
            &[V3_1_1],
            framed(0x10, b"\0\x04MQTT\x04\0\0\0\0\0"),
            c(Connect {
                keep_alive: 0,
                client_id: "",
                clean_start: false,
                ..bare_connect(V3_1_1)
            }),
        ),
        ok(
            "connect 3.1.1 will QoS 2, empty payload, not retained",
            &[V3_1_1],
            framed(0x10, b"\0\x04MQTT\x04\x16\0\x3c\0\x02id\0\x01w\0\0"),
            c(Connect {
                will: Some(Will {
                    qos: QoS::ExactlyOnce,
                    retain: false,
                    payload: b"",
                    ..will()
                }),
                ..bare_connect(V3_1_1)
            }),
        ),
        other_form(
            "connect 3.1 without the user name and password it announces",
            &[V3_1],
            framed(0x10, b"\0\x06MQIsdp\x03\xc2\0\x3c\0\x02id"),
            c(bare_connect(V3_1)),
        ),
        other_form(
            "connect 3.1 without the password it announces",
            &[V3_1],
            framed(0x10, b"\0\x06MQIsdp\x03\xc2\0\x3c\0\x02id\0\x01u"),
            c(Connect {
                user_name: Some("u"),
                ..bare_connect(V3_1)
            }),
        ),
        other_form(
            "connect 3.1 with the unused flag",
            &[V3_1],
            framed(0x10, b"\0\x06MQIsdp\x03\x03\0\x3c\0\x02id"),
            c(bare_connect(V3_1)),
        ),
        other_form(
            "connect 3.1.1 with a long remaining length",
            &[V3_1_1],
            b"\x10\x8e\x80\0\0\x04MQTT\x04\x02\0\x3c\0\x02id".to_vec(),
            c(bare_connect(V3_1_1)),
        ),
        ok(
            "connect 3.1.1 client id in four scripts",
            &[V3_1_1],
            framed(0x10, "\0\u{4}MQTT\u{4}\u{2}\0\u{3c}\0\u{c}é€𝄞\u{feff}".as_bytes()),
            c(Connect {
                client_id: "é€𝄞\u{feff}",
                ..bare_connect(V3_1_1)
            }),
        ),
    ]
}

fn connect_5() -> Vec<Case> {
    let properties_of_connect = properties(&[
        Property::SessionExpiryInterval(u32::MAX),
        Property::ReceiveMaximum(10),
        Property::MaximumPacketSize(1 << 20),
        Property::TopicAliasMaximum(0),
        Property::RequestResponseInformation(true),
        Property::RequestProblemInformation(false),
        Property::UserProperty("a", "1"),
        Property::UserProperty("a", "2"),
        Property::AuthenticationMethod("m"),
        Property::AuthenticationData(b"\0"),
    ]);
    let properties_of_will = properties(&[
        Property::WillDelayInterval(5),
        Property::PayloadFormatIndicator(0),
        Property::MessageExpiryInterval(6),
        Property::ContentType("t"),
        Property::ResponseTopic("r/1"),
        Property::CorrelationData(b"\x01\x02"),
        Property::UserProperty("", ""),
    ]);
    let everything = b"\0\x04MQTT\x05\xec\0\x3c\
        \x2a\x11\xff\xff\xff\xff\x21\0\x0a\x27\0\x10\0\0\x22\0\0\x19\x01\x17\0\
        \x26\0\x01a\0\x011\x26\0\x01a\0\x012\x15\0\x01m\x16\0\x01\0\
        \0\x02id\
        \x20\x18\0\0\0\x05\x01\0\x02\0\0\0\x06\x03\0\x01t\x08\0\x03r/1\x09\0\x02\x01\x02\x26\0\0\0\0\
        \0\x01w\0\x02\0\xff\0\x04user\0\x01\xfe";
    vec![
        ok(
            "connect 5 everything",
            &[V5],
            framed(0x10, everything),
            Packet::Connect(Connect {
                clean_start: false,
                properties: properties_of_connect,
                will: Some(Will {
                    properties: properties_of_will,
                    ..will()
                }),
                user_name: Some("user"),
                password: Some(b"\xfe"),
                ..bare_connect(V5)
            }),
        ),
        ok(
            "connect 5 password without user name",
            &[V5],
            framed(0x10, b"\0\x04MQTT\x05\x42\0\x3c\0\0\x02id\0\x03tok"),
            Packet::Connect(Connect {
                password: Some(b"tok"),
                ..bare_connect(V5)
            }),
        ),
        ok(
            "connect 5 empty client id and will without properties",
            &[V5],
            framed(0x10, b"\0\x04MQTT\x05\x2e\0\x3c\0\0\0\0\0\x01w\0\x02\0\xff"),
            Packet::Connect(Connect {
                client_id: "",
                will: Some(will()),
                ..bare_connect(V5)
            }),
        ),
    ]
}

fn connack() -> Vec<Case> {
    let connack = |session_present, reason, properties| {
        Packet::ConnAck(ConnAck {
            session_present,
            reason,
            properties,
        })
    };
    let all = properties(&[
        Property::SessionExpiryInterval(1),
        Property::ReceiveMaximum(2),
        Property::MaximumQoS(1),
        Property::RetainAvailable(true),
        Property::MaximumPacketSize(3),
        Property::AssignedClientIdentifier("c"),
        Property::TopicAliasMaximum(4),
        Property::ReasonString("r"),
        Property::UserProperty("k", "v"),
        Property::WildcardSubscriptionAvailable(false),
        Property::SubscriptionIdentifierAvailable(true),
        Property::SharedSubscriptionAvailable(false),
        Property::ServerKeepAlive(5),
        Property::ResponseInformation("i"),
        Property::ServerReference("s"),
        Property::AuthenticationMethod("m"),
        Property::AuthenticationData(b"d"),
    ]);
    let body = b"\0\0\x3c\x11\0\0\0\x01\x21\0\x02\x24\x01\x25\x01\x27\0\0\0\x03\x12\0\x01c\x22\0\x04\x1f\0\x01r\
        \x26\0\x01k\0\x01v\x28\0\x29\x01\x2a\0\x13\0\x05\x1a\0\x01i\x1c\0\x01s\x15\0\x01m\x16\0\x01d";
    let mut cases = vec![
        ok(
            "connack",
            V3,
            b"\x20\x02\0\0".to_vec(),
            connack(false, ReasonCode::Success, Properties::EMPTY),
        ),
        ok(
            "connack session present",
            &[V3_1_1],
            b"\x20\x02\x01\0".to_vec(),
            connack(true, ReasonCode::Success, Properties::EMPTY),
        ),
        other_form(
            "connack 3.1 with the reserved bit",
            &[V3_1],
            b"\x20\x02\x01\0".to_vec(),
            connack(false, ReasonCode::Success, Properties::EMPTY),
        ),
        ok(
            "connack 5",
            &[V5],
            b"\x20\x03\0\0\0".to_vec(),
            connack(false, ReasonCode::Success, Properties::EMPTY),
        ),
        ok(
            "connack 5 session present",
            &[V5],
            b"\x20\x03\x01\0\0".to_vec(),
            connack(true, ReasonCode::Success, Properties::EMPTY),
        ),
        ok(
            "connack 5 every property",
            &[V5],
            framed(0x20, body),
            connack(false, ReasonCode::Success, all),
        ),
        ok(
            "connack 5 refused",
            &[V5],
            b"\x20\x03\0\x9f\0".to_vec(),
            connack(false, ReasonCode::ConnectionRateExceeded, Properties::EMPTY),
        ),
    ];
    let codes = [
        ("connack return code 1", ReasonCode::UnsupportedProtocolVersion),
        ("connack return code 2", ReasonCode::ClientIdentifierNotValid),
        ("connack return code 3", ReasonCode::ServerUnavailable),
        ("connack return code 4", ReasonCode::BadUserNameOrPassword),
        ("connack return code 5", ReasonCode::NotAuthorized),
    ];
    for (code, (name, reason)) in (1..).zip(codes) {
        cases.push(ok(
            name,
            V3,
            vec![0x20, 2, 0, code],
            connack(false, reason, Properties::EMPTY),
        ));
    }
    cases
}

fn bare_publish() -> Publish<'static> {
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "a/b",
        packet_id: None,
        properties: Properties::EMPTY,
        payload: b"hi",
    }
}

fn publish() -> Vec<Case> {
    let p = |publish| Packet::Publish(publish);
    let all = properties(&[
        Property::PayloadFormatIndicator(1),
        Property::MessageExpiryInterval(7),
        Property::TopicAlias(3),
        Property::ResponseTopic("r"),
        Property::CorrelationData(b"c"),
        Property::UserProperty("k", "v"),
        Property::SubscriptionIdentifier(1),
        Property::SubscriptionIdentifier(268_435_455),
        Property::ContentType("t"),
    ]);
    let body = b"\0\x03a/b\0\x01\x24\x01\x01\x02\0\0\0\x07\x23\0\x03\x08\0\x01r\x09\0\x01c\x26\0\x01k\0\x01v\
        \x0b\x01\x0b\xff\xff\xff\x7f\x03\0\x01thi";
    let long = |version: ProtocolVersion| {
        let payload: &'static [u8] = Box::leak(vec![b'x'; 20_000].into_boxed_slice());
        let head: &[u8] = if version == V5 { b"\0\x03a/b\0" } else { b"\0\x03a/b" };
        (
            framed(0x30, &[head, payload].concat()),
            p(Publish {
                payload,
                ..bare_publish()
            }),
        )
    };
    vec![
        ok("publish QoS 0", V3, framed(0x30, b"\0\x03a/bhi"), p(bare_publish())),
        ok(
            "publish QoS 1",
            V3,
            framed(0x32, b"\0\x03a/b\0\x01hi"),
            p(Publish {
                qos: QoS::AtLeastOnce,
                packet_id: Some(id(1)),
                ..bare_publish()
            }),
        ),
        ok(
            "publish QoS 2, retained, again, no payload",
            V3,
            framed(0x3d, b"\0\x03a/b\xff\xff"),
            p(Publish {
                dup: true,
                qos: QoS::ExactlyOnce,
                retain: true,
                packet_id: Some(id(u16::MAX)),
                payload: b"",
                ..bare_publish()
            }),
        ),
        ok(
            "publish retained, no payload",
            V3,
            framed(0x31, b"\0\x03a/b"),
            p(Publish {
                retain: true,
                payload: b"",
                ..bare_publish()
            }),
        ),
        ok(
            "publish topic of one slash",
            V3,
            framed(0x30, b"\0\x01/"),
            p(Publish {
                topic: "/",
                payload: b"",
                ..bare_publish()
            }),
        ),
        ok(
            "publish to a $ topic longer than eight bytes",
            V3,
            framed(0x30, b"\0\x0a$SYS/a b/chi"),
            p(Publish {
                topic: "$SYS/a b/c",
                ..bare_publish()
            }),
        ),
        ok(
            "publish topic beyond ASCII with control characters",
            V3,
            framed(0x30, "\0\u{a}é/\u{1}/€/\u{7f}hi".as_bytes()),
            p(Publish {
                topic: "é/\u{1}/€/\u{7f}",
                ..bare_publish()
            }),
        ),
        ok(
            "publish 5 QoS 0",
            &[V5],
            framed(0x30, b"\0\x03a/b\0hi"),
            p(bare_publish()),
        ),
        ok(
            "publish 5 QoS 1",
            &[V5],
            framed(0x32, b"\0\x03a/b\0\x01\0hi"),
            p(Publish {
                qos: QoS::AtLeastOnce,
                packet_id: Some(id(1)),
                ..bare_publish()
            }),
        ),
        ok(
            "publish 5 every property",
            &[V5],
            framed(0x32, body),
            p(Publish {
                qos: QoS::AtLeastOnce,
                packet_id: Some(id(1)),
                properties: all,
                ..bare_publish()
            }),
        ),
        ok(
            "publish 5 alias instead of topic",
            &[V5],
            framed(0x30, b"\0\0\x03\x23\xff\xffhi"),
            p(Publish {
                topic: "",
                properties: properties(&[Property::TopicAlias(u16::MAX)]),
                ..bare_publish()
            }),
        ),
        ok(
            "publish three bytes of remaining length",
            V3,
            long(V3_1_1).0,
            long(V3_1_1).1,
        ),
        ok(
            "publish 5 three bytes of remaining length",
            &[V5],
            long(V5).0,
            long(V5).1,
        ),
        other_form(
            "publish with a long remaining length",
            V3,
            b"\x30\x87\x80\0\0\x03a/bhi".to_vec(),
            p(bare_publish()),
        ),
    ]
}

fn acks() -> Vec<Case> {
    type Make = fn(Ack<'static>) -> Packet<'static>;
    let packets: [(u8, Make, ReasonCode, [&'static str; 6]); 4] = [
        (
            0x40,
            Packet::PubAck,
            ReasonCode::NoMatchingSubscribers,
            [
                "puback",
                "puback 5 reason",
                "puback 5 properties",
                "puback 5 reason 0",
                "puback 5 long",
                "puback dup",
            ],
        ),
        (
            0x50,
            Packet::PubRec,
            ReasonCode::QuotaExceeded,
            [
                "pubrec",
                "pubrec 5 reason",
                "pubrec 5 properties",
                "pubrec 5 reason 0",
                "pubrec 5 long",
                "pubrec dup",
            ],
        ),
        (
            0x62,
            Packet::PubRel,
            ReasonCode::PacketIdentifierNotFound,
            [
                "pubrel",
                "pubrel 5 reason",
                "pubrel 5 properties",
                "pubrel 5 reason 0",
                "pubrel 5 long",
                "pubrel dup",
            ],
        ),
        (
            0x70,
            Packet::PubComp,
            ReasonCode::PacketIdentifierNotFound,
            [
                "pubcomp",
                "pubcomp 5 reason",
                "pubcomp 5 properties",
                "pubcomp 5 reason 0",
                "pubcomp 5 long",
                "pubcomp dup",
            ],
        ),
    ];
    let why = properties(&[Property::ReasonString("why"), Property::UserProperty("k", "v")]);
    let mut cases = Vec::new();
    for (first, packet, reason, names) in packets {
        let success = || {
            packet(Ack {
                packet_id: id(0x1234),
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            })
        };
        let failure = |properties| {
            packet(Ack {
                packet_id: id(0x1234),
                reason,
                properties,
            })
        };
        let code = reason as u8;
        cases.push(ok(names[0], ALL, vec![first, 2, 0x12, 0x34], success()));
        cases.push(ok(
            names[1],
            &[V5],
            vec![first, 3, 0x12, 0x34, code],
            failure(Properties::EMPTY),
        ));
        let body = [b"\x12\x34", &[code] as &[u8], b"\x0d\x1f\0\x03why\x26\0\x01k\0\x01v"].concat();
        cases.push(ok(names[2], &[V5], framed(first, &body), failure(why)));
        cases.push(other_form(names[3], &[V5], vec![first, 3, 0x12, 0x34, 0], success()));
        cases.push(other_form(
            names[4],
            &[V5],
            vec![first, 4, 0x12, 0x34, code, 0],
            failure(Properties::EMPTY),
        ));
        if first & 0x0f != 0 {
            cases.push(other_form(names[5], &[V3_1], vec![first | 8, 2, 0x12, 0x34], success()));
        }
    }
    cases
}

fn subscribe() -> Vec<Case> {
    let filter = |filter, maximum_qos| SubscribeFilter {
        filter,
        options: SubscriptionOptions {
            maximum_qos,
            ..SubscriptionOptions::default()
        },
    };
    let subscribe = |properties, filters| {
        Packet::Subscribe(Subscribe {
            packet_id: id(10),
            properties,
            filters,
        })
    };
    let one = subscribe_filters(&[filter("a/#", QoS::AtLeastOnce)]);
    let three = subscribe_filters(&[
        filter("a/+", QoS::AtMostOnce),
        filter("", QoS::AtLeastOnce),
        filter("€", QoS::ExactlyOnce),
    ]);
    let options = subscribe_filters(&[
        SubscribeFilter {
            filter: "x",
            options: SubscriptionOptions {
                maximum_qos: QoS::ExactlyOnce,
                no_local: true,
                retain_as_published: true,
                retain_handling: RetainHandling::DoNotSend,
            },
        },
        SubscribeFilter {
            filter: "$share/g/x",
            options: SubscriptionOptions {
                retain_handling: RetainHandling::SendIfNew,
                ..Default::default()
            },
        },
    ]);
    let suback = |reasons, properties| {
        Packet::SubAck(SubAck {
            packet_id: id(10),
            properties,
            reasons,
        })
    };
    vec![
        ok(
            "subscribe",
            V3,
            framed(0x82, b"\0\x0a\0\x03a/#\x01"),
            subscribe(Properties::EMPTY, one),
        ),
        ok(
            "subscribe three filters, one empty",
            V3,
            framed(0x82, b"\0\x0a\0\x03a/+\0\0\0\x01\0\x03\xe2\x82\xac\x02"),
            subscribe(Properties::EMPTY, three),
        ),
        other_form(
            "subscribe dup",
            &[V3_1],
            framed(0x8a, b"\0\x0a\0\x03a/#\x01"),
            subscribe(Properties::EMPTY, one),
        ),
        ok(
            "subscribe 5",
            &[V5],
            framed(0x82, b"\0\x0a\0\0\x03a/#\x01"),
            subscribe(Properties::EMPTY, one),
        ),
        ok(
            "subscribe 5 every option and property",
            &[V5],
            framed(
                0x82,
                b"\0\x0a\x0a\x0b\x80\x01\x26\0\x01k\0\x01v\0\x01x\x2e\0\x0a$share/g/x\x10",
            ),
            subscribe(
                properties(&[Property::SubscriptionIdentifier(128), Property::UserProperty("k", "v")]),
                options,
            ),
        ),
        ok(
            "suback",
            V3,
            framed(0x90, b"\0\x0a\0\x01\x02\x80"),
            suback(b"\0\x01\x02\x80", Properties::EMPTY),
        ),
        ok(
            "suback 5",
            &[V5],
            framed(0x90, b"\0\x0a\0\x02\x87"),
            suback(b"\x02\x87", Properties::EMPTY),
        ),
        ok(
            "suback 5 properties",
            &[V5],
            framed(0x90, b"\0\x0a\x0b\x1f\0\x01w\x26\0\x01k\0\x01v\xa2"),
            suback(
                b"\xa2",
                properties(&[Property::ReasonString("w"), Property::UserProperty("k", "v")]),
            ),
        ),
    ]
}

fn unsubscribe() -> Vec<Case> {
    let unsubscribe = |properties, filters| {
        Packet::Unsubscribe(Unsubscribe {
            packet_id: id(10),
            properties,
            filters,
        })
    };
    let unsuback = |reasons, properties| {
        Packet::UnsubAck(UnsubAck {
            packet_id: id(10),
            properties,
            reasons,
        })
    };
    let one = unsubscribe_filters(&["a/#"]);
    let two = unsubscribe_filters(&["a/#", "€"]);
    vec![
        ok(
            "unsubscribe",
            V3,
            framed(0xa2, b"\0\x0a\0\x03a/#"),
            unsubscribe(Properties::EMPTY, one),
        ),
        ok(
            "unsubscribe two filters",
            V3,
            framed(0xa2, b"\0\x0a\0\x03a/#\0\x03\xe2\x82\xac"),
            unsubscribe(Properties::EMPTY, two),
        ),
        other_form(
            "unsubscribe dup",
            &[V3_1],
            framed(0xaa, b"\0\x0a\0\x03a/#"),
            unsubscribe(Properties::EMPTY, one),
        ),
        ok(
            "unsubscribe 5",
            &[V5],
            framed(0xa2, b"\0\x0a\0\0\x03a/#"),
            unsubscribe(Properties::EMPTY, one),
        ),
        ok(
            "unsubscribe 5 user property",
            &[V5],
            framed(0xa2, b"\0\x0a\x07\x26\0\x01k\0\x01v\0\x03a/#"),
            unsubscribe(properties(&[Property::UserProperty("k", "v")]), one),
        ),
        ok(
            "unsuback",
            V3,
            b"\xb0\x02\0\x0a".to_vec(),
            unsuback(b"", Properties::EMPTY),
        ),
        ok(
            "unsuback 5",
            &[V5],
            framed(0xb0, b"\0\x0a\0\0\x11"),
            unsuback(b"\0\x11", Properties::EMPTY),
        ),
        ok(
            "unsuback 5 reason string",
            &[V5],
            framed(0xb0, b"\0\x0a\x04\x1f\0\x01w\x8f"),
            unsuback(b"\x8f", properties(&[Property::ReasonString("w")])),
        ),
    ]
}

fn pings_disconnect_auth() -> Vec<Case> {
    let disconnect = |reason, properties| Packet::Disconnect(Disconnect { reason, properties });
    let auth = |reason, properties| Packet::Auth(Auth { reason, properties });
    let all = properties(&[
        Property::SessionExpiryInterval(0),
        Property::ReasonString("r"),
        Property::UserProperty("k", "v"),
        Property::ServerReference("s"),
    ]);
    let method = properties(&[Property::AuthenticationMethod("m")]);
    let method_and_data = properties(&[
        Property::AuthenticationMethod("m"),
        Property::AuthenticationData(b"\0\xff"),
        Property::ReasonString("r"),
        Property::UserProperty("k", "v"),
    ]);
    vec![
        ok("pingreq", ALL, b"\xc0\0".to_vec(), Packet::PingReq),
        ok("pingresp", ALL, b"\xd0\0".to_vec(), Packet::PingResp),
        ok(
            "disconnect",
            ALL,
            b"\xe0\0".to_vec(),
            disconnect(ReasonCode::Success, Properties::EMPTY),
        ),
        ok(
            "disconnect 5 reason",
            &[V5],
            b"\xe0\x01\x04".to_vec(),
            disconnect(ReasonCode::DisconnectWithWillMessage, Properties::EMPTY),
        ),
        other_form(
            "disconnect 5 reason 0",
            &[V5],
            b"\xe0\x01\0".to_vec(),
            disconnect(ReasonCode::Success, Properties::EMPTY),
        ),
        other_form(
            "disconnect 5 empty properties",
            &[V5],
            b"\xe0\x02\x8e\0".to_vec(),
            disconnect(ReasonCode::SessionTakenOver, Properties::EMPTY),
        ),
        ok(
            "disconnect 5 every property",
            &[V5],
            framed(0xe0, b"\x9d\x14\x11\0\0\0\0\x1f\0\x01r\x26\0\x01k\0\x01v\x1c\0\x01s"),
            disconnect(ReasonCode::ServerMoved, all),
        ),
        ok(
            "auth 5",
            &[V5],
            b"\xf0\0".to_vec(),
            auth(ReasonCode::Success, Properties::EMPTY),
        ),
        other_form(
            "auth 5 success in full",
            &[V5],
            b"\xf0\x02\0\0".to_vec(),
            auth(ReasonCode::Success, Properties::EMPTY),
        ),
        ok(
            "auth 5 re-authenticate",
            &[V5],
            framed(0xf0, b"\x19\x04\x15\0\x01m"),
            auth(ReasonCode::ReAuthenticate, method),
        ),
        ok(
            "auth 5 every property",
            &[V5],
            framed(
                0xf0,
                b"\x18\x14\x15\0\x01m\x16\0\x02\0\xff\x1f\0\x01r\x26\0\x01k\0\x01v",
            ),
            auth(ReasonCode::ContinueAuthentication, method_and_data),
        ),
    ]
}
