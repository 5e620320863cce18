//! Tests that an import from EMQX never widens access: untranslatable parts deny access, or the import ends.

use super::archive::{self, Table, atom, bytes, integer, list, tuple};
use super::{Directory, ImportedServer, NOT_AUTHORIZED, error_of, import, report_of, user, users};
use crate::support::{Connect, Publish, V5, free_port};

const USERS: &str = r#"
authentication = [{
  mechanism = password_based
  backend = built_in_database
  password_hash_algorithm {name = sha256, salt_position = suffix}
}]
"#;

/// SHA-256 of `hush-alice5a17`.
const ALICE: &str = "d71ede991b83de5a38824249ecaee39b34a63403427fcdd74ffbecc23b0cb313";

#[test]
fn emqx_archive_without_authorization_denies_all_topics() {
    let directory = Directory::new();
    let mqtt = free_port();
    let config = format!("{USERS}\nlisteners.tcp.default.bind = \"{mqtt}\"\nlisteners.ws.default.enable = false\n");
    let rule = |permission: &str, topic: &str| tuple(&[atom(permission), atom("all"), bytes(topic)]);
    let tables = [
        users(vec![user("alice", ALICE, "false")]),
        Table {
            name: "emqx_acl",
            fields: &["who", "rules"],
            records: vec![vec![
                integer(0),
                list(&[rule("deny", "secret/#"), rule("allow", "open/#")]),
            ]],
        },
    ];
    let file = directory.file("a.tar.gz", archive::of_emqx("5.8.4", &config, &tables));
    let setup = directory.0.join("setup");
    let report = report_of(&import("emqx", &file, &["--to", setup.to_str().unwrap()]));
    assert!(report.contains("etc/acl.conf"), "{report}");

    let server = ImportedServer::start(&setup, mqtt);
    let mut alice = server.session(&Connect::new(V5, "c").user("alice", "hush-alice"));
    for topic in ["secret/a", "open/a", "other"] {
        assert_eq!(alice.subscribe_code(topic, 0), NOT_AUTHORIZED, "{topic}");
        assert_eq!(
            alice.publish(&Publish::new(topic, "p").qos(1)),
            NOT_AUTHORIZED,
            "{topic}"
        );
    }
    assert_eq!(alice.subscribe_code("$SYS/#", 0), NOT_AUTHORIZED);
}

#[test]
fn emqx_archive_without_authentication_admits_nobody() {
    let directory = Directory::new();
    let mqtt = free_port();
    let config = format!("listeners.tcp.default.bind = \"{mqtt}\"\nlisteners.ws.default.enable = false\n");
    let file = directory.file("a.tar.gz", archive::of_emqx("5.8.4", &config, &[]));
    let setup = directory.0.join("setup");
    let report = report_of(&import("emqx", &file, &["--to", setup.to_str().unwrap()]));
    for part in [
        "etc/emqx.conf of EMQX can contain it",
        "to admit every client, set access.anonymous",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }

    let server = ImportedServer::start(&setup, mqtt);
    assert_ne!(server.connack_code(&Connect::new(V5, "a")), 0);
    assert_ne!(server.connack_code(&Connect::new(V5, "b").user("x", "y")), 0);
}

