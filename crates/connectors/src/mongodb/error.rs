//! Why a command has no result.

use std::fmt;

use super::bson::{BsonDocument, MalformedBson};

/// Codes of a server that is not the right one any more, or stops: another connection may help.
const OUTDATED: [i64; 11] = [6, 7, 89, 91, 189, 391, 9001, 10107, 11600, 11602, 13435];
/// Codes of a server that cannot execute a command, whatever its values are: not authorized, login failed, time limit,
/// interrupted, and those of a cluster without the needed members.
const FAILED: [i64; 9] = [13, 18, 50, 70, 133, 134, 202, 262, 11601];

/// Maximum length of a code's name.
const NAME_BYTES_MAX: usize = 64;

/// The text contains no credentials and no values of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MongoError {
    /// No server can be reached, or the connection is lost.
    Lost(String),
    /// The server does not execute the command, whatever its values are.
    Failed(String),
    /// The server has answered, and its answer cannot be used. Values of a client can cause it.
    Unusable(String),
}

impl MongoError {
    /// Returns the error of an answer. Its message is left out: some servers repeat the whole command in it.
    pub(super) fn of_answer(answer: &BsonDocument) -> MongoError {
        let code = answer.get("code").and_then(super::Bson::as_f64).unwrap_or_default() as i64;
        let is_name =
            |name: &&str| name.len() <= NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let name = answer.text("codeName").filter(is_name).unwrap_or("an error");
        let hint = match code {
            13 => ": the user may not read the collection, or a user and a password are needed",
            50 => ": the query takes too long; an index may help",
            _ => "",
        };
        let text = format!("the server answers with {name} ({code}){hint}");
        match code {
            code if OUTDATED.contains(&code) => MongoError::Lost(text),
            code if FAILED.contains(&code) => MongoError::Failed(text),
            _ => MongoError::Unusable(text),
        }
    }

    /// Adds the server to the text.
    pub(super) fn of_server(self, server: &str) -> MongoError {
        let named = |reason: String| format!("{server}: {reason}");
        match self {
            MongoError::Lost(reason) => MongoError::Lost(named(reason)),
            MongoError::Failed(reason) => MongoError::Failed(named(reason)),
            MongoError::Unusable(reason) => MongoError::Unusable(named(reason)),
        }
    }
}

impl From<MalformedBson> for MongoError {
    fn from(error: MalformedBson) -> MongoError {
        MongoError::Unusable(error.to_string())
    }
}

impl fmt::Display for MongoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MongoError::Lost(reason) | MongoError::Failed(reason) | MongoError::Unusable(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for MongoError {}
