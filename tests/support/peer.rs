//! Client side of an MQTT connection over TCP. It sends raw bytes and receives packets.
//!
//! Expectations panic at the caller's line. A read waits for a packet, the end of the stream or `PATIENCE`. To check
//! that a packet does *not* arrive, request a later packet (`ping` or a sentinel message) and check the packets before
//! it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Version::{self, V4, V5};
use super::{Connack, Connect, Delivery, PATIENCE, Packet, Publish, kind, packet};

/// Result of one read.
#[derive(Debug)]
pub enum Reading {
    Packet(Packet),
    /// The stream ended or the connection was reset.
    Closed,
    /// Neither a packet nor the end of the stream arrived in time.
    Silence,
}

/// A connection that the server closed, with all packets that it sent before.
#[derive(Debug)]
pub struct Closed {
    pub packets: Vec<Packet>,
}

impl Closed {
    /// Returns the reason code of the server's DISCONNECT, if it sent one. The DISCONNECT must be the last packet.
    #[track_caller]
    pub fn disconnect_reason(&self) -> Option<u8> {
        let at = self
            .packets
            .iter()
            .position(|packet| packet.kind() == kind::DISCONNECT)?;
        assert_eq!(
            at + 1,
            self.packets.len(),
            "packets after the DISCONNECT: {:?}",
            self.packets
        );
        Some(self.packets[at].disconnect_reason())
    }

    /// Returns the code of the CONNACK, if the server sent one.
    #[track_caller]
    pub fn connack_code(&self, version: Version) -> Option<u8> {
        let connack = self.packets.iter().find(|packet| packet.kind() == kind::CONNACK)?;
        Some(connack.connack(version).code)
    }
}

