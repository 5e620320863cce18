//! From the journal's records to the state: what the broker starts with.
//!
//! Records come in the order of the journal, from the beginning of a checkpoint on or from any place before it; the result is the
//! same. A checkpoint is written while the broker works: its records stand among others, and each speaks of the moment at which it
//! was written. So a record about a session or group that has not been met is passed over: what it says is in the snapshot that is
//! still to come, or is about one that has ended. Groups are an exception (`groups.rs`).
//!
//! A checkpoint that was not finished does no harm: a session or group that has been met already keeps its queue.
//!
//! What the writer of checkpoints has to see to:
//! - `Checkpoint` is the first record of one.
//! - It counts only when all messages before it have been routed: nothing in it says which have not.
//! - A shard writes the snapshot of a group after it has read all mail that was sent before the `Checkpoint` record.
//! - What is on its way from a group to a member is in the group's `GroupEntries`, unless it is `Queued` already. It may be there
//!   in any case.
//! - A part of a long queue is as long as a record may be: what is newer than the part is moved once for each.
//!
//! No I/O and no clock. Memory is that of the result, 16 bytes for each entry of a queue that is not in a page; nothing is kept per
//! message.

mod groups;
mod order;
mod pages;
mod recovered;
mod sessions;
mod table;
mod tag;
mod unrouted;

use std::collections::BTreeMap;

use foldhash::quality::RandomState;

pub use recovered::{
    Recovered, RecoveredGroup, RecoveredRetained, RecoveredSession, RecoveredSubscription, RecoveredTerms,
    RecoveredWill, Tags, Unrouted,
};
pub use tag::{FullTag, StoredTag};

use crate::durable::entry::StoredEntry;
use crate::durable::record::{
    Entry, MessageRecord, NotARecord, Position, Recipient, Record, SessionKey, Target, Targets,
};
use crate::id_table::hash_text;
use groups::Groups;
use sessions::Sessions;
use table::Table;
use unrouted::Routes;

/// The state as far as the records say.
#[derive(Default)]
pub struct Recovery {
    sessions: Sessions,
    groups: Groups,
    retained: RetainedTopics,
    delayed: BTreeMap<Position, u64>,
    routes: Routes,
    shards: u16,
    last_key: u64,
    told_unix_ms: u64,
}

/// The journal has a record that makes no sense here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryError {
    pub position: Position,
    pub source: NotARecord,
}

impl std::fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the record at {} of the journal makes no sense", self.position.0)
    }
}

impl std::error::Error for RecoveryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Recovery {
    pub fn new() -> Recovery {
        Recovery::default()
    }

    /// Takes the next record, which stands at `position`. After an error the state is of no use.
    pub fn record(&mut self, position: Position, bytes: &[u8]) -> Result<(), RecoveryError> {
        let result = Record::read_at(position, bytes).and_then(|record| self.apply(position, record));
        result.map_err(|source| RecoveryError { position, source })
    }

    /// What is left after the last record.
    pub fn finish(self) -> Recovered {
        let (sessions, numbered) = self.sessions.into_list();
        let mut recovered = Recovered {
            sessions,
            numbered,
            groups: self.groups.into_list(),
            retained: self.retained.into_list(),
            delayed: self.delayed.into_iter().collect(),
            unrouted: self.routes.into_list(),
            shards: self.shards,
            last_key: self.last_key,
            lowest: None,
            told_unix_ms: self.told_unix_ms,
        };
        recovered.lowest = recovered.messages().min();
        recovered
    }

    fn apply(&mut self, position: Position, record: Record<'_>) -> Result<(), NotARecord> {
        match record {
            Record::Message(message) => return self.message(position, &message),
            Record::Queued { message, targets } => return self.queue(message, targets),
            Record::Settled(items) => {
                for item in items.iter() {
                    self.sessions.settle(item?);
                }
            }
            Record::Routed { by, from, up_to } => return self.routes.routed(by, from, up_to),
            Record::Retained {
                message,
                expires_unix_ms,
                topic,
            } => self.retained.set(topic, message, expires_unix_ms),
            Record::RetainedGone { topic } => self.retained.clear(topic),
            Record::Delayed { message, due_unix_ms } => _ = self.delayed.insert(message, due_unix_ms),
            Record::DelayedDone { message } => _ = self.delayed.remove(&message),
            // Who waits for it finds that when it reads it.
            Record::Lost => {}
            Record::Boot { .. } | Record::Checkpoint { .. } => self.node_record(&record),
            Record::Group { .. }
            | Record::GroupEntries { .. }
            | Record::GroupEnded { .. }
            | Record::Returned { .. }
            | Record::GroupDropped { .. } => return self.group_record(position, record),
            _ => return self.session_record(position, record),
        }
        Ok(())
    }

