//! The error of a function.

use std::borrow::Cow;

/// The error of a function or operator. The caller adds the position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionError {
    pub message: Cow<'static, str>,
    pub is_limit: bool,
}

impl FunctionError {
    /// A limit of the rule was exceeded.
    pub fn limit(message: impl Into<Cow<'static, str>>) -> FunctionError {
        FunctionError {
            message: message.into(),
            is_limit: true,
        }
    }
}

impl From<&'static str> for FunctionError {
    fn from(message: &'static str) -> FunctionError {
        FunctionError {
            message: Cow::Borrowed(message),
            is_limit: false,
        }
    }
}

impl From<String> for FunctionError {
    fn from(message: String) -> FunctionError {
        FunctionError {
            message: Cow::Owned(message),
            is_limit: false,
        }
    }
}
