//! Tests a publisher, a node and a subscriber over links that break at any byte: QoS 2 arrives exactly once, QoS 1 at
//! least once and in order. Both clients are complete state machines with the persistence that the standard requires
//! [MQTT-4.1.0-1].

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::*;
use tidewire_broker::*;

use super::run::check_empty;
use super::{Random, cases, seed};
use crate::world::{World, connect_packet};

const MESSAGES: u32 = 12;
/// Steps after which a link no longer breaks, so that every run ends.
const STEPS: usize = 400;

/// One client's connection, with the bytes in transit in both directions.
struct Link {
    wire: Option<usize>,
    up: VecDeque<u8>,
    down: Vec<u8>,
    version: ProtocolVersion,
    client_id: String,
    window: u16,
}

impl Link {
    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(self.version, &mut bytes);
        self.up.extend(bytes);
    }

    fn ack(&mut self, kind: PacketType, id: u16) {
        let mut bytes = Vec::new();
        encode_bare_ack(kind, PacketId::new(id).unwrap(), &mut bytes);
        self.up.extend(bytes);
    }

    fn open(&mut self, world: &mut World) {
        self.wire = Some(world.open());
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        if self.version == ProtocolVersion::V5 {
            writer.put(Property::SessionExpiryInterval(u32::MAX));
            writer.put(Property::ReceiveMaximum(self.window));
        }
        let client_id = self.client_id.clone();
        self.send(&Packet::Connect(connect_packet(
            self.version,
            &client_id,
            false,
            writer.finish(),
            None,
        )));
    }

    /// Breaks the link. Bytes in transit are lost.
    fn cut(&mut self, world: &mut World) {
        self.up.clear();
        self.down.clear();
        if let Some(wire) = self.wire.take() {
            world.cut(wire);
        }
    }

    /// Transfers some bytes in both directions. `packet` is called for each complete packet to the client.
    fn carry(&mut self, world: &mut World, random: &mut Random, mut packet: impl FnMut(&mut Link, &Packet<'_>)) {
        let Some(wire) = self.wire else { return };
        let n = random.below(60).min(self.up.len());
        let bytes: Vec<u8> = self.up.drain(..n).collect();
        world.send_bytes(wire, &bytes);
        // The remaining bytes stay in the network, and are lost if the link breaks.
        self.down.extend(world.take_bytes(wire));
        let visible = random.below(self.down.len() + 1);
        let mut used = 0;
        let down = std::mem::take(&mut self.down);
        while let Ok(Decoded::Complete { packet: p, size }) = decode(&down[used..visible], self.version, 1 << 20) {
            packet(self, &p);
            used += size;
        }
        self.down = down[used..].to_vec();
    }
}

/// Sends numbered messages, and stores each until it is acknowledged [MQTT-4.3.2-3], [MQTT-4.3.3-1].
struct Publisher {
    link: Link,
    qos: QoS,
    next: u32,
    next_id: u16,
    /// Identifier, number, and whether PUBREC has arrived, in the order of sending.
    inflight: VecDeque<(u16, u32, bool)>,
    is_connected: bool,
}

impl Publisher {
    fn is_done(&self) -> bool {
        self.next == MESSAGES && self.inflight.is_empty()
    }

    fn send_one(&mut self) {
        if !self.is_connected || self.next == MESSAGES || self.inflight.len() >= 5 {
            return;
        }
        self.next_id += 1;
        self.inflight.push_back((self.next_id, self.next, false));
        self.publish(self.next_id, self.next, false);
        self.next += 1;
    }

    fn publish(&mut self, id: u16, number: u32, dup: bool) {
        let payload = number.to_string();
        let packet = Publish {
            dup,
            qos: self.qos,
            retain: false,
            topic: "t/1",
            packet_id: PacketId::new(id),
            properties: Properties::EMPTY,
            payload: payload.as_bytes(),
        };
        self.link.send(&Packet::Publish(packet));
    }

