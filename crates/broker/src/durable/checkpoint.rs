//! Checkpoints: rewrites all durable state, so that replay can start there and older segments can be deleted.
//!
//! A checkpoint walks over groups, retained messages, delayed messages and sessions, a part in each tick, while the
//! shard continues to work. Each record is a snapshot of the moment at which it is written; later changes follow in
//! records of their own. Message records stay where they are. The checkpoint reports the oldest message that anything
//! refers to.
//!
//! It starts when every other shard has started and all mail that they sent before has arrived
//! (`MailRequest::Barrier`), and it finishes under the same condition. So a message between two shards is either in the
//! checkpoint or in a later record.

use std::sync::Arc;

use mqtt::QoS;

use crate::delayed::{DelayedMessage, DelayedMessages};
use crate::deliver::ShardCore;
use crate::delivery::Delivery;
use crate::durable::compaction::{CheckpointMoves, MovePart};
use crate::durable::entry_list::entry_of;
use crate::durable::journaled_queue::JournaledQueue;
use crate::durable::journaling::session_record;
use crate::durable::pages::Pages;
use crate::durable::pending_records::{Ledger, PendingRecords};
use crate::durable::record::{
    Entries, GroupKey, JournalRecord, PageRefs, RecordPosition, Seq, SessionEntry, SessionKey, SizedMessage,
    SizedMessages, Targets, WITH_TAP,
};
use crate::effect::{Now, ShardId};
use crate::fault::{Fault, is_planted};
use crate::mail::MailRequest;
use crate::message::Message;
use crate::message_size::MessageSize;
use crate::retained::{RetainedStore, ScanBudget, ScanCursor};
use crate::retained_messages::RetainedMessages;
use crate::session::Session;
use crate::shared::{ShareGroup, ShareGroups};
use crate::slots::{DelayedIndex, GroupEpoch, GroupIndex, SessionSlot};
use crate::tick::Tick;

/// Bytes of records per tick; writing them takes some hundred microseconds.
const STEP_BYTES: usize = 128 * 1024;

/// Entries per record. A queue may have millions.
const ENTRIES_MAX: usize = 4096;

/// Session slots visited per tick. Most of them need no work.
const SLOTS: u32 = 16 * 1024;

const SCAN: ScanBudget = ScanBudget {
    matches_max: 512,
    steps_max: 4096,
};

/// The running checkpoint of a shard, and the barriers of the other shards.
pub(crate) struct Checkpoints {
    shards: u16,
    running: Option<Box<RunningCheckpoint>>,
    /// Number of other shards that have started a checkpoint which this shard has not, and that have finished their
    /// part.
    barriers: [u16; 2],
}

struct RunningCheckpoint {
    at: CheckpointStep,
    oldest: Option<RecordPosition>,
    /// Bytes written so far.
    bytes: u64,
    moves: CheckpointMoves,
}

#[derive(Clone, Debug)]
enum CheckpointStep {
    /// Waits until all other shards have started.
    Begin,
    /// Visits sessions with held messages that must be moved.
    Holding(SessionSlot),
    Groups(GroupIndex),
    /// In the queue of a group, after entry `behind`.
    Held {
        index: GroupIndex,
        epoch: GroupEpoch,
        behind: Seq,
    },
    Retained(Option<ScanCursor>),
    Delayed(DelayedIndex),
    Sessions(SessionSlot),
    /// In the queue of a session, after entry `behind`.
    Queue {
        slot: SessionSlot,
        session: SessionKey,
        behind: Seq,
        /// Value of `Outgoing::evictions` when the queue was started.
        evictions: u32,
    },
    /// Waits until all other shards have finished.
    End,
}

/// Result of a finished checkpoint of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedCheckpoint {
    /// Oldest message that the shard refers to.
    pub oldest: Option<RecordPosition>,
    /// Bytes written, without moved messages.
    pub bytes: u64,
    /// Bytes of moved messages.
    pub moved_bytes: u64,
}

