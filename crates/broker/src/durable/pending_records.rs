//! Collects the records of a tick, and the actions that wait until the journal has committed them.
//!
//! A tick writes one batch. The driver appends it and reports its position (`ShardJournal::appended`), and later the
//! commit (`ShardJournal::committed`). Waiters run in the order in which they were added, so the acknowledgements
//! of a client keep their order [MQTT-4.6.0-2]. The driver bounds the ledger: it stops reading from clients while
//! the journal is far behind.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::durable::ended_sessions::EndedSessions;
use crate::durable::record::{
    AcknowledgedEntry, GroupKey, JournalRecord, MessageRecord, RecordPosition, SessionKey, SettledItems,
};
use crate::effect::{FetchPurpose, Now, ShardId};
use crate::fault::{Fault, is_planted};
use crate::interest::SHARDS_MAX;
use crate::message::{Message, RecordLocation};
use crate::receipt_actions::PendingAck;
use crate::slots::{ConnEpoch, ConnSlot, GroupEpoch, GroupIndex, SessionEpoch, SessionSlot};
use crate::tap::Receipt;
use journal::{LogBatch, LogHealth};

pub struct PendingRecords {
    batch: LogBatch,
    /// Messages of the batch, with their offset in it.
    unplaced_messages: Vec<(Arc<Message>, u32)>,
    /// `SettledItems` of this tick.
    settled: Vec<u8>,
    /// `Targets` of the message that is being routed.
    targets: Vec<u8>,
    /// Sessions whose messages can leave memory after the batch has been appended.
    eviction_candidates: Vec<SessionSlot>,
    /// Sessions whose queues are so long that a part is written as pages.
    paging: Vec<SessionSlot>,
    /// Pages of the batch: slot of the session and offset of the page.
    unplaced_pages: Vec<(SessionSlot, RecordLocation)>,
    /// Number of fetches that the driver has not answered yet.
    fetches: usize,
    fetch_queue: VecDeque<FetchPurpose>,
    waiting: VecDeque<CommitAction>,
    waiter_groups: VecDeque<WaiterGroup>,
    /// Waiters of this tick that are not in `waiter_groups` yet.
    ungrouped_waiters: usize,
    /// Position of this tick's batch; mail to other shards refers to it.
    base: u64,
    /// End of the appended records, or of a record of another shard that a waiter needs.
    end: u64,
    committed: u64,
    /// Oldest message that a record has referred to since the checkpoint began. A message that changes its owner during
    /// the checkpoint may be in neither owner's snapshot.
    oldest_referenced: Option<RecordPosition>,
    ended_sessions: EndedSessions,
    next_key: u64,
    /// This tick routes messages that another shard has recorded; a `Routed` record follows in the same tick.
    is_routing: bool,
    health: LogHealth,
    /// The time to record with the records of this tick.
    due_time_ms: Option<u64>,
    /// Not before this time is the time recorded again.
    next_time_ms: Option<u64>,
    /// The time of the start, or when the difference of the clocks was last updated.
    clock_set_at: Option<Now>,
    /// How far the system's clock is ahead of the journal's time. Less than `CLOCK_STEP_MS` counts as 0.
    clock_ahead_ms: u64,
}

/// Maximum number of fetches that run at the same time.
const FETCHES_MAX: usize = 64;

/// Minimum interval between two records of the time. After a crash, deadlines can be late by it if the system's clock
/// has been set back.
const TIME_INTERVAL_MS: u64 = 10_000;

/// Smaller steps of the system's clock are not recorded.
const CLOCK_STEP_MS: u64 = 10_000;

/// After this time without a step, the system's clock counts as right.
const CLOCK_TRUSTED_MS: u64 = 24 * 3_600_000;

/// A run of waiters that wait for the same journal position.
struct WaiterGroup {
    end: u64,
    count: usize,
}

/// An action that waits until the journal has committed all earlier records.
pub enum CommitAction {
    /// Send an acknowledgement. It may then have to wait for the tap.
    Ack(PendingAck),
    /// Write the output of a connection that is held back.
    Release { conn: ConnSlot, epoch: ConnEpoch },
    /// Call a function of another component, after the tap has stored the message too.
    Call(Option<Receipt>, Box<dyn FnOnce() + Send>),
    /// Allow QoS 2 deliveries of a session up to `seq`. If `seq` is 0, its messages have become readable from the
    /// journal.
    Deliver {
        slot: SessionSlot,
        epoch: SessionEpoch,
        seq: u64,
    },
    /// The messages that a group holds have become readable from the journal.
    FetchForGroup { index: GroupIndex, epoch: GroupEpoch },
}

