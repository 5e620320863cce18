//! Starting and stopping the workers, and the way in for everything that is not a socket: the API, metrics, the signal handler.
//!
//! A `Handle` never touches a shard; it sends closures to the worker that owns it. Nothing here is on the data plane.

use std::fmt;
use std::io;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use broker::durable::restore::Restored;
use broker::interest::SHARDS_MAX;
use broker::tap::Tap;
use broker::{Access, Event, NodeState, Now, Shard, ShardConfig, ShardId};

use crate::auth_pool::{self, Authenticator};
use crate::config::ServerConfig;
use crate::counters::{NetCounters, PublishedCounters};
use crate::crew::{self, AwakeTime};
use crate::journal::{Keeper, Limits, Restart};
use crate::latency;
use crate::letter::Letter;
use crate::listener::{self, BindError, Listener, ListenerInfo};
use crate::mailbox::{Address, Returned};
use crate::reply::{CallError, Reply, reply};
use crate::worker::{Clock, Worker, WorkerSeat, seed_of};

/// Sees every event of every shard. Called on the worker's thread: must not block.
pub trait Observer: Send + Sync {
    /// `is_wanted`: somebody may have subscribed to the topics of `$SYS` that tell of clients coming and going.
    fn event(&self, event: &Event, is_wanted: bool);

    /// The journal has got into another state. Called on its own thread: the next commit waits for it.
    fn journal_state(&self, _state: &journal::State) {}

    /// The journal could not do something and goes on: what, and why. Called on a thread of its own.
    fn journal_error(&self, _what: &'static str, _error: &dyn std::error::Error) {}
}

/// Why the server did not start. Nothing is left running.
#[derive(Debug)]
pub enum StartError {
    Bind(Vec<BindError>),
    /// A TLS listener without a certificate.
    TlsMissing {
        listener: Box<str>,
    },
    /// A thread, a poll or a duplicate of a listening socket could not be had.
    Resources(io::Error),
    /// The disk does not give back what the journal has.
    Unreadable(journal::ReadError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind(errors) => {
                for (index, error) in errors.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(f, "{separator}{error}")?;
                }
                Ok(())
            }
            StartError::TlsMissing { listener } => write!(f, "listener {listener} speaks TLS but has no certificate"),
            StartError::Unreadable(_) => {
                f.write_str("a message of the journal cannot be read now; nothing has been given up")
            }
            StartError::Resources(_) => f.write_str("the system has no threads or file descriptors for the workers"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Resources(source) => Some(source),
            StartError::Unreadable(source) => Some(source),
            _ => None,
        }
    }
}

/// What all workers share; nothing in it is touched per packet.
pub(crate) struct Common {
    pub(crate) config: ServerConfig,
    pub(crate) shards: u16,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) connections: AtomicUsize,
    /// In letters that all workers hold back.
    pub(crate) held_bytes: AtomicUsize,
    pub(crate) counters: Vec<PublishedCounters>,
    /// By worker.
    pub(crate) ack_latency_us: Vec<journal::Histogram>,
    /// Of the workers' threads.
    pub(crate) awake: Vec<AwakeTime>,
    pub(crate) shard_config: Arc<ShardConfig>,
    pub(crate) access: Arc<dyn Access>,
    pub(crate) node: Arc<NodeState>,
    /// Zero of the monotonic clock.
    pub(crate) origin: Instant,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) keeper: Arc<Keeper>,
}

pub struct Server;

/// A server with its ports, whose workers have yet to start: clients may connect and wait.
pub struct Prepared {
    handle: Handle,
    seats: Vec<WorkerSeat>,
    authenticator: Arc<dyn Authenticator>,
}

impl Server {
    /// Binds every listener, then starts the workers. Connections are accepted when this returns.
    pub fn start(
        config: ServerConfig,
        shard_config: Arc<ShardConfig>,
        access: Arc<dyn Access>,
        authenticator: Arc<dyn Authenticator>,
        observer: Arc<dyn Observer>,
        restart: Option<Restart>,
    ) -> Result<Handle, StartError> {
        let prepared = Self::prepare(config, shard_config, access, authenticator, observer)?;
        let handle = prepared.handle();
        prepared.start(restart, Vec::new())?;
        Ok(handle)
    }

