//! The authentication chain: providers are asked in order until one decides.
//!
//! A [`Provider`] decides on its own; it may block for a password hash. A [`RemoteProvider`] asks another system. The
//! caller runs [`ProviderChain::advance`] on a thread pool for that purpose, never on a data-plane thread, awaits the
//! remote provider that it returns, and continues with the next link. A client that every provider ignores is rejected.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use mqtt::{QoS, ReasonCode};

use crate::login::Login;
use crate::secret::Password;
use crate::users::Users;
use crate::verified::VerifiedPasswords;

/// An action of an admitted client, for the question whether it is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedAction {
    Publish { topic: Box<str>, qos: QoS, retain: bool },
    Subscribe { filter: Box<str>, qos: QoS },
}

impl RequestedAction {
    /// The topic, or the filter.
    pub fn topic(&self) -> &str {
        match self {
            RequestedAction::Publish { topic, .. } => topic,
            RequestedAction::Subscribe { filter, .. } => filter,
        }
    }

    pub fn qos(&self) -> QoS {
        match self {
            RequestedAction::Publish { qos, .. } | RequestedAction::Subscribe { qos, .. } => *qos,
        }
    }

    /// A subscription has no RETAIN flag.
    pub fn retain(&self) -> bool {
        matches!(self, RequestedAction::Publish { retain: true, .. })
    }

    /// Name as in EMQX.
    pub fn name(&self) -> &'static str {
        match self {
            RequestedAction::Publish { .. } => "publish",
            RequestedAction::Subscribe { .. } => "subscribe",
        }
    }
}

/// Credentials of a CONNECT packet, and the client's address. For questions about access rules, an admitted client
/// without its password.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Client id of the session. If the client sent none, the assigned one.
    pub client_id: String,
    pub user_name: Option<String>,
    pub password: Option<Password>,
    pub address: IpAddr,
    /// Subject common name of the verified client certificate.
    pub certificate_common_name: Option<Box<str>>,
    /// Subject of the verified client certificate, as in `CN=meter-17,O=Example`.
    pub certificate_subject: Option<Box<str>>,
    /// Set for the question whether the client may do this.
    pub action: Option<RequestedAction>,
}

#[derive(Clone, Debug)]
pub enum ProviderOutcome {
    Allow(Box<Login>),
    Deny(DenyReason),
    /// The provider does not know these credentials; the next one decides.
    Ignore,
}

/// Reason for the operator. The client gets only [`DenyReason::reason_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenyReason {
    UnknownUser,
    WrongPassword,
    /// The client sent a user name without a password.
    NoPassword,
    /// The client sent no credentials, and its address requires them.
    AnonymousRefused,
    /// The credentials are known, but a policy rejects them.
    NotAuthorized,
    /// A token is not valid any more.
    Expired,
    /// The provider cannot decide now: the other system does not answer, or too many clients wait for it.
    Unavailable,
}

impl DenyReason {
    /// Returns the code for the client. It does not reveal whether a user exists. A user name without a password is the
    /// access token of a device; ThingsBoard firmware expects `NotAuthorized` for an invalid token.
    pub fn reason_code(self) -> ReasonCode {
        match self {
            DenyReason::UnknownUser | DenyReason::WrongPassword => ReasonCode::BadUserNameOrPassword,
            DenyReason::NoPassword | DenyReason::AnonymousRefused | DenyReason::NotAuthorized | DenyReason::Expired => {
                ReasonCode::NotAuthorized
            }
            // The credentials may be right: the client should try again later.
            DenyReason::Unavailable => ReasonCode::ServerUnavailable,
        }
    }
}

impl fmt::Display for DenyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DenyReason::UnknownUser => "unknown user",
            DenyReason::WrongPassword => "wrong password",
            DenyReason::NoPassword => "a user name without a password",
            DenyReason::AnonymousRefused => "no credentials, but this address requires them",
            DenyReason::NotAuthorized => "rejected by policy",
            DenyReason::Expired => "an expired token",
            DenyReason::Unavailable => "the provider cannot decide now",
        })
    }
}

