//! Where a value came from, and what is wrong with it.

use std::fmt;
use std::path::PathBuf;

/// The layers, weakest first; the order also sorts complaints by file and line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
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
pub struct Diagnostic {
    pub origin: Origin,
    /// The key it is about, when it is about one.
    pub key: Option<String>,
    pub message: String,
}

impl Origin {
    /// True when a change at run time cannot replace the value.
    pub fn is_pinned(&self) -> bool {
        matches!(self, Origin::Environment { .. } | Origin::Flag)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Profile { name } => write!(f, "profile {name}"),
            Origin::File { path, line } | Origin::Runtime { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Environment { variable } => write!(f, "environment {variable}"),
            Origin::Flag => f.write_str("--set"),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{}: {key}: {}", self.origin, self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}
