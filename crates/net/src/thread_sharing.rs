//! Runs workers on threads, and moves workers between threads.
//!
//! Every worker has a thread of its own, which it uses when there is work for more than one core. While all workers
//! together use less than a good part of one core, the thread of the first worker (the host) runs the others too. The
//! host's poll watches their polls, it ticks each worker that has work, and it sleeps only when all of them may sleep.
//! A message between clients of two workers then wakes no other thread, and events of several workers are handled in
//! one turn. When the shared thread is busy for some milliseconds, all workers return to their own threads.
//!
//! A worker on the host's thread is held in a [`SharedThreadWorker`]. Dropping that value returns the worker to its own
//! thread, so that no worker is lost if a mailbox item or the host is dropped.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Token};

use crate::busy_time::{BusyTime, BusyTimer};
use crate::clock::{MONOTONIC_START_MS, millis};
use crate::mailbox_item::MailboxItem;
use crate::worker::{FIRST_SHARED_WORKER, NetWorker};

/// Maximum number of events per poll.
pub(crate) const EVENTS: usize = 1024;

/// A worker that runs on the host's thread. Returns to its own thread when dropped.
pub(crate) struct SharedThreadWorker {
    worker: Option<Box<NetWorker>>,
    return_slot: Arc<ReturnSlot>,
    /// The worker's poll has events.
    has_events: bool,
}

/// Through this slot a worker returns to its own thread, which waits for it.
#[derive(Default)]
struct ReturnSlot {
    worker: Mutex<Option<Box<NetWorker>>>,
    returned: Condvar,
}

