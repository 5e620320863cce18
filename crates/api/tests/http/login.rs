//! Login, its rights, and limits against guessing.

use serde_json::json;

use super::node::Node;
use super::web;
use super::web_socket::WebSocket;

#[test]
fn websocket_closes_with_the_login() {
    let node = Node::start(1).with_login();
    let watched = ["/api/v1/live", "/api/v1/trace?topic=%23"];
    let mut sockets = watched.map(|target| WebSocket::open(&node, target));
    assert_eq!(node.request("POST", "/api/v1/logout", "").status, 204);
    for socket in &mut sockets {
        assert_eq!(socket.close_code(), 1008, "policy violation");
    }
}

#[test]
fn login_grants_access_until_logout() {
    let node = Node::start(1);
    let closed = node.get("/api/v1/clients");
    assert_eq!(closed.header("www-authenticate"), "Bearer");
    closed.problem(401);
    let login = node.login("admin", &node.password).ok().json();
    assert_eq!(login["role"], "admin");
    assert!(login["token"].as_str().unwrap().len() > 40);
    let node = node.with_login();
    node.get("/api/v1/clients").ok();
    assert_eq!(node.request("POST", "/api/v1/logout", "").status, 204);
    node.get("/api/v1/clients").problem(401);
}

#[test]
fn wrong_password_and_unknown_user_get_the_same_answer() {
    let node = Node::start(1);
    let wrong = node.login("admin", "not it").problem(401);
    let unknown = node.login("unknown", "not it").problem(401);
    assert_eq!(wrong, unknown);
    let metrics = node.get("/metrics").ok().body;
    assert!(
        metrics.contains("tidewire_api_logins_total{outcome=\"failure\"} 2\n"),
        "{metrics}"
    );
}

/// Returns the first answer that is not about the password. An address may have ten failures at once, and another one
/// every few seconds, which pass during the checks on a slow machine.
fn guess_until_limited(node: &Node) -> web::Answer {
    let answers = (0..20).map(|_| node.login("admin", "guess"));
    let (number, limited) = answers.enumerate().find(|(_, answer)| answer.status != 401).unwrap();
    assert!(number >= 10, "{number} guesses were checked");
    limited
}

#[test]
fn failed_logins_are_limited_and_successful_ones_are_not() {
    let node = Node::start(1);
    for _ in 0..12 {
        node.login("admin", &node.password).ok();
    }
    let limited = guess_until_limited(&node);
    assert!(limited.header("retry-after").parse::<u64>().unwrap() <= 7);
    limited.problem(429);
    // This password was right before, from the same address.
    node.login("admin", &node.password).ok();
}

#[test]
fn first_login_waits_while_its_address_is_locked_out() {
    let node = Node::with_long_lockout();
    guess_until_limited(&node).problem(429);
    node.login("admin", &node.password).problem(429);
}

#[test]
fn password_change_ends_logins() {
    let node = Node::start(1).with_login();
    let change = |current: &str, new: &str| {
        node.send(
            "POST",
            "/api/v1/password",
            &json!({ "current_password": current, "new_password": new }),
        )
    };
    assert_eq!(change(&node.password, "short").problem(422)["field"], "new_password");
    assert_eq!(change("wrong", "long enough").problem(422)["field"], "current_password");
    assert_eq!(
        change(&node.password, "long enough").ok().json(),
        json!({ "api_keys": [] })
    );
    node.get("/api/v1/clients").problem(401);
    node.login("admin", &node.password).problem(401);
    node.login("admin", "long enough").ok();
}

#[test]
fn token_needs_the_right_header_and_scheme() {
    let node = Node::start(1).with_login();
    let ask =
        |header: &str| web::request(node.address, "GET", "/api/v1/clients", &[("Authorization", header)], "").status;
    assert_eq!(ask(&format!("bearer {}", node.token)), 200);
    assert_eq!(ask(&format!("Basic {}", node.token)), 401);
    assert_eq!(ask(&node.token), 401);
    assert_eq!(ask("Bearer"), 401);
    let target = format!("/api/v1/clients?access_token={}", node.token);
    assert_eq!(web::request(node.address, "GET", &target, &[], "").status, 401);
}

#[test]
fn viewer_reads_and_cannot_change() {
    let node = Node::start(1).with_viewer("eve", "viewing only");
    node.get("/api/v1/clients").ok();
    node.send("POST", "/api/v1/publish", &json!({ "topic": "a" }))
        .problem(403);
    node.delete("/api/v1/clients/x").problem(403);
    node.send("PUT", "/api/v1/acl", &json!({ "rules": [] })).problem(403);
}

#[test]
fn metrics_on_an_open_port_need_a_login_or_an_option() {
    let anywhere = |config: &mut api::ApiConfig| config.bind = ([0, 0, 0, 0], 0).into();
    let node = Node::start_with(1, anywhere);
    node.get("/metrics").problem(401);
    node.get("/api/v1/stats").problem(401);
    assert_eq!(node.get("/livez").status, 200);
    let node = node.with_login();
    node.get("/metrics").ok();
    let public = Node::start_with(1, |config| {
        anywhere(config);
        config.metrics_without_login = true;
    });
    public.get("/metrics").ok();
    public.get("/api/v1/clients").problem(401);
}
