//! Authorization by ordered rules. The first matching rule decides. Access that no rule matches is denied.
//!
//! There are three stages, each executed as rarely as possible:
//! - [`Acl::compile`], once per configuration: checks every rule and reports every error;
//! - [`Acl::session`], once per session: evaluates conditions on the identity and fills in placeholders;
//! - [`SessionAcl`], per packet: scans the remaining rules, without a lock, an allocation or a system call.
//!
//! Topics and filters are *bare*: the caller has removed `$share/<name>/`, `$queue/`, `$exclusive/` and
//! `$delayed/<seconds>/`, so that none of them circumvents a rule. Topics are opaque: there is no normalization
//! [MQTT-4.7.3-4].
//!
//! # Meaning of a rule
//! - **publish** to topic T: the rule matches if one of its filters matches T, and its `qos` and `retain` conditions
//!   hold, if present. Wills are checked in the same way.
//! - **subscribe** to filter F: an allow rule matches if one of its filters *covers* F, that is, matches every topic
//!   that F can match. A deny rule matches if it covers F. A deny rule that only *overlaps* F is recorded: if a later
//!   allow rule grants F, the grant requires each delivery to be checked with [`SessionAcl::can_receive`]. Coverage is
//!   evaluated for each filter separately, never for a union of filters.
//! - Wildcards in the first level neither match nor cover topics that begin with `$` [MQTT-4.7.2-1].
//! - **connect**: rules with this action bind client ids to users (`connect.rs`). They say nothing about topics.
//!
//! # Placeholders cannot widen access
//! `%c` and `%u` stand for client id and user name, which the client chooses, and `${client_attrs.NAME}` for an
//! attribute that the client's login has. A value is unsafe if it is empty, contains `+`, `#`, `/` or NUL, or would put
//! a `$` at the start of the topic. With an unsafe value, an *allow* rule does not apply, and a *deny* rule applies to
//! everything from that level on, because skipping it would widen access as well. Rules do not apply to clients without
//! the user name or attribute that they contain.

mod cidr;
mod client_rules;
mod connect;
mod mosquitto;
mod pattern;
pub mod preset;
mod rule;
mod session;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};

pub use cidr::{Cidr, CidrError};
pub use client_rules::{ClientRules, DecisiveClientRule};
pub use mosquitto::{AclFileError, AclFileErrorKind, AclFileErrors, load_mosquitto_acl, parse_mosquitto_acl};
pub use rule::{AccessAction, AccessRule, AclErrorKind, Permission, TopicRuleError, is_plain_level};
pub use session::{SessionAcl, SubscriptionDecision, SubscriptionGrant};

use crate::login::ClientAttributes;
use connect::{ConnectRule, is_connect};
use rule::CompiledRule;
use session::AccessEntry;

pub(crate) const RULES_MAX: usize = 100_000;
/// Maximum number of resolved lists that sessions share. Further sessions get a list of their own.
const SHARED_LISTS_MAX: usize = 4096;

/// The authenticated identity of a session.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub address: IpAddr,
    pub is_superuser: bool,
    pub attributes: &'a ClientAttributes,
    pub certificate: CertificateIdentity<'a>,
}

/// Names of the verified client certificate. Empty if there is none, or if it has several such names.
#[derive(Clone, Copy, Debug, Default)]
pub struct CertificateIdentity<'a> {
    pub common_name: Option<&'a str>,
    /// As in `CN=meter-17,O=Example`.
    pub subject: Option<&'a str>,
}

/// Decisions that the rules leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AclOptions {
    /// Applies if no rule matches.
    pub no_match: Permission,
    pub partial_subscription: PartialSubscriptionPolicy,
}

/// Treatment of a subscription that the rules allow only in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartialSubscriptionPolicy {
    /// Rejected, as in EMQX. The client learns that access is missing.
    #[default]
    Refuse,
    /// Granted, and deliveries are filtered, as in Mosquitto.
    Filter,
}

/// The compiled rules of a server. Immutable: after a change, rules are compiled again and sessions are resolved again.
pub struct Acl {
    /// Rules for topics.
    rules: Vec<CompiledRule>,
    connect_rules: Vec<ConnectRule>,
    options: AclOptions,
    /// Indexes of rules without a list of users or clients. The other rules are found by name.
    general: Vec<u32>,
    by_user: HashMap<Box<str>, Vec<u32>>,
    by_client: HashMap<Box<str>, Vec<u32>>,
    shared: Mutex<SharedLists>,
}

