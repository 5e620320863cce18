//! Users and access rules of the configuration, and how the rules are compiled.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use api::{AclRules, ChangeError};
use auth::{AccessAction, AccessRule, Acl, AclErrors, AclOptions, ClientAttributes, Permission, Users, preset};
use broker::SessionAccess;

use super::rights::SessionRights;
use crate::config::files::chain;
use crate::config::key::OptionKey;
use crate::config::options::access::source::AccessSourceKind;
use crate::config::options::access::{NoMatch, PartialSubscription, UnknownUsers};
use crate::config::{Config, LoadedConfig, runtime};
use crate::stores;

/// The compiled access rules of the server.
#[derive(Clone)]
pub struct CompiledRules {
    /// `None` if there are no rules: then clients may publish and subscribe to all topics that are not the server's
    /// own.
    pub acl: Option<Arc<Acl>>,
    /// Rules for clients that have rules of their own. Without rules for topics, `access.no_match` decides.
    pub after_own: Arc<Acl>,
    /// The same rules in parts, for an order that contains other sources. `None` without other sources.
    pub parts: Option<Arc<RuleParts>>,
    /// Why clients may use topics that no rule allows. `None` if they may not.
    pub open: Option<OpenAccess>,
}

/// Why clients may publish and subscribe to topics that no access rule allows. A later reason opens more topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenAccess {
    /// `access.no_match` is `allow`.
    NoMatch,
    /// All rules have the action `connect`.
    ConnectRules,
    /// There are no rules.
    NoRules,
}

impl OpenAccess {
    fn of(rules: &[AccessRule], options: AclOptions, origin: RuleOrigin) -> Option<OpenAccess> {
        if has_topic_rules(rules) || origin.has_acl_file || origin.has_other_sources {
            return (options.no_match == Permission::Allow).then_some(OpenAccess::NoMatch);
        }
        Some(match rules.is_empty() {
            true => OpenAccess::NoRules,
            false => OpenAccess::ConnectRules,
        })
    }

    /// Logs that a change of the rules has opened topics.
    pub fn warn(self) {
        match self {
            OpenAccess::NoMatch => tracing::warn!(
                "access.no_match is now allow: every client may publish and subscribe to all topics that no access rule \
                 denies"
            ),
            OpenAccess::ConnectRules => tracing::warn!(
                "the last access rule for topics was removed: every client may publish and subscribe to all topics"
            ),
            OpenAccess::NoRules => {
                tracing::warn!("the last access rule was removed: every client may publish and subscribe to all topics")
            }
        }
    }
}

fn has_topic_rules(rules: &[AccessRule]) -> bool {
    rules.iter().any(|rule| rule.action != AccessAction::Connect)
}

/// Rules of the server, in parts that other sources come between.
pub struct RuleParts {
    /// Topics of the server, before all others.
    pub protected: Acl,
    /// The rules of the configuration.
    pub rules: Acl,
    /// After all others. Has `access.no_match`.
    pub last: Acl,
    /// Denies everything, for a client whose rules are unknown.
    pub nothing: Acl,
}

/// Users and rules of a configuration, read and validated.
pub struct ConfiguredAccess {
    pub users: Users,
    /// Where each user is set.
    pub sources: HashMap<String, String>,
    pub rules: AclRules,
    pub acl: CompiledRules,
}

impl ConfiguredAccess {
    /// `has_other_sources` is that of the running server: `access.sources` needs a restart.
    pub fn new(loaded: &LoadedConfig, has_other_sources: bool) -> Result<ConfiguredAccess, String> {
        let (users, sources) = configured_users(loaded)?;
        let rules = configured_rules(loaded)?;
        let origin = RuleOrigin {
            has_acl_file: loaded.config.access.acl_file.0.is_some(),
            has_other_sources,
        };
        let acl = compile(&rules.rules, rules.options, origin).map_err(|e| chain(&e))?;
        Ok(ConfiguredAccess {
            users,
            sources,
            rules,
            acl,
        })
    }
}

/// Where access rules come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RuleOrigin {
    /// `access.acl_file` is set.
    pub has_acl_file: bool,
    /// `access.sources` contains other sources.
    pub has_other_sources: bool,
}

