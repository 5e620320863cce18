//! A minimal broker, which shows what latencies consist of if there are only sockets and a disk:
//! `cargo run --release --example floor -- 127.0.0.1:1883 [FILE]`.
//!
//! One thread, without sessions, limits or error handling. A message goes to the one client whose last filter has the
//! same text as the topic up to the last slash. It is acknowledged at once; with FILE, after everything that one poll
//! brought was written to the file and synced. `bench/durability` compares it with the broker.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use mqtt::{
    ConnAck, Decoded, Packet, PacketId, PacketType, Properties, ProtocolVersion, Publish, PublishExtras, ReasonCode,
    decode, decode_connect, encode_bare_ack, encode_publish,
};

const LISTENER: Token = Token(usize::MAX);
const MAXIMUM_PACKET_BYTES: usize = 1 << 20;
/// The file is written as a ring.
const FILE_BYTES: usize = 64 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap().parse().unwrap();
    let mut disk = arguments.next().map(|path| Disk::create(&path));
    let mut listener = TcpListener::bind(address).unwrap();
    let mut poll = Poll::new().unwrap();
    let registry = poll.registry();
    registry.register(&mut listener, LISTENER, Interest::READABLE).unwrap();
    let mut events = Events::with_capacity(1024);
    let mut broker = Broker::default();
    loop {
        poll.poll(&mut events, None).unwrap();
        for event in &events {
            if event.token() != LISTENER {
                broker.receive(event.token().0);
                continue;
            }
            while let Ok((mut socket, _)) = listener.accept() {
                let token = Token(broker.connections.len());
                poll.registry()
                    .register(&mut socket, token, Interest::READABLE)
                    .unwrap();
                socket.set_nodelay(true).unwrap();
                broker.connections.push(Connection::new(socket));
            }
        }
        if let Some(disk) = &mut disk {
            disk.keep(&broker.to_keep);
        }
        broker.to_keep.clear();
        broker.send();
    }
}

struct Disk {
    file: File,
    position: usize,
}

impl Disk {
    fn create(path: &str) -> Disk {
        let mut file = File::create(path).unwrap();
        file.write_all(&vec![0; FILE_BYTES]).unwrap();
        file.sync_all().unwrap();
        Disk { file, position: 0 }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.position + bytes.len() > FILE_BYTES {
            self.position = 0;
        }
        self.file.write_all_at(bytes, self.position as u64).unwrap();
        self.position += bytes.len();
        self.file.sync_data().unwrap();
    }
}

#[derive(Default)]
struct Broker {
    connections: Vec<Connection>,
    /// Subscribers by the text of their filters up to the last slash.
    subscribers: HashMap<String, usize>,
    to_keep: Vec<u8>,
    to_send: Vec<usize>,
}

struct Connection {
    socket: TcpStream,
    version: Option<ProtocolVersion>,
    input: Vec<u8>,
    output: Vec<u8>,
    last_id: u16,
}

impl Connection {
    fn new(socket: TcpStream) -> Connection {
        Connection {
            socket,
            version: None,
            input: Vec::new(),
            output: Vec::new(),
            last_id: 0,
        }
    }
}

impl Broker {
    fn receive(&mut self, at: usize) {
        let mut chunk = [0; 4096];
        loop {
            let connection = &mut self.connections[at];
            match connection.socket.read(&mut chunk) {
                Ok(size) => connection.input.extend_from_slice(&chunk[..size]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            }
            let size = connection.input.len();
            self.serve(at);
            if size < chunk.len() {
                return;
            }
        }
    }

    fn serve(&mut self, at: usize) {
        let input = std::mem::take(&mut self.connections[at].input);
        let mut rest = &input[..];
        loop {
            let Some(version) = self.connections[at].version else {
                let Decoded::Complete { packet, size } = decode_connect(rest, MAXIMUM_PACKET_BYTES).unwrap() else {
                    break;
                };
                rest = &rest[size..];
                self.accept(at, packet.version);
                continue;
            };
            let Decoded::Complete { packet, size } = decode(rest, version, MAXIMUM_PACKET_BYTES).unwrap() else {
                break;
            };
            rest = &rest[size..];
            self.answer(at, version, &packet);
        }
        self.connections[at].input.extend_from_slice(rest);
        self.to_send.push(at);
    }

    fn accept(&mut self, at: usize, version: ProtocolVersion) {
        let connection = &mut self.connections[at];
        connection.version = Some(version);
        let connack = ConnAck {
            session_present: false,
            reason: ReasonCode::Success,
            properties: Properties::default(),
        };
        Packet::ConnAck(connack).encode(version, &mut connection.output);
    }

    fn answer(&mut self, at: usize, version: ProtocolVersion, packet: &Packet<'_>) {
        match packet {
            Packet::Publish(publish) => self.route(at, publish),
            Packet::Subscribe(subscribe) => {
                for each in subscribe.filters.iter() {
                    let (start, _) = each.filter.rsplit_once('/').unwrap();
                    self.subscribers.insert(start.to_owned(), at);
                }
                let [high, low] = subscribe.packet_id.get().to_be_bytes();
                let suback: &[u8] = match version {
                    ProtocolVersion::V5 => &[0x90, 4, high, low, 0, 1],
                    _ => &[0x90, 3, high, low, 1],
                };
                self.connections[at].output.extend_from_slice(suback);
            }
            _ => {}
        }
    }

    fn route(&mut self, at: usize, publish: &Publish<'_>) {
        self.to_keep.extend_from_slice(publish.topic.as_bytes());
        self.to_keep.extend_from_slice(publish.payload);
        if let Some(packet_id) = publish.packet_id {
            encode_bare_ack(PacketType::PubAck, packet_id, &mut self.connections[at].output);
        }
        let (start, _) = publish.topic.rsplit_once('/').unwrap();
        let Some(&subscriber) = self.subscribers.get(start) else {
            return;
        };
        let connection = &mut self.connections[subscriber];
        connection.last_id = connection.last_id.checked_add(1).unwrap_or(1);
        let publish = Publish {
            packet_id: publish.packet_id.and(PacketId::new(connection.last_id)),
            ..publish.clone()
        };
        encode_publish(
            &publish,
            PublishExtras::default(),
            connection.version.unwrap(),
            &mut connection.output,
        );
        self.to_send.push(subscriber);
    }

    fn send(&mut self) {
        for at in self.to_send.drain(..) {
            let connection = &mut self.connections[at];
            if !connection.output.is_empty() {
                // A full socket is not handled: this example never sends much.
                let _ = connection.socket.write(&connection.output);
                connection.output.clear();
            }
        }
    }
}
