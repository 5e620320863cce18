//! What a shard waits for. Timers are never cancelled: each carries what it was set for and checks when it fires.

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
}
