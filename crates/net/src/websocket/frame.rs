//! Decodes WebSocket frames (RFC 6455, section 5) in place and incrementally.
//!
//! ```text
//! | FIN RSV1-3 opcode(4) | MASK length(7) | length(16 or 64)? | masking key(32) | payload |
//! ```
//!
//! The decoder consumes all bytes that it gets. Payload is unmasked and moved to the front of the caller's buffer, so
//! that frame boundaries disappear. A partial header is stored in 14 bytes, a control payload in 125, so a frame's
//! declared length never costs memory. At most one pong is pending: after a flood of pings only the latest is answered
//! (section 5.5.3).

use std::fmt;

/// Maximum frame size: no MQTT packet is larger, and a frame need not contain more than one.
pub const FRAME_BYTES_MAX: u64 = 256 * 1024 * 1024 + 4;

const HEADER_BYTES_MAX: usize = 14;
const CONTROL_BYTES_MAX: usize = 125;

/// Status code of a close frame (RFC 6455, section 7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode(pub u16);

impl CloseCode {
    pub const NORMAL: CloseCode = CloseCode(1000);
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    pub const UNSUPPORTED_DATA: CloseCode = CloseCode(1003);
    pub const POLICY_VIOLATION: CloseCode = CloseCode(1008);
    pub const TOO_BIG: CloseCode = CloseCode(1009);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    Continuation = 0x0,
    Text = 0x1,
    Binary = 0x2,
    Close = 0x8,
    Ping = 0x9,
    Pong = 0xA,
}

impl Opcode {
    const fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0x0 => Opcode::Continuation,
            0x1 => Opcode::Text,
            0x2 => Opcode::Binary,
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xA => Opcode::Pong,
            _ => return None,
        })
    }

    const fn is_control(self) -> bool {
        self as u8 >= 0x8
    }
}

/// A violation of the framing by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// RFC 6455, section 5.1.
    Unmasked,
    /// An extension bit is set, but no extension was negotiated.
    ReservedBits,
    UnknownOpcode,
    /// [MQTT-6.0.0-1]
    Text,
    /// A control frame is fragmented or longer than 125 bytes (section 5.5).
    ControlFrame,
    /// A continuation without a message, or a new message inside another (section 5.4).
    Fragmentation,
    /// The length is not encoded in its shortest form (section 5.2).
    LengthForm,
    TooBig,
}

impl FrameError {
    pub const fn close_code(self) -> CloseCode {
        match self {
            FrameError::Text => CloseCode::UNSUPPORTED_DATA,
            FrameError::TooBig => CloseCode::TOO_BIG,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrameError::Unmasked => "the frame of a client must be masked",
            FrameError::ReservedBits => "reserved bits are set, but no extension was negotiated",
            FrameError::UnknownOpcode => "unknown opcode",
            FrameError::Text => "MQTT must be sent in binary frames",
            FrameError::ControlFrame => "a control frame is fragmented or longer than 125 bytes",
            FrameError::Fragmentation => "a continuation without a message, or a message inside another",
            FrameError::LengthForm => "the length is not in its shortest form",
            FrameError::TooBig => "the frame is larger than any MQTT packet",
        })
    }
}

/// Why decoding has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeEnd {
    /// The client sent a close frame.
    Closed,
    Violation(FrameError),
}

/// Result of `FrameDecoder::decode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedFrames {
    /// Number of MQTT bytes at the front of the buffer. They precede `ended`.
    pub data_bytes: usize,
    pub ended: Option<DecodeEnd>,
}

#[derive(Default)]
pub struct FrameDecoder {
    header: [u8; HEADER_BYTES_MAX],
    header_len: u8,
    /// The frame whose payload is being read. `None` while its header is incomplete.
    frame: Option<IncomingFrame>,
    /// A fragmented data message has begun and is not complete.
    is_in_message: bool,
    control: Vec<u8>,
    ping: Option<Vec<u8>>,
    ended: Option<DecodeEnd>,
    close_code: Option<CloseCode>,
}

#[derive(Clone, Copy)]
struct IncomingFrame {
    opcode: Opcode,
    left: u64,
    /// Rotated so that its first byte applies to the next payload byte.
    mask: [u8; 4],
}

impl FrameDecoder {
    /// Decodes all of `buffer` and moves the MQTT bytes to its front.
    pub fn decode(&mut self, buffer: &mut [u8]) -> DecodedFrames {
        let (mut read, mut written) = (0, 0);
        while self.ended.is_none() && read < buffer.len() {
            let Some(frame) = self.frame else {
                read += self.read_header(&buffer[read..]);
                continue;
            };
            let take = usize::try_from(frame.left)
                .unwrap_or(usize::MAX)
                .min(buffer.len() - read);
            if frame.opcode.is_control() {
                self.read_control(&mut buffer[read..read + take]);
            } else {
                buffer.copy_within(read..read + take, written);
                unmask(&mut buffer[written..written + take], frame.mask);
                written += take;
            }
            read += take;
            self.advance(take);
        }
        DecodedFrames {
            data_bytes: written,
            ended: self.ended,
        }
    }

    /// Takes the payload of the latest ping that is not answered yet.
    pub fn take_ping(&mut self) -> Option<Vec<u8>> {
        self.ping.take()
    }

    pub fn has_pending_pong(&self) -> bool {
        self.ping.is_some()
    }

    /// Returns the code for the close frame: the peer's own code, or that of the violation.
    pub fn close_code(&self) -> Option<CloseCode> {
        self.close_code
    }

