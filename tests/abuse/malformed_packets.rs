//! Group A: malformed packets and packets in the wrong protocol state.

use std::io::Read;

use super::{EITHER, MALFORMED, PROTOCOL_ERROR, assert_closed_for, assert_closes, assert_refused, refusal, watcher};
use crate::support::packet::{self, acknowledge, body, connect_raw, disconnect, frame, string, subscribe, unsubscribe};
use crate::support::*;

const ILL_FORMED_UTF8: [&[u8]; 6] = [
    b"\xFF",
    b"a\xC0\x80",
    b"\xED\xA0\x80",
    b"\xF4\x90\x80\x80",
    b"ab\xE2\x82",
    b"\x80",
];

/// Returns one well-formed packet of each type except CONNECT.
fn first_packets() -> Vec<Vec<u8>> {
    vec![
        frame(0x20, &[0, 0]),
        Publish::new("a", "b").bytes(V4),
        Publish::new("a", "b").qos(1).bytes(V4),
        acknowledge(kind::PUBACK, 1),
        acknowledge(kind::PUBREC, 1),
        acknowledge(kind::PUBREL, 1),
        acknowledge(kind::PUBCOMP, 1),
        subscribe(V4, 1, &[("a", 0)], &[]),
        frame(0x90, &[0, 1, 0]),
        unsubscribe(V4, 1, &["a"]),
        frame(0xB0, &[0, 1]),
        packet::PINGREQ.to_vec(),
        frame(0xD0, &[]),
        packet::DISCONNECT.to_vec(),
        frame(0xF0, &[]),
    ]
}

#[test]
fn a01_first_packet_other_than_connect_closes_without_answer() {
    // [MQTT-3.1.0-1]
    for bytes in first_packets() {
        assert_eq!(assert_refused(&bytes), None, "{bytes:02x?} was answered");
    }
}

#[test]
fn a02_second_connect_closes_and_publishes_the_will() {
    // [MQTT-3.1.0-2]
    for version in ALL_VERSIONS {
        let topic = unique("a02");
        let mut watcher = watcher(&topic, 0);
        let connect = Connect::new(version, unique("a02")).will(Will::new(&topic, "second CONNECT"));
        let mut peer = Server::shared().session(&connect);
        peer.send(&connect.bytes());
        assert_closed_for(&mut peer, &connect.bytes(), &[PROTOCOL_ERROR]);
        assert_eq!(watcher.expect_publish().payload_str(), "second CONNECT");
    }
    Server::shared().assert_alive();
}

