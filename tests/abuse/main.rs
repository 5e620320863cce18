//! Hostile and awkward input, as raw bytes over a real socket against the real binary.
//!
//! One test or more per case; the letter and number in a test's name are the case's own. A: malformed packets and protocol
//! state; B: resources; C: authentication and authorization; D: `$SYS` and leaks; E: semantics under abuse; W: WebSocket;
//! Z: what an operator gets to see of it. The number in brackets is the normative statement, of 3.1.1 or of 5.0.
//!
//! Tests that only talk share one server (`Server::shared`) and keep apart by client ids and topics of their own; tests
//! that measure memory or need a configuration start theirs. Every test that provokes a close looks whether the broker is
//! alive afterwards. There is no waiting for time to pass except where time is the case.

// Figures that the cases ask to be reported.
#![allow(clippy::print_stdout)]

#[path = "../support/mod.rs"]
mod support;

mod a;
mod b;
mod c;
mod d;
mod e;
mod w;
mod z;

use std::time::{Duration, Instant};

use support::*;

/// Malformed Packet and Protocol Error: where the standard leaves open which of the two it is.
const MALFORMED: u8 = 0x81;
const PROTOCOL_ERROR: u8 = 0x82;
const EITHER: [u8; 2] = [MALFORMED, PROTOCOL_ERROR];

/// Sends `bytes` in a fresh session: the server must close without any other answer; in MQTT 5 it says why, with one of
/// `reasons`. Then it must still serve others.
#[track_caller]
fn assert_closes(version: Version, bytes: &[u8], reasons: &[u8]) {
    let server = Server::shared();
    let mut peer = server.session(&Connect::new(version, unique("closes")));
    peer.send(bytes);
    assert_closed_for(&mut peer, bytes, reasons);
    server.assert_alive();
}

/// The second half of `assert_closes`, for a session that exists.
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

/// Sends `bytes` as the first of a connection: the server must close it, at most after a CONNACK that refuses, whose code
/// is returned. Then it must still serve others.
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

/// A subscriber of its own for `filter`, on the shared server.
#[track_caller]
fn watcher(filter: &str, qos: u8) -> Peer {
    let mut peer = Server::shared().session(&Connect::new(V5, unique("watcher")));
    peer.subscribe(filter, qos);
    peer
}

/// Growth of resident memory since a first look, with the largest seen.
struct Growth<'a> {
    server: &'a Server,
    before_kib: u64,
    peak_kib: u64,
}

impl<'a> Growth<'a> {
    fn of(server: &'a Server) -> Growth<'a> {
        let before_kib = server.rss_kib();
        Growth {
            server,
            before_kib,
            peak_kib: before_kib,
        }
    }

    /// Growth by now, in KiB.
    fn look(&mut self) -> u64 {
        let now = self.server.rss_kib();
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
