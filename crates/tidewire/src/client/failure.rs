//! How a client command ends when it does not end well.

use std::fmt;
use std::io;
use std::process::ExitCode;

use mqtt::ReasonCode;

use crate::output::{EXIT_FAILURE, EXIT_USAGE, print_error};

/// Exit code of mosquitto_sub at the end of `-W`.
const EXIT_TIMEOUT: u8 = 27;
/// Exit code that a shell reports for a program that SIGINT has ended.
const EXIT_INTERRUPTED: u8 = 130;

#[derive(Debug)]
pub enum ClientFailure {
    /// The arguments are invalid.
    Usage(String),
    /// The server cannot be reached.
    Connect(String),
    /// The connection was there and is gone. Worth another attempt.
    ConnectionLost(String),
    /// CONNACK said no; `code` is what the server sent, in the words of its version.
    Refused {
        code: u8,
        name: String,
    },
    /// The server violated the protocol.
    Protocol(String),
    /// The server said why it ended the connection.
    Disconnected {
        reason: ReasonCode,
        text: Option<String>,
    },
    Timeout,
    /// A signal came before everything was done.
    Interrupted(String),
    /// A file or a standard stream.
    Local(String),
    /// The operation failed and the error is already printed.
    AlreadyPrinted,
}

impl ClientFailure {
    pub fn local(what: &str, error: &io::Error) -> ClientFailure {
        ClientFailure::Local(format!("{what}: {error}"))
    }

    /// Says what happened, unless it is to be quiet, and gives the exit code.
    pub fn report(&self, is_quiet: bool) -> ExitCode {
        if !is_quiet && !matches!(self, ClientFailure::AlreadyPrinted) {
            print_error(self);
        }
        ExitCode::from(match self {
            ClientFailure::Usage(_) => EXIT_USAGE,
            ClientFailure::Refused { code, .. } => *code,
            ClientFailure::Timeout => EXIT_TIMEOUT,
            ClientFailure::Interrupted(_) => EXIT_INTERRUPTED,
            _ => EXIT_FAILURE,
        })
    }
}

impl fmt::Display for ClientFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientFailure::Usage(text) | ClientFailure::Connect(text) | ClientFailure::Local(text) => f.write_str(text),
            ClientFailure::ConnectionLost(text) => write!(f, "the connection was lost: {text}"),
            ClientFailure::Refused { code, name } => write!(f, "connection refused: {name} (code {code})"),
            ClientFailure::Protocol(text) => write!(f, "protocol error: {text}"),
            ClientFailure::Disconnected {
                reason,
                text: Some(text),
            } => {
                write!(f, "the server closed the connection: {}: {text}", reason.name())
            }
            ClientFailure::Disconnected { reason, text: None } => {
                write!(f, "the server closed the connection: {}", reason.name())
            }
            ClientFailure::Timeout => f.write_str("timed out"),
            ClientFailure::Interrupted(text) => write!(f, "interrupted: {text}"),
            ClientFailure::AlreadyPrinted => f.write_str("failed"),
        }
    }
}
