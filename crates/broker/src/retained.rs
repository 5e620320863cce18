//! Retained messages by topic, and scans by filter that skip topics that cannot match.
//!
//! A sorted map: an ordered index over blocks of up to 64 front-coded keys. A key is the topic with '/' replaced by
//! 0x00, which occurs in no topic. So every subtree is contiguous, and a scan jumps over subtrees that cannot match:
//! `a/+/b` costs one jump per child of `a`, whatever the size of the children. A hash table from topic to block makes
//! replacing, the most frequent call, independent of the index.
//!
//! The caller defines the stored value and its size. Limits hold at all times. Work per call is bounded: a scan and an
//! expiry take a budget and can continue later, also after changes. An expired entry is hidden at once;
//! [`RetainedStore::expire`] frees it. Topics must be valid, in particular without U+0000 [MQTT-1.5.4-2].
//!
//! Invariants: the block of the empty first key always exists; each block's keys are at or above its first key and
//! below the next one; `ids` contains the block of every key; `deadlines` contains (`earliest`, id) of each block whose
//! `earliest` is not NEVER; no entry of a block expires before its `earliest`.

mod block;
mod filter;
mod first_key;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::Bound::{Excluded, Included, Unbounded};

use block::{BlockItem, BlockReader, BlockSearch, NEVER, RetainedBlock};
use filter::{KeyVerdict, ScanFilter};
use first_key::FirstKey;
use foldhash::quality::RandomState;

use crate::id_table::{IdMap, hash_text, raw_ids};

/// Limits of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedLimits {
    pub count_max: usize,
    /// Limit of the sum of the sizes given to [`RetainedStore::set`].
    pub bytes_max: u64,
}

impl RetainedLimits {
    pub const NONE: RetainedLimits = RetainedLimits {
        count_max: usize::MAX,
        bytes_max: u64::MAX,
    };
}

/// The limit that an entry would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetainedLimit {
    Count,
    Bytes,
}

/// Limits of one call of [`RetainedStore::scan`].
#[derive(Clone, Copy, Debug)]
pub struct ScanBudget {
    pub matches_max: usize,
    /// Visited keys, matching or not. Each takes at most one or two microseconds, except for topics of many KB.
    pub steps_max: usize,
}

/// Position at which a scan continues: the first key that has not been visited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanCursor(Box<[u8]>);

impl ScanCursor {
    /// Encodes a cursor, to store it outside the process.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Decodes a cursor. Any bytes are a valid position, so untrusted input is safe.
    pub fn from_bytes(bytes: &[u8]) -> ScanCursor {
        ScanCursor(bytes.into())
    }

    /// Returns whether no topic from here on matches the filter.
    pub fn is_past(&self, filter: &str) -> bool {
        ScanFilter::new(filter).verdict(&self.0, &mut Vec::new()) == KeyVerdict::Done
    }
}

/// Result of [`RetainedStore::scan_counted`].
pub struct CountedScan {
    /// Where to continue; `None` after the last entry.
    pub cursor: Option<ScanCursor>,
    /// Number of visited entries.
    pub steps: usize,
}

