//! Tests changes of actions while clients publish: all acknowledged messages reach the target.

use std::thread;

use serde_json::{Value, json};

use super::bad_input::metric;
use crate::support::api::Api;
use crate::support::*;

const CHANGES: u64 = 12;

fn lines(directory: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("lines.jsonl")).unwrap_or_default();
    let payload = |line: &str| {
        serde_json::from_str::<Value>(line).ok()?["payload"]
            .as_str()
            .map(str::to_owned)
    };
    text.lines().filter_map(payload).collect()
}

fn definition(server: &Server, change: u64) -> Value {
    json!({
        "type": "file", "name": "lines", "parameters": {"directory": server.dir(), "name": "lines"},
        "delivery": {"buffer": {"segment_bytes": 65_536, "max_bytes": 8_000_000 + change}},
    })
}

#[test]
fn changing_an_action_loses_no_acknowledged_message() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    api.ok("POST", "/api/v1/actions", &definition(&server, 0));
    let rule = json!({"id": "filed", "sql": "SELECT payload FROM \"t/#\"", "actions": ["file:lines"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let sent = thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for change in 1..=CHANGES {
                match change % 3 {
                    0 => api.ok("POST", "/api/v1/actions/file:lines/restart", &Value::Null),
                    _ => api.ok("PUT", "/api/v1/actions/file:lines", &definition(&server, change)),
                };
            }
        });
        let mut sent = Vec::new();
        let mut clients: Vec<Peer> = (0..3)
            .map(|n| server.session(&Connect::new(V5, format!("c{n}"))))
            .collect();
        while !changing.is_finished() {
            for (number, client) in clients.iter_mut().enumerate() {
                let payload = format!("{number} {}", sent.len());
                let reason = client.publish(&Publish::new(format!("t/{number}"), payload.clone()).qos(1));
                assert_eq!(reason, 0x10, "{payload}: accepted without matching subscribers");
                sent.push(payload);
            }
        }
        changing.join().expect("it does not panic");
        sent
    });
    server.wait_until("all lines have arrived", |server| {
        lines(server.dir()).len() >= sent.len()
    });
    let mut arrived = lines(server.dir());
    arrived.sort();
    let mut sent = sent;
    sent.sort();
    assert_eq!(arrived, sent);
    server.wait_until("the counters include all changes", |_| {
        let metrics = &api.get("/api/v1/actions/file:lines")["metrics"];
        metrics["matched"] == sent.len() && metrics["sent"] == sent.len()
    });
}

#[test]
fn action_counters_survive_changes() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    api.ok("POST", "/api/v1/actions", &definition(&server, 0));
    let rule = json!({"id": "filed", "sql": "SELECT payload FROM \"t/#\"", "actions": ["file:lines"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut client = server.session(&Connect::new(V5, "c"));
    let path = "/api/v1/actions/file:lines";
    let mut expected = 0;
    let mut publish = |count: u64| {
        for _ in 0..count {
            client.publish(&Publish::new("t/1", "x").qos(1));
        }
        expected += count;
        server.wait_until("all messages are sent, including earlier ones", |_| {
            api.get(path)["metrics"]["sent"] == expected
        });
        let metrics = api.get(path)["metrics"].clone();
        assert_eq!(metrics["matched"], expected, "{metrics:#}");
        let latency = metrics["latency"].as_array().expect("buckets");
        let timed: u64 = latency.iter().filter_map(|bucket| bucket["messages"].as_u64()).sum();
        assert_eq!(timed, expected, "{metrics:#}");
        assert_eq!(
            metric(&server, "tidewire_action_sent_total", &["file:lines"]),
            expected as f64
        );
    };
    publish(3);
    api.ok("PUT", path, &definition(&server, 1));
    publish(2);
    api.ok("POST", &format!("{path}/restart"), &Value::Null);
    publish(1);
    api.ok("POST", &format!("{path}/disable"), &Value::Null);
    api.ok("POST", &format!("{path}/enable"), &Value::Null);
    publish(2);
    api.ok("DELETE", "/api/v1/rules/filed", &Value::Null);
    api.ok("DELETE", path, &Value::Null);
    api.ok("POST", "/api/v1/actions", &definition(&server, 0));
    assert_eq!(
        api.get(path)["metrics"]["matched"],
        0,
        "a new action of the same name starts at zero"
    );
    assert_eq!(metric(&server, "tidewire_action_abandoned_total", &[]), 0.0);
}

/// The target accepts a request and never answers, so the action takes long to stop. Status requests must not wait for
/// that.
#[test]
fn status_requests_do_not_wait_for_a_stopping_action() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let target = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", target.local_addr().expect("it is bound"));
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "http", "name": "web", "config": {"url": url}}),
    );
    let action = json!({"type": "http", "name": "out", "connector": "web", "parameters": {"body": "${payload}"}});
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "r", "sql": "SELECT payload FROM \"t\"", "actions": ["http:out"]});
    api.ok("POST", "/api/v1/rules", &rule);
    server
        .session(&Connect::new(V5, "c"))
        .publish(&Publish::new("t", "x").qos(1));
    let path = "/api/v1/actions/http:out";
    server.wait_until("the message is in flight", |_| {
        api.get(path)["metrics"]["in_flight"] == 1
    });
    let other = Api::of(&server);
    let looked = thread::scope(|scope| {
        let changing = scope.spawn(|| other.ok("PUT", path, &action));
        let mut looked = 0;
        while !changing.is_finished() {
            api.get(path);
            looked += 1;
        }
        looked
    });
    assert!(looked > 3, "{looked}: the change blocks status requests");
    drop(target);
}
