//! The OpenAPI document of this interface, where ThingsBoard has its own.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::failure::{ErrorBody, Failure};
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::openapi::{About, document};

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
        Endpoint::get("/v3/api-docs", "api_docs", docs)
            .tag("Documentation")
            .says("This document", "OpenAPI 3.1.")
            .needs(Need::NoPerson)
            .returns_json("The document."),
    ]
}

async fn docs(State(app): State<App>) -> Result<Response, Failure> {
    let world = app.world().ok_or_else(Failure::not_found)?;
    let make = || Bytes::from(document(&ABOUT, &super::endpoints(), &app.node().version).to_string());
    let document = world.docs().get_or_init(make).clone();
    Ok(([(header::CONTENT_TYPE, "application/json")], document).into_response())
}
