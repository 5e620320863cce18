//! Tests bytes as a network delivers them: packets split at any position have the same effect, and malformed bytes do
//! no harm.

use std::sync::Arc;

use mqtt::*;
use tidewire_broker::*;

use super::run::check_empty;
use super::{Random, cases, seed};
use crate::world::{World, connect_packet};

const TOPICS: [&str; 5] = ["a", "a/b", "a/c", "$delayed/1/a", "$exclusive/a"];
const FILTERS: [&str; 7] = ["#", "a/+", "a/b", "$share/g/a/#", "$queue/a", "$exclusive/a", "$SYS/#"];

/// Generates the packets of one client, CONNECT first.
fn packets(random: &mut Random, client_id: &str) -> Vec<Vec<u8>> {
    let version = ProtocolVersion::ALL[random.below(3)];
    let mut packets = vec![connect(random, version, client_id)];
    for _ in 0..random.below(25) {
        packets.push(packet(random, version));
    }
    if random.one_in(2) {
        packets.push(encoded(
            version,
            &Packet::Disconnect(Disconnect {
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            }),
        ));
    }
    packets
}

fn encoded(version: ProtocolVersion, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    bytes
}

fn connect(random: &mut Random, version: ProtocolVersion, client_id: &str) -> Vec<u8> {
    let (mut bytes, mut will_bytes) = (Vec::new(), Vec::new());
    let mut writer = PropertyWriter::new(&mut bytes);
    if version == ProtocolVersion::V5 {
        writer.put(Property::SessionExpiryInterval([0, 5, u32::MAX][random.below(3)]));
        writer.put(Property::ReceiveMaximum(1 + random.below(5) as u16));
        writer.put(Property::TopicAliasMaximum(random.below(3) as u16));
        if random.one_in(4) {
            writer.put(Property::MaximumPacketSize(20 + random.below(100) as u32));
        }
        PropertyWriter::new(&mut will_bytes).put(Property::WillDelayInterval(random.below(3) as u32));
    }
    let qos = QoS::from_bits(random.below(3) as u8).unwrap();
    let properties = Properties::from_validated(&will_bytes);
    let will = Will {
        qos,
        retain: random.one_in(2),
        properties,
        topic: "a/will",
        payload: b"bye",
    };
    let will = random.one_in(2).then_some(will);
    encoded(
        version,
        &Packet::Connect(connect_packet(
            version,
            client_id,
            random.one_in(2),
            writer.finish(),
            will,
        )),
    )
}

fn packet(random: &mut Random, version: ProtocolVersion) -> Vec<u8> {
    let id = PacketId::new(1 + random.below(6) as u16).unwrap();
    let mut bytes = Vec::new();
    match random.below(10) {
        0 | 1 => {
            let options = SubscriptionOptions {
                maximum_qos: QoS::from_bits(random.below(3) as u8).unwrap(),
                ..Default::default()
            };
            let (first, second) = (FILTERS[random.below(7)], FILTERS[random.below(7)]);
            let filters = [first, second].map(|filter| SubscribeFilter { filter, options });
            let filters = SubscribeFilters::encode(filters, version, &mut bytes);
            encoded(
                version,
                &Packet::Subscribe(Subscribe {
                    packet_id: id,
                    properties: Properties::EMPTY,
                    filters,
                }),
            )
        }
        2 => {
            let filters = UnsubscribeFilters::encode([FILTERS[random.below(7)]], &mut bytes);
            encoded(
                version,
                &Packet::Unsubscribe(Unsubscribe {
                    packet_id: id,
                    properties: Properties::EMPTY,
                    filters,
                }),
            )
        }
        3 => encoded(version, &Packet::PingReq),
        n @ 4..=6 => {
            let kinds = [
                PacketType::PubAck,
                PacketType::PubRec,
                PacketType::PubRel,
                PacketType::PubComp,
            ];
            encode_bare_ack(kinds[(n + random.below(4)) % 4], id, &mut bytes);
            bytes
        }
        _ => publish(random, version, id),
    }
}

