//! The end of a tick: every connection that got something is written to once.
//!
//! Mail leaves before what is written: an acknowledgement must not be ahead of the message that it is for. Where mail is held back,
//! so is the output of every connection that got some meanwhile, until the mail is gone.
//!
//! Nothing here is told to the shard at once. What it has to know (a queue has drained, a connection is gone) is put down as a
//! `Notice` and handed over at the beginning of the next tick, so that the outbox never grows while it is being emptied.

use broker::{CloseCause, ConnSlot};

use crate::connection::Stage;
use crate::outlet::{self, Flushed};
use crate::slots::SlotRef;
use crate::worker::Worker;

/// What the shard has to be told before anything else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Drained(SlotRef),
    Closed { conn: SlotRef, cause: CloseCause },
}

impl Worker {
    /// Hands over mail, writes all that is queued and ends the outbox' tick.
    pub(crate) fn flush_all(&mut self) {
        self.append_to_journal();
        let held_before = self.counters.mail_held;
        self.send_mail();
        if self.counters.mail_held > held_before {
            self.hold_output();
        } else if self.held_letters == 0 {
            self.release_output();
        }
        self.shard.trace_output();
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.extend_from_slice(self.shard.outbox().dirty());
        for slot in dirty.drain(..) {
            self.flush_connection(slot.0);
        }
        self.dirty = dirty;
        let mut listed = std::mem::take(&mut self.flush_list);
        for slot in listed.drain(..) {
            if let Some(connection) = self.slots.get_mut(slot) {
                connection.is_in_flush_list = false;
            }
            self.flush_connection(slot);
        }
        // Writing may have listed some again, because they would not stop taking.
        listed.append(&mut self.flush_list);
        self.flush_list = listed;
        self.shard.outbox().end_tick();
    }

    fn hold_output(&mut self) {
        for conn in self.shard.outbox().dirty() {
            if let Some(connection) = self.slots.get_mut(conn.0)
                && !connection.is_held
            {
                connection.is_held = true;
                self.held_output.push(conn.0);
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

    /// Lists a connection whose own layers have something to write, or that waits to be closed.
    pub(crate) fn list_for_flush(&mut self, slot: u32) {
        if let Some(connection) = self.slots.get_mut(slot)
            && !connection.is_in_flush_list
        {
            connection.is_in_flush_list = true;
            self.flush_list.push(slot);
        }
    }

    fn flush_connection(&mut self, slot: u32) {
        let Some(reference) = self.slots.reference(slot) else {
            return;
        };
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if connection.is_write_blocked || connection.is_held || matches!(connection.stage, Stage::Draining { .. }) {
            return;
        }
        let conn = ConnSlot(slot);
        let mut was_held_back = false;
        let outbox = if connection.has_lane() {
            let outbox = self.shard.outbox();
            if outbox.is_held(conn) {
                return;
            }
            was_held_back =
                outbox.has_backlog(conn) || outbox.queued_bytes(conn) > self.common.shard_config.output_buffer_bytes;
            Some((outbox, conn))
        } else {
            None
        };
        match outlet::write_out(connection, outbox, &mut self.scratch, &mut self.counters) {
            Ok(Flushed::All) if connection.is_closing() => self.finish_writing(slot),
            Ok(Flushed::All) => {
                // The shard holds messages back only beyond its output limit, or from a connection it has paused.
                if was_held_back || (connection.is_paused && connection.has_lane()) {
                    self.notices.push(Notice::Drained(reference));
                }
            }
            Ok(Flushed::Blocked) => {
                connection.is_write_blocked = true;
                self.counters.writes_blocked += 1;
            }
            Ok(Flushed::Yield) => self.list_for_flush(slot),
            Err(_) => self.broken(slot),
        }
    }
}
