//! Tests the commands for rules, connectors and actions, with a running server and without one.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

/// Runs the program with only these arguments.
pub fn tidewire(directory: &Path, args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .current_dir(directory)
        .args(args)
        .output()
        .expect("the program starts");
    Ran::new(&output)
}

/// Runs tidewire with the server's data directory and API address as options.
pub fn tidewire_at(server: &Server, args: &[&str]) -> Ran {
    let data_dir = format!("node.data_dir={}", server.dir().join("data").display());
    let bind = format!("api.bind={}", server.http());
    let mut all = args.to_vec();
    all.extend(["--set", &data_dir, "--set", &bind]);
    tidewire(server.dir(), &all)
}

#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    fn new(output: &Output) -> Ran {
        Ran {
            code: output.status.code().expect("it was not killed"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Returns the standard output of a successful run.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).expect("it prints JSON")
    }
}

const RULE: &str =
    "-- description: too hot\n-- actions: console\nSELECT payload.t AS t\nFROM \"m/#\"\nWHERE payload.t > 30\n";

#[test]
fn rule_commands_cover_the_life_cycle_of_a_rule() {
    let server = Server::start(&Config::new(""));
    let file = server.dir().join("hot.sql");
    let put = |text: &str| {
        std::fs::write(&file, text).expect("the directory is writable");
        tidewire_at(&server, &["rule", "put", "hot.sql"]).ok()
    };
    assert_eq!(put(RULE), "rule hot, version 1: in force\n");
    put(&RULE.replace("> 30", "> 40"));
    let list = tidewire_at(&server, &["rule", "list"]).ok();
    assert!(list.contains("hot  enabled  m/#   console"), "{list}");
    let diff = tidewire_at(&server, &["rule", "diff", "hot"]).ok();
    assert!(
        diff.contains("\n-WHERE payload.t > 30\n+WHERE payload.t > 40\n"),
        "{diff}"
    );
    tidewire_at(&server, &["rule", "rollback", "hot", "1"]).ok();
    tidewire_at(&server, &["rule", "disable", "hot"]).ok();
    let shown = tidewire_at(&server, &["rule", "show", "hot", "--json"]).json();
    assert_eq!((&shown["enable"], &shown["version"]), (&Value::Bool(false), &4.into()));
    assert!(
        shown["sql"].as_str().is_some_and(|sql| sql.ends_with("> 30")),
        "{shown:#}"
    );
    let history = tidewire_at(&server, &["rule", "history", "hot"]).ok();
    assert!(
        history.lines().count() == 5 && history.contains("made") && history.contains("sql"),
        "{history}"
    );
    // The shown definition is accepted as input.
    std::fs::write(server.dir().join("shown.json"), shown.to_string()).expect("the directory is writable");
    tidewire_at(&server, &["rule", "put", "shown.json"]).ok();
    tidewire_at(&server, &["rule", "enable", "hot"]).ok();
    tidewire_at(&server, &["rule", "delete", "hot"]).ok();
    let gone = tidewire_at(&server, &["rule", "show", "hot"]);
    assert_eq!(gone.code, 1);
    assert!(gone.err.contains("there is no rule \"hot\" (404)"), "{gone:?}");
}

