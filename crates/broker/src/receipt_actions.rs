//! Actions that wait until a tap has stored a message. Each acknowledgement waits only for its own message, so a slow
//! action or an unreachable target delays no other client.
//!
//! Acknowledgements of a connection keep their order [MQTT-4.6.0-2]: only the oldest one is registered with its
//! receipt, and the others wait behind it. Their number is limited by the number of packet identifiers; reading from a
//! client that reaches it is paused.

use std::collections::{BTreeMap, HashMap, VecDeque};

use mqtt::{PacketId, PacketType, ReasonCode};

use crate::connection::Connection;
use crate::deliver::ShardCore;
use crate::durable::journaling::PendingCommits;
use crate::durable::pending_records::{CommitAction, Ledger};
use crate::effect::Effect;
use crate::fault::{Fault, is_planted};
use crate::session::Session;
use crate::slots::{ConnEpoch, ConnSlot, DelayedIndex, SessionEpoch, SessionSlot};
use crate::tap::Receipt;
use crate::taps::Taps;

/// Maximum number of waiting acknowledgements per connection.
pub const WAITING_ACKS_MAX: u32 = u16::MAX as u32;

/// An acknowledgement that has not been sent yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingAck {
    pub conn: ConnSlot,
    pub epoch: ConnEpoch,
    pub kind: PacketType,
    pub id: PacketId,
    pub reason: ReasonCode,
    pub receipt: Option<Receipt>,
}

/// A QoS 2 message that a client may repeat before the tap has stored it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenId {
    pub session: SessionSlot,
    pub epoch: SessionEpoch,
    pub id: u16,
}

/// An action that waits until the tap has stored a message, identified by its receipt.
pub enum ReceiptAction {
    Ack(PendingAck),
    /// Call a function of another component.
    Call(Box<dyn FnOnce() + Send>),
    Open(OpenId),
    /// Delete a delayed message that has been routed, by index.
    Delayed(DelayedIndex),
}

#[derive(Default)]
pub struct ReceiptActions {
    waiting: BTreeMap<Receipt, Vec<ReceiptAction>>,
    /// Keyed by slot and epoch of the connection. The lists are never empty.
    behind: HashMap<(ConnSlot, ConnEpoch), VecDeque<PendingAck>>,
    open: HashMap<OpenId, Receipt>,
}

impl ReceiptActions {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn add(&mut self, receipt: Receipt, action: ReceiptAction) {
        self.waiting.entry(receipt).or_default().push(action);
    }

    pub fn add_open(&mut self, receipt: Receipt, id: OpenId) {
        self.open.insert(id, receipt);
        self.add(receipt, ReceiptAction::Open(id));
    }

    /// Returns the receipt that the acknowledgement of a repeated QoS 2 message waits for.
    pub fn receipt_of(&self, id: OpenId) -> Option<Receipt> {
        self.open.get(&id).copied()
    }

    pub fn remove_open(&mut self, id: OpenId) {
        self.open.remove(&id);
    }

    /// Holds an acknowledgement back. Only the first one of a connection is registered with its receipt.
    pub fn hold_ack(&mut self, ack: PendingAck, is_first: bool) {
        match ack.receipt.filter(|_| is_first) {
            Some(receipt) => self.add(receipt, ReceiptAction::Ack(ack)),
            None => self.behind.entry((ack.conn, ack.epoch)).or_default().push_back(ack),
        }
    }

    /// Removes and returns the next acknowledgement of a connection that waits behind another.
    pub fn next_behind(&mut self, key: (ConnSlot, ConnEpoch)) -> Option<PendingAck> {
        let behind = self.behind.get_mut(&key)?;
        let ack = behind.pop_front();
        if behind.is_empty() {
            self.behind.remove(&key);
        }
        ack
    }

    pub fn drop_behind(&mut self, key: (ConnSlot, ConnEpoch)) {
        self.behind.remove(&key);
    }

    /// Removes and returns the actions whose receipts are stored. `stored_up_to` is called with the lanes.
    pub fn take_stored(&mut self, mut stored_up_to: impl FnMut(u16) -> u64) -> Vec<ReceiptAction> {
        let mut due = Vec::new();
        let mut from = Receipt::new(0, 1);
        while let Some((&first, _)) = self.waiting.range(from..).next() {
            if first.number() > stored_up_to(first.lane()) {
                from = first.lane_end();
                continue;
            }
            due.extend(self.waiting.remove(&first).into_iter().flatten());
            from = first;
        }
        due
    }
}

impl OpenId {
    pub fn new(slot: SessionSlot, session: &Session, id: PacketId) -> OpenId {
        OpenId {
            session: slot,
            epoch: session.epoch,
            id: id.get(),
        }
    }
}

