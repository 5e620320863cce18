//! The live trace: packets in both directions with their fields, events, hidden secrets, filters.

use mqtt::{QoS, ReasonCode};
use serde_json::{Value, json};

use super::node::Node;
use super::peer::Peer;
use super::web_socket::WebSocket;

/// Returns a short description of an entry.
fn short(entry: &Value) -> String {
    match entry["type"].as_str().unwrap() {
        "packet" => format!(
            "{} {}",
            entry["direction"].as_str().unwrap(),
            entry["packet"].as_str().unwrap()
        ),
        "event" => entry["event"].as_str().unwrap().to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the entries up to and including `last`.
fn until(socket: &mut WebSocket, last: &str) -> Vec<Value> {
    let mut entries = Vec::new();
    loop {
        entries.push(socket.next());
        if short(&entries[entries.len() - 1]) == last {
            return entries;
        }
    }
}

fn shorts(entries: &[Value]) -> Vec<String> {
    entries.iter().map(short).collect()
}

#[test]
fn client_is_traced_from_connect_to_disconnect() {
    let node = Node::start(3).with_login();
    node.send(
        "POST",
        "/api/v1/users",
        &json!({ "name": "ada", "password": "open sesame" }),
    )
    .ok();
    for id in ["one", "two", "three", "four"] {
        let mut socket = WebSocket::open(&node, &format!("/api/v1/trace?client_id={id}&payload_bytes=4"));
        assert_eq!(socket.next()["type"], "begin");
        let mut other = node.peer("other");
        let mut peer = Peer::connect(node.mqtt_address(), id, Some(("ada", "open sesame")));
        peer.subscribe("a/#", QoS::AtLeastOnce);
        other.publish("a/b", b"from another", false);
        assert_eq!(peer.receive().payload, b"from another");
        assert_eq!(
            peer.publish_acknowledged("x", b"12345", false),
            ReasonCode::NoMatchingSubscribers
        );
        node.delete(&format!("/api/v1/clients/{id}")).ok();
        assert_eq!(peer.receive_disconnect(), ReasonCode::AdministrativeAction);
        let entries = until(&mut socket, "sent DISCONNECT");
        assert_eq!(
            shorts(&entries),
            [
                "received CONNECT",
                "connected",
                "sent CONNACK",
                "received SUBSCRIBE",
                "sent SUBACK",
                "sent PUBLISH",
                "received PUBLISH",
                "sent PUBACK",
                "disconnected",
                "sent DISCONNECT",
            ]
        );
        assert!(
            entries
                .iter()
                .all(|entry| entry["client_id"] == id && entry["omitted"] == 0)
        );
        let connect = &entries[0]["fields"];
        assert_eq!(
            (&connect["user_name"], &connect["password"]),
            (&json!("ada"), &json!("***"))
        );
        assert!(!json!(entries).to_string().contains("sesame"));
        let publish = &entries[5]["fields"];
        assert_eq!(
            (
                &publish["topic"],
                &publish["payload"],
                &publish["payload_bytes"],
                &publish["qos"]
            ),
            (&json!("a/b"), &json!("from"), &json!(12), &json!(0))
        );
        assert_eq!(entries[7]["fields"]["reason"], "No matching subscribers");
        assert_eq!(entries[8]["fields"]["detail"], "disconnected by an operator");
    }
}

#[test]
fn rejected_login_is_traced_by_user_and_address() {
    let node = Node::start(2).with_login();
    let targets = ["user_name=eve", "address=127.0.0.1", "client_id=c&user_name=eve"];
    let mut sockets = targets.map(|query| WebSocket::open(&node, &format!("/api/v1/trace?{query}")));
    let mut by_other_user = WebSocket::open(&node, "/api/v1/trace?client_id=other&user_name=eve");
    let (_, reason) = Peer::try_connect(node.mqtt_address(), "c", Some(("eve", "wrong")));
    assert_eq!(reason, ReasonCode::BadUserNameOrPassword);
    for socket in &mut sockets {
        let entries = until(socket, "sent CONNACK");
        assert_eq!(
            shorts(&entries),
            ["begin", "received CONNECT", "refused", "sent CONNACK"]
        );
        assert_eq!(entries[2]["fields"]["detail"], "wrong password");
    }
    assert_eq!(by_other_user.next()["type"], "begin");
    let (_, reason) = Peer::try_connect(node.mqtt_address(), "other", Some(("eve", "wrong")));
    assert_eq!(reason, ReasonCode::BadUserNameOrPassword);
    assert_eq!(
        shorts(&until(&mut by_other_user, "sent CONNACK")),
        ["received CONNECT", "refused", "sent CONNACK"]
    );
}

#[test]
fn topic_is_traced_across_clients() {
    let node = Node::start(3).with_login();
    let mut socket = WebSocket::open(&node, "/api/v1/trace?topic=plant/%2B");
    let (mut writer, mut reader) = (node.peer("writer"), node.peer("reader"));
    reader.subscribe("plant/1", QoS::AtMostOnce);
    reader.subscribe("other", QoS::AtMostOnce);
    writer.publish("elsewhere", b"x", false);
    writer.publish("plant/1", b"x", false);
    reader.receive();
    let mut entries = until(&mut socket, "sent PUBLISH");
    // The entries of two shards arrive in any order.
    let mut seen = shorts(&entries.split_off(1));
    seen.sort();
    seen.retain(|entry| entry != "received PUBLISH");
    assert_eq!(seen, ["received SUBSCRIBE", "sent PUBLISH"]);
}

#[test]
fn entries_of_a_flooding_client_are_counted() {
    let node = Node::start(1).with_login();
    let mut socket = WebSocket::open(&node, "/api/v1/trace?client_id=flood&per_second=2");
    assert_eq!(socket.next()["type"], "begin");
    let mut peer = node.peer("flood");
    for _ in 0..200 {
        peer.publish("x", b"x", false);
    }
    peer.ping();
    // CONNECT, Connected, CONNACK, 200 PUBLISH, PINGREQ and PINGRESP.
    let (mut shown, mut omitted) = (0, 0);
    while shown + omitted < 205 {
        let entry = socket.next();
        omitted += entry["omitted"].as_u64().unwrap();
        shown += u64::from(entry["type"] != "omitted");
    }
    assert_eq!(shown + omitted, 205);
    assert!(omitted >= 100, "{omitted}");
}

#[test]
fn trace_parameters_are_validated() {
    let node = Node::start(1).with_login();
    let field = |query: &str| node.get(&format!("/api/v1/trace?{query}")).problem(422)["field"].clone();
    assert_eq!(field(""), "client_id");
    assert_eq!(field("client_id=a&per_second=0"), "per_second");
    assert_eq!(field("client_id=a&payload_bytes=5000"), "payload_bytes");
    assert_eq!(field("address=localhost"), "address");
    assert_eq!(field("topic=a/%23/b"), "topic");
    node.get("/api/v1/trace?client_id=a").problem(426);
}
