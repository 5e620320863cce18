//! The state that all endpoints share. One per `start`; cloning increments a reference count.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use auth::LoginLimiter;
use axum::body::Bytes;
use tokio::sync::Semaphore;

use crate::access_admin::AccessAdmin;
use crate::admins::Admins;
use crate::alarms::Alarms;
use crate::api_keys::ApiKeys;
use crate::audit::{self, Audit};
use crate::config::{ApiConfig, ConfigValue, NodeInfo};
use crate::disk::DiskView;
use crate::history::History;
use crate::logins::Logins;
use crate::server::ApiStartError;
use crate::thingsboard::PlatformAccess;

/// Limit of concurrent password hashes. Each needs 19 MiB and a core for tens of milliseconds.
const HASHES_AT_ONCE: usize = 2;

/// Limit of open WebSockets, which are not counted as requests.
pub(crate) const VIEWERS_MAX: usize = 32;

/// Limit of concurrent downloads of archives. Each has a thread.
pub(crate) const DOWNLOADS_MAX: usize = 2;

/// File in the data directory.
const API_KEYS_FILE: &str = "api-keys.json";

#[derive(Clone)]
pub struct App {
    inner: Arc<AppState>,
}

struct AppState {
    config: ApiConfig,
    net: net::ServerHandle,
    access: Arc<dyn AccessAdmin>,
    admins: Admins,
    api_keys: ApiKeys,
    audit: Audit,
    node: NodeInfo,
    logins: Logins,
    hashing: Semaphore,
    requests: Semaphore,
    viewers: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    /// Serializes changes of users, rules and certificates.
    changes: tokio::sync::Mutex<()>,
    readiness: Readiness,
    counters: ApiCounters,
    alarms: Alarms,
    history: History,
    /// Replaced as a whole at a reload.
    configuration: Mutex<Arc<Vec<ConfigValue>>>,
    openapi: OnceLock<Bytes>,
}

/// Counters of the HTTP server.
#[derive(Debug, Default)]
pub struct ApiCounters {
    pub connections: AtomicU64,
    pub connections_refused: AtomicU64,
    /// Connections without a request that were closed for other ones.
    pub connections_evicted: AtomicU64,
    pub requests: AtomicU64,
    pub requests_refused: AtomicU64,
    /// Answers by the first digit of their status: indices 2 to 5.
    pub answers: [AtomicU64; 6],
    pub logins: AtomicU64,
    pub logins_failed: AtomicU64,
    pub logins_limited: AtomicU64,
    /// Current number.
    pub open_connections: AtomicU64,
}

impl ApiCounters {
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether the node accepts traffic.
#[derive(Debug, Default)]
pub struct Readiness {
    is_started: AtomicBool,
    is_stopping: AtomicBool,
    /// Share of the journal that the start has read, in percent.
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

    /// Returns why the node is not ready. Empty if it is ready.
    pub fn not_ready_reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if !self.is_started() {
            reasons.push(match self.journal_percent.load(Ordering::Acquire) {
                0 => "the server is starting".to_owned(),
                percent => format!("the server is starting: {percent} % of the journal read"),
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
        net: net::ServerHandle,
        access: Arc<dyn AccessAdmin>,
        admins: Admins,
        node: NodeInfo,
    ) -> Result<App, ApiStartError> {
        let data_dir = config.data_dir.as_deref();
        let in_file = |name: &str| {
            let path = data_dir.unwrap_or(Path::new("")).join(name);
            move |source| ApiStartError::File { path, source }
        };
        let path = data_dir.map(|directory| directory.join(API_KEYS_FILE));
        let api_keys = ApiKeys::open(path.as_deref()).map_err(in_file(API_KEYS_FILE))?;
        let audit = Audit::open(data_dir).map_err(in_file(audit::FILE))?;
        let requests = Semaphore::new(config.limits.requests_max);
        Ok(App {
            inner: Arc::new(AppState {
                config,
                net,
                access,
                admins,
                api_keys,
                audit,
                node,
                logins: Logins::new(),
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

    pub fn net(&self) -> &net::ServerHandle {
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

    /// The device platform, if it is enabled.
    pub fn platform_access(&self) -> Option<&Arc<PlatformAccess>> {
        self.config().platform.as_ref()
    }

    pub fn logins(&self) -> &Logins {
        &self.inner.logins
    }

    /// Limits wrong passwords, tokens and secrets of provisioning requests and claims.
    pub fn login_limiter(&self) -> &Arc<LoginLimiter> {
        &self.inner.config.login_limiter
    }

    pub fn hashing(&self) -> &Semaphore {
        &self.inner.hashing
    }

    pub fn requests(&self) -> &Semaphore {
        &self.inner.requests
    }

    /// Limits the open WebSockets.
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

    /// The node's metrics over time.
    pub fn history(&self) -> &History {
        &self.inner.history
    }

    /// The configuration in force, for display.
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

    /// Whether this peer may read metrics and statistics without a login: they are configured as public, or the port
    /// and
    /// the peer are both on loopback. Connections of the server itself do not come from loopback
    /// ([`crate::server::PeerAddress`]).
    pub fn is_metrics_open(&self, peer: IpAddr) -> bool {
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        self.config().metrics_public || (is_loopback(self.config().bind.ip()) && is_loopback(peer))
    }
}

pub fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
