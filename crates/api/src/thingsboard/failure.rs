//! Why a request is refused, in ThingsBoard's shape: `{"status": 404, "message": "…", "errorCode": 32, "timestamp": …}`.
//! Scripts look at status and code, and some at the text.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use platform::entities::EntityError;
use platform::repository::RepositoryError;
use platform::{IngestError, OpenError, PageError};
use schemars::JsonSchema;
use serde::Serialize;
use timeseries::StoreError;
use tracing::error;

use crate::problem::Problem;

/// Numbers of ThingsBoard's `ThingsboardErrorCode`, with the status that goes with each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
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

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Code::General | Code::Database => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Authentication | Code::TokenExpired => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied | Code::EntitiesLimit => StatusCode::FORBIDDEN,
            Code::InvalidArguments | Code::BadRequest => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Code::VersionConflict => StatusCode::CONFLICT,
        }
    }
}

#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    code: Code,
    message: String,
    retry_after_s: Option<u64>,
}

/// Why the request was refused.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// HTTP status code.
    status: u16,
    /// What went wrong.
    message: String,
    /// 2 general, 10 authentication, 11 token expired, 20 permission denied, 30 invalid arguments, 31 bad request, 32 not
    /// found, 33 too many requests, 35 version conflict, 41 too many entities, 46 the database failed.
    error_code: u8,
    /// When, in milliseconds since 1970.
    timestamp: u64,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure {
            status: code.status(),
            code,
            message: message.into(),
            retry_after_s: None,
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Failure {
        Failure::new(Code::BadRequest, message)
    }

    pub fn permission() -> Failure {
        Failure::new(
            Code::PermissionDenied,
            "You don't have permission to perform this operation!",
        )
    }

    pub fn unauthorized() -> Failure {
        Failure::new(Code::Authentication, "Authentication failed")
    }

    pub fn not_found() -> Failure {
        Failure::new(Code::NotFound, "Requested item wasn't found!")
    }

    pub fn with_status(mut self, status: StatusCode) -> Failure {
        self.status = status;
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> Failure {
        self.retry_after_s = Some(seconds);
        self
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// What the server could not do; the cause is for the operator.
    fn internal(error: &dyn std::error::Error) -> Failure {
        error!(error = %Chain(error), "a request of the device platform failed");
        Failure::new(Code::General, error.to_string())
    }
}

struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
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

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            status: self.status.as_u16(),
            message: self.message,
            error_code: self.code as u8,
            timestamp: crate::app::unix_ms(std::time::SystemTime::now()),
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

impl From<EntityError> for Failure {
    fn from(error: EntityError) -> Failure {
        match &error {
            EntityError::Invalid(_) => Failure::bad_request(error.to_string()),
            EntityError::NotFound => Failure::not_found(),
            EntityError::Limit(_) => Failure::new(Code::EntitiesLimit, error.to_string()),
            EntityError::Version(_) => Failure::new(Code::VersionConflict, error.to_string()),
            EntityError::Repository(RepositoryError::Storage { .. }) => Failure {
                code: Code::Database,
                ..Failure::internal(&error)
            },
            EntityError::Repository(_) => Failure::internal(&error),
        }
    }
}

impl From<RepositoryError> for Failure {
    fn from(error: RepositoryError) -> Failure {
        EntityError::from(error).into()
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        match error {
            OpenError::Repository(error) => error.into(),
            OpenError::Chain { source, .. } => Failure::bad_request(source.to_string()),
        }
    }
}

impl From<PageError> for Failure {
    fn from(error: PageError) -> Failure {
        Failure::bad_request(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        match error {
            StoreError::Query(error) => Failure::bad_request(error.to_string()),
            error => Failure::internal(&error),
        }
    }
}

impl From<IngestError> for Failure {
    fn from(error: IngestError) -> Failure {
        Failure::internal(&error).with_status(StatusCode::SERVICE_UNAVAILABLE)
    }
}

/// What the HTTP machinery refuses.
impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = if status.is_client_error() {
            Code::BadRequest
        } else {
            Code::General
        };
        Failure::new(code, problem.detail).with_status(status)
    }
}
