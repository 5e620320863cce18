//! Run-time changes of the configuration. The binary implements this trait, because it knows the options, the files
//! that set them, and the effects of a change.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::config::ConfigValue;

/// New values by key, in the syntax of `--set key=`. `None` removes a run-time change, so that the file or the default
/// applies again.
pub type ConfigChanges = BTreeMap<String, Option<String>>;

/// Called on threads that may block (disk, workers), never on a shard's thread.
pub trait ConfigAdmin: Send + Sync + 'static {
    /// Returns what a change would do. Changes nothing.
    fn plan(&self, changes: &ConfigChanges) -> Result<Vec<ConfigDifference>, ConfigChangeError>;

    /// Writes the changes and applies them; returns the changed values. After an `Err` other than `Workers`, nothing
    /// has changed.
    ///
    /// Calls `tell` with the configuration as soon as it is in force, even partly, and before the next change.
    fn apply(
        &self,
        changes: &ConfigChanges,
        tell: &dyn Fn(Vec<ConfigValue>),
    ) -> Result<Vec<ConfigDifference>, ConfigChangeError>;

    /// Checks the configuration with these options of providers and sources of access rules added, as TOML. Changes
    /// nothing. Returns the keys of options that have no effect, and the origin of the value in effect.
    fn check_access_options(&self, options: &str) -> Result<Vec<(String, String)>, ConfigChangeError>;

    /// Starts an orderly shutdown and restart, and does not wait for it. Fails if the configuration on disk prevents a
    /// start, or if a task is running that must not be interrupted.
    fn restart(&self) -> Result<(), ConfigChangeError>;
}

/// A value that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ConfigDifference {
    pub key: String,
    /// Value in force; `null`: not set, without a default.
    pub before: Option<String>,
    /// `null`: the value will not be set.
    pub after: Option<String>,
    /// Origin of the new value.
    pub origin: String,
    /// `false`: not part of the request. The file has changed since it was last read, and is applied, too.
    pub is_requested: bool,
    /// The change is stored and takes effect after a restart.
    pub needs_restart: bool,
}

#[derive(Debug)]
pub enum ConfigChangeError {
    /// Invalid changes, with their keys.
    Rejected(Vec<(String, String)>),
    /// The configuration files cannot be used, independently of the change.
    Files { reason: String },
    /// A task is running that a restart would interrupt.
    Busy { reason: String },
    /// The change could not be written.
    Storage { reason: String },
    /// The change was written, but is not completely in force.
    Workers { reason: String },
}

impl fmt::Display for ConfigChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigChangeError::Rejected(errors) => match errors.first() {
                Some((key, reason)) => write!(f, "{key}: {reason}"),
                None => f.write_str("the configuration cannot be used"),
            },
            ConfigChangeError::Files { reason } => {
                write!(f, "the configuration files cannot be used: {reason}")
            }
            ConfigChangeError::Busy { reason } => f.write_str(reason),
            ConfigChangeError::Storage { reason } => write!(f, "cannot write the change: {reason}"),
            ConfigChangeError::Workers { reason } => {
                write!(f, "the change was written, but is not completely in force: {reason}")
            }
        }
    }
}

impl std::error::Error for ConfigChangeError {}
