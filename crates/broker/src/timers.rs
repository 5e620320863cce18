//! Timers of a shard. They are never cancelled: each carries its purpose, and the receiver checks whether it still
//! applies.
//!
//! Clients choose most delays, and each disconnect leaves timers behind. So no timer is set further ahead than
//! `LOOK_AGAIN_MS`. A later deadline is set again when the timer fires, if it still applies.

use crate::effect::Now;
use crate::slots::{ConnEpoch, ConnSlot, ConnectNumber, DelayedIndex, GroupEpoch, GroupIndex, SessionSlot};
use crate::timer::TimerWheel;

/// Maximum delay of a timer. Bounds the memory of obsolete timers.
const LOOK_AGAIN_MS: u64 = 5 * 60 * 1000;

/// A timer in the shard's wheel. Small, because every connection has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardTimer {
    /// The keep-alive time of a connection may have passed [MQTT-3.1.2-22]. Set again if not.
    KeepAlive { conn: ConnSlot, epoch: ConnEpoch },
    /// The login of a client may have expired. Set again if not.
    LoginExpiry { conn: ConnSlot, epoch: ConnEpoch },
    /// A deadline of a disconnected session has passed.
    Session {
        deadline: SessionDeadline,
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

/// Deadline of a session after its client has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionDeadline {
    /// The will is published after the Will Delay Interval [MQTT-3.1.3-9].
    Will,
    /// The exclusive subscriptions are released.
    ExclusiveRelease,
    /// The session ends after its expiry interval [MQTT-3.1.2-23].
    Expiry,
}

/// The timers of a shard, and those that are due.
pub struct Timers {
    wheel: TimerWheel<ShardTimer>,
    due: Vec<ShardTimer>,
    /// Number of entries of `due` that have been taken.
    taken: usize,
}

impl Timers {
    pub fn new(now: Now) -> Timers {
        Timers {
            wheel: TimerWheel::new(now.monotonic_ms),
            due: Vec::new(),
            taken: 0,
        }
    }

    /// Returns the number of timers that are not due.
    pub fn len(&self) -> usize {
        self.wheel.len()
    }

    pub fn insert(&mut self, at_ms: u64, timer: ShardTimer) {
        self.wheel.insert(at_ms, timer);
    }

    /// Sets a timer for `at_ms`, or earlier if that is far away; the receiver checks whether it is due. Returns the
    /// time that was set.
    pub fn wake(&mut self, now: Now, at_ms: u64, timer: ShardTimer) -> u64 {
        let at_ms = at_ms.min(now.monotonic_ms + LOOK_AGAIN_MS);
        self.wheel.insert(at_ms, timer);
        at_ms
    }

    /// Advances the clock. `next_due` then returns the timers that are due.
    pub fn advance(&mut self, now: Now) {
        self.due.drain(..std::mem::take(&mut self.taken));
        self.wheel.advance(now.monotonic_ms, &mut self.due);
    }

    /// Removes and returns the next timer that was due at the last `advance`.
    pub fn next_due(&mut self) -> Option<ShardTimer> {
        let timer = self.due.get(self.taken).copied()?;
        self.taken += 1;
        Some(timer)
    }

    /// Returns when the next timer is due, in monotonic milliseconds; 0 if one is due already.
    pub fn next_deadline(&self) -> Option<u64> {
        match self.taken < self.due.len() {
            true => Some(0),
            false => self.wheel.next_deadline(),
        }
    }
}
