//! Rules with `action = "connect"`: which client ids a user may have.
//!
//! ```toml
//! [[rules]]
//! permission = "allow"
//! action = "connect"
//! clients = ["%u", "%u:*"]        # the user's name, or the name, a colon and any text
//! ```
//!
//! The first rule that matches decides. If there is a rule for connecting and none matches, the client may not connect.
//! Without such rules every client id is allowed.
//!
//! A value of `%u` is compared as text, so that a user name with `*` or `%u` means nothing else. `%u-*` gives the user
//! `a` the ids of the user `a-b`; a user name cannot contain a colon, so `%u:*` does not.

use super::Identity;
use super::rule::{AccessAction, AccessRule, AclErrorKind, Permission, RuleConditions, compile_conditions, shortened};

const CLIENT_PATTERNS_MAX: usize = 1_000;
const PATTERN_BYTES_MAX: usize = 65_535;
const USER_NAME_PLACEHOLDERS: [&str; 2] = ["%u", "${username}"];
const CLIENT_ID_PLACEHOLDERS: [&str; 2] = ["%c", "${clientid}"];

pub(super) struct ConnectRule {
    permission: Permission,
    /// Without a condition on client ids.
    conditions: RuleConditions,
    /// `None` matches every client id.
    clients: Option<Box<[ClientPattern]>>,
}

#[derive(Debug, PartialEq, Eq)]
struct ClientPattern {
    /// The texts before, between and after the values of the user name.
    texts: Box<[Box<str>]>,
    /// The id may continue after the last text.
    is_prefix: bool,
}

impl ConnectRule {
    pub fn compile(rule: &AccessRule) -> Result<ConnectRule, Vec<AclErrorKind>> {
        let mut errors = Vec::new();
        if !rule.topics.is_empty() {
            errors.push(AclErrorKind::ConnectTopics);
        }
        if rule.qos.is_some() || rule.retain.is_some() {
            errors.push(AclErrorKind::PublishCondition);
        }
        let without_clients = AccessRule {
            clients: None,
            ..rule.clone()
        };
        let conditions = compile_conditions(&without_clients, &mut errors);
        let clients = rule
            .clients
            .as_ref()
            .map(|clients| compile_clients(clients, &mut errors));
        match errors.is_empty() {
            true => Ok(ConnectRule {
                permission: rule.permission,
                conditions,
                clients,
            }),
            false => Err(errors),
        }
    }

    /// Returns the decision, if the rule matches.
    pub fn decide(&self, who: &Identity<'_>) -> Option<Permission> {
        let is_listed = |clients: &[ClientPattern]| clients.iter().any(|pattern| pattern.matches(who));
        let is_match = self.conditions.are_met(who) && self.clients.as_deref().is_none_or(is_listed);
        is_match.then_some(self.permission)
    }
}

pub(super) fn is_connect(rule: &AccessRule) -> bool {
    rule.action == AccessAction::Connect
}

fn compile_clients(clients: &[String], errors: &mut Vec<AclErrorKind>) -> Box<[ClientPattern]> {
    if clients.is_empty() {
        errors.push(AclErrorKind::EmptyList { list: "clients" });
    }
    if clients.len() > CLIENT_PATTERNS_MAX {
        errors.push(AclErrorKind::ListTooLong {
            list: "clients",
            max: CLIENT_PATTERNS_MAX,
        });
    }
    let mut patterns = Vec::new();
    for text in clients.iter().take(CLIENT_PATTERNS_MAX) {
        if text.len() > PATTERN_BYTES_MAX {
            errors.push(AclErrorKind::NameTooLong { list: "clients" });
            continue;
        }
        match ClientPattern::parse(text) {
            Some(pattern) => patterns.push(pattern),
            None => errors.push(AclErrorKind::ClientPattern { text: shortened(text) }),
        }
    }
    patterns.into()
}

