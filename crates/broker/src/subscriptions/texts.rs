//! Short texts, each with a 4-byte tag of its owner, in pages of equal slots. An id is 4 bytes. A text takes its length
//! rounded up to 4, plus 4 for the tag, and no allocator call. A `Box<str>` takes some 30 bytes more.
//!
//! Slot layout: `tag: u32 LE | text | 0xFF ...`. 0xFF does not occur in UTF-8, so no length is stored. The tag of a
//! vacant slot is the next vacant slot of its page. Invariants: a page has one slot size; a page that is not full is in
//! `open[class]` at `open_at`; a page without texts has no memory and is in `vacant`.

use super::slab::{ID_LIMIT, slots_to_add};
use crate::id_table::raw_ids;

/// Id of a text. Valid until the text is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextId(pub(super) u32);

raw_ids!(TextId);

#[derive(Clone, Copy)]
struct PageIndex(u32);

#[derive(Default)]
pub(super) struct Texts {
    pages: Vec<TextPage>,
    open: Vec<Vec<PageIndex>>,
    vacant: Vec<PageIndex>,
}

struct TextPage {
    bytes: Vec<u8>,
    slot_bytes: u32,
    class: u16,
    live: u16,
    free: u16,
    open_at: u32,
}

const SLOT_BITS: u32 = 8;
const PAGE_SLOTS: usize = 1 << SLOT_BITS;
const PAGE_BYTES: usize = 16 * 1024;
const TAG_BYTES: usize = 4;
const PADDING: u8 = 0xFF;
const NO_SLOT: u16 = u16::MAX;

impl Texts {
    pub(super) fn insert(&mut self, text: &[u8], tag: u32) -> TextId {
        let page_id = self.open_page(SlotClass::of(TAG_BYTES + text.len()));
        let page = &mut self.pages[page_id.index()];
        let slot = page.take_slot();
        let bytes = page.slot_mut(slot);
        bytes[..TAG_BYTES].copy_from_slice(&tag.to_le_bytes());
        bytes[TAG_BYTES..TAG_BYTES + text.len()].copy_from_slice(text);
        bytes[TAG_BYTES + text.len()..].fill(PADDING);
        if page.is_full() {
            self.close(page_id);
        }
        TextId(page_id.0 << SLOT_BITS | slot as u32)
    }

    pub(super) fn remove(&mut self, id: TextId) {
        let (page_id, slot) = (id.page(), id.slot());
        let page = &mut self.pages[page_id.index()];
        let was_full = page.is_full();
        let next = page.free as u32;
        page.slot_mut(slot)[..TAG_BYTES].copy_from_slice(&next.to_le_bytes());
        page.free = slot;
        page.live -= 1;
        if was_full {
            let open = &mut self.open[page.class as usize];
            page.open_at = open.len() as u32;
            open.push(page_id);
        }
        if page.live == 0 {
            page.bytes = Vec::new();
            self.close(page_id);
            self.vacant.push(page_id);
        }
    }

    pub(super) fn text(&self, id: TextId) -> &str {
        let padded = &self.slot(id)[TAG_BYTES..];
        let padding = padded.iter().rev().take_while(|&&byte| byte == PADDING).count();
        std::str::from_utf8(&padded[..padded.len() - padding]).expect("only UTF-8 is inserted")
    }

    pub(super) fn is_text(&self, id: TextId, text: &[u8]) -> bool {
        let padded = &self.slot(id)[TAG_BYTES..];
        padded.len() >= text.len()
            && padded[..text.len()] == *text
            && padded.get(text.len()).is_none_or(|&byte| byte == PADDING)
    }

    pub(super) fn tag(&self, id: TextId) -> u32 {
        let tag = self.slot(id).first_chunk().expect("a slot begins with its tag");
        u32::from_le_bytes(*tag)
    }

    pub(super) fn set_tag(&mut self, id: TextId, tag: u32) {
        let page = &mut self.pages[id.page().index()];
        page.slot_mut(id.slot())[..TAG_BYTES].copy_from_slice(&tag.to_le_bytes());
    }