    fn message(&mut self, position: Position, message: &MessageRecord<'_>) -> Result<(), NotARecord> {
        self.queue(position, message.targets)?;
        self.routes.message(message.shard, position, message.others)?;
        if let Some((publisher, packet_id)) = message.publisher
            && let Some(session) = self.sessions.find(publisher)
        {
            session.receive(packet_id);
        }
        if let Some(due_unix_ms) = message.due_unix_ms {
            self.delayed.insert(position, due_unix_ms);
        }
        match message.retained {
            None => {}
            Some(_) if message.payload.is_empty() => self.retained.clear(message.topic),
            Some(terms) => self.retained.set(message.topic, position, terms.expires_unix_ms),
        }
        Ok(())
    }

    fn queue(&mut self, message: Position, targets: Targets<'_>) -> Result<(), NotARecord> {
        for target in targets.iter() {
            let target = target?;
            match target.to {
                Recipient::Group(group) => self.groups.hold(group, message)?,
                Recipient::Session(session) => {
                    if let Some(group) = target.group {
                        self.groups.take(group, message)?;
                    }
                    self.sessions.queue(session, entry_of(message, target))?;
                }
            }
        }
        Ok(())
    }

    fn node_record(&mut self, record: &Record<'_>) {
        let (Record::Boot {
            unix_ms,
            shards,
            last_key,
        }
        | Record::Checkpoint {
            unix_ms,
            shards,
            last_key,
        }) = *record
        else {
            return;
        };
        self.tell(unix_ms);
        self.see_key(last_key);
        self.shards = shards;
        if let Record::Boot { .. } = record {
            self.sessions.all_away(self.told_unix_ms);
            // The node has routed all that was left to be, or says so right before this record.
            self.routes.forget();
        }
    }

    fn session_record(&mut self, position: Position, record: Record<'_>) -> Result<(), NotARecord> {
        match &record {
            Record::Session(session) => {
                self.tell(session.created_unix_ms);
                self.tell(session.left_unix_ms.unwrap_or(0));
                self.see_key(session.session.0);
                self.sessions.meet(session)
            }
            Record::Entries { session, entries } => self.sessions.queue_all(*session, entries.iter()),
            Record::Page { session, entries } => self.sessions.page(*session, position, *entries),
            Record::Unpaged { session, entries } => self.sessions.unpage(*session, *entries),
            Record::Pages { session, pages } => self.sessions.set_pages(*session, *pages),
            Record::Unheld { session, message } => {
                self.sessions.give_back(*session, 0, *message);
                Ok(())
            }
            Record::Ended { session } => {
                self.sessions.end(*session);
                Ok(())
            }
            _ => {
                self.change_session(&record);
                Ok(())
            }
        }
    }

    fn change_session(&mut self, record: &Record<'_>) {
        if let Record::Disconnected { unix_ms, .. } = record {
            self.tell(*unix_ms);
        }
        let Some(session) = session_of(record).and_then(|key| self.sessions.find(key)) else {
            return;
        };
        match record {
            Record::Freed { packet_id, .. } => session.free(*packet_id),
            Record::Connected { terms, .. } => {
                session.terms = terms.into();
                session.left_unix_ms = None;
            }
            Record::Disconnected {
                unix_ms,
                expiry_s,
                has_will,
                started,
                ..
            } => {
                session.left_unix_ms = Some(*unix_ms);
                session.terms.expiry_s = *expiry_s;
                session.terms.will.take_if(|_| !has_will);
                session.started = *started;
            }
            Record::WillDone { .. } => session.terms.will = None,
            Record::Subscribed { subscription, .. } => session.subscribe(subscription),
            Record::Unsubscribed { filter, .. } => session.unsubscribe(filter),
            Record::Replayed { filter, .. } => session.replayed(filter),
            _ => {}
        }
    }

