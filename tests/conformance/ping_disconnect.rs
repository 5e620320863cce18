//! Tests Keep Alive, PINGREQ and DISCONNECT. Chapters 3.1.2.10, 3.12 and 3.14.

use std::time::Instant;

use super::*;
use crate::support::*;

#[test]
fn pingreq_is_answered() {
    for version in ALL_VERSIONS {
        let mut peer = client(version);
        for _ in 0..3 {
            peer.send(&packet::PINGREQ);
            let pingresp = peer.expect_packet();
            assert_eq!((pingresp.first, pingresp.body), (0xD0, vec![]));
        }
    }
}

#[test]
fn silence_beyond_the_keep_alive_closes_the_connection() {
    for version in NUMBERED {
        let topic = topic();
        let mut watcher = subscriber(version, &topic, 0);
        let connect = Connect::new(version, unique("silent"))
            .keep_alive(1)
            .will(Will::new(&topic, "silent"));
        let mut peer = Server::shared().connect();
        let connack = peer.handshake(&connect);
        let keep_alive = connack.properties.number(prop::SERVER_KEEP_ALIVE).unwrap_or(1);
        let limit = Duration::from_millis(u64::from(keep_alive) * 1500);
        // A packet in between restarts the Keep Alive time.
        let_pass(limit / 3);
        peer.ping_alone();
        let start = Instant::now();
        let closed = peer.expect_closed(PATIENCE);
        let silence = start.elapsed();
        assert!(silence >= limit.mul_f64(0.9), "closed after {silence:?}");
        assert!(silence < limit * 3, "closed after {silence:?} only");
        assert!(matches!(closed.disconnect_reason(), None | Some(0x8D)), "{closed:?}");
        assert_eq!(watcher.receive().payload, b"silent");
    }
}

#[test]
fn disconnect_discards_the_will() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let mut watcher = subscriber(version, &topic, 0);
        let id = unique("testator");
        let connect = Connect::new(version, &id).will(Will::new(&topic, "should have been discarded"));
        resume(&connect).0.disconnect();
        resume(&Connect::new(version, &id).will(Will::new(&topic, SENTINEL)))
            .0
            .abort();
        assert!(watcher.receive_until(SENTINEL).is_empty(), "{version:?}");
    }
}

#[test]
fn disconnect_0x04_publishes_the_will() {
    let topic = topic();
    let mut watcher = subscriber(V5, &topic, 0);
    let connect = Connect::new(V5, unique("testator")).will(Will::new(&topic, "asked for"));
    let (mut peer, _) = resume(&connect);
    peer.send(&packet::disconnect(0x04, &[]));
    peer.expect_closed(PATIENCE);
    assert_eq!(watcher.receive().payload, b"asked for");
}

#[test]
fn nothing_after_disconnect_is_processed() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let mut watcher = subscriber(version, &topic, 0);
        let mut peer = client(version);
        let late = Publish::new(&topic, "after DISCONNECT").bytes(version);
        peer.send(&[packet::DISCONNECT.to_vec(), late, packet::PINGREQ.to_vec()].concat());
        assert!(peer.expect_closed(PATIENCE).packets.is_empty(), "{version:?}");
        client(version).publish(&Publish::new(&topic, SENTINEL));
        assert!(watcher.receive_until(SENTINEL).is_empty(), "{version:?}");
    }
}

#[test]
fn server_disconnect_is_the_last_packet() {
    let id = unique("taken over");
    let mut old = Server::shared().session(&Connect::new(V5, &id).persistent());
    let _new = Server::shared().session(&Connect::new(V5, &id).persistent());
    let closed = old.expect_disconnect(0x8E);
    let disconnect = closed.packets.last().expect("the DISCONNECT");
    assert_eq!(disconnect.properties().get(prop::SESSION_EXPIRY_INTERVAL), None);
}

#[test]
fn disconnect_reason_codes_are_checked() {
    for reason in [0x01, 0x18, 0x7F, 0x86, 0x91, 0xFF] {
        let bytes = packet::disconnect(reason, &[]);
        closes(
            V5,
            &bytes,
            &[MALFORMED_PACKET, PROTOCOL_ERROR],
            &format!("DISCONNECT {reason:#04x}"),
        );
    }
}
