//! The list of all endpoints. The router and the OpenAPI document are generated from it.

use axum::Router;

use crate::app::App;
use crate::device_api;
use crate::endpoint::Endpoint;
use crate::endpoints;
use crate::thingsboard;

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
        device_api::endpoints(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub fn router(app: &App) -> Router {
    serve(app, endpoints().into_iter().chain(platform_endpoints(app)))
}

/// The router of the device platform alone, for users and devices.
pub fn platform_router(app: &App) -> Router {
    serve(app, platform_endpoints(app).chain(device_api::endpoints()))
}

fn platform_endpoints(app: &App) -> impl Iterator<Item = Endpoint> {
    let endpoints = app.platform_access().map(|_| thingsboard::endpoints());
    endpoints.into_iter().flatten()
}

fn serve(app: &App, endpoints: impl Iterator<Item = Endpoint>) -> Router {
    let mut router = Router::new();
    for endpoint in endpoints {
        let (path, route) = endpoint.into_route(app);
        router = router.route(path, route);
    }
    router.with_state(app.clone())
}