/// The durable state of a shard besides its sessions.
pub(crate) struct DurableState<'a> {
    pub groups: &'a mut ShareGroups,
    pub retained: &'a RetainedMessages,
    pub delayed: &'a DelayedMessages,
}

impl Checkpoints {
    pub fn new(shards: u16) -> Checkpoints {
        Checkpoints {
            shards,
            running: None,
            barriers: [0; 2],
        }
    }

    /// Returns false while a step of the checkpoint is executed.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts a checkpoint. Messages in `part` that are still needed are rewritten, so that their segments can be
    /// deleted.
    pub fn begin(&mut self, tick: &mut Tick<'_>, part: MovePart) {
        let Some(records) = tick.core.ledger.records_mut() else {
            return;
        };
        debug_assert_eq!(records.batch_bytes(), 0, "earlier records must be appended first");
        records.forget_referenced();
        self.running = Some(Box::new(RunningCheckpoint {
            at: CheckpointStep::Begin,
            oldest: None,
            bytes: 0,
            moves: CheckpointMoves::new(part),
        }));
        tick.is_checkpointing = true;
        send_barrier(tick, false);
        record_checkpoint(tick);
    }

    /// Continues the checkpoint. Returns the result when it has finished.
    pub fn advance(&mut self, tick: &mut Tick<'_>, state: &mut DurableState<'_>) -> Option<FinishedCheckpoint> {
        if !self.is_active() {
            return None;
        }
        let mut walk = self.running.take()?;
        tick.is_checkpointing = false;
        debug_assert!(
            tick.core.ledger.batch_bytes() == 0 || matches!(walk.at, CheckpointStep::Begin),
            "earlier records must be appended first"
        );
        match walk.at {
            CheckpointStep::Begin => {
                self.consume_barriers(false);
                walk.at = CheckpointStep::Holding(SessionSlot::FIRST);
            }
            CheckpointStep::End => {
                self.consume_barriers(true);
                // Ensures that this tick has a batch: the last one of the checkpoint.
                record_checkpoint(tick);
                return Some(walk.finish(&tick.core.ledger));
            }
            _ => {}
        }
        walk.work(tick, state);
        self.running = Some(walk);
        tick.is_checkpointing = true;
        None
    }

    /// The batch of this tick has been appended at `base`.
    pub fn batch_appended(&mut self, base: u64) {
        if let Some(running) = &mut self.running {
            running.moves.set_positions(base);
        }
    }

    /// Moves messages that have been read for the checkpoint.
    pub fn fetched(&mut self, ledger: &mut Ledger, positions: &[RecordPosition], records: &[Option<Vec<u8>>]) {
        if let (Some(running), Some(ledger)) = (&mut self.running, ledger.records_mut()) {
            running.moves.fetched(ledger, positions, records);
        }
    }

    /// Another shard has started a checkpoint, or has finished its part.
    pub fn barrier_reached(&mut self, is_end: bool) {
        self.barriers[usize::from(is_end)] += 1;
    }

    /// Returns whether all other shards have reached this barrier.
    fn has_passed_barrier(&self, is_end: bool) -> bool {
        self.barriers[usize::from(is_end)] + 1 >= self.shards
    }

    fn consume_barriers(&mut self, is_end: bool) {
        self.barriers[usize::from(is_end)] -= self.shards - 1;
    }

    /// Returns whether a checkpoint is running and not waiting.
    pub fn is_active(&self) -> bool {
        self.running.as_ref().is_some_and(|walk| match walk.at {
            CheckpointStep::Begin => self.has_passed_barrier(false),
            CheckpointStep::End => self.has_passed_barrier(true),
            _ => !walk.moves.is_fetching(),
        })
    }
}

