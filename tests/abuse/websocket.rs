//! Group W: MQTT over WebSocket, with valid and invalid framing.

use super::Growth;
use crate::support::packet::{self, subscribe};
use crate::support::websocket::{BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame, upgrade_request};
use crate::support::*;

const MASK: Option<[u8; 4]> = Some([1, 2, 3, 4]);

#[track_caller]
fn session(server: &Server, version: Version) -> WebSocket {
    let mut socket = server.web_socket();
    socket.send(&Connect::new(version, unique("w")).bytes());
    assert_eq!(socket.expect_packet().connack(version).code, 0);
    socket
}

/// Sends `bytes` in a session. The server must close the connection, publish the will and stay alive.
#[track_caller]
fn assert_bytes_close(bytes: &[u8]) {
    let server = Server::shared();
    let topic = unique("w");
    let mut watcher = server.session(&Connect::new(V4, unique("w")));
    watcher.subscribe(&topic, 0);
    let mut socket = server.web_socket();
    socket.send(&Connect::new(V4, unique("w")).will(Will::new(&topic, "gone")).bytes());
    assert_eq!(socket.expect_packet().connack(V4).code, 0);
    socket.send_raw(bytes);
    let frames = socket.expect_closed(PATIENCE);
    assert!(frames.iter().all(|frame| frame.opcode == CLOSE), "{frames:?}");
    assert_eq!(watcher.expect_publish().payload_str(), "gone");
    server.assert_alive();
}

#[test]
fn w01_handshake_and_connect_in_binary_frames() {
    // [MQTT-6.0.0-1], [MQTT-6.0.0-3], [MQTT-6.0.0-4]
    let server = Server::shared();
    for version in ALL_VERSIONS {
        let mut socket = server.web_socket();
        socket.send(&Connect::new(version, unique("w01")).bytes());
        let answer = socket.read_frame().expect("an answer");
        assert_eq!((answer.is_final, answer.opcode), (true, BINARY));
        let (connack, length) = Packet::cut(&answer.payload).expect("a whole packet");
        assert_eq!((connack.connack(version).code, length), (0, answer.payload.len()));
        socket.send(&packet::PINGREQ);
        assert_eq!(socket.expect_packet().kind(), kind::PINGRESP);
        socket.send(&packet::DISCONNECT);
        socket.expect_closed(PATIENCE);
    }
}

#[test]
fn w01_old_sub_protocol_name_works_for_mqtt_3_1() {
    let mut socket = WebSocket::connect(Server::shared().websocket());
    let response = socket.upgrade(Some("mqttv3.1"));
    assert_eq!(
        (response.status, response.header("sec-websocket-protocol")),
        (101, Some("mqttv3.1")),
        "{response:?}"
    );
    socket.send(&Connect::new(V3, unique("w01")).bytes());
    assert_eq!(socket.expect_packet().connack(V3).code, 0);
}

#[test]
fn w02_packets_need_not_align_with_frames() {
    // [MQTT-6.0.0-2]
    let server = Server::shared();
    let topic = unique("w02");
    let mut socket = server.web_socket();
    let bytes = [
        Connect::new(V5, unique("w02")).bytes(),
        subscribe(V5, 1, &[(&topic, 1)], &[]),
        Publish::new(&topic, noise(2, 70_000)).qos(1).id(7).bytes(V5),
    ]
    .concat();
    // First one byte per frame, then a fragmented message of odd sizes with control frames in between, then one frame.
    let (start, rest) = bytes.split_at(40);
    start.iter().for_each(|byte| socket.send(&[*byte]));
    let (fragmented, rest) = rest.split_at(500);
    socket.send_frame(false, BINARY, &fragmented[..7]);
    socket.send_frame(false, CONTINUATION, &[]);
    socket.send_frame(true, PING, b"in between");
    socket.send_frame(false, CONTINUATION, &fragmented[7..321]);
    socket.send_frame(true, CONTINUATION, &fragmented[321..]);
    socket.send(&[rest, &packet::PINGREQ, &packet::PINGREQ].concat());
    let packets: Vec<Packet> = (0..6).map(|_| socket.expect_packet()).collect();
    let count = |of_kind| packets.iter().filter(|packet| packet.kind() == of_kind).count();
    assert_eq!(packets[0].connack(V5).code, 0);
    assert_eq!(
        (count(kind::SUBACK), count(kind::PUBACK), count(kind::PINGRESP)),
        (1, 1, 2),
        "{packets:?}"
    );
    let message = packets
        .iter()
        .find(|packet| packet.kind() == kind::PUBLISH)
        .expect("the message")
        .delivery(V5);
    assert!(message.payload == noise(2, 70_000), "not intact");
}

