//! Subscriber that outlives server crashes. It records received messages and the packet identifiers in use.
//!
//! A QoS 2 PUBLISH with a packet identifier that is not released yet is a retransmission [MQTT-4.3.3]. The subscriber
//! keeps its session state over reconnects, as the server must.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::load::Load;
use super::message::Id;
use super::publisher::leave;
use super::random::Random;
use super::wire::{Heard, answer, hear, open};
use crate::support::{Connect, Delivery, PATIENCE, Packet, Peer, V5, Version, kind, packet, prop};

/// Interval at which the subscriber checks whether all messages have arrived.
const GLANCE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    Online,
    /// Always connected, without lost connections while the server is running.
    Steady,
    /// Offline in two of three rounds.
    Sometimes,
    /// Usually acknowledges a few messages and then no more.
    Slow,
}

#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub filter: &'static str,
    pub qos: u8,
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    pub id: Id,
    pub qos: u8,
    pub packet_id: u16,
    pub is_duplicate: bool,
    pub round: u32,
}

impl std::fmt::Display for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dup = if self.is_duplicate { " with DUP" } else { "" };
        let Got {
            qos, packet_id, round, ..
        } = self;
        write!(
            f,
            "in round {round} at QoS {qos} with packet identifier {packet_id}{dup}"
        )
    }
}

pub struct Subscriber {
    pub name: &'static str,
    pub want: Want,
    habit: Habit,
    connect: Connect,
    random: Random,
    pub got: Vec<Got>,
    /// QoS 2 messages whose PUBREL has not arrived.
    unreleased: HashSet<u16>,
    /// Received messages that are not acknowledged.
    unacknowledged: HashMap<u16, Id>,
    /// Number of acknowledgements that the subscriber still sends on this connection.
    budget: u64,
}

impl Subscriber {
    pub fn new(name: &'static str, version: Version, want: Want, habit: Habit, seed: u64) -> Subscriber {
        let mut connect = Connect::new(version, name).persistent();
        if habit == Habit::Slow && version == V5 {
            connect = connect.property(prop::u16(prop::RECEIVE_MAXIMUM, 10));
        }
        let stream = name
            .bytes()
            .fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        Subscriber {
            name,
            want,
            habit,
            connect,
            random: Random::new(seed, stream),
            got: Vec::new(),
            unreleased: HashSet::new(),
            unacknowledged: HashMap::new(),
            budget: 0,
        }
    }

    /// Creates the session and the subscription.
    pub fn subscribe(&self, address: SocketAddr) {
        let mut peer = Peer::session(address, &self.connect);
        peer.subscribe(self.want.filter, self.want.qos);
        leave(&mut peer);
    }

    /// Receives until the server is killed.
    pub fn run(&mut self, address: SocketAddr, load: &Load) {
        if self.habit == Habit::Sometimes && !self.random.one_in(3) {
            return;
        }
        while let Some(mut peer) = self.connect(address, load) {
            // Some subscribers lose their connection while the server is running.
            let mut patience = match self.habit != Habit::Steady && self.random.one_in(4) {
                true => self.random.below(300),
                false => u64::MAX,
            };
            self.budget = match self.habit {
                Habit::Slow if !self.random.one_in(4) => self.random.below(200),
                _ => u64::MAX,
            };
            while patience > 0 {
                patience -= 1;
                match hear(&mut peer, PATIENCE) {
                    Heard::Nothing => {}
                    Heard::Packet(packet) if self.handle(&mut peer, &packet, load) => {}
                    _ => break,
                }
            }
        }
    }

