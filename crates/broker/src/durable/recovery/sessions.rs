//! Durable sessions while the records that change them are read.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::order;
use super::recovered::{RecoveredSession, Tags};
use super::table::Table;
use super::tag::StoredTag;
use crate::durable::entry::{SEQ_MAX, StoredEntry};
use crate::durable::record::{
    Entry, NotARecord, Position, Seq, SessionKey, SessionRecord, Settled, SubscriptionRecord,
};
use crate::subscribe::EXCLUSIVE;

#[derive(Default)]
pub(super) struct Sessions {
    table: Table<RecoveredSession>,
    /// What waits for retained messages and has no number yet. It will get its number in the order in which it came to the session,
    /// which need not be that of positions: what comes from another shard stands in the journal before it comes.
    unnumbered: BTreeMap<(SessionKey, Position), Unnumbered>,
    /// What has come so far.
    came: u64,
}

struct Unnumbered {
    came: u64,
    entry: Entry,
}

impl Sessions {
    pub fn find(&mut self, key: SessionKey) -> Option<&mut RecoveredSession> {
        let at = self.table.find(hash(key), |session| session.key == key)?;
        Some(self.table.get_mut(at))
    }

    pub fn meet(&mut self, record: &SessionRecord<'_>) -> Result<(), NotARecord> {
        check_seq(record.next_seq)?;
        match self.find(record.session) {
            Some(session) => session.refresh(record),
            None => self.table.insert(hash(record.session), RecoveredSession::new(record)),
        }
        Ok(())
    }

    pub fn end(&mut self, key: SessionKey) {
        let unnumbered = self.unnumbered.range((key, Position(0))..=(key, Position(u64::MAX)));
        for name in unnumbered.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.unnumbered.remove(&name);
        }
        if let Some(at) = self.table.find(hash(key), |session| session.key == key) {
            self.table.remove(at, |session| hash(session.key));
        }
    }

    /// A message comes to a session's queue, or gets its number there.
    pub fn queue(&mut self, key: SessionKey, entry: Entry) -> Result<(), NotARecord> {
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

    /// Some of a session's queue, which may come from before what it has. What has no number is all that there was then, in order.
    pub fn queue_all(
        &mut self,
        key: SessionKey,
        entries: impl Iterator<Item = Result<Entry, NotARecord>>,
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

    pub fn settle(&mut self, settled: Settled) {
        let Some(session) = self.find(settled.session) else {
            return;
        };
        if !settled.is_release {
            session.forget(settled.seq);
        } else if let Some(entry) = order::find(&mut session.entries, settled.seq) {
            entry.release();
        }
    }

    /// A message goes back from a session to its group.
    pub fn give_back(&mut self, key: SessionKey, seq: Seq, message: Position) {
        if seq == 0 {
            self.unnumbered.remove(&(key, message));
        } else if let Some(session) = self.find(key) {
            session.forget(seq);
        }
    }

    /// The process has ended: nobody is connected. What waited for retained messages waits no longer.
    pub fn all_away(&mut self, unix_ms: u64) {
        self.number_all();
        for session in self.table.iter_mut().filter(|session| session.left_unix_ms.is_none()) {
            session.away_since(unix_ms);
        }
    }

    /// The sessions, and what has got its number just now.
    pub fn into_list(mut self) -> (Vec<RecoveredSession>, Vec<(SessionKey, Entry)>) {
        let numbered = self.number_all();
        let mut list = self.table.into_items();
        for session in &mut list {
            order::tidy(&mut session.entries);
            session.tags.tidy();
        }
        list.sort_unstable_by_key(|session| session.key);
        (list, numbered)
    }

    fn wait_for_number(&mut self, key: SessionKey, entry: Entry) {
        if self.find(key).is_some() {
            self.came += 1;
            let came = self.came;
            self.unnumbered.insert((key, entry.message), Unnumbered { came, entry });
        }
    }

    /// The same numbers whether the records end here or a start follows, so that what comes after that means the same entries.
    fn number_all(&mut self) -> Vec<(SessionKey, Entry)> {
        let mut numbered = Vec::new();
        let mut unnumbered: Vec<_> = std::mem::take(&mut self.unnumbered).into_iter().collect();
        unnumbered.sort_by_key(|((key, _), waiting)| (*key, waiting.came));
        for ((key, _), Unnumbered { entry, .. }) in unnumbered {
            let Some(session) = self.find(key) else { continue };
            let seq = session.next_seq.max(1);
            if seq < SEQ_MAX {
                let entry = Entry { seq, ..entry };
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
            subscriptions: Vec::new(),
            received: Vec::new(),
            entries: Default::default(),
            pages: Default::default(),
            tags: Tags::default(),
        };
        session.set_state(record);
        session
    }

    /// Says the same as the records before, unless some of them were before the first that was read.
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
        self.subscriptions = record.subscriptions.iter().map(Into::into).collect();
        self.subscriptions.sort_by(|a, b| a.filter.cmp(&b.filter));
        self.received.clone_from(&record.received);
        self.received.sort_unstable();
    }

    fn queue(&mut self, entry: Entry) {
        self.next_seq = self.next_seq.max(entry.seq + 1);
        if let Some(tag) = self.tags.try_put(&entry) {
            self.tags.insert_all(vec![tag]);
        }
        order::put(&mut self.entries, StoredEntry::new(&entry));
    }

    fn forget(&mut self, seq: Seq) {
        let Some(entry) = order::find(&mut self.entries, seq) else {
            return self.skip(seq);
        };
        if entry.is_tagged() {
            self.tags.remove(seq);
        }
        order::remove(&mut self.entries, seq);
    }

    pub(super) fn subscribe(&mut self, subscription: &SubscriptionRecord<'_>) {
        match self.subscription(subscription.filter) {
            Ok(at) => self.subscriptions[at] = subscription.into(),
            Err(at) => {
                if self.subscriptions.len() == self.subscriptions.capacity() {
                    // Most sessions have one; a vector begins with four.
                    self.subscriptions.reserve_exact(1 + self.subscriptions.len() / 2);
                }
                self.subscriptions.insert(at, subscription.into());
            }
        }
    }

    pub(super) fn unsubscribe(&mut self, filter: &str) {
        if let Ok(at) = self.subscription(filter) {
            self.subscriptions.remove(at);
        }
    }

    pub(super) fn replayed(&mut self, filter: &str) {
        let exclusive = [EXCLUSIVE, filter].concat();
        for filter in [filter, &exclusive] {
            if let Ok(at) = self.subscription(filter) {
                self.subscriptions[at].is_replaying = false;
            }
        }
    }

    fn subscription(&self, filter: &str) -> Result<usize, usize> {
        self.subscriptions.binary_search_by(|other| (*other.filter).cmp(filter))
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
    /// What an entry carries, if anything, comes back where it would have to be inserted in the middle.
    fn try_put(&mut self, entry: &Entry) -> Option<(Seq, StoredTag)> {
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

    fn tidy(&mut self) {
        if let Some(list) = &mut self.0 {
            order::tidy(list);
        }
        self.0.take_if(|list| list.is_empty());
    }
}

fn check_seq(seq: Seq) -> Result<(), NotARecord> {
    if seq < SEQ_MAX {
        return Ok(());
    }
    Err(NotARecord {
        expected: "a number of a message below 2^56",
    })
}

/// Keys are numbers that we give, so the hash needs no secret: multiples of the golden ratio spread them.
fn hash(key: SessionKey) -> u32 {
    (key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}