#[test]
fn a03_remaining_length_of_five_bytes_closes() {
    // 2.2.3 / [MQTT-1.5.5]
    for first in [0x10, 0x30, 0xC0] {
        for length in [
            [0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
            [0x80, 0x80, 0x80, 0x80, 0x01],
            [0x80, 0x80, 0x80, 0x80, 0x00],
        ] {
            let bytes = [&[first], &length[..]].concat();
            assert_refused(&bytes);
            for version in ALL_VERSIONS {
                assert_closes(version, &bytes, &[MALFORMED]);
            }
        }
    }
}

#[test]
fn a04_non_minimal_remaining_length_closes() {
    // [MQTT-1.5.5-1]
    assert_closes(V5, &[0xC0, 0x80, 0x00], &[MALFORMED]);
    let publish = Publish::new("a", "b").bytes(V5);
    let longer = [&[0x30, 0x80 | publish[1], 0x00], body(&publish)].concat();
    assert_closes(V5, &longer, &[MALFORMED]);
    let connect = Connect::new(V5, unique("a04")).bytes();
    let longer = [&[0x10, 0x80 | connect[1], 0x80, 0x00], body(&connect)].concat();
    assert_refused(&longer);
}

#[test]
fn a04_non_minimal_property_length_closes() {
    // [MQTT-1.5.5-1]
    let publish = [string("a"), vec![0x80, 0x00], b"payload".to_vec()].concat();
    assert_closes(V5, &frame(0x30, &publish), &[MALFORMED]);
    let connect = [vec![0x80, 0x00], string(unique("a04"))].concat();
    assert_refused(&connect_raw("MQTT", 5, 0x02, 60, &connect));
    // The Subscription Identifier is a Variable Byte Integer, too.
    let identifier = [
        vec![0x00, 0x01, 0x04, prop::SUBSCRIPTION_IDENTIFIER, 0x81, 0x80, 0x00],
        string("a"),
        vec![0],
    ]
    .concat();
    assert_closes(V5, &frame(0x82, &identifier), &[MALFORMED]);
}

#[test]
fn a05_reserved_packet_type_closes() {
    for reserved in [frame(0x00, &[]), frame(0x0F, &[1, 2, 3])] {
        assert_refused(&reserved);
        for version in ALL_VERSIONS {
            assert_closes(version, &reserved, &EITHER);
        }
    }
    for version in [V3, V4] {
        assert_closes(version, &frame(0xF0, &[]), &[]);
        assert_closes(version, &frame(0xF0, &[0x18, 0x00]), &[]);
    }
}

#[test]
fn a06_connect_with_reserved_flag_is_refused() {
    // [MQTT-3.1.2-3]. In MQTT 3.1 the bit is unused.
    for version in [V4, V5] {
        let connect = Connect::new(version, unique("a06"));
        let (name, level) = packet::protocol(version);
        assert_refused(&connect_raw(
            name,
            level,
            connect.flags() | 0x01,
            60,
            &connect.payload(),
        ));
    }
}

#[test]
fn a07_wrong_protocol_name_is_refused() {
    // [MQTT-3.1.2-1]
    for name in ["MQTTX", "mqtt", "", "MQT", "MQIsdpp", "mqisdp"] {
        for version in ALL_VERSIONS {
            assert_refused(&connect_raw(
                name,
                version as u8,
                0x02,
                60,
                &Connect::new(version, unique("a07")).payload(),
            ));
        }
    }
    assert_refused(&connect_raw(
        "MQIsdp",
        4,
        0x02,
        60,
        &Connect::new(V4, unique("a07")).payload(),
    ));
    assert_refused(&connect_raw(
        "MQIsdp",
        5,
        0x02,
        60,
        &Connect::new(V5, unique("a07")).payload(),
    ));
}

#[test]
fn a08_unsupported_protocol_level_is_refused_with_its_code() {
    // [MQTT-3.1.2-2]
    for level in [0, 1, 2, 6, 99, 255] {
        let code = assert_refused(&connect_raw(
            "MQTT",
            level,
            0x02,
            60,
            &Connect::new(V4, unique("a08")).payload(),
        ));
        assert!(
            matches!(code, None | Some(0x01 | 0x84)),
            "level {level}: code {code:02x?}"
        );
    }
    for level in [6, 99, 255] {
        let payload = Connect::new(V4, unique("a08")).payload();
        let mut peer = Server::shared().connect();
        peer.send(&connect_raw("MQTT", level, 0x02, 60, &payload));
        let closed = peer.expect_closed(PATIENCE);
        let answers: Vec<Vec<u8>> = closed
            .packets
            .iter()
            .map(|packet| frame(packet.first, &packet.body))
            .collect();
        assert_eq!(answers, [[0x20_u8, 0x02, 0x00, 0x01]], "level {level}");
    }
}

#[test]
fn a09_will_qos_3_is_refused() {
    // [MQTT-3.1.2-14]
    for version in ALL_VERSIONS {
        assert_refused(
            &Connect::new(version, unique("a09"))
                .will(Will::new("a09", "").qos(3))
                .bytes(),
        );
    }
}

#[test]
fn a10_will_options_without_will_flag_are_refused() {
    // [MQTT-3.1.2-11], [MQTT-3.1.2-13], [MQTT-3.1.2-15]
    for version in [V4, V5] {
        for options in [0x08, 0x10, 0x18, 0x20, 0x28] {
            let (name, level) = packet::protocol(version);
            let payload = Connect::new(version, unique("a10")).payload();
            assert_refused(&connect_raw(name, level, 0x02 | options, 60, &payload));
        }
    }
}

#[test]
fn a11_password_without_user_name_is_refused_in_3_1_1() {
    // [MQTT-3.1.2-22]
    assert_refused(&Connect::new(V4, unique("a11")).password("secret").bytes());
}

#[test]
fn a11_password_without_user_name_is_well_formed_in_5() {
    let server = Server::shared();
    let mut peer = server.connect();
    let connack = peer.handshake(&Connect::new(V5, unique("a11")).password("secret"));
    // The access rules decide whether this client is accepted.
    assert!(matches!(connack.code, 0x00 | 0x86 | 0x87), "{connack:?}");
    server.assert_alive();
}

/// Returns a CONNECT with all fields, so that every truncation is an error. In MQTT 3.1 a user name or password may be
/// missing although its flag is set: "the Remaining Length field takes precedence over the User Name flag".
fn full_connect(version: Version) -> Connect {
    let connect = Connect::new(version, unique("a12")).will(Will::new("a12/will", "gone").qos(1).retain());
    match version {
        V3 => connect,
        V4 => connect.user("user", "password"),
        V5 => connect
            .user("user", "password")
            .property(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 10))
            .property(prop::u16(prop::RECEIVE_MAXIMUM, 10))
            .property(prop::user("name", "value")),
    }
}

#[test]
fn a12_connect_cut_at_every_length_is_refused() {
    for version in ALL_VERSIONS {
        let whole = full_connect(version).bytes();
        for length in 0..body(&whole).len() {
            refusal(Server::shared(), &frame(0x10, &body(&whole)[..length]));
        }
    }
    Server::shared().assert_alive();
}

#[test]
fn a13_connect_with_trailing_bytes_is_refused() {
    for version in ALL_VERSIONS {
        let whole = Connect::new(version, unique("a13")).bytes();
        for trailing in [&[0x00][..], &[0x00, 0x00], b"trailing bytes"] {
            assert_refused(&frame(0x10, &[body(&whole), trailing].concat()));
        }
    }
}