fn publish(random: &mut Random, version: ProtocolVersion, id: PacketId) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    let topic = TOPICS[random.below(4)];
    if version == ProtocolVersion::V5 {
        if random.one_in(3) {
            writer.put(Property::TopicAlias(1 + random.below(3) as u16));
        }
        if random.one_in(4) {
            writer.put(Property::MessageExpiryInterval(random.below(4) as u32));
        }
        if random.one_in(4) {
            writer.put(Property::UserProperty("k", "v"));
        }
    }
    let properties = writer.finish();
    let qos = QoS::from_bits(random.below(3) as u8).unwrap();
    let packet_id = (qos != QoS::AtMostOnce).then_some(id);
    let payload = vec![b'p'; random.below(3) * random.below(400)];
    let packet = Publish {
        dup: random.one_in(5),
        qos,
        retain: random.one_in(4),
        topic,
        packet_id,
        properties,
        payload: &payload,
    };
    encoded(version, &Packet::Publish(packet))
}

/// Generates a configuration with small limits.
fn narrow_config(random: &mut Random) -> ShardConfig {
    ShardConfig {
        output_buffer_bytes: [300, 1 << 20][random.below(2)],
        max_queued_messages: [2, 1000][random.below(2)],
        queue_qos0: random.one_in(2),
        queue_drop: [QueueDropPolicy::Oldest, QueueDropPolicy::Newest][random.below(2)],
        shared_strategy: [ShareStrategy::RoundRobin, ShareStrategy::LeastInflight][random.below(2)],
        max_delayed_messages: 3,
        retry_interval_ms: [None, Some(500)][random.below(2)],
        ..ShardConfig::default()
    }
}

#[test]
fn split_packets_give_the_same_answers() {
    for n in 0..u64::from(cases(1500)) {
        let mut random = Random::new(seed() * 1_000_003 + n);
        let bytes = packets(&mut random, "me").concat();
        // With several shards or smaller limits, the order of packets depends on timing.
        let world = || World::with(1, ShardConfig::default(), Arc::new(OpenAccess));
        let mut whole = world();
        let client = whole.open();
        whole.send_bytes(client, &bytes);
        let mut cut = world();
        let slow = cut.open();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (part, after) = rest.split_at(1 + random.below(rest.len().min(40)));
            cut.send_bytes(slow, part);
            rest = after;
        }
        assert!(
            whole.take_bytes(client) == cut.take_bytes(slow),
            "the answers differ in case {n}"
        );
        assert_eq!(whole.is_closed(client), cut.is_closed(slow), "case {n}");
    }
}

/// Corrupts bytes in one of several ways.
fn mutilate(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] = random.next() as u8,
        1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes.insert(at, random.next() as u8),
        3 => drop(bytes.remove(at)),
        4 => bytes.truncate(at + 1),
        _ => {
            let part = bytes[at..].to_vec();
            bytes.extend(part);
        }
    }
}

#[test]
fn malformed_bytes_leave_no_state() {
    for n in 0..u64::from(cases(2000)) {
        let mut random = Random::new(seed() * 1_000_003 + n);
        let shards = 1 + random.below(3) as u16;
        let mut world = World::with(shards, narrow_config(&mut random), Arc::new(OpenAccess));
        let mut clients = Vec::new();
        for round in 0..6 {
            let mut bytes = packets(&mut random, ["one", "two", "three"][round % 3]).concat();
            for _ in 0..random.below(4) {
                mutilate(&mut random, &mut bytes);
            }
            let client = world.open();
            clients.push(client);
            let at = random.below(bytes.len() + 1);
            world.send_bytes(client, &bytes[..at]);
            if random.one_in(4) && !world.is_closed(client) {
                world.blocked.push(client);
            }
            world.send_bytes(client, &bytes[at..]);
            world.pass([0, 600, 2000][random.below(3)]);
            if random.one_in(3) {
                world.cut(clients[random.below(clients.len())]);
            }
        }
        end_everything(&mut world, &clients);
        check_empty(&world);
    }
}

/// Closes the connections, lets delayed messages become due, and ends the remaining sessions as an operator.
fn end_everything(world: &mut World, clients: &[usize]) {
    for client in clients {
        world.cut(*client);
    }
    world.pass(5000);
    for shard in 0..world.shards.len() {
        let (views, _) = world.shards[shard]
            .inspect()
            .clients(&ClientFilter::default(), SessionSlot::FIRST, 1000);
        for view in views {
            assert!(world.shards[shard].operator(world.now).kick(&view.client_id, true));
        }
    }
    world.settle();
    // A corrupted topic may have a long delay, so the time jumps.
    world.now.monotonic_ms += 1 << 40;
    world.settle();
}
