//! Tests failing targets and bad messages: the API, the log and the metrics report the failure, and other messages are
//! not affected.

use serde_json::{Value, json};

use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

/// Returns the value of a metric with these labels.
#[track_caller]
pub fn metric(server: &Server, name: &str, labels: &[&str]) -> f64 {
    let (status, text) = server.http_get("/metrics");
    assert_eq!(status, 200);
    let has_all = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
    let line = text.lines().find(has_all);
    let line = line.unwrap_or_else(|| panic!("no {name} with {labels:?} in\n{text}"));
    line.rsplit(' ')
        .next()
        .and_then(|value| value.parse().ok())
        .expect("a number")
}

/// Creates a connector and an action `NAME` for a web server, and a rule for `NAME/#`.
fn add(api: &Api<'_>, name: &str, url: &str, parameters: &Value) {
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "http", "name": name, "config": {"url": url}}),
    );
    let action = json!({"type": "http", "name": name, "connector": name, "parameters": parameters});
    api.ok("POST", "/api/v1/actions", &action);
    let sql = format!("SELECT payload FROM \"{name}/#\"");
    let rule = json!({"id": name, "sql": sql, "actions": [format!("http:{name}")]});
    api.ok("POST", "/api/v1/rules", &rule);
}

#[test]
fn failing_targets_are_reported_and_do_not_block_others() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let (good, away) = (WebServer::here(), WebServer::away());
    let (wrong, bad) = (WebServer::answering(401), WebServer::answering(400));
    let body = json!({"body": "${payload}"});
    for (name, web) in [("good", &good), ("away", &away), ("wrong", &wrong), ("bad", &bad)] {
        add(&api, name, &format!("http://{}", web.address), &body);
    }
    let mut client = server.session(&Connect::new(V4, "c"));
    for name in ["away", "wrong", "bad", "good"] {
        client.publish(&Publish::new(format!("{name}/1"), name).qos(1));
    }
    server.wait_until("the working target has its message", |_| good.bodies() == ["good"]);

    for (name, reason) in [("away", away.address.to_string()), ("wrong", "401".into())] {
        let path = format!("/api/v1/actions/http:{name}");
        server.wait_until("the action reports that its target is unreachable", |_| {
            api.get(&path)["health"]["state"] == "disconnected"
        });
        let action = api.get(&path);
        let error = action["health"]["last_error"].as_str().unwrap_or_default();
        assert!(error.contains(&reason), "{action:#}");
        assert_eq!(action["metrics"]["queued_messages"], 1);
        let label = format!("action=\"http:{name}\"");
        assert_eq!(metric(&server, "tidewire_action_state", &[&label, "disconnected"]), 1.0);
        assert_eq!(metric(&server, "tidewire_action_queued_messages", &[&label]), 1.0);
        server.wait_until("the log has the reason", |server| {
            let log = server.log();
            let mut lines = log.lines().filter(|line| line.contains(&format!("http:{name}")));
            lines.any(|line| line.contains(&reason) && line.contains("unreachable"))
        });
    }
    server.wait_until("rejected messages are counted", |server| {
        metric(server, "tidewire_action_failed_total", &["action=\"http:bad\""]) == 1.0
    });
    let action = api.get("/api/v1/actions/http:bad");
    assert!(
        action["health"]["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("400")),
        "{action:#}"
    );
    assert_eq!(
        metric(&server, "tidewire_action_queued_messages", &["action=\"http:bad\""]),
        0.0
    );
    assert_eq!(
        metric(&server, "tidewire_action_sent_total", &["action=\"http:good\""]),
        1.0
    );
    let count = metric(
        &server,
        "tidewire_action_latency_seconds_count",
        &["action=\"http:good\""],
    );
    assert_eq!(count, 1.0);
    assert_eq!(
        metric(&server, "tidewire_connector_state", &["connector=\"away\"", "enabled"]),
        1.0
    );
}