#[test]
fn a14_ill_formed_utf8_in_connect_is_refused() {
    // [MQTT-1.5.3-1], [MQTT-1.5.4-1]
    for version in [V4, V5] {
        for text in ILL_FORMED_UTF8 {
            assert_refused(&Connect::new(version, text).bytes());
            assert_refused(&Connect::new(version, unique("a14")).user(text, "password").bytes());
            assert_refused(&Connect::new(version, unique("a14")).will(Will::new(text, "")).bytes());
        }
    }
}

#[test]
fn a14_ill_formed_utf8_in_topics_and_filters_closes() {
    // [MQTT-1.5.3-1], [MQTT-1.5.4-1]
    for version in ALL_VERSIONS {
        for text in ILL_FORMED_UTF8 {
            for qos in 0..=2 {
                assert_closes(version, &Publish::new(text, "").qos(qos).bytes(version), &[MALFORMED]);
            }
            assert_closes(version, &subscribe(version, 1, &[(text, 0)], &[]), &[MALFORMED]);
            assert_closes(version, &unsubscribe(version, 1, &[text]), &[MALFORMED]);
        }
    }
}

#[test]
fn a15_null_character_is_refused() {
    // [MQTT-1.5.3-2], [MQTT-1.5.4-2], [MQTT-4.7.3-2]
    for version in [V4, V5] {
        assert_refused(&Connect::new(version, "a\0b").bytes());
        assert_refused(&Connect::new(version, unique("a15")).will(Will::new("a\0b", "")).bytes());
        assert_closes(version, &Publish::new("a\0b", "").bytes(version), &[MALFORMED]);
        assert_closes(version, &subscribe(version, 1, &[("a\0b", 0)], &[]), &[MALFORMED]);
        assert_closes(version, &unsubscribe(version, 1, &["a\0b"]), &[MALFORMED]);
    }
}

#[test]
fn a16_publish_topic_with_wildcards_closes() {
    // [MQTT-3.3.2-2]
    for version in ALL_VERSIONS {
        for topic in ["a/+", "#", "a/#/b", "a+b", "a#"] {
            for qos in 0..=2 {
                assert_closes(version, &Publish::new(topic, "x").qos(qos).bytes(version), &[0x90]);
            }
        }
    }
}

#[test]
fn a16_will_topic_with_wildcards_is_refused() {
    for version in ALL_VERSIONS {
        assert_refused(&Connect::new(version, unique("a16")).will(Will::new("a/+", "")).bytes());
    }
}

#[test]
fn a17_publish_with_empty_topic_closes() {
    // [MQTT-4.7.3-1]. In MQTT 5 an empty topic without an alias is a protocol error (3.3.2.1).
    for version in ALL_VERSIONS {
        for qos in 0..=2 {
            assert_closes(version, &Publish::new("", "x").qos(qos).bytes(version), &EITHER);
        }
    }
}

#[test]
fn a18_publish_with_qos_3_closes() {
    // [MQTT-3.3.1-4]
    for version in ALL_VERSIONS {
        assert_closes(version, &Publish::new("a18", "x").qos(3).bytes(version), &[MALFORMED]);
    }
}

#[test]
fn a19_publish_qos_0_with_dup_closes() {
    // [MQTT-3.3.1-2]
    for version in [V4, V5] {
        assert_closes(version, &Publish::new("a19", "x").dup().bytes(version), &EITHER);
    }
}

#[test]
fn a20_packet_identifier_0_closes() {
    // [MQTT-2.3.1-1], [MQTT-2.2.1-3]
    for version in ALL_VERSIONS {
        assert_closes(version, &Publish::new("a20", "x").qos(1).id(0).bytes(version), &EITHER);
        assert_closes(version, &Publish::new("a20", "x").qos(2).id(0).bytes(version), &EITHER);
        assert_closes(version, &subscribe(version, 0, &[("a20", 0)], &[]), &EITHER);
        assert_closes(version, &unsubscribe(version, 0, &["a20"]), &EITHER);
    }
}

#[test]
fn a21_wrong_fixed_header_flags_close() {
    // [MQTT-2.2.2-2], [MQTT-3.8.1-1], [MQTT-3.10.1-1], [MQTT-3.6.1-1]
    for version in [V4, V5] {
        let subscribe = subscribe(version, 1, &[("a21", 0)], &[]);
        let unsubscribe = unsubscribe(version, 1, &["a21"]);
        for flags in [0x00, 0x01, 0x03, 0x04, 0x0A, 0x0F] {
            assert_closes(version, &frame(0x80 | flags, body(&subscribe)), &EITHER);
            assert_closes(version, &frame(0xA0 | flags, body(&unsubscribe)), &EITHER);
            assert_closes(version, &frame(0x60 | flags, &[0, 1]), &EITHER);
        }
        for flags in [0x01, 0x02, 0x08] {
            assert_closes(version, &frame(0xC0 | flags, &[]), &EITHER);
            assert_closes(version, &frame(0x40 | flags, &[0, 1]), &EITHER);
        }
    }
}

