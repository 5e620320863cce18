//! The seam through which users and rules change at run time. The binary implements it: it knows the live tables, where they
//! are kept, and which of them the configuration pins.

use std::fmt;
use std::io;

use auth::{AclErrors, AclOptions, Bans, PasswordHash, Rule, UserError, UserSummary};

/// Called on threads that may block (disk), never on a shard's thread.
///
/// A change is persisted first and then takes effect: when `Ok` comes back it is on disk, in force for new sessions, and
/// where it is about what users may do, every shard has been told to look at its sessions again (`Shard::access_changed`).
pub trait AccessAdmin: Send + Sync + 'static {
    /// MQTT users that can be seen here, sorted by name.
    fn users(&self) -> Vec<UserSummary>;

    /// Refuses a name that exists.
    fn add_user(&self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), ChangeError>;

    /// Leaves alone what is `None`.
    fn change_user(
        &self,
        name: &str,
        hash: Option<PasswordHash>,
        is_superuser: Option<bool>,
    ) -> Result<(), ChangeError>;

    fn remove_user(&self, name: &str) -> Result<(), ChangeError>;

    fn acl(&self) -> AclRules;

    /// Who may not connect. A change of them holds for logins at once; ending connections is the caller's.
    fn bans(&self) -> &Bans;

    /// Replaces the whole list. It has been checked with the options that `acl` returns.
    fn set_acl(&self, rules: Vec<Rule>) -> Result<(), ChangeError>;
}

/// The rules in force, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct AclRules {
    pub rules: Vec<Rule>,
    pub options: AclOptions,
    /// Where the list is set when it cannot be changed here: `access.rules (/etc/tidewire.toml:12)`.
    pub pinned_by: Option<String>,
}

/// Why a change was not made. Nothing has changed then.
#[derive(Debug)]
pub enum ChangeError {
    /// File, environment or command line has the last word; the text is the key and where it is set.
    Pinned {
        source: String,
    },
    /// It is not what it was when it was read.
    Changed,
    User(UserError),
    Rules(AclErrors),
    Storage(io::Error),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::Pinned { source } => write!(f, "it is set by {source} and cannot be changed here"),
            ChangeError::Changed => f.write_str("it was changed meanwhile"),
            ChangeError::User(error) => error.fmt(f),
            ChangeError::Rules(errors) => errors.fmt(f),
            ChangeError::Storage(_) => f.write_str("the change could not be written to disk"),
        }
    }
}

impl std::error::Error for ChangeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ChangeError::Storage(error) => Some(error),
            _ => None,
        }
    }
}
