//! Tests that batched deliveries to a list of subscribers produce the same bytes as single deliveries.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::sync::Arc;

use crate::scale::scaled;
use crate::world::World;
use mqtt::ProtocolVersion::{V3_1_1, V5};
use mqtt::QoS::{AtLeastOnce, AtMostOnce};
use mqtt::*;
use tidewire_broker::*;

const CASES: u64 = 400;
const PACKETS: usize = 120;
const TOPICS: [&str; 4] = ["t/a", "t/b", "u", "u/c"];
const FILTERS: [&str; 5] = ["t/#", "u", "+/a", "u/#", "$share/g/t/#"];

/// Pseudo-random numbers of Knuth's linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The option `queue_qos0` disables batched delivery. It has no other effect on sessions that end with their
/// connection.
fn world(shards: u16, is_plain: bool, output_buffer_bytes: usize) -> World {
    let config = ShardConfig {
        queue_qos0: is_plain,
        output_buffer_bytes,
        ..ShardConfig::default()
    };
    World::with(shards, config, Arc::new(OpenAccess))
}

fn populate(w: &mut World, random: &mut Random) -> Vec<usize> {
    let is_uniform = random.one_in(2);
    (0..4 + random.below(8))
        .map(|n| {
            let version = if is_uniform || random.one_in(2) { V5 } else { V3_1_1 };
            let mut properties = Vec::new();
            if version == V5 && random.one_in(8) {
                properties.push(Property::MaximumPacketSize(60));
            }
            if version == V5 && random.one_in(12) {
                properties.push(Property::TopicAliasMaximum(3));
            }
            let client = w.connect(version, &format!("subscriber-{n}"), true, &properties);
            for filter in FILTERS {
                if random.one_in(if filter.starts_with('$') { 12 } else { 2 }) {
                    subscribe(w, client, filter, version, random);
                }
            }
            if random.one_in(4) {
                w.blocked.push(client);
            }
            client
        })
        .collect()
}

fn subscribe(w: &mut World, client: usize, filter: &str, version: ProtocolVersion, random: &mut Random) {
    let options = SubscriptionOptions {
        maximum_qos: if random.one_in(6) { AtLeastOnce } else { AtMostOnce },
        no_local: version == V5 && !filter.starts_with('$') && random.one_in(12),
        ..SubscriptionOptions::default()
    };
    let identifier = (version == V5 && random.one_in(12)).then_some(9);
    w.subscribe_with(client, filter, options, identifier);
}

/// Returns the bytes that a client sends at once: mostly PUBLISH, sometimes a packet that must not be overtaken.
fn batch(random: &mut Random, subscribes: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..PACKETS {
        let mut filters = Vec::new();
        match random.below(30) {
            0 => Packet::PingReq.encode(V5, &mut bytes),
            1 if subscribes => {
                let filter = FILTERS[random.below(3)];
                let options = SubscriptionOptions::default();
                let subscribe = Subscribe {
                    packet_id: PacketId::new(7).unwrap(),
                    properties: Properties::EMPTY,
                    filters: SubscribeFilters::encode([SubscribeFilter { filter, options }], V5, &mut filters),
                };
                Packet::Subscribe(subscribe).encode(V5, &mut bytes);
            }
            other => {
                let payload = format!("{number}{}", "x".repeat(if other == 2 { 80 } else { other }));
                let qos = if other == 3 { AtLeastOnce } else { AtMostOnce };
                let publish = Publish {
                    dup: false,
                    qos,
                    retain: other == 4,
                    topic: TOPICS[random.below(30) / 10 + random.below(2)],
                    packet_id: (qos == AtLeastOnce).then(|| PacketId::new(number as u16 + 1).unwrap()),
                    properties: Properties::EMPTY,
                    payload: payload.as_bytes(),
                };
                Packet::Publish(publish).encode(V5, &mut bytes);
            }
        }
    }
    bytes
}

