//! A queue of messages that are only in the journal: a few bytes per message, whatever its size. Sessions and share
//! groups have one each.
//!
//! ```text
//! earlier | queue | page page page … page | tail      oldest first
//! ```
//! `earlier` has the messages that precede the queue: those in flight of a session, and those that members have
//! returned to a group. Only sessions have pages (`pages.rs`). The owner fetches the oldest messages when it needs
//! them, and removes their entries when it has read the records. It has the messages that are newer than the queue
//! in memory.

use std::ops::RangeInclusive;

use mqtt::QoS;

use crate::delivery::{Delivery, DeliveryTag, GroupRef};
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{EntryList, TaggedEntry, bytes_of, sum_of_bytes};
use crate::durable::pages::{Pages, QueuePage};
use crate::durable::pending_records::PendingRecords;
use crate::durable::record::{RecordPosition, Seq, SizedMessage};
use crate::effect::FetchPurpose;
use crate::lazy_deque::LazyDeque;

#[derive(Debug, Default)]
pub struct JournaledQueue {
    pub(super) earlier: EntryList,
    pub(super) queue: EntryList,
    /// Entries after `queue`, if the queue is long.
    pub(super) pages: Option<Box<Pages>>,
    /// The oldest messages are being fetched, wait for their commit, or wait for a free fetch.
    is_fetching: bool,
}

/// The messages of a session that are only in the journal, and newer ones.
#[derive(Debug, Default)]
pub struct ColdEntries {
    /// `earlier` has the messages that were sent at least once.
    pub entries: JournaledQueue,
    /// Messages of this tick. They have no position until the batch is appended.
    pub fresh: LazyDeque<Delivery>,
}

impl ColdEntries {
    pub fn queued(&self) -> usize {
        self.entries.queued() + self.fresh.len()
    }
}

/// How a fetch has started.
pub enum FetchStart {
    Fetch(Vec<RecordPosition>),
    /// The oldest message is not committed yet and so cannot be read.
    Uncommitted,
    /// Too many fetches are running.
    Queued,
}

/// An entry that was dropped from the front of the queue.
pub struct DroppedEntry {
    pub seq: Seq,
    /// `None` if the entry was in a page.
    pub message: Option<SizedMessage>,
    /// Number of entries at QoS 0 that the queue no longer has.
    pub queued_qos0: u32,
    /// Bytes that the queue no longer counts.
    pub bytes: usize,
    pub tag: DeliveryTag,
}

impl JournaledQueue {
    /// Returns the entries before the queue.
    pub fn earlier(&self) -> &EntryList {
        &self.earlier
    }

    /// Returns the queue before the pages.
    pub fn queue(&self) -> &EntryList {
        &self.queue
    }

    pub fn pages(&self) -> Option<&Pages> {
        self.pages.as_deref()
    }

    /// Returns the number of messages in the queue and its pages.
    pub fn queued(&self) -> usize {
        self.queue.len() + self.pages.as_ref().map_or(0, |pages| pages.len())
    }

    pub fn is_empty(&self) -> bool {
        self.earlier.is_empty() && self.queue.is_empty() && self.pages.is_none()
    }

    pub fn is_fetching(&self) -> bool {
        self.is_fetching
    }

    pub fn end_fetch(&mut self) {
        self.is_fetching = false;
    }

    /// Starts to fetch up to `max` of the oldest messages.
    pub fn start_fetch(&mut self, max: usize, records: &mut PendingRecords, purpose: FetchPurpose) -> FetchStart {
        self.is_fetching = true;
        match self.next_positions(max, records.committed_end()) {
            None => FetchStart::Uncommitted,
            Some(positions) if records.start_fetch(purpose) => FetchStart::Fetch(positions),
            Some(_) => FetchStart::Queued,
        }
    }

    /// Returns the positions to fetch next. Messages of `earlier` are not fetched together with those of the queue.
    /// `None` if the first message is not committed yet and so cannot be read.
    fn next_positions(&self, max: usize, committed: u64) -> Option<Vec<RecordPosition>> {
        if let Some(page) = self.next_page() {
            let at = page.place.position().filter(|at| at.0 < committed);
            return at.map(|at| vec![at]);
        }
        let entries = self.oldest_list().iter().take(max).map(|(entry, _)| entry);
        let is_readable = |entry: &StoredEntry| entry.is_released() || entry.message().0 < committed;
        let wanted: Vec<_> = entries.take_while(is_readable).collect();
        let positions = wanted.iter().filter(|entry| !entry.is_released());
        (!wanted.is_empty()).then(|| positions.map(StoredEntry::message).collect())
    }