#[test]
fn emqx_client_ids_that_are_user_names_close() {
    let directory = Directory::new();
    let config = format!(
        "{USERS}\nmqtt.use_username_as_clientid = true\nauthorization {{\n  no_match = allow\n  \
         sources = [{{type = file, rules = \"{{allow, all, all, [\\\"own/${{clientid}}/#\\\"]}}.\"}}]\n}}\n"
    );
    let file = directory.file("a.tar.gz", archive::of_emqx("5.8.4", &config, &[]));
    let report = report_of(&import("emqx", &file, &["--dry-run"]));
    for part in [
        "EMQX sets the client ID or user name (mqtt.use_username_as_clientid)",
        "to allow it, add it to access.rules",
        "to open access, change access.rules and access.no_match",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

#[test]
fn emqx_listener_with_own_authenticators_admits_nobody() {
    let directory = Directory::new();
    let mqtt = free_port();
    let config = format!(
        "listeners.tcp.open.bind = \"{mqtt}\"\nlisteners.tcp.default.enable = false\n\
         listeners.ws.default.enable = false\nlisteners.tcp.own {{\n  bind = 1997\n  \
         authentication = [{{mechanism = jwt, secret = \"hush\"}}]\n}}\n\
         authorization {{no_match = allow, sources = []}}\n"
    );
    let file = directory.file("a.tar.gz", archive::of_emqx("5.8.4", &config, &[]));
    let setup = directory.0.join("setup");
    let report = report_of(&import("emqx", &file, &["--to", setup.to_str().unwrap()]));
    assert!(
        report.contains("never, because listeners have authenticators"),
        "{report}"
    );
    assert!(report.contains("it has authenticators of its own"), "{report}");
    assert!(!report.contains("hush"), "{report}");

    let server = ImportedServer::start(&setup, mqtt);
    assert_ne!(server.connack_code(&Connect::new(V5, "a")), 0);
    assert_ne!(server.connack_code(&Connect::new(V5, "b").user("x", "y")), 0);
}

#[test]
fn emqx_bans_that_cannot_be_read_end_the_import() {
    let directory = Directory::new();
    let file = directory.file(
        "a.tar.gz",
        archive::of_files(&[
            ("b/META.hocon", b"version = \"5.8.4\""),
            ("b/cluster.hocon", b""),
            ("b/mnesia/emqx_banned", b"damaged"),
        ]),
    );
    let before = directory.names();
    let setup = directory.0.join("setup");
    let error = error_of(&import("emqx", &file, &["--to", setup.to_str().unwrap()]));
    assert!(error.contains("mnesia/emqx_banned cannot be read"), "{error}");
    assert_eq!(directory.names(), before);
}

#[test]
fn emqx_keys_of_the_configuration_are_bounded() {
    let directory = Directory::new();
    let config = format!("mqtt {{\n  {} = 1\n}}\n", "k".repeat(5000));
    let file = directory.file("a.tar.gz", archive::of_emqx("5.8.4", &config, &[]));
    let error = error_of(&import("emqx", &file, &["--dry-run"]));
    assert!(error.contains("cluster.hocon:2: the key has 50"), "{error}");
}

#[test]
fn emqx_report_contains_no_keys_and_no_control_characters() {
    let directory = Directory::new();
    let config = "listeners.ssl.a {\n  bind = 8884\n  ssl_options {\n    certfile = \"certs/cert.pem\"\n    \
                  keyfile = \"MC4CAQAwBQYDK2VwBCIEIhush\"\n  }\n}\nlisteners.ssl.b {\n  bind = 8885\n  \
                  ssl_options.certfile = \"-----BEGIN CERTIFICATE-----\"\n  \
                  ssl_options.keyfile = \"MC4CAQAwBQYDK2VwBCIEIhush\"\n}\n\
                  connectors.http.desk {\n  url = \"http://u:hush@desk.example:80x\"\n  ssl {enable = maybe}\n}\n";
    let file = directory.file(
        "a.tar.gz",
        archive::of_files(&[
            ("b/META.hocon", b"version = \"5.8.4\""),
            ("b/cluster.hocon", config.as_bytes()),
            ("b/mnesia/a\x1b[2J", b"damaged"),
        ]),
    );
    let report = report_of(&import("emqx", &file, &["--dry-run"]));
    for part in [
        "this machine has no file certs/cert.pem",
        "keyfile: the archive contains only the name of the file, and this machine has no such file",
        "ssl.enable: its value is neither true nor false",
        "mnesia/a\\u{1b}[2J",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
    assert!(!report.contains("hush") && !report.contains('\x1b'), "{report}");
}