#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
    version: Version,
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` that were already returned.
    used: usize,
    /// Packets that were read while waiting for another packet.
    set_aside: VecDeque<Packet>,
    next_packet_id: u16,
}

impl Peer {
    /// Opens the connection and sends nothing. Before `handshake`, packets are parsed as MQTT 3.1.1.
    #[track_caller]
    pub fn connect(address: SocketAddr) -> Peer {
        Peer::over(connect_tcp(address))
    }

    pub fn over(stream: TcpStream) -> Peer {
        stream.set_nodelay(true).expect("a socket accepts TCP_NODELAY");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a socket accepts a timeout");
        Peer {
            stream,
            version: V4,
            buffer: Vec::new(),
            used: 0,
            set_aside: VecDeque::new(),
            next_packet_id: 1,
        }
    }

    /// Opens the connection and the session. Fails unless the CONNACK has code 0.
    #[track_caller]
    pub fn session(address: SocketAddr, connect: &Connect) -> Peer {
        let mut peer = Peer::connect(address);
        let connack = peer.handshake(connect);
        assert_eq!(connack.code, 0, "{connect:?} was refused: {connack:?}");
        peer
    }

    /// Sends a CONNECT and returns the CONNACK with any code.
    #[track_caller]
    pub fn handshake(&mut self, connect: &Connect) -> Connack {
        self.version = connect.version;
        self.send(&connect.bytes());
        self.expect_packet().connack(connect.version)
    }

    /// Sets the protocol version for parsing received packets. `handshake` also sets it.
    pub fn speak(mut self, version: Version) -> Peer {
        self.version = version;
        self
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn local_address(&self) -> SocketAddr {
        self.stream.local_addr().expect("a connected socket")
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    // --- Sending

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        if let Err(error) = self.stream.write_all(bytes) {
            panic!("cannot send {} bytes: {error}", bytes.len());
        }
    }

    /// Sends bytes and returns errors, because the server may close the connection before it has read all bytes.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Writes until all bytes are written, the server closes, or it reads nothing for `stall`. Returns the number of
    /// bytes written.
    pub fn send_until_blocked(&mut self, bytes: &[u8], stall: Duration) -> usize {
        self.stream
            .set_write_timeout(Some(stall))
            .expect("a socket accepts a timeout");
        let mut written = 0;
        while written < bytes.len() {
            match self.stream.write(&bytes[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a socket accepts a timeout");
        written
    }

    /// Closes only the sending direction (FIN).
    pub fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("a connected socket");
    }

    /// Drops the connection without a DISCONNECT.
    pub fn abort(self) {}

    /// Sends DISCONNECT 0x00 and waits until the server closes. The server has then processed the disconnect.
    #[track_caller]
    pub fn disconnect(mut self) {
        self.send(&packet::DISCONNECT);
        self.expect_closed(PATIENCE);
    }

    /// Returns a packet identifier that this peer has not used in its last 65,534 requests.
    pub fn packet_id(&mut self) -> u16 {
        let id = self.next_packet_id;
        self.next_packet_id = id.checked_add(1).unwrap_or(1);
        id
    }

    // --- Receiving

    /// Reads the next packet, the end of the stream or a timeout.
    pub fn read(&mut self, within: Duration) -> Reading {
        if let Some(packet) = self.set_aside.pop_front() {
            return Reading::Packet(packet);
        }
        self.read_wire(within)
    }

    fn read_wire(&mut self, within: Duration) -> Reading {
        let deadline = Instant::now() + within;
        loop {
            if let Some((packet, length)) = Packet::cut(&self.buffer[self.used..]) {
                self.used += length;
                return Reading::Packet(packet);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Reading::Silence;
            }
            match self.fill(left) {
                Ok(0) => return Reading::Closed,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Reading::Closed,
            }
        }
    }

    /// Reads once from the socket. Returns 0 at the end of the stream.
    fn fill(&mut self, within: Duration) -> io::Result<usize> {
        self.buffer.drain(..self.used);
        self.used = 0;
        self.stream.set_read_timeout(Some(within))?;
        let start = self.buffer.len();
        self.buffer.resize(start + 64 * 1024, 0);
        let result = self.stream.read(&mut self.buffer[start..]);
        self.buffer.truncate(start + *result.as_ref().unwrap_or(&0));
        result
    }

    #[track_caller]
    pub fn expect_packet(&mut self) -> Packet {
        match self.read(PATIENCE) {
            Reading::Packet(packet) => packet,
            other => panic!(
                "expected a packet, got {other:?}; unparsed: {:02x?}",
                &self.buffer[self.used..]
            ),
        }
    }

    /// Returns the next packet of this type. Other packets, mostly messages, stay queued in order for later reads.
    #[track_caller]
    pub fn expect(&mut self, of_kind: u8) -> Packet {
        if let Some(at) = self.set_aside.iter().position(|packet| packet.kind() == of_kind) {
            return self.set_aside.remove(at).expect("the position was just found");
        }
        loop {
            match self.read_wire(PATIENCE) {
                Reading::Packet(packet) if packet.kind() == of_kind => return packet,
                Reading::Packet(packet) => self.set_aside.push_back(packet),
                other => panic!(
                    "expected {}, got {other:?} after {:?}",
                    kind::NAMES[usize::from(of_kind)],
                    self.set_aside
                ),
            }
        }
    }

    /// Reads the next packet, which must be a PUBLISH. Does not acknowledge it.
    #[track_caller]
    pub fn expect_publish(&mut self) -> Delivery {
        self.expect_packet().delivery(self.version)
    }

    /// Reads the next packet, which must be a PUBLISH, and acknowledges it as its QoS requires.
    #[track_caller]
    pub fn receive(&mut self) -> Delivery {
        let delivery = self.expect_publish();
        self.acknowledge(&delivery);
        delivery
    }

    /// Completes the delivery of a message: PUBACK for QoS 1, PUBREC to PUBCOMP for QoS 2.
    #[track_caller]
    pub fn acknowledge(&mut self, delivery: &Delivery) {
        let Some(id) = delivery.packet_id else { return };
        if delivery.qos == 1 {
            return self.send(&packet::acknowledge(kind::PUBACK, id));
        }
        self.send(&packet::acknowledge(kind::PUBREC, id));
        let pubrel = self.expect(kind::PUBREL);
        assert_eq!(
            (pubrel.first, pubrel.packet_id()),
            (0x62, id),
            "expected a PUBREL for the same message"
        );
        self.send(&packet::acknowledge(kind::PUBCOMP, id));
    }

    /// Reads to the end of the stream, which must arrive in time.
    #[track_caller]
    pub fn expect_closed(&mut self, within: Duration) -> Closed {
        let deadline = Instant::now() + within;
        let mut packets = Vec::new();
        loop {
            match self.read(deadline.saturating_duration_since(Instant::now())) {
                Reading::Packet(packet) => packets.push(packet),
                Reading::Closed => return Closed { packets },
                Reading::Silence => panic!("the connection is still open after {within:?}; received: {packets:?}"),
            }
        }
    }

    /// Expects the server to send this DISCONNECT (MQTT 5) and to close. Other packets may arrive before.
    #[track_caller]
    pub fn expect_disconnect(&mut self, reason: u8) -> Closed {
        let closed = self.expect_closed(PATIENCE);
        let found = closed.disconnect_reason();
        assert_eq!(
            found,
            Some(reason),
            "expected DISCONNECT {reason:#04x}, got {found:02x?} in {:?}",
            closed.packets
        );
        closed
    }

    /// Expects no packet for the whole time. Use it only if no later packet can be requested.
    #[track_caller]
    pub fn expect_nothing(&mut self, within: Duration) {
        match self.read(within) {
            Reading::Silence => {}
            other => panic!("expected no packet, got {other:?}"),
        }
    }

    // --- Complete exchanges

    /// Sends a PINGREQ and returns the packets before its PINGRESP. The server has then processed all earlier packets
    /// of this peer.
    #[track_caller]
    pub fn ping(&mut self) -> Vec<Packet> {
        self.send(&packet::PINGREQ);
        let mut before = Vec::new();
        loop {
            let packet = self.expect_packet();
            if packet.kind() == kind::PINGRESP {
                return before;
            }
            before.push(packet);
        }
    }

    /// Sends a PINGREQ. The next packet must be its PINGRESP.
    #[track_caller]
    pub fn ping_alone(&mut self) {
        let before = self.ping();
        assert!(before.is_empty(), "expected only a PINGRESP, got {before:?}");
    }

    /// Subscribes to one filter with an options byte and returns the reason code.
    #[track_caller]
    pub fn subscribe_code(&mut self, filter: impl AsRef<[u8]>, options: u8) -> u8 {
        let id = self.packet_id();
        self.send(&packet::subscribe(self.version, id, &[(filter, options)], &[]));
        let suback = self.expect(kind::SUBACK);
        assert_eq!(suback.packet_id(), id, "the SUBACK answers another SUBSCRIBE");
        let codes = suback.reason_codes(self.version);
        assert_eq!(codes.len(), 1, "expected one reason code for one filter");
        codes[0]
    }

    /// Subscribes to one filter and returns the reason code, or `None` if the server closes instead.
    #[track_caller]
    pub fn subscribe_answer(&mut self, filter: impl AsRef<[u8]>) -> Option<u8> {
        let id = self.packet_id();
        self.try_send(&packet::subscribe(self.version, id, &[(filter, 0)], &[]))
            .ok()?;
        match self.read(PATIENCE) {
            Reading::Closed => None,
            Reading::Packet(packet) if packet.kind() == kind::DISCONNECT => {
                self.expect_closed(PATIENCE);
                None
            }
            Reading::Packet(packet) => Some(packet.reason_codes(self.version)[0]),
            Reading::Silence => panic!("SUBSCRIBE got no answer"),
        }
    }

    /// Subscribes to one filter. The server must grant the QoS in `options`.
    #[track_caller]
    pub fn subscribe(&mut self, filter: impl AsRef<[u8]>, options: u8) {
        let code = self.subscribe_code(filter, options);
        assert_eq!(
            code,
            options & 0x03,
            "the subscription was not granted as requested: {code:#04x}"
        );
    }

    /// Unsubscribes from one filter and returns the reason code, which is 0 before MQTT 5.
    #[track_caller]
    pub fn unsubscribe(&mut self, filter: impl AsRef<[u8]>) -> u8 {
        let id = self.packet_id();
        self.send(&packet::unsubscribe(self.version, id, &[filter]));
        let unsuback = self.expect(kind::UNSUBACK);
        assert_eq!(unsuback.packet_id(), id, "the UNSUBACK answers another UNSUBSCRIBE");
        if self.version == V5 {
            unsuback.reason_codes(V5)[0]
        } else {
            0
        }
    }

    /// Publishes with a new packet identifier, completes the exchange and returns the reason code of PUBACK or PUBREC.
    #[track_caller]
    pub fn publish(&mut self, message: &Publish) -> u8 {
        let message = message.clone().id(self.packet_id());
        self.send(&message.bytes(self.version));
        match message.qos {
            0 => 0,
            1 => self.expect_answer(kind::PUBACK, message.packet_id),
            _ => {
                let reason = self.expect_answer(kind::PUBREC, message.packet_id);
                if reason < 0x80 {
                    self.send(&packet::acknowledge(kind::PUBREL, message.packet_id));
                    self.expect_answer(kind::PUBCOMP, message.packet_id);
                }
                reason
            }
        }
    }

    #[track_caller]
    fn expect_answer(&mut self, of_kind: u8, packet_id: u16) -> u8 {
        let answer = self.expect(of_kind);
        assert_eq!(answer.packet_id(), packet_id, "{answer:?} answers another packet");
        answer.reason()
    }

    /// Receives and acknowledges messages up to the one with this payload. Returns them without that one.
    #[track_caller]
    pub fn receive_until(&mut self, sentinel: impl AsRef<[u8]>) -> Vec<Delivery> {
        let mut messages = Vec::new();
        loop {
            let message = self.receive();
            if message.payload == sentinel.as_ref() {
                return messages;
            }
            messages.push(message);
        }
    }
}

/// Connects and retries while the accept queue is full.
#[track_caller]
pub fn connect_tcp(address: SocketAddr) -> TcpStream {
    match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(stream) => stream,
        Err(error) => panic!("cannot connect to {address}: {error}"),
    }
}
