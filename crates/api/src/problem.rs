//! The one shape of every error: problem details [RFC 9457] as `application/problem+json`.
//!
//! `type` is a URN per kind, so that a program need not read English. Details are for people and never hold a secret.

use std::borrow::Cow;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

pub const CONTENT_TYPE: &str = "application/problem+json";

/// An error [RFC 9457].
#[derive(Debug, Serialize, JsonSchema)]
pub struct Problem {
    /// Kind of problem, as a URN.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words; the same for every problem of the kind.
    pub title: Cow<'static, str>,
    /// HTTP status code.
    #[schemars(range(min = 400, max = 599))]
    pub status: u16,
    /// What happened this time.
    pub detail: String,
    /// Where in the body, the query or the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What would have been right there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// Configuration that pins a value: its key and where it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Everything that is wrong, when several things are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    #[serde(skip)]
    #[schemars(skip)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// One of several errors in a body.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FieldError {
    /// Where in the body, such as `rules[3]`.
    pub field: String,
    /// What is wrong there.
    pub detail: String,
}

impl Problem {
    pub fn new(status: StatusCode, kind: &str, title: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("urn:tidewire:problem:{kind}"),
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            expected: None,
            source: None,
            errors: Vec::new(),
            headers: Vec::new(),
        }
    }

    pub fn bad_request(detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "The request is malformed",
            detail,
        )
    }

    /// Well-formed, but not something that can be done.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid-value",
            "A value is not valid",
            detail,
        )
        .at(field)
    }

    pub fn unauthorized(detail: &'static str) -> Problem {
        Problem::new(
            StatusCode::UNAUTHORIZED,
            "login-required",
            "A login is required",
            detail,
        )
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    pub fn forbidden(detail: &'static str) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "This login may not do that", detail)
    }

    pub fn password_change_required() -> Problem {
        Problem::new(
            StatusCode::FORBIDDEN,
            "password-change-required",
            "The password has to be changed first",
            "somebody else has made this password; set one of your own with POST /api/v1/password, then log in again",
        )
    }

    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not-found", "There is no such thing", detail)
    }

    pub fn conflict(kind: &str, title: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, kind, title, detail)
    }

    pub fn unavailable(detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "The server cannot answer now",
            detail,
        )
        .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    pub fn internal(detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "The server failed",
            detail,
        )
    }

    /// For what the HTTP machinery refuses by itself.
    pub fn of_status(status: StatusCode, detail: String) -> Problem {
        let title = status.canonical_reason().unwrap_or("Error");
        let kind = title.to_ascii_lowercase().replace(' ', "-");
        Problem::new(status, &kind, title, detail)
    }

    pub fn at(mut self, field: impl Into<String>) -> Problem {
        self.field = Some(field.into());
        self
    }

    pub fn expected(mut self, expected: impl Into<String>) -> Problem {
        self.expected = Some(expected.into());
        self
    }

    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Problem {
        self.headers.push((name, value));
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let headers = std::mem::take(&mut self.headers);
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).expect("strings and numbers serialize");
        let mut response = (status, body).into_response();
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        response.headers_mut().extend(headers);
        response
    }
}
