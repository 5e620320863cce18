//! The device platform of the server, if it is enabled. Builds without the feature `platform` have
//! `device_platform/absent.rs` in place of this file.

#[cfg(test)]
#[allow(dead_code, reason = "only the names are compared")]
#[path = "device_platform/absent.rs"]
mod absent;
mod external_clients;

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use api::ApiStartError;
use auth::LoginLimiter;
use broker::ConnectIdentity;
use broker::inbox::{Inbox, InboxClient, InboxKey};
use devices::{DEVICE_PREFIX, DeviceLogin, Devices, PROVISION_PREFIX};
use journal::{FlushPolicy, LogConfig};
use platform::SqliteRepository;
use platform::chain::{ScriptProgram, ScriptRunner, ScriptWorkers, ScriptWorkersOptions};
use platform::credentials::{MqttLogin, certificate_hash};
use thingsboard::{AccessOptions, PlatformAccess};
use trust::TargetPolicy;

use crate::config::Config;
use crate::config::files::chain;
use crate::config::options::server::DurabilityPolicy;
use external_clients::ExternalClients;

pub use devices::{DIRECTORY_NAME, LOG_NAME};

/// The argument of processes that run scripts. It is no command for users, and not in the help.
pub const SCRIPT_WORKER: &str = "script-worker";

/// The stores in `DIRECTORY_NAME`: the entity database is a file, the time series a directory with a manifest.
pub const ENTITIES_NAME: &str = platform::FILE_NAME;
pub const TIMESERIES_NAME: &str = timeseries::DIRECTORY_NAME;

/// The running platform.
#[derive(Clone)]
pub struct DevicePlatform(Arc<Devices>);

impl DevicePlatform {
    /// Returns `None` if the platform is not enabled.
    pub fn open(config: &Config, login_limiter: &Arc<LoginLimiter>) -> Result<Option<DevicePlatform>, String> {
        open(config, login_limiter).map(|opened| opened.map(DevicePlatform))
    }

    /// Starts the work on messages of devices.
    pub fn serve(&self, net: net::ServerHandle) {
        self.0.serve(net);
    }

    pub fn shut_down(&self) {
        self.0.shut_down();
    }

    /// Returns the inbox of a shard for messages of devices.
    pub fn inbox(&self, shard: u16) -> Box<dyn Inbox> {
        self.0.inbox(shard)
    }

    /// Returns the device of a client certificate.
    pub fn certificate_login(&self, certificate: &[u8]) -> Option<InboxClient> {
        self.0.certificate_login(&certificate_hash(certificate)).map(identified)
    }

    /// Returns the device that a user name, password or client id belongs to.
    pub fn device_login(&self, offered: &ConnectIdentity<'_>) -> Option<InboxClient> {
        self.0.device_login(&login(offered)).map(identified)
    }

    /// Returns a session that may only send provisioning requests. As in ThingsBoard, it needs no credentials.
    pub fn provision_login(&self, offered: &ConnectIdentity<'_>, address: IpAddr) -> Option<InboxClient> {
        self.0.provision_login(&login(offered), address).map(identified)
    }

    /// Whether the client asks for a session for provisioning.
    pub fn is_provision(&self, offered: &ConnectIdentity<'_>) -> bool {
        login(offered).is_provision()
    }

    /// Whether only the platform gives such client ids.
    pub fn is_reserved(&self, client_id: &str) -> bool {
        [DEVICE_PREFIX, PROVISION_PREFIX]
            .iter()
            .any(|prefix| client_id.starts_with(prefix))
    }

    /// Returns the interface for users and scripts, with the port that only it uses.
    pub fn of_api(&self, config: &Config) -> Result<api::DevicePlatform, String> {
        let options = AccessOptions {
            login_max_age: config.platform.login_max_age,
            activation_link_max_age: config.platform.activation_link_max_age,
        };
        let access = PlatformAccess::open(self.0.clone(), &config.data_dir, options)
            .map_err(|error| format!("platform: cannot load the key that signs tokens: {error}"))?;
        let of_api = api::DevicePlatform::new(self.0.clone(), Arc::new(access));
        let Some(bind) = &config.platform.bind.0 else {
            return Ok(of_api);
        };
        let address = bind.resolve("platform.bind")?;
        let listener = api::bind(address).map_err(|error| match error {
            ApiStartError::Bind { source, .. } => format!("platform.bind: cannot listen on {address}: {source}"),
            error => format!("platform.bind: {}", chain(&error)),
        })?;
        Ok(of_api.with_listener(listener))
    }
}

/// Runs scripts of rule chains in this process, until the server closes its input.
pub fn run_script_worker() -> ExitCode {
    // An error has no other reader than the server, which sees the end of the process.
    platform::chain::run_worker().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// Returns the missing data of the platform: paths and descriptions. With `is_accepted`, the next start creates it.
pub fn missing_data(data_dir: &Path, is_accepted: bool) -> Result<Vec<(String, String)>, String> {
    let missing = devices::loss::missing_data(data_dir, is_accepted).map_err(|error| chain(&*error))?;
    Ok(missing
        .into_iter()
        .map(|missing| (missing.path, missing.what))
        .collect())
}

/// Returns the number of transactions of the entity database in the platform's directory, if it can be read.
pub fn transactions(directory: &Path) -> Option<u64> {
    SqliteRepository::transactions(directory)
}

/// Copies the platform's data for a backup. Returns its size in bytes, if there is any.
pub fn copy_to(from: &Path, to: &Path) -> Result<Option<u64>, String> {
    devices::backup::copy_to(from, to).map_err(|error| chain(&error))
}

fn login<'a>(offered: &ConnectIdentity<'a>) -> MqttLogin<'a> {
    MqttLogin {
        client_id: offered.client_id,
        user_name: offered.user_name,
        password: offered.password,
    }
}

