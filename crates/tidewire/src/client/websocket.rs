//! The client side of a WebSocket (RFC 6455): upgrade and frames, without extensions. MQTT uses binary frames, and the
//! API sends JSON in text frames.
//!
//! Data frames are passed on as they arrive, whatever their boundaries [MQTT-6.0.0-2]. Only control frames, of at most
//! 125 bytes, are buffered.

use crate::secret::Secret;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const CONTROL_BYTES_MAX: u64 = 125;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;

/// Fills a slice with random bytes.
pub type FillRandom = fn(&mut [u8]);

/// Protocol inside the WebSocket.
pub enum WebSocketProtocol<'a> {
    /// MQTT, under this name.
    Mqtt(&'a str),
    /// Text, with the API; what shows that we may.
    Api(&'a Secret),
}

/// Maximum size of the response to the upgrade.
pub const RESPONSE_BYTES_MAX: usize = 16 * 1024;

/// Takes frames apart.
pub struct ClientFrameDecoder {
    is_text: bool,
    header: Vec<u8>,
    current: Option<PartialFrame>,
}

struct PartialFrame {
    opcode: u8,
    remaining: u64,
    control: Vec<u8>,
}

/// Result of decoding besides data.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DecodedControl {
    pub pings: Vec<Vec<u8>>,
    pub is_closed: bool,
}

pub fn request(host: &str, path: &str, speaks: &WebSocketProtocol<'_>, key: &str) -> String {
    let header = match speaks {
        WebSocketProtocol::Mqtt(protocol) => format!("Sec-WebSocket-Protocol: {protocol}"),
        WebSocketProtocol::Api(token) => format!("Authorization: Bearer {}", token.expose()),
    };
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n\
         Sec-WebSocket-Version: 13\r\n{header}\r\n\r\n"
    )
}

pub fn new_key(random: FillRandom) -> String {
    let mut nonce = [0; 16];
    random(&mut nonce);
    base64(&nonce)
}

/// Checks the server's answer, header lines without the empty one at the end.
pub fn check_response(response: &str, speaks: &WebSocketProtocol<'_>, key: &str) -> Result<(), String> {
    let mut lines = response.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("101") {
        return Err(format!(
            "the server rejected the WebSocket request: {status}; check host, port and path"
        ));
    }
    let header = |name: &str| {
        let mut fields = response.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        fields
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    };
    if header("Sec-WebSocket-Accept") != Some(&accept_value(key)) {
        return Err("the server's WebSocket handshake is wrong (Sec-WebSocket-Accept)".into());
    }
    match (speaks, header("Sec-WebSocket-Protocol")) {
        (WebSocketProtocol::Api(_), _) => Ok(()),
        (WebSocketProtocol::Mqtt(protocol), Some(chosen)) if chosen == *protocol => Ok(()),
        (WebSocketProtocol::Mqtt(protocol), chosen) => Err(format!(
            "the server did not take the sub-protocol `{protocol}` but {chosen:?} [MQTT-6.0.0-4]"
        )),
    }
}

fn accept_value(key: &str) -> String {
    base64(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), GUID].concat()).as_ref())
}

/// Appends `payload` as one masked binary frame [MQTT-6.0.0-1].
pub fn encode_binary(payload: &[u8], random: FillRandom, out: &mut Vec<u8>) {
    encode(BINARY, payload, random, out);
}

pub fn encode_pong(payload: &[u8], random: FillRandom, out: &mut Vec<u8>) {
    encode(PONG, payload, random, out);
}

/// A close frame with status 1000.
pub fn encode_close(random: FillRandom, out: &mut Vec<u8>) {
    encode(CLOSE, &1000u16.to_be_bytes(), random, out);
}

