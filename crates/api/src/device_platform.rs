//! The device platform, if it is enabled.
//!
//! Builds without the feature `platform` have `device_platform/absent.rs` in place of this file, and
//! `platform_routes/absent.rs` in place of `platform_routes.rs`.

use std::net::TcpListener;
use std::sync::Arc;

use devices::{Devices, DevicesStats};
use journal::LogState;
use platform::ids::Uuid;
use thingsboard::{PlatformAccess, device_api};
use web::admins::Admins;
use web::problem::HttpProblem;

/// Paths of requests that may take longer than the limit for others.
pub use thingsboard::may_wait;

/// Result of a search for a dashboard.
pub enum DashboardLookup {
    /// With the ID in its usual form.
    Found(String),
    Missing,
    InvalidId,
}

/// The device platform with its REST interface for users.
#[derive(Clone)]
pub struct DevicePlatform {
    devices: Arc<Devices>,
    access: Arc<PlatformAccess>,
    listener: Option<Arc<TcpListener>>,
}

impl DevicePlatform {
    pub fn new(devices: Arc<Devices>, access: Arc<PlatformAccess>) -> DevicePlatform {
        DevicePlatform {
            devices,
            access,
            listener: None,
        }
    }

    /// Also serves the platform's interface, and only that, on this bound listener.
    pub fn with_listener(self, listener: TcpListener) -> DevicePlatform {
        DevicePlatform {
            listener: Some(Arc::new(listener)),
            ..self
        }
    }

    pub(crate) fn listener(&self) -> Option<&TcpListener> {
        self.listener.as_deref()
    }

    pub(crate) fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    pub(crate) fn access(&self) -> &Arc<PlatformAccess> {
        &self.access
    }

    pub(crate) fn log_state(&self) -> LogState {
        self.devices.log_state()
    }

    /// Why stores behind the ingest log fail.
    pub(crate) fn failed_stores(&self) -> Vec<String> {
        self.devices.failed_stores()
    }

    pub(crate) fn stats(&self) -> DevicesStats {
        self.devices.stats()
    }

    /// IDs of the tenants whose scripts use more CPU time than they may.
    pub(crate) fn tenants_over_script_budget(&self) -> Vec<String> {
        let usage = self.devices.platform().script_usage();
        let over = usage.tenants.iter().filter(|usage| usage.is_over_budget);
        over.map(|usage| usage.tenant.0.to_string()).collect()
    }

    /// Reads the entity database.
    pub(crate) fn find_dashboard(&self, id: &str) -> Result<DashboardLookup, HttpProblem> {
        let Some(id) = Uuid::parse(id) else {
            return Ok(DashboardLookup::InvalidId);
        };
        match self.access.tenant_of_dashboard(id) {
            Ok(Some(_)) => Ok(DashboardLookup::Found(id.to_string())),
            Ok(None) => Ok(DashboardLookup::Missing),
            Err(_) => Err(HttpProblem::internal("cannot read the dashboard")),
        }
    }

    /// Returns a token and a refresh token of the platform for an administrator of the node. They end with the login
    /// of the administrator to the console. Reads the entity database.
    pub(crate) fn tokens_of_administrator(
        &self,
        admins: &Admins,
        (name, console_login): (&str, Arc<str>),
        now_ms: i64,
    ) -> Result<(String, String), HttpProblem> {
        let pair = self
            .access
            .issue_for_administrator(admins, (name, console_login), now_ms);
        let pair = pair.map_err(|_| HttpProblem::internal("cannot log in to the device platform"))?;
        Ok((pair.token, pair.refresh_token))
    }

    /// Deletes the platform's API keys that a console user issued.
    pub(crate) fn delete_api_keys_of(&self, issuer: &str) -> Result<(), String> {
        let deleted = self
            .access
            .platform()
            .entities()
            .delete_api_keys_of_administrator(issuer);
        deleted.map_err(|error| error.to_string())
    }
}

/// The fixed limits of the platform's interfaces, for the reference.
pub fn fixed_limits() -> Vec<(&'static str, u64, &'static str, &'static str)> {
    let body = (
        "Body of an HTTP request of a device",
        device_api::BODY_MAX as u64,
        "bytes",
        "The request receives 413.",
    );
    let mut all = vec![body];
    all.extend(thingsboard::FIXED_LIMITS);
    all
}
