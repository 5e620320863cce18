//! Tests definitions in the configuration and in rule files: they are read-only, checked together, and reloaded at
//! SIGHUP.

use serde_json::{Value, json};

use super::command_line::{tidewire, tidewire_at};
use crate::support::api::Api;
use crate::support::*;

const CONFIG: &str = r#"
[integration]
rules_dir = "{dir}"

[connectors.web]
type = "http"
config = { url = "http://127.0.0.1:1", headers = { authorization = "file:{dir}/token" } }

[actions.lines]
type = "file"
parameters = { directory = "{dir}", name = "lines" }

[rules.all]
sql = 'SELECT topic FROM "all/#"'
actions = ["file:lines"]
"#;

const HOT: &str = "-- actions: file:lines\nSELECT payload.t AS t FROM \"m/#\"\n";

fn start() -> Server {
    let config = Config::new(CONFIG).file("hot.sql", HOT).file("token", "hunter2\n");
    Server::start(&config)
}

fn reload(server: &Server) {
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("kill -HUP {}", server.pid())])
        .status()
        .expect("there is a shell");
    assert!(status.success());
}

#[track_caller]
fn wait_for_log(server: &Server, text: &str) {
    server.wait_until(text, |server| server.log().contains(text));
}

#[test]
fn declared_definitions_run_and_are_read_only() {
    let server = start();
    let api = Api::of(&server);
    let hot = api.get("/api/v1/rules/hot");
    assert!(
        hot["pinned_by"].as_str().is_some_and(|by| by.ends_with("hot.sql")),
        "{hot:#}"
    );
    let web = api.get("/api/v1/connectors/web");
    assert_eq!(web["config"]["headers"]["authorization"], "***");
    let by = web["pinned_by"].as_str().expect("it is pinned");
    assert!(by.starts_with("connectors.web (") && by.ends_with("config:5)"), "{by}");
    let definition = json!({"id": "hot", "sql": "SELECT * FROM \"x\""});
    for (method, path, body) in [
        ("PUT", "/api/v1/rules/hot", &definition),
        ("POST", "/api/v1/rules", &definition),
        ("DELETE", "/api/v1/rules/hot", &Value::Null),
        ("POST", "/api/v1/rules/hot/disable", &Value::Null),
        ("DELETE", "/api/v1/actions/file:lines", &Value::Null),
        ("POST", "/api/v1/connectors/web/disable", &Value::Null),
    ] {
        let (status, problem) = api.call(method, path, body);
        assert_eq!(status, 409, "{method} {path}: {problem:#}");
        assert!(
            problem["source"].is_string() || method == "POST" && path.ends_with("rules"),
            "{problem:#}"
        );
    }
    let refused = tidewire_at(&server, &["rule", "disable", "hot"]);
    assert!(refused.code == 1 && refused.err.contains("set in: "), "{refused:?}");

    let mut client = server.session(&Connect::new(V4, "c"));
    client.publish(&Publish::new("m/1", r#"{"t": 1}"#).qos(1));
    client.publish(&Publish::new("all/1", "x").qos(1));
    server.wait_until("both messages are sent", |_| {
        api.get("/api/v1/actions/file:lines")["metrics"]["sent"] == 2
    });
    let kept = std::fs::read_to_string(server.dir().join("data/integration/definitions.json"));
    assert!(kept.is_err(), "declared definitions are stored nowhere else: {kept:?}");
    assert!(!server.log().contains("hunter2"));
}

#[test]
fn reload_applies_all_changes_or_none() {
    let server = start();
    let api = Api::of(&server);
    api.ok(
        "POST",
        "/api/v1/rules",
        &json!({"id": "mine", "sql": "SELECT * FROM \"t\""}),
    );
    let write = |name: &str, text: &str| std::fs::write(server.dir().join(name), text).expect("it is writable");
    write("bad.sql", "SELECT *\nFORM \"t\"\n");
    write("hot.sql", &HOT.replace("m/#", "n/#"));
    reload(&server);
    wait_for_log(&server, "nothing has changed");
    assert!(server.log().contains("bad.sql:2: column 1: found"), "{}", server.log());
    assert_eq!(api.get("/api/v1/rules/hot")["from"], json!(["m/#"]));

    write("bad.sql", "SELECT * FROM \"good\"");
    reload(&server);
    wait_for_log(&server, "configuration reloaded");
    assert_eq!(api.get("/api/v1/rules/hot")["from"], json!(["n/#"]));
    let ids: Vec<Value> = api
        .get("/api/v1/rules")
        .as_array()
        .expect("a list")
        .iter()
        .map(|rule| rule["id"].clone())
        .collect();
    assert_eq!(ids, ["all", "bad", "hot", "mine"]);
    std::fs::remove_file(server.dir().join("hot.sql")).expect("it is there");
    reload(&server);
    server.wait_until("the rule is removed", |_| {
        api.call("GET", "/api/v1/rules/hot", &Value::Null).0 == 404
    });
}

#[test]
fn all_declaration_errors_are_reported_together() {
    let directory = std::env::temp_dir().join(unique(&format!("tidewire-check-{}", std::process::id())));
    std::fs::create_dir_all(&directory).expect("the temporary directory is writable");
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("it is writable");
    write("r.sql", "-- descripton: x\nSELECT * FROM \"t\"\n");
    write("twice.sql", "-- id: all\nSELECT * FROM \"t\"\n");
    write(
        "tidewire.toml",
        "[integration]\nrules_dir = \".\"\n\n[rules.all]\nsql = \"SELECT * FORM 't'\"\n\n[rules.no]\nsq = \"x\"\n\n\
         [connectors.web]\ntype = \"http\"\nconfig = { url = \"nowhere\" }\n\n[connectors.secret]\ntype = \"http\"\n\
         config = { url = \"http://h\", headers = { a = \"env:TIDEWIRE_TEST_NO_SUCH\" } }\n\n\
         [actions.out]\ntype = \"console\"\ndelivery = { in_flight = 0 }\n",
    );
    let check = tidewire(&directory, &["check"]);
    assert_eq!(check.code, 2, "{check:?}");
    for part in [
        "r.sql:1: unknown key \"descripton\"",
        "twice.sql:1: rule \"all\" is also declared in rules.all (",
        "tidewire.toml:4: rules.all: sql: line 1, column 10",
        "tidewire.toml:7: rules.no: found a table",
        "tidewire.toml:10: connectors.web: config.url",
        "tidewire.toml:14: connectors.secret: config.headers.a: the server has no environment variable",
        "tidewire.toml:18: actions.out: delivery.in_flight",
    ] {
        assert!(check.err.contains(part), "no {part} in {}", check.err);
    }
    std::fs::remove_dir_all(directory).expect("it was made above");
}
