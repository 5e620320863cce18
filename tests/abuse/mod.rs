//! Tests with hostile and malformed input, sent as raw bytes over a real socket to the real binary.
//!
//! A test name may begin with the identifier of its case, such as `a26_`. The letter is the group of the case:
//!
//! - `a`: malformed packets and protocol state (`malformed_packets`)
//! - `b`: memory and other resources (`resource_limits`)
//! - `c`: authentication and authorization (`access_control`)
//! - `d`: `$SYS` topics and leaks between sessions (`system_topics`)
//! - `e`: message semantics under abuse (`message_semantics`)
//! - `w`: WebSocket framing (`websocket`)
//! - `z`: logs and metrics of refusals and disconnects (`operator_view`)
//!
//! The headers of the other modules describe their attacks. A number in brackets is a normative statement of MQTT 3.1.1
//! or 5.0.
//!
//! Tests that only exchange packets share one server (`Server::shared`) and use unique client identifiers and topics.
//! Tests that measure memory or need a configuration start their own server. Each test that makes the server close a
//! connection checks that the server is still alive. Tests sleep only if they test a timeout.

// Some cases print their measurements.
#![allow(clippy::print_stdout)]

mod access;
mod cost;
mod file_modes;
mod leaked_secrets;
mod malformed_packets;
mod many_keys;
mod message_limits;
mod message_semantics;
mod multiplying_chains;
mod operator_view;
mod publish_limits;
mod read_paths;
mod resource_limits;
mod secret_references;
mod shared_topics_and_exports;
mod shares;
mod slow_requests;
mod slow_rules;
mod system_topics;
mod targets_from_values;
mod tenant_scripts;
mod tenant_targets;
mod together;
mod unread_answers;
mod weak_secrets;
mod websocket;

use std::time::{Duration, Instant};

use crate::support::*;

const MALFORMED: u8 = 0x81;
const PROTOCOL_ERROR: u8 = 0x82;
/// Accepted reason codes where the standard allows both Malformed Packet and Protocol Error.
const EITHER: [u8; 2] = [MALFORMED, PROTOCOL_ERROR];

/// Sends `bytes` in a new session and expects the server to close the connection. An MQTT 5 client first gets a
/// DISCONNECT with one of `reasons`. Then checks that the server still serves other clients.
#[track_caller]
fn assert_closes(version: Version, bytes: &[u8], reasons: &[u8]) {
    let server = Server::shared();
    let mut peer = server.session(&Connect::new(version, unique("closes")));
    peer.send(bytes);
    assert_closed_for(&mut peer, bytes, reasons);
    server.assert_alive();
}

/// Expects the close that `assert_closes` describes, for an existing session.
#[track_caller]
fn assert_closed_for(peer: &mut Peer, bytes: &[u8], reasons: &[u8]) {
    let shown = &bytes[..bytes.len().min(64)];
    let closed = peer.expect_closed(PATIENCE);
    if peer.version() != V5 {
        assert!(
            closed.packets.is_empty(),
            "{:?}: {shown:02x?} was answered: {closed:?}",
            peer.version()
        );
        return;
    }
    assert_eq!(
        closed.packets.len(),
        1,
        "{shown:02x?}: expected a DISCONNECT and nothing else, got {closed:?}"
    );
    let reason = closed.packets[0].disconnect_reason();
    assert!(
        reasons.contains(&reason),
        "{shown:02x?}: expected DISCONNECT with one of {reasons:02x?}, got {reason:#04x}"
    );
}

/// Sends `bytes` on a new connection and expects the server to close it, with or without a CONNACK that refuses it.
/// Returns the code of the CONNACK. Then checks that the server still serves other clients.
#[track_caller]
fn assert_refused(bytes: &[u8]) -> Option<u8> {
    let server = Server::shared();
    let code = refusal(server, bytes);
    server.assert_alive();
    code
}

#[track_caller]
fn refusal(server: &Server, bytes: &[u8]) -> Option<u8> {
    let mut peer = server.connect();
    peer.send(bytes);
    let closed = peer.expect_closed(PATIENCE);
    let shown = &bytes[..bytes.len().min(64)];
    assert!(
        closed.packets.len() <= 1,
        "{shown:02x?}: more than one answer: {closed:?}"
    );
    let connack = closed.packets.first()?;
    assert_eq!(
        connack.first, 0x20,
        "{shown:02x?}: expected at most a CONNACK, got {connack:?}"
    );
    assert_ne!(connack.body[1], 0, "{shown:02x?} was accepted");
    Some(connack.body[1])
}

/// Connects a new subscriber to the shared server and subscribes it to `filter`.
#[track_caller]
fn watcher(filter: &str, qos: u8) -> Peer {
    let mut peer = Server::shared().session(&Connect::new(V5, unique("watcher")));
    peer.subscribe(filter, qos);
    peer
}

/// Growth of the resident memory without mapped files since the value was created, and its measured peak.
struct Growth<'a> {
    server: &'a Server,
    before_kib: u64,
    peak_kib: u64,
}

impl<'a> Growth<'a> {
    fn of(server: &'a Server) -> Growth<'a> {
        let before_kib = server.anonymous_kib();
        Growth {
            server,
            before_kib,
            peak_kib: before_kib,
        }
    }

    /// Measures this memory and returns its growth in KiB.
    fn look(&mut self) -> u64 {
        let now = self.server.anonymous_kib();
        self.peak_kib = self.peak_kib.max(now);
        now.saturating_sub(self.before_kib)
    }

    #[track_caller]
    fn assert_below_mib(&mut self, limit: u64) {
        self.look();
        let peak = self.peak_kib - self.before_kib;
        println!(
            "resident memory grew by {} MiB at most (limit {limit} MiB)",
            peak / 1024
        );
        assert!(
            peak < limit * 1024,
            "resident memory grew by {} MiB, the limit is {limit} MiB",
            peak / 1024
        );
    }
}

/// Runs `work` and fails if it takes longer than `limit`.
#[track_caller]
fn assert_within<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let taken = start.elapsed();
    assert!(taken < limit, "{what} took {taken:?}, the limit is {limit:?}");
    result
}
