//! Tests `tidewire import` of whole configurations of EMQX, NanoMQ and Mosquitto: each line is in the report, and the
//! server that starts on the result has the users, access rules, bridges and retained messages.
//!
//! The configurations are written for these tests after the public documentation of the three brokers.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod archive;
mod emqx_closed;
mod providers;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use crate::support::{Config, Connect, PATIENCE, Peer, Publish, Server, V5, free_port, prop, server::accepts, unique};
use archive::{Table, atom, bytes, integer, list, map, tuple};

/// Every secret of the configurations contains this word.
const SECRET: &str = "hush";
const NOT_AUTHORIZED: u8 = 0x87;
const BAD_USER_NAME_OR_PASSWORD: u8 = 0x86;
const BANNED: u8 = 0x8A;

/// A directory of a test, with everything below it.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        let path = std::env::temp_dir().join(unique(&format!("tidewire-imported-{}", std::process::id())));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        path
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn import(broker: &str, file: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["import", broker])
        .arg(file)
        .args(arguments)
        .output()
        .unwrap()
}

#[track_caller]
fn report_of(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn error_of(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A server that was started on the result of an import.
struct ImportedServer {
    child: Child,
    mqtt: SocketAddr,
}

impl ImportedServer {
    #[track_caller]
    fn start(setup: &Path, mqtt: SocketAddr) -> ImportedServer {
        let child = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .arg("--config")
            .arg(setup.join("tidewire.toml"))
            .arg("--set")
            .arg(format!("api.bind={}", free_port()))
            .stdout(Stdio::null())
            .stderr(fs::File::create(setup.join("server.log")).unwrap())
            .spawn()
            .unwrap();
        let mut server = ImportedServer { child, mqtt };
        let deadline = Instant::now() + PATIENCE;
        while !accepts(mqtt) {
            let is_over = server.child.try_wait().unwrap().is_some() || Instant::now() > deadline;
            assert!(!is_over, "{}", fs::read_to_string(setup.join("server.log")).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        server
    }

    fn session(&self, connect: &Connect) -> Peer {
        Peer::session(self.mqtt, connect)
    }

    fn connack_code(&self, connect: &Connect) -> u8 {
        Peer::connect(self.mqtt).handshake(connect).code
    }

    /// As `connack_code`, at another listener.
    fn connack_code_at(address: SocketAddr) -> impl Fn(&Connect) -> u8 {
        move |connect| Peer::connect(address).handshake(connect).code
    }

    /// Publishes until the other broker has the message, because a bridge may still be connecting.
    #[track_caller]
    fn publish_until(&self, publisher: &mut Peer, topic: &str, payload: &str, received: &mut Peer) -> String {
        assert_eq!(
            publisher.publish(&Publish::new(topic, payload).qos(1)) & 0x80,
            0,
            "{topic}"
        );
        let delivery = received.receive();
        assert_eq!(delivery.payload_str(), payload);
        delivery.topic_str().to_owned()
    }
}

impl Drop for ImportedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Configuration of the other broker: it admits the bridge, whatever its user name.
fn cloud_config() -> Config {
    Config::new("[access]\nunknown_users = \"anonymous\"\n")
}

/// Lines that must be in the report: those with a value. Braces, brackets, comments and the beginnings of objects have
/// none.
fn lines_with_values(text: &str) -> Vec<usize> {
    let has_value = |line: &str| {
        let line = line.trim();
        let is_frame = line.is_empty() || line.chars().all(|c| "{}[],~\"".contains(c));
        let is_opening = line.ends_with(['{', '[']) && !line.starts_with("{allow");
        let is_comment = line.starts_with(['#', '%']);
        let is_block = line.ends_with("\"\"\"~");
        // The values are in the included file.
        let is_include = line.contains("include \"");
        // The SQL of a rule in several lines is one value.
        let is_sql = ["SELECT", "FROM", "WHERE"].iter().any(|word| line.starts_with(word));
        !(is_frame || is_opening || is_comment || is_sql || is_include || is_block && line.starts_with("rules"))
    };
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| has_value(line))
        .map(|(at, _)| at + 1)
        .collect()
}

#[track_caller]
fn assert_accounted(report: &str, file: &str, text: &str) {
    for line in lines_with_values(text) {
        let place = format!("{file}:{line} ");
        let shown = text.lines().nth(line - 1).unwrap();
        assert!(
            report.lines().any(|row| row.starts_with(&place)),
            "{place}{shown}\n{report}"
        );
    }
    assert!(!report.contains(SECRET), "{report}");
    for row in report.lines().filter(|row| row.contains("not supported  ")) {
        assert!(row.contains("not supported  because "), "{row}");
    }
}

const HOME: &str = include_str!("emqx-home.hocon");
const PLANT: &str = include_str!("emqx-plant.hocon");
const FLEET: &str = include_str!("emqx-fleet.hocon");

/// SHA-256 of the password and then the salt `5a17`.
fn user(name: &str, hash: &str, is_superuser: &str) -> Vec<archive::Term> {
    vec![
        tuple(&[atom("mqtt:global"), bytes(name)]),
        bytes(hash),
        bytes("5a17"),
        atom(is_superuser),
    ]
}

fn users(records: Vec<Vec<archive::Term>>) -> Table {
    Table {
        name: "emqx_authn_mnesia",
        fields: &["user_id", "password_hash", "salt", "is_superuser"],
        records,
    }
}

/// Returns an archive with users, access rules, bans and retained messages.
fn home_archive(config: &str) -> Vec<u8> {
    let all = |topic: &str, permission: &str| {
        let options = list(&[
            tuple(&[atom("qos"), list(&[integer(0), integer(1), integer(2)])]),
            tuple(&[atom("retain"), atom("all")]),
        ]);
        tuple(&[atom(permission), tuple(&[atom("all"), options]), bytes(topic)])
    };
    let message = |topic: &str, payload: &str, expiry: i64| {
        let headers = map(&[(
            atom("properties"),
            map(&[
                (atom("Content-Type"), bytes("text/plain")),
                (atom("User-Property"), list(&[tuple(&[bytes("unit"), bytes("mm")])])),
            ]),
        )]);
        let message = tuple(&[
            atom("message"),
            bytes("id"),
            integer(1),
            bytes("publisher"),
            map(&[(atom("retain"), atom("true"))]),
            headers,
            bytes(topic),
            bytes(payload),
            integer(1_700_000_000_000),
            map(&[]),
        ]);
        vec![list(&[bytes("words")]), message, integer(expiry)]
    };
    let tables = [
        users(vec![
            // Made with Python's hashlib: sha256(b"hush-alice" + b"5a17").
            user(
                "alice",
                "d71ede991b83de5a38824249ecaee39b34a63403427fcdd74ffbecc23b0cb313",
                "false",
            ),
            user(
                "root",
                "5d8eb55fdec4b4d28053ef0518916ce38255833184927c76a04be27e1c68f295",
                "true",
            ),
        ]),
        Table {
            name: "emqx_acl",
            fields: &["who", "rules"],
            records: vec![
                vec![
                    tuple(&[integer(1), bytes("alice")]),
                    list(&[all("shared/private/#", "deny")]),
                ],
                vec![integer(0), list(&[all("$SYS/#", "deny")])],
            ],
        },
        Table {
            name: "emqx_banned",
            fields: &["who", "by", "reason", "at", "until"],
            records: vec![vec![
                tuple(&[atom("clientid"), bytes("thief")]),
                bytes("admin"),
                bytes("stolen"),
                integer(1_700_000_000),
                atom("infinity"),
            ]],
        },
        Table {
            name: "emqx_retainer_message",
            fields: &["topic", "msg", "expiry_time"],
            records: vec![
                message("shared/state", "open", 0),
                message("shared/old", "gone", 1_700_000_000_001),
            ],
        },
        Table {
            name: "emqx_admin",
            fields: &["username", "pwdhash"],
            records: vec![vec![bytes("admin"), bytes("hush-admin-hash")]],
        },
    ];
    archive::of_emqx("5.8.4", config, &tables)
}

#[test]
fn emqx_import_keeps_users_rules_bridge_and_retained_messages() {
    let cloud = Server::start(&cloud_config());
    let directory = Directory::new();
    let mqtt = free_port();
    let config = HOME
        .replace("{mqtt}", &mqtt.to_string())
        .replace("{cloud}", &cloud.mqtt().to_string());
    let archive = directory.file("emqx-export.tar.gz", home_archive(&config));
    let setup = directory.0.join("setup");
    let report = report_of(&import("emqx", &archive, &["--to", setup.to_str().unwrap()]));
    assert_accounted(&report, "cluster.hocon", &config);
    assert!(
        report.starts_with(&fs::read_to_string(setup.join("import-report.txt")).unwrap()),
        "{report}"
    );
    for part in [
        "2 users",
        "1 retained message ",
        "1 expired message ",
        "ban of client_id thief",
        "create administrators",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }

    let mut received = cloud.session(&Connect::new(V5, "cloud"));
    received.subscribe("#", 1);
    let server = ImportedServer::start(&setup, mqtt);
    let wrong = Connect::new(V5, "a").user("alice", "wrong");
    assert_eq!(server.connack_code(&wrong), BAD_USER_NAME_OR_PASSWORD);
    let anonymous = Connect::new(V5, "b");
    assert_ne!(server.connack_code(&anonymous), 0);
    let banned = Connect::new(V5, "thief").user("alice", "hush-alice");
    assert_eq!(server.connack_code(&banned), BANNED);

    let mut alice = server.session(&Connect::new(V5, "c").user("alice", "hush-alice"));
    assert_eq!(alice.subscribe_code("#", 0), NOT_AUTHORIZED);
    assert_eq!(alice.subscribe_code("home/bob/#", 0), NOT_AUTHORIZED);
    assert_eq!(
        alice.publish(&Publish::new("shared/private/x", "p").qos(1)),
        NOT_AUTHORIZED
    );
    alice.subscribe("home/alice/#", 1);
    alice.subscribe("shared/state", 1);
    let state = alice.receive();
    assert_eq!((state.payload_str(), state.is_retained), ("open", true));
    assert_eq!(state.properties.bytes(prop::CONTENT_TYPE), Some(&b"text/plain"[..]));
    assert_eq!(state.properties.user_properties(), [("unit".into(), "mm".into())]);

    // The rule and its action send to the other broker, with the imported prefix.
    let topic = server.publish_until(&mut alice, "shared/readings/1", r#"{"value":11}"#, &mut received);
    assert_eq!(topic, "site7/shared/readings/1");
    let mut root = server.session(&Connect::new(V5, "d").user("root", "hush-root"));
    root.subscribe("shared/private/#", 1);
}

#[test]
fn every_line_of_an_emqx_configuration_is_in_the_report() {
    let directory = Directory::new();
    let bcrypt = users(vec![user("driver", "$2b$10$hush", "false")]);
    for (name, config, tables, expected) in [
        (
            "plant",
            PLANT,
            vec![],
            &[
                "authentication[1].url imported access.http.url",
                "authentication[2].mechanism not supported because the authenticator is disabled",
                "authorization.sources[1].headers.authorization imported access.source.http.headers",
                "authorization.no_match imported access.no_match",
                "rules.misspelt: ",
                "no_such_function",
                "tidewire has no connector of type mysql",
                "none of its actions is imported",
            ][..],
        ),
        (
            "fleet",
            FLEET,
            vec![bcrypt],
            &[
                "user driver",
                "set a new password",
                "its mountpoint cannot be used: the prefix must end with `/`",
                "this machine has no file",
                "it denies all clients, because access rules cannot contain regular expressions",
                "certfile is missing",
            ][..],
        ),
    ] {
        let file = format!("{name}.tar.gz");
        let archive = directory.file(&file, archive::of_emqx("5.8.4", config, &tables));
        let before = directory.names();
        let report = report_of(&import("emqx", &archive, &["--dry-run"]));
        assert_accounted(&report, "cluster.hocon", config);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in expected {
            assert!(words(&report).contains(&words(part)), "{part}\n{report}");
        }
        assert_eq!(directory.names(), before, "a dry run writes nothing");
    }
}

const NANO_HOME: &str = include_str!("nanomq-home.conf");
const NANO_PASSWORDS: &str = include_str!("nanomq_pwd.conf");
const NANO_ACL: &str = include_str!("nanomq_acl.conf");
const NANO_EDGE: &str = include_str!("nanomq-edge.conf");
const NANO_GATEWAY: &str = include_str!("nanomq-gateway.conf");

#[test]
fn nanomq_import_keeps_users_rules_and_bridge() {
    let cloud = Server::start(&cloud_config());
    let directory = Directory::new();
    let mqtt = free_port();
    let config = NANO_HOME
        .replace("{mqtt}", &mqtt.to_string())
        .replace("{cloud}", &cloud.mqtt().to_string());
    let file = directory.file("nanomq.conf", &config);
    directory.file("nanomq_pwd.conf", NANO_PASSWORDS);
    directory.file("nanomq_acl.conf", NANO_ACL);
    let setup = directory.0.join("setup");
    let report = report_of(&import("nanomq", &file, &["--to", setup.to_str().unwrap()]));
    assert_accounted(&report, "nanomq.conf", &config);
    assert_accounted(&report, "/etc/nanomq_pwd.conf", NANO_PASSWORDS);
    assert_accounted(&report, "/etc/nanomq_acl.conf", NANO_ACL);

    let mut received = cloud.session(&Connect::new(V5, "cloud"));
    received.subscribe("#", 1);
    let server = ImportedServer::start(&setup, mqtt);
    let wrong = Connect::new(V5, "a").user("alice", "wrong");
    assert_eq!(server.connack_code(&wrong), BAD_USER_NAME_OR_PASSWORD);
    let mut alice = server.session(&Connect::new(V5, "c").user("alice", "hush-alice"));
    assert_eq!(alice.subscribe_code("#", 0), NOT_AUTHORIZED);
    assert_eq!(alice.publish(&Publish::new("home/bob/x", "p").qos(1)), NOT_AUTHORIZED);
    let topic = server.publish_until(&mut alice, "shared/a/b", "up", &mut received);
    assert_eq!(topic, "site7/a/b");
    let topic = server.publish_until(&mut alice, "plain", "as it is", &mut received);
    assert_eq!(topic, "plain/copy");

    // Retained at the other broker, so that it arrives whenever the bridge has subscribed.
    alice.subscribe("shared/cmd/#", 1);
    let mut sender = cloud.session(&Connect::new(V5, "sender"));
    assert_eq!(
        sender.publish(&Publish::new("cmd/valve", "close").qos(1).retain()) & 0x80,
        0
    );
    let command = alice.receive();
    assert_eq!(
        (command.topic_str(), command.payload_str()),
        ("shared/cmd/valve", "close")
    );
}

#[test]
fn every_line_of_a_nanomq_configuration_is_in_the_report() {
    let directory = Directory::new();
    for (name, config, expected) in [
        (
            "edge.conf",
            NANO_EDGE,
            &[
                "this machine has no file /etc/certs/cert.pem",
                "tidewire has no action of type SQLite",
                "name the columns in SELECT",
                "NanoMQ admits all clients without auth.allow_anonymous",
                "NanoMQ does not send this event",
                "connect once with Clean Session 0",
            ][..],
        ),
        (
            "gateway.conf",
            NANO_GATEWAY,
            &[
                "the value at gateway.conf:3 replaces it",
                "which could deny it",
                "connectors of tidewire use TCP or TLS, not QUIC",
                "it maps topics with wildcards that are not at the end",
                "tidewire has no bridge to AWS IoT Core",
            ][..],
        ),
    ] {
        let file = directory.file(name, config);
        let before = directory.names();
        let report = report_of(&import("nanomq", &file, &["--dry-run"]));
        assert_accounted(&report, name, config);
        for part in expected {
            assert!(report.contains(part), "{part}\n{report}");
        }
        assert_eq!(directory.names(), before, "a dry run writes nothing");
    }
}

const MOSQUITTO_HOME: &str = include_str!("mosquitto-home.conf");
const MOSQUITTO_ACL: &str = include_str!("mosquitto-acl");
const MOSQUITTO_PASSWORDS: &str = include_str!("mosquitto-passwd");
const MOSQUITTO_DYNAMIC: &str = include_str!("mosquitto-dynamic.conf");
const MOSQUITTO_PLANT: &str = include_str!("mosquitto-plant.conf");
const DYNAMIC_SECURITY: &str = include_str!("dynamic-security.json");

/// In `mosquitto.conf`, each line that is not a comment is an option.
#[track_caller]
fn assert_options_accounted(report: &str, file: &str, text: &str) {
    for (at, option) in text.lines().enumerate() {
        let place = format!("{file}:{} ", at + 1);
        let is_option = !option.trim().is_empty() && !option.starts_with('#');
        assert!(
            !is_option || report.lines().any(|row| row.starts_with(&place)),
            "{place}{option}\n{report}"
        );
    }
    assert!(!report.contains(SECRET), "{report}");
}

#[test]
fn mosquitto_import_keeps_users_rules_bridge_and_messages() {
    let cloud = Server::start(&cloud_config());
    let directory = Directory::new();
    let mqtt = free_port();
    let config = MOSQUITTO_HOME
        .replace("{dir}", directory.0.to_str().unwrap())
        .replace("{port}", &mqtt.port().to_string())
        .replace("{cloud}", &cloud.mqtt().to_string());
    let file = directory.file("mosquitto.conf", &config);
    directory.file("acl", MOSQUITTO_ACL);
    directory.file("passwd", MOSQUITTO_PASSWORDS);
    directory.file("mosquitto.db", archive::mosquitto_database("public/state", "open"));
    let setup = directory.0.join("setup");
    let report = report_of(&import("mosquitto", &file, &["--to", setup.to_str().unwrap()]));
    assert_options_accounted(&report, "mosquitto.conf", &config);
    assert_options_accounted(&report, "acl", MOSQUITTO_ACL);

    let mut received = cloud.session(&Connect::new(V5, "cloud"));
    received.subscribe("#", 1);
    let server = ImportedServer::start(&setup, mqtt);
    let wrong = Connect::new(V5, "a").user("alice", "wrong");
    assert_eq!(server.connack_code(&wrong), BAD_USER_NAME_OR_PASSWORD);
    let mut alice = server.session(&Connect::new(V5, "c").user("alice", "hush-alice"));
    assert_eq!(alice.publish(&Publish::new("home/bob/x", "p").qos(1)), NOT_AUTHORIZED);
    alice.subscribe("public/state", 1);
    let state = alice.receive();
    assert_eq!((state.payload_str(), state.is_retained), ("open", true));
    alice.subscribe("shared/cmd/#", 1);
    let topic = server.publish_until(&mut alice, "shared/readings/1", "up", &mut received);
    assert_eq!(topic, "site7/readings/1");
    let mut sender = cloud.session(&Connect::new(V5, "sender"));
    assert_eq!(
        sender.publish(&Publish::new("cmd/valve", "close").qos(1).retain()) & 0x80,
        0
    );
    let command = alice.receive();
    assert_eq!(
        (command.topic_str(), command.payload_str()),
        ("shared/cmd/valve", "close")
    );
}

#[test]
fn mosquitto_dynamic_security_keeps_clients_and_roles() {
    let directory = Directory::new();
    let mqtt = free_port();
    let config = MOSQUITTO_DYNAMIC.replace("{port}", &mqtt.port().to_string());
    let file = directory.file("mosquitto.conf", &config);
    directory.file("dynamic-security.json", DYNAMIC_SECURITY);
    let setup = directory.0.join("setup");
    let report = report_of(&import("mosquitto", &file, &["--to", setup.to_str().unwrap()]));
    assert_options_accounted(&report, "mosquitto.conf", &config);
    for part in [
        "client alice",
        "client fixed",
        "the client is disabled",
        "no client and no group has the role",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }

    let server = ImportedServer::start(&setup, mqtt);
    let mut alice = server.session(&Connect::new(V5, "c").user("alice", "hush-alice"));
    assert_eq!(alice.subscribe_code("open/a", 1), 1);
    assert_eq!(alice.subscribe_code("open/secret", 1), NOT_AUTHORIZED);
    assert_eq!(alice.subscribe_code("other", 1), NOT_AUTHORIZED);
    assert_eq!(alice.publish(&Publish::new("open/locked", "p").qos(1)), NOT_AUTHORIZED);
    assert_eq!(alice.publish(&Publish::new("open/a", "p").qos(1)) & 0x80, 0);
    let other_id = Connect::new(V5, "d").user("fixed", "hush-alice");
    assert_ne!(server.connack_code(&other_id), 0);
    let own_id = Connect::new(V5, "fixed-id").user("fixed", "hush-alice");
    assert_eq!(server.connack_code(&own_id), 0);
    let disabled = Connect::new(V5, "e").user("former", "hush-alice");
    assert_eq!(server.connack_code(&disabled), BAD_USER_NAME_OR_PASSWORD);
}

#[test]
fn every_line_of_a_mosquitto_configuration_is_in_the_report() {
    let directory = Directory::new();
    let file = directory.file("mosquitto.conf", MOSQUITTO_PLANT);
    let before = directory.names();
    let report = report_of(&import("mosquitto", &file, &["--dry-run"]));
    assert_options_accounted(&report, "mosquitto.conf", MOSQUITTO_PLANT);
    for part in [
        "this machine has no file /etc/mosquitto/certs/server.crt",
        "its mount_point cannot be used: the prefix must end with `/`",
        "tidewire does not listen on Unix sockets",
        "the value at mosquitto.conf:15 replaces it",
        "listeners.ws.default.allowed_origins",
        "a listener of tidewire accepts all versions of MQTT",
        "it is not a topic of a bridge",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
    assert_eq!(directory.names(), before, "a dry run writes nothing");
}

#[test]
fn a_failed_import_leaves_nothing_behind() {
    let directory = Directory::new();
    let setup = directory.0.join("setup");
    let to = ["--to", setup.to_str().unwrap()];
    let broken = archive::of_emqx("5.8.4", "mqtt {\n  max_inflight = \"x\n}\n", &[]);
    for (name, contents, part) in [
        (
            "broken.tar.gz",
            broken,
            "cluster.hocon:2: the line ends inside of a quoted text",
        ),
        (
            "old.tar.gz",
            archive::of_emqx("4.4.1", "", &[]),
            "the archive is of EMQX 4",
        ),
        ("none.tar.gz", b"hello".to_vec(), "not a gzip archive"),
        ("away.tar.gz", archive::of_files(&[("../../x", b"")]), "unsafe path"),
    ] {
        let file = directory.file(name, contents);
        let before = directory.names();
        let error = error_of(&import("emqx", &file, &to));
        assert!(error.contains(part) && error.contains(name), "{part}\n{error}");
        assert_eq!(directory.names(), before);
    }
    fs::create_dir(&setup).unwrap();
    fs::write(setup.join("kept"), "mine").unwrap();
    let good = directory.file("good.tar.gz", archive::of_emqx("5.8.4", "", &[]));
    let error = error_of(&import("emqx", &good, &to));
    assert!(
        error.contains("is not an empty directory: nothing has been imported"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(setup.join("kept")).unwrap(), "mine");
    let error = error_of(&import("emqx", &good, &[]));
    assert!(error.contains("--to DIR"), "{error}");
}

#[test]
fn imported_files_are_readable_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new();
    let config = HOME
        .replace("{mqtt}", "127.0.0.1:1883")
        .replace("{cloud}", "127.0.0.1:1");
    let archive = directory.file("a.tar.gz", home_archive(&config));
    let setup = directory.0.join("setup");
    report_of(&import("emqx", &archive, &["--to", setup.to_str().unwrap()]));
    for name in [
        "",
        "tidewire.toml",
        "passwords",
        "secrets/connectors-cloud-config-password",
        "data",
    ] {
        let mode = fs::metadata(setup.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}: {mode:o}");
    }
    let toml = fs::read_to_string(setup.join("tidewire.toml")).unwrap();
    assert!(!toml.contains(SECRET), "{toml}");
}
