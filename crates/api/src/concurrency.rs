//! Limits of concurrent WebSockets and downloads, which last longer than other requests, and of changes.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};

/// Limit of open WebSockets, which are not counted as requests.
pub const VIEWERS_MAX: usize = 32;

/// Limit of concurrent downloads of archives. Each has a thread.
pub const DOWNLOADS_MAX: usize = 2;

/// Limits the open WebSockets.
#[derive(Clone)]
pub struct Viewers(Arc<Semaphore>);

impl Default for Viewers {
    fn default() -> Viewers {
        Viewers(Arc::new(Semaphore::new(VIEWERS_MAX)))
    }
}

impl Viewers {
    /// Returns `None` if the limit is reached.
    pub fn admit(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}

/// Limits the downloads.
#[derive(Clone)]
pub struct Downloads(Arc<Semaphore>);

impl Default for Downloads {
    fn default() -> Downloads {
        Downloads(Arc::new(Semaphore::new(DOWNLOADS_MAX)))
    }
}

impl Downloads {
    /// Returns `None` if the limit is reached.
    pub fn admit(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_owned().ok()
    }
}

/// Serializes changes of users, rules, certificates and the configuration.
#[derive(Clone, Default)]
pub struct ChangeLock(Arc<Mutex<()>>);

impl ChangeLock {
    pub async fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock().await
    }
}
