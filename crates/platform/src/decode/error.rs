//! Why a device message cannot be decoded.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadDecodeError {
    NotJson {
        line: usize,
        column: usize,
    },
    /// Valid JSON of another form than the topic requires.
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

impl PayloadDecodeError {
    pub(crate) fn form(expected: &'static str) -> PayloadDecodeError {
        PayloadDecodeError::Form { expected }
    }
}

impl fmt::Display for PayloadDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PayloadDecodeError::NotJson { line, column } => {
                write!(f, "the payload is not valid JSON at line {line}, column {column}")
            }
            PayloadDecodeError::Form { expected } => write!(f, "unexpected payload format: expected {expected}"),
            PayloadDecodeError::TooManyPoints { max } => {
                write!(
                    f,
                    "the message has more than {max} values: split it into several messages"
                )
            }
            PayloadDecodeError::KeyTooLong { max } => write!(f, "a key is longer than {max} bytes: use a shorter one"),
            PayloadDecodeError::TooManyKeys { max } => {
                write!(
                    f,
                    "the request has more than {max} keys: request all attributes, or send several requests"
                )
            }
            PayloadDecodeError::TextTooLong { max } => write!(f, "a value is longer than {max} bytes: split it"),
        }
    }
}

impl std::error::Error for PayloadDecodeError {}

impl From<serde_json::Error> for PayloadDecodeError {
    fn from(error: serde_json::Error) -> PayloadDecodeError {
        match error.classify() {
            serde_json::error::Category::Data => PayloadDecodeError::form("an object or an array of objects"),
            _ => PayloadDecodeError::NotJson {
                line: error.line(),
                column: error.column(),
            },
        }
    }
}
