//! Tests actions that cannot run. Acknowledged messages stay buffered for them, or are counted as dropped if an
//! operator disabled the action.

use serde_json::{Value, json};

use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

fn metrics(api: &Api<'_>, rule: &str) -> Value {
    api.get(&format!("/api/v1/rules/{rule}"))["metrics"].clone()
}

#[test]
fn acknowledged_messages_wait_for_a_missing_secret() {
    let mut server = Server::start(&Config::new("[integration]\nsecrets_dir = \"{dir}\"\n"));
    let secret = server.dir().join("token");
    std::fs::write(&secret, "Bearer x").unwrap();
    let web = WebServer::here();
    {
        let api = Api::of(&server);
        let config = json!({
            "url": format!("http://{}", web.address), "headers": {"authorization": format!("file:{}", secret.display())},
        });
        api.ok(
            "POST",
            "/api/v1/connectors",
            &json!({"type": "http", "name": "web", "config": config}),
        );
        let action = json!({"type": "http", "name": "web", "connector": "web", "parameters": {"body": "${payload}"}});
        api.ok("POST", "/api/v1/actions", &action);
        let rule = json!({"id": "r", "sql": "SELECT payload FROM \"in\"", "actions": ["http:web"]});
        api.ok("POST", "/api/v1/rules", &rule);
    }
    server.kill();
    std::fs::remove_file(&secret).unwrap();
    server.spawn_again();
    server.wait_until_ready();
    let api = Api::of(&server);
    let mut client = server.session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("in", "important").qos(1));
    let action = api.get("/api/v1/actions/http:web");
    let problems = action["problems"].to_string();
    assert!(problems.contains("token"), "{action:#}");
    server.wait_until("the action reports that the target is unreachable", |_| {
        api.get("/api/v1/actions/http:web")["health"]["state"] == "disconnected"
    });
    assert_eq!(api.get("/api/v1/actions/http:web")["metrics"]["queued_messages"], 1);
    server.wait_until("an alarm is active", |_| {
        api.get("/api/v1/alarms")["active"][0]["name"] == "action:http:web"
    });

    std::fs::write(&secret, "Bearer x").unwrap();
    api.ok("POST", "/api/v1/connectors/web/enable", &Value::Null);
    server.wait_until("the message has arrived", |_| web.bodies() == ["important"]);
    assert_eq!(api.get("/api/v1/actions/http:web")["problems"], json!([]));
}

#[test]
fn messages_for_a_disabled_action_are_counted() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    api.ok("POST", "/api/v1/actions/file:seen/disable", &Value::Null);
    let rule = json!({"id": "r", "sql": "SELECT payload FROM \"in\"", "actions": ["file:seen", "file:later"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut client = server.session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("in", "x").qos(1));
    server.wait_until("both messages are counted", |_| {
        metrics(&api, "r")["actions.failed.out_of_service"] == 2
    });
    assert_eq!(metrics(&api, "r")["actions.failed"], 2);
    let rule = api.get("/api/v1/rules/r");
    let error = rule["last_error"].as_str().expect("a text");
    assert!(error.contains("file:later"), "{error}");
    assert_eq!(rule["missing_actions"], json!(["file:seen", "file:later"]));
}

#[test]
fn action_buffer_disk_use_is_bounded_by_its_quota() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let mut file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    file["delivery"] = json!({"buffer": {"max_bytes": 65_536, "segment_bytes": 1_073_741_824}});
    api.ok("POST", "/api/v1/actions", &file);
    let bytes = api.get("/api/v1/actions/file:seen")["metrics"]["file_bytes"]
        .as_u64()
        .expect("a number");
    assert!(bytes <= 4 * 65_536, "{bytes}");
}
