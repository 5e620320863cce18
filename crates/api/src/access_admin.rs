//! Run-time changes of users and access rules. The binary implements this trait, because it owns the live tables, their
//! files, and the configuration that pins some of them.

use std::fmt;
use std::io;
use std::time::Duration;

use auth::{
    AccessRule, AclErrors, AclOptions, Bans, ClientAttributes, CreateError, Credentials, Password, PasswordHash,
    UserError, UserSummary,
};
use broker::AccessQuestion;

/// Called on threads that may block (disk), never on a shard's thread.
///
/// A change is persisted before it takes effect. When a method returns `Ok`, the change is on disk and applies to new
/// sessions; if it concerns permissions, all shards have also been asked to check existing sessions again
/// (`Shard::access_changed`).
pub trait AccessAdmin: Send + Sync + 'static {
    /// Returns the MQTT users that the API can show, sorted by name.
    fn users(&self) -> Vec<UserSummary>;

    /// Hashes the password of a new user or a change, for the authentication methods that are enabled. May take long.
    fn hash_password(&self, password: &Password) -> Result<PasswordHash, CreateError> {
        PasswordHash::create(password)
    }

    /// Fails if the name exists.
    fn add_user(&self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), ChangeError>;

    /// Leaves values unchanged that are `None`.
    fn change_user(
        &self,
        name: &str,
        hash: Option<PasswordHash>,
        is_superuser: Option<bool>,
    ) -> Result<(), ChangeError>;

    fn remove_user(&self, name: &str) -> Result<(), ChangeError>;

    fn acl(&self) -> AclRules;

    /// The bans. A change applies to new connections at once; the caller must disconnect existing ones.
    fn bans(&self) -> &Bans;

    /// Replaces the whole list, which the caller has checked with the options from `acl`.
    fn set_acl(&self, rules: Vec<AccessRule>) -> Result<(), ChangeError>;

    /// Returns the figures of the authentication providers that ask other systems.
    fn auth_providers(&self) -> Vec<AuthProviderFigures> {
        Vec::new()
    }

    /// Returns the figures of the sources of access rules that ask other systems.
    fn access_sources(&self) -> Vec<AuthProviderFigures> {
        Vec::new()
    }

    /// Deletes the stored answers of these sources.
    fn clear_access_cache(&self) {}

    /// Asks these sources about an action of a client that is no superuser, without a cache for decisions. `None`:
    /// there are no sources besides the rules.
    fn test_sources(&self, _client: Credentials, _attributes: &ClientAttributes) -> Option<SourcesTest> {
        None
    }

    /// Asks these sources a question about a client, which stores the answer with its login. Waits for the answer, and
    /// returns whether there is one.
    fn answer_question(&self, _question: AccessQuestion) -> bool {
        false
    }
}

/// Figures of an authentication provider, or of a source of access rules, since the start of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuthProviderFigures {
    pub name: &'static str,
    /// Number of clients or questions with each result.
    pub results: Vec<(&'static str, u64)>,
    /// Questions that wait to be asked now.
    pub waiting: u64,
    /// Questions without an answer now.
    pub in_progress: u64,
    /// Sum of the times of all questions that were asked.
    pub answer_time: Duration,
    /// The last question failed.
    pub is_failing: bool,
}

/// The decision about an action, by the sources of access rules in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcesTest {
    pub is_allowed: bool,
    /// Messages that the rules deny are not delivered.
    pub filters_deliveries: bool,
    /// Name and decision of each source: `allow`, `deny`, `ignore`, `failed`, or `not_asked` after one that decides.
    pub decisions: Vec<(&'static str, &'static str)>,
}

/// The rules in force, in evaluation order.
#[derive(Clone, Debug, Default)]
pub struct AclRules {
    pub rules: Vec<AccessRule>,
    pub options: AclOptions,
    /// The rules are those of `access.acl_file`, which denies everything if it contains none.
    pub is_acl_file: bool,
    /// Users that do not exist are admitted, and count as anonymous.
    pub admits_unknown_users: bool,
    /// Where the configuration sets the list, if it does: `access.rules (/etc/tidewire.toml:12)`.
    pub pinned_by: Option<String>,
}

/// Why a change was rejected. Nothing was changed.
#[derive(Debug)]
pub enum ChangeError {
    /// Set by the file, environment or command line. The text is the key and its location.
    Pinned {
        source: String,
    },
    /// Changed by another request since it was read.
    Changed,
    User(UserError),
    Rules(AclErrors),
    Storage(io::Error),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::Pinned { source } => write!(f, "set by {source}: cannot be changed through the API"),
            ChangeError::Changed => f.write_str("changed by another request"),
            ChangeError::User(error) => error.fmt(f),
            ChangeError::Rules(errors) => errors.fmt(f),
            ChangeError::Storage(_) => f.write_str("cannot write the change to disk"),
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
