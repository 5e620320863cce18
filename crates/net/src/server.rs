//! Starts and stops the workers, and provides access for everything that is not a socket: the API, metrics, the signal
//! handler.
//!
//! A `ServerHandle` never accesses a shard; it sends closures to the worker that owns it. Nothing here is on the data
//! plane.

use std::fmt;
use std::io;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::atomic::{AtomicU16, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use broker::durable::restore::RestoreCounts;
use broker::inbox::Inbox;
use broker::interest::SHARDS_MAX;
use broker::tap::Tap;
use broker::{AccessControl, NodeState, Now, Shard, ShardConfig, ShardId};

use crate::address_rates::AddressRates;
use crate::auth_pool::{self, Authenticator};
use crate::busy_time::BusyTime;
use crate::clock::ServerClock;
use crate::config::ServerConfig;
use crate::counters::{NetCounters, PublishedCounters};
use crate::descriptors::SpareDescriptor;
use crate::early_close::{EarlyClose, EarlyCloses};
use crate::fair_queue::QueueLimits;
use crate::journal::RestartState;
use crate::latency;
use crate::listener::{self, BindError, ListenerInfo, SharedListener};
use crate::mailbox::{MailboxSender, UnsentItem};
use crate::mailbox_item::{self, MailboxItem};
use crate::memory_pool::MemoryPool;
use crate::node_journal::{JournalLimits, NodeJournal};
use crate::observer::ConnectionObserver;
use crate::reply::{CallError, Reply, reply};
use crate::server_common::ServerCommon;
use crate::thread_sharing;
use crate::worker::{NetWorker, WorkerResources, seed_of};

/// Why the server did not start. No thread is left running.
#[derive(Debug)]
pub enum StartError {
    Bind(Vec<BindError>),
    /// A TLS listener without a certificate.
    TlsMissing {
        listener: Box<str>,
    },
    /// A thread, a poll or a duplicate of a listening socket could not be created.
    Resources(io::Error),
    /// A message could not be read from the journal.
    Unreadable(journal::ReadError),
}

impl StartError {
    /// Returns whether another process uses a port of a listener.
    pub fn is_port_in_use(&self) -> bool {
        match self {
            StartError::Bind(errors) => errors
                .iter()
                .any(|error| error.source.kind() == io::ErrorKind::AddrInUse),
            _ => false,
        }
    }
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
            StartError::TlsMissing { listener } => write!(f, "listener {listener} uses TLS but has no certificate"),
            StartError::Unreadable(_) => f.write_str("cannot read a message from the journal; nothing was discarded"),
            StartError::Resources(_) => f.write_str("cannot create threads or file descriptors for the workers"),
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

pub struct Server;

/// A server with bound ports, whose workers are not started yet. Clients can already connect, and wait.
pub struct PreparedServer {
    handle: ServerHandle,
    worker_resources: Vec<WorkerResources>,
    authenticator: Arc<dyn Authenticator>,
}

impl Server {
    /// Binds every listener, then starts the workers. Connections are accepted when this returns.
    pub fn start(
        config: ServerConfig,
        shard_config: Arc<ShardConfig>,
        access: Arc<dyn AccessControl>,
        authenticator: Arc<dyn Authenticator>,
        observer: Arc<dyn ConnectionObserver>,
        restart: Option<RestartState>,
    ) -> Result<ServerHandle, StartError> {
        let prepared = Self::prepare(config, shard_config, access, authenticator, observer)?;
        let handle = prepared.handle();
        prepared.start(restart, Vec::new())?;
        Ok(handle)
    }

    /// Binds every listener. The caller may do other work before it starts the workers.
    pub fn prepare(
        mut config: ServerConfig,
        shard_config: Arc<ShardConfig>,
        access: Arc<dyn AccessControl>,
        authenticator: Arc<dyn Authenticator>,
        observer: Arc<dyn ConnectionObserver>,
    ) -> Result<PreparedServer, StartError> {
        let listeners = std::mem::take(&mut config.listeners);
        if let Some(listener) = listeners
            .iter()
            .find(|listener| listener.has_certificate() && listener.tls.is_none())
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
        // After all listeners with a socket, so that those have the same index in both lists.
        listeners.extend(handed_over.map(|config| SharedListener::new(config, None)));
        let shards = config.workers.map_or_else(default_workers, within_shards_max);
        let common = Arc::new(ServerCommon {
            shards,
            listeners,
            connections: AtomicUsize::new(0),
            address_rates: config.max_connection_rate_per_address.map(AddressRates::new),
            early_closes: EarlyCloses::new(),
            spare_descriptor: SpareDescriptor::new(),
            packet_memory: MemoryPool::new(config.max_incomplete_packets),
            quic_windows: MemoryPool::new(config.max_quic_windows),
            stopping_workers: AtomicU16::new(0),
            unsent_bytes: AtomicUsize::new(0),
            counters: (0..shards).map(|_| PublishedCounters::default()).collect(),
            ack_latency_us: (0..shards).map(|_| latency::histogram()).collect(),
            busy_times: (0..shards).map(|_| BusyTime::default()).collect(),
            shard_config,
            access,
            node: Arc::new(NodeState::new(shards, config.seed)),
            clock: ServerClock::start(),
            observer,
            node_journal: Arc::new(NodeJournal::new(shards)),
            config,
        });
        let worker_resources = (0..shards)
            .map(|id| WorkerResources::new(ShardId(id), &sockets, &common))
            .collect::<io::Result<Vec<_>>>()
            .map_err(StartError::Resources)?;
        let inner = Arc::new(ServerInner {
            common,
            workers: worker_resources
                .iter()
                .map(|resources| resources.address.clone())
                .collect(),
            threads: Mutex::default(),
        });
        Ok(PreparedServer {
            handle: ServerHandle { inner },
            worker_resources,
            authenticator,
        })
    }
}

/// The components behind a shard that receive messages.
pub struct ShardTaps {
    pub tap: Box<dyn Tap>,
    pub inbox: Option<Box<dyn Inbox>>,
}

impl PreparedServer {
    /// Returns a handle. Calls to shards are answered after the workers have started.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Restores the state of the previous process, and starts the workers, with their taps if there are any. After an
    /// error no thread is left running.
    pub fn start(self, restart: Option<RestartState>, taps: Vec<ShardTaps>) -> Result<RestoreCounts, StartError> {
        let ServerInner { common, workers, .. } = &*self.handle.inner;
        let mut shards = new_shards(common);
        let mut restored = RestoreCounts::default();
        if let Some(restart) = restart {
            let limits = JournalLimits {
                quota_bytes: restart.quota_bytes,
                segment_bytes: restart.segment_bytes,
            };
            let (log, all) = restart.restore(common, &mut shards).map_err(StartError::Unreadable)?;
            let workers = workers.clone();
            let wake_worker = move |worker: usize| mailbox_item::wake_for_commit(&workers[worker]);
            common
                .node_journal
                .start(log, limits, wake_worker, common.observer.clone())
                .map_err(StartError::Resources)?;
            restored = all;
        }
        for (shard, ShardTaps { tap, inbox }) in shards.iter_mut().zip(taps) {
            shard.set_tap(tap);
            if let Some(inbox) = inbox {
                shard.set_inbox(inbox);
            }
        }
        let worker_resources = self.worker_resources.into_iter().zip(shards).collect();
        start_threads(&self.handle, worker_resources, self.authenticator).map_err(StartError::Resources)?;
        Ok(restored)
    }
}

/// Returns one worker per core available to the process, at most the maximum number of shards.
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

fn new_shards(common: &ServerCommon) -> Vec<Shard> {
    let now = common.clock.now();
    let new = |id| {
        Shard::new(
            now,
            ShardId(id),
            common.shard_config.clone(),
            common.access.clone(),
            common.node.clone(),
            seed_of(common.config.seed, ShardId(id)),
        )
    };
    (0..common.shards).map(new).collect()
}

fn start_threads(
    handle: &ServerHandle,
    worker_resources: Vec<(WorkerResources, Shard)>,
    authenticator: Arc<dyn Authenticator>,
) -> io::Result<()> {
    let ServerInner { common, workers, .. } = &*handle.inner;
    let auth_threads = common
        .config
        .auth_threads
        .map_or_else(|| cores().get().min(4), NonZeroU16::get);
    let queue_limits = QueueLimits {
        jobs: common.config.auth_queue_max.max(1),
        bytes: common.config.auth_queue_bytes_max,
    };
    let (auth, auth_threads) = auth_pool::start(authenticator, auth_threads.into(), queue_limits)?;
    handle.inner.lock_threads().auth = auth_threads;
    for (resources, shard) in worker_resources {
        let (common, auth, mailboxes) = (common.clone(), auth.clone(), workers.clone());
        let name = format!("worker-{}", resources.id.0);
        let started = thread::Builder::new()
            .name(name)
            .spawn(move || thread_sharing::run(NetWorker::new(resources, shard, common, auth, mailboxes)));
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

/// Snapshot of the journal's state.
#[derive(Clone, Debug)]
pub struct JournalView {
    pub stats: journal::LogStats,
    pub state: journal::LogState,
    /// Bytes that are appended and not yet committed.
    pub backlog_bytes: usize,
    pub commit_latency_us: journal::HistogramCounts,
    pub commit_bytes: journal::HistogramCounts,
}

/// Handle of the running server. Cheap to clone. Dropping the last clone does not stop the server; use `shutdown`.
#[derive(Clone)]
pub struct ServerHandle {
    inner: Arc<ServerInner>,
}

struct ServerInner {
    common: Arc<ServerCommon>,
    workers: Vec<MailboxSender<MailboxItem>>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    workers: Vec<JoinHandle<()>>,
    /// These stop by themselves after the last worker.
    auth: Vec<JoinHandle<()>>,
}

impl ServerInner {
    fn lock_threads(&self) -> std::sync::MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Interval at which a thread retries to send to a full mailbox.
const RETRY: Duration = Duration::from_millis(1);

/// Maximum time that `shutdown` and `reload_tls` wait for space in a mailbox.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(2);

impl ServerHandle {
    pub fn shards(&self) -> u16 {
        self.inner.common.shards
    }

    /// Wakes the workers that wait for a tap, because it may have persisted something. Cheap if none waits.
    pub fn wake_tap_waiters(&self) {
        let wake_worker = |worker: usize| mailbox_item::wake_for_commit(&self.inner.workers[worker]);
        self.inner.common.node_journal.wake(wake_worker);
    }

    /// Runs `f` on the shard's thread, between two batches of packets, and waits for its result. `f` must not block.
    pub fn call<R: Send + 'static>(
        &self,
        shard: ShardId,
        timeout: Duration,
        f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static,
    ) -> Result<R, CallError> {
        let deadline = Instant::now() + timeout;
        let (item, reply) = shard_call(f);
        self.post(shard, item, deadline)?;
        reply.wait(deadline.saturating_duration_since(Instant::now()))
    }

    /// As `call`, for callers that must not block: returns a future for any runtime.
    pub fn call_async<R: Send + 'static>(
        &self,
        shard: ShardId,
        f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static,
    ) -> Result<Reply<R>, CallError> {
        let (item, reply) = shard_call(f);
        self.post(shard, item, Instant::now())?;
        Ok(reply)
    }

    /// Runs `f` on all shards concurrently. Returns the results in the order of the shards.
    pub fn call_all<R: Send + 'static>(
        &self,
        timeout: Duration,
        f: impl Fn(&mut Shard, Now) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, CallError> {
        let deadline = Instant::now() + timeout;
        let replies = self.call_all_async_until(deadline, f)?;
        replies
            .into_iter()
            .map(|reply| reply.wait(deadline.saturating_duration_since(Instant::now())))
            .collect()
    }

    /// As `call_all`, for callers that must not block.
    pub fn call_all_async<R: Send + 'static>(
        &self,
        f: impl Fn(&mut Shard, Now) -> R + Send + Sync + 'static,
    ) -> Result<Vec<Reply<R>>, CallError> {
        self.call_all_async_until(Instant::now(), f)
    }

    fn call_all_async_until<R: Send + 'static>(
        &self,
        deadline: Instant,
        f: impl Fn(&mut Shard, Now) -> R + Send + Sync + 'static,
    ) -> Result<Vec<Reply<R>>, CallError> {
        let f = Arc::new(f);
        (0..self.shards())
            .map(|shard| {
                let f = f.clone();
                let (item, reply) = shard_call(move |shard: &mut Shard, now| f(shard, now));
                self.post(ShardId(shard), item, deadline)?;
                Ok(reply)
            })
            .collect()
    }

    pub fn listeners(&self) -> Vec<ListenerInfo> {
        self.inner.common.listeners.iter().map(SharedListener::info).collect()
    }

    /// Returns the latest connections that ended before CONNECT, newest first.
    pub fn early_closes(&self, limit: usize) -> Vec<EarlyClose> {
        self.inner.common.early_closes.newest(limit)
    }

    /// Returns the number of connections for which the process has file descriptors. `None` if that is not the limit.
    pub fn descriptor_limit(&self) -> Option<usize> {
        let config = &self.inner.common.config;
        (config.descriptor_limit < config.max_connections).then_some(config.descriptor_limit)
    }

    /// Returns the sum over all workers, at most one tick old.
    pub fn counters(&self) -> NetCounters {
        let mut sum = NetCounters::default();
        for counters in &self.inner.common.counters {
            counters.add_to(&mut sum);
        }
        sum
    }

    /// Returns the time that publishers of QoS 1 and 2 waited for their acknowledgements, in microseconds.
    pub fn publish_ack_us(&self) -> journal::HistogramCounts {
        let workers = self.inner.common.ack_latency_us.iter();
        let none = latency::histogram().counts();
        workers.fold(none, |sum, own| sum.and(&own.counts()))
    }

    /// Returns the state of the journal. `None` without a journal.
    pub fn journal(&self) -> Option<JournalView> {
        let journal = self.inner.common.node_journal.journal()?;
        Some(JournalView {
            stats: journal.stats(),
            state: journal.state(),
            backlog_bytes: journal.backlog_bytes(),
            commit_latency_us: journal.commit_latency_us(),
            commit_bytes: journal.commit_bytes(),
        })
    }

    /// Returns a reader of the journal for threads that may wait for the disk.
    pub fn journal_reader(&self) -> Option<journal::LogReader> {
        Some(self.inner.common.node_journal.journal()?.reader())
    }

    /// Returns the number of connections of all listeners, including those in their handshake.
    pub fn connections(&self) -> usize {
        self.inner.common.connections.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the bytes by which the windows of all QUIC connections are larger than at their start.
    pub fn quic_window_bytes(&self) -> usize {
        self.inner.common.quic_windows.used()
    }

    /// Replaces certificate, key and client CAs for connections accepted from now on. `listener` is the index in the
    /// configuration.
    pub fn reload_tls(&self, listener: u16, config: Arc<rustls::ServerConfig>) -> Result<(), CallError> {
        let deadline = Instant::now() + CONTROL_TIMEOUT;
        for shard in 0..self.shards() {
            self.post(
                ShardId(shard),
                MailboxItem::ReloadTls {
                    listener,
                    config: config.clone(),
                },
                deadline,
            )?;
        }
        Ok(())
    }

    /// Stops accepting, sends DISCONNECT 0x8B to every client, writes queued output and stops the threads. Takes at
    /// most `grace` plus a few milliseconds. Later calls return immediately.
    pub fn shutdown(&self, grace: Duration) {
        let threads = std::mem::take(&mut *self.inner.lock_threads());
        let deadline = Instant::now() + grace;
        for shard in 0..self.shards() {
            // A worker that has already stopped is fine.
            let _ = self.post(
                ShardId(shard),
                MailboxItem::ShutDown { deadline },
                Instant::now() + CONTROL_TIMEOUT,
            );
        }
        for thread in threads.workers {
            // A panic of a worker has already been reported.
            let _ = thread.join();
        }
        self.inner.common.node_journal.stop();
        for thread in threads.auth {
            // Do not wait for a thread that is blocked in a remote service: it holds no state.
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(RETRY);
            }
        }
    }

    pub(crate) fn common(&self) -> &Arc<ServerCommon> {
        &self.inner.common
    }

    pub(crate) fn post(&self, shard: ShardId, mut item: MailboxItem, deadline: Instant) -> Result<(), CallError> {
        let mailbox = self
            .inner
            .workers
            .get(usize::from(shard.0))
            .ok_or(CallError::NoSuchShard)?;
        loop {
            match mailbox.try_send(item) {
                Ok(()) => {
                    mailbox.wake();
                    return Ok(());
                }
                Err(UnsentItem::Closed(_)) => return Err(CallError::Stopped),
                Err(UnsentItem::Full(_)) if Instant::now() >= deadline => return Err(CallError::Timeout),
                Err(UnsentItem::Full(back)) => item = back,
            }
            thread::sleep(RETRY);
        }
    }
}

fn shard_call<R: Send + 'static>(f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static) -> (MailboxItem, Reply<R>) {
    let (replier, reply) = reply();
    (
        MailboxItem::Call(Box::new(move |shard, now| replier.answer(f(shard, now)))),
        reply,
    )
}
