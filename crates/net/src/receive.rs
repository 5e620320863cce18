//! Reads from ready sockets, through TLS and WebSocket, to the shard.
//!
//! Bytes are read into buffers of the worker. A connection owns bytes only while they are part of an incomplete packet,
//! or while the shard has paused it. Its buffer grows with the received bytes, not with the declared length. A partial
//! packet is placed before the bytes that complete it, in the worker's buffer, so that a typical packet is copied at
//! most once.
//!
//! Fairness: a connection gets `READ_BUDGET_BYTES` per tick. If it has more, it stays in the ready list behind the
//! others.

use std::io::{self, Read};
use std::ops::Range;

use broker::{CloseCause, ConnSlot, NextAction};
use mqtt::ReasonCode;

use crate::connection::{ConnectionStage, HandshakeStep};
use crate::counters::EarlyCloseReason;
use crate::early_close::describe_tls;
use crate::read_buffers::{HEADROOM_BYTES, PLAIN_BYTES, READ_BYTES, ReadBuffers};
use crate::websocket::frame::DecodeEnd;
use crate::worker::NetWorker;

/// Maximum number of bytes read from one connection per tick.
const READ_BUDGET_BYTES: usize = 4 * READ_BYTES;

/// Maximum number of bytes recorded from several connections before they are appended and the journal's backlog is
/// checked. Without this limit one batch could contain everything that thousands of clients have sent.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

enum ReadEnd {
    /// The socket is empty. An event will follow.
    Empty,
    PeerClosed,
    Failed,
    /// The socket may have more data, but other connections are next, or reading is not allowed now.
    Suspended,
}

impl NetWorker {
    /// Lists a connection to be read in this tick or the next.
    pub(crate) fn list_for_read(&mut self, slot: ConnSlot) {
        if let Some(connection) = self.slots.get_mut(slot)
            && !connection.is_in_ready_list
        {
            connection.is_in_ready_list = true;
            self.ready_list.push(slot);
        }
    }

    /// Reads from every listed connection.
    pub(crate) fn read_ready(&mut self) {
        let mut listed = std::mem::take(&mut self.ready_list);
        let mut buffers = std::mem::replace(
            &mut self.buffers,
            ReadBuffers {
                input: Vec::new(),
                plain: Vec::new(),
            },
        );
        let mut turns = listed.drain(..);
        for slot in turns.by_ref() {
            if let Some(connection) = self.slots.get_mut(slot) {
                connection.is_in_ready_list = false;
                self.read_connection(slot, &mut buffers);
            }
            if self.shard.inspect().ledger().batch_bytes() > BATCH_BYTES_MAX {
                self.flush_all();
                if !self.can_read() {
                    break;
                }
            }
        }
        self.buffers = buffers;
        // Connections that were not read come first in the next tick.
        let mut listed: Vec<ConnSlot> = turns.collect();
        listed.append(&mut self.ready_list);
        self.ready_list = listed;
    }

    fn read_connection(&mut self, slot: ConnSlot, buffers: &mut ReadBuffers) {
        self.pass_unread_to_shard(slot);
        match self.read_socket(slot, buffers) {
            ReadEnd::Empty => {
                if let Some(connection) = self.slots.get_mut(slot) {
                    connection.is_readable = false;
                }
            }
            ReadEnd::PeerClosed => self.peer_closed(slot),
            ReadEnd::Failed => self.fail(slot, CloseCause::Network),
            ReadEnd::Suspended => {}
        }
        self.close_if_broken(slot);
        self.register_after_read(slot);
        self.move_if_due(slot);
    }

    fn read_socket(&mut self, slot: ConnSlot, buffers: &mut ReadBuffers) -> ReadEnd {
        let mut budget = READ_BUDGET_BYTES;
        loop {
            let Some(connection) = self.slots.get_mut(slot) else {
                return ReadEnd::Suspended;
            };
            if connection.is_paused || matches!(connection.stage, ConnectionStage::Closing { .. }) {
                return match self.has_left_during_login(slot) {
                    true => ReadEnd::PeerClosed,
                    false => ReadEnd::Suspended,
                };
            }
            if connection.has_ended && matches!(connection.stage, ConnectionStage::Open) {
                return ReadEnd::PeerClosed;
            }
            if !connection.is_readable {
                return ReadEnd::Suspended;
            }
            if budget == 0 {
                self.list_for_read(slot);
                return ReadEnd::Suspended;
            }
            self.counters.reads += 1;
            let buffer = &mut buffers.input[HEADROOM_BYTES..];
            let read = match connection.socket.control() {
                None => {
                    self.quic.touch(slot, &mut connection.socket);
                    connection.socket.read(buffer)
                }
                Some(_) => self.read_data_stream(slot, buffer),
            };
            let bytes = match read {
                Ok(0) => return ReadEnd::PeerClosed,
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadEnd::Empty,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return ReadEnd::Failed,
            };
            let Some(connection) = self.slots.get_mut(slot) else {
                return ReadEnd::Suspended;
            };
            self.counters.bytes_in += connection.socket.wire_bytes(bytes);
            budget = budget.saturating_sub(bytes);
            // A short read has emptied the socket, and new data causes a new event. The exception is the end of the
            // stream: it may have been reported together with this data, and then no event follows.
            let is_emptied = bytes < READ_BYTES;
            connection.is_read_closed |= connection.socket.is_peer_finished();
            let is_read_closed = connection.is_read_closed;
            connection.has_ended |= is_emptied && is_read_closed;
            self.received(slot, buffers, bytes);
            if is_emptied && !is_read_closed {
                return ReadEnd::Empty;
            }
        }
    }

