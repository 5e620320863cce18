//! Work that takes a core or a disk for a while: off the runtime's threads, and only so much of it at a time.

use std::time::Duration;

use crate::app::App;
use crate::problem::Problem;

/// How long a request waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

impl App {
    /// For password hashes, each of which takes 19 MiB.
    pub async fn hash<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, Problem> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.hashing().acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(Problem::unavailable("too many passwords are being checked"));
        };
        self.block(work).await
    }

    /// For disks.
    pub async fn block<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, Problem> {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| Problem::internal("the request failed unexpectedly"))
    }
}
