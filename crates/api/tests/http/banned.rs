//! Bans: rejection at CONNECT, immediate disconnection, deletion, validation.

use mqtt::ReasonCode;
use serde_json::{Value, json};

use super::node::Node;
use super::peer::Peer;

fn ban(node: &Node, body: &Value) -> Value {
    let answer = node.send("POST", "/api/v1/banned", body);
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.json()
}

fn connect(node: &Node, client_id: &str) -> ReasonCode {
    Peer::try_connect(node.mqtt_address(), client_id, None).1
}

#[test]
fn banned_client_is_rejected_until_the_ban_is_deleted() {
    let node = Node::start(3).with_login();
    let mut peers: Vec<Peer> = (0..8).map(|n| node.peer(&format!("bad-{n}"))).collect();
    let mut good = node.peer("good");
    let made = ban(
        &node,
        &json!({ "kind": "client_id_pattern", "who": "^bad-", "reason": "floods" }),
    );
    assert_eq!((&made["by"], &made["until_unix_ms"]), (&json!("admin"), &Value::Null));
    for peer in &mut peers {
        assert_eq!(peer.receive_disconnect(), ReasonCode::AdministrativeAction);
    }
    good.ping();
    assert_eq!(connect(&node, "bad-1"), ReasonCode::Banned);
    let refused = node.get("/api/v1/refused-clients").ok().json();
    assert_eq!(
        (
            &refused[0]["client_id"],
            &refused[0]["detail"],
            &refused[0]["reason_code"]
        ),
        (
            &json!("bad-1"),
            &json!("the client id matches a pattern that is banned"),
            &json!(0x8a)
        )
    );
    assert_eq!(node.delete("/api/v1/banned/client_id_pattern/%5Ebad-").status, 204);
    assert_eq!(connect(&node, "bad-1"), ReasonCode::Success);
    node.delete("/api/v1/banned/client_id_pattern/%5Ebad-").problem(404);
    node.delete("/api/v1/banned/nothing/x").problem(404);
}

#[test]
fn address_and_network_bans_are_listed() {
    let node = Node::start(2).with_login();
    let mut peer = node.peer("c");
    for body in [
        json!({ "kind": "network", "who": "127.0.0.0/8" }),
        json!({ "kind": "client_id", "who": "x/y" }),
        json!({ "kind": "client_id", "who": "later", "until_unix_ms": 9_999_999_999_999_u64 }),
    ] {
        ban(&node, &body);
    }
    assert_eq!(peer.receive_disconnect(), ReasonCode::AdministrativeAction);
    assert_eq!(connect(&node, "d"), ReasonCode::Banned);
    let who: Vec<Value> = node
        .all_pages("/api/v1/banned", 1)
        .iter()
        .map(|ban| ban["who"].clone())
        .collect();
    assert_eq!(who, ["later", "x/y", "127.0.0.0/8"]);
    assert_eq!(node.all_pages("/api/v1/banned?kind=client_id&who=LATE", 10).len(), 1);
    assert_eq!(node.delete("/api/v1/banned/network/127.0.0.0%2F8").status, 204);
    assert_eq!(connect(&node, "d"), ReasonCode::Success);
    assert_eq!(connect(&node, "x/y"), ReasonCode::Banned);
}

#[test]
fn invalid_bans_are_rejected() {
    let node = Node::start(1).with_login();
    let field = |body: Value| node.send("POST", "/api/v1/banned", &body).problem(422)["field"].clone();
    assert_eq!(field(json!({ "kind": "address", "who": "localhost" })), "who");
    assert_eq!(field(json!({ "kind": "network", "who": "10.1.2.3/8" })), "who");
    assert_eq!(field(json!({ "kind": "user_name_pattern", "who": "(" })), "who");
    assert_eq!(
        field(json!({ "kind": "client_id", "who": "c", "until_unix_ms": 1 })),
        "until_unix_ms"
    );
    ban(&node, &json!({ "kind": "client_id", "who": "c" }));
    let again = json!({ "kind": "client_id", "who": "c" });
    node.send("POST", "/api/v1/banned", &again).problem(409);
}
