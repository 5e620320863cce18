//! Tests the recovery of retained messages: all are restored, independent of earlier rejections and of the current
//! limits.

use std::collections::HashMap;

use tidewire_broker::durable::record::JournalRecord;
use tidewire_broker::durable::recovery::Recovery;
use tidewire_broker::*;

use super::node::{Node, open, publication, send};
use super::{NOW, start_with};

/// Returns the topics and payloads of the retained messages after a crash.
fn after_a_crash(node: Node) -> Vec<(String, Vec<u8>)> {
    let directory = node.crash();
    let (mut recovery, mut payloads) = (Recovery::new(), HashMap::new());
    open(&directory, &mut |position, bytes| {
        if let Ok(JournalRecord::Message(message)) = JournalRecord::read(bytes) {
            payloads.insert(position, message.payload.to_vec());
        }
        recovery.record(position, bytes).unwrap();
    });
    std::fs::remove_dir_all(&directory).unwrap();
    let retained = recovery.finish().retained.into_iter();
    let mut all: Vec<_> = { retained }
        .map(|retained| (retained.topic.to_string(), payloads[&retained.message].clone()))
        .collect();
    all.sort();
    all
}

fn topics(all: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
    all.iter()
        .map(|(topic, payload)| (topic.to_string(), payload.to_vec()))
        .collect()
}

#[test]
fn rejected_retained_message_uses_no_space_after_a_crash() {
    let config = ShardConfig {
        retained_max_messages: 2,
        ..ShardConfig::default()
    };
    let mut node = Node::new("refused", config);
    let publisher = node.connect("publisher", true, 0);
    for (topic, payload) in [("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2")] {
        node.retain(publisher, topic, payload);
    }
    assert_eq!(node.shard.inspect().stats().drops[DropReason::RetainedFull as usize], 1);
    assert_eq!(after_a_crash(node), topics(&[("a", b"2"), ("b", b"1")]));
}

#[test]
fn oversized_message_leaves_the_retained_one() {
    let config = ShardConfig {
        retained_max_payload: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new("large", config);
    let publisher = node.connect("publisher", true, 0);
    node.retain(publisher, "t", b"1");
    node.retain(publisher, "t", b"22");
    assert_eq!(after_a_crash(node), topics(&[("t", b"1")]));
}

#[test]
fn topic_cleared_in_a_full_store_stays_clear_after_a_crash() {
    let config = ShardConfig {
        retained_max_messages: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new("cleared", config);
    let publisher = node.connect("publisher", true, 0);
    for (topic, payload) in [("a", &b"1"[..]), ("a", b""), ("b", b"2")] {
        node.retain(publisher, topic, payload);
    }
    assert_eq!(after_a_crash(node), topics(&[("b", b"2")]));
}

/// Each shard has a part of the limits, and a topic belongs to a shard by its hash. After a start with more shards or
/// lower limits, a shard may have more retained messages than its limit.
#[test]
fn start_restores_retained_messages_beyond_its_limits() {
    let mut node = Node::new("beyond", ShardConfig::default());
    let publisher = node.connect("publisher", true, 0);
    for topic in ["a", "b", "c", "d"] {
        node.retain(publisher, topic, b"payload");
    }
    let directory = node.crash();
    let limits = [
        ShardConfig {
            retained_max_messages: 1,
            ..ShardConfig::default()
        },
        ShardConfig {
            retained_max_bytes: 1,
            ..ShardConfig::default()
        },
        ShardConfig {
            retained_max_payload: 1,
            ..ShardConfig::default()
        },
    ];
    for limits in limits {
        let mut shards = start_with(&directory, 1, usize::MAX, limits);
        assert_eq!(shards[0].inspect().stats().retained_messages, 4);
        assert_eq!(shards[0].inspect().stats().drops[DropReason::RetainedFull as usize], 0);
        super::node::connect(&mut shards[0], ConnSlot(0), "publisher", true, 0, None);
        send(&mut shards[0], ConnSlot(0), &publication("e", 1, b"payload", true));
        assert_eq!(shards[0].inspect().stats().retained_messages, 4, "at {NOW:?}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
