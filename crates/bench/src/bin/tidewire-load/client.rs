//! One MQTT 3.1.1 connection of the generator: bytes to send, bytes received, packets counted.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mqtt::{
    Connect, Decoded, Packet, PacketId, PacketType, Properties, ProtocolVersion, Publish, PublishExtras, QoS,
    Subscribe, SubscribeFilter, SubscribeFilters, SubscriptionOptions,
};

pub const VERSION: ProtocolVersion = ProtocolVersion::V3_1_1;

/// Output beyond which nothing more is made until the socket has taken some.
pub const OUTPUT_MAX: usize = 256 * 1024;

pub struct Client {
    pub socket: TcpStream,
    pub output: Vec<u8>,
    written: usize,
    partial: Vec<u8>,
    pub is_writable: bool,
    pub unacknowledged: usize,
    next_id: u16,
}

/// What came in one read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    pub publishes: u64,
    pub acknowledgements: u64,
    pub connacks: u64,
    pub subacks: u64,
}

impl Client {
    /// Connects (waiting for the kernel) and queues the CONNECT.
    pub fn connect(broker: SocketAddr, client_id: &str) -> io::Result<Client> {
        let socket = std::net::TcpStream::connect(broker)?;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let mut output = Vec::new();
        let connect = Connect {
            version: VERSION,
            clean_start: true,
            is_bridge: false,
            keep_alive: 300,
            properties: Properties::EMPTY,
            client_id,
            will: None,
            user_name: None,
            password: None,
        };
        Packet::Connect(connect).encode(VERSION, &mut output);
        Ok(Client {
            socket: TcpStream::from_std(socket),
            output,
            written: 0,
            partial: Vec::new(),
            is_writable: true,
            unacknowledged: 0,
            next_id: 0,
        })
    }

    pub fn subscribe(&mut self, filter: &str, qos: QoS) {
        let mut bytes = Vec::new();
        let options = SubscriptionOptions {
            maximum_qos: qos,
            ..SubscriptionOptions::default()
        };
        let filters = SubscribeFilters::encode([SubscribeFilter { filter, options }], VERSION, &mut bytes);
        let packet_id = PacketId::new(1).expect("1 is not 0");
        Packet::Subscribe(Subscribe {
            packet_id,
            properties: Properties::EMPTY,
            filters,
        })
        .encode(VERSION, &mut self.output);
    }

    pub fn publish(&mut self, topic: &str, payload: &[u8], qos: QoS) {
        let packet_id = (qos != QoS::AtMostOnce).then(|| {
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            self.unacknowledged += 1;
            PacketId::new(self.next_id).expect("never 0")
        });
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id,
            properties: Properties::EMPTY,
            payload,
        };
        mqtt::encode_publish(&publish, PublishExtras::default(), VERSION, &mut self.output);
    }

    pub fn queued(&self) -> usize {
        self.output.len() - self.written
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while self.is_writable && self.written < self.output.len() {
            match self.socket.write(&self.output[self.written..]) {
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.is_writable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
        Ok(())
    }

    /// Reads until the socket is empty, answers what needs an answer.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut received = Received::default();
        loop {
            let kept = self.partial.len();
            buffer[..kept].copy_from_slice(&self.partial);
            let n = match self.socket.read(&mut buffer[kept..]) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the broker closed a connection",
                    ));
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(received),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let end = kept + n;
            let is_emptied = end < buffer.len();
            let used = self.count(&buffer[..end], &mut received);
            self.partial.clear();
            self.partial.extend_from_slice(&buffer[used..end]);
            if is_emptied {
                return Ok(received);
            }
        }
    }

    fn count(&mut self, bytes: &[u8], received: &mut Received) -> usize {
        let mut used = 0;
        // Packets are told apart by their first bytes; contents are not looked at.
        while let Ok(Decoded::Complete { packet, size }) = mqtt::decode(&bytes[used..], VERSION, usize::MAX) {
            used += size;
            match packet {
                Packet::Publish(publish) => {
                    received.publishes += 1;
                    match (publish.qos, publish.packet_id) {
                        (QoS::AtLeastOnce, Some(id)) => mqtt::encode_bare_ack(PacketType::PubAck, id, &mut self.output),
                        (QoS::ExactlyOnce, Some(id)) => mqtt::encode_bare_ack(PacketType::PubRec, id, &mut self.output),
                        _ => {}
                    }
                }
                Packet::PubRel(ack) => mqtt::encode_bare_ack(PacketType::PubComp, ack.packet_id, &mut self.output),
                Packet::PubRec(ack) => mqtt::encode_bare_ack(PacketType::PubRel, ack.packet_id, &mut self.output),
                Packet::PubAck(_) | Packet::PubComp(_) => {
                    received.acknowledgements += 1;
                    self.unacknowledged -= 1;
                }
                Packet::ConnAck(_) => received.connacks += 1,
                Packet::SubAck(_) => received.subacks += 1,
                _ => {}
            }
        }
        used
    }
}