pub struct RetainedStore<V> {
    index: BTreeMap<FirstKey, LeafId>,
    ids: IdMap<LeafId>,
    hashing: RandomState,
    blocks: Vec<Option<Box<Leaf<V>>>>,
    vacant: Vec<LeafId>,
    deadlines: BTreeSet<(u64, LeafId)>,
    limits: RetainedLimits,
    count: usize,
    bytes: u64,
    key: Cell<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LeafId(u32);

raw_ids!(LeafId);

struct Leaf<V> {
    first_key: FirstKey,
    /// At or before the first deadline in the block.
    earliest: u64,
    block: RetainedBlock<V>,
}

impl<V> RetainedStore<V> {
    pub fn new(limits: RetainedLimits) -> Self {
        let mut retained = Self {
            index: BTreeMap::new(),
            ids: IdMap::new(),
            hashing: RandomState::default(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            deadlines: BTreeSet::new(),
            limits,
            count: 0,
            bytes: 0,
            key: Cell::default(),
        };
        retained.add_leaf(FirstKey::new(b""), RetainedBlock::new());
        retained
    }

    /// Changes the limits for new entries. Present entries stay.
    pub fn set_limits(&mut self, limits: RetainedLimits) {
        self.limits = limits;
    }

    /// Returns the number of entries, including expired ones that are not freed yet.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stores or replaces a value. Returns the previous value. On failure the previous value stays. Replacing a value
    /// with one that is not larger never fails.
    pub fn set(
        &mut self,
        topic: &str,
        value: V,
        bytes: u32,
        expires_at_ms: Option<u64>,
    ) -> Result<Option<V>, RetainedLimit> {
        let item = BlockItem {
            value,
            bytes,
            expires_at_ms: expires_at_ms.unwrap_or(NEVER),
        };
        self.with_key(topic, |retained, key| retained.set_item(key, item))
    }

    /// Returns the result that [`RetainedStore::set`] would have for a value of this size.
    pub fn has_space(&self, topic: &str, bytes: u32) -> Result<(), RetainedLimit> {
        let mut key = self.key.take();
        write_key(topic, &mut key);
        let found = self.find(&key);
        self.key.set(key);
        self.bytes_before(found, u64::from(bytes)).map(|_| ())
    }

    pub fn remove(&mut self, topic: &str) -> Option<V> {
        self.with_key(topic, |retained, key| {
            let (id, at) = retained.find(key)?;
            Some(retained.remove_at(id, at, key).value)
        })
    }

    pub fn get(&self, topic: &str, now_ms: u64) -> Option<&V> {
        let mut key = self.key.take();
        write_key(topic, &mut key);
        let found = self.find(&key);
        self.key.set(key);
        let (id, at) = found?;
        let block = &self.leaf(id).block;
        (!block.is_expired_at(at, now_ms)).then(|| block.value_at(at))
    }

    /// Returns the value of a topic and its size, even if it has expired.
    pub fn entry(&self, topic: &str) -> Option<(&V, u32)> {
        let mut key = self.key.take();
        write_key(topic, &mut key);
        let found = self.find(&key);
        self.key.set(key);
        let (id, at) = found?;
        let block = &self.leaf(id).block;
        Some((block.value_at(at), block.bytes_at(at)))
    }

    /// Visits entries that match `filter`, in topic order, starting at `cursor`, until the budget is spent. Returns the
    /// cursor to continue at, `None` at the end. Entries that exist throughout are visited exactly once.
    pub fn scan(
        &self,
        filter: &str,
        cursor: Option<ScanCursor>,
        now_ms: u64,
        budget: ScanBudget,
        mut visit: impl FnMut(&str, &V),
    ) -> Option<ScanCursor> {
        let go_on = |topic: &str, value: &V| {
            visit(topic, value);
            true
        };
        self.scan_while(filter, cursor, now_ms, budget, go_on)
    }

    /// Like [`RetainedStore::scan`], but stops after a visit that returns false.
    pub fn scan_while(
        &self,
        filter: &str,
        cursor: Option<ScanCursor>,
        now_ms: u64,
        budget: ScanBudget,
        visit: impl FnMut(&str, &V) -> bool,
    ) -> Option<ScanCursor> {
        self.scan_counted(filter, cursor, now_ms, budget, visit).cursor
    }

    /// Like [`RetainedStore::scan_while`]. Also returns the used steps of the budget.
    pub fn scan_counted(
        &self,
        filter: &str,
        cursor: Option<ScanCursor>,
        now_ms: u64,
        budget: ScanBudget,
        visit: impl FnMut(&str, &V) -> bool,
    ) -> CountedScan {
        self.scan_with(&ScanFilter::new(filter), cursor, now_ms, budget, visit)
    }

    /// Visits all entries in topic order, including those that no client filter matches, until `visit` returns false;
    /// otherwise like [`RetainedStore::scan`].
    pub fn scan_all(
        &self,
        cursor: Option<ScanCursor>,
        now_ms: u64,
        budget: ScanBudget,
        visit: impl FnMut(&str, &V) -> bool,
    ) -> Option<ScanCursor> {
        self.scan_with(&ScanFilter::match_all(), cursor, now_ms, budget, visit)
            .cursor
    }

    fn scan_with(
        &self,
        filter: &ScanFilter<'_>,
        cursor: Option<ScanCursor>,
        now_ms: u64,
        budget: ScanBudget,
        mut visit: impl FnMut(&str, &V) -> bool,
    ) -> CountedScan {
        let mut target = cursor.map_or_else(|| filter.first_key(), |cursor| cursor.0.into_vec());
        let mut walk = RetainedCursor::at(self, &target);
        let (mut topic, mut matches, mut steps, mut goes_on) = (Vec::new(), 0, 0, true);
        while walk.is_on_key {
            if !goes_on || matches == budget.matches_max || steps == budget.steps_max {
                let cursor = Some(ScanCursor(walk.reader.key.into()));
                return CountedScan { cursor, steps };
            }
            steps += 1;
            match filter.verdict(&walk.reader.key, &mut target) {
                KeyVerdict::Done => break,
                KeyVerdict::Seek => walk.seek(&target),
                KeyVerdict::Next => walk.next(),
                KeyVerdict::Match => {
                    if walk.leaf.block.expires_at_ms(walk.reader.index()) > now_ms {
                        matches += 1;
                        goes_on = visit(
                            read_key(&walk.reader.key, &mut topic),
                            walk.leaf.block.value(walk.reader.index()),
                        );
                    }
                    walk.next();
                }
            }
        }
        CountedScan { cursor: None, steps }
    }

    /// Returns a time at which entries may be due, no later than the first deadline.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|deadline| deadline.0)
    }

