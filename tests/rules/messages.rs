//! Tests rules and events for messages: rule output, republishing, delivery, acknowledgement and drops.

use serde_json::{Value, json};

use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

fn server() -> Server {
    Server::start(&Config::new(""))
}

#[test]
fn rule_output_is_written_to_a_file_before_the_puback() {
    let server = server();
    let api = Api::of(&server);
    let path = server.dir().join("lines.jsonl");
    let action = json!({"type": "file", "name": "lines", "parameters": {"directory": server.dir(), "name": "lines"}});
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({
        "id": "hot",
        "sql": "SELECT payload.n AS n, payload.temp * 10 AS tenths, topic, clientid FROM \"meters/+\" WHERE payload.temp > 30",
        "actions": ["file:lines"],
    });
    api.ok("POST", "/api/v1/rules", &rule);
    let mut meter = server.session(&Connect::new(V5, "meter-1"));
    for n in 0..100 {
        let payload = json!({"n": n, "temp": n}).to_string();
        // The topic has no subscribers.
        assert_eq!(meter.publish(&Publish::new("meters/7", payload).qos(1)), 0x10);
    }
    meter.publish(&Publish::new("elsewhere", r#"{"n": 1, "temp": 99}"#).qos(1));
    let lines = || std::fs::read_to_string(&path).unwrap_or_default();
    server.wait_until("all lines are written", |_| lines().lines().count() == 69);
    let first: serde_json::Value = serde_json::from_str(lines().lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        first,
        json!({"n": 31, "tenths": 310, "topic": "meters/7", "clientid": "meter-1"})
    );
    let rule = api.get("/api/v1/rules/hot");
    assert_eq!(rule["metrics"]["matched"], 100);
    assert_eq!(rule["metrics"]["passed"], 69);
    assert_eq!(rule["metrics"]["failed.no_result"], 31);
    server.wait_until("all messages are confirmed", |_| {
        api.get("/api/v1/actions/file:lines")["metrics"]["sent"] == 69
    });
}

#[test]
fn republished_messages_match_other_rules_only() {
    let server = server();
    let api = Api::of(&server);
    let republish =
        |topic: &str| json!([{"function": "republish", "args": {"topic": topic, "payload": "${payload}", "qos": 1}}]);
    let rule = |id: &str, from: &str, to: &str| json!({"id": id, "sql": format!("SELECT * FROM \"{from}\""), "actions": republish(to)});
    api.ok("POST", "/api/v1/rules", &rule("once", "a/#", "a/again"));
    api.ok("POST", "/api/v1/rules", &rule("then", "a/again", "b/${clientid}"));
    let mut watcher = server.session(&Connect::new(V5, "watcher"));
    watcher.subscribe("#", 1);
    let mut client = server.session(&Connect::new(V5, "c"));
    assert_eq!(client.publish(&Publish::new("a/1", "x").qos(1)), 0);
    let mut topics: Vec<String> = (0..3)
        .map(|_| String::from_utf8_lossy(&watcher.receive().topic).into_owned())
        .collect();
    topics.sort();
    assert_eq!(topics, ["a/1", "a/again", "b/undefined"]);
    watcher.ping_alone();
}

#[test]
fn connects_and_disconnects_are_events() {
    let server = server();
    let api = Api::of(&server);
    let rule = json!({
        "id": "presence",
        "sql": "SELECT clientid, event, reason FROM \"$events/client/connected\", \"$events/client_disconnected\" WHERE clientid = 'lamp'",
        "actions": [{"function": "republish", "args": {"topic": "presence/${clientid}", "payload": "${event} ${reason}"}}],
    });
    api.ok("POST", "/api/v1/rules", &rule);
    let mut watcher = server.session(&Connect::new(V5, "watcher"));
    watcher.subscribe("presence/#", 0);
    server.session(&Connect::new(V4, "other")).disconnect();
    server.session(&Connect::new(V4, "lamp")).disconnect();
    let payload = |watcher: &mut Peer| String::from_utf8(watcher.receive().payload).expect("text");
    assert_eq!(payload(&mut watcher), "client.connected undefined");
    assert_eq!(payload(&mut watcher), "client.disconnected normal");
}

/// A full buffer delays only publishers whose messages go to it, and drops nothing.
#[test]
fn full_buffer_applies_back_pressure_to_publishers() {
    let server = server();
    let api = Api::of(&server);
    let web = WebServer::away();
    let connector = json!({"type": "http", "name": "web", "config": {"url": format!("http://{}", web.address)}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let action = json!({
        "type": "http", "name": "hook", "connector": "web",
        "parameters": {"body": "${payload}"},
        "delivery": {"buffer": {"max_bytes": 262_144, "segment_bytes": 65_536}, "retry": {"first_ms": 10, "longest_ms": 50}},
    });
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "all", "sql": "SELECT payload FROM \"t/#\"", "actions": ["http:hook"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut new = server.session(&Connect::new(V5, "new"));
    let mut old = server.session(&Connect::new(V4, "old"));
    let message = |n: usize| Publish::new("t/1", format!("{n:0>1000}")).qos(1);
    let mut accepted = Vec::new();
    let refused = (0..1000).find(|&n| match new.publish(&message(n)) {
        0x97 => true,
        _ => {
            accepted.push(n);
            false
        }
    });
    let refused = refused.expect("the buffer is bounded by its limit");
    assert!(
        (50..400).contains(&refused),
        "{refused} messages of 1000 bytes in 256 KiB"
    );
    old.send(&message(5000).id(9).bytes(V4));
    // The publisher gets no answer, and other clients are served.
    assert_eq!(new.publish(&Publish::new("other", "x").qos(1)), 0x10);
    new.ping_alone();
    // A publish over HTTP is delayed in the same way.
    let over_http = |topic: &str, n: usize| json!({"topic": topic, "payload": format!("{n:0>1000}"), "qos": 1});
    let refused = (6000..6100).find(|&n| match api.call("POST", "/api/v1/publish", &over_http("t/1", n)).0 {
        503 => true,
        _ => {
            accepted.push(n);
            false
        }
    });
    refused.expect("the buffer is bounded by its limit");
    let both = json!({"messages": [over_http("other", 1), over_http("t/1", 1)]});
    let (status, problem) = api.call("POST", "/api/v1/publish/bulk", &both);
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(
        status == 503 && detail.contains(" of 2 messages were published"),
        "{problem:#}"
    );
    api.ok("POST", "/api/v1/publish", &over_http("other", 1));
    web.come();
    assert_eq!(old.expect(4).packet_id(), 9);
    accepted.push(5000);
    accepted.sort_unstable();
    server.wait_until("all accepted messages have arrived", |_| {
        web.bodies().len() >= accepted.len()
    });
    let mut arrived: Vec<usize> = web
        .bodies()
        .iter()
        .map(|body| body.parse().expect("a number"))
        .collect();
    arrived.sort_unstable();
    arrived.dedup();
    assert_eq!(arrived, accepted);
}

/// The HTTP response confirms that a published message is in the buffer of its action.
#[test]
fn http_publish_is_durable_before_the_response() {
    let mut server = server();
    let web = WebServer::away();
    {
        let api = Api::of(&server);
        let connector = json!({"type": "http", "name": "web", "config": {"url": format!("http://{}", web.address)}});
        api.ok("POST", "/api/v1/connectors", &connector);
        let action = json!({"type": "http", "name": "hook", "connector": "web", "parameters": {"body": "${payload}"}});
        api.ok("POST", "/api/v1/actions", &action);
        let rule = json!({"id": "all", "sql": "SELECT payload FROM \"t/#\"", "actions": ["http:hook"]});
        api.ok("POST", "/api/v1/rules", &rule);
        api.ok(
            "POST",
            "/api/v1/publish",
            &json!({"topic": "t/1", "payload": "one", "qos": 1}),
        );
        let many: Vec<Value> = (0..120)
            .map(|n| json!({"topic": format!("t/{n}"), "payload": n.to_string(), "qos": 2}))
            .collect();
        api.ok("POST", "/api/v1/publish/bulk", &json!({"messages": many}));
    }
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    web.come();
    server.wait_until("all messages have arrived", |_| web.bodies().len() >= 121);
    let arrived: std::collections::BTreeSet<String> = web.bodies().into_iter().collect();
    assert_eq!(arrived.len(), 121);
}

/// The events for delivered, acknowledged and dropped messages name the subscriber and the publisher.
#[test]
fn message_outcomes_are_events_with_the_publisher() {
    let server = server();
    let api = Api::of(&server);
    let rule = json!({
        "id": "fates",
        "sql": "SELECT event, from_clientid, clientid, topic, qos, payload, reason, id FROM \
                \"$events/message/delivered\", \"$events/message_acked\", \"$events/message/delivery_dropped\" WHERE topic =~ 't/#'",
        "actions": [{"function": "republish", "args": {"topic": "fates/${clientid}", "payload": "${.}"}}],
    });
    api.ok("POST", "/api/v1/rules", &rule);
    let mut watcher = server.session(&Connect::new(V5, "watcher"));
    watcher.subscribe("fates/#", 0);
    let mut lamp = server.session(&Connect::new(V5, "lamp"));
    lamp.subscribe("t/#", 1);
    let mut meter = server.session(&Connect::new(V4, "meter"));
    meter.publish(&Publish::new("t/1", "on").qos(1));
    let delivery = lamp.receive();
    assert_eq!(delivery.payload, b"on");
    let mut fate = || serde_json::from_slice::<serde_json::Value>(&watcher.receive().payload).expect("JSON");
    let (delivered, acked) = (fate(), fate());
    assert_eq!(
        (&delivered["event"], &acked["event"]),
        (&json!("message.delivered"), &json!("message.acked"))
    );
    for column in ["from_clientid", "clientid", "topic", "qos", "payload", "id"] {
        assert_eq!(delivered[column], acked[column], "{column}");
    }
    assert_eq!(
        (&acked["from_clientid"], &acked["clientid"]),
        (&json!("meter"), &json!("lamp"))
    );
    assert_eq!(
        (&acked["topic"], &acked["qos"], &acked["payload"]),
        (&json!("t/1"), &json!(1), &json!("on"))
    );
    lamp.disconnect();
    let mut away = server.session(&Connect::new(V5, "away").persistent());
    away.subscribe("t/2", 0);
    away.disconnect();
    meter.publish(&Publish::new("t/2", "off"));
    let dropped = fate();
    assert_eq!(
        (&dropped["event"], &dropped["reason"]),
        (&json!("delivery.dropped"), &json!("qos0_msg"))
    );
    assert_eq!(
        (&dropped["clientid"], &dropped["from_clientid"]),
        (&json!("away"), &json!("meter"))
    );
}

#[test]
fn logins_and_pings_are_events() {
    let server = server();
    let api = Api::of(&server);
    let rule = json!({
        "id": "signs",
        "sql": "SELECT * FROM \"$events/client/ping\", \"$events/client_check_authn_complete\" WHERE clientid = 'lamp'",
        "actions": [{"function": "republish", "args": {"topic": "signs", "payload": "${event} ${reason_code} ${is_anonymous} ${keepalive}"}}],
    });
    api.ok("POST", "/api/v1/rules", &rule);
    let mut watcher = server.session(&Connect::new(V5, "watcher"));
    watcher.subscribe("signs", 0);
    let mut lamp = server.session(&Connect::new(V4, "lamp"));
    lamp.ping();
    let sign = |watcher: &mut Peer| String::from_utf8(watcher.receive().payload).expect("text");
    assert_eq!(sign(&mut watcher), "client.check_authn_complete success true undefined");
    assert!(sign(&mut watcher).starts_with("client.ping undefined undefined "));
}

/// An unreachable target delays only its own publishers, with and without the broker's own journal.
#[test]
fn unreachable_target_delays_only_its_own_publishers() {
    for policy in ["fsync", "memory"] {
        let server = Server::start(&Config::new(format!("[durability]\npolicy = \"{policy}\"\n")));
        let api = Api::of(&server);
        let web = WebServer::away();
        let connector = json!({"type": "http", "name": "web", "config": {"url": format!("http://{}", web.address)}});
        api.ok("POST", "/api/v1/connectors", &connector);
        let action = json!({
            "type": "http", "name": "hook", "connector": "web", "parameters": {"body": "${payload}"},
            "delivery": {"query_mode": "sync", "retry": {"first_ms": 10, "longest_ms": 50}},
        });
        api.ok("POST", "/api/v1/actions", &action);
        let rule = json!({"id": "hooked", "sql": "SELECT payload FROM \"hook/#\"", "actions": ["http:hook"]});
        api.ok("POST", "/api/v1/rules", &rule);
        let path = server.dir().join("lines.jsonl");
        let action =
            json!({"type": "file", "name": "lines", "parameters": {"directory": server.dir(), "name": "lines"}});
        api.ok("POST", "/api/v1/actions", &action);
        let rule = json!({"id": "filed", "sql": "SELECT payload FROM \"file/#\"", "actions": ["file:lines"]});
        api.ok("POST", "/api/v1/rules", &rule);
        let mut patient = server.session(&Connect::new(V4, "patient"));
        patient.send(&Publish::new("hook/1", "waits").qos(1).id(1).bytes(V4));
        patient.send(&Publish::new("other", "behind it").qos(1).id(2).bytes(V4));
        let quick: Vec<String> = (0..8).map(|n| format!("quick-{n}")).collect();
        for id in &quick {
            let mut client = server.session(&Connect::new(V5, id));
            assert_eq!(client.publish(&Publish::new("file/1", "x").qos(1)), 0x10, "{policy}");
            assert_eq!(client.publish(&Publish::new("other", "x").qos(2)), 0x10, "{policy}");
        }
        let lines = || std::fs::read_to_string(&path).unwrap_or_default();
        server.wait_until("the file has its lines", |_| lines().lines().count() == quick.len());
        patient.ping_alone();
        web.come();
        assert_eq!(
            (patient.expect(4).packet_id(), patient.expect(4).packet_id()),
            (1, 2),
            "{policy}"
        );
        assert_eq!(web.bodies()[0], "waits");
    }
}
