//! Fuzzes a node of two shards on virtual time. A script sends valid packets and raw bytes, closes connections and
//! advances the time.

#![no_main]

#[path = "../../crates/broker/tests/world/mod.rs"]
mod world;

use libfuzzer_sys::fuzz_target;
use mqtt::{Packet, PacketType, Property, PropertyWriter, ProtocolVersion, QoS, SubscriptionOptions};
use tidewire_broker::{OpenAccess, ShardConfig};
use world::World;

const TOPICS: [&str; 6] = ["a", "a/b", "a/b/c", "$SYS/x", "", "$delayed/1/a"];
const FILTERS: [&str; 8] = ["a", "a/+", "#", "+/b/#", "$share/g/a/#", "$exclusive/a", "a#", "$queue/a/b"];
const CLIENTS: usize = 4;

fuzz_target!(|script: &[u8]| {
    // Longer scripts find the same faults, but more slowly.
    let script = &script[..script.len().min(600)];
    let config = ShardConfig {
        max_session_expiry_s: 3,
        max_queued_messages: 8,
        max_inflight: 4,
        output_buffer_bytes: 4096,
        ..ShardConfig::default()
    };
    let mut world = World::with(2, config, std::sync::Arc::new(OpenAccess));
    let mut wires: Vec<usize> = (0..CLIENTS).map(|_| world.open()).collect();
    let mut rest = script;
    while let [op, a, b, tail @ ..] = rest {
        rest = tail;
        let which = usize::from(*a) % CLIENTS;
        if world.is_closed(wires[which]) {
            wires[which] = world.open();
        }
        let used = step(&mut world, &mut wires, which, [*op, *a, *b], rest);
        rest = &rest[used..];
    }
    for wire in wires {
        if !world.is_closed(wire) {
            world.cut(wire);
        }
    }
    world.pass(5000);
    let stats = world.stats();
    assert_eq!(stats.connections, 0);
    assert_eq!(stats.sessions, 0);
    assert_eq!(stats.subscriptions, 0);
    assert_eq!((stats.queued_messages, stats.queued_bytes, stats.inflight_messages), (0, 0, 0));
    assert_eq!(stats.shared_groups, 0);
});

/// Runs one step of the script. Returns the number of bytes of `rest` that it used.
fn step(world: &mut World, wires: &mut [usize], which: usize, [op, a, b]: [u8; 3], rest: &[u8]) -> usize {
    let wire = wires[which];
    let name = ["w", "x", "y", "z"][usize::from(a >> 2) % 4];
    let qos = QoS::from_bits(b % 3).unwrap();
    match op % 12 {
        0 => {
            let n = usize::from(b).min(rest.len());
            world.send_bytes(wire, &rest[..n]);
            return n;
        }
        1 => {
            let n = usize::from(b).min(rest.len());
            world.send_bytes(wire, &tidewire_fuzz::reframed(&rest[..n]));
            return n;
        }
        2 | 3 => {
            let version = if b & 1 == 0 { ProtocolVersion::V5 } else { ProtocolVersion::V3_1_1 };
            let properties = [
                Property::SessionExpiryInterval(u32::from(b >> 2)),
                Property::ReceiveMaximum(u16::from(b >> 5) + 1),
                Property::TopicAliasMaximum(u16::from(b >> 6)),
            ];
            let kept = if version == ProtocolVersion::V5 { &properties[..] } else { &[] };
            let mut bytes = Vec::new();
            let mut writer = PropertyWriter::new(&mut bytes);
            for property in kept {
                writer.put(*property);
            }
            let connect = world::connect_packet(version, name, b & 2 == 0, writer.finish(), None);
            world.send(wire, &Packet::Connect(connect));
        }
        4 | 5 => {
            let options = SubscriptionOptions {
                maximum_qos: qos,
                no_local: b & 16 != 0,
                retain_as_published: b & 32 != 0,
                ..SubscriptionOptions::default()
            };
            let identifier = (b & 64 != 0).then_some(u32::from(b) + 1);
            world.subscribe_with(wire, FILTERS[usize::from(b >> 2) % FILTERS.len()], options, identifier);
        }
        6 | 7 => {
            let topic = TOPICS[usize::from(b >> 2) % TOPICS.len()];
            let fields = world::PublishFields {
                retain: b & 128 != 0,
                id: u16::from(b) + 1,
                ..world::PublishFields::default()
            };
            world.publish_with(wire, topic, "payload", qos, fields);
        }
        8 => {
            let kinds = [PacketType::PubAck, PacketType::PubRec, PacketType::PubRel, PacketType::PubComp];
            world.ack(wire, kinds[usize::from(b) % 4], u16::from(b >> 2) + 1);
        }
        9 => world.pass(u64::from(b) * 100),
        10 => {
            world.cut(wire);
        }
        _ if world.blocked.contains(&wire) => world.unblock(wire),
        _ => world.blocked.push(wire),
    }
    0
}