    fn carry(&mut self, world: &mut World, random: &mut Random) {
        let mut came = Vec::new();
        self.link.carry(world, random, |_, packet| match packet {
            Packet::ConnAck(_) => came.push((PacketType::ConnAck, 0)),
            Packet::PubAck(ack) => came.push((PacketType::PubAck, ack.packet_id.get())),
            Packet::PubRec(ack) => came.push((PacketType::PubRec, ack.packet_id.get())),
            Packet::PubComp(ack) => came.push((PacketType::PubComp, ack.packet_id.get())),
            other => panic!("a publisher must not receive {other:?}"),
        });
        for (kind, id) in came {
            match kind {
                PacketType::ConnAck => self.connected(),
                PacketType::PubRec => {
                    if let Some(entry) = self.inflight.iter_mut().find(|e| e.0 == id) {
                        entry.2 = true;
                    }
                    self.link.ack(PacketType::PubRel, id);
                }
                _ => self.inflight.retain(|e| e.0 != id),
            }
        }
    }

    /// Resends all incomplete messages in order [MQTT-4.4.0-1], [MQTT-4.6.0-1].
    fn connected(&mut self) {
        self.is_connected = true;
        for (id, number, is_received) in self.inflight.clone() {
            if is_received {
                self.link.ack(PacketType::PubRel, id)
            } else {
                self.publish(id, number, true)
            }
        }
    }
}

struct Subscriber {
    link: Link,
    /// Identifiers of QoS 2 messages that were received and not released [MQTT-4.3.3-10].
    unreleased: Vec<u16>,
    got: Vec<u32>,
    /// Pending answers. They may be delayed, and reordered where the standard allows it.
    answers: Vec<(PacketType, u16)>,
    is_granted: bool,
}

impl Subscriber {
    fn carry(&mut self, world: &mut World, random: &mut Random) {
        let Subscriber {
            link,
            unreleased,
            got,
            answers,
            is_granted,
        } = self;
        link.carry(world, random, |link, packet| match packet {
            Packet::ConnAck(_) => {
                answers.clear();
                if !*is_granted {
                    subscribe(link);
                }
            }
            Packet::SubAck(_) => *is_granted = true,
            Packet::Publish(p) => {
                let number = std::str::from_utf8(p.payload).unwrap().parse().unwrap();
                let id = p.packet_id.unwrap().get();
                if p.qos == QoS::AtLeastOnce {
                    got.push(number);
                    answers.push((PacketType::PubAck, id));
                } else {
                    if !unreleased.contains(&id) {
                        unreleased.push(id);
                        got.push(number);
                    }
                    answers.push((PacketType::PubRec, id));
                }
            }
            Packet::PubRel(ack) => {
                let id = ack.packet_id.get();
                unreleased.retain(|have| *have != id);
                answers.push((PacketType::PubComp, id));
            }
            other => panic!("a subscriber must not receive {other:?}"),
        });
        while !answers.is_empty() && !random.one_in(3) {
            let (kind, id) = answers.remove(random.below(answers.len()));
            link.ack(kind, id);
        }
    }
}

fn subscribe(link: &mut Link) {
    let mut bytes = Vec::new();
    let options = SubscriptionOptions {
        maximum_qos: QoS::ExactlyOnce,
        ..SubscriptionOptions::default()
    };
    let filter = if link.client_id.starts_with("member") {
        "$share/g/t/+"
    } else {
        "t/#"
    };
    let version = link.version;
    let filters = SubscribeFilters::encode([SubscribeFilter { filter, options }], version, &mut bytes);
    let packet_id = PacketId::new(1).unwrap();
    link.send(&Packet::Subscribe(Subscribe {
        packet_id,
        properties: Properties::EMPTY,
        filters,
    }));
}

fn link(random: &mut Random, name: &str) -> Link {
    let versions = [ProtocolVersion::V5, ProtocolVersion::V3_1_1];
    Link {
        wire: None,
        up: VecDeque::new(),
        down: Vec::new(),
        version: versions[random.below(2)],
        client_id: format!("{name}{}", random.below(1000)),
        window: 1 + random.below(6) as u16,
    }
}

