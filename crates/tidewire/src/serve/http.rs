//! The HTTP server: configuration of the API, its administrators, start and stop.

use std::io;
#[cfg(feature = "bench")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{ApiConfig, ApiHandle, ApiStartError, ClientEvents, ConfigValue, NodeInfo, SysConfig};
use web::admins::{Admins, OneTimePassword};

use super::StartFailure;
use super::access::NodeAccess;
use super::backups::NodeBackups;
#[cfg(feature = "bench")]
use super::benchmarks::{self, NodeBenchmarks};
use super::certificates::NodeCertificates;
use super::configure::ConfigChanger;
use super::reload::Reloader;
use super::restart::RestartRequest;
use super::single_sign_on;
use super::telemetry;
use super::translate::network;
use crate::banner::{self, AdminLogin};
use crate::config::Config;
use crate::config::files::{self, chain};
#[cfg(feature = "bench")]
use crate::config::options::listeners::{ListenerKind, ProxyProtocol};
use crate::device_platform::DevicePlatform;
use crate::process_limits;
use connectors::Secret;

/// Maximum time for requests to end when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// The running API; empty if it is disabled.
pub struct Http {
    api: Option<ApiHandle>,
    scheme: &'static str,
    /// Only at the start that created it.
    first_password: Option<OneTimePassword>,
    /// File that contains the password as long as it is valid.
    password_file: Option<PathBuf>,
}

/// Components that the API reads and changes.
pub struct ApiParts<'a> {
    pub net: &'a net::ServerHandle,
    pub access: &'a Arc<NodeAccess>,
    pub engine: &'a integration::Engine,
    pub device_platform: Option<&'a DevicePlatform>,
    pub log: &'a Arc<api::LogRing>,
    pub certificates: &'a Arc<NodeCertificates>,
    pub reloader: &'a Arc<Reloader>,
    pub restart: &'a RestartRequest,
    /// Maximum number of connections to each HTTP listener.
    pub connections_max: usize,
}

/// Returns the default of `api.max_unsent_answers`. `memory`: the memory that the process may use.
fn unsent_answer_bytes(memory: Option<u64>) -> usize {
    /// Share of the memory of the process.
    const ANSWER_SHARE: u64 = 16;
    const MOST: u64 = 256 << 20;
    memory.map_or(MOST, |bytes| (bytes / ANSWER_SHARE).min(MOST)) as usize
}

