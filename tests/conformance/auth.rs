//! Tests enhanced authentication with a server that has no authentication method configured. Chapters 3.15 and 4.12.

use super::*;
use crate::support::*;

fn method(name: &str) -> Vec<u8> {
    prop::text(prop::AUTHENTICATION_METHOD, name)
}

fn auth_packet(reason: u8, properties: &[u8]) -> Vec<u8> {
    packet::frame(0xF0, &[vec![reason], prop::list(properties)].concat())
}

#[test]
fn unknown_method_is_refused() {
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(&Connect::new(V5, unique("method")).property(method("no such method")));
    assert!(matches!(connack.code, 0x8C | 0x87), "{connack:?}");
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());
}

#[test]
fn no_method_means_no_auth() {
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(&Connect::new(V5, unique("no method")));
    assert_eq!(connack.code, 0);
    assert_eq!(connack.properties.get(prop::AUTHENTICATION_METHOD), None);
    assert_eq!(connack.properties.get(prop::AUTHENTICATION_DATA), None);
    peer.ping_alone();
}

#[test]
fn auth_without_a_method_closes_the_connection() {
    for reason in [0x18, 0x19] {
        let bytes = auth_packet(reason, &method("no such method"));
        closes(V5, &bytes, &[PROTOCOL_ERROR, 0x8C], "AUTH without a method in CONNECT");
    }
    let data = Connect::new(V5, unique("data")).property(prop::text(prop::AUTHENTICATION_DATA, "data"));
    let mut peer = Server::shared().connect();
    peer.send(&data.bytes());
    let code = peer.expect_closed(PATIENCE).connack_code(V5);
    assert!(
        code.is_none_or(|code| code >= 0x80),
        "Authentication Data without a method"
    );
}

#[test]
fn auth_reason_codes_are_checked() {
    for reason in [0x01, 0x17, 0x80, 0xFF] {
        let bytes = auth_packet(reason, &method("no such method"));
        closes(
            V5,
            &bytes,
            &[PROTOCOL_ERROR, MALFORMED_PACKET],
            "a reason code that AUTH does not have",
        );
    }
}

#[test]
fn only_auth_and_disconnect_during_the_exchange() {
    let topic = topic();
    let mut subscriber = subscriber(V5, &topic, 0);
    let connect = Connect::new(V5, unique("method")).property(method("no such method"));
    let early = Publish::new(&topic, "before CONNACK").bytes(V5);
    let mut peer = Server::shared().connect();
    peer.send(&[connect.bytes(), early].concat());
    peer.expect_closed(PATIENCE);
    client(V5).publish(&Publish::new(&topic, SENTINEL));
    assert!(subscriber.receive_until(SENTINEL).is_empty());
}
