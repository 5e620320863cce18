//! Pages of long queues during recovery. Entries in a page are in no other list (`durable::pages`).

use super::order;
use super::recovered::RecoveredSession;
use super::sessions::RecoveringSessions;
use crate::durable::entry_list::{TaggedEntry, entry_of, sum_of_bytes};
use crate::durable::record::{NotARecord, PackedEntries, PageRef, PageRefs, RecordPosition, Seq, SessionKey};

impl RecoveringSessions {
    /// Moves these entries of a session to the page at `at`.
    pub fn page(&mut self, key: SessionKey, at: RecordPosition, entries: PackedEntries<'_>) -> Result<(), NotARecord> {
        let items = entries.items()?;
        let page = page_of(at, &items)?;
        if let Some(session) = self.find(key) {
            session.take_out(&page);
            session.put_page(page);
            session.next_seq = session.next_seq.max(last(&page) + 1);
        }
        Ok(())
    }

    /// Moves the entries of a page back to the session's list.
    pub fn load_page(&mut self, key: SessionKey, entries: PackedEntries<'_>) -> Result<(), NotARecord> {
        let items = entries.items()?;
        let page = page_of(RecordPosition(0), &items)?;
        if let Some(session) = self.find(key) {
            session.take_out(&page);
        }
        self.queue_all(key, items.into_iter().map(entry_of).map(Ok))
    }

    /// Sets all pages of a session.
    pub fn set_pages(&mut self, key: SessionKey, pages: PageRefs<'_>) -> Result<(), NotARecord> {
        let pages = pages.iter().collect::<Result<Vec<PageRef>, _>>()?;
        let Some(session) = self.find(key) else { return Ok(()) };
        session.pages.take();
        for page in pages {
            if page.count == 0 || page.first.checked_add(u64::from(page.count)).is_none() {
                return Err(NotARecord {
                    expected: "a page with entries",
                });
            }
            session.take_out(&page);
            session.pages.push_back(page);
        }
        Ok(())
    }
}

impl RecoveredSession {
    /// Removes the page's entries from the lists, and any other page with the same entries.
    fn take_out(&mut self, page: &PageRef) {
        let range = page.first..=last(page);
        order::remove_range(&mut self.entries, &range);
        self.tags.remove_range(&range);
        if self.pages.back().is_some_and(|back| back.first >= page.first) {
            let others = self.pages.take().into_iter();
            self.pages.extend(others.filter(|other| !range.contains(&other.first)));
        }
    }

    /// Inserts a page at its place in the order. A rewritten page returns to its old place.
    fn put_page(&mut self, page: PageRef) {
        let behind = self.pages.partition_point(|other| other.first < page.first);
        let mut pages = self.pages.take();
        pages.insert(behind, page);
        self.pages = pages.into();
    }

    /// The oldest message of a page has been dropped. Drops are in order.
    pub(super) fn skip(&mut self, seq: Seq) {
        let at = self.pages.iter().position(|page| page.first == seq);
        let Some(page) = at.and_then(|at| self.pages.get_mut(at)) else {
            return;
        };
        page.skip();
        if page.count == 0
            && let Some(at) = at
        {
            self.pages.remove(at);
        }
    }
}

fn last(page: &PageRef) -> Seq {
    page.first + u64::from(page.count) - 1
}

/// Builds the reference of a page. Fails unless its entries have consecutive numbers.
fn page_of(at: RecordPosition, items: &[TaggedEntry]) -> Result<PageRef, NotARecord> {
    let first = items.first().map_or(0, |(entry, _)| entry.seq());
    let is_consecutive = (first..).zip(items).all(|(seq, (entry, _))| entry.seq() == seq);
    let oldest = items.iter().map(|(entry, _)| entry.message()).min();
    match oldest {
        Some(oldest) if first > 0 && is_consecutive => Ok(PageRef {
            at,
            first,
            count: items.len() as u32,
            skipped: 0,
            queued_qos0: items
                .iter()
                .filter(|(entry, _)| entry.qos() == mqtt::QoS::AtMostOnce)
                .count() as u32,
            oldest,
            bytes: sum_of_bytes(items) as u64,
        }),
        _ => Err(NotARecord {
            expected: "a page with consecutive entry numbers",
        }),
    }
}
