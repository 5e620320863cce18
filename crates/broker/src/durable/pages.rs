//! Queues too long for memory: their middle is in pages, records of the journal that hold some thousand packed entries each.
//!
//! ```text
//! in flight | queue | page page page … page | tail | fresh            memory: some thousand entries, 56 bytes a page
//! ```
//! What comes joins the tail. When that holds a page, the oldest of it are written as one (`Record::Page`) and are in memory no more: the
//! session keeps where the record is, the numbers of its entries, which are in a row, and its oldest message. When the queue
//! before the pages is empty, the first page is fetched as messages are, and becomes the queue.
//!
//! - Recovery does as the session did: `Page` takes the entries out of its lists, `Unpaged`, written when a page is loaded, puts
//!   them back. So what is settled, in whatever order, is always in its lists. Only giving up the oldest message does not load a
//!   page: that goes in order, and is counted off the page's front.
//! - A checkpoint has the pages of a session as a list of `PageRef`, not their entries. A page refers to itself and to its oldest
//!   message: the journal is kept from the older of the two on. A page that is made or loaded during a checkpoint mentions
//!   both (`Ledger::oldest_mentioned`).
//! - A page with old messages is loaded for the checkpoint alone, its messages are moved, and it is written anew (`moves.rs`).
//! - A client that was connected when the process died may have been sent what follows a page's loading, which the journal
//!   may not have: a start loads pages as far as that goes (`restore.rs`).
//! - Not paged: what came through a shared subscription, which may have to go back to it; and what is behind that, until it is next.

use std::collections::VecDeque;

use mqtt::QoS;

use crate::deliver::Core;
use crate::durable::cold::Cold;
use crate::durable::entry::StoredEntry;
use crate::durable::entry_list::{EntryList, Item};
use crate::durable::ledger::Ledger;
use crate::durable::record::{Packed, PageRef, Position, Record, Seq, SessionKey};
use crate::message::Place;
use crate::outgoing::Tag;

/// Of one session in one tick.
const WRITTEN_MAX: usize = 16;

#[derive(Debug, Default)]
pub struct Pages {
    pub list: VecDeque<Page>,
    /// Entries behind them.
    pub tail: EntryList,
    /// In all pages.
    pub messages: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub place: Place,
    /// Of the entries that are left.
    pub first: Seq,
    pub count: u32,
    /// Given up since it was written.
    pub skipped: u32,
    /// At QoS 0, those that were given up included.
    pub queued_qos0: u32,
    pub oldest: Position,
}

impl Page {
    /// The journal is needed from here on; nowhere if the page is still to be appended and newer than its messages.
    pub fn needed(&self) -> Position {
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
        })
    }
}

impl From<PageRef> for Page {
    fn from(page: PageRef) -> Page {
        Page {
            place: Place::at(page.at),
            first: page.first,
            count: page.count,
            skipped: page.skipped,
            queued_qos0: page.queued_qos0,
            oldest: page.oldest,
        }
    }
}

impl Pages {
    pub fn new(list: VecDeque<Page>) -> Pages {
        Pages {
            messages: list.iter().map(|page| page.count as usize).sum(),
            list,
            tail: EntryList::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.messages + self.tail.len()
    }

    pub fn pop_page(&mut self) -> Option<Page> {
        let page = self.list.pop_front()?;
        self.messages -= page.count as usize;
        Some(page)
    }

    /// Gives up the oldest entry of the first page, whatever it is; with how many fewer may be at QoS 0.
    pub fn skip(&mut self) -> Option<(Seq, u32)> {
        let page = self.list.front_mut()?;
        let seq = page.first;
        (page.first, page.count, page.skipped) = (seq + 1, page.count - 1, page.skipped + 1);
        self.messages -= 1;
        let gone = self.list.pop_front_if(|page| page.count == 0);
        Some((seq, gone.map_or(0, |page| page.queued_qos0)))
    }

    /// All of them, as `PageRefs`; empty if there is none.
    pub fn write_refs(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let refs = self.list.iter().filter_map(|page| page.to_ref());
        refs.for_each(|page| page.put(&mut bytes));
        bytes
    }

    /// The next entries of the tail that can be a page.
    fn next_page(&mut self, page_entries: usize) -> Option<Vec<Item>> {
        let (front, tag) = self.tail.iter().next()?;
        if self.tail.len() < page_entries || tag.group().is_some() {
            return None;
        }
        let mut next = front.seq();
        let end = next + page_entries as u64;
        let is_in_row = |entry: &StoredEntry| {
            let is_next = entry.seq() == next && next < end && !entry.is_released();
            next += 1;
            is_next
        };
        let mut items = self.tail.take_while(is_in_row);
        let paged = items
            .iter()
            .position(|(_, tag)| tag.group().is_some())
            .unwrap_or(items.len());
        self.tail.prepend(items.drain(paged..));
        (!items.is_empty()).then_some(items)
    }
}

impl Cold {
    /// Where what comes now goes.
    pub fn newest(&mut self) -> &mut EntryList {
        match &mut self.pages {
            Some(pages) => &mut pages.tail,
            None => &mut self.queue,
        }
    }

