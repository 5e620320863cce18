//! Publisher that outlives server crashes. It records sent messages and answers, and resumes after a lost connection.
//!
//! It resends unacknowledged packets in their original order, PUBLISH with DUP and PUBREL without [MQTT-4.4.0-1].

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::load::Load;
use super::message::{Id, Lane, RETAINED, TOPICS};
use super::random::Random;
use super::wire::{Heard, answer, hear, open};
use crate::support::{Connect, Packet, Peer, Version, kind, packet};

/// Maximum number of messages in flight.
const WINDOW: usize = 24;
/// Interval at which an idle publisher checks whether it should stop.
const GLANCE: Duration = Duration::from_millis(20);

const PACKET_IDENTIFIER_NOT_FOUND: u8 = 0x92;

/// A message in flight.
#[derive(Clone, Copy, Debug)]
struct Underway {
    id: Id,
    packet_id: u16,
    /// PUBREC was received.
    is_released: bool,
}

/// A sent message and its first acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub id: Id,
    /// Round in which the message was first sent.
    pub round: u32,
    /// Round in which PUBACK or PUBREC was received.
    pub acknowledged: Option<u32>,
}

impl std::fmt::Display for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sent in round {}, ", self.round)?;
        match self.acknowledged {
            Some(round) => write!(f, "acknowledged in round {round}"),
            None => f.write_str("never acknowledged"),
        }
    }
}

pub struct Publisher {
    pub index: u8,
    connect: Connect,
    random: Random,
    /// All sent messages per lane. Index n has message number n + 1.
    pub sent: BTreeMap<Lane, Vec<Sent>>,
    underway: VecDeque<Underway>,
    next_packet_id: u16,
    has_session: bool,
}

impl Publisher {
    pub fn new(index: u8, version: Version, seed: u64) -> Publisher {
        Publisher {
            index,
            connect: Connect::new(version, format!("publisher-{index}")).persistent(),
            random: Random::new(seed, 1000 + u64::from(index)),
            sent: BTreeMap::new(),
            underway: VecDeque::new(),
            next_packet_id: 1,
            has_session: false,
        }
    }

    /// Publishes until the server is killed. If `load.is_draining`, returns when all exchanges are complete.
    pub fn run(&mut self, address: SocketAddr, load: &Load) {
        while let Some((mut peer, connack)) = open(address, &self.connect) {
            if self.has_session && !connack.session_present {
                load.report(format!("the session of publisher {} is gone", self.index));
                self.underway.clear();
            }
            self.has_session = true;
            // Some publishers lose their connection while the server is running.
            let mut patience = match self.random.one_in(4) && !load.is_draining() {
                true => self.random.below(300),
                false => u64::MAX,
            };
            if !self.resume(&mut peer) {
                continue;
            }
            while patience > 0 {
                patience -= 1;
                if load.is_draining() && self.underway.is_empty() {
                    return peer.disconnect();
                }
                if !self.step(&mut peer, load) {
                    break;
                }
            }
        }
    }

    fn resume(&mut self, peer: &mut Peer) -> bool {
        self.underway.iter().all(|underway| match underway.is_released {
            true => answer(peer, kind::PUBREL, underway.packet_id),
            false => {
                let publish = underway.id.publish().id(underway.packet_id).dup();
                peer.try_send(&publish.bytes(self.connect.version)).is_ok()
            }
        })
    }

    /// Fills the window and reads one packet. Returns false if the connection is lost.
    fn step(&mut self, peer: &mut Peer, load: &Load) -> bool {
        while self.underway.len() < WINDOW && !load.is_draining() {
            let underway = self.next_message(load.round());
            self.underway.push_back(underway);
            let publish = underway.id.publish().id(underway.packet_id);
            if peer.try_send(&publish.bytes(self.connect.version)).is_err() {
                return false;
            }
        }
        match hear(peer, GLANCE) {
            Heard::End => false,
            Heard::Nothing => true,
            Heard::Packet(packet) => self.handle(peer, &packet, load),
        }
    }