#[test]
fn w02_ping_is_answered_with_its_payload() {
    let mut socket = session(Server::shared(), V4);
    socket.send_frame(true, PING, b"are you there");
    let answer = socket.read_frame().expect("an answer");
    assert_eq!(
        (answer.opcode, answer.payload.as_slice()),
        (PONG, &b"are you there"[..])
    );
}

#[test]
fn w03_text_frame_closes() {
    // [MQTT-6.0.0-1]
    assert_bytes_close(&frame(true, TEXT, MASK, &packet::PINGREQ));
    assert_bytes_close(&frame(true, TEXT, MASK, b"hello"));
    assert_bytes_close(&frame(false, TEXT, MASK, b""));
}

#[test]
fn w04_unmasked_frame_closes() {
    // RFC 6455, 5.1
    assert_bytes_close(&frame(true, BINARY, None, &packet::PINGREQ));
    assert_bytes_close(&frame(true, PING, None, b"x"));
}

#[test]
fn w04_other_violations_of_the_framing_close() {
    // RFC 6455, 5.2, 5.4, 5.5
    for (what, bytes) in [
        (
            "a continuation without a message",
            frame(true, CONTINUATION, MASK, &packet::PINGREQ),
        ),
        (
            "a message inside a message",
            [frame(false, BINARY, MASK, &[0xC0]), frame(true, BINARY, MASK, &[0])].concat(),
        ),
        ("a fragmented ping", frame(false, PING, MASK, b"x")),
        ("a ping of 126 bytes", frame(true, PING, MASK, &[b'x'; 126])),
        ("reserved opcode 3", frame(true, 0x3, MASK, b"x")),
        ("reserved opcode 11", frame(true, 0xB, MASK, b"x")),
        (
            "reserved bit 1",
            [&[0xC2, 0x82, 0, 0, 0, 0][..], &packet::PINGREQ].concat(),
        ),
        (
            "reserved bit 3",
            [&[0x92, 0x82, 0, 0, 0, 0][..], &packet::PINGREQ].concat(),
        ),
    ] {
        println!("{what}");
        assert_bytes_close(&bytes);
    }
}

#[test]
fn w04_close_frame_is_answered_and_ends_the_session() {
    let server = Server::shared();
    let mut socket = session(server, V4);
    socket.send_frame(true, CLOSE, &1000u16.to_be_bytes());
    let frames = socket.expect_closed(PATIENCE);
    assert_eq!(frames.iter().map(|frame| frame.opcode).collect::<Vec<_>>(), [CLOSE]);
    server.assert_alive();
}

#[test]
fn w05_server_selects_only_an_offered_sub_protocol() {
    // [MQTT-6.0.0-3], [MQTT-6.0.0-4]
    let server = Server::shared();
    for offered in [None, Some("chat"), Some("MQTT"), Some("mqttx, xmpp"), Some("")] {
        let mut socket = WebSocket::connect(server.websocket());
        socket.send_raw(upgrade_request(offered, "").as_bytes());
        let Some(response) = socket.read_response() else {
            continue;
        };
        println!(
            "{offered:?}: {} {:?}",
            response.status,
            response.header("sec-websocket-protocol")
        );
        assert_eq!(response.header("sec-websocket-protocol"), None, "{offered:?}");
        assert!(
            response.status == 101 || (400..500).contains(&response.status),
            "{response:?}"
        );
    }
    let mut socket = WebSocket::connect(server.websocket());
    let response = socket.upgrade(Some("chat, mqtt"));
    assert_eq!(
        (response.status, response.header("sec-websocket-protocol")),
        (101, Some("mqtt"))
    );
    server.assert_alive();
}

