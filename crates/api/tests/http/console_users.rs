//! Console users: created with a one-time password, changed, reset and deleted.

use serde_json::{Value, json};

use super::node::Node;

const ALL: &str = "/api/v1/console-users";

fn token(node: &Node, user: &str, password: &str) -> (String, Value) {
    let answer = node.login(user, password).ok().json();
    (answer["token"].as_str().unwrap().to_owned(), answer)
}

#[test]
fn new_user_must_set_a_password_first() {
    let mut node = Node::start(1).with_login();
    let made = node.send("POST", ALL, &json!({ "name": "ada", "role": "admin" }));
    assert_eq!(made.status, 201, "{}", made.body);
    let password = made.json()["password"].as_str().unwrap().to_owned();
    let admin = std::mem::take(&mut node.token);
    let (own, answer) = token(&node, "ada", &password);
    assert_eq!(
        (&answer["must_change_password"], &answer["role"]),
        (&json!(true), &json!("admin"))
    );
    node.token = own;
    assert_eq!(
        node.get("/api/v1/clients").problem(403)["type"],
        "urn:tidewire:problem:password-change-required"
    );
    node.delete("/api/v1/users/x").problem(403);
    node.get("/api/v1/stats").ok();
    let change = |from: &str, to: &str| {
        node.send(
            "POST",
            "/api/v1/password",
            &json!({ "current_password": from, "new_password": to }),
        )
    };
    assert_eq!(change(&password, &password).problem(422)["field"], "new_password");
    change(&password, "of her own").ok();
    node.get("/api/v1/clients").problem(401);
    let (own, answer) = token(&node, "ada", "of her own");
    assert_eq!(answer["must_change_password"], false);
    node.token = own.clone();
    node.get("/api/v1/clients").ok();

    let users = node.all_pages(ALL, 1);
    assert_eq!(users[1]["has_first_password"], true);
    let ada = json!({ "name": "ada", "role": "admin", "has_one_time_password": false, "has_first_password": false, "has_totp": false, "is_self": true });
    assert_eq!((users.len(), &users[0]), (2, &ada));
    node.token = admin;
    let reset = node.send("POST", &format!("{ALL}/ada/password"), &json!(null));
    assert_eq!(reset.status, 201, "{}", reset.body);
    node.login("ada", "of her own").problem(401);
    let admin = std::mem::replace(&mut node.token, own);
    node.get("/api/v1/clients").problem(401);
    node.token = admin;
    let log = json!(node.all_pages("/api/v1/audit", 100)).to_string();
    assert!(log.contains("add_console_user") && log.contains("reset_console_password"));
    assert!(!log.contains(&password) && !log.contains("of her own"));
}

#[test]
fn role_changes_apply_at_once_and_last_admin_stays() {
    let mut node = Node::start(1).with_login();
    let put =
        |node: &Node, user: &str, role: &str| node.send("PUT", &format!("{ALL}/{user}"), &json!({ "role": role }));
    assert_eq!(
        put(&node, "admin", "viewer").problem(409)["type"],
        "urn:tidewire:problem:last-admin"
    );
    node.delete(&format!("{ALL}/admin")).problem(409);
    let made = node
        .send("POST", ALL, &json!({ "name": "eve", "role": "viewer" }))
        .json();
    let password = made["password"].as_str().unwrap();
    let (own, _) = token(&node, "eve", password);
    let admin = std::mem::replace(&mut node.token, own);
    node.send(
        "POST",
        "/api/v1/password",
        &json!({ "current_password": password, "new_password": "only looking" }),
    );
    node.token = token(&node, "eve", "only looking").0;
    node.get(ALL).problem(403);
    node.send("POST", ALL, &json!({ "name": "x", "role": "admin" }))
        .problem(403);
    let eve = std::mem::replace(&mut node.token, admin);
    assert_eq!(put(&node, "eve", "admin").ok().json()["role"], "admin");
    let admin = std::mem::replace(&mut node.token, eve);
    node.get(ALL).ok();
    node.token = admin;
    assert_eq!(node.delete(&format!("{ALL}/admin")).status, 204);
    node.get("/api/v1/clients").problem(401);
    node.token = token(&node, "eve", "only looking").0;
    node.delete(&format!("{ALL}/eve")).problem(409);

    node.delete(&format!("{ALL}/missing")).problem(404);
    put(&node, "missing", "admin").problem(404);
    put(&node, "eve", "emperor").problem(400);
    node.send("POST", &format!("{ALL}/missing/password"), &json!(null))
        .problem(404);
    let add = |name: &str| node.send("POST", ALL, &json!({ "name": name, "role": "viewer" }));
    let key = json!({ "name": "of-eve", "role": "viewer" });
    assert_eq!(node.send("POST", "/api/v1/api-keys", &key).status, 201);
    add("eve").problem(409);
    let keys = node.get("/api/v1/api-keys").ok().json().to_string();
    assert!(keys.contains("of-eve"), "a rejected name keeps its keys: {keys}");
    for name in ["", "a:b", "#a", &"x".repeat(300)] {
        assert_eq!(add(name).problem(422)["field"], "name", "{name}");
    }
}

#[test]
fn public_endpoint_rejects_an_invalid_key() {
    let mut node = Node::start(1);
    node.get("/api/v1/stats").ok();
    node.token = "twk_made-up".into();
    node.get("/api/v1/stats").problem(401);
    node.get("/metrics").problem(401);
    assert_eq!(node.get("/livez").status, 200);
}
