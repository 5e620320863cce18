//! Timers of a shard. They are never cancelled: each carries its purpose, and the receiver checks whether it still
//! applies.
//!
//! Clients choose most delays, and each disconnect leaves timers behind. So no timer is set further ahead than
//! `LOOK_AGAIN_MS`. A later deadline is set again when the timer fires, if it still applies.

use crate::deliver::ShardCore;
use crate::effect::Now;
use crate::slots::{ConnEpoch, ConnSlot, ConnectNumber, DelayedIndex, GroupEpoch, GroupIndex, SessionSlot};

/// Maximum delay of a timer. Bounds the memory of obsolete timers.
const LOOK_AGAIN_MS: u64 = 5 * 60 * 1000;

/// A timer in the shard's wheel. Small, because every connection has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardTimer {
    /// The keep-alive time of a connection may have passed [MQTT-3.1.2-22]. Set again if not.
    KeepAlive { conn: ConnSlot, epoch: ConnEpoch },
    /// The expiry interval of a disconnected session has passed [MQTT-3.1.2-23].
    SessionExpiry {
        session: SessionSlot,
        connect_number: ConnectNumber,
    },
    /// The exclusive subscriptions of a disconnected session are released.
    ExclusiveRelease {
        session: SessionSlot,
        connect_number: ConnectNumber,
    },
    /// The Will Delay Interval has passed [MQTT-3.1.3-9].
    Will {
        session: SessionSlot,
        connect_number: ConnectNumber,
    },
    /// A delayed message is due.
    Delayed { index: DelayedIndex },
    /// Resend messages to a 3.1 or 3.1.1 client.
    Retry {
        session: SessionSlot,
        connect_number: ConnectNumber,
    },
    /// A paused publisher may continue.
    Quota { conn: ConnSlot, epoch: ConnEpoch },
    /// Remove expired retained messages.
    RetainedExpiry,
    /// Members of a group may have queue space again.
    Space { index: GroupIndex, epoch: GroupEpoch },
}

impl ShardCore {
    /// Sets a timer for `at_ms`, or earlier if that is far away; the receiver checks whether it is due. Returns the
    /// time that was set.
    pub fn wake(&mut self, now: Now, at_ms: u64, timer: ShardTimer) -> u64 {
        let at_ms = at_ms.min(now.monotonic_ms + LOOK_AGAIN_MS);
        self.timers.insert(at_ms, timer);
        at_ms
    }
}
