//! Which thread runs which worker.
//!
//! Every worker has a thread of its own, and uses it when there is work for more than one core. While all of them together leave a
//! good part of one core idle, the thread of the first runs the others too: they *lodge* with it. Its poll also watches theirs, it
//! ticks those for which something has come, and it sleeps only when all may. A message between clients of two workers then wakes
//! no other thread, and what has come for several is taken in one go. When that thread is busy for some milliseconds,
//! everybody goes home.
//!
//! A lodger is a value, and dropping it sends the worker home to the thread that waits for it. So none can be lost, whatever becomes
//! of the letter in which it travels or of the thread with which it lodges.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Token};

use crate::letter::Letter;
use crate::worker::{FIRST_LODGER, MONOTONIC_START_MS, Worker, millis};

/// Events taken from one poll.
const EVENTS: usize = 1024;

/// When workers share a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrewPolicy {
    /// They move together when all of them were awake for less than this share of one core …
    pub lodge_below: f64,
    /// … in so long.
    pub lodge_after: Duration,
    /// They part when the thread that runs them was awake for more than this share …
    pub part_above: f64,
    /// … of so long.
    pub part_after: Duration,
}

impl Default for CrewPolicy {
    fn default() -> CrewPolicy {
        CrewPolicy {
            lodge_below: 0.6,
            lodge_after: Duration::from_millis(500),
            part_above: 0.85,
            part_after: Duration::from_millis(20),
        }
    }
}

/// How long a thread has been awake; published whenever it goes to sleep and at each decision. On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct AwakeTime {
    nanoseconds: AtomicU64,
}

/// A worker that another thread runs.
pub(crate) struct Lodger {
    worker: Option<Box<Worker>>,
    home: Arc<Home>,
    /// Its poll has something.
    has_events: bool,
}

/// Where a thread waits for its worker.
#[derive(Default)]
struct Home {
    worker: Mutex<Option<Box<Worker>>>,
    is_back: Condvar,
}

