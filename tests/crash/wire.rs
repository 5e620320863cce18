//! Connections that may close at any time.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::{Connack, Connect, PATIENCE, Packet, Peer, Reading, kind, packet};

/// Server unavailable in MQTT 3.1.1 and in MQTT 5, and Server shutting down.
const GOING: [u8; 3] = [0x03, 0x88, 0x8B];

/// Connects and returns the connection and its CONNACK. Returns `None` if the connection or the CONNACK failed.
#[track_caller]
pub fn open(address: SocketAddr, connect: &Connect) -> Option<(Peer, Connack)> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    let mut peer = Peer::over(stream).speak(connect.version);
    peer.try_send(&connect.bytes()).ok()?;
    let connack = match peer.read(PATIENCE) {
        Reading::Packet(packet) => packet.connack(connect.version),
        Reading::Closed => return None,
        Reading::Silence => panic!("no answer to CONNECT within {PATIENCE:?}"),
    };
    if GOING.contains(&connack.code) {
        return None;
    }
    assert_eq!(connack.code, 0, "{connect:?} was refused: {connack:?}");
    Some((peer, connack))
}

/// Result of waiting for a packet.
#[derive(Debug)]
pub enum Heard {
    Packet(Packet),
    Nothing,
    /// The connection is closed, or the server has announced its shutdown.
    End,
}

pub fn hear(peer: &mut Peer, within: Duration) -> Heard {
    match peer.read(within) {
        Reading::Packet(packet) if packet.kind() == kind::DISCONNECT => Heard::End,
        Reading::Packet(packet) => Heard::Packet(packet),
        Reading::Closed => Heard::End,
        Reading::Silence => Heard::Nothing,
    }
}

/// Sends an acknowledgement. Returns false if the connection is closed.
#[must_use]
pub fn answer(peer: &mut Peer, of_kind: u8, packet_id: u16) -> bool {
    peer.try_send(&packet::acknowledge(of_kind, packet_id)).is_ok()
}
