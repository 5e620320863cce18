//! Pages: journal records that hold the middle of a queue that is too long for memory, some thousand packed entries
//! each.
//!
//! ```text
//! in flight | queue | page page page … page | tail | fresh            memory: some thousand entries, 64 bytes a page
//! ```
//! New messages join the tail. When the tail is long enough, its oldest entries are written as a page
//! (`JournalRecord::QueuePage`) and leave memory. The session keeps the position of the page, the consecutive numbers
//! of its entries, their bytes, and its oldest message. When the queue before the pages is empty, the first page is
//! fetched like a message and becomes the queue.
//!
//! - Recovery repeats these steps: `QueuePage` removes the entries from its lists, and `PageLoaded`, written when a
//!   page is loaded, restores them. So an acknowledged entry is always in its lists. Only dropping the oldest message
//!   does not load a page: drops are in order, and are counted from the front of the page. A drop reduces the bytes of
//!   the page by their mean, and the last one by the rest.
//! - A checkpoint records the pages of a session as a list of `PageRef`, without their entries. A page needs its own
//!   record and its oldest message; the journal keeps everything from the older of the two. A page that is written or
//!   loaded during a checkpoint registers both (`PendingRecords::oldest_mentioned`).
//! - A page with old messages is loaded for the checkpoint only; its messages are moved, and the page is written again
//!   (`compaction.rs`).
//! - A crash may lose the record of a loaded page whose messages were sent already. Recovery loads pages as far as
//!   messages may have been sent (`restore.rs`).
//! - Messages of shared subscriptions are not paged, because they may have to return to their group. Neither are the
//!   entries behind them, until those are the next in the queue.

use std::collections::VecDeque;

use mqtt::QoS;

use crate::delivery::DeliveryTag;
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{EntryList, TaggedEntry, sum_of_bytes};
use crate::durable::pending_records::PendingRecords;
use crate::durable::record::{JournalRecord, PackedEntries, PageRef, RecordPosition, Seq, SessionKey, share_of_one};
use crate::message::RecordLocation;
use crate::slots::SessionSlot;

#[derive(Debug, Default)]
pub struct Pages {
    pub list: VecDeque<QueuePage>,
    /// Entries after the last page.
    pub tail: EntryList,
    /// Entries in all pages.
    pub messages: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePage {
    pub place: RecordLocation,
    /// First of the remaining entries.
    pub first: Seq,
    pub count: u32,
    /// Entries dropped after the page was written.
    pub skipped: u32,
    /// Entries at QoS 0, including the dropped ones.
    pub queued_qos0: u32,
    pub oldest: RecordPosition,
    /// Bytes that the remaining entries count for the limit of the queue.
    pub bytes: u64,
}

impl QueuePage {
    /// Returns the position from which the journal is needed. A page that is not appended yet is newer than its
    /// messages.
    pub fn needed(&self) -> RecordPosition {
        self.place.position().map_or(self.oldest, |at| at.min(self.oldest))
    }

