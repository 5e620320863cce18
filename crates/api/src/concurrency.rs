//! Limits of concurrent WebSockets, downloads and tests, which last longer than other requests, and of changes.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};
use web::problem::HttpProblem;

/// Limit of open WebSockets, which are not counted as requests.
pub const VIEWERS_MAX: usize = 32;

/// Limit of concurrent downloads of archives. Each has a thread.
pub const DOWNLOADS_MAX: usize = 2;

/// Limit of concurrent tests of connectors, and of those of access sources. Each holds a blocking thread until the
/// other system answers or a time limit ends.
const TESTS_MAX: usize = 2;

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

/// Limits the tests of connectors.
#[derive(Clone)]
pub struct ConnectorTests(Arc<Semaphore>);

impl Default for ConnectorTests {
    fn default() -> ConnectorTests {
        ConnectorTests(Arc::new(Semaphore::new(TESTS_MAX)))
    }
}

impl ConnectorTests {
    /// The thread of the test holds the permit: the client may close the connection while it runs.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, HttpProblem> {
        let permit = self.0.clone().try_acquire_owned();
        permit.map_err(|_| HttpProblem::unavailable("too many connectors are being tested; try again later"))
    }
}

/// Limits the tests of access rules that ask other systems.
#[derive(Clone)]
pub struct SourceTests(Arc<Semaphore>);

impl Default for SourceTests {
    fn default() -> SourceTests {
        SourceTests(Arc::new(Semaphore::new(TESTS_MAX)))
    }
}

impl SourceTests {
    /// The thread of the test holds the permit: the client may close the connection while it runs.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, HttpProblem> {
        let permit = self.0.clone().try_acquire_owned();
        permit.map_err(|_| HttpProblem::unavailable("too many tests are asking the access sources; try again later"))
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
