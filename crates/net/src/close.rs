//! How connections end.
//!
//! Asked for by the shard: what is queued is written, then the layers say good-bye (WebSocket close, TLS close_notify), then FIN, and
//! what the peer still sends is thrown away until its own FIN, so that no reset overtakes the last packet. All within the linger
//! time. Ended by the peer or broken by the network: as soon as what came before has been read. The shard hears of every end exactly once.

use std::net::Shutdown;
use std::sync::atomic::Ordering;

use broker::{CloseCause, ConnSlot};

use crate::connection::{Connection, DRAIN_BYTES_MAX, Stage, Step};
use crate::counters::Refusal;
use crate::flush::Notice;
use crate::slots::SlotRef;
use crate::worker::Worker;

impl Worker {
    /// TLS and WebSocket have goodbyes of their own, which come after MQTT's: those are waited for.
    pub(crate) fn close_for_shard(&mut self, slot: u32, has_said_goodbye: bool) {
        if let Some(connection) = self.slots.get_mut(slot) {
            connection.has_ended |= has_said_goodbye && connection.layer.is_none();
        }
        self.close(slot, CloseCause::Requested);
    }

    /// Closes politely. Nothing is read from now on.
    pub(crate) fn close(&mut self, slot: u32, cause: CloseCause) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let is_open = match connection.stage {
            Stage::Handshake(_) => false,
            Stage::Open => true,
            Stage::Closing { .. } | Stage::Draining { .. } => return,
        };
        self.release_handshake(slot);
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        connection.stage = Stage::Closing { cause, is_open };
        connection.unread = Vec::new();
        self.list_for_flush(slot);
        self.linger_until_deadline(slot);
    }

    /// Ends a connection that the shard does not know, for a reason that is counted. An answer of its layers (a TLS alert, an HTTP
    /// status) is still written.
    pub(crate) fn refuse(&mut self, slot: u32, refusal: Refusal) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        self.common.listeners[usize::from(connection.listener)].count_refusal(refusal);
        let has_answer = connection.tls().is_some_and(|tls| tls.wants_write())
            || connection
                .websocket()
                .is_some_and(|websocket| !websocket.is_between_frames());
        if has_answer {
            self.close(slot, CloseCause::Requested);
        } else {
            self.remove(slot);
        }
    }

    /// The connection is of no use any more.
    pub(crate) fn fail(&mut self, slot: u32, cause: CloseCause) {
        let Some(reference) = self.slots.reference(slot) else {
            return;
        };
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match connection.stage {
            Stage::Handshake(_) => self.refuse_broken(slot, cause),
            Stage::Open => {
                connection.stage = Stage::Closing { cause, is_open: true };
                self.notices.push(Notice::Closed { conn: reference, cause });
            }
            Stage::Closing { cause, is_open: true } => self.notices.push(Notice::Closed { conn: reference, cause }),
            Stage::Closing { is_open: false, .. } | Stage::Draining { .. } => self.remove(slot),
        }
    }

    /// The network has ended the connection. What the peer sent before that is still there, and is heard first: who leaves with
    /// something unread sends a reset right behind its DISCONNECT, which decides about its will and its session.
    pub(crate) fn broken(&mut self, slot: u32) {
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

    /// After reading: a broken connection of which nothing more is to be had.
    pub(crate) fn fail_if_broken(&mut self, slot: u32) {
        if let Some(connection) = self.slots.get_mut(slot)
            && connection.is_broken
            && !connection.is_closing()
            && (connection.is_paused || !connection.is_readable)
        {
            self.fail(slot, CloseCause::Network);
        }
    }

    fn refuse_broken(&mut self, slot: u32, cause: CloseCause) {
        let refusal = if cause == CloseCause::Transport {
            Refusal::WebSocketFraming
        } else {
            Refusal::PeerClosed
        };
        self.refuse(slot, refusal);
    }

    /// The peer has sent its last byte. What is queued for it is written once, if it is still there to read it.
    pub(crate) fn peer_closed(&mut self, slot: u32) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match &connection.stage {
            Stage::Handshake(handshake) if matches!(handshake.step, Step::Leaving(_)) => connection.has_ended = true,
            Stage::Handshake(_) => self.refuse(slot, Refusal::PeerClosed),
            Stage::Open if connection.is_write_blocked => self.fail(slot, CloseCause::Peer),
            Stage::Open => self.close(slot, CloseCause::Peer),
            Stage::Closing { .. } => {}
            Stage::Draining { .. } => self.remove(slot),
        }
    }

    /// All of a closing connection's queue is written: the layers say good-bye, then the socket.
    pub(crate) fn finish_writing(&mut self, slot: u32) {
        if self.say_good_bye(slot) {
            // Written by the same path; this is called again when it is out.
            self.list_for_flush(slot);
            return;
        }
        let Some(reference) = self.slots.reference(slot) else {
            return;
        };
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if !connection.has_ended {
            // Fails only if the peer has reset the connection, and then there is nobody to tell.
            let _ = connection.socket.shutdown(Shutdown::Write);
        }
        match connection.stage {
            Stage::Closing { cause, is_open: true } => self.notices.push(Notice::Closed { conn: reference, cause }),
            _ => self.drain(slot),
        }
    }

    /// Queues the next closing message of the layers; false when all are sent.
    fn say_good_bye(&mut self, slot: u32) -> bool {
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

    /// Hands what happened during the last flush to the shard.
    pub(crate) fn deliver_notices(&mut self) {
        let mut notices = std::mem::take(&mut self.notices);
        for notice in notices.drain(..) {
            match notice {
                Notice::Drained(conn) if self.slots.is_current(conn) => {
                    self.shard.drained(self.now, ConnSlot(conn.slot));
                    self.resume(conn.slot);
                }
                Notice::Closed { conn, cause } if self.slots.is_current(conn) => self.closed(conn.slot, cause),
                // The connection has ended since.
                Notice::Drained(_) | Notice::Closed { .. } => {}
            }
        }
        notices.append(&mut self.notices);
        self.notices = notices;
    }

    /// Tells the shard, once, and lets go of the socket or reads it to the peer's FIN.
    pub(crate) fn closed(&mut self, slot: u32, cause: CloseCause) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if !connection.has_lane() {
            return;
        }
        connection.stage = Stage::Draining {
            left_bytes: DRAIN_BYTES_MAX,
        };
        connection.unread = Vec::new();
        self.shard.closed(self.now, ConnSlot(slot), cause);
        match cause {
            CloseCause::Requested | CloseCause::Transport => self.drain(slot),
            CloseCause::Peer | CloseCause::Network => self.remove(slot),
        }
    }

    /// Reads to the peer's FIN, unless that has come.
    fn drain(&mut self, slot: u32) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.has_ended {
            return self.remove(slot);
        }
        connection.stage = Stage::Draining {
            left_bytes: DRAIN_BYTES_MAX,
        };
        connection.layer = None;
        // What came while nothing was read has made its event already.
        connection.is_readable = true;
        connection.is_paused = false;
        self.list_for_read(slot);
    }

    /// A closing or draining connection has had its time.
    pub(crate) fn linger_is_over(&mut self, conn: SlotRef) {
        if !self.slots.is_current(conn) {
            return;
        }
        let Some(connection) = self.slots.get_mut(conn.slot) else {
            return;
        };
        match connection.stage {
            Stage::Closing { cause, .. } => {
                self.counters.linger_timeouts += 1;
                self.closed(conn.slot, cause);
                self.remove(conn.slot);
            }
            Stage::Draining { .. } => self.remove(conn.slot),
            Stage::Handshake(_) | Stage::Open => {}
        }
    }

    /// Drops the connection; the shard must not know it any more.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.release_handshake(slot);
        if let Some(connection) = self.slots.remove(slot) {
            debug_assert!(!connection.has_lane(), "the shard was not told");
            self.counters.closed += 1;
            self.count_out(&connection);
        }
    }

    /// The connection is no longer one of this server's.
    pub(crate) fn count_out(&self, connection: &Connection) {
        self.common.listeners[usize::from(connection.listener)].left();
        self.common.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
