//! Reading: from a ready socket through TLS and WebSocket to the shard.
//!
//! Bytes are read into buffers of the worker. A connection owns bytes only while they are part of an unfinished packet (or while the
//! shard has paused it), and its buffer grows with what has arrived, not with what was announced. A partial packet is put in
//! front of the bytes that complete it, in the worker's buffer, so that the usual packet is copied once at most.
//!
//! Fairness: one connection gets `READ_BUDGET_BYTES` per tick; if it still has more, it stays in the ready list, behind the others.

use std::io::{self, Read};
use std::ops::Range;

use broker::{CloseCause, ConnSlot, Next};

use crate::connection::{Stage, Step};
use crate::counters::Refusal;
use crate::websocket::frame::Ended;
use crate::worker::Worker;

/// Space before what is read, for the beginning of a packet that came earlier.
pub(crate) const HEADROOM_BYTES: usize = 4 * 1024;

/// Read from a socket at once.
pub(crate) const READ_BYTES: usize = 64 * 1024;

/// Read from one connection in one tick.
const READ_BUDGET_BYTES: usize = 4 * READ_BYTES;

/// Recorded from several connections before that is appended, and before it is looked whether the journal keeps up: one batch of all that
/// thousands have sent meanwhile would be as large.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What one TLS record can hold.
const PLAIN_BYTES: usize = 16 * 1024;

/// The worker's buffers; a read fills them from `HEADROOM_BYTES` on.
pub(crate) struct ReadBuffers {
    input: Vec<u8>,
    plain: Vec<u8>,
}

impl ReadBuffers {
    pub(crate) fn new() -> ReadBuffers {
        // The plaintext buffer is made when the first TLS connection needs it.
        ReadBuffers {
            input: vec![0; HEADROOM_BYTES + READ_BYTES],
            plain: Vec::new(),
        }
    }
}

enum ReadEnd {
    /// The socket is empty: an event will come.
    Empty,
    PeerClosed,
    Failed,
    /// It may have more, but it is others' turn, or nothing may be read now.
    Suspended,
}

impl Worker {
    /// Lists a connection to be read from in this tick or the next.
    pub(crate) fn list_for_read(&mut self, slot: u32) {
        if let Some(connection) = self.slots.get_mut(slot)
            && !connection.is_in_ready_list
        {
            connection.is_in_ready_list = true;
            self.ready_list.push(slot);
        }
    }

