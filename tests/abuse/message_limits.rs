//! Messages that the server itself publishes have the limits of messages of clients: messages of rules, of sources, of
//! fallback actions and of the API.

use serde_json::{Value as Json, json};

use crate::support::api::Api;
use crate::support::*;

const CONFIG: &str = "[mqtt]\nmax_topic_levels = 3\nmax_packet_size = \"4KiB\"\nmax_qos = 1\nretain_available = false\n\
     control_characters = false\n";

/// Messages that exceed one limit each. `n` identifies them.
fn beyond_limits() -> Vec<Json> {
    let message = |topic: &str, payload: &str, qos: u8, retain: bool| json!({"topic": topic, "payload": payload, "qos": qos, "retain": retain});
    vec![
        message("out/a/b/c", "x", 0, false),
        message("out/\u{1}", "x", 0, false),
        message("out/large", &"x".repeat(4 << 10), 0, false),
        message("out/qos", "x", 2, false),
        message("out/retain", "x", 0, true),
    ]
}

#[test]
fn api_publishes_within_the_limits_of_clients() {
    let server = Server::start(&Config::new(CONFIG));
    let api = Api::of(&server);
    let mut subscriber = server.session(&Connect::new(V4, unique("limits")));
    subscriber.subscribe("out/#", 0);
    for (message, field) in beyond_limits()
        .iter()
        .zip(["topic", "topic", "payload", "qos", "retain"])
    {
        let (status, answer) = api.call("POST", "/api/v1/publish", message);
        assert_eq!((status, &answer["field"]), (422, &json!(field)), "{message}: {answer}");
    }
    let (status, answer) = api.call("POST", "/api/v1/publish/bulk", &json!({"messages": beyond_limits()}));
    assert_eq!(status, 422);
    assert_eq!(answer["errors"].as_array().map(Vec::len), Some(5), "{answer}");
    api.ok(
        "POST",
        "/api/v1/publish",
        &json!({"topic": "out/a/b", "payload": "last", "qos": 1}),
    );
    assert_eq!(subscriber.receive().payload_str(), "last");
}

#[test]
fn rules_republish_within_the_limits_of_clients() {
    let server = Server::start(&Config::new(CONFIG));
    let api = Api::of(&server);
    // The payload of the rule is larger than that of the publisher.
    let arguments = json!({"topic": "${payload.topic}", "payload": "${payload.payload}${payload.payload}",
        "qos": "${payload.qos}", "retain": "${payload.retain}"});
    let rule = json!({"id": "r", "sql": "SELECT * FROM \"in\"",
        "actions": [{"function": "republish", "args": arguments}]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut subscriber = server.session(&Connect::new(V4, unique("limits")));
    subscriber.subscribe("out/#", 0);
    let mut publisher = server.session(&Connect::new(V4, unique("limits")));
    let mut messages = beyond_limits();
    messages[2]["payload"] = json!("x".repeat(3 << 10));
    messages.push(json!({"topic": "out/a/b", "payload": "last"}));
    for message in messages {
        publisher.publish(&Publish::new("in", message.to_string()).qos(1));
    }
    assert_eq!(subscriber.receive().payload_str(), "lastlast");
    let metrics = || api.get("/api/v1/rules/r")["metrics"].clone();
    server.wait_until("the refused messages are counted", |_| metrics()["actions.failed"] == 5);
    assert_eq!(metrics()["actions.success"], 1);
}

#[test]
fn bridges_publish_within_the_limits_of_clients() {
    // A connection of the server to itself is not local.
    let server = Server::start(&Config::new(format!("{CONFIG}[access]\nanonymous = \"always\"\n")));
    let api = Api::of(&server);
    let config = json!({"server": server.mqtt().to_string(), "client_id": "bridge"});
    let connector = json!({"type": "mqtt", "name": "self", "config": config});
    api.ok("POST", "/api/v1/connectors", &connector);
    let source = json!({"type": "mqtt", "name": "in", "connector": "self",
        "parameters": {"subscriptions": [{"filter": "in/#"}]},
        "publish": {"topic": "out/${topic}", "payload": "${payload}"}});
    api.ok("POST", "/api/v1/sources", &source);
    let mut subscriber = server.session(&Connect::new(V4, unique("limits")));
    subscriber.subscribe("out/#", 0);
    let mut publisher = server.session(&Connect::new(V4, unique("limits")));
    server.wait_until("the source is connected", |_| {
        api.get("/api/v1/sources/mqtt:in")["health"]["state"] == "connected"
    });
    server.wait_until("the source has subscribed", |_| {
        let (status, list) = api.call("GET", "/api/v1/clients/bridge/subscriptions", &Json::Null);
        status == 200 && list.to_string().contains("in/#")
    });
    publisher.publish(&Publish::new("in/a/b", "four levels with out").qos(1));
    publisher.publish(&Publish::new("in/a", "last").qos(1));
    let message = subscriber.receive();
    assert_eq!((message.topic_str(), message.payload_str()), ("out/in/a", "last"));
}
