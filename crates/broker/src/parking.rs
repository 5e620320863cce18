//! What waits until a tap has kept what it took: each acknowledgement for its own message, so that an action that is slow, or whose
//! target is away, holds up nobody else.
//!
//! Acknowledgements of one connection keep their order [MQTT-4.6.0-2]: only its oldest one is registered with the receipt that it
//! waits for, the others are behind it, whatever they wait for themselves. No more of them wait than a client has packet
//! identifiers: one that has so many is not read from.

use std::collections::{BTreeMap, HashMap, VecDeque};

use mqtt::{PacketId, PacketType, ReasonCode};

use crate::effect::{ConnSlot, Effect};
use crate::fault::{Fault, is_planted};
use crate::shard::Shard;
use crate::tap::{Receipt, Tap};

/// Of one connection.
pub const PARKED_MAX: u32 = u16::MAX as u32;

/// An acknowledgement that is still to be sent.
#[derive(Clone, Copy, Debug)]
pub struct PendingAck {
    pub conn: ConnSlot,
    pub epoch: u32,
    pub kind: PacketType,
    pub id: PacketId,
    pub reason: ReasonCode,
    pub receipt: Option<Receipt>,
}

/// A QoS 2 message that a client may send again before the tap has kept it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenId {
    pub session: u32,
    pub epoch: u32,
    pub id: u16,
}

/// What is done when a receipt is kept.
pub enum Parked {
    Ack(PendingAck),
    /// Somebody outside is told.
    Tell(Box<dyn FnOnce() + Send>),
    Open(OpenId),
    /// A `$delayed` message, by index, that has been routed.
    Delayed(u32),
}

#[derive(Default)]
pub struct Parking {
    waiting: BTreeMap<Receipt, Vec<Parked>>,
    /// By slot and epoch of the connection; never empty lists.
    behind: HashMap<(ConnSlot, u32), VecDeque<PendingAck>>,
    open: HashMap<OpenId, Receipt>,
}

impl Parking {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn park(&mut self, receipt: Receipt, parked: Parked) {
        self.waiting.entry(receipt).or_default().push(parked);
    }

    pub fn park_open(&mut self, receipt: Receipt, id: OpenId) {
        self.open.insert(id, receipt);
        self.park(receipt, Parked::Open(id));
    }

    /// What has to be kept before a QoS 2 message that comes again is answered.
    pub fn receipt_of(&self, id: OpenId) -> Option<Receipt> {
        self.open.get(&id).copied()
    }

    fn take_kept(&mut self, tap: &mut dyn Tap) -> Vec<Parked> {
        let mut due = Vec::new();
        let mut from = Receipt::new(0, 1);
        while let Some((&first, _)) = self.waiting.range(from..).next() {
            if first.number() > tap.kept(first.lane()) {
                from = first.end_of_lane();
                continue;
            }
            due.extend(self.waiting.remove(&first).into_iter().flatten());
            from = first;
        }
        due
    }
}

impl Shard {
    /// Whether something waits until the tap has kept what it took.
    pub fn is_waiting_for_tap(&self) -> bool {
        !self.core.tap.parking.is_empty()
    }

    /// Does what waited for the tap, as far as that is.
    pub fn look_at_tap(&mut self) {
        let seat = &mut self.core.tap;
        let Some(tap) = &mut seat.tap else { return };
        for parked in seat.parking.take_kept(&mut **tap) {
            match parked {
                Parked::Ack(ack) => self.unpark(ack),
                Parked::Tell(done) => done(),
                Parked::Open(id) => _ = self.core.tap.parking.open.remove(&id),
                Parked::Delayed(index) => self.forget_delayed(index),
            }
        }
    }

    /// Sends an acknowledgement for which the journal need not be waited for, unless the tap or an earlier one has to be.
    pub(crate) fn acknowledge_or_park(&mut self, ack: PendingAck) {
        let is_kept = ack.receipt.is_none_or(|receipt| self.core.tap.has_kept(receipt))
            || is_planted(Fault::AcknowledgeBeforeTap);
        let Some(connection) = self.core.connection_mut(ack.conn).filter(|c| c.epoch == ack.epoch) else {
            return;
        };
        // PUBREL and PUBCOMP have an order of their own, which the journal keeps.
        let is_ordered = matches!(ack.kind, PacketType::PubAck | PacketType::PubRec);
        if !is_ordered || is_kept && connection.parked_acks == 0 {
            return self.acknowledge(ack.conn, ack.kind, ack.id, ack.reason);
        }
        connection.parked_acks += 1;
        let is_first = connection.parked_acks == 1;
        let parking = &mut self.core.tap.parking;
        match ack.receipt.filter(|_| is_first) {
            Some(receipt) => parking.park(receipt, Parked::Ack(ack)),
            None => parking.behind.entry((ack.conn, ack.epoch)).or_default().push_back(ack),
        }
    }

    /// The oldest one of a connection may be sent, and what is behind it as far as that is kept.
    fn unpark(&mut self, first: PendingAck) {
        let key = (first.conn, first.epoch);
        let mut next = Some(first);
        while let Some(ack) = next.take() {
            let Some(connection) = self.core.connection_mut(ack.conn).filter(|c| c.epoch == ack.epoch) else {
                self.core.tap.parking.behind.remove(&key);
                return;
            };
            connection.parked_acks -= 1;
            if connection.parked_acks < PARKED_MAX && std::mem::take(&mut connection.is_held_by_acks) {
                self.core.effects.push(Effect::Resume { conn: ack.conn });
            }
            self.acknowledge(ack.conn, ack.kind, ack.id, ack.reason);
            next = self.next_behind(key);
        }
    }

    /// The next one that may be sent; if it has to wait, it is registered as the oldest.
    fn next_behind(&mut self, key: (ConnSlot, u32)) -> Option<PendingAck> {
        let parking = &mut self.core.tap.parking;
        let behind = parking.behind.get_mut(&key)?;
        let ack = behind.pop_front();
        if behind.is_empty() {
            parking.behind.remove(&key);
        }
        let ack = ack?;
        match ack.receipt.filter(|receipt| !self.core.tap.has_kept(*receipt)) {
            None => Some(ack),
            Some(receipt) => {
                self.core.tap.parking.park(receipt, Parked::Ack(ack));
                None
            }
        }
    }
}
