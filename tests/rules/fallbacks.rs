//! Tests fallback actions: they receive the messages that an action gives up, also after a crash, and have no fallback
//! themselves.

use serde_json::{Value, json};

use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

fn add_connector(api: &Api<'_>, name: &str, web: &WebServer) {
    let config = json!({"url": format!("http://{}", web.address)});
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "http", "name": name, "config": config}),
    );
}

/// Returns an action that sends to the web server of the connector with this name.
fn http(name: &str, fallbacks: &Value) -> Value {
    json!({
        "type": "http", "name": name, "connector": name, "parameters": {"body": "${payload}"}, "fallback_actions": fallbacks,
    })
}

fn file(server: &Server) -> Value {
    json!({"type": "file", "name": "dead", "parameters": {"directory": server.dir(), "name": "dead"}})
}

fn metrics(api: &Api<'_>, action: &str) -> Value {
    api.get(&format!("/api/v1/actions/{action}"))["metrics"].clone()
}

/// The fallback action's templates apply. It also receives messages that were buffered when the process was killed.
#[test]
fn rejected_messages_go_to_the_fallback_and_are_republished() {
    let mut server = Server::start(&Config::new(""));
    let web = WebServer::away();
    {
        let api = Api::of(&server);
        add_connector(&api, "web", &web);
        api.ok("POST", "/api/v1/actions", &file(&server));
        let republish =
            json!({"kind": "republish", "args": {"topic": "dead/${topic}", "payload": "${payload}!", "qos": 1}});
        let fallbacks = json!([{"kind": "reference", "type": "file", "name": "dead"}, republish]);
        api.ok("POST", "/api/v1/actions", &http("web", &fallbacks));
        let shown = api.get("/api/v1/actions/http:web")["fallback_actions"].clone();
        assert_eq!(
            (&shown[0], &shown[1]["args"]["topic"]),
            (&fallbacks[0], &json!("dead/${topic}"))
        );
        assert_eq!(api.get("/api/v1/actions/file:dead")["fallback_of"], json!(["http:web"]));
        assert_eq!(api.call("DELETE", "/api/v1/actions/file:dead", &Value::Null).0, 409);
        // The rule also matches republished messages.
        let rule = json!({"id": "r", "sql": "SELECT payload, topic FROM \"#\"", "actions": ["http:web"]});
        api.ok("POST", "/api/v1/rules", &rule);
    }
    let mut watcher = server.session(&Connect::new(V5, "watcher").persistent());
    watcher.subscribe("dead/#", 1);
    drop(watcher);
    let mut client = server.session(&Connect::new(V5, "c"));
    for number in 0..20 {
        client.publish(&Publish::new(format!("t/{number}"), number.to_string()).qos(1));
    }
    // The messages are in the action's buffer, with the data for the fallback actions.
    server.kill();
    server.spawn_again();
    server.wait_until_ready();
    web.refusing(400).come();
    let lines = server.dir().join("dead.jsonl");
    let text = || std::fs::read_to_string(&lines).unwrap_or_default();
    server.wait_until("all messages are in the file", |_| text().lines().count() >= 20);
    for (number, line) in text().lines().enumerate() {
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        let expected = (&json!(number.to_string()), &json!(format!("t/{number}")));
        assert_eq!((&line["payload"], &line["topic"]), expected);
    }
    let mut watcher = server.session(&Connect::new(V5, "watcher").persistent());
    // Order is only guaranteed per topic, and each message has its own topic.
    let mut received: Vec<String> = (0..20)
        .map(|_| watcher.receive())
        .map(|it| format!("{} {}", it.topic_str(), String::from_utf8_lossy(&it.payload)))
        .collect();
    let mut expected: Vec<String> = (0..20).map(|number| format!("dead/t/{number} {number}!")).collect();
    received.sort();
    expected.sort();
    assert_eq!(received, expected);
    let api = Api::of(&server);
    server.wait_until("no message is queued", |_| {
        metrics(&api, "http:web")["queued_messages"] == 0
    });
    // A rule does not see messages that result from its own output, so there is no loop.
    let counts = metrics(&api, "http:web");
    let counts = ["failed", "fallback_stored", "fallback_lost"].map(|name| counts[name].clone());
    assert_eq!(counts, [json!(20), json!(40), json!(0)]);
    let (_, exposed) = server.http_get("/metrics");
    assert!(
        exposed.contains("tidewire_action_fallback_total{action=\"http:web\",outcome=\"stored\"} 40"),
        "{exposed}"
    );
}

