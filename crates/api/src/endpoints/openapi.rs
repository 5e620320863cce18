//! The OpenAPI document, generated once.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::RequiredAccess;
use crate::openapi::{OWN, document};
use crate::routes;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/openapi.json", "openapi", openapi)
            .tag("Node")
            .describe("OpenAPI document", "This document, in OpenAPI 3.1.")
            .needs(RequiredAccess::Nothing)
            .returns::<serde_json::Value>("The document."),
    ]
}

/// Returns the OpenAPI document of the project's own interface.
pub fn own_document(version: &str) -> serde_json::Value {
    document(&OWN, &routes::endpoints(), version)
}

async fn openapi(State(app): State<App>) -> Response {
    let make = || Bytes::from(own_document(&app.node().version).to_string());
    let document = app.openapi().get_or_init(make).clone();
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}
