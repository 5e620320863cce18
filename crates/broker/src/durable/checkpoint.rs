//! Writing all that is durable to the journal once more, so that replay can begin there and what is older can go.
//!
//! A walk over groups, retained and delayed messages, then sessions, a part of each tick, while the shard works on: each record
//! speaks of the moment at which it is written, and what happens later has records of its own behind it. Messages themselves stay
//! where they are; the walk says which is the oldest that anything refers to.
//!
//! It begins when every other shard has begun and all that they had sent before has come (`Letter::Barrier`), so that what is on its
//! way between shards is either behind the beginning of the checkpoint or in it.

use std::sync::Arc;

use crate::durable::keep::session_record;
use crate::durable::ledger::Ledger;
use crate::durable::record::{Entries, Entry, GroupKey, Position, Positions, Record, SessionKey};
use crate::effect::Now;
use crate::mail::Letter;
use crate::message::Message;
use crate::outgoing::{Delivery, Tag};
use crate::retained::{ScanBudget, ScanCursor};
use crate::session::Session;
use crate::shard::Shard;

/// Bytes of records in one tick: some hundred microseconds of work.
const STEP_BYTES: usize = 128 * 1024;

/// Entries of one record: a queue may have millions.
const ENTRIES_MAX: usize = 4096;

const SCAN: ScanBudget = ScanBudget {
    matches_max: 512,
    steps_max: 4096,
};

pub struct Walk {
    at: At,
    oldest: Option<Position>,
}

enum At {
    /// Waiting for the others to begin.
    Barrier,
    Groups(u32),
    Retained(Option<ScanCursor>),
    Delayed(usize),
    Sessions(u32),
}

/// What a finished checkpoint of a shard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpointed {
    /// The oldest message that anything of the shard refers to.
    pub oldest: Option<Position>,
}

impl Shard {
    /// Begins a checkpoint; every shard of the node has to, and none twice before all have finished.
    pub fn begin_checkpoint(&mut self, now: Now) {
        if self.core.ledger.is_none() {
            return;
        }
        self.walk = Some(Box::new(Walk {
            at: At::Barrier,
            oldest: None,
        }));
        for other in (0..self.core.shards).filter(|other| *other != self.core.id.0) {
            self.mail_out[usize::from(other)].letter(Letter::Barrier);
        }
        let (shards, last_key) = (self.core.shards, self.core.last_key());
        self.core.record(&Record::Checkpoint {
            unix_ms: now.unix_ms,
            shards,
            last_key,
        });
    }

    /// Goes on with a checkpoint. To be called at the beginning of a tick, when all that was recorded before has been appended.
    /// Says what it came to when it has finished: its last records are in the batch of this tick.
    pub fn walk_on(&mut self, now: Now) -> Option<Checkpointed> {
        let mut walk = self.walk.take()?;
        if matches!(walk.at, At::Barrier) {
            if self.barriers + 1 < self.core.shards {
                self.walk = Some(walk);
                return None;
            }
            self.barriers -= self.core.shards - 1;
            walk.at = At::Groups(0);
        }
        let limit = self.batch_bytes() + STEP_BYTES;
        while self.batch_bytes() < limit {
            if self.step(now, &mut walk) {
                return Some(Checkpointed { oldest: walk.oldest });
            }
        }
        self.walk = Some(walk);
        None
    }

    /// Whether there is more to do for a checkpoint without being woken.
    pub fn is_walking(&self) -> bool {
        self.walk.as_ref().is_some_and(|walk| !matches!(walk.at, At::Barrier)) || self.is_at_barrier()
    }

    fn is_at_barrier(&self) -> bool {
        let is_waiting = self.walk.as_ref().is_some_and(|walk| matches!(walk.at, At::Barrier));
        is_waiting && self.barriers + 1 >= self.core.shards
    }

    fn batch_bytes(&self) -> usize {
        self.core.ledger.as_ref().map_or(usize::MAX, |ledger| ledger.batch.len())
    }

    /// One group, a few retained messages, or one session. True at the end.
    fn step(&mut self, now: Now, walk: &mut Walk) -> bool {
        walk.at = match std::mem::replace(&mut walk.at, At::Barrier) {
            At::Barrier => return true,
            At::Groups(index) if (index as usize) < self.groups.slots() => {
                self.write_group(index, &mut walk.oldest);
                At::Groups(index + 1)
            }
            At::Groups(_) => At::Retained(None),
            At::Retained(cursor) => match self.write_retained(now, cursor, &mut walk.oldest) {
                Some(cursor) => At::Retained(Some(cursor)),
                None => At::Delayed(0),
            },
            At::Delayed(index) if index < self.delayed.len() => {
                self.write_delayed(now, index, &mut walk.oldest);
                At::Delayed(index + 1)
            }
            At::Delayed(_) => At::Sessions(0),
            At::Sessions(slot) if (slot as usize) < self.core.sessions.len() => {
                self.write_session(slot, &mut walk.oldest);
                At::Sessions(slot + 1)
            }
            At::Sessions(_) => return true,
        };
        false
    }

