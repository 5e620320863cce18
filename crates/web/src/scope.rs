//! Scopes of API keys: groups of operations with the names of EMQX. A key without scopes can use all operations of its
//! role.
//!
//! An operation belongs to at most one scope. Operations without a scope manage users, keys and logins, or give rights
//! of several scopes at once. Keys with scopes cannot use them, so such a key cannot create a key with more rights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

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
