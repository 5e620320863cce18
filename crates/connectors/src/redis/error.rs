//! What an error of Redis means for a record.
//!
//! | answer begins with | means |
//! |---|---|
//! | WRONGTYPE, CROSSSLOT, NOPERM, ERR | refused |
//! | TRYAGAIN, ASK | sent again, others go on |
//! | MOVED, READONLY, LOADING, MASTERDOWN, CLUSTERDOWN, OOM, MISCONF, BUSY, NOREPLICAS, NOAUTH, WRONGPASS, all others; no answer | everything waits |

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::sink::Failure;

pub(super) fn failure(error: &RedisError) -> Failure {
    let reason = describe(error);
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::CrossSlot | ServerErrorKind::NoPerm) => Failure::Refused(reason),
        ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::Ask) => Failure::Busy(reason),
        // Sometimes the client has cut off the code that says what it is.
        ErrorKind::Server(ServerErrorKind::ResponseError) if !is_of_the_server(error) => Failure::Refused(reason),
        _ if matches!(error.code(), Some("WRONGTYPE" | "ERR")) => Failure::Refused(reason),
        _ => Failure::Away(reason),
    }
}

/// An `ERR` that says something of the server, not of the command.
fn is_of_the_server(error: &RedisError) -> bool {
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

/// For an operator: the server's words, or what happened below.
pub(super) fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) if !detail.starts_with(code) => format!("{code} {detail}"),
        (_, Some(detail)) => format!("{}: {detail}", error.category()),
        _ => error.to_string(),
    }
}
