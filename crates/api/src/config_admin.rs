//! The seam through which the configuration is changed while the server runs. The binary implements it: it knows the options, the files
//! that set them, and what a change of them does.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::config::ConfigValue;

/// By key: the value as it is typed after `--set key=`; none: what was changed at run time is forgotten, and the file or the default holds again.
pub type ConfigChanges = BTreeMap<String, Option<String>>;

/// Called on threads that may block (disk, workers), never on a shard's thread.
pub trait ConfigAdmin: Send + Sync + 'static {
    /// What would change. Changes nothing.
    fn plan(&self, changes: &ConfigChanges) -> Result<Vec<ConfigDifference>, ConfigError>;

    /// Writes it down and takes it over; gives what has changed. Unless it is `Workers`, an `Err` means that nothing has changed.
    ///
    /// `tell` gets the configuration as soon as it is in force, even in part, and before another change is.
    fn apply(
        &self,
        changes: &ConfigChanges,
        tell: &dyn Fn(Vec<ConfigValue>),
    ) -> Result<Vec<ConfigDifference>, ConfigError>;

    /// Ends in an orderly way and starts anew, unless the configuration on disk keeps it from starting, or something goes on that it would end.
    /// Does not wait for the end.
    fn restart(&self) -> Result<(), ConfigError>;
}

/// One value that is another then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ConfigDifference {
    pub key: String,
    /// As it is in force; `null`: it is not set, and has no default.
    pub before: Option<String>,
    /// `null`: it will not be set.
    pub after: Option<String>,
    /// Where the value will come from.
    pub origin: String,
    /// False: the file says so since it was read last, and it is taken over along with the rest.
    pub is_asked_for: bool,
    /// It is written down and waits for a restart.
    pub needs_restart: bool,
}

#[derive(Debug)]
pub enum ConfigError {
    /// Of keys in the changes.
    Rejected(Vec<(String, String)>),
    /// What is in the files cannot be used as it is, whatever is changed.
    Files { because: String },
    /// Something goes on that a restart would end.
    Busy { because: String },
    /// It could not be written down.
    Storage { because: String },
    /// It is written down, but not all of it is in force.
    Workers { because: String },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Rejected(errors) => match errors.first() {
                Some((key, because)) => write!(f, "{key}: {because}"),
                None => f.write_str("it cannot be used"),
            },
            ConfigError::Files { because } => write!(f, "the files of the configuration stand in the way: {because}"),
            ConfigError::Busy { because } => f.write_str(because),
            ConfigError::Storage { because } => write!(f, "the change could not be written down: {because}"),
            ConfigError::Workers { because } => {
                write!(f, "it is written down, but not all of it is in force: {because}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
