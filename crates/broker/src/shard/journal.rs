//! The journal's side of a shard: the records of a tick, their commit, reads, and checkpoints.

use std::collections::BTreeMap;

use journal::{LogBatch, LogHealth};
use mqtt::ReasonCode;

use crate::connection_end::ConnectionEnd;
use crate::delayed::DelayedMessages;
use crate::durable::checkpoint::{Checkpoints, DurableState, FinishedCheckpoint};
use crate::durable::cold::load_fetched;
use crate::durable::compaction::MovePart;
use crate::durable::pending_records::CommitAction;
use crate::durable::record::RecordPosition;
use crate::effect::{DisconnectReason, Effect, FetchPurpose, Now};
use crate::receipt_actions::PendingAck;
use crate::retained_messages::RetainedMessages;
use crate::shard::Shard;
use crate::shared::ShareGroups;
use crate::tick::Tick;

/// Returns how the connection of a client ends that needs a journal which has failed.
pub(super) fn journal_failed() -> ConnectionEnd<'static> {
    let detail = "the journal has failed: restart the server";
    let (reason, code) = (DisconnectReason::JournalFailed, ReasonCode::ImplementationSpecificError);
    ConnectionEnd::by_server(reason, code, detail)
}

impl Shard {
    /// Starts recording durable state. `last_key` is the highest key that any shard has assigned in any run.
    pub fn start_journaling(&mut self, last_key: u64) {
        self.core.ledger.start(last_key);
        self.router.start_journaling();
    }

    /// Disconnects all clients that wait for the journal, because it has failed and no further commit will follow. A
    /// connection whose output is held back is closed without a DISCONNECT.
    pub fn disconnect_waiting(&mut self, now: Now) {
        for waiting in self.core.ledger.take_waiting() {
            let (conn, epoch, is_held) = match waiting {
                CommitAction::Ack(PendingAck { conn, epoch, .. }) => (conn, epoch, false),
                CommitAction::Release { conn, epoch } => (conn, epoch, true),
                // These waiters get no reply. QoS 2 messages without a commit are never sent.
                CommitAction::Call(..) | CommitAction::Deliver { .. } | CommitAction::FetchForGroup { .. } => continue,
            };
            if self.core.connections.live(conn, epoch).is_some() {
                self.lifecycle(now).end_connection(conn, journal_failed());
                if is_held {
                    self.core.outbox.close(conn);
                }
            }
        }
    }

    /// Returns the components that the journal reports to.
    pub fn journal(&mut self, now: Now) -> ShardJournal<'_> {
        let (tick, parts) = self.split(now);
        ShardJournal {
            tick,
            groups: parts.groups,
            retained: parts.retained,
            delayed: parts.delayed,
            checkpoints: parts.checkpoints,
        }
    }
}

/// Handles reports of the journal: commits, reads, and its state. Also runs checkpoints.
pub struct ShardJournal<'a> {
    tick: Tick<'a>,
    groups: &'a mut ShareGroups,
    retained: &'a mut RetainedMessages,
    delayed: &'a mut DelayedMessages,
    checkpoints: &'a mut Checkpoints,
}

impl<'a> ShardJournal<'a> {
    /// Returns the records of this tick. The driver appends them before it takes mail or writes to sockets.
    pub fn batch(self) -> Option<&'a mut LogBatch> {
        let core = self.tick.core;
        core.sessions.write_pages(&mut core.ledger, core.config.page_entries);
        core.ledger.close_batch()
    }

    /// Sets the position of the appended batch: its first byte and the byte after its last. Empties the batch.
    pub fn appended(&mut self, base: u64, end: u64) {
        let core = &mut *self.tick.core;
        let Some(records) = core.ledger.records_mut() else {
            return;
        };
        records.appended(base, end);
        self.checkpoints.batch_appended(base);
        core.sessions.batch_appended(records, core.config.page_entries, base);
    }

    /// The journal has committed everything before `end`. Runs the actions that waited for it.
    pub fn committed(&mut self, end: u64) {
        let tick = &mut self.tick;
        tick.core.ledger.set_committed(end);
        while let Some(action) = tick.core.ledger.next_committed() {
            match action {
                CommitAction::Ack(ack) => tick.core.acknowledge_committed(ack),
                CommitAction::Release { conn, epoch } => {
                    if tick.core.connections.live(conn, epoch).is_some() {
                        tick.core.outbox.release(conn);
                    }
                }
                CommitAction::Call(receipt, done) => tick.core.taps.call_when_stored(receipt, done),
                CommitAction::FetchForGroup { index, epoch } => {
                    self.groups.resume_current_fetch(tick, index, epoch);
                }
                CommitAction::Deliver { slot, epoch, seq } => {
                    if tick.core.sessions.deliveries_committed(slot, epoch, seq) {
                        self.retained.pump(tick, slot);
                    }
                }
            }
        }
    }

    /// Sets the state of the journal. While it is full, publications that need it are rejected.
    pub fn set_health(&mut self, health: LogHealth) {
        let core = &mut *self.tick.core;
        if core.ledger.set_health(health) {
            core.connections.resume_paused(&mut core.effects);
        }
    }

    /// The answer to `Effect::Fetch`: the first of the requested records, at least one. The driver decides how many it
    /// reads at once. A record is `None` if the journal could not read it.
    pub fn fetched(&mut self, purpose: FetchPurpose, positions: &[RecordPosition], records: Vec<Option<Vec<u8>>>) {
        let tick = &mut self.tick;
        if purpose == FetchPurpose::Move {
            return self.checkpoints.fetched(&mut tick.core.ledger, positions, &records);
        }
        tick.core.ledger.fetch_ended();
        let records: BTreeMap<_, _> = positions.iter().copied().zip(records).collect();
        match purpose {
            FetchPurpose::Session { slot, connect_number } => {
                if load_fetched(tick, slot, connect_number, &records) {
                    self.retained.pump(tick, slot);
                }
            }
            FetchPurpose::Group(index) => self.groups.fetched(tick, index, &records),
            FetchPurpose::Move => {}
        }
        while let Some(purpose) = tick.core.ledger.next_fetch() {
            let core = &mut *tick.core;
            match purpose {
                FetchPurpose::Session { slot, connect_number } => {
                    core.sessions
                        .resume_fetch(&mut core.ledger, &mut core.effects, slot, connect_number);
                }
                FetchPurpose::Group(index) => self.groups.resume_fetch(tick, index),
                FetchPurpose::Move => {}
            }
        }
    }

    /// Repeats a fetch that the driver could not queue.
    pub fn retry_fetch(&mut self, purpose: FetchPurpose, positions: Vec<RecordPosition>) {
        self.tick.core.effects.push(Effect::Fetch { purpose, positions });
    }

    /// Starts a checkpoint. Every shard of the node must start one, and none may start the next before all have
    /// finished. Messages in `part` that are still needed are rewritten, so that their segments can be deleted.
    pub fn begin_checkpoint(&mut self, part: MovePart) {
        self.checkpoints.begin(&mut self.tick, part);
    }

    /// Continues a checkpoint. Must be called at the start of a tick, when all earlier records have been appended.
    /// Returns the result when the checkpoint has finished. It is valid once the batch of this tick is committed.
    pub fn continue_checkpoint(&mut self) -> Option<FinishedCheckpoint> {
        let mut state = DurableState {
            groups: self.groups,
            retained: self.retained,
            delayed: self.delayed,
        };
        self.checkpoints.advance(&mut self.tick, &mut state)
    }
}
