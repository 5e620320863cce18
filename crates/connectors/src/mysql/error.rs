//! Describes and classifies errors of MySQL and MariaDB.

use mysql_async::{DriverError, Error, IoError, ServerError};

/// Codes of servers that end a connection: ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED of MariaDB, and
/// ER_CLIENT_INTERACTION_TIMEOUT of MySQL.
const ENDED: [u16; 3] = [1053, 1927, 4031];

/// Codes of a statement that the server no longer knows, for example through a proxy: ER_UNKNOWN_STMT_HANDLER and
/// ER_NEED_REPREPARE.
const NOT_PREPARED: [u16; 2] = [1243, 1615];

/// Codes of texts that the character set of a column does not have: ER_CANT_AGGREGATE_2COLLATIONS,
/// ER_CANT_AGGREGATE_3COLLATIONS, ER_CANT_AGGREGATE_NCOLLATIONS, ER_INVALID_CHARACTER_STRING,
/// ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, and ER_CANNOT_CONVERT_STRING of MySQL.
const NOT_IN_CHARACTER_SET: [u16; 6] = [1267, 1270, 1271, 1300, 1366, 3854];

/// Returns the error as a text for operators. It contains no value of a client.
pub(super) fn describe(error: &Error) -> String {
    match error {
        Error::Server(ServerError { code, state, message }) => format!("{message} (error {code}, SQLSTATE {state})"),
        Error::Io(IoError::Io(error)) => error.to_string(),
        Error::Io(IoError::Tls(error)) => format!("TLS: {error}"),
        Error::Driver(DriverError::CleartextPluginDisabled) => {
            "the server wants the password in clear text (mysql_clear_password), which needs `tls` and `verify`"
                .to_owned()
        }
        Error::Driver(DriverError::NoClientSslFlagFromServer) => "the server does not support TLS".to_owned(),
        Error::Driver(DriverError::LocalInfile(_)) => {
            "the server wants a file of this machine (LOAD DATA LOCAL INFILE), which is never sent".to_owned()
        }
        Error::Driver(DriverError::MixedParams) => {
            "the query contains `:` before a name: only placeholders such as ${username} are possible".to_owned()
        }
        Error::Driver(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Returns whether a new connection may succeed: the old one is lost, or does not know the statement.
pub(super) fn is_outdated(error: &Error) -> bool {
    match error {
        Error::Server(error) => ENDED.contains(&error.code) || NOT_PREPARED.contains(&error.code),
        Error::Io(_) | Error::Driver(DriverError::ConnectionClosed) => true,
        _ => false,
    }
}

/// Returns whether the database refuses a value of the client: SQLSTATE class 22 (data exception), or a text that the
/// column cannot have. `is_ascii`: every column can have the values, so the statement is wrong.
pub(super) fn is_invalid_value(error: &Error, is_ascii: bool) -> bool {
    let Error::Server(error) = error else { return false };
    error.state.starts_with("22") || (!is_ascii && NOT_IN_CHARACTER_SET.contains(&error.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: u16, state: &str) -> Error {
        Error::Server(ServerError {
            code,
            state: state.to_owned(),
            message: "no".to_owned(),
        })
    }

    #[test]
    fn errors_are_classified() {
        for (error, is_lost, is_value) in [
            (server(1927, "70100"), true, false),
            (server(1243, "HY000"), true, false),
            (server(1146, "42S02"), false, false),
            (server(1292, "22007"), false, true),
            (server(1267, "HY000"), false, true),
            (Error::Driver(DriverError::ConnectionClosed), true, false),
            (Error::Driver(DriverError::PacketTooLarge), false, false),
        ] {
            assert_eq!(is_outdated(&error), is_lost, "{error}");
            assert_eq!(is_invalid_value(&error, false), is_value, "{error}");
        }
        assert!(!is_invalid_value(&server(1267, "HY000"), true));
        assert_eq!(describe(&server(1146, "42S02")), "no (error 1146, SQLSTATE 42S02)");
    }
}
