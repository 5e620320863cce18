//! Rebuilds the broker's state from the records of the journal.
//!
//! Records arrive in journal order, starting at a checkpoint or at any position before it, with the same result. A
//! checkpoint is written while the broker works, so its records are mixed with others. A record of an unknown session
//! or group is skipped: either its effect is part of a snapshot that follows, or the session or group has ended. Groups
//! are an exception (`groups.rs`).
//!
//! An unfinished checkpoint is harmless: a session or group that is already known keeps its queue.
//!
//! Requirements for the writer of checkpoints:
//! - `Checkpoint` is the first record.
//! - The checkpoint is valid only after all earlier messages have been routed, because it does not list unrouted
//!   messages.
//! - A shard writes the snapshot of a group after it has read all mail that was sent before the `Checkpoint` record.
//! - A message on its way from a group to a member is in the group's `GroupEntries` unless it has been `Queued`. It may
//!   be there in any case.
//! - Parts of a long queue should be as long as a record may be, because each part moves the newer entries once.
//!
//! No I/O and no clock. Memory use is that of the result, plus 16 bytes for each queue entry outside a page; nothing is
//! stored per message.

mod groups;
mod order;
mod pages;
mod recovered;
mod sessions;
mod table;
mod tag;
mod unrouted;

use std::collections::{BTreeMap, HashMap};

use foldhash::quality::RandomState;

pub use recovered::{
    RecoveredGroup, RecoveredRetained, RecoveredSession, RecoveredState, RecoveredSubscription, RecoveredTerms,
    RecoveredWill, Tags, Unrouted,
};
pub use tag::{FullRecoveryTag, StoredTag};

use crate::durable::entry::StoredEntry;
use crate::durable::record::{
    JournalRecord, MessageRecord, NotARecord, Recipient, RecordPosition, RecordTarget, SessionEntry, SessionKey,
    SizedMessage, Targets,
};
use crate::id_table::hash_text;
use crate::message::stored_bytes_of;
use crate::message_size::MessageSize;
use groups::RecoveringGroups;
use sessions::RecoveringSessions;
use table::RecoveryTable;
use unrouted::UnroutedTable;

/// State after the records read so far.
#[derive(Default)]
pub struct Recovery {
    sessions: RecoveringSessions,
    groups: RecoveringGroups,
    retained: RetainedTopics,
    delayed: BTreeMap<RecordPosition, u64>,
    routes: UnroutedTable,
    shards: u16,
    last_key: u64,
    latest_unix_ms: u64,
    /// The latest `Time` record: its time, and how far the system's clock was ahead.
    latest_clock: (u64, u64),
}

/// The journal contains a record that is invalid at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryError {
    pub position: RecordPosition,
    pub source: NotARecord,
}