    fn oldest_list(&self) -> &EntryList {
        match self.earlier.is_empty() {
            true => &self.queue,
            false => &self.earlier,
        }
    }

    /// Returns the oldest entry, unless it is in a page.
    pub fn front(&self) -> Option<StoredEntry> {
        self.oldest_list().front()
    }

    /// Removes and returns the oldest entries, from `earlier` or, if that is empty, from the queue.
    pub fn take_oldest_while(&mut self, is_wanted: impl FnMut(&StoredEntry) -> bool) -> Vec<TaggedEntry> {
        match self.earlier.is_empty() {
            true => self.queue.take_while(is_wanted),
            false => self.earlier.take_while(is_wanted),
        }
    }

    /// Removes and returns the oldest entries, from `earlier` and, if that is then empty, from the queue.
    pub fn take_while(&mut self, is_wanted: impl Fn(&StoredEntry) -> bool) -> (Vec<TaggedEntry>, Vec<TaggedEntry>) {
        let earlier = self.earlier.take_while(&is_wanted);
        let queue = match self.earlier.is_empty() {
            true => self.queue.take_while(&is_wanted),
            false => Vec::new(),
        };
        self.merge_tail_when_empty();
        (earlier, queue)
    }

    /// Appends entries to `earlier`.
    pub fn extend_earlier(&mut self, items: impl IntoIterator<Item = TaggedEntry>) {
        self.earlier.extend(items);
    }

    /// Appends entries to the queue, behind its pages.
    pub fn extend_queue(&mut self, items: impl IntoIterator<Item = TaggedEntry>) {
        self.newest().extend(items);
    }

    /// Inserts entries before all of `earlier`.
    pub fn prepend_earlier(&mut self, items: impl IntoIterator<Item = TaggedEntry>) {
        self.earlier.prepend(items);
    }

    /// Inserts entries before all of the queue.
    pub fn prepend_queue(&mut self, items: impl IntoIterator<Item = TaggedEntry>) {
        self.queue.prepend(items);
    }

    /// Drops the oldest entry of the queue or its pages. Pages contain no messages of groups.
    pub fn drop_oldest(&mut self) -> Option<DroppedEntry> {
        let oldest = match self.queue.pop_front() {
            Some(item @ (entry, _)) => Some(DroppedEntry {
                seq: entry.seq(),
                message: Some(entry.sized_message()),
                queued_qos0: u32::from(entry.qos() == QoS::AtMostOnce),
                bytes: bytes_of(&item),
                tag: item.1,
            }),
            None => {
                let skipped = self.pages.as_mut().and_then(|pages| pages.skip());
                skipped.map(|skipped| DroppedEntry {
                    seq: skipped.seq,
                    message: None,
                    queued_qos0: skipped.queued_qos0,
                    bytes: skipped.bytes,
                    tag: DeliveryTag::None,
                })
            }
        };
        self.merge_tail_when_empty();
        oldest
    }

