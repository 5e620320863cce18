//! Writing all that is durable to the journal once more, so that replay can begin there and what is older can go.
//!
//! A walk over groups, retained and delayed messages, then sessions, a part of each tick, while the shard works on: each record
//! speaks of the moment at which it is written, and what happens later has records of its own behind it. Messages themselves stay
//! where they are; the walk says which is the oldest that anything refers to.
//!
//! It begins when every other shard has begun and all that they had sent before has come (`Letter::Barrier`), and has ended when the
//! same is true of their ends: what is on its way between shards is in the checkpoint or has a record behind it.

use std::sync::Arc;

use mqtt::QoS;

use crate::deliver::Core;
use crate::durable::cold::Cold;
use crate::durable::entry_list::entry_of;
use crate::durable::keep::session_record;
use crate::durable::ledger::Ledger;
use crate::durable::moves::{MovePart, Moves};
use crate::durable::pages::Pages;
use crate::durable::record::{
    Entries, Entry, GroupKey, PageRefs, Position, Positions, Record, Seq, SessionKey, Targets, WITH_TAP,
};
use crate::effect::Now;
use crate::fault::{Fault, is_planted};
use crate::mail::Letter;
use crate::message::Message;
use crate::outgoing::Delivery;
use crate::retained::{ScanBudget, ScanCursor};
use crate::session::Session;
use crate::shard::Shard;

/// Bytes of records in one tick: some hundred microseconds of work.
const STEP_BYTES: usize = 128 * 1024;

/// Entries of one record: a queue may have millions.
const ENTRIES_MAX: usize = 4096;

/// Sessions that are looked at in one tick, where there is hardly ever anything to do.
const SLOTS: u32 = 16 * 1024;

const SCAN: ScanBudget = ScanBudget {
    matches_max: 512,
    steps_max: 4096,
};

pub struct Walk {
    at: At,
    oldest: Option<Position>,
    /// That it has written.
    bytes: u64,
    pub(super) moves: Moves,
}

#[derive(Clone, Debug)]
enum At {
    /// Waiting for the others to begin.
    Begin,
    /// Sessions that hold messages which are to be moved.
    Holding(u32),
    Groups(u32),
    /// In the queue of a group, behind this number.
    Held {
        index: u32,
        epoch: u32,
        behind: Seq,
    },
    Retained(Option<ScanCursor>),
    Delayed(usize),
    Sessions(u32),
    /// In the queue of a session, behind this entry.
    Queue {
        slot: u32,
        session: SessionKey,
        behind: Seq,
        /// `Outgoing::cooled` when it was begun.
        cooled: u32,
    },
    /// Waiting for the others to end.
    End,
}

/// What a finished checkpoint of a shard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpointed {
    /// The oldest message that anything of the shard refers to.
    pub oldest: Option<Position>,
    /// What it has written, without messages that were moved.
    pub bytes: u64,
    /// The bytes of those.
    pub moved_bytes: u64,
}

impl Shard {
    /// Begins a checkpoint; every shard of the node has to, and none twice before all have finished. Messages of `part` that
    /// somebody still waits for are written once more, so that the journal need not be kept for them.
    pub fn begin_checkpoint(&mut self, now: Now, part: MovePart) {
        if self.core.ledger.is_none() {
            return;
        }
        debug_assert_eq!(self.batch_bytes(), 0, "what was recorded before has been appended");
        self.walk = Some(Box::new(Walk {
            at: At::Begin,
            oldest: None,
            bytes: 0,
            moves: Moves::new(part),
        }));
        if let Some(ledger) = &mut self.core.ledger {
            ledger.oldest_mentioned = None;
        }
        self.send_barrier(false);
        self.record_checkpoint(now);
    }

    fn record_checkpoint(&mut self, now: Now) {
        let (shards, last_key) = (self.core.shards, self.core.last_key());
        self.core.record(&Record::Checkpoint {
            unix_ms: now.unix_ms,
            shards,
            last_key,
        });
    }

    fn send_barrier(&mut self, is_end: bool) {
        for other in (0..self.core.shards).filter(|other| *other != self.core.id.0) {
            self.mail_out[usize::from(other)].letter(Letter::Barrier { is_end });
        }
    }

    /// Whether all others have got as far.
    fn may_pass(&self, is_end: bool) -> bool {
        self.barriers[usize::from(is_end)] + 1 >= self.core.shards
    }

    fn pass(&mut self, is_end: bool) {
        self.barriers[usize::from(is_end)] -= self.core.shards - 1;
    }