impl std::fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the journal record at position {} is invalid", self.position.0)
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

    /// Applies the next record, which is at `position`. After an error the state must not be used.
    pub fn record(&mut self, position: RecordPosition, bytes: &[u8]) -> Result<(), RecoveryError> {
        let result = JournalRecord::read_at(position, bytes).and_then(|record| self.apply(position, record));
        result.map_err(|source| RecoveryError { position, source })
    }

    /// Returns the state after the last record.
    pub fn finish(self) -> RecoveredState {
        let (sessions, numbered) = self.sessions.into_list();
        let mut recovered = RecoveredState {
            sessions,
            numbered,
            groups: self.groups.into_list(),
            retained: self.retained.into_list(),
            delayed: self.delayed.into_iter().collect(),
            unrouted: self.routes.into_list(),
            shards: self.shards,
            last_key: self.last_key,
            lowest: None,
            latest_unix_ms: self.latest_unix_ms,
            clock_ahead_ms: self.latest_clock.1,
        };
        recovered.lowest = recovered.messages().min();
        recovered
    }

    fn apply(&mut self, position: RecordPosition, record: JournalRecord<'_>) -> Result<(), NotARecord> {
        match record {
            JournalRecord::Message(message) => return self.message(position, &message),
            JournalRecord::Queued { message, size, targets } => {
                let message = SizedMessage {
                    position: message,
                    size,
                };
                return self.queue(message, targets);
            }
            JournalRecord::Settled(items) => {
                for item in items.iter() {
                    self.sessions.acknowledge(item?);
                }
            }
            JournalRecord::Routed { by, from, up_to } => return self.routes.routed(by, from, up_to),
            JournalRecord::Retained {
                message,
                expires_unix_ms,
                topic,
            } => self.retained.set(topic, message, expires_unix_ms),
            JournalRecord::RetainedCleared { topic } => self.retained.clear(topic),
            JournalRecord::Delayed { message, due_unix_ms } => _ = self.delayed.insert(message, due_unix_ms),
            JournalRecord::DelayedDone { message } => _ = self.delayed.remove(&message),
            // The session or group that needs the message finds the damage when it reads it.
            JournalRecord::Damaged => {}
            JournalRecord::Boot { .. } | JournalRecord::Checkpoint { .. } => self.node_record(&record),
            JournalRecord::Time { unix_ms, ahead_ms } => {
                self.observe_time(unix_ms);
                // Shards can append their records in another order.
                self.latest_clock = self.latest_clock.max((unix_ms, ahead_ms));
            }
            JournalRecord::Group { .. }
            | JournalRecord::GroupEntries { .. }
            | JournalRecord::GroupEnded { .. }
            | JournalRecord::Returned { .. }
            | JournalRecord::GroupDropped { .. } => return self.group_record(position, record),
            _ => return self.session_record(position, record),
        }
        Ok(())
    }

    fn message(&mut self, position: RecordPosition, message: &MessageRecord<'_>) -> Result<(), NotARecord> {
        let size = size_of(message);
        self.queue(SizedMessage { position, size }, message.targets)?;
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

    fn queue(&mut self, message: SizedMessage, targets: Targets<'_>) -> Result<(), NotARecord> {
        for target in targets.iter() {
            let target = target?;
            match target.to {
                Recipient::Group(group) => self.groups.add_message(group, message)?,
                Recipient::Session(session) => {
                    if let Some(group) = target.group {
                        self.groups.remove_message(group, message.position)?;
                    }
                    self.sessions.queue(session, entry_of(message, target))?;
                }
            }
        }
        Ok(())
    }

    fn node_record(&mut self, record: &JournalRecord<'_>) {
        let (JournalRecord::Boot {
            unix_ms,
            shards,
            last_key,
        }
        | JournalRecord::Checkpoint {
            unix_ms,
            shards,
            last_key,
        }) = *record
        else {
            return;
        };
        self.observe_time(unix_ms);
        self.observe_key(last_key);
        self.shards = shards;
        if let JournalRecord::Boot { .. } = record {
            self.sessions.disconnect_all(self.latest_unix_ms);
            // The node has routed all outstanding messages, or records so right before this record.
            self.routes.clear();
        }
    }

    fn session_record(&mut self, position: RecordPosition, record: JournalRecord<'_>) -> Result<(), NotARecord> {
        match &record {
            JournalRecord::Session(session) => {
                self.observe_time(session.left_unix_ms.unwrap_or(0));
                self.observe_key(session.session.0);
                self.sessions.add_snapshot(session)
            }
            JournalRecord::Entries { session, entries } => self.sessions.queue_all(*session, entries.iter()),
            JournalRecord::Page { session, entries } => self.sessions.page(*session, position, *entries),
            JournalRecord::PageLoaded { session, entries } => self.sessions.load_page(*session, *entries),
            JournalRecord::Pages { session, pages } => self.sessions.set_pages(*session, *pages),
            JournalRecord::HeldDropped { session, message } => {
                self.sessions.return_to_group(*session, 0, *message);
                Ok(())
            }
            JournalRecord::Ended { session } => {
                self.sessions.end(*session);
                Ok(())
            }
            _ => {
                self.change_session(&record);
                Ok(())
            }
        }
    }

    fn change_session(&mut self, record: &JournalRecord<'_>) {
        if let JournalRecord::Disconnected { unix_ms, .. } = record {
            self.observe_time(*unix_ms);
        }
        let Some(session) = session_of(record).and_then(|key| self.sessions.find(key)) else {
            return;
        };
        match record {
            JournalRecord::PacketIdFreed { packet_id, .. } => session.free(*packet_id),
            JournalRecord::Connected { terms, .. } => {
                session.terms = terms.into();
                session.left_unix_ms = None;
            }
            JournalRecord::Disconnected {
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
            JournalRecord::WillPublished { .. } => session.terms.will = None,
            JournalRecord::Subscribed { subscription, .. } => session.subscribe(subscription),
            JournalRecord::Unsubscribed { filter, .. } => session.unsubscribe(filter),
            JournalRecord::Replayed { filter, .. } => session.replayed(filter),
            _ => {}
        }
    }

    fn group_record(&mut self, position: RecordPosition, record: JournalRecord<'_>) -> Result<(), NotARecord> {
        match record {
            JournalRecord::Group {
                group,
                share_name,
                filter,
            } => {
                self.observe_key(group.0);
                self.groups.add_snapshot(group, position, share_name, filter);
            }
            JournalRecord::GroupEntries { group, messages } => return self.groups.add_messages(group, messages.iter()),
            JournalRecord::GroupEnded { group } => self.groups.end(group),
            JournalRecord::Returned {
                session,
                seq,
                group,
                message,
                size,
            } => {
                self.sessions.return_to_group(session, seq, message);
                let message = SizedMessage {
                    position: message,
                    size,
                };
                return self.groups.return_to_group(group, message);
            }
            JournalRecord::GroupDropped { group, message } => return self.groups.remove_message(group, message),
            _ => {}
        }
        Ok(())
    }

    fn observe_time(&mut self, unix_ms: u64) {
        self.latest_unix_ms = self.latest_unix_ms.max(unix_ms);
    }

    fn observe_key(&mut self, key: u64) {
        self.last_key = self.last_key.max(key);
    }
}

impl RecoveredState {
    /// Ends sessions whose client has a newer one, and returns their number. Only a log with lost records has them: the
    /// record that the older session ended is missing. No client could connect to that session.
    pub fn end_replaced_sessions(&mut self) -> usize {
        let mut newest: HashMap<Box<str>, SessionKey> = HashMap::new();
        for session in &self.sessions {
            let key = newest.entry(session.client_id.clone()).or_insert(session.key);
            *key = session.key.max(*key);
        }
        let before = self.sessions.len();
        self.sessions
            .retain(|session| newest.get(&session.client_id) == Some(&session.key));
        before - self.sessions.len()
    }

    /// Returns all messages that something refers to. Those of released entries may have been deleted.
    fn messages(&self) -> impl Iterator<Item = RecordPosition> {
        let entries = self.sessions.iter().flat_map(|session| &session.entries);
        let queued = entries.filter(|entry| !entry.is_released()).map(StoredEntry::message);
        let pages = self.sessions.iter().flat_map(|session| session.pages.iter());
        let paged = pages.map(|page| page.at.min(page.oldest));
        let held = self.groups.iter().filter_map(|group| group.messages.front());
        let held = held.map(|message| message.position);
        let retained = self.retained.iter().map(|retained| retained.message);
        let delayed = self.delayed.iter().map(|(message, _)| *message);
        let unrouted = self.unrouted.iter().map(|unrouted| unrouted.message);
        queued
            .chain(paged)
            .chain(held)
            .chain(retained)
            .chain(delayed)
            .chain(unrouted)
    }
}

/// Returns the size of a message in a queue.
fn size_of(message: &MessageRecord<'_>) -> MessageSize {
    let MessageRecord {
        topic,
        properties,
        payload,
        provenance,
        ..
    } = *message;
    MessageSize::of(stored_bytes_of(topic, properties, payload, provenance))
}

fn entry_of(message: SizedMessage, target: RecordTarget) -> SessionEntry {
    SessionEntry {
        message: message.position,
        size: message.size,
        seq: target.seq,
        qos: target.qos,
        retain: target.retain,
        is_released: false,
        group: target.group,
        identifiers: target.identifiers,
    }
}

/// Returns the session of a record that changes a part of a session.
fn session_of(record: &JournalRecord<'_>) -> Option<SessionKey> {
    match record {
        JournalRecord::PacketIdFreed { session, .. }
        | JournalRecord::Connected { session, .. }
        | JournalRecord::Disconnected { session, .. }
        | JournalRecord::WillPublished { session }
        | JournalRecord::Subscribed { session, .. }
        | JournalRecord::Unsubscribed { session, .. }
        | JournalRecord::Replayed { session, .. } => Some(*session),
        _ => None,
    }
}

/// The retained message of each topic.
#[derive(Default)]
struct RetainedTopics {
    table: RecoveryTable<RecoveredRetained>,
    /// Topics are chosen by clients, so the hash needs a secret seed.
    hashing: RandomState,
}

impl RetainedTopics {
    fn set(&mut self, topic: &str, message: RecordPosition, expires_unix_ms: Option<u64>) {
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
