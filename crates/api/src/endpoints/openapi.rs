//! The OpenAPI document, made once.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::openapi::{OWN, document};
use crate::routes;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/openapi.json", "openapi", openapi)
            .tag("Node")
            .says("This document", "OpenAPI 3.1.")
            .needs(Need::Nothing)
            .returns::<serde_json::Value>("The document."),
    ]
}

async fn openapi(State(app): State<App>) -> Response {
    let make = || Bytes::from(document(&OWN, &routes::endpoints(), &app.node().version).to_string());
    let document = app.openapi().get_or_init(make).clone();
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}
