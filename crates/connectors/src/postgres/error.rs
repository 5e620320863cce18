//! Classifies errors of PostgreSQL by their SQLSTATE code.
//!
//! | code | result |
//! |---|---|
//! | 21, 22, 23, 44, 54, P0 | error of the row: rejected |
//! | 40, 55, 57014 | conflict with another transaction, or timeout: retried, other records continue |
//! | 42, 28, 3D, 3F, 08, 25, 53, 57, 58, all others; no code | setup or server error: all records wait |
//!
//! A statement that fails for every row does not reject the rows one by one: they wait until the statement or the table
//! is corrected.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::isolate::PartResult;
use crate::sink::DeliveryFailure;

/// Returns the result for a part of a batch. `at` is the failed record, if it is known.
pub(super) fn part(error: &Error, at: Option<usize>) -> PartResult {
    let reason = describe(error);
    let Some(state) = error.code() else {
        return PartResult::Failed(DeliveryFailure::Unreachable(reason));
    };
    if *state == SqlState::QUERY_CANCELED {
        return PartResult::Failed(DeliveryFailure::Temporary(reason));
    }
    match &state.code()[..2] {
        "21" | "22" | "23" | "44" | "54" | "P0" => PartResult::Rejected { at, reason },
        "40" | "55" => PartResult::Failed(DeliveryFailure::Temporary(reason)),
        _ => PartResult::Failed(DeliveryFailure::Unreachable(reason)),
    }
}

/// Returns the error as a text for operators: the server's message and code, or the client's error.
pub(super) fn describe(error: &Error) -> String {
    let Some(server) = error.as_db_error() else {
        return match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
    };
    let mut text = format!("{} (SQLSTATE {})", server.message(), server.code().code());
    // The detail of a violated constraint shows the values, with which an operator can find the message.
    for more in [server.detail(), server.hint()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}
