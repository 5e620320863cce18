//! Closing of connections.
//!
//! If the shard requests it: queued output is written, then the close messages of the layers (WebSocket close, TLS
//! close_notify), then FIN. Further input is discarded until the peer's FIN, so that no reset overtakes the last
//! packet. All of this is limited by the linger timeout. If the peer or the network closes: as soon as earlier data has
//! been read. The shard is informed exactly once.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use broker::{CloseCause, ConnSlot};

use crate::connection::{ConnectionStage, DRAIN_BYTES_MAX, HandshakeStep, SocketConnection};
use crate::counters::EarlyCloseReason;
use crate::early_close::{EarlyClose, describe, has_sent};
use crate::flush_notice::FlushNotice;
use crate::slots::SlotRef;
use crate::worker::NetWorker;

impl NetWorker {
    /// Closes for the shard. TLS and WebSocket have close messages after MQTT's DISCONNECT; with a layer, the peer's
    /// are awaited. A data stream does not wait for the end of the peer's side, which it stops.
    pub(crate) fn close_for_shard(&mut self, slot: ConnSlot, has_sent_disconnect: bool) {
        if let Some(connection) = self.slots.get_mut(slot) {
            let is_data_stream = connection.socket.control().is_some();
            self.counters.quic_streams_ended += u64::from(is_data_stream);
            connection.has_ended |= is_data_stream || has_sent_disconnect && connection.layer.is_none();
        }
        self.close(slot, CloseCause::Requested);
    }