    /// Goes on with a checkpoint. To be called at the beginning of a tick, when all that was recorded before has been appended.
    /// Says what it came to when it has ended: it is good when the batch of this tick is kept.
    pub fn walk_on(&mut self, now: Now) -> Option<Checkpointed> {
        if !self.is_walking() {
            return None;
        }
        let mut walk = self.walk.take()?;
        debug_assert!(
            self.batch_bytes() == 0 || matches!(walk.at, At::Begin),
            "what was recorded before has been appended"
        );
        match walk.at {
            At::Begin => {
                self.pass(false);
                walk.at = At::Holding(0);
            }
            At::End => {
                self.pass(true);
                // So that there is a batch which is the last of the checkpoint.
                self.record_checkpoint(now);
                let mentioned = self.core.ledger.as_ref().and_then(|ledger| ledger.oldest_mentioned);
                let oldest = walk.oldest.into_iter().chain(mentioned).min();
                let oldest = oldest.filter(|_| !is_planted(Fault::CheckpointForgetsOldest));
                return Some(Checkpointed {
                    oldest,
                    bytes: walk.bytes.saturating_sub(walk.moves.bytes),
                    moved_bytes: walk.moves.written,
                });
            }
            _ => {}
        }
        let before = self.batch_bytes();
        let limit = before + STEP_BYTES;
        let mut steps = 0;
        while self.batch_bytes() < limit && steps < SLOTS && !matches!(walk.at, At::End) {
            steps += 1;
            if self.must_wait_for_moves(&mut walk) {
                break;
            }
            walk.at = self.step(now, &mut walk);
            match walk.at {
                At::End => self.send_barrier(true),
                At::Holding(_) => break,
                _ => {}
            }
        }
        walk.bytes += (self.batch_bytes() - before) as u64;
        self.walk = Some(walk);
        None
    }

    /// Whether there is something to do for a checkpoint now.
    pub fn is_walking(&self) -> bool {
        self.walk.as_ref().is_some_and(|walk| match walk.at {
            At::Begin => self.may_pass(false),
            At::End => self.may_pass(true),
            _ => !walk.moves.is_fetching(),
        })
    }

    /// What has been recorded and not been appended.
    pub fn batch_bytes(&self) -> usize {
        self.core.ledger.as_ref().map_or(0, |ledger| ledger.batch.len())
    }

    /// Writes one group, a few retained messages, one session or a part of its queue; what comes next.
    fn step(&mut self, now: Now, walk: &mut Walk) -> At {
        let oldest = &mut walk.oldest;
        match walk.at.clone() {
            At::Holding(slot) if walk.moves.is_any_old() && (slot as usize) < self.core.sessions.len() => {
                let end = (slot + SLOTS).min(self.core.sessions.len() as u32);
                (slot..end).for_each(|slot| self.core.release_old(now, slot, &walk.moves));
                At::Holding(end)
            }
            At::Groups(index) if (index as usize) < self.groups.slots() => {
                if self.move_group(now, index, &mut walk.moves) {
                    return At::Groups(index);
                }
                self.write_group(index)
            }
            at @ At::Held { .. } => self.write_held(at, walk),
            At::Begin | At::Holding(_) => At::Groups(0),
            At::Groups(_) => At::Retained(None),
            At::Retained(cursor) => match self.write_retained(now, cursor, oldest, &mut walk.moves) {
                Some(cursor) => At::Retained(Some(cursor)),
                None => At::Delayed(0),
            },
            At::Delayed(index) if index < self.delayed.len() => {
                self.write_delayed(now, index, oldest, &mut walk.moves);
                At::Delayed(index + 1)
            }
            At::Delayed(_) => At::Sessions(0),
            At::Sessions(slot) if (slot as usize) < self.core.sessions.len() => {
                match self.move_session(now, slot, &mut walk.moves) {
                    true => At::Sessions(slot),
                    false => self.write_session(slot),
                }
            }
            at @ At::Queue { .. } => self.write_queue(at, oldest),
            At::Sessions(_) | At::End => At::End,
        }
    }

    /// A group; its queue follows.
    fn write_group(&mut self, index: u32) -> At {
        let Some(group) = self.groups.get_mut(index) else {
            return At::Groups(index + 1);
        };
        if group.is_durable()
            && let Some(ledger) = &mut self.core.ledger
        {
            ledger.record(&Record::Group {
                group: group.key,
                share_name: &group.share_name,
                filter: &group.filter,
            });
        }
        At::Held {
            index,
            epoch: group.epoch,
            behind: 0,
        }
    }

