//! Tests nodes whose actions send all messages to each other: each message goes round once.

use serde_json::{Value, json};

use super::real_servers::Mosquitto;
use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::kafka::Kafka;
use crate::support::*;

/// Creates a connector to `there`, an action that sends messages unchanged, and a rule for `filter`.
fn send_to(here: &Server, there: &Server, filter: &str) {
    let api = Api::of(here);
    let config = json!({"server": there.mqtt().to_string(), "client_id": unique("bridge")});
    let name = unique("to");
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "mqtt", "name": name, "config": config}),
    );
    let parameters = json!({"topic": "${topic}", "qos": "1", "retain": "false"});
    let action = json!({"type": "mqtt", "name": name, "connector": name, "parameters": parameters});
    api.ok("POST", "/api/v1/actions", &action);
    let actions = json!([format!("mqtt:{name}")]);
    let sql = format!("SELECT topic, payload FROM \"{filter}\"");
    api.ok(
        "POST",
        "/api/v1/rules",
        &json!({"id": name, "sql": sql, "actions": actions}),
    );
    here.wait_until("the action is connected", |_| {
        api.get(&format!("/api/v1/actions/mqtt:{name}"))["health"]["state"] == "connected"
    });
}

/// Returns the sum of a metric over all rules of a server.
fn counted(server: &Server, name: &str) -> u64 {
    let rules = Api::of(server).get("/api/v1/rules");
    let items = rules.as_array().or(rules["items"].as_array()).expect("a list");
    items.iter().filter_map(|rule| rule["metrics"][name].as_u64()).sum()
}

fn watcher(server: &Server, filter: &str) -> Peer {
    let mut watcher = server.session(&Connect::new(V5, "watcher"));
    watcher.subscribe(filter, 1);
    watcher
}

/// Returns the numbers of the received messages, with duplicates.
fn received(watcher: &mut Peer, count: usize) -> Vec<String> {
    let mut payloads: Vec<String> = (0..count).map(|_| watcher.receive().payload_str().to_owned()).collect();
    payloads.sort();
    payloads
}

#[test]
fn nodes_with_mutual_actions_do_not_loop() {
    let servers = [Server::start(&Config::new("")), Server::start(&Config::new(""))];
    send_to(&servers[0], &servers[1], "mesh/#");
    send_to(&servers[1], &servers[0], "mesh/#");
    let mut watchers = servers.each_ref().map(|server| watcher(server, "mesh/#"));
    let mut client = servers[0].session(&Connect::new(V5, "c"));
    for number in 0..10 {
        let message = Publish::new("mesh/x", number.to_string()).qos(1);
        // Bridge marks of other systems have no effect, however many a message has.
        let others = (0..10 * number).map(|other| property::user("tidewire-bridge", &format!("other/{other}")));
        client.publish(&others.fold(message, Publish::property));
    }
    // The publishing node receives the message once more, as with sources: the second node does not know its origin.
    let once: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let twice: Vec<String> = once
        .iter()
        .flat_map(|payload| [payload.clone(), payload.clone()])
        .collect();
    assert_eq!(received(&mut watchers[0], 20), twice);
    assert_eq!(received(&mut watchers[1], 10), once);
    // Each message returned to its first node and stopped there.
    servers[0].wait_until("all messages have returned", |server| {
        counted(server, "actions.looped") == 10
    });
    assert_eq!(
        (counted(&servers[0], "matched"), counted(&servers[1], "matched")),
        (20, 10)
    );
    for (server, mut watcher) in servers.iter().zip(watchers) {
        watcher.ping_alone();
        assert_eq!(counted(server, "actions.failed"), 0);
    }
}