/// Runs publisher and subscribers until every message is complete. Returns the messages of each subscriber.
fn torture(seed: u64, qos: QoS, names: &[&str]) -> Vec<Vec<u32>> {
    let mut random = Random::new(seed);
    let shards = 1 + random.below(3) as u16;
    let config = ShardConfig {
        max_inflight: 4,
        output_buffer_bytes: [60, 1 << 20][random.below(2)],
        ..ShardConfig::default()
    };
    let mut world = World::with(shards, config, Arc::new(OpenAccess));
    let mut publisher = Publisher {
        link: link(&mut random, "pub"),
        qos,
        next: 0,
        next_id: random.below(65000) as u16,
        inflight: VecDeque::new(),
        is_connected: false,
    };
    let mut subscribers: Vec<Subscriber> = names
        .iter()
        .map(|name| Subscriber {
            link: link(&mut random, name),
            unreleased: Vec::new(),
            got: Vec::new(),
            answers: Vec::new(),
            is_granted: false,
        })
        .collect();
    world.is_mail_held = random.one_in(2);
    for step in 0.. {
        let is_stormy = step < STEPS;
        step_links(&mut world, &mut random, &mut publisher, &mut subscribers, is_stormy);
        if !is_stormy && step > STEPS + 2000 && publisher.is_done() {
            break;
        }
        assert!(step < 20_000, "the run does not end: {:?}", publisher.inflight);
    }
    check_done(world, &publisher, &subscribers);
    subscribers.into_iter().map(|s| s.got).collect()
}

fn step_links(
    world: &mut World,
    random: &mut Random,
    publisher: &mut Publisher,
    subscribers: &mut [Subscriber],
    is_stormy: bool,
) {
    if !is_stormy || random.one_in(3) {
        world.deliver_mail(random.below(100));
    }
    match publisher.link.wire {
        None => publisher.link.open(world),
        Some(_) if is_stormy && random.one_in(25) => {
            publisher.link.cut(world);
            publisher.is_connected = false;
        }
        Some(_) => publisher.carry(world, random),
    }
    for subscriber in subscribers.iter_mut() {
        match subscriber.link.wire {
            None => subscriber.link.open(world),
            Some(_) if is_stormy && random.one_in(25) => subscriber.link.cut(world),
            // The client opens a second connection while the first is open.
            Some(_) if is_stormy && random.one_in(60) => {
                subscriber.link.up.clear();
                subscriber.link.down.clear();
                subscriber.link.open(world);
            }
            Some(_) => subscriber.carry(world, random),
        }
    }
    if subscribers.iter().all(|s| s.is_granted) && random.one_in(4) {
        publisher.send_one();
    }
}

/// Checks that all messages are acknowledged and that ended sessions leave no state.
fn check_done(mut world: World, publisher: &Publisher, subscribers: &[Subscriber]) {
    world.release_mail();
    let stats = world.stats();
    assert_eq!(
        (stats.inflight_messages, stats.queued_messages, stats.queued_bytes),
        (0, 0, 0)
    );
    for link in std::iter::once(&publisher.link).chain(subscribers.iter().map(|s| &s.link)) {
        let wire = world.open();
        world.send(
            wire,
            &Packet::Connect(connect_packet(
                ProtocolVersion::V5,
                &link.client_id,
                true,
                Properties::EMPTY,
                None,
            )),
        );
        world.disconnect(wire);
    }
    check_empty(&world);
}

fn all() -> Vec<u32> {
    (0..MESSAGES).collect()
}

/// Returns the first copies in their order of arrival.
fn firsts(got: &[u32]) -> Vec<u32> {
    let mut firsts = Vec::new();
    for number in got {
        if !firsts.contains(number) {
            firsts.push(*number);
        }
    }
    firsts
}

#[test]
fn qos2_arrives_exactly_once_over_broken_links() {
    for n in 0..u64::from(cases(1000)) {
        let got = torture(seed() * 1_000_003 + n, QoS::ExactlyOnce, &["sub"]);
        assert_eq!(got, [all()], "case {n}");
    }
}

#[test]
fn qos1_arrives_at_least_once_and_in_order() {
    for n in 0..u64::from(cases(1000)) {
        let got = torture(seed() * 1_000_003 + n, QoS::AtLeastOnce, &["sub"]);
        assert_eq!(firsts(&got[0]), all(), "case {n}");
    }
}

#[test]
fn group_gets_every_message_and_at_qos2_once() {
    for n in 0..u64::from(cases(500)) {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut got = torture(seed() * 1_000_003 + n, qos, &["member-a", "member-b", "member-c"]).concat();
            got.sort_unstable();
            if qos == QoS::AtLeastOnce {
                got.dedup();
            }
            assert_eq!(got, all(), "case {n} at {qos:?}");
        }
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    for n in 0..20 {
        let run = || torture(n, QoS::AtLeastOnce, &["member-a", "member-b", "sub"]);
        assert_eq!(run(), run());
    }
}
