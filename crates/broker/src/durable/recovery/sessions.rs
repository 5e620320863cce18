//! Durable sessions during recovery.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::order;
use super::recovered::{RecoveredSession, Tags};
use super::table::RecoveryTable;
use super::tag::StoredTag;
use crate::durable::entry::{SEQ_MAX, StoredEntry};
use crate::durable::record::{
    AcknowledgedEntry, NotARecord, RecordPosition, Seq, SessionEntry, SessionKey, SessionRecord, SubscriptionRecord,
};
use crate::exclusive::EXCLUSIVE;
use crate::session::FilterMap;

#[derive(Default)]
pub(super) struct RecoveringSessions {
    table: RecoveryTable<RecoveredSession>,
    /// Messages that wait for retained messages and have no number yet. They are numbered in order of arrival at the
    /// session. That may differ from the order of positions: a message of another shard is in the journal before it
    /// arrives.
    unnumbered: BTreeMap<(SessionKey, RecordPosition), Unnumbered>,
    /// Messages without a number that have arrived so far.
    arrived: u64,
}

struct Unnumbered {
    arrived: u64,
    entry: SessionEntry,
}

impl RecoveringSessions {
    pub fn find(&mut self, key: SessionKey) -> Option<&mut RecoveredSession> {
        let at = self.table.find(hash(key), |session| session.key == key)?;
        Some(self.table.get_mut(at))
    }

    pub fn add_snapshot(&mut self, record: &SessionRecord<'_>) -> Result<(), NotARecord> {
        check_seq(record.next_seq)?;
        match self.find(record.session) {
            Some(session) => session.refresh(record),
            None => self.table.insert(hash(record.session), RecoveredSession::new(record)),
        }
        Ok(())
    }

    pub fn end(&mut self, key: SessionKey) {
        let unnumbered = self
            .unnumbered
            .range((key, RecordPosition(0))..=(key, RecordPosition(u64::MAX)));
        for name in unnumbered.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.unnumbered.remove(&name);
        }
        if let Some(at) = self.table.find(hash(key), |session| session.key == key) {
            self.table.remove(at, |session| hash(session.key));
        }
    }

    /// Adds a message to a session's queue, or assigns the number of a waiting one.
    pub fn queue(&mut self, key: SessionKey, entry: SessionEntry) -> Result<(), NotARecord> {
        check_seq(entry.seq)?;
        if entry.seq == 0 {
            let is_known = self.unnumbered.contains_key(&(key, entry.message));
            if !is_known {
                self.wait_for_number(key, entry);
            }
            return Ok(());
        }
        self.unnumbered.remove(&(key, entry.message));
        if let Some(session) = self.find(key) {
            session.queue(entry);
        }
        Ok(())
    }

    /// Adds a part of a session's queue, possibly older than the present entries. Entries without a number are the
    /// complete list of that time, in order.
    pub fn queue_all(
        &mut self,
        key: SessionKey,
        entries: impl Iterator<Item = Result<SessionEntry, NotARecord>>,
    ) -> Result<(), NotARecord> {
        let (mut earlier, mut earlier_tags) = (Vec::new(), Vec::new());
        for entry in entries {
            let entry = entry?;
            check_seq(entry.seq)?;
            if entry.seq == 0 {
                self.wait_for_number(key, entry);
                continue;
            }
            let Some(session) = self.find(key) else { continue };
            session.next_seq = session.next_seq.max(entry.seq + 1);
            earlier_tags.extend(session.tags.try_put(&entry));
            earlier.extend(order::try_put(&mut session.entries, StoredEntry::new(&entry)));
        }
        if let Some(session) = self.find(key) {
            earlier_tags.sort_by_key(|(seq, _): &(Seq, StoredTag)| *seq);
            earlier_tags.dedup_by_key(|(seq, _)| *seq);
            earlier.sort_by_key(StoredEntry::seq);
            earlier.dedup_by_key(|entry| entry.seq());
            session.tags.insert_all(earlier_tags);
            order::insert_all(&mut session.entries, earlier);
        }
        Ok(())
    }

    pub fn acknowledge(&mut self, settled: AcknowledgedEntry) {
        let Some(session) = self.find(settled.session) else {
            return;
        };
        if !settled.is_release {
            session.remove_entry(settled.seq);
        } else if let Some(entry) = order::find(&mut session.entries, settled.seq) {
            entry.release();
        }
    }

    /// A session returns a message to its group.
    pub fn return_to_group(&mut self, key: SessionKey, seq: Seq, message: RecordPosition) {
        if seq == 0 {
            self.unnumbered.remove(&(key, message));
        } else if let Some(session) = self.find(key) {
            session.remove_entry(seq);
        }
    }

    /// The process has ended, so all clients are disconnected. Messages that waited for retained messages are numbered.
    pub fn disconnect_all(&mut self, unix_ms: u64) {
        self.number_all();
        for session in self.table.iter_mut().filter(|session| session.left_unix_ms.is_none()) {
            session.set_disconnected(unix_ms);
        }
    }

    /// Returns the sessions, and the entries that were numbered just now.
    pub fn into_list(mut self) -> (Vec<RecoveredSession>, Vec<(SessionKey, SessionEntry)>) {
        let numbered = self.number_all();
        let mut list = self.table.into_items();
        for session in &mut list {
            order::compact(&mut session.entries);
            session.tags.compact();
        }
        list.sort_unstable_by_key(|session| session.key);
        (list, numbered)
    }

    fn wait_for_number(&mut self, key: SessionKey, entry: SessionEntry) {
        if self.find(key).is_some() {
            self.arrived += 1;
            let arrived = self.arrived;
            self.unnumbered
                .insert((key, entry.message), Unnumbered { arrived, entry });
        }
    }

    /// Assigns the same numbers whether the records end here or a `Boot` record follows, so that later records refer to
    /// the same entries.
    fn number_all(&mut self) -> Vec<(SessionKey, SessionEntry)> {
        let mut numbered = Vec::new();
        let mut unnumbered: Vec<_> = std::mem::take(&mut self.unnumbered).into_iter().collect();
        unnumbered.sort_by_key(|((key, _), waiting)| (*key, waiting.arrived));
        for ((key, _), Unnumbered { entry, .. }) in unnumbered {
            let Some(session) = self.find(key) else { continue };
            let seq = session.next_seq.max(1);
            if seq < SEQ_MAX {
                let entry = SessionEntry { seq, ..entry };
                session.queue(entry.clone());
                numbered.push((key, entry));
            }
        }
        numbered
    }
}