/// Tests a ring with a third node and a rule that republishes the message under another topic.
#[test]
fn ring_of_nodes_does_not_loop() {
    let servers = [(); 3].map(|()| Server::start(&Config::new("")));
    for (here, there) in [(0, 1), (1, 2), (2, 0)] {
        send_to(&servers[here], &servers[there], "ring/#");
    }
    let republish =
        json!([{"function": "republish", "args": {"topic": "ring/again", "payload": "${payload}", "qos": 1}}]);
    let rule = json!({"id": "again", "sql": "SELECT payload FROM \"ring/x\"", "actions": republish});
    Api::of(&servers[1]).ok("POST", "/api/v1/rules", &rule);
    let mut client = servers[0].session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("ring/x", "once").qos(1));
    // The message and its republished copy each return to the first node and stop there.
    servers[0].wait_until("both messages have returned", |server| {
        counted(server, "actions.looped") == 2
    });
    // Returning messages match the watcher rule of the first node, but no further rule.
    let matched: Vec<u64> = servers.iter().map(|server| counted(server, "matched")).collect();
    assert_eq!(matched, [3, 3, 2]);
}

/// Each node's own target rejects everything, so the fallback action sends the messages to the other node.
#[test]
fn nodes_with_mutual_fallback_actions_do_not_loop() {
    let servers = [Server::start(&Config::new("")), Server::start(&Config::new(""))];
    let refusing = WebServer::answering(400);
    for (here, there) in [(0, 1), (1, 0)] {
        let api = Api::of(&servers[here]);
        let config = json!({"server": servers[there].mqtt().to_string(), "client_id": unique("bridge")});
        let far = json!({"type": "mqtt", "name": "far", "config": config});
        api.ok("POST", "/api/v1/connectors", &far);
        let parameters = json!({"topic": "${topic}", "payload": "${payload}", "qos": "1", "retain": "false"});
        let action = json!({"type": "mqtt", "name": "far", "connector": "far", "parameters": parameters});
        api.ok("POST", "/api/v1/actions", &action);
        let config = json!({"url": format!("http://{}", refusing.address)});
        let web = json!({"type": "http", "name": "web", "config": config});
        api.ok("POST", "/api/v1/connectors", &web);
        let action = json!({
            "type": "http", "name": "web", "connector": "web", "parameters": {"body": "${payload}"},
            "fallback_actions": ["mqtt:far"],
        });
        api.ok("POST", "/api/v1/actions", &action);
        let rule = json!({"id": "r", "sql": "SELECT topic, payload FROM \"mesh/#\"", "actions": ["http:web"]});
        api.ok("POST", "/api/v1/rules", &rule);
        servers[here].wait_until("the action is connected", |_| {
            api.get("/api/v1/actions/mqtt:far")["health"]["state"] == "connected"
        });
    }
    let mut watchers = servers.each_ref().map(|server| watcher(server, "mesh/#"));
    let mut client = servers[0].session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("mesh/x", "once").qos(1));
    // The publishing node receives the message once more and does not send it a second time.
    assert_eq!(received(&mut watchers[0], 2), ["once", "once"]);
    assert_eq!(received(&mut watchers[1], 1), ["once"]);
    let api = Api::of(&servers[0]);
    let metrics = || api.get("/api/v1/actions/http:web")["metrics"].clone();
    servers[0].wait_until("the returned message is counted as lost", |_| {
        metrics()["fallback_lost"] == 1
    });
    assert_eq!(
        (&metrics()["fallback_stored"], &metrics()["failed"]),
        (&json!(1), &json!(2))
    );
    let reason = api.get("/api/v1/actions/http:web").to_string();
    assert!(reason.contains("has already passed its connector"), "{reason}");
    assert_eq!(
        [counted(&servers[0], "matched"), counted(&servers[1], "matched")],
        [2, 1]
    );
    for mut watcher in watchers {
        watcher.ping_alone();
    }
}

