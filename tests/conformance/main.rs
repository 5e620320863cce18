//! Every normative statement of MQTT 3.1.1 and 5.0, listed with the tests that prove it, and those tests.
//!
//! `mqtt-3.1.1.toml` and `mqtt-5.0.toml` are the lists; `manifest` checks them against this directory and writes
//! `docs/conformance.md`. The other modules speak raw packets to a real server. They share one server and run in
//! parallel, so each client id and topic is a test's own.
//!
//! That something does *not* arrive is shown by what arrives after it: a message of the same publisher, or the PINGRESP
//! on the same connection. Only where a statement is about time passing does a test let time pass.

#[path = "../support/mod.rs"]
mod support;

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

use support::*;

/// The versions that have numbered statements.
const NUMBERED: [Version; 2] = [V4, V5];

/// What ends the messages of a test: see `Peer::receive_until`.
const SENTINEL: &str = "that was all";

const MALFORMED_PACKET: u8 = 0x81;
const PROTOCOL_ERROR: u8 = 0x82;

/// A topic of the caller's own.
fn topic() -> String {
    unique("conformance/topic")
}

/// A connected client of the caller's own, with a clean session.
fn client(version: Version) -> Peer {
    Server::shared().session(&Connect::new(version, unique("client")))
}

fn subscriber(version: Version, filter: &str, options: u8) -> Peer {
    let mut peer = client(version);
    peer.subscribe(filter, options);
    peer
}

/// A CONNECT for a session that outlives its connections.
fn lasting(version: Version) -> Connect {
    Connect::new(version, unique("lasting")).persistent()
}

/// Connects again or for the first time, and says whether there was a session.
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

/// The retained messages that a new subscription gets.
#[track_caller]
fn replay(version: Version, filter: &str, options: u8) -> Vec<Delivery> {
    let end = topic();
    retain(&end, SENTINEL, 1);
    let mut peer = client(version);
    let code = peer.subscribe_code(filter, options);
    assert!(code < 0x80, "{code:#04x}");
    replay_before(&mut peer, &end)
}

/// Retained messages of the subscriptions that were made before: of several subscriptions they come one after the other,
/// so the retained sentinel of `end` is the last. A live message would be no sentinel, it may overtake them.
#[track_caller]
fn replay_before(peer: &mut Peer, end: &str) -> Vec<Delivery> {
    peer.subscribe(end, 1);
    peer.receive_until(SENTINEL)
}

/// A client that has just been accepted sends `bytes`: the server closes, and if it says why, it says one of `reasons`.
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

/// The filter is refused with a reason code or the connection is closed.
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

/// For statements about time: lets it pass.
fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

/// `count` text payloads, in order.
fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("message {number}")).collect()
}

fn payloads(messages: &[Delivery]) -> Vec<&str> {
    messages.iter().map(Delivery::payload_str).collect()
}
