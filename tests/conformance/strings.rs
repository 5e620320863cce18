//! Tests UTF-8 Encoded Strings in every packet that has one. Chapter 1.5.4 (1.5.3 in 3.1.1).

use super::*;
use crate::support::*;

/// Ill-formed UTF-8: a lone continuation byte, a truncated sequence, a surrogate, an overlong form, a code point above
/// U+10FFFF, and a byte that UTF-8 never contains.
const ILL_FORMED: [&[u8]; 6] = [
    b"a\x80b",
    b"a\xC3(",
    b"\xED\xA0\x80",
    b"\xC0\xAF",
    b"\xF4\x90\x80\x80",
    b"\xFF",
];

/// Returns every packet with this string in each of its string fields. Those of `connect` are first packets.
fn connects_with(version: Version, text: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let connect = || Connect::new(version, unique("strings"));
    let mut packets = vec![
        ("client id", Connect::new(version, text).bytes()),
        ("will topic", connect().will(Will::new(text, "will")).bytes()),
        ("user name", connect().user(text, "password").bytes()),
    ];
    if version == V5 {
        let pair = [vec![prop::USER_PROPERTY], packet::string("name"), packet::string(text)].concat();
        let method = prop::text(prop::AUTHENTICATION_METHOD, text);
        let will = |property| Will::new("will", "will").property(property);
        packets.extend([
            ("user property", connect().property(pair.clone()).bytes()),
            ("authentication method", connect().property(method).bytes()),
            ("will user property", connect().will(will(pair)).bytes()),
            (
                "will content type",
                connect().will(will(prop::text(prop::CONTENT_TYPE, text))).bytes(),
            ),
            (
                "will response topic",
                connect().will(will(prop::text(prop::RESPONSE_TOPIC, text))).bytes(),
            ),
        ]);
    }
    packets
}

fn packets_with(version: Version, text: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut packets = vec![
        ("topic name", Publish::new(text, "payload").bytes(version)),
        ("topic filter", packet::subscribe(version, 1, &[(text, 0)], &[])),
        ("topic filter to leave", packet::unsubscribe(version, 1, &[text])),
    ];
    if version == V5 {
        let publish = |property| Publish::new("topic", "payload").property(property).bytes(V5);
        let name = [vec![prop::USER_PROPERTY], packet::string(text), packet::string("value")].concat();
        let value = [vec![prop::USER_PROPERTY], packet::string("name"), packet::string(text)].concat();
        let reason = prop::text(prop::REASON_STRING, text);
        packets.extend([
            ("name of a user property", publish(name)),
            ("value of a user property", publish(value.clone())),
            ("content type", publish(prop::text(prop::CONTENT_TYPE, text))),
            ("response topic", publish(prop::text(prop::RESPONSE_TOPIC, text))),
            (
                "user property of SUBSCRIBE",
                packet::subscribe(V5, 1, &[("a", 0)], &value),
            ),
            ("reason string of DISCONNECT", packet::disconnect(0, &reason)),
        ]);
    }
    packets
}

/// Asserts that each packet closes the connection and that no CONNECT is accepted.
#[track_caller]
fn assert_refused_everywhere(version: Version, text: &[u8]) {
    for (place, bytes) in connects_with(version, text) {
        let mut peer = Server::shared().connect();
        peer.send(&bytes);
        let code = peer.expect_closed(PATIENCE).connack_code(version);
        assert!(code.is_none_or(|code| code != 0), "{version:?}: {text:02x?} as {place}");
    }
    for (place, bytes) in packets_with(version, text) {
        closes(version, &bytes, &[MALFORMED_PACKET, PROTOCOL_ERROR, 0x8F, 0x90], place);
    }
}

#[test]
fn ill_formed_utf8_closes_the_connection() {
    for version in NUMBERED {
        for text in ILL_FORMED {
            assert_refused_everywhere(version, text);
        }
    }
}

#[test]
fn null_character_closes_the_connection() {
    for version in NUMBERED {
        assert_refused_everywhere(version, b"a\0b");
        assert_refused_everywhere(version, b"\0");
    }
}

#[test]
fn byte_order_mark_is_kept() {
    for version in NUMBERED {
        let plain = topic();
        let marked = format!("\u{FEFF}{plain}");
        let mut subscriber = subscriber(version, &marked, 1);
        let mut publisher = client(version);
        publisher.publish(&Publish::new(&plain, "another topic").qos(1));
        publisher.publish(&Publish::new(&marked, SENTINEL).qos(1));
        let message = subscriber.receive();
        assert_eq!(
            (message.topic_str(), message.payload_str()),
            (marked.as_str(), SENTINEL)
        );
    }
}