    fn next_message(&mut self, round: u32) -> Underway {
        let lane = self.next_lane();
        let sent = self.sent.entry(lane).or_default();
        let id = Id {
            lane,
            number: sent.len() as u32 + 1,
        };
        sent.push(Sent {
            id,
            round,
            acknowledged: None,
        });
        Underway {
            id,
            packet_id: self.free_packet_id(),
            is_released: false,
        }
    }

    fn next_lane(&mut self) -> Lane {
        let topic = match self.random.one_in(16) {
            true => RETAINED,
            false => self.random.below(u64::from(TOPICS)) as u8,
        };
        // Order on the retained topic is only defined if all its messages have the same QoS.
        let qos = match topic {
            RETAINED => self.index % 2 + 1,
            _ => self.random.below(2) as u8 + 1,
        };
        Lane {
            publisher: self.index,
            topic,
            qos,
        }
    }

    fn free_packet_id(&mut self) -> u16 {
        loop {
            let id = self.next_packet_id;
            self.next_packet_id = id % 1000 + 1;
            if self.underway.iter().all(|underway| underway.packet_id != id) {
                return id;
            }
        }
    }

    fn handle(&mut self, peer: &mut Peer, packet: &Packet, load: &Load) -> bool {
        let packet_id = packet.packet_id();
        let Some(at) = self
            .underway
            .iter()
            .position(|underway| underway.packet_id == packet_id)
        else {
            load.report(format!("publisher {} got {packet:?} for nothing", self.index));
            return true;
        };
        load.progress.fetch_add(1, Relaxed);
        let Underway { id, is_released, .. } = self.underway[at];
        // The server may have answered an earlier PUBREL, but the answer was lost.
        let is_known = packet.kind() == kind::PUBCOMP && packet.reason() == PACKET_IDENTIFIER_NOT_FOUND;
        if packet.reason() >= 0x80 && !is_known {
            load.report(format!("{id} was answered by {packet:?}"));
        }
        match (packet.kind(), id.lane.qos, is_released) {
            (kind::PUBACK, 1, _) | (kind::PUBCOMP, 2, true) => {
                self.underway.remove(at);
            }
            (kind::PUBREC, 2, _) => self.underway[at].is_released = true,
            _ => load.report(format!("{id} (PUBREC came: {is_released}) was answered by {packet:?}")),
        }
        if packet.kind() != kind::PUBCOMP {
            self.acknowledged(id, load.round());
        }
        packet.kind() != kind::PUBREC || answer(peer, kind::PUBREL, packet_id)
    }

    fn acknowledged(&mut self, id: Id, round: u32) {
        let lane = self.sent.get_mut(&id.lane).expect("the message was sent");
        let sent = &mut lane[id.number as usize - 1];
        sent.acknowledged = sent.acknowledged.or(Some(round));
    }

    /// Returns the bounds of the retained message: the last acknowledged one, or a later one that was sent.
    pub fn retained_bounds(&self) -> Option<(u32, u32)> {
        let (_, lane) = self.sent.iter().find(|(lane, _)| lane.topic == RETAINED)?;
        let last = lane.iter().rev().find(|sent| sent.acknowledged.is_some());
        Some((last.map_or(0, |sent| sent.id.number), lane.len() as u32))
    }

    /// Returns whether every exchange is complete.
    pub fn is_done(&self) -> bool {
        self.underway.is_empty()
    }

    pub fn retained_lane(&self) -> Lane {
        Lane {
            publisher: self.index,
            topic: RETAINED,
            qos: self.index % 2 + 1,
        }
    }
}

/// Returns all messages that the publishers sent, for the comparison.
pub fn all_sent(publishers: &[Publisher]) -> impl Iterator<Item = &Sent> {
    publishers
        .iter()
        .flat_map(|publisher| publisher.sent.values().flatten())
}

/// Sends a DISCONNECT without waiting for the server to close the connection.
pub fn leave(peer: &mut Peer) {
    // An error can be ignored, because the connection is not used again.
    let _ = peer.try_send(&packet::DISCONNECT);
}
