//! The reply to a call of a worker. A thread can wait for it, or any async runtime can await it.
//!
//! The holder of the `Replier` answers once or drops it. Dropping it tells the waiting side that the worker has
//! stopped, so that no caller waits forever. Not used on the data plane.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The shard does not exist.
    NoSuchShard,
    /// The worker's mailbox stayed full, or the reply did not arrive in time.
    Timeout,
    /// The server has been shut down.
    Stopped,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::NoSuchShard => "no such shard",
            CallError::Timeout => "the worker did not answer in time",
            CallError::Stopped => "the server has been shut down",
        })
    }
}

impl std::error::Error for CallError {}

pub(crate) fn reply<R>() -> (Replier<R>, Reply<R>) {
    let shared = Arc::new(ReplyShared {
        state: Mutex::new(ReplyState::Open { waker: None }),
        answered: Condvar::new(),
    });
    (Replier { shared: shared.clone() }, Reply { shared })
}

struct ReplyShared<R> {
    state: Mutex<ReplyState<R>>,
    answered: Condvar,
}

enum ReplyState<R> {
    Open {
        waker: Option<Waker>,
    },
    Answered(R),
    /// Dropped without a reply, or the reply has been taken.
    Closed,
}

impl<R> ReplyShared<R> {
    fn lock(&self) -> MutexGuard<'_, ReplyState<R>> {
        // The state is replaced as a whole, so a panic cannot leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resolve(&self, outcome: ReplyState<R>) {
        let mut state = self.lock();
        if let ReplyState::Open { waker } = &mut *state {
            let waker = waker.take();
            *state = outcome;
            drop(state);
            self.answered.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

pub(crate) struct Replier<R> {
    shared: Arc<ReplyShared<R>>,
}

impl<R> Replier<R> {
    pub(crate) fn answer(self, value: R) {
        self.shared.resolve(ReplyState::Answered(value));
    }
}

impl<R> Drop for Replier<R> {
    fn drop(&mut self) {
        self.shared.resolve(ReplyState::Closed);
    }
}

/// Receives the reply. A future that needs no runtime; threads use `wait`.
#[must_use = "the reply is delivered only here"]
pub struct Reply<R> {
    shared: Arc<ReplyShared<R>>,
}

impl<R> Reply<R> {
    pub fn wait(self, timeout: Duration) -> Result<R, CallError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            match std::mem::replace(&mut *state, ReplyState::Closed) {
                ReplyState::Answered(value) => return Ok(value),
                ReplyState::Closed => return Err(CallError::Stopped),
                open @ ReplyState::Open { .. } => *state = open,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CallError::Timeout);
            }
            state = self
                .shared
                .answered
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl<R> Future for Reply<R> {
    type Output = Result<R, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        match std::mem::replace(&mut *state, ReplyState::Closed) {
            ReplyState::Answered(value) => Poll::Ready(Ok(value)),
            ReplyState::Closed => Poll::Ready(Err(CallError::Stopped)),
            ReplyState::Open { .. } => {
                *state = ReplyState::Open {
                    waker: Some(context.waker().clone()),
                };
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct CountingReplyWaker(AtomicUsize);

    impl Wake for CountingReplyWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn reply_reaches_a_waiting_thread() {
        let (replier, reply) = reply();
        let thread = std::thread::spawn(move || reply.wait(Duration::from_secs(10)));
        replier.answer(7);
        assert_eq!(thread.join().unwrap(), Ok(7));
    }

    #[test]
    fn dropped_replier_ends_the_wait() {
        let (replier, reply) = reply::<u8>();
        drop(replier);
        assert_eq!(reply.wait(Duration::from_secs(10)), Err(CallError::Stopped));
    }

    #[test]
    fn wait_times_out() {
        let (_replier, reply) = reply::<u8>();
        assert_eq!(reply.wait(Duration::from_millis(1)), Err(CallError::Timeout));
    }

    #[test]
    fn future_is_woken_by_the_reply() {
        let (replier, mut reply) = reply();
        let counter = Arc::new(CountingReplyWaker::default());
        let waker = Waker::from(counter.clone());
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut reply).poll(&mut context).is_pending());
        replier.answer("done");
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        assert_eq!(Pin::new(&mut reply).poll(&mut context), Poll::Ready(Ok("done")));
    }
}