/// Decides without another system.
pub trait Provider: Send + Sync {
    /// Checks credentials. May block.
    fn authenticate(&self, credentials: &Credentials) -> ProviderOutcome;

    /// Returns the same outcome if it is available within microseconds. `None` if it needs a password hash.
    fn authenticate_now(&self, credentials: &Credentials) -> Option<ProviderOutcome>;
}

/// Outcome of a remote provider, later.
pub type ProviderFuture = Pin<Box<dyn Future<Output = ProviderOutcome> + Send>>;

/// Asks another system, with a time limit.
pub trait RemoteProvider: Send + Sync {
    /// Asks the other system. If it does not answer, the outcome is [`DenyReason::Unavailable`], unless the operator
    /// has configured another one.
    fn authenticate(self: Arc<Self>, credentials: Arc<Credentials>) -> ProviderFuture;

    /// Returns the same outcome if it is available within microseconds: cached, or credentials that are not for this
    /// provider.
    fn authenticate_now(&self, credentials: &Credentials) -> Option<ProviderOutcome>;

    /// Returns the same outcome if the provider does not have to ask. May block, like [`Provider::authenticate`].
    fn authenticate_here(&self, credentials: &Credentials) -> Option<ProviderOutcome> {
        self.authenticate_now(credentials)
    }
}

/// A provider of a chain.
#[derive(Clone)]
pub enum ChainLink {
    Local(Arc<dyn Provider>),
    Remote(Arc<dyn RemoteProvider>),
}

/// Result of asking the providers up to a remote one.
pub enum ChainStep {
    /// Never [`ProviderOutcome::Ignore`].
    Decided(ProviderOutcome),
    /// Ask this provider. If it ignores the credentials, continue with the link `next`.
    Ask {
        provider: Arc<dyn RemoteProvider>,
        next: usize,
    },
}

/// Providers in the order in which they are asked.
#[derive(Clone, Default)]
pub struct ProviderChain {
    links: Vec<ChainLink>,
}

impl ProviderChain {
    pub fn new(links: Vec<ChainLink>) -> ProviderChain {
        ProviderChain { links }
    }

    /// Asks the providers from the link `from` on, until one decides or a remote one has to be asked. May block.
    pub fn advance(&self, from: usize, credentials: &Credentials) -> ChainStep {
        for (index, link) in self.links.iter().enumerate().skip(from) {
            let outcome = match link {
                ChainLink::Local(provider) => provider.authenticate(credentials),
                ChainLink::Remote(provider) => match provider.authenticate_here(credentials) {
                    Some(outcome) => outcome,
                    None => {
                        return ChainStep::Ask {
                            provider: provider.clone(),
                            next: index + 1,
                        };
                    }
                },
            };
            match outcome {
                ProviderOutcome::Ignore => {}
                decided => return ChainStep::Decided(decided),
            }
        }
        ChainStep::Decided(denied_by_default(credentials))
    }

    /// Returns the outcome if no provider has to block or to ask for it. Never returns [`ProviderOutcome::Ignore`].
    pub fn authenticate_now(&self, credentials: &Credentials) -> Option<ProviderOutcome> {
        for link in &self.links {
            let outcome = match link {
                ChainLink::Local(provider) => provider.authenticate_now(credentials)?,
                ChainLink::Remote(provider) => provider.authenticate_now(credentials)?,
            };
            match outcome {
                ProviderOutcome::Ignore => {}
                decided => return Some(decided),
            }
        }
        Some(denied_by_default(credentials))
    }
}

fn allow(is_superuser: bool) -> ProviderOutcome {
    ProviderOutcome::Allow(Box::new(Login::new(is_superuser)))
}

fn denied_by_default(credentials: &Credentials) -> ProviderOutcome {
    ProviderOutcome::Deny(match (&credentials.user_name, &credentials.password) {
        (None, None) => DenyReason::AnonymousRefused,
        (Some(_), None) => DenyReason::NoPassword,
        (_, Some(_)) => DenyReason::UnknownUser,
    })
}

/// Checks user name and password against [`Users`]. Ignores unknown users, so that a later provider can check them. An
/// unknown user takes as much time as a wrong password.
pub struct UsersProvider {
    users: Arc<Users>,
    verified: VerifiedPasswords,
}

