//! The resolved configuration of the HTTP server. The binary converts its own configuration into it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use auth::LoginLimiter;
use net::AddressPrefix;
use schemars::JsonSchema;
use serde::Serialize;
use web::limits::ApiLimits;

use crate::backup_admin::BackupAdmin;
use crate::bench_admin::BenchAdmin;
use crate::certificate_admin::CertificateAdmin;
use crate::config_admin::ConfigAdmin;
use crate::device_platform::DevicePlatform;
use crate::log_ring::LogRing;
use crate::single_sign_on::SingleSignOnConfig;
use crate::telemetry::TelemetryConfig;

/// Returns the content type and the gzip-compressed content of a file below `/docs/`.
pub type Book = fn(path: &str) -> Option<(&'static str, &'static [u8])>;

/// Settings of `$SYS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysConfig {
    pub interval: Duration,
    pub mosquitto_tree: bool,
    pub emqx_tree: bool,
}

/// Lifetime of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLifetime(pub Duration);

#[derive(Clone)]
pub struct ApiConfig {
    pub bind: SocketAddr,
    /// If set, the port accepts only HTTPS. No ALPN, because the server only supports HTTP/1.1.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Lifetime of a login.
    pub token_lifetime: Duration,
    /// Logins with an identity provider. `None`: only console users log in.
    pub single_sign_on: Option<SingleSignOnConfig>,
    /// Serve metrics and statistics without a login also to other machines. On loopback they never need one.
    pub metrics_without_login: bool,
    /// Users without a second factor can only set it up.
    pub require_totp: bool,
    /// Host names that a loopback port accepts besides `localhost` and IP addresses, such as that of a reverse proxy.
    pub allowed_hosts: Vec<String>,
    /// Proxies whose `X-Forwarded-For` names the client.
    pub trusted_proxies: Vec<AddressPrefix>,
    /// Publish statistics below `$SYS`.
    pub sys: Option<SysConfig>,
    /// Export to an OpenTelemetry collector.
    pub telemetry: Option<TelemetryConfig>,
    /// The rule engine, with actions and connectors.
    pub engine: Option<integration::Engine>,
    /// The device platform. `None`: it is not enabled.
    pub device_platform: Option<DevicePlatform>,
    /// Directory of API keys and the audit log. Without it, keys are only in memory and there is no audit log.
    pub data_dir: Option<PathBuf>,
    /// Backups of the data directory. `None`: not available.
    pub backups: Option<Arc<dyn BackupAdmin>>,
    /// Benchmarks of this node. `None`: not available.
    pub benchmarks: Option<Arc<dyn BenchAdmin>>,
    /// Certificates of the listeners. `None`: no listener has one.
    pub certificates: Option<Arc<dyn CertificateAdmin>>,
    /// Changes the configuration. `None`: the configuration is read-only.
    pub configuration: Option<Arc<dyn ConfigAdmin>>,
    /// The last lines of the server log.
    pub log: Arc<LogRing>,
    /// The book under `/docs`.
    pub book: Book,
    pub limits: ApiLimits,
    /// Shared with the logins of MQTT clients.
    pub login_limiter: Arc<LoginLimiter>,
}

impl ApiConfig {
    pub fn new(bind: SocketAddr) -> ApiConfig {
        ApiConfig {
            bind,
            tls: None,
            token_lifetime: Duration::from_secs(12 * 60 * 60),
            single_sign_on: None,
            metrics_without_login: false,
            require_totp: false,
            allowed_hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            sys: None,
            telemetry: None,
            engine: None,
            device_platform: None,
            data_dir: None,
            backups: None,
            benchmarks: None,
            certificates: None,
            configuration: None,
            log: Arc::default(),
            book: |_| None,
            limits: ApiLimits::default(),
            login_limiter: Arc::default(),
        }
    }
}

/// Settings of the HTTP port that requests depend on.
pub struct HttpPort {
    pub is_https: bool,
    /// Host names besides `localhost` and IP addresses.
    pub allowed_hosts: Vec<String>,
    pub trusted_proxies: Vec<AddressPrefix>,
    pub limits: ApiLimits,
}

impl HttpPort {
    pub fn of(config: &ApiConfig) -> HttpPort {
        HttpPort {
            is_https: config.tls.is_some(),
            allowed_hosts: config.allowed_hosts.clone(),
            trusted_proxies: config.trusted_proxies.clone(),
            limits: config.limits.clone(),
        }
    }
}

/// The configuration in force, for display. Cloning increments a reference count.
#[derive(Clone, Default)]
pub struct ShownConfiguration(Arc<Mutex<Arc<Vec<ConfigValue>>>>);

impl ShownConfiguration {
    pub fn values(&self) -> Arc<Vec<ConfigValue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces all values, after the start and after a reload.
    pub fn set(&self, values: Vec<ConfigValue>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(values);
    }
}

/// A value of the configuration, for display.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConfigValue {
    /// Key as in the file: `mqtt.max_qos`.
    pub key: String,
    /// Value as in the file; `***` for a secret.
    pub value: String,
    /// Origin: a file and its line, an environment variable, the command line, or the default.
    pub origin: String,
    pub is_default: bool,
    /// Set by the file, environment or command line; the API cannot override it.
    pub is_pinned: bool,
    /// Whether a change takes effect only after a restart.
    pub needs_restart: bool,
    pub description: String,
    /// Type of the value: `duration`, `integer`, `list of network`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// All allowed values, if they can be listed.
    pub choices: Vec<String>,
    /// Why the API cannot change the value; `null`: it can.
    pub fixed_reason: Option<String>,
    /// The value was changed over the API. The change can be removed.
    pub is_runtime: bool,
    /// The value in force until the restart; `null`: `value` is in force.
    pub value_in_force: Option<String>,
}

/// Information about the node.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    pub name: String,
    pub version: String,
    pub started_at: SystemTime,
    /// One sentence about the data that survives a crash.
    pub durability: String,
}

impl NodeInfo {
    pub fn uptime(&self) -> Duration {
        self.started_at.elapsed().unwrap_or_default()
    }
}