pub fn start(
    config: &Config,
    node: String,
    parts: &ApiParts<'_>,
    events: Option<ClientEvents>,
) -> Result<Http, StartFailure> {
    let mut http = Http {
        api: None,
        scheme: "http",
        first_password: None,
        password_file: None,
    };
    if !config.api.enabled {
        return Ok(http);
    }
    let mut api_config = ApiConfig::new(config.api.bind.resolve("api.bind")?);
    api_config.limits.connections_max = parts.connections_max;
    api_config.limits.max_connections_per_address = match config.api.max_connections_per_address {
        0 => (parts.connections_max / 2).max(1),
        most => most as usize,
    };
    api_config.limits.unsent_answer_bytes_max = match config.api.max_unsent_answers.0 {
        Some(size) => usize::try_from(size.0).unwrap_or(usize::MAX),
        None => unsent_answer_bytes(process_limits::memory_bytes()),
    };
    api_config.token_lifetime = config.api.token_lifetime;
    api_config.single_sign_on = single_sign_on::config(config)?;
    api_config.telemetry = telemetry::config(config)?;
    api_config.login_limiter = parts.access.login_limiter().clone();
    api_config.require_totp = config.api.require_totp;
    api_config.metrics_without_login = config.api.metrics_without_login;
    api_config.allowed_hosts = config.api.allowed_hosts.clone();
    api_config.trusted_proxies = config.api.trusted_proxies.iter().map(network).collect();
    api_config.sys = config.sys.interval.0.map(|interval| SysConfig {
        interval,
        mosquitto_tree: config.sys.mosquitto_tree,
        emqx_tree: config.sys.emqx_tree,
    });
    api_config.data_dir = Some(config.data_dir.clone());
    let backups = Arc::new(NodeBackups::new(
        &config.data_dir,
        config.durability.reserve_bytes.0,
        parts.restart.clone(),
    ));
    api_config.backups = Some(backups.clone());
    #[cfg(feature = "bench")]
    {
        let target = load_target(config, parts.net);
        let benchmarks = NodeBenchmarks::new(&config.data_dir, &config.benchmark, target);
        api_config.benchmarks = Some(Arc::new(benchmarks));
    }
    api_config.certificates = Some(parts.certificates.clone());
    let configure = ConfigChanger::new(parts.reloader.clone(), backups, parts.restart.clone());
    api_config.configuration = Some(Arc::new(configure));
    api_config.log = parts.log.clone();
    #[cfg(feature = "console")]
    {
        api_config.book = |path| book::find(path).map(|file| (file.content_type, file.gzip));
    }
    api_config.engine = Some(parts.engine.clone());
    if let Some(platform) = parts.device_platform {
        api_config.device_platform = Some(platform.of_api(config)?);
    }
    api_config.tls = tls(config)?;
    if api_config.tls.is_some() {
        http.scheme = "https";
    }
    // Before the first administrator is created: a start that fails because a port is in use leaves no files.
    let listener = api::bind(api_config.bind).map_err(|error| {
        let message = format!("api.bind: {}", chain(&error));
        match error {
            ApiStartError::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                StartFailure::PortInUse(message)
            }
            _ => StartFailure::Other(message),
        }
    })?;
    let admins = match config.api.users_file.0.as_deref() {
        Some(path) => Admins::open(path).map_err(|e| format!("api.users_file: {}", chain(&e)))?,
        None => {
            let (admins, first_password) = Admins::open_or_create(&config.data_dir).map_err(|e| chain(&e))?;
            http.first_password = first_password;
            http.password_file = Admins::first_password_file(&config.data_dir);
            admins
        }
    };
    let info = NodeInfo {
        name: node,
        version: crate::cli::VERSION.into(),
        started_at: SystemTime::now(),
        durability: banner::durability(config.durability.policy).into(),
    };
    let started = api::start_on(
        listener,
        api_config,
        parts.net.clone(),
        parts.access.clone(),
        admins,
        info,
    );
    let api = started.map_err(|error| chain(&error))?;
    if let Some(events) = events {
        api.publish_client_events(events);
    }
    parts.certificates.connect(api.tls_reloader());
    http.api = Some(api);
    Ok(http)
}

/// Returns the address for the clients of a benchmark.
#[cfg(feature = "bench")]
fn load_target(config: &Config, net: &net::ServerHandle) -> Option<SocketAddr> {
    let mut listeners = config.listeners.iter().zip(net.listeners());
    let plain = listeners.find(|(listener, _)| {
        listener.kind == ListenerKind::Tcp && listener.options.proxy_protocol == ProxyProtocol::Off
    });
    plain.map(|(_, info)| benchmarks::reachable(info.address))
}

/// Reads the certificate from disk.
fn tls(config: &Config) -> Result<Option<Arc<rustls::ServerConfig>>, String> {
    let Some(files) = files::api_tls_files(config) else {
        return Ok(None);
    };
    net::tls::server_config(&files)
        .map(Some)
        .map_err(|e| format!("api.cert_file: {}", chain(&e)))
}

impl Http {
    pub fn url(&self) -> Option<String> {
        let address = self.api.as_ref()?.address();
        Some(format!("{}://{address}", self.scheme))
    }

    /// Password for the start-up box, until it is changed.
    pub fn first_login(&self) -> Option<AdminLogin> {
        let file = self.password_file.as_ref()?;
        let password = self.first_password.as_ref();
        Some(AdminLogin {
            user_name: "admin".into(),
            password: password.map(|password| Secret::new(password.expose().to_owned())),
            file: file.display().to_string(),
        })
    }

    /// Returns the configuration that the console shows.
    pub fn set_configuration(&self, values: Vec<ConfigValue>) {
        if let Some(api) = &self.api {
            api.set_configuration(values);
        }
    }

    pub fn reading_journal(&self, percent: u8) {
        if let Some(api) = &self.api {
            api.reading_journal(percent);
        }
    }

    pub fn ready(&self) {
        if let Some(api) = &self.api {
            api.ready();
        }
    }

    pub fn stopping(&self) {
        if let Some(api) = &self.api {
            api.stopping();
        }
    }

    pub fn stop(self) {
        if let Some(api) = self.api {
            api.stop(STOP_GRACE);
        }
    }
}
