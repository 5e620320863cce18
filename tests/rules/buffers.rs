//! Tests the guarantees of action buffers with the real binary. A process crash loses only messages in memory,
//! back-pressure holds publishers when a buffer is full, and messages spilled from memory to disk stay in order.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::bad_input::metric;
use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

const ACTION: &str = "/api/v1/actions/http:hook";
const QUOTA_EXCEEDED: u8 = 0x97;
/// Memory limit of the buffer.
const MEMORY: u64 = 65_536;

/// Creates a rule and an action that send everything below `t/` to the web server.
fn define(api: &Api<'_>, web: &WebServer, buffer: &Value) {
    let config = json!({"url": format!("http://{}", web.address)});
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "http", "name": "web", "config": config}),
    );
    let action = json!({
        "type": "http", "name": "hook", "connector": "web", "parameters": {"body": "${payload}"},
        "delivery": {"buffer": buffer, "retry": {"first_ms": 20, "longest_ms": 100}, "health_check_interval_ms": 100},
    });
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "all", "sql": "SELECT payload FROM \"t/#\"", "actions": ["http:hook"]});
    api.ok("POST", "/api/v1/rules", &rule);
}

/// Returns a payload of this size that begins with the number.
fn payload(number: u32, bytes: usize) -> String {
    format!("{number:08}{}", "x".repeat(bytes - 8))
}

/// Publishes `count` messages of 1000 bytes, numbered from `first`, until the server rejects one. Returns the numbers
/// of the acknowledged messages.
fn publish(server: &Server, first: u32, count: u32) -> Vec<u32> {
    publish_of(server, first, count, 1000)
}

fn publish_of(server: &Server, first: u32, count: u32, bytes: usize) -> Vec<u32> {
    let mut client = server.session(&Connect::new(V5, unique("publisher")));
    let mut acknowledged = Vec::new();
    for number in first..first + count {
        match client.publish(&Publish::new("t/1", payload(number, bytes)).qos(1)) {
            0..0x80 => acknowledged.push(number),
            QUOTA_EXCEEDED => return acknowledged,
            other => panic!("PUBACK {other:#x}"),
        }
    }
    acknowledged
}

fn arrived(web: &WebServer) -> Vec<u32> {
    let number = |body: &String| body[..8].parse().expect("a number");
    web.bodies().iter().map(number).collect()
}

#[track_caller]
fn wait_for(server: &Server, web: &WebServer, expected: &[u32]) {
    server.wait_until("all acknowledged messages have arrived", |_| {
        arrived(web).len() >= expected.len()
    });
    let arrived = arrived(web);
    assert_eq!(arrived.len(), expected.len(), "no message arrives twice");
    assert!(arrived == expected, "the messages arrive in order: {arrived:?}");
}

#[test]
fn memory_buffer_applies_back_pressure_and_loses_only_on_crash() {
    let mut server = Server::start(&Config::new(""));
    let web = WebServer::away();
    define(
        &Api::of(&server),
        &web,
        &json!({"mode": "memory", "memory_bytes": MEMORY}),
    );
    let lost = publish(&server, 0, 1000);
    assert!((10..70).contains(&lost.len()), "{} in {MEMORY} bytes", lost.len());
    assert_eq!(
        metric(&server, "tidewire_action_queued_messages", &["http:hook"]),
        lost.len() as f64
    );
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(Api::of(&server).get(ACTION)["metrics"]["queued_messages"], 0);
    // The definition still exists. Messages acknowledged from now on arrive, although back-pressure delayed them.
    let kept = publish(&server, 1000, 1000);
    assert!((10..70).contains(&kept.len()), "{} in {MEMORY} bytes", kept.len());
    web.come();
    wait_for(&server, &web, &kept);
    let more = publish(&server, 3000, 200);
    wait_for(&server, &web, &[kept, more].concat());
    let metrics = &Api::of(&server).get(ACTION)["metrics"];
    assert_eq!(metrics["failed"], 0, "{metrics:#}");
}

