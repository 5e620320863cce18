//! The OpenAPI document of this interface, at ThingsBoard's path.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use web::guard::RequiredAccess;
use web::openapi::{About, document};

use super::failure::ErrorBody;
use super::platform_access::PlatformAccess;
use crate::services::{Endpoint, ServerVersion};

const ABOUT: About = About {
    title: "tidewire device platform",
    description: "ThingsBoard's REST interface. Log in with `POST /api/auth/login` and send the token as `X-Authorization: Bearer \
        <token>`, or an API key as `X-Authorization: ApiKey <key>`.",
    problem: |generator| generator.subschema_for::<ErrorBody>(),
    problem_type: "application/json",
    security_schemes: || {
        json!({
            "token": {"type": "apiKey", "in": "header", "name": "X-Authorization", "description": "Bearer <token>"},
            "key": {"type": "apiKey", "in": "header", "name": "X-Authorization", "description": "ApiKey <key>"},
        })
    },
};

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/v3/api-docs", "api_docs", RequiredAccess::Nothing, docs)
            .tag("Documentation")
            .describe("OpenAPI document", "This document, in OpenAPI 3.1.")
            .returns_json("The document."),
    ]
}

/// Returns the OpenAPI document of this interface.
pub fn platform_document(version: &str) -> serde_json::Value {
    let operations = super::endpoints().into_iter().map(Endpoint::into_operation);
    document(&ABOUT, operations, version)
}

async fn docs(
    State(ServerVersion(version)): State<ServerVersion>,
    State(access): State<Arc<PlatformAccess>>,
) -> Response {
    let make = || Bytes::from(platform_document(&version).to_string());
    let document = access.docs().get_or_init(make).clone();
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}