#[test]
fn messages_rejected_by_a_fallback_are_counted_and_dropped() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let web = WebServer::answering(400);
    let away = WebServer::away();
    for (name, web) in [("first", &web), ("second", &web), ("third", &away)] {
        add_connector(&api, name, web);
    }
    api.ok("POST", "/api/v1/actions", &http("third", &json!([])));
    api.ok("POST", "/api/v1/actions", &http("second", &json!(["http:third"])));
    api.ok("POST", "/api/v1/actions", &http("first", &json!(["http:second"])));
    let rule = json!({"id": "r", "sql": "SELECT payload FROM \"t\"", "actions": ["http:first"]});
    api.ok("POST", "/api/v1/rules", &rule);
    let mut client = server.session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("t", "x").qos(1));
    server.wait_until("all messages are counted", |_| {
        metrics(&api, "http:second")["fallback_lost"] == 1 && metrics(&api, "http:second")["queued_messages"] == 0
    });
    let counts = |action, names: [&str; 3]| names.map(|name| metrics(&api, action)[name].clone());
    assert_eq!(
        counts("http:first", ["failed", "fallback_stored", "fallback_lost"]),
        [json!(1), json!(1), json!(0)]
    );
    assert_eq!(
        counts("http:second", ["matched", "failed", "fallback_stored"]),
        [json!(1), json!(1), json!(0)]
    );
    assert_eq!(metrics(&api, "http:third")["matched"], 0);
    // A disabled fallback action gets nothing, and the server reports it.
    api.ok("POST", "/api/v1/actions/http:second/disable", &Value::Null);
    assert_eq!(
        api.get("/api/v1/actions/http:first")["missing_fallback_actions"],
        json!(["http:second"])
    );
    client.publish(&Publish::new("t", "y").qos(1));
    server.wait_until("it is counted", |_| metrics(&api, "http:first")["fallback_lost"] == 1);
}

#[test]
fn invalid_fallbacks_are_rejected_with_their_field() {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    add_connector(&api, "web", &WebServer::away());
    api.ok("POST", "/api/v1/actions", &file(&server));
    let refused = |definition: &Value, expected: &str| {
        let (status, problem) = api.call("POST", "/api/v1/actions", definition);
        let text = problem.to_string();
        assert!(
            status == 422 && text.contains("fallback_actions") && text.contains(expected),
            "{status} {problem:#}"
        );
    };
    for (fallback, expected) in [
        (json!("http:web"), "is the action itself"),
        (json!("dead"), "expected type:name"),
        (json!("file:nowhere"), "there is no action"),
        (
            json!({"kind": "reference", "type": "file", "name": "nowhere"}),
            "there is no action",
        ),
        (json!({"kind": "republish", "args": {"topic": "a/#"}}), ".args.topic"),
        (json!({"kind": "republish", "args": {"topic": "${a"}}), ".args.topic"),
    ] {
        refused(&http("web", &json!([fallback])), expected);
    }
    refused(
        &http(
            "web",
            &json!(["file:dead", {"kind": "reference", "type": "file", "name": "dead"}]),
        ),
        "twice",
    );
    api.ok("POST", "/api/v1/actions", &http("web", &json!(["file:dead"])));
    let mut circle = file(&server);
    circle["fallback_actions"] = json!(["http:web"]);
    let (status, problem) = api.call("PUT", "/api/v1/actions/file:dead", &circle);
    assert!(
        status == 422 && problem.to_string().contains("falls back to this action"),
        "{status} {problem:#}"
    );
}

