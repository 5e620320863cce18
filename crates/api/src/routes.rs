//! The list of all endpoints. The router and the OpenAPI document are generated from it.

use std::sync::Arc;

use axum::Router;
use web::endpoint::{Operation, Routes};
use web::scope::Scope;

use crate::app::{App, Endpoint};
use crate::config::HttpPort;
use crate::endpoints;
use crate::platform_routes;

/// The server's own API. Keys with scopes cannot use an endpoint without a scope, unless it needs no role.
pub fn endpoints() -> Vec<Endpoint> {
    [
        endpoints::console::endpoints(),
        endpoints::book::endpoints(),
        endpoints::health::endpoints(),
        in_scope(Scope::Monitoring, endpoints::metrics::endpoints()),
        endpoints::openapi::endpoints(),
        endpoints::login::endpoints(),
        endpoints::logins::endpoints(),
        endpoints::totp::endpoints(),
        endpoints::platform_login::endpoints(),
        endpoints::single_sign_on::endpoints(),
        endpoints::console_users::endpoints(),
        endpoints::api_keys::endpoints(),
        endpoints::logs::endpoints(),
        in_scope(Scope::Monitoring, endpoints::alarms::endpoints()),
        in_scope(Scope::Monitoring, endpoints::stats::endpoints()),
        in_scope(Scope::Monitoring, endpoints::history::endpoints()),
        in_scope(Scope::System, endpoints::configuration::endpoints()),
        in_scope(Scope::Connections, endpoints::clients::endpoints()),
        in_scope(Scope::Connections, endpoints::trace::endpoints()),
        in_scope(Scope::Connections, endpoints::waiting::endpoints()),
        in_scope(Scope::Connections, endpoints::subscriptions::endpoints()),
        in_scope(Scope::Connections, endpoints::retained::endpoints()),
        in_scope(Scope::Publish, endpoints::publish::endpoints()),
        endpoints::mqtt::endpoints(),
        in_scope(Scope::AccessControl, endpoints::users::endpoints()),
        in_scope(Scope::AccessControl, endpoints::acl::endpoints()),
        in_scope(Scope::AccessControl, endpoints::banned::endpoints()),
        in_scope(Scope::System, endpoints::certificates::endpoints()),
        in_scope(Scope::System, endpoints::backups::endpoints()),
        in_scope(Scope::System, endpoints::benchmarks::endpoints()),
        in_scope(Scope::AccessControl, endpoints::access_test::endpoints()),
        in_scope(Scope::AccessControl, endpoints::access_providers::endpoints()),
        in_scope(Scope::DataIntegration, endpoints::rules::endpoints()),
        in_scope(Scope::DataIntegration, endpoints::tail::endpoints()),
        in_scope(Scope::DataIntegration, endpoints::connectors::endpoints()),
        in_scope(Scope::DataIntegration, endpoints::actions::endpoints()),
        in_scope(Scope::DataIntegration, endpoints::sources::endpoints()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Sets the scope that API keys with scopes need for these endpoints.
fn in_scope(scope: Scope, endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    endpoints.into_iter().map(|endpoint| endpoint.scope(scope)).collect()
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
