//! Tests that a start recomputes what owners use, also from records that a checkpoint has rewritten.

use std::path::Path;
use std::sync::Arc;

use mqtt::{Properties, QoS, Will};
use tidewire_broker::durable::compaction::MovePart;
use tidewire_broker::owners::{Holding, Owners};
use tidewire_broker::*;

use super::node::{Node, publication};
use super::{NOW, RecordPosition, start_on};

const DAY_S: u32 = 86_400;

const OWNERS: [&str; 3] = ["address:127.0.0.1", "user:one", "user:other"];

/// Number and bytes of the sessions, retained and delayed messages of each owner.
type OwnersUsage = [[(u64, u64); 3]; OWNERS.len()];

fn usage(owners: &Owners) -> OwnersUsage {
    OWNERS.map(|owner| {
        let user = owners.user(owner);
        let of = |holding| (user.usage().count(holding), user.usage().bytes(holding));
        [Holding::Session, Holding::Retained, Holding::Delayed].map(of)
    })
}

fn subscriptions(owners: &Owners) -> [u64; OWNERS.len()] {
    OWNERS.map(|owner| owners.user(owner).subscriptions())
}

/// Returns what the owners use after a start with this number of shards.
fn usage_after_a_start(directory: &Path, shards: u16) -> OwnersUsage {
    let state = Arc::new(NodeState::new(shards, 1));
    let started = start_on(directory, &state, usize::MAX, ShardConfig::default());
    let usage = usage(&state.owners);
    assert_eq!(subscriptions(&state.owners), SUBSCRIPTIONS, "{shards} shards");
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
    for filter in ["s/1", "s/2", "s/3", "$share/g/s"] {
        node.subscribe(one, filter);
    }
    node.unsubscribe(one, "s/2");
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

const SUBSCRIPTIONS: [u64; OWNERS.len()] = [0, 3, 0];

const COUNTS: [[u64; 3]; OWNERS.len()] = [[1, 1, 1], [1, 1, 1], [1, 1, 0]];

#[test]
fn usage_of_owners_survives_a_restart() {
    let node = used_node("owners");
    let before = usage(&node.state.owners);
    assert_eq!(before.map(|owner| owner.map(|(count, _)| count)), COUNTS);
    let directory = node.crash();
    for shards in [1, 3] {
        assert_eq!(usage_after_a_start(&directory, shards), before, "{shards} shards");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn usage_of_owners_survives_a_checkpoint_that_moves_messages() {
    let mut node = used_node("owners-moved");
    let before = usage(&node.state.owners);
    let part = MovePart {
        before: RecordPosition(u64::MAX),
        bytes: 1 << 20,
    };
    node.shard.journal(NOW).begin_checkpoint(part);
    let mut moved_bytes = None;
    while node.shard.inspect().is_checkpoint_active() && moved_bytes.is_none() {
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
