//! Tests of hashes, names, groups and options. Logins are tested with a real server in `tests/ldap_logins`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use auth::Login;
use connectors::TlsConfig;

use super::login::UnusableEntry;
use super::*;

fn credentials(name: &str, password: &str) -> Credentials {
    Credentials {
        client_id: "c1".to_owned(),
        user_name: Some(name.to_owned()),
        password: Some(Password::new(password)),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        certificate_common_name: None,
        certificate_subject: None,
        action: None,
    }
}

/// A directory that nothing answers for: a question would fail.
fn config() -> LdapConfig {
    LdapConfig {
        connection: LdapConnectorConfig {
            servers: vec!["ldap://127.0.0.1:1".to_owned()],
            starttls: false,
            user: None,
            password: None,
            connections_max: 1,
            connect_timeout_ms: 1000,
            tls: TlsConfig::default(),
        },
        method: LdapMethod::Bind,
        base_dn: "ou=devices,dc=example,dc=org".to_owned(),
        filter: None,
        user_dn: None,
        password_attribute: "userPassword".to_owned(),
        is_superuser_attribute: None,
        client_attributes: BTreeMap::new(),
        groups: LdapGroupConfig {
            attribute: "memberOf".to_owned(),
            ..LdapGroupConfig::default()
        },
    }
}

fn source(config: &LdapConfig) -> LdapSource {
    LdapSource::new(config).unwrap_or_else(|error| panic!("{error}"))
}

fn outcome(source: &LdapSource, credentials: &Credentials) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    match runtime.block_on(source.decide(credentials)) {
        Ok(ProviderOutcome::Allow(_)) => "allow".to_owned(),
        Ok(ProviderOutcome::Deny(reason)) => reason.to_string(),
        Ok(ProviderOutcome::Ignore) => "ignore".to_owned(),
        Err(error) => format!("failed: {error}"),
    }
}

fn entry(attributes: &[(&str, &[&str])]) -> LdapEntry {
    let values = |values: &[&str]| values.iter().map(|value| value.as_bytes().to_vec()).collect();
    LdapEntry {
        dn: "uid=ann,ou=devices,dc=example,dc=org".to_owned(),
        attributes: attributes
            .iter()
            .map(|(name, found)| ((*name).to_owned(), values(found)))
            .collect(),
    }
}

#[test]
fn an_empty_password_is_denied_without_a_question() {
    for (method, user_dn) in [
        (LdapMethod::Bind, None),
        (LdapMethod::Hash, None),
        (LdapMethod::Bind, Some("uid=${username},dc=example,dc=org")),
    ] {
        let config = LdapConfig {
            method,
            user_dn: user_dn.map(str::to_owned),
            ..config()
        };
        let source = source(&config);
        for password in ["", "\0", "\0secret", "secret\0"] {
            assert_eq!(outcome(&source, &credentials("ann", password)), "wrong password");
        }
        let asked = outcome(&source, &credentials("ann", "secret"));
        assert!(
            asked.starts_with("failed: ldap://127.0.0.1:1: cannot connect"),
            "{asked}"
        );
    }
}

#[test]
fn credentials_that_no_directory_has_are_ignored() {
    let source = source(&config());
    let long = "x".repeat(5000);
    for ignored in [
        credentials("", "secret"),
        credentials(&long, "secret"),
        credentials("ann", &"x".repeat(20_000)),
        Credentials {
            user_name: None,
            ..credentials("", "secret")
        },
        Credentials {
            password: None,
            ..credentials("ann", "")
        },
    ] {
        assert_eq!(outcome(&source, &ignored), "ignore");
        assert!(source.question(&ignored).is_none());
    }
    let key = |name, password| source.question(&credentials(name, password)).unwrap();
    assert!(key("ann", "a") == key("ann", "a"));
    assert!(key("ann", "a") != key("ann", "b"));
    assert!(key("ann", "a") != key("Ann", "a"));
}

