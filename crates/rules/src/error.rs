//! What is wrong with a rule (when it is compiled) and what went wrong with a message (when it is evaluated), and where.

use std::borrow::Cow;
use std::fmt;

/// In the text of the rule, from 1; columns are characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A rule or template that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    pub position: Position,
    /// As in the text: `'abc'`, `the end of the rule`, `function uper`.
    pub found: String,
    pub expected: String,
    /// What to write instead, where that can be guessed.
    pub suggestion: Option<String>,
}

impl RuleError {
    pub(crate) fn new(position: Position, found: impl Into<String>, expected: impl Into<String>) -> RuleError {
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

/// A message that a rule could not be applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalError {
    /// Of the expression that failed.
    pub position: Position,
    pub message: Cow<'static, str>,
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.position, self.message)
    }
}

impl std::error::Error for EvalError {}

/// Why a function or an operator has no result; the caller knows where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault(pub Cow<'static, str>);

impl Fault {
    pub fn at(self, position: Position) -> EvalError {
        EvalError {
            position,
            message: self.0,
        }
    }
}

impl From<&'static str> for Fault {
    fn from(message: &'static str) -> Fault {
        Fault(Cow::Borrowed(message))
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault(Cow::Owned(message))
    }
}

/// The name among `names` that was probably meant: few letters away.
pub(crate) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let allowed = (word.len() / 3).clamp(1, 3);
    names
        .map(|name| (distance(word.as_bytes(), name.as_bytes()), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, name)| name)
}

/// How many letters must be added, removed or replaced.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
