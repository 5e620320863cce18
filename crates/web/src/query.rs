//! Query parameters as typed values. Unknown parameters are rejected with a suggestion.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::body::describe;
use crate::problem::HttpProblem;

pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, HttpProblem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Params(value)),
            Err(rejection) => {
                let text = rejection.body_text();
                let message = text
                    .strip_prefix("Failed to deserialize query string: ")
                    .unwrap_or(&text);
                // Either `message` or `field: message`.
                let (field, message) = match message.split_once(": ") {
                    Some((field, rest)) if !field.contains(' ') => (field, rest),
                    _ => ("", message),
                };
                Err(describe(message, field))
            }
        }
    }
}