#[test]
fn hashes_of_openldap_are_verified() {
    // Written by slappasswd 2.5 for `secret`.
    for hash in HASHES {
        let values = [hash.as_bytes().to_vec()];
        assert_eq!(
            password::check(&values, &Password::new("secret")),
            PasswordMatch::Right,
            "{hash}"
        );
        for wrong in ["Secret", "secret ", "", hash] {
            assert_eq!(
                password::check(&values, &Password::new(wrong)),
                PasswordMatch::Wrong,
                "{hash} {wrong}"
            );
        }
        let lower = hash.to_ascii_lowercase();
        let scheme = hash.find('}').unwrap();
        let lower = format!("{}{}", &lower[..scheme], &hash[scheme..]);
        assert_eq!(
            password::check(&[lower.into()], &Password::new("secret")),
            PasswordMatch::Right
        );
    }
    let two = HASHES[..2].iter().map(|hash| hash.as_bytes().to_vec());
    let other = b"{SHA}mlb3fat40MKBTXUVZwCKmL73R/0=".to_vec();
    let values: Vec<Vec<u8>> = std::iter::once(other).chain(two).collect();
    assert_eq!(password::check(&values, &Password::new("secret")), PasswordMatch::Right);
}

#[test]
fn other_values_are_no_hashes() {
    for value in [
        "",
        "secret",
        "{}",
        "{SSHA}",
        "{SSHA}AAAA",
        "{SSHA}!!!!",
        "{SHA}5en6G6MezRroT3XKqkdPOmY/BfT=",
        "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQA",
        "{CRYPT}$1$abc$def",
        "{CLEARTEXT}secret",
        "{PLAIN}c2VjcmV0",
        "e1NTSEF9",
        "{ARGON2}$argon2id$v=19$m=7168,t=5,p=1$AAAAAAAAAAA$AAAA",
    ] {
        let found = password::check(&[value.as_bytes().to_vec()], &Password::new("secret"));
        assert!(matches!(found, PasswordMatch::Unreadable(_)), "{value}");
    }
    assert!(matches!(
        password::check(&[], &Password::new("x")),
        PasswordMatch::Unreadable(_)
    ));
    assert!(matches!(
        password::check(&[vec![0xFF]], &Password::new("x")),
        PasswordMatch::Unreadable(_)
    ));
}

#[test]
fn an_unusable_answer_is_no_failure_of_the_directory() {
    let reason = "ldap://a: the answer is not valid LDAP".to_owned();
    assert_eq!(
        SourceError::from(LdapError::Unusable(reason.clone())),
        SourceError::Invalid(reason.clone())
    );
    assert_eq!(
        SourceError::from(LdapError::Lost(reason.clone())),
        SourceError::Failed(reason)
    );
}

fn login(config: &LdapConfig, name: &str, entry: &LdapEntry, groups: &[&str]) -> Result<Login, UnusableEntry> {
    let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
    source(config)
        .login
        .login(entry, ClientValues::of(&credentials(name, "secret")), &groups)
}

#[test]
fn the_session_has_the_name_of_the_directory() {
    let by_uid = config();
    let ann = entry(&[("uid", &["ann", "Anna B"])]);
    for (sent, name) in [
        ("ann", None),
        ("Anna B", None),
        ("ANN", Some("ann")),
        (" ann ", Some("ann")),
        ("anna  b", Some("Anna B")),
    ] {
        let found = login(&by_uid, sent, &ann, &[]).ok().expect(sent);
        assert_eq!(found.user_name.as_deref(), name, "{sent}");
    }
    for (sent, entry) in [
        ("bob", &ann),
        ("ann", &entry(&[])),
        ("ann", &entry(&[("cn", &["ann"])])),
    ] {
        assert!(login(&by_uid, sent, entry, &[]).is_err(), "{sent}");
    }
    let by_mail = LdapConfig {
        filter: Some("(|(uid=${username})(mail=${username}@example.org))".to_owned()),
        ..config()
    };
    let ann = entry(&[("uid", &["ann"]), ("mail", &["a.b@example.org"])]);
    for (sent, name) in [("a.b", Some(None)), ("ANN", Some(Some("ann"))), ("A.B", None)] {
        let found = login(&by_mail, sent, &ann, &[]).ok().map(|login| login.user_name);
        assert_eq!(found.as_ref().map(Option::as_deref), name, "{sent}");
    }
    for by_name in [
        LdapConfig {
            user_dn: Some("uid=${username},dc=example,dc=org".to_owned()),
            ..config()
        },
        LdapConfig {
            base_dn: "uid=${username},dc=example,dc=org".to_owned(),
            filter: Some("(objectClass=mqttUser)".to_owned()),
            ..config()
        },
    ] {
        let found = login(&by_name, "ANN", &ann, &[]).ok().expect("it is a value");
        assert_eq!(found.user_name.as_deref(), Some("ann"));
    }
}

