//! Tests the columns that `SELECT *` returns for a message of a source, live and in a test run of a rule.

use serde_json::{Value, json};

use super::mqtt_source::{bridged, filters};
use crate::support::api::Api;
use crate::support::kafka::Kafka;
use crate::support::*;

/// Adds a rule that writes its input to the file `seen.jsonl`.
fn add_rule(server: &Server, api: &Api<'_>, from: &str) {
    let file = json!({"type": "file", "name": "seen", "parameters": {"directory": server.dir(), "name": "seen"}});
    api.ok("POST", "/api/v1/actions", &file);
    let rule = json!({"id": "r", "sql": format!("SELECT * FROM \"{from}\""), "actions": ["file:seen"]});
    api.ok("POST", "/api/v1/rules", &rule);
}

/// Waits for the only line of the file and returns it.
fn seen(server: &Server) -> Value {
    let path = server.dir().join("seen.jsonl");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    server.wait_until("the file has a line", |_| text().ends_with('\n'));
    serde_json::from_str(&text()).expect("one line of JSON")
}

/// Returns the names of the defined columns.
fn names(event: &Value) -> Vec<&str> {
    let columns = event.as_object().expect("an object").iter();
    let defined = columns.filter(|(_, value)| *value != "undefined");
    let mut names: Vec<&str> = defined.map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Asserts that a test run of the rule sees an event with the same columns.
#[track_caller]
fn is_tried_with_the_same(api: &Api<'_>, from: &str, live: &Value) {
    let run = json!({"sql": format!("SELECT * FROM \"{from}\"")});
    let result = api.ok("POST", "/api/v1/rules/test", &run);
    let tried = &result["outputs"][0];
    assert_eq!(names(tried), names(live));
    for column in names(live) {
        let kind = std::mem::discriminant::<Value>;
        assert_eq!(
            kind(&tried[column]),
            kind(&live[column]),
            "{column}: {tried:#} {live:#}"
        );
    }
}

fn is_an_id(id: &Value) -> bool {
    let id = id.as_str().unwrap_or_default();
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[test]
fn mqtt_source_messages_have_emqx_columns() {
    let other = Server::start(&Config::new(""));
    let server = bridged(&other);
    let api = Api::of(&server);
    let far = Api::of(&other);
    add_rule(&server, &api, "$bridges/mqtt:in");
    other.wait_until("the source is subscribed", |_| filters(&far) == ["far/#"]);
    let mut publisher = other.session(&Connect::new(V5, "p"));
    publisher.publish(
        &Publish::new("far/1", "21")
            .qos(1)
            .property(property::user("room", "kitchen")),
    );
    let live = seen(&server);
    let columns = [
        "dup",
        "event",
        "id",
        "message_received_at",
        "metadata",
        "node",
        "payload",
        "pub_props",
        "qos",
        "retain",
        "server",
        "timestamp",
        "topic",
    ];
    assert_eq!(names(&live), columns);
    assert!(is_an_id(&live["id"]), "{live:#}");
    assert_eq!(live["server"], other.mqtt().to_string());
    assert_eq!((&live["topic"], &live["payload"]), (&json!("far/1"), &json!("21")));
    assert_eq!(
        (&live["qos"], &live["dup"], &live["retain"]),
        (&json!(1), &json!(false), &json!(false))
    );
    assert_eq!(live["pub_props"]["User-Property"]["room"], "kitchen");
    is_tried_with_the_same(&api, "$bridges/mqtt:in", &live);
}

#[test]
fn kafka_source_records_have_emqx_columns() {
    let kafka = Kafka::shared();
    let telemetry = kafka.topic("telemetry", 1);
    let producer = kafka.producer();
    producer.send(&telemetry, "k1", "21");
    producer.flush();
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    add_rule(&server, &api, "$bridges/kafka_consumer:in");
    let connector = json!({"type": "kafka", "name": "k", "config": {"bootstrap_hosts": kafka.address}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let source = json!({
        "type": "kafka", "name": "in", "connector": "k",
        "parameters": {"kafka_topics": [telemetry], "group_id": telemetry, "offset_reset": "earliest"},
    });
    api.ok("POST", "/api/v1/sources", &source);
    let live = seen(&server);
    let columns = [
        "event",
        "headers",
        "id",
        "key",
        "message_received_at",
        "metadata",
        "node",
        "offset",
        "partition",
        "payload",
        "timestamp",
        "topic",
        "ts",
        "ts_type",
        "value",
    ];
    assert_eq!(names(&live), columns);
    assert!(is_an_id(&live["id"]), "{live:#}");
    assert_eq!((&live["topic"], &live["key"]), (&json!(telemetry), &json!("k1")));
    assert_eq!((&live["value"], &live["payload"]), (&json!("21"), &json!("21")));
    assert_eq!((&live["partition"], &live["offset"]), (&json!(0), &json!(0)));
    assert_eq!((&live["ts_type"], &live["headers"]), (&json!("create"), &json!({})));
    is_tried_with_the_same(&api, "$bridges/kafka_consumer:in", &live);
}
