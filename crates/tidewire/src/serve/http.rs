//! The HTTP side of the server: the API's configuration, its administrators, its life.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{Admins, ApiConfig, ApiHandle, ClientEvents, NodeInfo, OneTimePassword, SysConfig};
use net::tls::{ClientCertificates, OldestVersion, TlsFiles};

use super::access::NodeAccess;
use crate::banner::{self, AdminLogin};
use crate::config::Config;
use crate::secret::Secret;

/// How long requests may take to end when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// The file that holds the one-time password, in the data directory.
const ADMIN_PASSWORD_FILE: &str = "admin-password";

/// The running API, or nothing if it is off.
pub struct Http {
    api: Option<ApiHandle>,
    scheme: &'static str,
    first_login: Option<OneTimePassword>,
    password_file: String,
}

pub fn start(
    config: &Config,
    node: String,
    net: &net::Handle,
    access: &Arc<NodeAccess>,
    events: Option<ClientEvents>,
) -> Result<Http, String> {
    let mut http = Http {
        api: None,
        scheme: "http",
        first_login: None,
        password_file: String::new(),
    };
    if !config.api.enabled {
        return Ok(http);
    }
    let mut api_config = ApiConfig::new(address(config)?);
    api_config.token_lifetime = config.api.token_lifetime;
    api_config.metrics_public = config.api.metrics_without_login;
    api_config.sys = config.sys.interval.0.map(|interval| SysConfig {
        interval,
        is_mosquitto_tree: config.sys.mosquitto_tree,
        is_emqx_tree: config.sys.emqx_tree,
    });
    api_config.tls = tls(config)?;
    if api_config.tls.is_some() {
        http.scheme = "https";
    }
    let (admins, first_login) = match config.api.users_file.0.as_deref() {
        Some(path) => (Admins::open(path).map_err(|e| format!("api.users_file: {e}"))?, None),
        None => Admins::open_or_create(&config.data_dir).map_err(|e| e.to_string())?,
    };
    let password_file = config.data_dir.join(ADMIN_PASSWORD_FILE);
    if let Some(password) = &first_login {
        write_private(&password_file, password.expose()).map_err(|e| {
            format!(
                "the admin password cannot be written to {}: {e}",
                password_file.display()
            )
        })?;
    }
    http.first_login = first_login;
    http.password_file = password_file.display().to_string();
    let info = NodeInfo {
        name: node,
        version: crate::cli::VERSION.into(),
        started_at: SystemTime::now(),
        durability: banner::MEMORY_ONLY.into(),
    };
    let started = api::start(api_config, net.clone(), access.clone(), admins, info);
    let api = started.map_err(|error| format!("api.bind: {error}"))?;
    if let Some(events) = events {
        api.publish_client_events(events);
    }
    http.api = Some(api);
    Ok(http)
}

/// For its owner's eyes only.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{text}")
}

fn address(config: &Config) -> Result<SocketAddr, String> {
    let bind = &config.api.bind;
    let mut addresses = (bind.host.as_str(), bind.port)
        .to_socket_addrs()
        .map_err(|e| format!("api.bind: {bind} is not an address of this machine: {e}"))?;
    addresses
        .next()
        .ok_or_else(|| format!("api.bind: {bind} has no address"))
}

fn tls(config: &Config) -> Result<Option<Arc<rustls::ServerConfig>>, String> {
    let (Some(certificate), Some(key)) = (&config.api.cert_file.0, &config.api.key_file.0) else {
        return Ok(None);
    };
    let files = TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_authorities: None,
        client_certificates: ClientCertificates::None,
        oldest_version: OldestVersion::Tls12,
    };
    net::tls::server_config(&files)
        .map(Some)
        .map_err(|e| format!("api.cert_file: {e}"))
}

impl Http {
    pub fn url(&self) -> Option<String> {
        let address = self.api.as_ref()?.address();
        Some(format!("{}://{address}", self.scheme))
    }

    /// For the start-up box, the first time only.
    pub fn first_login(&self) -> Option<AdminLogin> {
        let password = self.first_login.as_ref()?;
        Some(AdminLogin {
            user_name: "admin".into(),
            password: Secret::new(password.expose().to_owned()),
            file: self.password_file.clone(),
        })
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