#[test]
fn a_client_id_is_written_as_in_the_directory() {
    let by_filter = LdapConfig {
        filter: Some("(&(uid=${username})(deviceId=${clientid}))".to_owned()),
        ..config()
    };
    let by_name = LdapConfig {
        user_dn: Some("deviceId=${clientid},dc=example,dc=org".to_owned()),
        filter: Some("(uid=${username})".to_owned()),
        ..config()
    };
    let without_user_name = LdapConfig {
        filter: Some("(deviceId=${clientid})".to_owned()),
        ..config()
    };
    for config in [by_filter, by_name, without_user_name] {
        assert!(source(&config).attributes.contains(&"deviceId".to_owned()));
        for (ids, is_admitted) in [
            (&["c0", "c1"][..], true),
            (&["C1"], false),
            (&[" c1"], false),
            (&[], false),
        ] {
            let ann = entry(&[("uid", &["ann"]), ("deviceid", ids)]);
            assert_eq!(login(&config, "ann", &ann, &[]).is_ok(), is_admitted, "{ids:?}");
        }
    }
}

#[test]
fn attributes_come_from_the_entry_and_its_groups() {
    let config = LdapConfig {
        is_superuser_attribute: Some("isSuperuser".to_owned()),
        client_attributes: BTreeMap::from([
            ("tenant".to_owned(), "departmentNumber".to_owned()),
            ("absent".to_owned(), "street".to_owned()),
        ]),
        groups: LdapGroupConfig {
            client_attribute: Some("groups".to_owned()),
            ..config().groups
        },
        ..config()
    };
    let ann = entry(&[
        ("UID", &["ann"]),
        ("departmentNumber", &["7", "12"]),
        ("issuperuser", &["TRUE"]),
    ]);
    let found = login(&config, "ann", &ann, &["a", "b"])
        .ok()
        .expect("the entry is usable");
    assert!(found.is_superuser);
    let attributes: Vec<(&str, &str)> = found.attributes.iter().collect();
    assert_eq!(
        attributes,
        [
            ("groups", "a,b"),
            ("groups.a", "a"),
            ("groups.b", "b"),
            ("tenant", "12,7")
        ]
    );
    assert_eq!(found.attributes.groups(), ["a", "b"].map(Box::from));
    for value in ["FALSE", "0", "yes", ""] {
        let ann = entry(&[("uid", &["ann"]), ("isSuperuser", &[value])]);
        assert!(
            !login(&config, "ann", &ann, &[]).ok().expect(value).is_superuser,
            "{value}"
        );
    }
    let many: Vec<String> = (0..100).map(|number| format!("g{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(login(&config, "ann", &ann, &many).is_err());
}

#[test]
fn membership_is_compared_by_whole_names() {
    let config = LdapGroupConfig {
        attribute: "memberOf".to_owned(),
        required: vec!["cn=MQTT users,ou=groups,dc=example,dc=org".to_owned()],
        ..LdapGroupConfig::default()
    };
    let rules = GroupRules::new(&config).unwrap();
    for (values, is_sufficient, names) in [
        (
            &["CN=mqtt  Users, OU=groups,DC=example,DC=org"][..],
            true,
            &["mqtt  Users"][..],
        ),
        (
            &[
                "cn=other,dc=example,dc=org",
                "cn=mqtt users,ou=groups,dc=example,dc=org",
            ],
            true,
            &["mqtt users", "other"],
        ),
        (&["cn=MQTT users,ou=own,dc=example,dc=org"], false, &["MQTT users"]),
        (
            &["cn=MQTT users\\,ou=groups,dc=example,dc=org"],
            false,
            &["MQTT users,ou=groups"],
        ),
        (&["cn=MQTT users"], false, &["MQTT users"]),
        (&["nothing", ""], false, &[]),
        (&[], false, &[]),
    ] {
        let groups = rules.groups(&rules.names_in(&entry(&[("memberof", values)])));
        assert_eq!(groups.is_sufficient, is_sufficient, "{values:?}");
        assert_eq!(groups.names, names, "{values:?}");
    }
}

/// The right to create groups in one place must not give the rights of a group in another one.
#[test]
fn groups_can_be_named_by_their_whole_names() {
    let config = LdapConfig {
        groups: LdapGroupConfig {
            client_attribute: Some("groups".to_owned()),
            names: LdapGroupNames::Whole,
            ..config().groups
        },
        ..config()
    };
    let ann = entry(&[
        ("uid", &["ann"]),
        (
            "memberOf",
            &[
                "CN=Plant A, OU=Groups,DC=example,DC=org",
                "cn=plant a,ou=own,dc=example,dc=org",
                "",
                "nothing",
            ],
        ),
    ]);
    let rules = GroupRules::new(&config.groups).unwrap();
    let groups = rules.groups(&rules.names_in(&ann));
    let (of_groups, own) = (
        "cn=plant a,ou=groups,dc=example,dc=org",
        "cn=plant a,ou=own,dc=example,dc=org",
    );
    assert_eq!(groups.names, [of_groups, own]);
    assert_eq!(groups.unreadable, 1);
    let found = login(&config, "ann", &ann, &[of_groups, own])
        .ok()
        .expect("the entry is usable");
    for group in [of_groups, own] {
        assert_eq!(found.attributes.get(&format!("groups.{group}")), Some("plant a"));
    }
    assert_eq!(found.attributes.get("groups"), Some(&*format!("{of_groups};{own}")));
    assert_eq!(found.attributes.get("groups.plant a"), None);
}

#[test]
fn a_check_of_the_options_needs_no_server() {
    let with_tls = LdapConfig {
        connection: LdapConnectorConfig {
            servers: vec!["ldaps://192.0.2.1".to_owned()],
            tls: TlsConfig {
                ca_file: Some("/does/not/exist".into()),
                ..TlsConfig::default()
            },
            ..config().connection
        },
        ..config()
    };
    assert_eq!(check(&with_tls), Ok(()));
    let wrong = LdapConfig {
        filter: Some("(uid=${username}".to_owned()),
        ..with_tls
    };
    let error = check(&wrong).unwrap_err();
    assert!(error.starts_with("filter: "), "{error}");
}

#[test]
fn the_filter_of_groups_contains_the_name_of_the_entry_literally() {
    let config = LdapGroupConfig {
        filter: Some("(&(member=${dn})(!(cn=${username})))".to_owned()),
        base_dn: Some("ou=groups,dc=example,dc=org".to_owned()),
        client_attribute: Some("groups".to_owned()),
        ..LdapGroupConfig::default()
    };
    let rules = GroupRules::new(&config).unwrap();
    let client = credentials("a)(cn=*", "secret");
    let search = rules
        .search(ClientValues::of(&client).with_dn("uid=${username},*"))
        .unwrap();
    let expected = LdapFilter::parse("(&(member=D)(!(cn=U)))", &mut |value| {
        Ok(match value.as_str() {
            "D" => b"uid=${username},*".to_vec(),
            _ => b"a)(cn=*".to_vec(),
        })
    });
    assert_eq!(search.filter, expected.unwrap());
    assert_eq!(search.base, "ou=groups,dc=example,dc=org");
    assert!(rules.groups(&[]).is_sufficient);
}

#[test]
fn wrong_options_name_the_option() {
    let with = |change: &dyn Fn(&mut LdapConfig)| {
        let mut changed = config();
        change(&mut changed);
        changed
    };
    let filter = |text: &'static str| with(&move |config| config.filter = Some(text.to_owned()));
    for (config, reason) in [
        (filter("(uid=${user})"), "filter: unknown placeholder"),
        (filter("(uid=${username}"), "filter: ends early"),
        (filter("(uid=${password})"), "filter: ${password} is not allowed"),
        (
            filter("(uid=${client_attrs.x})"),
            "filter: ${client_attrs.x} has no value",
        ),
        (filter("(uid=ann)"), "filter: needs a placeholder"),
        (filter("(uid=${dn})"), "filter: unknown placeholder"),
        // The spelling of the user name could not be checked.
        (filter("(uid=${username}*)"), "filter: ${username} is compared with no"),
        (filter("(uid>=${username})"), "filter: ${username} is compared with no"),
        (
            filter("(!(uid=${username}))"),
            "filter: ${username} is compared with no",
        ),
        (
            filter("(uid:caseExactMatch:=${username})"),
            "filter: ${username} is compared with no",
        ),
        (
            with(&|config| config.user_dn = Some("cn=a,uid=${username},o=x".to_owned())),
            "filter: ${username} is compared with no",
        ),
        (
            with(&|config| {
                config.filter = Some("(uid=${clientid})".to_owned());
                config.groups.filter = Some("(memberUid=${username})".to_owned());
                config.groups.base_dn = Some("o=x".to_owned());
                config.groups.client_attribute = Some("groups".to_owned());
            }),
            "filter: ${username} is compared with no",
        ),
        (
            with(&|config| config.base_dn = "devices".to_owned()),
            "base_dn: found \"devices\"",
        ),
        (
            with(&|config| config.user_dn = Some("${username}@example.org".to_owned())),
            "user_dn: found",
        ),
        (
            with(&|config| config.user_dn = Some("uid=ann,o=x".to_owned())),
            "user_dn: needs a placeholder",
        ),
        (
            with(&|config| {
                config.user_dn = Some("uid=${username},o=x".to_owned());
                config.method = LdapMethod::Hash;
            }),
            "user_dn: needs the method bind",
        ),
        (
            with(&|config| config.password_attribute = "a b".to_owned()),
            "password_attribute: \"a b\"",
        ),
        (
            with(&|config| config.is_superuser_attribute = Some("(".to_owned())),
            "is_superuser_attribute: \"(\"",
        ),
        (
            with(&|config| config.client_attributes = BTreeMap::from([("t".to_owned(), String::new())])),
            "client_attrs.t: \"\"",
        ),
        (
            with(&|config| config.groups.required = vec!["mqtt".to_owned()]),
            "required_groups: found \"mqtt\"",
        ),
        (
            with(&|config| config.groups.required = vec![String::new()]),
            "required_groups: is empty",
        ),
        (
            with(&|config| config.groups.filter = Some("(member=${dn})".to_owned())),
            "group_base_dn: is missing",
        ),
        (
            with(&|config| {
                config.groups.filter = Some("(cn=mqtt)".to_owned());
                config.groups.base_dn = Some("o=x".to_owned());
                config.groups.required = vec!["cn=mqtt,o=x".to_owned()];
            }),
            "group_filter: needs ${dn}",
        ),
        (
            with(&|config| {
                config.groups.base_dn = Some("o=x".to_owned());
                config.groups.client_attribute = Some("groups".to_owned());
            }),
            "group_filter: is missing",
        ),
        (
            with(&|config| {
                config.groups.client_attribute = Some("g".to_owned());
                config.client_attributes = BTreeMap::from([("g".to_owned(), "cn".to_owned())]);
            }),
            "groups_attr: g is also",
        ),
    ] {
        let error = LdapSource::new(&config).map(drop).expect_err(reason);
        assert!(error.starts_with(reason), "{error}, expected {reason}");
    }
}

#[test]
fn results_that_clients_can_cause_are_no_failures() {
    let source = source(&config());
    let result = |code| LdapResult {
        code,
        diagnostic: String::new(),
    };
    for code in 0..100 {
        let denied = source.denied_by_result(&result(code));
        let expected = match code {
            0 => "admitted",
            32 | 34 | 48 | 49 => "wrong password",
            1 | 80 => "unusable",
            8 | 13 | 51 | 52 => "failed",
            _ => "rejected by policy",
        };
        let found = match denied {
            Ok(None) => "admitted".to_owned(),
            Ok(Some(reason)) => reason.to_string(),
            Err(SourceError::Invalid(_)) => "unusable".to_owned(),
            Err(_) => "failed".to_owned(),
        };
        assert_eq!(found, expected, "{code}");
        let search = LdapSearchResult {
            entries: Vec::new(),
            result: result(code),
        };
        let found = match source.one_entry(search, true) {
            Ok(Found::One(_)) => panic!("{code}"),
            Ok(Found::Nothing) => "nothing".to_owned(),
            Ok(Found::Denied(reason)) => reason.to_string(),
            Err(_) => "failed".to_owned(),
        };
        let expected = match code {
            0 | 10 | 32 | 34 => "nothing",
            1 | 8 | 13 | 51 | 52 | 80 => "failed",
            4 => "rejected by policy",
            _ => "the provider cannot decide now",
        };
        assert_eq!(found, expected, "{code}");
    }
}

#[test]
fn several_entries_deny_the_client() {
    let source = source(&config());
    let found = |entries: Vec<LdapEntry>, code| {
        let result = LdapResult {
            code,
            diagnostic: String::new(),
        };
        match source.one_entry(LdapSearchResult { entries, result }, true) {
            Ok(Found::One(entry)) => entry.dn,
            Ok(Found::Denied(reason)) => reason.to_string(),
            _ => "other".to_owned(),
        }
    };
    let ann = entry(&[]);
    assert_eq!(found(vec![ann.clone()], 0), ann.dn);
    assert_eq!(found(vec![ann.clone(), ann.clone()], 0), "rejected by policy");
    assert_eq!(found(vec![ann.clone()], 4), "rejected by policy");
    assert_eq!(found(vec![LdapEntry::default()], 0), "rejected by policy");
}

#[test]
fn failures_name_the_server_and_no_credentials() {
    let limits = SourceLimits {
        timeout: Duration::from_secs(1),
        max_concurrent: 1,
        max_waiting: 1,
        cache_size: 0,
        cache_allowed: Duration::ZERO,
        cache_denied: Duration::ZERO,
        on_failure: crate::OnFailure::Deny,
    };
    assert!(provider(&config(), limits).is_ok());
    let failed = outcome(&source(&config()), &credentials("meter-17", "hunter2"));
    assert!(failed.contains("ldap://127.0.0.1:1"), "{failed}");
    assert!(!failed.contains("meter") && !failed.contains("hunter"), "{failed}");
}

const HASHES: [&str; 10] = [
    "{SSHA}FFDfDV7GJnRHFkOzlIA4D2IT97tWuir/",
    "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    "{SMD5}bQW+RMUrW5CReCRAFGZJLkeboKs=",
    "{MD5}Xr4ilOzQ4PCOq3aQ0qbuaQ==",
    "{SSHA256}PnkJpMVmfrijL62HsPmjPdhtAwvrti35Ko8DOLE/uRSimKZrSFhreg==",
    "{SSHA384}XxXk3ohbsyAihA63MS1eD5noYTNqSpyjatPJvkliNrk7p8EliTP7CMkd6aKOquDytBXD//Lav60=",
    "{SSHA512}9UY9191Imsx6tNtIboB9yaxotW32MmpqxUx8G5Rd2KbQiijXx81LOxIbmsXnCzHWmYLwj1AfiHd3MBZQSFDThtJfKefFzZIl",
    "{SHA256}K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=",
    "{SHA384}WKd1ukESvjAFrkQHznV9iP2nHUBJe7gCbsrFTU4//HIyzo3jq1rLMK45dg/ufFPt",
    "{SHA512}vSsar3708Jvp9Szi2NWZZ02Bqp1qRCFpbcTZPdBhnWgs5WtNZKnvCXdhztmeD2cmW192CF5bDufKRpayrW/isg==",
];
