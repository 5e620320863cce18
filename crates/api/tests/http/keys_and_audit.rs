//! API keys, and the entries of the audit log.

use std::fs;
use std::sync::Arc;

use api::{LogLineLevel, LogRing};
use serde_json::{Value, json};

use super::node::Node;

fn make(node: &Node, body: &Value) -> String {
    let made = node.send("POST", "/api/v1/api-keys", body);
    assert_eq!(made.status, 201, "{}", made.body);
    made.json()["secret"].as_str().unwrap().to_owned()
}

/// Runs a closure with another token.
fn with_token<R>(node: &mut Node, token: &str, see: impl FnOnce(&Node) -> R) -> R {
    let own = std::mem::replace(&mut node.token, token.to_owned());
    let result = see(node);
    node.token = own;
    result
}

#[test]
fn valid_key_has_the_rights_of_its_role() {
    let mut node = Node::start(1).with_login();
    let viewer = make(&node, &json!({ "name": "grafana", "role": "viewer" }));
    let admin = make(
        &node,
        &json!({ "name": "ci", "role": "admin", "description": "deploys" }),
    );
    let user = json!({ "name": "ada", "password": "lovelace" });
    with_token(&mut node, &viewer, |node| {
        node.get("/api/v1/clients").ok();
        node.send("POST", "/api/v1/users", &user).problem(403);
        node.get("/api/v1/api-keys").problem(403);
        node.get("/api/v1/audit").problem(403);
    });
    with_token(&mut node, &admin, |node| {
        assert_eq!(node.send("POST", "/api/v1/users", &user).status, 201);
    });
    let keys = node.all_pages("/api/v1/api-keys", 1);
    assert_eq!((&keys[0]["name"], &keys[1]["name"]), (&json!("ci"), &json!("grafana")));
    assert_eq!(
        (&keys[0]["by"], &keys[0]["description"]),
        (&json!("admin"), &json!("deploys"))
    );
    assert!(keys[0]["last_used_unix_ms"].is_u64());
    assert!(!json!(keys).to_string().contains(&admin));
    let disabled = node.send("PUT", "/api/v1/api-keys/ci", &json!({ "enabled": false }));
    assert_eq!((disabled.status, &disabled.json()["role"]), (200, &json!("admin")));
    with_token(&mut node, &admin, |node| node.get("/api/v1/clients").problem(401));
    node.send(
        "PUT",
        "/api/v1/api-keys/ci",
        &json!({ "enabled": true, "role": "viewer" }),
    )
    .ok();
    with_token(&mut node, &admin, |node| {
        node.get("/api/v1/clients").ok();
        node.delete("/api/v1/users/ada").problem(403);
    });
    assert_eq!(node.delete("/api/v1/api-keys/ci").status, 204);
    with_token(&mut node, &admin, |node| node.get("/api/v1/clients").problem(401));
    node.delete("/api/v1/api-keys/ci").problem(404);
    let field = |body: Value| node.send("POST", "/api/v1/api-keys", &body).problem(422)["field"].clone();
    assert_eq!(field(json!({ "name": "a b", "role": "viewer" })), "name");
    assert_eq!(
        field(json!({ "name": "a", "role": "viewer", "expires_at_unix_ms": 1 })),
        "expires_at_unix_ms"
    );
    let again = json!({ "name": "grafana", "role": "viewer" });
    node.send("POST", "/api/v1/api-keys", &again).problem(409);
}

#[test]
fn changes_are_audited_without_secrets_before_the_answer() {
    let mut node = Node::start(1).with_login();
    let key = make(&node, &json!({ "name": "reader", "role": "viewer" }));
    node.send(
        "POST",
        "/api/v1/users",
        &json!({ "name": "ada", "password": "lovelace" }),
    )
    .ok();
    node.send("POST", "/api/v1/publish", &json!({ "topic": "t", "payload": "x" }))
        .ok();
    node.delete("/api/v1/users/missing").problem(404);
    with_token(&mut node, &key, |node| node.delete("/api/v1/users/ada").problem(403));
    let entries = node.all_pages("/api/v1/audit", 2);
    let logged: Vec<Value> = entries
        .iter()
        .map(|entry| json!([entry["operation"], entry["user"], entry["status"]]))
        .collect();
    assert_eq!(
        logged,
        [
            json!(["remove_user", "key:reader", 403]),
            json!(["remove_user", "admin", 404]),
            json!(["add_user", "admin", 201]),
            json!(["add_api_key", "admin", 201]),
            json!(["login", "admin", 200]),
        ]
    );
    assert_eq!(entries[2]["body"], json!({ "name": "ada", "password": "***" }));
    assert_eq!(
        (&entries[1]["path"], &entries[1]["address"], &entries[1]["method"]),
        (&json!("/api/v1/users/missing"), &json!("127.0.0.1"), &json!("DELETE"))
    );
    let count = |query: &str| node.all_pages(&format!("/api/v1/audit?{query}"), 10).len();
    assert_eq!(count("user=admin"), 4);
    assert_eq!(count("operation=remove_user&text=MISSING"), 1);
    let last = entries[0]["at_unix_ms"].as_u64().unwrap();
    assert_eq!(count(&format!("from_unix_ms={}", last + 1)), 0);
    assert_eq!(count(&format!("until_unix_ms={}", last + 1)), 5);
    let file = fs::read_to_string(node.data_dir.join("audit.jsonl")).unwrap();
    assert_eq!(file.lines().count(), 5);
    assert!(!file.contains("lovelace") && !file.contains(&key) && !file.contains(&node.password));
    node.get("/api/v1/audit?cursor=x").problem(400);
}