fn record_checkpoint(tick: &mut Tick<'_>) {
    let (shards, last_key) = (tick.core.shards, tick.core.ledger.last_key());
    tick.core.ledger.record(&JournalRecord::Checkpoint {
        unix_ms: tick.now.journal_ms,
        shards,
        last_key,
    });
    if let Some(records) = tick.core.ledger.records_mut() {
        records.record_clock(tick.now);
    }
}

fn send_barrier(tick: &mut Tick<'_>, is_end: bool) {
    for other in (0..tick.core.shards).filter(|other| *other != tick.core.id.0) {
        tick.mail.request(ShardId(other), MailRequest::Barrier { is_end });
    }
}

impl RunningCheckpoint {
    fn finish(&self, ledger: &Ledger) -> FinishedCheckpoint {
        let mentioned = ledger.records().and_then(PendingRecords::oldest_referenced);
        let oldest = self.oldest.into_iter().chain(mentioned).min();
        FinishedCheckpoint {
            oldest: oldest.filter(|_| !is_planted(Fault::CheckpointForgetsOldest)),
            bytes: self.bytes.saturating_sub(self.moves.bytes),
            moved_bytes: self.moves.written,
        }
    }

    /// Executes as many steps as one tick allows.
    fn work(&mut self, tick: &mut Tick<'_>, state: &mut DurableState<'_>) {
        let before = tick.core.ledger.batch_bytes();
        let limit = before + STEP_BYTES;
        let mut steps = 0;
        while tick.core.ledger.batch_bytes() < limit && steps < SLOTS && !matches!(self.at, CheckpointStep::End) {
            steps += 1;
            if self.moves.must_wait() {
                break;
            }
            self.at = self.step(tick, state);
            match self.at {
                CheckpointStep::End => send_barrier(tick, true),
                CheckpointStep::Holding(_) => break,
                _ => {}
            }
        }
        self.bytes += (tick.core.ledger.batch_bytes() - before) as u64;
    }

    /// Moves old messages of the group or session that is written next. Returns false if there are none.
    fn move_old(&mut self, tick: &mut Tick<'_>, groups: &mut ShareGroups) -> bool {
        let moves = &mut self.moves;
        match self.at {
            CheckpointStep::Groups(index) => {
                let (group, ledger) = (groups.get_mut(index), tick.core.ledger.records_mut());
                group
                    .zip(ledger)
                    .is_some_and(|(group, ledger)| moves.group(tick.now, ledger, group))
            }
            CheckpointStep::Held { index, epoch, behind } => {
                let group = groups.get_current(index, epoch);
                group.is_some_and(|group| moves.group_entries(tick.core, group, behind, ENTRIES_MAX))
            }
            CheckpointStep::Sessions(slot) => {
                slot < tick.core.sessions.end() && moves.session(tick.now, tick.core, slot)
            }
            _ => false,
        }
    }

