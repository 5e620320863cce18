//! Tests that a start recomputes what owners use, also from records that a checkpoint has rewritten.

use std::path::Path;
use std::sync::Arc;

use mqtt::{Properties, QoS, Will};
use tidewire_broker::durable::compaction::MovePart;
use tidewire_broker::owners::OwnerUsage;
use tidewire_broker::*;

use super::node::{Node, publication};
use super::{NOW, RecordPosition, start_on};

const DAY_S: u32 = 86_400;

/// Returns what the owners use after a start with this number of shards.
fn usage_after_a_start(directory: &Path, shards: u16) -> Vec<OwnerUsage> {
    let state = Arc::new(NodeState::new(shards, 1));
    let started = start_on(directory, &state, usize::MAX, ShardConfig::default());
    let usage = state.owners.largest(10);
    drop(started);
    usage
}

/// A node whose clients have stored messages and sessions.
fn used_node(name: &str) -> Node {
    let mut node = Node::new(name, ShardConfig::default());
    let mut delay = Vec::new();
    mqtt::PropertyWriter::new(&mut delay).put(mqtt::Property::WillDelayInterval(DAY_S));
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Properties::from_validated(&delay),
        topic: "will",
        payload: &[b'x'; 100],
    };
    let one = node.connect_as("one", "c1", DAY_S, Some(will));
    let other = node.connect_as("other", "c2", DAY_S, None);
    let anonymous = node.connect("c3", false, DAY_S);
    for (client, topic, payload) in [
        (one, "a", &b"first"[..]),
        (one, "b", b"first"),
        (one, "c", b"first"),
        (one, "c", b""),
        (other, "b", b"replaces that of the other user"),
        (anonymous, "d", b"first"),
    ] {
        node.retain(client, topic, payload);
    }
    for client in [one, anonymous] {
        node.send(client, &publication("$delayed/1000/t", 2, b"later", false));
        node.end_tick();
    }
    node
}

fn counts(usage: &[OwnerUsage]) -> Vec<(&str, u64, u64, u64)> {
    let of = |usage: &OwnerUsage| (usage.sessions, usage.retained_messages, usage.delayed_messages);
    let mut counts: Vec<_> = { usage.iter() }
        .map(|usage| (&*usage.owner, of(usage).0, of(usage).1, of(usage).2))
        .collect();
    counts.sort();
    counts
}

const COUNTS: [(&str, u64, u64, u64); 3] = [
    ("address:127.0.0.1", 1, 1, 1),
    ("user:one", 1, 1, 1),
    ("user:other", 1, 1, 0),
];

#[test]
fn usage_of_owners_survives_a_restart() {
    let node = used_node("owners");
    let before = node.state.owners.largest(10);
    assert_eq!(counts(&before), COUNTS);
    let directory = node.crash();
    for shards in [1, 3] {
        assert_eq!(usage_after_a_start(&directory, shards), before, "{shards} shards");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn usage_of_owners_survives_a_checkpoint_that_moves_messages() {
    let mut node = used_node("owners-moved");
    let before = node.state.owners.largest(10);
    let part = MovePart {
        before: RecordPosition(u64::MAX),
        bytes: 1 << 20,
    };
    node.shard.journal(NOW).begin_checkpoint(part);
    let mut moved_bytes = None;
    while node.shard.is_checkpoint_active() && moved_bytes.is_none() {
        moved_bytes = node
            .shard
            .journal(NOW)
            .continue_checkpoint()
            .map(|done| done.moved_bytes);
        node.end_tick();
    }
    assert!(moved_bytes.is_some_and(|bytes| bytes > 0), "{moved_bytes:?}");
    let directory = node.crash();
    assert_eq!(usage_after_a_start(&directory, 1), before);
    std::fs::remove_dir_all(&directory).unwrap();
}
