//! Runs blocking work (password hashes, disk access) outside the runtime's threads, with a limit on concurrent hashes.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::problem::HttpProblem;

/// Limit of concurrent password hashes. Each needs 19 MiB and a core for tens of milliseconds.
const HASHES_AT_ONCE: usize = 2;

/// How long a request waits for a hashing permit.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// On Linux, a thread with this nice value gets a tenth of a core that a worker needs as well.
#[cfg(target_os = "linux")]
const HASH_NICE: i32 = 10;

type AnyResult = Box<dyn Any + Send>;

/// Limits the computations of password hashes.
pub struct PasswordHashing(Arc<Semaphore>);

impl Default for PasswordHashing {
    fn default() -> PasswordHashing {
        PasswordHashing(Arc::new(Semaphore::new(HASHES_AT_ONCE)))
    }
}

impl PasswordHashing {
    /// Computes password hashes, each of which needs 19 MiB.
    pub async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, HttpProblem> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, Arc::clone(&self.0).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(HttpProblem::unavailable(
                "too many passwords are being verified; try again later",
            ));
        };
        // The thread holds the permit: the client may close the connection while it runs.
        let hashing = move || -> AnyResult {
            let result = work();
            drop(turn);
            Box::new(result)
        };
        downcast(hash_any(Box::new(hashing)).await?)
    }
}

/// Runs work that waits for a disk.
pub async fn block<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, HttpProblem> {
    downcast(block_any(Box::new(move || Box::new(work()))).await?)
}

fn downcast<R: 'static>(result: AnyResult) -> Result<R, HttpProblem> {
    match result.downcast() {
        Ok(result) => Ok(*result),
        Err(_) => Err(HttpProblem::internal("the request failed unexpectedly")),
    }
}

/// Runs work on a thread of its own with a low priority, so that it does not delay messages.
async fn hash_any(work: Box<dyn FnOnce() -> AnyResult + Send>) -> Result<AnyResult, HttpProblem> {
    let (done, result) = tokio::sync::oneshot::channel();
    let hashing = move || {
        // On other systems this would change the priority of the whole process.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, HASH_NICE);
        let _ = done.send(work());
    };
    std::thread::Builder::new()
        .name("api-hash".to_owned())
        .spawn(hashing)
        .map_err(|error| HttpProblem::unavailable(format!("cannot start a thread for a password hash: {error}")))?;
    result
        .await
        .map_err(|_| HttpProblem::internal("the request failed unexpectedly"))
}

/// Not generic, because each task type that is given to tokio costs 0.1 s of compile time.
async fn block_any(work: Box<dyn FnOnce() -> AnyResult + Send>) -> Result<AnyResult, HttpProblem> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| HttpProblem::internal("the request failed unexpectedly"))
}