impl UsersProvider {
    pub fn new(users: Arc<Users>, verified: VerifiedPasswords) -> UsersProvider {
        UsersProvider { users, verified }
    }
}

impl Provider for UsersProvider {
    fn authenticate(&self, credentials: &Credentials) -> ProviderOutcome {
        // MQTT 5 allows a password without a user name: a token for another provider.
        let Some(user_name) = &credentials.user_name else {
            return ProviderOutcome::Ignore;
        };
        let Some(password) = &credentials.password else {
            return ProviderOutcome::Ignore;
        };
        let Some(user) = self.users.find(user_name) else {
            // Take as long as for an existing user, so that the response time does not reveal which users exist.
            self.verified
                .verify_decoy(user_name, &*self.users.decoy_for(user_name), password);
            return ProviderOutcome::Ignore;
        };
        if self.verified.verify(user_name, &user.hash, password) {
            return allow(user.is_superuser());
        }
        ProviderOutcome::Deny(DenyReason::WrongPassword)
    }

    /// Reconnecting clients are in the cache of verified or wrong passwords and do not wait behind password hashes of
    /// other clients.
    fn authenticate_now(&self, credentials: &Credentials) -> Option<ProviderOutcome> {
        let (Some(user_name), Some(password)) = (&credentials.user_name, &credentials.password) else {
            return Some(ProviderOutcome::Ignore);
        };
        let Some(user) = self.users.find(user_name) else {
            let decoy = self.users.decoy_for(user_name);
            let was_wrong = self.verified.was_wrong(user_name, &*decoy, password);
            return was_wrong.then_some(ProviderOutcome::Ignore);
        };
        if self.verified.was_verified(user_name, &user.hash, password) {
            return Some(allow(user.is_superuser()));
        }
        let was_wrong = self.verified.was_wrong(user_name, &user.hash, password);
        was_wrong.then_some(ProviderOutcome::Deny(DenyReason::WrongPassword))
    }
}

/// Addresses from which clients may connect without credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnonymousPolicy {
    /// 127.0.0.0/8 and ::1.
    #[default]
    LoopbackOnly,
    Never,
    Always,
}

/// Decides about clients with neither user name nor password. Ignores all others, so that unverified credentials never
/// count as anonymous.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnonymousProvider {
    pub policy: AnonymousPolicy,
}

impl AnonymousPolicy {
    fn allows(self, address: IpAddr) -> bool {
        match self {
            AnonymousPolicy::Always => true,
            AnonymousPolicy::Never => false,
            AnonymousPolicy::LoopbackOnly => address.to_canonical().is_loopback(),
        }
    }
}

impl Provider for AnonymousProvider {
    fn authenticate(&self, credentials: &Credentials) -> ProviderOutcome {
        if credentials.user_name.is_some() || credentials.password.is_some() {
            return ProviderOutcome::Ignore;
        }
        match self.policy.allows(credentials.address) {
            true => allow(false),
            false => ProviderOutcome::Deny(DenyReason::AnonymousRefused),
        }
    }

    fn authenticate_now(&self, credentials: &Credentials) -> Option<ProviderOutcome> {
        Some(self.authenticate(credentials))
    }
}

/// Admits clients whose user name is unknown where clients without a user name are admitted. Ignores known users, with
/// or without a password. Access rules must treat the admitted clients as anonymous.
pub struct UnknownUsersProvider {
    pub policy: AnonymousPolicy,
    pub users: Arc<Users>,
}

impl Provider for UnknownUsersProvider {
    fn authenticate(&self, credentials: &Credentials) -> ProviderOutcome {
        let Some(user_name) = &credentials.user_name else {
            return ProviderOutcome::Ignore;
        };
        match self.users.find(user_name).is_none() && self.policy.allows(credentials.address) {
            true => allow(false),
            false => ProviderOutcome::Ignore,
        }
    }

    fn authenticate_now(&self, credentials: &Credentials) -> Option<ProviderOutcome> {
        Some(self.authenticate(credentials))
    }
}

#[cfg(test)]
mod tests;