    fn group_record(&mut self, position: Position, record: Record<'_>) -> Result<(), NotARecord> {
        match record {
            Record::Group {
                group,
                share_name,
                filter,
            } => {
                self.see_key(group.0);
                self.groups.meet(group, position, share_name, filter);
            }
            Record::GroupEntries { group, messages } => return self.groups.hold_all(group, messages.iter()),
            Record::GroupEnded { group } => self.groups.end(group),
            Record::Returned {
                session,
                seq,
                group,
                message,
            } => {
                self.sessions.give_back(session, seq, message);
                return self.groups.give_back(group, message);
            }
            Record::GroupDropped { group, message } => return self.groups.take(group, message),
            _ => {}
        }
        Ok(())
    }

    fn tell(&mut self, unix_ms: u64) {
        self.told_unix_ms = self.told_unix_ms.max(unix_ms);
    }

    fn see_key(&mut self, key: u64) {
        self.last_key = self.last_key.max(key);
    }
}

impl Recovered {
    /// All messages that something refers to; those of released entries may be gone.
    fn messages(&self) -> impl Iterator<Item = Position> {
        let entries = self.sessions.iter().flat_map(|session| &session.entries);
        let queued = entries.filter(|entry| !entry.is_released()).map(StoredEntry::message);
        let pages = self.sessions.iter().flat_map(|session| session.pages.iter());
        let paged = pages.map(|page| page.at.min(page.oldest));
        let held = self.groups.iter().filter_map(|group| group.messages.front().copied());
        let kept = self.retained.iter().map(|retained| retained.message);
        let delayed = self.delayed.iter().map(|(message, _)| *message);
        let unrouted = self.unrouted.iter().map(|unrouted| unrouted.message);
        queued
            .chain(paged)
            .chain(held)
            .chain(kept)
            .chain(delayed)
            .chain(unrouted)
    }
}

fn entry_of(message: Position, target: Target) -> Entry {
    Entry {
        message,
        seq: target.seq,
        qos: target.qos,
        retain: target.retain,
        is_released: false,
        group: target.group,
        identifiers: target.identifiers,
    }
}

/// The session of those records that change a part of it.
fn session_of(record: &Record<'_>) -> Option<SessionKey> {
    match record {
        Record::Freed { session, .. }
        | Record::Connected { session, .. }
        | Record::Disconnected { session, .. }
        | Record::WillDone { session }
        | Record::Subscribed { session, .. }
        | Record::Unsubscribed { session, .. }
        | Record::Replayed { session, .. } => Some(*session),
        _ => None,
    }
}

/// The retained message of each topic.
#[derive(Default)]
struct RetainedTopics {
    table: Table<RecoveredRetained>,
    /// Clients choose topics.
    hashing: RandomState,
}

impl RetainedTopics {
    fn set(&mut self, topic: &str, message: Position, expires_unix_ms: Option<u64>) {
        let hash = hash_topic(&self.hashing, topic);
        if let Some(at) = self.table.find(hash, |retained| *retained.topic == *topic) {
            let retained = self.table.get_mut(at);
            (retained.message, retained.expires_unix_ms) = (message, expires_unix_ms);
            return;
        }
        let retained = RecoveredRetained {
            topic: topic.into(),
            message,
            expires_unix_ms,
        };
        self.table.insert(hash, retained);
    }

    fn clear(&mut self, topic: &str) {
        let hash = hash_topic(&self.hashing, topic);
        if let Some(at) = self.table.find(hash, |retained| *retained.topic == *topic) {
            self.table
                .remove(at, |retained| hash_topic(&self.hashing, &retained.topic));
        }
    }

    fn into_list(self) -> Vec<RecoveredRetained> {
        let mut list = self.table.into_items();
        list.sort_unstable_by(|a, b| a.message.cmp(&b.message).then_with(|| a.topic.cmp(&b.topic)));
        list
    }
}

fn hash_topic(hashing: &RandomState, topic: &str) -> u32 {
    (hash_text(hashing, topic.as_bytes()) >> 32) as u32
}

#[cfg(test)]
mod tests;
