//! Queue entries of a session whose messages are only in the journal ("cold").
//!
//! A disconnected session, or one whose queue is long, keeps journal positions instead of messages. When its connection
//! needs more, the shard fetches the next messages (`Effect::Fetch`), and they become ordinary deliveries again.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqtt::QoS;

use crate::delivery::{Delivery, DeliveryTag};
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{TaggedEntry, bytes_of, sum_of_bytes};
use crate::durable::journaled_queue::{ColdEntries, FetchStart};
use crate::durable::pages::{Pages, count_qos0, read_page};
use crate::durable::pending_records::{CommitAction, Ledger, PendingRecords};
use crate::durable::record::{JournalRecord, MessageRecord, RecordPosition, Seq};
use crate::effect::{DropReason, Effect, FetchPurpose, Now};
use crate::fault::{Fault, is_planted};
use crate::message::{Message, MessageOrigin, Publication, RecordLocation};
use crate::outgoing::{Inflight, OutgoingMessages};
use crate::sessions::Sessions;
use crate::slots::{ConnSlot, ConnectNumber, SessionEpoch, SessionSlot};
use crate::stats::ShardStats;
use crate::tick::Tick;

/// Messages that a connected session keeps in memory. Further messages are evicted.
const WARM_MAX: usize = 512;

/// A session with fewer messages in memory fetches the next ones.
const WARM_LOW: usize = 128;

/// Messages per fetch.
const FETCH_MAX: usize = 256;

/// Pages per session and tick.
const WRITTEN_MAX: usize = 16;

/// Converts a delivery into an entry. `None` if its message is not in the journal.
fn to_cold(delivery: Delivery) -> Option<TaggedEntry> {
    let position = delivery.message.place().position()?;
    if is_planted(Fault::DropCold) && delivery.seq % 8 == 5 {
        return None;
    }
    let entry = StoredEntry::of(position, delivery.seq, delivery.qos, delivery.retain);
    Some((entry.sized(delivery.message.size()), delivery.tag))
}

fn to_cold_inflight(Inflight { seq, delivery }: Inflight) -> Option<TaggedEntry> {
    delivery.map_or(Some((StoredEntry::released(seq), DeliveryTag::None)), to_cold)
}

impl OutgoingMessages {
    /// Returns whether all messages in memory are also in the journal, so that they can be evicted.
    fn can_evict(&self) -> bool {
        let is_recorded = |d: &Delivery| d.message.place().position().is_some();
        self.inflight
            .iter()
            .filter_map(|entry| entry.delivery.as_ref())
            .all(is_recorded)
            && self.queue.iter().all(is_recorded)
    }

    /// Evicts all messages from memory.
    fn evict_all(&mut self) {
        self.evictions = self.evictions.wrapping_add(1);
        let cold = self.cold.get_or_insert_default();
        cold.entries
            .prepend_queue(self.queue.take().into_iter().filter_map(to_cold));
        cold.entries
            .prepend_earlier(self.inflight.take().into_iter().filter_map(to_cold_inflight));
        self.sent = 0;
        self.evict_fresh();
    }

    /// Moves the messages of the last tick to the cold entries.
    fn evict_fresh(&mut self) {
        let Some(cold) = &mut self.cold else { return };
        let fresh = cold.fresh.take();
        cold.entries.extend_queue(fresh.into_iter().filter_map(to_cold));
        self.merge_fresh_if_no_cold();
    }

    fn evict_beyond(&mut self, warm_max: usize) {
        self.evictions = self.evictions.wrapping_add(1);
        let cold = self.cold.get_or_insert_default();
        let mut beyond = self.queue.take();
        self.queue.extend(beyond.drain(..warm_max.min(beyond.len())));
        cold.entries.prepend_queue(beyond.into_iter().filter_map(to_cold));
        self.merge_fresh_if_no_cold();
    }

