//! Reads text messages from a WebSocket client: joins frames, limits their size, and separates control frames.

use std::io;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use net::websocket::frame::{Opcode, frame_header};
use serde_json::Value;
use web::answer_memory::ClientAnswers;

/// Limit of one message, as in ThingsBoard since 4.0. A longer message closes the connection.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

pub type SocketStream = TokioIo<Upgraded>;

#[derive(Debug, PartialEq, Eq)]
pub enum SocketMessage {
    Text(String),
    Ping(Vec<u8>),
    Pong,
    /// With the status code for the answer.
    Closed(u16),
}

pub struct FrameReader<R> {
    stream: R,
    /// Bytes of an incomplete frame.
    buffer: Vec<u8>,
    /// Payload of an incomplete message.
    message: Vec<u8>,
    is_in_message: bool,
}

const PROTOCOL_ERROR: u16 = 1002;
const NOT_TEXT: u16 = 1007;
const TOO_BIG: u16 = 1009;

struct RawFrame {
    opcode: u8,
    is_final: bool,
    payload: Vec<u8>,
}

impl<R: tokio::io::AsyncRead + Unpin> FrameReader<R> {
    pub fn new(half: R) -> FrameReader<R> {
        FrameReader {
            stream: half,
            buffer: Vec::new(),
            message: Vec::new(),
            is_in_message: false,
        }
    }

    /// Returns the next message. Cancel-safe: no data is lost if the future is dropped.
    pub async fn next(&mut self) -> io::Result<SocketMessage> {
        loop {
            match self.take_frame() {
                Err(code) => return Ok(SocketMessage::Closed(code)),
                Ok(Some(frame)) => {
                    if let Some(heard) = self.take(frame) {
                        return Ok(heard);
                    }
                }
                Ok(None) => {
                    let mut bytes = [0; 4096];
                    let count = self.stream.read(&mut bytes).await?;
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.buffer.extend_from_slice(&bytes[..count]);
                }
            }
        }
    }

    fn take(&mut self, frame: RawFrame) -> Option<SocketMessage> {
        match frame.opcode {
            0x8 => {
                let code = frame
                    .payload
                    .first_chunk()
                    .map_or(1000, |code| u16::from_be_bytes(*code));
                return Some(SocketMessage::Closed(code));
            }
            0x9 => return Some(SocketMessage::Ping(frame.payload)),
            0xA => return Some(SocketMessage::Pong),
            0x1 | 0x2 if self.is_in_message => return Some(SocketMessage::Closed(PROTOCOL_ERROR)),
            0x0 if !self.is_in_message => return Some(SocketMessage::Closed(PROTOCOL_ERROR)),
            0x0..=0x2 => {}
            _ => return Some(SocketMessage::Closed(PROTOCOL_ERROR)),
        }
        if self.message.len() + frame.payload.len() > MESSAGE_BYTES_MAX {
            return Some(SocketMessage::Closed(TOO_BIG));
        }
        self.message.extend_from_slice(&frame.payload);
        self.is_in_message = !frame.is_final;
        if self.is_in_message {
            return None;
        }
        let text = String::from_utf8(std::mem::take(&mut self.message));
        Some(text.map_or(SocketMessage::Closed(NOT_TEXT), SocketMessage::Text))
    }