impl ReturnSlot {
    fn wait(&self) -> Box<NetWorker> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match worker.take() {
                Some(worker) => return worker,
                None => worker = self.returned.wait(worker).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl SharedThreadWorker {
    fn worker(&mut self) -> &mut NetWorker {
        self.worker.as_mut().expect("only drop takes the worker")
    }
}

impl Drop for SharedThreadWorker {
    fn drop(&mut self) {
        *self.return_slot.worker.lock().unwrap_or_else(PoisonError::into_inner) = self.worker.take();
        self.return_slot.returned.notify_one();
    }
}

/// Runs a worker, and the workers that share its thread, until it has stopped.
pub(crate) fn run(worker: NetWorker) {
    let mut worker = Box::new(worker);
    let mut event_loop = EventLoop::new();
    while !worker.is_done() {
        event_loop.run_turn(&mut worker);
        worker = event_loop.balance(worker);
    }
    event_loop.separate(&mut worker);
    worker.end();
}

/// The event loop of one thread: its own worker, and the workers that share the thread.
struct EventLoop {
    shared_workers: Vec<SharedThreadWorker>,
    return_slot: Arc<ReturnSlot>,
    events: Events,
    shared_worker_events: Events,
    /// Clock of the latest tick, which costs no system call.
    now_ms: u64,
    busy_timer: BusyTimer,
}

impl EventLoop {
    fn new() -> EventLoop {
        EventLoop {
            shared_workers: Vec::new(),
            return_slot: Arc::default(),
            events: Events::with_capacity(EVENTS),
            shared_worker_events: Events::with_capacity(EVENTS),
            now_ms: 0,
            busy_timer: BusyTimer::new(),
        }
    }

    fn run_turn(&mut self, host: &mut NetWorker) {
        self.wait(host);
        self.now_ms = self
            .now_ms
            .max(MONOTONIC_START_MS + millis(self.busy_timer.now - host.common.clock.origin));
        let mut is_host_due = self.shared_workers.is_empty() || host.is_due(self.now_ms);
        for event in &self.events {
            match event.token() {
                Token(index) if index >= FIRST_SHARED_WORKER => {
                    mark_ready(&mut self.shared_workers, index - FIRST_SHARED_WORKER)
                }
                _ => is_host_due = true,
            }
        }
        if is_host_due {
            host.tick(&self.events);
            self.now_ms = host.now.monotonic_ms;
        }
        let separate_after = host.common.config.thread_sharing.separate_after;
        for shared_worker in &mut self.shared_workers {
            shared_worker.run_turn(&mut self.shared_worker_events, self.now_ms);
            self.now_ms = self.now_ms.max(shared_worker.worker().now.monotonic_ms);
            // If the load is high enough to separate the workers, decide now instead of after the other workers' ticks.
            if self.busy_timer.is_over(self.now_ms, separate_after) {
                break;
            }
        }
        self.adopt_workers(host);
    }

    /// Polls for events. Blocks only if no worker has work left.
    fn wait(&mut self, host: &mut NetWorker) {
        let due_ms = self
            .shared_workers
            .iter_mut()
            .map(SharedThreadWorker::due_ms)
            .fold(host.due_ms(), earlier);
        // A poll that does not block needs no wake-up.
        if due_ms == Some(0) || !self.can_sleep(host) {
            host.poll(&mut self.events, Some(Duration::ZERO));
        } else {
            let busy = self.busy_timer.sleep();
            let common = &host.common;
            common.busy_times[usize::from(host.id.0)].publish(busy);
            let now_ms = MONOTONIC_START_MS + millis(self.busy_timer.now - common.clock.origin);
            let timeout = due_ms.map(|due_ms| Duration::from_millis(due_ms.saturating_sub(now_ms)));
            host.poll(&mut self.events, timeout);
            self.busy_timer.wake();
        }
        host.mailbox.set_awake();
        for shared_worker in &mut self.shared_workers {
            shared_worker.worker().mailbox.set_awake();
        }
    }

    fn can_sleep(&mut self, host: &mut NetWorker) -> bool {
        let mut shared_workers = self.shared_workers.iter_mut();
        host.mailbox.can_sleep() && shared_workers.all(|shared_worker| shared_worker.worker().mailbox.can_sleep())
    }

    /// Adopts the workers that have arrived. If the host is stopping, or its poll rejects them, they return to their
    /// own threads.
    fn adopt_workers(&mut self, host: &mut NetWorker) {
        for mut shared_worker in std::mem::take(&mut host.arrived_workers) {
            let worker = shared_worker.worker();
            let token = Token(FIRST_SHARED_WORKER + usize::from(worker.id.0));
            let fd = worker.poll.as_raw_fd();
            let registered = host
                .poll
                .registry()
                .register(&mut SourceFd(&fd), token, Interest::READABLE);
            if registered.is_ok() && !host.is_stopping() {
                worker.counters.worker_moves += 1;
                // Events from before the registration may not be reported.
                shared_worker.has_events = true;
                self.shared_workers.push(shared_worker);
            }
        }
    }

    /// Returns all other workers to their own threads.
    fn separate(&mut self, host: &mut NetWorker) {
        for mut shared_worker in self.shared_workers.drain(..) {
            let fd = shared_worker.worker().poll.as_raw_fd();
            // An error means that it is not registered, which is the desired state.
            let _ = host.poll.registry().deregister(&mut SourceFd(&fd));
        }
    }

    /// Decides at the end of each window whether workers share a thread.
    fn balance(&mut self, mut worker: Box<NetWorker>) -> Box<NetWorker> {
        if worker.is_stopping() {
            self.separate(&mut worker);
            return worker;
        }
        let policy = worker.common.config.thread_sharing;
        let is_first = worker.id.0 == 0;
        let window = if is_first {
            policy.separate_after
        } else {
            policy.share_after
        };
        if !self.busy_timer.is_over(self.now_ms, window) {
            return worker;
        }
        let times = &worker.common.busy_times;
        times[usize::from(worker.id.0)].publish(self.busy_timer.sleep());
        let all_ns = times.iter().map(BusyTime::nanoseconds).sum();
        let (own, all) = self.busy_timer.end_window(self.now_ms, Duration::from_nanos(all_ns));
        if is_first {
            if own > policy.separate_above {
                self.separate(&mut worker);
            }
            worker
        } else if all < policy.share_below {
            self.move_to_host(worker)
        } else {
            worker
        }
    }

    /// Moves the worker to the host's thread and waits until it returns.
    fn move_to_host(&mut self, worker: Box<NetWorker>) -> Box<NetWorker> {
        let host = worker.mailboxes[0].clone();
        let shared_worker = SharedThreadWorker {
            worker: Some(worker),
            return_slot: self.return_slot.clone(),
            has_events: true,
        };
        self.busy_timer.sleep();
        // If the mailbox is full, the item is dropped, which returns the worker immediately.
        if host.try_send(MailboxItem::SharedThreadWorker(shared_worker)).is_ok() {
            host.wake();
        }
        let worker = self.return_slot.wait();
        self.busy_timer.wake();
        self.now_ms = worker.now.monotonic_ms;
        self.busy_timer.end_window(self.now_ms, Duration::ZERO);
        worker
    }
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    [one, other].into_iter().flatten().min()
}

fn mark_ready(shared_workers: &mut [SharedThreadWorker], shard: usize) {
    for shared_worker in shared_workers {
        shared_worker.has_events |= usize::from(shared_worker.worker().id.0) == shard;
    }
}

impl SharedThreadWorker {
    fn due_ms(&mut self) -> Option<u64> {
        if self.has_events {
            return Some(0);
        }
        self.worker().due_ms()
    }

    /// Runs one tick if there is work.
    fn run_turn(&mut self, events: &mut Events, now_ms: u64) {
        let has_events = self.has_events;
        let worker = self.worker();
        if !has_events && !worker.is_due(now_ms) {
            return;
        }
        // Also without events: the host's poll may be older than the clock by which the worker's deadlines are judged.
        worker.poll(events, Some(Duration::ZERO));
        let may_have_more = events.iter().count() == EVENTS;
        worker.tick(events);
        self.has_events = may_have_more;
    }
}
