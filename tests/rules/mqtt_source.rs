//! An MQTT source as a client of another broker: what that has kept while we were away arrives, and a source that is deleted leaves nothing
//! behind.

use serde_json::{Value, json};

use crate::api::Api;
use crate::support::*;

const SOURCE: &str = "/api/v1/sources/mqtt:in";

/// A server with a source of everything below `far/` on the other, published here below `near/`, and an action of the same connector.
pub fn bridged(other: &Server) -> Server {
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let connector =
        json!({"type": "mqtt", "name": "far", "config": {"server": other.mqtt().to_string(), "client_id": "bridge"}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let source = json!({
        "type": "mqtt", "name": "in", "connector": "far",
        "parameters": {"subscriptions": [{"filter": "far/#"}]},
        "publish": {"topic": "near/${topic}", "payload": "${payload}", "qos": 1},
    });
    api.ok("POST", "/api/v1/sources", &source);
    api.ok(
        "POST",
        "/api/v1/actions",
        &json!({"type": "mqtt", "name": "out", "connector": "far"}),
    );
    server
}

/// What the bridge is subscribed to.
pub fn filters(api: &Api<'_>) -> Vec<String> {
    filters_of(api, "bridge")
}

fn filters_of(api: &Api<'_>, client: &str) -> Vec<String> {
    let path = format!("/api/v1/clients/{client}/subscriptions");
    let (status, list) = api.call("GET", &path, &Value::Null);
    let list = if status == 404 { Value::Null } else { list };
    let items = list
        .as_array()
        .or(list["items"].as_array())
        .cloned()
        .unwrap_or_default();
    items
        .iter()
        .filter_map(|item| Some(item["filter"].as_str()?.to_owned()))
        .collect()
}

#[test]
fn what_the_other_broker_has_kept_arrives_though_an_action_uses_the_connector_first() {
    let other = Server::start(&Config::new(""));
    let far = Api::of(&other);
    let mut server = bridged(&other);
    other.wait_until("the source is subscribed", |_| filters(&far) == ["far/#"]);
    let mut watcher = server.session(&Connect::new(V5, "watcher").persistent());
    watcher.subscribe("near/#", 1);
    watcher.disconnect();
    server.kill();
    let mut publisher = other.session(&Connect::new(V4, "p"));
    for number in 0..20 {
        publisher.publish(&Publish::new("far/1", number.to_string()).qos(1));
    }
    server.spawn_again();
    server.wait_until_ready();
    let mut watcher = server.session(&Connect::new(V5, "watcher").persistent());
    for number in 0..20 {
        let message = watcher.receive();
        assert_eq!(
            (message.topic.as_slice(), message.payload),
            (&b"near/far/1"[..], number.to_string().into_bytes())
        );
    }
    let api = Api::of(&server);
    server.wait_until("its health tells", |_| {
        api.get(SOURCE)["health"]["state"] == "connected"
    });
    server.wait_until("all are counted", |_| api.get(SOURCE)["metrics"]["received"] == 20);
}

/// Out through an action, and in through a source, each with its defaults.
#[test]
fn a_message_keeps_its_properties_on_both_ways_over_a_bridge() {
    let other = Server::start(&Config::new(""));
    let server = bridged(&other);
    let api = Api::of(&server);
    other.wait_until("the source is subscribed", |_| filters(&Api::of(&other)) == ["far/#"]);
    let rule = json!({"id": "out", "sql": "SELECT * FROM \"out/#\"", "actions": ["mqtt:out"]});
    api.ok("POST", "/api/v1/rules", &rule);
    for (publisher, watcher, sent, received) in [
        (&server, &other, "out/1", "out/1"),
        (&other, &server, "far/1", "near/far/1"),
    ] {
        let mut watcher = watcher.session(&Connect::new(V5, "watcher"));
        watcher.subscribe(received, 1);
        let properties = [
            property::byte(property::PAYLOAD_FORMAT_INDICATOR, 1),
            property::u32(property::MESSAGE_EXPIRY_INTERVAL, 600),
            property::text(property::CONTENT_TYPE, "text/plain"),
            property::text(property::RESPONSE_TOPIC, "answers/1"),
            property::text(property::CORRELATION_DATA, [0, 0xFF]),
            property::user("a", "1"),
            property::user("a", "2"),
        ];
        let message = Publish::new(sent, "x").qos(1);
        let message = properties.into_iter().fold(message, Publish::property);
        publisher.session(&Connect::new(V5, "p")).publish(&message);
        let got = watcher.receive().properties;
        assert_eq!(got.number(property::PAYLOAD_FORMAT_INDICATOR), Some(1), "{got:?}");
        let expiry = got.number(property::MESSAGE_EXPIRY_INTERVAL);
        assert!(matches!(expiry, Some(580..=600)), "{got:?}");
        assert_eq!(got.bytes(property::CONTENT_TYPE), Some(&b"text/plain"[..]));
        assert_eq!(got.bytes(property::RESPONSE_TOPIC), Some(&b"answers/1"[..]));
        assert_eq!(got.bytes(property::CORRELATION_DATA), Some(&[0, 0xFF][..]));
        let mut users = got.user_properties();
        users.retain(|(name, _)| name != "tidewire-bridge");
        assert_eq!(
            users,
            [("a", "1"), ("a", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }
}

#[test]
fn qos_and_retain_of_what_a_source_publishes_are_templates() {
    let other = Server::start(&Config::new(""));
    let server = bridged(&other);
    let api = Api::of(&server);
    let templates = json!({
        "type": "mqtt", "name": "in", "connector": "far",
        "parameters": {"subscriptions": [{"filter": "far/#", "qos": 2}]},
        "publish": {"topic": "near/${topic}", "payload": "${payload}", "qos": "${qos}", "retain": "${payload.keep}"},
    });
    api.ok("PUT", SOURCE, &templates);
    server.wait_until("the source is connected", |_| {
        api.get(SOURCE)["health"]["state"] == "connected"
    });
    let mut watcher = server.session(&Connect::new(V5, "watcher"));
    watcher.subscribe("near/#", 2);
    let mut publisher = other.session(&Connect::new(V5, "p"));
    for qos in [1, 2] {
        let payload = format!(r#"{{"keep": {}}}"#, qos == 2);
        publisher.publish(&Publish::new(format!("far/{qos}"), payload).qos(qos));
        assert_eq!(watcher.receive().qos, qos);
    }
    let mut late = server.session(&Connect::new(V5, "late"));
    late.subscribe("near/#", 2);
    let kept = late.receive();
    assert_eq!((kept.topic_str(), kept.qos, kept.is_retained), ("near/far/2", 2, true));
    late.ping_alone();
}

#[test]
fn a_source_that_is_disabled_or_deleted_ends_its_subscription() {
    let other = Server::start(&Config::new(""));
    let far = Api::of(&other);
    let server = bridged(&other);
    let api = Api::of(&server);
    other.wait_until("the source is subscribed", |_| filters(&far) == ["far/#"]);
    api.ok("POST", &format!("{SOURCE}/disable"), &Value::Null);
    other.wait_until("it is not", |_| filters(&far).is_empty());
    api.ok("POST", &format!("{SOURCE}/enable"), &Value::Null);
    other.wait_until("it is again", |_| filters(&far) == ["far/#"]);
    let changed = json!({
        "type": "mqtt", "name": "in", "connector": "far",
        "parameters": {"subscriptions": [{"filter": "far/#"}, {"filter": "more/#"}]},
    });
    api.ok("PUT", SOURCE, &changed);
    other.wait_until("it has both", |_| filters(&far).len() == 2);
    api.ok("DELETE", SOURCE, &Value::Null);
    other.wait_until("nothing is left", |_| filters(&far).is_empty());
}

/// In one session a message comes once, whatever it fits: the second source would get nothing, or part of it.
#[test]
fn sources_of_one_connector_must_not_fit_the_same_topics() {
    let other = Server::start(&Config::new(""));
    let server = bridged(&other);
    let api = Api::of(&server);
    let source = |name: &str, connector: &str, filters: &[&str]| {
        let subscriptions: Vec<Value> = filters.iter().map(|filter| json!({"filter": filter})).collect();
        json!({"type": "mqtt", "name": name, "connector": connector, "parameters": {"subscriptions": subscriptions}})
    };
    let refused = |method: &str, path: &str, body: &Value| {
        let (status, answer) = api.call(method, path, body);
        let text = answer.to_string();
        assert_eq!(status, 422, "{text}");
        assert!(
            text.contains("parameters.subscriptions[") && text.contains("mqtt:in"),
            "{text}"
        );
        text
    };
    for overlapping in ["far/1", "+/2", "#", "$share/g/far/#", "$share/g/+/3"] {
        let text = refused(
            "POST",
            "/api/v1/sources",
            &source("more", "far", &["near/#", overlapping]),
        );
        assert!(
            text.contains("subscriptions[1]") && text.contains(overlapping),
            "{text}"
        );
    }
    // What is disabled has no subscription: then it is enabled that is refused.
    let mut disabled = source("more", "far", &["far/+"]);
    disabled["enable"] = json!(false);
    api.ok("POST", "/api/v1/sources", &disabled);
    refused("POST", "/api/v1/sources/mqtt:more/enable", &Value::Null);
    // Itself is no other; and another connector is another session.
    api.ok("PUT", SOURCE, &source("in", "far", &["far/+"]));
    api.ok(
        "PUT",
        "/api/v1/sources/mqtt:more",
        &source("more", "far", &["near/#", "far/1/2"]),
    );
    let config = json!({"server": other.mqtt().to_string(), "client_id": "second"});
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "mqtt", "name": "second", "config": config}),
    );
    api.ok("POST", "/api/v1/sources", &source("own", "second", &["far/#"]));
    for (client, count) in [("bridge", 3), ("second", 1)] {
        other.wait_until("it is subscribed", |_| {
            filters_of(&Api::of(&other), client).len() == count
        });
    }
    let mut publisher = other.session(&Connect::new(V5, "p"));
    for topic in ["far/1", "far/1/2", "near/1", "far/2"] {
        publisher.publish(&Publish::new(topic, "x").qos(1));
    }
    let received = |id: &str| api.get(&format!("/api/v1/sources/{id}"))["metrics"]["received"].clone();
    server.wait_until("each has what it fits", |_| {
        (received("mqtt:in"), received("mqtt:more"), received("mqtt:own")) == (json!(2), json!(2), json!(3))
    });
    assert_eq!(api.get(SOURCE)["problems"], json!([]));
}

/// Each takes from the other what it has, and publishes it under the same topic.
#[test]
fn two_nodes_that_take_from_each_other_do_not_loop() {
    let servers = [Server::start(&Config::new("")), Server::start(&Config::new(""))];
    for (here, there) in [(0, 1), (1, 0)] {
        let api = Api::of(&servers[here]);
        let config = json!({"server": servers[there].mqtt().to_string(), "client_id": "mesh"});
        api.ok(
            "POST",
            "/api/v1/connectors",
            &json!({"type": "mqtt", "name": "other", "config": config}),
        );
        let source = json!({
            "type": "mqtt", "name": "other", "connector": "other", "publish": {"topic": "${topic}", "qos": 1},
            "parameters": {"subscriptions": [{"filter": "mesh/#", "qos": 1}]},
        });
        api.ok("POST", "/api/v1/sources", &source);
        servers[here].wait_until("the source is connected", |_| {
            api.get("/api/v1/sources/mqtt:other")["health"]["state"] == "connected"
        });
    }
    let mut watchers = servers.each_ref().map(|server| {
        let mut watcher = server.session(&Connect::new(V5, "watcher"));
        watcher.subscribe("mesh/#", 1);
        watcher
    });
    let mut client = servers[0].session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("mesh/x", "once").qos(1));
    assert_eq!(watchers[1].receive().payload, b"once");
    let received =
        |here: usize| Api::of(&servers[here]).get("/api/v1/sources/mqtt:other")["metrics"]["received"].clone();
    servers[0].wait_until("it has come back", |_| received(0) == 1);
    client.publish(&Publish::new("mesh/x", "twice").qos(1));
    assert_eq!(watchers[1].receive().payload, b"twice");
    servers[0].wait_until("it has come back", |_| received(0) == 2);
    assert_eq!(received(1), 2, "nobody has taken in what had been there");
}