impl PendingRecords {
    /// `last_key` is the highest key that any shard has assigned in any run.
    pub fn new(shard: u16, last_key: u64) -> PendingRecords {
        let first = (last_key / SHARDS_MAX as u64 + 1) * SHARDS_MAX as u64;
        PendingRecords {
            batch: LogBatch::new(),
            unplaced_messages: Vec::new(),
            settled: Vec::new(),
            targets: Vec::new(),
            eviction_candidates: Vec::new(),
            paging: Vec::new(),
            unplaced_pages: Vec::new(),
            fetches: 0,
            fetch_queue: VecDeque::new(),
            waiting: VecDeque::new(),
            waiter_groups: VecDeque::new(),
            ungrouped_waiters: 0,
            base: 0,
            end: 0,
            committed: 0,
            oldest_referenced: None,
            ended_sessions: EndedSessions::default(),
            next_key: first + u64::from(shard),
            is_routing: false,
            health: LogHealth::Ok,
            due_time_ms: None,
            next_time_ms: None,
            clock_set_at: None,
            clock_ahead_ms: 0,
        }
    }

    fn next_key(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += SHARDS_MAX as u64;
        key
    }

    pub fn last_key(&self) -> u64 {
        self.next_key - 1
    }

    pub fn next_session(&mut self) -> SessionKey {
        SessionKey(self.next_key())
    }

    pub fn next_group(&mut self) -> GroupKey {
        GroupKey(self.next_key())
    }

    /// Begins a tick. If it writes records, the time is one of them, unless it was recorded a short while ago. After a
    /// step of the system's clock, the time is recorded in any case.
    pub fn begin_tick(&mut self, now: Now) {
        // The record of the start has the time of the first tick.
        let next_ms = *self.next_time_ms.get_or_insert(now.journal_ms + TIME_INTERVAL_MS);
        self.due_time_ms = (now.journal_ms >= next_ms).then_some(now.journal_ms);
        if self.update_clock(now) {
            self.record_time(now.journal_ms);
        }
    }

    /// Sets how far the system's clock was ahead in the previous process. A clock that is behind that process may be
    /// wrong, for example without a real-time clock. So the difference remains until the clock is set or trusted.
    pub fn continue_clock(&mut self, now: Now, clock_ahead_ms: u64) {
        self.clock_set_at = Some(now);
        // The clock may have been set since the journal's time began.
        self.clock_ahead_ms = clock_ahead_ms.max(ahead_ms(now));
    }

    pub fn clock_ahead_ms(&self) -> u64 {
        self.clock_ahead_ms
    }

    /// Records how far the system's clock is ahead, so that earlier records of it can be deleted.
    pub fn record_clock(&mut self, now: Now) {
        if self.update_clock(now) || self.clock_ahead_ms > 0 {
            self.record_time(now.journal_ms);
        }
    }

    /// Updates the difference of the clocks after a step of the system's clock, and once a day. Returns whether it has
    /// changed.
    fn update_clock(&mut self, now: Now) -> bool {
        let set_at = *self.clock_set_at.get_or_insert(now);
        let since_ms = now.journal_ms.saturating_sub(set_at.journal_ms);
        let is_step = now.unix_ms.abs_diff(set_at.unix_ms + since_ms) >= CLOCK_STEP_MS;
        if !is_step && since_ms < CLOCK_TRUSTED_MS {
            return false;
        }
        self.clock_set_at = Some(now);
        let before = std::mem::replace(&mut self.clock_ahead_ms, ahead_ms(now));
        before != self.clock_ahead_ms
    }

    fn record_time(&mut self, unix_ms: u64) {
        self.due_time_ms = None;
        self.next_time_ms = Some(unix_ms + TIME_INTERVAL_MS);
        let ahead_ms = self.clock_ahead_ms;
        self.record(&JournalRecord::Time { unix_ms, ahead_ms });
    }