/// A message received from a broker may be sent to it under another topic. That is not a loop.
#[test]
fn source_messages_may_leave_through_the_same_connector() {
    let (here, there) = (Server::start(&Config::new("")), Server::start(&Config::new("")));
    let api = Api::of(&here);
    let config = json!({"server": there.mqtt().to_string(), "client_id": "both"});
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "mqtt", "name": "far", "config": config}),
    );
    let parameters = json!({"topic": "answers/${topic}", "payload": "${payload}", "qos": "1", "retain": "false"});
    api.ok(
        "POST",
        "/api/v1/actions",
        &json!({"type": "mqtt", "name": "far", "connector": "far", "parameters": parameters}),
    );
    let source = json!({
        "type": "mqtt", "name": "far", "connector": "far", "publish": {"topic": "${topic}", "payload": "${payload}", "qos": 1},
        "parameters": {"subscriptions": [{"filter": "asked/#", "qos": 1}]},
    });
    api.ok("POST", "/api/v1/sources", &source);
    let rule = json!({"id": "r", "sql": "SELECT topic, payload FROM \"asked/#\"", "actions": ["mqtt:far"]});
    api.ok("POST", "/api/v1/rules", &rule);
    here.wait_until("the source is connected", |_| {
        api.get("/api/v1/sources/mqtt:far")["health"]["state"] == "connected"
    });
    let far = Api::of(&there);
    there.wait_until("the source has subscribed", |_| {
        let (status, list) = far.call("GET", "/api/v1/clients/both/subscriptions", &Value::Null);
        status == 200 && list.to_string().contains("asked/#")
    });
    let mut watcher = watcher(&there, "answers/#");
    there
        .session(&Connect::new(V5, "c"))
        .publish(&Publish::new("asked/1", "why").qos(1));
    let answer = watcher.receive();
    assert_eq!((answer.topic_str(), answer.payload_str()), ("answers/asked/1", "why"));
}

/// Bridges the topics `both/#` in both directions to the broker at `there`, without a prefix.
fn bridge_both_ways(here: &Server, there: std::net::SocketAddr, login: Option<(&str, &str)>, version: &str) {
    let api = Api::of(here);
    let mut config = json!({"server": there.to_string(), "client_id": unique("both"), "version": version});
    if let Some((user, password)) = login {
        (config["user"], config["password"]) = (json!(user), json!(password));
    }
    api.ok(
        "POST",
        "/api/v1/connectors",
        &json!({"type": "mqtt", "name": "far", "config": config}),
    );
    let parameters = json!({"topic": "${topic}", "payload": "${payload}", "qos": "1", "retain": "false"});
    api.ok(
        "POST",
        "/api/v1/actions",
        &json!({"type": "mqtt", "name": "far", "connector": "far", "parameters": parameters}),
    );
    let source = json!({
        "type": "mqtt", "name": "far", "connector": "far", "publish": {"topic": "${topic}", "payload": "${payload}", "qos": 1},
        "parameters": {"subscriptions": [{"filter": "both/#", "qos": 1}]},
    });
    api.ok("POST", "/api/v1/sources", &source);
    let rule = json!({"id": "r", "sql": "SELECT topic, payload FROM \"both/#\"", "actions": ["mqtt:far"]});
    api.ok("POST", "/api/v1/rules", &rule);
}

fn two_way_bridge_echoes_nothing(there: std::net::SocketAddr, login: Option<(&str, &str)>, version: &str) {
    let here = Server::start(&Config::new(""));
    bridge_both_ways(&here, there, login, version);
    let api = Api::of(&here);
    let session = |client_id: &str| {
        let connect = Connect::new(V5, client_id);
        Peer::session(
            there,
            &login.map_or(connect.clone(), |(user, password)| connect.user(user, password)),
        )
    };
    let mut near = watcher(&here, "both/#");
    let mut far = session("far-watcher");
    far.subscribe("both/#", 1);
    let mut publisher = session("far-publisher");
    let mut probes = 0;
    here.wait_until("the source has subscribed", |_| {
        publisher.publish(&Publish::new("both/probe", "probe").qos(1));
        probes += 1;
        api.get("/api/v1/sources/mqtt:far")["metrics"]["received"] != json!(0)
    });
    publisher.publish(&Publish::new("both/far", "from there").qos(1));
    let arrived = near.receive_until("from there").len() + 1;
    let mut client = here.session(&Connect::new(V5, "near-publisher"));
    client.publish(&Publish::new("both/near", "from here").qos(1));
    here.wait_until("the action has handled all messages", |_| {
        api.get("/api/v1/actions/mqtt:far")["metrics"]["sent"] == json!(arrived + 1)
    });
    let metrics = api.get("/api/v1/actions/mqtt:far")["metrics"].clone();
    assert_eq!(metrics["skipped_echoes"], json!(arrived), "{version}");
    assert_eq!(far.receive_until("from there").len(), probes, "{version}");
    assert!(far.receive_until("from here").is_empty(), "{version}");
    far.ping_alone();
    assert!(near.receive_until("from here").is_empty(), "{version}");
    near.ping_alone();
}

