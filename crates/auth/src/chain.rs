//! The authentication chain: providers asked in order until one decides.
//!
//! A provider may block (hash a password, ask a database): the caller runs [`Chain::authenticate`] on a pool of threads
//! made for that, never on a data-plane thread. What every provider ignores is refused.
//!
//! Enhanced authentication (AUTH packets) is an exchange, not one answer. It will be a second, defaulted method of
//! [`Provider`] that opens an exchange for an Authentication Method; nothing here has to change for it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use mqtt::ReasonCode;

use crate::secret::Password;
use crate::users::Users;
use crate::verified::VerifiedPasswords;

/// What a client presents in CONNECT, and where it comes from.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// As the session will have it: assigned already when the client sent none.
    pub client_id: String,
    pub user_name: Option<String>,
    pub password: Option<Password>,
    pub address: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allow {
        is_superuser: bool,
    },
    Deny(DenyReason),
    /// Not this provider's business; the next one decides.
    Ignore,
}

/// The operator sees which one; the client must not, see [`DenyReason::reason_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenyReason {
    UnknownUser,
    WrongPassword,
    /// A user name came without a password.
    NoPassword,
    /// Neither user name nor password, from an address where that is not allowed.
    AnonymousRefused,
    /// Known, but refused by a policy.
    NotAuthorized,
}

impl DenyReason {
    /// Tells nobody whether a user exists. A user name alone is the access token of a device: firmware for ThingsBoard looks for this.
    pub fn reason_code(self) -> ReasonCode {
        match self {
            DenyReason::UnknownUser | DenyReason::WrongPassword => ReasonCode::BadUserNameOrPassword,
            DenyReason::NoPassword | DenyReason::AnonymousRefused | DenyReason::NotAuthorized => {
                ReasonCode::NotAuthorized
            }
        }
    }
}

impl fmt::Display for DenyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DenyReason::UnknownUser => "unknown user",
            DenyReason::WrongPassword => "wrong password",
            DenyReason::NoPassword => "a user name without a password",
            DenyReason::AnonymousRefused => "no credentials, which are required from this address",
            DenyReason::NotAuthorized => "refused by policy",
        })
    }
}

pub trait Provider: Send + Sync {
    /// May block.
    fn authenticate(&self, credentials: &Credentials) -> Outcome;

    /// The same answer where it can be had in microseconds; `None` where that takes a hash or somebody else's word.
    fn authenticate_now(&self, credentials: &Credentials) -> Option<Outcome>;
}

/// Providers in the order in which they are asked.
#[derive(Clone, Default)]
pub struct Chain {
    providers: Vec<Arc<dyn Provider>>,
}

impl Chain {
    pub fn new(providers: Vec<Arc<dyn Provider>>) -> Chain {
        Chain { providers }
    }

    /// May block. Never answers [`Outcome::Ignore`].
    pub fn authenticate(&self, credentials: &Credentials) -> Outcome {
        for provider in &self.providers {
            match provider.authenticate(credentials) {
                Outcome::Ignore => {}
                decided => return decided,
            }
        }
        refused_by_all(credentials)
    }

    /// The same answer if no provider that has to be asked for it must block. Never answers [`Outcome::Ignore`].
    pub fn authenticate_now(&self, credentials: &Credentials) -> Option<Outcome> {
        for provider in &self.providers {
            match provider.authenticate_now(credentials)? {
                Outcome::Ignore => {}
                decided => return Some(decided),
            }
        }
        Some(refused_by_all(credentials))
    }
}

fn refused_by_all(credentials: &Credentials) -> Outcome {
    Outcome::Deny(match (&credentials.user_name, &credentials.password) {
        (None, None) => DenyReason::AnonymousRefused,
        (Some(_), None) => DenyReason::NoPassword,
        (_, Some(_)) => DenyReason::UnknownUser,
    })
}

/// Checks user name and password against [`Users`]. Ignores unknown users, so that a later provider may know them, after
/// having spent as much time on them as on a wrong password.
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
    fn authenticate(&self, credentials: &Credentials) -> Outcome {
        // MQTT 5 allows a password without a user name; that is a token for some other provider.
        let Some(user_name) = &credentials.user_name else {
            return Outcome::Ignore;
        };
        let Some(password) = &credentials.password else {
            return Outcome::Ignore;
        };
        let Some(user) = self.users.find(user_name) else {
            // The answer takes as long as for a user that exists, so that time does not tell who exists.
            self.verified
                .verify_decoy(user_name, &self.users.decoy_for(user_name), password);
            return Outcome::Ignore;
        };
        if self.verified.verify(user_name, &user.hash, password) {
            return Outcome::Allow {
                is_superuser: user.is_superuser,
            };
        }
        Outcome::Deny(DenyReason::WrongPassword)
    }

    /// A fleet that comes back is known and does not wait behind the hashes of others, whoever they are.
    fn authenticate_now(&self, credentials: &Credentials) -> Option<Outcome> {
        let (Some(user_name), Some(password)) = (&credentials.user_name, &credentials.password) else {
            return Some(Outcome::Ignore);
        };
        let user = self.users.find(user_name)?;
        let is_known = self.verified.is_known(user_name, &user.hash, password);
        is_known.then_some(Outcome::Allow {
            is_superuser: user.is_superuser,
        })
    }
}

/// From where clients may come without credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnonymousPolicy {
    /// 127.0.0.0/8 and ::1.
    #[default]
    LoopbackOnly,
    Never,
    Always,
}

/// Decides about clients with neither user name nor password; ignores all others, so that unchecked credentials are never
/// taken for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnonymousProvider {
    pub policy: AnonymousPolicy,
}

impl Provider for AnonymousProvider {
    fn authenticate(&self, credentials: &Credentials) -> Outcome {
        if credentials.user_name.is_some() || credentials.password.is_some() {
            return Outcome::Ignore;
        }
        let is_allowed = match self.policy {
            AnonymousPolicy::Always => true,
            AnonymousPolicy::Never => false,
            AnonymousPolicy::LoopbackOnly => credentials.address.to_canonical().is_loopback(),
        };
        match is_allowed {
            true => Outcome::Allow { is_superuser: false },
            false => Outcome::Deny(DenyReason::AnonymousRefused),
        }
    }

    fn authenticate_now(&self, credentials: &Credentials) -> Option<Outcome> {
        Some(self.authenticate(credentials))
    }
}

#[cfg(test)]
mod tests;