    /// Returns the entries whose messages could not be read.
    fn load_inflight(
        &mut self,
        entries: Vec<TaggedEntry>,
        delivery_of: impl Fn(StoredEntry, DeliveryTag) -> Option<Delivery>,
    ) -> Vec<Seq> {
        let mut lost = Vec::new();
        for (entry, tag) in entries {
            let seq = entry.seq();
            let delivery = delivery_of(entry, tag);
            match delivery.is_some() || entry.is_released() {
                true => self.inflight.push_back(Inflight { seq, delivery }),
                false => lost.push(seq),
            }
        }
        lost
    }

    /// Like `load_inflight`. An entry of unknown size gets the size of its message.
    fn load_queue(
        &mut self,
        entries: Vec<TaggedEntry>,
        delivery_of: impl Fn(StoredEntry, DeliveryTag) -> Option<Delivery>,
    ) -> Vec<Seq> {
        let mut lost = Vec::new();
        for item in entries {
            let bytes = bytes_of(&item);
            let (entry, tag) = item;
            match delivery_of(entry, tag) {
                Some(delivery) => {
                    self.queued_bytes.resize(bytes, delivery.queued_bytes());
                    self.queue.push_back(delivery);
                }
                None => {
                    self.queued_bytes.remove(bytes);
                    self.queued_qos0 -= u32::from(entry.qos() == QoS::AtMostOnce);
                    lost.push(entry.seq());
                }
            }
        }
        lost
    }

    /// If no cold entry is left, appends the messages of this tick to the queue.
    pub fn merge_fresh_if_no_cold(&mut self) {
        if let Some(mut cold) = self.cold.take_if(|cold| cold.entries.is_empty()) {
            self.queue.extend(cold.fresh.take());
        }
    }

    fn needs_fetch(&self) -> bool {
        let is_low = self.inflight.len() - self.sent + self.queue.len() < WARM_LOW;
        is_low
            && self
                .cold
                .as_ref()
                .is_some_and(|cold| !(cold.entries.is_fetching() || cold.entries.is_empty()))
    }
}

impl Sessions {
    /// The batch of this tick has been appended at `base`. Sets the positions of its pages, and evicts messages.
    pub(crate) fn batch_appended(&mut self, records: &mut PendingRecords, page_entries: usize, base: u64) {
        for (slot, place) in records.take_unplaced_pages() {
            self.set_page_place(slot, place, place.placed(base));
        }
        for slot in records.take_eviction_candidates() {
            self.evict(slot, records, page_entries.max(1));
        }
    }

    /// Evicts messages of a session from memory. Called after a batch was appended.
    fn evict(&mut self, slot: SessionSlot, records: &mut PendingRecords, page_entries: usize) {
        if !self.link(slot).is_durable() {
            return;
        }
        let is_offline = self.link(slot).conn == ConnSlot::NONE;
        let Some(session) = self.get_mut(slot) else {
            return;
        };
        session.is_eviction_scheduled = false;
        let out = &mut session.outgoing;
        if is_offline && out.can_evict() {
            out.evict_all();
        } else if out.cold.is_some() {
            out.evict_fresh();
        } else if out.queue.len() > WARM_MAX && out.can_evict() {
            out.evict_beyond(WARM_MAX / 2);
        }
        let is_long = |cold: &ColdEntries| cold.entries.is_long(page_entries);
        if out.cold.as_deref().is_some_and(is_long) {
            records.write_pages_later(slot);
        }
    }

    /// Schedules an eviction check of the session for when this tick's batch has been appended.
    pub(crate) fn evict_later(&mut self, ledger: &mut Ledger, slot: SessionSlot) {
        let Some(records) = ledger.records_mut() else { return };
        let session = self.get_mut(slot).expect("the session exists");
        if session.key.0 != 0 && !session.is_eviction_scheduled {
            session.is_eviction_scheduled = true;
            records.evict_after_append(slot);
        }
    }