    /// Removes up to `removals_max` due entries and passes them to `removed`. Returns whether more may be due.
    pub fn expire(&mut self, now_ms: u64, removals_max: usize, mut removed: impl FnMut(&str, V)) -> bool {
        let (mut reader, mut topic, mut removals) = (BlockReader::default(), Vec::new(), 0);
        while let Some(&(_, id)) = self.deadlines.first().filter(|deadline| deadline.0 <= now_ms) {
            if removals == removals_max {
                return true;
            }
            match self.leaf(id).block.first_expired(now_ms, &mut reader) {
                Some(at) => {
                    removals += 1;
                    let item = self.remove_at(id, at, &reader.key);
                    removed(read_key(&reader.key, &mut topic), item.value);
                }
                None => self.set_earliest(id, self.leaf(id).block.earliest_expiry_ms()),
            }
        }
        false
    }

    fn set_item(&mut self, key: &[u8], item: BlockItem<V>) -> Result<Option<V>, RetainedLimit> {
        let found = self.find(key);
        let bytes = u64::from(item.bytes);
        self.bytes = self.bytes - self.bytes_before(found, bytes)? + bytes;
        let Some((id, at)) = found else {
            self.insert(key, item);
            return Ok(None);
        };
        self.advance_deadline(id, item.expires_at_ms);
        Ok(Some(self.leaf_mut(id).block.replace(at, item)))
    }

    /// Returns the bytes that a value of this size would replace. Fails if the limits would be exceeded.
    fn bytes_before(&self, found: Option<(LeafId, block::BlockPosition)>, bytes: u64) -> Result<u64, RetainedLimit> {
        let bytes_before = match found {
            Some((id, at)) => u64::from(self.leaf(id).block.bytes_at(at)),
            None if self.count >= self.limits.count_max => return Err(RetainedLimit::Count),
            None => 0,
        };
        let bytes_others = self.bytes - bytes_before;
        match bytes > bytes_before && bytes_others + bytes > self.limits.bytes_max {
            true => Err(RetainedLimit::Bytes),
            false => Ok(bytes_before),
        }
    }

