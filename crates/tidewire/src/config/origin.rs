//! The origin of a value, and errors in the configuration.

use std::fmt::{self, Write};
use std::path::PathBuf;

/// The layers, weakest first; the order also sorts complaints by file and line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueOrigin {
    Default,
    /// A default of `node.profile`.
    Profile {
        name: &'static str,
    },
    File {
        path: PathBuf,
        line: usize,
    },
    /// A change made while running, kept in the data directory.
    Runtime {
        path: PathBuf,
        line: usize,
    },
    Environment {
        variable: String,
    },
    Flag,
}

/// One thing that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDiagnostic {
    pub origin: ValueOrigin,
    /// The key it is about, when it is about one.
    pub key: Option<String>,
    pub message: String,
}

impl ValueOrigin {
    /// True when a change at run time cannot replace the value.
    pub fn is_pinned(&self) -> bool {
        matches!(self, ValueOrigin::Environment { .. } | ValueOrigin::Flag)
    }
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueOrigin::Default => f.write_str("default"),
            ValueOrigin::Profile { name } => write!(f, "profile {name}"),
            // The file as a whole.
            ValueOrigin::File { path, line: 0 } | ValueOrigin::Runtime { path, line: 0 } => {
                write!(f, "{}", path.display())
            }
            ValueOrigin::File { path, line } | ValueOrigin::Runtime { path, line } => {
                write!(f, "{}:{line}", path.display())
            }
            ValueOrigin::Environment { variable } => write!(f, "environment {variable}"),
            ValueOrigin::Flag => f.write_str("--set"),
        }
    }
}

impl fmt::Display for ConfigDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{}: {key}: {}", self.origin, self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}

/// Returns all errors as one text: their number, and a line for each.
pub fn listed(diagnostics: &[ConfigDiagnostic]) -> String {
    let count = diagnostics.len();
    let plural = if count == 1 { "error" } else { "errors" };
    let mut text = format!("{count} {plural} in the configuration");
    for diagnostic in diagnostics {
        let _ = write!(text, "\n  {diagnostic}");
    }
    text
}