/// Returns all observable output of one case.
fn run(seed: u64, is_plain: bool) -> String {
    let mut random = Random(seed);
    let shards = 1 + random.below(3) as u16;
    let output_buffer_bytes = if random.one_in(2) { 1500 } else { 1 << 20 };
    let mut w = world(shards, is_plain, output_buffer_bytes);
    let mut clients = populate(&mut w, &mut random);
    let publisher = w.connect(V5, "publisher", true, &[]);
    clients.push(publisher);
    for _ in 0..3 {
        // A publisher with No Local is read more slowly during a batch.
        let bytes = batch(&mut random, output_buffer_bytes > 1500);
        w.send_bytes(publisher, &bytes);
        if random.one_in(3) {
            let gone = clients.remove(random.below(clients.len() - 1));
            w.cut(gone);
        }
    }
    let mut seen = String::new();
    for client in clients {
        w.unblock(client);
        writeln!(seen, "{client}: {:?}", w.take_bytes(client)).unwrap();
    }
    for shard in &w.shards {
        for n in 0..12 {
            if let Some(view) = shard.inspect().client(&format!("subscriber-{n}")) {
                writeln!(seen, "{n}: {} {}", view.messages_sent, view.bytes_sent).unwrap();
            }
        }
    }
    writeln!(seen, "{:?}", w.stats()).unwrap();
    seen
}

#[test]
fn batched_and_single_deliveries_are_equal() {
    for seed in 0..scaled(CASES) {
        let (together, one_by_one) = (run(seed, false), run(seed, true));
        assert!(
            together == one_by_one,
            "seed {seed}\ntogether:   {together}\none by one: {one_by_one}"
        );
    }
}

/// The publisher changes the list of subscribers in the middle of a batch.
#[test]
fn subscription_between_two_messages_gets_the_second() {
    let mut w = World::new(1);
    let others: Vec<_> = (0..10)
        .map(|n| {
            let client = w.connect(V5, &format!("other-{n}"), true, &[]);
            w.subscribe(client, "t", AtMostOnce);
            client
        })
        .collect();
    let publisher = w.connect(V5, "publisher", true, &[]);
    let (mut bytes, mut filters) = (Vec::new(), Vec::new());
    let message = |payload: &'static str| {
        Packet::Publish(Publish {
            dup: false,
            qos: AtMostOnce,
            retain: false,
            topic: "t",
            packet_id: None,
            properties: Properties::EMPTY,
            payload: payload.as_bytes(),
        })
    };
    for payload in ["1", "2", "3"] {
        message(payload).encode(V5, &mut bytes);
    }
    let options = SubscriptionOptions::default();
    let subscribe = Subscribe {
        packet_id: PacketId::new(7).unwrap(),
        properties: Properties::EMPTY,
        filters: SubscribeFilters::encode([SubscribeFilter { filter: "t", options }], V5, &mut filters),
    };
    Packet::Subscribe(subscribe).encode(V5, &mut bytes);
    for payload in ["4", "5"] {
        message(payload).encode(V5, &mut bytes);
    }
    w.send_bytes(publisher, &bytes);
    assert_eq!(w.payloads(publisher), ["4", "5"]);
    for other in others {
        assert_eq!(w.payloads(other), ["1", "2", "3", "4", "5"]);
    }
}

/// The index of a share group is above all session slots.
#[test]
fn two_share_groups_of_one_filter_receive_a_batch() {
    let mut w = World::new(1);
    let client = w.connect(V5, "client", true, &[]);
    for filter in ["$share/a/x", "$share/b/y", "$share/c/t", "$share/d/t"] {
        w.subscribe(client, filter, AtMostOnce);
    }
    let mut bytes = Vec::new();
    for payload in ["1", "2", "3"] {
        Packet::Publish(Publish {
            dup: false,
            qos: AtMostOnce,
            retain: false,
            topic: "t",
            packet_id: None,
            properties: Properties::EMPTY,
            payload: payload.as_bytes(),
        })
        .encode(V5, &mut bytes);
    }
    w.send_bytes(client, &bytes);
    assert_eq!(w.payloads(client), ["1", "1", "2", "2", "3", "3"]);
}