    /// Writes one group, some retained messages, one session, or a part of a queue. Returns the next step.
    fn step(&mut self, tick: &mut Tick<'_>, state: &mut DurableState<'_>) -> CheckpointStep {
        if self.move_old(tick, state.groups) {
            return self.at.clone();
        }
        let RunningCheckpoint { at, oldest, moves, .. } = self;
        let at = at.clone();
        if let CheckpointStep::Holding(slot) = at
            && moves.has_old_entries()
            && slot < tick.core.sessions.end()
        {
            let end = SessionSlot(slot.0 + SLOTS).min(tick.core.sessions.end());
            slot.until(end)
                .for_each(|slot| moves.release_held_messages(tick.now, tick.core, slot));
            return CheckpointStep::Holding(end);
        }
        let ShardCore { ledger, sessions, .. } = &mut *tick.core;
        let Some(ledger) = ledger.records_mut() else {
            return CheckpointStep::End;
        };
        let now = tick.now;
        let mut writer = SnapshotWriter { now, ledger, oldest };
        match at {
            CheckpointStep::Begin | CheckpointStep::Holding(_) => CheckpointStep::Groups(GroupIndex::FIRST),
            CheckpointStep::Groups(index) if index < state.groups.end() => match state.groups.get(index) {
                Some(group) => writer.group(index, group),
                None => CheckpointStep::Groups(index.next()),
            },
            CheckpointStep::Groups(_) => CheckpointStep::Retained(None),
            CheckpointStep::Held { index, epoch, behind } => match state.groups.get_current(index, epoch) {
                Some(group) => writer.held(index, group, behind),
                None => CheckpointStep::Groups(index.next()),
            },
            CheckpointStep::Retained(cursor) => match writer.retained(state.retained.store(), cursor, moves) {
                Some(cursor) => CheckpointStep::Retained(Some(cursor)),
                None => CheckpointStep::Delayed(DelayedIndex::FIRST),
            },
            CheckpointStep::Delayed(index) if index < state.delayed.end() => {
                if let Some(delayed) = state.delayed.get(index) {
                    writer.delayed(delayed, moves);
                }
                CheckpointStep::Delayed(index.next())
            }
            CheckpointStep::Delayed(_) => CheckpointStep::Sessions(SessionSlot::FIRST),
            CheckpointStep::Sessions(slot) if slot < sessions.end() => match sessions.get(slot) {
                Some(session) => writer.session(slot, session),
                None => CheckpointStep::Sessions(slot.next()),
            },
            CheckpointStep::Queue {
                slot,
                session: key,
                behind,
                evictions,
            } => match sessions.get(slot).filter(|session| session.key == key) {
                Some(session) => writer.queue(slot, session, behind, evictions),
                None => CheckpointStep::Sessions(slot.next()),
            },
            CheckpointStep::Sessions(_) | CheckpointStep::End => CheckpointStep::End,
        }
    }
}

/// Writes snapshots of durable state to the batch of this tick.
struct SnapshotWriter<'a> {
    now: Now,
    ledger: &'a mut PendingRecords,
    /// Oldest message that the snapshots refer to.
    oldest: &'a mut Option<RecordPosition>,
}

