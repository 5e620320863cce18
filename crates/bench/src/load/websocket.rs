//! The client side of a WebSocket (RFC 6455): upgrade and frames. Binary frames only, no extensions.
//!
//! Data frames are unwrapped in place; MQTT packets may be split over frames in any way [MQTT-6.0.0-2].

use base64ct::{Base64, Encoding};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const PROTOCOL: &str = "mqtt";
const CONTROL_BYTES_MAX: usize = 125;
pub const RESPONSE_BYTES_MAX: usize = 16 * 1024;

const CONTINUATION: u8 = 0x0;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;

/// Pseudo-random masks and keys: random enough for a test tool, in which they protect nothing.
#[derive(Debug)]
pub struct Masks(u64);

impl Masks {
    pub fn new(seed: u64) -> Masks {
        Masks(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

pub fn new_key(masks: &mut Masks) -> String {
    let mut nonce = [0; 16];
    for part in nonce.as_chunks_mut::<8>().0 {
        *part = masks.next().to_le_bytes();
    }
    Base64::encode_string(&nonce)
}

pub fn request(host: &str, path: &str, key: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n"
    )
}

/// Checks the server's answer. Returns its length, or `None` while it is incomplete.
pub fn check_response(bytes: &[u8], key: &str) -> Result<Option<usize>, String> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return match bytes.len() > RESPONSE_BYTES_MAX {
            true => Err("WebSocket: the answer to the upgrade is too long".into()),
            false => Ok(None),
        };
    };
    let head = String::from_utf8_lossy(&bytes[..end]);
    let status = head.split("\r\n").next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("101") {
        return Err(format!(
            "WebSocket: the server answered `{status}`, expected status 101"
        ));
    }
    let header = |name: &str| {
        let mut fields = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    };
    let accept = Base64::encode_string(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), GUID].concat()).as_ref());
    if header("Sec-WebSocket-Accept") != Some(&accept) {
        return Err("WebSocket: the server's Sec-WebSocket-Accept is wrong".into());
    }
    if header("Sec-WebSocket-Protocol") != Some(PROTOCOL) {
        // [MQTT-6.0.0-4]
        return Err("WebSocket: the server did not accept the sub-protocol `mqtt`".into());
    }
    Ok(Some(end + 4))
}

/// Appends `payload` as one masked binary frame [MQTT-6.0.0-1].
pub fn encode_binary(payload: &[u8], masks: &mut Masks, out: &mut Vec<u8>) {
    encode(BINARY, payload, masks, out);
}

pub fn encode_close(masks: &mut Masks, out: &mut Vec<u8>) {
    encode(CLOSE, &1000u16.to_be_bytes(), masks, out);
}

