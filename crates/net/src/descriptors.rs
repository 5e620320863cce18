//! File descriptors of the process: the share of client connections, and a spare descriptor for the time without any.
//!
//! Every connection takes a descriptor, and so do journal segments, databases, connectors and the API. If clients could
//! take all of them, the journal could not open its next segment and the API could not answer. So listeners refuse
//! connections while there are still descriptors for everything else.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Descriptors that do not depend on the limit: libraries, logs, databases, event loops, and the connections of HTTP
/// listeners that are reserved for health checks.
const BASE: u64 = 72;

/// Maximum reserve for journals, time series, backups and connectors.
const RESERVE_MAX: u64 = 4096;

/// How the descriptors of the process are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShares {
    /// Connections of MQTT clients.
    pub clients: usize,
    /// Connections to each HTTP listener.
    pub http: usize,
}

/// Users of descriptors besides clients.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorNeeds {
    pub workers: u16,
    /// Descriptors of a worker: its event loop, and a duplicate of each listening socket.
    pub per_worker: usize,
    /// HTTP listeners that are not a listener of MQTT.
    pub http_listeners: usize,
    /// Largest useful number of connections to an HTTP listener.
    pub http_max: usize,
}

/// Divides `limit` descriptors. Of a small limit, 1/16 is for HTTP and 1/16 for stores, of a large one 1/128.
pub fn shares(limit: u64, needs: DescriptorNeeds) -> DescriptorShares {
    let share = (limit / 16).min(64).max(limit / 128);
    let http = share.max(8).min(needs.http_max as u64);
    let of_workers = u64::from(needs.workers) * needs.per_worker as u64;
    let reserved = BASE + share.min(RESERVE_MAX) + of_workers + needs.http_listeners as u64 * http;
    DescriptorShares {
        clients: usize::try_from(limit.saturating_sub(reserved))
            .unwrap_or(usize::MAX)
            .max(1),
        http: usize::try_from(http).unwrap_or(usize::MAX),
    }
}

/// A descriptor that is open for the time when the process can open no other: closing it makes it possible to accept a
/// connection, if only to close it.
pub struct SpareDescriptor {
    file: Mutex<Option<File>>,
    is_missing: AtomicBool,
}

impl Default for SpareDescriptor {
    fn default() -> SpareDescriptor {
        SpareDescriptor::new()
    }
}

impl SpareDescriptor {
    pub fn new() -> SpareDescriptor {
        let file = open();
        SpareDescriptor {
            is_missing: AtomicBool::new(file.is_none()),
            file: Mutex::new(file),
        }
    }

    /// Closes the spare descriptor, calls `f`, and opens the descriptor again. That fails if `f` keeps a new one open.
    /// Returns `None` if there is no spare descriptor now.
    pub fn lend<R>(&self, f: impl FnOnce() -> Option<R>) -> Option<R> {
        let mut file = self.lock();
        file.take()?;
        let result = f();
        self.reopen(&mut file);
        result
    }

    /// Opens the spare descriptor if it is missing. Called before a connection is accepted, so that the first free
    /// descriptor becomes the spare one. Costs nothing otherwise.
    pub fn restore(&self) {
        if self.is_missing.load(Ordering::Relaxed) {
            self.reopen(&mut self.lock());
        }
    }

    fn reopen(&self, file: &mut Option<File>) {
        if file.is_none() {
            *file = open();
        }
        self.is_missing.store(file.is_none(), Ordering::Relaxed);
    }

    // Every update leaves the option valid, so a panic cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_descriptors_for_everything_else() {
        for (limit, workers, clients, http) in [
            (256, 2, 120, 16),
            (1024, 4, 728, 64),
            (20_000, 2, 19_444, 156),
            (1_048_576, 16, 1_043_768, 256),
            (64, 1, 1, 8),
        ] {
            let needs = DescriptorNeeds {
                workers,
                per_worker: 8,
                http_listeners: 2,
                http_max: 256,
            };
            let shares = shares(limit, needs);
            assert_eq!((shares.clients, shares.http), (clients, http), "limit {limit}");
            let used = shares.clients as u64 + 2 * shares.http as u64;
            assert!(used + BASE <= limit || limit < 256, "limit {limit}");
        }
    }

    #[test]
    fn spare_descriptor_is_open_again_after_its_use() {
        let spare = SpareDescriptor::new();
        for _ in 0..3 {
            assert_eq!(spare.lend(|| Some(7)), Some(7));
            spare.restore();
        }
        assert_eq!(spare.lend(|| None::<u8>), None);
        assert_eq!(spare.lend(|| Some(8)), Some(8));
    }
}