/// A list among those of a session.
#[derive(Clone, Copy)]
pub enum RulePart<'a> {
    /// Rules of one client.
    Client(&'a ClientRules),
    /// Rules of the server.
    Server(&'a Acl),
}

/// Resolved lists, by the indexes of their rules.
type SharedLists = HashMap<Box<[u32]>, Weak<[AccessEntry]>>;

impl Acl {
    /// Checks and compiles the rules. Reports all errors of all rules.
    pub fn compile(rules: &[AccessRule], options: AclOptions) -> Result<Acl, AclErrors> {
        if rules.len() > RULES_MAX {
            let kind = AclErrorKind::TooManyRules { max: RULES_MAX };
            return Err(AclErrors(vec![AclError { rule: RULES_MAX, kind }]));
        }
        let mut errors = Vec::new();
        let mut compiled = Vec::with_capacity(rules.len());
        let mut connect_rules = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let result = match is_connect(rule) {
                true => ConnectRule::compile(rule).map(|rule| connect_rules.push(rule)),
                false => CompiledRule::compile(rule).map(|rule| compiled.push(rule)),
            };
            if let Err(kinds) = result {
                errors.extend(kinds.into_iter().map(|kind| AclError { rule: index, kind }));
            }
        }
        if errors.is_empty() {
            Ok(Acl::index(compiled, connect_rules, options))
        } else {
            Err(AclErrors(errors))
        }
    }

    fn index(rules: Vec<CompiledRule>, connect_rules: Vec<ConnectRule>, options: AclOptions) -> Acl {
        let mut acl = Acl {
            rules: Vec::new(),
            connect_rules,
            options,
            general: Vec::new(),
            by_user: HashMap::new(),
            by_client: HashMap::new(),
            shared: Mutex::default(),
        };
        for (index, rule) in rules.iter().enumerate() {
            let index = index as u32; // RULES_MAX fits into 32 bits.
            if let Some(users) = &rule.conditions.users {
                users
                    .iter()
                    .for_each(|name| acl.by_user.entry(name.clone()).or_default().push(index));
            } else if let Some(clients) = &rule.conditions.clients {
                clients
                    .iter()
                    .for_each(|id| acl.by_client.entry(id.clone()).or_default().push(index));
            } else {
                acl.general.push(index);
            }
        }
        acl.rules = rules;
        acl
    }

    /// Returns whether the client may connect with its client id. Without rules for connecting, every id is allowed.
    pub fn can_connect(&self, who: &Identity<'_>) -> bool {
        if who.is_superuser || self.connect_rules.is_empty() {
            return true;
        }
        let decision = self.connect_rules.iter().find_map(|rule| rule.decide(who));
        decision == Some(Permission::Allow)
    }

    /// Resolves the rules for one session. Takes a short lock on the table of shared lists, once per session and not
    /// per packet. Call again when the rules or the identity change.
    pub fn session(&self, who: &Identity<'_>) -> SessionAcl {
        if who.is_superuser {
            return SessionAcl::unrestricted();
        }
        let applicable = self.applicable(who);
        let has_placeholders = applicable
            .iter()
            .any(|&index| self.rules[index as usize].has_placeholders());
        let entries = match has_placeholders {
            true => self.resolve(&applicable, who).collect(),
            false => self.shared_list(applicable, who),
        };
        SessionAcl::new(entries, self.options)
    }

    /// Resolves the rules for one session with rules of its own, which are checked first.
    pub fn session_with(&self, own: &ClientRules, who: &Identity<'_>) -> SessionAcl {
        if who.is_superuser {
            return SessionAcl::unrestricted();
        }
        let applicable = self.applicable(who);
        let entries = own.resolve(who).chain(self.resolve(&applicable, who)).collect();
        SessionAcl::new(entries, self.options)
    }

    /// Resolves several lists of rules for one session, in order. This list provides the options.
    pub fn session_of(&self, parts: &[RulePart<'_>], who: &Identity<'_>) -> SessionAcl {
        let mut entries = Vec::new();
        for part in parts {
            match part {
                RulePart::Client(rules) => entries.extend(rules.resolve(who)),
                RulePart::Server(acl) => entries.extend(acl.resolve(&acl.applicable(who), who)),
            }
        }
        SessionAcl::new(entries.into(), self.options)
    }

    /// Returns the indexes of the rules whose conditions hold, in order.
    fn applicable(&self, who: &Identity<'_>) -> Vec<u32> {
        let named = |map: &HashMap<Box<str>, Vec<u32>>, name: Option<&str>| {
            name.and_then(|name| map.get(name)).cloned().unwrap_or_default()
        };
        let mut indexes = self.general.clone();
        indexes.extend(named(&self.by_user, who.user_name));
        indexes.extend(named(&self.by_client, Some(who.client_id)));
        indexes.sort_unstable();
        indexes.retain(|&index| self.rules[index as usize].conditions.are_met(who));
        indexes
    }

    fn resolve(&self, applicable: &[u32], who: &Identity<'_>) -> impl Iterator<Item = AccessEntry> {
        applicable
            .iter()
            .flat_map(|&index| self.rules[index as usize].resolve(who))
    }

    fn shared_list(&self, applicable: Vec<u32>, who: &Identity<'_>) -> Arc<[AccessEntry]> {
        // Every update leaves the map valid, so a panic cannot leave it inconsistent.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entries) = shared.get(&*applicable).and_then(Weak::upgrade) {
            return entries;
        }
        let entries: Arc<[AccessEntry]> = self.resolve(&applicable, who).collect();
        if shared.len() >= SHARED_LISTS_MAX {
            shared.retain(|_, list| list.strong_count() > 0);
        }
        if shared.len() < SHARED_LISTS_MAX {
            shared.insert(applicable.into(), Arc::downgrade(&entries));
        }
        entries
    }
}

/// All errors of a list of rules. Displayed as one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclErrors(pub Vec<AclError>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclError {
    /// Position in the list, starting at 0.
    pub rule: usize,
    pub kind: AclErrorKind,
}

impl fmt::Display for AclErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl fmt::Display for AclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {}", self.rule + 1, self.kind)
    }
}

impl std::error::Error for AclErrors {}
impl std::error::Error for AclError {}

#[cfg(test)]
mod tests;
