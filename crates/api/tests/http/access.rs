//! Changes of users and access rules while clients are connected.

use mqtt::{QoS, ReasonCode};
use serde_json::{Value, json};

use super::node::Node;
use super::peer::Peer;
use super::web;

#[test]
fn users_are_added_changed_and_deleted_at_run_time() {
    let node = Node::start(3).with_login();
    let login = |password: &str| Peer::try_connect(node.mqtt_address(), "device", Some(("ada", password)));
    assert_eq!(login("lovelace").1, ReasonCode::BadUserNameOrPassword);
    let added = node.send(
        "POST",
        "/api/v1/users",
        &json!({ "name": "ada", "password": "lovelace" }),
    );
    assert_eq!((added.status, &added.json()["scheme"]), (201, &json!("argon2id")));
    assert_eq!(login("lovelace").1, ReasonCode::Success);
    node.send(
        "POST",
        "/api/v1/users",
        &json!({ "name": "ada", "password": "another one" }),
    )
    .problem(409);
    let (mut peer, reason) = login("lovelace");
    assert_eq!(reason, ReasonCode::Success);
    let changed = node.send(
        "PUT",
        "/api/v1/users/ada",
        &json!({ "password": "lord byron", "disconnect": true }),
    );
    assert_eq!(changed.status, 200);
    assert_eq!(peer.receive_disconnect(), ReasonCode::AdministrativeAction);
    assert_eq!(login("lovelace").1, ReasonCode::BadUserNameOrPassword);
    let (mut peer, reason) = login("lord byron");
    assert_eq!(reason, ReasonCode::Success);
    assert_eq!(node.delete("/api/v1/users/ada").status, 204);
    assert_eq!(peer.receive_disconnect(), ReasonCode::AdministrativeAction);
    assert_eq!(login("lord byron").1, ReasonCode::BadUserNameOrPassword);
    node.delete("/api/v1/users/ada").problem(404);
}

#[test]
fn users_are_listed_without_hashes() {
    let node = Node::start(1).with_login();
    let hash = "$7$101$AAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";
    for name in ["bob", "ada", "cy"] {
        let made = node.send("POST", "/api/v1/users", &json!({ "name": name, "password_hash": hash }));
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let names: Vec<Value> = node
        .all_pages("/api/v1/users", 2)
        .iter()
        .map(|user| user["name"].clone())
        .collect();
    assert_eq!(names, ["ada", "bob", "cy"]);
    assert!(!node.get("/api/v1/users").body.contains("AAAA"));
    assert!(node.access.users_file().contains(&format!("ada:{hash}")));
    let problem = |body: Value| node.send("POST", "/api/v1/users", &body).problem(422)["field"].clone();
    assert_eq!(problem(json!({ "name": "a:b", "password": "lovelace" })), "name");
    assert_eq!(problem(json!({ "name": "dee" })), "password");
    assert_eq!(problem(json!({ "name": "dee", "password": "" })), "password");
    assert_eq!(
        problem(json!({ "name": "dee", "password_hash": "plain" })),
        "password_hash"
    );
    assert_eq!(
        problem(json!({ "name": "dee", "password": "lovelace", "password_hash": hash })),
        "password_hash"
    );
}

#[test]
fn rules_apply_at_once_to_connected_clients() {
    let node = Node::start(3).with_login();
    let (mut writer, mut reader) = (node.peer("writer"), node.peer("reader"));
    reader.subscribe("open/#", QoS::AtLeastOnce);
    assert_eq!(writer.publish_acknowledged("open/a", b"1", false), ReasonCode::Success);
    assert_eq!(reader.receive().payload, b"1");
    let rules = json!({ "rules": [
        { "permission": "deny", "action": "publish", "topics": ["open/#"], "clients": ["writer"] },
        { "permission": "allow", "action": "all", "topics": ["open/#"], "addresses": ["127.0.0.0/8"] },
    ] });
    let answer = node.send("PUT", "/api/v1/acl", &rules).ok().json();
    assert_eq!(answer["rules"], rules["rules"]);
    assert_eq!(node.get("/api/v1/acl").ok().json(), answer);
    assert_eq!(
        writer.publish_acknowledged("open/a", b"2", false),
        ReasonCode::NotAuthorized
    );
    assert_eq!(
        reader.try_subscribe("closed", QoS::AtMostOnce),
        ReasonCode::NotAuthorized.to_u8()
    );
}

#[test]
fn invalid_rules_are_all_reported_and_change_nothing() {
    let node = Node::start(1).with_login();
    let before = node.get("/api/v1/acl").ok().json();
    let problem = node
        .send(
            "PUT",
            "/api/v1/acl",
            &json!({ "rules": [
            { "permission": "allow", "action": "all", "topics": ["ok"] },
            { "permission": "allow", "action": "all", "topics": ["a/#/b"] },
            { "permission": "allow", "action": "subscribe", "topics": [], "addresses": ["300.1.1.1"], "retain": true },
        ] }),
        )
        .problem(422);
    let errors = problem["errors"].as_array().unwrap();
    let fields: Vec<_> = errors.iter().map(|error| error["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["rules[1]", "rules[2]", "rules[2]", "rules[2]"]);
    assert_eq!(node.get("/api/v1/acl").ok().json(), before);
    let unknown = node
        .send("PUT", "/api/v1/acl", &json!({ "rules": [{ "permision": "allow" }] }))
        .problem(400);
    assert_eq!(
        unknown["detail"],
        "unknown field `permision`; did you mean `permission`?"
    );
    assert_eq!(unknown["field"], "rules[0].permision");
}

#[test]
fn second_concurrent_rule_change_is_rejected() {
    let node = Node::start(1).with_login();
    let read = node.get("/api/v1/acl").ok().header("etag").to_owned();
    assert!(
        read.starts_with('"') && read.ends_with('"') && read.len() > 10,
        "{read}"
    );
    let bearer = format!("Bearer {}", node.token);
    let put = |tag: &str, topic: &str| {
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
            ("If-Match", tag),
        ];
        let rules = json!({ "rules": [{ "permission": "allow", "action": "all", "topics": [topic] }] });
        web::request(node.address, "PUT", "/api/v1/acl", &headers, &rules.to_string())
    };
    let first = put(&read, "first").ok();
    let problem = put(&read, "second").problem(412);
    assert_eq!(problem["type"], "urn:tidewire:problem:precondition-failed");
    let present = node.get("/api/v1/acl").ok();
    assert_eq!(present.json()["rules"][0]["topics"], json!(["first"]));
    assert_eq!(present.header("etag"), first.header("etag"));
    put(first.header("etag"), "second").ok();
    put("*", "third").ok();
    node.send("PUT", "/api/v1/acl", &json!({ "rules": [] })).ok();
    // The earlier version of the rules has the earlier tag again.
    let again = json!({ "rules": [{ "permission": "allow", "action": "all", "topics": ["first"] }] });
    node.send("PUT", "/api/v1/acl", &again).ok();
    put(first.header("etag"), "fourth").ok();
}

#[test]
fn pinned_rules_name_their_source() {
    let node = Node::start(1).with_login();
    *node.access.pinned_by.lock().unwrap() = Some("access.rules (/etc/tidewire.toml:12)".into());
    let problem = node.send("PUT", "/api/v1/acl", &json!({ "rules": [] })).problem(409);
    assert_eq!(problem["source"], "access.rules (/etc/tidewire.toml:12)");
    assert_eq!(problem["type"], "urn:tidewire:problem:pinned");
    assert_eq!(
        node.get("/api/v1/acl").ok().json()["pinned_by"],
        "access.rules (/etc/tidewire.toml:12)"
    );
}