    /// Adds a record to the batch of this tick. Its position is known once the batch is appended.
    pub fn record(&mut self, record: &JournalRecord<'_>) -> RecordLocation {
        RecordLocation::pending(self.batch.record(|out| record.put(out)))
    }

    /// Adds the record of a message. Returns its place.
    pub fn record_message(&mut self, record: &MessageRecord<'_>) -> RecordLocation {
        RecordLocation::pending(self.batch.record(|out| record.put(out)))
    }

    /// Returns the size of the batch of this tick.
    pub fn batch_bytes(&self) -> usize {
        self.batch.len()
    }

    /// Returns the position of this tick's batch; mail to other shards refers to it.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the end of the committed records.
    pub fn committed_end(&self) -> u64 {
        self.committed
    }

    /// Returns the `Targets` of the message that is being routed.
    pub fn targets_mut(&mut self) -> &mut Vec<u8> {
        &mut self.targets
    }

    pub fn has_targets(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Marks routing of messages that another shard has recorded as started or finished. Recovery repeats unfinished
    /// routing.
    pub fn set_routing(&mut self, is_routing: bool) {
        self.is_routing = is_routing;
    }

    pub fn health(&self) -> LogHealth {
        self.health
    }

    /// Returns the oldest message that a record has referred to since the last call of `forget_referenced`.
    pub fn oldest_referenced(&self) -> Option<RecordPosition> {
        self.oldest_referenced
    }

    pub fn forget_referenced(&mut self) {
        self.oldest_referenced = None;
    }

    /// Checks a session for eviction after the batch of this tick has been appended.
    pub fn evict_after_append(&mut self, slot: SessionSlot) {
        self.eviction_candidates.push(slot);
    }

    /// Writes a part of a session's queue as pages at the end of this tick.
    pub fn write_pages_later(&mut self, slot: SessionSlot) {
        self.paging.push(slot);
    }

    pub fn take_paging(&mut self) -> Vec<SessionSlot> {
        std::mem::take(&mut self.paging)
    }

    /// Registers a page of this batch, whose position is not known yet.
    pub fn add_unplaced_page(&mut self, slot: SessionSlot, place: RecordLocation) {
        self.unplaced_pages.push((slot, place));
    }

    /// Counts a fetch. Returns false if too many are running; then the fetch is queued.
    pub fn start_fetch(&mut self, purpose: FetchPurpose) -> bool {
        let can_start = self.fetches < FETCHES_MAX;
        match can_start {
            true => self.fetches += 1,
            false => self.fetch_queue.push_back(purpose),
        }
        can_start
    }

    pub fn fetch_ended(&mut self) {
        self.fetches = self.fetches.saturating_sub(1);
    }

    /// Removes and returns a queued fetch that can start.
    pub fn next_fetch(&mut self) -> Option<FetchPurpose> {
        match self.fetches < FETCHES_MAX {
            true => self.fetch_queue.pop_front(),
            false => None,
        }
    }

    /// Gives a message its position when the batch that contains its record is appended.
    pub fn set_place_when_appended(&mut self, message: &Arc<Message>, place: RecordLocation) {
        message.set_place(place);
        if let Some(offset) = place.offset() {
            self.unplaced_messages.push((message.clone(), offset));
        }
    }

    pub fn acknowledge(&mut self, session: SessionKey, seq: u64, is_release: bool) {
        AcknowledgedEntry {
            session,
            seq,
            is_release,
        }
        .put(&mut self.settled);
    }

    /// Adds a record that refers to a message. Does nothing if the message has no record.
    pub fn record_of<'r>(&mut self, place: RecordLocation, record: impl FnOnce(RecordPosition) -> JournalRecord<'r>) {
        if let Some(message) = place.position() {
            self.record_reference(message);
            self.record(&record(message));
        } else if let Some(offset) = place.offset() {
            let back = RecordPosition(self.batch.len() as u64 - u64::from(offset));
            let record = record(back);
            self.batch.record(|out| record.put_back(out));
        }
    }

    /// Registers that a record of this tick refers to a message.
    pub fn record_reference(&mut self, message: RecordPosition) {
        let oldest = self.oldest_referenced.get_or_insert(message);
        *oldest = message.min(*oldest);
    }

    /// Records that a client's session has ended.
    pub fn record_end(&mut self, session: SessionKey, client_id: &str) {
        self.record(&JournalRecord::Ended { session });
        self.ended_sessions.add(client_id);
    }

