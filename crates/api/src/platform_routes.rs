//! The interfaces of the device platform: for devices, and for users if the platform is enabled.

use std::sync::Arc;

use thingsboard::device_api::{self, DeviceServices};
use thingsboard::{ServiceState, Services};
use web::endpoint::{Operation, Routes};

use crate::app::App;
use crate::config::{HttpPort, NodeInfo};
use crate::device_platform::DevicePlatform;

/// Descriptions of the operations of the device API.
pub fn operations() -> Vec<Operation> {
    let endpoints = device_api::endpoints().into_iter();
    endpoints.map(|endpoint| endpoint.into_operation()).collect()
}

/// Adds the interfaces for devices and for users.
pub fn add_routes(routes: Routes, app: &App) -> Routes {
    let (platform, port): (Option<DevicePlatform>, Arc<HttpPort>) = (app.part(), app.part());
    let of_devices = DeviceServices {
        devices: platform.as_ref().map(|platform| platform.devices().clone()),
        login_limiter: app.part(),
        request_timeout: port.limits.request_timeout,
    };
    let routes = routes.add(device_api::endpoints(), &Arc::new(of_devices));
    let Some(platform) = platform else { return routes };
    platform.access().connect_console_logins(app.part());
    let services = Services {
        platform_access: platform.access().clone(),
        admins: app.part(),
        api_keys: app.part(),
        hashing: app.part(),
        login_limiter: app.part(),
        counters: app.part(),
        requests_max: port.limits.requests_max,
        is_https: port.is_https,
        version: app.part::<Arc<NodeInfo>>().version.as_str().into(),
    };
    routes.add(thingsboard::endpoints(), &ServiceState::new(services))
}
