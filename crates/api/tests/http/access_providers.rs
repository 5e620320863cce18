//! Authentication providers over the API: their list, and tests of logins.

use serde_json::{Value, json};

use super::node::Node;

const TEST_LOGIN: &str = "/api/v1/access/test-login";

#[test]
fn providers_are_shown_to_viewers() {
    let node = Node::start(1).with_login();
    let viewer = node.token_of_new_user("eve", "viewer");
    let shown = node.request_as(&viewer, "GET", "/api/v1/access/providers", &Value::Null);
    let shown = shown.ok().json();
    assert_eq!(shown["providers"], json!([]), "{shown}");
    let tested = node.request_as(&viewer, "POST", TEST_LOGIN, &json!({ "user_name": "ada" }));
    tested.problem(403);
}

#[test]
fn a_tested_login_is_audited_without_secrets() {
    let node = Node::start(1).with_login();
    node.send(
        "POST",
        "/api/v1/users",
        &json!({ "name": "ada", "password": "lovelace" }),
    )
    .ok();
    let test = |user: &str, password: &str| {
        let login = json!({ "client_id": "c", "user_name": user, "password": password });
        node.send("POST", TEST_LOGIN, &login).ok().json()
    };
    let right = test("ada", "sesame");
    assert_eq!(
        (&right["is_allowed"], &right["steps"][0]["verdict"]),
        (&json!(true), &json!("right")),
        "{right}"
    );
    assert_eq!(right["login"]["is_superuser"], false);
    let wrong = test("a-token-as-name", "open");
    assert_eq!(
        wrong["steps"],
        json!([{ "provider": "http", "verdict": "wrong", "reason": "it decides", "origin": "asked", "took_ms": 2.0 }])
    );
    assert_eq!(wrong["login"], Value::Null);
    let log = node.all_pages("/api/v1/audit?operation=test_login", 10);
    let mut names: Vec<&str> = log
        .iter()
        .filter_map(|entry| entry["body"]["user_name"].as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["***", "ada"]);
    let text = json!(log).to_string();
    for secret in ["sesame", "open", "a-token-as-name"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn untestable_logins_are_rejected() {
    let node = Node::start(1).with_login();
    let test = |login: Value, status| node.send("POST", TEST_LOGIN, &login).problem(status);
    let locked = test(json!({ "client_id": "locked", "password": "x" }), 429);
    assert!(
        locked["detail"].as_str().unwrap().contains("try again in 5 s"),
        "{locked}"
    );
    assert_eq!(test(json!({ "listener": "tcp.x" }), 422)["field"], "listener");
    assert_eq!(
        test(json!({ "user_name": "x".repeat(70_000) }), 422)["field"],
        "user_name"
    );
    assert_eq!(test(json!({ "pass": "x" }), 400)["field"], "pass");
}
