//! Why a message of a device is not understood.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    NotJson {
        line: usize,
        column: usize,
    },
    /// JSON, but not of the form that the topic wants.
    Form {
        expected: &'static str,
    },
    TooManyPoints {
        max: usize,
    },
    KeyTooLong {
        max: usize,
    },
    TextTooLong {
        max: usize,
    },
    TooManyKeys {
        max: usize,
    },
}

impl DecodeError {
    pub(crate) fn form(expected: &'static str) -> DecodeError {
        DecodeError::Form { expected }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::NotJson { line, column } => {
                write!(f, "the payload is not JSON: see line {line}, column {column}")
            }
            DecodeError::Form { expected } => write!(f, "the payload has another form: expected {expected}"),
            DecodeError::TooManyPoints { max } => {
                write!(f, "the message has more than {max} values: send several messages")
            }
            DecodeError::KeyTooLong { max } => write!(f, "a key has more than {max} bytes: take a shorter one"),
            DecodeError::TooManyKeys { max } => {
                write!(
                    f,
                    "the request names more than {max} keys: ask for all, or send several requests"
                )
            }
            DecodeError::TextTooLong { max } => write!(f, "a value has more than {max} bytes: send it in parts"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<serde_json::Error> for DecodeError {
    fn from(error: serde_json::Error) -> DecodeError {
        match error.classify() {
            serde_json::error::Category::Data => DecodeError::form("an object or an array of objects"),
            _ => DecodeError::NotJson {
                line: error.line(),
                column: error.column(),
            },
        }
    }
}
