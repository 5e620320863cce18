//! Converts the access rules of EMQX that an HTTP answer (`acl`) or a token (claim `acl`) contains.
//!
//! There are two forms. In the first one, an operation that no rule matches is decided by the rules of the server:
//!
//! ```json
//! [{ "permission": "allow", "action": "publish", "topic": "t/${clientid}", "qos": [0, 1], "retain": false }]
//! ```
//!
//! In the second one, all other operations are denied:
//!
//! ```json
//! { "pub": ["t/${username}"], "sub": ["eq t/#"], "all": [] }
//! ```
//!
//! Rules that cannot be represented exactly are an error, never ignored: a missing rule could widen access.

use serde_json::{Map, Value};

use crate::acl::{AccessAction, AccessRule, Permission, preset};

/// Placeholders in topics that access rules have, besides `${client_attrs.NAME}`.
const PLACEHOLDERS: [&str; 2] = ["${clientid}", "${username}"];

/// Converts rules in one of the forms of EMQX. The error names the rule and the field.
pub fn emqx_acl(acl: &Value) -> Result<Vec<AccessRule>, String> {
    match acl {
        Value::Array(rules) => {
            let mut converted = Vec::new();
            for (index, rule) in rules.iter().enumerate() {
                let rules = self::rule(rule).map_err(|error| format!("rule {}: {error}", index + 1))?;
                converted.extend(rules);
            }
            Ok(converted)
        }
        Value::Object(lists) => lists_of_topics(lists),
        _ => Err("expected an array of rules or an object with the lists pub, sub and all".to_owned()),
    }
}

fn lists_of_topics(lists: &Map<String, Value>) -> Result<Vec<AccessRule>, String> {
    let mut rules = Vec::new();
    for (name, value) in lists {
        let action = match name.as_str() {
            "pub" => AccessAction::Publish,
            "sub" => AccessAction::Subscribe,
            "all" => AccessAction::All,
            _ => return Err(format!("unknown list {name:?}, expected pub, sub or all")),
        };
        let topics = topics(value).map_err(|error| format!("{name}: {error}"))?;
        if !topics.is_empty() {
            rules.push(AccessRule {
                permission: Permission::Allow,
                action,
                topics,
                ..AccessRule::default()
            });
        }
    }
    rules.push(preset::deny_others());
    Ok(rules)
}

fn rule(rule: &Value) -> Result<Vec<AccessRule>, String> {
    let Value::Object(fields) = rule else {
        return Err("expected an object".to_owned());
    };
    let known = ["permission", "action", "topic", "topics", "qos", "retain", "ipaddr"];
    if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("the field {unknown:?} is not supported"));
    }
    let converted = AccessRule {
        permission: permission(fields.get("permission"))?,
        action: action(fields.get("action"))?,
        topics: rule_topics(fields)?,
        addresses: addresses(fields.get("ipaddr"))?,
        qos: qos(fields.get("qos"))?,
        retain: retain(fields.get("retain"))?,
        ..AccessRule::default()
    };
    separate_actions(converted)
}

/// Conditions on messages apply only to publishing.
fn separate_actions(rule: AccessRule) -> Result<Vec<AccessRule>, String> {
    if rule.action == AccessAction::Publish {
        return Ok(vec![rule]);
    }
    if rule.qos.is_some() {
        return Err("qos: some levels are supported only for the action publish; list all of them".to_owned());
    }
    let subscribe = AccessRule {
        action: AccessAction::Subscribe,
        retain: None,
        ..rule.clone()
    };
    match (rule.action, rule.retain) {
        (AccessAction::Subscribe, _) => Ok(vec![subscribe]),
        (_, Some(_)) => {
            let action = AccessAction::Publish;
            Ok(vec![AccessRule { action, ..rule }, subscribe])
        }
        (_, None) => Ok(vec![rule]),
    }
}

fn permission(value: Option<&Value>) -> Result<Permission, String> {
    match value.and_then(Value::as_str) {
        Some("allow") => Ok(Permission::Allow),
        Some("deny") => Ok(Permission::Deny),
        _ => Err("permission: expected \"allow\" or \"deny\"".to_owned()),
    }
}

fn action(value: Option<&Value>) -> Result<AccessAction, String> {
    match value.and_then(Value::as_str) {
        Some("publish" | "pub") => Ok(AccessAction::Publish),
        Some("subscribe" | "sub") => Ok(AccessAction::Subscribe),
        Some("all") => Ok(AccessAction::All),
        _ => Err("action: expected \"publish\", \"subscribe\" or \"all\"".to_owned()),
    }
}

fn rule_topics(fields: &Map<String, Value>) -> Result<Vec<String>, String> {
    match (fields.get("topic"), fields.get("topics")) {
        (Some(topic), None) => Ok(vec![self::topic(topic)?]),
        (None, Some(list)) => match topics(list)? {
            topics if topics.is_empty() => Err("topics: the list is empty".to_owned()),
            topics => Ok(topics),
        },
        _ => Err("expected topic or topics".to_owned()),
    }
}

