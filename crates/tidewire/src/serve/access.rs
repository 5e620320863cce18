//! Who may connect and what they may do: the configuration's users and rules, as the shards ask for them.

use std::sync::{Arc, PoisonError, RwLock};

use auth::{
    Acl, AclOptions, AnonymousPolicy, AnonymousProvider, Chain, DenyReason, Grant, Outcome, Password, Permission, Provider, Rule,
    SessionAcl, Users, UsersProvider, VerifiedPasswords, preset,
};
use broker::{Access, AuthOutcome, Credentials, Identity, SessionAccess, SubscribeAccess};
use mqtt::{QoS, ReasonCode};

use crate::config::Config;
use crate::config::options::access::{Anonymous, NoMatch, PartialSubscription};

/// Verified passwords that are remembered, so that a device that comes back does not cost a hash.
const VERIFIED_MAX: usize = 100_000;

pub struct NodeAccess {
    chain: Chain,
    anonymous: AnonymousProvider,
    acl: RwLock<Arc<Acl>>,
}

impl NodeAccess {
    pub fn new(config: &Config) -> Result<NodeAccess, String> {
        let users = Arc::new(load_users(config)?);
        let verified = VerifiedPasswords::new(VERIFIED_MAX).map_err(|e| e.to_string())?;
        let anonymous = AnonymousProvider { policy: anonymous_policy(config.access.anonymous) };
        let chain = Chain::new(vec![Arc::new(anonymous), Arc::new(UsersProvider::new(users, verified))]);
        let acl = Acl::compile(&rules(config)?, acl_options(config)).map_err(|e| e.to_string())?;
        Ok(NodeAccess { chain, anonymous, acl: RwLock::new(Arc::new(acl)) })
    }

    fn acl(&self) -> Arc<Acl> {
        self.acl.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn anonymous_policy(anonymous: Anonymous) -> AnonymousPolicy {
    match anonymous {
        Anonymous::Never => AnonymousPolicy::Never,
        Anonymous::Loopback => AnonymousPolicy::LoopbackOnly,
        Anonymous::Always => AnonymousPolicy::Always,
    }
}

fn acl_options(config: &Config) -> AclOptions {
    AclOptions {
        no_match: match config.access.no_match {
            NoMatch::Deny => Permission::Deny,
            NoMatch::Allow => Permission::Allow,
        },
        partial_subscription: match config.access.partial_subscription {
            PartialSubscription::Refuse => auth::PartialSubscription::Refuse,
            PartialSubscription::Filter => auth::PartialSubscription::Filter,
        },
    }
}

fn load_users(config: &Config) -> Result<Users, String> {
    let users = match config.access.password_file.0.as_deref() {
        Some(path) => Users::load(path).map_err(|e| format!("access.password_file: {e}"))?,
        None => Users::empty().map_err(|e| e.to_string())?,
    };
    for (name, hash) in &config.users {
        users.set(name, hash.clone(), false).map_err(|e| format!("access.users.{name}: {e}"))?;
    }
    Ok(users)
}

/// What the configuration says; without rules of its own, whoever may connect may do everything that is not the server's.
fn rules(config: &Config) -> Result<Vec<Rule>, String> {
    let mut rules = preset::protect_system();
    let mut own = config.access.rules.0.clone();
    if let Some(path) = config.access.acl_file.0.as_deref() {
        own.extend(auth::load_mosquitto_acl(path).map_err(|e| format!("access.acl_file: {e}"))?);
    }
    if own.is_empty() {
        rules.extend(preset::authenticated_all());
        match config.access.anonymous {
            Anonymous::Never => {}
            Anonymous::Loopback => rules.extend(preset::loopback_anonymous()),
            Anonymous::Always => rules.extend(preset::loopback_anonymous().into_iter().map(|rule| Rule { addresses: None, ..rule })),
        }
    }
    rules.extend(own);
    Ok(rules)
}

impl Access for NodeAccess {
    /// Only what needs no hash is decided here.
    fn authenticate_now(&self, credentials: &Credentials) -> Option<AuthOutcome> {
        if credentials.user_name.is_some() || credentials.password.is_some() {
            return None;
        }
        match self.anonymous.authenticate(&offered(credentials)) {
            Outcome::Ignore => None,
            outcome => Some(answer(outcome)),
        }
    }

    fn knows_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, who: &Identity) -> Option<Arc<dyn SessionAccess>> {
        let who = auth::Identity {
            client_id: &who.client_id,
            user_name: who.user_name.as_deref(),
            address: who.address,
            is_superuser: who.is_superuser,
        };
        let acl = self.acl().session(&who);
        (!acl.is_unrestricted()).then(|| Arc::new(Rights(acl)) as Arc<dyn SessionAccess>)
    }
}

impl net::Authenticator for NodeAccess {
    fn authenticate(&self, credentials: &Credentials) -> AuthOutcome {
        answer(self.chain.authenticate(&offered(credentials)))
    }
}

fn offered(credentials: &Credentials) -> auth::Credentials {
    auth::Credentials {
        client_id: credentials.client_id.to_string(),
        user_name: credentials.user_name.as_deref().map(str::to_owned),
        password: credentials.password.as_ref().map(|password| Password::new(password.to_vec())),
        address: credentials.address,
    }
}

fn answer(outcome: Outcome) -> AuthOutcome {
    match outcome {
        Outcome::Allow { is_superuser } => AuthOutcome::Allow { is_superuser, data: None },
        Outcome::Deny(reason) => AuthOutcome::Deny { reason: reason.reason_code(), because: words(reason) },
        Outcome::Ignore => AuthOutcome::Deny { reason: ReasonCode::NotAuthorized, because: "nobody knows this client" },
    }
}

fn words(reason: DenyReason) -> &'static str {
    match reason {
        DenyReason::UnknownUser => "unknown user",
        DenyReason::WrongPassword => "wrong password",
        DenyReason::NoPassword => "a user name without a password",
        DenyReason::AnonymousRefused => "no user name and password, which are needed from this address (access.anonymous)",
        DenyReason::NotAuthorized => "refused by policy",
    }
}

struct Rights(SessionAcl);

impl SessionAccess for Rights {
    fn may_publish(&self, topic: &str, qos: QoS, retain: bool) -> bool {
        self.0.publish(topic, qos, retain)
    }

    fn may_subscribe(&self, filter: &str) -> SubscribeAccess {
        match self.0.subscribe(filter) {
            Grant::Denied => SubscribeAccess::Denied,
            Grant::Allowed { filter_deliveries: true } => SubscribeAccess::AllowedInPart,
            Grant::Allowed { filter_deliveries: false } => SubscribeAccess::Allowed,
        }
    }

    fn may_receive(&self, topic: &str) -> bool {
        self.0.may_receive(topic)
    }
}