    /// All lists of entries that are in memory, in their order.
    pub fn lists_mut(&mut self) -> impl Iterator<Item = &mut EntryList> {
        let tail = self.pages.as_deref_mut().map(|pages| &mut pages.tail);
        [&mut self.inflight, &mut self.queue].into_iter().chain(tail)
    }

    pub fn tail(&self) -> Option<&EntryList> {
        self.pages.as_deref().map(|pages| &pages.tail)
    }

    /// After the last page comes the tail.
    pub fn forget_empty_pages(&mut self) {
        let is_over = |pages: &mut Box<Pages>| pages.list.is_empty() && self.queue.is_empty();
        if let Some(pages) = self.pages.take_if(is_over) {
            self.queue = pages.tail;
        }
    }

    /// Whether the queue has grown so long that some of it should be in pages.
    pub fn is_long(&self, page_entries: usize) -> bool {
        match &self.pages {
            Some(pages) => pages.tail.len() >= page_entries,
            None => self.queue.len() >= 3 * page_entries,
        }
    }

    /// The page that is next, if nothing comes before it.
    pub fn next_page(&self) -> Option<&Page> {
        let is_next = self.inflight.is_empty() && self.queue.is_empty();
        self.pages.as_deref().filter(|_| is_next)?.list.front()
    }
}

impl Core {
    /// Writes what is too long of the queues that have grown, before the tick's batch is closed.
    pub fn write_pages(&mut self) {
        let Some(ledger) = &mut self.ledger else { return };
        for slot in std::mem::take(&mut ledger.paging) {
            self.write_pages_of(slot);
        }
    }

    fn write_pages_of(&mut self, slot: u32) {
        let page_entries = self.config.page_entries.max(1);
        let Some(ledger) = &mut self.ledger else { return };
        let session = self.sessions[slot as usize].as_deref_mut();
        let Some(session) = session.filter(|session| session.key.0 != 0) else {
            return;
        };
        let Some(cold) = session
            .outgoing
            .cold
            .as_deref_mut()
            .filter(|cold| cold.is_long(page_entries))
        else {
            return;
        };
        let pages = cold.pages.get_or_insert_with(|| {
            Box::new(Pages {
                tail: cold.queue.split_off(page_entries),
                ..Pages::default()
            })
        });
        for written in 0.. {
            if written == WRITTEN_MAX {
                ledger.paging.push(slot);
                break;
            }
            let Some(items) = pages.next_page(page_entries) else {
                break;
            };
            let page = ledger.put_page(slot, session.key, items);
            pages.messages += page.count as usize;
            pages.list.push_back(page);
        }
        cold.forget_empty_pages();
    }

    /// The batch that has a page has been appended.
    pub fn place_page(&mut self, slot: u32, pending: Place, place: Place) {
        let session = self.sessions[slot as usize].as_deref_mut();
        let pages = session.and_then(|session| session.outgoing.cold.as_deref_mut()?.pages.as_deref_mut());
        let page = pages.and_then(|pages| pages.list.iter_mut().rev().find(|page| page.place == pending));
        if let Some(page) = page {
            page.place = place;
        }
    }

