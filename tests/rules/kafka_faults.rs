//! Tests failures of Kafka, deleted topics, leader changes, kills of the server and full buffers. In the end all
//! acknowledged messages are in Kafka in the order of each client, and none was dropped.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::kafka_load::{Load, Reconciled, bridge, wait_until_sent};
use crate::support::api::Api;
use crate::support::kafka::{Found, Kafka};
use crate::support::*;

const KILLS: u64 = 20;
/// Maximum number of records in flight when Kafka is killed: by default 4 batches of 1000.
const IN_FLIGHT: usize = 4000;

fn outage() -> Duration {
    Duration::from_secs(scaled(3).min(60))
}

/// Time limit for sending the messages buffered during an outage.
fn patience() -> Duration {
    Duration::from_secs(60) + outage()
}

/// Prints the result. At most `twice_max` messages may be duplicates.
#[track_caller]
fn assert_once(what: &str, twice_max: usize, reconciled: &Reconciled) {
    let Reconciled {
        acknowledged,
        records,
        twice,
    } = reconciled;
    println!("{what}: {acknowledged} acknowledged, {records} records, {twice} of them once more");
    assert!(
        *twice <= twice_max,
        "{what}: {twice} duplicates, at most {twice_max} are allowed"
    );
}

/// An idempotent producer writes no duplicates as long as the topic exists.
#[track_caller]
fn assert_none_twice(found: &[Found]) {
    let distinct: HashSet<_> = found.iter().map(|record| (&record.key, &record.value)).collect();
    assert_eq!(distinct.len(), found.len(), "there are duplicates");
}

/// Asserts that the action dropped no message.
#[track_caller]
fn assert_nothing_dropped(api: &Api<'_>) {
    let metrics = &api.get("/api/v1/actions/kafka:out")["metrics"];
    assert_eq!(metrics["failed"], 0, "{metrics:#}");
    let dropped = metrics["dropped"].as_object().expect("by reason");
    assert!(dropped.values().all(|count| *count == 0), "{metrics:#}");
}

#[test]
fn kafka_is_stopped_and_killed_under_load() {
    let kafka = Kafka::start(1);
    let kafka_topic = kafka.topic("load", 4);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, &kafka_topic, json!({}));
    for end in ["stop", "kill"] {
        let load = Load::start(server.mqtt(), end);
        load.wait_for(500);
        kafka.call(end, &[]);
        let before = load.acknowledged();
        thread::sleep(outage());
        assert!(
            load.acknowledged() > before + 100,
            "publishers continue while Kafka is unreachable"
        );
        kafka.call("start", &[]);
        load.wait_for(500);
        let acknowledged = load.finish();
        wait_until_sent(&server, &api, patience());
        let found = kafka
            .read(&kafka_topic)
            .into_iter()
            .filter(|record| record.key.starts_with(end));
        let twice_max = if end == "kill" { IN_FLIGHT } else { 0 };
        assert_once(
            &format!("Kafka, {end}"),
            twice_max,
            &acknowledged.reconcile(&found.collect::<Vec<_>>()),
        );
    }
    assert_nothing_dropped(&api);
}

#[test]
fn topic_is_deleted_and_recreated() {
    let kafka = Kafka::shared();
    let kafka_topic = kafka.topic("gone", 4);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, &kafka_topic, json!({}));
    let load = Load::start(server.mqtt(), "before");
    load.wait_for(500);
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    assert_once(
        "before the topic is deleted",
        0,
        &acknowledged.reconcile(&kafka.read(&kafka_topic)),
    );
    kafka.delete_topic(&kafka_topic);
    let load = Load::start(server.mqtt(), "after");
    load.wait_for(500);
    server.wait_until("the action reports the missing topic", |_| {
        let health = api.get("/api/v1/actions/kafka:out")["health"].to_string();
        health.contains("does not exist")
    });
    thread::sleep(outage());
    kafka.create_topic(&kafka_topic, 4);
    load.wait_for(500);
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    assert_once(
        "the topic was deleted",
        0,
        &acknowledged.reconcile(&kafka.read(&kafka_topic)),
    );
    assert_nothing_dropped(&api);
}

#[test]
fn leaders_move_between_three_nodes() {
    let kafka = Kafka::start(3);
    let kafka_topic = kafka.topic("moved", 6);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, &kafka_topic, json!({}));
    let load = Load::start(server.mqtt(), "moved");
    for (node, end) in [("1", "stop"), ("2", "kill"), ("3", "stop")] {
        load.wait_for(500);
        kafka.call(end, &[node]);
        thread::sleep(outage());
        kafka.call("start", &[]);
    }
    load.wait_for(500);
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    assert_once(
        "leaders moved",
        IN_FLIGHT,
        &acknowledged.reconcile(&kafka.read(&kafka_topic)),
    );
    assert_nothing_dropped(&api);
}

