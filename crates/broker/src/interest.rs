//! Which shards may have a subscription that matches a topic: one lock-free table of the process.
//!
//! A publishing shard asks [`Interest::mask`] before it hands a message to others. The table is an array of slots with
//! one bit per shard. A filter sits on one slot: a literal filter on the hash of the whole filter, a wildcard filter on the
//! hash of the levels before its first wildcard, the two told apart by a marker. A topic looks at its literal slot and at
//! the slot of each of its prefixes. Beside them, one mask of shards per prefix length (and one for literals) says
//! whether anybody has such filters at all: most lookups end in a few words that stay in the cache.
//!
//! The answer may be too wide (two filters on one slot, `a/+/b` asked for `a/x/c`, the `$` rule is not applied) and is
//! never too narrow: a shard that has a matching filter is in it. Slots are as wide as the shards need, so that the table
//! is 256 KiB for two shards and 8 MiB for 64.
//!
//! Ordering. Each bit has one writer, the shard it names, which sets it (Release) before it sends the SUBACK. A publisher
//! that must see the subscription is one whose PUBLISH is caused by that SUBACK; the chain from the one to the other
//! (socket, mailbox, whatever) is a happens-before edge from the set to the load (Acquire), and coherence then
//! lets the load return this store or a later one. Where no such chain exists, the message may be ordered before the
//! subscription, and missing it is correct. A bit is cleared only after the filter is gone from the shard's tree, by the
//! same thread that would set it again, so a clear never hides a filter. Neighbours in a word are kept intact because
//! both are read-modify-write operations. No two locations need a common order: a filter needs its two bits set, each
//! written before the SUBACK; seeing one set and the other cleared happens only while a filter comes or goes.

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// As many shards as a mask has bits.
pub const SHARDS_MAX: usize = 64;

const SLOT_BITS: u32 = 20;
const SLOTS: usize = 1 << SLOT_BITS;
/// Prefixes of this many levels or more share one depth mask.
const DEPTH_MAX: usize = 31;
/// The index of the depth mask of literal filters.
const LITERAL: usize = DEPTH_MAX + 1;
const LITERAL_MARKER: u64 = 0xD1B5_4A32_D192_ED03;
const MANY: u8 = u8::MAX;

/// The table. Shared by reference; all methods take `&self`.
pub struct Interest {
    slots: Box<[AtomicU64]>,
    /// By prefix length, and [`LITERAL`]: the shards that have such filters.
    depths: [AtomicU64; DEPTH_MAX + 2],
    slot_width: u32,
    hashing: FixedState,
}

/// One shard's filters per slot, and so its bits in the table. Owned by the shard; each shard has one.
pub struct InterestCounts {
    shard: usize,
    /// Resident only where counted. [`MANY`] stands for "see `many`".
    slots: Box<[u8]>,
    many: HashMap<u32, u32, FixedState>,
    depths: [u32; DEPTH_MAX + 2],
}

/// Where a filter sits.
struct Seat {
    slot: usize,
    depth: usize,
}

impl Interest {
    /// `seed` decides which filters share a slot, so clients must not know it; the same seed gives the same masks.
    /// Panics unless there are 1 to [`SHARDS_MAX`] shards.
    pub fn new(shards: usize, seed: u64) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shards), "a mask has {SHARDS_MAX} bits");
        let slot_width = shards.next_power_of_two() as u32;
        let words = SLOTS * slot_width as usize / 64;
        Self {
            slots: (0..words).map(|_| AtomicU64::new(0)).collect(),
            depths: [const { AtomicU64::new(0) }; DEPTH_MAX + 2],
            slot_width,
            hashing: FixedState::with_seed(seed),
        }
    }

    /// The shards that may have a filter that matches; bit n is shard n.
    pub fn mask(&self, topic: &str) -> u64 {
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
        let (word, shift) = self.word(slot);
        let shards = self.slots[word].load(Ordering::Acquire) >> shift;
        shards & (u64::MAX >> (64 - self.slot_width))
    }

    fn word(&self, slot: usize) -> (usize, u32) {
        let bit = slot * self.slot_width as usize;
        (bit / 64, (bit % 64) as u32)
    }

    fn set_slot(&self, slot: usize, shard: usize, is_set: bool) {
        let (word, shift) = self.word(slot);
        set_bit(&self.slots[word], shift + shard as u32, is_set);
    }

    fn seat(&self, filter: &str) -> Seat {
        let mut hash = 0;
        let mut levels = filter.as_bytes().split(|&byte| byte == b'/').enumerate().peekable();
        while let Some((depth, level)) = levels.next() {
            if level == b"+" || (level == b"#" && levels.peek().is_none()) {
                return Seat {
                    slot: slot_of(hash),
                    depth: depth.min(DEPTH_MAX),
                };
            }
            hash = self.chain(hash, level);
        }
        Seat {
            slot: slot_of(hash ^ LITERAL_MARKER),
            depth: LITERAL,
        }
    }

    /// The hash of the levels so far and one more.
    fn chain(&self, hash: u64, level: &[u8]) -> u64 {
        let mut hasher = self.hashing.build_hasher();
        hasher.write(level);
        (hash.rotate_left(29) ^ hasher.finish()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

impl InterestCounts {
    /// Counts for `shard`, which has no filters yet.
    pub fn new(shard: usize) -> Self {
        Self {
            shard,
            slots: vec![0; SLOTS].into(),
            many: HashMap::default(),
            depths: [0; DEPTH_MAX + 2],
        }
    }

    /// The shard has a filter that it did not have. Call it before the SUBACK.
    pub fn add(&mut self, interest: &Interest, filter: &str) {
        let Seat { slot, depth } = interest.seat(filter);
        if self.count_up(slot) == 1 {
            interest.set_slot(slot, self.shard, true);
        }
        self.depths[depth] += 1;
        if self.depths[depth] == 1 {
            set_bit(&interest.depths[depth], self.shard as u32, true);
        }
    }

    /// The shard's tree has lost a filter. Panics if it was never added.
    pub fn remove(&mut self, interest: &Interest, filter: &str) {
        let Seat { slot, depth } = interest.seat(filter);
        if self.count_down(slot) == 0 {
            interest.set_slot(slot, self.shard, false);
        }
        assert!(self.depths[depth] > 0, "removed a filter that was not added");
        self.depths[depth] -= 1;
        if self.depths[depth] == 0 {
            set_bit(&interest.depths[depth], self.shard as u32, false);
        }
    }

    fn count_up(&mut self, slot: usize) -> u32 {
        if self.slots[slot] < MANY - 1 {
            self.slots[slot] += 1;
            return self.slots[slot] as u32;
        }
        self.slots[slot] = MANY;
        let count = self.many.entry(slot as u32).or_insert(MANY as u32 - 1);
        *count += 1;
        *count
    }

    fn count_down(&mut self, slot: usize) -> u32 {
        assert!(self.slots[slot] > 0, "removed a filter that was not added");
        if self.slots[slot] < MANY {
            self.slots[slot] -= 1;
            return self.slots[slot] as u32;
        }
        let count = self
            .many
            .get_mut(&(slot as u32))
            .expect("a slot at MANY has its count here");
        *count -= 1;
        let count = *count;
        if count < MANY as u32 {
            self.many.remove(&(slot as u32));
            self.slots[slot] = count as u8;
        }
        count
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
