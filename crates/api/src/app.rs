//! What every endpoint can reach. One per `start`; cloning is one reference count.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use tokio::sync::Semaphore;

use crate::access_admin::AccessAdmin;
use crate::admins::Admins;
use crate::alarms::Alarms;
use crate::api_keys::ApiKeys;
use crate::audit::Audit;
use crate::config::{ApiConfig, ConfigValue, NodeInfo};
use crate::disk::DiskView;
use crate::history::History;
use crate::login_limiter::LoginLimiter;
use crate::logins::Logins;
use crate::thingsboard::World;

/// Password hashes computed at the same time; each takes 19 MiB and a core for tens of milliseconds.
const HASHES_AT_ONCE: usize = 2;

/// WebSockets at the same time: they are no requests, and last.
const VIEWERS_MAX: usize = 32;

/// Archives that are sent at the same time; each has a thread.
const DOWNLOADS_MAX: usize = 2;

/// Of the data directory.
const API_KEYS_FILE: &str = "api-keys.json";

#[derive(Clone)]
pub struct App {
    inner: Arc<Inner>,
}

struct Inner {
    config: ApiConfig,
    net: net::Handle,
    access: Arc<dyn AccessAdmin>,
    admins: Admins,
    api_keys: ApiKeys,
    audit: Audit,
    node: NodeInfo,
    logins: Logins,
    login_limiter: LoginLimiter,
    hashing: Semaphore,
    requests: Semaphore,
    viewers: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    /// Changes of users and rules, one after the other.
    changes: tokio::sync::Mutex<()>,
    readiness: Readiness,
    counters: ApiCounters,
    alarms: Alarms,
    history: History,
    /// Replaced as a whole when it is reloaded.
    configuration: Mutex<Arc<Vec<ConfigValue>>>,
    openapi: OnceLock<Bytes>,
}

/// What the HTTP side counts of itself.
#[derive(Debug, Default)]
pub struct ApiCounters {
    pub connections: AtomicU64,
    pub connections_refused: AtomicU64,
    pub requests: AtomicU64,
    pub requests_refused: AtomicU64,
    /// Answers by the first digit of their status: index 2 to 5.
    pub answers: [AtomicU64; 6],
    pub logins: AtomicU64,
    pub logins_failed: AtomicU64,
    pub logins_limited: AtomicU64,
    /// Now.
    pub open_connections: AtomicU64,
}

impl ApiCounters {
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether traffic should come here.
#[derive(Debug, Default)]
pub struct Readiness {
    is_started: AtomicBool,
    is_stopping: AtomicBool,
    /// How much of the journal has been read, in percent, while that is being read.
    journal_percent: AtomicU8,
}

impl Readiness {
    pub fn started(&self) {
        self.is_started.store(true, Ordering::Release);
    }

    pub fn stopping(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub fn reading_journal(&self, percent: u8) {
        self.journal_percent.store(percent, Ordering::Release);
    }

    pub fn is_started(&self) -> bool {
        self.is_started.load(Ordering::Acquire)
    }

    /// Why not, if not.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if !self.is_started() {
            reasons.push(match self.journal_percent.load(Ordering::Acquire) {
                0 => "the server is starting".to_owned(),
                percent => format!("the server is starting: {percent} % of the journal have been read"),
            });
        }
        if self.is_stopping.load(Ordering::Acquire) {
            reasons.push("the server is shutting down".to_owned());
        }
        reasons
    }
}

impl App {
    pub fn new(
        config: ApiConfig,
        net: net::Handle,
        access: Arc<dyn AccessAdmin>,
        admins: Admins,
        node: NodeInfo,
    ) -> io::Result<App> {
        let data_dir = config.data_dir.as_deref();
        let api_keys = ApiKeys::open(data_dir.map(|directory| directory.join(API_KEYS_FILE)).as_deref())?;
        let audit = Audit::open(data_dir)?;
        let requests = Semaphore::new(config.limits.requests_max);
        Ok(App {
            inner: Arc::new(Inner {
                config,
                net,
                access,
                admins,
                api_keys,
                audit,
                node,
                logins: Logins::new(),
                login_limiter: LoginLimiter::default(),
                hashing: Semaphore::new(HASHES_AT_ONCE),
                requests,
                viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
                downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
                changes: tokio::sync::Mutex::default(),
                readiness: Readiness::default(),
                counters: ApiCounters::default(),
                alarms: Alarms::default(),
                history: History::default(),
                configuration: Mutex::default(),
                openapi: OnceLock::new(),
            }),
        })
    }

    pub fn config(&self) -> &ApiConfig {
        &self.inner.config
    }

    pub fn net(&self) -> &net::Handle {
        &self.inner.net
    }

    pub fn access(&self) -> &Arc<dyn AccessAdmin> {
        &self.inner.access
    }

    pub fn admins(&self) -> &Admins {
        &self.inner.admins
    }

    pub fn api_keys(&self) -> &ApiKeys {
        &self.inner.api_keys
    }

    pub fn audit(&self) -> &Audit {
        &self.inner.audit
    }

    pub fn node(&self) -> &NodeInfo {
        &self.inner.node
    }

    /// The device platform, if this node is one.
    pub fn world(&self) -> Option<&Arc<World>> {
        self.config().platform.as_ref()
    }

    pub fn logins(&self) -> &Logins {
        &self.inner.logins
    }

    pub fn login_limiter(&self) -> &LoginLimiter {
        &self.inner.login_limiter
    }

    pub fn hashing(&self) -> &Semaphore {
        &self.inner.hashing
    }

    pub fn requests(&self) -> &Semaphore {
        &self.inner.requests
    }

    /// Those who watch something over a WebSocket.
    pub fn viewers(&self) -> &Arc<Semaphore> {
        &self.inner.viewers
    }

    pub fn downloads(&self) -> &Arc<Semaphore> {
        &self.inner.downloads
    }

    pub fn changes(&self) -> &tokio::sync::Mutex<()> {
        &self.inner.changes
    }

    pub fn readiness(&self) -> &Readiness {
        &self.inner.readiness
    }

    pub fn counters(&self) -> &ApiCounters {
        &self.inner.counters
    }

    pub fn alarms(&self) -> &Alarms {
        &self.inner.alarms
    }

    /// The node's numbers over time.
    pub fn history(&self) -> &History {
        &self.inner.history
    }

    /// What is in force, as the operator is shown it.
    pub fn configuration(&self) -> Arc<Vec<ConfigValue>> {
        let configuration = self.inner.configuration.lock();
        configuration.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_configuration(&self, values: Vec<ConfigValue>) {
        let configuration = self.inner.configuration.lock();
        *configuration.unwrap_or_else(PoisonError::into_inner) = Arc::new(values);
    }

    pub fn openapi(&self) -> &OnceLock<Bytes> {
        &self.inner.openapi
    }

    pub fn disk(&self) -> Option<DiskView> {
        DiskView::of(self.config().data_dir.as_deref()?)
    }

    pub fn uptime(&self) -> Duration {
        self.node().started_at.elapsed().unwrap_or_default()
    }

    /// Metrics and statistics need no login: they are on loopback only, or declared public.
    pub fn is_metrics_open(&self) -> bool {
        self.config().metrics_public || self.config().bind.ip().to_canonical().is_loopback()
    }
}

pub fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
