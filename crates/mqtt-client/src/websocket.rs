//! The client side of a WebSocket (RFC 6455): upgrade and frames, without extensions.
//!
//! Data is unwrapped in place, whatever the boundaries of frames [MQTT-6.0.0-2]. Only the response to the upgrade and
//! control frames, of at most 125 bytes, are buffered.

use base64ct::{Base64, Encoding};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const CONTROL_BYTES_MAX: u64 = 125;
/// Maximum size of the response to the upgrade.
const RESPONSE_BYTES_MAX: usize = 16 * 1024;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;

/// The request to upgrade a connection.
#[derive(Clone, Copy, Debug)]
pub struct Upgrade<'a> {
    /// Value of the `Host` header.
    pub host: &'a str,
    pub path: &'a str,
    pub content: WebSocketContent<'a>,
}

/// Protocol inside the WebSocket.
#[derive(Clone, Copy, Debug)]
pub enum WebSocketContent<'a> {
    /// MQTT, under this sub-protocol: binary frames [MQTT-6.0.0-1].
    Mqtt(&'a str),
    /// Text, for the API. The token authenticates the request.
    Text { token: &'a str },
}

/// Source of keys and masks.
#[derive(Debug)]
pub enum Masks {
    /// Fills a slice with unpredictable bytes.
    Random(fn(&mut [u8])),
    /// Pseudo-random bytes, for the load tool: fast, and reproducible.
    Seeded(u64),
}

impl Masks {
    pub fn seeded(seed: u64) -> Masks {
        Masks::Seeded(seed | 1)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        match self {
            Masks::Random(fill) => fill(bytes),
            Masks::Seeded(state) => {
                for part in bytes.chunks_mut(8) {
                    *state ^= *state << 13;
                    *state ^= *state >> 7;
                    *state ^= *state << 17;
                    part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
                }
            }
        }
    }
}

/// One WebSocket, from its upgrade on.
#[derive(Debug)]
pub struct ClientWebSocket {
    masks: Masks,
    /// `None` once the server has accepted the upgrade.
    handshake: Option<Handshake>,
    is_text: bool,
    /// The header of a frame, until it is complete.
    header: Vec<u8>,
    frame: Option<IncomingFrame>,
    control: Vec<u8>,
    is_closed: bool,
    /// Bytes to send.
    pending: Vec<u8>,
}

#[derive(Debug)]
struct Handshake {
    key: String,
    /// The required sub-protocol.
    protocol: Option<String>,
    /// The part of the response that has arrived.
    response: Vec<u8>,
}

#[derive(Debug)]
struct IncomingFrame {
    opcode: u8,
    remaining: u64,
}

impl ClientWebSocket {
    /// Starts the upgrade: the request is the first pending output.
    pub fn new(upgrade: &Upgrade<'_>, mut masks: Masks) -> ClientWebSocket {
        let mut nonce = [0; 16];
        masks.fill(&mut nonce);
        let key = Base64::encode_string(&nonce);
        let header = match upgrade.content {
            WebSocketContent::Mqtt(protocol) => format!("Sec-WebSocket-Protocol: {protocol}"),
            WebSocketContent::Text { token } => format!("Authorization: Bearer {token}"),
        };
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n\
             Sec-WebSocket-Version: 13\r\n{header}\r\n\r\n",
            upgrade.path, upgrade.host
        );
        let protocol = match upgrade.content {
            WebSocketContent::Mqtt(protocol) => Some(protocol.to_owned()),
            WebSocketContent::Text { .. } => None,
        };
        ClientWebSocket {
            masks,
            is_text: protocol.is_none(),
            handshake: Some(Handshake {
                key,
                protocol,
                response: Vec::new(),
            }),
            header: Vec::new(),
            frame: None,
            control: Vec::new(),
            is_closed: false,
            pending: request.into_bytes(),
        }
    }

    /// Whether the server has accepted the upgrade.
    pub fn is_open(&self) -> bool {
        self.handshake.is_none()
    }

    /// Whether the server has sent a close frame.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Bytes to send: the request, frames, and answers to pings.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Removes the first `count` pending bytes, which were sent.
    pub fn mark_sent(&mut self, count: usize) {
        self.pending.drain(..count);
    }

    /// Takes the pending bytes, to send all of them.
    pub fn take_pending(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }

    /// Appends `payload` to the pending output, as one masked binary frame [MQTT-6.0.0-1].
    pub fn send(&mut self, payload: &[u8]) {
        self.encode(BINARY, payload);
    }

    /// Appends a close frame with status 1000.
    pub fn send_close(&mut self) {
        self.encode(CLOSE, &1000u16.to_be_bytes());
    }

    /// Takes received bytes. Moves the data in them to their beginning and returns its length.
    pub fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, String> {
        let Some(handshake) = &mut self.handshake else {
            return self.unwrap(bytes);
        };
        handshake.response.extend_from_slice(bytes);
        let Some(end) = handshake.check_response()? else {
            return Ok(0);
        };
        let mut rest = handshake.response.split_off(end);
        self.handshake = None;
        let data_bytes = self.unwrap(&mut rest)?;
        bytes[..data_bytes].copy_from_slice(&rest[..data_bytes]);
        Ok(data_bytes)
    }

    fn unwrap(&mut self, bytes: &mut [u8]) -> Result<usize, String> {
        let (mut at, mut data_bytes) = (0, 0);
        loop {
            if self.frame.is_none() {
                at += self.take_header(&bytes[at..])?;
            }
            let Some(frame) = &mut self.frame else {
                return Ok(data_bytes);
            };
            let size = usize::try_from(frame.remaining)
                .unwrap_or(usize::MAX)
                .min(bytes.len() - at);
            if frame.opcode >= CLOSE {
                self.control.extend_from_slice(&bytes[at..at + size]);
            } else {
                bytes.copy_within(at..at + size, data_bytes);
                data_bytes += size;
            }
            at += size;
            frame.remaining -= size as u64;
            if frame.remaining > 0 {
                return Ok(data_bytes);
            }
            let opcode = frame.opcode;
            self.end_frame(opcode);
        }
    }

    fn end_frame(&mut self, opcode: u8) {
        self.frame = None;
        let control = std::mem::take(&mut self.control);
        match opcode {
            PING => self.encode(PONG, &control),
            CLOSE => self.is_closed = true,
            _ => {}
        }
    }

    /// Collects a frame header; returns how many bytes it used.
    fn take_header(&mut self, input: &[u8]) -> Result<usize, String> {
        for (taken, &byte) in input.iter().enumerate() {
            self.header.push(byte);
            if self.header.len() >= 2 && self.header.len() == header_size(self.header[1]) {
                self.frame = Some(parse_header(&self.header, self.is_text)?);
                self.header.clear();
                return Ok(taken + 1);
            }
        }
        Ok(input.len())
    }

    fn encode(&mut self, opcode: u8, payload: &[u8]) {
        let out = &mut self.pending;
        out.push(0x80 | opcode);
        match payload.len() {
            length @ 0..=125 => out.push(0x80 | length as u8),
            length @ 126..=0xFFFF => {
                out.push(0x80 | 126);
                out.extend((length as u16).to_be_bytes());
            }
            length => {
                out.push(0x80 | 127);
                out.extend((length as u64).to_be_bytes());
            }
        }
        let mut mask = [0; 4];
        self.masks.fill(&mut mask);
        out.extend(mask);
        let start = out.len();
        out.extend_from_slice(payload);
        let (words, tail) = out[start..].as_chunks_mut::<4>();
        for word in words {
            *word = (u32::from_ne_bytes(*word) ^ u32::from_ne_bytes(mask)).to_ne_bytes();
        }
        for (byte, mask) in tail.iter_mut().zip(mask) {
            *byte ^= mask;
        }
    }
}