    /// Returns whether the client has closed its connection while a decision about its login is pending, and has sent
    /// nothing behind its CONNECT. The decision has no effect then, so it need not wait for another system. With TLS or
    /// WebSocket, messages of these layers come before the end of the stream, and are read after the decision.
    fn has_left_during_login(&mut self, slot: ConnSlot) -> bool {
        let Some(connection) = self.slots.get_mut(slot) else {
            return false;
        };
        let is_at_end = connection.is_paused
            && matches!(connection.stage, ConnectionStage::Open)
            && connection.layer.is_none()
            && connection.unread.is_empty();
        let has_left =
            is_at_end && (connection.has_ended || connection.is_read_closed && connection.socket.is_at_end());
        has_left && self.shard.inspect().waits_for_login(slot)
    }

    /// Processes `bytes` from the socket in the input buffer.
    fn received(&mut self, slot: ConnSlot, buffers: &mut ReadBuffers, bytes: usize) {
        let mut range = HEADROOM_BYTES..HEADROOM_BYTES + bytes;
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if let ConnectionStage::Draining { left_bytes } = &mut connection.stage {
            match left_bytes.checked_sub(bytes as u32) {
                Some(left) => *left_bytes = left,
                None => self.remove(slot),
            }
            return;
        }
        if let ConnectionStage::Handshake(handshake) = &connection.stage
            && handshake.step == HandshakeStep::Proxy
        {
            match self.proxy_step(slot, &buffers.input[range.clone()]) {
                Some(used) => range.start += used,
                None => return,
            }
        }
        if !self.begin_tls(slot) {
            return;
        }
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.tls().is_some() {
            self.decrypt(slot, buffers, range);
        } else {
            self.unpacked(slot, &mut buffers.input, range);
        }
    }

    fn decrypt(&mut self, slot: ConnSlot, buffers: &mut ReadBuffers, range: Range<usize>) {
        buffers.plain.resize(HEADROOM_BYTES + PLAIN_BYTES, 0);
        let mut ciphertext = &buffers.input[range];
        while !ciphertext.is_empty() {
            let Some(tls) = self.slots.get_mut(slot).and_then(|connection| connection.tls()) else {
                return;
            };
            let received = ciphertext;
            let progress = match tls.read_tls(&mut ciphertext) {
                // Nothing was consumed: the TLS library waits for buffer space that will not become available.
                Ok(0) => Err(rustls::Error::General("a TLS message is too long".into())),
                Ok(_) => tls.process_new_packets(),
                Err(error) => Err(rustls::Error::General(error.to_string())),
            };
            let state = match progress {
                Ok(state) => state,
                Err(error) => return self.tls_failed(slot, &error, received),
            };
            let wants_write = tls.wants_write();
            if wants_write {
                self.list_for_flush(slot);
            }
            self.tls_step(slot);
            self.take_plaintext(slot, &mut buffers.plain);
            if state.peer_has_closed() {
                return self.peer_closed(slot);
            }
        }
    }

