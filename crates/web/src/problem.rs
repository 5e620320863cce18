//! All errors of the API are problem details [RFC 9457] with the type `application/problem+json`.
//!
//! `type` is a URN per kind, so that programs need not parse the text. Details are for people and never contain a
//! secret.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

pub const CONTENT_TYPE: &str = "application/problem+json";

/// An error [RFC 9457].
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub struct HttpProblem {
    /// Kind of problem, as a URN.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the kind; the same for all problems of a kind.
    pub title: Cow<'static, str>,
    /// HTTP status code.
    #[schemars(range(min = 400, max = 599))]
    pub status: u16,
    /// Description of this error.
    pub detail: String,
    /// Position in the body, query or path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Allowed values of the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// Configuration that sets the value: its key and location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// All errors, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    #[serde(skip)]
    #[schemars(skip)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// One of several errors in a body.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FieldError {
    /// Position in the body, such as `rules[3]`.
    pub field: String,
    /// Description of the error.
    pub detail: String,
}

impl HttpProblem {
    pub fn new(status: StatusCode, kind: &str, title: &'static str, detail: impl Into<String>) -> HttpProblem {
        HttpProblem {
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

    pub fn bad_request(detail: impl Into<String>) -> HttpProblem {
        HttpProblem::new(StatusCode::BAD_REQUEST, "bad-request", "Malformed request", detail)
    }

    /// A well-formed request with an invalid value.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> HttpProblem {
        HttpProblem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid-value",
            "Invalid value",
            detail,
        )
        .at(field)
    }

    pub fn unauthorized(detail: &'static str) -> HttpProblem {
        HttpProblem::new(StatusCode::UNAUTHORIZED, "login-required", "Login required", detail)
            .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    pub fn forbidden(detail: impl Into<String>) -> HttpProblem {
        HttpProblem::new(StatusCode::FORBIDDEN, "forbidden", "Not permitted", detail)
    }

    pub fn password_change_required() -> HttpProblem {
        HttpProblem::new(
            StatusCode::FORBIDDEN,
            "password-change-required",
            "Password change required",
            "this is a one-time password; set your own with POST /api/v1/password, then log in again",
        )
    }

    pub fn totp_set_up_required() -> HttpProblem {
        HttpProblem::new(
            StatusCode::FORBIDDEN,
            "totp-set-up-required",
            "Second factor required",
            "this server requires a second factor (api.require_totp); set it up in the console or with POST /api/v1/totp",
        )
    }

    /// The password was right.
    pub fn totp_required() -> HttpProblem {
        HttpProblem::new(
            StatusCode::UNAUTHORIZED,
            "totp-required",
            "Code required",
            "this user has a second factor; send the code of the authenticator app or a recovery code as `code`. Programs use an API key",
        )
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// The password was right.
    pub fn wrong_totp_code() -> HttpProblem {
        HttpProblem::new(
            StatusCode::UNAUTHORIZED,
            "totp-wrong-code",
            "Wrong code",
            "the code is wrong, has expired, or was used already; wait for the next code of the authenticator app",
        )
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
        .at("code")
    }

    pub fn not_found(detail: impl Into<String>) -> HttpProblem {
        HttpProblem::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub fn conflict(kind: &str, title: &'static str, detail: impl Into<String>) -> HttpProblem {
        HttpProblem::new(StatusCode::CONFLICT, kind, title, detail)
    }

    pub fn unavailable(detail: impl Into<String>) -> HttpProblem {
        HttpProblem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "Temporarily unavailable",
            detail,
        )
        .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    pub fn internal(detail: impl Into<String>) -> HttpProblem {
        HttpProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
    }

    /// An address with too many wrong secrets.
    pub fn too_many_failures(detail: &str, wait: Duration) -> HttpProblem {
        HttpProblem::of_status(
            StatusCode::TOO_MANY_REQUESTS,
            format!("{detail}; try again in {} s", wait.as_secs() + 1),
        )
        .with_header(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1))
    }

    /// For requests that the HTTP layer rejects.
    pub fn of_status(status: StatusCode, detail: String) -> HttpProblem {
        let title = status.canonical_reason().unwrap_or("Error");
        let kind = title.to_ascii_lowercase().replace(' ', "-");
        HttpProblem::new(status, &kind, title, detail)
    }

    pub fn at(mut self, field: impl Into<String>) -> HttpProblem {
        self.field = Some(field.into());
        self
    }

    pub fn expected(mut self, expected: impl Into<String>) -> HttpProblem {
        self.expected = Some(expected.into());
        self
    }

    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> HttpProblem {
        self.headers.push((name, value));
        self
    }
}

impl IntoResponse for HttpProblem {
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
