//! Tests that an import of NanoMQ's configuration leaves out parts that it cannot translate, and reports them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::report::Report;
use super::super::setup::Setup;
use super::import;

struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Imports a configuration. Returns the result before the check, and the report.
#[track_caller]
fn imported(conf: &str) -> (Setup, String) {
    try_import(conf).expect("imported")
}

fn try_import(conf: &str) -> Result<(Setup, String), String> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("tidewire-nanomq-{}-{number}.conf", std::process::id());
    let file = File(std::env::temp_dir().join(name));
    fs::write(&file.0, conf).expect("a file");
    let report = Report::default();
    let setup = import(&file.0, &report)?;
    Ok((setup, report.text("title")))
}

/// Returns the row of an item.
#[track_caller]
fn row<'a>(report: &'a str, item: &str) -> &'a str {
    let mut rows = report.lines().filter(|row| row.split_whitespace().nth(1) == Some(item));
    rows.next().unwrap_or_else(|| panic!("no row of {item}\n{report}"))
}

#[test]
fn bridge_with_settings_of_tls_is_never_without_tls() {
    for ssl in [
        r#"ssl { enable = maybe }"#,
        r#"ssl { cacertfile = "missing.pem" }"#,
        r#"ssl { enable = true, key_password = "hush-key" }"#,
        r#"ssl { enable = false, cacertfile = "missing.pem" }"#,
    ] {
        let (setup, report) = imported(&format!(
            r#"bridges.mqtt.a {{ server = "mqtt-tcp://far:8883", {ssl} }}"#
        ));
        assert!(!setup.has("connectors.bridge_a"), "{ssl}");
        assert!(
            row(&report, "bridges.mqtt.a.server").contains("not supported"),
            "{report}"
        );
    }
    let (setup, _) = imported(r#"bridges.mqtt.a { server = "mqtt-tcp://far:8883", ssl { enable = true } }"#);
    assert!(setup.has_table("connectors.bridge_a.config.tls"));
    let (setup, _) = imported(r#"bridges.mqtt.a { server = "mqtt-tcp://far", ssl { enable = false } }"#);
    assert!(setup.has("connectors.bridge_a") && !setup.has_table("connectors.bridge_a.config.tls"));
}

#[test]
fn bridge_is_imported_only_if_enable_can_be_read() {
    for (enable, is_imported) in [
        ("true", true),
        ("on", true),
        ("false", false),
        ("maybe", false),
        ("[]", false),
    ] {
        let (setup, report) = imported(&format!(r#"bridges.mqtt.a {{ enable = {enable}, server = "far" }}"#));
        assert_eq!(setup.has("connectors.bridge_a"), is_imported, "{enable}\n{report}");
    }
}

#[test]
fn dropped_values_of_a_bridge_are_reported() {
    let (_, report) = imported(
        r##"bridges.mqtt.a {
            server = "far"
            proto_ver = 9
            keepalive = soon
            clean_start = maybe
            ssl { enable = false, verify_peer = true }
            forwards = [ { local_topic = "a/#", remote_topic = "b/#", qos = 3, retain = 7, speed = 1 } ]
            subscription = [ { remote_topic = "c/#", qos = high, retain = 2, speed = 1 } ]
        }"##,
    );
    for item in [
        "proto_ver",
        "keepalive",
        "clean_start",
        "forwards[1].qos",
        "forwards[1].retain",
        "subscription[1].qos",
    ] {
        let row = row(&report, &format!("bridges.mqtt.a.{item}"));
        assert!(row.contains("its value has no counterpart in"), "{row}");
    }
    for item in ["forwards[1].speed", "subscription[1].speed", "ssl.verify_peer"] {
        let row = row(&report, &format!("bridges.mqtt.a.{item}"));
        assert!(row.contains("tidewire has no such option"), "{row}");
    }
    for item in ["server", "forwards[1].local_topic", "subscription[1].retain"] {
        assert!(
            row(&report, &format!("bridges.mqtt.a.{item}")).contains(" imported "),
            "{report}"
        );
    }
}

#[test]
fn definitions_with_similar_names_are_separate() {
    let (setup, report) = imported(
        r#"bridges.mqtt {
            "a.b" { server = "one", password = "hush-1" }
            a_b { server = "two", password = "hush-2" }
        }"#,
    );
    for (name, server) in [("bridge_a_b", "one:1883"), ("bridge_a_b_2", "two:1883")] {
        let key = format!("connectors.{name}.config.server");
        assert_eq!(setup.option(&key), Some(server), "{report}");
    }
    let password = |name| setup.option(&format!("connectors.{name}.config.password"));
    assert_ne!(password("bridge_a_b"), password("bridge_a_b_2"));
}

#[test]
fn listener_whose_switch_cannot_be_read_is_disabled() {
    for conf in [
        "listeners.tcp { enable = false }",
        "listeners.tcp { enable = maybe }",
        r#"listeners.tcp { bind = "127.0.0.1:1", enable = maybe }"#,
    ] {
        let (setup, report) = imported(conf);
        assert!(setup.is_false("listeners.tcp.default.enabled"), "{conf}\n{report}");
    }
    let (setup, report) = imported("listeners.tcp { enable = maybe }");
    assert!(
        row(&report, "listeners.tcp.enable").contains("the listener is disabled"),
        "{report}"
    );
    assert!(!setup.is_false("listeners.tls.default.enabled"));
    let (setup, _) = imported("mqtt { max_packet_size = 1MB }");
    assert!(!setup.has("listeners.tcp.default.enabled") && setup.is_false("listeners.ws.default.enabled"));
}

#[test]
fn default_listeners_that_nanomq_does_not_open_are_disabled() {
    for (conf, tcp, ws) in [
        (r#"listeners { ssl { bind = "127.0.0.1:1" } }"#, true, true),
        ("listeners {}", true, true),
        (r#"listeners.tcp { bind = "127.0.0.1:1" }"#, false, true),
        (r#"listeners.tcp.one { bind = "127.0.0.1:1" }"#, true, true),
        (r#"listeners.ws { bind = "127.0.0.1:1" }"#, true, false),
    ] {
        let (setup, report) = imported(conf);
        for (kind, is_closed) in [("tcp", tcp), ("ws", ws)] {
            assert_eq!(
                setup.is_false(&format!("listeners.{kind}.default.enabled")),
                is_closed,
                "{conf} {kind}\n{report}"
            );
            if is_closed {
                let row = row(&report, &format!("listeners.{kind}.default"));
                assert!(row.contains("to open it, set this option to true"), "{row}");
            }
        }
    }
    let (setup, _) = imported("");
    assert!(!setup.has("listeners.tcp.default.enabled"));
}

#[test]
fn listener_with_certificates_of_another_verifies_as_strictly() {
    let file = std::env::current_exe().expect("the path of this test");
    let file = file.display();
    let required = "verify_peer = true, fail_if_no_peer_cert = true";
    for (ssl, wss, expected) in [
        (required, "", "required"),
        ("verify_peer = true", required, "required"),
        (required, "verify_peer = false", "required"),
        ("verify_peer = true", "", "optional"),
        ("", "", "none"),
    ] {
        let (setup, report) = imported(&format!(
            r#"listeners.ssl {{ bind = "127.0.0.1:1", keyfile = "{file}", certfile = "{file}", {ssl} }}
               listeners.wss {{ bind = "127.0.0.1:2", {wss} }}"#
        ));
        assert_eq!(
            setup.option("listeners.wss.default.verify_client"),
            Some(expected),
            "{ssl} {wss}\n{report}"
        );
    }
    let (setup, _) = imported(&format!(
        r#"listeners.ssl {{ bind = "127.0.0.1:1", keyfile = "{file}", certfile = "{file}", verify_peer = maybe }}
           listeners.wss {{ bind = "127.0.0.1:2" }}"#
    ));
    assert!(!setup.has("listeners.wss.default.bind"));
}

#[test]
fn tls_listener_needs_switches_that_can_be_read() {
    let file = std::env::current_exe().expect("the path of this test");
    let conf = |switch: &str| {
        let file = file.display();
        format!(r#"listeners.ssl {{ bind = "127.0.0.1:1", keyfile = "{file}", certfile = "{file}", {switch} }}"#)
    };
    let (setup, _) = imported(&conf("verify_peer = true"));
    assert_eq!(setup.option("listeners.tls.default.verify_client"), Some("optional"));
    for switch in ["verify_peer = maybe", "fail_if_no_peer_cert = maybe"] {
        let (setup, report) = imported(&conf(switch));
        assert!(!setup.has("listeners.tls.default.bind"), "{switch}\n{report}");
        assert!(row(&report, "listeners.ssl.bind").contains("not supported"), "{report}");
    }
}

#[test]
fn webhook_is_imported_only_as_it_can_be_read() {
    let (setup, report) = imported(r#"webhook { enable = maybe, url = "http://hook" }"#);
    assert!(!setup.has("connectors.webhook"), "{report}");
    let (setup, report) = imported(
        r#"webhook {
            url = "http://hook"
            headers { a = [], b = "hush-b" }
            pool_size = many
            cancel_timeout = soon
        }"#,
    );
    assert!(setup.has("connectors.webhook"), "{report}");
    for item in ["headers.a", "pool_size", "cancel_timeout"] {
        assert!(
            row(&report, &format!("webhook.{item}")).contains("its value is not"),
            "{report}"
        );
    }
    assert!(row(&report, "webhook.headers.b").contains(" imported "), "{report}");
}

#[test]
fn database_with_an_invalid_port_is_left_out() {
    let database = |host: &str| {
        format!(
            r#"rules.postgresql.store {{
                conn {{ host = "{host}", username = u, password = "hush-pg", database = d, tls = true }}
                rules = [ {{ table = t, sql = "SELECT topic FROM \"a\"", speed = 1 }} ]
            }}"#
        )
    };
    let (setup, report) = imported(&database("pg:port"));
    assert!(!setup.has("connectors.store"), "{report}");
    let (setup, report) = imported(&database("pg:5433"));
    assert!(setup.has("connectors.store"), "{report}");
    for item in ["conn.tls", "rules[1].speed"] {
        let row = row(&report, &format!("rules.postgresql.store.{item}"));
        assert!(row.contains("tidewire has no such option"), "{row}");
    }
}

#[test]
fn relative_files_of_rules_are_beside_the_configuration() {
    let name = format!("tidewire-nanomq-ca-{}.pem", std::process::id());
    let file = File(std::env::temp_dir().join(&name));
    fs::write(&file.0, "a certificate").expect("a file");
    let (setup, report) = imported(&format!(
        r#"rules.repub.rules = [{{
            server = "tls+mqtt-tcp://far:8883", topic = "there", sql = "SELECT * FROM \"here\"",
            ssl {{ enable = true, cacertfile = "{name}" }}
        }}]"#
    ));
    assert!(setup.has("connectors.republish_1"), "{report}");
}

#[test]
fn configuration_without_auth_reports_the_open_defaults() {
    let (setup, report) = imported(r#"listeners.tcp { bind = "127.0.0.1:1" }"#);
    assert_eq!(setup.option("access.anonymous"), Some("always"));
    for item in ["auth.allow_anonymous", "auth.no_match"] {
        let row = row(&report, item);
        assert!(row.contains(" changed ") && row.contains("to close"), "{row}");
    }
}

#[test]
fn keys_in_upper_case_end_the_import() {
    for (conf, key) in [
        ("Auth { allow_anonymous = false }", "Auth"),
        ("auth { Allow_Anonymous = false }", "auth.Allow_Anonymous"),
        ("auth { acl { Rules = [] } }", "auth.acl.Rules"),
        (
            r#"listeners.ssl { bind = "127.0.0.1:1", VERIFY_PEER = true }"#,
            "listeners.ssl.VERIFY_PEER",
        ),
        (
            r#"listeners.ssl.a { Verify_Peer = true }"#,
            "listeners.ssl.a.Verify_Peer",
        ),
        ("bridges.mqtt.a { SSL { enable = true } }", "bridges.mqtt.a.SSL"),
        ("bridges.mqtt.a { Enable = false }", "bridges.mqtt.a.Enable"),
        (
            r#"bridges.mqtt.a { ssl { CaCertFile = "ca.pem" } }"#,
            "bridges.mqtt.a.ssl.CaCertFile",
        ),
        (
            "rules.repub.rules = [{ Ssl { enable = true } }]",
            "rules.repub.rules[1].Ssl",
        ),
        ("webhook { Enable = false }", "webhook.Enable"),
    ] {
        let error = try_import(conf).err().unwrap_or_else(|| panic!("{conf} is imported"));
        assert!(
            error.contains(&format!("{key}: write this key in lower case")),
            "{error}"
        );
    }
    let (setup, report) = imported("auth { password { Enable = hush, Rules = hush } }");
    assert!(!setup.users().is_empty(), "{report}");
}

#[test]
fn value_that_counts_in_nanomq_is_imported() {
    for (conf, expected, replaced, by) in [
        (
            "auth { allow_anonymous = true\nallow_anonymous = false }",
            "never",
            1,
            2,
        ),
        (
            "auth { allow_anonymous = false }\nauth { allow_anonymous = true }",
            "never",
            2,
            1,
        ),
        (
            "auth { allow_anonymous = true }\nauth { allow_anonymous = false }",
            "always",
            2,
            1,
        ),
    ] {
        let (setup, report) = imported(conf);
        assert_eq!(setup.option("access.anonymous"), Some(expected), "{conf}\n{report}");
        let of_line = |line: usize| {
            let place = format!(".conf:{line}");
            let mut rows = report.lines().filter(|row| row.contains("auth.allow_anonymous"));
            rows.find(|row| {
                row.split_whitespace()
                    .next()
                    .is_some_and(|first| first.ends_with(&place))
            })
            .unwrap_or_default()
        };
        assert!(
            of_line(replaced).contains(&format!(".conf:{by} replaces it")),
            "{report}"
        );
        assert!(
            !of_line(by).contains("replaces it") && of_line(by).contains("access.anonymous"),
            "{report}"
        );
    }
}
