//! Access rules that belong to one client. A token or another system provides them at the login.

use std::fmt;

use super::connect::is_connect;
use super::rule::{AccessRule, CompiledRule};
use super::session::{AccessEntry, SessionAcl};
use super::{AclError, AclErrorKind, AclErrors, AclOptions, Identity, preset};

/// Maximum number of topics of all rules of a client. Every session with rules of its own has a copy.
const CLIENT_TOPICS_MAX: usize = 1000;

/// Compiled rules of one client. They are checked before the rules of the server, but do not allow what
/// [`preset::protect_system`] denies.
pub struct ClientRules(Vec<CompiledRule>);

impl ClientRules {
    /// Checks and compiles the rules. Reports all errors of all rules.
    pub fn compile(rules: &[AccessRule]) -> Result<ClientRules, AclErrors> {
        let mut errors = Vec::new();
        let mut compiled = Vec::with_capacity(rules.len());
        let topics: usize = rules.iter().map(|rule| rule.topics.len()).sum();
        if topics > CLIENT_TOPICS_MAX || rules.len() > CLIENT_TOPICS_MAX {
            let max = CLIENT_TOPICS_MAX;
            let kind = AclErrorKind::TooManyRules { max };
            return Err(AclErrors(vec![AclError { rule: max, kind }]));
        }
        for (index, rule) in rules.iter().enumerate() {
            let result = match is_connect(rule) {
                true => Err(vec![AclErrorKind::ConnectOfClient]),
                false => CompiledRule::compile(rule),
            };
            match result {
                Ok(rule) => compiled.push(rule),
                Err(kinds) => errors.extend(kinds.into_iter().map(|kind| AclError { rule: index, kind })),
            }
        }
        match errors.is_empty() {
            true => {
                let protected = preset::protect_system();
                let protected = protected.iter().filter_map(|rule| CompiledRule::compile(rule).ok());
                Ok(ClientRules(protected.chain(compiled).collect()))
            }
            false => Err(AclErrors(errors)),
        }
    }

    /// Returns the entries of the rules whose conditions hold, in order.
    pub(super) fn resolve(&self, who: &Identity<'_>) -> impl Iterator<Item = AccessEntry> {
        let applicable = self.0.iter().filter(|rule| rule.conditions.are_met(who));
        applicable.flat_map(|rule| rule.resolve(who))
    }
}

/// The rule of a client that decides about an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisiveClientRule {
    /// Position among the rules of the client, counted from 1. 0: a rule of the server that protects its topics.
    pub number: usize,
    /// Permission and topic filter of the client, such as `allow meters/7/#`.
    pub text: String,
}

impl ClientRules {
    /// Returns the number of rules.
    pub fn count(&self) -> usize {
        self.0.len().saturating_sub(preset::protect_system().len())
    }

    /// Returns the first rule that decides, for an operator. `decides` tests an action with the rules of a session.
    pub fn decisive(&self, who: &Identity<'_>, decides: impl Fn(&SessionAcl) -> bool) -> Option<DecisiveClientRule> {
        let protected = preset::protect_system().len();
        self.0.iter().enumerate().find_map(|(index, rule)| {
            let applies = rule.conditions.are_met(who);
            let mut entries = rule.resolve(who).filter(|_| applies);
            let entry =
                entries.find(|entry| decides(&SessionAcl::new([entry.clone()].into(), AclOptions::default())))?;
            Some(DecisiveClientRule {
                number: (index + 1).saturating_sub(protected),
                text: entry.to_string(),
            })
        })
    }
}

impl fmt::Debug for ClientRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientRules({})", self.0.len())
    }
}
