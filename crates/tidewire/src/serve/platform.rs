//! The device platform of the server, if it is on.

use std::sync::Arc;
use std::time::Instant;

use devices::Devices;
use journal::{LogConfig, Policy};

use crate::config::Config;
use crate::config::files::chain;
use crate::config::options::server::DurabilityPolicy;

pub fn open(config: &Config) -> Result<Option<Arc<Devices>>, String> {
    if !config.platform.enabled {
        return Ok(None);
    }
    let begun = Instant::now();
    let opened =
        Devices::open(&config.data_dir, options(config)).map_err(|error| format!("platform: {}", chain(&error)))?;
    let stats = opened.stats();
    let took_ms = begun.elapsed().as_millis() as u64;
    tracing::info!(
        devices = stats.devices,
        series = stats.store.series,
        behind_messages = stats.lag.messages,
        took_ms,
        "the platform is open"
    );
    for (chain, warnings) in opened.platform().chain_warnings() {
        for warning in warnings {
            tracing::warn!(%chain, warning = ?warning, "a rule chain does not run as it stands");
        }
    }
    Ok(Some(opened))
}

fn options(config: &Config) -> devices::Options {
    let durability = &config.durability;
    let log = LogConfig {
        policy: match durability.policy {
            DurabilityPolicy::Fsync => Policy::Fsync,
            DurabilityPolicy::Os | DurabilityPolicy::Memory => Policy::Os,
        },
        max_bytes: config.platform.max_log_bytes.0,
        segment_bytes: durability.segment_bytes.0.min(config.platform.max_log_bytes.0 / 8),
        reserve_bytes: durability.reserve_bytes.0,
    };
    let mut options = devices::Options {
        log,
        ..devices::Options::default()
    };
    options.platform.inactivity_timeout_ms = config.platform.inactivity_timeout.as_millis() as i64;
    options.store.head_bytes_max = config.platform.head_bytes.0 as usize;
    options
}
