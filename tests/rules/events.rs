//! Tests events for packets other than PUBLISH: their columns have EMQX's names for the properties that clients send.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

/// Returns the line of this event.
fn seen(lines: &str, event: &str) -> Value {
    let mut lines = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
    lines.find(|line| line["event"] == event).unwrap_or_default()
}

#[test]
fn properties_of_client_packets_are_columns() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    let sql = "SELECT * FROM \"$events/client/connected\", \"$events/client_connack\", \"$events/client_disconnected\", \
               \"$events/session/subscribed\", \"$events/session_unsubscribed\" WHERE clientid = 'lamp'";
    api.ok(
        "POST",
        "/api/v1/rules",
        &json!({"id": "r", "sql": sql, "actions": ["file:seen"]}),
    );
    let connect = Connect::new(V5, "lamp")
        .property(property::u16(property::RECEIVE_MAXIMUM, 10))
        .property(property::user("room", "kitchen"));
    let mut client = server.session(&connect);
    let properties = [
        property::varint(property::SUBSCRIPTION_IDENTIFIER, 7),
        property::user("why", "light"),
    ]
    .concat();
    client.send(&packet::subscribe(V5, 1, &[("t/#", 1)], &properties));
    client.expect(kind::SUBACK);
    assert_eq!(client.unsubscribe("t/#"), 0);
    let properties = [
        property::text(property::REASON_STRING, "night"),
        property::user("why", "dark"),
    ]
    .concat();
    client.send(&packet::disconnect(0, &properties));
    let path = server.dir().join("seen.jsonl");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    server.wait_until("all events are in the file", |_| text().lines().count() == 5);
    let text = text();

    let connected = seen(&text, "client.connected");
    assert_eq!(connected["receive_maximum"], 10);
    let pairs = |name: &str, value: &str| json!([{"key": name, "value": value}]);
    let conn_props = json!({
        "Receive-Maximum": 10, "User-Property": {"room": "kitchen"}, "User-Property-Pairs": pairs("room", "kitchen"),
    });
    assert_eq!(connected["conn_props"], conn_props);
    assert_eq!(seen(&text, "client.connack")["conn_props"], conn_props);
    let subscribed = seen(&text, "session.subscribed");
    let sub_props = json!({
        "Subscription-Identifier": 7, "User-Property": {"why": "light"}, "User-Property-Pairs": pairs("why", "light"),
    });
    assert_eq!((&subscribed["sub_props"], &subscribed["qos"]), (&sub_props, &json!(1)));
    let unsubscribed = seen(&text, "session.unsubscribed");
    assert_eq!(
        (&unsubscribed["topic"], &unsubscribed["qos"]),
        (&json!("t/#"), &json!(1))
    );
    assert_eq!(unsubscribed["unsub_props"], json!({"User-Property": {}}));
    let disconn_props = json!({
        "Reason-String": "night", "User-Property": {"why": "dark"}, "User-Property-Pairs": pairs("why", "dark"),
    });
    assert_eq!(seen(&text, "client.disconnected")["disconn_props"], disconn_props);
}

