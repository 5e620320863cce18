//! Logins with right and wrong credentials, groups and attributes.

use super::*;

const BY_NAME: (&str, &str) = ("user_dn", "'uid=${username},ou=devices,dc=example,dc=org'");

#[test]
fn the_entry_of_the_client_decides() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    directory.add("root", SECRET, "isSuperuser: TRUE");
    directory.add("plain", "secret", "isSuperuser: FALSE");
    for (options, plain, unknown) in [
        (&[("method", "'bind'")][..], ADMITTED, ADMITTED),
        // A password without a hash is not compared.
        (&[("method", "'hash'")], NOT_AUTHORIZED, ADMITTED),
        // The server does not say whether a name exists, so the next provider is not asked.
        (&[BY_NAME], ADMITTED, WRONG),
    ] {
        let superuser = ("is_superuser_attribute", "'isSuperuser'");
        // A client that caused a failure would be admitted.
        let server = directory.start(&[options, &[superuser, ("on_failure", "'allow'")]].concat());
        for (name, password, code) in [
            ("meter", "secret", ADMITTED),
            ("meter", "Secret", WRONG),
            ("meter", SECRET, WRONG),
            ("meter", "", WRONG),
            ("meter", "\0", WRONG),
            ("plain", "secret", plain),
            ("nobody", "secret", WRONG),
            ("nobody", "", WRONG),
            ("", "secret", WRONG),
            ("ann", "local", unknown),
        ] {
            for _ in 0..2 {
                assert_eq!(login(&server, name, password), code, "{options:?} {name} {password:?}");
            }
        }
        assert!(may_subscribe(&server, "root", "secret", "closed/door"), "{options:?}");
        assert!(!may_subscribe(&server, "meter", "secret", "closed/door"), "{options:?}");
        // The directory ignores case; access rules do not.
        assert!(may_subscribe(&server, "METER", "secret", "u/meter"), "{options:?}");
        assert!(!may_subscribe(&server, "METER", "secret", "u/METER"), "{options:?}");
        assert!(!server.log().contains("secret"), "{}", server.log());
    }
}

#[test]
fn groups_and_attributes_give_rights() {
    let directory = Directory::new();
    directory.add("a", SECRET, "departmentNumber: 7");
    directory.add("b", SECRET, "");
    directory.add("c", SECRET, "");
    directory.add_group("ou=groups", "plant-a", "a");
    directory.add_group("ou=groups", "plant-b", "b");
    // A group with the same name elsewhere is another one.
    directory.add_group("ou=devices", "plant-a", "c");
    let required = (
        "required_groups",
        "['CN=plant-a, ou=groups, dc=example, dc=org', 'cn=plant-b,ou=groups,dc=example,dc=org']",
    );
    let attributes = ("[access.ldap.client_attrs]", "tenant = 'departmentNumber'");
    let search = [
        ("group_base_dn", "'dc=example,dc=org'"),
        ("group_filter", "'(&(objectClass=groupOfNames)(member=${dn}))'"),
    ];
    for options in [&[][..], &search, &[BY_NAME]] {
        let all = [&[required, ("groups_attr", "'groups'"), attributes], options].concat();
        let server = directory.start(&all);
        assert_eq!(login(&server, "c", "secret"), NOT_AUTHORIZED, "{options:?}");
        assert_eq!(login(&server, "c", "guess"), WRONG, "{options:?}");
        for (topic, a, b) in [
            ("plant-a/1", true, false),
            ("plant-b/1", false, false),
            ("t/7/1", true, false),
            ("t//1", false, false),
        ] {
            assert_eq!(may_subscribe(&server, "a", "secret", topic), a, "{options:?} {topic}");
            assert_eq!(may_subscribe(&server, "b", "secret", topic), b, "{options:?} {topic}");
        }
    }
}