#[test]
fn a21_disconnect_with_wrong_flags_publishes_the_will() {
    // [MQTT-3.14.1-1]
    for version in [V4, V5] {
        let topic = unique("a21");
        let mut watcher = watcher(&topic, 0);
        let mut peer =
            Server::shared().session(&Connect::new(version, unique("a21")).will(Will::new(&topic, "malformed")));
        peer.send(&[0xE1, 0x00]);
        assert_closed_for(&mut peer, &[0xE1, 0x00], &EITHER);
        assert_eq!(watcher.expect_publish().payload_str(), "malformed");
    }
    Server::shared().assert_alive();
}

#[test]
fn a22_subscribe_and_unsubscribe_without_filter_close() {
    // [MQTT-3.8.3-3], [MQTT-3.10.3-2]
    for version in [V4, V5] {
        let none: [(&str, u8); 0] = [];
        assert_closes(version, &subscribe(version, 1, &none, &[]), &EITHER);
        assert_closes(version, &unsubscribe(version, 1, &[] as &[&str]), &EITHER);
    }
}

#[test]
fn a23_reserved_subscription_options_close() {
    // [MQTT-3.8.3-4] (3.1.1), [MQTT-3.8.3-5] (5.0)
    for options in [0x03, 0x04, 0x08, 0x10, 0x40, 0x80, 0xFF] {
        assert_closes(V4, &subscribe(V4, 1, &[("a23", options)], &[]), &[]);
    }
    for options in [0x03, 0x30, 0x40, 0x80, 0xC0, 0xFF] {
        assert_closes(V5, &subscribe(V5, 1, &[("a23", options)], &[]), &EITHER);
    }
}

#[test]
fn a23_no_local_on_a_shared_subscription_closes() {
    // [MQTT-3.8.3-4] (5.0)
    assert_closes(
        V5,
        &subscribe(V5, 1, &[("$share/group/a23", 0x04)], &[]),
        &[PROTOCOL_ERROR],
    );
}

#[test]
fn a24_invalid_filters_are_never_granted() {
    // [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    let filters = [
        "a#",
        "#/a",
        "a/#/b",
        "a+",
        "+a",
        "a/b+/c",
        "",
        "##",
        "++",
        "$share//a",
        "$share/g+/a",
        "$share/g#/a",
        "$share/g",
        "$share/g/",
        "$share/g/a#",
    ];
    for version in [V4, V5] {
        for filter in filters {
            let mut peer = Server::shared().session(&Connect::new(version, unique("a24")));
            peer.send(&subscribe(version, 1, &[(filter, 0)], &[]));
            assert_not_granted(peer, filter);
        }
    }
    Server::shared().assert_alive();
}

#[track_caller]
fn assert_not_granted(mut peer: Peer, filter: &str) {
    match peer.read(PATIENCE) {
        Reading::Closed => {}
        Reading::Packet(answer) if answer.kind() == kind::SUBACK => {
            let codes = answer.reason_codes(peer.version());
            assert!(
                codes.len() == 1 && codes[0] >= 0x80,
                "{filter:?} was granted: {codes:02x?}"
            );
        }
        Reading::Packet(answer) => {
            assert!(answer.disconnect_reason() >= 0x80, "{filter:?}: {answer:?}");
            peer.expect_closed(PATIENCE);
        }
        Reading::Silence => panic!("{filter:?} got no answer"),
    }
}

/// Returns property lists that are invalid in every packet. The first number is the declared length.
fn bad_property_lists() -> Vec<(&'static str, Vec<u8>)> {
    let cut = [vec![3], prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1)[..3].to_vec()].concat();
    vec![
        ("unknown 0x00", vec![2, 0x00, 0x00]),
        ("unknown 0x7E", vec![2, 0x7E, 0x00]),
        ("unknown in two bytes", vec![3, 0x80, 0x01, 0x00]),
        (
            "server's own",
            prop::list(&prop::text(prop::ASSIGNED_CLIENT_IDENTIFIER, "x")),
        ),
        ("cut value", cut),
        ("cut string", vec![4, prop::USER_PROPERTY, 0x00, 0x09, b'a']),
        (
            "user property without value",
            vec![4, prop::USER_PROPERTY, 0x00, 0x01, b'a'],
        ),
        (
            "ill-formed UTF-8",
            prop::list(&[&[prop::USER_PROPERTY][..], &string(b"\xFF"), &string("v")].concat()),
        ),
        ("overrun length", vec![100, prop::PAYLOAD_FORMAT_INDICATOR, 0x00]),
        ("length of five bytes", vec![0x80, 0x80, 0x80, 0x80, 0x01]),
    ]
}

#[test]
fn a25_bad_properties_in_connect_are_refused() {
    // [MQTT-2.2.2-2], 3.1.2.11
    let twice = |property: Vec<u8>| prop::list(&[property.clone(), property].concat());
    let mut lists = bad_property_lists();
    lists.push((
        "session expiry twice",
        twice(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1)),
    ));
    lists.push(("receive maximum twice", twice(prop::u16(prop::RECEIVE_MAXIMUM, 9))));
    lists.push(("a topic alias", prop::list(&prop::u16(prop::TOPIC_ALIAS, 1))));
    lists.push((
        "a will delay outside the will",
        prop::list(&prop::u32(prop::WILL_DELAY_INTERVAL, 1)),
    ));
    lists.push((
        "problem information 2",
        prop::list(&prop::byte(prop::REQUEST_PROBLEM_INFORMATION, 2)),
    ));
    lists.push((
        "response information 2",
        prop::list(&prop::byte(prop::REQUEST_RESPONSE_INFORMATION, 2)),
    ));
    for (what, list) in lists {
        println!("{what}");
        let code = assert_refused(&connect_raw(
            "MQTT",
            5,
            0x02,
            60,
            &[list, string(unique("a25"))].concat(),
        ));
        assert!(
            code.is_none_or(|code| EITHER.contains(&code)),
            "{what}: CONNACK {code:02x?}"
        );
    }
}