fn topics(list: &Value) -> Result<Vec<String>, String> {
    let Value::Array(list) = list else {
        return Err("expected an array of topics".to_owned());
    };
    list.iter().map(topic).collect()
}

/// A placeholder that access rules do not have would be literal text, so that a rule would not match.
fn topic(value: &Value) -> Result<String, String> {
    let Value::String(topic) = value else {
        return Err("expected a topic as a string".to_owned());
    };
    if !topic.starts_with("eq ") && without_placeholders(topic).contains("${") {
        return Err(format!(
            "topic {topic:?}: the placeholders of topics are ${{clientid}}, ${{username}} and ${{client_attrs.NAME}}"
        ));
    }
    // EMQX has no other placeholders in topics. Access rules have `%c` and `%u` as well.
    match !topic.starts_with("eq ") && (topic.contains("%c") || topic.contains("%u")) {
        true => Err(format!(
            "topic {topic:?}: %c and %u are not supported; use ${{clientid}} and ${{username}}"
        )),
        false => Ok(topic.clone()),
    }
}

fn without_placeholders(topic: &str) -> String {
    let mut rest = PLACEHOLDERS
        .iter()
        .fold(topic.to_owned(), |rest, name| rest.replace(name, ""));
    while let Some(start) = rest.find("${client_attrs.")
        && let Some(length) = rest[start..].find('}')
    {
        rest.replace_range(start..=start + length, "");
    }
    rest
}

fn addresses(value: Option<&Value>) -> Result<Option<Vec<String>>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(network)) => Ok(Some(vec![network.clone()])),
        Some(_) => Err("ipaddr: expected an address or a network".to_owned()),
    }
}

/// `None` means every level.
fn qos(value: Option<&Value>) -> Result<Option<Vec<u8>>, String> {
    let levels = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list.iter().map(level).collect(),
        Some(Value::String(text)) => text.split(',').map(|level| level_of(level.trim())).collect(),
        Some(one) => level(one).map(|level| vec![level]),
    };
    let levels: Option<Vec<u8>> = levels;
    let mut levels = levels.ok_or("qos: expected levels from 0 to 2")?;
    levels.sort_unstable();
    levels.dedup();
    match levels.as_slice() {
        [] => Err("qos: the list is empty".to_owned()),
        [0, 1, 2] => Ok(None),
        _ => Ok(Some(levels)),
    }
}

fn level(value: &Value) -> Option<u8> {
    match value {
        Value::String(text) => level_of(text),
        _ => value.as_u64().filter(|level| *level <= 2).map(|level| level as u8),
    }
}

fn level_of(text: &str) -> Option<u8> {
    ["0", "1", "2"]
        .iter()
        .position(|level| *level == text)
        .map(|level| level as u8)
}

