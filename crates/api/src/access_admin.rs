//! Run-time changes of users and access rules. The binary implements this trait, because it owns the live tables, their
//! files, and the configuration that pins some of them.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

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

    /// Returns the authentication providers and the sources of access rules in their order.
    fn access_order(&self) -> AccessOrder {
        AccessOrder::default()
    }

    /// Checks credentials as for a client that connects, and returns the verdict of each provider. A wrong password
    /// counts as a failed login of the administrator's address.
    fn test_login(&self, _test: &LoginTest) -> Result<LoginTestOutcome, LoginTestError> {
        Ok(LoginTestOutcome::default())
    }

    /// Returns the user name of a tested login for the audit log. It may be a token.
    fn audited_user_name(&self, _user_name: &str) -> Box<str> {
        "***".into()
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
    /// Number of denied clients with each reason, of a provider that counts them.
    pub denials: Vec<(&'static str, u64)>,
    /// Questions that wait to be asked now.
    pub waiting: u64,
    /// Questions without an answer now.
    pub in_progress: u64,
    /// Sum of the times of all questions that were asked.
    pub answer_time: Duration,
    /// A time within which half of the questions ended.
    pub answer_time_p50: Option<Duration>,
    /// A time within which 99 of 100 questions ended.
    pub answer_time_p99: Option<Duration>,
    /// The last question failed.
    pub is_failing: bool,
    pub cached_answers: u64,
    pub cache_size: u64,
    /// Time limit of a question.
    pub timeout: Duration,
    /// `deny`, `ignore` or `allow`.
    pub on_failure: &'static str,
}

/// The providers and the sources, in the order in which they are asked.
#[derive(Clone, Debug, Default)]
pub struct AccessOrder {
    pub providers: Vec<AccessSystem>,
    /// Listeners with an order of their own, and the names of their providers.
    pub listeners: Vec<(String, Vec<&'static str>)>,
    pub sources: Vec<AccessSystem>,
    /// Where clients without a user name may connect: `never`, `loopback` or `always`.
    pub anonymous: &'static str,
    /// The server tests credentials as access tokens and certificates of devices first.
    pub has_devices: bool,
}

/// An authentication provider, or a source of access rules.
#[derive(Clone, Debug, Default)]
pub struct AccessSystem {
    /// Name in the options.
    pub name: &'static str,
    /// The other system: address without credentials, or path of the file. `None`: this server decides.
    pub address: Option<String>,
    pub last_failure: Option<AccessFailure>,
    /// It cannot decide now. `None`: unknown, or this server decides.
    pub is_failing: Option<bool>,
}

#[derive(Clone, Debug)]
pub struct AccessFailure {
    pub at: SystemTime,
    /// Contains no credentials.
    pub reason: String,
}

/// Credentials that an administrator tests.
#[derive(Debug)]
pub struct LoginTest {
    pub client_id: String,
    pub user_name: Option<String>,
    pub password: Option<Password>,
    /// Address of the assumed client.
    pub address: IpAddr,
    /// Address of the administrator, which a wrong password counts for.
    pub tester: IpAddr,
    /// Name of the listener, such as `tcp.default`. `None`: the providers of the server.
    pub listener: Option<String>,
}

/// Why a login was not tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginTestError {
    /// The address of the administrator is locked out for this time.
    LockedOut(Duration),
    UnknownListener,
}

#[derive(Clone, Debug, Default)]
pub struct LoginTestOutcome {
    pub is_allowed: bool,
    pub reason: String,
    pub steps: Vec<LoginTestStep>,
    /// Set if the client would be admitted.
    pub login: Option<TestedLogin>,
}

/// The verdict of one provider.
#[derive(Clone, Debug)]
pub struct LoginTestStep {
    pub provider: &'static str,
    pub verdict: LoginVerdict,
    pub reason: String,
    pub origin: Option<&'static str>,
    pub time: Option<Duration>,
}

/// The verdict of a provider about credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginVerdict {
    /// The provider admits the client.
    Right,
    /// The provider knows the user, and the password is wrong.
    Wrong,
    /// The provider rejects the client for another reason.
    Rejected,
    /// The provider does not know the credentials.
    Unknown,
    /// The other system does not answer, or its answer is not understood.
    Failed,
    /// The credentials are not of the kind that the provider checks.
    NotApplicable,
    /// A provider before it has decided.
    NotAsked,
}

/// Rights and attributes of a tested client.
#[derive(Clone, Debug, Default)]
pub struct TestedLogin {
    pub is_superuser: bool,
    /// Name of the session, if it differs from that of the credentials.
    pub user_name: Option<String>,
    pub attributes: Vec<(String, String)>,
    pub groups: Vec<String>,
    /// Number of access rules that belong to the client.
    pub rules: usize,
    pub expires_at_unix_ms: Option<u64>,
}

/// The decision about an action, by the sources of access rules in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcesTest {
    pub is_allowed: bool,
    /// Messages that the rules deny are not delivered.
    pub filters_deliveries: bool,
    pub decisions: Vec<TestedSource>,
}

/// The decision of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestedSource {
    pub name: &'static str,
    /// `allow`, `deny`, `ignore`, `failed`, or `not_asked` after one that decides.
    pub decision: &'static str,
    pub reason: String,
    /// Where the answer comes from: `cache`, `asked`, `shared` or `overloaded`. `None`: this server decides.
    pub origin: Option<&'static str>,
    pub time: Option<Duration>,
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
    /// The files in the data directory prevent the change.
    Files {
        reason: String,
    },
    Storage(io::Error),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::Pinned { source } => write!(f, "set by {source}: cannot be changed through the API"),
            ChangeError::Changed => f.write_str("changed by another request"),
            ChangeError::User(error) => error.fmt(f),
            ChangeError::Rules(errors) => errors.fmt(f),
            ChangeError::Files { reason } => f.write_str(reason),
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
