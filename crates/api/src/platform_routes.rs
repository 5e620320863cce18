//! The interfaces of the device platform: for devices, and for users if the platform is enabled.

use std::sync::Arc;

use thingsboard::Services;
use thingsboard::device_api::{self, DeviceServices};
use web::endpoint::{Operation, Routes};

use crate::app::App;

/// Descriptions of the operations of the device API.
pub fn operations() -> Vec<Operation> {
    let endpoints = device_api::endpoints().into_iter();
    endpoints.map(|endpoint| endpoint.into_operation()).collect()
}

/// Adds the interfaces for devices and for users.
pub fn add_routes(routes: Routes, app: &App) -> Routes {
    let platform = app.device_platform();
    let of_devices = DeviceServices {
        devices: platform.map(|platform| platform.devices().clone()),
        login_limiter: app.login_limiter().clone(),
        request_timeout: app.config().limits.request_timeout,
    };
    let routes = routes.add(device_api::endpoints(), &Arc::new(of_devices));
    let Some(platform) = platform else { return routes };
    let services = Services {
        platform_access: platform.access().clone(),
        admins: app.guard().admins.clone(),
        api_keys: app.guard().api_keys.clone(),
        hashing: app.hashing().clone(),
        login_limiter: app.login_limiter().clone(),
        counters: app.counters().clone(),
        requests_max: app.config().limits.requests_max,
        is_https: app.config().tls.is_some(),
        version: app.node().version.clone(),
    };
    routes.add(thingsboard::endpoints(), &Arc::new(services))
}
