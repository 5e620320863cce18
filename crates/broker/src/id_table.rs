//! Hash tables from a hash to a u32 id; what the id stands for, and so equality, is the caller's. Hash seeds are random;
//! nothing here has an order that they could show in.
//!
//! A bucket is 8 bytes, hash and id together, so that a probe touches one cache line, a miss touches nothing else, and
//! growing never reads the keys. Buckets are kept in the order of their hashes (linear probing, home = hash scaled to
//! the table size), which bounds a miss by a hit, lets any size serve (growth by a quarter instead of by two), and turns
//! growth into one sequential pass. Removal shifts back: there are no tombstones.
//! hashbrown was the alternative: 5 bytes a bucket, but two cache lines a probe, sizes of powers of two only, and a
//! growth that hashes every key again.
//!
//! Invariants: non-empty buckets are sorted by hash; none lies before its home; no empty bucket lies between an entry's
//! home and its place.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::RandomState;

const EMPTY: u64 = u64::MAX;
const HOMES_MIN: usize = 8;

/// One table. Ids are below `u32::MAX`; one hash may have several ids, or one id several times.
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
        let mut at = self.home(hash);
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

    /// Lets the entry `hash -> old` stand for `new`.
    pub(crate) fn replace(&mut self, hash: u32, old: u32, new: u32) {
        if let Some(at) = self.position(hash, |id| id == old) {
            self.buckets[at] = pack(hash, new);
        }
    }

    fn position(&self, hash: u32, mut is_equal: impl FnMut(u32) -> bool) -> Option<usize> {
        let mut at = self.home(hash);
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
            if next == EMPTY || self.home(hash_of(next)) > at {
                break;
            }
            self.buckets[at] = next;
            at += 1;
        }
        self.buckets[at] = EMPTY;
    }

    fn rebuild(&mut self, homes: usize) {
        // Room for the run that may spill over the last home, so that it does not double the allocation.
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

    fn home(&self, hash: u32) -> usize {
        ((hash as u64 * self.homes as u64) >> 32) as usize
    }
}

/// Tables chosen by further bits of the hash: growing stops the shard for one part only.
pub(crate) struct IdMap {
    parts: Box<[IdTable]>,
    len: usize,
}

const PARTS: usize = 64;

impl IdMap {
    pub(crate) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| IdTable::default()).collect(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn find(&self, hash: u64, is_equal: impl FnMut(u32) -> bool) -> Option<u32> {
        self.parts[part(hash)].find(within_part(hash), is_equal)
    }

    pub(crate) fn insert(&mut self, hash: u64, id: u32) {
        self.parts[part(hash)].insert(within_part(hash), id);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, is_equal: impl FnMut(u32) -> bool) -> Option<u32> {
        let removed = self.parts[part(hash)].remove(within_part(hash), is_equal)?;
        self.len -= 1;
        Some(removed)
    }

    /// Lets the entry `hash -> old` stand for `new`.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) {
        self.parts[part(hash)].replace(within_part(hash), old, new);
    }
}

/// The hash of a topic or a level of one, where clients choose it.
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