    fn to_ref(self) -> Option<PageRef> {
        Some(PageRef {
            at: self.place.position()?,
            first: self.first,
            count: self.count,
            skipped: self.skipped,
            queued_qos0: self.queued_qos0,
            oldest: self.oldest,
            bytes: self.bytes,
        })
    }
}

/// An entry that was dropped from the front of a page.
pub struct SkippedEntry {
    pub seq: Seq,
    pub queued_qos0: u32,
    pub bytes: usize,
}

impl From<PageRef> for QueuePage {
    fn from(page: PageRef) -> QueuePage {
        QueuePage {
            place: RecordLocation::at(page.at),
            first: page.first,
            count: page.count,
            skipped: page.skipped,
            queued_qos0: page.queued_qos0,
            oldest: page.oldest,
            bytes: page.bytes,
        }
    }
}

impl Pages {
    pub fn new(list: VecDeque<QueuePage>) -> Pages {
        Pages {
            messages: list.iter().map(|page| page.count as usize).sum(),
            list,
            tail: EntryList::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.messages + self.tail.len()
    }

    pub fn pop_page(&mut self) -> Option<QueuePage> {
        let page = self.list.pop_front()?;
        self.messages -= page.count as usize;
        Some(page)
    }

    /// Drops the oldest entry of the first page. When that empties the page, the number of QoS 0 entries is that of the
    /// page, otherwise 0.
    pub fn skip(&mut self) -> Option<SkippedEntry> {
        let page = self.list.front_mut()?;
        let seq = page.first;
        let bytes = share_of_one(page.bytes, page.count);
        (page.first, page.count, page.skipped) = (seq + 1, page.count - 1, page.skipped + 1);
        page.bytes -= bytes;
        self.messages -= 1;
        let gone = self.list.pop_front_if(|page| page.count == 0);
        Some(SkippedEntry {
            seq,
            queued_qos0: gone.map_or(0, |page| page.queued_qos0),
            bytes: bytes as usize,
        })
    }

    /// Returns the bytes of the entries in all pages.
    pub fn bytes(&self) -> usize {
        self.list.iter().map(|page| page.bytes as usize).sum()
    }

    /// Encodes all pages as `PageRefs`. Empty if there are none.
    pub fn write_refs(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let refs = self.list.iter().filter_map(|page| page.to_ref());
        refs.for_each(|page| page.put(&mut bytes));
        bytes
    }

    /// Removes the next entries of the tail that can form a page.
    pub(super) fn next_page(&mut self, page_entries: usize) -> Option<Vec<TaggedEntry>> {
        let (front, tag) = self.tail.iter().next()?;
        if self.tail.len() < page_entries || tag.group().is_some() {
            return None;
        }
        let mut next = front.seq();
        let end = next + page_entries as u64;
        let is_consecutive = |entry: &StoredEntry| {
            let is_next = entry.seq() == next && next < end && !entry.is_released();
            next += 1;
            is_next
        };
        let mut items = self.tail.take_while(is_consecutive);
        let paged = items
            .iter()
            .position(|(_, tag)| tag.group().is_some())
            .unwrap_or(items.len());
        self.tail.prepend(items.drain(paged..));
        (!items.is_empty()).then_some(items)
    }
}

impl PendingRecords {
    /// Records a page. Its position is known once the batch is appended.
    pub(super) fn put_page(&mut self, slot: SessionSlot, session: SessionKey, items: Vec<TaggedEntry>) -> QueuePage {
        let first = items.first().map_or(0, |(entry, _)| entry.seq());
        let oldest = items.iter().map(|(entry, _)| entry.message()).min();
        let page = QueuePage {
            place: RecordLocation::NONE,
            first,
            count: items.len() as u32,
            skipped: 0,
            queued_qos0: count_qos0(&items),
            oldest: oldest.unwrap_or(RecordPosition(u64::MAX)),
            bytes: sum_of_bytes(&items) as u64,
        };
        let bytes = pack(&items);
        let entries = PackedEntries(&bytes);
        let place = self.record(&JournalRecord::Page { session, entries });
        self.record_reference(page.oldest);
        self.add_unplaced_page(slot, place);
        QueuePage { place, ..page }
    }

    pub(super) fn record_page_loaded(&mut self, session: SessionKey, needed: RecordPosition, items: &[TaggedEntry]) {
        self.record_reference(needed);
        if session.0 != 0 && !items.is_empty() {
            let bytes = pack(items);
            let entries = PackedEntries(&bytes);
            self.record(&JournalRecord::PageLoaded { session, entries });
        }
    }
}

/// Returns the remaining entries of a page. `None` if the record is not that page.
pub(super) fn read_page(page: &QueuePage, record: &[u8]) -> Option<Vec<TaggedEntry>> {
    let Ok(JournalRecord::Page { entries, .. }) = JournalRecord::read(record) else {
        return None;
    };
    let mut items = entries.items().ok()?;
    items.drain(..(page.skipped as usize).min(items.len()));
    let is_whole = items.len() == page.count as usize;
    let first = items.first().map(|(entry, _)| entry.seq());
    (is_whole && first == Some(page.first)).then_some(items)
}

fn pack(items: &[TaggedEntry]) -> Vec<u8> {
    let (mut list, mut bytes) = (EntryList::default(), Vec::new());
    list.extend(items.iter().cloned());
    list.pack(&mut bytes);
    bytes
}

pub(super) fn count_qos0(items: &[(StoredEntry, DeliveryTag)]) -> u32 {
    items.iter().filter(|(entry, _)| entry.qos() == QoS::AtMostOnce).count() as u32
}
