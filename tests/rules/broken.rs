//! Actions that cannot run: what was acknowledged is kept for them, or counted as lost where somebody has switched them off.

use serde_json::{Value, json};

use crate::api::Api;
use crate::support::*;
use crate::web_server::WebServer;

fn metrics(api: &Api<'_>, rule: &str) -> Value {
    api.get(&format!("/api/v1/rules/{rule}"))["metrics"].clone()
}

#[test]
fn what_was_acknowledged_waits_for_an_action_whose_secret_is_gone() {
    let mut server = Server::start(&Config::new(""));
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
    server.wait_until("it is told that the target is away", |_| {
        api.get("/api/v1/actions/http:web")["health"]["state"] == "disconnected"
    });
    assert_eq!(api.get("/api/v1/actions/http:web")["metrics"]["queued_messages"], 1);
    server.wait_until("there is an alarm", |_| {
        api.get("/api/v1/alarms")["active"][0]["name"] == "action:http:web"
    });

    std::fs::write(&secret, "Bearer x").unwrap();
    api.ok("POST", "/api/v1/connectors/web/enable", &Value::Null);
    server.wait_until("it has arrived", |_| web.bodies() == ["important"]);
    assert_eq!(api.get("/api/v1/actions/http:web")["problems"], json!([]));
}

#[test]
fn what_rules_have_for_an_action_that_is_switched_off_is_counted() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    api.ok("POST", "/api/v1/actions/file:seen/disable", &Value::Null);
    let rule = json!({"id": "r", "sql": "SELECT payload FROM \"in\"", "actions": ["file:seen", "file:later"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut client = server.session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("in", "x").qos(1));
    server.wait_until("both are counted", |_| {
        metrics(&api, "r")["actions.failed.out_of_service"] == 2
    });
    assert_eq!(metrics(&api, "r")["actions.failed"], 2);
    let rule = api.get("/api/v1/rules/r");
    let error = rule["last_error"].as_str().expect("a text");
    assert!(error.contains("file:later"), "{error}");
    assert_eq!(rule["missing_actions"], json!(["file:seen", "file:later"]));
}

#[test]
fn a_buffer_takes_no_more_of_the_disk_than_its_quota_says() {
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
