//! Tests MQTT over WebSocket. Chapter 6.

use super::*;
use crate::support::websocket::{BINARY, CONTINUATION, TEXT, upgrade_request};
use crate::support::*;

#[test]
fn packets_travel_in_binary_frames() {
    for version in ALL_VERSIONS {
        let topic = topic();
        let mut socket = Server::shared().web_socket();
        socket.send(&Connect::new(version, unique("websocket")).bytes());
        let frame = socket.read_frame().expect("an answer");
        assert_eq!(frame.opcode, BINARY);
        let (packet, _) = Packet::cut(&frame.payload).expect("a whole CONNACK");
        assert_eq!(packet.connack(version).code, 0);
        socket.send(&packet::subscribe(version, 1, &[(&topic, 0)], &[]));
        assert_eq!(socket.expect_packet().kind(), kind::SUBACK);
        client(version).publish(&Publish::new(&topic, "over WebSocket"));
        assert_eq!(socket.expect_packet().delivery(version).payload, b"over WebSocket");
    }
}

#[test]
fn packets_need_no_frame_boundaries() {
    let topic = topic();
    let packets = [
        Connect::new(V4, unique("websocket")).bytes(),
        packet::subscribe(V4, 1, &[(&topic, 0)], &[]),
        Publish::new(&topic, "x".repeat(300)).bytes(V4),
        packet::PINGREQ.to_vec(),
    ]
    .concat();
    let whole = |socket: &mut WebSocket| socket.send(&packets);
    let single_bytes = |socket: &mut WebSocket| packets.iter().for_each(|byte| socket.send(&[*byte]));
    let fragments = |socket: &mut WebSocket| {
        let last = packets.len() / 7;
        for (at, part) in packets.chunks(7).enumerate() {
            socket.send_frame(at == last, if at == 0 { BINARY } else { CONTINUATION }, part);
        }
    };
    let ways: [&dyn Fn(&mut WebSocket); 3] = [&whole, &single_bytes, &fragments];
    for send in ways {
        let mut socket = Server::shared().web_socket();
        send(&mut socket);
        let mut kinds: Vec<u8> = (0..4).map(|_| socket.expect_packet().kind()).collect();
        assert_eq!(kinds.remove(0), kind::CONNACK);
        kinds.sort();
        assert_eq!(kinds, [kind::PUBLISH, kind::SUBACK, kind::PINGRESP]);
    }
}

#[test]
fn text_frame_closes_the_connection() {
    let connect = Connect::new(V4, unique("websocket")).bytes();
    let mut socket = Server::shared().web_socket();
    socket.send_frame(true, TEXT, &connect);
    let frames = socket.expect_closed(PATIENCE);
    assert!(frames.iter().all(|frame| frame.opcode != BINARY), "{frames:?}");

    let mut socket = Server::shared().web_socket();
    socket.send(&connect);
    assert_eq!(socket.expect_packet().connack(V4).code, 0);
    socket.send_frame(true, TEXT, &packet::PINGREQ);
    let frames = socket.expect_closed(PATIENCE);
    assert!(frames.iter().all(|frame| frame.opcode != BINARY), "{frames:?}");
}

#[test]
fn server_selects_the_mqtt_sub_protocol() {
    for offer in ["mqtt", "chat, mqtt", "mqtt,superchat"] {
        let mut socket = WebSocket::connect(Server::shared().websocket());
        let response = socket.upgrade(Some(offer));
        assert_eq!(response.status, 101, "{offer}: {response:?}");
        assert_eq!(response.header("sec-websocket-protocol"), Some("mqtt"), "{offer}");
    }
    // The server may refuse the request, or accept it without a sub-protocol.
    let mut socket = WebSocket::connect(Server::shared().websocket());
    socket.send_raw(upgrade_request(Some("chat"), "").as_bytes());
    let selected = socket.read_response();
    let selected = selected
        .as_ref()
        .and_then(|response| response.header("sec-websocket-protocol"));
    assert_eq!(selected, None, "selected a sub-protocol that the client did not offer");
}