fn encode(opcode: u8, payload: &[u8], random: FillRandom, out: &mut Vec<u8>) {
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
    random(&mut mask);
    out.extend(mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

impl ClientFrameDecoder {
    pub fn new(speaks: &WebSocketProtocol<'_>) -> ClientFrameDecoder {
        ClientFrameDecoder {
            is_text: matches!(speaks, WebSocketProtocol::Api(_)),
            header: Vec::new(),
            current: None,
        }
    }

    /// Takes `input` apart; data goes to `out`.
    pub fn decode(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<DecodedControl, String> {
        let mut decoded = DecodedControl::default();
        loop {
            if self.current.is_none() {
                input = self.take_header(input)?;
            }
            let Some(frame) = &mut self.current else {
                return Ok(decoded);
            };
            let size = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(input.len());
            let (part, rest) = input.split_at(size);
            frame.remaining -= size as u64;
            input = rest;
            if frame.opcode >= CLOSE {
                frame.control.extend(part)
            } else {
                out.extend(part)
            }
            if frame.remaining > 0 {
                return Ok(decoded);
            }
            match self.current.take() {
                Some(PartialFrame {
                    opcode: PING, control, ..
                }) => decoded.pings.push(control),
                Some(PartialFrame { opcode: CLOSE, .. }) => decoded.is_closed = true,
                _ => {}
            }
            if input.is_empty() {
                return Ok(decoded);
            }
        }
    }

    /// Gathers a header and starts the frame when it is whole.
    fn take_header<'a>(&mut self, mut input: &'a [u8]) -> Result<&'a [u8], String> {
        while let Some((&byte, rest)) = input.split_first() {
            self.header.push(byte);
            input = rest;
            if self.header.len() >= 2 && self.header.len() == header_size(self.header[1]) {
                self.current = Some(start_frame(&self.header, self.is_text)?);
                self.header.clear();
                break;
            }
        }
        Ok(input)
    }
}

fn header_size(second: u8) -> usize {
    match second & 0x7F {
        126 => 4,
        127 => 10,
        _ => 2,
    }
}

fn start_frame(header: &[u8], is_text: bool) -> Result<PartialFrame, String> {
    let opcode = header[0] & 0x0F;
    let remaining = header[2..]
        .iter()
        .fold(0u64, |length, byte| length << 8 | u64::from(*byte));
    let remaining = if header.len() == 2 {
        u64::from(header[1] & 0x7F)
    } else {
        remaining
    };
    let wrong = if header[0] & 0x70 != 0 {
        Some("reserved bits are set")
    } else if header[1] & 0x80 != 0 {
        Some("the server masks")
    } else if opcode == TEXT && !is_text {
        // [MQTT-6.0.0-1]
        Some("a text frame")
    } else if !matches!(opcode, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG) {
        Some("an unknown frame")
    } else if opcode >= CLOSE && (remaining > CONTROL_BYTES_MAX || header[0] & 0x80 == 0) {
        Some("a control frame that is too long or cut")
    } else {
        None
    };
    match wrong {
        Some(wrong) => Err(format!("WebSocket: {wrong}")),
        None => Ok(PartialFrame {
            opcode,
            remaining,
            control: Vec::new(),
        }),
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let is_padding = index > chunk.len();
            let symbol = ALPHABET[(word >> (18 - 6 * index) & 0x3F) as usize];
            text.push(if is_padding { '=' } else { char::from(symbol) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_random(bytes: &mut [u8]) {
        bytes.fill(0x55);
    }

    /// RFC 6455, section 1.3.
    #[test]
    fn the_answer_of_the_standard_is_accepted() {
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        let response = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nsec-websocket-protocol: mqtt\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert_eq!(check_response(response, &WebSocketProtocol::Mqtt("mqtt"), key), Ok(()));
        assert!(check_response(response, &WebSocketProtocol::Mqtt("mqttv3.1"), key).is_err());
        assert!(check_response(response, &WebSocketProtocol::Mqtt("mqtt"), "AAAA").is_err());
        assert!(check_response("HTTP/1.1 404 Not Found\r\n", &WebSocketProtocol::Mqtt("mqtt"), key).is_err());
    }

    #[test]
    fn base64_pads() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn frames_are_masked_at_every_length() {
        for length in [0, 125, 126, 65_535, 65_536] {
            let payload = vec![7; length];
            let mut out = Vec::new();
            encode_binary(&payload, no_random, &mut out);
            assert_eq!((out[0], out[1] & 0x80), (0x82, 0x80));
            assert!(out.ends_with(&vec![7 ^ 0x55; length]));
        }
    }

    #[test]
    fn data_passes_however_it_is_cut() {
        let mut wire = vec![0x02, 3, 1, 2, 3, 0x89, 2, b'h', b'i', 0x80, 126, 0, 200];
        wire.extend([9; 200]);
        wire.extend([0x82, 0, 0x88, 2, 3, 0xE8]);
        let expected: Vec<u8> = [1, 2, 3].into_iter().chain([9; 200]).collect();
        for size in [1, 2, 7, wire.len()] {
            let (mut decoder, mut out, mut pings, mut is_closed) = (
                ClientFrameDecoder::new(&WebSocketProtocol::Mqtt("mqtt")),
                Vec::new(),
                0,
                false,
            );
            for part in wire.chunks(size) {
                let decoded = decoder.decode(part, &mut out).unwrap();
                pings += decoded.pings.len();
                is_closed |= decoded.is_closed;
            }
            assert_eq!((&out, pings, is_closed), (&expected, 1, true), "cut at {size}");
        }
    }

    #[test]
    fn what_a_server_must_not_send_is_refused() {
        for bytes in [
            &[0x81, 1, 65][..],
            &[0x82, 0x81],
            &[0xC2, 0],
            &[0x83, 0],
            &[0x89, 126, 0, 200],
            &[0x08, 0],
        ] {
            let mut decoder = ClientFrameDecoder::new(&WebSocketProtocol::Mqtt("mqtt"));
            assert!(decoder.decode(bytes, &mut Vec::new()).is_err(), "{bytes:?}");
        }
    }
}