#[test]
fn w05_invalid_handshake_requests_are_refused() {
    let server = Server::shared();
    let good = upgrade_request(Some("mqtt"), "");
    for (what, request) in [
        ("another path", good.replace("/mqtt", "/other")),
        ("POST", good.replace("GET", "POST")),
        ("no key", good.replace("Sec-WebSocket-Key", "X-Key")),
        ("a short key", good.replace("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ=")),
        ("version 8", good.replace("Version: 13", "Version: 8")),
        ("no upgrade", good.replace("Upgrade: websocket", "Upgrade: h2c")),
        ("plain GET", "GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned()),
    ] {
        let mut socket = WebSocket::connect(server.websocket());
        socket.send_raw(request.as_bytes());
        if let Some(response) = socket.read_response() {
            assert!((400..500).contains(&response.status), "{what}: {response:?}");
        }
    }
    for garbage in [
        Connect::new(V4, "w05").bytes(),
        noise(5, 3000),
        b"\r\n\r\n\r\n\r\n".to_vec(),
    ] {
        let mut socket = WebSocket::connect(server.websocket());
        let _ = socket.try_send_raw(&[&garbage[..], b"\r\n\r\n"].concat());
        if let Some(response) = socket.read_response() {
            assert!((400..500).contains(&response.status), "{response:?}");
        }
    }
    server.assert_alive();
}

#[test]
fn w06_declared_frame_length_allocates_no_memory() {
    let server = Server::start(&Config::default());
    let mut growth = Growth::of(&server);
    for length in [1u64 << 62, u64::MAX, 1 << 40] {
        let head = [&[0x82, 0xFF][..], &length.to_be_bytes(), &[0; 4], &[0xC0, 0x00, 0x30]].concat();
        let mut socket = session(&server, V4);
        socket.send_raw(&head);
        let _ = socket.try_send_raw(&noise(6, 100_000));
        server.assert_alive();
    }
    growth.assert_below_mib(16);
}

#[test]
fn w06_unread_pongs_use_bounded_memory() {
    let server = Server::start(&Config::default());
    let mut growth = Growth::of(&server);
    let mut socket = session(&server, V4);
    let flood = frame(true, PING, MASK, &[b'x'; 125]).repeat(200_000);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| socket.send_until_blocked(&flood, std::time::Duration::from_secs(1)));
        while !flood.is_finished() {
            server.assert_alive();
            growth.look();
        }
    });
    growth.assert_below_mib(64);
    server.assert_alive();
}

#[test]
fn w06_oversized_handshake_header_is_refused() {
    let server = Server::start(&Config::default());
    let mut growth = Growth::of(&server);
    let long = format!("X-Filler: {}\r\n", "x".repeat(100 * 1024));
    let many: String = (0..10_000).map(|n| format!("X-{n}: x\r\n")).collect();
    for extra in [long, many] {
        let mut socket = WebSocket::connect(server.websocket());
        let request = upgrade_request(Some("mqtt"), &extra);
        if socket.try_send_raw(request.as_bytes()).is_ok()
            && let Some(response) = socket.read_response()
        {
            assert!(
                response.status == 101 || (400..500).contains(&response.status),
                "{response:?}"
            );
        }
        server.assert_alive();
    }
    // This header never ends.
    let mut socket = WebSocket::connect(server.websocket());
    let _ = socket.try_send_raw(&[&b"GET /mqtt HTTP/1.1\r\n"[..], &b"X: y\r\n".repeat(1_000_000)].concat());
    server.assert_alive();
    growth.assert_below_mib(16);
}

#[test]
fn w06_large_and_small_messages_cross_between_transports() {
    let server = Server::shared();
    let topic = unique("w06");
    let mut peer = server.session(&Connect::new(V5, unique("w06")));
    peer.subscribe(&topic, 1);
    let mut socket = session(server, V5);
    for size in [0, 1, 124, 125, 126, 127, 65_535, 65_536, 300_000] {
        let payload = noise(size as u64, size);
        socket.send(&Publish::new(&topic, &payload).qos(1).id(3).bytes(V5));
        assert_eq!(socket.expect_packet().kind(), kind::PUBACK);
        assert!(peer.receive().payload == payload, "{size} bytes, WebSocket to TCP");
    }
    socket.send(&subscribe(V5, 1, &[(&topic, 0)], &[]));
    assert_eq!(socket.expect_packet().kind(), kind::SUBACK);
    for size in [0, 1, 124, 125, 126, 127, 65_535, 65_536, 300_000] {
        let payload = noise(size as u64, size);
        peer.send(&Publish::new(&topic, &payload).bytes(V5));
        assert!(
            socket.expect_packet().delivery(V5).payload == payload,
            "{size} bytes, TCP to WebSocket"
        );
        peer.receive();
    }
}
