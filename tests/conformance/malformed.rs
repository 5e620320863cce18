//! Tests malformed packets. Chapters 2.1.3 (2.2.2 in 3.1.1), 1.5.5, 2.2.2 and 4.13 (4.8 in 3.1.1).

use super::*;
use crate::support::*;

const ANY_ERROR: [u8; 2] = [MALFORMED_PACKET, PROTOCOL_ERROR];

#[test]
fn fixed_header_flags_are_checked() {
    let id = [0x00, 0x01];
    for version in NUMBERED {
        let mut packets = vec![
            packet::frame(0x41, &id),
            packet::frame(0x51, &id),
            packet::frame(0x60, &id),
            packet::frame(0x63, &id),
            packet::frame(0x71, &id),
            packet::frame(0xC1, &[]),
            packet::frame(0xC8, &[]),
        ];
        let subscribe = packet::subscribe(version, 1, &[("a", 0)], &[]);
        let unsubscribe = packet::unsubscribe(version, 1, &["a"]);
        for whole in [subscribe, unsubscribe] {
            for flags in [0x0, 0x1, 0x3, 0x6, 0xA] {
                packets.push(packet::frame(whole[0] & 0xF0 | flags, packet::body(&whole)));
            }
        }
        for bytes in packets {
            closes(version, &bytes, &ANY_ERROR, "flags");
        }
        for flags in [0x1, 0x2, 0x4, 0x8] {
            let closed = closes(version, &[0xE0 | flags, 0x00], &ANY_ERROR, "DISCONNECT with flags");
            let expected = (version == V5).then_some(MALFORMED_PACKET);
            assert_eq!(closed.disconnect_reason(), expected, "[MQTT-3.14.1-1]");
        }
    }
    closes(V5, &[0xF1, 0x00], &ANY_ERROR, "AUTH with flags");
    closes(V5, &[0xF2, 0x00], &ANY_ERROR, "AUTH with flags");
}

#[test]
fn overlong_integers_close_the_connection() {
    for version in NUMBERED {
        let five_bytes = [0x30, 0x80, 0x80, 0x80, 0x80, 0x01];
        closes(version, &five_bytes, &ANY_ERROR, "a Remaining Length of five bytes");
    }
    closes(
        V5,
        &[0xC0, 0x80, 0x00],
        &ANY_ERROR,
        "a Remaining Length of 0 in two bytes",
    );
    let subscribe = [0x82, 0x08, 0x00, 0x01, 0x80, 0x00, 0x00, 0x01, b'a', 0x00];
    closes(V5, &subscribe, &ANY_ERROR, "a Property Length of 0 in two bytes");
    let identifier = [prop::SUBSCRIPTION_IDENTIFIER, 0x81, 0x00];
    let subscribe = packet::subscribe(V5, 1, &[("a", 0)], &identifier);
    closes(
        V5,
        &subscribe,
        &ANY_ERROR,
        "a Subscription Identifier of 1 in two bytes",
    );
    let identifier = [prop::SUBSCRIPTION_IDENTIFIER, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F];
    let subscribe = packet::subscribe(V5, 1, &[("a", 0)], &identifier);
    closes(V5, &subscribe, &ANY_ERROR, "a Subscription Identifier of five bytes");
}

#[test]
fn server_packets_from_a_client_close_the_connection() {
    for version in ALL_VERSIONS {
        let properties: &[u8] = if version == V5 { &[0x00] } else { &[] };
        let unsuback: &[u8] = if version == V5 { &[0x00] } else { &[] };
        let packets = [
            packet::frame(0x20, &[&[0x00, 0x00], properties].concat()),
            packet::frame(0x90, &[&[0x00, 0x01], properties, &[0x00]].concat()),
            packet::frame(0xB0, &[&[0x00, 0x01], properties, unsuback].concat()),
            packet::frame(0xD0, &[]),
            packet::frame(0x00, &[]),
        ];
        for bytes in packets {
            closes(version, &bytes, &ANY_ERROR, "a packet that only servers send");
        }
    }
    closes(V4, &[0xF0, 0x00], &ANY_ERROR, "packet type 15 in MQTT 3.1.1");
}

#[test]
fn truncated_packets_close_the_connection() {
    for version in NUMBERED {
        let whole = [
            Publish::new("topic", "").qos(1).bytes(version),
            packet::subscribe(version, 1, &[("filter", 1)], &[]),
            packet::unsubscribe(version, 1, &["filter"]),
            packet::acknowledge(kind::PUBACK, 1),
        ];
        for packet in whole {
            let body = packet::body(&packet);
            for length in 0..body.len() {
                let cut = packet::frame(packet[0], &body[..length]);
                closes(version, &cut, &ANY_ERROR, "a packet that is cut");
            }
        }
        let longer = packet::frame(0xC0, &[0x00]);
        closes(version, &longer, &ANY_ERROR, "PINGREQ with a body");
    }
}

#[test]
fn bad_properties_close_the_connection() {
    let twice = |property: Vec<u8>| [property.clone(), property].concat();
    let in_publish: [(&str, Vec<u8>); 9] = [
        ("unknown", vec![0x7F, 0x00]),
        ("of another packet", prop::u16(prop::RECEIVE_MAXIMUM, 1)),
        ("twice", twice(prop::byte(prop::PAYLOAD_FORMAT_INDICATOR, 1))),
        ("twice", twice(prop::u32(prop::MESSAGE_EXPIRY_INTERVAL, 1))),
        ("twice", twice(prop::text(prop::CONTENT_TYPE, "a"))),
        ("twice", twice(prop::text(prop::RESPONSE_TOPIC, "a"))),
        ("twice", twice(prop::text(prop::CORRELATION_DATA, "a"))),
        ("cut", vec![prop::MESSAGE_EXPIRY_INTERVAL, 0x00]),
        ("not 0 or 1", prop::byte(prop::PAYLOAD_FORMAT_INDICATOR, 2)),
    ];
    for (what, property) in in_publish {
        let bytes = Publish::new("a", "b").property(property).bytes(V5);
        closes(V5, &bytes, &ANY_ERROR, &format!("a property that is {what}"));
    }
    let overrun = packet::frame(0x30, &[0x00, 0x01, b'a', 0x05, prop::PAYLOAD_FORMAT_INDICATOR, 0x01]);
    closes(V5, &overrun, &ANY_ERROR, "a Property Length beyond the packet");

    let in_connect: [Vec<u8>; 8] = [
        prop::u16(prop::RECEIVE_MAXIMUM, 0),
        prop::u32(prop::MAXIMUM_PACKET_SIZE, 0),
        prop::byte(prop::REQUEST_PROBLEM_INFORMATION, 2),
        prop::byte(prop::REQUEST_RESPONSE_INFORMATION, 2),
        twice(prop::u32(prop::SESSION_EXPIRY_INTERVAL, 1)),
        twice(prop::u16(prop::TOPIC_ALIAS_MAXIMUM, 1)),
        prop::u16(prop::TOPIC_ALIAS, 1),
        prop::u32(prop::WILL_DELAY_INTERVAL, 1),
    ];
    for property in in_connect {
        let mut peer = Server::shared().connect();
        peer.send(&Connect::new(V5, unique("property")).property(property.clone()).bytes());
        let code = peer.expect_closed(PATIENCE).connack_code(V5);
        assert!(
            matches!(code, None | Some(MALFORMED_PACKET | PROTOCOL_ERROR)),
            "{property:02x?}: {code:02x?}"
        );
    }
}
