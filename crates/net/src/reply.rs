//! The answer to one question put to a worker: waited for by a thread, or awaited by any async runtime.
//!
//! Whoever holds the `Replier` answers once or drops it; a dropped one tells the waiting side that the worker is gone, so nobody
//! waits for ever. Not for the data plane.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// There is no such shard.
    NoSuchShard,
    /// The worker's mailbox stayed full, or the answer did not come in time.
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
    let shared = Arc::new(Shared {
        state: Mutex::new(State::Open { waker: None }),
        answered: Condvar::new(),
    });
    (Replier { shared: shared.clone() }, Reply { shared })
}

struct Shared<R> {
    state: Mutex<State<R>>,
    answered: Condvar,
}

enum State<R> {
    Open {
        waker: Option<Waker>,
    },
    Answered(R),
    /// Dropped without an answer, or the answer has been taken.
    Closed,
}

impl<R> Shared<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // A state is replaced whole, so that a panic elsewhere cannot leave half of one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, outcome: State<R>) {
        let mut state = self.lock();
        if let State::Open { waker } = &mut *state {
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
    shared: Arc<Shared<R>>,
}

impl<R> Replier<R> {
    pub(crate) fn answer(self, value: R) {
        self.shared.settle(State::Answered(value));
    }
}

impl<R> Drop for Replier<R> {
    fn drop(&mut self) {
        self.shared.settle(State::Closed);
    }
}

/// Where the answer arrives. A future without a runtime behind it; `wait` is for threads.
#[must_use = "the answer is only here"]
pub struct Reply<R> {
    shared: Arc<Shared<R>>,
}

impl<R> Reply<R> {
    pub fn wait(self, timeout: Duration) -> Result<R, CallError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            match std::mem::replace(&mut *state, State::Closed) {
                State::Answered(value) => return Ok(value),
                State::Closed => return Err(CallError::Stopped),
                open @ State::Open { .. } => *state = open,
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
        match std::mem::replace(&mut *state, State::Closed) {
            State::Answered(value) => Poll::Ready(Ok(value)),
            State::Closed => Poll::Ready(Err(CallError::Stopped)),
            State::Open { .. } => {
                *state = State::Open {
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
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_answer_reaches_a_waiting_thread() {
        let (replier, reply) = reply();
        let thread = std::thread::spawn(move || reply.wait(Duration::from_secs(10)));
        replier.answer(7);
        assert_eq!(thread.join().unwrap(), Ok(7));
    }

    #[test]
    fn a_dropped_replier_ends_the_wait() {
        let (replier, reply) = reply::<u8>();
        drop(replier);
        assert_eq!(reply.wait(Duration::from_secs(10)), Err(CallError::Stopped));
    }

    #[test]
    fn a_wait_is_bounded() {
        let (_replier, reply) = reply::<u8>();
        assert_eq!(reply.wait(Duration::from_millis(1)), Err(CallError::Timeout));
    }

    #[test]
    fn a_future_is_woken_once_the_answer_is_there() {
        let (replier, mut reply) = reply();
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(counter.clone());
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut reply).poll(&mut context).is_pending());
        replier.answer("done");
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        assert_eq!(Pin::new(&mut reply).poll(&mut context), Poll::Ready(Ok("done")));
    }
}
