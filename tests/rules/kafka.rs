//! Tests messages from MQTT to a real Kafka and back, through rules and a source.

use serde_json::json;

use crate::support::api::Api;
use crate::support::kafka::Kafka;
use crate::support::*;

const MESSAGES: usize = 2000;

#[test]
fn kafka_round_trip_delivers_once_and_in_order() {
    let kafka = Kafka::shared();
    let telemetry = kafka.topic("telemetry", 4);
    // All messages are queued for one subscriber.
    let server = Server::start(&Config::new("[mqtt]\nmax_queued_messages = 10000\n"));
    let api = Api::of(&server);
    let connector = json!({"type": "kafka", "name": "k", "config": {"bootstrap_hosts": kafka.address}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let action = json!({
        "type": "kafka", "name": "out", "connector": "k",
        "parameters": {"kafka_topic": telemetry, "key": "${clientid}", "value": "${payload}"},
    });
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "out", "sql": "SELECT clientid, payload FROM \"up/#\"", "actions": ["kafka:out"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let source = json!({
        "type": "kafka", "name": "in", "connector": "k",
        "parameters": {"kafka_topics": [telemetry], "group_id": telemetry, "offset_reset": "earliest"},
        "publish": {"topic": "down/${key}", "payload": "${value}", "qos": 1},
    });
    api.ok("POST", "/api/v1/sources", &source);
    let rule = json!({
        "id": "in",
        "sql": "SELECT partition FROM \"$bridges/kafka_consumer:in\" WHERE value = 'm0'",
        "actions": [{"function": "republish", "args": {"topic": "seen", "payload": "${partition}"}}],
    });
    api.ok("POST", "/api/v1/rules", &rule);
    let mut back = server.session(&Connect::new(V5, "back"));
    back.subscribe("down/#", 1);
    back.subscribe("seen", 0);
    let mut meter = server.session(&Connect::new(V5, "meter"));
    for n in 0..MESSAGES {
        let message = Publish::new("up/1", format!("m{n}")).qos(1);
        meter.send(&message.id(n as u16 + 1).bytes(V5));
        if n % 100 == 99 {
            (0..100).for_each(|_| assert_eq!(meter.expect(4).reason(), 0x10));
        }
    }
    let mut seen = 0;
    let mut next = 0;
    while next < MESSAGES {
        let delivery = back.receive();
        if delivery.topic == b"seen" {
            seen += 1;
            continue;
        }
        assert_eq!(delivery.topic, b"down/meter");
        assert_eq!(String::from_utf8_lossy(&delivery.payload), format!("m{next}"));
        next += 1;
    }
    assert_eq!(seen, 1);
    let metrics = &api.get("/api/v1/actions/kafka:out")["metrics"];
    assert_eq!((&metrics["sent"], &metrics["failed"]), (&json!(MESSAGES), &json!(0)));
    assert_eq!(api.get("/api/v1/sources/kafka:in")["health"]["state"], "connected");
}
