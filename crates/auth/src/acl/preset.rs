//! Predefined rules for the end of a list. They apply only if the caller appends them.

use super::rule::EVERY_TOPIC;
use super::{AccessAction, AccessRule};

/// Clients without a user name on this machine: everything except publishing to `$SYS` and `$CONTROL`, and reading
/// `$CONTROL`.
pub fn loopback_anonymous() -> Vec<AccessRule> {
    let mut rules = default_rules();
    for rule in &mut rules {
        rule.anonymous = Some(true);
        rule.addresses = Some(vec!["127.0.0.0/8".into(), "::1".into()]);
    }
    rules
}

/// Clients with a user name, from any address: everything except publishing to `$SYS` and `$CONTROL`, and reading
/// `$CONTROL`.
pub fn authenticated_all() -> Vec<AccessRule> {
    let mut rules = default_rules();
    for rule in &mut rules {
        rule.anonymous = Some(false);
    }
    rules
}

/// Denies access to `$CONTROL` and publishing to `$SYS` for all except superusers. For the beginning of a list.
pub fn protect_system() -> Vec<AccessRule> {
    vec![
        AccessRule::deny(AccessAction::All, &["$CONTROL/#"]),
        AccessRule::deny(AccessAction::Publish, &["$SYS/#"]),
    ]
}

/// Hides the names, users and addresses of clients, which EMQX's `$SYS` topics contain, from all except superusers. For
/// the end of a list, so that a rule can allow them.
pub fn hide_clients() -> Vec<AccessRule> {
    vec![AccessRule::deny(AccessAction::Subscribe, &["$SYS/brokers/+/clients/#"])]
}

/// Denies every topic that no rule before it allows, including those that begin with `$`.
pub fn deny_others() -> AccessRule {
    AccessRule::deny(AccessAction::All, &[EVERY_TOPIC])
}

fn default_rules() -> Vec<AccessRule> {
    let mut rules = protect_system();
    rules.push(AccessRule::allow(AccessAction::All, &["#"]));
    rules.push(AccessRule::allow(AccessAction::Subscribe, &["$SYS/#"]));
    rules
}
