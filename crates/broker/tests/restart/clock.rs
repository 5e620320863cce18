//! Tests jumps of the system's clock. Intervals follow the journal's time, which does not jump.

use mqtt::{Decoded, Packet, Properties, Property, PropertyWriter, ProtocolVersion, Publish, QoS, Will};
use tidewire_broker::durable::record::{JournalRecord, RecordPosition};
use tidewire_broker::*;

use super::node::{Node, connect, publication};
use super::{CONN, NOW, append, journal, message, session, started, target};

const HOUR_MS: u64 = 3_600_000;

const BEHIND_MS: i64 = -(HOUR_MS as i64);
const AHEAD_MS: i64 = HOUR_MS as i64;
/// Delay of messages and wills.
const DELAY_S: u32 = 60;

/// Returns the time after this many milliseconds. The system's clock has been set back.
fn later(ms: u64) -> Now {
    after_jump(NOW, ms, BEHIND_MS)
}

/// Returns the time this many milliseconds after `start`. The system's clock has been set forward by `jump_ms`.
fn after_jump(start: Now, ms: u64, jump_ms: i64) -> Now {
    Now {
        monotonic_ms: start.monotonic_ms + ms,
        unix_ms: (start.unix_ms + ms).saturating_add_signed(jump_ms),
        journal_ms: start.journal_ms + ms,
    }
}

#[test]
fn stored_message_keeps_its_expiry_when_the_clock_goes_back() {
    let target = target(1, QoS::AtLeastOnce);
    let JournalRecord::Message(mut stored) = message(QoS::AtLeastOnce, 0, &target) else {
        unreachable!()
    };
    stored.expires_unix_ms = Some(NOW.journal_ms + HOUR_MS);
    let records = journal(&[session(1, "t"), JournalRecord::Message(stored)]);
    let (mut shard, mut end, _) = started(&records);
    connect(&mut shard, CONN, "c", false, 1000, None);
    let now = later(5_000);
    for _ in 0..10 {
        shard.run_timers(now);
        if let Some(batch) = shard.journal(now).batch() {
            let (base, end) = append(&mut end, batch);
            shard.journal(now).appended(base, end);
        }
        shard.journal(now).committed(end);
        let mut effects = Vec::new();
        shard.take_effects(&mut effects);
        for effect in effects {
            if let Effect::Fetch { purpose, positions } = effect {
                let found = positions
                    .iter()
                    .map(|position| records.get(position).cloned())
                    .collect();
                shard.journal(now).fetched(purpose, &positions, found);
            }
        }
    }
    let mut slices = Vec::new();
    shard.outbox().slices(CONN, usize::MAX, &mut slices);
    assert_eq!(expiries(&slices.concat()), [3_595]);
}

/// Returns the Message Expiry Intervals of all PUBLISH packets.
fn expiries(bytes: &[u8]) -> Vec<u32> {
    let (mut at, mut found) = (0, Vec::new());
    while let Decoded::Complete { packet, size } = mqtt::decode(&bytes[at..], ProtocolVersion::V5, 1 << 20).unwrap() {
        at += size;
        if let Packet::Publish(publish) = packet {
            found.extend(publish.properties.iter().filter_map(|property| match property {
                Property::MessageExpiryInterval(seconds) => Some(seconds),
                _ => None,
            }));
        }
    }
    found
}

/// Expiries do not become longer if the process is killed and the clock is behind at the next start.
#[test]
fn latest_time_is_in_the_journal_after_a_kill() {
    let mut node = Node::new("time", ShardConfig::default());
    let client = node.connect("client", true, 1000);
    node.retain(client, "t", b"1");
    for (after_ms, topic) in [(0, "s"), (60_000, "u"), (60_500, "v")] {
        node.shard.begin_tick(later(after_ms));
        node.retain(client, topic, b"1");
    }
    let recovered = node.recovered_after_a_crash();
    assert_eq!(recovered.latest_unix_ms, NOW.journal_ms + 60_000);
}

