//! Tests definitions over the API: errors name the wrong field, secrets are not shown, and deleted definitions can be
//! created again from their shown text.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

#[test]
fn invalid_requests_name_the_error_and_change_nothing() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let cases = [
        ("rules", json!({"id": "r", "sql": "SELEC * FROM \"t\""}), "sql"),
        (
            "rules",
            json!({"id": "r", "sql": "SELECT uper(topic) FROM \"t\""}),
            "sql",
        ),
        ("rules", json!({"id": "../r", "sql": "SELECT * FROM \"t\""}), "id"),
        (
            "rules",
            json!({"id": "r", "sql": "SELECT * FROM \"t\"", "actions": [{"function": "republish", "args": {"topic": "a/#"}}]}),
            "actions[0].args.topic",
        ),
        ("connectors", json!({"type": "htp", "name": "c"}), "type"),
        (
            "connectors",
            json!({"type": "http", "name": "c", "config": {"url": "nowhere"}}),
            "config.url",
        ),
        (
            "connectors",
            json!({"type": "http", "name": "c", "config": {"ulr": "http://h"}}),
            "config",
        ),
        (
            "actions",
            json!({"type": "http", "name": "a", "connector": "none"}),
            "connector",
        ),
        (
            "actions",
            json!({"type": "console", "name": "a", "delivery": {"in_flight": 0}}),
            "delivery.in_flight",
        ),
    ];
    for (kind, definition, field) in cases {
        let (status, problem) = api.call("POST", &format!("/api/v1/{kind}"), &definition);
        assert_eq!(status, 422, "{definition}: {problem:#}");
        let at = problem["field"].as_str().unwrap_or_default();
        assert!(at.starts_with(field), "{definition}: {problem:#}");
        assert_eq!(api.get(&format!("/api/v1/{kind}")), json!([]));
    }
}

#[test]
fn secrets_are_stored_and_never_shown() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let connector = json!({"type": "http", "name": "web", "config": {"url": "http://127.0.0.1:1", "headers": {"authorization": "Bearer hunter2"}}});
    let mut shown = api.ok("POST", "/api/v1/connectors", &connector);
    assert_eq!(shown["config"]["headers"]["authorization"], "***");
    for view in ["problems", "actions", "sources", "pinned_by"] {
        shown.as_object_mut().expect("an object").remove(view);
    }
    shown["description"] = "changed".into();
    api.ok("PUT", "/api/v1/connectors/web", &shown);
    let kept = std::fs::read_to_string(server.dir().join("data/integration/definitions.json")).expect("a file");
    assert!(kept.contains("hunter2") && kept.contains("changed"));
    assert!(!server.log().contains("hunter2"));
    // The secret of one target is not sent to another.
    let mut elsewhere = shown.clone();
    elsewhere["config"]["url"] = "http://127.0.0.2:1".into();
    for (method, path) in [("PUT", "/api/v1/connectors/web"), ("POST", "/api/v1/connector-test")] {
        let (status, problem) = api.call(method, path, &elsewhere);
        assert_eq!(
            (status, &problem["field"]),
            (422, &json!("config.headers.authorization")),
            "{path}: {problem:#}"
        );
    }
    elsewhere["config"]["headers"]["authorization"] = "Bearer hunter3".into();
    api.ok("PUT", "/api/v1/connectors/web", &elsewhere);
    // The placeholder of a secret is invalid if no secret is stored.
    shown["name"] = "copy".into();
    let (status, problem) = api.call("POST", "/api/v1/connectors", &shown);
    assert_eq!(
        (status, &problem["field"]),
        (422, &json!("config.headers.authorization")),
        "{problem:#}"
    );
}

