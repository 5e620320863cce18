//! The client's end of a WebSocket that only receives messages.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::node::Node;
use super::web;

pub struct WebSocket {
    stream: TcpStream,
}

impl WebSocket {
    #[track_caller]
    pub fn open(node: &Node, target: &str) -> WebSocket {
        let mut stream = web::connect(node.address);
        write!(
            stream,
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            node.token
        )
        .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        WebSocket { stream }
    }

    /// Returns the next text frame.
    #[track_caller]
    pub fn next(&mut self) -> Value {
        loop {
            match self.frame() {
                (1, payload) => return serde_json::from_slice(&payload).unwrap(),
                (9, _) => {}
                (opcode, payload) => panic!("frame {opcode} {payload:?}"),
            }
        }
    }

    /// Skips frames until the close frame, and returns its status code.
    #[track_caller]
    pub fn close_code(&mut self) -> u16 {
        loop {
            if let (8, payload) = self.frame() {
                return u16::from_be_bytes(payload.try_into().unwrap());
            }
        }
    }

    fn frame(&mut self) -> (u8, Vec<u8>) {
        let head: [u8; 2] = self.bytes(2).try_into().unwrap();
        let length = match head[1] {
            126 => self.bytes(2),
            127 => self.bytes(8),
            length => vec![length],
        };
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        (head[0] & 0x0f, self.bytes(length))
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }
}