impl SnapshotWriter<'_> {
    /// Writes a group. Its queue follows.
    fn group(&mut self, index: GroupIndex, group: &ShareGroup) -> CheckpointStep {
        if group.is_durable() {
            self.ledger.record(&JournalRecord::Group {
                group: group.key(),
                share_name: group.share_name(),
                filter: group.filter(),
            });
        }
        CheckpointStep::Held {
            index,
            epoch: group.epoch(),
            behind: 0,
        }
    }

    /// Writes a part of a group's cold entries and, after the last part, the messages in memory. Messages that are
    /// evicted while the queue is written become cold before that. A message that is returned has a record of its own.
    fn held(&mut self, index: GroupIndex, group: &ShareGroup, behind: Seq) -> CheckpointStep {
        let part = group.queue().part(behind, ENTRIES_MAX);
        let (next, messages) = match part.last() {
            Some((last, _)) => {
                let next = CheckpointStep::Held {
                    index,
                    epoch: group.epoch(),
                    behind: *last,
                };
                (next, part.iter().map(|(_, message)| *message).collect())
            }
            None => {
                let warm = group.queue().warm().filter_map(|message| message.recorded());
                (CheckpointStep::Groups(index.next()), warm.collect::<Vec<_>>())
            }
        };
        if !is_planted(Fault::CheckpointForgetsHeld) {
            messages
                .iter()
                .for_each(|message| update_oldest(self.oldest, message.position));
        }
        self.ledger.record_held(group.key(), &messages);
        next
    }

    fn retained(
        &mut self,
        retained: &RetainedStore<Arc<Message>>,
        cursor: Option<ScanCursor>,
        moves: &mut CheckpointMoves,
    ) -> Option<ScanCursor> {
        let SnapshotWriter { now, ledger, oldest } = self;
        let each = |topic: &str, message: &Arc<Message>| {
            moves.message(*now, ledger, message, Targets::default());
            let place = message.place();
            if let Some(position) = place.position() {
                update_oldest(oldest, position);
            }
            let expires_unix_ms = message.publication().expires_at_ms.map(|at| now.unix_at(at));
            ledger.record_of(place, |message| JournalRecord::Retained {
                message,
                expires_unix_ms,
                topic,
            });
            // Moved messages may be large.
            ledger.batch_bytes() < STEP_BYTES
        };
        retained.scan_all(cursor, now.monotonic_ms, SCAN, each)
    }

    fn delayed(&mut self, delayed: &DelayedMessage, moves: &mut CheckpointMoves) {
        let message = &delayed.message;
        if let Some(message) = moves.message(self.now, self.ledger, message, Targets::default()) {
            // If the checkpoint does not finish, replay would publish both the copy and the original.
            self.ledger.record(&JournalRecord::DelayedDone { message });
        }
        if let Some(position) = message.place().position() {
            update_oldest(self.oldest, position);
        }
        let due_unix_ms = match delayed.is_routed {
            true => WITH_TAP,
            false => self.now.unix_at(delayed.due_ms),
        };
        self.ledger
            .record_of(message.place(), |message| JournalRecord::Delayed {
                message,
                due_unix_ms,
            });
    }

    /// Writes a session. Its queue follows.
    fn session(&mut self, slot: SessionSlot, session: &Session) -> CheckpointStep {
        if session.key.0 != 0 {
            let record = session_record(self.now, session);
            self.ledger.record(&JournalRecord::Session(record));
        }
        CheckpointStep::Queue {
            slot,
            session: session.key,
            behind: 0,
            evictions: session.outgoing.evictions,
        }
    }

    /// Writes a part of a session's cold entries and, after the last part, the messages in memory, including those that
    /// have been loaded since. If messages have been evicted since the start, the queue is written again; duplicate
    /// entries are harmless.
    fn queue(&mut self, slot: SessionSlot, session: &Session, behind: Seq, evictions: u32) -> CheckpointStep {
        let key = session.key;
        let next = |behind, evictions| CheckpointStep::Queue {
            slot,
            session: key,
            behind,
            evictions,
        };
        let cold = session.outgoing.cold.as_deref();
        if behind == 0
            && let Some(pages) = cold.and_then(|cold| cold.entries.pages())
        {
            write_pages(self.ledger, key, pages, self.oldest);
        }
        let part = cold.map_or(Vec::new(), |cold| cold_entries(&cold.entries, behind));
        if let Some(last) = part.last().map(|entry| entry.seq) {
            self.entries(key, &part);
            return next(last, evictions);
        }
        if session.outgoing.evictions != evictions {
            return next(0, session.outgoing.evictions);
        }
        self.entries(key, &memory_entries(session));
        CheckpointStep::Sessions(slot.next())
    }

    /// Writes nothing for a non-durable session, but keeps its messages in the journal because the session may still
    /// read them.
    fn entries(&mut self, session: SessionKey, entries: &[SessionEntry]) {
        for entry in entries.iter().filter(|entry| !entry.is_released) {
            update_oldest(self.oldest, entry.message);
        }
        if session.0 == 0 {
            self.ledger.record_retained_by_group(entries);
        }
        self.ledger.record_entries(session, entries);
    }
}

impl PendingRecords {
    /// Records the messages that a durable group holds.
    pub(crate) fn record_held(&mut self, group: GroupKey, messages: &[SizedMessage]) {
        if group.0 == 0 {
            return;
        }
        for part in messages.chunks(ENTRIES_MAX) {
            let mut bytes = Vec::with_capacity(part.len() * 8);
            part.iter().for_each(|message| message.put(&mut bytes));
            let messages = SizedMessages::from_written(&bytes);
            self.record(&JournalRecord::GroupEntries { group, messages });
        }
    }

