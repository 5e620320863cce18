//! Every endpoint there is. The router and the OpenAPI document are both made from this list.

use axum::Router;

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::endpoints;

pub fn endpoints() -> Vec<Endpoint> {
    let mut all = endpoints::health::endpoints();
    all.extend(endpoints::stats::endpoints());
    all
}

pub fn router(app: &App) -> Router {
    let mut router = Router::new();
    for endpoint in endpoints() {
        let (path, route) = endpoint.into_route(app);
        router = router.route(path, route);
    }
    router.with_state(app.clone())
}
