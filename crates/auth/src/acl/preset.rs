//! Ready-made rules for the end of a list. None is applied unless the caller appends it.

use super::{Action, Rule};

/// Clients without user name on this machine: everything but publishing to `$SYS` and `$CONTROL`.
pub fn loopback_anonymous() -> Vec<Rule> {
    let mut rules = ordinary();
    for rule in &mut rules {
        rule.anonymous = Some(true);
        rule.addresses = Some(vec!["127.0.0.0/8".into(), "::1".into()]);
    }
    rules
}

/// Clients with a user name, wherever they come from: everything but publishing to `$SYS` and `$CONTROL`, and reading
/// `$CONTROL`.
pub fn authenticated_all() -> Vec<Rule> {
    let mut rules = ordinary();
    for rule in &mut rules {
        rule.anonymous = Some(false);
    }
    rules
}

/// What nobody but a superuser should do: use `$CONTROL`, publish to `$SYS`. For the beginning of a list.
pub fn protect_system() -> Vec<Rule> {
    vec![
        Rule::deny(Action::All, &["$CONTROL/#"]),
        Rule::deny(Action::Publish, &["$SYS/#"]),
    ]
}

fn ordinary() -> Vec<Rule> {
    let mut rules = protect_system();
    rules.push(Rule::allow(Action::All, &["#"]));
    rules.push(Rule::allow(Action::Subscribe, &["$SYS/#"]));
    rules
}
