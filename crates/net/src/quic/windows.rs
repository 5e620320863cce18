//! The windows of a QUIC connection: the data that the client may send before the server reads it, and the output that
//! the server stores until the client acknowledges it. Both are memory of this process. The buffers of a TCP connection
//! are memory of the kernel, which limits them.
//!
//! A connection begins with `START_BYTES` for each direction. A window doubles while a logged-in client fills it, up to
//! the limit of the listener. The growth is taken from a pool of all connections. A connection may take a fraction of
//! the free memory. If the window needs more, it does not grow. The connection is then slower, and otherwise the same.
//!
//! Unused windows become small again. Their memory returns to the pool only when it is certain that it is free. For
//! output, a write within the small window shows it. A receive window is a promise to the client, so the memory is free
//! when the client has sent that much data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::{Connection, VarInt};

use crate::config::ListenerConfig;
use crate::memory_pool::{MemoryPool, MemoryShare};

/// Size of both windows at the start of a connection.
pub(super) const START_BYTES: u32 = 16 * 1024;

/// Maximum size of a window, unless the listener has another one. At a round-trip time of 100 ms, it allows 5 MB/s.
pub(super) const WINDOW_BYTES: u32 = 512 * 1024;

/// Memory of the data in a receive window, in halves: the library keeps whole datagrams until 60 % of their memory is
/// unused.
const RECEIVE_HALVES: usize = 5;

/// Memory of the output in a send window, in halves: each write has an allocation.
const SEND_HALVES: usize = 3;

/// The send window does not grow for smaller writes on average, whose allocations need more memory than the data.
const WRITE_BYTES_MIN: u32 = 256;

/// A client that needs longer for half of its window is not slowed down by it.
const FAST: Duration = Duration::from_millis(10);

/// A window that was not full for this time becomes small again.
const UNUSED: Duration = Duration::from_secs(10);

/// A connection may take this fraction of the free memory. Clients with large windows thus leave memory for others. The
/// first growth takes 40 KiB, so windows stop growing when less than 320 KiB is free.
const FREE_MEMORY_FRACTION: usize = 8;

pub(super) struct Windows {
    receive: Window,
    send: Window,
    /// Data that the client may still send in addition to the receive window, which has become smaller.
    promised: u32,
    /// Memory that unacknowledged output may still use in addition to the send window, which has become smaller.
    unconfirmed: u32,
    /// Begin of the measurement of the client's speed, and the bytes read since.
    measured_since: Option<Instant>,
    measured_bytes: u32,
    /// The size of the send window before its last growth, until a write is possible.
    send_before: Option<u32>,
    /// Number and size of the writes since the stream last was full.
    writes: u32,
    written_bytes: u32,
    share: MemoryShare,
}

struct Window {
    bytes: u32,
    max: u32,
    /// It should grow.
    is_full: bool,
    /// The last time that it was full.
    full_at: Option<Instant>,
}

impl Window {
    fn new(max: Option<u32>) -> Window {
        let max = max.unwrap_or(WINDOW_BYTES);
        Window {
            bytes: start_bytes(max),
            max,
            is_full: false,
            full_at: None,
        }
    }

    fn filled(&mut self, now: Instant) {
        self.is_full = self.bytes < self.max;
        self.full_at = Some(now);
    }

    /// Returns the size after one growth, if the window is full.
    fn next_size(&mut self) -> Option<u32> {
        std::mem::take(&mut self.is_full).then(|| self.bytes.saturating_mul(2).min(self.max))
    }

    /// Returns whether the window is larger than at the start, and was not full for a while.
    fn is_unused(&self, now: Instant) -> bool {
        let is_old = |at| now.saturating_duration_since(at) >= UNUSED;
        self.bytes > start_bytes(self.max) && self.full_at.is_none_or(is_old)
    }
}

/// Returns the size of a window at the start of a connection.
pub(super) fn start_bytes(max: u32) -> u32 {
    START_BYTES.min(max)
}

impl Windows {
    pub(super) fn new(listener: &ListenerConfig, pool: &Arc<MemoryPool>) -> Windows {
        Windows {
            receive: Window::new(listener.receive_buffer_bytes),
            send: Window::new(listener.send_buffer_bytes),
            promised: 0,
            unconfirmed: 0,
            measured_since: None,
            measured_bytes: 0,
            send_before: None,
            writes: 0,
            written_bytes: 0,
            share: MemoryShare::empty(pool),
        }
    }

