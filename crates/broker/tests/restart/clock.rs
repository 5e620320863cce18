//! Tests jumps of the system's clock. Intervals follow the journal's time, which does not jump.

use mqtt::{Decoded, Packet, Property, ProtocolVersion, QoS};
use tidewire_broker::durable::record::JournalRecord;
use tidewire_broker::*;

use super::node::{Node, connect};
use super::{CONN, NOW, append, journal, message, session, started, target};

const HOUR_MS: u64 = 3_600_000;

/// Returns the time after this many milliseconds. The system's clock has been set back.
fn later(ms: u64) -> Now {
    Now {
        monotonic_ms: NOW.monotonic_ms + ms,
        unix_ms: NOW.unix_ms + ms - HOUR_MS,
        journal_ms: NOW.journal_ms + ms,
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