    /// Binds every listener. There may be much to do before the workers can start.
    pub fn prepare(
        mut config: ServerConfig,
        shard_config: Arc<ShardConfig>,
        access: Arc<dyn Access>,
        authenticator: Arc<dyn Authenticator>,
        observer: Arc<dyn Observer>,
    ) -> Result<Prepared, StartError> {
        let listeners = std::mem::take(&mut config.listeners);
        if let Some(listener) = listeners
            .iter()
            .find(|listener| listener.is_tls() && listener.tls.is_none())
        {
            return Err(StartError::TlsMissing {
                listener: listener.name.clone(),
            });
        }
        let handed_over = config.handed_over.take();
        let (mut listeners, sockets): (Vec<_>, Vec<_>) = listener::bind_all(listeners, config.tcp_keep_alive)
            .map_err(StartError::Bind)?
            .into_iter()
            .unzip();
        // Behind all that have a socket, so that these have the same index in both lists.
        listeners.extend(handed_over.map(|config| Listener::new(config, None)));
        let shards = config.workers.map_or_else(default_workers, within_shards_max);
        let common = Arc::new(Common {
            shards,
            listeners,
            connections: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            counters: (0..shards).map(|_| PublishedCounters::default()).collect(),
            ack_latency_us: (0..shards).map(|_| latency::histogram()).collect(),
            awake: (0..shards).map(|_| AwakeTime::default()).collect(),
            shard_config,
            access,
            node: Arc::new(NodeState::new(shards, config.seed)),
            origin: Instant::now(),
            observer,
            keeper: Arc::new(Keeper::new(shards)),
            config,
        });
        let seats = (0..shards)
            .map(|id| WorkerSeat::new(ShardId(id), &sockets))
            .collect::<io::Result<Vec<_>>>()
            .map_err(StartError::Resources)?;
        let inner = Arc::new(Inner {
            common,
            workers: seats.iter().map(|seat| seat.address.clone()).collect(),
            threads: Mutex::default(),
        });
        Ok(Prepared {
            handle: Handle { inner },
            seats,
            authenticator,
        })
    }
}

impl Prepared {
    /// Questions to shards are answered once the workers have started.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Restores what the process before left, and starts the workers with their taps, if there are any. Nothing is left running
    /// after an error.
    pub fn start(self, restart: Option<Restart>, taps: Vec<Box<dyn Tap>>) -> Result<Restored, StartError> {
        let Inner { common, workers, .. } = &*self.handle.inner;
        let mut shards = new_shards(common);
        let mut restored = Restored::default();
        if let Some(restart) = restart {
            let limits = Limits {
                quota_bytes: restart.quota_bytes,
                segment_bytes: restart.segment_bytes,
            };
            let (log, all) = restart.restore(common, &mut shards).map_err(StartError::Unreadable)?;
            common
                .keeper
                .start(log, limits, workers.clone(), common.observer.clone())
                .map_err(StartError::Resources)?;
            restored = all;
        }
        for (shard, tap) in shards.iter_mut().zip(taps) {
            shard.set_tap(tap);
        }
        let seats = self.seats.into_iter().zip(shards).collect();
        start_threads(&self.handle, seats, self.authenticator).map_err(StartError::Resources)?;
        Ok(restored)
    }
}

/// One per core that the process may use, as far as there can be so many shards.
pub fn default_workers() -> u16 {
    within_shards_max(cores())
}

fn within_shards_max(workers: NonZeroU16) -> u16 {
    workers.get().min(SHARDS_MAX as u16)
}

fn cores() -> NonZeroU16 {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroU16::new(u16::try_from(cores).unwrap_or(u16::MAX)).unwrap_or(NonZeroU16::MIN)
}

fn new_shards(common: &Common) -> Vec<Shard> {
    let now = Clock { origin: common.origin }.now();
    let new = |id| {
        Shard::new(
            now,
            ShardId(id),
            common.shards,
            common.shard_config.clone(),
            common.access.clone(),
            common.node.clone(),
            seed_of(common.config.seed, ShardId(id)),
        )
    };
    (0..common.shards).map(new).collect()
}