    /// Adds a key that is not in the store.
    fn insert(&mut self, key: &[u8], item: BlockItem<V>) {
        let id = self.leaf_of(key);
        let BlockSearch::Missing(gap) = self.leaf(id).block.search(key) else {
            unreachable!("a key in a block is in ids")
        };
        let is_ascending = gap.is_end;
        self.count += 1;
        self.ids.insert(hash_text(&self.hashing, key), id);
        self.advance_deadline(id, item.expires_at_ms);
        self.leaf_mut(id).block.insert(gap, key, item);
        self.split_if_too_big(id, is_ascending);
    }

    fn find(&self, key: &[u8]) -> Option<(LeafId, block::BlockPosition)> {
        let mut found = None;
        let id = self.ids.find(hash_text(&self.hashing, key), |id| {
            let BlockSearch::Found(at) = self.leaf(id).block.search(key) else {
                return false;
            };
            found = Some(at);
            true
        })?;
        found.map(|at| (id, at))
    }

    fn remove_at(&mut self, id: LeafId, at: block::BlockPosition, key: &[u8]) -> BlockItem<V> {
        self.ids.remove(hash_text(&self.hashing, key), |of| of == id);
        let leaf = self.leaf_mut(id);
        let item = leaf.block.remove(at);
        let is_small = leaf.block.is_small();
        self.count -= 1;
        self.bytes -= item.bytes as u64;
        if is_small {
            self.join(id);
        }
        item
    }

    fn split_if_too_big(&mut self, id: LeafId, is_ascending: bool) {
        let leaf = self.leaf_mut(id);
        if !leaf.block.is_too_big() {
            return;
        }
        let (first_key, upper) = leaf.block.split(is_ascending);
        let earliest = upper.earliest_expiry_ms();
        let upper = self.add_leaf(first_key, upper);
        self.set_earliest(upper, earliest);
        self.move_ids(upper, id, upper);
    }

    /// Assigns the keys of block `of` from block `from` to block `to`.
    fn move_ids(&mut self, of: LeafId, from: LeafId, to: LeafId) {
        let Self {
            blocks, ids, hashing, ..
        } = self;
        let leaf = blocks[of.0 as usize].as_ref().expect("the index refers to live blocks");
        let mut reader = BlockReader::default();
        while reader.has_next(&leaf.block) {
            reader.read(&leaf.block);
            ids.replace(hash_text(hashing, &reader.key), from, to);
        }
    }

    /// Merges a small block with the next or the previous one.
    fn join(&mut self, id: LeafId) {
        let first_key = self.leaf(id).first_key.key();
        let next = self
            .index
            .range::<[u8], _>((Excluded(first_key), Unbounded))
            .next()
            .map(|(_, &next)| next);
        if next.is_some_and(|next| self.merge_if_fits(id, next)) {
            return;
        }
        let first_key = self.leaf(id).first_key.key();
        let before = self
            .index
            .range::<[u8], _>((Unbounded, Excluded(first_key)))
            .next_back()
            .map(|(_, &before)| before);
        if let Some(before) = before {
            self.merge_if_fits(before, id);
        }
    }

    fn merge_if_fits(&mut self, id: LeafId, next: LeafId) -> bool {
        if !self.leaf(id).block.can_merge(&self.leaf(next).block) {
            return false;
        }
        let earliest = self.leaf(id).earliest.min(self.leaf(next).earliest);
        self.set_earliest(next, NEVER);
        self.move_ids(next, next, id);
        let next = self.remove_leaf(next);
        self.leaf_mut(id).block.merge_next(next.block);
        self.set_earliest(id, earliest);
        true
    }

    fn advance_deadline(&mut self, id: LeafId, expires_at_ms: u64) {
        if expires_at_ms < self.leaf(id).earliest {
            self.set_earliest(id, expires_at_ms);
        }
    }

    fn set_earliest(&mut self, id: LeafId, earliest: u64) {
        let before = std::mem::replace(&mut self.leaf_mut(id).earliest, earliest);
        if before == earliest {
            return;
        }
        if before != NEVER {
            self.deadlines.remove(&(before, id));
        }
        if earliest != NEVER {
            self.deadlines.insert((earliest, id));
        }
    }

