//! Publishing over HTTP, and managing retained messages.

use mqtt::{Properties, QoS};
use serde_json::{Value, json};

use super::node::Node;

#[test]
fn published_message_arrives_with_all_properties() {
    let node = Node::start(3).with_login();
    let mut peer = node.peer("subscriber");
    peer.subscribe("room/+", QoS::ExactlyOnce);
    let answer = node.send(
        "POST",
        "/api/v1/publish",
        &json!({
            "topic": "room/1", "payload": "/wA=", "payload_encoding": "base64", "qos": 1,
            "properties": {
                "content_type": "application/octet-stream", "response_topic": "answers", "correlation_data": "AQI=",
                "message_expiry_interval": 60, "payload_format_indicator": 0,
                "user_properties": [{ "name": "k", "value": "v" }, { "name": "k", "value": "w" }],
            },
        }),
    );
    assert_eq!(answer.ok().json(), json!({ "matched": true }));
    let message = peer.receive();
    assert_eq!(
        (message.topic.as_str(), &*message.payload, message.qos),
        ("room/1", &[0xff, 0][..], QoS::AtLeastOnce)
    );
    let properties = Properties::from_validated(&message.properties);
    assert_eq!(properties.content_type(), Some("application/octet-stream"));
    assert_eq!(properties.response_topic(), Some("answers"));
    assert_eq!(properties.correlation_data(), Some(&[1, 2][..]));
    assert!(
        properties
            .message_expiry_interval()
            .is_some_and(|left| (50..=60).contains(&left))
    );
    assert_eq!(
        properties.user_properties().collect::<Vec<_>>(),
        [("k", "v"), ("k", "w")]
    );
    let unheard = node.send("POST", "/api/v1/publish", &json!({ "topic": "missing/listens" }));
    assert_eq!(unheard.ok().json(), json!({ "matched": false }));
}

#[test]
fn user_properties_may_be_an_object() {
    let node = Node::start(1).with_login();
    let mut peer = node.peer("subscriber");
    peer.subscribe("room/+", QoS::AtLeastOnce);
    let publish = |user_properties: Value| {
        let properties = json!({ "user_properties": user_properties });
        let message = json!({ "topic": "room/1", "payload": "x", "properties": properties });
        node.send("POST", "/api/v1/publish", &message)
    };
    assert_eq!(
        publish(json!({ "room": "5", "floor": "2" })).ok().json()["matched"],
        true
    );
    let message = peer.receive();
    let mut found: Vec<(&str, &str)> = Properties::from_validated(&message.properties)
        .user_properties()
        .collect();
    found.sort_unstable();
    assert_eq!(found, [("floor", "2"), ("room", "5")]);
    // A value that is not a text is rejected.
    publish(json!({ "room": 5 })).problem(400);
}

#[test]
fn bulk_publish_is_ordered_and_all_or_nothing() {
    let node = Node::start(3).with_login();
    let mut peer = node.peer("subscriber");
    peer.subscribe("n", QoS::AtMostOnce);
    let messages: Vec<Value> = (0..200)
        .map(|n| json!({ "topic": "n", "payload": n.to_string() }))
        .collect();
    let answer = node
        .send("POST", "/api/v1/publish/bulk", &json!({ "messages": messages }))
        .ok()
        .json();
    assert_eq!(answer["results"].as_array().unwrap().len(), 200);
    for n in 0..200 {
        assert_eq!(peer.receive().payload, n.to_string().as_bytes());
    }
    let bad = json!({ "messages": [{ "topic": "n", "payload": "x" }, { "topic": "a/#" }, { "topic": "n", "qos": 3 }] });
    let problem = node.send("POST", "/api/v1/publish/bulk", &bad).problem(422);
    let fields: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["field"].clone())
        .collect();
    assert_eq!(fields, ["messages[1].topic", "messages[2].qos"]);
    node.send("POST", "/api/v1/publish/bulk", &json!({ "messages": [] }))
        .problem(422);
    node.send("POST", "/api/v1/publish", &json!({ "topic": "n", "payload": "next" }))
        .ok();
    assert_eq!(
        peer.receive().payload,
        b"next",
        "nothing of the bad request was published"
    );
}

