//! Tests WebSocket framing over a real socket: abuse cases W01 to W06.

use std::io::{Read, Write};

use broker::Transport;
use net::EarlyCloseReason;

use super::client::*;
use super::server::*;

fn upgraded(running: &Running) -> WebSocket<std::net::TcpStream> {
    WebSocket::upgrade(tcp(running.address(Transport::WebSocket)))
}

/// Reads frames until the server closes. Returns its close code.
fn close_code(websocket: &mut WebSocket<std::net::TcpStream>) -> Option<u16> {
    while websocket.read_frame().unwrap() {}
    websocket.close_code
}

#[test]
fn w01_connack_is_a_binary_frame() {
    let running = start(2);
    let mut websocket = upgraded(&running);
    websocket.write_all(&connect("w01")).unwrap();
    let mut answer = [0; 6];
    websocket.stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x82, 4, 0x20, 2, 0, 0]);
}

#[test]
fn w02_packets_may_span_frames() {
    let running = start(4);
    for n in 0..8 {
        let mut websocket = upgraded(&running);
        let session = [
            connect(&format!("w02-{n}")),
            subscribe(1, "w", 0),
            publish("w", b"hello"),
            PINGREQ.to_vec(),
        ]
        .concat();
        let (first, rest) = session.split_at(5);
        let (second, third) = rest.split_at(9);
        let frames = [
            frame(0x02, first),
            frame(0x89, b"?"),
            frame(0x00, second),
            frame(0x80, b""),
            frame(0x82, third),
        ];
        websocket.stream.write_all(&frames.concat()).unwrap();
        let expected = [
            &CONNACK[..],
            &[0x90, 3, 0, 1, 0],
            &publish("w", b"hello"),
            &[PINGRESP, 0],
        ]
        .concat();
        let mut answer = vec![0; expected.len()];
        websocket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, expected);
        assert_eq!(websocket.pongs, [b"?"]);
    }
}

#[test]
fn w03_w04_w06_violations_are_closed_with_their_code() {
    let running = start(2);
    let mut unmasked = frame(0x82, &connect("x"));
    unmasked[1] &= 0x7F;
    let huge = [&[0x82, 0x80 | 127][..], &(1u64 << 62).to_be_bytes(), &MASK].concat();
    let cases = [
        ("text", frame(0x81, b"hello"), 1003),
        ("unmasked", unmasked, 1002),
        ("huge", huge, 1009),
    ];
    for (name, bytes, code) in &cases {
        let mut before_connect = upgraded(&running);
        before_connect.stream.write_all(bytes).unwrap();
        assert_eq!(close_code(&mut before_connect), Some(*code), "{name} before CONNECT");
        let mut connected = upgraded(&running);
        connected.write_all(&connect(name)).unwrap();
        assert_eq!(read_packet(&mut connected).unwrap().first, 0x20);
        connected.stream.write_all(bytes).unwrap();
        assert_eq!(close_code(&mut connected), Some(*code), "{name}");
    }
    assert_eq!(
        running.refused(Transport::WebSocket, EarlyCloseReason::WebSocketFraming),
        cases.len() as u64
    );
    eventually("transport errors are counted", || {
        running.handle.counters().transport_errors == cases.len() as u64
    });
}

#[test]
fn close_before_connect_is_answered() {
    let running = start(2);
    let mut websocket = upgraded(&running);
    websocket
        .stream
        .write_all(&frame(0x88, &1000u16.to_be_bytes()))
        .unwrap();
    assert_eq!(close_code(&mut websocket), Some(1000));
    let refused = || running.refused(Transport::WebSocket, EarlyCloseReason::PeerClosed);
    eventually("it is counted", || refused() == 1);
    eventually("nothing is left", || running.handle.connections() == 0);
}

#[test]
fn w05_missing_sub_protocol_is_rejected_with_a_message() {
    let running = start(1);
    for request in [
        UPGRADE.replace("Sec-WebSocket-Protocol: mqtt\r\n", ""),
        UPGRADE.replace("Protocol: mqtt", "Protocol: chat"),
    ] {
        let mut stream = tcp(running.address(Transport::WebSocket));
        stream.write_all(request.as_bytes()).unwrap();
        let answer = String::from_utf8(read_to_close(&mut stream)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.ends_with("must offer mqtt or mqttv3.1\n"), "{answer}");
    }
    assert_eq!(
        running.refused(Transport::WebSocket, EarlyCloseReason::WebSocketHandshake),
        2
    );
}

#[test]
fn browsers_get_a_message_and_clients_a_close_frame() {
    let running = start(1);
    let mut browser = tcp(running.address(Transport::WebSocket));
    browser
        .write_all(b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let answer = String::from_utf8(read_to_close(&mut browser)).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 426 ") && answer.contains("MQTT over WebSocket"),
        "{answer}"
    );

    let mut client = upgraded(&running);
    client.write_all(&connect("polite")).unwrap();
    assert_eq!(read_packet(&mut client).unwrap().first, 0x20);
    client.stream.write_all(&frame(0x88, &1001u16.to_be_bytes())).unwrap();
    assert_eq!(close_code(&mut client), Some(1001));
}