    fn add_leaf(&mut self, first_key: FirstKey, block: RetainedBlock<V>) -> LeafId {
        let leaf = Some(Box::new(Leaf {
            first_key: first_key.clone(),
            earliest: NEVER,
            block,
        }));
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            LeafId(self.blocks.len() as u32 - 1)
        });
        self.blocks[id.0 as usize] = leaf;
        self.index.insert(first_key, id);
        id
    }

    fn remove_leaf(&mut self, id: LeafId) -> Box<Leaf<V>> {
        let leaf = self.blocks[id.0 as usize]
            .take()
            .expect("the index refers to live blocks");
        self.index.remove(leaf.first_key.key());
        self.vacant.push(id);
        leaf
    }

    fn leaf_of(&self, key: &[u8]) -> LeafId {
        let (_, &id) = self
            .index
            .range::<[u8], _>((Unbounded, Included(key)))
            .next_back()
            .expect("the empty first key exists");
        id
    }

    fn leaf(&self, id: LeafId) -> &Leaf<V> {
        self.blocks[id.0 as usize]
            .as_deref()
            .expect("the index refers to live blocks")
    }

    fn leaf_mut(&mut self, id: LeafId) -> &mut Leaf<V> {
        self.blocks[id.0 as usize]
            .as_deref_mut()
            .expect("the index refers to live blocks")
    }

    fn with_key<R>(&mut self, topic: &str, f: impl FnOnce(&mut Self, &[u8]) -> R) -> R {
        let mut key = self.key.take();
        write_key(topic, &mut key);
        let result = f(self, &key);
        self.key.set(key);
        result
    }
}

/// A position in the order of keys.
struct RetainedCursor<'a, V> {
    retained: &'a RetainedStore<V>,
    leaf: &'a Leaf<V>,
    /// The blocks after `leaf`.
    following: btree_map::Range<'a, FirstKey, LeafId>,
    reader: BlockReader,
    is_on_key: bool,
}

impl<'a, V> RetainedCursor<'a, V> {
    /// Returns a cursor at the first key at or above `target`.
    fn at(retained: &'a RetainedStore<V>, target: &[u8]) -> Self {
        let id = retained.leaf_of(target);
        let mut walk = Self {
            retained,
            leaf: retained.leaf(id),
            following: retained.index.range::<[u8], _>((Excluded(target), Unbounded)),
            reader: BlockReader::default(),
            is_on_key: false,
        };
        walk.next();
        walk.skip_below(target);
        walk
    }

    /// Moves to the first key at or above `target`, which must be above the current key.
    fn seek(&mut self, target: &[u8]) {
        if self
            .following
            .clone()
            .next()
            .is_some_and(|(first_key, _)| first_key.key() <= target)
        {
            self.leaf = self.retained.leaf(self.retained.leaf_of(target));
            self.following = self.retained.index.range::<[u8], _>((Excluded(target), Unbounded));
            self.reader.rewind();
            self.next();
        }
        self.skip_below(target);
    }

    fn skip_below(&mut self, target: &[u8]) {
        while self.is_on_key && *self.reader.key < *target && !self.reader.read_to(&self.leaf.block, target) {
            self.next();
        }
    }

    fn next(&mut self) {
        while !self.reader.has_next(&self.leaf.block) {
            let Some((_, &id)) = self.following.next() else {
                self.is_on_key = false;
                return;
            };
            self.leaf = self.retained.leaf(id);
            self.reader.rewind();
        }
        self.reader.read(&self.leaf.block);
        self.is_on_key = true;
    }
}

fn write_key(topic: &str, key: &mut Vec<u8>) {
    debug_assert!(!topic.contains('\0'), "U+0000 is no part of a topic");
    key.clear();
    key.extend(topic.bytes().map(|byte| if byte == b'/' { 0 } else { byte }));
}

fn read_key<'a>(key: &[u8], topic: &'a mut Vec<u8>) -> &'a str {
    topic.clear();
    topic.extend(key.iter().map(|&byte| if byte == 0 { b'/' } else { byte }));
    std::str::from_utf8(topic).expect("keys are made of str")
}