#[test]
fn a25_bad_will_properties_are_refused() {
    let twice = |property: Vec<u8>| prop::list(&[property.clone(), property].concat());
    let mut lists = bad_property_lists();
    lists.push(("will delay twice", twice(prop::u32(prop::WILL_DELAY_INTERVAL, 1))));
    lists.push((
        "a session expiry",
        prop::list(&prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1)),
    ));
    lists.push((
        "format indicator 2",
        prop::list(&prop::byte(prop::PAYLOAD_FORMAT_INDICATOR, 2)),
    ));
    for (what, list) in lists {
        println!("{what}");
        let payload = [vec![0], string(unique("a25")), list, string("a25"), string("gone")].concat();
        assert_refused(&connect_raw("MQTT", 5, 0x06, 60, &payload));
    }
}

#[test]
fn a25_bad_properties_in_a_session_close() {
    let twice = |property: Vec<u8>| prop::list(&[property.clone(), property].concat());
    let mut lists = bad_property_lists();
    lists.push(("receive maximum", prop::list(&prop::u16(prop::RECEIVE_MAXIMUM, 1))));
    let mut packets = Vec::new();
    for (what, list) in lists {
        packets.push((what, frame(0x30, &[string("a25"), list.clone()].concat())));
        packets.push((
            what,
            frame(0x82, &[vec![0, 1], list.clone(), string("a25"), vec![0]].concat()),
        ));
        packets.push((what, frame(0xA2, &[vec![0, 1], list, string("a25")].concat())));
    }
    for (what, list) in [
        (
            "format indicator twice",
            twice(prop::byte(prop::PAYLOAD_FORMAT_INDICATOR, 0)),
        ),
        (
            "message expiry twice",
            twice(prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, 9)),
        ),
        ("topic alias twice", twice(prop::u16(prop::TOPIC_ALIAS, 1))),
        (
            "format indicator 2",
            prop::list(&prop::byte(prop::PAYLOAD_FORMAT_INDICATOR, 2)),
        ),
        (
            "response topic with a wildcard",
            prop::list(&prop::text(prop::RESPONSE_TOPIC, "a/#")),
        ),
    ] {
        packets.push((what, frame(0x30, &[string("a25"), list].concat())));
    }
    let identifiers = twice(prop::varint(prop::SUBSCRIPTION_IDENTIFIER, 1));
    packets.push((
        "identifier twice",
        frame(0x82, &[vec![0, 1], identifiers, string("a25"), vec![0]].concat()),
    ));
    for (what, bytes) in packets {
        println!("{what}: {bytes:02x?}");
        // A wildcard in a Response Topic is also an invalid topic name [MQTT-3.3.2-14].
        assert_closes(V5, &bytes, &[MALFORMED, PROTOCOL_ERROR, 0x90]);
    }
}

#[test]
fn a25_disconnect_with_bad_properties_publishes_the_will() {
    for (what, list) in bad_property_lists() {
        println!("{what}");
        let topic = unique("a25");
        let mut watcher = watcher(&topic, 0);
        let mut peer = Server::shared().session(&Connect::new(V5, unique("a25")).will(Will::new(&topic, what)));
        peer.send(&frame(0xE0, &[vec![0], list].concat()));
        let answer = peer.expect_closed(PATIENCE).disconnect_reason();
        assert!(
            answer.is_none_or(|reason| EITHER.contains(&reason)),
            "{what}: {answer:02x?}"
        );
        assert_eq!(watcher.expect_publish().payload_str(), what);
    }
    Server::shared().assert_alive();
}

#[test]
fn a26_receive_maximum_or_maximum_packet_size_0_is_refused() {
    for property in [
        prop::u16(prop::RECEIVE_MAXIMUM, 0),
        prop::u32(prop::MAXIMUM_PACKET_SIZE, 0),
    ] {
        let code = assert_refused(&Connect::new(V5, unique("a26")).property(property).bytes());
        assert_eq!(code, Some(PROTOCOL_ERROR));
    }
}

