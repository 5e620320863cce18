//! Metrics over time and the configuration in force.

use std::time::{Duration, Instant};

use mqtt::QoS;
use serde_json::Value;

use super::node::Node;
use super::web;

/// Repeats the request until the answer matches.
fn wait_for(node: &Node, is_so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let view = node.get("/api/v1/history").ok().json();
        if is_so(&view) {
            return view;
        }
        assert!(Instant::now() < end, "{view}");
        std::thread::yield_now();
    }
}

#[test]
fn history_has_a_point_per_second() {
    let node = Node::start(2).with_login();
    let mut peer = node.peer("watched");
    peer.subscribe("a/#", QoS::AtMostOnce);
    let view = wait_for(&node, |view| {
        view["series"]["connections"].as_array().unwrap().contains(&1.0.into())
    });
    assert_eq!(view["step_ms"], 1000);
    let points = view["at_unix_ms"].as_array().unwrap().len();
    for (name, values) in view["series"].as_object().unwrap() {
        assert_eq!(values.as_array().unwrap().len(), points, "{name}");
    }
    // The node has no journal.
    assert!(
        view["series"]["journal_commit_ms"]
            .as_array()
            .unwrap()
            .iter()
            .all(Value::is_null)
    );
    // A reason without drops has no series.
    assert!(view["series"].get("dropped_per_s.queue_full").is_none());
    assert_eq!(
        node.get("/api/v1/history?window_s=86400").ok().json()["step_ms"],
        120_000
    );
    assert_eq!(node.get("/api/v1/history?window_s=0").problem(400)["field"], "window_s");
}

#[test]
fn live_metrics_need_a_login_and_a_websocket() {
    let node = Node::start(1).with_login();
    node.get("/api/v1/live").problem(426);
    web::request(node.address, "GET", "/api/v1/live", &[], "").problem(401);
}

#[test]
fn configuration_is_shown_as_given() {
    let node = Node::start(1).with_login();
    assert_eq!(node.get("/api/v1/configuration").ok().json(), serde_json::json!([]));
    node.api.as_ref().unwrap().set_configuration(vec![api::ConfigValue {
        key: "mqtt.max_qos".into(),
        value: "1".into(),
        origin: "--set".into(),
        is_default: false,
        is_pinned: true,
        needs_restart: false,
        description: "Highest QoS.".into(),
        type_name: "QoS".into(),
        choices: Vec::new(),
        fixed_reason: Some("it is pinned by --set".into()),
        is_runtime: false,
        value_in_force: None,
    }]);
    let values = node.get("/api/v1/configuration").ok().json();
    assert_eq!(
        (&values[0]["key"], &values[0]["is_pinned"]),
        (&"mqtt.max_qos".into(), &true.into())
    );
}
