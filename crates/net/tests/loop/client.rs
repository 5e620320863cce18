//! A blocking MQTT 3.1.1 and 5 client over any transport. Its packets are written byte by byte.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use broker::Transport;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// Longer than any operation takes. A test that waits this long fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub trait Wire: Read + Write + Send {
    fn tcp(&self) -> &TcpStream;
    /// Sends these bytes and the close of every layer in one write.
    fn end_with(&mut self, bytes: &[u8]);
}

impl Wire for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }

    fn end_with(&mut self, bytes: &[u8]) {
        self.write_all(bytes).unwrap();
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Wire for StreamOwned<ClientConnection, TcpStream> {
    fn tcp(&self) -> &TcpStream {
        &self.sock
    }

    fn end_with(&mut self, bytes: &[u8]) {
        // The handshake has its own writes.
        self.flush().unwrap();
        self.conn.writer().write_all(bytes).unwrap();
        self.conn.send_close_notify();
        let mut sealed = Vec::new();
        while self.conn.wants_write() {
            self.conn.write_tls(&mut sealed).unwrap();
        }
        self.sock.end_with(&sealed);
    }
}

pub fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub fn tls(address: SocketAddr, config: Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), tcp(address))
}

/// Opens a connection that is ready for CONNECT.
pub fn open(transport: Transport, address: SocketAddr, config: &Arc<ClientConfig>) -> Box<dyn Wire> {
    match transport {
        Transport::Tcp => Box::new(tcp(address)),
        Transport::Tls => Box::new(tls(address, config.clone())),
        Transport::WebSocket => Box::new(WebSocket::upgrade(tcp(address))),
        Transport::SecureWebSocket => Box::new(WebSocket::upgrade(tls(address, config.clone()))),
        Transport::Quic => Box::new(super::quic_wire::QuicWire::connect(address, config)),
    }
}

/// Client side of RFC 6455: every write is one masked binary frame.
pub struct WebSocket<S> {
    pub stream: S,
    payload: Vec<u8>,
    pub pongs: Vec<Vec<u8>>,
    pub close_code: Option<u16>,
}

pub const MASK: [u8; 4] = [1, 2, 3, 4];

pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..65536 => {
            bytes.push(0x80 | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend(MASK);
    bytes.extend(payload.iter().enumerate().map(|(index, byte)| byte ^ MASK[index % 4]));
    bytes
}

pub const UPGRADE: &str = "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

impl<S: Wire> WebSocket<S> {
    pub fn upgrade(mut stream: S) -> WebSocket<S> {
        stream.write_all(UPGRADE.as_bytes()).unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("\r\nSec-WebSocket-Protocol: mqtt\r\n"), "{head}");
        WebSocket {
            stream,
            payload: Vec::new(),
            pongs: Vec::new(),
            close_code: None,
        }
    }

    /// Fills the buffer. Returns false at the end of the stream.
    pub fn read_frame(&mut self) -> io::Result<bool> {
        let mut header = [0; 2];
        if let Err(error) = self.stream.read_exact(&mut header) {
            return if error.kind() == ErrorKind::UnexpectedEof {
                Ok(false)
            } else {
                Err(error)
            };
        }
        assert_eq!(header[1] & 0x80, 0, "a server does not mask");
        let length = match header[1] {
            126 => u64::from(u16::from_be_bytes(self.read_array()?)),
            127 => u64::from_be_bytes(self.read_array()?),
            length => u64::from(length),
        };
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload)?;
        match header[0] {
            0x82 => self.payload.extend(payload),
            0x8A => self.pongs.push(payload),
            0x88 => self.close_code = Some(u16::from_be_bytes([payload[0], payload[1]])),
            other => panic!("unexpected frame {other:#x}"),
        }
        Ok(true)
    }

    fn read_array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

pub fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap() == 0 {
            break;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

impl<S: Wire> Read for WebSocket<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.payload.is_empty() {
            if !self.read_frame()? {
                return Ok(0);
            }
        }
        let bytes = self.payload.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&self.payload[..bytes]);
        self.payload.drain(..bytes);
        Ok(bytes)
    }
}

impl<S: Wire> Write for WebSocket<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.write_all(&frame(0x82, buffer))?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S: Wire> Wire for WebSocket<S> {
    fn tcp(&self) -> &TcpStream {
        self.stream.tcp()
    }

    fn end_with(&mut self, bytes: &[u8]) {
        let mut frames = frame(0x82, bytes);
        frames.extend(frame(0x88, &1000u16.to_be_bytes()));
        self.stream.end_with(&frames);
    }
}

// --- packets ---

pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut left = body.len();
    loop {
        let more = if left > 127 { 0x80 } else { 0 };
        bytes.push((left % 128) as u8 | more);
        left /= 128;
        if left == 0 {
            break;
        }
    }
    bytes.extend(body);
    bytes
}

pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

