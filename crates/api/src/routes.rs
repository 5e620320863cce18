//! The list of all endpoints. The router and the OpenAPI document are generated from it.

use std::sync::Arc;

use axum::Router;
use thingsboard::Services;
use thingsboard::device_api::{self, DeviceServices};
use web::endpoint::{Operation, Routes};

use crate::app::{App, Endpoint};
use crate::endpoints;

/// The server's own API.
pub fn endpoints() -> Vec<Endpoint> {
    [
        endpoints::console::endpoints(),
        endpoints::book::endpoints(),
        endpoints::health::endpoints(),
        endpoints::metrics::endpoints(),
        endpoints::openapi::endpoints(),
        endpoints::login::endpoints(),
        endpoints::console_users::endpoints(),
        endpoints::api_keys::endpoints(),
        endpoints::logs::endpoints(),
        endpoints::alarms::endpoints(),
        endpoints::stats::endpoints(),
        endpoints::history::endpoints(),
        endpoints::configuration::endpoints(),
        endpoints::clients::endpoints(),
        endpoints::trace::endpoints(),
        endpoints::waiting::endpoints(),
        endpoints::subscriptions::endpoints(),
        endpoints::retained::endpoints(),
        endpoints::publish::endpoints(),
        endpoints::mqtt::endpoints(),
        endpoints::users::endpoints(),
        endpoints::acl::endpoints(),
        endpoints::banned::endpoints(),
        endpoints::certificates::endpoints(),
        endpoints::backups::endpoints(),
        endpoints::benchmarks::endpoints(),
        endpoints::access_test::endpoints(),
        endpoints::rules::endpoints(),
        endpoints::tail::endpoints(),
        endpoints::connectors::endpoints(),
        endpoints::actions::endpoints(),
        endpoints::sources::endpoints(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Descriptions of the operations of the server's own API, with the device API.
pub fn operations() -> impl Iterator<Item = Operation> {
    let of_devices = device_api::endpoints()
        .into_iter()
        .map(|endpoint| endpoint.into_operation());
    endpoints().into_iter().map(Endpoint::into_operation).chain(of_devices)
}

pub fn router(app: &App) -> Router {
    with_platform(routes(app).add(endpoints(), app), app)
}

/// The router of the device platform alone, for users and devices.
pub fn platform_router(app: &App) -> Router {
    with_platform(routes(app), app)
}

fn routes(app: &App) -> Routes {
    Routes::new(app.guard().clone(), app.config().limits.body_timeout)
}

/// Adds the interfaces of the device platform.
fn with_platform(routes: Routes, app: &App) -> Router {
    let of_devices = DeviceServices {
        devices: app.config().devices.clone(),
        login_limiter: app.login_limiter().clone(),
        request_timeout: app.config().limits.request_timeout,
    };
    let routes = routes.add(device_api::endpoints(), &Arc::new(of_devices));
    let Some(platform_access) = app.platform_access().cloned() else {
        return routes.into_router();
    };
    let services = Services {
        platform_access,
        admins: app.guard().admins.clone(),
        api_keys: app.guard().api_keys.clone(),
        hashing: app.hashing().clone(),
        login_limiter: app.login_limiter().clone(),
        counters: app.counters().clone(),
        requests_max: app.config().limits.requests_max,
        is_https: app.config().tls.is_some(),
        version: app.node().version.clone(),
    };
    routes.add(thingsboard::endpoints(), &Arc::new(services)).into_router()
}
