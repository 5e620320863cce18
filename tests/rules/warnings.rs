//! Tests valid rules that cannot work with the other definitions. The response, the log and the rule show a warning
//! until the cause is fixed.

use serde_json::{Value, json};

use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

fn rule(id: &str, sql: &str, actions: Value) -> Value {
    json!({"id": id, "sql": sql, "actions": actions})
}

#[test]
fn missing_source_is_a_warning_until_it_exists() {
    let mut server = Server::start(&Config::new(""));
    let missing = "the source does not exist";
    let sql = "SELECT * FROM \"$bridges/mqtt:far\", \"t/#\"";
    {
        let api = Api::of(&server);
        let answer = api.ok("POST", "/api/v1/rules", &rule("r", sql, json!([])));
        let warnings = answer["warnings"].to_string();
        assert!(
            warnings.contains("$bridges/mqtt:far") && warnings.contains(missing),
            "{warnings}"
        );
        assert_eq!(api.get("/api/v1/rules/r")["warnings"], answer["warnings"]);
        let log = server.log();
        assert!(
            log.lines().any(|line| line.contains("WARN") && line.contains(missing)),
            "{log}"
        );
        // The wildcard matches any source of this type, but no source exists.
        let any = api.ok(
            "POST",
            "/api/v1/rules",
            &rule("any", "SELECT * FROM \"$sources/mqtt:*\"", json!([])),
        );
        assert!(any["warnings"].to_string().contains(missing), "{any:#}");
    }
    // The warning is also logged at each start.
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let count = server
        .log()
        .lines()
        .filter(|line| line.contains("WARN") && line.contains(missing))
        .count();
    assert_eq!(count, 4, "two rules, each logged twice");

    let api = Api::of(&server);
    let config = json!({"server": "127.0.0.1:9", "client_id": "b"});
    let connector = json!({"type": "mqtt", "name": "far", "config": config});
    api.ok("POST", "/api/v1/connectors", &connector);
    let source = json!({
        "type": "mqtt", "name": "far", "connector": "far", "enable": false,
        "parameters": {"subscriptions": [{"filter": "far/#"}]},
    });
    api.ok("POST", "/api/v1/sources", &source);
    let warnings = api.get("/api/v1/rules/r")["warnings"].to_string();
    assert!(warnings.contains("is disabled"), "{warnings}");
    api.ok("POST", "/api/v1/sources/mqtt:far/enable", &Value::Null);
    for id in ["r", "any"] {
        assert_eq!(api.get(&format!("/api/v1/rules/{id}"))["warnings"], json!([]));
    }
}

#[test]
fn missing_topic_in_select_is_a_warning() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let config = json!({"server": "127.0.0.1:9", "client_id": "b"});
    let connector = json!({"type": "mqtt", "name": "far", "config": config});
    api.ok("POST", "/api/v1/connectors", &connector);
    let action = |name: &str, parameters: Value| {
        let action = json!({"type": "mqtt", "name": name, "connector": "far", "parameters": parameters});
        api.ok("POST", "/api/v1/actions", &action);
    };
    action("same", json!({}));
    action("own", json!({"topic": "site/${.site.name}/${list[1]}"}));
    action("fixed", json!({"topic": "site"}));
    let warned = |sql: &str, action: &str| {
        let answer = api.ok(
            "PUT",
            "/api/v1/rules/r",
            &rule("r", sql, json!([{"function": "console"}, format!("mqtt:{action}")])),
        );
        answer["warnings"].as_array().expect("a list").clone()
    };
    for (sql, action) in [
        ("SELECT payload, topic FROM \"t\"", "same"),
        ("SELECT * FROM \"t\"", "same"),
        ("SELECT payload.t AS topic FROM \"t\"", "same"),
        ("FOREACH payload.a FROM \"t\"", "same"),
        ("SELECT payload FROM \"t\"", "fixed"),
        ("SELECT 'x' AS site.name, [1] AS list FROM \"t\"", "own"),
    ] {
        assert_eq!(warned(sql, action), Vec::<Value>::new(), "{sql}");
    }
    for (sql, action, field) in [
        ("SELECT payload FROM \"t\"", "same", "topic"),
        ("FOREACH payload.a DO item FROM \"t\"", "same", "topic"),
        ("SELECT 'x' AS list FROM \"t\"", "own", "site"),
        ("SELECT * FROM \"t\"", "own", "site"),
    ] {
        let warnings = warned(sql, action);
        let warning = warnings[0].as_str().expect("a text");
        assert_eq!(warnings.len(), 1, "{sql}");
        let parts = [format!("mqtt:{action}"), format!("{field:?}"), "actions[1]".to_owned()];
        assert!(
            parts.iter().all(|text| warning.contains(text.as_str())),
            "{sql}: {warning}"
        );
    }
}

/// The action configures which HTTP statuses cause a retry.
#[test]
fn configured_http_statuses_are_retried() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let bad =
        json!({"type": "http", "name": "bad", "connector": "web", "parameters": {"retry_statuses": ["5xx", "2xx"]}});
    let web = [404, 500, 503].map(WebServer::answering);
    let names = ["w404", "w500", "w503"];
    for (web, name) in web.iter().zip(names) {
        let config = json!({"url": format!("http://{}", web.address)});
        api.ok(
            "POST",
            "/api/v1/connectors",
            &json!({"type": "http", "name": name, "config": config}),
        );
    }
    let (status, problem) = api.call(
        "POST",
        "/api/v1/actions",
        &json!({"connector": "w404", "name": bad["name"], "type": "http", "parameters": bad["parameters"]}),
    );
    assert_eq!(
        (status, &problem["field"]),
        (422, &json!("parameters.retry_statuses[1]")),
        "{problem:#}"
    );
    for name in names {
        for (kind, parameters) in [("usual", json!({})), ("own", json!({"retry_statuses": ["4xx", "503"]}))] {
            let id = format!("{name}{kind}");
            let action = json!({
                "type": "http", "name": id, "connector": name, "parameters": parameters,
                "delivery": {"retry": {"first_ms": 10, "longest_ms": 50}},
            });
            api.ok("POST", "/api/v1/actions", &action);
            let actions = json!([format!("http:{id}")]);
            api.ok(
                "POST",
                "/api/v1/rules",
                &rule(&id, "SELECT payload FROM \"t\"", actions),
            );
        }
    }
    server
        .session(&Connect::new(V5, "c"))
        .publish(&Publish::new("t", "1").qos(1));
    for (id, is_retried) in [
        ("w404usual", false),
        ("w404own", true),
        ("w500usual", true),
        ("w500own", false),
        ("w503usual", true),
        ("w503own", true),
    ] {
        let status = &id[1..4];
        server.wait_until(&format!("{id}: {is_retried}"), |_| {
            let action = api.get(&format!("/api/v1/actions/http:{id}"));
            let (metrics, health) = (&action["metrics"], &action["health"]);
            let is_reported = health["last_error"]
                .as_str()
                .is_some_and(|error| error.contains(status));
            // Retries are not counted while the target is unreachable.
            let is_tried = metrics["retried"].as_u64() > Some(2) || health["state"] == "disconnected";
            is_reported
                && match is_retried {
                    true => is_tried && metrics["queued_messages"] == 1 && metrics["failed"] == 0,
                    false => metrics["failed"] == 1 && metrics["queued_messages"] == 0,
                }
        });
    }
}