pub fn connect(client_id: &str) -> Vec<u8> {
    packet(0x10, &[&b"\x00\x04MQTT\x04\x02\x00\x00"[..], &text(client_id)].concat())
}

pub fn connect_to_stay(client_id: &str) -> Vec<u8> {
    packet(0x10, &[&b"\x00\x04MQTT\x04\x00\x00\x00"[..], &text(client_id)].concat())
}

pub fn connect_v5(client_id: &str) -> Vec<u8> {
    packet(
        0x10,
        &[&b"\x00\x04MQTT\x05\x02\x00\x00\x00"[..], &text(client_id)].concat(),
    )
}

pub fn connect_as(client_id: &str, user_name: &str) -> Vec<u8> {
    let parts = [
        &b"\x00\x04MQTT\x04\xC2\x00\x00"[..],
        &text(client_id),
        &text(user_name),
        &text("secret"),
    ];
    packet(0x10, &parts.concat())
}

pub fn connect_with_will(client_id: &str, topic: &str, payload: &str) -> Vec<u8> {
    packet(
        0x10,
        &[
            &b"\x00\x04MQTT\x04\x06\x00\x00"[..],
            &text(client_id),
            &text(topic),
            &text(payload),
        ]
        .concat(),
    )
}

pub fn subscribe(id: u16, filter: &str, qos: u8) -> Vec<u8> {
    packet(0x82, &[&id.to_be_bytes()[..], &text(filter), &[qos]].concat())
}

pub fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    packet(0x30, &[&text(topic), payload].concat())
}

pub fn publish_qos1(id: u16, topic: &str, payload: &[u8]) -> Vec<u8> {
    packet(0x32, &[&text(topic)[..], &id.to_be_bytes(), payload].concat())
}

pub const PINGREQ: [u8; 2] = [0xC0, 0];
pub const PINGRESP: u8 = 0xD0;
pub const DISCONNECT: [u8; 2] = [0xE0, 0];
pub const CONNACK: [u8; 4] = [0x20, 2, 0, 0];

/// A received packet: first byte and body.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet {
    pub first: u8,
    pub body: Vec<u8>,
}

impl Packet {
    /// Returns topic and payload of a QoS 0 PUBLISH.
    pub fn message(&self) -> (&str, &[u8]) {
        assert_eq!(self.first & 0xF6, 0x30, "not a PUBLISH at QoS 0: {:#x}", self.first);
        let length = usize::from(u16::from_be_bytes([self.body[0], self.body[1]]));
        (
            std::str::from_utf8(&self.body[2..2 + length]).unwrap(),
            &self.body[2 + length..],
        )
    }
}

/// Reads a packet. Returns `None` if the stream has ended by FIN or reset.
pub fn read_packet(stream: &mut impl Read) -> Option<Packet> {
    let mut byte = [0];
    if !fill(stream, &mut byte) {
        return None;
    }
    let first = byte[0];
    let (mut length, mut shift) = (0, 0);
    loop {
        assert!(fill(stream, &mut byte), "the stream ended inside a packet");
        length |= usize::from(byte[0] & 0x7F) << shift;
        shift += 7;
        if byte[0] & 0x80 == 0 {
            break;
        }
    }
    let mut body = vec![0; length];
    assert!(fill(stream, &mut body), "the stream ended inside a packet");
    Some(Packet { first, body })
}

fn fill(stream: &mut impl Read, buffer: &mut [u8]) -> bool {
    match stream.read_exact(buffer) {
        Ok(()) => true,
        Err(error) if is_end(&error) => false,
        Err(error) => panic!("{error}"),
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

/// Returns all bytes that the server sends until it closes.
pub fn read_to_close(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if is_end(&error) => {}
        Err(error) => panic!("not closed: {error}"),
    }
    bytes
}

/// A connected 3.1.1 client.
pub struct Client(pub Box<dyn Wire>);

impl Client {
    pub fn connect(stream: impl Wire + 'static, client_id: &str) -> Client {
        Client::connected(Box::new(stream), client_id)
    }

    pub fn connected(stream: Box<dyn Wire>, client_id: &str) -> Client {
        let mut client = Client(stream);
        client.send(&connect(client_id));
        assert_eq!(
            client.read(),
            Packet {
                first: CONNACK[0],
                body: CONNACK[2..].to_vec()
            }
        );
        client
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
        self.0.flush().unwrap();
    }

    pub fn read(&mut self) -> Packet {
        read_packet(&mut self.0).expect("the server closed the connection")
    }

    pub fn subscribe(&mut self, filter: &str) {
        self.send(&subscribe(1, filter, 0));
        assert_eq!(
            self.read(),
            Packet {
                first: 0x90,
                body: vec![0, 1, 0]
            }
        );
    }

    /// Sends PINGREQ and waits for PINGRESP. The shard has then handled all earlier packets.
    pub fn ping(&mut self) {
        self.send(&PINGREQ);
        assert_eq!(self.read().first, PINGRESP);
    }
}
