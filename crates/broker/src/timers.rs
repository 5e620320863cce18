//! What a shard waits for. Timers are never cancelled: each carries what it was set for and checks when it fires.
//!
//! A client chooses how far ahead most of them are, and leaves one behind whenever it goes. So none is set further ahead than
//! `LOOK_AGAIN_MS`: what is due later is set again when it fires, if anyone still waits for it.

use crate::deliver::Core;
use crate::effect::Now;

/// The furthest ahead that a timer is set: what was left behind costs memory for no longer than this.
const LOOK_AGAIN_MS: u64 = 5 * 60 * 1000;

/// Set in the shard's wheel; small, because every connection has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The connection may have been silent for too long [MQTT-3.1.2-22]; set again if it was not.
    KeepAlive { conn: u32, epoch: u32 },
    /// The session has been without a connection for its expiry interval [MQTT-3.1.2-23].
    SessionExpiry { session: u32, connects: u32 },
    /// Will Delay Interval [MQTT-3.1.3-9].
    Will { session: u32, connects: u32 },
    /// A `$delayed` message is due.
    Delayed { index: u32 },
    /// Resend to a 3.1 or 3.1.1 client.
    Retry { session: u32, connects: u32 },
    /// A publisher that was slowed may go on.
    Quota { conn: u32, epoch: u32 },
    /// Remove retained messages that expired.
    RetainedExpiry,
    /// Members of a group may have space again.
    Space { index: u32, epoch: u32 },
}

impl Core {
    /// Has a timer fire at `at_ms`, or earlier if that is far away: whoever gets it has to look whether it is due. Returns when.
    pub fn wake(&mut self, now: Now, at_ms: u64, timer: Timer) -> u64 {
        let at_ms = at_ms.min(now.monotonic_ms + LOOK_AGAIN_MS);
        self.timers.insert(at_ms, timer);
        at_ms
    }
}
