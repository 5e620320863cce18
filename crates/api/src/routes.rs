//! The list of all endpoints. The router and the OpenAPI document are generated from it.

use std::sync::Arc;

use axum::Router;
use web::endpoint::{Operation, Routes};

use crate::app::{App, Endpoint};
use crate::config::HttpPort;
use crate::endpoints;
use crate::platform_routes;

/// The server's own API.
pub fn endpoints() -> Vec<Endpoint> {
    [
        endpoints::console::endpoints(),
        endpoints::book::endpoints(),
        endpoints::health::endpoints(),
        endpoints::metrics::endpoints(),
        endpoints::openapi::endpoints(),
        endpoints::login::endpoints(),
        endpoints::logins::endpoints(),
        endpoints::totp::endpoints(),
        endpoints::platform_login::endpoints(),
        endpoints::single_sign_on::endpoints(),
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
        endpoints::access_providers::endpoints(),
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
    let own = endpoints().into_iter().map(Endpoint::into_operation);
    own.chain(platform_routes::operations())
}

pub fn router(app: &App) -> Router {
    platform_routes::add_routes(routes(app).add(endpoints(), app), app).into_router()
}

/// The router of the device platform alone, for users and devices.
pub fn platform_router(app: &App) -> Router {
    platform_routes::add_routes(routes(app), app).into_router()
}

fn routes(app: &App) -> Routes {
    let port: Arc<HttpPort> = app.part();
    Routes::new(app.part(), port.limits.body_timeout)
}
