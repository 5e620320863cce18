//! Every endpoint there is. The router and the OpenAPI document are both made from this list.

use axum::Router;

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::endpoints;

pub fn endpoints() -> Vec<Endpoint> {
    [
        endpoints::page::endpoints(),
        endpoints::health::endpoints(),
        endpoints::metrics::endpoints(),
        endpoints::openapi::endpoints(),
        endpoints::login::endpoints(),
        endpoints::stats::endpoints(),
        endpoints::clients::endpoints(),
        endpoints::subscriptions::endpoints(),
        endpoints::retained::endpoints(),
        endpoints::publish::endpoints(),
        endpoints::users::endpoints(),
        endpoints::acl::endpoints(),
        endpoints::rules::endpoints(),
        endpoints::tail::endpoints(),
        endpoints::connectors::endpoints(),
        endpoints::actions::endpoints(),
        endpoints::sources::endpoints(),
        crate::device_api::endpoints(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub fn router(app: &App) -> Router {
    let mut router = Router::new();
    for endpoint in endpoints() {
        let (path, route) = endpoint.into_route(app);
        router = router.route(path, route);
    }
    router.with_state(app.clone())
}
