//! The end of a tick: writes each connection that has output, once.
//!
//! Messages to other workers are sent before output is written: an acknowledgement must not overtake the message that
//! it acknowledges. If a mailbox is full, the output of all connections that got some in the meantime is held until the
//! items are sent.
//!
//! The shard is not called during a flush. Results that it must know (a queue has drained, a connection is closed) are
//! recorded as a `FlushNotice` and delivered at the start of the next tick, so that the outbox never grows while it is
//! being written.

use broker::ConnSlot;

use crate::connection::ConnectionStage;
use crate::flush_notice::FlushNotice;
use crate::outlet::{self, FlushResult};
use crate::worker::NetWorker;

impl NetWorker {
    /// Appends to the journal, sends messages to other workers, writes all queued output and ends the outbox's tick.
    pub(crate) fn flush_all(&mut self) {
        self.append_to_journal();
        let held_before = self.counters.mail_held;
        self.send_mail();
        if self.counters.mail_held > held_before {
            self.hold_output();
        } else if self.unsent_items == 0 {
            self.release_output();
        }
        self.shard.trace_output();
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.extend_from_slice(self.shard.outbox().dirty());
        for slot in dirty.drain(..) {
            self.flush_connection(slot);
        }
        self.dirty = dirty;
        let mut listed = std::mem::take(&mut self.flush_list);
        for slot in listed.drain(..) {
            if let Some(connection) = self.slots.get_mut(slot) {
                connection.is_in_flush_list = false;
            }
            self.flush_connection(slot);
        }
        // A write that was limited by its budget has listed the connection again.
        listed.append(&mut self.flush_list);
        self.flush_list = listed;
        self.shard.outbox().end_tick();
    }

    fn hold_output(&mut self) {
        for conn in self.shard.outbox().dirty() {
            if let Some(connection) = self.slots.get_mut(*conn)
                && !connection.is_held
            {
                connection.is_held = true;
                self.held_output.push(*conn);
            }
        }
    }

    fn release_output(&mut self) {
        for slot in std::mem::take(&mut self.held_output) {
            if let Some(connection) = self.slots.get_mut(slot) {
                connection.is_held = false;
                self.list_for_flush(slot);
            }
        }
    }

    /// Lists a connection whose TLS or WebSocket layer has output, or that waits to be closed.
    pub(crate) fn list_for_flush(&mut self, slot: ConnSlot) {
        if let Some(connection) = self.slots.get_mut(slot)
            && !connection.is_in_flush_list
        {
            connection.is_in_flush_list = true;
            self.flush_list.push(slot);
        }
    }

    fn flush_connection(&mut self, slot: ConnSlot) {
        let Some(reference) = self.slots.reference(slot) else {
            return;
        };
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.is_write_blocked
            || connection.is_held
            || matches!(connection.stage, ConnectionStage::Draining { .. })
        {
            return;
        }
        let mut was_held_back = false;
        let outbox = if connection.has_outbox() {
            let outbox = self.shard.outbox();
            if outbox.is_held(slot) {
                return;
            }
            was_held_back =
                outbox.has_backlog(slot) || outbox.queued_bytes(slot) > self.common.shard_config.output_buffer_bytes;
            Some((outbox, slot))
        } else {
            None
        };
        let written = match connection.socket.control() {
            None => {
                self.quic.touch(slot, &mut connection.socket);
                outlet::write_out(connection, outbox, &mut self.scratch, &mut self.counters)
            }
            Some(_) => self.write_data_stream(slot),
        };
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        match written {
            Ok(FlushResult::All) if connection.is_closing() => self.finish_writing(slot),
            Ok(FlushResult::All) => {
                // The shard stops queueing messages only beyond the output limit, or for a connection that it has
                // paused.
                if was_held_back || (connection.is_paused && connection.has_outbox()) {
                    self.notices.push(FlushNotice::Drained(reference));
                }
            }
            Ok(FlushResult::Blocked) => {
                connection.is_write_blocked = true;
                self.counters.writes_blocked += 1;
            }
            Ok(FlushResult::Yield) => self.list_for_flush(slot),
            Err(_) => self.handle_broken(slot),
        }
    }
}
