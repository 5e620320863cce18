//! What the buffers of actions promise, on the real binary: what waits in memory is gone with the process and nothing else is, whoever
//! publishes too much is held back, and what went from memory to the disk keeps its order.

use serde_json::{Value, json};

use crate::api::Api;
use crate::bad_input::metric;
use crate::support::*;
use crate::web_server::WebServer;

const ACTION: &str = "/api/v1/actions/http:hook";
/// The most that is waited with in memory.
const MEMORY: u64 = 65_536;

/// All under `t/` goes to the web server.
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

/// So many bytes, of which its number is the first.
fn payload(number: u32, bytes: usize) -> String {
    format!("{number:08}{}", "x".repeat(bytes - 8))
}

/// Publishes 1000 bytes each from `first` on until the server takes no more, or so many. The numbers of those that were acknowledged.
fn publish(server: &Server, first: u32, count: u32) -> Vec<u32> {
    publish_of(server, first, count, 1000)
}

fn publish_of(server: &Server, first: u32, count: u32, bytes: usize) -> Vec<u32> {
    let mut client = server.session(&Connect::new(V5, unique("publisher")));
    let mut acknowledged = Vec::new();
    for number in first..first + count {
        match client.publish(&Publish::new("t/1", payload(number, bytes)).qos(1)) {
            0..0x80 => acknowledged.push(number),
            0x97 => return acknowledged,
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
    server.wait_until("all that was acknowledged has arrived", |_| {
        arrived(web).len() >= expected.len()
    });
    let arrived = arrived(web);
    assert_eq!(arrived.len(), expected.len(), "none comes twice");
    assert!(arrived == expected, "they come in their order: {arrived:?}");
}

#[test]
fn memory_holds_publishers_back_and_loses_what_waits_with_the_process_only() {
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
    // The definition is there, and what is acknowledged from now on arrives, though it was held back on the way.
    let kept = publish(&server, 1000, 1000);
    assert!((10..70).contains(&kept.len()), "{} in {MEMORY} bytes", kept.len());
    web.come();
    wait_for(&server, &web, &kept);
    let more = publish(&server, 3000, 200);
    wait_for(&server, &web, &[kept, more].concat());
    let metrics = &Api::of(&server).get(ACTION)["metrics"];
    assert_eq!(metrics["failed"], 0, "{metrics:#}");
}

/// Whoever pauses an action does not want its target to be flooded because the machine is started again.
#[test]
fn a_pause_lasts_over_a_restart_until_it_is_ended() {
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
    server.wait_until("what has waited is sent", |_| {
        api.get(ACTION)["metrics"]["queued_messages"] == 0
    });
    // It is enabled to work.
    api.ok("POST", &format!("{ACTION}/pause"), &Value::Null);
    api.ok("POST", &format!("{ACTION}/disable"), &Value::Null);
    let view = api.ok("POST", &format!("{ACTION}/enable"), &Value::Null);
    assert_eq!(view["is_paused"], false);
}

/// Whether a message would come to a full buffer is found out by running its rule: that must not count it.
#[test]
fn a_rule_counts_each_accepted_message_once_while_its_action_is_full() {
    let server = Server::start(&Config::new(""));
    let (api, web) = (Api::of(&server), WebServer::away());
    define(&api, &web, &json!({"mode": "memory", "memory_bytes": MEMORY}));
    let count = "SELECT kv_store_put('seen', kv_store_get('seen', 0) + 1) AS put, payload, \
                 proc_dict_put('seen', kv_store_get('seen', 0)) AS before FROM \"t/#\" WHERE topic != 't/none'";
    let rule = json!({"id": "all", "sql": count, "actions": ["http:hook"]});
    api.ok("PUT", "/api/v1/rules/all", &rule);
    let told = json!({
        "id": "tell", "sql": "SELECT kv_store_get('seen', 0) AS seen FROM \"ask\"",
        "actions": [{"function": "republish", "args": {"topic": "told", "payload": "${seen}"}}],
    });
    api.ok("POST", "/api/v1/rules", &told);
    let mut asker = server.session(&Connect::new(V5, "asker"));
    asker.subscribe("told", 1);
    let mut seen = || {
        asker.publish(&Publish::new("ask", "").qos(1));
        let text = String::from_utf8(asker.receive().payload).expect("a number");
        text.parse::<usize>().expect("a number")
    };
    let mut accepted = publish(&server, 0, 1000).len();
    assert!((10..70).contains(&accepted), "{accepted} in {MEMORY} bytes");
    assert_eq!(seen(), accepted, "the one that was refused is not counted");
    for first in [2000, 3000, 4000] {
        // A worker that has not given it anything yet does not know that it is full.
        let more = publish(&server, first, 100).len();
        assert!(more < 100, "it is full");
        accepted += more;
    }
    assert_eq!(seen(), accepted);
    web.come();
    accepted += publish(&server, 5000, 300).len();
    assert_eq!(seen(), accepted);
}

#[test]
fn hybrid_goes_on_the_disk_beyond_its_memory_and_loses_what_waits_with_the_process_only() {
    /// As much as is being tried stays in memory, 8 MiB at most: more than that.
    const MANY: u32 = 1_400;
    const BYTES: usize = 10_000;
    let mut server = Server::start(&Config::new(""));
    let web = WebServer::away();
    let buffer = json!({"mode": "hybrid", "memory_bytes": MEMORY, "segment_bytes": MEMORY, "max_bytes": 64 << 20});
    define(&Api::of(&server), &web, &buffer);
    let files = |server: &Server| {
        let metrics = Api::of(server).get(ACTION)["metrics"].clone();
        metrics["file_bytes"].as_u64().expect("it is told")
    };
    assert_eq!(publish(&server, 0, 30).len(), 30);
    let small = files(&server);
    assert_eq!(publish_of(&server, 30, MANY - 30, BYTES).len(), MANY as usize - 30);
    // Looked at once in a while.
    server.wait_until("what is more than the memory is on the disk", |_| {
        files(&server) > small + (4 << 20)
    });
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    assert_eq!(Api::of(&server).get(ACTION)["metrics"]["queued_messages"], 0);
    assert!(files(&server) <= small, "nobody can want it any more");
    let kept = publish_of(&server, 10_000, MANY, BYTES);
    assert_eq!(kept.len(), MANY as usize);
    web.come();
    // From the disk, and then in memory again.
    wait_for(&server, &web, &kept);
    let more = publish(&server, 20_000, 30);
    wait_for(&server, &web, &[kept, more].concat());
}

#[test]
fn hybrid_holds_publishers_back_when_memory_and_disk_are_full() {
    let server = Server::start(&Config::new(""));
    let web = WebServer::away();
    let buffer = json!({"mode": "hybrid", "memory_bytes": MEMORY, "segment_bytes": MEMORY, "max_bytes": 1 << 20});
    define(&Api::of(&server), &web, &buffer);
    let kept = publish(&server, 0, 5000);
    assert!((800..1100).contains(&kept.len()), "{} in a MiB", kept.len());
    web.come();
    wait_for(&server, &web, &kept);
}
