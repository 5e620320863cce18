//! The thread that does the time-series store's background work: flushing, merging, dropping what is too old.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::hub::{Hub, unix_ms};
use crate::ingest::error_chain;

const PAUSE: Duration = Duration::from_secs(1);

/// Until the hub is stopped.
pub fn run(hub: &Arc<Hub>) {
    let store = hub.platform.store();
    while !hub.is_stopping.load(Relaxed) {
        if hub.is_flush_wanted.swap(false, Relaxed)
            && let Err(error) = store.flush()
        {
            tracing::warn!(error = %error_chain(&error), "time series cannot be flushed; the log of devices grows");
        }
        let is_done = match store.maintain(unix_ms()) {
            Ok(done) => !done.has_more,
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "the upkeep of time series failed; it is tried again");
                true
            }
        };
        if is_done {
            hub.pause(PAUSE);
        }
    }
}
