//! Role changes, revoked and expired keys: what happens to requests and open WebSockets.

use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::node::Node;
use super::web;
use super::web_socket::WebSocket;

/// Longer than a notification takes, shorter than the interval of the regular check.
const AT_ONCE: Duration = Duration::from_secs(4);

/// Opens a WebSocket with another token.
fn open_as(node: &mut Node, token: &str, target: &str) -> WebSocket {
    let own = std::mem::replace(&mut node.token, token.to_owned());
    let socket = WebSocket::open(node, target);
    node.token = own;
    socket
}

/// Asserts that the server closes the WebSocket because of the login, before the regular check.
#[track_caller]
fn ends_at_once(mut socket: WebSocket, changed_at: Instant) {
    assert_eq!(socket.close_code(), 1008, "policy violation");
    assert!(changed_at.elapsed() < AT_ONCE, "{:?}", changed_at.elapsed());
}

#[test]
fn role_limited_to_a_namespace_ends_open_websockets_at_once() {
    let mut node = Node::start(1).with_login();
    let token = node.token_of_new_user("eve", "viewer");
    let socket = open_as(&mut node, &token, "/api/v1/live");
    let changed_at = Instant::now();
    node.send("PUT", "/api/v1/console-users/eve", &json!({ "role": "ns:acme::admin" }))
        .ok();
    ends_at_once(socket, changed_at);
}

#[test]
fn lowered_role_ends_open_websockets_at_once() {
    let mut node = Node::start(1).with_login();
    let token = node.token_of_new_user("otto", "operator");
    let sockets = ["/api/v1/live", "/api/v1/trace?topic=%23"].map(|target| open_as(&mut node, &token, target));
    let mut of_admin = WebSocket::open(&node, "/api/v1/live");
    let changed_at = Instant::now();
    node.send("PUT", "/api/v1/console-users/otto", &json!({ "role": "viewer" }))
        .ok();
    for socket in sockets {
        ends_at_once(socket, changed_at);
    }
    node.request_as(&token, "DELETE", "/api/v1/clients/x", &Value::Null)
        .problem(403);
    let own = node
        .request_as(&token, "GET", "/api/v1/login", &Value::Null)
        .ok()
        .json();
    assert_eq!(
        own,
        json!({ "user": "otto", "role": "viewer", "must_change_password": false, "must_set_up_totp": false })
    );
    of_admin.next();
    of_admin.next();
    // A higher role ends nothing.
    let mut stays = open_as(&mut node, &token, "/api/v1/live");
    node.send("PUT", "/api/v1/console-users/otto", &json!({ "role": "admin" }))
        .ok();
    stays.next();
    stays.next();
    node.request_as(&token, "GET", "/api/v1/console-users", &Value::Null)
        .ok();
    let changed_at = Instant::now();
    assert_eq!(node.delete("/api/v1/console-users/otto").status, 204);
    ends_at_once(stays, changed_at);
}

#[test]
fn changed_key_ends_its_websockets_at_once() {
    let mut node = Node::start(1).with_login();
    let secret = node.new_key(&json!({ "name": "ci", "role": "operator" }));
    let change = |node: &Node, body: Value| node.send("PUT", "/api/v1/api-keys/ci", &body).ok();
    let socket = open_as(&mut node, &secret, "/api/v1/live");
    let changed_at = Instant::now();
    change(&node, json!({ "role": "viewer" }));
    ends_at_once(socket, changed_at);
    node.request_as(&secret, "DELETE", "/api/v1/clients/x", &Value::Null)
        .problem(403);
    let socket = open_as(&mut node, &secret, "/api/v1/live");
    let changed_at = Instant::now();
    change(&node, json!({ "enabled": false }));
    ends_at_once(socket, changed_at);
    node.request_as(&secret, "GET", "/api/v1/clients", &Value::Null)
        .problem(401);
    change(&node, json!({ "enabled": true }));
    let socket = open_as(&mut node, &secret, "/api/v1/live");
    let changed_at = Instant::now();
    assert_eq!(node.delete("/api/v1/api-keys/ci").status, 204);
    ends_at_once(socket, changed_at);
    node.request_as(&secret, "GET", "/api/v1/clients", &Value::Null)
        .problem(401);
}

