//! A build without the device platform. Nothing creates a [`DevicePlatform`].

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use auth::LoginLimiter;
use broker::ConnectIdentity;
use broker::inbox::{Inbox, InboxClient};

use crate::config::Config;

/// Names in the data directory of a server with the platform.
pub const DIRECTORY_NAME: &str = "platform";
pub const LOG_NAME: &str = "log";
pub const ENTITIES_NAME: &str = "entities.sqlite";
pub const TIMESERIES_NAME: &str = "timeseries";
pub const SCRIPT_WORKER: &str = "script-worker";

/// Has no values.
#[derive(Clone)]
pub enum DevicePlatform {}

impl DevicePlatform {
    pub fn open(config: &Config, _: &Arc<LoginLimiter>) -> Result<Option<DevicePlatform>, String> {
        match config.platform.enabled {
            false => Ok(None),
            true => Err(
                "platform.enabled: this build has no device platform; use a build with the feature platform".to_owned(),
            ),
        }
    }

    pub fn serve(&self, _: net::ServerHandle) {
        match *self {}
    }

    pub fn shut_down(&self) {
        match *self {}
    }

    pub fn inbox(&self, _: u16) -> Box<dyn Inbox> {
        match *self {}
    }

    pub fn certificate_login(&self, _: &[u8]) -> Option<InboxClient> {
        match *self {}
    }

    pub fn device_login(&self, _: &ConnectIdentity<'_>) -> Option<InboxClient> {
        match *self {}
    }

    pub fn provision_login(&self, _: &ConnectIdentity<'_>, _: IpAddr) -> Option<InboxClient> {
        match *self {}
    }

    pub fn is_provision(&self, _: &ConnectIdentity<'_>) -> bool {
        match *self {}
    }

    pub fn is_reserved(&self, _: &str) -> bool {
        match *self {}
    }

    pub fn of_api(&self, _: &Config) -> Result<api::DevicePlatform, String> {
        match *self {}
    }
}

pub fn run_script_worker() -> ExitCode {
    ExitCode::FAILURE
}

/// Data of the platform cannot be checked, so it must not be accepted as lost.
pub fn missing_data(_: &Path, _: bool) -> Result<Vec<(String, String)>, String> {
    Ok(Vec::new())
}

pub fn transactions(_: &Path) -> Option<u64> {
    None
}

/// Refuses a backup that would not contain the platform's data.
pub fn copy_to(from: &Path, _: &Path) -> Result<Option<u64>, String> {
    match from.join(DIRECTORY_NAME).join(LOG_NAME).is_dir() {
        false => Ok(None),
        true => Err(format!(
            "{} contains data of the device platform, but this build has none; use a build with the feature platform",
            from.join(DIRECTORY_NAME).display()
        )),
    }
}
