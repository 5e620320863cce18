//! WebSocket client (RFC 6455) that can also send invalid handshakes and frames.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::peer::connect_tcp;
use super::{PATIENCE, Packet};

pub const CONTINUATION: u8 = 0x0;
pub const TEXT: u8 = 0x1;
pub const BINARY: u8 = 0x2;
pub const CLOSE: u8 = 0x8;
pub const PING: u8 = 0x9;
pub const PONG: u8 = 0xA;

/// Example nonce of RFC 6455, section 1.3, and the expected answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub is_final: bool,
    pub opcode: u8,
    pub payload: Vec<u8>,
}

/// Status line and headers of a handshake response.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// Header names are in lower case.
    pub headers: Vec<(String, String)>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }
}

#[derive(Debug)]
pub struct WebSocket {
    stream: TcpStream,
    /// Received bytes that are not split into frames yet.
    buffer: Vec<u8>,
    /// Payload of data frames that is not split into packets yet.
    mqtt: Vec<u8>,
}

impl WebSocket {
    /// Opens the connection and sends nothing.
    #[track_caller]
    pub fn connect(address: SocketAddr) -> WebSocket {
        let stream = connect_tcp(address);
        stream.set_nodelay(true).expect("a socket accepts TCP_NODELAY");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a socket accepts a timeout");
        WebSocket {
            stream,
            buffer: Vec::new(),
            mqtt: Vec::new(),
        }
    }

    /// Opens a connection and upgrades it at `/mqtt` with the sub-protocol `mqtt`.
    #[track_caller]
    pub fn open(address: SocketAddr) -> WebSocket {
        let mut socket = WebSocket::connect(address);
        let response = socket.upgrade(Some("mqtt"));
        assert_eq!(response.status, 101, "the upgrade was refused: {response:?}");
        assert_eq!(
            response.header("sec-websocket-protocol"),
            Some("mqtt"),
            "[MQTT-6.0.0-4] {response:?}"
        );
        socket
    }

    /// Opens a connection and upgrades it at another path, without a sub-protocol.
    #[track_caller]
    pub fn open_path(address: SocketAddr, path: &str) -> WebSocket {
        let mut socket = WebSocket::connect(address);
        let request = upgrade_request(None, "").replacen("/mqtt", path, 1);
        socket.send_raw(request.as_bytes());
        let response = socket.read_response().expect("an answer to the handshake");
        assert_eq!(response.status, 101, "the upgrade was refused: {response:?}");
        socket
    }

    /// Returns the next text frame. Skips other frames.
    #[track_caller]
    pub fn expect_text(&mut self) -> String {
        loop {
            let frame = self.read_frame().expect("a text frame, not the end of the stream");
            assert_ne!(frame.opcode, CLOSE, "the server closed: {frame:?}");
            if frame.opcode == TEXT {
                return String::from_utf8(frame.payload).expect("a text frame is UTF-8");
            }
        }
    }