/// A paused action must not flood its target after a restart of the machine.
#[test]
fn pause_survives_a_restart_until_resumed() {
    let mut server = Server::start(&Config::new(""));
    let web = WebServer::away();
    web.come();
    define(&Api::of(&server), &web, &json!({}));
    Api::of(&server).ok("POST", &format!("{ACTION}/pause"), &Value::Null);
    publish(&server, 0, 20);
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    let api = Api::of(&server);
    assert_eq!(api.get(ACTION)["is_paused"], true);
    publish(&server, 20, 20);
    assert_eq!(api.get(ACTION)["metrics"]["queued_messages"], 40);
    api.ok("POST", &format!("{ACTION}/resume"), &Value::Null);
    server.wait_until("the buffered messages are sent", |_| {
        api.get(ACTION)["metrics"]["queued_messages"] == 0
    });
    // Enabling a paused action also resumes it.
    api.ok("POST", &format!("{ACTION}/pause"), &Value::Null);
    api.ok("POST", &format!("{ACTION}/disable"), &Value::Null);
    let view = api.ok("POST", &format!("{ACTION}/enable"), &Value::Null);
    assert_eq!(view["is_paused"], false);
}

/// The server runs a rule to find out whether a message would go to a full buffer. That run must not count the message.
#[test]
fn rule_counts_messages_once_while_its_action_is_full() {
    let server = Server::start(&Config::new(""));
    let (api, web) = (Api::of(&server), WebServer::away());
    define(&api, &web, &json!({"mode": "memory", "memory_bytes": MEMORY}));
    let count = "SELECT kv_store_put('seen', kv_store_get('seen', 0) + 1) AS put, payload, \
                 proc_dict_put('seen', kv_store_get('seen', 0)) AS before FROM \"t/#\" WHERE topic != 't/none'";
    let rule = json!({"id": "all", "sql": count, "actions": ["http:hook"]});
    api.ok("PUT", "/api/v1/rules/all", &rule);
    let rule = json!({
        "id": "tell", "sql": "SELECT kv_store_get('seen', 0) AS seen FROM \"ask\"",
        "actions": [{"function": "republish", "args": {"topic": "seen", "payload": "${seen}"}}],
    });
    api.ok("POST", "/api/v1/rules", &rule);
    let mut asker = server.session(&Connect::new(V5, "asker"));
    asker.subscribe("seen", 1);
    let mut seen = || {
        asker.publish(&Publish::new("ask", "").qos(1));
        let text = String::from_utf8(asker.receive().payload).expect("a number");
        text.parse::<usize>().expect("a number")
    };
    let mut accepted = publish(&server, 0, 1000).len();
    assert!((10..70).contains(&accepted), "{accepted} in {MEMORY} bytes");
    assert_eq!(seen(), accepted, "the rejected message is not counted");
    for first in [2000, 3000, 4000] {
        // A worker that has not sent anything to the action yet does not know that its buffer is full.
        let more = publish(&server, first, 100).len();
        assert!(more < 100, "the buffer is full");
        accepted += more;
    }
    assert_eq!(seen(), accepted);
    web.come();
    accepted += publish(&server, 5000, 300).len();
    assert_eq!(seen(), accepted);
}

// fault: Process killed; Action buffers
#[test]
fn hybrid_buffer_spills_to_disk_and_loses_messages_only_on_crash() {
    /// Messages in flight to the target stay in memory, at most 8 MiB. This is more.
    const MANY: u32 = 1_400;
    const BYTES: usize = 10_000;
    let mut server = Server::start(&Config::new(""));
    let web = WebServer::away();
    let buffer = json!({"mode": "hybrid", "memory_bytes": MEMORY, "segment_bytes": MEMORY, "max_bytes": 64 << 20});
    define(&Api::of(&server), &web, &buffer);
    let files = |server: &Server| {
        let metrics = Api::of(server).get(ACTION)["metrics"].clone();
        metrics["file_bytes"].as_u64().expect("the metric exists")
    };
    assert_eq!(publish(&server, 0, 30).len(), 30);
    let small = files(&server);
    assert_eq!(publish_of(&server, 30, MANY - 30, BYTES).len(), MANY as usize - 30);
    // The server checks the memory use periodically.
    server.wait_until("messages beyond the memory limit are on disk", |_| {
        files(&server) > small + (4 << 20)
    });
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(Api::of(&server).get(ACTION)["metrics"]["queued_messages"], 0);
    assert!(files(&server) <= small, "delivered messages use no disk space");
    let kept = publish_of(&server, 10_000, MANY, BYTES);
    assert_eq!(kept.len(), MANY as usize);
    web.come();
    // First from the disk, then from memory again.
    wait_for(&server, &web, &kept);
    let more = publish(&server, 20_000, 30);
    wait_for(&server, &web, &[kept, more].concat());
}

