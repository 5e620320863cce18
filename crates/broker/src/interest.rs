//! Interest table: which shards may have a subscription that matches a topic. One lock-free table per process.
//!
//! A publishing shard calls [`Interest::mask`] before it forwards a message to other shards. The table is an array of
//! slots with one bit per shard. A filter occupies one slot: a literal filter that of the hash of the whole filter, a
//! wildcard filter that of the hash of the levels before its first wildcard. A marker distinguishes the two. A lookup
//! reads the literal slot of the topic and the slot of each of its prefixes. In addition, one mask of shards per prefix
//! length, and one for literals, says whether any shard has such filters. So most lookups read only a few cached words.
//!
//! The result may contain too many shards (two filters share a slot, `a/+/b` matches a lookup of `a/x/c`, the `$` rule
//! is not applied) but never too few: it contains every shard with a matching filter. The width of a slot depends on
//! the number of shards: the table takes 256 KiB for two shards and 8 MiB for 64. It is allocated for the first filter.
//!
//! Memory order. Each bit has one writer, the shard that it stands for, which sets it (Release) before it sends the
//! SUBACK. A publisher must see the subscription if its PUBLISH is caused by that SUBACK. The chain of events between
//! them (socket, mailbox) is a happens-before edge from the store to the load (Acquire), and coherence makes the load
//! return this store or a later one. Without such a chain the message may be ordered before the subscription, and
//! missing it is correct. A bit is cleared after the filter has left the shard's tree, by the thread that would also
//! set it again, so a clear never hides a filter. Both operations are read-modify-write, so other bits of the word stay
//! intact. No two locations need a common order: a filter needs three bits, all set before the SUBACK, and a reader
//! sees only some of them set only while the filter is being added or removed.

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Maximum number of shards: the bits of a mask.
pub const SHARDS_MAX: usize = 64;

const SLOT_BITS: u32 = 20;
const SLOTS: usize = 1 << SLOT_BITS;
/// Prefixes of at least this many levels share one depth mask.
const DEPTH_MAX: usize = 31;
/// Index of the depth mask of literal filters.
const LITERAL: usize = DEPTH_MAX + 1;
const LITERAL_MARKER: u64 = 0xD1B5_4A32_D192_ED03;
const MANY: u8 = u8::MAX;
/// Counts per page of [`InterestCounts`].
const PAGE: usize = 4096;

/// The table. Shared by reference; all methods take `&self`.
pub struct Interest {
    /// Empty until the first filter is added: many servers have no durable filters, and `vec!` would touch all pages.
    slots: OnceLock<Box<[AtomicU64]>>,
    /// The shards that have filters of each prefix length, and [`LITERAL`] ones.
    depths: [AtomicU64; DEPTH_MAX + 2],
    /// The shards that have any filters. In the table of durable filters there are often none.
    shards: AtomicU64,
    slot_width: u32,
    hashing: FixedState,
}

/// Number of filters of one shard per slot, from which its bits are derived. Each shard owns one.
pub struct InterestCounts {
    shard: usize,
    /// One count per slot, in pages that are allocated for their first filter. [`MANY`]: the count is in `many`.
    pages: Box<[Option<Box<[u8; PAGE]>>]>,
    many: HashMap<u32, u32, FixedState>,
    depths: [u32; DEPTH_MAX + 2],
    filters: usize,
}

/// Slot of a filter.
struct FilterSlot {
    slot: usize,
    depth: usize,
}

