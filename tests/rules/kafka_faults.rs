//! Kafka fails, its topic goes, its leaders move, the server is killed, the buffer is full: what was acknowledged is in Kafka
//! in the end, in the order of each client, and nothing was dropped.
//!
//! `TIDEWIRE_FAULT_SECONDS` says how long each outage lasts, 3 unless told otherwise.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::api::Api;
use crate::kafka_load::{Load, Reconciled, bridge, wait_until_sent};
use crate::kafka_server::{Found, Kafka};
use crate::support::*;

const KILLS: u32 = 20;
/// Records that may be on their way to Kafka when it is killed: 4 batches of 1000, by default.
const IN_FLIGHT: usize = 4000;

fn outage() -> Duration {
    let seconds = std::env::var("TIDEWIRE_FAULT_SECONDS").map_or(3, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

/// For what has gathered in an outage.
fn patience() -> Duration {
    Duration::from_secs(60) + outage()
}

/// Tells what came of it, of which no more than `twice_max` may have come once more.
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
        "{what}: {twice} came once more, of which {twice_max} may"
    );
}

/// As long as a topic is there, an idempotent producer writes nothing to it twice.
#[track_caller]
fn assert_none_twice(found: &[Found]) {
    let distinct: HashSet<_> = found.iter().map(|record| (&record.key, &record.value)).collect();
    assert_eq!(distinct.len(), found.len(), "some came once more");
}

/// Nothing that the action was given was given up.
#[track_caller]
fn assert_nothing_dropped(api: &Api<'_>) {
    let metrics = &api.get("/api/v1/actions/kafka:out")["metrics"];
    assert_eq!(metrics["failed"], 0, "{metrics:#}");
    let dropped = metrics["dropped"].as_object().expect("by reason");
    assert!(dropped.values().all(|count| *count == 0), "{metrics:#}");
}

#[test]
fn kafka_is_stopped_and_killed_in_mid_load() {
    let kafka = Kafka::start(1);
    kafka.topic("load", 4);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, "load", json!({}));
    for end in ["stop", "kill"] {
        let load = Load::start(server.mqtt(), end);
        load.wait_for(500);
        kafka.call(end, &[]);
        let before = load.acknowledged();
        thread::sleep(outage());
        assert!(
            load.acknowledged() > before + 100,
            "publishers go on while Kafka is away"
        );
        kafka.call("start", &[]);
        load.wait_for(500);
        let acknowledged = load.finish();
        wait_until_sent(&server, &api, patience());
        let found = kafka
            .read("load")
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
fn the_topic_is_deleted_and_made_again() {
    let kafka = Kafka::start(1);
    kafka.topic("gone", 4);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, "gone", json!({}));
    let load = Load::start(server.mqtt(), "before");
    load.wait_for(500);
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    assert_once(
        "before the topic is deleted",
        0,
        &acknowledged.reconcile(&kafka.read("gone")),
    );
    kafka.delete_topic("gone");
    let load = Load::start(server.mqtt(), "after");
    load.wait_for(500);
    server.wait_until("it is told", |_| {
        let health = api.get("/api/v1/actions/kafka:out")["health"].to_string();
        health.contains("does not exist")
    });
    thread::sleep(outage());
    kafka.topic("gone", 4);
    load.wait_for(500);
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    assert_once("the topic was away", 0, &acknowledged.reconcile(&kafka.read("gone")));
    assert_nothing_dropped(&api);
}

#[test]
fn leaders_move_between_three_nodes() {
    let kafka = Kafka::start(3);
    kafka.topic("moved", 6);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, "moved", json!({}));
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
        &acknowledged.reconcile(&kafka.read("moved")),
    );
    assert_nothing_dropped(&api);
}

