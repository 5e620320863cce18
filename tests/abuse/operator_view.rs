//! Group Z: memory per unauthenticated peer, and the logs and metrics of refusals and disconnects.

use std::time::Duration;

use super::Growth;
use crate::support::packet::{self, subscribe};
use crate::support::*;

/// Memory limit per peer before it is authenticated.
const UNAUTHENTICATED_BYTES_MAX: u64 = 4 * 1024;

#[test]
fn z01_unauthenticated_peer_uses_at_most_4_kib() {
    const PEERS: usize = 2000;
    let connect = Connect::new(V5, "x".repeat(60_000)).bytes();
    for (what, sent) in [("silent", 0), ("one byte", 1), ("1 KiB of a CONNECT", 1024)] {
        // Each case starts its own server, so that it cannot reuse memory that an earlier case has freed.
        let server = Server::start(&Config::default());
        server.assert_alive();
        let mut growth = Growth::of(&server);
        let mut peers: Vec<Peer> = (0..PEERS).map(|_| server.connect()).collect();
        peers.iter_mut().for_each(|peer| peer.send(&connect[..sent]));
        (0..4).for_each(|_| server.assert_alive());
        let each = growth.look() * 1024 / PEERS as u64;
        println!("{what}: {each} bytes of resident memory per peer");
        assert!(each <= UNAUTHENTICATED_BYTES_MAX, "{what}: {each} bytes per peer");
    }
}

#[test]
fn z01_large_connects_share_a_limited_memory_pool() {
    const PEERS: u64 = 2000;
    let server = Server::start(&Config::default());
    let mut growth = Growth::of(&server);
    let connect = Connect::new(V5, "x".repeat(65_000)).bytes();
    // The incomplete CONNECTs have 130 MB in total.
    let mut peers: Vec<Peer> = (0..PEERS).map(|_| server.connect()).collect();
    for peer in &mut peers {
        // The server closes connections when the pool is full.
        let _ = peer.try_send(&connect[..65_000]);
    }
    // The limit allows 8 MiB for each of up to four cores.
    growth.assert_below_mib(PEERS * UNAUTHENTICATED_BYTES_MAX / 1024 / 1024 + 32);
    drop(peers);
    server.assert_alive();
}

#[test]
fn z01_unfinished_websocket_handshakes_need_little_memory() {
    const PEERS: usize = 1000;
    let server = Server::start(&Config::default());
    let mut growth = Growth::of(&server);
    let mut sockets: Vec<WebSocket> = (0..PEERS).map(|_| WebSocket::connect(server.websocket())).collect();
    for socket in &mut sockets {
        socket.send_raw(b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
    }
    (0..4).for_each(|_| server.assert_alive());
    let each = growth.look() * 1024 / PEERS as u64;
    println!("{each} bytes of resident memory per unfinished handshake");
    assert!(
        each <= UNAUTHENTICATED_BYTES_MAX,
        "{each} bytes per unfinished handshake"
    );
}

/// Returns violations by a client in a session, each with the disconnect reason that the operator sees.
fn misdeeds() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("by_client", packet::DISCONNECT.to_vec()),
        ("by_client_with_will", packet::disconnect(0x04, &[])),
        ("protocol_error", packet::frame(0xD0, &[])),
        ("malformed_packet", Publish::new("z", "x").qos(3).bytes(V5)),
        ("packet_too_large", vec![0x30, 0xFF, 0xFF, 0xFF, 0x7F]),
        (
            "topic_alias_invalid",
            Publish::new("z", "x")
                .property(prop::u16(prop::TOPIC_ALIAS, 0))
                .bytes(V5),
        ),
        ("topic_name_invalid", Publish::new("z/#", "x").bytes(V5)),
        ("malformed_packet", subscribe(V5, 1, &[("z", 0xC0)], &[])),
    ]
}

#[test]
fn z02_every_disconnect_is_logged_with_its_reason() {
    let server = Server::start(&Config::new("[log]\nlevel = \"debug\"\nformat = \"json\"\n"));
    for (reason, bytes) in misdeeds() {
        let client_id = unique("z02");
        let mut peer = server.session(&Connect::new(V5, &client_id));
        peer.send(&bytes);
        peer.expect_closed(PATIENCE);
        server.wait_until(&format!("the log contains {reason}"), |server| {
            let log = server.log();
            log.lines()
                .any(|line| line.contains(&client_id) && line.contains("disconnected") && line.contains(reason))
        });
    }
    let lost = unique("z02");
    server.session(&Connect::new(V5, &lost)).abort();
    let taken = unique("z02");
    let _old = server.session(&Connect::new(V5, &taken));
    let _new = server.session(&Connect::new(V5, &taken));
    for (client_id, reason) in [(lost, "connection_lost"), (taken, "taken_over")] {
        server.wait_until(&format!("the log contains {reason}"), |server| {
            server
                .log()
                .lines()
                .any(|line| line.contains(&client_id) && line.contains(reason))
        });
    }
}

#[test]
fn z02_every_refusal_is_logged_with_its_reason() {
    let server = Server::start(&Config::new(
        "[access]\nanonymous = \"never\"\n[log]\nformat = \"json\"\n",
    ));
    let client_id = unique("z02");
    for connect in [
        Connect::new(V5, &client_id),
        Connect::new(V4, &client_id).user("nobody", "hunter2"),
    ] {
        let mut peer = server.connect();
        assert_ne!(peer.handshake(&connect).code, 0);
    }
    server.wait_until("two refusals are logged", |server| {
        let log = server.log();
        log.lines()
            .filter(|line| line.contains(&client_id) && line.contains("refused"))
            .count()
            == 2
    });
    assert!(!server.log().contains("hunter2"), "a secret is in the log");
}

#[test]
fn z02_every_disconnect_and_refusal_is_counted_by_reason() {
    let server = Server::start(&Config::new(
        "[listeners.tcp.default]\nhandshake_timeout = \"1s\"\n[listeners.ws.default]\nhandshake_timeout = \"1s\"\n",
    ));
    let mut expected: Vec<&str> = Vec::new();
    for (reason, bytes) in misdeeds() {
        let mut peer = server.session(&Connect::new(V5, unique("z02")));
        peer.send(&bytes);
        peer.expect_closed(PATIENCE);
        expected.push(reason);
    }
    server.wait_until("every disconnect is counted by reason", |server| {
        let (status, stats) = server.http_get("/api/v1/stats");
        assert_eq!(status, 200, "{stats}");
        expected.iter().all(|reason| {
            let count = expected.iter().filter(|other| other == &reason).count();
            stats.contains(&format!("\"{reason}\":{count},")) || stats.contains(&format!("\"{reason}\":{count}}}"))
        })
    });
    let mut late = server.connect();
    late.expect_closed(Duration::from_secs(10));
    server.wait_until("the silent peer is counted", |server| {
        server
            .http_get("/api/v1/listeners")
            .1
            .contains("\"handshake_timeout\":1")
    });
}