/// Returns whether other systems are sources of access rules, or the built-in rules are not.
pub fn has_other_sources(config: &Config) -> bool {
    config.access.sources != [AccessSourceKind::Rules]
}

/// An access file without rules denies: its owner wanted rules, and may have lost them.
pub fn compile(rules: &[AccessRule], options: AclOptions, origin: RuleOrigin) -> Result<CompiledRules, AclErrors> {
    let has_topic_rules = has_topic_rules(rules);
    let of_topics = |rules: &[AccessRule]| {
        let mut all = preset::protect_system();
        all.extend_from_slice(rules);
        all.extend(preset::hide_clients());
        Acl::compile(&all, options).map(Arc::new)
    };
    let acl = match (rules, origin.has_acl_file) {
        ([], false) => None,
        (_, false) if !has_topic_rules => Some(compile_connect_rules(rules)?),
        ([], true) => {
            tracing::warn!("access.acl_file contains no rule: access.no_match decides");
            Some(of_topics(rules)?)
        }
        _ => Some(of_topics(rules)?),
    };
    let after_own = match &acl {
        Some(acl) if has_topic_rules => acl.clone(),
        _ => of_topics(&[])?,
    };
    let parts = origin.has_other_sources.then(|| compile_parts(rules, options));
    Ok(CompiledRules {
        acl,
        after_own,
        parts: parts.transpose()?.map(Arc::new),
        open: OpenAccess::of(rules, options, origin),
    })
}

fn compile_parts(rules: &[AccessRule], options: AclOptions) -> Result<RuleParts, AclErrors> {
    Ok(RuleParts {
        protected: Acl::compile(&preset::protect_system(), options)?,
        rules: Acl::compile(rules, options)?,
        last: Acl::compile(&preset::hide_clients(), options)?,
        nothing: Acl::compile(&[preset::deny_others()], options)?,
    })
}

/// Rules that only bind client ids leave topics as without rules.
fn compile_connect_rules(rules: &[AccessRule]) -> Result<Arc<Acl>, AclErrors> {
    let mut all = rules.to_vec();
    all.extend(preset::hide_clients());
    let options = AclOptions {
        no_match: Permission::Allow,
        ..AclOptions::default()
    };
    Acl::compile(&all, options).map(Arc::new)
}

/// Without rules, only the topics with data of clients are hidden.
pub fn access_without_rules() -> Result<Arc<dyn SessionAccess>, String> {
    let options = AclOptions {
        no_match: Permission::Allow,
        ..AclOptions::default()
    };
    let acl = Acl::compile(&preset::hide_clients(), options).map_err(|error| chain(&error))?;
    let anybody = auth::Identity {
        client_id: "",
        user_name: None,
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        is_superuser: false,
        attributes: ClientAttributes::NONE,
        certificate: auth::CertificateIdentity::default(),
    };
    Ok(Arc::new(SessionRights(acl.session(&anybody))))
}

/// Returns the users of the configuration, and where each one is set.
fn configured_users(loaded: &LoadedConfig) -> Result<(Users, HashMap<String, String>), String> {
    let config = &loaded.config;
    let mut sources = HashMap::new();
    let users = match config.access.password_file.0.as_deref() {
        Some(path) => Users::load(path).map_err(|e| format!("access.password_file: {}", chain(&e)))?,
        None => Users::empty().map_err(|e| chain(&e))?,
    };
    for user in users.list() {
        sources.insert(user.name, "access.password_file".to_owned());
    }
    for (name, hash) in &config.users {
        users
            .set(name, hash.clone(), false)
            .map_err(|e| format!("access.users.{name}: {}", chain(&e)))?;
        sources.insert(
            name.clone(),
            format!("access.users ({})", origin_of(loaded, &["access", "users", name])),
        );
    }
    Ok((users, sources))
}

fn origin_of(loaded: &LoadedConfig, key: &[&str]) -> String {
    let value = loaded.effective.iter().find(|value| value.key.words() == key);
    value.map_or_else(|| "default".to_owned(), |value| value.origin.to_string())
}