    /// Records messages that a group retains for a non-durable session. The group keeps them, whichever shard's record
    /// is replayed first.
    fn record_retained_by_group(&mut self, entries: &[SessionEntry]) {
        for entry in entries.iter().filter(|entry| entry.qos == QoS::AtLeastOnce) {
            if let Some(group) = entry.group {
                self.record(&JournalRecord::Returned {
                    session: SessionKey(0),
                    seq: 0,
                    group,
                    message: entry.message,
                    size: entry.size,
                });
            }
        }
    }

    /// Records the positions of entries of a durable session.
    pub(super) fn record_entries(&mut self, session: SessionKey, entries: &[SessionEntry]) {
        if session.0 == 0 {
            return;
        }
        for part in entries.chunks(ENTRIES_MAX) {
            let mut bytes = Vec::with_capacity(part.len() * 16);
            part.iter().for_each(|entry| entry.put(&mut bytes));
            let entries = Entries::from_written(&bytes);
            self.record(&JournalRecord::Entries { session, entries });
        }
    }
}

/// Returns the entries in memory: in flight, queued and held.
fn memory_entries(session: &Session) -> Vec<SessionEntry> {
    let out = &session.outgoing;
    let mut entries = Vec::new();
    let inflight = out.inflight.iter();
    for inflight in inflight.filter(|_| !is_planted(Fault::CheckpointWithoutInflight)) {
        entries.extend(match &inflight.delivery {
            Some(delivery) => memory_entry(delivery, inflight.seq),
            None => Some(SessionEntry {
                message: RecordPosition(0),
                seq: inflight.seq,
                qos: mqtt::QoS::ExactlyOnce,
                retain: false,
                is_released: true,
                size: MessageSize::UNKNOWN,
                group: None,
                identifiers: Vec::new(),
            }),
        });
    }
    entries.extend(
        out.queue
            .iter()
            .filter_map(|delivery| memory_entry(delivery, delivery.seq)),
    );
    let held = session.replays.held_messages();
    entries.extend(
        held.filter(|held| held.qos != mqtt::QoS::AtMostOnce)
            .filter_map(|held| memory_entry(held, 0)),
    );
    entries
}

/// Records the positions of a queue's pages. The page records stay where they are.
fn write_pages(ledger: &mut PendingRecords, session: SessionKey, pages: &Pages, oldest: &mut Option<RecordPosition>) {
    if !is_planted(Fault::CheckpointForgetsPages) {
        pages.list.iter().for_each(|page| update_oldest(oldest, page.needed()));
    }
    let bytes = pages.write_refs();
    if session.0 != 0 && !bytes.is_empty() {
        let pages = PageRefs::from_written(&bytes);
        ledger.record(&JournalRecord::Pages { session, pages });
    }
}

/// Returns the entries after `behind`, as many as fit into a record. The first part includes all entries in flight.
fn cold_entries(cold: &JournaledQueue, behind: Seq) -> Vec<SessionEntry> {
    let inflight = cold.earlier().iter().filter(|_| behind == 0);
    let tail = cold.tail().into_iter().flat_map(|tail| tail.iter_behind(behind));
    let queue = cold.queue().iter_behind(behind).chain(tail).take(ENTRIES_MAX);
    inflight.chain(queue).map(entry_of).collect()
}

fn memory_entry(delivery: &Delivery, seq: u64) -> Option<SessionEntry> {
    Some(SessionEntry {
        message: delivery.message.place().position()?,
        seq,
        qos: delivery.qos,
        retain: delivery.retain,
        is_released: false,
        size: delivery.message.size(),
        group: delivery.tag.group_key(),
        identifiers: delivery.tag.identifiers().to_vec(),
    })
}

pub(crate) fn update_oldest(oldest: &mut Option<RecordPosition>, position: RecordPosition) {
    *oldest = Some(oldest.map_or(position, |oldest| oldest.min(position)));
}