    pub fn is_end_pending(&self, client_id: &str) -> bool {
        self.ended_sessions.is_pending(client_id, self.committed)
    }

    /// Returns whether any record is not committed yet.
    pub fn has_uncommitted(&self) -> bool {
        self.has_recorded() || self.end > self.committed
    }

    /// Returns whether this tick has recorded anything so far.
    fn has_recorded(&self) -> bool {
        self.is_routing || !self.batch.is_empty() || !self.settled.is_empty()
    }

    fn advance_committed(&mut self, end: u64) {
        self.committed = self.committed.max(end);
        self.ended_sessions.committed(self.committed);
        // Mail of this tick may have arrived before this commit. Waiters that it added wait for records of earlier
        // ticks. If this tick appends nothing, no further commit is reported, so they are released here.
        if !self.has_recorded() && !is_planted(Fault::ForgetWaiting) {
            self.close_group();
        }
    }

    pub fn wait(&mut self, waiting: CommitAction) {
        self.waiting.push_back(waiting);
        self.ungrouped_waiters += 1;
    }

    /// Waits until the record at this position is committed. Another shard may have appended it.
    pub fn wait_for(&mut self, record: RecordPosition, waiting: CommitAction) {
        self.end = self.end.max(record.0 + 1);
        self.wait(waiting);
    }

    /// Ends the tick. Returns the batch if the tick has recorded anything.
    fn close_batch(&mut self) -> Option<&mut LogBatch> {
        if !self.settled.is_empty() {
            let items = SettledItems::from_written(&self.settled);
            self.batch.record(|out| JournalRecord::Settled(items).put(out));
            self.settled.clear();
        }
        if self.batch.is_empty() {
            self.close_group();
            return None;
        }
        if let Some(unix_ms) = self.due_time_ms {
            self.record_time(unix_ms);
        }
        Some(&mut self.batch)
    }

    fn close_group(&mut self) {
        if self.ungrouped_waiters > 0 {
            self.waiter_groups.push_back(WaiterGroup {
                end: self.end,
                count: std::mem::take(&mut self.ungrouped_waiters),
            });
        }
    }

    pub(crate) fn appended(&mut self, base: u64, end: u64) {
        (self.base, self.end) = (base, end);
        self.ended_sessions.appended(end);
        self.close_group();
        for (message, offset) in self.unplaced_messages.drain(..) {
            message.set_place(RecordLocation::pending(offset).placed(base));
        }
    }

    /// Removes and returns the next waiter whose records are committed.
    fn next_due(&mut self) -> Option<CommitAction> {
        let mark = self.waiter_groups.front_mut()?;
        if mark.end > self.committed {
            return None;
        }
        mark.count -= 1;
        if mark.count == 0 {
            self.waiter_groups.pop_front();
        }
        self.waiting.pop_front()
    }
}

/// Returns how far the system's clock is ahead of the journal's time.
fn ahead_ms(now: Now) -> u64 {
    match now.unix_ms.saturating_sub(now.journal_ms) {
        0..CLOCK_STEP_MS => 0,
        ahead_ms => ahead_ms,
    }
}

/// The records of this tick, and the actions that wait for their commit. Without a journal nothing is recorded and
/// nothing waits.
pub struct Ledger {
    shard: ShardId,
    records: Option<Box<PendingRecords>>,
}

impl Ledger {
    /// Creates a ledger that records nothing.
    pub(crate) fn new(shard: ShardId) -> Ledger {
        Ledger { shard, records: None }
    }

    /// Starts recording. `last_key` is the highest key that any shard has assigned in any run.
    pub(crate) fn start(&mut self, last_key: u64) {
        self.records = Some(Box::new(PendingRecords::new(self.shard.0, last_key)));
    }

    /// Returns the number of the shard, which records of messages contain.
    pub(crate) fn shard(&self) -> ShardId {
        self.shard
    }