fn configured_rules(loaded: &LoadedConfig) -> Result<AclRules, String> {
    let config = &loaded.config;
    let mut rules = config.access.rules.0.clone();
    let mut pinned_by = None;
    let rules_value = loaded
        .effective
        .iter()
        .find(|value| value.key.words() == ["access", "rules"]);
    if let Some(value) = rules_value.filter(|value| value.origin.is_pinned()) {
        pinned_by = Some(format!("access.rules ({})", value.origin));
    }
    if let Some(path) = config.access.acl_file.0.as_deref() {
        rules.extend(auth::load_mosquitto_acl(path).map_err(|e| format!("access.acl_file: {}", chain(&e)))?);
        pinned_by = Some(format!(
            "access.acl_file ({})",
            origin_of(loaded, &["access", "acl_file"])
        ));
    }
    Ok(AclRules {
        rules,
        options: acl_options(config),
        is_acl_file: config.access.acl_file.0.is_some(),
        admits_unknown_users: config.access.unknown_users == UnknownUsers::Anonymous,
        pinned_by,
    })
}

/// Writes the rules to `runtime.toml` and keeps its other contents.
pub fn save_rules(data_dir: &Path, rules: &[AccessRule]) -> Result<(), ChangeError> {
    let file = stores::read_runtime_file(data_dir).map_err(|diagnostic| ChangeError::Files {
        reason: diagnostic.to_string(),
    })?;
    let document = file.text.parse();
    let mut document: toml::Table = document.map_err(|error| ChangeError::Storage(io::Error::other(error)))?;
    let mut set = || -> io::Result<()> {
        let rules = toml::Value::try_from(rules).map_err(io::Error::other)?;
        runtime::set(&mut document, &OptionKey::of(&["access", "rules"]), rules)?;
        runtime::write(data_dir, &document)
    };
    set().map_err(ChangeError::Storage)
}

fn acl_options(config: &Config) -> AclOptions {
    AclOptions {
        no_match: match config.access.no_match {
            NoMatch::Deny => Permission::Deny,
            NoMatch::Allow => Permission::Allow,
        },
        partial_subscription: match config.access.partial_subscription {
            PartialSubscription::Refuse => auth::PartialSubscriptionPolicy::Refuse,
            PartialSubscription::Filter => auth::PartialSubscriptionPolicy::Filter,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(rules: &[AccessRule], no_match: Permission, origin: RuleOrigin) -> Option<OpenAccess> {
        let options = AclOptions {
            no_match,
            ..AclOptions::default()
        };
        OpenAccess::of(rules, options, origin)
    }

    #[test]
    fn topics_are_open_without_topic_rules_or_with_no_match_allow() {
        let only_rules = RuleOrigin {
            has_acl_file: false,
            has_other_sources: false,
        };
        let with_acl_file = RuleOrigin {
            has_acl_file: true,
            ..only_rules
        };
        let with_other_sources = RuleOrigin {
            has_other_sources: true,
            ..only_rules
        };
        let connect = AccessRule::allow(AccessAction::Connect, &[]);
        let topics = AccessRule::allow(AccessAction::All, &["a"]);
        for no_match in [Permission::Deny, Permission::Allow] {
            let of_no_match = (no_match == Permission::Allow).then_some(OpenAccess::NoMatch);
            assert_eq!(open(&[], no_match, only_rules), Some(OpenAccess::NoRules));
            let only_connect = std::slice::from_ref(&connect);
            assert_eq!(open(only_connect, no_match, only_rules), Some(OpenAccess::ConnectRules));
            assert_eq!(
                open(&[connect.clone(), topics.clone()], no_match, only_rules),
                of_no_match
            );
            for origin in [with_acl_file, with_other_sources] {
                assert_eq!(open(&[], no_match, origin), of_no_match);
                assert_eq!(open(only_connect, no_match, origin), of_no_match);
            }
        }
        assert!(OpenAccess::NoRules > OpenAccess::ConnectRules && OpenAccess::ConnectRules > OpenAccess::NoMatch);
    }
}
