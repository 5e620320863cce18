//! Authorization: ordered rules, the first that matches decides, and what no rule matches is refused.
//!
//! Three stages, each paid as rarely as possible:
//! - [`Acl::compile`], once per configuration: every rule is checked and every error reported;
//! - [`Acl::session`], once per session: conditions on who it is are decided and placeholders filled in;
//! - [`SessionAcl`], per packet: a scan over what is left, without lock, allocation or system call.
//!
//! Topics and filters are *bare*: the caller has taken off `$share/<name>/`, `$queue/`, `$exclusive/` and
//! `$delayed/<seconds>/` before it asks, so that none of them is a way around a rule. They are opaque: no normalization
//! [MQTT-4.7.3-4].
//!
//! # What a rule means
//! - **publish** to topic T: the rule matches when one of its filters matches T, and its `qos` and `retain` conditions,
//!   where present, hold. Wills are asked about in the same way.
//! - **subscribe** to filter F: an allow rule matches when one of its filters *covers* F, that is, matches every topic that
//!   F can match. A deny rule matches when it covers F. A deny rule that only *overlaps* F is remembered: when an allow rule
//!   further down grants F, the grant says that deliveries have to be filtered, one by one, with
//!   [`SessionAcl::may_receive`]. Coverage is judged filter by filter, never by a union of several.
//! - Wildcards in the first level neither match nor cover topics that begin with `$` [MQTT-4.7.2-1].
//!
//! # Placeholders cannot widen access
//! `%c` and `%u` stand for client id and user name, which the client chooses. When the value is empty, contains `+`, `#`,
//! `/` or NUL, or would put a `$` at the start of the topic, an *allow* rule with that placeholder does not apply; a *deny*
//! rule with it applies to everything from that level on, because leaving it out would widen access just the same. A
//! client without user name is not concerned by rules with `%u`.

mod cidr;
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
pub use mosquitto::{AclFileError, AclFileErrorKind, AclFileErrors, load_mosquitto_acl, parse_mosquitto_acl};
pub use rule::{AclErrorKind, Action, Permission, Rule, TopicRuleError};
pub use session::{Grant, SessionAcl};

use rule::CompiledRule;
use session::Entry;

const RULES_MAX: usize = 100_000;
/// Resolved lists kept for sharing; sessions beyond that have lists of their own.
const SHARED_LISTS_MAX: usize = 4096;

/// Who a session belongs to. The caller has authenticated it.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub address: IpAddr,
    pub is_superuser: bool,
}

/// What applies when the rules do not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AclOptions {
    /// When no rule matches.
    pub no_match: Permission,
    pub partial_subscription: PartialSubscription,
}

/// What happens to a subscription of which the rules allow only a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartialSubscription {
    /// Refused, as in EMQX: the client learns what it may not have.
    #[default]
    Refuse,
    /// Granted, with deliveries filtered, as in Mosquitto.
    Filter,
}

/// The compiled rules of a server. Immutable: a change compiles a new one, and sessions are resolved anew.
pub struct Acl {
    rules: Vec<CompiledRule>,
    options: AclOptions,
    /// Indexes of rules that name no user and no client; the rest is found by name.
    general: Vec<u32>,
    by_user: HashMap<Box<str>, Vec<u32>>,
    by_client: HashMap<Box<str>, Vec<u32>>,
    shared: Mutex<SharedLists>,
}

/// Resolved lists by the indexes of the rules they come from.
type SharedLists = HashMap<Box<[u32]>, Weak<[Entry]>>;

impl Acl {
    /// Checks and compiles; all that is wrong with any rule is reported.
    pub fn compile(rules: &[Rule], options: AclOptions) -> Result<Acl, AclErrors> {
        if rules.len() > RULES_MAX {
            let kind = AclErrorKind::TooManyRules { max: RULES_MAX };
            return Err(AclErrors(vec![AclError { rule: RULES_MAX, kind }]));
        }
        let mut errors = Vec::new();
        let mut compiled = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            match CompiledRule::compile(rule) {
                Ok(rule) => compiled.push(rule),
                Err(kinds) => errors.extend(kinds.into_iter().map(|kind| AclError { rule: index, kind })),
            }
        }
        if errors.is_empty() {
            Ok(Acl::index(compiled, options))
        } else {
            Err(AclErrors(errors))
        }
    }

    fn index(rules: Vec<CompiledRule>, options: AclOptions) -> Acl {
        let mut acl = Acl {
            rules: Vec::new(),
            options,
            general: Vec::new(),
            by_user: HashMap::new(),
            by_client: HashMap::new(),
            shared: Mutex::default(),
        };
        for (index, rule) in rules.iter().enumerate() {
            let index = index as u32; // RULES_MAX fits.
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

    pub fn rules_len(&self) -> usize {
        self.rules.len()
    }

    /// Resolves the rules for one session. Takes a short lock on the table of shared lists: once per session, not per
    /// packet. Ask again when the rules or the identity change.
    pub fn session(&self, who: &Identity<'_>) -> SessionAcl {
        if who.is_superuser {
            return SessionAcl::unrestricted();
        }
        let applicable = self.applicable(who);
        let has_placeholders = applicable
            .iter()
            .any(|&index| self.rules[index as usize].has_placeholders());
        let entries = match has_placeholders {
            true => self.resolve(&applicable, who).into(),
            false => self.shared_list(applicable, who),
        };
        SessionAcl::new(entries, self.options)
    }

    /// Indexes of the rules whose conditions hold, in order.
    fn applicable(&self, who: &Identity<'_>) -> Vec<u32> {
        let named = |map: &HashMap<Box<str>, Vec<u32>>, name: Option<&str>| {
            name.and_then(|name| map.get(name)).cloned().unwrap_or_default()
        };
        let mut indexes = self.general.clone();
        indexes.extend(named(&self.by_user, who.user_name));
        indexes.extend(named(&self.by_client, Some(who.client_id)));
        indexes.sort_unstable();
        indexes.retain(|&index| self.rules[index as usize].conditions.hold(who));
        indexes
    }

    fn resolve(&self, applicable: &[u32], who: &Identity<'_>) -> Vec<Entry> {
        applicable
            .iter()
            .flat_map(|&index| self.rules[index as usize].resolve(who))
            .collect()
    }

    fn shared_list(&self, applicable: Vec<u32>, who: &Identity<'_>) -> Arc<[Entry]> {
        // Every update leaves the map valid, so a panic elsewhere cannot have broken it.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entries) = shared.get(&*applicable).and_then(Weak::upgrade) {
            return entries;
        }
        let entries: Arc<[Entry]> = self.resolve(&applicable, who).into();
        if shared.len() >= SHARED_LISTS_MAX {
            shared.retain(|_, list| list.strong_count() > 0);
        }
        if shared.len() < SHARED_LISTS_MAX {
            shared.insert(applicable.into(), Arc::downgrade(&entries));
        }
        entries
    }
}

/// Everything that is wrong with a list of rules; prints one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclErrors(pub Vec<AclError>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclError {
    /// Position in the list, from 0.
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