impl Interest {
    /// Creates a table. `seed` determines which filters share a slot, so clients must not know it. The same seed gives
    /// the same masks. Panics unless `shards` is 1 to [`SHARDS_MAX`].
    pub fn new(shards: usize, seed: u64) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shards), "a mask has {SHARDS_MAX} bits");
        Self {
            slots: OnceLock::new(),
            depths: [const { AtomicU64::new(0) }; DEPTH_MAX + 2],
            shards: AtomicU64::new(0),
            slot_width: shards.next_power_of_two() as u32,
            hashing: FixedState::with_seed(seed),
        }
    }

    /// Returns the shards that may have a matching filter; bit n is shard n.
    pub fn mask(&self, topic: &str) -> u64 {
        if self.shards.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut hash = 0;
        let mut mask = self.shards_at(0, hash);
        for (depth, level) in (1..).zip(topic.as_bytes().split(|&byte| byte == b'/')) {
            hash = self.chain(hash, level);
            mask |= self.shards_at(depth.min(DEPTH_MAX), hash);
        }
        mask | self.shards_at(LITERAL, hash ^ LITERAL_MARKER)
    }

    fn shards_at(&self, depth: usize, hash: u64) -> u64 {
        match self.depths[depth].load(Ordering::Acquire) {
            0 => 0,
            shards => shards & self.slot(slot_of(hash)),
        }
    }

    fn slot(&self, slot: usize) -> u64 {
        let Some(slots) = self.slots.get() else {
            return 0;
        };
        let (word, shift) = self.word(slot);
        let shards = slots[word].load(Ordering::Acquire) >> shift;
        shards & (u64::MAX >> (64 - self.slot_width))
    }

    fn word(&self, slot: usize) -> (usize, u32) {
        let bit = slot * self.slot_width as usize;
        (bit / 64, (bit % 64) as u32)
    }

    fn set_slot(&self, slot: usize, shard: usize, is_set: bool) {
        let words = SLOTS * self.slot_width as usize / 64;
        let slots = self
            .slots
            .get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        let (word, shift) = self.word(slot);
        set_bit(&slots[word], shift + shard as u32, is_set);
    }

    fn filter_slot(&self, filter: &str) -> FilterSlot {
        let mut hash = 0;
        let mut levels = filter.as_bytes().split(|&byte| byte == b'/').enumerate().peekable();
        while let Some((depth, level)) = levels.next() {
            if level == b"+" || (level == b"#" && levels.peek().is_none()) {
                return FilterSlot {
                    slot: slot_of(hash),
                    depth: depth.min(DEPTH_MAX),
                };
            }
            hash = self.chain(hash, level);
        }
        FilterSlot {
            slot: slot_of(hash ^ LITERAL_MARKER),
            depth: LITERAL,
        }
    }

    /// Extends the hash of a prefix by one level.
    fn chain(&self, hash: u64, level: &[u8]) -> u64 {
        let mut hasher = self.hashing.build_hasher();
        hasher.write(level);
        (hash.rotate_left(29) ^ hasher.finish()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

impl InterestCounts {
    /// Creates the counts of `shard`, which has no filters yet.
    pub fn new(shard: usize) -> Self {
        Self {
            shard,
            pages: vec![None; SLOTS / PAGE].into(),
            many: HashMap::default(),
            depths: [0; DEPTH_MAX + 2],
            filters: 0,
        }
    }

    /// Adds a filter that is new on this shard. Must be called before the SUBACK.
    pub fn add(&mut self, interest: &Interest, filter: &str) {
        let FilterSlot { slot, depth } = interest.filter_slot(filter);
        if self.count_up(slot) == 1 {
            interest.set_slot(slot, self.shard, true);
        }
        self.depths[depth] += 1;
        if self.depths[depth] == 1 {
            set_bit(&interest.depths[depth], self.shard as u32, true);
        }
        self.filters += 1;
        if self.filters == 1 {
            set_bit(&interest.shards, self.shard as u32, true);
        }
    }

    /// Removes a filter that has left the shard's tree. Panics if it was never added.
    pub fn remove(&mut self, interest: &Interest, filter: &str) {
        let FilterSlot { slot, depth } = interest.filter_slot(filter);
        if self.count_down(slot) == 0 {
            interest.set_slot(slot, self.shard, false);
        }
        assert!(self.depths[depth] > 0, "removed a filter that was not added");
        self.depths[depth] -= 1;
        if self.depths[depth] == 0 {
            set_bit(&interest.depths[depth], self.shard as u32, false);
        }
        self.filters -= 1;
        if self.filters == 0 {
            set_bit(&interest.shards, self.shard as u32, false);
        }
    }

    fn count_up(&mut self, slot: usize) -> u32 {
        let count = self.count_mut(slot);
        if *count < MANY - 1 {
            *count += 1;
            return u32::from(*count);
        }
        *count = MANY;
        let count = self.many.entry(slot as u32).or_insert(u32::from(MANY) - 1);
        *count += 1;
        *count
    }

    fn count_down(&mut self, slot: usize) -> u32 {
        let count = self.count_mut(slot);
        assert!(*count > 0, "removed a filter that was not added");
        if *count < MANY {
            *count -= 1;
            return u32::from(*count);
        }
        let count = self
            .many
            .get_mut(&(slot as u32))
            .expect("a slot at MANY has its count here");
        *count -= 1;
        let count = *count;
        if count < u32::from(MANY) {
            self.many.remove(&(slot as u32));
            *self.count_mut(slot) = count as u8;
        }
        count
    }

    fn count_mut(&mut self, slot: usize) -> &mut u8 {
        let page = self.pages[slot / PAGE].get_or_insert_with(|| Box::new([0; PAGE]));
        &mut page[slot % PAGE]
    }
}

fn slot_of(hash: u64) -> usize {
    (hash >> (64 - SLOT_BITS)) as usize
}

fn set_bit(word: &AtomicU64, bit: u32, is_set: bool) {
    if is_set {
        word.fetch_or(1 << bit, Ordering::Release);
    } else {
        word.fetch_and(!(1 << bit), Ordering::Release);
    }
}
