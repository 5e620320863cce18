//! What an error of PostgreSQL means for a record, by its code (SQLSTATE).
//!
//! | code | means |
//! |---|---|
//! | 21, 22, 23, 44, 54, P0 | the row's fault: refused |
//! | 40, 55, 57014 | another transaction's, or time is over: sent again, others go on |
//! | 42, 28, 3D, 3F, 08, 25, 53, 57, 58, all others; no code | not now: the table is missing, the user may not, the server is going, ...: everything waits |
//!
//! A statement that is wrong for every row does not refuse rows one by one: nothing is lost until somebody mends it.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::isolate::Part;
use crate::sink::Failure;

/// What it means for a part of a batch. `at`: the record that failed, if that is known.
pub(super) fn part(error: &Error, at: Option<usize>) -> Part {
    let reason = describe(error);
    let Some(state) = error.code() else {
        return Part::Failed(Failure::Away(reason));
    };
    if *state == SqlState::QUERY_CANCELED {
        return Part::Failed(Failure::Busy(reason));
    }
    match &state.code()[..2] {
        "21" | "22" | "23" | "44" | "54" | "P0" => Part::Poisoned { at, reason },
        "40" | "55" => Part::Failed(Failure::Busy(reason)),
        _ => Part::Failed(Failure::Away(reason)),
    }
}

/// For an operator: the server's words and code, or what happened below.
pub(super) fn describe(error: &Error) -> String {
    let Some(server) = error.as_db_error() else {
        return match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
    };
    let mut text = format!("{} (SQLSTATE {})", server.message(), server.code().code());
    // The detail of a violated constraint shows the values, which is what an operator needs to find the message.
    for more in [server.detail(), server.hint()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}
