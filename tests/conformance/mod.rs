//! Every normative statement of MQTT 3.1.1 and 5.0, listed with the tests that prove it, and those tests.
//!
//! `mqtt-3.1.1.toml` and `mqtt-5.0.toml` are the lists; `manifest` checks them against this directory and writes
//! `docs/internals/conformance.md`. The other modules speak raw packets to a real server. They share one server and run
//! in parallel, so each test uses client ids and topics of its own.
//!
//! To show that a message does *not* arrive, a test waits for something that arrives later: another message of the same
//! publisher, or PINGRESP on the same connection. Tests wait for time to pass only if the statement is about time.

mod access;
mod alias;
mod auth;
mod connect;
mod flow_control;
mod limits;
mod malformed;
mod manifest;
mod ping_disconnect;
mod properties;
mod publish;
mod qos;
mod retained;
mod session;
mod shared;
mod strings;
mod subscribe;
mod topics;
mod unsubscribe;
mod websocket;
mod will;

use std::time::Duration;

use crate::support::*;

/// The versions that have numbered statements.
const NUMBERED: [Version; 2] = [V4, V5];

/// Payload of the message that ends a test's messages: see `Peer::receive_until`.
const SENTINEL: &str = "that was all";

const MALFORMED_PACKET: u8 = 0x81;
const PROTOCOL_ERROR: u8 = 0x82;

/// Returns a topic that no other test uses.
fn topic() -> String {
    unique("conformance/topic")
}

/// Connects with a client id that no other test uses and a clean session.
fn client(version: Version) -> Peer {
    Server::shared().session(&Connect::new(version, unique("client")))
}

fn subscriber(version: Version, filter: &str, options: u8) -> Peer {
    let mut peer = client(version);
    peer.subscribe(filter, options);
    peer
}

/// Returns a CONNECT for a session that outlives its connections.
fn lasting(version: Version) -> Connect {
    Connect::new(version, unique("lasting")).persistent()
}

/// Connects and returns Session Present.
#[track_caller]
fn resume(connect: &Connect) -> (Peer, bool) {
    let mut peer = Server::shared().connect();
    let connack = peer.handshake(connect);
    assert_eq!(connack.code, 0, "{connect:?} was refused: {connack:?}");
    (peer, connack.session_present)
}

/// Subscribes with properties (MQTT 5) and returns the reason code.
#[track_caller]
fn subscribe_with(peer: &mut Peer, filter: &str, options: u8, properties: &[u8]) -> u8 {
    let id = peer.packet_id();
    peer.send(&packet::subscribe(V5, id, &[(filter, options)], properties));
    peer.expect(kind::SUBACK).reason_codes(V5)[0]
}

fn retain(topic: &str, payload: &str, qos: u8) {
    client(V4).publish(&Publish::new(topic, payload).qos(qos).retain());
}

/// Returns the retained messages that a new subscription receives.
#[track_caller]
fn replay(version: Version, filter: &str, options: u8) -> Vec<Delivery> {
    let end = topic();
    retain(&end, SENTINEL, 1);
    let mut peer = client(version);
    let code = peer.subscribe_code(filter, options);
    assert!(code < 0x80, "{code:#04x}");
    replay_before(&mut peer, &end)
}

/// Returns the retained messages of the preceding subscriptions. Those of several subscriptions arrive one after the
/// other, so the retained sentinel of `end` is the last. A live message cannot be the sentinel: it may overtake them.
#[track_caller]
fn replay_before(peer: &mut Peer, end: &str) -> Vec<Delivery> {
    peer.subscribe(end, 1);
    peer.receive_until(SENTINEL)
}

/// Connects and sends `bytes`. Asserts that the server closes, with one of `reasons` if it sends DISCONNECT.
#[track_caller]
fn closes(version: Version, bytes: &[u8], reasons: &[u8], what: &str) -> Closed {
    closes_for(client(version), bytes, reasons, what)
}

#[track_caller]
fn closes_for(mut peer: Peer, bytes: &[u8], reasons: &[u8], what: &str) -> Closed {
    peer.send(bytes);
    let closed = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| peer.expect_closed(PATIENCE))) {
        Ok(closed) => closed,
        Err(_) => panic!("{:?}: not closed after {what}: {bytes:02x?}", peer.version()),
    };
    match closed.disconnect_reason() {
        Some(reason) => {
            assert_eq!(peer.version(), V5, "{what}: a DISCONNECT from the server is MQTT 5");
            assert!(
                reasons.contains(&reason),
                "{what}: closed with {reason:#04x} instead of one of {reasons:02x?}"
            );
        }
        None => assert!(closed.packets.is_empty(), "{what}: answered {:?}", closed.packets),
    }
    closed
}

/// Asserts that the filter is refused with a reason code or that the connection is closed.
#[track_caller]
fn assert_never_granted(version: Version, filter: &str) {
    let mut peer = client(version);
    peer.send(&packet::subscribe(version, 1, &[(filter, 0)], &[]));
    match peer.read(PATIENCE) {
        Reading::Packet(packet) if packet.kind() == kind::SUBACK => {
            let codes = packet.reason_codes(version);
            assert!(codes[0] >= 0x80, "{version:?}: {filter:?} was granted: {codes:02x?}");
        }
        Reading::Packet(packet) => assert!(packet.disconnect_reason() >= 0x80, "{packet:?}"),
        Reading::Closed => {}
        Reading::Silence => panic!("{version:?}: no answer to {filter:?}"),
    }
}

/// Waits. Only for statements about time.
fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

/// Returns `count` text payloads, in order.
fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("message {number}")).collect()
}

fn payloads(messages: &[Delivery]) -> Vec<&str> {
    messages.iter().map(Delivery::payload_str).collect()
}