    /// Fetches the next messages of a session if they are not in memory.
    pub(crate) fn fetch_more(&mut self, ledger: &mut Ledger, effects: &mut Vec<Effect>, slot: SessionSlot) {
        let Some(session) = self.get_mut(slot) else {
            return;
        };
        if session.conn.is_none() || !session.outgoing.needs_fetch() {
            return;
        }
        let Some(records) = ledger.records_mut() else { return };
        let (connect_number, epoch) = (session.connect_number, session.epoch);
        let purpose = FetchPurpose::Session { slot, connect_number };
        let Some(cold) = &mut session.outgoing.cold else { return };
        match cold.entries.start_fetch(FETCH_MAX, records, purpose) {
            FetchStart::Fetch(positions) => effects.push(Effect::Fetch { purpose, positions }),
            FetchStart::Uncommitted => records.wait(CommitAction::Deliver { slot, epoch, seq: 0 }),
            FetchStart::Queued => {}
        }
    }

    /// Starts a queued fetch, if the session still has this connection.
    pub(crate) fn resume_fetch(
        &mut self,
        ledger: &mut Ledger,
        effects: &mut Vec<Effect>,
        slot: SessionSlot,
        connect_number: ConnectNumber,
    ) {
        let session = self.get_mut(slot);
        if let Some(session) = session.filter(|session| session.connect_number == connect_number) {
            if let Some(cold) = &mut session.outgoing.cold {
                cold.entries.end_fetch();
            }
            self.fetch_more(ledger, effects, slot);
        }
    }

    /// The journal has committed the records of a session up to message `seq`, or its messages have become readable if
    /// `seq` is 0. Returns whether the session may continue to send.
    pub(crate) fn deliveries_committed(&mut self, slot: SessionSlot, epoch: SessionEpoch, seq: Seq) -> bool {
        let Some(session) = self.live(slot, epoch) else {
            return false;
        };
        session.outgoing.committed_seq = session.outgoing.committed_seq.max(seq);
        if seq == 0
            && let Some(cold) = &mut session.outgoing.cold
        {
            cold.entries.end_fetch();
        }
        session.conn.is_some()
    }

    /// Loads the next page if its record has arrived. Returns the entries that could not be read.
    fn load_fetched_page(
        &mut self,
        ledger: &mut Ledger,
        stats: &mut ShardStats,
        slot: SessionSlot,
        records: &FetchedRecords,
    ) -> Vec<Seq> {
        let cold = self.at(slot).outgoing.cold.as_deref();
        let next = cold
            .and_then(|cold| cold.entries.next_page())
            .and_then(|page| page.place.position());
        match next.and_then(|at| records.get(&at)) {
            None => Vec::new(),
            Some(record) => self.load_page(ledger, stats, slot, record.as_deref()),
        }
    }
}

impl Sessions {
    /// Writes pages for queues that have grown too long, before the batch of this tick is closed.
    pub(crate) fn write_pages(&mut self, ledger: &mut Ledger, page_entries: usize) {
        let Some(records) = ledger.records_mut() else { return };
        for slot in records.take_paging() {
            self.write_pages_of(slot, records, page_entries.max(1));
        }
    }

    fn write_pages_of(&mut self, slot: SessionSlot, ledger: &mut PendingRecords, page_entries: usize) {
        let session = self.get_mut(slot);
        let Some(session) = session.filter(|session| session.key.0 != 0) else {
            return;
        };
        let Some(entries) = session
            .outgoing
            .cold
            .as_deref_mut()
            .map(|cold| &mut cold.entries)
            .filter(|entries| entries.is_long(page_entries))
        else {
            return;
        };
        let pages = entries.pages.get_or_insert_with(|| {
            Box::new(Pages {
                tail: entries.queue.split_off(page_entries),
                ..Pages::default()
            })
        });
        for written in 0.. {
            if written == WRITTEN_MAX {
                ledger.write_pages_later(slot);
                break;
            }
            let Some(items) = pages.next_page(page_entries) else {
                break;
            };
            let page = ledger.put_page(slot, session.key, items);
            pages.messages += page.count as usize;
            pages.list.push_back(page);
        }
        entries.merge_tail_when_empty();
    }