/// Starts a node whose journal contains the time of the start.
fn started_node(name: &str) -> Node {
    Node::new(name, ShardConfig::default()).restart_at(NOW.unix_ms).0
}

/// Starts a node with a delayed message that is retained when it is due.
fn node_with_delayed_message(name: &str) -> Node {
    let mut node = started_node(name);
    let publisher = node.connect("publisher", true, 0);
    let topic = format!("$delayed/{DELAY_S}/t");
    node.send(publisher, &publication(&topic, 1, b"later", true));
    node.end_tick();
    node
}

/// Starts a node with a session that has just disconnected. Its will is retained when it is due.
fn node_with_will(name: &str) -> Node {
    let mut node = started_node(name);
    let mut properties = Vec::new();
    PropertyWriter::new(&mut properties).put(Property::WillDelayInterval(DELAY_S));
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: Properties::from_validated(&properties),
        topic: "t",
        payload: b"gone",
    };
    let client = node.connect_with_will("client", true, u32::MAX, Some(will));
    node.end_tick();
    node.shard.closed(NOW, client, CloseCause::Network);
    node.end_tick();
    node
}

/// Checks that the retained message is published `ms` milliseconds after `start` and not before.
fn assert_published_after(mut node: Node, start: Now, jump_ms: i64, ms: u64) {
    if let Some(early_ms) = ms.checked_sub(1) {
        node.shard.run_timers(after_jump(start, early_ms, jump_ms));
        node.end_tick();
        let early = node.shard.inspect().stats().retained_messages;
        assert_eq!(early, 0, "before {ms} ms, with a jump of {jump_ms} ms");
    }
    node.shard.run_timers(after_jump(start, ms, jump_ms));
    node.end_tick();
    let published = node.shard.inspect().stats().retained_messages;
    assert_eq!(published, 1, "after {ms} ms, with a jump of {jump_ms} ms");
    std::fs::remove_dir_all(node.crash()).unwrap();
}

/// The clock jumps while the server runs.
fn assert_delay_does_not_change(name: &str, new: fn(&str) -> Node) {
    for jump_ms in [BEHIND_MS, 0, AHEAD_MS] {
        let node = new(&format!("{name}-running-{jump_ms}"));
        assert_published_after(node, NOW, jump_ms, u64::from(DELAY_S) * 1000);
    }
}

/// The process is killed, and another one starts 20 seconds later. If the clock is behind, the downtime does not count,
/// so the whole delay is left. A clock that is ahead looks like an hour of downtime, so the message is due at once.
fn assert_delay_does_not_grow_at_a_restart(name: &str, new: fn(&str) -> Node) {
    for (jump_ms, left_ms) in [(BEHIND_MS, 60_000), (0, 40_000), (AHEAD_MS, 0)] {
        let node = new(&format!("{name}-restarted-{jump_ms}"));
        let start = after_jump(NOW, 20_000, jump_ms);
        let (node, start) = node.restart_at(start.unix_ms);
        assert_published_after(node, start, 0, left_ms);
    }
}

#[test]
fn delayed_message_ignores_jumps_of_the_clock() {
    assert_delay_does_not_change("clock-delayed", node_with_delayed_message);
}

#[test]
fn delayed_message_does_not_wait_longer_after_a_restart() {
    assert_delay_does_not_grow_at_a_restart("clock-delayed", node_with_delayed_message);
}

#[test]
fn will_delay_ignores_jumps_of_the_clock() {
    assert_delay_does_not_change("clock-will", node_with_will);
}

#[test]
fn will_delay_does_not_grow_at_a_restart() {
    assert_delay_does_not_grow_at_a_restart("clock-will", node_with_will);
}

/// Step of a clock that starts in the past and is set by the network.
const STEP_MS: i64 = 50 * 365 * 24 * HOUR_MS as i64;

