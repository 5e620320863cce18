//! Errors of a rule at compile time and of an evaluation at run time, with their position.

use std::borrow::Cow;
use std::fmt;

use rule_values::FunctionError;

/// Position in the text of the rule. Lines and columns begin with 1; columns count characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPosition {
    pub line: u32,
    pub column: u32,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A rule or template that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    pub position: TextPosition,
    /// The unexpected part as in the text: `'abc'`, `the end of the rule`, `function uper`.
    pub found: String,
    pub expected: String,
    /// The probable correction, if one can be guessed.
    pub suggestion: Option<String>,
}

impl RuleError {
    pub(crate) fn new(position: TextPosition, found: impl Into<String>, expected: impl Into<String>) -> RuleError {
        RuleError {
            position,
            found: found.into(),
            expected: expected.into(),
            suggestion: None,
        }
    }

    pub(crate) fn suggest(mut self, suggestion: Option<String>) -> RuleError {
        self.suggestion = suggestion;
        self
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, expected {}", self.position, self.found, self.expected)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, " ({suggestion})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for RuleError {}

/// An error that occurred when a rule was applied to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalError {
    /// Position of the expression that failed.
    pub position: TextPosition,
    pub message: Cow<'static, str>,
    /// The rule exceeded a limit: steps, bytes, time or nesting.
    pub is_limit: bool,
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.message)
    }
}

impl EvalError {
    pub(crate) fn at(position: TextPosition, error: FunctionError) -> EvalError {
        EvalError {
            position,
            message: truncated(error.message),
            is_limit: error.is_limit,
        }
    }
}

impl std::error::Error for EvalError {}

/// Limits the length of an error message, which can quote a text of the message.
fn truncated(message: Cow<'static, str>) -> Cow<'static, str> {
    const BYTES_MAX: usize = 1024;
    match message.len() {
        0..=BYTES_MAX => message,
        _ => Cow::Owned(format!("{}…", &message[..message.floor_char_boundary(BYTES_MAX)])),
    }
}