/// The column `sockname` is also present for rejected clients.
#[test]
fn events_name_the_listener_of_the_client() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    let sql = "SELECT event, clientid, sockname, peername, client_attrs FROM \"$events/client/connected\", \
               \"$events/client/disconnected\", \"$events/client/connack\", \"$events/client/ping\"";
    let rule = json!({"id": "r", "sql": sql, "actions": ["file:seen"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut lamp = server.session(&Connect::new(V5, "lamp"));
    lamp.ping();
    lamp.disconnect();
    let mut nobody = server.connect();
    nobody.send(&Connect::new(V4, "").clean(false).bytes());
    nobody.expect(kind::CONNACK);
    let mut page = server.web_socket();
    page.send(&Connect::new(V5, "page").bytes());
    page.expect_packet();
    let path = server.dir().join("seen.jsonl");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    server.wait_until("all events are in the file", |_| text().lines().count() == 7);
    let mut found: Vec<(String, String, String)> = Vec::new();
    for line in text().lines() {
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        let word = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        assert!(word("peername").starts_with("127.0.0.1:"), "{line}");
        assert_ne!(word("peername"), word("sockname"));
        found.push((word("clientid"), word("event"), word("sockname")));
    }
    found.sort();
    let (mqtt, web) = (server.mqtt().to_string(), server.websocket().to_string());
    let expected = [
        ("", "client.connack", &mqtt),
        ("lamp", "client.connack", &mqtt),
        ("lamp", "client.connected", &mqtt),
        ("lamp", "client.disconnected", &mqtt),
        ("lamp", "client.ping", &mqtt),
        ("page", "client.connack", &web),
        ("page", "client.connected", &web),
    ];
    let expected = expected.map(|(client, event, address)| (client.to_owned(), event.to_owned(), address.clone()));
    assert_eq!(found, expected);
}

/// Uses the arguments of EMQX's republish function.
#[test]
fn republished_properties_follow_emqx() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let republish = |arguments: Value| json!([{"function": "republish", "args": arguments}]);
    let arguments = json!({
        "topic": "out/${topic}", "payload": "", "qos": "${qos}", "retain": false, "user_properties": "${props}",
        "mqtt_properties": {"Content-Type": "text/${kind}", "Response-Topic": "answers", "Payload-Format-Indicator": "1",
            "Correlation-Data": "${topic}-7", "Message-Expiry-Interval": "${expiry}"},
    });
    let sql = "SELECT pub_props.'User-Property' AS props, topic, qos, 'plain' AS kind, 60 AS expiry FROM \"in\"";
    let rule = json!({"id": "r", "sql": sql, "actions": republish(arguments)});
    api.ok("POST", "/api/v1/rules", &rule);
    let unknown = json!({"id": "u", "sql": sql, "actions": republish(json!({"topic": "t", "mqtt_properties": {"Reason-String": "x"}}))});
    let (status, problem) = api.call("POST", "/api/v1/rules", &unknown);
    assert!(
        status == 422 && problem.to_string().contains("Reason-String"),
        "{problem:#}"
    );
    let mut watcher = server.session(&Connect::new(V5, "w"));
    watcher.subscribe("out/#", 1);
    let mut client = server.session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("in", "x").qos(1).property(property::user("a", "1")));
    let message = watcher.receive();
    let output: Value = serde_json::from_slice(&message.payload).expect("all of the output, as JSON");
    assert_eq!(
        output,
        json!({"expiry": 60, "kind": "plain", "props": {"a": "1"}, "qos": 1, "topic": "in"})
    );
    let properties = &message.properties;
    assert_eq!(properties.bytes(property::CONTENT_TYPE), Some(&b"text/plain"[..]));
    assert_eq!(properties.bytes(property::RESPONSE_TOPIC), Some(&b"answers"[..]));
    assert_eq!(properties.number(property::PAYLOAD_FORMAT_INDICATOR), Some(1));
    assert_eq!(properties.bytes(property::CORRELATION_DATA), Some(&b"in-7"[..]));
    let expiry = properties.number(property::MESSAGE_EXPIRY_INTERVAL);
    assert!((1..=60).contains(&expiry.unwrap_or_default()), "{expiry:?}");
    assert_eq!(properties.user_properties(), [("a".to_owned(), "1".to_owned())]);
}

/// With `direct_dispatch`, as a value or a template, the message goes to subscribers only.
#[test]
fn direct_dispatch_skips_rules_and_retained_messages() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let rule = |id: &str, from: &str, arguments: Value| json!({"id": id, "sql": format!("SELECT payload, topic FROM \"{from}\""), "actions": [{"function": "republish", "args": arguments}]});
    let arguments = json!({"topic": "out/${topic}", "retain": true, "direct_dispatch": "${payload}"});
    api.ok("POST", "/api/v1/rules", &rule("first", "in/#", arguments.clone()));
    api.ok(
        "POST",
        "/api/v1/rules",
        &rule("second", "out/#", json!({"topic": "again/${topic}"})),
    );
    let shown = api.get("/api/v1/rules/first")["actions"][0]["args"].clone();
    assert_eq!(shown["direct_dispatch"], arguments["direct_dispatch"]);
    let wrong = rule("wrong", "in/#", json!({"topic": "t", "direct_dispatch": 7}));
    let (status, problem) = api.call("POST", "/api/v1/rules", &wrong);
    assert_eq!(
        (status, &problem["field"], &problem["detail"]),
        (
            422,
            &json!("actions[0].args.direct_dispatch"),
            &json!("7 is not true, false or a template")
        )
    );
    let mut watcher = server.session(&Connect::new(V5, "w"));
    watcher.subscribe("out/#", 1);
    watcher.subscribe("again/#", 1);
    let mut client = server.session(&Connect::new(V5, "c"));
    for (topic, direct) in [("in/1", "true"), ("in/2", "false")] {
        client.publish(&Publish::new(topic, direct).qos(1));
    }
    let mut topics: Vec<String> = (0..3).map(|_| watcher.receive().topic_str().to_owned()).collect();
    topics.sort();
    assert_eq!(topics, ["again/out/in/2", "out/in/1", "out/in/2"]);
    watcher.ping_alone();
    let mut late = server.session(&Connect::new(V5, "late"));
    late.subscribe("out/#", 1);
    assert_eq!(late.receive().topic_str(), "out/in/2");
    late.ping_alone();
    assert_eq!(api.get("/api/v1/rules/second")["metrics"]["matched"], 1);
}
