//! Acknowledgements to publishers: each waits for its commits, and they keep their order [MQTT-4.6.0-2].

use mqtt::{PacketId, PacketType, ReasonCode};

use crate::connection::Connection;
use crate::deliver::ShardCore;
use crate::durable::pending_records::{CommitAction, Ledger};
use crate::durable::record_fields::PendingCommits;
use crate::effect::Effect;
use crate::fault::{Fault, is_planted};
use crate::receipt_actions::{PendingAck, ReceiptAction, WAITING_ACKS_MAX};
use crate::slots::ConnSlot;
use crate::tap::Receipt;
use crate::taps::Taps;

impl Taps {
    /// Returns an acknowledgement that the journal does not hold back, unless it must wait for the tap or an
    /// earlier one.
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

    /// The tap has stored the message of the oldest acknowledgement of a connection. Also sends the following ones
    /// whose messages are stored.
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