/// `None` means with or without RETAIN.
fn retain(value: Option<&Value>) -> Result<Option<bool>, String> {
    let text = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Bool(retain)) => return Ok(Some(*retain)),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    match text.as_str() {
        "all" => Ok(None),
        "true" | "1" => Ok(Some(true)),
        "false" | "0" => Ok(Some(false)),
        _ => Err("retain: expected true, false or \"all\"".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use mqtt::QoS;
    use serde_json::json;

    use super::*;
    use crate::acl::{Acl, AclOptions, CertificateIdentity, ClientRules, Identity, SessionAcl, SubscriptionGrant};
    use crate::login::ClientAttributes;

    /// Access of the client `c1` with the user name `u1`. The rules of the server allow everything.
    fn session(acl: &Value) -> SessionAcl {
        let rules = emqx_acl(acl).expect("valid rules");
        let own = ClientRules::compile(&rules).expect("valid rules");
        let options = AclOptions {
            no_match: Permission::Allow,
            ..AclOptions::default()
        };
        let who = Identity {
            client_id: "c1",
            user_name: Some("u1"),
            address: [192, 0, 2, 7].into(),
            is_superuser: false,
            attributes: ClientAttributes::NONE,
            certificate: CertificateIdentity::default(),
        };
        Acl::compile(&[], options).expect("no rules").session_with(&own, &who)
    }

    fn publish(acl: &SessionAcl, topic: &str) -> bool {
        acl.publish(topic, QoS::AtLeastOnce, false)
    }

    fn subscribe(acl: &SessionAcl, filter: &str) -> bool {
        acl.subscribe(filter) != SubscriptionGrant::Denied
    }

    #[test]
    fn rules_are_checked_in_order_and_leave_the_rest_open() {
        let acl = session(&json!([
            { "permission": "allow", "action": "publish", "topic": "t/${clientid}" },
            { "permission": "deny", "action": "pub", "topics": ["t/+", "x/#"] },
            { "permission": "allow", "action": "subscribe", "topic": "eq t/1/#", "qos": [0, 1, "2"] },
            { "permission": "deny", "action": "sub", "topic": "t/#", "qos": null },
        ]));
        assert_eq!(
            ["t/c1", "t/c2", "x/1", "y"].map(|topic| publish(&acl, topic)),
            [true, false, false, true]
        );
        assert_eq!(
            ["t/1/#", "t/1/x", "t/#", "y"].map(|filter| subscribe(&acl, filter)),
            [true, false, false, true]
        );
    }

    #[test]
    fn qos_and_retain_limit_publishing() {
        let acl = session(&json!([
            { "permission": "deny", "action": "publish", "topic": "q", "qos": "0,2" },
            { "permission": "deny", "action": "publish", "topic": "q1", "qos": 1 },
            { "permission": "deny", "action": "all", "topic": "r", "retain": true },
            { "permission": "deny", "action": "publish", "topic": "n", "retain": "0" },
            { "permission": "deny", "action": "publish", "topic": "a", "retain": "all" },
        ]));
        let levels = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
        assert_eq!(levels.map(|qos| acl.publish("q", qos, false)), [false, true, false]);
        assert_eq!(levels.map(|qos| acl.publish("q1", qos, false)), [true, false, true]);
        let retain = |topic| [false, true].map(|retain| acl.publish(topic, QoS::AtMostOnce, retain));
        assert_eq!(
            ["r", "n", "a"].map(retain),
            [[true, false], [false, true], [false, false]]
        );
        assert!(!subscribe(&acl, "r"), "retain is a condition of publishing");
    }

    #[test]
    fn lists_deny_all_other_topics() {
        let acl = session(&json!({
            "pub": ["p/${username}", "eq p/${x}"],
            "sub": ["s/#"],
            "all": ["a/${clientid}"],
        }));
        assert_eq!(
            ["p/u1", "p/${x}", "a/c1", "p/u2", "s/1", "y", "$x/y"].map(|topic| publish(&acl, topic)),
            [true, true, true, false, false, false, false]
        );
        assert_eq!(
            ["s/#", "s/1", "a/c1", "#", "p/u1", "$SYS/#", "$x/y", "$x/#"].map(|filter| subscribe(&acl, filter)),
            [true, true, true, false, false, false, false, false]
        );
        let nothing = session(&json!({}));
        assert!(!publish(&nothing, "a") && !publish(&nothing, "$a") && !subscribe(&nothing, "a"));
    }

    #[test]
    fn an_address_is_a_condition() {
        for (network, is_denied) in [("192.0.2.0/24", true), ("192.0.2.7", true), ("10.0.0.0/8", false)] {
            let acl = session(&json!([
                { "permission": "deny", "action": "all", "topic": "t", "ipaddr": network },
            ]));
            assert_eq!(publish(&acl, "t"), !is_denied, "{network}");
        }
    }

    #[test]
    fn rules_that_cannot_be_represented_are_rejected() {
        let valid = json!({ "permission": "allow", "action": "publish", "topic": "${client_attrs.a}/t" });
        assert!(emqx_acl(&json!([valid])).is_ok());
        for (field, value, reason) in [
            ("permission", json!("Allow"), "permission"),
            ("permission", Value::Null, "permission"),
            ("action", json!("connect"), "action"),
            ("topic", json!(1), "string"),
            ("topic", json!("t/${zone}"), "placeholders"),
            ("topic", json!("t/${client_attrs.a"), "placeholders"),
            ("topic", json!("t/%c"), "%c"),
            ("topics", json!(["t"]), "topic or topics"),
            ("qos", json!(3), "qos"),
            ("qos", json!([]), "qos"),
            ("qos", json!("0;1"), "qos"),
            ("qos", json!({}), "qos"),
            ("retain", json!("yes"), "retain"),
            ("retain", json!(2), "retain"),
            ("ipaddr", json!(["10.0.0.0/8"]), "ipaddr"),
            ("clientid_re", json!("^c"), "clientid_re"),
            ("listener", json!("tcp:default"), "listener"),
        ] {
            let mut rule = valid.clone();
            rule[field] = value.clone();
            let error = emqx_acl(&json!([valid, rule])).expect_err(field);
            assert!(
                error.starts_with("rule 2: ") && error.contains(reason),
                "{field} {value}: {error}"
            );
        }
        for (acl, reason) in [
            (json!("all"), "expected an array of rules"),
            (Value::Null, "expected an array of rules"),
            (json!(["t"]), "rule 1: expected an object"),
            (
                json!([{ "permission": "allow", "action": "publish" }]),
                "topic or topics",
            ),
            (
                json!([{ "permission": "allow", "action": "all", "topics": [] }]),
                "empty",
            ),
            (
                json!([{ "permission": "deny", "action": "subscribe", "topic": "t", "qos": [1] }]),
                "qos",
            ),
            (
                json!([{ "permission": "allow", "action": "all", "topic": "t", "qos": 1 }]),
                "qos",
            ),
            (json!({ "publish": ["t"] }), "unknown list"),
            (json!({ "pub": "t" }), "pub: expected an array"),
            (json!({ "pub": ["t/${zone}"] }), "placeholders"),
        ] {
            let error = emqx_acl(&acl).expect_err(reason);
            assert!(error.contains(reason), "{acl}: {error}");
        }
    }
}
