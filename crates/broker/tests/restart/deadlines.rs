//! Tests many sessions or messages that become due at the same time. Their records are split, because a journal batch
//! has a size limit.

use std::sync::Arc;

use mqtt::{Properties, Property, PropertyWriter, QoS, Will};
use tidewire_broker::durable::record::*;
use tidewire_broker::durable::recovery::Recovery;
use tidewire_broker::durable::restore::restore;
use tidewire_broker::*;

use super::node::Node;
use super::{NOW, append, journal, session};

const WILLS: usize = 200;
static PAYLOAD: [u8; 64 * 1024] = [7; 64 * 1024];
const BATCH_BYTES_MAX: usize = 6 << 20;

#[test]
fn start_writes_many_wills_in_several_batches() {
    let names: Vec<String> = (0..WILLS).map(|number| format!("client {number}")).collect();
    let JournalRecord::Session(one) = session(1, "t") else {
        unreachable!()
    };
    let of = |(number, name)| {
        let mut session: SessionRecord<'_> = one.clone();
        session.session = SessionKey(64 * (number as u64 + 1));
        session.client_id = name;
        session.terms.will = Some(WillRecord {
            topic: name,
            payload: &PAYLOAD,
            properties: b"",
            qos: QoS::AtLeastOnce,
            retain: true,
            delay_s: 0,
            message_expiry_s: None,
        });
        JournalRecord::Session(session)
    };
    let list: Vec<JournalRecord<'_>> = names.iter().map(String::as_str).enumerate().map(of).collect();
    let mut recovery = Recovery::new();
    for (position, bytes) in &journal(&list) {
        recovery.record(*position, bytes).unwrap();
    }
    let recovered = recovery.finish();
    let node = Arc::new(NodeState::new(2, 1));
    let new = |id| {
        let config = Arc::new(ShardConfig::default());
        let mut shard = Shard::new(NOW, ShardId(id), config, Arc::new(OpenAccess), node.clone(), 1);
        shard.start_journaling(recovered.last_key);
        shard
    };
    let mut shards: Vec<Shard> = (0..2).map(new).collect();
    let (mut end, mut largest) = (1 << 30, 0);
    restore(NOW, &mut shards, recovered, &mut |_, _| (), &mut |batch| {
        largest = largest.max(batch.len());
        append(&mut end, batch)
    });
    let published: u64 = shards.iter().map(|shard| shard.inspect().stats().wills_published).sum();
    let retained: u64 = shards
        .iter()
        .map(|shard| shard.inspect().stats().retained_messages)
        .sum();
    assert_eq!((published, retained), (WILLS as u64, WILLS as u64));
    assert!(largest <= BATCH_BYTES_MAX, "{largest} bytes in one batch");
}

#[test]
fn records_of_many_timers_are_spread_over_ticks() {
    let mut node = Node::new("timers", ShardConfig::default());
    let mut properties = Vec::new();
    PropertyWriter::new(&mut properties).put(Property::WillDelayInterval(1));
    for number in 0..WILLS {
        let name = format!("client {number}");
        let will = Will {
            qos: QoS::AtLeastOnce,
            retain: true,
            properties: Properties::from_validated(&properties),
            topic: &name,
            payload: &PAYLOAD,
        };
        let conn = node.connect_with_will(&name, true, 1000, Some(will));
        node.end_tick();
        node.shard.closed(NOW, conn, CloseCause::Network);
        node.end_tick();
    }
    let later = Now {
        monotonic_ms: NOW.monotonic_ms + 2000,
        ..NOW
    };
    let mut ticks = 0;
    loop {
        node.shard.run_timers(later);
        let bytes = node.shard.inspect().ledger().batch_bytes();
        assert!(bytes <= BATCH_BYTES_MAX, "{bytes} bytes in one batch");
        node.end_tick();
        ticks += 1;
        if node.shard.inspect().next_deadline() != Some(0) {
            break;
        }
    }
    assert_eq!(node.shard.inspect().stats().wills_published, WILLS as u64);
    assert_eq!(node.shard.inspect().stats().retained_messages, WILLS as u64);
    assert!(ticks < WILLS);
    std::fs::remove_dir_all(node.crash()).unwrap();
}

/// All filters of a session are one record.
#[test]
fn filters_of_a_session_have_a_byte_limit() {
    const FILTER_BYTES: usize = 65_000;
    let mut node = Node::new("filters", ShardConfig::default());
    let client = node.connect("client", true, 1000);
    let filter = |number: usize| format!("{number:0FILTER_BYTES$}");
    for number in 0..300 {
        node.subscribe(client, &filter(number));
    }
    let most = (16 << 20) / FILTER_BYTES;
    assert_eq!(node.shard.inspect().stats().subscriptions, most as u64);
    assert_eq!(node.sent_reasons(client)[most - 1..=most], [1, 0x97]);
    // Subscribing again to an existing filter is allowed at the limit; unsubscribing frees a place.
    node.subscribe(client, &filter(0));
    node.unsubscribe(client, &filter(0));
    node.subscribe(client, &filter(300));
    assert_eq!(node.sent_reasons(client)[300..], [1, 1]);
    std::fs::remove_dir_all(node.crash()).unwrap();
}