impl Home {
    fn wait(&self) -> Box<Worker> {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match worker.take() {
                Some(worker) => return worker,
                None => worker = self.is_back.wait(worker).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Lodger {
    fn worker(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("taken by drop only")
    }
}

impl Drop for Lodger {
    fn drop(&mut self) {
        *self.home.worker.lock().unwrap_or_else(PoisonError::into_inner) = self.worker.take();
        self.home.is_back.notify_one();
    }
}

/// Runs a worker, and those that lodge with it, until it has ended.
pub(crate) fn run(worker: Worker) {
    let mut worker = Box::new(worker);
    let mut crew = Crew::new();
    while !worker.is_done() {
        crew.turn(&mut worker);
        worker = crew.balance(worker);
    }
    crew.part(&mut worker);
    worker.end();
}

/// What one thread runs beside its own worker.
struct Crew {
    lodgers: Vec<Lodger>,
    home: Arc<Home>,
    events: Events,
    lodger_events: Events,
    /// The clock of the latest tick, which costs nothing to look at.
    now_ms: u64,
    watch: Watch,
}

impl Crew {
    fn new() -> Crew {
        Crew {
            lodgers: Vec::new(),
            home: Arc::default(),
            events: Events::with_capacity(EVENTS),
            lodger_events: Events::with_capacity(EVENTS),
            now_ms: 0,
            watch: Watch::new(),
        }
    }

    fn turn(&mut self, host: &mut Worker) {
        self.wait(host);
        self.now_ms = self
            .now_ms
            .max(MONOTONIC_START_MS + millis(self.watch.now - host.common.origin));
        let mut is_host_due = self.lodgers.is_empty() || host.is_due(self.now_ms);
        for event in &self.events {
            match event.token() {
                Token(index) if index >= FIRST_LODGER => note(&mut self.lodgers, index - FIRST_LODGER),
                _ => is_host_due = true,
            }
        }
        if is_host_due {
            host.tick(&self.events);
            self.now_ms = host.now.monotonic_ms;
        }
        let part_after = host.common.config.crew.part_after;
        for lodger in &mut self.lodgers {
            lodger.turn(&mut self.lodger_events, self.now_ms);
            self.now_ms = self.now_ms.max(lodger.worker().now.monotonic_ms);
            // When there is so much to do that they may part, the rest is not kept waiting.
            if self.watch.is_over(self.now_ms, part_after) {
                break;
            }
        }
        self.take_in(host);
    }

    /// Waits until something has come for one of them, if none has anything left to do.
    fn wait(&mut self, host: &mut Worker) {
        let due_ms = self.lodgers.iter_mut().map(Lodger::due_ms).fold(host.due_ms(), sooner);
        // A poll without waiting needs nobody to wake it.
        if due_ms == Some(0) || !self.may_sleep(host) {
            host.poll(&mut self.events, Some(Duration::ZERO));
        } else {
            let awake = self.watch.sleep();
            let common = &host.common;
            common.awake[usize::from(host.id.0)].publish(awake);
            let now_ms = MONOTONIC_START_MS + millis(self.watch.now - common.origin);
            let timeout = due_ms.map(|due_ms| Duration::from_millis(due_ms.saturating_sub(now_ms)));
            host.poll(&mut self.events, timeout);
            self.watch.wake();
        }
        host.mailbox.awake();
        for lodger in &mut self.lodgers {
            lodger.worker().mailbox.awake();
        }
    }

    fn may_sleep(&mut self, host: &mut Worker) -> bool {
        let mut lodgers = self.lodgers.iter_mut();
        host.mailbox.may_sleep() && lodgers.all(|lodger| lodger.worker().mailbox.may_sleep())
    }

    /// Those who have come in this turn. A host that is about to end, or whose poll takes no more, sends them home.
    fn take_in(&mut self, host: &mut Worker) {
        for mut lodger in std::mem::take(&mut host.newcomers) {
            let worker = lodger.worker();
            let token = Token(FIRST_LODGER + usize::from(worker.id.0));
            let fd = worker.poll.as_raw_fd();
            let registered = host
                .poll
                .registry()
                .register(&mut SourceFd(&fd), token, Interest::READABLE);
            if registered.is_ok() && !host.is_stopping() {
                worker.counters.lodgings += 1;
                // What came before it was registered may not be told.
                lodger.has_events = true;
                self.lodgers.push(lodger);
            }
        }
    }

    /// Everybody goes home.
    fn part(&mut self, host: &mut Worker) {
        for mut lodger in self.lodgers.drain(..) {
            let fd = lodger.worker().poll.as_raw_fd();
            // An error would mean that it is not registered, which is what is wanted.
            let _ = host.poll.registry().deregister(&mut SourceFd(&fd));
        }
    }

    /// Decides once in a while whether the crew is to change.
    fn balance(&mut self, mut worker: Box<Worker>) -> Box<Worker> {
        if worker.is_stopping() {
            self.part(&mut worker);
            return worker;
        }
        let policy = worker.common.config.crew;
        let is_first = worker.id.0 == 0;
        let window = if is_first {
            policy.part_after
        } else {
            policy.lodge_after
        };
        if !self.watch.is_over(self.now_ms, window) {
            return worker;
        }
        let times = &worker.common.awake;
        times[usize::from(worker.id.0)].publish(self.watch.sleep());
        let all_ns = times.iter().map(AwakeTime::nanoseconds).sum();
        let (own, all) = self.watch.end_window(self.now_ms, Duration::from_nanos(all_ns));
        if is_first {
            if own > policy.part_above {
                self.part(&mut worker);
            }
            worker
        } else if all < policy.lodge_below {
            self.lodge(worker)
        } else {
            worker
        }
    }

    /// Moves the worker to the first thread and waits until it comes back.
    fn lodge(&mut self, worker: Box<Worker>) -> Box<Worker> {
        let host = worker.addresses[0].clone();
        let lodger = Lodger {
            worker: Some(worker),
            home: self.home.clone(),
            has_events: true,
        };
        self.watch.sleep();
        // A letter that is returned is dropped: the worker is home again.
        if host.offer(Letter::Lodger(lodger)).is_ok() {
            host.ring();
        }
        let worker = self.home.wait();
        self.watch.wake();
        self.now_ms = worker.now.monotonic_ms;
        self.watch.end_window(self.now_ms, Duration::ZERO);
        worker
    }
}

fn sooner(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    [one, other].into_iter().flatten().min()
}

fn note(lodgers: &mut [Lodger], shard: usize) {
    for lodger in lodgers {
        lodger.has_events |= usize::from(lodger.worker().id.0) == shard;
    }
}

impl Lodger {
    fn due_ms(&mut self) -> Option<u64> {
        if self.has_events {
            return Some(0);
        }
        self.worker().due_ms()
    }

    /// A tick, if there is something to do.
    fn turn(&mut self, events: &mut Events, now_ms: u64) {
        let has_events = self.has_events;
        let worker = self.worker();
        if !has_events && !worker.is_due(now_ms) {
            return;
        }
        events.clear();
        if has_events {
            worker.poll(events, Some(Duration::ZERO));
        }
        let may_have_more = events.iter().count() == EVENTS;
        worker.tick(events);
        self.has_events = may_have_more;
    }
}

impl AwakeTime {
    fn publish(&self, time: Duration) {
        self.nanoseconds.store(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Relaxed)
    }
}

/// How long this thread has been awake, since its start and in the current window.
struct Watch {
    /// When it last looked: at falling asleep and at waking.
    now: Instant,
    /// Until then.
    awake: Duration,
    window: Window,
}

struct Window {
    since: Instant,
    since_ms: u64,
    awake: Duration,
    /// All threads.
    awake_all: Duration,
}

impl Watch {
    fn new() -> Watch {
        let now = Instant::now();
        Watch {
            now,
            awake: Duration::ZERO,
            window: Window {
                since: now,
                since_ms: 0,
                awake: Duration::ZERO,
                awake_all: Duration::ZERO,
            },
        }
    }

    /// Adds the time since it woke or last looked.
    fn sleep(&mut self) -> Duration {
        let now = Instant::now();
        self.awake += now - self.now;
        self.now = now;
        self.awake
    }

    fn wake(&mut self) {
        self.now = Instant::now();
    }

    fn is_over(&self, now_ms: u64, window: Duration) -> bool {
        now_ms.saturating_sub(self.window.since_ms) >= millis(window)
    }

    /// Begins another window. Returns how long this thread was awake in the one before, and how long all of them, as shares of one
    /// core.
    fn end_window(&mut self, now_ms: u64, awake_all: Duration) -> (f64, f64) {
        let window = Window {
            since: self.now,
            since_ms: now_ms,
            awake: self.awake,
            awake_all,
        };
        let before = std::mem::replace(&mut self.window, window);
        let seconds = (self.now - before.since).as_secs_f64();
        let share = |awake: Duration, before: Duration| awake.saturating_sub(before).as_secs_f64() / seconds;
        (share(self.awake, before.awake), share(awake_all, before.awake_all))
    }
}
