//! The observer of events of connections and of the journal.

use std::io;

use broker::ConnectionEvent;

use crate::early_close::EarlyCloseLine;

/// Receives every event of every shard. Called on a worker's thread, so it must not block.
pub trait ConnectionObserver: Send + Sync {
    /// Handles an event. `is_wanted`: a client may have subscribed to the `$SYS` topics about connecting and
    /// disconnecting clients.
    fn event(&self, event: &ConnectionEvent, is_wanted: bool);

    /// Handles the log line of connections that ended before CONNECT. Their number is limited.
    fn early_close(&self, _line: &EarlyCloseLine) {}

    /// Called when a listener could not accept a connection because the process or the system has no resources left.
    fn accept_failed(&self, _listener: &str, _error: &io::Error) {}

    /// Called when the state of the journal has changed, on the commit thread: the next commit waits for it.
    fn journal_state(&self, _state: &journal::LogState) {}

    /// Called when a journal operation has failed and will be retried or skipped, on a thread of the journal.
    fn journal_error(&self, _what: &'static str, _error: &dyn std::error::Error) {}
}
