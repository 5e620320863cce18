//! Classifies errors of Redis.
//!
//! | response begins with | result |
//! |---|---|
//! | WRONGTYPE, CROSSSLOT, NOPERM, ERR | rejected |
//! | TRYAGAIN, ASK | retried, other records continue |
//! | MOVED, READONLY, LOADING, MASTERDOWN, CLUSTERDOWN, OOM, MISCONF, BUSY | all records wait |
//! | NOREPLICAS, NOAUTH, WRONGPASS, all others; no response | all records wait |

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::sink::DeliveryFailure;

pub(super) fn failure(error: &RedisError) -> DeliveryFailure {
    let reason = describe(error);
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::CrossSlot | ServerErrorKind::NoPerm) => DeliveryFailure::Refused(reason),
        ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::Ask) => DeliveryFailure::Temporary(reason),
        // The client sometimes removes the error code.
        ErrorKind::Server(ServerErrorKind::ResponseError) if !is_server_error(error) => {
            DeliveryFailure::Refused(reason)
        }
        _ if matches!(error.code(), Some("WRONGTYPE" | "ERR")) => DeliveryFailure::Refused(reason),
        _ => DeliveryFailure::Unreachable(reason),
    }
}

/// Returns whether an `ERR` concerns the server instead of the command.
fn is_server_error(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    [
        "max number of clients",
        "max clients",
        "Client sent AUTH",
        "AUTH failed",
    ]
    .iter()
    .any(|text| detail.contains(text))
}

/// Returns the error as a text for operators: the server's message, or the client's.
pub(super) fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) if !detail.starts_with(code) => format!("{code} {detail}"),
        (_, Some(detail)) => format!("{}: {detail}", error.category()),
        _ => error.to_string(),
    }
}