/// Starts a node with a message in the queue of an offline session. Both expire after an hour. After ten seconds, the
/// system's clock is set forward. The next tick has no other record.
fn node_after_step(name: &str) -> Node {
    let mut node = started_node(name);
    let subscriber = node.connect("subscriber", true, 3600);
    node.subscribe(subscriber, "t");
    node.shard.closed(NOW, subscriber, CloseCause::Network);
    let publisher = node.connect("publisher", true, 0);
    let mut properties = Vec::new();
    PropertyWriter::new(&mut properties).put(Property::MessageExpiryInterval(3600));
    let Packet::Publish(publish) = publication("t", 1, b"1", false) else {
        unreachable!()
    };
    let properties = Properties::from_validated(&properties);
    node.send(publisher, &Packet::Publish(Publish { properties, ..publish }));
    node.end_tick();
    node.now = after_jump(NOW, 10_000, STEP_MS);
    node.shard.begin_tick(node.now);
    node.end_tick();
    node
}

/// Ends the process, and starts another one `ms` milliseconds after the start of `node_after_step`. The clock is right.
/// Returns whether the session is present, and the expiries of its messages.
fn after_restart(node: Node, from: RecordPosition, ms: u64) -> (bool, Vec<u32>) {
    let (mut node, start) = node.restart_from(from, after_jump(NOW, ms, STEP_MS).unix_ms);
    node.shard.run_timers(start);
    node.end_tick();
    let subscriber = node.connect("subscriber", false, 3600);
    for _ in 0..10 {
        node.shard.run_timers(start);
        node.end_tick();
        node.read();
    }
    let mut slices = Vec::new();
    node.shard.outbox().slices(subscriber, usize::MAX, &mut slices);
    let bytes = slices.concat();
    std::fs::remove_dir_all(node.crash()).unwrap();
    let Decoded::Complete { packet, .. } = mqtt::decode(&bytes, ProtocolVersion::V5, 1 << 20).unwrap() else {
        unreachable!()
    };
    let Packet::ConnAck(connack) = packet else {
        panic!("the first packet is no CONNACK")
    };
    (connack.session_present, expiries(&bytes))
}

#[test]
fn step_of_the_clock_is_no_downtime() {
    let node = node_after_step("clock-step");
    assert_eq!(after_restart(node, RecordPosition(0), 20_000), (true, vec![3_580]));
    let mut node = node_after_step("clock-step-checkpoint");
    let checkpoint = node.checkpoint();
    assert_eq!(after_restart(node, checkpoint, 20_000), (true, vec![3_580]));
}

#[test]
fn downtime_after_a_step_of_the_clock_counts() {
    let node = node_after_step("clock-step-downtime");
    assert_eq!(after_restart(node, RecordPosition(0), 2 * HOUR_MS), (false, vec![]));
}

/// Without a real-time clock, each start of the machine begins in the past.
#[test]
fn start_in_the_past_between_does_not_change_intervals() {
    let (node, start) = node_after_step("clock-past").restart_at(0);
    assert_eq!(start.journal_ms, NOW.journal_ms + 10_000);
    assert_eq!(after_restart(node, RecordPosition(0), 20_000), (true, vec![3_580]));
}

#[test]
fn clock_that_is_set_back_has_no_difference() {
    let mut node = node_after_step("clock-back");
    node.shard.begin_tick(after_jump(NOW, 11_000, 0));
    node.end_tick();
    let recovered = node.recovered_after_a_crash();
    assert_eq!(recovered.latest_unix_ms, NOW.journal_ms + 11_000);
    assert_eq!(recovered.clock_ahead_ms, 0);
}

/// The clock was wrong while the previous process ran, and has been repaired before this start. Later downtimes count.
#[test]
fn clock_that_is_behind_at_a_start_counts_after_a_day() {
    for (uptime_ms, ahead_ms) in [(24 * HOUR_MS - 1, STEP_MS.unsigned_abs()), (24 * HOUR_MS, 0)] {
        let node = node_after_step(&format!("clock-repaired-{uptime_ms}"));
        let (mut node, start) = node.restart_at(NOW.unix_ms + 15_000);
        node.shard.begin_tick(after_jump(start, uptime_ms, 0));
        node.end_tick();
        assert_eq!(node.recovered_after_a_crash().clock_ahead_ms, ahead_ms, "{uptime_ms}");
    }
}