impl Taps {
    /// Returns an acknowledgement that the journal does not hold back, unless it must wait for the tap or an earlier one.
    fn pass_ack(&mut self, connection: &mut Connection, ack: PendingAck) -> Option<PendingAck> {
        let is_stored =
            ack.receipt.is_none_or(|receipt| self.has_stored(receipt)) || is_planted(Fault::AcknowledgeBeforeTap);
        // PUBREL and PUBCOMP have an order of their own, which the journal preserves.
        let is_ordered = matches!(ack.kind, PacketType::PubAck | PacketType::PubRec);
        if !is_ordered || is_stored && connection.acks_waiting_for_tap == 0 {
            return Some(ack);
        }
        connection.acks_waiting_for_tap += 1;
        let is_first = connection.acks_waiting_for_tap == 1;
        self.hold_ack(ack, is_first);
        None
    }

    /// Calls `done` when the tap has stored the message of this receipt.
    pub(crate) fn call_when_stored(&mut self, receipt: Option<Receipt>, done: Box<dyn FnOnce() + Send>) {
        match receipt.filter(|receipt| !self.has_stored(*receipt)) {
            Some(receipt) => self.run_when_stored(receipt, ReceiptAction::Call(done)),
            None => done(),
        }
    }
}

impl Ledger {
    /// Returns an acknowledgement, unless it must wait for the journal or an earlier one.
    fn pass_ack(&mut self, connection: &mut Connection, ack: PendingAck, needs_commit: bool) -> Option<PendingAck> {
        if let Some(records) = self.records_mut()
            && (connection.waiting_acks > 0 || needs_commit && records.has_uncommitted())
            && !(is_planted(Fault::AcknowledgeBeforeCommit) && ack.kind != PacketType::PubRel)
            && !(is_planted(Fault::ReleaseBeforeCommit) && ack.kind == PacketType::PubRel)
        {
            connection.waiting_acks += 1;
            records.wait(CommitAction::Ack(ack));
            return None;
        }
        Some(ack)
    }

    /// Calls `done` after these commits. If it waits for the journal, that means all records written so far.
    pub(crate) fn call_when_stored(
        &mut self,
        taps: &mut Taps,
        commits: PendingCommits,
        done: Box<dyn FnOnce() + Send>,
    ) {
        match self.records_mut() {
            Some(records) if commits.journal && records.has_uncommitted() && !is_planted(Fault::TellBeforeCommit) => {
                records.wait(CommitAction::Call(commits.tap, done));
            }
            _ => taps.call_when_stored(commits.tap, done),
        }
    }
}

impl ShardCore {
    /// Sends an acknowledgement after its commits, and never before earlier acknowledgements of the connection.
    pub(crate) fn acknowledge(
        &mut self,
        conn: ConnSlot,
        kind: PacketType,
        id: PacketId,
        reason: ReasonCode,
        commits: PendingCommits,
    ) {
        let Some(connection) = self.connections.get_mut(conn) else {
            return;
        };
        if reason.is_error() && connection.is_closing() {
            // The rejected message has closed the connection.
            return;
        }
        let ack = PendingAck {
            conn,
            epoch: connection.epoch,
            kind,
            id,
            reason,
            receipt: commits.tap,
        };
        let ack = self.ledger.pass_ack(connection, ack, commits.journal);
        if let Some(ack) = ack.and_then(|ack| self.taps.pass_ack(connection, ack)) {
            self.send_acknowledgement(ack);
        }
    }

    /// The journal has committed the records that an acknowledgement waits for.
    pub(crate) fn acknowledge_committed(&mut self, ack: PendingAck) {
        let Some(connection) = self.connections.live(ack.conn, ack.epoch) else {
            return;
        };
        connection.waiting_acks -= 1;
        if let Some(ack) = self.taps.pass_ack(connection, ack) {
            self.send_acknowledgement(ack);
        }
    }

    /// The tap has stored the message of the oldest acknowledgement of a connection. Also sends the following ones whose
    /// messages are stored.
    pub(crate) fn acknowledge_stored(&mut self, first: PendingAck) {
        let (conn, epoch) = (first.conn, first.epoch);
        let mut next = Some(first);
        while let Some(ack) = next.take() {
            let Some(connection) = self.connections.live(ack.conn, ack.epoch) else {
                self.taps.drop_acks(conn, epoch);
                return;
            };
            connection.acks_waiting_for_tap -= 1;
            if connection.acks_waiting_for_tap < WAITING_ACKS_MAX && std::mem::take(&mut connection.is_held_by_acks) {
                self.effects.push(Effect::Resume { conn: ack.conn });
            }
            self.send_acknowledgement(ack);
            next = self.taps.next_ack(conn, epoch);
        }
    }
}
