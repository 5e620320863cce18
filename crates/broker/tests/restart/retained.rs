//! Retained messages at a start: those that were there, whatever was refused before and whatever the limits are now.

use std::collections::HashMap;

use tidewire_broker::durable::record::Record;
use tidewire_broker::durable::recovery::Recovery;
use tidewire_broker::*;

use crate::node::{Node, open, publication, send};
use crate::{NOW, start_with};

/// What is retained after a crash: topics and payloads.
fn after_a_crash(node: Node) -> Vec<(String, Vec<u8>)> {
    let directory = node.crash();
    let (mut recovery, mut payloads) = (Recovery::new(), HashMap::new());
    open(&directory, &mut |position, bytes| {
        if let Ok(Record::Message(message)) = Record::read(bytes) {
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
fn a_topic_that_found_no_room_takes_none_from_another_after_a_crash() {
    let config = ShardConfig {
        retained_messages_max: 2,
        ..ShardConfig::default()
    };
    let mut node = Node::new("refused", config);
    let publisher = node.connect("publisher", true, 0);
    for (topic, payload) in [("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2")] {
        node.retain(publisher, topic, payload);
    }
    assert_eq!(node.shard.stats().drops[DropReason::RetainedFull as usize], 1);
    assert_eq!(after_a_crash(node), topics(&[("a", b"2"), ("b", b"1")]));
}

#[test]
fn a_topic_keeps_what_it_has_when_what_comes_is_too_large() {
    let config = ShardConfig {
        retained_payload_max: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new("large", config);
    let publisher = node.connect("publisher", true, 0);
    node.retain(publisher, "t", b"1");
    node.retain(publisher, "t", b"22");
    assert_eq!(after_a_crash(node), topics(&[("t", b"1")]));
}

#[test]
fn a_topic_that_is_cleared_although_the_store_is_full_is_clear_after_a_crash() {
    let config = ShardConfig {
        retained_messages_max: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new("cleared", config);
    let publisher = node.connect("publisher", true, 0);
    for (topic, payload) in [("a", &b"1"[..]), ("a", b""), ("b", b"2")] {
        node.retain(publisher, topic, payload);
    }
    assert_eq!(after_a_crash(node), topics(&[("b", b"2")]));
}

/// Each shard has a part of the limits, and topics are where their hash says: a start with more shards, or with lower limits, finds
/// more than it would take.
#[test]
fn a_start_keeps_what_is_retained_beyond_its_limits_and_takes_nothing_new() {
    let mut node = Node::new("beyond", ShardConfig::default());
    let publisher = node.connect("publisher", true, 0);
    for topic in ["a", "b", "c", "d"] {
        node.retain(publisher, topic, b"payload");
    }
    let directory = node.crash();
    let limits = [
        ShardConfig {
            retained_messages_max: 1,
            ..ShardConfig::default()
        },
        ShardConfig {
            retained_bytes_max: 1,
            ..ShardConfig::default()
        },
        ShardConfig {
            retained_payload_max: 1,
            ..ShardConfig::default()
        },
    ];
    for limits in limits {
        let mut shards = start_with(&directory, 1, usize::MAX, limits);
        assert_eq!(shards[0].stats().retained_messages, 4);
        assert_eq!(shards[0].stats().drops[DropReason::RetainedFull as usize], 0);
        crate::node::connect(&mut shards[0], ConnSlot(0), "publisher", true, 0, None);
        send(&mut shards[0], ConnSlot(0), &publication("e", 1, b"payload", true));
        assert_eq!(shards[0].stats().retained_messages, 4, "at {NOW:?}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