#[test]
fn a27_invalid_topic_alias_closes() {
    // [MQTT-3.3.2-8], [MQTT-3.3.2-9]
    let config = Config::new("[mqtt]\nmax_topic_alias_in = 10\n").mosquitto("max_topic_alias 10");
    let server = Server::start(&config);
    for (topic, alias, reason) in [
        ("a27", 0, 0x94),
        ("a27", 11, 0x94),
        ("a27", 65_535, 0x94),
        ("", 11, 0x94),
        ("", 10, PROTOCOL_ERROR),
    ] {
        let mut peer = server.connect();
        let connack = peer.handshake(&Connect::new(V5, unique("a27")));
        assert_eq!(connack.properties.number(prop::TOPIC_ALIAS_MAXIMUM), Some(10));
        let bytes = Publish::new(topic, "x")
            .property(prop::u16(prop::TOPIC_ALIAS, alias))
            .bytes(V5);
        peer.send(&bytes);
        assert_closed_for(&mut peer, &bytes, &[reason]);
    }
    server.assert_alive();
}

#[test]
fn a28_invalid_subscription_identifier_closes() {
    // [MQTT-3.8.2.1.2], [MQTT-3.3.4-6]
    let zero = prop::varint(prop::SUBSCRIPTION_IDENTIFIER, 0);
    assert_closes(V5, &subscribe(V5, 1, &[("a28", 0)], &zero), &[PROTOCOL_ERROR]);
    let sent_by_client = Publish::new("a28", "x").property(prop::varint(prop::SUBSCRIPTION_IDENTIFIER, 1));
    assert_closes(V5, &sent_by_client.bytes(V5), &[PROTOCOL_ERROR]);
}

#[test]
fn a29_unknown_authentication_method_is_refused() {
    // [MQTT-4.12.0-1]
    let method = prop::text(prop::AUTHENTICATION_METHOD, "NO-SUCH-METHOD");
    let code = assert_refused(&Connect::new(V5, unique("a29")).property(method.clone()).bytes());
    assert_eq!(code, Some(0x8C));
    let with_data = Connect::new(V5, unique("a29"))
        .property(method)
        .property(prop::text(prop::AUTHENTICATION_DATA, "x"));
    assert_eq!(assert_refused(&with_data.bytes()), Some(0x8C));
}

#[test]
fn a29_authentication_data_without_method_is_refused() {
    // 3.1.2.11.10
    let data = prop::text(prop::AUTHENTICATION_DATA, "x");
    let code = assert_refused(&Connect::new(V5, unique("a29")).property(data).bytes());
    assert_eq!(code, Some(PROTOCOL_ERROR));
}

#[test]
fn a29_auth_in_a_session_without_method_closes() {
    // [MQTT-4.12.0-7]
    let method = prop::list(&prop::text(prop::AUTHENTICATION_METHOD, "NO-SUCH-METHOD"));
    for auth in [
        vec![],
        vec![0x18, 0x00],
        vec![0x19, 0x00],
        [vec![0x19], method.clone()].concat(),
        [vec![0x18], method].concat(),
    ] {
        assert_closes(V5, &frame(0xF0, &auth), &[PROTOCOL_ERROR, 0x8C, MALFORMED]);
    }
}

#[test]
fn a30_disconnect_that_raises_session_expiry_from_0_is_refused() {
    // [MQTT-3.14.2-2]
    let server = Server::shared();
    let connect = Connect::new(V5, unique("a30"));
    let mut peer = server.session(&connect);
    let raise = disconnect(0x00, &prop::u32(prop::SESSION_EXPIRY_INTERVAL, 100));
    peer.send(&raise);
    assert_closed_for(&mut peer, &raise, &[PROTOCOL_ERROR]);
    let connack = server.connect().handshake(&connect.clean(false));
    assert!(!connack.session_present, "the session survived");
}

#[test]
fn a30_disconnect_with_bad_reason_code_closes() {
    let server = Server::shared();
    for reason in [0x01, 0x33, 0x7F, 0x8B, 0x8E, 0xFF] {
        let connect = Connect::new(V5, unique("a30"));
        let mut peer = server.session(&connect);
        peer.send(&disconnect(reason, &[]));
        let closed = peer.expect_closed(PATIENCE);
        if let Some(answer) = closed.disconnect_reason() {
            assert!(EITHER.contains(&answer), "{reason:#04x} got {answer:#04x}");
        }
        let connack = server.connect().handshake(&connect.clean(false));
        assert!(
            !connack.session_present,
            "the session survived DISCONNECT {reason:#04x}"
        );
    }
    server.assert_alive();
}

fn many_user_properties() -> (Vec<(String, String)>, Vec<u8>) {
    let pairs: Vec<_> = (0..3000)
        .map(|number| (format!("k{}", number % 7), format!("v{number}")))
        .collect();
    let bytes = pairs.iter().flat_map(|(name, value)| prop::user(name, value)).collect();
    (pairs, bytes)
}

#[test]
fn a31_thousands_of_user_properties_are_answered_quickly() {
    let server = Server::shared();
    let (pairs, properties) = many_user_properties();
    let connack = server
        .connect()
        .handshake(&Connect::new(V5, unique("a31")).property(properties.clone()));
    assert!(connack.code == 0 || connack.code >= 0x80, "{connack:?}");
    let topic = unique("a31");
    let mut watcher = watcher(&topic, 1);
    let mut peer = server.session(&Connect::new(V5, unique("a31")));
    peer.send(&Publish::new(&topic, "x").qos(1).property(properties).bytes(V5));
    let answer = peer.expect_packet();
    match answer.kind() {
        kind::PUBACK if answer.reason() < 0x80 => assert_eq!(watcher.receive().properties.user_properties(), pairs),
        kind::PUBACK => peer.ping_alone(),
        _ => assert!(answer.disconnect_reason() >= 0x80, "{answer:?}"),
    }
    server.assert_alive();
}

