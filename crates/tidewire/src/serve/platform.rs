//! The device platform of the server, if it is on.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use api::{ApiConfig, ApiStartError};
use auth::LoginLimiter;
use devices::Devices;
use journal::{FlushPolicy, LogConfig};
use platform::chain::{ScriptProgram, ScriptRunner, ScriptWorkers, ScriptWorkersOptions};
use thingsboard::{AccessOptions, PlatformAccess};
use trust::TargetPolicy;

use super::external_clients::ExternalClients;
use super::translate::bind_address;
use crate::cli::SCRIPT_WORKER;
use crate::config::Config;
use crate::config::files::chain;
use crate::config::options::server::DurabilityPolicy;

pub fn open(config: &Config, login_limiter: &Arc<LoginLimiter>) -> Result<Option<Arc<Devices>>, String> {
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

/// Where others than programs of this machine reach the demonstration's users.
pub fn open_demo(config: &Config) -> Option<String> {
    let binds = [
        config.api.enabled.then_some(&config.api.bind),
        config.platform.bind.0.as_ref(),
    ];
    let open: Vec<String> = binds
        .into_iter()
        .flatten()
        .filter(|bind| !bind.is_loopback())
        .map(ToString::to_string)
        .collect();
    (!open.is_empty()).then(|| open.join(", "))
}

fn create_demo(devices: &Devices, config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let now_ms = i64::try_from(UNIX_EPOCH.elapsed()?.as_millis())?;
    if let Some(new) = devices.entities().create_demo(now_ms)? {
        let chain = new.root_chain.id.unwrap_or_default();
        devices.reload_chain(new.tenant.id.unwrap_or_default(), chain, now_ms)?;
    }
    let open = open_demo(config).unwrap_or_else(|| "this machine only".to_owned());
    tracing::warn!(
        open,
        "platform.demo: sysadmin@thingsboard.org, tenant@thingsboard.org and customer@thingsboard.org can log in with passwords \
         that everybody knows"
    );
    Ok(())
}

/// The interface for people and scripts, and the port that is its own.
pub fn access(config: &Config, devices: Option<&Arc<Devices>>, api: &mut ApiConfig) -> Result<(), String> {
    let Some(devices) = devices else { return Ok(()) };
    let options = AccessOptions {
        login_max_age: config.platform.login_max_age,
        activation_link_max_age: config.platform.activation_link_max_age,
    };
    let access = PlatformAccess::open(Arc::clone(devices), &config.data_dir, options)
        .map_err(|error| format!("platform: cannot load the key that signs tokens: {error}"))?;
    api.platform = Some(Arc::new(access));
    if let Some(bind) = &config.platform.bind.0 {
        let address = bind_address("platform.bind", bind)?;
        let listener = api::bind(address).map_err(|error| match error {
            ApiStartError::Bind { source, .. } => format!("platform.bind: cannot listen on {address}: {source}"),
            error => format!("platform.bind: {}", chain(&error)),
        })?;
        api.platform_listener = Some(Arc::new(listener));
    }
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
    options.store.head_bytes_max = config.platform.head_bytes.0 as usize;
    options
}
