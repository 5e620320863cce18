//! Slots with stable ids in pages of 256. Growth by a million copies nothing and leaves no slack, and a page whose
//! slots are all vacant frees its memory.
//!
//! Invariants: a page that is not full is in `open` exactly once; a vacant slot is on its page's free list.

use std::marker::PhantomData;

use crate::id_table::RawId;

/// A slot type that can represent a vacant slot itself, so that no tag is needed.
pub(super) trait SlabSlot {
    /// Returns a vacant slot. `next` is the index of the page's next vacant slot.
    fn vacant(next: u32) -> Self;
    /// Returns the argument of [`SlabSlot::vacant`] if the slot is vacant.
    fn next_vacant(&self) -> Option<u32>;
}

pub(super) struct Slab<I, S> {
    pages: Vec<SlabPage<S>>,
    open: Vec<PageIndex>,
    len: usize,
    ids: PhantomData<I>,
}

#[derive(Clone, Copy)]
struct PageIndex(u32);

struct SlabPage<S> {
    slots: Vec<S>,
    live: u16,
    free: u16,
}

const PAGE_BITS: u32 = 8;
const PAGE_SLOTS: usize = 1 << PAGE_BITS;
const NO_SLOT: u16 = u16::MAX;
/// Ids are below this, so that owners can use the highest bit.
pub(super) const ID_LIMIT: u32 = (1 << 31) - 1;

impl<I: RawId, S: SlabSlot> Slab<I, S> {
    pub(super) fn new() -> Self {
        Self {
            pages: Vec::new(),
            open: Vec::new(),
            len: 0,
            ids: PhantomData,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, id: I) -> &S {
        let (page, slot) = split(id);
        &self.pages[page].slots[slot]
    }

    pub(super) fn get_mut(&mut self, id: I) -> &mut S {
        let (page, slot) = split(id);
        &mut self.pages[page].slots[slot]
    }

    /// Panics at 2^31 slots, which is tens of gigabytes beyond the subscription limit of any configuration.
    pub(super) fn insert(&mut self, value: S) -> I {
        let PageIndex(page_id) = self.open_page();
        let page = &mut self.pages[page_id as usize];
        let slot = page.take_slot(value);
        if page.live as usize == PAGE_SLOTS {
            self.open.pop();
        }
        self.len += 1;
        I::from_raw(page_id << PAGE_BITS | slot as u32)
    }

    pub(super) fn remove(&mut self, id: I) -> S {
        let (page_id, slot) = split(id);
        let page = &mut self.pages[page_id];
        debug_assert!(page.slots[slot].next_vacant().is_none(), "removed twice");
        if page.live as usize == PAGE_SLOTS {
            self.open.push(PageIndex(page_id as u32));
        }
        let value = std::mem::replace(&mut page.slots[slot], S::vacant(page.free as u32));
        page.free = slot as u16;
        page.live -= 1;
        if page.live == 0 {
            page.slots = Vec::new();
            page.free = NO_SLOT;
        }
        self.len -= 1;
        value
    }

    /// Returns the first occupied slot at or after `from`.
    pub(super) fn next_occupied(&self, from: I) -> Option<I> {
        let (first, mut start) = split(from);
        for (page_id, page) in self.pages.iter().enumerate().skip(first) {
            let slots = page.slots.iter().enumerate().skip(start);
            if let Some((slot, _)) = slots.into_iter().find(|(_, slot)| slot.next_vacant().is_none()) {
                return Some(I::from_raw((page_id as u32) << PAGE_BITS | slot as u32));
            }
            start = 0;
        }
        None
    }

    fn open_page(&mut self) -> PageIndex {
        if let Some(&page) = self.open.last() {
            return page;
        }
        let page = PageIndex(self.pages.len() as u32);
        assert!(page.0 < ID_LIMIT >> PAGE_BITS, "more than 2^31 slots");
        self.pages.push(SlabPage {
            slots: Vec::new(),
            live: 0,
            free: NO_SLOT,
        });
        self.open.push(page);
        page
    }
}

impl<S: SlabSlot> SlabPage<S> {
    fn take_slot(&mut self, value: S) -> u16 {
        self.live += 1;
        if self.free != NO_SLOT {
            let slot = self.free;
            let next = self.slots[slot as usize]
                .next_vacant()
                .expect("the free list holds vacant slots");
            self.free = next as u16;
            self.slots[slot as usize] = value;
            return slot;
        }
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(slots_to_add(self.slots.len(), PAGE_SLOTS));
        }
        self.slots.push(value);
        (self.slots.len() - 1) as u16
    }
}

/// Returns how many slots to add to a page with `len` slots. Small brokers get small pages, and full pages have no
/// slack.
pub(super) fn slots_to_add(len: usize, max: usize) -> usize {
    (3 * len).max(4).min(max - len)
}

fn split(id: impl RawId) -> (usize, usize) {
    let id = id.raw();
    ((id >> PAGE_BITS) as usize, id as usize & (PAGE_SLOTS - 1))
}