#[test]
fn the_server_is_killed_again_and_again() {
    let kafka = Kafka::start(1);
    kafka.topic("kills", 4);
    let mut server = Server::start(&Config::new(""));
    bridge(
        &Api::of(&server),
        &kafka,
        "kills",
        json!({"buffer": {"segment_bytes": 65_536}}),
    );
    let load = Load::start(server.mqtt(), "kills");
    for round in 0..KILLS {
        // A little load at each start: the server dies while it still replays, while it sends, and in between.
        load.wait_for(u64::from(10 + 60 * (round % 7)));
        server.kill();
        server.spawn_again();
        server.wait_until_ready();
    }
    load.wait_for(200);
    let acknowledged = load.finish();
    let api = Api::of(&server);
    wait_until_sent(&server, &api, patience());
    let reconciled = acknowledged.reconcile(&kafka.read("kills"));
    // Of each round no more than what the round had: what was sent and is not in the buffer's log as sent.
    assert_once(&format!("{KILLS} kills"), reconciled.acknowledged, &reconciled);
    assert_nothing_dropped(&api);
}

#[test]
fn a_full_buffer_holds_publishers_back() {
    let kafka = Kafka::start(1);
    kafka.topic("full", 4);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    let buffer = json!({"max_bytes": 131_072, "segment_bytes": 65_536});
    bridge(&api, &kafka, "full", json!({"buffer": buffer}));
    let load = Load::start(server.mqtt(), "full");
    load.wait_for(200);
    kafka.call("kill", &[]);
    server.wait_until_within(patience(), "publishers are told that there is no room", |_| {
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
        &acknowledged.reconcile(&kafka.read("full")),
    );
    assert_nothing_dropped(&api);
}

/// Batches are on their way all the time. What Kafka had confirmed before went with the topic: it is in the files that Kafka
/// has not removed yet. A batch that Kafka wrote there when the topic went is answered with "unknown topic", and comes again.
#[test]
fn the_topic_is_deleted_with_batches_in_flight() {
    let kafka = Kafka::start(1);
    kafka.topic("gone", 4);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, "gone", json!({}));
    let load = Load::start(server.mqtt(), "gone");
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for _ in 0..2 {
        load.wait_for(500);
        kafka.delete_topic("gone");
        let mut deleted = kafka.read_deleted("gone", &mut seen);
        assert!(!deleted.is_empty(), "Kafka had some");
        assert_none_twice(&deleted);
        found.append(&mut deleted);
        let before = load.acknowledged();
        thread::sleep(outage());
        assert!(load.acknowledged() > before + 100, "publishers go on meanwhile");
        kafka.topic("gone", 4);
        load.wait_for(500);
        // The next deletion is not to find an outage of before.
        server.wait_until_within(patience(), "it is sent again", |_| {
            api.get("/api/v1/actions/kafka:out")["health"]["state"] == "connected" && !kafka.is_empty("gone")
        });
    }
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    let mut left = kafka.read("gone");
    assert_none_twice(&left);
    found.append(&mut left);
    assert_once(
        "the topic was deleted twice in mid-load",
        2 * IN_FLIGHT,
        &acknowledged.reconcile(&found),
    );
    assert_nothing_dropped(&api);
}

/// All nodes are there all the time, and leaders move.
#[test]
fn leaders_are_elected_in_mid_load() {
    let kafka = Kafka::start(3);
    kafka.topic("elected", 6);
    let server = Server::start(&Config::new(""));
    let api = Api::of(&server);
    bridge(&api, &kafka, "elected", json!({}));
    let load = Load::start(server.mqtt(), "elected");
    for node in ["1", "2", "3"] {
        load.wait_for(300);
        kafka.call("stop", &[node]);
        kafka.call("start", &[]);
        let moved = kafka.wait_until_settled("elected");
        assert!(moved > 0, "others lead than those that are preferred");
        load.wait_for(300);
        kafka.call("elect", &[]);
        server.wait_until_within(patience(), "the preferred ones lead", |_| {
            kafka.misplaced("elected") == 0
        });
        load.wait_for(300);
    }
    let acknowledged = load.finish();
    wait_until_sent(&server, &api, patience());
    assert_once(
        "leaders were elected three times",
        0,
        &acknowledged.reconcile(&kafka.read("elected")),
    );
    assert_nothing_dropped(&api);
}