impl Handshake {
    /// Checks the server's response. Returns its length, or `None` while it is incomplete.
    fn check_response(&self) -> Result<Option<usize>, String> {
        let Some(end) = self.response.windows(4).position(|window| window == b"\r\n\r\n") else {
            return match self.response.len() > RESPONSE_BYTES_MAX {
                true => Err("WebSocket: the answer to the upgrade is too long".into()),
                false => Ok(None),
            };
        };
        let head = String::from_utf8_lossy(&self.response[..end]);
        let status = head.split("\r\n").next().unwrap_or_default();
        if status.split(' ').nth(1) != Some("101") {
            return Err(format!(
                "WebSocket: the server answered `{status}`, expected status 101; check host, port and path"
            ));
        }
        let header = |name: &str| {
            let mut fields = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
            let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim())
        };
        let accept = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[self.key.as_bytes(), GUID].concat());
        if header("Sec-WebSocket-Accept") != Some(&Base64::encode_string(accept.as_ref())) {
            return Err("WebSocket: the server's Sec-WebSocket-Accept is wrong".into());
        }
        match (&self.protocol, header("Sec-WebSocket-Protocol")) {
            (Some(protocol), chosen) if chosen != Some(protocol) => Err(format!(
                "WebSocket: the server selected the sub-protocol {chosen:?}, expected `{protocol}` [MQTT-6.0.0-4]"
            )),
            _ => Ok(Some(end + 4)),
        }
    }
}

fn header_size(second: u8) -> usize {
    match second & 0x7F {
        126 => 4,
        127 => 10,
        _ => 2,
    }
}