    #[cfg(test)]
    pub(super) fn page_bytes(&self) -> usize {
        self.pages.iter().map(|page| page.bytes.capacity()).sum()
    }

    fn slot(&self, id: TextId) -> &[u8] {
        let page = &self.pages[id.page().index()];
        let at = id.slot() as usize * page.slot_bytes as usize;
        &page.bytes[at..at + page.slot_bytes as usize]
    }

    fn open_page(&mut self, class: SlotClass) -> PageIndex {
        if self.open.len() <= class.number {
            self.open.resize_with(class.number + 1, Vec::new);
        }
        if let Some(&page) = self.open[class.number].last() {
            return page;
        }
        let open = &mut self.open[class.number];
        let page = TextPage {
            bytes: Vec::new(),
            slot_bytes: class.slot_bytes as u32,
            class: class.number as u16,
            live: 0,
            free: NO_SLOT,
            open_at: open.len() as u32,
        };
        let page_id = match self.vacant.pop() {
            Some(page_id) => {
                self.pages[page_id.index()] = page;
                page_id
            }
            None => {
                self.pages.push(page);
                PageIndex(self.pages.len() as u32 - 1)
            }
        };
        assert!(page_id.0 < ID_LIMIT >> SLOT_BITS, "more than 2^31 texts");
        open.push(page_id);
        page_id
    }

    fn close(&mut self, page_id: PageIndex) {
        let page = &self.pages[page_id.index()];
        let (class, at) = (page.class as usize, page.open_at);
        let open = &mut self.open[class];
        open.swap_remove(at as usize);
        if let Some(&moved) = open.get(at as usize) {
            self.pages[moved.index()].open_at = at;
        } else if open.is_empty() {
            *open = Vec::new();
        }
    }
}

impl TextId {
    fn page(self) -> PageIndex {
        PageIndex(self.0 >> SLOT_BITS)
    }

    fn slot(self) -> u16 {
        (self.0 & 0xFF) as u16
    }
}

impl PageIndex {
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl TextPage {
    fn slots_max(&self) -> usize {
        (PAGE_BYTES / self.slot_bytes as usize).clamp(1, PAGE_SLOTS)
    }

    fn is_full(&self) -> bool {
        self.live as usize == self.slots_max()
    }

    fn take_slot(&mut self) -> u16 {
        self.live += 1;
        if self.free != NO_SLOT {
            let slot = self.free;
            let next = self.slot_mut(slot).first_chunk().expect("a slot begins with its tag");
            self.free = u32::from_le_bytes(*next) as u16;
            return slot;
        }
        let slot_bytes = self.slot_bytes as usize;
        let slot = self.bytes.len() / slot_bytes;
        if self.bytes.len() == self.bytes.capacity() {
            self.bytes
                .reserve_exact(slots_to_add(slot, self.slots_max()) * slot_bytes);
        }
        self.bytes.resize(self.bytes.len() + slot_bytes, PADDING);
        slot as u16
    }

    fn slot_mut(&mut self, slot: u16) -> &mut [u8] {
        let at = slot as usize * self.slot_bytes as usize;
        &mut self.bytes[at..at + self.slot_bytes as usize]
    }
}

/// Slot sizes: multiples of 4 up to 128 bytes, then eight sizes per power of two.
struct SlotClass {
    number: usize,
    slot_bytes: usize,
}

impl SlotClass {
    fn of(need: usize) -> Self {
        let exponent = (need.max(2) - 1).ilog2().max(6) as usize;
        if exponent == 6 {
            let number = need.div_ceil(4);
            return Self {
                number,
                slot_bytes: number * 4,
            };
        }
        let step = 1 << (exponent - 3);
        let steps = need.div_ceil(step);
        Self {
            number: 33 + (exponent - 7) * 8 + (steps - 9),
            slot_bytes: steps * step,
        }
    }
}
