//! Tests a server that restricts features and announces it in CONNACK. Chapters 3.2.2.3 and 3.1.3.1.

use std::sync::OnceLock;
use std::time::Instant;

use super::*;
use crate::support::*;

const MAXIMUM_PACKET_SIZE: usize = 1000;
const MAXIMUM_QOS: u8 = 1;

pub fn server() -> &'static Server {
    static LIMITED: OnceLock<Server> = OnceLock::new();
    LIMITED.get_or_init(|| {
        let toml = format!(
            "[mqtt]\nmax_qos = {MAXIMUM_QOS}\nretain_available = false\nwildcard_subscription = false\n\
             max_packet_size = \"{MAXIMUM_PACKET_SIZE}B\"\nmax_client_id_length = 30\nmax_topic_alias_in = 10\n"
        );
        let mosquitto =
            format!("max_packet_size {MAXIMUM_PACKET_SIZE}\nmax_qos {MAXIMUM_QOS}\nretain_available false\n");
        Server::start(&Config::new(toml).mosquitto(mosquitto))
    })
}

fn limited_client(version: Version) -> Peer {
    server().session(&Connect::new(version, unique("limited")))
}

/// Asserts that CONNACK has this code and that the server closes the connection.
#[track_caller]
fn assert_refused(connect: &Connect, code: u8) {
    let mut peer = server().connect();
    let connack = peer.handshake(connect);
    assert_eq!((connack.code, connack.session_present), (code, false), "{connect:?}");
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());
}

#[test]
fn lower_maximum_qos_is_announced_and_enforced() {
    let mut peer = server().connect();
    let connack = peer.handshake(&Connect::new(V5, unique("limited")));
    assert_eq!(
        connack.properties.number(prop::MAXIMUM_QOS),
        Some(u32::from(MAXIMUM_QOS))
    );
    for qos in 0..3 {
        let code = peer.subscribe_code(topic(), qos);
        assert!(code <= qos, "SUBSCRIBE with QoS {qos} was answered {code:#04x}");
    }
    let bytes = Publish::new(topic(), "too high").qos(2).bytes(V5);
    closes_for(peer, &bytes, &[0x9B], "QoS 2");
    let will = Will::new(topic(), "too high").qos(2);
    assert_refused(&Connect::new(V5, unique("limited")).will(will), 0x9B);
}

#[test]
fn missing_retained_messages_are_announced_and_enforced() {
    let mut peer = server().connect();
    let connack = peer.handshake(&Connect::new(V5, unique("limited")));
    assert_eq!(connack.properties.number(prop::RETAIN_AVAILABLE), Some(0));
    let bytes = Publish::new(topic(), "retained").retain().bytes(V5);
    closes_for(peer, &bytes, &[0x9A], "RETAIN");
    let will = Will::new(topic(), "retained").retain();
    assert_refused(&Connect::new(V5, unique("limited")).will(will), 0x9A);
}

#[test]
fn packet_above_the_servers_maximum_closes_the_connection() {
    let mut peer = server().connect();
    let connack = peer.handshake(&Connect::new(V5, unique("limited")));
    let announced = connack.properties.number(prop::MAXIMUM_PACKET_SIZE);
    assert_eq!(announced, Some(MAXIMUM_PACKET_SIZE as u32));
    for version in NUMBERED {
        let topic = topic();
        let empty = Publish::new(&topic, "").bytes(version).len() + 1;
        let largest = "x".repeat(MAXIMUM_PACKET_SIZE - empty);
        let mut peer = limited_client(version);
        peer.subscribe(&topic, 0);
        peer.publish(&Publish::new(&topic, &largest));
        assert_eq!(peer.receive().payload, largest.as_bytes());
        let bytes = Publish::new(&topic, largest + "x").bytes(version);
        closes_for(peer, &bytes, &[0x95], "a packet one byte too large");
    }
}

#[test]
fn filters_with_wildcards_can_be_refused() {
    for version in NUMBERED {
        for filter in ["#", "a/+", "a/#"] {
            let mut peer = limited_client(version);
            peer.subscribe("plain/filter", 0);
            peer.send(&packet::subscribe(version, 9, &[(filter, 0)], &[]));
            if version == V5 {
                peer.expect_disconnect(0xA2);
            } else {
                assert_eq!(peer.expect(kind::SUBACK).reason_codes(version), [0x80], "{filter}");
            }
        }
    }
}

#[test]
fn client_id_above_the_limit_is_refused() {
    let id = "x".repeat(31);
    assert_refused(&Connect::new(V4, &id), 0x02);
    assert_refused(&Connect::new(V5, &id), 0x85);
}

/// Uses a server of its own, because the short keep alive would affect other tests.
#[test]
fn server_keep_alive_overrides_the_clients() {
    let config = Config::new("[mqtt]\nserver_keep_alive = \"1s\"\n").mosquitto("max_keepalive 1\n");
    let server = Server::start(&config);
    let mut peer = server.connect();
    let connack = peer.handshake(&Connect::new(V5, unique("patient")).keep_alive(600));
    assert_eq!(connack.properties.number(prop::SERVER_KEEP_ALIVE), Some(1));
    let start = Instant::now();
    let closed = peer.expect_closed(PATIENCE);
    assert!(matches!(closed.disconnect_reason(), None | Some(0x8D)), "{closed:?}");
    let silence = start.elapsed();
    assert!((1350..4500).contains(&silence.as_millis()), "closed after {silence:?}");
}