#[test]
fn changes_record_the_state_before_and_after() {
    let node = Node::start(1).with_login();
    let last = |operation: &str| {
        let log = node.all_pages(&format!("/api/v1/audit?operation={operation}"), 10);
        json!([log[0]["before"], log[0]["after"]])
    };
    let user = |role: &str| json!([{ "name": "eve", "role": role, "is_one_time": true, "has_totp": false }]);
    node.send(
        "POST",
        "/api/v1/console-users",
        &json!({ "name": "eve", "role": "viewer" }),
    );
    assert_eq!(last("add_console_user"), json!([null, user("viewer")]));
    node.send("PUT", "/api/v1/console-users/eve", &json!({ "role": "operator" }))
        .ok();
    assert_eq!(last("change_console_user"), json!([user("viewer"), user("operator")]));
    node.send("PUT", "/api/v1/console-users/eve", &json!({ "role": "emperor" }))
        .problem(400);
    node.send("PUT", "/api/v1/console-users/missing", &json!({ "role": "admin" }))
        .problem(404);
    assert_eq!(
        last("change_console_user"),
        json!([null, null]),
        "a failed change has no state"
    );
    node.delete("/api/v1/console-users/eve");
    assert_eq!(last("remove_console_user"), json!([user("operator"), null]));

    let secret = make(&node, &json!({ "name": "ci", "role": "admin" }));
    assert_eq!(last("add_api_key")[1][0]["role"], "admin");
    node.send("PUT", "/api/v1/api-keys/ci", &json!({ "enabled": false }))
        .ok();
    let changed = last("change_api_key");
    assert_eq!(
        (&changed[0][0]["enabled"], &changed[1][0]["enabled"]),
        (&json!(true), &json!(false))
    );

    let new = json!({ "name": "u", "password": "lovelace" });
    node.send("POST", "/api/v1/users", &new).ok();
    assert_eq!(last("add_user"), json!([null, { "name": "u", "is_superuser": false }]));
    node.send(
        "PUT",
        "/api/v1/users/u",
        &json!({ "is_superuser": true, "password": "newlovelace" }),
    )
    .ok();
    assert_eq!(
        last("change_user"),
        json!([{ "is_superuser": false }, { "is_superuser": true }])
    );
    node.delete("/api/v1/users/u");
    assert_eq!(last("remove_user")[0]["name"], "u");

    let rules = |topic: &str| json!({ "rules": [{ "permission": "allow", "action": "all", "topics": [topic] }] });
    node.send("PUT", "/api/v1/acl", &rules("a")).ok();
    node.send("PUT", "/api/v1/acl", &rules("b")).ok();
    let changed = last("set_acl");
    assert_eq!(
        (&changed[0][0]["topics"], &changed[1][0]["topics"]),
        (&json!(["a"]), &json!(["b"]))
    );

    node.send("POST", "/api/v1/banned", &json!({ "kind": "client_id", "who": "c/1" }));
    assert_eq!(last("ban")[1]["who"], "c/1");
    node.delete("/api/v1/banned/client_id/c%2F1");
    assert_eq!(last("lift_ban")[0]["who"], "c/1");

    let file = fs::read_to_string(node.data_dir.join("audit.jsonl")).unwrap();
    for hidden in ["lovelace", &secret, &node.password, "$argon2"] {
        let shown = file.lines().find(|line| line.contains(hidden));
        assert_eq!(shown, None, "{hidden}");
    }
}

#[test]
fn log_lines_are_filtered_by_level_and_text() {
    let ring = Arc::new(LogRing::default());
    let node = Node::start_with(1, |config| config.log = ring.clone()).with_login();
    for n in 0..10 {
        let level = if n % 2 == 0 {
            LogLineLevel::Info
        } else {
            LogLineLevel::Warn
        };
        ring.push(n, level, "tidewire", format!("line {n} client_id=\"c\""));
    }
    let lines = node.all_pages("/api/v1/logs", 3);
    assert_eq!((lines.len(), &lines[0]["text"]), (10, &json!("line 9 client_id=\"c\"")));
    assert_eq!(node.all_pages("/api/v1/logs?level=warn", 2).len(), 5);
    assert_eq!(node.all_pages("/api/v1/logs?level=info&text=LINE%203", 10).len(), 1);
    assert_eq!(node.all_pages("/api/v1/logs?level=error", 10).len(), 0);
    node.get("/api/v1/logs?level=loud").problem(400);
}