#[test]
fn a31_thousands_of_user_properties_are_forwarded_intact() {
    // [MQTT-3.3.2-17], [MQTT-3.3.2-18]
    let server = Server::start(&Config::new(""));
    let (pairs, properties) = many_user_properties();
    let topic = unique("a31");
    let mut watcher = server.session(&Connect::new(V5, unique("a31")));
    watcher.subscribe(&topic, 1);
    let mut peer = server.session(&Connect::new(V5, unique("a31")).property(properties.clone()));
    assert_eq!(peer.publish(&Publish::new(&topic, "x").qos(1).property(properties)), 0);
    assert_eq!(watcher.receive().properties.user_properties(), pairs);
    server.assert_alive();
}

#[test]
fn a32_random_bytes_are_never_accepted() {
    let server = Server::shared();
    for seed in 0..200 {
        let mut peer = server.connect();
        // The server may close or reset the connection before it has read all bytes.
        let _ = peer.try_send(&noise(seed, 4096));
        let _ = peer.stream().shutdown(std::net::Shutdown::Write);
        let closed = peer.expect_closed(PATIENCE);
        assert!(
            closed
                .packets
                .iter()
                .all(|packet| packet.kind() == kind::CONNACK && packet.body[1] != 0),
            "{closed:?}"
        );
    }
    server.assert_alive();
}

#[test]
fn a33_random_bytes_after_connect_close_the_session() {
    let server = Server::shared();
    for seed in 1000..1200 {
        let mut peer = server.session(&Connect::new(ALL_VERSIONS[seed as usize % 3], unique("a33")));
        let _ = peer.try_send(&noise(seed, 4096));
        let _ = peer.stream().shutdown(std::net::Shutdown::Write);
        peer.expect_closed(PATIENCE);
    }
    server.assert_alive();
}

#[test]
fn a34_packets_only_a_server_sends_close() {
    for version in ALL_VERSIONS {
        let property_list: &[u8] = if version == V5 { &[0] } else { &[] };
        assert_closes(version, &frame(0x20, &[&[0, 0], property_list].concat()), &EITHER);
        assert_closes(version, &frame(0x90, &[&[0, 1], property_list, &[0]].concat()), &EITHER);
        assert_closes(version, &frame(0xB0, &[&[0, 1], property_list].concat()), &EITHER);
        assert_closes(version, &frame(0xD0, &[]), &EITHER);
    }
}

#[test]
fn a35_unsolicited_acknowledgements_do_no_harm() {
    let server = Server::shared();
    for version in ALL_VERSIONS {
        for (of_kind, answer) in [
            (kind::PUBACK, None),
            (kind::PUBREC, Some(kind::PUBREL)),
            (kind::PUBCOMP, None),
            (kind::PUBREL, Some(kind::PUBCOMP)),
        ] {
            let mut peer = server.session(&Connect::new(version, unique("a35")));
            peer.send(&[acknowledge(of_kind, 0x1234), packet::PINGREQ.to_vec()].concat());
            let mut expected_answer = answer;
            loop {
                match peer.read(PATIENCE) {
                    Reading::Closed => break,
                    Reading::Packet(packet) if packet.kind() == kind::PINGRESP => break,
                    Reading::Packet(packet) if packet.kind() == kind::DISCONNECT => {
                        assert!(packet.disconnect_reason() >= 0x80, "{packet:?}");
                    }
                    Reading::Packet(packet) => {
                        assert_eq!(Some(packet.kind()), expected_answer.take(), "an unexpected answer");
                        assert_eq!(packet.packet_id(), 0x1234);
                        if version == V5 {
                            assert_eq!(packet.reason(), 0x92, "Packet Identifier not found");
                        }
                    }
                    Reading::Silence => panic!("no answer"),
                }
            }
        }
    }
    server.assert_alive();
}

#[test]
fn a36_packets_sent_byte_by_byte_are_accepted() {
    let server = Server::shared();
    for version in ALL_VERSIONS {
        let topic = unique("a36");
        let mut peer = server.connect().speak(version);
        let bytes = [
            Connect::new(version, unique("a36")).bytes(),
            subscribe(version, 1, &[(&topic, 1)], &[]),
            Publish::new(&topic, "drop by drop").qos(1).id(2).bytes(version),
        ]
        .concat();
        for byte in bytes {
            peer.send(&[byte]);
        }
        assert_eq!(peer.expect(kind::CONNACK).connack(version).code, 0);
        assert_eq!(peer.expect(kind::SUBACK).reason_codes(version), [1]);
        assert_eq!(peer.expect(kind::PUBACK).packet_id(), 2);
        assert_eq!(peer.receive().payload_str(), "drop by drop");
        peer.disconnect();
    }
}