#[test]
fn change_without_its_body_is_refused_after_its_user_was_removed() {
    let node = Node::start(1).with_login();
    let eve = node.token_of_new_user("eve", "admin");
    let body = json!({ "name": "eve2", "role": "admin" }).to_string();
    let mut stream = web::connect(node.address);
    write!(
        stream,
        "POST /api/v1/console-users HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {eve}\r\n\
         Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    // The server asks for the body after the first check of the login.
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head, *b"HTTP/1.1 100");
    assert_eq!(node.delete("/api/v1/console-users/eve").status, 204);
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("HTTP/1.1 401 "), "{answer}");
    assert!(!node.get("/api/v1/console-users").body.contains("eve2"));
}

#[test]
fn key_has_at_most_the_role_of_its_issuer() {
    let node = Node::start(1).with_login();
    let ada = node.token_of_new_user("ada", "admin");
    let key = json!({ "name": "of-ada", "role": "admin" });
    let made = node.request_as(&ada, "POST", "/api/v1/api-keys", &key);
    let secret = made.json()["secret"].as_str().unwrap().to_owned();
    node.request_as(&secret, "GET", "/api/v1/console-users", &Value::Null)
        .ok();
    for (role, kick, list) in [("operator", 404, 403), ("viewer", 403, 403), ("admin", 404, 200)] {
        node.send("PUT", "/api/v1/console-users/ada", &json!({ "role": role }))
            .ok();
        let status = |method, target| node.request_as(&secret, method, target, &Value::Null).status;
        assert_eq!(status("DELETE", "/api/v1/clients/x"), kick, "{role}");
        assert_eq!(status("GET", "/api/v1/console-users"), list, "{role}");
    }
}

#[test]
fn expired_key_is_refused_and_shown_as_expired() {
    let node = Node::start(1).with_login();
    let now_ms = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    let secret = node.new_key(&json!({ "name": "short", "role": "admin", "expires_at_unix_ms": now_ms + 1500 }));
    node.request_as(&secret, "GET", "/api/v1/console-users", &Value::Null)
        .ok();
    node.wait_for("the key to expire", || {
        node.request_as(&secret, "GET", "/api/v1/console-users", &Value::Null)
            .status
            == 401
    });
    let keys = node.all_pages("/api/v1/api-keys", 10);
    assert_eq!(
        (&keys[0]["is_expired"], &keys[0]["role"]),
        (&json!(true), &json!("admin"))
    );
    assert!(keys[0]["last_used_unix_ms"].is_u64());
    // The secret of another key, a part of it, and its name are no keys.
    for token in [
        "short",
        "twk_",
        &secret[..secret.len() - 1],
        &secret.to_uppercase(),
        &format!("{secret}A"),
    ] {
        node.request_as(token, "GET", "/api/v1/clients", &Value::Null)
            .problem(401);
    }
    node.get("/api/v1/api-keys").ok();
}

#[test]
fn last_administrator_stays_among_operators() {
    let node = Node::start(1).with_login();
    node.token_of_new_user("otto", "operator");
    for role in ["operator", "viewer"] {
        let refused = node
            .send("PUT", "/api/v1/console-users/admin", &json!({ "role": role }))
            .problem(409);
        assert_eq!(refused["type"], "urn:tidewire:problem:last-admin");
    }
    node.delete("/api/v1/console-users/admin").problem(409);
    node.send("PUT", "/api/v1/console-users/otto", &json!({ "role": "admin" }))
        .ok();
    node.send("PUT", "/api/v1/console-users/admin", &json!({ "role": "operator" }))
        .ok();
    node.get("/api/v1/console-users").problem(403);
}