    fn write_group(&mut self, index: u32, oldest: &mut Option<Position>) {
        let Some(group) = self.groups.get_mut(index).filter(|group| group.is_durable()) else {
            return;
        };
        let Some(ledger) = &mut self.core.ledger else { return };
        ledger.record(&Record::Group {
            group: group.key,
            share_name: &group.share_name,
            filter: &group.filter,
        });
        let mut bytes = Vec::new();
        for position in group.queue.iter().filter_map(|message| message.place().position()) {
            position.put(&mut bytes);
            note(oldest, position);
        }
        if !bytes.is_empty() {
            let messages = Positions::from_written(&bytes);
            let group = group.key;
            ledger.record(&Record::GroupEntries { group, messages });
        }
    }

    fn write_retained(
        &mut self,
        now: Now,
        cursor: Option<ScanCursor>,
        oldest: &mut Option<Position>,
    ) -> Option<ScanCursor> {
        let Some(ledger) = &mut self.core.ledger else { return None };
        let each = |topic: &str, message: &Arc<Message>| {
            let Some(position) = message.place().position() else {
                return;
            };
            note(oldest, position);
            let expires_unix_ms = message.publication().expires_at_ms.map(|at| now.unix_at(at));
            ledger.record(&Record::Retained {
                message: position,
                expires_unix_ms,
                topic,
            });
        };
        self.retained.scan_every(cursor, now.monotonic_ms, SCAN, each)
    }

    fn write_delayed(&mut self, now: Now, index: usize, oldest: &mut Option<Position>) {
        let Some((message, due_ms)) = &self.delayed[index] else { return };
        let Some(position) = message.place().position() else { return };
        note(oldest, position);
        let due_unix_ms = now.unix_at(*due_ms);
        self.core.record(&Record::Delayed {
            message: position,
            due_unix_ms,
        });
    }

    fn write_session(&mut self, slot: u32, oldest: &mut Option<Position>) {
        let Some(session) = self.core.sessions[slot as usize].as_deref() else {
            return;
        };
        let entries = entries_of(session, oldest);
        if session.key.0 == 0 {
            // What it has in the journal only is needed as long as it is connected, and no longer.
            return;
        }
        let Some(ledger) = &mut self.core.ledger else { return };
        ledger.record(&Record::Session(session_record(session)));
        for part in entries.chunks(ENTRIES_MAX) {
            write_entries(ledger, session.key, part);
        }
    }
}

fn write_entries(ledger: &mut Ledger, session: SessionKey, part: &[Entry]) {
    let mut bytes = Vec::with_capacity(part.len() * 16);
    for entry in part {
        entry.put(&mut bytes);
    }
    let entries = Entries::from_written(&bytes);
    ledger.record(&Record::Entries { session, entries });
}

/// All that a session is still to be sent, and what is held.
fn entries_of(session: &Session, oldest: &mut Option<Position>) -> Vec<Entry> {
    let out = &session.outgoing;
    let mut entries = Vec::with_capacity(out.unacknowledged() + out.queued());
    for inflight in &out.inflight {
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
    entries.extend(out.queue.iter().filter_map(|delivery| warm_entry(delivery, delivery.seq)));
    if let Some(cold) = &out.cold {
        for entry in cold.inflight.iter().chain(&cold.queue) {
            let tag = cold.tags.get(&entry.seq());
            entries.push(entry.to_entry(tag, tag.and_then(group_key)));
        }
    }
    entries.extend(session.replays.held_messages().filter_map(|delivery| warm_entry(delivery, 0)));
    for entry in entries.iter().filter(|entry| !entry.is_released) {
        note(oldest, entry.message);
    }
    entries
}

fn warm_entry(delivery: &Delivery, seq: u64) -> Option<Entry> {
    Some(Entry {
        message: delivery.message.place().position()?,
        seq,
        qos: delivery.qos,
        retain: delivery.retain,
        is_released: false,
        group: group_key(&delivery.tag),
        identifiers: delivery.tag.identifiers().to_vec(),
    })
}

fn group_key(tag: &Tag) -> Option<GroupKey> {
    tag.group().map(|group| group.key).filter(|key| key.0 != 0)
}

fn note(oldest: &mut Option<Position>, position: Position) {
    *oldest = Some(oldest.map_or(position, |oldest| oldest.min(position)));
}