fn identified(login: DeviceLogin) -> InboxClient {
    InboxClient {
        key: InboxKey(u128::from_be_bytes(login.session.0)),
        client_id: login.client_id,
        name: login.name,
    }
}

fn open(config: &Config, login_limiter: &Arc<LoginLimiter>) -> Result<Option<Arc<Devices>>, String> {
    if !config.platform.enabled {
        return Ok(None);
    }
    let begun = Instant::now();
    let outward = ExternalClients::start(target_policy(config))
        .map_err(|error| format!("platform: cannot start the thread of external nodes: {error}"))?;
    let scripts =
        start_scripts(config).map_err(|error| format!("platform: cannot start the processes of scripts: {error}"))?;
    let scripts = Arc::new(scripts);
    let mut options = options(config);
    options.login_limiter = login_limiter.clone();
    options.platform.scripts = Some(Arc::clone(&scripts) as Arc<dyn ScriptRunner>);
    let opened = Devices::open_with(&config.data_dir, options, Some(Arc::new(outward)))
        .map_err(|error| format!("platform: {}", chain(&error)))?;
    let of_answers = Arc::downgrade(&opened);
    scripts.set_waker(Box::new(move || {
        if let Some(devices) = of_answers.upgrade() {
            devices.wake();
        }
    }));
    let stats = opened.stats();
    let took_ms = begun.elapsed().as_millis() as u64;
    tracing::info!(
        devices = stats.devices,
        series = stats.store.series,
        behind_messages = stats.lag.messages,
        took_ms,
        "device platform opened"
    );
    for (chain, warnings) in opened.platform().chain_warnings() {
        for warning in warnings {
            tracing::warn!(%chain, warning = ?warning, "a rule chain contains an invalid node");
        }
    }
    if config.platform.demo {
        create_demo(&opened, config).map_err(|error| format!("platform.demo: {}", chain(&*error)))?;
    }
    Ok(Some(opened))
}

fn start_scripts(config: &Config) -> io::Result<ScriptWorkers> {
    // The path of a program file that was replaced by an update names the new file, or none. This one is always that of
    // the running program.
    let own = Path::new("/proc/self/exe");
    let path = match own.exists() {
        true => own.to_owned(),
        false => std::env::current_exe()?,
    };
    ScriptWorkers::start(ScriptWorkersOptions {
        program: ScriptProgram {
            path,
            arguments: vec![SCRIPT_WORKER.to_owned()],
        },
        cpu_percent: config.platform.script_cpu_percent,
        processes_max: config.platform.script_processes as usize,
    })
}

fn target_policy(config: &Config) -> TargetPolicy {
    let networks = config.platform.outbound_networks.clone();
    TargetPolicy::new("platform.outbound_networks", move |address| {
        networks.iter().any(|network| network.contains(address))
    })
}

fn create_demo(devices: &Devices, config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let now_ms = i64::try_from(UNIX_EPOCH.elapsed()?.as_millis())?;
    if let Some(new) = devices.entities().create_demo(now_ms)? {
        let chain = new.root_chain.id.unwrap_or_default();
        devices.reload_chain(new.tenant.id.unwrap_or_default(), chain, now_ms)?;
    }
    let open = config
        .open_demo_binds()
        .unwrap_or_else(|| "this machine only".to_owned());
    tracing::warn!(
        open,
        "platform.demo: sysadmin@thingsboard.org, tenant@thingsboard.org and customer@thingsboard.org can log in with passwords \
         that everybody knows"
    );
    Ok(())
}

fn options(config: &Config) -> devices::DevicesOptions {
    let durability = &config.durability;
    let log = LogConfig {
        policy: match durability.policy {
            DurabilityPolicy::Fsync => FlushPolicy::Fsync,
            DurabilityPolicy::Os | DurabilityPolicy::Memory => FlushPolicy::Os,
        },
        max_bytes: config.platform.max_log_bytes.0,
        segment_bytes: durability.segment_bytes.0.min(config.platform.max_log_bytes.0 / 8),
        reserve_bytes: durability.reserve_bytes.0,
        commit_interval: durability.commit_interval,
        ..LogConfig::default()
    };
    let mut options = devices::DevicesOptions {
        log,
        ..devices::DevicesOptions::default()
    };
    options.platform.inactivity_timeout_ms = config.platform.inactivity_timeout.as_millis() as i64;
    options.pings_are_activity = config.platform.pings_are_activity;
    options.platform.telemetry_days = config.platform.telemetry_days;
    options.platform.usage_days = config.platform.usage_days;
    options.platform.keys_max = config.platform.max_keys.into();
    options.store.keys_max = config.platform.max_keys;
    options.store.head_bytes_max = config.platform.head_bytes.0 as usize;
    options
}

#[cfg(test)]
mod tests {
    use super::absent;

    /// A build without the platform must find the data of another build.
    #[test]
    fn build_without_the_platform_has_the_same_names() {
        assert_eq!(absent::DIRECTORY_NAME, super::DIRECTORY_NAME);
        assert_eq!(absent::LOG_NAME, super::LOG_NAME);
        assert_eq!(absent::ENTITIES_NAME, super::ENTITIES_NAME);
        assert_eq!(absent::TIMESERIES_NAME, super::TIMESERIES_NAME);
    }
}