/// Creates an action with this overflow policy, a quota of a few hundred of the messages below, and an unreachable
/// target.
fn small(api: &Api<'_>, web: &WebServer, overflow: &str) {
    add_connector(api, "web", web);
    let mut action = http("web", &json!(["file:dead"]));
    action["delivery"] = json!({
        "buffer": {"max_bytes": 262_144, "segment_bytes": 65_536, "overflow": overflow},
        "retry": {"first_ms": 10, "longest_ms": 50},
    });
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "r", "sql": "SELECT payload FROM \"t\"", "actions": ["http:web"]});
    api.ok("POST", "/api/v1/rules", &rule);
}

fn dead_letters(server: &Server) -> Vec<String> {
    let text = std::fs::read_to_string(server.dir().join("dead.jsonl")).unwrap_or_default();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
    lines
        .map(|line| line["payload"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Asserts that all messages arrived, in any order.
fn assert_all_are_there(mut found: Vec<String>, total: usize) {
    found.sort();
    found.dedup();
    let expected: Vec<String> = (0..total).map(|number| format!("{number:0>1000}")).collect();
    assert!(found == expected, "{} of {total} messages arrived", found.len());
}

#[test]
fn overflow_is_acknowledged_when_the_fallback_has_it() {
    const TOTAL: usize = 1500;
    for overflow in ["drop-oldest", "drop-newest"] {
        let mut server = Server::start(&Config::new(""));
        let web = WebServer::away();
        {
            let api = Api::of(&server);
            api.ok("POST", "/api/v1/actions", &file(&server));
            small(&api, &web, overflow);
        }
        let mut client = server.session(&Connect::new(V5, "c"));
        for number in 0..TOTAL {
            let message = Publish::new("t", format!("{number:0>1000}")).qos(1);
            assert!(
                client.publish(&message) < 0x80,
                "{overflow}: publishers are not held back"
            );
        }
        {
            let api = Api::of(&server);
            let counts = metrics(&api, "http:web");
            let kind = overflow.replace("drop-", "overflow_");
            assert!(
                counts["dropped"][&kind].as_u64() > Some(500) && counts["fallback_lost"] == 0,
                "{counts:#}"
            );
        }
        // All messages are acknowledged, so they survive the kill.
        server.kill();
        server.spawn_again();
        server.wait_until_ready();
        web.come();
        let api = Api::of(&server);
        server.wait_until("no message is queued", |_| {
            ["http:web", "file:dead"]
                .iter()
                .all(|action| metrics(&api, action)["queued_messages"] == 0)
        });
        let dead = dead_letters(&server);
        assert!(
            dead.len() > 500 && !web.bodies().is_empty(),
            "{overflow}: {}",
            dead.len()
        );
        assert_all_are_there([dead, web.bodies()].concat(), TOTAL);
    }
}

/// Back-pressure does not apply to QoS 0.
#[test]
fn messages_blocked_too_long_go_to_the_fallback() {
    const TOTAL: usize = 9000;
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let web = WebServer::away();
    api.ok("POST", "/api/v1/actions", &file(&server));
    small(&api, &web, "back-pressure");
    let mut client = server.session(&Connect::new(V5, "c"));
    for number in 0..TOTAL {
        client.send(&Publish::new("t", format!("{number:0>1000}")).bytes(V5));
    }
    client.ping_alone();
    server.wait_until("the rule has matched all messages", |_| {
        api.get("/api/v1/rules/r")["metrics"]["matched"] == TOTAL
    });
    let discarded = api.get("/api/v1/rules/r")["metrics"]["actions.discarded"].as_u64();
    assert!(discarded > Some(1000), "{discarded:?}");
    server.wait_until("the discarded messages are in the file", |_| {
        dead_letters(&server).len() as u64 == discarded.unwrap_or_default()
    });
    assert_eq!(metrics(&api, "http:web")["fallback_stored"].as_u64(), discarded);
    web.come();
    server.wait_until("the other messages have reached the target", |_| {
        web.bodies().len() + dead_letters(&server).len() >= TOTAL
    });
    assert_all_are_there([dead_letters(&server), web.bodies()].concat(), TOTAL);
}