fn parse_header(header: &[u8], is_text: bool) -> Result<IncomingFrame, String> {
    let (first, second) = (header[0], header[1]);
    let long = header[2..]
        .iter()
        .fold(0u64, |length, byte| length << 8 | u64::from(*byte));
    let remaining = if header.len() == 2 {
        u64::from(second & 0x7F)
    } else {
        long
    };
    let opcode = first & 0x0F;
    let is_control = opcode >= CLOSE;
    let wrong = match opcode {
        _ if first & 0x70 != 0 => "the server set reserved bits",
        _ if second & 0x80 != 0 => "the server sent a masked frame",
        _ if is_control && (remaining > CONTROL_BYTES_MAX || first & 0x80 == 0) => {
            "the server sent a control frame that is too long or fragmented"
        }
        // [MQTT-6.0.0-1]
        TEXT if !is_text => "the server sent a text frame",
        CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG => return Ok(IncomingFrame { opcode, remaining }),
        _ => "the server sent an unknown frame",
    };
    Err(format!("WebSocket: {wrong}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use super::*;

    const UPGRADE: Upgrade<'_> = Upgrade {
        host: "h",
        path: "/mqtt",
        content: WebSocketContent::Mqtt("mqtt"),
    };

    fn handshake(key: &str, protocol: &str, response: &[u8]) -> Handshake {
        Handshake {
            key: key.to_owned(),
            protocol: Some(protocol.to_owned()),
            response: response.to_vec(),
        }
    }

    fn open() -> ClientWebSocket {
        let mut socket = ClientWebSocket::new(&UPGRADE, Masks::seeded(5));
        socket.handshake = None;
        socket.pending.clear();
        socket
    }

    /// RFC 6455, section 1.3.
    #[test]
    fn response_of_the_rfc_is_accepted() {
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nsec-websocket-protocol: mqtt\r\n\
                       Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nrest";
        let check = |key, protocol, response: &[u8]| handshake(key, protocol, response).check_response();
        assert_eq!(check(key, "mqtt", answer), Ok(Some(answer.len() - 4)));
        assert_eq!(check(key, "mqtt", &answer[..40]), Ok(None));
        assert!(check("AAAA", "mqtt", answer).is_err());
        assert!(check(key, "mqttv3.1", answer).is_err());
        assert!(check(key, "mqtt", b"HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(check(key, "mqtt", &[b'x'; RESPONSE_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn data_after_the_response_is_returned() {
        let mut socket = ClientWebSocket::new(&UPGRADE, Masks::Random(|bytes| bytes.fill(0)));
        let request = String::from_utf8(socket.pending().to_vec()).unwrap();
        assert!(request.starts_with("GET /mqtt HTTP/1.1\r\nHost: h\r\n"), "{request}");
        assert!(request.contains("\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"));
        socket.mark_sent(request.len());
        let accept = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[b"AAAAAAAAAAAAAAAAAAAAAA==", GUID].concat());
        let accept = Base64::encode_string(accept.as_ref());
        let answer = format!(
            "HTTP/1.1 101 x\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Accept: {accept}\r\n\r\n\u{2}\u{2}hi"
        );
        let (mut first, mut second) = (answer.as_bytes()[..20].to_vec(), answer.as_bytes()[20..].to_vec());
        assert_eq!((socket.receive(&mut first), socket.is_open()), (Ok(0), false));
        assert_eq!((socket.receive(&mut second), socket.is_open()), (Ok(2), true));
        assert_eq!((&second[..2], socket.pending()), (&b"hi"[..], &b""[..]));
    }

    #[test]
    fn frames_are_masked_at_every_length() {
        for length in [0, 3, 125, 126, 65_535, 65_536] {
            let mut socket = open();
            socket.send(&vec![7; length]);
            let out = socket.pending();
            assert_eq!((out[0], out[1] & 0x80), (0x82, 0x80));
            let (head, payload) = out.split_at(out.len() - length);
            let mask = &head[head.len() - 4..];
            let is_masked = |(byte, mask): (&u8, &u8)| byte ^ mask == 7;
            assert!(payload.iter().zip(mask.iter().cycle()).all(is_masked));
        }
    }

    #[test]
    fn split_frames_return_their_data() {
        let mut wire = vec![0x02, 3, 1, 2, 3, 0x89, 2, b'h', b'i', 0x80, 126, 0, 200];
        wire.extend([9; 200]);
        wire.extend([0x82, 0, 0x88, 2, 3, 0xE8]);
        let expected: Vec<u8> = [1, 2, 3].into_iter().chain([9; 200]).collect();
        for size in [1, 2, 7, wire.len()] {
            let (mut socket, mut data) = (open(), Vec::new());
            for part in wire.chunks(size) {
                let mut part = part.to_vec();
                let data_bytes = socket.receive(&mut part).unwrap();
                data.extend(&part[..data_bytes]);
            }
            assert_eq!((&data, socket.is_closed()), (&expected, true), "cut at {size}");
            let answers = socket.pending();
            assert_eq!((answers[0], answers[1], answers.len()), (0x8A, 0x82, 8));
        }
    }

    #[test]
    fn forbidden_frames_are_rejected() {
        for bytes in [
            &[0x81, 1, 65][..],
            &[0x82, 0x81],
            &[0xC2, 0],
            &[0x83, 0],
            &[0x89, 126, 0, 200],
            &[0x08, 0],
        ] {
            let mut input = bytes.to_vec();
            assert!(open().receive(&mut input).is_err(), "{bytes:?}");
        }
        let mut text = open();
        text.is_text = true;
        assert_eq!(text.receive(&mut [0x81, 1, 65]), Ok(1));
    }
}