    /// Collects header bytes. Returns how many were consumed.
    fn read_header(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && self.ended.is_none() {
            let wanted = header_bytes(&self.header[..self.header_len as usize]);
            if usize::from(self.header_len) == wanted {
                break;
            }
            self.header[usize::from(self.header_len)] = bytes[taken];
            self.header_len += 1;
            taken += 1;
            if self.header_len == 2
                && let Err(error) = self.check_first_bytes()
            {
                self.fail(error);
            }
        }
        if self.ended.is_none()
            && usize::from(self.header_len) == header_bytes(&self.header[..self.header_len as usize])
        {
            self.begin_frame();
        }
        taken
    }

    /// Checks the first two bytes before anything else is read.
    fn check_first_bytes(&self) -> Result<(), FrameError> {
        let (is_final, length) = (self.header[0] & 0x80 != 0, self.header[1] & 0x7F);
        if self.header[0] & 0x70 != 0 {
            return Err(FrameError::ReservedBits);
        }
        let opcode = Opcode::from_bits(self.header[0] & 0x0F).ok_or(FrameError::UnknownOpcode)?;
        if self.header[1] & 0x80 == 0 {
            return Err(FrameError::Unmasked);
        }
        match opcode {
            Opcode::Text => Err(FrameError::Text),
            _ if opcode.is_control() && (!is_final || length > 125) => Err(FrameError::ControlFrame),
            Opcode::Continuation if !self.is_in_message => Err(FrameError::Fragmentation),
            Opcode::Binary if self.is_in_message => Err(FrameError::Fragmentation),
            _ => Ok(()),
        }
    }

    fn begin_frame(&mut self) {
        let opcode = Opcode::from_bits(self.header[0] & 0x0F).expect("the first bytes were checked");
        let length = match payload_length(&self.header) {
            Ok(length) => length,
            Err(error) => return self.fail(error),
        };
        if !opcode.is_control() {
            self.is_in_message = self.header[0] & 0x80 == 0;
        }
        let end = usize::from(self.header_len);
        let mask = self.header[end - 4..end].try_into().expect("four bytes");
        self.header_len = 0;
        self.frame = Some(IncomingFrame {
            opcode,
            left: length,
            mask,
        });
        self.advance(0);
    }

    fn read_control(&mut self, bytes: &mut [u8]) {
        let frame = self.frame.as_ref().expect("a control frame is being read");
        unmask(bytes, frame.mask);
        debug_assert!(self.control.len() + bytes.len() <= CONTROL_BYTES_MAX);
        self.control.extend_from_slice(bytes);
    }

    /// Records that `n` payload bytes were read.
    fn advance(&mut self, n: usize) {
        let frame = self.frame.as_mut().expect("a frame is being read");
        frame.left -= n as u64;
        frame.mask.rotate_left(n % 4);
        if frame.left > 0 {
            return;
        }
        let opcode = frame.opcode;
        self.frame = None;
        if opcode.is_control() {
            let payload = std::mem::take(&mut self.control);
            match opcode {
                Opcode::Ping => self.ping = Some(payload),
                Opcode::Close => self.close(&payload),
                _ => {}
            }
        }
    }

    fn close(&mut self, payload: &[u8]) {
        let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
        // Section 7.4: valid codes are echoed; others are answered as protocol errors.
        self.close_code = Some(match (code, payload.len()) {
            (None, 0) => CloseCode::NORMAL,
            (Some(code @ (1000..=1003 | 1007..=1014 | 3000..=4999)), _) => CloseCode(code),
            _ => CloseCode::PROTOCOL_ERROR,
        });
        self.ended = Some(DecodeEnd::Closed);
    }

    fn fail(&mut self, error: FrameError) {
        self.close_code = Some(error.close_code());
        self.ended = Some(DecodeEnd::Violation(error));
    }
}

/// Returns the length of the header, as far as its first bytes determine it.
fn header_bytes(header: &[u8]) -> usize {
    match header.get(1).map(|byte| byte & 0x7F) {
        None => 2,
        Some(127) => 14,
        Some(126) => 8,
        Some(_) => 6,
    }
}

fn payload_length(header: &[u8; HEADER_BYTES_MAX]) -> Result<u64, FrameError> {
    let (length, shortest) = match header[1] & 0x7F {
        126 => (u64::from(u16::from_be_bytes([header[2], header[3]])), 126),
        127 => (
            u64::from_be_bytes(header[2..10].try_into().expect("eight bytes")),
            65_536,
        ),
        length => (u64::from(length), 0),
    };
    match length {
        _ if length < shortest => Err(FrameError::LengthForm),
        _ if length > FRAME_BYTES_MAX => Err(FrameError::TooBig),
        _ => Ok(length),
    }
}

/// Applies the mask with XOR, eight bytes at a time. The first byte of the mask applies to the first byte.
fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    let half = u64::from(u32::from_ne_bytes(mask));
    let word = half | half << 32;
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for chunk in words {
        *chunk = (u64::from_ne_bytes(*chunk) ^ word).to_ne_bytes();
    }
    for (index, byte) in rest.iter_mut().enumerate() {
        *byte ^= mask[index % 4];
    }
}

/// Returns the header of an unmasked, unfragmented frame: the first `usize` bytes of the array.
pub fn frame_header(opcode: Opcode, payload_bytes: usize) -> ([u8; 10], usize) {
    let mut header = [0; 10];
    header[0] = 0x80 | opcode as u8;
    let size = if payload_bytes < 126 {
        header[1] = payload_bytes as u8;
        2
    } else if let Ok(short) = u16::try_from(payload_bytes) {
        header[1] = 126;
        header[2..4].copy_from_slice(&short.to_be_bytes());
        4
    } else {
        header[1] = 127;
        header[2..10].copy_from_slice(&(payload_bytes as u64).to_be_bytes());
        10
    };
    (header, size)
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
