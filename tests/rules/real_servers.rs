//! Tests PostgreSQL, Redis, Mosquitto and Kafka as real servers. The API, the log and the metrics report unreachable
//! servers, rejected credentials and rejected messages, and other work continues.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::bad_input::metric;
use crate::support::api::Api;
use crate::support::kafka::Kafka;
use crate::support::shared::POSTGRES;
use crate::support::*;

/// A server that a script in `dev/` started. Dropping this value stops it.
pub struct Started {
    script: PathBuf,
    directory: PathBuf,
    pub address: String,
}

impl Started {
    pub fn new(script: &str, options: &[&str]) -> Started {
        Started::with(script, "start", options)
    }

    /// Calls the script with another verb than `start`.
    pub fn with(script: &str, verb: &str, options: &[&str]) -> Started {
        let name = unique(&format!("tidewire-rules-{script}-{}", std::process::id()));
        let mut started = Started {
            script: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev").join(script),
            directory: std::env::temp_dir().join(name),
            address: String::new(),
        };
        std::fs::create_dir_all(&started.directory).expect("the directory for temporary files can be written to");
        let output = started.call(verb, options).expect("the script runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "dev/{script}: {errors}");
        let said = String::from_utf8_lossy(&output.stdout);
        let first = said.lines().next().and_then(|line| line.split_once('='));
        started.address = first.expect("the script prints NAME=VALUE").1.to_owned();
        started
    }

    /// Returns the text of a file in the directory of this server.
    pub fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.join(name)).expect("the script has written the file")
    }

    /// Calls the script for the directory of this server.
    pub fn call(&self, verb: &str, options: &[&str]) -> std::io::Result<std::process::Output> {
        let mut command = Command::new(&self.script);
        command.arg(verb).arg(&self.directory).args(options).output()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.call("kill", &[]);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Starts a broker with one user, `me`, whose password is `right`.
pub struct Mosquitto {
    process: Child,
    directory: PathBuf,
    pub address: String,
}

impl Mosquitto {
    pub fn start() -> Mosquitto {
        let directory = std::env::temp_dir().join(unique(&format!("tidewire-rules-mosquitto-{}", std::process::id())));
        std::fs::create_dir_all(&directory).expect("the directory for temporary files can be written to");
        let (passwords, settings) = (directory.join("passwords"), directory.join("mosquitto.conf"));
        let made = Command::new("mosquitto_passwd")
            .args(["-c", "-b"])
            .arg(&passwords)
            .args(["me", "right"])
            .status();
        assert!(
            made.expect("mosquitto_passwd is installed: dev/setup.sh test")
                .success()
        );
        let address = free_port().to_string();
        let port = address.rsplit(':').next().unwrap_or_default();
        let passwords = passwords.display();
        let text = format!("listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\nuser root\n");
        std::fs::write(&settings, text).expect("a file can be written");
        let path = std::env::var("PATH").unwrap_or_default();
        let process = Command::new("mosquitto")
            .env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"))
            .arg("-c")
            .arg(settings)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Mosquitto {
            process: process.expect("mosquitto is installed: dev/setup.sh test"),
            directory,
            address,
        }
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A kind of target with its possible faults.
struct Target<'a> {
    kind: &'a str,
    config: Value,
    /// Replacements for entries of the configuration, and the error that each must cause.
    wrong: &'a [(&'a str, Value, &'a str)],
    parameters: Value,
    /// A payload that the target never accepts, and the expected error.
    poison: (&'a str, &'a str),
    /// A parameter with an unterminated template.
    bad: Value,
    bad_field: &'a str,
}

impl Target<'_> {
    fn add(&self, api: &Api<'_>, name: &str, config: &Value) {
        let connector = json!({"type": self.kind, "name": name, "config": config});
        api.ok("POST", "/api/v1/connectors", &connector);
        let action = json!({
            "type": self.kind, "name": name, "connector": name, "parameters": self.parameters,
            "delivery": {"retry": {"first_ms": 10, "longest_ms": 100}},
        });
        api.ok("POST", "/api/v1/actions", &action);
        let sql = format!("SELECT payload FROM \"{name}\"");
        let rule = json!({"id": name, "sql": sql, "actions": [format!("{}:{name}", self.kind)]});
        api.ok("POST", "/api/v1/rules", &rule);
    }

    fn check(&self, server: &Server) {
        let api = Api::of(server);
        let mut client = server.session(&Connect::new(V5, "c"));
        self.add(&api, "good", &self.config);
        for (number, (field, value, _)) in self.wrong.iter().enumerate() {
            let mut config = self.config.clone();
            config[*field] = value.clone();
            self.add(&api, &format!("wrong{number}"), &config);
            client.publish(&Publish::new(format!("wrong{number}"), "1").qos(1));
        }
        for payload in ["1", self.poison.0, "2"] {
            client.publish(&Publish::new("good", payload).qos(1));
        }
        for (number, (field, _, message)) in self.wrong.iter().enumerate() {
            self.assert_unreachable_is_reported(server, &api, &format!("wrong{number}"), message, field);
        }
        self.assert_rejected_message_is_reported(server, &api);
        let mut parameters = self.parameters.clone();
        parameters[self.bad_field.split(['.', '[']).next().unwrap_or_default()] = self.bad.clone();
        let action = json!({"type": self.kind, "name": "bad", "connector": "good", "parameters": parameters});
        let (status, problem) = api.call("POST", "/api/v1/actions", &action);
        let field = format!("parameters.{}", self.bad_field);
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{problem:#}");
    }

    fn assert_unreachable_is_reported(&self, server: &Server, api: &Api<'_>, name: &str, message: &str, field: &str) {
        let id = format!("{}:{name}", self.kind);
        let path = format!("/api/v1/actions/{id}");
        server.wait_until(&format!("{id} reports the error of {field}"), |_| {
            let health = &api.get(&path)["health"];
            let error = health["last_error"].as_str().unwrap_or_default().to_lowercase();
            health["state"] == "disconnected" && error.contains(message)
        });
        let action = api.get(&path);
        assert_eq!(action["metrics"]["queued_messages"], 1, "{action:#}");
        assert!(!action.to_string().contains("guessed-it"), "{action:#}");
        let label = format!("action=\"{id}\"");
        assert_eq!(metric(server, "tidewire_action_state", &[&label, "disconnected"]), 1.0);
        assert_eq!(metric(server, "tidewire_action_queued_messages", &[&label]), 1.0);
        server.wait_until("the log has the reason", |server| {
            let log = server.log().to_lowercase();
            assert!(!log.contains("guessed-it"));
            let is_reported = |line: &&str| line.contains("unreachable") || line.contains("rejects messages");
            let mut lines = log.lines().filter(|line| line.contains(&id)).filter(is_reported);
            lines.any(|line| line.contains(message))
        });
        let result = api.ok("POST", &format!("/api/v1/connectors/{name}/test"), &Value::Null);
        assert_eq!(result["is_reachable"], false, "{result:#}");
    }

    fn assert_rejected_message_is_reported(&self, server: &Server, api: &Api<'_>) {
        let id = format!("{}:good", self.kind);
        let path = format!("/api/v1/actions/{id}");
        server.wait_until(&format!("{id} has sent all acceptable messages"), |_| {
            let metrics = &api.get(&path)["metrics"];
            metrics["sent"] == 2 && metrics["failed"] == 1 && metrics["queued_messages"] == 0
        });
        let action = api.get(&path);
        let error = action["health"]["last_error"].as_str().unwrap_or_default();
        assert!(error.contains(self.poison.1), "{action:#}");
        assert_eq!(action["health"]["state"], "connected");
        let label = format!("action=\"{id}\"");
        assert_eq!(metric(server, "tidewire_action_failed_total", &[&label]), 1.0);
        assert_eq!(metric(server, "tidewire_action_sent_total", &[&label]), 2.0);
        let log = server.log();
        let mut lines = log.lines().filter(|line| line.contains(&id) && line.contains("failed"));
        assert!(lines.any(|line| line.contains(self.poison.1)), "{log}");
    }
}

#[test]
fn postgresql_errors_are_reported() {
    let address = POSTGRES.value("TIDEWIRE_POSTGRES");
    let (host, port) = address.rsplit_once(':').expect("an address");
    let port: u16 = port.parse().expect("a port");
    let away = free_port().port();
    let target = Target {
        kind: "postgresql",
        config: json!({"host": host, "port": port, "database": "postgres", "user": "postgres", "password": "tidewire"}),
        wrong: &[
            ("password", json!("guessed-it"), "password authentication failed"),
            ("database", json!("nothere"), "does not exist"),
            ("port", json!(away), "connection refused"),
        ],
        parameters: json!({"sql": "SELECT ${payload}::integer"}),
        poison: ("warm", "invalid input syntax"),
        bad: json!("SELECT ${payload"),
        bad_field: "sql",
    };
    target.check(&Server::start(&Config::new("")));
}

#[test]
fn redis_errors_are_reported() {
    let redis = Started::new("redis", &["--requirepass", "right"]);
    let target = Target {
        kind: "redis",
        config: json!({"servers": [redis.address], "password": "right"}),
        wrong: &[
            ("password", json!("guessed-it"), "authentication failed"),
            ("servers", json!([free_port().to_string()]), "refused"),
        ],
        parameters: json!({"command": ["INCRBY", "n", "${payload}"]}),
        poison: ("warm", "not an integer"),
        bad: json!(["GET", "${payload"]),
        bad_field: "command[1]",
    };
    target.check(&Server::start(&Config::new("")));
}

/// The documented use of EMQX's function `map_to_redis_hset_args`.
#[test]
fn hset_arguments_of_a_map_reach_redis() {
    let redis = Started::new("redis", &[]);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let connector = json!({"type": "redis", "name": "redis", "config": {"servers": [redis.address]}});
    api.ok("POST", "/api/v1/connectors", &connector);
    for (name, command) in [
        ("hmset", json!(["HMSET", "name1", "${hset_fields}"])),
        (
            "hset",
            json!(["hset", "name2", "from", "${clientid}", "${hset_fields}"]),
        ),
    ] {
        let action = json!({"type": "redis", "name": name, "connector": "redis", "parameters": {"command": command}});
        api.ok("POST", "/api/v1/actions", &action);
    }
    let rule = json!({
        "id": "hash", "actions": ["redis:hmset", "redis:hset"],
        "sql": "SELECT map_to_redis_hset_args(payload.value) as hset_fields, clientid FROM \"t/1\"",
    });
    api.ok("POST", "/api/v1/rules", &rule);
    let mut client = server.session(&Connect::new(V5, "meter"));
    for payload in [
        r#"{"value": {"a": 1, "b c": "x \"y\"", "d": true, "e": 1.5}}"#,
        r#"{"value": "no map"}"#,
    ] {
        client.publish(&Publish::new("t/1", payload).qos(1));
    }
    for name in ["hmset", "hset"] {
        server.wait_until("both messages have a result", |_| {
            let metrics = &api.get(&format!("/api/v1/actions/redis:{name}"))["metrics"];
            metrics["sent"] == 1 && metrics["failed"] == 1
        });
    }
    let fields = |key: &str| super::sink_kills::redis(&redis, &["HGETALL", key]);
    let expected = "a\n1\nb c\nx \"y\"\nd\ntrue\ne\n1.5";
    assert_eq!(fields("name1").trim(), expected);
    assert_eq!(fields("name2").trim(), format!("from\nmeter\n{expected}"));
    let error = api.get("/api/v1/actions/redis:hmset")["health"]["last_error"].clone();
    assert!(
        error
            .as_str()
            .is_some_and(|error| error.contains("a list of fields and values")),
        "{error}"
    );
    let action = json!({
        "type": "redis", "name": "odd", "connector": "redis",
        "parameters": {"command": ["HSET", "name1", "only-a-field"]},
    });
    let (status, problem) = api.call("POST", "/api/v1/actions", &action);
    assert_eq!(status, 422, "{problem}");
}

#[test]
fn mqtt_broker_errors_are_reported() {
    let mosquitto = Mosquitto::start();
    let target = Target {
        kind: "mqtt",
        config: json!({
            "server": mosquitto.address, "client_id": "bridge", "user": "me", "password": "right",
            "reconnect": {"first_ms": 20, "longest_ms": 200},
        }),
        wrong: &[
            ("password", json!("guessed-it"), "not authorized"),
            ("server", json!(free_port().to_string()), "refused"),
        ],
        parameters: json!({"topic": "out/${payload}", "qos": "1"}),
        poison: ("#", "topic"),
        bad: json!("out/${payload"),
        bad_field: "topic",
    };
    target.check(&Server::start(&Config::new("")));
}

/// Creates two topics, `PREFIX-1` and `PREFIX-2`, and returns the prefix.
fn kafka_topics(kafka: &Kafka) -> String {
    let prefix = unique(&format!("t-{}", std::process::id()));
    for number in [1, 2] {
        kafka.create_topic(&format!("{prefix}-{number}"), 1);
    }
    prefix
}

#[test]
fn kafka_errors_are_reported() {
    let kafka = Kafka::shared();
    let prefix = kafka_topics(&kafka);
    let warm = format!("{prefix}-warm");
    let away = free_port().to_string();
    let target = Target {
        kind: "kafka",
        config: json!({"bootstrap_hosts": kafka.address, "connect_timeout_ms": 2000}),
        wrong: &[("bootstrap_hosts", json!(away), &away)],
        parameters: json!({"kafka_topic": format!("{prefix}-${{payload}}")}),
        poison: ("warm", &warm),
        bad: json!(format!("{prefix}-${{payload")),
        bad_field: "kafka_topic",
    };
    target.check(&Server::start(&Config::new("")));
}

#[test]
fn rejected_kafka_password_is_reported() {
    let kafka = Kafka::shared();
    let prefix = kafka_topics(&kafka);
    let warm = format!("{prefix}-warm");
    let login =
        |mechanism: &str, password: &str| json!({"mechanism": mechanism, "username": "tidewire", "password": password});
    let target = Target {
        kind: "kafka",
        config: json!({
            "bootstrap_hosts": kafka.sasl, "connect_timeout_ms": 2000, "authentication": login("plain", "tidewire"),
        }),
        wrong: &[
            ("authentication", login("plain", "guessed-it"), "authentication failed"),
            (
                "authentication",
                login("scram_sha256", "guessed-it"),
                "authentication failed",
            ),
        ],
        parameters: json!({"kafka_topic": format!("{prefix}-${{payload}}")}),
        poison: ("warm", &warm),
        bad: json!(format!("{prefix}-${{payload")),
        bad_field: "kafka_topic",
    };
    let server = Server::start(&Config::new(""));
    target.check(&server);
    let api = Api::of(&server);
    for connector in ["good", "wrong0", "wrong1"] {
        let source = json!({
            "type": "kafka", "name": connector, "connector": connector,
            "parameters": {"kafka_topics": [format!("{prefix}-1")], "group_id": format!("{prefix}-{connector}"), "offset_reset": "earliest"},
        });
        api.ok("POST", "/api/v1/sources", &source);
    }
    for name in ["wrong0", "wrong1"] {
        let id = format!("kafka:{name}");
        server.wait_until(&format!("the source {id} reports its error"), |_| {
            let source = api.get(&format!("/api/v1/sources/{id}"));
            assert!(!source.to_string().contains("guessed-it"), "{source:#}");
            let error = source["health"]["last_error"]
                .as_str()
                .unwrap_or_default()
                .to_lowercase();
            source["health"]["state"] == "disconnected" && error.contains("authentication failed")
        });
        let label = format!("source=\"{id}\"");
        assert_eq!(metric(&server, "tidewire_source_state", &[&label, "disconnected"]), 1.0);
        let log = server.log().to_lowercase();
        assert!(!log.contains("guessed-it"));
        let mut lines = log
            .lines()
            .filter(|line| line.contains(&format!("source=\"{id}\"")) || line.contains(&format!("source={id}")));
        assert!(
            lines.any(|line| line.contains("connection of the source lost") && line.contains("authentication failed")),
            "{log}"
        );
    }
    server.wait_until("the source with the right password receives the record", |_| {
        let source = api.get("/api/v1/sources/kafka:good");
        source["health"]["state"] == "connected" && source["metrics"]["received"] == 1
    });
}
