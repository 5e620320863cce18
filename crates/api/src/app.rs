//! The state that all endpoints share. One per `start`; cloning increments a reference count.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use auth::LoginLimiter;
use axum::body::Bytes;
use tokio::sync::Semaphore;
use web::PasswordHashing;
use web::admins::Admins;
use web::answer_memory::AnswerMemory;
use web::api_keys::ApiKeys;
use web::audit::{self, Audit};
use web::guard::{Guard, MetricsAccess};
use web::limits::ApiCounters;
use web::logins::Logins;

use crate::access_admin::AccessAdmin;
use crate::alarms::Alarms;
use crate::config::{ApiConfig, ConfigValue, NodeInfo};
use crate::device_platform::DevicePlatform;
use crate::disk::DiskView;
use crate::history::History;
use crate::start_error::ApiStartError;

/// Limit of open WebSockets, which are not counted as requests.
pub(crate) const VIEWERS_MAX: usize = 32;

/// Limit of concurrent downloads of archives. Each has a thread.
pub(crate) const DOWNLOADS_MAX: usize = 2;

/// File in the data directory.
const API_KEYS_FILE: &str = "api-keys.json";

/// An endpoint of the server's own API.
pub type Endpoint = web::endpoint::Endpoint<App>;

#[derive(Clone)]
pub struct App {
    inner: Arc<AppState>,
}

struct AppState {
    config: ApiConfig,
    net: net::ServerHandle,
    access: Arc<dyn AccessAdmin>,
    guard: Guard,
    node: NodeInfo,
    hashing: Arc<PasswordHashing>,
    viewers: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    /// Serializes changes of users, rules and certificates.
    changes: tokio::sync::Mutex<()>,
    readiness: Readiness,
    counters: Arc<ApiCounters>,
    answers: Arc<AnswerMemory>,
    alarms: Alarms,
    history: History,
    /// Replaced as a whole at a reload.
    configuration: Mutex<Arc<Vec<ConfigValue>>>,
    openapi: OnceLock<Bytes>,
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
        let guard = Guard {
            admins: Arc::new(admins),
            api_keys: Arc::new(api_keys),
            logins: Arc::default(),
            audit: Arc::new(audit),
            option_schemas,
            metrics: MetricsAccess {
                is_public: config.metrics_without_login,
                is_on_loopback: config.bind.ip().to_canonical().is_loopback(),
            },
        };
        let answers = AnswerMemory::new(config.limits.unsent_answer_bytes_max);
        Ok(App {
            inner: Arc::new(AppState {
                config,
                net,
                access,
                guard,
                node,
                hashing: Arc::default(),
                viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
                downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
                changes: tokio::sync::Mutex::default(),
                readiness: Readiness::default(),
                counters: Arc::default(),
                answers,
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

    /// Checks requests before their endpoints run.
    pub fn guard(&self) -> &Guard {
        &self.inner.guard
    }

    pub fn admins(&self) -> &Admins {
        &self.inner.guard.admins
    }

    pub fn api_keys(&self) -> &ApiKeys {
        &self.inner.guard.api_keys
    }

    pub fn audit(&self) -> &Arc<Audit> {
        &self.inner.guard.audit
    }

    pub fn node(&self) -> &NodeInfo {
        &self.inner.node
    }

    /// The device platform, if it is enabled.
    pub fn device_platform(&self) -> Option<&DevicePlatform> {
        self.config().device_platform.as_ref()
    }

    pub fn logins(&self) -> &Logins {
        &self.inner.guard.logins
    }

    /// Limits wrong passwords, tokens and secrets of provisioning requests and claims.
    pub fn login_limiter(&self) -> &Arc<LoginLimiter> {
        &self.inner.config.login_limiter
    }

    pub fn hashing(&self) -> &Arc<PasswordHashing> {
        &self.inner.hashing
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

    pub fn counters(&self) -> &Arc<ApiCounters> {
        &self.inner.counters
    }

    /// Answers of all listeners that clients have not received yet.
    pub fn answers(&self) -> &Arc<AnswerMemory> {
        &self.inner.answers
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
}

/// Returns the schemas of the options of a connector, an action or a source.
fn option_schemas(field: &str, kind: &str) -> Vec<schemars::Schema> {
    let schemas = match field {
        "config" => [integration::config_schema(kind), None],
        "parameters" => [integration::parameters_schema(kind), integration::source_schema(kind)],
        _ => [None, None],
    };
    schemas.into_iter().flatten().collect()
}
