//! A publisher that survives: what it sent, what the server said of it, and how it goes on after a connection is lost.
//!
//! [MQTT-4.4.0-1]: what is not acknowledged is sent again in its order, PUBLISH with DUP and PUBREL without.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::load::Load;
use crate::message::{Id, Lane, RETAINED, TOPICS};
use crate::random::Random;
use crate::support::{Connect, Packet, Peer, Version, kind, packet};
use crate::wire::{Heard, answer, hear, open};

/// Messages under way at the same time.
const WINDOW: usize = 24;
/// How long a publisher with nothing to send waits before it looks whether it is to stop.
const GLANCE: Duration = Duration::from_millis(20);

const PACKET_IDENTIFIER_NOT_FOUND: u8 = 0x92;

/// A message on its way, until the exchange is complete.
#[derive(Clone, Copy, Debug)]
struct Underway {
    id: Id,
    packet_id: u16,
    /// PUBREC has come.
    is_released: bool,
}

/// One message and the first that the server said of it.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub id: Id,
    /// The round in which it was first sent.
    pub round: u32,
    /// The round in which PUBACK or PUBREC came.
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
    /// All messages, by lane; the n-th is number n + 1.
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

    /// Publishes until the server is gone, or (`load.is_draining`) all is complete.
    pub fn run(&mut self, address: SocketAddr, load: &Load) {
        while let Some((mut peer, connack)) = open(address, &self.connect) {
            if self.has_session && !connack.session_present {
                load.report(format!("the session of publisher {} is gone", self.index));
                self.underway.clear();
            }
            self.has_session = true;
            // Some lose their connection while the server lives.
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

    /// Fills the window and hears one packet. False when the connection is gone.
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
        // A retained topic has one order only if all is of one QoS.
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
        // The server may have answered a PUBREL before, and the answer was lost.
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

    /// What may be retained now: the last acknowledged message, or a later one that was sent.
    pub fn retained_bounds(&self) -> Option<(u32, u32)> {
        let (_, lane) = self.sent.iter().find(|(lane, _)| lane.topic == RETAINED)?;
        let last = lane.iter().rev().find(|sent| sent.acknowledged.is_some());
        Some((last.map_or(0, |sent| sent.id.number), lane.len() as u32))
    }

    /// Whether every exchange is complete.
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

/// What publishers know, for whoever judges.
pub fn all_sent(publishers: &[Publisher]) -> impl Iterator<Item = &Sent> {
    publishers
        .iter()
        .flat_map(|publisher| publisher.sent.values().flatten())
}

/// A DISCONNECT that is not waited for.
pub fn leave(peer: &mut Peer) {
    // The connection is done with either way.
    let _ = peer.try_send(&packet::DISCONNECT);
}