#[test]
fn server_is_killed_repeatedly() {
    let kafka = Kafka::shared();
    let kafka_topic = kafka.topic("kills", 4);
    let mut server = Server::start(&Config::new(""));
    bridge(
        &Api::of(&server),
        &kafka,
        &kafka_topic,
        json!({"buffer": {"segment_bytes": 65_536}}),
    );
    let load = Load::start(server.mqtt(), "kills");
    for round in 0..scaled(KILLS) {
        // Some load at each start: the kill hits the server during replay, while it sends, and in between.
        load.wait_for(10 + 60 * (round % 7));
        server.kill();
        server.spawn_again();
        server.wait_until_ready();
    }
    load.wait_for(200);
    let acknowledged = load.finish();
    let api = Api::of(&server);
    wait_until_sent(&server, &api, patience());
    let reconciled = acknowledged.reconcile(&kafka.read(&kafka_topic));
    // Each round may duplicate at most its own messages: those sent but not yet marked as sent in the buffer's log.
    assert_once("the server was killed", reconciled.acknowledged, &reconciled);
    assert_nothing_dropped(&api);
}

#[test]
fn full_buffer_applies_back_pressure() {
    let kafka = Kafka::start(1);
    let kafka_topic = kafka.topic("full", 4);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let buffer = json!({"max_bytes": 131_072, "segment_bytes": 65_536});
    bridge(&api, &kafka, &kafka_topic, json!({"buffer": buffer}));
    let load = Load::start(server.mqtt(), "full");
    load.wait_for(200);
    kafka.call("kill", &[]);
    server.wait_until_within(patience(), "publishers are rejected because the buffer is full", |_| {
        load.refused() > 0
    });
    thread::sleep(outage());
    kafka.call("start", &[]);
    load.wait_for(500);
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    assert_once(
        "the buffer was full",
        IN_FLIGHT,
        &acknowledged.reconcile(&kafka.read(&kafka_topic)),
    );
    assert_nothing_dropped(&api);
}

/// Batches are always in flight. Confirmed records of a deleted topic are in the files that Kafka has not removed yet.
/// If Kafka deletes the topic while it writes a batch, it answers "unknown topic", and the batch is sent again.
#[test]
fn topic_is_deleted_with_batches_in_flight() {
    let kafka = Kafka::shared();
    let kafka_topic = kafka.topic("gone", 4);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, &kafka_topic, json!({}));
    let load = Load::start(server.mqtt(), "gone");
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for _ in 0..2 {
        load.wait_for(500);
        server.wait_until_within(patience(), "Kafka has some messages", |_| !kafka.is_empty(&kafka_topic));
        kafka.delete_topic(&kafka_topic);
        let mut deleted = kafka.read_deleted(&kafka_topic, &mut seen);
        assert!(!deleted.is_empty(), "the deleted topic had records");
        assert_none_twice(&deleted);
        found.append(&mut deleted);
        let before = load.acknowledged();
        thread::sleep(outage());
        assert!(
            load.acknowledged() > before + 100,
            "publishers continue during the outage"
        );
        kafka.create_topic(&kafka_topic, 4);
        load.wait_for(500);
        // The next deletion must not overlap with an earlier outage.
        server.wait_until_within(patience(), "messages are sent again", |_| {
            api.get("/api/v1/actions/kafka:out")["health"]["state"] == "connected" && !kafka.is_empty(&kafka_topic)
        });
    }
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    let mut left = kafka.read(&kafka_topic);
    assert_none_twice(&left);
    found.append(&mut left);
    assert_once(
        "the topic was deleted twice in mid-load",
        2 * IN_FLIGHT,
        &acknowledged.reconcile(&found),
    );
    assert_nothing_dropped(&api);
}

/// All nodes stay up, and leaders move.
#[test]
fn leaders_are_elected_under_load() {
    let kafka = Kafka::start(3);
    let kafka_topic = kafka.topic("elected", 6);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, &kafka_topic, json!({}));
    let load = Load::start(server.mqtt(), "elected");
    for node in ["1", "2", "3"] {
        load.wait_for(300);
        kafka.call("stop", &[node]);
        kafka.call("start", &[]);
        let moved = kafka.wait_until_settled(&kafka_topic);
        assert!(moved > 0, "no leader has moved from the preferred replica");
        load.wait_for(300);
        kafka.call("elect", &[]);
        server.wait_until_within(patience(), "the preferred ones lead", |_| {
            kafka.misplaced(&kafka_topic) == 0
        });
        load.wait_for(300);
    }
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    assert_once(
        "leaders were elected three times",
        0,
        &acknowledged.reconcile(&kafka.read(&kafka_topic)),
    );
    assert_nothing_dropped(&api);
}