    /// Moves entries from the front of the queue to `earlier`. Returns their number and their bytes.
    pub fn move_to_earlier_while(&mut self, is_wanted: impl Fn(&StoredEntry) -> bool) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        loop {
            let moved = self.queue.take_while(&is_wanted);
            let is_any = !moved.is_empty();
            count += moved.len();
            bytes += sum_of_bytes(&moved);
            self.earlier.extend(moved);
            self.merge_tail_when_empty();
            if !is_any {
                return (count, bytes);
            }
        }
    }

    /// Removes up to `max` entries of the wanted groups. Entries in flight stay if another member must not receive
    /// them: at QoS 2, or after PUBREC. Also returns the bytes that the queue no longer counts.
    pub fn extract_of_groups(&mut self, max: usize, wanted: impl Fn(GroupRef) -> bool) -> (Vec<TaggedEntry>, usize) {
        let is_wanted = |tag: &DeliveryTag| tag.group().is_some_and(&wanted);
        let mut taken = extract(&mut self.earlier, max, |(entry, tag)| {
            entry.qos() == QoS::AtLeastOnce && !entry.is_released() && is_wanted(tag)
        });
        let in_flight = taken.len();
        let left = max - taken.len();
        taken.extend(extract(&mut self.queue, left, |(_, tag)| is_wanted(tag)));
        if let Some(pages) = &mut self.pages {
            let left = max - taken.len();
            taken.extend(extract(&mut pages.tail, left, |(_, tag)| is_wanted(tag)));
        }
        self.merge_tail_when_empty();
        let bytes = sum_of_bytes(&taken[in_flight..]);
        (taken, bytes)
    }

    /// Adds up the bytes of the queue and its pages.
    pub fn queued_bytes(&self) -> usize {
        let lists = self.tail().into_iter().chain([&self.queue]);
        let entries: usize = lists.map(EntryList::bytes).sum();
        entries + self.pages().map_or(0, Pages::bytes)
    }

    /// Returns all entries in memory, in order.
    pub fn iter(&self) -> impl Iterator<Item = TaggedEntry> {
        let tail = self.tail().into_iter().flat_map(EntryList::iter);
        self.earlier.iter().chain(self.queue.iter()).chain(tail)
    }

    /// Returns the entries in memory after a number. Requires that numbers ascend from `earlier` to the queue.
    pub fn iter_behind(&self, behind: Seq) -> impl Iterator<Item = TaggedEntry> {
        self.earlier.iter_behind(behind).chain(self.queue.iter_behind(behind))
    }

    /// Updates the positions of messages that compaction has moved. Returns the changed entries.
    pub fn moved(&mut self, place_of: impl Fn(RecordPosition) -> Option<RecordPosition>) -> Vec<TaggedEntry> {
        let mut change = |entry: &mut StoredEntry| move_entry(entry, &place_of).is_some();
        self.lists_mut().flat_map(|list| list.change(&mut change)).collect()
    }

    /// Like `moved`, for the entries with these numbers. Requires that the numbers of each list are consecutive.
    /// Returns the old positions and the moved messages.
    pub fn moved_consecutive(
        &mut self,
        numbers: RangeInclusive<Seq>,
        place_of: impl Fn(RecordPosition) -> Option<RecordPosition>,
    ) -> Vec<(RecordPosition, SizedMessage)> {
        let mut moved = Vec::new();
        let mut change = |entry: &mut StoredEntry| {
            let change = move_entry(entry, &place_of);
            moved.extend(change);
            change.is_some()
        };
        self.earlier.change_consecutive(numbers.clone(), &mut change);
        self.queue.change_consecutive(numbers, &mut change);
        moved
    }

    /// Returns the list that new entries join.
    fn newest(&mut self) -> &mut EntryList {
        match &mut self.pages {
            Some(pages) => &mut pages.tail,
            None => &mut self.queue,
        }
    }

    /// Returns all lists of entries in memory, in order.
    fn lists_mut(&mut self) -> impl Iterator<Item = &mut EntryList> {
        let tail = self.pages.as_deref_mut().map(|pages| &mut pages.tail);
        [&mut self.earlier, &mut self.queue].into_iter().chain(tail)
    }

    /// Returns the entries behind the pages.
    pub fn tail(&self) -> Option<&EntryList> {
        self.pages.as_deref().map(|pages| &pages.tail)
    }

    /// After the last page, the tail becomes the queue.
    pub fn merge_tail_when_empty(&mut self) {
        let is_over = |pages: &mut Box<Pages>| pages.list.is_empty() && self.queue.is_empty();
        if let Some(pages) = self.pages.take_if(is_over) {
            self.queue = pages.tail;
        }
    }

    /// Returns whether a part of the queue should be written as pages.
    pub fn is_long(&self, page_entries: usize) -> bool {
        match &self.pages {
            Some(pages) => pages.tail.len() >= page_entries,
            None => self.queue.len() >= 3 * page_entries,
        }
    }

    /// Returns the next page if no entry precedes it.
    pub fn next_page(&self) -> Option<&QueuePage> {
        let is_next = self.earlier.is_empty() && self.queue.is_empty();
        self.pages.as_deref().filter(|_| is_next)?.list.front()
    }
}

/// Returns the old position of an entry whose message was moved, and the moved message.
fn move_entry(
    entry: &mut StoredEntry,
    place_of: impl Fn(RecordPosition) -> Option<RecordPosition>,
) -> Option<(RecordPosition, SizedMessage)> {
    let old = entry.message();
    let new = place_of(old).filter(|_| !entry.is_released())?;
    entry.move_to(new);
    Some((old, entry.sized_message()))
}

/// Removes entries from the front until `max` match. Puts the others back.
fn extract(list: &mut EntryList, max: usize, is_wanted: impl Fn(&TaggedEntry) -> bool) -> Vec<TaggedEntry> {
    if max == 0 || !list.iter().any(|item| is_wanted(&item)) {
        return Vec::new();
    }
    let mut left = max;
    let front = list.take_items_while(|item| {
        let is_more = left > 0;
        left -= usize::from(is_more && is_wanted(item));
        is_more
    });
    let (taken, others): (Vec<TaggedEntry>, Vec<TaggedEntry>) = front.into_iter().partition(is_wanted);
    list.prepend(others);
    taken
}