    /// The first page of a session's queue is in memory again. Returns the numbers of its entries if it could not be had.
    pub fn load_page(&mut self, slot: u32, record: Option<&[u8]>) -> Vec<Seq> {
        let session = self.sessions[slot as usize].as_deref_mut().expect("the caller has it");
        let (key, out) = (session.key, &mut session.outgoing);
        let Some(cold) = out.cold.as_deref_mut() else {
            return Vec::new();
        };
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
        if let Some(ledger) = &mut self.ledger {
            ledger.put_unpaged(key, page.needed(), &items);
        }
        cold.queue.extend(items);
        cold.forget_empty_pages();
        lost
    }
}

impl Core {
    /// Of the queue, what has a number up to this one has been sent before.
    pub(super) fn begin_sent(&mut self, slot: u32, started: Seq) {
        let session = self.sessions[slot as usize].as_deref_mut().expect("the caller has it");
        let Some(cold) = session.outgoing.cold.as_deref_mut() else {
            return;
        };
        let items = cold.queue.take_while(|entry| entry.seq() <= started);
        let (sent, queued): (Vec<Item>, Vec<Item>) =
            items.into_iter().partition(|(entry, _)| entry.qos() != QoS::AtMostOnce);
        self.stats.queued_messages -= sent.len() as u64;
        self.stats.inflight_messages += sent.len() as u64;
        if !sent.is_empty() {
            let mut inflight: Vec<Item> = cold.inflight.take_while(|_| true);
            inflight.extend(sent);
            inflight.sort_unstable_by_key(|(entry, _)| entry.seq());
            cold.inflight.extend(inflight);
        }
        cold.queue.prepend(queued);
        if cold.pages.is_some() {
            cold.forget_empty_pages();
            // The tail is the queue now.
            if cold.pages.is_none() {
                self.begin_sent(slot, started);
            }
        }
    }
}

impl Ledger {
    /// Records a page; where it is will be known when the batch is appended.
    pub(super) fn put_page(&mut self, slot: u32, session: SessionKey, items: Vec<Item>) -> Page {
        let first = items.first().map_or(0, |(entry, _)| entry.seq());
        let oldest = items.iter().map(|(entry, _)| entry.message()).min();
        let page = Page {
            place: Place::NONE,
            first,
            count: items.len() as u32,
            skipped: 0,
            queued_qos0: count_qos0(&items),
            oldest: oldest.unwrap_or(Position(u64::MAX)),
        };
        let bytes = pack(&items);
        let entries = Packed(&bytes);
        let place = self.record(&Record::Page { session, entries });
        self.mention(page.oldest);
        self.unplaced_pages.push((slot, place));
        Page { place, ..page }
    }

    fn put_unpaged(&mut self, session: SessionKey, needed: Position, items: &[Item]) {
        self.mention(needed);
        if session.0 != 0 && !items.is_empty() {
            let bytes = pack(items);
            let entries = Packed(&bytes);
            self.record(&Record::Unpaged { session, entries });
        }
    }
}

/// The entries of a page that are left, if the record is that of the page.
pub(super) fn read_page(page: &Page, record: &[u8]) -> Option<Vec<Item>> {
    let Ok(Record::Page { entries, .. }) = Record::read(record) else {
        return None;
    };
    let mut items = entries.items().ok()?;
    items.drain(..(page.skipped as usize).min(items.len()));
    let is_whole = items.len() == page.count as usize;
    let first = items.first().map(|(entry, _)| entry.seq());
    (is_whole && first == Some(page.first)).then_some(items)
}

fn pack(items: &[Item]) -> Vec<u8> {
    let (mut list, mut bytes) = (EntryList::default(), Vec::new());
    list.extend(items.iter().cloned());
    list.pack(&mut bytes);
    bytes
}

fn count_qos0(items: &[(StoredEntry, Tag)]) -> u32 {
    items.iter().filter(|(entry, _)| entry.qos() == QoS::AtMostOnce).count() as u32
}