#[test]
fn deleted_rule_is_recreated_from_its_shown_text() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let rule = |sql: &str| json!({"id": "r", "sql": sql});
    api.ok("POST", "/api/v1/rules", &rule("SELECT topic FROM \"a\""));
    api.ok("PUT", "/api/v1/rules/r", &rule("SELECT topic FROM \"b\""));
    assert_eq!(api.call("POST", "/api/v1/rules", &rule("SELECT * FROM \"c\"")).0, 409);
    api.ok("DELETE", "/api/v1/rules/r", &Value::Null);
    assert_eq!(api.call("GET", "/api/v1/rules/r", &Value::Null).0, 404);
    let back = api.ok("POST", "/api/v1/rules/r/roll-back", &json!({"version": 1}));
    assert_eq!(back["from"], json!(["a"]));
    let history = api.get("/api/v1/rules/r/history");
    let versions: Vec<_> = history
        .as_array()
        .expect("a list")
        .iter()
        .map(|v| v["version"].clone())
        .collect();
    assert_eq!(versions, [1, 2, 3, 4]);
}

#[test]
fn rule_can_be_tested_before_creation() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let run = json!({
        "sql": "FOREACH payload.values AS v DO v.t AS t INCASE v.t > 1 FROM \"m/#\"",
        "event": {"topic": "m/1", "payload": {"values": [{"t": 1}, {"t": 2}, {"t": 3}]}},
    });
    let result = api.ok("POST", "/api/v1/rules/test", &run);
    assert_eq!(result["outputs"], json!([{"t": 2}, {"t": 3}]));
    assert_eq!(
        (&result["is_matched"], &result["is_passed"]),
        (&json!(true), &json!(true))
    );
    let run = json!({"sql": "SELECT topic FROM \"m/#\"", "event": {"topic": "n/1"}});
    assert_eq!(api.ok("POST", "/api/v1/rules/test", &run)["is_matched"], false);
}

/// Two operators edit the same definition. The second one gets an error before overwriting the first one's change.
#[test]
fn saving_over_a_concurrent_change_is_rejected() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let cases = [
        (
            "connectors",
            "web",
            json!({"type": "http", "name": "web", "config": {"url": "http://127.0.0.1:1", "headers": {"x": "a"}}}),
        ),
        (
            "connectors",
            "mqtt",
            json!({"type": "mqtt", "name": "mqtt", "config": {"server": "127.0.0.1:1", "client_id": "bridge"}}),
        ),
        ("actions", "console:a", json!({"type": "console", "name": "a"})),
        (
            "sources",
            "mqtt:s",
            json!({"type": "mqtt", "name": "s", "connector": "mqtt", "parameters": {"subscriptions": [{"filter": "far/#"}]}}),
        ),
        ("rules", "r", json!({"id": "r", "sql": "SELECT * FROM \"t\""})),
    ];
    for (kind, id, definition) in cases {
        let path = format!("/api/v1/{kind}/{id}");
        let put = |tag: Option<&str>, description: &str| {
            let mut changed = definition.clone();
            changed["description"] = description.into();
            api.call_if("PUT", &path, tag, &changed)
        };
        assert_eq!(put(Some("*"), "").0, 412, "{path} does not exist");
        let (status, made, _) = api.call_if("POST", &format!("/api/v1/{kind}"), None, &definition);
        assert_eq!(status, 201, "{path}");
        let read = api.call_if("GET", &path, None, &Value::Null).1;
        assert_eq!(read, made, "{path}");
        let read = read.expect("an entity tag");
        // Activity of the action does not change the ETag of its definition.
        assert_eq!(api.call_if("GET", &path, None, &Value::Null).1.as_ref(), Some(&read));
        let (status, first, _) = put(Some(&read), "of the first");
        assert_eq!(status, 200, "{path}");
        assert_ne!(first.as_ref(), Some(&read), "{path}");
        let (status, _, problem) = put(Some(&read), "of the second");
        assert_eq!(
            (status, &problem["type"]),
            (412, &json!("urn:tidewire:problem:precondition-failed"))
        );
        assert!(
            problem["detail"].as_str().is_some_and(|it| it.contains(id)),
            "{problem:#}"
        );
        assert_eq!(api.get(&path)["description"], "of the first");
        let order = format!("{path}/disable");
        api.ok("POST", &order, &Value::Null);
        assert_eq!(
            put(first.as_deref(), "of the first").0,
            412,
            "{path}: saving would enable the definition again"
        );
        assert_eq!(api.get(&path)["enable"], false);
        assert_eq!(put(None, "whatever is there").0, 200, "{path}");
        assert_eq!(put(Some("*"), "whatever is there, if it is").0, 200, "{path}");
    }
}