    /// Sends the handshake for `/mqtt`, with `protocols` if given, and returns the response with any status.
    #[track_caller]
    pub fn upgrade(&mut self, protocols: Option<&str>) -> Response {
        self.send_raw(upgrade_request(protocols, "").as_bytes());
        let response = self.read_response().expect("an answer to the handshake");
        if response.status == 101 {
            assert_eq!(response.header("sec-websocket-accept"), Some(ACCEPT), "{response:?}");
        }
        response
    }

    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server accepts the bytes");
    }

    pub fn try_send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Does the same as `Peer::send_until_blocked`.
    pub fn send_until_blocked(&mut self, bytes: &[u8], stall: Duration) -> usize {
        self.stream
            .set_write_timeout(Some(stall))
            .expect("a socket accepts a timeout");
        let mut written = 0;
        while let Ok(count) = self.stream.write(&bytes[written..])
            && count > 0
        {
            written += count;
        }
        self.stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a socket accepts a timeout");
        written
    }

    /// Sends one masked frame, as the standard requires of a client.
    #[track_caller]
    pub fn send_frame(&mut self, is_final: bool, opcode: u8, payload: &[u8]) {
        self.send_raw(&frame(is_final, opcode, Some([0x37, 0xFA, 0x21, 0x3D]), payload));
    }

    /// Sends MQTT bytes in one binary frame.
    #[track_caller]
    pub fn send(&mut self, packets: &[u8]) {
        self.send_frame(true, BINARY, packets);
    }

    /// Reads the head of an HTTP response. Returns `None` if the server closes before it is complete.
    pub fn read_response(&mut self) -> Option<Response> {
        let deadline = Instant::now() + PATIENCE;
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            if !self.fill(deadline) {
                return None;
            }
        };
        let head = String::from_utf8(self.buffer.drain(..end + 4).collect()).expect("an HTTP head is text");
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        };
        Some(Response {
            status,
            headers: lines.filter_map(header).collect(),
        })
    }

    /// Reads more bytes. Returns false at the end of the stream. Panics after the deadline.
    #[track_caller]
    fn fill(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(
            !left.is_zero(),
            "the server neither answers nor closes; unparsed: {} bytes",
            self.buffer.len()
        );
        self.stream
            .set_read_timeout(Some(left))
            .expect("a socket accepts a timeout");
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                true
            }
            Err(error) => {
                matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                )
            }
        }
    }

    /// Returns the next frame, or `None` at the end of the stream.
    #[track_caller]
    pub fn read_frame(&mut self) -> Option<Frame> {
        self.read_frame_by(Instant::now() + PATIENCE)
    }

    #[track_caller]
    fn read_frame_by(&mut self, deadline: Instant) -> Option<Frame> {
        loop {
            if let Some((frame, length)) = cut(&self.buffer) {
                self.buffer.drain(..length);
                return Some(frame);
            }
            if !self.fill(deadline) {
                return None;
            }
        }
    }

    /// Returns the next MQTT packet. Skips control frames. Data frames must be binary [MQTT-6.0.0-1].
    #[track_caller]
    pub fn expect_packet(&mut self) -> Packet {
        loop {
            if let Some((packet, length)) = Packet::cut(&self.mqtt) {
                self.mqtt.drain(..length);
                return packet;
            }
            let frame = self.read_frame().expect("a packet, not the end of the stream");
            match frame.opcode {
                BINARY | CONTINUATION => self.mqtt.extend(frame.payload),
                PING | PONG => {}
                other => panic!("expected a binary frame, got opcode {other:#x}: {frame:?}"),
            }
        }
    }

    /// Reads to the end of the stream, answers a Close frame and returns all frames.
    #[track_caller]
    pub fn expect_closed(&mut self, within: Duration) -> Vec<Frame> {
        let deadline = Instant::now() + within;
        let mut frames = Vec::new();
        while let Some(frame) = self.read_frame_by(deadline) {
            if frame.opcode == CLOSE {
                // The server may already have closed the connection.
                let _ = self.try_send_raw(&self::frame(true, CLOSE, Some([0; 4]), &frame.payload));
            }
            frames.push(frame);
        }
        frames
    }
}

/// Returns the RFC 6455 handshake for `/mqtt`. Each `extra` header line ends in CRLF.
pub fn upgrade_request(protocols: Option<&str>, extra: &str) -> String {
    let protocols = protocols
        .map(|names| format!("Sec-WebSocket-Protocol: {names}\r\n"))
        .unwrap_or_default();
    format!(
        "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n{protocols}{extra}\r\n"
    )
}

/// Returns a frame with the shortest length form. Clients must set `mask`, servers must not.
pub fn frame(is_final: bool, opcode: u8, mask: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let mask_bit = if mask.is_some() { 0x80 } else { 0x00 };
    let mut bytes = vec![(is_final as u8) << 7 | opcode];
    match payload.len() {
        length @ 0..126 => bytes.push(mask_bit | length as u8),
        length @ 126..65536 => {
            bytes.push(mask_bit | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        length => {
            bytes.push(mask_bit | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    let mask = mask.inspect(|key| bytes.extend(key)).unwrap_or([0; 4]);
    bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
    bytes
}

/// Returns the first frame of `bytes` and its length, or `None` if it is incomplete. A server must not mask frames.
fn cut(bytes: &[u8]) -> Option<(Frame, usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    assert_eq!(first & 0x70, 0, "the server sent reserved bits without an extension");
    assert_eq!(second & 0x80, 0, "the server masked a frame");
    let (length, start) = match second {
        126 => (usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
        127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize, 10),
        short => (usize::from(short), 2),
    };
    let payload = bytes.get(start..start + length)?.to_vec();
    Some((
        Frame {
            is_final: first & 0x80 != 0,
            opcode: first & 0x0F,
            payload,
        },
        start + length,
    ))
}
