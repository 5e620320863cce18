//! Runs blocking work (password hashes, disk access) outside the runtime's threads, with a limit on concurrent hashes.

use std::any::Any;
use std::time::Duration;

use crate::app::App;
use crate::problem::HttpProblem;

/// How long a request waits for a hashing permit.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

type AnyResult = Box<dyn Any + Send>;

impl App {
    /// Computes password hashes, each of which needs 19 MiB.
    pub async fn hash<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, HttpProblem> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.hashing().acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(HttpProblem::unavailable(
                "too many passwords are being verified; try again later",
            ));
        };
        self.block(work).await
    }

    /// Runs work that waits for a disk.
    pub async fn block<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, HttpProblem> {
        let result = block_any(Box::new(move || Box::new(work()))).await?;
        match result.downcast() {
            Ok(result) => Ok(*result),
            Err(_) => Err(HttpProblem::internal("the request failed unexpectedly")),
        }
    }
}

/// Not generic, because each task type that is given to tokio costs 0.1 s of compile time.
async fn block_any(work: Box<dyn FnOnce() -> AnyResult + Send>) -> Result<AnyResult, HttpProblem> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| HttpProblem::internal("the request failed unexpectedly"))
}
