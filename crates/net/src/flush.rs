//! The end of a tick: every connection that got something is written to once.
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
    /// Writes all that is queued and ends the outbox' tick.
    pub(crate) fn flush_all(&mut self) {
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
        if connection.is_write_blocked || matches!(connection.stage, Stage::Draining { .. }) {
            return;
        }
        let conn = ConnSlot(slot);
        let mut was_held_back = false;
        let outbox = if connection.has_lane() {
            let outbox = self.shard.outbox();
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
            Err(_) => self.fail(slot, CloseCause::Network),
        }
    }
}
