//! `$SYS` from a client's view.

use std::time::Duration;

use api::SysConfig;
use mqtt::QoS;

use super::node::Node;
use super::peer::Peer;

fn node() -> Node {
    Node::start_with(3, |config| {
        config.sys = Some(SysConfig {
            interval: Duration::from_millis(50),
            mosquitto_tree: true,
            emqx_tree: true,
        });
    })
}

fn wait_for(peer: &mut Peer, topic: &str, payload: &str) {
    loop {
        let message = peer.receive();
        if message.topic == topic && message.payload == payload.as_bytes() {
            return;
        }
    }
}

#[test]
fn both_topic_trees_have_current_values() {
    let node = node();
    let mut watcher = node.peer("watcher");
    watcher.subscribe("$SYS/#", QoS::AtMostOnce);
    wait_for(&mut watcher, "$SYS/broker/clients/connected", "1");
    let _other = node.peer("other");
    wait_for(&mut watcher, "$SYS/broker/clients/connected", "2");
    let mut late = node.peer("late");
    late.subscribe("$SYS/brokers/test-node/version", QoS::AtMostOnce);
    let message = late.receive();
    assert_eq!((&*message.payload, message.retain), (&b"0.0.1"[..], true));
    let metrics = node.get("/metrics").body;
    assert!(
        metrics.contains("tidewire_broker_messages_dropped_total{reason=\"no_subscriber\"} 0\n"),
        "statistics count themselves"
    );
}

#[test]
fn connect_and_disconnect_events_are_published() {
    let node = node();
    let mut watcher = node.peer("watcher");
    watcher.subscribe("$SYS/brokers/+/clients/#", QoS::AtMostOnce);
    drop(node.peer("guest"));
    let mut topics = Vec::new();
    while topics.len() < 2 {
        let message = watcher.receive();
        if message.topic.contains("/guest/") {
            let payload: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
            assert_eq!(payload["clientid"], "guest");
            assert!(!message.retain);
            topics.push(message.topic);
        }
    }
    assert_eq!(
        topics,
        [
            "$SYS/brokers/test-node/clients/guest/connected",
            "$SYS/brokers/test-node/clients/guest/disconnected"
        ]
    );
}