    /// Returns whether the shard has a journal.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.records.is_some()
    }

    #[inline]
    pub(crate) fn records(&self) -> Option<&PendingRecords> {
        self.records.as_deref()
    }

    #[inline]
    pub(crate) fn records_mut(&mut self) -> Option<&mut PendingRecords> {
        self.records.as_deref_mut()
    }

    /// Returns the journal position that the first waiter needs; `u64::MAX` if that is not appended yet. `None` means
    /// that no client waits, as for records of acknowledgements, disconnects and deliveries, so the driver may delay
    /// the commit.
    pub fn first_awaited(&self) -> Option<u64> {
        let ledger = self.records()?;
        ledger.waiting.front()?;
        Some(ledger.waiter_groups.front().map_or(u64::MAX, |mark| mark.end))
    }

    /// Returns the journal position that the last waiter for appended records needs.
    pub fn last_awaited(&self) -> Option<u64> {
        let ledger = self.records()?;
        ledger.waiter_groups.back().map(|mark| mark.end)
    }
}

impl Ledger {
    /// Returns the bytes that have been recorded but not appended.
    #[inline]
    pub fn batch_bytes(&self) -> usize {
        self.records().map_or(0, PendingRecords::batch_bytes)
    }

    /// Ends the tick. Returns its records, if it has any.
    pub(crate) fn close_batch(&mut self) -> Option<&mut LogBatch> {
        self.records_mut()?.close_batch()
    }

    /// The journal has committed everything before `end`. `next_committed` then returns the actions that waited for it.
    pub(crate) fn set_committed(&mut self, end: u64) {
        if let Some(records) = self.records_mut() {
            records.advance_committed(end);
        }
    }

    /// The driver has answered a fetch.
    pub(crate) fn fetch_ended(&mut self) {
        if let Some(records) = self.records_mut() {
            records.fetch_ended();
        }
    }

    /// Removes and returns a queued fetch that can start.
    pub(crate) fn next_fetch(&mut self) -> Option<FetchPurpose> {
        self.records_mut()?.next_fetch()
    }

    /// Removes and returns the next action whose records are committed.
    pub(crate) fn next_committed(&mut self) -> Option<CommitAction> {
        self.records_mut()?.next_due()
    }

    /// Sets the state of the journal. Returns whether publishers that wait for it must continue: it accepts records
    /// again, or it has failed. After a failure a paused connection is closed when its pending packet is handled.
    pub(crate) fn set_health(&mut self, health: LogHealth) -> bool {
        let Some(records) = self.records_mut() else {
            return false;
        };
        let before = std::mem::replace(&mut records.health, health);
        before != LogHealth::Ok && before != health
    }

    /// Removes and returns all actions, because the journal has failed and no further commit will follow.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<CommitAction> {
        let Some(records) = self.records_mut() else {
            return VecDeque::new();
        };
        records.waiter_groups.clear();
        records.ungrouped_waiters = 0;
        std::mem::take(&mut records.waiting)
    }
}

impl PendingRecords {
    /// Removes and returns the pages of the appended batch.
    pub(super) fn take_unplaced_pages(&mut self) -> Vec<(SessionSlot, RecordLocation)> {
        std::mem::take(&mut self.unplaced_pages)
    }

    /// Removes and returns the sessions whose messages can leave memory now.
    pub(super) fn take_eviction_candidates(&mut self) -> Vec<SessionSlot> {
        std::mem::take(&mut self.eviction_candidates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(ledger: &mut PendingRecords) {
        ledger.wait(CommitAction::Deliver {
            slot: SessionSlot::FIRST,
            epoch: SessionEpoch(0),
            seq: 1,
        });
    }

    #[test]
    fn waiter_added_in_the_tick_of_its_commit_is_released() {
        let mut ledger = PendingRecords::new(0, 0);
        ledger.appended(0, 100);
        assert!(ledger.has_uncommitted());
        wait(&mut ledger);
        ledger.advance_committed(100);
        assert!(ledger.next_due().is_some());
        assert!(ledger.close_batch().is_none() && ledger.next_due().is_none());
    }

    #[test]
    fn waiter_for_a_record_of_its_tick_waits_for_its_commit() {
        let mut ledger = PendingRecords::new(0, 0);
        ledger.appended(0, 100);
        ledger.record_end(SessionKey(1), "client");
        wait(&mut ledger);
        ledger.advance_committed(100);
        assert!(ledger.next_due().is_none());
        ledger.appended(100, 200);
        assert!(ledger.next_due().is_none());
        ledger.advance_committed(200);
        assert!(ledger.next_due().is_some());
    }
}
