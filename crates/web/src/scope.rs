//! Scopes of API keys: groups of operations with the names of EMQX. A key without scopes can use all operations of its
//! role.
//!
//! An operation belongs to at most one scope. Operations without a scope manage users, keys and logins, or give rights
//! of several scopes at once. Keys with scopes cannot use them, so such a key cannot create a key with more rights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guard::RequiredAccess;

/// A group of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Clients, their subscriptions, queues and traces, and retained messages.
    Connections,
    /// Publishing of messages.
    Publish,
    /// Rules, actions, connectors and sources.
    DataIntegration,
    /// MQTT users, access rules, bans and authentication providers.
    AccessControl,
    /// Metrics, statistics, history, alarms and the log.
    Monitoring,
    /// Configuration, restart, certificates, backups and benchmarks.
    System,
    /// The audit log.
    Audit,
}

impl Scope {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Connections => "connections",
            Scope::Publish => "publish",
            Scope::DataIntegration => "data_integration",
            Scope::AccessControl => "access_control",
            Scope::Monitoring => "monitoring",
            Scope::System => "system",
            Scope::Audit => "audit",
        }
    }
}

/// Returns whether a key with these scopes can use an operation, as far as its role allows it.
pub(crate) fn allow(scopes: &[Scope], need: RequiredAccess, scope: Option<Scope>) -> bool {
    match need {
        // Without a login, or about the login itself.
        RequiredAccess::Nothing | RequiredAccess::OneTime | RequiredAccess::SetUp | RequiredAccess::OtherUser(_) => {
            true
        }
        RequiredAccess::Metrics | RequiredAccess::Viewer | RequiredAccess::Operator | RequiredAccess::Admin => {
            scope.is_some_and(|scope| scopes.contains(&scope))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_without_a_scope_are_refused() {
        let own = [Scope::Connections];
        for need in [RequiredAccess::Metrics, RequiredAccess::Viewer, RequiredAccess::Admin] {
            assert!(allow(&own, need, Some(Scope::Connections)));
            assert!(!allow(&own, need, Some(Scope::Publish)));
            assert!(!allow(&own, need, None));
            assert!(!allow(&[], need, Some(Scope::Connections)));
        }
        assert!(allow(&own, RequiredAccess::OneTime, None));
    }

    #[test]
    fn names_are_those_of_the_api() {
        for scope in [
            Scope::Connections,
            Scope::Publish,
            Scope::DataIntegration,
            Scope::AccessControl,
            Scope::Monitoring,
            Scope::System,
            Scope::Audit,
        ] {
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.name());
        }
    }
}
