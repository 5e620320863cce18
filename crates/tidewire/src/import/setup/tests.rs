//! Tests of the directory that an import makes.

use serde_json::json;

use super::*;

#[test]
fn secrets_whose_names_are_cut_have_files_of_their_own() {
    let mut setup = Setup::new().expect("random bytes");
    let long = "x".repeat(NAME_BYTES_MAX);
    let first = setup.secret(&format!("{long}-a-password"), "one");
    let second = setup.secret(&format!("{long}-b-password"), "two");
    assert_ne!(first, second);
    let secrets: Vec<&[u8]> = setup.files.values().map(Vec::as_slice).collect();
    assert_eq!(secrets, [b"one", b"two"]);
    let pem = setup.file("tls/a.pem", "1");
    assert_eq!(setup.file("tls/a.pem", "2"), pem.replace("a.pem", "a-2.pem"));
}

#[test]
fn free_names_differ_and_keep_their_ends() {
    let mut setup = Setup::new().expect("random bytes");
    let mut taken = Vec::new();
    for name in ["X.A", "X_A", &"x".repeat(100), &"x".repeat(101)] {
        for end in ["_1", "_2"] {
            let free = setup.free_name(&["actions", "rules"], name, end);
            assert!(free.len() <= NAME_BYTES_MAX && !taken.contains(&free), "{free}");
            setup.define(&format!("rules.{free}"), name, &json!({"sql": "x"}));
            taken.push(free);
        }
    }
    assert_eq!(taken[..4], ["X_A_1", "X_A_2", "X_A_1_2", "X_A_2_2"]);
    assert!(taken[4].ends_with("x_1"), "{taken:?}");
    setup.set("listeners.tcp.port-1.bind", "", "127.0.0.1:1");
    assert_eq!(setup.free_name(&["listeners.tcp"], "port-1", ""), "port-1_2");
    assert_eq!(setup.free_name(&["listeners.tls"], "port-1", ""), "port-1");
}

fn ban(kind: auth::BanKind, who: &str, until_unix_ms: Option<u64>) -> Ban {
    Ban {
        kind,
        who: who.to_owned(),
        reason: String::new(),
        by: String::new(),
        at_unix_ms: 0,
        until_unix_ms,
    }
}

#[test]
fn equal_bans_are_one_with_the_later_end() {
    use auth::BanKind::{Address, ClientId};
    let in_a_long_time = u64::MAX - 1;
    let mut setup = Setup::new().expect("random bytes");
    setup.add_ban(ban(Address, "::ffff:10.0.0.1", Some(in_a_long_time)));
    setup.add_ban(ban(Address, "10.0.0.1", None));
    setup.add_ban(ban(ClientId, "a", None));
    setup.add_ban(ban(ClientId, "a", Some(in_a_long_time)));
    let staging = Staging::create(None).expect("a directory");
    setup.write_data(&staging.path, &Report::default()).expect("written");
    let data_dir = staging.path.join(DATA_NAME);
    let bans = Bans::open(&data_dir.join(BANS_FILE)).expect("readable");
    let found: Vec<_> = bans
        .list(0)
        .into_iter()
        .map(|ban| (ban.who, ban.until_unix_ms))
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.contains(&("10.0.0.1".to_owned(), None)), "{found:?}");
    assert!(found.contains(&("a".to_owned(), None)), "{found:?}");
    setup.add_ban(ban(Address, "no address", None));
    let error = setup
        .install(None, "title", &Report::default())
        .expect_err("an invalid ban");
    assert!(error.contains("no address"), "{error}");
}

#[test]
fn denial_of_all_topics_has_no_gaps() {
    let all = |permission, users: Option<&str>| AccessRule {
        permission,
        users: users.map(|user| vec![user.to_owned()]),
        topics: ALL_TOPICS.map(str::to_owned).to_vec(),
        ..AccessRule::default()
    };
    let imported = |user: Option<&str>| {
        let mut setup = Setup::new().expect("random bytes");
        setup.set(NO_MATCH, "", "allow");
        let allow = |topic| AccessRule::allow(AccessAction::All, &[topic]);
        for rule in [
            allow("$first/a"),
            all(Permission::Deny, user),
            allow("$aws/+/b"),
            allow("${username}/c"),
            allow("eq $x/${y}"),
        ] {
            setup.add_rule(rule).expect("a valid rule");
        }
        setup.note_acl_file(&[allow("$file"), AccessRule::deny(AccessAction::All, &["$denied"])]);
        setup.deny_other_topics(&Report::default());
        (setup.option(NO_MATCH).map(str::to_owned), setup.rules_text())
    };
    let (no_match, rules) = imported(None);
    assert_eq!(no_match.as_deref(), Some("deny"));
    let expected = "allow All $first/a\ndeny All # $SYS/# $aws/# $file/# eq $x/${y}\n\
                    allow All $aws/+/b\nallow All ${username}/c\nallow All eq $x/${y}\n";
    assert_eq!(rules, expected);
    let (no_match, rules) = imported(Some("guest"));
    assert_eq!(no_match.as_deref(), Some("deny"));
    assert!(
        rules.contains("deny users=guest All # $SYS/# $aws/# $file/# eq $x/${y}\n"),
        "{rules}"
    );
    assert!(rules.ends_with("allow All # $SYS/#\n"), "{rules}");
}

#[test]
fn report_that_cannot_be_written_ends_the_import() {
    let staging = Staging::create(None).expect("a directory");
    let mut setup = Setup::new().expect("random bytes");
    setup.report_file = Some(staging.path.join("missing/report.txt"));
    let target = staging.path.join("target");
    let error = setup.install(Some(&target), "title", &Report::default());
    let error = error.expect_err("a missing directory");
    assert!(
        error.contains("nothing has been imported") && !target.exists(),
        "{error}"
    );
}

#[test]
fn second_definition_of_a_key_ends_the_import() {
    let mut setup = Setup::new().expect("random bytes");
    setup.define("connectors.a", "first", &json!({"type": "http"}));
    setup.define("connectors.a", "second", &json!({"type": "mqtt"}));
    let error = setup.install(None, "title", &Report::default());
    let error = error.expect_err("two definitions");
    assert!(
        error.starts_with("second: ") && error.contains("connectors.a"),
        "{error}"
    );
}

#[test]
fn data_that_a_persistence_file_loses_is_in_the_report() {
    let mut setup = Setup::new().expect("random bytes");
    setup.mosquitto_database = Some(PersistenceFile {
        name: "mosquitto.db".to_owned(),
        bytes: crate::import::tests::file_without_session(),
    });
    let text = setup.install(None, "title", &Report::default()).expect("imported");
    let row = "mosquitto.db  2 records of other sessions  not supported  because their session";
    assert!(text.contains(row), "{text}");
}

#[test]
fn user_whose_rules_are_invalid_is_left_out() {
    let mut setup = Setup::new().expect("random bytes");
    let hash = PasswordHash::create(&auth::Password::new(b"p".to_vec())).expect("a hash");
    let rules = vec![
        AccessRule::allow(auth::AccessAction::All, &["a"]),
        AccessRule::deny(auth::AccessAction::All, &["b/#/c"]),
    ];
    setup
        .add_user_with_rules("ann", hash, rules)
        .expect_err("an invalid rule");
    assert!(!setup.has_rules() && setup.users.is_empty());
}