    /// Closes gracefully. Nothing is read from now on.
    pub(crate) fn close(&mut self, slot: ConnSlot, cause: CloseCause) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let is_open = match connection.stage {
            ConnectionStage::Handshake(_) => false,
            ConnectionStage::Open => true,
            ConnectionStage::Closing { .. } | ConnectionStage::Draining { .. } => return,
        };
        self.release_handshake(slot);
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        connection.stage = ConnectionStage::Closing { cause, is_open };
        connection.discard_unread();
        self.list_for_flush(slot);
        self.linger_until_deadline(slot);
    }

    /// Closes a connection that the shard does not have, and counts the reason. A response of its layers (TLS alert,
    /// HTTP status) is still written.
    pub(crate) fn refuse(&mut self, slot: ConnSlot, refusal: EarlyCloseReason) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let config = &self.common.listeners[usize::from(connection.listener)].config;
        let detail = describe(refusal, connection, config);
        self.refuse_because(slot, refusal, detail);
    }

    /// As `refuse`, with the reason in words.
    pub(crate) fn refuse_because(&mut self, slot: ConnSlot, refusal: EarlyCloseReason, detail: Cow<'static, str>) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let has_answer = connection.tls().is_some_and(|tls| tls.wants_write())
            || connection
                .websocket()
                .is_some_and(|websocket| !websocket.is_between_frames() || websocket.has_peer_closed());
        let is_probe = refusal == EarlyCloseReason::PeerClosed && !has_sent(connection);
        if let Some(quic) = connection.socket.quic() {
            quic.set_close_reason(refusal);
        }
        if let ConnectionStage::Handshake(handshake) = &connection.stage {
            let (listener, address) = (usize::from(connection.listener), handshake.address);
            self.report_early_close(listener, address, refusal, detail, is_probe);
        }
        if has_answer {
            self.close(slot, CloseCause::Requested);
        } else {
            self.remove(slot);
        }
    }

    /// Counts a connection that ended before its CONNECT, and reports it to operators.
    pub(crate) fn report_early_close(
        &self,
        listener: usize,
        address: SocketAddr,
        reason: EarlyCloseReason,
        detail: Cow<'static, str>,
        is_probe: bool,
    ) {
        let listener = &self.common.listeners[listener];
        listener.count_refusal(reason);
        let close = EarlyClose {
            at_unix_ms: self.now.unix_ms,
            first_at_unix_ms: self.now.unix_ms,
            count: 1,
            address,
            listener: listener.config.name.clone(),
            transport: listener.config.transport,
            reason,
            detail,
            is_probe,
        };
        if let Some(line) = self.common.early_closes.record(self.now, close) {
            self.common.observer.early_close(&line);
        }
    }

    /// Closes a connection that is unusable.
    pub(crate) fn fail(&mut self, slot: ConnSlot, cause: CloseCause) {
        let Some(reference) = self.slots.reference(slot) else {
            return;
        };
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match connection.stage {
            ConnectionStage::Handshake(_) => self.refuse_broken(slot, cause),
            ConnectionStage::Open => {
                connection.stage = ConnectionStage::Closing { cause, is_open: true };
                self.notices.push(FlushNotice::Closed { conn: reference, cause });
            }
            ConnectionStage::Closing { cause, is_open: true } => {
                self.notices.push(FlushNotice::Closed { conn: reference, cause })
            }
            ConnectionStage::Closing { is_open: false, .. } | ConnectionStage::Draining { .. } => self.remove(slot),
        }
    }

    /// Handles a connection that the network has closed. Data that the peer sent before is read first: a peer that
    /// closes with unread input sends a reset right after its DISCONNECT, and that DISCONNECT decides about its will
    /// and its session.
    pub(crate) fn handle_broken(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.is_closing() || connection.is_paused {
            return self.fail(slot, CloseCause::Network);
        }
        connection.is_broken = true;
        connection.is_readable = true;
        self.list_for_read(slot);
    }

    /// After reading: closes a broken connection that has no more data.
    pub(crate) fn close_if_broken(&mut self, slot: ConnSlot) {
        if let Some(connection) = self.slots.get_mut(slot)
            && connection.is_broken
            && !connection.is_closing()
            && (connection.is_paused || !connection.is_readable)
        {
            self.fail(slot, CloseCause::Network);
        }
    }

    fn refuse_broken(&mut self, slot: ConnSlot, cause: CloseCause) {
        let refusal = if cause == CloseCause::Transport {
            EarlyCloseReason::WebSocketFraming
        } else {
            EarlyCloseReason::PeerClosed
        };
        self.refuse(slot, refusal);
    }

    /// Handles the end of the peer's stream. Queued output is written once, in case the peer still reads.
    pub(crate) fn peer_closed(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match &connection.stage {
            ConnectionStage::Handshake(handshake) if matches!(handshake.step, HandshakeStep::Moving(_)) => {
                connection.has_ended = true
            }
            ConnectionStage::Handshake(_) => self.refuse(slot, EarlyCloseReason::PeerClosed),
            ConnectionStage::Open if connection.is_write_blocked => self.fail(slot, CloseCause::Peer),
            ConnectionStage::Open => self.close(slot, CloseCause::Peer),
            ConnectionStage::Closing { .. } => {}
            // The acknowledgement of the last output removes the connection.
            ConnectionStage::Draining { .. } if connection.socket.has_unacknowledged_output() => {}
            ConnectionStage::Draining { .. } => self.remove(slot),
        }
    }

    /// Called when all output of a closing connection is written. Sends the close messages of the layers, then FIN.
    pub(crate) fn finish_writing(&mut self, slot: ConnSlot) {
        if self.queue_layer_close(slot) {
            // The flush calls this function again when the close message is written.
            self.list_for_flush(slot);
            return;
        }
        let Some(reference) = self.slots.reference(slot) else {
            return;
        };
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match connection.socket.control() {
            None => {
                connection.socket.finish(connection.has_ended);
                self.quic.touch(slot, &mut connection.socket);
            }
            Some(_) => self.finish_data_stream(slot),
        }
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match connection.stage {
            ConnectionStage::Closing { cause, is_open: true } => {
                self.notices.push(FlushNotice::Closed { conn: reference, cause })
            }
            _ => self.drain(slot),
        }
    }

    /// Queues the next close message of the layers. Returns `false` if all have been sent.
    fn queue_layer_close(&mut self, slot: ConnSlot) -> bool {
        let Some(connection) = self.slots.get_mut(slot) else {
            return false;
        };
        let Some(layer) = connection.layer.as_deref_mut() else {
            return false;
        };
        if layer
            .websocket
            .as_mut()
            .is_some_and(|websocket| websocket.begin_close())
        {
            return true;
        }
        match &mut layer.tls {
            Some(tls) if !layer.is_close_notify_sent => {
                layer.is_close_notify_sent = true;
                tls.send_close_notify();
                true
            }
            _ => false,
        }
    }

    /// Delivers the results of the last flush to the shard.
    pub(crate) fn deliver_notices(&mut self) {
        let mut notices = std::mem::take(&mut self.notices);
        for notice in notices.drain(..) {
            match notice {
                FlushNotice::Drained(conn) if self.slots.is_current(conn) => {
                    self.shard.drained(self.now, conn.slot);
                    self.resume(conn.slot);
                }
                FlushNotice::Closed { conn, cause } if self.slots.is_current(conn) => self.closed(conn.slot, cause),
                // The connection has been closed since.
                FlushNotice::Drained(_) | FlushNotice::Closed { .. } => {}
            }
        }
        notices.append(&mut self.notices);
        self.notices = notices;
    }

    /// Tells the shard, once, and then removes the connection or reads up to the peer's FIN.
    pub(crate) fn closed(&mut self, slot: ConnSlot, cause: CloseCause) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if !connection.has_outbox() {
            return;
        }
        self.close_data_streams(slot, cause);
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        connection.stage = ConnectionStage::Draining {
            left_bytes: DRAIN_BYTES_MAX,
        };
        connection.discard_unread();
        let is_unacknowledged = connection.socket.has_unacknowledged_output();
        self.abandon_questions(slot);
        self.shard.closed(self.now, slot, cause);
        match cause {
            CloseCause::Requested | CloseCause::Transport => self.drain(slot),
            CloseCause::Peer if is_unacknowledged => self.drain(slot),
            CloseCause::Peer | CloseCause::Network => self.remove(slot),
        }
    }

    /// Reads up to the peer's FIN, unless it has arrived. A QUIC connection waits for the acknowledgement of its
    /// output.
    fn drain(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.has_ended && !connection.socket.has_unacknowledged_output() {
            return self.remove(slot);
        }
        connection.stage = ConnectionStage::Draining {
            left_bytes: DRAIN_BYTES_MAX,
        };
        connection.layer = None;
        // Data that arrived while nothing was read has already caused its event.
        connection.is_readable = true;
        connection.is_paused = false;
        self.list_for_read(slot);
    }

    /// Ends a closing or draining connection at the linger deadline.
    pub(crate) fn linger_expired(&mut self, conn: SlotRef) {
        if !self.slots.is_current(conn) {
            return;
        }
        let Some(connection) = self.slots.get_mut(conn.slot) else {
            return;
        };
        match connection.stage {
            ConnectionStage::Closing { cause, .. } => {
                self.counters.linger_timeouts += 1;
                self.closed(conn.slot, cause);
                self.remove(conn.slot);
            }
            ConnectionStage::Draining { .. } => self.remove(conn.slot),
            ConnectionStage::Handshake(_) | ConnectionStage::Open => {}
        }
    }

    /// Removes the connection. The shard must not have it any more.
    pub(crate) fn remove(&mut self, slot: ConnSlot) {
        self.release_handshake(slot);
        if let Some(connection) = self.slots.remove(slot) {
            debug_assert!(!connection.has_outbox(), "the shard still has the connection");
            if connection.socket.control().is_some() {
                // It counts as a part of its connection.
                return self.end_quic(connection);
            }
            self.counters.closed += 1;
            self.count_out(&connection);
            self.end_quic(connection);
        }
    }

    /// Removes the connection from the counts of its listener and the server.
    pub(crate) fn count_out(&self, connection: &SocketConnection) {
        self.common.listeners[usize::from(connection.listener)].connection_closed();
        self.common.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
