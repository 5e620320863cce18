//! Health, the shape of errors, and the headers that every answer has.

use std::time::Duration;

use crate::node::Node;
use crate::web;

#[test]
fn readiness_follows_the_servers_life() {
    let node = Node::start(2);
    assert_eq!(node.get("/livez").status, 200);
    let answer = node.get("/readyz");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["reasons"][0], "the server is starting");
    node.api.as_ref().unwrap().ready();
    let answer = node.get("/readyz");
    assert_eq!((answer.status, answer.json()["status"].as_str()), (200, Some("ready")));
    assert_eq!(node.get("/status").status, 200);
    node.api.as_ref().unwrap().stopping();
    assert_eq!(node.get("/readyz").json()["reasons"][0], "the server is shutting down");
    assert_eq!(node.get("/livez").status, 200);
}

#[test]
fn a_dead_data_plane_is_not_ready_and_an_answer_says_so() {
    let node = Node::start(2);
    node.api.as_ref().unwrap().ready();
    node.net.shutdown(Duration::ZERO);
    let answer = node.get("/readyz");
    assert_eq!(answer.status, 503);
    assert_eq!(
        answer.json()["reasons"],
        serde_json::json!(["shard 0 does not answer", "shard 1 does not answer"])
    );
    let problem = node.get("/api/v1/stats");
    assert_eq!(problem.header("retry-after"), "1");
    problem.problem(503);
}

#[test]
fn unknown_pages_and_wrong_methods_are_problems() {
    let node = Node::start(1);
    node.get("/nowhere").problem(404);
    node.get("/api/v1/clients/a/b/c").problem(404);
    let answer = node.delete("/api/v1/stats");
    answer.problem(405);
    assert_eq!(answer.header("allow"), "GET,HEAD");
    assert_eq!(node.request("HEAD", "/livez", "").status, 200);
}

#[test]
fn every_answer_has_the_headers_that_protect_browsers() {
    let node = Node::start(1);
    for (target, script) in [
        ("/", "script-src 'self'"),
        ("/livez", "default-src 'none'"),
        ("/nowhere", "default-src 'none'"),
    ] {
        let answer = node.get(target);
        let policy = answer.header("content-security-policy");
        assert!(
            policy.contains(script) && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("x-frame-options"), "DENY");
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
    assert_eq!(node.get("/livez").header("cache-control"), "no-store");
}

#[test]
fn the_page_brings_nothing_from_elsewhere() {
    let node = Node::start(1);
    for target in ["/", "/page.js", "/page.css", "/favicon.svg"] {
        let answer = node.get(target).ok();
        assert!(!answer.body.is_empty(), "{target}");
        let elsewhere = answer.body.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !elsewhere.contains("//cdn") && !elsewhere.contains("https://"),
            "{target}"
        );
    }
    let page = node.get("/").body;
    assert!(!page.contains(" style=") && !page.contains(" onclick=") && !page.contains("<script>"));
}

#[test]
fn a_name_that_resolves_to_loopback_is_not_answered() {
    let node = Node::start_with(1, |config| config.allowed_hosts.push("mqtt.example.org".into()));
    for (host, status) in [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8", 200),
        ("mqtt.example.org", 200),
        ("evil.example", 421),
    ] {
        let answer = web::request(node.address, "GET", "/livez", &[("Host", host)], "");
        assert_eq!(answer.status, status, "{host}");
    }
}

#[test]
fn a_taken_port_names_its_owner_and_the_key() {
    let node = Node::start(1);
    let taken = Node::try_api_on(&node, node.address);
    let text = taken.to_string();
    assert!(text.contains("api.bind"), "{text}");
    if cfg!(target_os = "linux") {
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    }
}