    /// `None`: more bytes are needed. An error is the status code of a close frame.
    fn take_frame(&mut self) -> Result<Option<RawFrame>, u16> {
        let [first, second, rest @ ..] = self.buffer.as_slice() else {
            return Ok(None);
        };
        let (opcode, is_final) = (first & 0x0f, first & 0x80 != 0);
        // RFC 6455, section 5.1: clients mask their frames. Reserved bits are not set, because no extension was
        // negotiated.
        if first & 0x70 != 0 || second & 0x80 == 0 {
            return Err(PROTOCOL_ERROR);
        }
        let (length, rest) = match second & 0x7f {
            126 => match rest.split_first_chunk() {
                Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk() {
                Some((length, rest)) => (u64::from_be_bytes(*length), rest),
                None => return Ok(None),
            },
            length => (u64::from(length), rest),
        };
        let is_control = opcode & 0x8 != 0;
        if is_control && (!is_final || length > 125) {
            return Err(PROTOCOL_ERROR);
        }
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MESSAGE_BYTES_MAX)
            .ok_or(TOO_BIG)?;
        let Some((mask, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let payload = payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        let left = rest.len() - length;
        self.buffer.drain(..self.buffer.len() - left);
        Ok(Some(RawFrame {
            opcode,
            is_final,
            payload,
        }))
    }
}

pub struct FrameWriter {
    stream: WriteHalf<SocketStream>,
    answers: ClientAnswers,
}

impl FrameWriter {
    /// Fails with `QuotaExceeded` if the messages do not fit into the memory for answers.
    pub async fn messages(&mut self, messages: impl IntoIterator<Item = Value>) -> io::Result<()> {
        let texts: Vec<String> = messages.into_iter().map(|message| message.to_string()).collect();
        let bytes = texts.iter().map(String::len).sum();
        let answers = self.answers.clone();
        let write = async {
            for text in texts {
                self.frame(Opcode::Text, text.as_bytes()).await?;
            }
            Ok(())
        };
        answers.charge_message(bytes, write).await
    }

    pub async fn ping(&mut self) -> io::Result<()> {
        self.frame(Opcode::Ping, &[]).await
    }

    pub async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        self.frame(Opcode::Pong, payload).await
    }

    pub async fn close(&mut self, code: u16) -> io::Result<()> {
        self.frame(Opcode::Close, &code.to_be_bytes()).await?;
        self.stream.shutdown().await
    }

    /// The stall guard disconnects a client that does not read.
    async fn frame(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        let (header, size) = frame_header(opcode, payload.len());
        self.stream.write_all(&header[..size]).await?;
        self.stream.write_all(payload).await?;
        self.stream.flush().await
    }
}

pub fn split(upgraded: Upgraded, answers: ClientAnswers) -> (FrameReader<ReadHalf<SocketStream>>, FrameWriter) {
    let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
    (
        FrameReader::new(reader),
        FrameWriter {
            stream: writer,
            answers,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first];
        match payload.len() {
            length if length < 126 => bytes.push(0x80 | length as u8),
            length => {
                bytes.push(0x80 | 126);
                bytes.extend_from_slice(&(length as u16).to_be_bytes());
            }
        }
        bytes.extend_from_slice(&[1, 2, 3, 4]);
        bytes.extend(
            payload
                .iter()
                .zip([1, 2, 3, 4].iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        bytes
    }

    fn all(bytes: &[u8]) -> Vec<SocketMessage> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut reader = FrameReader::new(bytes);
            let mut heard = Vec::new();
            while let Ok(next) = reader.next().await {
                let is_closed = matches!(next, SocketMessage::Closed(_));
                heard.push(next);
                if is_closed {
                    break;
                }
            }
            heard
        })
    }

    #[test]
    fn frames_are_joined_to_messages() {
        let long = "x".repeat(300);
        let bytes = [
            frame(0x81, b"{}"),
            frame(0x01, b"{\"a\""),
            frame(0x89, b"ping"),
            frame(0x80, b":1}"),
            frame(0x81, long.as_bytes()),
            frame(0x8a, b""),
            frame(0x88, &1001_u16.to_be_bytes()),
        ];
        let expected = vec![
            SocketMessage::Text("{}".into()),
            SocketMessage::Ping(b"ping".to_vec()),
            SocketMessage::Text("{\"a\":1}".into()),
            SocketMessage::Text(long),
            SocketMessage::Pong,
            SocketMessage::Closed(1001),
        ];
        assert_eq!(all(&bytes.concat()), expected);
    }

    #[test]
    fn protocol_violations_close_the_connection() {
        let mut unmasked = frame(0x81, b"a");
        unmasked[1] &= 0x7f;
        let mut huge = vec![0x81, 0x80 | 127];
        huge.extend_from_slice(&u64::MAX.to_be_bytes());
        let many: Vec<u8> = (0..300)
            .flat_map(|n| frame(if n == 0 { 0x01 } else { 0x00 }, &[b'a'; 300]))
            .collect();
        for (bytes, code) in [
            (unmasked, PROTOCOL_ERROR),
            (frame(0x80, b"a"), PROTOCOL_ERROR),
            (frame(0xc1, b"a"), PROTOCOL_ERROR),
            (frame(0x83, b"a"), PROTOCOL_ERROR),
            (frame(0x09, b"a"), PROTOCOL_ERROR),
            ([frame(0x01, b"a"), frame(0x81, b"b")].concat(), PROTOCOL_ERROR),
            (frame(0x81, &[0xff]), NOT_TEXT),
            (huge, TOO_BIG),
            (many, TOO_BIG),
        ] {
            assert_eq!(all(&bytes), [SocketMessage::Closed(code)]);
        }
    }
}