#[test]
fn hybrid_buffer_applies_back_pressure_when_full() {
    let server = Server::start(&Config::new(""));
    let web = WebServer::away();
    let buffer = json!({"mode": "hybrid", "memory_bytes": MEMORY, "segment_bytes": MEMORY, "max_bytes": 1 << 20});
    define(&Api::of(&server), &web, &buffer);
    let kept = publish(&server, 0, 5000);
    assert!((800..1100).contains(&kept.len()), "{} in a MiB", kept.len());
    web.come();
    wait_for(&server, &web, &kept);
}

/// Publishers are rejected before the buffer has to refuse their messages, because some space stays reserved.
#[test]
fn full_buffer_is_an_alarm_until_it_has_space() {
    let server = Server::start(&Config::new(""));
    let web = WebServer::away();
    define(
        &Api::of(&server),
        &web,
        &json!({"max_bytes": 1 << 20, "segment_bytes": 65_536}),
    );
    let mut client = server.session(&Connect::new(V5, unique("publisher")));
    let mut acknowledged = BTreeSet::new();
    loop {
        let payload = format!("{:08}{}", acknowledged.len(), "x".repeat(2_000));
        match client.publish(&Publish::new("t/1", &payload).qos(1)) {
            QUOTA_EXCEEDED => break,
            _ => acknowledged.insert(payload),
        };
    }
    let api = Api::of(&server);
    let alarm = || {
        let alarms = api.get("/api/v1/alarms");
        let mut active = alarms["active"].as_array().into_iter().flatten();
        active.find(|alarm| alarm["name"] == "buffer:http:hook").cloned()
    };
    server.wait_until("an alarm is active", |_| alarm().is_some());
    let begun = alarm().unwrap();
    assert!(begun["message"].to_string().contains("1048576 bytes"), "{begun}");
    assert!(metric(&server, "tidewire_action_publishers_held_back_total", &["http:hook"]) >= 1.0);
    // Several checks of the alarms later it is the same one.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(alarm().as_ref(), Some(&begun));
    // Publishers also wait for a paused action.
    api.ok("POST", &format!("{ACTION}/pause"), &Value::Null);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(alarm(), Some(begun));
    api.ok("POST", &format!("{ACTION}/resume"), &Value::Null);
    web.come();
    server.wait_until("all acknowledged messages have arrived", |_| {
        web.bodies()
            .into_iter()
            .collect::<BTreeSet<_>>()
            .is_superset(&acknowledged)
    });
    server.wait_until("the alarm has ended", |_| alarm().is_none());
    assert!(client.publish(&Publish::new("t/1", "last").qos(1)) < 0x80);
}

#[test]
fn messages_survive_a_restart_of_the_action_in_every_mode() {
    let server = Server::start(&Config::new(""));
    for (number, mode) in (0..).zip(["memory", "hybrid", "disk"]) {
        let web = WebServer::away();
        define(&Api::of(&server), &web, &json!({"mode": mode, "max_bytes": 1 << 20}));
        let kept = publish(&server, number * 1_000, 30);
        Api::of(&server).ok("POST", &format!("{ACTION}/restart"), &json!(null));
        assert_eq!(Api::of(&server).get(ACTION)["metrics"]["queued_messages"], 30, "{mode}");
        web.come();
        wait_for(&server, &web, &kept);
        for path in ["/api/v1/rules/all", ACTION, "/api/v1/connectors/web"] {
            Api::of(&server).ok("DELETE", path, &json!(null));
        }
    }
}
