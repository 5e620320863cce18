//! Tests alarms of the node: the API, `$SYS` topics and rules report when an alarm is raised and when it clears.

use serde_json::{Value, json};

use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

const SYS: &str = "[sys]\ninterval = \"10s\"\nemqx_tree = true\n";

#[test]
fn unreachable_target_raises_an_alarm_until_it_recovers() {
    let server = Server::start(&Config::new(SYS));
    let api = Api::of(&server);
    let actions = json!([{"function": "republish", "args": {"topic": "reported/${event}", "payload": "", "qos": 1}}]);
    let sql = "SELECT event, name, details.reason AS reason, activated_at, deactivated_at \
               FROM \"$events/sys/alarm_activated\", \"$events/sys/alarm_deactivated\"";
    api.ok(
        "POST",
        "/api/v1/rules",
        &json!({"id": "report", "sql": sql, "actions": actions}),
    );
    assert_eq!(api.get("/api/v1/alarms"), json!({"active": [], "ended": []}));
    let mut sys = server.session(&Connect::new(V5, "sys"));
    sys.subscribe("$SYS/brokers/+/alarms/#", 0);
    let mut rule = server.session(&Connect::new(V5, "rule"));
    rule.subscribe("reported/#", 1);

    // The action is created last, because the alarm may begin before the first message: the server connects as soon
    // as an action exists.
    let web = WebServer::away();
    let config = json!({"url": format!("http://{}", web.address)});
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "http", "name": "web", "config": config}),
    );
    let action = json!({"type": "http", "name": "web", "connector": "web", "parameters": {"body": "${payload}"}});
    api.ok("POST", "/api/v1/actions", &action);
    let sent = json!({"id": "send", "sql": "SELECT * FROM \"in\"", "actions": ["http:web"]});
    api.ok("POST", "/api/v1/rules", &sent);
    server
        .session(&Connect::new(V5, "c"))
        .publish(&Publish::new("in", "x").qos(1));
    let (topic, begun) = next(&mut sys);
    assert!(topic.ends_with("/alarms/activate"), "{topic}");
    assert_eq!(
        (&begun["name"], &begun["duration"]),
        (&json!("action:http:web"), &json!(0))
    );
    let (topic, of_rule) = next(&mut rule);
    assert_eq!(
        (&*topic, &of_rule["name"]),
        ("reported/alarm.activated", &json!("action:http:web"))
    );
    assert_eq!(of_rule["reason"], begun["details"]["reason"]);
    let alarms = api.get("/api/v1/alarms");
    let active = &alarms["active"][0];
    assert_eq!(active["name"], "action:http:web");
    assert_eq!(active["activated_at_unix_ms"], of_rule["activated_at"]);
    let message = active["message"].as_str().expect("a text");
    assert!(message.starts_with("The action http:web has failed: "), "{message}");
    assert_eq!(alarms["ended"], json!([]));
    assert!(server.http_get("/metrics").1.contains("\ntidewire_alarms 1\n"));

    web.come();
    let (topic, over) = next(&mut sys);
    assert!(topic.ends_with("/alarms/deactivate"), "{topic}");
    assert_eq!(over["name"], "action:http:web");
    let (topic, of_rule) = next(&mut rule);
    assert_eq!(
        (&*topic, &of_rule["name"]),
        ("reported/alarm.deactivated", &json!("action:http:web"))
    );
    let alarms = api.get("/api/v1/alarms");
    assert_eq!(alarms["active"], json!([]));
    assert_eq!(alarms["ended"][0]["deactivated_at_unix_ms"], of_rule["deactivated_at"]);
    assert_eq!(web.bodies().len(), 1);
    assert_eq!(api.call("DELETE", "/api/v1/alarms", &Value::Null).0, 204);
    assert_eq!(api.get("/api/v1/alarms"), json!({"active": [], "ended": []}));
}

fn next(peer: &mut Peer) -> (String, Value) {
    let message = peer.receive();
    let payload = serde_json::from_slice(&message.payload).expect("JSON");
    (message.topic_str().to_owned(), payload)
}