    /// Sets the position of a page when its batch has been appended.
    pub(super) fn set_page_place(&mut self, slot: SessionSlot, pending: RecordLocation, place: RecordLocation) {
        let session = self.get_mut(slot);
        let pages = session.and_then(|session| session.outgoing.cold.as_deref_mut()?.entries.pages.as_deref_mut());
        let page = pages.and_then(|pages| pages.list.iter_mut().rev().find(|page| page.place == pending));
        if let Some(page) = page {
            page.place = place;
        }
    }

    /// Loads the first page of a session's queue. Returns the numbers of its entries if the record could not be read.
    pub(super) fn load_page(
        &mut self,
        ledger: &mut Ledger,
        stats: &mut ShardStats,
        slot: SessionSlot,
        record: Option<&[u8]>,
    ) -> Vec<Seq> {
        let session = self.get_mut(slot).expect("the session exists");
        let (key, out) = (session.key, &mut session.outgoing);
        let Some(cold) = out.cold.as_deref_mut() else {
            return Vec::new();
        };
        let cold = &mut cold.entries;
        let Some(page) = cold.pages.as_deref_mut().and_then(Pages::pop_page) else {
            return Vec::new();
        };
        let items = record.and_then(|record| read_page(&page, record));
        let lost = match &items {
            Some(_) => Vec::new(),
            None => (page.first..page.first + u64::from(page.count)).collect(),
        };
        let items = items.unwrap_or_default();
        out.queued_qos0 = out.queued_qos0 - page.queued_qos0 + count_qos0(&items);
        // Drops from the page have changed its bytes by their mean.
        let bytes = sum_of_bytes(&items);
        out.queued_bytes.resize(page.bytes as usize, bytes);
        stats.queued_bytes = stats.queued_bytes + bytes as u64 - page.bytes;
        if let Some(ledger) = ledger.records_mut() {
            ledger.record_page_loaded(key, page.needed(), &items);
        }
        cold.queue.extend(items);
        cold.merge_tail_when_empty();
        lost
    }

    /// Marks queued entries up to `started` as sent at least once.
    pub(super) fn mark_sent(&mut self, stats: &mut ShardStats, slot: SessionSlot, started: Seq) {
        let session = self.get_mut(slot).expect("the session exists");
        let Some(cold) = session.outgoing.cold.as_deref_mut() else {
            return;
        };
        let cold = &mut cold.entries;
        let items = cold.queue.take_while(|entry| entry.seq() <= started);
        let (sent, queued): (Vec<TaggedEntry>, Vec<TaggedEntry>) =
            items.into_iter().partition(|(entry, _)| entry.qos() != QoS::AtMostOnce);
        stats.queued_messages -= sent.len() as u64;
        stats.inflight_messages += sent.len() as u64;
        let bytes = sum_of_bytes(&sent);
        session.outgoing.queued_bytes.remove(bytes);
        stats.queued_bytes -= bytes as u64;
        if !sent.is_empty() {
            let mut inflight: Vec<TaggedEntry> = cold.earlier.take_while(|_| true);
            inflight.extend(sent);
            inflight.sort_unstable_by_key(|(entry, _)| entry.seq());
            cold.earlier.extend(inflight);
        }
        cold.queue.prepend(queued);
        if cold.pages.is_some() {
            cold.merge_tail_when_empty();
            // The tail has become the queue.
            if cold.pages.is_none() {
                self.mark_sent(stats, slot, started);
            }
        }
    }
}

/// Records that the driver has read. A record is `None` if the journal could not read it.
pub(crate) type FetchedRecords = BTreeMap<RecordPosition, Option<Vec<u8>>>;