    /// Closes after a TLS error. A fatal alert is queued and is written first.
    fn tls_failed(&mut self, slot: ConnSlot, error: &rustls::Error, received: &[u8]) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match connection.stage {
            ConnectionStage::Handshake(_) => {
                self.refuse_because(slot, EarlyCloseReason::TlsHandshake, describe_tls(error, received))
            }
            _ => self.close_after_violation(slot),
        }
    }

    fn close_after_violation(&mut self, slot: ConnSlot) {
        self.counters.transport_errors += 1;
        self.close(slot, CloseCause::Transport);
    }

    fn take_plaintext(&mut self, slot: ConnSlot, plain: &mut [u8]) {
        while let Some(tls) = self.slots.get_mut(slot).and_then(|connection| connection.tls()) {
            // `WouldBlock` means that all plaintext is read. The caller detects a closed stream.
            let bytes = match tls.reader().read(&mut plain[HEADROOM_BYTES..]) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => bytes,
            };
            self.unpacked(slot, plain, HEADROOM_BYTES..HEADROOM_BYTES + bytes);
        }
    }

    /// Processes `buffer[range]` after TLS decryption, or without TLS.
    fn unpacked(&mut self, slot: ConnSlot, buffer: &mut [u8], mut range: Range<usize>) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if let ConnectionStage::Handshake(handshake) = &connection.stage
            && handshake.step == HandshakeStep::WebSocket
        {
            match self.websocket_step(slot, &buffer[range.clone()]) {
                Some(used) => range.start += used,
                None => return,
            }
        }
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let Some(websocket) = connection.websocket() else {
            return self.deliver(slot, buffer, range);
        };
        let decoded = websocket.decoder.decode(&mut buffer[range.clone()]);
        if websocket.decoder.has_pending_pong() {
            self.list_for_flush(slot);
        }
        range.end = range.start + decoded.data_bytes;
        self.deliver(slot, buffer, range);
        match decoded.ended {
            None => {}
            Some(DecodeEnd::Closed) => self.peer_closed(slot),
            Some(DecodeEnd::Violation(_)) if self.is_in_handshake(slot) => {
                self.list_for_flush(slot);
                self.refuse_framing(slot);
            }
            Some(DecodeEnd::Violation(_)) => self.close_after_violation(slot),
        }
    }

    pub(crate) fn is_in_handshake(&mut self, slot: ConnSlot) -> bool {
        self.slots
            .get_mut(slot)
            .is_some_and(|connection| matches!(connection.stage, ConnectionStage::Handshake(_)))
    }

    /// Processes MQTT bytes in `buffer[range]`. The buffer before the range may be overwritten.
    fn deliver(&mut self, slot: ConnSlot, buffer: &mut [u8], range: Range<usize>) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if range.is_empty() {
            return;
        }
        match connection.stage {
            ConnectionStage::Handshake(_) => self.connect_step(slot, buffer, range),
            ConnectionStage::Open => self.pass_to_shard(slot, buffer, range),
            ConnectionStage::Closing { .. } | ConnectionStage::Draining { .. } => {}
        }
    }

    /// Passes stored and new bytes of a connection to the shard.
    pub(crate) fn pass_to_shard(&mut self, slot: ConnSlot, buffer: &mut [u8], range: Range<usize>) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let stored = connection.unread.len();
        if connection.is_paused || (stored > 0 && stored + range.len() < connection.needed as usize) {
            self.store_unread(slot, &buffer[range]);
        } else if stored <= range.start {
            let start = range.start - stored;
            buffer[start..range.start].copy_from_slice(&connection.unread);
            connection.discard_unread();
            let bytes = &buffer[start..range.end];
            let used = self.handle(slot, bytes);
            if used < bytes.len() {
                self.store_unread(slot, &bytes[used..]);
            }
        } else {
            self.store_unread(slot, &buffer[range]);
            self.pass_unread_to_shard(slot);
        }
    }

    /// Stores bytes of a connection for later, or disconnects the client if the incomplete packets of all connections
    /// need too much memory. A connection that the server has paused keeps the packets that it has read: it reads no
    /// more, so they are at most one read.
    fn store_unread(&mut self, slot: ConnSlot, bytes: &[u8]) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.is_paused {
            return connection.unread.extend_from_slice(bytes);
        }
        if connection.store_unread(&self.common.packet_memory, bytes).is_err() {
            connection.discard_unread();
            const DETAIL: &str = "incomplete packets of all clients need more memory than \
                                  limits.max_incomplete_packets allows";
            self.shard
                .protocol_error(self.now, slot, ReasonCode::QuotaExceeded, DETAIL);
        }
    }

    /// Passes the stored bytes of a connection to the shard.
    pub(crate) fn pass_unread_to_shard(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let is_due = connection.unread.len() >= connection.needed as usize && !connection.unread.is_empty();
        if !is_due || connection.is_paused || !matches!(connection.stage, ConnectionStage::Open) {
            return;
        }
        let bytes = std::mem::take(&mut connection.unread);
        let share = connection.unread_share.take();
        let used = self.handle(slot, &bytes);
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if used == 0 {
            connection.unread = bytes;
            connection.unread_share = share;
        } else if used < bytes.len() {
            self.store_unread(slot, &bytes[used..]);
        }
    }

    /// Lets the shard process packets until it stops. Returns the number of bytes used.
    fn handle(&mut self, slot: ConnSlot, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let received = self.shard.receive(self.now, slot, &bytes[used..]);
            used += received.consumed;
            if received.next == NextAction::Flush {
                self.flush_all();
                continue;
            }
            let Some(connection) = self.slots.get_mut(slot) else {
                return bytes.len();
            };
            match received.next {
                NextAction::Read { needed } => connection.needed = u32::try_from(needed).unwrap_or(u32::MAX),
                NextAction::Pause => {
                    connection.is_paused = true;
                    connection.needed = 0;
                }
                // `Effect::Close` follows. Remaining bytes of the client are ignored.
                NextAction::Closed | NextAction::Flush => return bytes.len(),
            }
            return used;
        }
    }

    /// Resumes a connection that the shard had paused.
    pub(crate) fn resume(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.is_paused {
            connection.is_paused = false;
            self.list_for_read(slot);
        }
    }
}