    /// A part of what a group has in the journal only, and at the end what it has in memory: what goes cold meanwhile is met before that.
    /// What is given back meanwhile has a record of its own.
    fn write_held(&mut self, at: At, walk: &mut Walk) -> At {
        let At::Held { index, epoch, behind } = at else {
            return at;
        };
        if self.groups.get_live(index, epoch).is_none() {
            return At::Groups(index + 1);
        }
        if self.move_held(index, behind, ENTRIES_MAX, &mut walk.moves) {
            return at;
        }
        let (Some(group), Some(ledger)) = (self.groups.get_mut(index), &mut self.core.ledger) else {
            return At::Groups(index + 1);
        };
        let part = group.queue.part(behind, ENTRIES_MAX);
        let (next, positions) = match part.last() {
            Some((last, _)) => {
                let next = At::Held {
                    index,
                    epoch,
                    behind: *last,
                };
                (next, part.iter().map(|(_, message)| *message).collect())
            }
            None => {
                let warm = group.queue.warm().filter_map(|message| message.place().position());
                (At::Groups(index + 1), warm.collect::<Vec<_>>())
            }
        };
        if !is_planted(Fault::CheckpointForgetsHeld) {
            positions.iter().for_each(|position| note(&mut walk.oldest, *position));
        }
        ledger.record_held(group.key, &positions);
        next
    }

    fn write_retained(
        &mut self,
        now: Now,
        cursor: Option<ScanCursor>,
        oldest: &mut Option<Position>,
        moves: &mut Moves,
    ) -> Option<ScanCursor> {
        let Some(ledger) = &mut self.core.ledger else {
            return None;
        };
        let each = |topic: &str, message: &Arc<Message>| {
            moves.message(now, ledger, message, Targets::default());
            let place = message.place();
            if let Some(position) = place.position() {
                note(oldest, position);
            }
            let expires_unix_ms = message.publication().expires_at_ms.map(|at| now.unix_at(at));
            ledger.record_of(place, |message| Record::Retained {
                message,
                expires_unix_ms,
                topic,
            });
            // Messages that are moved may be large.
            ledger.batch.len() < STEP_BYTES
        };
        self.retained.scan_every(cursor, now.monotonic_ms, SCAN, each)
    }

    fn write_delayed(&mut self, now: Now, index: usize, oldest: &mut Option<Position>, moves: &mut Moves) {
        let (Some(delayed), Some(ledger)) = (&self.delayed[index], &mut self.core.ledger) else {
            return;
        };
        let message = &delayed.message;
        if let Some(message) = moves.message(now, ledger, message, Targets::default()) {
            // The copy is another message, with a time of its own, if the checkpoint does not come to its end.
            ledger.record(&Record::DelayedDone { message });
        }
        if let Some(position) = message.place().position() {
            note(oldest, position);
        }
        let due_unix_ms = match delayed.is_routed {
            true => WITH_TAP,
            false => now.unix_at(delayed.due_ms),
        };
        ledger.record_of(message.place(), |message| Record::Delayed { message, due_unix_ms });
    }

    /// A session; its queue follows.
    fn write_session(&mut self, slot: u32) -> At {
        let Some(session) = self.core.sessions[slot as usize].as_deref() else {
            return At::Sessions(slot + 1);
        };
        let (key, cooled) = (session.key, session.outgoing.cooled);
        if key.0 != 0
            && let Some(ledger) = &mut self.core.ledger
        {
            ledger.record(&Record::Session(session_record(session)));
        }
        At::Queue {
            slot,
            session: key,
            behind: 0,
            cooled,
        }
    }

    /// A part of what a session has in the journal only, and at the end what it has in memory: what becomes warm meanwhile is met
    /// there. If something has become cold meanwhile, all is written once more: entries that come twice do no harm.
    fn write_queue(&mut self, at: At, oldest: &mut Option<Position>) -> At {
        let At::Queue {
            slot,
            session: key,
            behind,
            cooled,
        } = at
        else {
            return at;
        };
        let session = self.core.sessions[slot as usize].as_deref();
        let Some(session) = session.filter(|session| session.key == key) else {
            return At::Sessions(slot + 1);
        };
        let cold = session.outgoing.cold.as_deref();
        if behind == 0
            && let Some(pages) = cold.and_then(|cold| cold.pages.as_deref())
            && let Some(ledger) = &mut self.core.ledger
        {
            write_pages(ledger, key, pages, oldest);
        }
        let part = cold.map_or(Vec::new(), |cold| cold_entries(cold, behind));
        if let Some(last) = part.last().map(|entry| entry.seq) {
            self.write_entries(key, &part, oldest);
            return At::Queue {
                slot,
                session: key,
                behind: last,
                cooled,
            };
        }
        if session.outgoing.cooled != cooled {
            return At::Queue {
                slot,
                session: key,
                behind: 0,
                cooled: session.outgoing.cooled,
            };
        }
        let warm = warm_entries(session);
        self.write_entries(key, &warm, oldest);
        At::Sessions(slot + 1)
    }