#[test]
fn rule_test_runs_without_a_server() {
    let directory = std::env::temp_dir().join(unique(&format!("tidewire-offline-{}", std::process::id())));
    std::fs::create_dir_all(&directory).expect("the temporary directory is writable");
    std::fs::write(directory.join("hot.sql"), RULE).expect("it is writable");
    std::fs::write(directory.join("bad.sql"), "-- name: x\nSELECT *\nFORM \"t\"\n").expect("it is writable");
    let try_out = |args: &[&str]| tidewire(&directory, &[&["rule", "test"], args].concat());

    let hot = try_out(&["hot.sql", "--message", r#"{"t": 31}"#]);
    assert_eq!((hot.code, hot.out.as_str()), (0, "{\"t\":31}\n"), "{hot:?}");
    // More than 64 bits.
    let large = try_out(&["hot.sql", "--message", r#"{"t": 18446744073709551616}"#]);
    assert_eq!(large.out, "{\"t\":18446744073709551616}\n", "{large:?}");
    let cold = try_out(&["hot.sql", "--message", r#"{"t": 1}"#]);
    assert!(cold.code == 3 && cold.err.contains("WHERE"), "{cold:?}");
    let elsewhere = try_out(&["hot.sql", "--message", r#"{"t": 31}"#, "--topic", "other"]);
    assert!(elsewhere.code == 3 && elsewhere.err.contains("FROM"), "{elsewhere:?}");
    let poison = try_out(&["hot.sql", "--message", "no JSON"]);
    assert!(
        poison.code == 1 && poison.err.contains("hot.sql:5:7: the rule fails"),
        "{poison:?}"
    );
    assert!(
        poison.err.ends_with("\n   5 | WHERE payload.t > 30\n     |       ^\n"),
        "{poison:?}"
    );
    let bad = try_out(&["bad.sql"]);
    assert_eq!(bad.code, 2);
    assert!(bad.err.contains("bad.sql:3:1: found"), "{bad:?}");
    assert!(bad.err.ends_with("   3 | FORM \"t\"\n     | ^\n"), "{bad:?}");
    std::fs::remove_dir_all(directory).expect("it was made above");
}

#[test]
fn connectors_and_actions_are_managed_from_the_command_line() {
    let server = Server::start(&Config::new(""));
    let web = WebServer::away();
    let write = |name: &str, text: String| std::fs::write(server.dir().join(name), text).expect("it is writable");
    write(
        "web.toml",
        format!(
            "type = \"http\"\nname = \"web\"\n[config]\nurl = \"http://{}\"\n",
            web.address
        ),
    );
    write(
        "out.json",
        r#"{"type": "http", "name": "out", "connector": "web"}"#.into(),
    );
    write(
        "bad.json",
        r#"{"type": "http", "name": "out", "connector": "web", "parameters": {"pth": "x"}}"#.into(),
    );

    tidewire_at(&server, &["connector", "put", "web.toml"]).ok();
    let away = tidewire_at(&server, &["connector", "test", "web"]);
    assert!(
        away.code == 1 && away.err.contains(&web.address.to_string()),
        "{away:?}"
    );
    web.come();
    assert!(
        tidewire_at(&server, &["connector", "test", "web"])
            .ok()
            .starts_with("reachable")
    );

    let bad = tidewire_at(&server, &["action", "put", "bad.json"]);
    assert!(
        bad.code == 1 && bad.err.contains("parameters.pth: unknown field"),
        "{bad:?}"
    );
    tidewire_at(&server, &["action", "put", "out.json"]).ok();
    tidewire_at(&server, &["action", "pause", "http:out"]).ok();
    let list = tidewire_at(&server, &["action", "list"]).ok();
    assert!(list.contains("http:out  paused"), "{list}");
    // Overwrites the action although it was changed in between.
    tidewire_at(&server, &["action", "put", "out.json"]).ok();
    tidewire_at(&server, &["action", "restart", "http:out"]).ok();
    let list = tidewire_at(&server, &["action", "list"]).ok();
    assert!(list.contains("http:out  paused"), "{list}");
    for order in ["resume", "restart", "purge", "disable", "enable"] {
        tidewire_at(&server, &["action", order, "http:out"]).ok();
    }
    let used = tidewire_at(&server, &["connector", "delete", "web"]);
    assert!(used.code == 1 && used.err.contains("http:out"), "{used:?}");
    tidewire_at(&server, &["action", "delete", "http:out"]).ok();
    tidewire_at(&server, &["connector", "delete", "web"]).ok();
    assert_eq!(
        tidewire_at(&server, &["source", "list", "--json"]).json(),
        Value::Array(Vec::new())
    );
    let types = tidewire_at(&server, &["connector", "types"]).ok();
    for option in [
        "config.bootstrap_hosts",
        "parameters.kafka_topic",
        "source.group_id",
        "parameters.directory",
    ] {
        assert!(types.contains(option), "{option}: {types}");
    }
}

/// Creates a rule for `t` whose action sends to an unreachable target.
fn define_unreachable_target(server: &Server, web: &WebServer) {
    let api = Api::of(server);
    let config = json!({"url": format!("http://{}", web.address)});
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "http", "name": "web", "config": config}),
    );
    let action = json!({"type": "http", "name": "out", "connector": "web", "parameters": {"body": "${payload}"}});
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "r", "sql": "SELECT * FROM \"t\"", "actions": ["http:out"]});
    api.ok("POST", "/api/v1/rules", &rule);
}

#[test]
fn purged_messages_are_not_sent() {
    let server = Server::start(&Config::new(""));
    let web = WebServer::away();
    define_unreachable_target(&server, &web);
    tidewire_at(&server, &["action", "pause", "http:out"]).ok();
    let mut publisher = server.session(&Connect::new(V5, "p"));
    for number in 0..3 {
        publisher.publish(&Publish::new("t", format!("old {number}")).qos(1));
    }
    let api = Api::of(&server);
    let queued = || api.get("/api/v1/actions/http:out")["metrics"]["queued_messages"].clone();
    server.wait_until("three messages are queued", |_| queued() == 3);
    tidewire_at(&server, &["action", "purge", "http:out"]).ok();
    server.wait_until("no message is queued", |_| queued() == 0);
    web.come();
    tidewire_at(&server, &["action", "resume", "http:out"]).ok();
    publisher.publish(&Publish::new("t", "new").qos(1));
    server.wait_until("the next message is sent", |_| !web.bodies().is_empty());
    assert_eq!(web.bodies(), ["new"]);
}

#[test]
fn console_action_writes_messages_to_the_log() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let parameters = json!({"line": "${clientid} says ${payload}", "lines_per_second_max": 2});
    api.ok(
        "POST",
        "/api/v1/actions",
        &json!({"type": "console", "name": "look", "parameters": parameters}),
    );
    let rule = json!({"id": "r", "sql": "SELECT * FROM \"t\"", "actions": ["console:look"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut publisher = server.session(&Connect::new(V5, "p"));
    // A line break in a message does not start a new line of the log.
    publisher.publish(&Publish::new("t", "one\nWARN two").qos(1));
    server.wait_until("the message is in the log", |server| {
        server.log().contains("p says one\\nWARN two")
    });
    for _ in 0..50 {
        publisher.publish(&Publish::new("t", "more").qos(1));
    }
    server.wait_until("omitted messages are counted", |server| {
        publisher.publish(&Publish::new("t", "more").qos(1));
        server.log().contains("skipped_lines=")
    });
}

#[test]
fn unauthorized_commands_report_the_reason() {
    let server = Server::start(&Config::new(""));
    let url = format!("http://{}", server.http());
    std::fs::write(server.dir().join("wrong"), "not it\n").expect("it is writable");
    let list = [
        "rule",
        "list",
        "--api",
        &url,
        "--user",
        "admin",
        "--password-file",
        "wrong",
    ];
    let refused = tidewire(server.dir(), &list);
    assert!(
        refused.code == 1 && refused.err.contains("wrong user name or password (401)"),
        "{refused:?}"
    );
    let nobody = tidewire(
        server.dir(),
        &["rule", "list", "--api", &url, "--set", "node.data_dir=nowhere"],
    );
    assert!(nobody.code == 2 && nobody.err.contains("--user"), "{nobody:?}");
}