#[test]
fn poison_messages_are_reported_and_do_not_block_others() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let web = WebServer::here();
    add(
        &api,
        "good",
        &format!("http://{}", web.address),
        &json!({"body": "${payload}"}),
    );
    let rule = json!({"id": "strict", "sql": "SELECT payload.t * 2 AS t FROM \"good/#\"", "actions": ["http:good"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut client = server.session(&Connect::new(V4, "c"));
    let mut watcher = server.session(&Connect::new(V4, "w"));
    watcher.subscribe("good/#", 1);
    for payload in ["no JSON", r#"{"t": "warm"}"#, r#"{"t": 1}"#] {
        client.publish(&Publish::new("good/1", payload).qos(1));
        assert_eq!(watcher.receive().payload, payload.as_bytes());
    }
    // The other rule accepts every message. This rule accepts all for which `${payload}` is defined in its output.
    server.wait_until("all valid messages are sent", |_| web.bodies().len() == 4);
    let rule = api.get("/api/v1/rules/strict");
    assert_eq!(
        (&rule["metrics"]["failed"], &rule["metrics"]["passed"]),
        (&json!(2), &json!(1)),
        "{rule:#}"
    );
    assert!(
        rule["last_error"]
            .as_str()
            .is_some_and(|error| error.starts_with("line 1, column")),
        "{rule:#}"
    );
    let log = server.log();
    assert!(log.contains("a rule failed") && log.contains("strict"), "{log}");
    let labels = ["rule=\"strict\""];
    assert_eq!(metric(&server, "tidewire_rule_matched_total", &labels), 3.0);
    assert_eq!(metric(&server, "tidewire_rule_failed_total", &labels), 2.0);
    assert_eq!(metric(&server, "tidewire_rule_passed_total", &["rule=\"good\""]), 3.0);
}

#[test]
fn invalid_definitions_are_rejected_with_their_field() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let away = WebServer::away();
    let connector = json!({"type": "http", "name": "web", "config": {"url": format!("http://{}", away.address)}});
    api.ok("POST", "/api/v1/connectors", &connector);
    for (path, definition, field, detail) in [
        (
            "rules",
            json!({"id": "r", "sql": "SELECT topic FORM \"t\""}),
            "sql",
            "line 1, column",
        ),
        (
            "rules",
            json!({"id": "r", "sql": "SELECT abs('x') FROM \"t\""}),
            "sql",
            "line 1, column",
        ),
        (
            "rules",
            json!({"id": "r", "sql": "SELECT tpoic FROM \"t\""}),
            "sql",
            "unknown column",
        ),
        (
            "rules",
            json!({"id": "test", "sql": "SELECT * FROM \"t\""}),
            "id",
            "choose another",
        ),
        (
            "actions",
            json!({"type": "http", "name": "a", "connector": "web", "parameters": {"body": "${payload"}}),
            "parameters.body",
            "",
        ),
        (
            "actions",
            json!({"type": "http", "name": "a", "connector": "web", "parameters": {"pth": "x"}}),
            "parameters.pth",
            "unknown field",
        ),
        (
            "connectors",
            json!({"type": "http", "name": "c", "config": {"url": "http://h", "headers": {"a": "env:TIDEWIRE_SECRET_NO_SUCH"}}}),
            "config.headers.a",
            "no environment variable",
        ),
    ] {
        let (status, problem) = api.call("POST", &format!("/api/v1/{path}"), &definition);
        assert_eq!(status, 422, "{definition}: {problem:#}");
        assert_eq!(problem["field"], field, "{problem:#}");
        assert!(
            problem["detail"].as_str().is_some_and(|text| text.contains(detail)),
            "{detail}: {problem:#}"
        );
    }
    let result = api.ok("POST", "/api/v1/connectors/web/test", &Value::Null);
    assert_eq!(result["is_reachable"], false);
    assert!(
        result["error"]
            .as_str()
            .is_some_and(|error| error.contains(&away.address.to_string())),
        "{result:#}"
    );
}