#[test]
fn invalid_messages_are_rejected_with_their_field() {
    let node = Node::start(1).with_login();
    let problem = |body: Value, status| node.send("POST", "/api/v1/publish", &body).problem(status);
    assert_eq!(problem(json!({ "topic": "" }), 422)["field"], "topic");
    assert_eq!(
        problem(json!({ "topic": "$SYS/broker/version" }), 422)["field"],
        "topic"
    );
    assert_eq!(problem(json!({ "topic": "a/".repeat(200) }), 422)["field"], "topic");
    assert_eq!(
        problem(
            json!({ "topic": "a", "payload": "?", "payload_encoding": "base64" }),
            422
        )["field"],
        "payload"
    );
    let unknown = problem(json!({ "topc": "a" }), 400);
    assert_eq!(unknown["detail"], "unknown field `topc`; did you mean `topic`?");
    let nested = problem(json!({ "topic": "a", "properties": { "content-type": "x" } }), 400);
    assert_eq!(
        nested["detail"],
        "unknown field `content-type`; did you mean `content_type`?"
    );
    assert_eq!(nested["field"], "properties.content-type");
    assert_eq!(problem(json!({ "topic": 1 }), 400)["field"], "topic");
    let variant = problem(json!({ "topic": "a", "payload_encoding": "base65" }), 400);
    assert_eq!(variant["detail"], "unknown value `base65`; did you mean `base64`?");
    assert!(
        problem(json!({}), 400)["detail"]
            .as_str()
            .unwrap()
            .contains("missing field `topic`")
    );
    node.request("POST", "/api/v1/publish", "{").problem(400);
}

#[test]
fn retained_messages_are_paged_across_shards() {
    let node = Node::start(3).with_login();
    let mut peer = node.peer("publisher");
    for n in 0..60 {
        peer.publish_acknowledged(&format!("plant/{}/value/{n}", n % 3), n.to_string().as_bytes(), true);
    }
    let all = |target: &str, limit| {
        let mut topics: Vec<String> = node
            .all_pages(target, limit)
            .iter()
            .map(|item| item["topic"].as_str().unwrap().to_owned())
            .collect();
        topics.sort();
        topics
    };
    let mut expected: Vec<String> = (0..60).map(|n| format!("plant/{}/value/{n}", n % 3)).collect();
    expected.sort();
    // A message for another shard is retained one tick later.
    node.wait_for("all messages to be retained", || {
        all("/api/v1/retained", 1000).len() == 60
    });
    for limit in [1, 7, 60] {
        assert_eq!(all("/api/v1/retained", limit), expected, "limit {limit}");
    }
    assert_eq!(all("/api/v1/retained?filter=plant/1/%23", 7).len(), 20);
    assert_eq!(all("/api/v1/retained?filter=plant/%2B/value/7", 7), ["plant/1/value/7"]);
    assert_eq!(node.get("/api/v1/retained?filter=a%23").problem(422)["field"], "filter");

    // Without a filter, nothing is deleted.
    node.delete("/api/v1/retained").problem(400);
    assert_eq!(
        node.delete("/api/v1/retained?filter=a%23").problem(422)["field"],
        "filter"
    );
    for (filter, deleted, left) in [
        ("plant/1/%23", 20, 40),
        ("plant/1/%23", 0, 40),
        ("plant/%2B/value/9", 1, 39),
        ("%23", 39, 0),
    ] {
        let answer = node.delete(&format!("/api/v1/retained?filter={filter}")).ok().json();
        assert_eq!(answer, json!({ "deleted": deleted }), "{filter}");
        assert_eq!(all("/api/v1/retained", 1000).len(), left, "{filter}");
    }
}

#[test]
fn retained_message_is_read_and_deleted() {
    let node = Node::start(3).with_login();
    let payload = "ü".repeat(200);
    let body = json!({ "topic": "/odd topic/ü", "payload": payload, "retain": true, "qos": 1, "properties": { "content_type": "text/plain" } });
    node.send("POST", "/api/v1/publish", &body).ok();
    let target = "/api/v1/retained/%2Fodd%20topic/%C3%BC";
    node.wait_for("the message to be retained", || node.get(target).status == 200);
    let message = node.get(target).json();
    assert_eq!(
        (message["topic"].as_str(), message["payload"].as_str()),
        (Some("/odd topic/ü"), Some(payload.as_str()))
    );
    assert_eq!((&message["qos"], &message["payload_bytes"]), (&json!(1), &json!(400)));
    assert_eq!(message["properties"], json!({ "content_type": "text/plain" }));
    let listed = node.get("/api/v1/retained?filter=/odd%20topic/%23").ok().json()["items"][0].clone();
    assert_eq!(
        (listed["payload"].as_str(), &listed["payload_bytes"]),
        (Some("ü".repeat(128).as_str()), &json!(400))
    );
    assert_eq!(node.delete(target).status, 204);
    node.get(target).problem(404);
    node.delete(target).problem(404);
}
