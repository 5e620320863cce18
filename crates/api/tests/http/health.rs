//! Health, the format of errors, and headers of all answers.

use std::time::{Duration, Instant};

use super::node::Node;
use super::web;

#[test]
fn readiness_follows_start_and_shutdown() {
    let node = Node::start(2);
    assert_eq!(node.get("/livez").status, 200);
    let answer = node.get("/readyz");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["reasons"][0], "the server is starting");
    node.api.as_ref().unwrap().reading_journal(43);
    let reasons = node.get("/readyz").json()["reasons"].clone();
    assert_eq!(reasons[0], "the server is starting: 43 % of the journal read");
    node.api.as_ref().unwrap().ready();
    let answer = node.get("/readyz");
    assert_eq!((answer.status, answer.json()["status"].as_str()), (200, Some("ready")));
    assert_eq!(node.get("/status").status, 200);
    node.api.as_ref().unwrap().stopping();
    assert_eq!(node.get("/readyz").json()["reasons"][0], "the server is shutting down");
    assert_eq!(node.get("/livez").status, 200);
}

/// Shards start after the journal has been read. Readiness does not wait for them before.
#[test]
fn readiness_reports_progress_of_reading_the_journal() {
    let node = Node::starting(2, |_| {});
    node.api.as_ref().unwrap().reading_journal(43);
    let begun = Instant::now();
    let answer = node.get("/readyz");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(
        answer.json()["reasons"],
        serde_json::json!(["the server is starting: 43 % of the journal read"])
    );
    assert_eq!(answer.status, 503);
}

#[test]
fn silent_shards_make_the_node_unready() {
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
fn unknown_paths_and_methods_are_problems() {
    let node = Node::start(1);
    node.get("/nowhere").problem(404);
    node.get("/api/v1/clients/a/b/c").problem(404);
    let answer = node.delete("/api/v1/stats");
    answer.problem(405);
    assert_eq!(answer.header("allow"), "GET,HEAD");
    assert_eq!(node.request("HEAD", "/livez", "").status, 200);
}

#[test]
fn all_answers_have_security_headers() {
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
fn console_is_compressed_and_loads_no_external_files() {
    let node = Node::start(1);
    let page = node.get("/").ok();
    assert_eq!(page.header("cache-control"), "no-cache");
    assert!(!page.body.contains("https://") && !page.body.contains(" style=") && !page.body.contains("<script>"));
    let names = page.body.split('"').filter(|text| text.starts_with("/assets/"));
    let names: Vec<&str> = names.collect();
    assert!(names.iter().any(|name| name.ends_with(".js")) && names.iter().any(|name| name.ends_with(".css")));
    for name in names {
        let asset = web::request_bytes(node.address, name);
        let (header, body) = asset.split_once("\r\n\r\n").unwrap();
        let header = header.to_ascii_lowercase();
        assert!(header.starts_with("http/1.1 200"), "{header}");
        assert!(
            header.contains("content-encoding: gzip") && header.contains("immutable"),
            "{header}"
        );
        assert!(!body.is_empty());
        let plain = web::request(node.address, "GET", name, &[("Accept-Encoding", "identity")], "");
        plain.problem(406);
    }
    node.get("/assets/nothing.js").problem(404);
}

#[test]
fn page_may_connect_to_websocket_listeners_only() {
    let node = Node::start(1);
    let policy = |host| {
        let answer = web::request(node.address, "GET", "/", &[("Host", host)], "");
        answer.header("content-security-policy").to_owned()
    };
    // The node under test only has a TCP listener.
    assert!(policy("localhost:1").contains("connect-src 'self';"));
    assert!(!policy("[::1]:1").contains("::1"));
}

#[test]
fn foreign_host_name_on_loopback_is_rejected() {
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
fn used_port_error_names_owner_and_option() {
    let node = Node::start(1);
    let taken = Node::try_api_on(&node, node.address);
    let text = taken.to_string();
    assert!(text.contains("api.bind"), "{text}");
    if cfg!(target_os = "linux") {
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    }
}