    /// Receives until `is_all` returns that no message is missing and every exchange is complete. Also ends if no
    /// packet arrives for too long.
    pub fn drain(&mut self, address: SocketAddr, load: &Load, mut is_all: impl FnMut(&[Got]) -> bool) {
        let Some(mut peer) = self.connect(address, load) else {
            return load.report(format!("{} cannot connect to drain", self.name));
        };
        self.budget = u64::MAX;
        let mut heard_at = Instant::now();
        while !is_all(&self.got) || !self.unreleased.is_empty() {
            match hear(&mut peer, GLANCE) {
                Heard::Nothing if heard_at.elapsed() > PATIENCE => return,
                Heard::Nothing => {}
                Heard::End => return load.report(format!("{} was disconnected while it drained", self.name)),
                Heard::Packet(packet) => {
                    heard_at = Instant::now();
                    _ = self.handle(&mut peer, &packet, load);
                }
            }
        }
        self.hear_the_rest(&mut peer, load);
    }

    /// Handles all remaining packets up to the PINGRESP. None of them should be a new message.
    fn hear_the_rest(&mut self, peer: &mut Peer, load: &Load) {
        if peer.try_send(&packet::PINGREQ).is_err() {
            return load.report(format!("{} lost its connection", self.name));
        }
        loop {
            match hear(peer, PATIENCE) {
                Heard::Packet(packet) if packet.kind() == kind::PINGRESP => return leave(peer),
                Heard::Packet(packet) => _ = self.handle(peer, &packet, load),
                other => return load.report(format!("{} got no PINGRESP: {other:?}", self.name)),
            }
        }
    }

    fn connect(&mut self, address: SocketAddr, load: &Load) -> Option<Peer> {
        let (peer, connack) = open(address, &self.connect)?;
        if !connack.session_present {
            load.report(format!("the session of {} is gone", self.name));
            self.unreleased.clear();
            self.unacknowledged.clear();
        }
        Some(peer)
    }

    /// Returns false if the connection is lost.
    fn handle(&mut self, peer: &mut Peer, packet: &Packet, load: &Load) -> bool {
        load.progress.fetch_add(1, Relaxed);
        match packet.kind() {
            kind::PUBLISH => {
                let delivery = packet.delivery(self.connect.version);
                self.receive(peer, &delivery, load)
            }
            kind::PUBREL => {
                let id = packet.packet_id();
                self.unreleased.remove(&id);
                answer(peer, kind::PUBCOMP, id)
            }
            _ => {
                load.report(format!("{} got {packet:?}", self.name));
                true
            }
        }
    }

    fn receive(&mut self, peer: &mut Peer, delivery: &Delivery, load: &Load) -> bool {
        let id = Id::of_payload(&delivery.payload);
        let Some(packet_id) = delivery.packet_id else {
            load.report(format!("{} got {id} at QoS 0", self.name));
            return true;
        };
        self.check(id, delivery, packet_id, load);
        let is_new = delivery.qos == 1 || self.unreleased.insert(packet_id);
        if is_new {
            self.got.push(Got {
                id,
                qos: delivery.qos,
                packet_id,
                is_duplicate: delivery.is_duplicate,
                round: load.round(),
            });
        }
        if self.budget == 0 {
            self.unacknowledged.insert(packet_id, id);
            return true;
        }
        self.budget -= 1;
        self.unacknowledged.remove(&packet_id);
        let of_kind = if delivery.qos == 1 { kind::PUBACK } else { kind::PUBREC };
        answer(peer, of_kind, packet_id)
    }

    fn check(&self, id: Id, delivery: &Delivery, packet_id: u16, load: &Load) {
        let name = self.name;
        if delivery.topic_str() != id.lane.topic_name() {
            load.report(format!("{name} got {id} on {}", delivery.topic_str()));
        }
        if delivery.qos != id.lane.qos.min(self.want.qos) {
            load.report(format!("{name} got {id} at QoS {}", delivery.qos));
        }
        // [MQTT-3.3.1-1]. A QoS 1 message without DUP may be a new publication: the publisher resends a message that
        // was not durable before the kill.
        let is_again = delivery.qos == 2 && self.unacknowledged.get(&packet_id) == Some(&id);
        if is_again && !delivery.is_duplicate {
            load.report(format!(
                "{name} received {id} again with packet identifier {packet_id}, but without DUP"
            ));
        }
    }
}
