//! Timers of QUIC connections. A connection has at most one valid entry, which may be earlier than its deadline: most
//! deadlines are moved to a later time before they are reached.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use broker::ConnSlot;

use crate::clock::{MONOTONIC_START_MS, ServerClock};
use crate::quic::QuicConnection;

#[derive(Default)]
pub(super) struct QuicTimers {
    entries: BinaryHeap<Reverse<(u64, u32)>>,
}

impl QuicTimers {
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.entries.peek().map(|Reverse((due_ms, _))| *due_ms)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes the entries that are not valid.
    pub(super) fn retain(&mut self, mut is_valid: impl FnMut(u64, ConnSlot) -> bool) {
        self.entries
            .retain(|Reverse((due_ms, slot))| is_valid(*due_ms, ConnSlot(*slot)));
    }

    /// Adds an entry for the deadline of a connection, unless it has an earlier one.
    pub(super) fn set(&mut self, slot: ConnSlot, quic: &mut QuicConnection, clock: &ServerClock) {
        let Some(deadline) = quic.connection.poll_timeout() else {
            return;
        };
        let due_ms = rounded_up_ms(clock, deadline);
        if quic.timer_ms.is_none_or(|timer_ms| timer_ms > due_ms) {
            quic.timer_ms = Some(due_ms);
            self.entries.push(Reverse((due_ms, slot.0)));
        }
    }

    /// Returns the time and the connection of an entry that is due. The entry is valid if the connection has this time.
    pub(super) fn pop_due(&mut self, now_ms: u64) -> Option<(u64, ConnSlot)> {
        let Reverse((due_ms, _)) = self.entries.peek()?;
        if *due_ms > now_ms {
            return None;
        }
        let Reverse((due_ms, slot)) = self.entries.pop()?;
        Some((due_ms, ConnSlot(slot)))
    }
}

fn rounded_up_ms(clock: &ServerClock, instant: Instant) -> u64 {
    let since_origin = instant.saturating_duration_since(clock.origin);
    MONOTONIC_START_MS + since_origin.as_micros().div_ceil(1000) as u64
}
