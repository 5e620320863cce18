//! Tests that an import of `mosquitto.conf` never widens access, and that the report names each part that is left out.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::report::Report;
use super::super::setup::Setup;
use super::import;

/// A directory with `mosquitto.conf` and other files.
struct Files(PathBuf);

impl Files {
    fn new(conf: &str, others: &[(&str, &str)]) -> Files {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidewire-mosquitto-{}-{number}", std::process::id());
        let files = Files(std::env::temp_dir().join(name));
        fs::create_dir_all(&files.0).expect("a directory");
        for (name, text) in others.iter().chain(&[("mosquitto.conf", conf)]) {
            let path = files.0.join(name);
            fs::create_dir_all(path.parent().expect("its directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        files
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Imports a configuration. Returns the result before the check, and the report.
pub fn try_import(conf: &str, others: &[(&str, &str)]) -> Result<(Setup, String), String> {
    let files = Files::new(conf, others);
    let report = Report::default();
    let setup = import(&files.0.join("mosquitto.conf"), &report)?;
    Ok((setup, report.text("title")))
}

#[track_caller]
fn imported(conf: &str) -> (Setup, String) {
    try_import(conf, &[]).expect("imported")
}

/// As `imported`, with `users` and two other files of users.
fn with_users(conf: &str) -> (Setup, String) {
    // The password is `hush-alice`.
    let hash = "$7$101$c2FsdC1vZi0xMi1i$cuiBwzEUrqnNNqnPt6OnTCD3cVMavv6bibuGcDy8C51rJRy6/1yR/Yv4M0e6QXLO/yvu73ne8sCiRLz9v5H5rg==";
    let (ann, bob) = (format!("ann:{hash}\n"), format!("bob:{hash}\n"));
    try_import(
        conf,
        &[
            ("users", ann.as_str()),
            ("other", bob.as_str()),
            ("acl", "topic read #\n"),
        ],
    )
    .expect("imported")
}

fn has_user(setup: &Setup, name: &str) -> bool {
    setup.verifies(name, &auth::Password::new(b"hush-alice".to_vec()))
}

/// Returns the rows of the report about a line of `mosquitto.conf`.
#[track_caller]
fn row(report: &str, line: usize) -> &str {
    let place = format!("mosquitto.conf:{line} ");
    let mut rows = report.lines().filter(|row| row.starts_with(&place));
    rows.next().unwrap_or_else(|| panic!("no row of line {line}\n{report}"))
}

const DENY_ALL: &str = "deny All # $SYS/#\n";

#[test]
fn bridge_with_an_option_of_tls_is_never_without_tls() {
    for option in [
        "bridge_capath /etc/ssl/certs",
        "bridge_psk 0badc0de",
        "bridge_identity me",
        "bridge_tls_version tlsv1.3",
        "bridge_alpn mqtt",
        "bridge_ciphers x",
        "bridge_insecure true",
        "bridge_require_ocsp true",
        "bridge_tls_use_os_certs maybe",
        "bridge_cafile missing.crt",
        "bridge_tls_use_os_certs true\nbridge_require_ocsp true",
    ] {
        let (setup, report) = imported(&format!("connection far\naddress far.example:8883\n{option}\ntopic #"));
        assert!(!setup.has("connectors.bridge_far"), "{option}");
        assert!(!setup.has("rules.bridge_far_1"), "{option}");
        for line in [1, 2, 3, 4] {
            let row = row(&report, line);
            assert!(
                row.contains("not supported") && row.contains("The bridge is left out"),
                "{option}\n{row}"
            );
        }
    }
    let conf = "connection far\naddress far.example:8883\nbridge_tls_use_os_certs true\ntopic #";
    let (setup, report) = imported(conf);
    assert!(
        setup.has("connectors.bridge_far") && setup.has("rules.bridge_far_1"),
        "{report}"
    );
    assert_eq!(
        setup.option("connectors.bridge_far.config.server"),
        Some("far.example:8883")
    );
    assert!(setup.has_table("connectors.bridge_far.config.tls"), "{report}");
    assert!(row(&report, 3).contains("connectors.bridge_far.config.tls"), "{report}");
    let (setup, _) = imported("connection near\naddress near.example\nbridge_insecure false\ntopic #");
    assert!(setup.has("connectors.bridge_near"));
    assert!(!setup.has_table("connectors.bridge_near.config.tls"));
}

#[test]
fn options_of_access_behind_a_bridge_apply() {
    let bridge = "connection far\naddress far.example\n";
    for begin in [bridge.to_owned(), format!("listener 1884 127.0.0.1\n{bridge}")] {
        let (setup, report) = with_users(&format!(
            "allow_anonymous true\n{begin}password_file users\nacl_file acl\nclientid_prefixes a-\nallow_anonymous false"
        ));
        assert_eq!(setup.option("access.anonymous"), Some("never"), "{report}");
        assert!(has_user(&setup, "ann") && setup.has("access.acl_file"), "{report}");
        assert_eq!(setup.rules_text(), "allow clients=a-* Connect\n", "{report}");
        assert!(setup.has("connectors.bridge_far"), "{report}");
        let (setup, report) = imported(&format!("{begin}plugin other.so"));
        assert!(setup.rules_text().starts_with(DENY_ALL), "{report}");
    }
    let own = "per_listener_settings true\nlistener 1\nallow_anonymous true\nconnection far\naddress far.example\n";
    let (setup, _) = imported(&format!("{own}listener 2\nallow_anonymous true\ncleansession true"));
    assert_eq!(setup.option("access.anonymous"), Some("always"));
    let (setup, _) = imported(&format!("{own}allow_anonymous false"));
    assert_eq!(setup.option("access.anonymous"), Some("never"));
}

#[test]
fn options_of_tls_behind_a_bridge_belong_to_the_listener() {
    let file = std::env::current_exe().expect("the path of this test");
    let file = file.display();
    let conf = format!(
        "listener 8884 127.0.0.1\ncertfile {file}\nkeyfile {file}\nconnection far\naddress far.example\n\
         cafile {file}\nrequire_certificate true\nmax_keepalive 60"
    );
    let (setup, report) = imported(&conf);
    assert_eq!(
        setup.option("listeners.tls.default.verify_client"),
        Some("required"),
        "{report}"
    );
    assert!(row(&report, 6).contains("listeners.tls.default.ca_file"), "{report}");
    assert!(row(&report, 8).contains("mqtt.max_keep_alive"), "{report}");
    let (setup, report) = imported("connection far\naddress far.example\nrequire_certificate true");
    assert!(row(&report, 3).contains("the default listener is left out"), "{report}");
    assert!(!setup.has("listeners.tcp.default.bind"), "{report}");
}

#[test]
fn options_of_a_bridge_behind_a_listener_belong_to_the_bridge() {
    let file = std::env::current_exe().expect("the path of this test");
    let conf = |option: &str| {
        format!(
            "connection far\naddress far.example:8883\ntopic a\nlistener 1884 127.0.0.1\n{option}\n\
             remote_password hush\ntopic b"
        )
    };
    let (setup, report) = imported(&conf(&format!("bridge_cafile {}", file.display())));
    assert!(setup.has_table("connectors.bridge_far.config.tls"), "{report}");
    assert!(
        setup.has("rules.bridge_far_1") && setup.has("rules.bridge_far_2"),
        "{report}"
    );
    assert!(
        row(&report, 6).contains("connectors.bridge_far.config.password"),
        "{report}"
    );
    let (setup, report) = imported(&conf("bridge_cafile missing.crt"));
    assert!(!setup.has("connectors.bridge_far"), "{report}");
    assert!(row(&report, 5).contains("The bridge is left out"), "{report}");
    let error = try_import("listener 1884\nbridge_cafile ca.crt\nconnection far", &[]).err();
    let error = error.expect("an option without a bridge");
    assert!(
        error.contains("mosquitto.conf:2: it does not say which bridge"),
        "{error}"
    );
}

#[test]
fn options_behind_an_included_listener_belong_to_their_own() {
    let others = [("conf.d/1.conf", "listener 1885 127.0.0.1\nallow_anonymous true\n")];
    let conf = "per_listener_settings true\nlistener 1884 127.0.0.1\ninclude_dir conf.d\nallow_anonymous true";
    let (setup, report) = try_import(conf, &others).expect("imported");
    assert_eq!(setup.option("access.anonymous"), Some("always"), "{report}");
}

#[test]
fn dropped_values_of_a_bridge_are_reported() {
    let conf = "connection far\naddress far.example\nbridge_protocol_version mqttv9\ncleansession maybe\n\
                keepalive_interval soon\ntry_private perhaps\naddresses a.example b.example";
    let (_, report) = imported(conf);
    for line in 3..=6 {
        assert!(
            row(&report, line).contains("its value has no counterpart in"),
            "{report}"
        );
    }
    assert!(
        row(&report, 7).contains("a connector has one address, the first"),
        "{report}"
    );
}

#[test]
fn bridges_with_similar_names_are_separate() {
    let bridge = |name: &str| {
        format!("connection {name}\naddress {name}.example\nremote_username u\nremote_password hush-{name}\ntopic #\n")
    };
    let (setup, report) = imported(&[bridge("a.b"), bridge("a_b")].concat());
    for (name, server) in [("bridge_a_b", "a.b.example:1883"), ("bridge_a_b_2", "a_b.example:1883")] {
        let key = format!("connectors.{name}.config.server");
        assert_eq!(setup.option(&key), Some(server), "{report}");
        assert!(setup.has(&format!("rules.{name}_1")), "{report}");
    }
    let password = |name| setup.option(&format!("connectors.{name}.config.password"));
    assert_ne!(password("bridge_a_b"), password("bridge_a_b_2"));
}

#[test]
fn listener_with_an_option_that_narrows_it_is_left_out() {
    for option in [
        "bind_interface eth0",
        "crlfile revoked.crl",
        "mount_point x",
        "mount_point ${x}/",
        "psk_hint x",
        "psk_file x",
        "socket_domain ipv4",
        "cafile ca.crt",
        "require_certificate true",
        "require_certificate maybe",
        "use_identity_as_username true",
        "tls_version tlsv1.3",
        "protocol http_api",
    ] {
        let (setup, report) = imported(&format!("listener 1884\n{option}\nmax_connections 5"));
        assert!(!setup.has("listeners.tcp.default.bind"), "{option}");
        assert!(setup.has("listeners.tcp.default.enabled"), "{option}");
        for line in 1..=3 {
            let row = row(&report, line);
            assert!(
                row.contains("not supported") && row.contains("The listener is left out"),
                "{option}\n{row}"
            );
        }
        setup
            .install(None, "title", &Report::default())
            .expect("valid without a listener");
    }
    let (setup, _) = imported("listener 1884 127.0.0.1\nrequire_certificate false");
    assert_eq!(setup.option("listeners.tcp.default.bind"), Some("127.0.0.1:1884"));
}

#[test]
fn default_listener_with_options_is_left_out() {
    for option in [
        "port 1884",
        "bind_interface eth0",
        "certfile a.crt",
        "require_certificate true",
        "psk_file x",
    ] {
        let (setup, report) = imported(&format!("allow_anonymous true\n{option}"));
        assert!(!setup.has("listeners.tcp.default.bind"), "{option}");
        assert!(row(&report, 2).contains("the default listener is left out"), "{report}");
        setup
            .install(None, "title", &Report::default())
            .expect("valid without a listener");
    }
    let (setup, _) = imported("max_keepalive 60");
    assert_eq!(setup.option("listeners.tcp.default.bind"), Some("127.0.0.1:1883"));
    assert_eq!(setup.option("access.anonymous"), Some("always"));
}

#[test]
fn anonymous_clients_need_all_listeners() {
    for (conf, expected) in [
        (
            "per_listener_settings true\nlistener 1\nallow_anonymous true\nlistener 2\nallow_anonymous true",
            "always",
        ),
        (
            "per_listener_settings true\nlistener 1\nallow_anonymous true\nlistener 2\nallow_anonymous false",
            "never",
        ),
        (
            "per_listener_settings true\nlistener 1\nallow_anonymous true\nlistener 2",
            "never",
        ),
        (
            "per_listener_settings yes\nlistener 1\nallow_anonymous true\nlistener 2",
            "never",
        ),
        (
            "allow_anonymous true\nper_listener_settings true\nlistener 1\nlistener 2",
            "never",
        ),
        (
            "allow_anonymous false\nper_listener_settings 0\nlistener 1\nallow_anonymous true",
            "never",
        ),
        ("listener 1\nallow_anonymous true\nlistener 2", "always"),
        ("listener 1\nallow_anonymous maybe", "never"),
        ("listener 1", "never"),
    ] {
        let (setup, report) = imported(conf);
        assert_eq!(setup.option("access.anonymous"), Some(expected), "{conf}\n{report}");
    }
    let (_, report) = imported("per_listener_settings true\nlistener 1\nallow_anonymous true\nlistener 2");
    assert!(
        row(&report, 3).contains("one of them rejects anonymous clients"),
        "{report}"
    );
}

#[test]
fn users_of_different_listeners_are_not_mixed() {
    let own = "per_listener_settings true\nlistener 1\npassword_file users\nlistener 2\n";
    for (conf, is_imported) in [
        (format!("{own}password_file users"), true),
        (format!("{own}allow_anonymous true"), true),
        (format!("{own}password_file other"), false),
        // The second listener rejects all clients.
        (own.to_owned(), false),
        ("listener 1\npassword_file users\nlistener 2".to_owned(), true),
    ] {
        let (setup, report) = with_users(&conf);
        assert_eq!(has_user(&setup, "ann"), is_imported, "{conf}\n{report}");
        assert!(!has_user(&setup, "bob"), "{conf}");
        let is_reported = report.contains("tidewire has the same users on all listeners");
        assert_eq!(is_reported, !is_imported, "{report}");
    }
}

#[test]
fn unknown_plugin_denies_before_all_rules() {
    for plugin in [
        "plugin /usr/lib/other.so",
        "auth_plugin other.so",
        "plugin_load other /usr/lib/other.so",
        "plugin_use missing",
        "plugin /usr/lib/dynamic_security/other.so",
    ] {
        let (setup, report) = imported(&format!("clientid_prefixes a-\n{plugin}"));
        assert!(
            setup.rules_text().starts_with(DENY_ALL),
            "{plugin}: {}",
            setup.rules_text()
        );
        assert!(row(&report, 2).contains("replace it in access.rules"), "{report}");
    }
    let security = ("security.json", r#"{"defaultACLAccess": {"publishClientSend": true}}"#);
    let both = "plugin mosquitto_dynamic_security.so\nplugin_opt_config_file security.json\nplugin other.so";
    let (setup, _) = try_import(both, &[security]).expect("imported");
    let rules = setup.rules_text();
    assert!(
        rules.starts_with(DENY_ALL) && rules.contains("allow Publish #"),
        "{rules}"
    );
    let (setup, _) = imported("plugin_load store /usr/lib/mosquitto_persist_sqlite.so\nplugin_use store");
    assert!(!setup.has_rules());
}

#[test]
fn acl_file_and_dynamic_security_are_not_mixed() {
    let conf = "acl_file acl\nplugin mosquitto_dynamic_security.so\nplugin_opt_config_file security.json";
    let error = try_import(conf, &[("security.json", "{}"), ("acl", "topic read a\n")])
        .err()
        .expect("an error");
    assert!(
        error.starts_with("mosquitto.conf:1: ") && error.contains("remove one of them"),
        "{error}"
    );
}

#[test]
fn password_file_and_dynamic_security_are_not_mixed() {
    for conf in [
        "password_file users\nplugin mosquitto_dynamic_security.so\nplugin_opt_config_file security.json",
        "listener 1\npassword_file users\nglobal_plugin mosquitto_dynamic_security.so\nplugin_opt_config_file security.json",
    ] {
        let error = try_import(conf, &[("security.json", "{}"), ("users", "")]).err();
        let error = error.expect("an error");
        assert!(
            error.contains("the users of password_file and of dynamic security")
                && error.contains("remove one of them"),
            "{error}"
        );
    }
}

#[test]
fn user_names_of_certificates_admit_no_anonymous_clients() {
    for option in ["use_identity_as_username", "use_subject_as_username"] {
        let conf = format!("listener 1884\nallow_anonymous true\n{option} true");
        let (setup, report) = imported(&conf);
        assert_eq!(setup.option("access.anonymous"), Some("never"), "{report}");
        assert!(
            row(&report, 2).contains("user names from client certificates"),
            "{report}"
        );
        let (setup, _) = imported(&format!("listener 1884\nallow_anonymous true\n{option} false"));
        assert_eq!(setup.option("access.anonymous"), Some("always"));
    }
}

#[test]
fn options_of_client_ids_are_rules() {
    for (conf, rules) in [
        ("clientid_prefixes a-", "allow clients=a-* Connect\n"),
        ("use_username_as_clientid true", "allow clients=%u Connect\n"),
        ("use_username_as_clientid maybe", "allow clients=%u Connect\n"),
        ("use_username_as_clientid false", ""),
    ] {
        let (setup, report) = imported(conf);
        assert_eq!(setup.rules_text(), rules, "{conf}\n{report}");
        assert!(!row(&report, 1).contains("not supported"), "{report}");
    }
    for conf in [
        "clientid_prefixes a*",
        "clientid_prefixes",
        "clientid_prefixes a\nuse_username_as_clientid true",
    ] {
        assert!(try_import(conf, &[]).is_err(), "{conf}");
    }
}

#[test]
fn client_ids_of_dynamic_security_obey_the_options() {
    let hash = "cuiBwzEUrqnNNqnPt6OnTCD3cVMavv6bibuGcDy8C51rJRy6/1yR/Yv4M0e6QXLO/yvu73ne8sCiRLz9v5H5rg==";
    let client = |name: &str, id: &str| {
        format!(
            r#"{{"username": "{name}", "clientid": "{id}", "password": "{hash}", "salt": "c2FsdC1vZi0xMi1i",
                 "iterations": 101}}"#
        )
    };
    let security = format!(r#"{{"clients": [{}, {}]}}"#, client("ann", "a-1"), client("bob", "b-1"));
    let conf = "clientid_prefixes a-\nplugin mosquitto_dynamic_security.so\nplugin_opt_config_file security.json";
    let (setup, report) = try_import(conf, &[("security.json", security.as_str())]).expect("imported");
    let rules = setup.rules_text();
    let expected = "allow users=ann clients=a-1 Connect\ndeny users=ann clients=* Connect\nallow clients=a-* Connect\n";
    assert!(rules.starts_with(expected), "{rules}");
    assert!(
        report.contains("its client id contradicts clientid_prefixes"),
        "{report}"
    );
    assert!(!has_user(&setup, "bob"));
}

#[test]
fn included_files_are_imported_in_their_place() {
    let others = [
        ("conf.d/2.conf", "acl_file acl\nconnection far\naddress far.example\n"),
        (
            "conf.d/1.conf",
            "listener 1884 127.0.0.1\nmax_connections 5\ninclude_dir conf.d\n",
        ),
        ("conf.d/3.txt", "allow_anonymous true\n"),
        ("acl", "topic read a\n"),
    ];
    let (setup, report) = try_import("include_dir conf.d\nmax_keepalive 60", &others).expect("imported");
    assert_eq!(
        setup.option("listeners.tcp.default.bind"),
        Some("127.0.0.1:1884"),
        "{report}"
    );
    assert_eq!(setup.option("access.anonymous"), Some("never"), "{report}");
    assert!(
        setup.has("access.acl_file") && setup.has("connectors.bridge_far"),
        "{report}"
    );
    assert!(row(&report, 1).contains(" imported "), "{report}");
    assert!(row(&report, 2).contains("mqtt.max_keep_alive"), "{report}");
    for part in [
        "conf.d/1.conf:2 ",
        "conf.d/2.conf:3 ",
        "Mosquitto includes files in its main file only",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

#[test]
fn missing_include_directory_closes_access() {
    let (setup, report) = imported("include_dir missing");
    assert_eq!(setup.rules_text(), DENY_ALL);
    assert_eq!(setup.option("access.anonymous"), Some("never"));
    assert!(row(&report, 1).contains("the first rule denies all topics"), "{report}");
}

#[test]
fn included_option_of_an_unknown_listener_ends_the_import() {
    let others = [("conf.d/tls.conf", "certfile a.crt\n")];
    let error = try_import("listener 1884\ninclude_dir conf.d", &others)
        .err()
        .expect("an error");
    assert!(
        error.starts_with("conf.d/tls.conf:1: it does not say which listener"),
        "{error}"
    );
    let (setup, report) = try_import("include_dir conf.d\nlistener 1884", &others).expect("imported");
    assert!(setup.has("listeners.tcp.default.bind"), "{report}");
    assert!(report.contains("the default listener is left out"), "{report}");
}

/// Checks that a line has a row which says that another one replaces it, and that this one has another row.
#[track_caller]
fn assert_replaced(report: &str, line: usize, by: usize) {
    let because = format!("because the value at mosquitto.conf:{by} replaces it");
    assert!(row(report, line).contains(&because), "{report}");
    assert!(!row(report, by).contains("replaces it"), "{report}");
}

#[test]
fn last_line_of_a_repeated_option_counts() {
    let (setup, report) = imported("allow_anonymous true\nmax_keepalive 60\nmax_keepalive 90\nallow_anonymous false");
    assert_eq!(setup.option("mqtt.max_keep_alive"), Some("1m30s"), "{report}");
    assert_eq!(setup.option("access.anonymous"), Some("never"), "{report}");
    assert_replaced(&report, 2, 3);
    assert_replaced(&report, 1, 4);
    assert!(row(&report, 3).contains(" imported "), "{report}");
    let (setup, report) = imported("clientid_prefixes a\nclientid_prefixes b");
    assert_eq!(setup.rules_text(), "allow clients=b* Connect\n", "{report}");
    assert_replaced(&report, 1, 2);
    let (setup, report) =
        imported("listener 1884 127.0.0.1\nmount_point x/\nmount_point y/\nlistener 1885\nmount_point z/");
    assert_eq!(setup.option("listeners.tcp.default.mountpoint"), Some("y/"), "{report}");
    assert_replaced(&report, 2, 3);
    assert!(row(&report, 5).contains(" imported "), "{report}");
    let bridge = "connection far\naddress far.example\nremote_username ann\nusername bob\ntopic a\ntopic b";
    let (setup, report) = imported(bridge);
    assert_eq!(
        setup.option("connectors.bridge_far.config.user"),
        Some("bob"),
        "{report}"
    );
    assert_replaced(&report, 3, 4);
    for line in [5, 6] {
        assert!(row(&report, line).contains(" imported "), "{report}");
    }
}

#[test]
fn per_listener_settings_cannot_be_turned_off_again() {
    let conf = "per_listener_settings true\nper_listener_settings false\nlistener 1\nallow_anonymous true\nlistener 2";
    let (setup, report) = imported(conf);
    assert_eq!(setup.option("access.anonymous"), Some("never"), "{report}");
    assert_replaced(&report, 2, 1);
}

#[test]
fn lower_one_of_two_limits_counts() {
    for (conf, counting, other) in [
        ("max_packet_size 100000\nmessage_size_limit 200000", 1, 2),
        ("message_size_limit 200000\nmax_packet_size 100000", 2, 1),
    ] {
        let (_, report) = imported(conf);
        assert!(row(&report, counting).contains(" imported "), "{report}");
        assert!(
            row(&report, other).contains("the lower limit max_packet_size counts"),
            "{report}"
        );
    }
}

#[test]
fn listener_can_reject_anonymous_clients_itself() {
    for (conf, expected) in [
        (
            "allow_anonymous true\nlistener 1\nlistener_allow_anonymous false\nlistener 2",
            "never",
        ),
        (
            "allow_anonymous true\nlistener 1\nlistener_allow_anonymous maybe",
            "never",
        ),
        (
            "allow_anonymous false\nlistener 1\nlistener_allow_anonymous true\nlistener 2",
            "never",
        ),
        (
            "allow_anonymous false\nlistener 1\nlistener_allow_anonymous true",
            "always",
        ),
        ("listener 1\nlistener_allow_anonymous true", "always"),
        (
            "allow_anonymous true\nport 1884\nlistener_allow_anonymous false",
            "never",
        ),
        (
            "per_listener_settings true\nlistener 1\nlistener_allow_anonymous true\nlistener 2\nallow_anonymous true",
            "always",
        ),
        (
            "per_listener_settings true\nlistener 1\nallow_anonymous true\nlistener_allow_anonymous false",
            "never",
        ),
    ] {
        let (setup, report) = imported(conf);
        assert_eq!(setup.option("access.anonymous"), Some(expected), "{conf}\n{report}");
        for (at, _) in conf.lines().enumerate().filter(|(_, line)| line.contains("anonymous")) {
            assert!(!row(&report, at + 1).contains("no such option"), "{report}");
        }
    }
}

#[test]
fn options_of_mosquitto_2_1_have_rows() {
    for option in ["accept_protocol_versions 5", "enable_proxy_protocol 2"] {
        let (setup, report) = imported(&format!("listener 1884\n{option}"));
        assert!(!setup.has("listeners.tcp.default.bind"), "{option}");
        assert!(row(&report, 1).contains("The listener is left out"), "{report}");
    }
    let (setup, report) = imported("listener 1884\naccept_protocol_versions 3, 4,5");
    assert!(setup.has("listeners.tcp.default.bind"), "{report}");
    assert!(row(&report, 2).contains(" imported "), "{report}");
    for (option, part) in [
        ("listener_auto_id_prefix x-", "client ID"),
        ("auto_id_prefix x-", "client ID"),
        ("allow_zero_length_clientid true", "client ID"),
        ("proxy_protocol_v2_require_tls true", "PROXY protocol"),
        ("disable_client_cert_date_checks true", "have expired are rejected"),
        ("http_dir /var/www", "use a web server"),
        ("max_topic_alias_broker 5", "set mqtt.max_topic_alias_out"),
        ("maximum_qos 1", "set mqtt.max_qos"),
        ("websockets_origin https://a.example", "the listener has no WebSocket"),
        ("enable_control_api true", "the console and the API"),
        ("packet_buffer_size 4096", "sizes of its buffers"),
        ("retain_expiry_interval 5", "when they expire"),
        ("log_facility 5", "log.syslog"),
        ("retry_interval 20", "no effect"),
    ] {
        let (setup, report) = imported(&format!("listener 1884\n{option}"));
        let row = row(&report, 2);
        assert!(row.contains("not supported") && row.contains(part), "{row}");
        assert!(setup.has("listeners.tcp.default.bind"), "{report}");
    }
    let (setup, report) = imported("maximum_qos 1\nmax_topic_alias_broker 5\nretained_persistence true");
    assert!(
        setup.has("mqtt.max_qos") && setup.has("mqtt.max_topic_alias_out"),
        "{report}"
    );
    assert!(row(&report, 3).contains("durability.policy"), "{report}");
}

#[test]
fn origins_of_web_pages_are_imported() {
    let (setup, report) = imported(
        "listener 9001\nprotocol websockets\nwebsockets_origin https://a.example\nwebsockets_origin *\n\
         websockets_origin https://b.example",
    );
    let expected = ["https://a.example", "https://b.example"];
    assert_eq!(setup.list("listeners.ws.default.allowed_origins"), expected, "{report}");
    assert!(
        row(&report, 3).contains("listeners.ws.default.allowed_origins"),
        "{report}"
    );
    assert!(row(&report, 4).contains("not supported"), "{report}");
}
