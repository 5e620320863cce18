//! What the HTTP side is started with, resolved; the binary translates its configuration into this.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;

use crate::backup_admin::BackupAdmin;
use crate::bench_admin::BenchAdmin;
use crate::certificate_admin::CertificateAdmin;
use crate::config_admin::ConfigAdmin;
use crate::log_ring::LogRing;
use crate::sys_publisher::SysConfig;
use crate::thingsboard::World as PlatformAccess;

#[derive(Clone)]
pub struct ApiConfig {
    pub bind: SocketAddr,
    /// With it the port speaks HTTPS only. ALPN is not needed: HTTP/1.1 is all that is spoken.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// How long a login is good for.
    pub token_lifetime: Duration,
    /// Metrics and statistics without a login even when the port is open to other machines. On loopback they always are.
    pub metrics_public: bool,
    /// Names, beside `localhost` and addresses, under which a loopback port may be asked, such as a reverse proxy's.
    pub allowed_hosts: Vec<String>,
    /// Publish statistics below `$SYS`.
    pub sys: Option<SysConfig>,
    /// Rules, actions and connectors.
    pub engine: Option<integration::Engine>,
    /// The device platform.
    pub devices: Option<Arc<devices::Devices>>,
    /// The device platform as people reach it.
    pub platform: Option<Arc<PlatformAccess>>,
    /// Bound already: where nothing but the device platform's interface is served.
    pub platform_listener: Option<Arc<TcpListener>>,
    /// Where API keys and the audit log are; without it, keys end with the process, and there is no such log.
    pub data_dir: Option<PathBuf>,
    /// Of the data directory; without it there are none.
    pub backups: Option<Arc<dyn BackupAdmin>>,
    /// Of this node; without it there are none.
    pub benchmarks: Option<Arc<dyn BenchAdmin>>,
    /// Those of the listeners; without it there are none to see.
    pub certificates: Option<Arc<dyn CertificateAdmin>>,
    /// Changes the configuration; without it nobody does.
    pub configuration: Option<Arc<dyn ConfigAdmin>>,
    /// The last lines of the log.
    pub log: Arc<LogRing>,
    pub limits: ApiLimits,
}

impl ApiConfig {
    pub fn new(bind: SocketAddr) -> ApiConfig {
        ApiConfig {
            bind,
            tls: None,
            token_lifetime: Duration::from_secs(12 * 60 * 60),
            metrics_public: false,
            allowed_hosts: Vec::new(),
            sys: None,
            engine: None,
            devices: None,
            platform: None,
            platform_listener: None,
            data_dir: None,
            backups: None,
            benchmarks: None,
            certificates: None,
            configuration: None,
            log: Arc::default(),
            limits: ApiLimits::default(),
        }
    }
}

/// What peers can make the HTTP side hold, and for how long.
#[derive(Clone, Debug)]
pub struct ApiLimits {
    /// Connections at the same time; one more is told so and closed.
    pub connections_max: usize,
    /// Requests being answered at the same time; one more gets 503.
    pub requests_max: usize,
    /// From the first byte (or the end of the last answer) to the end of a request's header.
    pub header_timeout: Duration,
    /// From the header to the end of the body.
    pub body_timeout: Duration,
    /// From the header to the beginning of the answer.
    pub request_timeout: Duration,
    /// How long a peer may not take any byte of an answer.
    pub write_stall_timeout: Duration,
    /// How long one connection is kept, whatever it does.
    pub connection_lifetime: Duration,
}

impl Default for ApiLimits {
    fn default() -> ApiLimits {
        ApiLimits {
            connections_max: 256,
            requests_max: 64,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(20),
            write_stall_timeout: Duration::from_secs(10),
            connection_lifetime: Duration::from_secs(60 * 60),
        }
    }
}

/// One value of the configuration, for the operator to see.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConfigValue {
    /// As in the file: `mqtt.max_qos`.
    pub key: String,
    /// As in the file; a secret is `***`.
    pub value: String,
    /// Where it comes from: a file and its line, a variable, the command line, or the default.
    pub origin: String,
    pub is_default: bool,
    /// Written down outside; the API does not override it.
    pub is_pinned: bool,
    /// Whether a change waits for a restart.
    pub needs_restart: bool,
    pub description: String,
    /// `duration`, `integer`, `list of network`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// All values that there are, where they can be counted.
    pub choices: Vec<String>,
    /// Why it cannot be changed over the API; `null`: it can.
    pub fixed_because: Option<String>,
    /// Changed over the API, which can be forgotten again.
    pub is_runtime: bool,
    /// What is in force until the restart that the value waits for; `null`: the value is in force.
    pub until_restart: Option<String>,
}

/// What the node says about itself.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    pub name: String,
    pub version: String,
    pub started_at: SystemTime,
    /// One sentence on what survives a crash, as it is in force.
    pub durability: String,
}
