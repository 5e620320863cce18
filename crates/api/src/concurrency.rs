//! Limits of concurrent WebSockets, downloads and tests, which last longer than other requests, and of changes.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};
use web::problem::HttpProblem;
use web::role::Role;

/// Limit of open WebSockets, which are not counted as requests.
pub const VIEWERS_MAX: usize = 32;

/// Limit of concurrent downloads of archives. Each has a thread.
pub const DOWNLOADS_MAX: usize = 2;

/// Limit of concurrent tests of connectors, and of questions to access sources. Each holds a blocking thread until the
/// other system answers or a time limit ends.
const TESTS_MAX: usize = 2;

/// Limit of concurrent questions of viewers to access sources.
const VIEWER_QUESTIONS_MAX: usize = 1;

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

/// Limits the requests that ask access sources: tests of access rules, and subscriptions for clients. Viewers and roles
/// in a namespace have a place of their own, so that they cannot occupy those of operators and administrators.
#[derive(Clone)]
pub struct SourceQuestions {
    viewers: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Default for SourceQuestions {
    fn default() -> SourceQuestions {
        SourceQuestions {
            viewers: Arc::new(Semaphore::new(VIEWER_QUESTIONS_MAX)),
            others: Arc::new(Semaphore::new(TESTS_MAX)),
        }
    }
}

impl SourceQuestions {
    /// The thread of the question holds the permit: the client may close the connection while it runs.
    pub fn admit(&self, role: Role) -> Result<OwnedSemaphorePermit, HttpProblem> {
        let places = match role {
            Role::Viewer => &self.viewers,
            Role::Operator | Role::Admin => &self.others,
        };
        let permit = places.clone().try_acquire_owned();
        permit.map_err(|_| HttpProblem::unavailable("too many requests are asking the access sources; try again later"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn viewers_cannot_occupy_the_questions_of_operators() {
        let questions = SourceQuestions::default();
        let admit = |role| questions.admit(role).ok();
        let of_viewer = admit(Role::Viewer);
        assert!(of_viewer.is_some() && admit(Role::Viewer).is_none());
        let (first, second) = (admit(Role::Operator), admit(Role::Admin));
        assert!(first.is_some() && second.is_some() && admit(Role::Admin).is_none());
        drop(of_viewer);
        assert!(admit(Role::Viewer).is_some());
    }
}