    /// Returns whether a window should grow, or its growth should be checked.
    pub(super) fn wants_change(&self) -> bool {
        self.receive.is_full || self.send.is_full || self.send_before.is_some()
    }

    /// Records data that the server has read.
    pub(super) fn read(&mut self, bytes: usize, connection: &Connection) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if self.promised > 0 {
            self.promised = self.promised.saturating_sub(bytes);
            self.count();
            return;
        }
        self.measured_bytes = self.measured_bytes.saturating_add(bytes);
        if self.measured_bytes < self.receive.bytes / 2 {
            return;
        }
        let now = Instant::now();
        let fast = FAST.max(2 * connection.rtt());
        if self.measured_since.is_some_and(|since| now - since < fast) {
            self.receive.filled(now);
        }
        self.measured_since = Some(now);
        self.measured_bytes = 0;
    }

    /// Records that a write has succeeded: the unacknowledged output fits into the send window.
    pub(super) fn written(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.writes = self.writes.saturating_add(1);
        self.written_bytes = self.written_bytes.saturating_add(bytes);
        if self.unconfirmed > 0 {
            self.unconfirmed = 0;
            self.count();
        }
    }

    /// Records that the stream has not accepted all output.
    pub(super) fn blocked(&mut self) {
        if self.written_bytes / self.writes.max(1) >= WRITE_BYTES_MIN {
            self.send.filled(Instant::now());
        }
        (self.writes, self.written_bytes) = (0, 0);
    }

    /// Records that output can be written after the send window has grown.
    pub(super) fn writable(&mut self) {
        self.send_before = None;
    }

    /// Lets full windows grow, if there is memory. Undoes a growth of the send window that made no write possible: the
    /// client's own window is full. Returns whether the connection may have new events.
    pub(super) fn change(&mut self, connection: &mut Connection) -> bool {
        if let Some(before) = self.send_before.take() {
            self.send.bytes = before;
            connection.set_send_window(before.into());
            self.count();
        }
        if let Some(bytes) = self.receive.next_size()
            && self.reserve(bytes, self.send.bytes)
        {
            self.receive.bytes = bytes;
            connection.set_receive_window(VarInt::from_u32(bytes));
        }
        let Some(bytes) = self.send.next_size() else {
            return false;
        };
        let has_grown = self.reserve(self.receive.bytes, bytes);
        if has_grown {
            self.send_before = Some(self.send.bytes);
            self.send.bytes = bytes;
            connection.set_send_window(bytes.into());
        }
        has_grown
    }

    /// Makes unused windows small. Called when a timer of the connection has expired.
    pub(super) fn shrink(&mut self, now: Instant, connection: &mut Connection) {
        if self.receive.is_unused(now) && self.promised == 0 {
            let start = start_bytes(self.receive.max);
            self.promised = self.receive.bytes - start;
            self.receive.bytes = start;
            connection.set_receive_window(VarInt::from_u32(start));
        }
        if self.send.is_unused(now) && self.unconfirmed == 0 && self.send_before.is_none() {
            let start = start_bytes(self.send.max);
            self.unconfirmed = self.send.bytes - start;
            self.send.bytes = start;
            connection.set_send_window(start.into());
        }
    }

    /// Takes the memory for windows of these sizes from the pool.
    fn reserve(&mut self, receive: u32, send: u32) -> bool {
        let start = |window: &Window| start_bytes(window.max) as usize;
        let receive = receive as usize + self.promised as usize - start(&self.receive);
        // Output that is not acknowledged yet may still use the larger window.
        let unconfirmed = match self.unconfirmed {
            0 => 0,
            more => start(&self.send) + more as usize,
        };
        let send = unconfirmed.max(send as usize) - start(&self.send);
        let bytes = (receive * RECEIVE_HALVES + send * SEND_HALVES) / 2;
        self.share.resize_fairly(bytes, FREE_MEMORY_FRACTION)
    }

    /// Returns memory to the pool that is free.
    fn count(&mut self) {
        // Never fails, because the share does not grow.
        self.reserve(self.receive.bytes, self.send.bytes);
    }
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