impl RecoveredSession {
    fn new(record: &SessionRecord<'_>) -> RecoveredSession {
        let mut session = RecoveredSession {
            key: record.session,
            client_id: record.client_id.into(),
            created_unix_ms: 0,
            left_unix_ms: None,
            terms: (&record.terms).into(),
            next_seq: 0,
            started: 0,
            subscriptions: FilterMap::default(),
            received: Vec::new(),
            entries: Default::default(),
            pages: Default::default(),
            tags: Tags::default(),
        };
        session.set_state(record);
        session
    }

    /// Repeats the state of earlier records, unless some of them precede the first record that was read.
    fn refresh(&mut self, record: &SessionRecord<'_>) {
        self.client_id = record.client_id.into();
        self.terms = (&record.terms).into();
        self.set_state(record);
    }

    fn set_state(&mut self, record: &SessionRecord<'_>) {
        self.created_unix_ms = record.created_unix_ms;
        self.left_unix_ms = record.left_unix_ms;
        self.next_seq = self.next_seq.max(record.next_seq);
        self.started = record.started;
        self.subscriptions = FilterMap::default();
        record
            .subscriptions
            .iter()
            .for_each(|subscription| self.subscribe(subscription));
        self.received.clone_from(&record.received);
        self.received.sort_unstable();
    }

    fn queue(&mut self, entry: SessionEntry) {
        self.next_seq = self.next_seq.max(entry.seq + 1);
        if let Some(tag) = self.tags.try_put(&entry) {
            self.tags.insert_all(vec![tag]);
        }
        order::put(&mut self.entries, StoredEntry::new(&entry));
    }

    fn remove_entry(&mut self, seq: Seq) {
        let Some(entry) = order::find(&mut self.entries, seq) else {
            return self.skip(seq);
        };
        if entry.is_tagged() {
            self.tags.remove(seq);
        }
        order::remove(&mut self.entries, seq);
    }

    pub(super) fn subscribe(&mut self, subscription: &SubscriptionRecord<'_>) {
        self.subscriptions.insert(subscription.filter, subscription.into());
    }

    pub(super) fn unsubscribe(&mut self, filter: &str) {
        self.subscriptions.remove(filter);
    }

    pub(super) fn replayed(&mut self, filter: &str) {
        let exclusive = [EXCLUSIVE, filter].concat();
        for filter in [filter, &exclusive] {
            if let Some(subscription) = self.subscriptions.get_mut(filter) {
                subscription.is_replaying = false;
            }
        }
    }

    pub(super) fn receive(&mut self, packet_id: u16) {
        if let Err(at) = self.received.binary_search(&packet_id) {
            self.received.insert(at, packet_id);
        }
    }

    pub(super) fn free(&mut self, packet_id: u16) {
        if let Ok(at) = self.received.binary_search(&packet_id) {
            self.received.remove(at);
        }
    }
}

impl Tags {
    /// Stores the tag of an entry. Returns it if it must be inserted in the middle.
    fn try_put(&mut self, entry: &SessionEntry) -> Option<(Seq, StoredTag)> {
        match (StoredTag::new(entry), &mut self.0) {
            (None, None) => None,
            (None, Some(list)) => {
                order::remove(list, entry.seq);
                None
            }
            (Some(tag), list) => order::try_put(list.get_or_insert_default(), (entry.seq, tag)),
        }
    }

    fn insert_all(&mut self, tags: Vec<(Seq, StoredTag)>) {
        if let Some(list) = &mut self.0 {
            order::insert_all(list, tags);
        }
    }

    pub(super) fn remove_range(&mut self, range: &RangeInclusive<Seq>) {
        if let Some(list) = &mut self.0 {
            order::remove_range(list, range);
        }
    }

    fn remove(&mut self, seq: Seq) {
        if let Some(list) = &mut self.0 {
            order::remove(list, seq);
        }
    }

    fn compact(&mut self) {
        if let Some(list) = &mut self.0 {
            order::compact(list);
        }
        self.0.take_if(|list| list.is_empty());
    }
}

fn check_seq(seq: Seq) -> Result<(), NotARecord> {
    if seq < SEQ_MAX {
        return Ok(());
    }
    Err(NotARecord {
        expected: "an entry number below 2^48",
    })
}

/// Keys are chosen by the broker, so the hash needs no secret. Multiples of the golden ratio spread them.
fn hash(key: SessionKey) -> u32 {
    (key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}