#[test]
fn a37_packets_pipelined_before_connack_are_processed_in_order() {
    let server = Server::shared();
    for version in ALL_VERSIONS {
        let topic = unique("a37");
        let mut peer = server.connect().speak(version);
        let bytes = [
            Connect::new(version, unique("a37")).bytes(),
            subscribe(version, 1, &[(&topic, 0)], &[]),
            Publish::new(&topic, "first").bytes(version),
            Publish::new(&topic, "second").qos(1).id(2).bytes(version),
            packet::PINGREQ.to_vec(),
        ]
        .concat();
        peer.send(&bytes);
        assert_eq!(peer.expect_packet().connack(version).code, 0);
        assert_eq!(peer.expect_packet().reason_codes(version), [0]);
        assert_eq!(peer.expect(kind::PUBACK).packet_id(), 2);
        peer.expect(kind::PINGRESP);
        assert_eq!(peer.expect_publish().payload_str(), "first");
        assert_eq!(peer.expect_publish().payload_str(), "second");
    }
    server.assert_alive();
}

#[test]
fn a38_half_close_publishes_the_will() {
    // [MQTT-3.1.2-8]
    for version in ALL_VERSIONS {
        let topic = unique("a38");
        let mut watcher = watcher(&topic, 0);
        let mut peer = Server::shared().session(&Connect::new(version, unique("a38")).will(Will::new(&topic, "gone")));
        peer.half_close();
        assert_eq!(watcher.expect_publish().payload_str(), "gone");
        peer.expect_closed(PATIENCE);
    }
    Server::shared().assert_alive();
}

#[test]
fn a39_other_protocols_get_no_answer() {
    let client_hello = [
        &[0x16, 0x03, 0x01, 0x00, 0xC8, 0x01, 0x00, 0x00, 0xC4, 0x03, 0x03][..],
        &noise(39, 194),
    ]
    .concat();
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    let ssh = b"SSH-2.0-OpenSSH_9.2\r\n".to_vec();
    let proxy = b"PROXY TCP4 10.1.1.1 10.1.1.2 1000 1883\r\n".to_vec();
    let server = Server::shared();
    for bytes in [client_hello, http, ssh, proxy] {
        let mut peer = server.connect();
        peer.send(&bytes);
        peer.stream()
            .set_read_timeout(Some(PATIENCE))
            .expect("a socket accepts a timeout");
        let mut answer = Vec::new();
        if let Err(error) = peer.stream().read_to_end(&mut answer) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "not closed: {error}");
        }
        assert!(answer.is_empty(), "{bytes:02x?} was answered: {answer:02x?}");
    }
    server.assert_alive();
}

#[test]
fn a40_packets_after_disconnect_have_no_effect() {
    // [MQTT-3.14.4-2]
    let server = Server::shared();
    for version in ALL_VERSIONS {
        let topic = unique("a40");
        let mut watcher = watcher(&topic, 1);
        let connect = Connect::new(version, unique("a40")).will(Will::new(&topic, "a will after DISCONNECT"));
        let mut peer = server.session(&connect);
        let after = Publish::new(&topic, "after DISCONNECT");
        peer.send(
            &[
                packet::DISCONNECT.to_vec(),
                after.bytes(version),
                after.qos(1).bytes(version),
            ]
            .concat(),
        );
        let closed = peer.expect_closed(PATIENCE);
        assert!(closed.packets.is_empty(), "{closed:?}");
        // A connection with the same client identifier is handled by the same worker, after the first connection.
        let mut peer = server.session(&Connect::new(version, &connect.client_id));
        peer.publish(&Publish::new(&topic, "sentinel").qos(1));
        assert_eq!(watcher.receive_until("sentinel"), []);
    }
    server.assert_alive();
}

#[test]
fn a41_empty_client_id_of_a_persistent_session_is_refused() {
    // [MQTT-3.1.3-8]
    assert_eq!(assert_refused(&Connect::new(V4, "").clean(false).bytes()), Some(0x02));
}

#[test]
fn a42_longest_strings_in_connect_are_answered() {
    // [MQTT-3.1.3-5]
    let server = Server::shared();
    let long = "x".repeat(65535);
    for version in ALL_VERSIONS {
        for connect in [
            Connect::new(version, &long),
            Connect::new(version, unique("a42")).user(&long, "password"),
            Connect::new(version, unique("a42")).user("user", &long),
            Connect::new(version, unique("a42")).will(Will::new(&long, &long)),
        ] {
            let mut peer = server.connect();
            let connack = peer.handshake(&connect);
            if connack.code != 0 {
                peer.expect_closed(PATIENCE);
            }
            server.assert_alive();
        }
    }
}

#[test]
fn a42_longest_topic_is_delivered_or_refused() {
    let server = Server::shared();
    let long = unique("a42/") + &"x".repeat(65000);
    let long = format!("{long:x<65535}");
    let mut watcher = server.session(&Connect::new(V4, unique("a42")));
    if watcher.subscribe_code(&long, 1) >= 0x80 {
        return server.assert_alive();
    }
    let mut peer = server.session(&Connect::new(V4, unique("a42")));
    peer.publish(&Publish::new(&long, "x").qos(1));
    assert_eq!(watcher.receive().topic_str(), long);
    server.assert_alive();
}