#[test]
fn two_way_bridge_with_mosquitto_echoes_nothing() {
    let mosquitto = Mosquitto::start();
    let address: std::net::SocketAddr = mosquitto.address.parse().unwrap();
    for version in ["3.1.1", "5"] {
        two_way_bridge_echoes_nothing(address, Some(("me", "right")), version);
    }
}

#[test]
fn two_way_bridge_with_another_node_echoes_nothing() {
    for version in ["3.1.1", "5"] {
        let there = Server::start(&Config::new(""));
        two_way_bridge_echoes_nothing(there.mqtt(), None, version);
    }
}

/// A source and an action of one connector use the same Kafka topic. Another action answers to another topic.
#[test]
fn two_way_kafka_topic_echoes_nothing() {
    let kafka = Kafka::shared();
    let (both, answers) = (kafka.topic("both", 1), kafka.topic("answers", 1));
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let connector = json!({"type": "kafka", "name": "k", "config": {"bootstrap_hosts": kafka.address}});
    api.ok("POST", "/api/v1/connectors", &connector);
    for (name, kafka_topic, value) in [("both", &both, "${payload}"), ("answers", &answers, "re: ${payload}")] {
        let parameters = json!({"kafka_topic": kafka_topic, "key": "k", "value": value});
        let action = json!({"type": "kafka", "name": name, "connector": "k", "parameters": parameters});
        api.ok("POST", "/api/v1/actions", &action);
    }
    let actions = json!(["kafka:both", "kafka:answers"]);
    let rule = json!({"id": "r", "sql": "SELECT payload FROM \"both\"", "actions": actions});
    api.ok("POST", "/api/v1/rules", &rule);
    let source = json!({
        "type": "kafka", "name": "in", "connector": "k",
        "parameters": {"kafka_topics": [both], "group_id": both, "offset_reset": "earliest"},
        "publish": {"topic": "both", "payload": "${value}", "qos": 1},
    });
    api.ok("POST", "/api/v1/sources", &source);
    // The headers of a rule do not contain the mark.
    let republish = json!([{"function": "republish", "args": {"topic": "headers", "payload": "${headers}", "qos": 1}}]);
    let sql = "SELECT headers FROM \"$bridges/kafka_consumer:in\"";
    api.ok(
        "POST",
        "/api/v1/rules",
        &json!({"id": "h", "sql": sql, "actions": republish}),
    );
    let mut headers = watcher(&server, "headers");
    let producer = kafka.producer();
    producer.send(&both, "k", "from there");
    producer.flush();
    let mut client = server.session(&Connect::new(V5, "c"));
    client.publish(&Publish::new("both", "from here").qos(1));
    // Each message arrives from Kafka once. The local one was sent before.
    for action in ["both", "answers"] {
        server.wait_until("the actions have handled all messages", |_| {
            api.get(&format!("/api/v1/actions/kafka:{action}"))["metrics"]["sent"] == json!(3)
        });
    }
    let values = |kafka_topic: &str| {
        let mut values: Vec<String> = kafka.read(kafka_topic).into_iter().map(|found| found.value).collect();
        values.sort();
        values
    };
    assert_eq!(values(&both), ["from here", "from there"]);
    assert_eq!(values(&answers), ["re: from here", "re: from here", "re: from there"]);
    assert_eq!(received(&mut headers, 2), ["{}", "{}"]);
    assert_eq!(counted(&server, "actions.failed"), 0);
    let (_, metrics) = server.http_get("/metrics");
    for (action, echoes) in [("both", 2), ("answers", 0)] {
        let sample = format!("tidewire_action_skipped_echoes_total{{action=\"kafka:{action}\"}} {echoes}\n");
        assert!(metrics.contains(&sample), "{metrics}");
    }
}