impl ClientPattern {
    /// `None` if `*` is not the last character, or for a placeholder of the client id.
    fn parse(text: &str) -> Option<ClientPattern> {
        let (text, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text, false),
        };
        if text.contains('*') || CLIENT_ID_PLACEHOLDERS.iter().any(|name| text.contains(name)) {
            return None;
        }
        let text = text.replace(USER_NAME_PLACEHOLDERS[1], USER_NAME_PLACEHOLDERS[0]);
        Some(ClientPattern {
            texts: text.split(USER_NAME_PLACEHOLDERS[0]).map(Box::from).collect(),
            is_prefix,
        })
    }

    fn matches(&self, who: &Identity<'_>) -> bool {
        let Some((first, others)) = self.texts.split_first() else {
            return false;
        };
        let mut rest = who.client_id.strip_prefix(&**first);
        for text in others {
            // A pattern with `%u` matches no client without a user name.
            let Some(user_name) = who.user_name.filter(|name| !name.is_empty()) else {
                return false;
            };
            rest = rest
                .and_then(|rest| rest.strip_prefix(user_name))
                .and_then(|rest| rest.strip_prefix(&**text));
        }
        rest.is_some_and(|rest| self.is_prefix || rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{Acl, AclOptions, CertificateIdentity};
    use crate::login::ClientAttributes;

    fn allow(clients: &[&str]) -> AccessRule {
        AccessRule {
            clients: Some(clients.iter().map(|client| client.to_string()).collect()),
            ..AccessRule::allow(AccessAction::Connect, &[])
        }
    }

    fn can_connect(rules: &[AccessRule], client_id: &str, user_name: Option<&str>) -> bool {
        let acl = Acl::compile(rules, AclOptions::default()).expect("valid rules");
        acl.can_connect(&identity(client_id, user_name))
    }

    fn identity<'a>(client_id: &'a str, user_name: Option<&'a str>) -> Identity<'a> {
        Identity {
            client_id,
            user_name,
            address: [127, 0, 0, 1].into(),
            is_superuser: false,
            attributes: ClientAttributes::NONE,
            certificate: CertificateIdentity::default(),
        }
    }

    #[test]
    fn client_id_is_bound_to_the_user_name() {
        let rules = [allow(&["%u", "%u:*", "gw-${username}-%u"])];
        for (client_id, user_name, is_allowed) in [
            ("ann", Some("ann"), true),
            ("ann:1", Some("ann"), true),
            ("ann:", Some("ann"), true),
            ("gw-ann-ann", Some("ann"), true),
            ("gw-ann-ann-1", Some("ann"), false),
            ("ann-1", Some("ann"), false),
            ("bob", Some("ann"), false),
            ("bob:1", Some("ann"), false),
            ("ann", None, false),
            ("", Some(""), false),
            ("anything", Some("*"), false),
            ("%u", Some("ann"), false),
        ] {
            assert_eq!(
                can_connect(&rules, client_id, user_name),
                is_allowed,
                "{client_id} {user_name:?}"
            );
        }
    }

    #[test]
    fn first_matching_rule_decides_and_no_match_denies() {
        let ops = AccessRule {
            users: Some(vec!["ops".to_owned()]),
            ..AccessRule::allow(AccessAction::Connect, &[])
        };
        let deny = AccessRule {
            permission: Permission::Deny,
            ..allow(&["plc-*"])
        };
        let rules = [ops, deny, allow(&["*"])];
        assert!(can_connect(&rules, "plc-1", Some("ops")));
        assert!(!can_connect(&rules, "plc-1", Some("ann")));
        assert!(can_connect(&rules, "ann", Some("ann")));
        assert!(!can_connect(&rules[..2], "ann", Some("ann")));
    }

    #[test]
    fn rules_for_topics_do_not_restrict_client_ids() {
        let topics = [AccessRule::deny(AccessAction::All, &["#"])];
        assert!(can_connect(&topics, "ann", None));
        let both = [allow(&["%u"]), AccessRule::allow(AccessAction::All, &["a"])];
        let acl = Acl::compile(&both, AclOptions::default()).expect("valid rules");
        let ann = identity("ann", Some("ann"));
        assert!(acl.session(&ann).publish("a", mqtt::QoS::AtMostOnce, false));
        assert!(!acl.session(&ann).publish("b", mqtt::QoS::AtMostOnce, false));
    }

    #[test]
    fn superuser_may_have_any_client_id() {
        let acl = Acl::compile(&[allow(&["%u"])], AclOptions::default()).expect("valid rules");
        let who = Identity {
            is_superuser: true,
            attributes: ClientAttributes::NONE,
            ..identity("any", Some("root"))
        };
        assert!(acl.can_connect(&who));
    }

    #[test]
    fn errors_of_connect_rules_name_the_rule() {
        let rules = [
            AccessRule::allow(AccessAction::Connect, &["a"]),
            allow(&[]),
            allow(&["a*b", "%c"]),
            AccessRule {
                qos: Some(vec![1]),
                ..allow(&["a"])
            },
        ];
        let errors = Acl::compile(&rules, AclOptions::default()).err().expect("errors");
        let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "rule 1: `topics` has no meaning for `action = \"connect\"`; use `clients`",
                "rule 2: `clients` is empty; leave it out to set no condition",
                "rule 3: client id `a*b`: `*` must be the last character, and `%u` is the only placeholder",
                "rule 3: client id `%c`: `*` must be the last character, and `%u` is the only placeholder",
                "rule 4: `qos` and `retain` are conditions on publishing; use them with `action = \"publish\"` only",
            ]
        );
    }
}
