//! Hash tables from a hash to a u32 id. The caller knows what an id refers to and compares keys. Hash seeds are random;
//! the order of entries is not observable.
//!
//! A bucket is 8 bytes and holds hash and id, so a probe touches one cache line, a miss touches nothing else, and
//! growing never reads the keys. Buckets are sorted by hash (linear probing, home = hash scaled to the table size).
//! That bounds the cost of a miss by that of a hit, allows any table size (growth by a quarter instead of doubling),
//! and makes growth a sequential pass. Removal shifts entries back, so there are no tombstones. The alternative
//! hashbrown uses 5 bytes per bucket, but two cache lines per probe, only powers of two as sizes, and hashes every key
//! again when it grows.
//!
//! Invariants: non-empty buckets are sorted by hash; no entry is before its home; there is no empty bucket between an
//! entry's home and its position.

use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;

use foldhash::quality::RandomState;

/// An id that is stored as a u32 below `u32::MAX`.
pub(crate) trait RawId: Copy {
    fn from_raw(raw: u32) -> Self;
    fn raw(self) -> u32;
}

/// Implements [`RawId`] for tuple structs of one u32.
macro_rules! raw_ids {
    ($($id:ty),+) => {
        $(impl $crate::id_table::RawId for $id {
            fn from_raw(raw: u32) -> Self {
                Self(raw)
            }

            fn raw(self) -> u32 {
                self.0
            }
        })+
    };
}
pub(crate) use raw_ids;

const EMPTY: u64 = u64::MAX;
const HOMES_MIN: usize = 8;

/// A table. Ids are below `u32::MAX`. A hash may have several ids, and an id may occur several times.
#[derive(Default)]
pub(crate) struct IdTable {
    buckets: Vec<u64>,
    homes: usize,
    len: usize,
}

impl IdTable {
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn find(&self, hash: u32, is_equal: impl FnMut(u32) -> bool) -> Option<u32> {
        self.position(hash, is_equal).map(|at| id_of(self.buckets[at]))
    }

    pub(crate) fn insert(&mut self, hash: u32, id: u32) {
        debug_assert!(id < u32::MAX, "u32::MAX marks an empty bucket");
        if self.len >= self.homes - self.homes / 6 {
            self.rebuild(HOMES_MIN.max(self.homes + self.homes / 4));
        }
        let mut at = self.home_slot(hash);
        while self
            .buckets
            .get(at)
            .is_some_and(|&bucket| bucket != EMPTY && hash_of(bucket) <= hash)
        {
            at += 1;
        }
        self.shift_in(at, pack(hash, id));
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u32, is_equal: impl FnMut(u32) -> bool) -> Option<u32> {
        let at = self.position(hash, is_equal)?;
        let id = id_of(self.buckets[at]);
        self.shift_out(at);
        self.len -= 1;
        if self.homes > 2 * HOMES_MIN && self.len < self.homes / 2 {
            self.rebuild(HOMES_MIN.max(self.len + self.len / 3));
        }
        Some(id)
    }

    /// Replaces the id of the entry `hash -> old` with `new`.
    pub(crate) fn replace(&mut self, hash: u32, old: u32, new: u32) {
        if let Some(at) = self.position(hash, |id| id == old) {
            self.buckets[at] = pack(hash, new);
        }
    }

    fn position(&self, hash: u32, mut is_equal: impl FnMut(u32) -> bool) -> Option<usize> {
        let mut at = self.home_slot(hash);
        while let Some(&bucket) = self.buckets.get(at) {
            if bucket == EMPTY || hash_of(bucket) > hash {
                return None;
            }
            if hash_of(bucket) == hash && is_equal(id_of(bucket)) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    fn shift_in(&mut self, from: usize, bucket: u64) {
        let mut carried = bucket;
        for bucket in &mut self.buckets[from..] {
            std::mem::swap(bucket, &mut carried);
            if carried == EMPTY {
                return;
            }
        }
        self.buckets.push(carried);
    }

    fn shift_out(&mut self, mut at: usize) {
        while let Some(&next) = self.buckets.get(at + 1) {
            if next == EMPTY || self.home_slot(hash_of(next)) > at {
                break;
            }
            self.buckets[at] = next;
            at += 1;
        }
        self.buckets[at] = EMPTY;
    }

    fn rebuild(&mut self, homes: usize) {
        // Space for entries that overflow the last home, so that they do not double the allocation.
        let mut buckets = Vec::with_capacity(homes + 4 + homes / 64);
        self.homes = homes;
        for bucket in self.buckets.drain(..).filter(|&bucket| bucket != EMPTY) {
            let home = (hash_of(bucket) as u64 * homes as u64) >> 32;
            while buckets.len() < home as usize {
                buckets.push(EMPTY);
            }
            buckets.push(bucket);
        }
        buckets.resize(buckets.len().max(homes), EMPTY);
        self.buckets = buckets;
    }

    fn home_slot(&self, hash: u32) -> usize {
        ((hash as u64 * self.homes as u64) >> 32) as usize
    }
}

/// Several tables, selected by further bits of the hash, so that growing pauses the shard for one part only.
pub(crate) struct IdMap<I> {
    parts: Box<[IdTable]>,
    len: usize,
    ids: PhantomData<I>,
}

const PARTS: usize = 64;

impl<I: RawId> IdMap<I> {
    pub(crate) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| IdTable::default()).collect(),
            len: 0,
            ids: PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn find(&self, hash: u64, mut is_equal: impl FnMut(I) -> bool) -> Option<I> {
        let found = self.parts[part(hash)].find(within_part(hash), |raw| is_equal(I::from_raw(raw)));
        found.map(I::from_raw)
    }

    pub(crate) fn insert(&mut self, hash: u64, id: I) {
        self.parts[part(hash)].insert(within_part(hash), id.raw());
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, mut is_equal: impl FnMut(I) -> bool) -> Option<I> {
        let removed = self.parts[part(hash)].remove(within_part(hash), |raw| is_equal(I::from_raw(raw)))?;
        self.len -= 1;
        Some(I::from_raw(removed))
    }

    /// Replaces the id of the entry `hash -> old` with `new`.
    pub(crate) fn replace(&mut self, hash: u64, old: I, new: I) {
        self.parts[part(hash)].replace(within_part(hash), old.raw(), new.raw());
    }
}

/// Returns the hash of a topic or topic level that clients choose.
pub(crate) fn hash_text(hashing: &RandomState, text: &[u8]) -> u64 {
    let mut hasher = hashing.build_hasher();
    hasher.write(text);
    hasher.finish()
}

fn part(hash: u64) -> usize {
    (hash >> 58) as usize
}

fn within_part(hash: u64) -> u32 {
    (hash >> 26) as u32
}

fn pack(hash: u32, id: u32) -> u64 {
    (hash as u64) << 32 | id as u64
}

fn hash_of(bucket: u64) -> u32 {
    (bucket >> 32) as u32
}

fn id_of(bucket: u64) -> u32 {
    bucket as u32
}