    /// A session that is not durable has what it has only as long as the process lives: nothing is written, but what it may still
    /// read has to stay.
    fn write_entries(&mut self, session: SessionKey, entries: &[Entry], oldest: &mut Option<Position>) {
        for entry in entries.iter().filter(|entry| !entry.is_released) {
            note(oldest, entry.message);
        }
        if session.0 == 0 {
            self.core.record_lent(entries);
        }
        self.core.record_entries(session, entries);
    }
}

impl Ledger {
    /// What a durable group holds.
    pub(super) fn record_held(&mut self, group: GroupKey, positions: &[Position]) {
        if group.0 == 0 {
            return;
        }
        for part in positions.chunks(ENTRIES_MAX) {
            let mut bytes = Vec::with_capacity(part.len() * 8);
            part.iter().for_each(|position| position.put(&mut bytes));
            let messages = Positions::from_written(&bytes);
            self.record(&Record::GroupEntries { group, messages });
        }
    }
}

impl Core {
    /// Groups hold what they have lent to a session that is not durable, whichever shard's record is read first.
    fn record_lent(&mut self, entries: &[Entry]) {
        for entry in entries.iter().filter(|entry| entry.qos == QoS::AtLeastOnce) {
            if let (Some(group), Some(ledger)) = (entry.group, &mut self.ledger) {
                ledger.record(&Record::Returned {
                    session: SessionKey(0),
                    seq: 0,
                    group,
                    message: entry.message,
                });
            }
        }
    }

    /// Says of entries of a durable session where their messages stand.
    pub(super) fn record_entries(&mut self, session: SessionKey, entries: &[Entry]) {
        let Some(ledger) = self.ledger.as_mut().filter(|_| session.0 != 0) else {
            return;
        };
        for part in entries.chunks(ENTRIES_MAX) {
            let mut bytes = Vec::with_capacity(part.len() * 16);
            part.iter().for_each(|entry| entry.put(&mut bytes));
            let entries = Entries::from_written(&bytes);
            ledger.record(&Record::Entries { session, entries });
        }
    }
}

/// What a session is still to be sent and has in memory, and what is held.
fn warm_entries(session: &Session) -> Vec<Entry> {
    let out = &session.outgoing;
    let mut entries = Vec::new();
    let inflight = out.inflight.iter();
    for inflight in inflight.filter(|_| !is_planted(Fault::CheckpointWithoutInflight)) {
        entries.extend(match &inflight.delivery {
            Some(delivery) => warm_entry(delivery, inflight.seq),
            None => Some(Entry {
                message: Position(0),
                seq: inflight.seq,
                qos: mqtt::QoS::ExactlyOnce,
                retain: false,
                is_released: true,
                group: None,
                identifiers: Vec::new(),
            }),
        });
    }
    entries.extend(
        out.queue
            .iter()
            .filter_map(|delivery| warm_entry(delivery, delivery.seq)),
    );
    let held = session.replays.held_messages();
    entries.extend(
        held.filter(|held| held.qos != mqtt::QoS::AtMostOnce)
            .filter_map(|held| warm_entry(held, 0)),
    );
    entries
}

/// Where the pages of a queue are; their entries stay there.
fn write_pages(ledger: &mut Ledger, session: SessionKey, pages: &Pages, oldest: &mut Option<Position>) {
    if !is_planted(Fault::CheckpointForgetsPages) {
        pages.list.iter().for_each(|page| note(oldest, page.needed()));
    }
    let bytes = pages.write_refs();
    if session.0 != 0 && !bytes.is_empty() {
        let pages = PageRefs::from_written(&bytes);
        ledger.record(&Record::Pages { session, pages });
    }
}

/// The entries behind one, as many as make a record; all that is in flight comes with the first of them.
fn cold_entries(cold: &Cold, behind: Seq) -> Vec<Entry> {
    let inflight = cold.inflight.iter().filter(|_| behind == 0);
    let tail = cold.tail().into_iter().flat_map(|tail| tail.iter_behind(behind));
    let queue = cold.queue.iter_behind(behind).chain(tail).take(ENTRIES_MAX);
    inflight.chain(queue).map(entry_of).collect()
}

fn warm_entry(delivery: &Delivery, seq: u64) -> Option<Entry> {
    Some(Entry {
        message: delivery.message.place().position()?,
        seq,
        qos: delivery.qos,
        retain: delivery.retain,
        is_released: false,
        group: delivery.tag.group_key(),
        identifiers: delivery.tag.identifiers().to_vec(),
    })
}

pub(crate) fn note(oldest: &mut Option<Position>, position: Position) {
    *oldest = Some(oldest.map_or(position, |oldest| oldest.min(position)));
}
