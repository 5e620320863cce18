//! How a client command ends when it does not end well.

use std::fmt;
use std::io;
use std::process::ExitCode;

use mqtt::ReasonCode;

use crate::output::{EXIT_FAILURE, EXIT_USAGE, complain};

/// What mosquitto_sub exits with when `-W` is over.
const EXIT_TIMEOUT: u8 = 27;
/// What a shell reports of a program that SIGINT has ended.
const EXIT_INTERRUPTED: u8 = 130;

#[derive(Debug)]
pub enum Failure {
    /// What was typed makes no sense.
    Usage(String),
    /// The server cannot be reached.
    Connect(String),
    /// The connection was there and is gone. Worth another attempt.
    Lost(String),
    /// CONNACK said no; `code` is what the server sent, in the words of its version.
    Refused {
        code: u8,
        name: String,
    },
    /// The server said something that it must not say, or did not say what it must.
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
    /// Something was not done, and the user has been told.
    Told,
}

impl Failure {
    pub fn local(what: &str, error: &io::Error) -> Failure {
        Failure::Local(format!("{what}: {error}"))
    }

    /// Says what happened, unless it is to be quiet, and gives the exit code.
    pub fn report(&self, is_quiet: bool) -> ExitCode {
        if !is_quiet && !matches!(self, Failure::Told) {
            complain(self);
        }
        ExitCode::from(match self {
            Failure::Usage(_) => EXIT_USAGE,
            Failure::Refused { code, .. } => *code,
            Failure::Timeout => EXIT_TIMEOUT,
            Failure::Interrupted(_) => EXIT_INTERRUPTED,
            _ => EXIT_FAILURE,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Connect(text) | Failure::Local(text) => f.write_str(text),
            Failure::Lost(text) => write!(f, "the connection was lost: {text}"),
            Failure::Refused { code, name } => write!(f, "connection refused: {name} (code {code})"),
            Failure::Protocol(text) => write!(f, "protocol error: {text}"),
            Failure::Disconnected {
                reason,
                text: Some(text),
            } => {
                write!(f, "the server closed the connection: {}: {text}", reason.name())
            }
            Failure::Disconnected { reason, text: None } => {
                write!(f, "the server closed the connection: {}", reason.name())
            }
            Failure::Timeout => f.write_str("timed out"),
            Failure::Interrupted(text) => write!(f, "interrupted: {text}"),
            Failure::Told => f.write_str("failed"),
        }
    }
}
