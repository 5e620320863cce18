//! The OpenAPI document, generated once.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use web::guard::RequiredAccess;
use web::openapi::{About, document};
use web::problem::{CONTENT_TYPE, HttpProblem};

use crate::app::{Endpoint, OpenApiDocument};
use crate::config::NodeInfo;
use crate::routes;

/// The server's own API.
const OWN: About = About {
    title: "tidewire",
    description: DESCRIPTION,
    problem: |generator| generator.subschema_for::<HttpProblem>(),
    problem_type: CONTENT_TYPE,
    security_schemes: || json!({ "token": { "type": "http", "scheme": "bearer" } }),
};

const DESCRIPTION: &str = "Monitoring and administration of a tidewire node. Log in with `POST /api/v1/login` and \
    send the token as `Authorization: Bearer <token>`. Errors are problem details (RFC 9457).";

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/openapi.json", "openapi", RequiredAccess::Nothing, openapi)
            .tag("Node")
            .describe("OpenAPI document", "This document, in OpenAPI 3.1.")
            .returns::<Value>("The document."),
    ]
}

/// Returns the OpenAPI document of the project's own interface.
pub fn own_document(version: &str) -> Value {
    document(&OWN, routes::operations(), version)
}

async fn openapi(State(node): State<Arc<NodeInfo>>, State(document): State<Arc<OpenApiDocument>>) -> Response {
    let make = || Bytes::from(own_document(&node.version).to_string());
    let text = document.0.get_or_init(make).clone();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
