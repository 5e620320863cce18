//! A start that fails after connectors have been created.

use std::net::TcpListener;

use serde_json::json;

use crate::support::api::Api;
use crate::support::*;

#[test]
fn failed_start_with_connectors_ends_with_a_message_and_without_a_panic() {
    let mut server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    for number in 0..4 {
        let connector =
            json!({"type": "http", "name": format!("web{number}"), "config": {"url": "http://127.0.0.1:9"}});
        api.ok("POST", "/api/v1/connectors", &connector);
        let action = json!({
            "type": "http", "name": format!("hook{number}"), "connector": format!("web{number}"),
            "parameters": {"body": "${payload}"}, "delivery": {"health_check_interval_ms": 100},
        });
        api.ok("POST", "/api/v1/actions", &action);
    }
    server.kill();
    let _occupied = TcpListener::bind(server.http()).expect("the server has released its port");
    for start in 1..=5 {
        server.spawn_again();
        server.wait_until("the process has ended", |server| !server.is_running());
        let log = server.log();
        assert_eq!(log.matches("cannot bind the API").count(), start, "{log}");
        assert!(!log.contains("panicked"), "{log}");
        server.kill();
    }
}