fn encode(opcode: u8, payload: &[u8], masks: &mut Masks, out: &mut Vec<u8>) {
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
    let [a, b, c, d, ..] = masks.next().to_le_bytes();
    let mask = [a, b, c, d];
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

/// Extracts the data from frames.
#[derive(Debug, Default)]
pub struct Unwrapper {
    header: Vec<u8>,
    opcode: u8,
    remaining: u64,
    is_in_frame: bool,
    control: Vec<u8>,
    /// The server has sent a close frame.
    pub is_closed: bool,
}

impl Unwrapper {
    /// Moves the data in `bytes` to their beginning and returns its length. Answers to pings are appended to `out`.
    pub fn unwrap(&mut self, bytes: &mut [u8], masks: &mut Masks, out: &mut Vec<u8>) -> Result<usize, String> {
        let (mut at, mut data_bytes) = (0, 0);
        loop {
            if !self.is_in_frame {
                at += self.take_header(&bytes[at..])?;
                if !self.is_in_frame {
                    return Ok(data_bytes);
                }
            }
            let size = usize::try_from(self.remaining)
                .unwrap_or(usize::MAX)
                .min(bytes.len() - at);
            if self.opcode >= CLOSE {
                self.control.extend_from_slice(&bytes[at..at + size]);
            } else {
                bytes.copy_within(at..at + size, data_bytes);
                data_bytes += size;
            }
            at += size;
            self.remaining -= size as u64;
            if self.remaining > 0 {
                return Ok(data_bytes);
            }
            self.end_frame(masks, out);
        }
    }

    fn end_frame(&mut self, masks: &mut Masks, out: &mut Vec<u8>) {
        self.is_in_frame = false;
        match self.opcode {
            PING => encode(PONG, &self.control, masks, out),
            CLOSE => self.is_closed = true,
            _ => {}
        }
        self.control.clear();
    }

    /// Collects a frame header; returns how many bytes it used.
    fn take_header(&mut self, input: &[u8]) -> Result<usize, String> {
        for (taken, &byte) in input.iter().enumerate() {
            self.header.push(byte);
            if self.header.len() >= 2 && self.header.len() == header_size(self.header[1]) {
                self.start_frame()?;
                return Ok(taken + 1);
            }
        }
        Ok(input.len())
    }

    fn start_frame(&mut self) -> Result<(), String> {
        let (first, second) = (self.header[0], self.header[1]);
        let long = self.header[2..]
            .iter()
            .fold(0u64, |length, byte| length << 8 | u64::from(*byte));
        self.remaining = if self.header.len() == 2 {
            u64::from(second)
        } else {
            long
        };
        self.opcode = first & 0x0F;
        self.is_in_frame = true;
        self.header.clear();
        let is_control = self.opcode >= CLOSE;
        let wrong = match self.opcode {
            _ if first & 0x70 != 0 => "the server set reserved bits",
            _ if second & 0x80 != 0 => "the server sent a masked frame",
            _ if is_control && (self.remaining > CONTROL_BYTES_MAX as u64 || first & 0x80 == 0) => {
                "the server sent a control frame that is too long or fragmented"
            }
            CONTINUATION | BINARY | CLOSE | PING | PONG => return Ok(()),
            // Text frames included [MQTT-6.0.0-1].
            _ => "the server sent a frame that is not binary",
        };
        Err(format!("WebSocket: {wrong}"))
    }
}

fn header_size(second: u8) -> usize {
    match second & 0x7F {
        126 => 4,
        127 => 10,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6455, section 1.3.
    #[test]
    fn check_response_of_rfc_example_is_accepted() {
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nsec-websocket-protocol: mqtt\r\n\
                       Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nrest";
        assert_eq!(check_response(answer, key), Ok(Some(answer.len() - 4)));
        assert_eq!(check_response(&answer[..40], key), Ok(None));
        assert!(check_response(answer, "AAAA").is_err());
        assert!(check_response(b"HTTP/1.1 404 Not Found\r\n\r\n", key).is_err());
    }

    #[test]
    fn encode_masks_frames_of_every_length() {
        for length in [0, 3, 125, 126, 65_535, 65_536] {
            let mut out = Vec::new();
            encode_binary(&vec![7; length], &mut Masks::new(5), &mut out);
            assert_eq!((out[0], out[1] & 0x80), (0x82, 0x80));
            let start = out.len() - length;
            let mask: Vec<u8> = out[start - 4..start].to_vec();
            assert!(
                out[start..]
                    .iter()
                    .zip(mask.iter().cycle())
                    .all(|(byte, mask)| byte ^ mask == 7)
            );
        }
    }

    #[test]
    fn unwrap_of_split_frames_returns_data() {
        let mut wire = vec![0x02, 3, 1, 2, 3, 0x89, 2, b'h', b'i', 0x80, 126, 0, 200];
        wire.extend([9; 200]);
        wire.extend([0x82, 0, 0x88, 2, 3, 0xE8]);
        let expected: Vec<u8> = [1, 2, 3].into_iter().chain([9; 200]).collect();
        for size in [1, 2, 7, wire.len()] {
            let (mut unwrapper, mut masks) = (Unwrapper::default(), Masks::new(9));
            let (mut data, mut answers) = (Vec::new(), Vec::new());
            for part in wire.chunks(size) {
                let mut part = part.to_vec();
                let data_bytes = unwrapper.unwrap(&mut part, &mut masks, &mut answers).unwrap();
                data.extend(&part[..data_bytes]);
            }
            assert_eq!((&data, unwrapper.is_closed), (&expected, true), "cut at {size}");
            assert_eq!((answers[0], answers[1], answers.len()), (0x8A, 0x82, 8));
        }
    }

    #[test]
    fn unwrap_of_forbidden_frame_fails() {
        for bytes in [
            &[0x81, 1, 65][..],
            &[0x82, 0x81],
            &[0xC2, 0],
            &[0x83, 0],
            &[0x89, 126, 0, 200],
            &[0x08, 0],
        ] {
            let mut input = bytes.to_vec();
            let result = Unwrapper::default().unwrap(&mut input, &mut Masks::new(1), &mut Vec::new());
            assert!(result.is_err(), "{bytes:?}");
        }
    }
}
