//! Tests a long outage of Kafka: actions and sources must not try to reconnect all the time.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::api::Api;
use crate::support::*;

/// The listener accepts connections and closes them at once, as a load balancer without backends does.
#[test]
fn actions_and_sources_limit_their_reconnects() {
    const SECONDS: u32 = 6;
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it has an address");
    let connects = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&connects);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            drop(stream);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let connector = json!({"type": "kafka", "name": "k", "config": {"bootstrap_hosts": address.to_string()}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let action = json!({
        "type": "kafka", "name": "out", "connector": "k", "parameters": {"kafka_topic": "t"},
        "delivery": {"retry": {"first_ms": 10, "longest_ms": 10}, "health_check_interval_ms": 100},
    });
    api.ok("POST", "/api/v1/actions", &action);
    let source = json!({
        "type": "kafka", "name": "in", "connector": "k", "parameters": {"kafka_topics": ["t"], "group_id": "g"},
    });
    api.ok("POST", "/api/v1/sources", &source);
    for path in ["/api/v1/actions/kafka:out", "/api/v1/sources/kafka:in"] {
        server.wait_until(&format!("{path} tells"), |_| {
            api.get(path)["health"]["state"] == "disconnected"
        });
    }
    let before = connects.load(Ordering::Relaxed);
    thread::sleep(Duration::from_secs(SECONDS.into()));
    let during = connects.load(Ordering::Relaxed) - before;
    println!("{during} connections of an action and a source in {SECONDS} s");
    assert!((1..=4 * SECONDS).contains(&during), "{during} in {SECONDS} s");
}
