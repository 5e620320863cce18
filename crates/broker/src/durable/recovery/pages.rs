//! Pages of long queues while records are read: their entries are in no list (`durable::pages`).

use super::order;
use super::recovered::RecoveredSession;
use super::sessions::Sessions;
use crate::durable::entry_list::{Item, entry_of};
use crate::durable::record::{NotARecord, Packed, PageRef, PageRefs, Position, Seq, SessionKey};

impl Sessions {
    /// A session has these entries no more: they are in the record at `at`.
    pub fn page(&mut self, key: SessionKey, at: Position, entries: Packed<'_>) -> Result<(), NotARecord> {
        let items = entries.items()?;
        let page = page_of(at, &items)?;
        if let Some(session) = self.find(key) {
            session.take_out(&page);
            session.put_page(page);
            session.next_seq = session.next_seq.max(last(&page) + 1);
        }
        Ok(())
    }

    /// A session has the entries of a page again.
    pub fn unpage(&mut self, key: SessionKey, entries: Packed<'_>) -> Result<(), NotARecord> {
        let items = entries.items()?;
        let page = page_of(Position(0), &items)?;
        if let Some(session) = self.find(key) {
            session.take_out(&page);
        }
        self.queue_all(key, items.into_iter().map(entry_of).map(Ok))
    }

    /// These are all pages of a session.
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
    /// Whatever the lists have of what is in a page, and any other page of the same entries.
    fn take_out(&mut self, page: &PageRef) {
        let range = page.first..=last(page);
        order::remove_range(&mut self.entries, &range);
        self.tags.remove_range(&range);
        if self.pages.back().is_some_and(|back| back.first >= page.first) {
            let others = self.pages.take().into_iter();
            self.pages.extend(others.filter(|other| !range.contains(&other.first)));
        }
    }

    /// A page that is written anew has its old place among the others.
    fn put_page(&mut self, page: PageRef) {
        let behind = self.pages.partition_point(|other| other.first < page.first);
        let mut pages = self.pages.take();
        pages.insert(behind, page);
        self.pages = pages.into();
    }

    /// The oldest message of a page has been given up; those go in order.
    pub(super) fn skip(&mut self, seq: Seq) {
        let at = self.pages.iter().position(|page| page.first == seq);
        let Some(page) = at.and_then(|at| self.pages.get_mut(at)) else {
            return;
        };
        (page.first, page.count, page.skipped) = (seq + 1, page.count - 1, page.skipped + 1);
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

/// What a session knows of a page, if its entries have numbers in a row.
fn page_of(at: Position, items: &[Item]) -> Result<PageRef, NotARecord> {
    let first = items.first().map_or(0, |(entry, _)| entry.seq());
    let is_in_row = (first..).zip(items).all(|(seq, (entry, _))| entry.seq() == seq);
    let oldest = items.iter().map(|(entry, _)| entry.message()).min();
    match oldest {
        Some(oldest) if first > 0 && is_in_row => Ok(PageRef {
            at,
            first,
            count: items.len() as u32,
            skipped: 0,
            queued_qos0: items
                .iter()
                .filter(|(entry, _)| entry.qos() == mqtt::QoS::AtMostOnce)
                .count() as u32,
            oldest,
        }),
        _ => Err(NotARecord {
            expected: "a page with entries whose numbers are in a row",
        }),
    }
}
