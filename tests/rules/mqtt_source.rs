//! Tests an MQTT source as a client of another broker. Messages queued there while the source was offline arrive, and a
//! deleted source leaves nothing behind.

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

const SOURCE: &str = "/api/v1/sources/mqtt:in";

/// Returns a server with a source and an action of one connector. The source subscribes to `far/#` on the other broker
/// and publishes below `near/`.
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

/// Returns the filters to which the bridge is subscribed.
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
fn queued_messages_arrive_if_an_action_connects_first() {
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
    server.wait_until("the source is connected", |_| {
        api.get(SOURCE)["health"]["state"] == "connected"
    });
    server.wait_until("all messages are counted", |_| {
        api.get(SOURCE)["metrics"]["received"] == 20
    });
}

/// Messages leave through an action and return through a source, both with default settings.
#[test]
fn bridge_preserves_properties_in_both_directions() {
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
fn qos_and_retain_of_source_messages_are_templates() {
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
fn disabled_or_deleted_source_unsubscribes() {
    let other = Server::start(&Config::new(""));
    let far = Api::of(&other);
    let server = bridged(&other);
    let api = Api::of(&server);
    other.wait_until("the source is subscribed", |_| filters(&far) == ["far/#"]);
    api.ok("POST", &format!("{SOURCE}/disable"), &Value::Null);
    other.wait_until("the source is unsubscribed", |_| filters(&far).is_empty());
    api.ok("POST", &format!("{SOURCE}/enable"), &Value::Null);
    other.wait_until("the source is subscribed again", |_| filters(&far) == ["far/#"]);
    let changed = json!({
        "type": "mqtt", "name": "in", "connector": "far",
        "parameters": {"subscriptions": [{"filter": "far/#"}, {"filter": "more/#"}]},
    });
    api.ok("PUT", SOURCE, &changed);
    other.wait_until("both filters are subscribed", |_| filters(&far).len() == 2);
    api.ok("DELETE", SOURCE, &Value::Null);
    other.wait_until("no subscription is left", |_| filters(&far).is_empty());
}

/// A session receives a message once even if several filters match it, so a second source would miss messages.
#[test]
fn sources_of_a_connector_must_not_overlap() {
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
    // A disabled source has no subscription, so the server rejects enabling it instead.
    let mut disabled = source("more", "far", &["far/+"]);
    disabled["enable"] = json!(false);
    api.ok("POST", "/api/v1/sources", &disabled);
    refused("POST", "/api/v1/sources/mqtt:more/enable", &Value::Null);
    // A source may overlap with its own old filter, and with sources of other connectors, which have other sessions.
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
        other.wait_until("the source is subscribed", |_| {
            filters_of(&Api::of(&other), client).len() == count
        });
    }
    let mut publisher = other.session(&Connect::new(V5, "p"));
    for topic in ["far/1", "far/1/2", "near/1", "far/2"] {
        publisher.publish(&Publish::new(topic, "x").qos(1));
    }
    let received = |id: &str| api.get(&format!("/api/v1/sources/{id}"))["metrics"]["received"].clone();
    server.wait_until("each source has its matching messages", |_| {
        (received("mqtt:in"), received("mqtt:more"), received("mqtt:own")) == (json!(2), json!(2), json!(3))
    });
    assert_eq!(api.get(SOURCE)["problems"], json!([]));
}

/// Each node receives the other's messages and publishes them under the same topic.
#[test]
fn nodes_with_mutual_sources_do_not_loop() {
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
    servers[0].wait_until("the message has returned", |_| received(0) == 1);
    client.publish(&Publish::new("mesh/x", "twice").qos(1));
    assert_eq!(watchers[1].receive().payload, b"twice");
    servers[0].wait_until("the message has returned", |_| received(0) == 2);
    assert_eq!(received(1), 2, "no source received its own message again");
}