    /// Gives every listed connection its turn.
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
            if self.shard.batch_bytes() > BATCH_BYTES_MAX {
                self.flush_all();
                if !self.may_read() {
                    break;
                }
            }
        }
        self.buffers = buffers;
        // Who has had no turn comes first in the next tick.
        let mut listed: Vec<u32> = turns.collect();
        listed.append(&mut self.ready_list);
        self.ready_list = listed;
    }

    fn read_connection(&mut self, slot: u32, buffers: &mut ReadBuffers) {
        self.feed_unread(slot);
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
        self.fail_if_broken(slot);
        self.leave_if_due(slot);
    }

    fn read_socket(&mut self, slot: u32, buffers: &mut ReadBuffers) -> ReadEnd {
        let mut budget = READ_BUDGET_BYTES;
        loop {
            let Some(connection) = self.slots.get_mut(slot) else {
                return ReadEnd::Suspended;
            };
            if connection.is_paused || matches!(connection.stage, Stage::Closing { .. }) {
                return ReadEnd::Suspended;
            }
            if connection.has_ended && matches!(connection.stage, Stage::Open) {
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
            let bytes = match connection.socket.read(&mut buffers.input[HEADROOM_BYTES..]) {
                Ok(0) => return ReadEnd::PeerClosed,
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadEnd::Empty,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return ReadEnd::Failed,
            };
            self.counters.bytes_in += bytes as u64;
            budget = budget.saturating_sub(bytes);
            // A short read has emptied the socket, and what comes later makes an event of its own. Only the end of the stream may
            // have been announced together with these bytes, and then nothing comes later.
            let is_emptied = bytes < READ_BYTES;
            let is_read_closed = connection.is_read_closed;
            connection.has_ended |= is_emptied && is_read_closed;
            self.received(slot, buffers, bytes);
            if is_emptied && !is_read_closed {
                return ReadEnd::Empty;
            }
        }
    }

    /// `bytes` from the socket are in the input buffer.
    fn received(&mut self, slot: u32, buffers: &mut ReadBuffers, bytes: usize) {
        let mut range = HEADROOM_BYTES..HEADROOM_BYTES + bytes;
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if let Stage::Draining { left_bytes } = &mut connection.stage {
            match left_bytes.checked_sub(bytes as u32) {
                Some(left) => *left_bytes = left,
                None => self.remove(slot),
            }
            return;
        }
        if let Stage::Handshake(handshake) = &connection.stage
            && handshake.step == Step::Proxy
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

    fn decrypt(&mut self, slot: u32, buffers: &mut ReadBuffers, range: Range<usize>) {
        buffers.plain.resize(HEADROOM_BYTES + PLAIN_BYTES, 0);
        let mut ciphertext = &buffers.input[range];
        while !ciphertext.is_empty() {
            let Some(tls) = self.slots.get_mut(slot).and_then(|connection| connection.tls()) else {
                return;
            };
            let progress = tls.read_tls(&mut ciphertext).map_err(|_| ()).and_then(|bytes| {
                // No bytes taken although there are some: the library waits for space that will not come.
                if bytes == 0 {
                    Err(())
                } else {
                    tls.process_new_packets().map_err(|_| ())
                }
            });
            let Ok(state) = progress else {
                return self.tls_failed(slot);
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

    /// A fatal alert is in the connection's queue and is written before it ends.
    fn tls_failed(&mut self, slot: u32) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match connection.stage {
            Stage::Handshake(_) => self.refuse(slot, Refusal::TlsHandshake),
            _ => self.violated(slot),
        }
    }

    fn violated(&mut self, slot: u32) {
        self.counters.transport_errors += 1;
        self.close(slot, CloseCause::Transport);
    }

    fn take_plaintext(&mut self, slot: u32, plain: &mut [u8]) {
        while let Some(tls) = self.slots.get_mut(slot).and_then(|connection| connection.tls()) {
            // `WouldBlock` says that all plaintext is taken; a closed stream is seen by the caller.
            let bytes = match tls.reader().read(&mut plain[HEADROOM_BYTES..]) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => bytes,
            };
            self.unpacked(slot, plain, HEADROOM_BYTES..HEADROOM_BYTES + bytes);
        }
    }

    /// `buffer[range]` has come out of TLS, or came plain.
    fn unpacked(&mut self, slot: u32, buffer: &mut [u8], mut range: Range<usize>) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if let Stage::Handshake(handshake) = &connection.stage
            && handshake.step == Step::WebSocket
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
        if websocket.decoder.owes_pong() {
            self.list_for_flush(slot);
        }
        range.end = range.start + decoded.data_bytes;
        self.deliver(slot, buffer, range);
        match decoded.ended {
            None => {}
            Some(Ended::Closed) => self.peer_closed(slot),
            Some(Ended::Violation(_)) if self.is_in_handshake(slot) => {
                self.list_for_flush(slot);
                self.refuse_framing(slot);
            }
            Some(Ended::Violation(_)) => self.violated(slot),
        }
    }

    pub(crate) fn is_in_handshake(&mut self, slot: u32) -> bool {
        self.slots
            .get_mut(slot)
            .is_some_and(|connection| matches!(connection.stage, Stage::Handshake(_)))
    }

    /// `buffer[range]` is MQTT. What is before it in the buffer may be overwritten.
    fn deliver(&mut self, slot: u32, buffer: &mut [u8], range: Range<usize>) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if range.is_empty() {
            return;
        }
        match connection.stage {
            Stage::Handshake(_) => self.connect_step(slot, buffer, range),
            Stage::Open => self.feed(slot, buffer, range),
            Stage::Closing { .. } | Stage::Draining { .. } => {}
        }
    }

    /// Gives the shard what a connection has kept and what has come now.
    pub(crate) fn feed(&mut self, slot: u32, buffer: &mut [u8], range: Range<usize>) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let kept = connection.unread.len();
        if connection.is_paused || (kept > 0 && kept + range.len() < connection.needed as usize) {
            connection.keep(&buffer[range]);
        } else if kept <= range.start {
            let start = range.start - kept;
            buffer[start..range.start].copy_from_slice(&connection.unread);
            connection.unread = Vec::new();
            let bytes = &buffer[start..range.end];
            let used = self.handle(slot, bytes);
            if let Some(connection) = self.slots.get_mut(slot)
                && used < bytes.len()
            {
                connection.keep(&bytes[used..]);
            }
        } else {
            connection.keep(&buffer[range]);
            self.feed_unread(slot);
        }
    }

    /// Gives the shard what a connection has kept.
    pub(crate) fn feed_unread(&mut self, slot: u32) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let is_due = connection.unread.len() >= connection.needed as usize && !connection.unread.is_empty();
        if !is_due || connection.is_paused || !matches!(connection.stage, Stage::Open) {
            return;
        }
        let bytes = std::mem::take(&mut connection.unread);
        let used = self.handle(slot, &bytes);
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if used == 0 {
            connection.unread = bytes;
        } else if used < bytes.len() {
            connection.keep(&bytes[used..]);
        }
    }

    /// Has the shard handle packets until it wants no more; returns the bytes used.
    fn handle(&mut self, slot: u32, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let received = self.shard.receive(self.now, ConnSlot(slot), &bytes[used..]);
            used += received.consumed;
            if received.next == Next::Flush {
                self.flush_all();
                continue;
            }
            let Some(connection) = self.slots.get_mut(slot) else {
                return bytes.len();
            };
            match received.next {
                Next::Read { needed } => connection.needed = u32::try_from(needed).unwrap_or(u32::MAX),
                Next::Pause => {
                    connection.is_paused = true;
                    connection.needed = 0;
                }
                // `Effect::Close` follows; what the client still says is not looked at.
                Next::Closed | Next::Flush => return bytes.len(),
            }
            return used;
        }
    }

    /// The shard takes packets of this connection again.
    pub(crate) fn resume(&mut self, slot: u32) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.is_paused {
            connection.is_paused = false;
            self.list_for_read(slot);
        }
    }
}
