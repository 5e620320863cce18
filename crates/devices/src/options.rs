//! Options of the device platform, and the name of its directory.

use std::sync::Arc;

use auth::LoginLimiter;
use journal::LogConfig;

/// Name of the platform's directory within the data directory.
pub const DIRECTORY_NAME: &str = "platform";

#[derive(Clone, Debug)]
pub struct DevicesOptions {
    pub platform: platform::PlatformOptions,
    pub log: LogConfig,
    pub store: timeseries::StoreConfig,
    /// Whether a PINGREQ counts as activity of the device.
    pub pings_are_activity: bool,
    /// Limits wrong provisioning secrets.
    pub login_limiter: Arc<LoginLimiter>,
}

impl Default for DevicesOptions {
    fn default() -> DevicesOptions {
        let log = LogConfig {
            max_bytes: 4 << 30,
            ..LogConfig::default()
        };
        DevicesOptions {
            platform: platform::PlatformOptions::default(),
            log,
            store: timeseries::StoreConfig::default(),
            pings_are_activity: true,
            login_limiter: Arc::default(),
        }
    }
}