/// Access rules with the condition `groups`, and nothing else in the options.
#[test]
fn groups_are_a_condition_of_access_rules() {
    let directory = Directory::new();
    for name in ["member", "other"] {
        directory.add(name, SECRET, "");
    }
    directory.add_group("ou=groups", "operators", "member");
    let rules = "rules = [{ permission = 'deny', groups = ['suspended'], topics = ['#'] }, \
                 { permission = 'allow', groups = ['operators'], topics = ['plant/#'] }, \
                 { permission = 'allow', topics = ['open'] }]\n[access.users]";
    let start = |more: &[(&str, &str)]| {
        let all = [&[("cache_allowed", "'0s'")], more].concat();
        let text = options(&[directory.url()], &all);
        let (before, after) = text.split_once("rules = [").expect("rules");
        let (_, after) = after.split_once("\n[access.users]").expect("users");
        Server::start(&Config::new(format!("{before}{rules}{after}")))
    };
    let server = start(&[]);
    let mut before = server.session(&Connect::new(V5, unique("member")).user("member", "secret"));
    assert_eq!(before.subscribe_code("plant/1", 0), 0);
    for (name, password, topic, expected) in [
        ("member", "secret", "open", true),
        ("other", "secret", "plant/1", false),
        ("other", "secret", "open", true),
        // A client of another provider has no groups of the directory.
        ("ann", "local", "plant/1", false),
        ("ann", "local", "open", true),
    ] {
        assert_eq!(
            may_subscribe(&server, name, password, topic),
            expected,
            "{name} {topic}"
        );
    }
    // A change takes effect when the client logs in again.
    directory.add_group("ou=groups", "suspended", "member");
    assert_eq!(before.subscribe_code("plant/2", 0), 0);
    assert!(!may_subscribe(&server, "member", "secret", "plant/1"));
    assert!(!may_subscribe(&server, "member", "secret", "open"));
    directory.change("dn: cn=suspended,ou=groups,dc=example,dc=org\nchangetype: delete\n");
    assert!(may_subscribe(&server, "member", "secret", "plant/1"));
    // Groups that a search finds, and rules with whole names.
    let server = start(&[
        ("group_base_dn", "'dc=example,dc=org'"),
        ("group_filter", "'(&(objectClass=groupOfNames)(member=${dn}))'"),
    ]);
    assert!(may_subscribe(&server, "member", "secret", "plant/1"));
    assert!(!may_subscribe(&server, "other", "secret", "plant/1"));
    let server = start(&[("group_names", "'whole'")]);
    assert!(!may_subscribe(&server, "member", "secret", "plant/1"));
}

#[test]
fn values_of_clients_are_literal() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    directory.add("other", SECRET, "");
    for options in [
        &[("filter", "'(&(objectClass=mqttUser)(uid=${username}))'")][..],
        &[
            ("filter", "'(|(uid=${username})(cn=${username}))'"),
            ("method", "'hash'"),
        ],
        &[
            ("base_dn", "'uid=${username},ou=devices,dc=example,dc=org'"),
            ("filter", "'(objectClass=mqttUser)'"),
        ],
        &[BY_NAME],
    ] {
        let server = directory.start(&[options, &[("on_failure", "'allow'")]].concat());
        for attempt in [
            "*",
            "m*",
            "meter)(uid=*",
            "*)(|(uid=*",
            "*))(|(uid=*)",
            "\\2a",
            "meter\\00",
            "(uid=meter)",
            "meter,ou=devices,dc=example,dc=org",
            "meter+uid=other",
            "x,uid=meter",
            "#6d65746572",
            "${username}",
            "\"meter\"",
            "meter;x",
            "m\\65ter",
            " , ",
            "=",
            "\u{fffd}",
        ] {
            assert_eq!(login(&server, attempt, "secret"), WRONG, "{options:?} {attempt}");
        }
        assert_eq!(login(&server, "x".repeat(60_000), "secret"), WRONG, "{options:?}");
        assert_eq!(login(&server, "meter", [b'x', 0xFF]), WRONG, "{options:?}");
        assert_eq!(login(&server, "meter", "x".repeat(60_000)), WRONG, "{options:?}");
        assert_eq!(login(&server, "meter", "secret"), ADMITTED, "{options:?}");
    }
    // More than one entry.
    let server = directory.start(&[("filter", "'(|(sn=device)(uid=${username}))'")]);
    assert_eq!(login(&server, "x", "secret"), NOT_AUTHORIZED);
    assert!(server.log().contains("matches several entries"), "{}", server.log());
}

#[test]
fn wrong_settings_admit_no_client_and_are_logged() {
    let directory = Directory::new();
    directory.add("meter", SECRET, "");
    for (options, code, reason) in [
        (
            &[("password", "'wrong-one'")][..],
            UNAVAILABLE,
            "the login with user and password failed: invalid credentials (49)",
        ),
        (
            &[("base_dn", "'ou=things,dc=example,dc=org'")],
            WRONG,
            "base_dn is not an entry",
        ),
        // A device may read its entry without the hash.
        (
            &[
                ("user", "'uid=meter,ou=devices,dc=example,dc=org'"),
                ("password", "'secret'"),
                ("base_dn", "'uid=meter,ou=devices,dc=example,dc=org'"),
                ("method", "'hash'"),
            ],
            NOT_AUTHORIZED,
            "has no password_attribute",
        ),
    ] {
        let server = directory.start(options);
        assert_eq!(login(&server, "meter", "secret"), code, "{options:?}");
        let log = server.log();
        assert!(log.contains(reason), "{options:?}: {log}");
        assert!(!log.contains("wrong-one"), "{log}");
    }
}
