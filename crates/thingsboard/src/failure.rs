//! Errors in ThingsBoard's format: `{"status": 404, "message": "…", "errorCode": 32, "timestamp": …}`. Clients evaluate
//! the status and the code, and some the message.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use platform::entities::EntityError;
use platform::repository::RepositoryError;
use platform::{IngestError, PageError, PlatformOpenError};
use schemars::JsonSchema;
use serde::Serialize;
use timeseries::StoreError;
use tracing::error;
use web::problem::HttpProblem;

/// Codes of ThingsBoard's `ThingsboardErrorCode`, each with an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThingsboardErrorCode {
    General = 2,
    Authentication = 10,
    TokenExpired = 11,
    PermissionDenied = 20,
    InvalidArguments = 30,
    BadRequest = 31,
    NotFound = 32,
    TooManyRequests = 33,
    VersionConflict = 35,
    EntitiesLimit = 41,
    Database = 46,
}

impl ThingsboardErrorCode {
    fn status(self) -> StatusCode {
        match self {
            ThingsboardErrorCode::General | ThingsboardErrorCode::Database => StatusCode::INTERNAL_SERVER_ERROR,
            ThingsboardErrorCode::Authentication | ThingsboardErrorCode::TokenExpired => StatusCode::UNAUTHORIZED,
            ThingsboardErrorCode::PermissionDenied | ThingsboardErrorCode::EntitiesLimit => StatusCode::FORBIDDEN,
            ThingsboardErrorCode::InvalidArguments | ThingsboardErrorCode::BadRequest => StatusCode::BAD_REQUEST,
            ThingsboardErrorCode::NotFound => StatusCode::NOT_FOUND,
            ThingsboardErrorCode::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            ThingsboardErrorCode::VersionConflict => StatusCode::CONFLICT,
        }
    }
}

#[derive(Debug)]
pub struct ThingsboardError {
    status: StatusCode,
    code: ThingsboardErrorCode,
    message: String,
    retry_after_s: Option<u64>,
}

/// An error.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// HTTP status code.
    status: u16,
    /// Description of the error.
    message: String,
    /// 2 general, 10 authentication, 11 token expired, 20 permission denied, 30 invalid arguments, 31 bad request, 32
    /// not
    /// found, 33 too many requests, 35 version conflict, 41 too many entities, 46 database error.
    error_code: u8,
    /// Time of the error, in milliseconds since 1970.
    timestamp: u64,
}

impl ThingsboardError {
    pub fn new(code: ThingsboardErrorCode, message: impl Into<String>) -> ThingsboardError {
        ThingsboardError {
            status: code.status(),
            code,
            message: message.into(),
            retry_after_s: None,
        }
    }

    pub fn bad_request(message: impl Into<String>) -> ThingsboardError {
        ThingsboardError::new(ThingsboardErrorCode::BadRequest, message)
    }

    pub fn permission() -> ThingsboardError {
        ThingsboardError::new(
            ThingsboardErrorCode::PermissionDenied,
            "You don't have permission to perform this operation!",
        )
    }

    pub fn unauthorized() -> ThingsboardError {
        ThingsboardError::new(ThingsboardErrorCode::Authentication, "Authentication failed")
    }

    pub fn not_found() -> ThingsboardError {
        ThingsboardError::new(ThingsboardErrorCode::NotFound, "Requested item wasn't found!")
    }

    pub fn with_status(mut self, status: StatusCode) -> ThingsboardError {
        self.status = status;
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> ThingsboardError {
        self.retry_after_s = Some(seconds);
        self
    }

    pub fn code(&self) -> ThingsboardErrorCode {
        self.code
    }

    pub fn is_permission(&self) -> bool {
        self.code == ThingsboardErrorCode::PermissionDenied
    }

    /// Whether the entity is missing, of another tenant, or not accessible to the user.
    pub fn hides_entity(&self) -> bool {
        self.is_permission() || self.code == ThingsboardErrorCode::NotFound
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// An internal error. Its causes are only logged.
    fn internal(error: &dyn std::error::Error) -> ThingsboardError {
        error!(error = %ErrorSources(error), "request of the device platform failed");
        ThingsboardError::new(ThingsboardErrorCode::General, error.to_string())
    }
}

struct ErrorSources<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for ErrorSources<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl IntoResponse for ThingsboardError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            status: self.status.as_u16(),
            message: self.message,
            error_code: self.code as u8,
            timestamp: web::unix_ms(std::time::SystemTime::now()),
        };
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<EntityError> for ThingsboardError {
    fn from(error: EntityError) -> ThingsboardError {
        match &error {
            EntityError::Invalid(_) => ThingsboardError::bad_request(error.to_string()),
            EntityError::NotFound => ThingsboardError::not_found(),
            EntityError::Limit(_) => ThingsboardError::new(ThingsboardErrorCode::EntitiesLimit, error.to_string()),
            EntityError::Version(_) => ThingsboardError::new(ThingsboardErrorCode::VersionConflict, error.to_string()),
            EntityError::Repository(RepositoryError::Storage { .. }) => ThingsboardError {
                code: ThingsboardErrorCode::Database,
                ..ThingsboardError::internal(&error)
            },
            EntityError::Repository(_) => ThingsboardError::internal(&error),
        }
    }
}

impl From<RepositoryError> for ThingsboardError {
    fn from(error: RepositoryError) -> ThingsboardError {
        EntityError::from(error).into()
    }
}

impl From<PlatformOpenError> for ThingsboardError {
    fn from(error: PlatformOpenError) -> ThingsboardError {
        match error {
            PlatformOpenError::Repository(error) => error.into(),
            PlatformOpenError::Chain { source, .. } => ThingsboardError::bad_request(source.to_string()),
        }
    }
}

impl From<PageError> for ThingsboardError {
    fn from(error: PageError) -> ThingsboardError {
        ThingsboardError::bad_request(error.to_string())
    }
}

impl From<StoreError> for ThingsboardError {
    fn from(error: StoreError) -> ThingsboardError {
        match error {
            StoreError::Query(error) => ThingsboardError::bad_request(error.to_string()),
            error => ThingsboardError::internal(&error),
        }
    }
}

impl From<IngestError> for ThingsboardError {
    fn from(error: IngestError) -> ThingsboardError {
        ThingsboardError::internal(&error).with_status(StatusCode::SERVICE_UNAVAILABLE)
    }
}

/// Errors of the HTTP layer.
impl From<HttpProblem> for ThingsboardError {
    fn from(problem: HttpProblem) -> ThingsboardError {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = if status.is_client_error() {
            ThingsboardErrorCode::BadRequest
        } else {
            ThingsboardErrorCode::General
        };
        ThingsboardError::new(code, problem.detail).with_status(status)
    }
}