fn start_threads(
    handle: &Handle,
    seats: Vec<(WorkerSeat, Shard)>,
    authenticator: Arc<dyn Authenticator>,
) -> io::Result<()> {
    let Inner { common, workers, .. } = &*handle.inner;
    let auth_threads = common
        .config
        .auth_threads
        .map_or_else(|| cores().get().min(4), NonZeroU16::get);
    let (auth, auth_threads) = auth_pool::start(authenticator, auth_threads.into(), common.config.auth_queue_max)?;
    handle.inner.lock_threads().auth = auth_threads;
    for (seat, shard) in seats {
        let (common, auth, addresses) = (common.clone(), auth.clone(), workers.clone());
        let name = format!("worker-{}", seat.id.0);
        let started = thread::Builder::new()
            .name(name)
            .spawn(move || crew::run(Worker::new(seat, shard, common, auth, addresses)));
        match started {
            Ok(thread) => handle.inner.lock_threads().workers.push(thread),
            Err(error) => {
                handle.shutdown(Duration::ZERO);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// The journal as it was at one time.
#[derive(Clone, Debug)]
pub struct JournalView {
    pub stats: journal::LogStats,
    pub state: journal::State,
    /// Appended and not yet committed.
    pub backlog_bytes: usize,
    pub commit_latency_us: journal::HistogramCounts,
    pub commit_bytes: journal::HistogramCounts,
}

/// The running server. Cloning is cheap. Dropping the last one does not stop the server, `shutdown` does.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

struct Inner {
    common: Arc<Common>,
    workers: Vec<Address<Letter>>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    workers: Vec<JoinHandle<()>>,
    /// End by themselves when the last worker has gone.
    auth: Vec<JoinHandle<()>>,
}

impl Inner {
    fn lock_threads(&self) -> std::sync::MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often a thread that waits for space in a mailbox looks again.
const RETRY: Duration = Duration::from_millis(1);

/// How long `shutdown` and `reload_tls` wait for space in a mailbox.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(2);

impl Handle {
    pub fn shards(&self) -> u16 {
        self.inner.common.shards
    }

    /// Something that taps had to keep may be kept: wakes the workers that wait for it. Cheap when none does.
    pub fn wake_waiting(&self) {
        self.inner.common.keeper.wake(&self.inner.workers);
    }

    /// Runs `f` on the shard's own thread, between two batches of packets, and waits for its result. `f` must not block.
    pub fn call<R: Send + 'static>(
        &self,
        shard: ShardId,
        timeout: Duration,
        f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static,
    ) -> Result<R, CallError> {
        let deadline = Instant::now() + timeout;
        let (letter, reply) = question(f);
        self.post(shard, letter, deadline)?;
        reply.wait(deadline.saturating_duration_since(Instant::now()))
    }

    /// As `call`, for callers that must not wait: the answer is a future (of no particular runtime).
    pub fn ask<R: Send + 'static>(
        &self,
        shard: ShardId,
        f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static,
    ) -> Result<Reply<R>, CallError> {
        let (letter, reply) = question(f);
        self.post(shard, letter, Instant::now())?;
        Ok(reply)
    }

    /// Runs `f` on every shard, all at the same time; results in the order of the shards.
    pub fn call_all<R: Send + 'static>(
        &self,
        timeout: Duration,
        f: impl Fn(&mut Shard, Now) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, CallError> {
        let deadline = Instant::now() + timeout;
        let replies = self.ask_all_until(deadline, f)?;
        replies
            .into_iter()
            .map(|reply| reply.wait(deadline.saturating_duration_since(Instant::now())))
            .collect()
    }

    /// As `call_all`, for callers that must not wait.
    pub fn ask_all<R: Send + 'static>(
        &self,
        f: impl Fn(&mut Shard, Now) -> R + Send + Sync + 'static,
    ) -> Result<Vec<Reply<R>>, CallError> {
        self.ask_all_until(Instant::now(), f)
    }

    fn ask_all_until<R: Send + 'static>(
        &self,
        deadline: Instant,
        f: impl Fn(&mut Shard, Now) -> R + Send + Sync + 'static,
    ) -> Result<Vec<Reply<R>>, CallError> {
        let f = Arc::new(f);
        (0..self.shards())
            .map(|shard| {
                let f = f.clone();
                let (letter, reply) = question(move |shard: &mut Shard, now| f(shard, now));
                self.post(ShardId(shard), letter, deadline)?;
                Ok(reply)
            })
            .collect()
    }

    pub fn listeners(&self) -> Vec<ListenerInfo> {
        self.inner.common.listeners.iter().map(Listener::info).collect()
    }

    /// Sum over all workers, at most one tick old.
    pub fn counters(&self) -> NetCounters {
        let mut sum = NetCounters::default();
        for counters in &self.inner.common.counters {
            counters.add_to(&mut sum);
        }
        sum
    }

    /// How long publishers of QoS 1 and 2 waited for their acknowledgements, in microseconds.
    pub fn publish_ack_us(&self) -> journal::HistogramCounts {
        let workers = self.inner.common.ack_latency_us.iter();
        let none = latency::histogram().counts();
        workers.fold(none, |sum, own| sum.and(&own.counts()))
    }

    /// How the journal does, where there is one.
    pub fn journal(&self) -> Option<JournalView> {
        let journal = self.inner.common.keeper.journal()?;
        Some(JournalView {
            stats: journal.stats(),
            state: journal.state(),
            backlog_bytes: journal.backlog_bytes(),
            commit_latency_us: journal.commit_latency_us(),
            commit_bytes: journal.commit_bytes(),
        })
    }

    /// Reads what is in the journal, from any thread that may wait for a disk.
    pub fn journal_reader(&self) -> Option<journal::LogReader> {
        Some(self.inner.common.keeper.journal()?.reader())
    }

    /// Connections of all listeners, those in their handshake included.
    pub fn connections(&self) -> usize {
        self.inner.common.connections.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Certificate, key and client authorities for connections accepted from now on; `listener` is its index in the configuration.
    pub fn reload_tls(&self, listener: u16, config: Arc<rustls::ServerConfig>) -> Result<(), CallError> {
        let deadline = Instant::now() + CONTROL_TIMEOUT;
        for shard in 0..self.shards() {
            self.post(
                ShardId(shard),
                Letter::ReloadTls {
                    listener,
                    config: config.clone(),
                },
                deadline,
            )?;
        }
        Ok(())
    }

    /// Stops accepting, tells every client (DISCONNECT 0x8B), writes out what is queued and ends the threads. Takes at most
    /// `grace` and some milliseconds. Later calls return at once.
    pub fn shutdown(&self, grace: Duration) {
        let threads = std::mem::take(&mut *self.inner.lock_threads());
        let deadline = Instant::now() + grace;
        for shard in 0..self.shards() {
            // A worker that is gone already is what is wanted.
            let _ = self.post(
                ShardId(shard),
                Letter::ShutDown { deadline },
                Instant::now() + CONTROL_TIMEOUT,
            );
        }
        for thread in threads.workers {
            // A worker that panicked has said so on its own.
            let _ = thread.join();
        }
        self.inner.common.keeper.stop();
        for thread in threads.auth {
            // One that waits for a remote service is not waited for: it holds nothing.
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(RETRY);
            }
        }
    }

    pub(crate) fn common(&self) -> &Arc<Common> {
        &self.inner.common
    }

    pub(crate) fn post(&self, shard: ShardId, mut letter: Letter, deadline: Instant) -> Result<(), CallError> {
        let address = self
            .inner
            .workers
            .get(usize::from(shard.0))
            .ok_or(CallError::NoSuchShard)?;
        loop {
            match address.offer(letter) {
                Ok(()) => {
                    address.ring();
                    return Ok(());
                }
                Err(Returned::Gone(_)) => return Err(CallError::Stopped),
                Err(Returned::Full(_)) if Instant::now() >= deadline => return Err(CallError::Timeout),
                Err(Returned::Full(back)) => letter = back,
            }
            thread::sleep(RETRY);
        }
    }
}

fn question<R: Send + 'static>(f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static) -> (Letter, Reply<R>) {
    let (replier, reply) = reply();
    (
        Letter::Call(Box::new(move |shard, now| replier.answer(f(shard, now)))),
        reply,
    )
}
