//! The server side of WebSocket (RFC 6455), as far as MQTT needs it (section 6 of MQTT 5.0): an upgrade on one path,
//! then binary messages. Boundaries of received ones have no meaning [MQTT-6.0.0-2]; each packet is sent in its own.
//!
//! `handshake` and `frame` are pure functions of bytes. `WebSocketState` is the state of a connection: the decoder, and
//! pending output of the WebSocket layer. Frames are never buffered completely in either direction. Extensions
//! (compression) are not supported.

pub mod frame;
pub mod handshake;
pub(crate) mod packets;

use frame::{CloseCode, FrameDecoder, Opcode, frame_header};

/// Connection state of the WebSocket layer.
#[derive(Default)]
pub(crate) struct WebSocketState {
    pub(crate) decoder: FrameDecoder,
    /// Bytes to write before payload: the handshake response, a control frame, or the header of a data frame.
    head: Vec<u8>,
    head_written: usize,
    /// Payload bytes still to be written in the current frame.
    frame_left: usize,
    is_close_sent: bool,
}

impl WebSocketState {
    /// Returns the bytes to write before payload.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head[self.head_written..]
    }

    pub(crate) fn frame_left(&self) -> usize {
        self.frame_left
    }

    /// Returns whether the current frame is written completely, so that another may begin.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.frame_left == 0 && self.head_written == self.head.len()
    }

    /// Queues the response to the upgrade request.
    pub(crate) fn respond(&mut self, response: &[u8]) {
        self.head.extend_from_slice(response);
    }

    /// Begins a binary frame of `len` bytes of MQTT.
    pub(crate) fn begin_frame(&mut self, len: usize) {
        debug_assert!(self.is_between_frames() && len > 0);
        self.restart_head();
        let (header, size) = frame_header(Opcode::Binary, len);
        self.head.extend_from_slice(&header[..size]);
        self.frame_left = len;
    }

    /// Begins a binary frame of which the first `written` bytes, with its header, are written already. Returns how many
    /// of them were payload.
    pub(crate) fn continue_frame(&mut self, len: usize, written: usize) -> usize {
        self.begin_frame(len);
        self.record_written(written)
    }

    /// Queues the pending pong, if any. Only called between frames, so that a data frame is never split.
    pub(crate) fn begin_pong(&mut self) -> bool {
        debug_assert!(self.is_between_frames());
        let Some(payload) = self.decoder.take_ping() else {
            return false;
        };
        self.begin_control(Opcode::Pong, &payload);
        true
    }

    /// Queues the close frame, unless it was sent already.
    pub(crate) fn begin_close(&mut self) -> bool {
        debug_assert!(self.is_between_frames());
        if self.is_close_sent {
            return false;
        }
        self.is_close_sent = true;
        let code = self.decoder.close_code().unwrap_or(CloseCode::NORMAL);
        self.begin_control(Opcode::Close, &code.0.to_be_bytes());
        true
    }

    /// Returns whether the client has sent a close frame that is not answered yet.
    pub(crate) fn has_peer_closed(&self) -> bool {
        !self.is_close_sent && self.decoder.close_code().is_some()
    }

    /// Suppresses the close frame of a connection that never became a WebSocket.
    pub(crate) fn skip_close(&mut self) {
        self.is_close_sent = true;
    }

    /// Records that `n` bytes of head and payload were written. Returns how many of them were payload.
    pub(crate) fn record_written(&mut self, n: usize) -> usize {
        let of_head = n.min(self.head.len() - self.head_written);
        self.head_written += of_head;
        let of_payload = n - of_head;
        self.frame_left -= of_payload;
        if self.is_between_frames() {
            // An idle connection owns no buffer.
            self.head = Vec::new();
            self.head_written = 0;
        }
        of_payload
    }

    fn begin_control(&mut self, opcode: Opcode, payload: &[u8]) {
        self.restart_head();
        let (header, size) = frame_header(opcode, payload.len());
        self.head.extend_from_slice(&header[..size]);
        self.head.extend_from_slice(payload);
    }

    fn restart_head(&mut self) {
        self.head.clear();
        self.head_written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pong_waits_for_the_current_frame() {
        let mut websocket = WebSocketState::default();
        websocket.begin_frame(5);
        assert_eq!(websocket.head(), [0x82, 5]);
        assert_eq!(websocket.record_written(4), 2);
        assert_eq!((websocket.frame_left(), websocket.is_between_frames()), (3, false));
        let mut ping = [0x89, 0x81, 0, 0, 0, 0, b'x'];
        websocket.decoder.decode(&mut ping);
        assert_eq!(websocket.record_written(3), 3);
        assert!(websocket.begin_pong());
        assert_eq!(websocket.head(), [0x8A, 1, b'x']);
        assert_eq!(websocket.record_written(3), 0);
        assert!(!websocket.begin_pong());
        assert!(websocket.begin_close());
        assert_eq!(websocket.head(), [0x88, 2, 0x03, 0xE8]);
        assert_eq!(websocket.record_written(4), 0);
        assert!(!websocket.begin_close());
    }
}
