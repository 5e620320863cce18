//! The list of logins, and how users and administrators end them.

use serde_json::{Value, json};

use super::node::Node;

#[test]
fn users_see_and_end_their_own_logins() {
    let node = Node::start(1).with_login();
    let first = node.token_of_new_user("eve", "viewer");
    let second = node.token_of("eve", "the password of eve");
    let third = node.token_of("eve", "the password of eve");
    let ask = |token: &str, method: &str, target: &str| node.request_as(token, method, target, &Value::Null);
    let own = ask(&second, "GET", "/api/v1/own-logins").ok().json();
    let own = own.as_array().unwrap();
    assert_eq!(own.len(), 3, "{own:?}");
    let current: Vec<_> = own.iter().filter(|login| login["is_current"] == true).collect();
    assert_eq!(current.len(), 1);
    let seen = current[0];
    assert_eq!((&seen["user"], &seen["address"]), (&json!("eve"), &json!("127.0.0.1")));
    let time = |name: &str| seen[name].as_u64().unwrap();
    assert!(time("since_unix_ms") <= time("last_used_unix_ms"));
    assert!(time("last_used_unix_ms") < time("expires_at_unix_ms"));
    for token in [&first, &second, &third, &node.token] {
        assert!(!json!(own).to_string().contains(&token[3..]), "no token is shown");
    }
    let other = own.iter().find(|login| login["is_current"] == false).unwrap();
    let target = format!("/api/v1/own-logins/{}", other["id"].as_str().unwrap());
    assert_eq!(ask(&second, "DELETE", &target).status, 204);
    ask(&second, "DELETE", &target).problem(404);
    assert_eq!(
        ask(&second, "DELETE", "/api/v1/own-logins").ok().json(),
        json!({ "ended": 1 })
    );
    ask(&first, "GET", "/api/v1/clients").problem(401);
    ask(&third, "GET", "/api/v1/clients").problem(401);
    ask(&second, "GET", "/api/v1/clients").ok();
    node.get("/api/v1/clients").ok();
    let log = node.all_pages("/api/v1/audit?user=eve", 100);
    let logged = |operation: &str| log.iter().filter(|entry| entry["operation"] == operation).count();
    assert_eq!((logged("end_own_login"), logged("end_other_logins")), (2, 1));
}

#[test]
fn administrators_end_logins_of_others() {
    let node = Node::start(1).with_login();
    let eve = node.token_of_new_user("eve", "viewer");
    let again = node.token_of("eve", "the password of eve");
    let ask = |token: &str| node.request_as(token, "GET", "/api/v1/clients", &Value::Null).status;
    assert_eq!(node.all_pages("/api/v1/logins", 1).len(), 3);
    let of_eve = node.all_pages("/api/v1/logins?user=eve", 1);
    assert_eq!(of_eve.len(), 2);
    let target = format!("/api/v1/logins/{}", of_eve[0]["id"].as_str().unwrap());
    assert_eq!(node.delete(&target).status, 204);
    node.delete(&target).problem(404);
    assert_eq!(
        [ask(&eve), ask(&again)].iter().filter(|status| **status == 401).count(),
        1
    );
    let ended = node.delete("/api/v1/console-users/eve/logins").ok().json();
    assert_eq!(ended, json!({ "ended": 1 }));
    assert_eq!((ask(&eve), ask(&again)), (401, 401));
    node.delete("/api/v1/console-users/missing/logins").problem(404);
    node.get("/api/v1/logins?cursor=x").problem(400);
    node.get("/api/v1/logins?limit=0").problem(400);
    node.get("/api/v1/clients").ok();
}

#[test]
fn password_change_ends_the_other_logins() {
    let node = Node::start(1).with_login();
    let tokens = [
        node.token_of_new_user("eve", "viewer"),
        node.token_of("eve", "the password of eve"),
    ];
    let change = json!({ "current_password": "the password of eve", "new_password": "another long one" });
    node.request_as(&tokens[0], "POST", "/api/v1/password", &change).ok();
    for token in &tokens {
        node.request_as(token, "GET", "/api/v1/clients", &Value::Null)
            .problem(401);
    }
    assert!(node.all_pages("/api/v1/logins?user=eve", 10).is_empty());
}