/// Turns cold entries of a session into deliveries, in order, as far as their records have arrived. Does nothing if the
/// session no longer has the connection that asked for them. Returns whether the session may continue to send.
pub(crate) fn load_fetched(
    tick: &mut Tick<'_>,
    slot: SessionSlot,
    connect_number: ConnectNumber,
    records: &FetchedRecords,
) -> bool {
    let (now, core) = (tick.now, &mut *tick.core);
    let session = core.sessions.get(slot);
    if !session.is_some_and(|session| session.connect_number == connect_number && session.conn.is_some()) {
        return false;
    }
    let (sessions, ledger) = (&mut core.sessions, &mut core.ledger);
    let lost_page = sessions.load_fetched_page(ledger, &mut core.stats, slot, records);
    let out = &mut core.sessions.at_mut(slot).outgoing;
    let Some(cold) = &mut out.cold else { return true };
    cold.entries.end_fetch();
    let has_arrived = |entry: &StoredEntry| entry.is_released() || records.contains_key(&entry.message());
    let (inflight, queue) = cold.entries.take_while(has_arrived);
    let bytes_before = out.queued_bytes.get();
    let lost_inflight = out.load_inflight(inflight, |entry, tag| delivery_of(now, entry, tag, records));
    let mut lost = out.load_queue(queue, |entry, tag| delivery_of(now, entry, tag, records));
    lost.extend(lost_page);
    let bytes_after = out.queued_bytes.get();
    out.merge_fresh_if_no_cold();
    let stats = &mut core.stats;
    stats.queued_bytes = stats.queued_bytes + bytes_after as u64 - bytes_before as u64;
    stats.inflight_messages -= lost_inflight.len() as u64;
    stats.queued_messages -= lost.len() as u64;
    for seq in lost_inflight.into_iter().chain(lost) {
        core.ledger.record_acknowledged(&core.sessions, slot, seq, false);
        core.drop_for(now, slot, DropReason::Damaged, None);
    }
    true
}

/// Builds a delivery from the record of its message. After PUBREC only the packet identifier is left, even if the
/// session has another entry of the same message.
fn delivery_of(now: Now, entry: StoredEntry, tag: DeliveryTag, records: &FetchedRecords) -> Option<Delivery> {
    if entry.is_released() {
        return None;
    }
    let bytes = records.get(&entry.message())?.as_deref()?;
    let Ok(JournalRecord::Message(record)) = JournalRecord::read(bytes) else {
        return None;
    };
    Some(Delivery {
        message: message_of(now, &record, entry.message()),
        qos: entry.qos(),
        retain: entry.retain(),
        seq: entry.seq(),
        tag,
    })
}

/// Builds a message from its record. The publishing session is unknown after that.
pub(crate) fn message_of(now: Now, record: &MessageRecord<'_>, position: RecordPosition) -> Arc<Message> {
    publication_of(now, record, position).to_message()
}

pub(crate) fn publication_of<'a>(now: Now, record: &MessageRecord<'a>, position: RecordPosition) -> Publication<'a> {
    Publication {
        topic: record.topic,
        payload: record.payload,
        properties: record.properties,
        qos: record.qos,
        retain: record.retain,
        expires_at_ms: record.expires_unix_ms.map(|at| now.monotonic_at(at)),
        origin: MessageOrigin::NONE,
        publisher_hash: record.publisher_hash,
        place: RecordLocation::at(position),
        provenance: record.provenance,
        owner: None,
    }
}

impl Now {
    /// Converts a time of the journal to the monotonic clock. 0 if it is before the clock's start.
    pub fn monotonic_at(self, journal_ms: u64) -> u64 {
        (self.monotonic_ms + journal_ms).saturating_sub(self.journal_ms)
    }

    /// Converts a time of the monotonic clock to the time of the journal.
    pub fn unix_at(self, monotonic_ms: u64) -> u64 {
        (self.journal_ms + monotonic_ms).saturating_sub(self.monotonic_ms)
    }
}
