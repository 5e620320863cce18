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
pub struct PasswordHashing {
    turns: Arc<Semaphore>,
    turn_timeout: Duration,
}

impl Default for PasswordHashing {
    fn default() -> PasswordHashing {
        PasswordHashing {
            turns: Arc::new(Semaphore::new(HASHES_AT_ONCE)),
            turn_timeout: TURN_TIMEOUT,
        }
    }
}

impl PasswordHashing {
    /// Computes password hashes, each of which needs 19 MiB.
    pub async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, HttpProblem> {
        let turn = tokio::time::timeout(self.turn_timeout, Arc::clone(&self.turns).acquire_owned()).await;
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

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// Hashes that block until they are released.
    #[derive(Default)]
    struct BlockedHashes {
        state: Mutex<HashCounts>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct HashCounts {
        running: usize,
        running_max: usize,
        finished: usize,
        is_released: bool,
    }

    impl BlockedHashes {
        fn hash(&self) {
            let mut state = self.state.lock().unwrap();
            state.running += 1;
            state.running_max = state.running_max.max(state.running);
            self.changed.notify_all();
            let mut state = self.changed.wait_while(state, |state| !state.is_released).unwrap();
            state.running -= 1;
            state.finished += 1;
            drop(state);
            self.changed.notify_all();
        }

        fn wait_until(&self, is_reached: impl Fn(&HashCounts) -> bool) {
            drop(
                self.changed
                    .wait_while(self.state.lock().unwrap(), |state| !is_reached(state)),
            );
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn attack_with_logins_has_a_bounded_number_of_hashing_threads() {
        const LOGINS: usize = 50;
        let hashing = Arc::new(PasswordHashing {
            turn_timeout: Duration::from_secs(3600),
            ..PasswordHashing::default()
        });
        let hashes = Arc::new(BlockedHashes::default());
        let log_in = || {
            let (hashing, hashes) = (hashing.clone(), hashes.clone());
            tokio::spawn(async move { hashing.run(move || hashes.hash()).await.is_ok() })
        };
        let attack: Vec<_> = (0..LOGINS).map(|_| log_in()).collect();
        let reached = hashes.clone();
        tokio::task::spawn_blocking(move || reached.wait_until(|state| state.running == HASHES_AT_ONCE))
            .await
            .unwrap();
        // The clients disconnect, but their threads still hash.
        attack.iter().for_each(tokio::task::JoinHandle::abort);
        for login in attack {
            assert!(login.await.unwrap_err().is_cancelled());
        }
        assert_eq!(hashing.turns.available_permits(), 0);
        let logins: Vec<_> = (0..LOGINS).map(|_| log_in()).collect();
        hashes.state.lock().unwrap().is_released = true;
        hashes.changed.notify_all();
        for login in logins {
            assert!(login.await.unwrap());
        }
        let reached = hashes.clone();
        tokio::task::spawn_blocking(move || reached.wait_until(|state| state.running == 0))
            .await
            .unwrap();
        let state = hashes.state.lock().unwrap();
        assert_eq!(state.running_max, HASHES_AT_ONCE);
        assert_eq!(state.finished, HASHES_AT_ONCE + LOGINS);
    }

    #[tokio::test]
    async fn login_without_a_turn_is_refused() {
        let hashing = PasswordHashing {
            turn_timeout: Duration::ZERO,
            ..PasswordHashing::default()
        };
        let _turns = hashing.turns.acquire_many(HASHES_AT_ONCE as u32).await.unwrap();
        assert_eq!(hashing.run(|| ()).await.unwrap_err().status, 503);
    }
}
