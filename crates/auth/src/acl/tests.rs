//! Tests of rule order, grants, identities and CVE cases, and a comparison with a naive model.

use std::collections::HashSet;
use std::path::Path;

use mqtt::QoS;

use super::*;

const ALL_QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
const DENIED: SubscriptionGrant = SubscriptionGrant::Denied;
const ALLOWED: SubscriptionGrant = SubscriptionGrant::Allowed {
    filter_deliveries: false,
};
const FILTERED: SubscriptionGrant = SubscriptionGrant::Allowed {
    filter_deliveries: true,
};

fn who<'a>(client_id: &'a str, user_name: Option<&'a str>, address: &str) -> Identity<'a> {
    Identity {
        client_id,
        user_name,
        address: address.parse().unwrap(),
        is_superuser: false,
        attributes: ClientAttributes::NONE,
        certificate: CertificateIdentity::default(),
    }
}

fn alice() -> Identity<'static> {
    who("c1", Some("alice"), "192.0.2.1")
}

fn rules(toml: &str) -> Vec<AccessRule> {
    #[derive(serde::Deserialize)]
    struct RulesFile {
        rules: Vec<AccessRule>,
    }
    toml::from_str::<RulesFile>(toml).unwrap().rules
}

fn compile(toml: &str) -> Acl {
    Acl::compile(&rules(toml), AclOptions::default()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn publishes(acl: &SessionAcl, topic: &str) -> bool {
    acl.publish(topic, QoS::AtMostOnce, false)
}

#[test]
fn first_matching_rule_decides() {
    let acl = compile(
        r#"
        [[rules]]
        permission = "allow"
        topics = ["a/public"]
        [[rules]]
        permission = "deny"
        action = "publish"
        topics = ["a/#", "b/+"]
        [[rules]]
        permission = "allow"
        topics = ["a/#", "b/#"]
        [[rules]]
        permission = "deny"
        topics = ["a/public"]
        "#,
    );
    let session = acl.session(&alice());
    let table = [
        ("a/public", true),
        ("a/x", false),
        ("a", false),
        ("b", true),
        ("b/x", false),
        ("b/x/y", true),
        ("c", false),
    ];
    for (topic, expected) in table {
        assert_eq!(publishes(&session, topic), expected, "publish to {topic}");
    }
    assert_eq!(session.subscribe("a/#"), ALLOWED);
    assert_eq!(session.subscribe("a/public"), ALLOWED);
    assert_eq!(session.subscribe("c"), DENIED);
}

#[test]
fn empty_rules_deny_unless_configured() {
    let closed = Acl::compile(&[], AclOptions::default()).unwrap().session(&alice());
    assert!(!publishes(&closed, "a") && closed.subscribe("a") == DENIED && !closed.can_receive("a"));
    assert!(!closed.is_unrestricted());
    let options = AclOptions {
        no_match: Permission::Allow,
        ..AclOptions::default()
    };
    let open = Acl::compile(&[], options).unwrap().session(&alice());
    assert!(open.is_unrestricted() && publishes(&open, "$SYS/x") && open.subscribe("#") == ALLOWED);
    let mostly = Acl::compile(&[AccessRule::deny(AccessAction::All, &["x/#"])], options)
        .unwrap()
        .session(&alice());
    assert!(!mostly.is_unrestricted() && publishes(&mostly, "y") && !publishes(&mostly, "x/y"));
    assert_eq!(mostly.subscribe("#"), FILTERED);
    assert_eq!(mostly.subscribe("x/y"), DENIED);
}

#[test]
fn superusers_are_unrestricted() {
    let acl = compile("[[rules]]\npermission = \"deny\"\ntopics = [\"#\"]");
    let session = acl.session(&Identity {
        is_superuser: true,
        attributes: ClientAttributes::NONE,
        ..alice()
    });
    assert!(session.is_unrestricted());
    assert!(session.publish("$CONTROL/x", QoS::ExactlyOnce, true));
    assert_eq!(session.subscribe("$SYS/#"), ALLOWED);
    assert!(session.can_receive("a"));
}

#[test]
fn rule_needs_one_match_in_each_of_its_lists() {
    let acl = compile(
        r#"
        [[rules]]
        permission = "allow"
        users = ["alice", "bob"]
        clients = ["c2", "c1"]
        addresses = ["192.0.2.0/24", "::1"]
        topics = ["t"]
        "#,
    );
    let table = [
        (who("c1", Some("alice"), "192.0.2.1"), true),
        (who("c2", Some("bob"), "::1"), true),
        (who("c1", Some("bob"), "::ffff:192.0.2.9"), true),
        (who("c3", Some("alice"), "192.0.2.1"), false),
        (who("c1", Some("carol"), "192.0.2.1"), false),
        (who("c1", None, "192.0.2.1"), false),
        (who("c1", Some("alice"), "192.0.3.1"), false),
        (who("alice", Some("c1"), "192.0.2.1"), false),
    ];
    for (identity, expected) in table {
        assert_eq!(publishes(&acl.session(&identity), "t"), expected, "{identity:?}");
    }
}

#[test]
fn anonymous_condition_works_both_ways() {
    let acl = compile(
        r#"
        [[rules]]
        permission = "allow"
        anonymous = true
        topics = ["open"]
        [[rules]]
        permission = "allow"
        anonymous = false
        topics = ["closed"]
        "#,
    );
    let (anonymous, known) = (acl.session(&who("c", None, "::1")), acl.session(&alice()));
    assert!(publishes(&anonymous, "open") && !publishes(&anonymous, "closed"));
    assert!(!publishes(&known, "open") && publishes(&known, "closed"));
    // An empty user name is a user name.
    assert!(publishes(&acl.session(&who("c", Some(""), "::1")), "closed"));
}

#[test]
fn qos_and_retain_conditions_apply_to_publishing() {
    let acl = compile(
        r#"
        [[rules]]
        permission = "allow"
        action = "publish"
        qos = [0, 2]
        retain = false
        topics = ["a"]
        [[rules]]
        permission = "deny"
        action = "publish"
        retain = true
        topics = ["b"]
        [[rules]]
        permission = "allow"
        action = "publish"
        topics = ["b"]
        "#,
    );
    let session = acl.session(&alice());
    for qos in ALL_QOS {
        for retain in [false, true] {
            assert_eq!(
                session.publish("a", qos, retain),
                qos != QoS::AtLeastOnce && !retain,
                "{qos:?} {retain}"
            );
            assert_eq!(session.publish("b", qos, retain), !retain, "{qos:?} {retain}");
        }
    }
    assert_eq!(session.subscribe("b"), DENIED);
}

#[test]
fn partly_denied_subscription_is_filtered() {
    let acl = compile(
        r#"
        [[rules]]
        permission = "deny"
        topics = ["a/secret/#", "+/private"]
        [[rules]]
        permission = "allow"
        action = "subscribe"
        topics = ["a/#", "b/+/c"]
        "#,
    );
    let session = acl.session(&alice());
    let table = [
        ("a/#", FILTERED),
        ("a/+", FILTERED),
        ("a/x", ALLOWED),
        ("a/x/#", ALLOWED),
        ("a/secret", DENIED),
        ("a/secret/#", DENIED),
        ("a/secret/+", DENIED),
        ("a/private", DENIED),
        ("a/+/x", FILTERED),
        ("b/x/c", ALLOWED),
        ("b/+/c", ALLOWED),
        ("b/+/+", DENIED),
        ("b/#", DENIED),
        ("#", DENIED),
        ("+/x", DENIED),
        ("$SYS/#", DENIED),
    ];
    for (filter, expected) in table {
        assert_eq!(session.subscribe(filter), expected, "{filter}");
    }
    for (topic, expected) in [
        ("a/x", true),
        ("a/secret", false),
        ("a/secret/x", false),
        ("a/private", false),
        ("z", false),
    ] {
        assert_eq!(session.can_receive(topic), expected, "{topic}");
    }
    assert!(!publishes(&session, "a/x"));
}

#[test]
fn partial_subscription_option_grants_parts() {
    let options = AclOptions {
        partial_subscription: PartialSubscriptionPolicy::Filter,
        ..AclOptions::default()
    };
    let list = [
        AccessRule::deny(AccessAction::All, &["a/secret"]),
        AccessRule::allow(AccessAction::Subscribe, &["a/#"]),
        AccessRule::deny(AccessAction::All, &["b/#"]),
    ];
    let session = Acl::compile(&list, options).unwrap().session(&alice());
    let table = [
        ("#", FILTERED),
        ("+/x", FILTERED),
        ("a/x", ALLOWED),
        ("a/secret", DENIED),
        ("b/#", DENIED),
        ("$SYS/#", DENIED),
    ];
    for (filter, expected) in table {
        assert_eq!(session.subscribe(filter), expected, "{filter}");
    }
    assert!(session.can_receive("a/x") && !session.can_receive("a/secret") && !session.can_receive("c"));
}

#[test]
fn eq_prefix_takes_the_filter_literally() {
    let acl = compile(
        r##"
        [[rules]]
        permission = "deny"
        action = "subscribe"
        topics = ["eq #", "eq +/%c"]
        [[rules]]
        permission = "allow"
        topics = ["#"]
        "##,
    );
    let session = acl.session(&alice());
    assert_eq!(session.subscribe("#"), DENIED);
    assert_eq!(session.subscribe("+/%c"), DENIED);
    assert_eq!(session.subscribe("+/#"), ALLOWED);
    assert_eq!(session.subscribe("+/c1"), ALLOWED);
    assert!(session.can_receive("x") && publishes(&session, "x"));

    let granted = compile("[[rules]]\npermission = \"allow\"\ntopics = [\"eq a/#\", \"eq b\"]").session(&alice());
    assert_eq!(granted.subscribe("a/#"), ALLOWED);
    assert_eq!(granted.subscribe("a/x"), DENIED);
    assert!(granted.can_receive("a/x") && !publishes(&granted, "a/x"));
    assert!(publishes(&granted, "b") && granted.subscribe("b") == ALLOWED);
}

#[test]
fn placeholders_are_client_id_and_user_name() {
    let acl = compile(
        r#"
        [[rules]]
        permission = "allow"
        topics = ["c/%c/#", "u/${username}/+", "both/%u/${clientid}", "dev-%c/x", "%u"]
        "#,
    );
    let session = acl.session(&alice());
    for topic in ["c/c1", "c/c1/x/y", "u/alice/x", "both/alice/c1", "dev-c1/x", "alice"] {
        assert!(publishes(&session, topic), "{topic}");
    }
    for topic in [
        "c/c2/x",
        "c/%c/x",
        "u/bob/x",
        "both/c1/alice",
        "dev-c2/x",
        "bob",
        "c",
        "u/alice",
    ] {
        assert!(!publishes(&session, topic), "{topic}");
    }
    assert_eq!(session.subscribe("c/c1/#"), ALLOWED);
    assert_eq!(session.subscribe("c/+/#"), DENIED);
    let anonymous = acl.session(&who("c1", None, "::1"));
    assert!(publishes(&anonymous, "c/c1/x"));
    for topic in ["u//x", "both//c1", "%u", "u/%u/x", "alice"] {
        assert!(!publishes(&anonymous, topic), "{topic}");
    }
}

/// CVE-2017-7650: client ids and user names that would widen a pattern.
#[test]
fn hostile_names_never_widen_access() {
    let acl = compile(
        r#"
        [[rules]]
        permission = "allow"
        topics = ["c/%c/#", "u/%u/x", "%c/top", "%u/#"]
        "#,
    );
    let hostile = [
        "+",
        "#",
        "/",
        "a/b",
        "+/+",
        "a+",
        "#a",
        "",
        "../#",
        "a/#",
        "$SYS",
        "$CONTROL",
        "\0",
        &"x".repeat(1025),
    ];
    let targets = [
        "c/alice/x",
        "c/a/b/x",
        "c//x",
        "c/+/x",
        "c/#/x",
        "u/bob/x",
        "u/+/x",
        "u//x",
        "u/a/b/x",
        "a/b/top",
        "top",
        "/top",
        "+/top",
        "bob/x",
        "/x",
        "x",
        "$SYS/top",
        "$SYS/x",
        "$CONTROL/x",
        "$CONTROL/dynamic-security/v1",
        "a/b",
    ];
    let filters = ["#", "+/#", "c/#", "c/+/#", "u/+/x", "$SYS/#", "$CONTROL/#", "a/#", "/#"];
    for name in hostile {
        // A `$` is harmful only at the start of a topic.
        let safe_prefixes = if name.starts_with('$') {
            vec![format!("c/{name}/"), format!("u/{name}/x")]
        } else {
            vec![]
        };
        for identity in [
            who(name, None, "::1"),
            who("c9", Some(name), "::1"),
            who(name, Some(name), "::1"),
        ] {
            let session = acl.session(&identity);
            for topic in targets
                .iter()
                .filter(|topic| !safe_prefixes.iter().any(|safe| topic.starts_with(safe.as_str())))
            {
                assert!(!publishes(&session, topic), "{identity:?} publishes to {topic}");
                assert!(!session.can_receive(topic), "{identity:?} receives {topic}");
            }
            for filter in filters {
                assert_eq!(session.subscribe(filter), DENIED, "{identity:?} subscribes to {filter}");
            }
        }
    }
    // The value is copied into every rule, so its length is bounded.
    let long = "x".repeat(1025);
    let topic = |name: &str| format!("c/{name}/x");
    assert!(!publishes(&acl.session(&who(&long, None, "::1")), &topic(&long)));
    assert!(publishes(
        &acl.session(&who(&long[1..], None, "::1")),
        &topic(&long[1..])
    ));
    // Names that look like placeholders are names: they are not substituted again.
    let session = acl.session(&who("%u", Some("alice"), "::1"));
    assert!(publishes(&session, "c/%u/x") && !publishes(&session, "c/alice/x"));
    let session = acl.session(&who("c", Some("%c"), "::1"));
    assert!(publishes(&session, "u/%c/x") && !publishes(&session, "u/c/x"));
}

#[test]
fn hostile_names_do_not_escape_deny_rules() {
    let acl = compile(
        r##"
        [[rules]]
        permission = "deny"
        topics = ["dev/%c/admin", "%u/admin"]
        [[rules]]
        permission = "allow"
        topics = ["#"]
        "##,
    );
    let session = acl.session(&who("a/b", Some("u"), "::1"));
    assert!(
        !publishes(&session, "dev/a/b/admin"),
        "the client's own topic, as two levels"
    );
    assert!(!publishes(&session, "dev/x") && publishes(&session, "other"));
    assert_eq!(session.subscribe("dev/#"), DENIED);
    assert_eq!(session.subscribe("#"), FILTERED);
    let session = acl.session(&who("c", Some("a/b"), "::1"));
    assert!(!publishes(&session, "a/b/admin") && !publishes(&session, "anything") && !publishes(&session, "$SYS/x"));
    assert_eq!(session.subscribe("#"), DENIED);
    // Rules for a user's own topic do not apply to clients without a user name.
    assert!(publishes(&acl.session(&who("c", None, "::1")), "alice/admin"));
}

/// Wildcard rules do not apply to topics that begin with `$`.
#[test]
fn dollar_topics_need_explicit_rules() {
    let acl = compile("[[rules]]\npermission = \"allow\"\ntopics = [\"#\", \"+/broker/#\"]");
    let session = acl.session(&alice());
    for topic in [
        "$SYS/broker/version",
        "$SYS/x",
        "$CONTROL/dynamic-security/v1",
        "$share/g/x",
        "$",
    ] {
        assert!(!publishes(&session, topic) && !session.can_receive(topic), "{topic}");
        assert_eq!(session.subscribe(topic), DENIED, "{topic}");
    }
    for filter in ["$SYS/#", "$SYS/broker/+", "$CONTROL/#"] {
        assert_eq!(session.subscribe(filter), DENIED, "{filter}");
    }
    assert_eq!(session.subscribe("#"), ALLOWED);
    assert_eq!(session.subscribe("+/#"), ALLOWED);
}

/// Separate topic trees of alice and bob.
#[test]
fn user_cannot_access_the_tree_of_another() {
    let acl = compile("[[rules]]\npermission = \"allow\"\ntopics = [\"%u/#\"]");
    let session = acl.session(&alice());
    for topic in [
        "bob/x",
        "bob",
        "alice2/x",
        "Alice/x",
        "/alice/x",
        "bob/alice/x",
        "ALICE",
        "alic\u{e9}",
    ] {
        assert!(!publishes(&session, topic), "{topic}");
    }
    for filter in ["bob/x", "bob/#", "+/x", "#", "+/#", "+/+", "/#", "alice2/#", "+"] {
        assert_eq!(session.subscribe(filter), DENIED, "{filter}");
    }
    // Topics are opaque: these belong to alice, and are not other spellings of bob's topics [MQTT-4.7.3-4].
    let bob = acl.session(&who("c2", Some("bob"), "::1"));
    for topic in ["alice/../bob/x", "alice//bob", "alice/%2e%2e/bob"] {
        assert!(publishes(&session, topic) && !publishes(&bob, topic), "{topic}");
    }
    let composed = acl.session(&who("c", Some("\u{e9}"), "::1"));
    assert!(publishes(&composed, "\u{e9}/x") && !publishes(&composed, "e\u{301}/x"));
}

/// The caller removes these prefixes, so a rule that contains one would never match.
#[test]
fn rules_with_stripped_prefixes_are_rejected() {
    for topic in [
        "$share/g/bob/#",
        "$queue/bob/x",
        "$exclusive/bob/x",
        "$delayed/1/bob/x",
        "$share/g/%u",
        "eq $queue/a",
    ] {
        let errors = Acl::compile(&[AccessRule::allow(AccessAction::All, &[topic])], AclOptions::default())
            .err()
            .unwrap();
        let expected = AclErrorKind::Topic {
            text: topic.into(),
            error: TopicRuleError::Prefixed,
        };
        assert_eq!(
            errors.0,
            [AclError {
                rule: 0,
                kind: expected
            }]
        );
    }
}

#[test]
fn all_errors_are_reported_together() {
    let list = rules(
        r##"
        [[rules]]
        topics = ["a/#/b", "ok/+", "a+", "", "%u-%c/x", "$%c/x", "eq a#"]
        [[rules]]
        topics = ["fine"]
        [[rules]]
        users = []
        addresses = ["10.0.0.0/8", "nonsense", "10.1.0.0/8"]
        qos = [3]
        topics = []
        [[rules]]
        anonymous = true
        users = ["alice"]
        action = "publish"
        qos = []
        topics = ["x"]
        "##,
    );
    let errors = Acl::compile(&list, AclOptions::default()).err().unwrap();
    let expected = [
        "rule 1: topic `a/#/b`: `#` must be the last level and alone in it",
        "rule 1: topic `a+`: `+` must be alone in its level",
        "rule 1: topic ``: the filter is empty",
        "rule 1: topic `%u-%c/x`: two placeholders in one level: a client could choose names that equal another \
         client's combination",
        "rule 1: topic `$%c/x`: a placeholder must not be in a first level that begins with `$`",
        "rule 1: topic `eq a#`: `#` must be the last level and alone in it",
        "rule 3: `users` is empty; leave it out to set no condition",
        "rule 3: address `nonsense`: not an IPv4 or IPv6 address",
        "rule 3: address `10.1.0.0/8`: host bits are set; the network is 10.0.0.0/8",
        "rule 3: `qos` and `retain` are conditions on publishing; use them with `action = \"publish\"` only",
        "rule 3: `qos` contains a value other than 0, 1 and 2",
        "rule 3: `topics` is empty",
        "rule 4: `anonymous = true` and `users` together match no client",
        "rule 4: `qos` is empty; leave it out to set no condition",
    ];
    assert_eq!(errors.to_string().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn lists_are_bounded() {
    let compile = |rules: &[AccessRule]| {
        Acl::compile(rules, AclOptions::default())
            .err()
            .map(|errors| errors.0[0].kind.clone())
    };
    let rule = AccessRule::allow(AccessAction::All, &["a"]);
    let too_many = vec![rule.clone(); RULES_MAX + 1];
    assert_eq!(compile(&too_many), Some(AclErrorKind::TooManyRules { max: RULES_MAX }));
    let topics = AccessRule {
        topics: vec!["a".into(); 1001],
        ..rule.clone()
    };
    assert_eq!(
        compile(&[topics]),
        Some(AclErrorKind::ListTooLong {
            list: "topics",
            max: 1000
        })
    );
    let users = AccessRule {
        users: Some(vec!["a".into(); 10_001]),
        ..rule.clone()
    };
    assert_eq!(
        compile(&[users]),
        Some(AclErrorKind::ListTooLong {
            list: "users",
            max: 10_000
        })
    );
    let clients = AccessRule {
        clients: Some(vec!["a".repeat(65_536)]),
        ..rule.clone()
    };
    assert_eq!(compile(&[clients]), Some(AclErrorKind::NameTooLong { list: "clients" }));
    let long = "x".repeat(65_536);
    assert!(matches!(
        compile(&[AccessRule::allow(AccessAction::All, &[&long])]),
        Some(AclErrorKind::Topic { .. })
    ));
    // A filter that becomes too long by substitution does not apply.
    let grows = format!("{}/%u", "x".repeat(65_530));
    let acl = Acl::compile(
        &[AccessRule::allow(AccessAction::All, &[&grows])],
        AclOptions::default(),
    )
    .unwrap();
    assert_eq!(acl.session(&who("c", Some("alice"), "::1")).entries_len(), 0);
    assert_eq!(acl.session(&who("c", Some("bob"), "::1")).entries_len(), 1);
}

#[test]
fn groups_are_a_condition() {
    let acl = compile(
        r##"
        [[rules]]
        permission = "deny"
        groups = ["suspended"]
        topics = ["#"]
        [[rules]]
        permission = "allow"
        groups = ["operators", "cn=admins,dc=example"]
        topics = ["plant/#"]
        [[rules]]
        permission = "allow"
        users = ["alice"]
        groups = ["meters"]
        topics = ["meters/%u"]
        [[rules]]
        permission = "allow"
        action = "connect"
        groups = ["operators"]
        "##,
    );
    for (groups, topics, may_connect) in [
        (&[][..], &[][..], false),
        (&["Operators", "operator", "groups.operators", ""], &[], false),
        (&["operators"], &["plant/1"], true),
        (&["cn=admins,dc=example", "x"], &["plant/1"], false),
        (&["meters", "operators"], &["plant/1", "meters/alice"], true),
        (&["meters", "operators", "suspended"], &[], true),
    ] {
        let names = groups.iter().map(|group| Box::from(*group));
        let attributes = ClientAttributes::default().with_groups(names).unwrap();
        let client = Identity {
            attributes: &attributes,
            ..alice()
        };
        let session = acl.session(&client);
        let all = ["plant/1", "meters/alice"].into_iter();
        let allowed: Vec<&str> = all.filter(|topic| publishes(&session, topic)).collect();
        assert_eq!(allowed, topics, "{groups:?}");
        assert_eq!(acl.can_connect(&client), may_connect, "{groups:?}");
    }
    // An attribute with the name of a group is no group.
    let values = [("groups.operators", "operators"), ("groups", "operators")];
    let values = values.map(|(name, value)| (Box::from(name), Box::from(value)));
    let attributes = ClientAttributes::new(values.into()).unwrap();
    let client = Identity {
        attributes: &attributes,
        ..alice()
    };
    assert!(!publishes(&acl.session(&client), "plant/1"));
    let empty = rules("[[rules]]\ngroups = []\ntopics = [\"#\"]");
    let errors = Acl::compile(&empty, AclOptions::default()).err().expect("errors").0;
    assert_eq!(errors[0].kind, AclErrorKind::EmptyList { list: "groups" });
}

#[test]
fn rule_round_trips_through_toml_and_json() {
    let full = AccessRule {
        permission: Permission::Allow,
        users: Some(vec!["alice".into()]),
        clients: Some(vec!["c1".into(), "c2".into()]),
        addresses: Some(vec!["10.0.0.0/8".into()]),
        attributes: Some([("role".to_owned(), vec!["admin".to_owned()])].into()),
        groups: Some(vec!["operators".to_owned()]),
        certificate_names: Some(vec!["meter-1".to_owned()]),
        certificate_subjects: Some(vec!["CN=meter-1".to_owned()]),
        anonymous: Some(false),
        action: AccessAction::Publish,
        qos: Some(vec![0, 1]),
        retain: Some(true),
        topics: vec!["a/%c/#".into(), "eq #".into()],
    };
    for rule in [
        full,
        AccessRule::deny(AccessAction::All, &["#"]),
        AccessRule::allow(AccessAction::Subscribe, &["${username}/x"]),
    ] {
        assert_eq!(
            toml::from_str::<AccessRule>(&toml::to_string(&rule).unwrap()).unwrap(),
            rule
        );
        assert_eq!(
            serde_json::from_str::<AccessRule>(&serde_json::to_string(&rule).unwrap()).unwrap(),
            rule
        );
    }
    let json = serde_json::to_string(&AccessRule::deny(AccessAction::All, &["#"])).unwrap();
    assert_eq!(json, r##"{"permission":"deny","action":"all","topics":["#"]}"##);
    assert!(
        toml::from_str::<AccessRule>("permission = \"allow\"\nuser = [\"alice\"]\ntopics = [\"a\"]").is_err(),
        "a typo"
    );
}

#[test]
fn sessions_with_equal_rules_share_one_list() {
    let acl = compile(
        r#"
        [[rules]]
        permission = "allow"
        users = ["alice"]
        topics = ["a"]
        [[rules]]
        permission = "allow"
        topics = ["b"]
        "#,
    );
    let (first, second) = (
        acl.session(&who("c1", Some("alice"), "::1")),
        acl.session(&who("c2", Some("alice"), "::2")),
    );
    let (other, another) = (
        acl.session(&who("c3", Some("bob"), "::1")),
        acl.session(&who("c4", None, "::1")),
    );
    assert!(first.shares_list_with(&second) && other.shares_list_with(&another) && !first.shares_list_with(&other));
    assert_eq!(size_of::<SessionAcl>(), 24);
}

#[test]
fn shared_lists_are_bounded_and_unused_ones_removed() {
    let count = SHARED_LISTS_MAX + 50;
    let list: Vec<AccessRule> = (0..count)
        .map(|n| AccessRule {
            users: Some(vec![format!("u{n}")]),
            ..AccessRule::allow(AccessAction::All, &["a"])
        })
        .collect();
    let acl = Acl::compile(&list, AclOptions::default()).unwrap();
    let names: Vec<String> = (0..count).map(|n| format!("u{n}")).collect();
    let alive: Vec<SessionAcl> = names
        .iter()
        .map(|name| acl.session(&who("c", Some(name), "::1")))
        .collect();
    assert_eq!(acl.shared.lock().unwrap().len(), SHARED_LISTS_MAX);
    assert!(alive.iter().all(|session| publishes(session, "a")));
    drop(alive);
    let _session = acl.session(&who("c", Some(&names[count - 1]), "::1"));
    assert_eq!(acl.shared.lock().unwrap().len(), 1);
}

#[test]
fn presets_match_their_documentation() {
    let list = [preset::loopback_anonymous(), preset::authenticated_all()].concat();
    let acl = Acl::compile(&list, AclOptions::default()).unwrap();
    let local = acl.session(&who("c", None, "127.0.0.1"));
    let mapped = acl.session(&who("c", None, "::ffff:127.0.0.1"));
    let remote = acl.session(&who("c", None, "192.0.2.1"));
    for session in [&local, &mapped, &acl.session(&alice())] {
        assert!(publishes(session, "a/b") && !publishes(session, "$SYS/x") && !publishes(session, "$CONTROL/x"));
        assert_eq!(session.subscribe("#"), ALLOWED);
        assert_eq!(session.subscribe("$SYS/#"), ALLOWED);
        assert_eq!(session.subscribe("$CONTROL/#"), DENIED);
    }
    assert!(!publishes(&remote, "a") && remote.subscribe("a") == DENIED && remote.subscribe("$SYS/#") == DENIED);
    let only_local = Acl::compile(&preset::loopback_anonymous(), AclOptions::default()).unwrap();
    assert!(!publishes(
        &only_local.session(&who("c", Some("alice"), "127.0.0.1")),
        "a"
    ));
}

fn mosquitto(text: &str, options: AclOptions) -> Acl {
    Acl::compile(&parse_mosquitto_acl(Path::new("acl"), text).unwrap(), options).unwrap()
}

const MOSQUITTO_ACL: &str = "\
# anonymous first
topic read public/#
topic open

user alice
topic readwrite alice/#
topic deny alice/secret
  topic write with blank/x
pattern write devices/%c/state
pattern readwrite devices/%c/#
pattern deny devices/%c/locked
user bob
topic read $SYS/#
topic read
user alice
topic read late/+
";

#[test]
fn mosquitto_acl_file_has_the_same_meaning() {
    let acl = mosquitto(MOSQUITTO_ACL, AclOptions::default());
    let (anonymous, alice, bob) = (
        acl.session(&who("c0", None, "::1")),
        acl.session(&who("c1", Some("alice"), "::1")),
        acl.session(&who("c2", Some("bob"), "::1")),
    );
    assert!(publishes(&anonymous, "open") && !publishes(&anonymous, "public/x") && anonymous.can_receive("public/x"));
    assert!(!anonymous.can_receive("alice/x") && publishes(&anonymous, "devices/c0/state"));
    assert!(publishes(&alice, "alice/x") && !publishes(&alice, "alice/secret") && !alice.can_receive("alice/secret"));
    assert_eq!(alice.subscribe("alice/#"), FILTERED);
    assert!(publishes(&alice, "with blank/x") && !alice.can_receive("with blank/x"));
    assert!(alice.can_receive("late/x") && !publishes(&alice, "late/x") && !alice.can_receive("public/x"));
    assert!(publishes(&alice, "devices/c1/x") && !publishes(&alice, "devices/c1/locked"));
    assert!(!publishes(&alice, "devices/c2/x") && !alice.can_receive("$SYS/x"));
    assert!(bob.can_receive("$SYS/x") && !publishes(&bob, "$SYS/x") && publishes(&bob, "read"));
    assert_eq!(bob.subscribe("#"), DENIED);
}

#[test]
fn filter_option_grants_partial_mosquitto_subscription() {
    let options = AclOptions {
        partial_subscription: PartialSubscriptionPolicy::Filter,
        ..AclOptions::default()
    };
    let alice = mosquitto(MOSQUITTO_ACL, options).session(&who("c1", Some("alice"), "::1"));
    assert_eq!(alice.subscribe("#"), FILTERED);
    assert_eq!(alice.subscribe("alice/secret"), DENIED);
    assert_eq!(alice.subscribe("bob/#"), DENIED);
}

#[test]
fn acl_file_reports_all_bad_lines() {
    let text = "user\ntopic\ntopic rw a\ntopic read a/#/b\nnonsense\ntopic ok\ntopic read a/%c\ntopic read eq a\npattern read %u%c\nUser bob\n";
    let errors = parse_mosquitto_acl(Path::new("/etc/acl"), text).unwrap_err();
    let lines: Vec<usize> = errors.errors.iter().map(|error| error.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5, 7, 8, 9, 10]);
    assert_eq!(
        errors.to_string().lines().nth(2).unwrap(),
        "/etc/acl:3: the access must be `read`, `write`, `readwrite` or `deny`"
    );
    let missing = load_mosquitto_acl(Path::new("/nonexistent/acl")).unwrap_err();
    assert_eq!(
        missing.to_string(),
        "/nonexistent/acl: cannot read the ACL file: entity not found"
    );
}

/// A small deterministic generator; the seed is in the assertion's message.
struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn path(&mut self, levels: &[&str], depth: usize) -> String {
        let len = 1 + self.below(depth);
        let path = (0..len).map(|_| self.pick(levels)).collect::<Vec<_>>().join("/");
        if path.is_empty() { "a".into() } else { path }
    }

    fn filter(&mut self, levels: &[&str]) -> String {
        match self.below(8) {
            0 => "#".into(),
            1 | 2 => format!("{}/#", self.path(levels, 2)),
            _ => self.path(levels, 3),
        }
    }

    fn rule(&mut self) -> AccessRule {
        let mut maybe = |names: &[&str]| match self.below(4) {
            0 => Some(vec![self.pick(names).to_owned()]),
            _ => None,
        };
        let (users, clients) = (maybe(&["a", "b", "$s"]), maybe(&["a", "b", "+"]));
        let addresses = maybe(&["10.0.0.0/8", "::1"]);
        let action = self.pick(&[AccessAction::Publish, AccessAction::Subscribe, AccessAction::All]);
        let topics = (0..1 + self.below(2))
            .map(|_| self.filter(&["a", "b", "$s", "", "+", "+", "%u", "%c"]))
            .collect();
        AccessRule {
            permission: self.pick(&[Permission::Allow, Permission::Deny]),
            users,
            clients,
            addresses,
            anonymous: None,
            action,
            qos: (action == AccessAction::Publish && self.below(3) == 0).then(|| vec![self.below(3) as u8]),
            retain: (action == AccessAction::Publish && self.below(3) == 0).then(|| self.below(2) == 0),
            topics,
            ..AccessRule::default()
        }
    }
}

/// A second implementation of the semantics without the three stages: strings and loops.
mod model {
    use super::*;

    fn applies(rule: &AccessRule, who: &Identity<'_>) -> bool {
        let holds = |list: &Option<Vec<String>>, is_met: &dyn Fn(&str) -> bool| {
            list.as_ref().is_none_or(|list| list.iter().any(|entry| is_met(entry)))
        };
        holds(&rule.users, &|name| who.user_name == Some(name))
            && holds(&rule.clients, &|id| who.client_id == id)
            && holds(&rule.addresses, &|network| {
                network.parse::<Cidr>().unwrap().contains(who.address)
            })
    }

    /// Returns a rule's topics as filters; "" means everything.
    fn filters(rule: &AccessRule, who: &Identity<'_>) -> Vec<String> {
        rule.topics
            .iter()
            .filter_map(|topic| filter(rule, topic, who))
            .collect()
    }

    fn filter(rule: &AccessRule, topic: &str, who: &Identity<'_>) -> Option<String> {
        if topic.contains("%u") && who.user_name.is_none() {
            return None;
        }
        let mut levels: Vec<String> = Vec::new();
        for level in topic.split('/') {
            let value = match level {
                "%u" => who.user_name.unwrap(),
                "%c" => who.client_id,
                other => other,
            };
            let is_hostile =
                value.contains(['+', '#', '/']) || value.is_empty() || (levels.is_empty() && value.starts_with('$'));
            if level.starts_with('%') && is_hostile {
                return match rule.permission {
                    Permission::Allow => None,
                    Permission::Deny if levels.is_empty() => Some(String::new()),
                    Permission::Deny => Some(levels.join("/") + "/#"),
                };
            }
            levels.push(value.to_owned());
        }
        Some(levels.join("/"))
    }

    fn decide(
        rules: &[AccessRule],
        who: &Identity<'_>,
        action: AccessAction,
        is_met: impl Fn(&AccessRule) -> bool,
        topic: &str,
    ) -> bool {
        for rule in rules.iter().filter(|rule| applies(rule, who) && is_met(rule)) {
            let is_concerned = rule.action == action || rule.action == AccessAction::All;
            let is_match = |filter: &String| filter.is_empty() || mqtt::filter_matches(filter, topic);
            if is_concerned && filters(rule, who).iter().any(is_match) {
                return rule.permission == Permission::Allow;
            }
        }
        false
    }

    pub fn publish(rules: &[AccessRule], who: &Identity<'_>, topic: &str, qos: QoS, retain: bool) -> bool {
        let is_met = |rule: &AccessRule| {
            rule.qos.as_ref().is_none_or(|list| list.contains(&(qos as u8))) && rule.retain.is_none_or(|r| r == retain)
        };
        decide(rules, who, AccessAction::Publish, is_met, topic)
    }

    pub fn may_receive(rules: &[AccessRule], who: &Identity<'_>, topic: &str) -> bool {
        decide(rules, who, AccessAction::Subscribe, |_| true, topic)
    }
}

fn all_topics() -> Vec<String> {
    let levels = ["a", "b", "", "z", "$s"];
    let mut topics: Vec<String> = levels.iter().map(|level| level.to_string()).collect();
    for first in levels {
        for second in levels {
            topics.push(format!("{first}/{second}"));
            topics.extend(levels.iter().map(|third| format!("{first}/{second}/{third}")));
        }
    }
    topics.retain(|topic| !topic.is_empty());
    topics
}

#[test]
fn random_rules_agree_with_the_naive_model() {
    let topics = all_topics();
    let identities = [
        who("a", Some("b"), "10.1.1.1"),
        who("b", None, "::1"),
        who("+", Some("a"), "10.1.1.1"),
        who("a", Some("#"), "192.0.2.1"),
        who("a/b", Some("$s"), "::1"),
        who("", Some(""), "::1"),
    ];
    let mut seen = HashSet::new();
    for seed in 1..=600u64 {
        let mut random = TestRandom(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let list: Vec<AccessRule> = (0..random.below(7)).map(|_| random.rule()).collect();
        let partial_subscription = random.pick(&[PartialSubscriptionPolicy::Refuse, PartialSubscriptionPolicy::Filter]);
        let options = AclOptions {
            partial_subscription,
            ..AclOptions::default()
        };
        let acl = Acl::compile(&list, options).unwrap_or_else(|errors| panic!("seed {seed}: {errors}"));
        for identity in &identities {
            let session = acl.session(identity);
            for topic in &topics {
                let (qos, retain) = (random.pick(&ALL_QOS), random.below(2) == 0);
                let expected = model::publish(&list, identity, topic, qos, retain);
                assert_eq!(
                    session.publish(topic, qos, retain),
                    expected,
                    "seed {seed}, {identity:?}, {topic}"
                );
                let expected = model::may_receive(&list, identity, topic);
                assert_eq!(
                    session.can_receive(topic),
                    expected,
                    "seed {seed}, {identity:?}, {topic}"
                );
            }
            for _ in 0..8 {
                let filter = random.filter(&["a", "b", "$s", "", "+", "+"]);
                let matched = topics.iter().filter(|topic| mqtt::filter_matches(&filter, topic));
                let received: Vec<bool> = matched
                    .map(|topic| model::may_receive(&list, identity, topic))
                    .collect();
                let grant = session.subscribe(&filter);
                let case = format!("seed {seed}, {identity:?}, {filter}, {list:#?}");
                seen.insert((grant, received.iter().all(|may| *may), received.iter().any(|may| *may)));
                match grant {
                    // Safe without filtering: no topic that the filter matches is denied.
                    ALLOWED => assert!(received.iter().all(|may| *may), "{case}"),
                    // A filter without wildcards is one topic: granted exactly if the topic is allowed.
                    DENIED if !mqtt::has_wildcards(&filter) => {
                        assert!(received.iter().all(|may| !*may), "{case}");
                    }
                    // With partial grants, a denied filter matches no allowed topic.
                    DENIED if partial_subscription == PartialSubscriptionPolicy::Filter => {
                        assert!(received.iter().all(|may| !*may), "{case}");
                    }
                    _ => {}
                }
            }
        }
    }
    // The random cases include all kinds of results.
    for expected in [
        (ALLOWED, true, true),
        (FILTERED, false, true),
        (DENIED, false, false),
        (DENIED, false, true),
    ] {
        assert!(seen.contains(&expected), "{expected:?} in {seen:?}");
    }
}

#[test]
fn rules_of_a_client_come_before_those_of_the_server() {
    let acl = Acl::compile(
        &[
            AccessRule::allow(AccessAction::All, &["site/#"]),
            AccessRule::deny(AccessAction::All, &["own/#"]),
        ],
        AclOptions::default(),
    )
    .unwrap();
    let own = ClientRules::compile(&[
        AccessRule::deny(AccessAction::Publish, &["site/locked"]),
        AccessRule::allow(AccessAction::Publish, &["own/%c"]),
    ])
    .unwrap();
    let who = Identity {
        client_id: "c1",
        user_name: Some("alice"),
        address: "192.0.2.1".parse().unwrap(),
        is_superuser: false,
        attributes: ClientAttributes::NONE,
        certificate: CertificateIdentity::default(),
    };
    let session = acl.session_with(&own, &who);
    let publish = |topic| session.publish(topic, QoS::AtMostOnce, false);
    assert!(!publish("site/locked") && publish("site/open"));
    assert!(publish("own/c1") && !publish("own/c2"));
    assert!(!publish("elsewhere"), "`no_match` decides");
    let own = ClientRules::compile(&[AccessRule::allow(AccessAction::All, &["#", "$SYS/#"])]).unwrap();
    let session = acl.session_with(&own, &who);
    assert!(session.publish("elsewhere", QoS::AtMostOnce, false));
    assert!(!session.publish("$SYS/broker/uptime", QoS::AtMostOnce, false));
    let root = Identity {
        is_superuser: true,
        ..who
    };
    assert!(acl.session_with(&own, &root).is_unrestricted());
}

#[test]
fn rules_of_a_client_are_checked() {
    let connect = AccessRule {
        clients: Some(vec!["c".into()]),
        ..AccessRule::allow(AccessAction::Connect, &[])
    };
    let errors = ClientRules::compile(&[connect, AccessRule::allow(AccessAction::All, &["a/#/b"])]).unwrap_err();
    assert_eq!(errors.0.iter().map(|error| error.rule).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(errors.0[0].kind, AclErrorKind::ConnectOfClient);
    let topics = vec!["t".to_owned(); 501];
    let rule = AccessRule {
        topics,
        ..AccessRule::allow(AccessAction::All, &[])
    };
    assert!(ClientRules::compile(std::slice::from_ref(&rule)).is_ok());
    assert!(ClientRules::compile(&[rule.clone(), rule]).is_err(), "1,002 topics");
}

#[test]
fn attributes_fill_placeholders() {
    let rules = [
        AccessRule::deny(
            AccessAction::All,
            &["${client_attrs.tenant}/locked/${client_attrs.room}"],
        ),
        AccessRule::allow(AccessAction::All, &["${client_attrs.tenant}/#"]),
        AccessRule::allow(AccessAction::All, &["public/${client_attrs.none}", "public/%c"]),
    ];
    let acl = Acl::compile(&rules, AclOptions::default()).unwrap();
    let attributes = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        ClientAttributes::new(pairs.collect()).unwrap()
    };
    let publish = |attributes: &ClientAttributes, topic: &str| {
        let who = Identity { attributes, ..alice() };
        acl.session(&who).publish(topic, QoS::AtMostOnce, false)
    };
    let plain = attributes(&[("tenant", "acme"), ("room", "r1")]);
    assert!(publish(&plain, "acme/x") && publish(&plain, "public/c1"));
    assert!(!publish(&plain, "acme/locked/r1") && publish(&plain, "acme/locked/r2"));
    assert!(!publish(&plain, "other/x"));
    assert!(!publish(ClientAttributes::NONE, "acme/x"));
    // A value cannot contain further levels or wildcards: allow rules do not apply, deny rules apply to more.
    for unsafe_value in ["+", "#", "a/b", "$SYS", ""] {
        let attributes = attributes(&[("tenant", unsafe_value), ("room", "r1")]);
        assert!(
            !publish(&attributes, "a/b/x") && !publish(&attributes, "public/c1"),
            "{unsafe_value}"
        );
    }
    let wild_room = attributes(&[("tenant", "acme"), ("room", "+")]);
    assert!(!publish(&wild_room, "acme/locked/r2") && publish(&wild_room, "acme/x"));
}

#[test]
fn attributes_and_certificates_are_conditions() {
    let acl = compile(
        r##"
        [[rules]]
        permission = "deny"
        attributes = { blocked = ["yes"] }
        topics = ["#"]
        [[rules]]
        permission = "allow"
        attributes = { role = ["admin", "operator"], site = ["north"] }
        topics = ["commands"]
        [[rules]]
        permission = "allow"
        certificate_names = ["meter-1", "meter-2"]
        topics = ["meters"]
        [[rules]]
        permission = "allow"
        certificate_subjects = ["CN=meter-1,O=Example"]
        topics = ["subjects"]
        [[rules]]
        permission = "allow"
        action = "connect"
        attributes = { role = ["admin"] }
        "##,
    );
    let attributes = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        ClientAttributes::new(pairs.collect()).unwrap()
    };
    let admin = attributes(&[("role", "admin"), ("site", "north"), ("other", "x")]);
    let guest = attributes(&[("role", "guest"), ("site", "north")]);
    let elsewhere = attributes(&[("role", "operator"), ("site", "south")]);
    let blocked = attributes(&[("role", "admin"), ("site", "north"), ("blocked", "yes")]);
    let certificate = |common_name, subject| CertificateIdentity { common_name, subject };
    let none = CertificateIdentity::default();
    let meter = certificate(Some("meter-1"), Some("CN=meter-1,O=Example"));
    let other = certificate(Some("meter-3"), Some("CN=meter-1,O=Other"));
    for (attributes, certificate, expected) in [
        (&admin, none, &["commands"][..]),
        (&guest, none, &[]),
        (&elsewhere, none, &[]),
        (&blocked, meter, &[]),
        (ClientAttributes::NONE, none, &[]),
        (ClientAttributes::NONE, meter, &["meters", "subjects"]),
        (ClientAttributes::NONE, other, &[]),
        (&admin, meter, &["commands", "meters", "subjects"]),
    ] {
        let who = Identity {
            attributes,
            certificate,
            ..alice()
        };
        let session = acl.session(&who);
        let topics = ["commands", "meters", "subjects"].into_iter();
        let allowed: Vec<&str> = topics.filter(|topic| publishes(&session, topic)).collect();
        assert_eq!(allowed, expected, "{who:?}");
        assert_eq!(
            acl.can_connect(&who),
            attributes.get("role") == Some("admin"),
            "{who:?}"
        );
    }
    let empty = rules(
        r##"
        [[rules]]
        attributes = {}
        certificate_names = []
        topics = ["#"]
        [[rules]]
        attributes = { role = [] }
        certificate_subjects = []
        topics = ["#"]
        "##,
    );
    let errors = Acl::compile(&empty, AclOptions::default()).err().expect("errors").0;
    assert_eq!(errors.len(), 4, "{errors:?}");
    let is_empty_list = |error: &AclError| matches!(error.kind, AclErrorKind::EmptyList { .. });
    assert!(errors.iter().all(is_empty_list), "{errors:?}");
}

#[test]
fn decisive_rule_of_a_client_is_named() {
    let own = ClientRules::compile(&[
        AccessRule::deny(AccessAction::Publish, &["site/locked", "site/%c/#"]),
        AccessRule::allow(AccessAction::All, &["site/#", "eq log/+"]),
    ])
    .unwrap();
    assert_eq!(own.count(), 2);
    let who = who("c1", Some("alice"), "192.0.2.1");
    let publish = |topic: &str| {
        let rule = own.decisive(&who, |acl| acl.decide_publish(topic, QoS::AtMostOnce, false).is_some());
        rule.map(|rule| (rule.number, rule.text))
    };
    let named = |number, text: &str| Some((number, text.to_owned()));
    assert_eq!(publish("site/c1/x"), named(1, "deny site/c1/#"));
    assert_eq!(publish("site/c2/x"), named(2, "allow site/#"));
    assert_eq!(publish("$SYS/x"), named(0, "deny $SYS/#"));
    assert_eq!(publish("other"), None);
    let subscribe = |filter: &str| {
        let rule = own.decisive(&who, |acl| acl.decide_subscribe(filter).decision.is_some());
        rule.map(|rule| (rule.number, rule.text))
    };
    assert_eq!(subscribe("log/+"), named(2, "allow eq log/+"));
    assert_eq!(subscribe("#"), None);
}
