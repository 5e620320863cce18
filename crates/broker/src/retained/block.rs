//! A leaf of the retained store: a range of sorted keys with their values.
//!
//! Keys are front-coded: each stores only the suffix that differs from its predecessor, because neighbouring topics
//! share most of their bytes. Values, sizes and deadlines are separate columns. A block without deadlines has no such
//! column.
//!
//! Layout of `text`: `shared: varint | length: varint | suffix` per key, in ascending order. The first key shares
//! nothing. A search does not decode keys. Let `matched` be the number of bytes of the target that the previous key,
//! which is smaller, has in common with it. A record that shares more is smaller as well, one that shares less is
//! greater, and only one that shares exactly as much is compared.

use std::cmp::Ordering;
use std::ops::Range;

use super::first_key::FirstKey;

/// Deadline of entries that do not expire.
pub(super) const NEVER: u64 = u64::MAX;

pub(super) struct RetainedBlock<V> {
    text: Vec<u8>,
    values: Vec<V>,
    sizes: Vec<u32>,
    expires: Vec<u64>,
}

/// The value of a key.
pub(super) struct BlockItem<V> {
    pub(super) value: V,
    pub(super) bytes: u32,
    pub(super) expires_at_ms: u64,
}

pub(super) enum BlockSearch {
    Found(BlockPosition),
    Missing(InsertPosition),
}

#[derive(Clone, Copy)]
pub(super) struct BlockPosition {
    index: usize,
    offset: usize,
}

/// Where a key would be inserted, and how much it shares with its neighbours.
pub(super) struct InsertPosition {
    at: BlockPosition,
    shared_before: usize,
    shared_after: usize,
    /// All keys of the block are smaller.
    pub(super) is_end: bool,
}

/// Decodes the keys in order.
#[derive(Default)]
pub(super) struct BlockReader {
    next: usize,
    offset: usize,
    /// Key of entry `next - 1`.
    pub(super) key: Vec<u8>,
}

const ENTRIES_MAX: usize = 64;
const TEXT_MAX: usize = 4096;
const ENTRIES_FEW: usize = 16;
const ENTRIES_JOINED: usize = 48;
const TEXT_JOINED: usize = 3072;

impl<V> RetainedBlock<V> {
    pub(super) fn new() -> Self {
        Self {
            text: Vec::new(),
            values: Vec::new(),
            sizes: Vec::new(),
            expires: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn search(&self, key: &[u8]) -> BlockSearch {
        let (mut at, mut matched) = (BlockPosition { index: 0, offset: 0 }, 0);
        while at.offset < self.text.len() {
            let record = self.record(at.offset);
            if record.shared < matched {
                return BlockSearch::Missing(InsertPosition {
                    at,
                    shared_before: matched,
                    shared_after: record.shared,
                    is_end: false,
                });
            }
            if record.shared == matched {
                let (suffix, rest) = (&self.text[record.suffix.clone()], &key[matched..]);
                let common = common_prefix(suffix, rest);
                match suffix[common..].cmp(&rest[common..]) {
                    Ordering::Equal => return BlockSearch::Found(at),
                    Ordering::Less => matched += common,
                    Ordering::Greater => {
                        let shared_after = matched + common;
                        return BlockSearch::Missing(InsertPosition {
                            at,
                            shared_before: matched,
                            shared_after,
                            is_end: false,
                        });
                    }
                }
            }
            at = BlockPosition {
                index: at.index + 1,
                offset: record.suffix.end,
            };
        }
        BlockSearch::Missing(InsertPosition {
            at,
            shared_before: matched,
            shared_after: 0,
            is_end: true,
        })
    }

    pub(super) fn value(&self, index: usize) -> &V {
        &self.values[index]
    }

    pub(super) fn value_at(&self, at: BlockPosition) -> &V {
        &self.values[at.index]
    }

    pub(super) fn bytes_at(&self, at: BlockPosition) -> u32 {
        self.sizes[at.index]
    }

    pub(super) fn expires_at_ms(&self, index: usize) -> u64 {
        self.expires.get(index).copied().unwrap_or(NEVER)
    }

    pub(super) fn is_expired_at(&self, at: BlockPosition, now_ms: u64) -> bool {
        self.expires_at_ms(at.index) <= now_ms
    }

    pub(super) fn earliest_expiry_ms(&self) -> u64 {
        self.expires.iter().copied().min().unwrap_or(NEVER)
    }

    pub(super) fn replace(&mut self, at: BlockPosition, item: BlockItem<V>) -> V {
        self.sizes[at.index] = item.bytes;
        if item.expires_at_ms != NEVER || !self.expires.is_empty() {
            self.expires.resize(self.values.len(), NEVER);
            self.expires[at.index] = item.expires_at_ms;
        }
        std::mem::replace(&mut self.values[at.index], item.value)
    }

    pub(super) fn insert(&mut self, gap: InsertPosition, key: &[u8], item: BlockItem<V>) {
        self.insert_text(&gap, key);
        let index = gap.at.index;
        if item.expires_at_ms != NEVER && self.expires.is_empty() {
            self.expires = vec![NEVER; self.values.len()];
        }
        if item.expires_at_ms != NEVER || !self.expires.is_empty() {
            insert_tight(&mut self.expires, index, item.expires_at_ms);
        }
        insert_tight(&mut self.values, index, item.value);
        insert_tight(&mut self.sizes, index, item.bytes);
    }

    pub(super) fn remove(&mut self, at: BlockPosition) -> BlockItem<V> {
        self.remove_text(at.offset);
        let item = BlockItem {
            value: self.values.remove(at.index),
            bytes: self.sizes.remove(at.index),
            expires_at_ms: if self.expires.is_empty() {
                NEVER
            } else {
                self.expires.remove(at.index)
            },
        };
        self.free_slack();
        item
    }

    /// Returns the first entry that is due at `now_ms`. Leaves its key in the reader.
    pub(super) fn first_expired(&self, now_ms: u64, reader: &mut BlockReader) -> Option<BlockPosition> {
        let index = self.expires.iter().position(|&expires_at_ms| expires_at_ms <= now_ms)?;
        reader.rewind();
        let mut at = BlockPosition { index: 0, offset: 0 };
        while at.index <= index {
            at = BlockPosition {
                index: at.index + 1,
                offset: reader.offset,
            };
            reader.read(self);
        }
        Some(BlockPosition { index, ..at })
    }

    pub(super) fn is_too_big(&self) -> bool {
        self.len() > ENTRIES_MAX || (self.text.len() > TEXT_MAX && self.len() > 1)
    }

    pub(super) fn is_small(&self) -> bool {
        self.len() < ENTRIES_FEW
    }

    pub(super) fn can_merge(&self, next: &Self) -> bool {
        next.len() == 0
            || (self.len() + next.len() <= ENTRIES_JOINED && self.text.len() + next.text.len() <= TEXT_JOINED)
    }

    /// Moves the upper part to a new block. Returns it with a key that separates the two. `is_ascending` means that
    /// keys arrive in order; then the lower part stays full.
    pub(super) fn split(&mut self, is_ascending: bool) -> (FirstKey, Self) {
        let index = if is_ascending { self.len() - 1 } else { self.len() / 2 };
        let mut reader = BlockReader::default();
        (0..index).for_each(|_| reader.read(self));
        let offset = reader.offset;
        let record = self.record(offset);
        reader.read(self);
        let mut text = Vec::with_capacity(self.text.len() - offset + record.shared + 4);
        push_record(&mut text, 0, &[&reader.key]);
        text.extend_from_slice(&self.text[record.suffix.end..]);
        self.text.truncate(offset);
        let upper = Self {
            text,
            values: self.values.split_off(index),
            sizes: self.sizes.split_off(index),
            expires: if self.expires.is_empty() {
                Vec::new()
            } else {
                self.expires.split_off(index)
            },
        };
        self.free_slack();
        (FirstKey::new(&reader.key[..record.shared + 1]), upper)
    }

    /// Appends a block whose keys are all greater.
    pub(super) fn merge_next(&mut self, mut next: Self) {
        if next.len() == 0 {
            return;
        }
        let mut reader = BlockReader::default();
        (0..self.len()).for_each(|_| reader.read(self));
        let first = next.record(0);
        let shared = common_prefix(&reader.key, &next.text[first.suffix.clone()]);
        push_record(
            &mut self.text,
            shared,
            &[&next.text[first.suffix.start + shared..first.suffix.end]],
        );
        self.text.extend_from_slice(&next.text[first.suffix.end..]);
        if !self.expires.is_empty() || !next.expires.is_empty() {
            self.expires.resize(self.len(), NEVER);
            next.expires.resize(next.len(), NEVER);
        }
        self.expires.append(&mut next.expires);
        self.values.append(&mut next.values);
        self.sizes.append(&mut next.sizes);
        self.free_slack();
    }

    #[cfg(test)]
    pub(super) fn has_no_allocation(&self) -> bool {
        self.text.capacity() <= 512 && self.values.capacity() <= 16
    }

    fn insert_text(&mut self, gap: &InsertPosition, key: &[u8]) {
        let offset = gap.at.offset;
        let mut records = Vec::with_capacity(key.len() - gap.shared_before + 12);
        push_record(&mut records, gap.shared_before, &[&key[gap.shared_before..]]);
        let mut replaced = offset..offset;
        if offset < self.text.len() {
            // The next key may share more with the new key than with its former predecessor.
            let after = self.record(offset);
            replaced.end = after.suffix.start + (gap.shared_after - after.shared);
            push_head(&mut records, gap.shared_after, after.suffix.end - replaced.end);
        }
        reserve_tight(&mut self.text, records.len());
        self.text.splice(replaced, records);
    }

    fn remove_text(&mut self, offset: usize) {
        let removed = self.record(offset);
        if removed.suffix.end == self.text.len() {
            self.text.truncate(offset);
            return;
        }
        // The next key must store the bytes that it shared only with the removed key.
        let after = self.record(removed.suffix.end);
        let mut record = Vec::new();
        let lost = after.shared.saturating_sub(removed.shared);
        let lost = &self.text[removed.suffix.start..removed.suffix.start + lost];
        push_record(
            &mut record,
            after.shared.min(removed.shared),
            &[lost, &self.text[after.suffix.clone()]],
        );
        self.text.splice(offset..after.suffix.end, record);
    }

    fn free_slack(&mut self) {
        if self.expires.iter().all(|&expires_at_ms| expires_at_ms == NEVER) {
            self.expires = Vec::new();
        }
        shrink(&mut self.text, 512);
        shrink(&mut self.values, 16);
        shrink(&mut self.sizes, 16);
        shrink(&mut self.expires, 16);
    }

    fn record(&self, offset: usize) -> BlockRecord {
        let (shared, offset) = varint(&self.text, offset);
        let (len, start) = varint(&self.text, offset);
        BlockRecord {
            shared,
            suffix: start..start + len,
        }
    }
}

struct BlockRecord {
    shared: usize,
    suffix: Range<usize>,
}

impl BlockReader {
    pub(super) fn rewind(&mut self) {
        (self.next, self.offset) = (0, 0);
        self.key.clear();
    }

    /// Returns the entry whose key was read last.
    pub(super) fn index(&self) -> usize {
        self.next - 1
    }

    pub(super) fn has_next<V>(&self, block: &RetainedBlock<V>) -> bool {
        self.next < block.len()
    }

    pub(super) fn read<V>(&mut self, block: &RetainedBlock<V>) {
        self.read_record(block, &block.record(self.offset));
    }

    /// Continues from a key below `target` to the first key that is not below it. Returns whether the block has one.
    pub(super) fn read_to<V>(&mut self, block: &RetainedBlock<V>, target: &[u8]) -> bool {
        let mut matched = common_prefix(&self.key, target);
        while self.has_next(block) {
            let record = block.record(self.offset);
            self.read_record(block, &record);
            if record.shared < matched {
                return true;
            }
            if record.shared == matched {
                let (suffix, rest) = (&self.key[matched..], &target[matched..]);
                let common = common_prefix(suffix, rest);
                if suffix[common..] >= rest[common..] {
                    return true;
                }
                matched += common;
            }
        }
        false
    }

    fn read_record<V>(&mut self, block: &RetainedBlock<V>, record: &BlockRecord) {
        self.key.truncate(record.shared);
        self.key.extend_from_slice(&block.text[record.suffix.clone()]);
        self.offset = record.suffix.end;
        self.next += 1;
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn push_record(text: &mut Vec<u8>, shared: usize, suffix: &[&[u8]]) {
    push_head(text, shared, suffix.iter().map(|part| part.len()).sum());
    suffix.iter().for_each(|part| text.extend_from_slice(part));
}

fn push_head(text: &mut Vec<u8>, shared: usize, len: usize) {
    push_varint(text, shared);
    push_varint(text, len);
}

fn push_varint(text: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        text.push(value as u8 | 0x80);
        value >>= 7;
    }
    text.push(value as u8);
}

fn varint(text: &[u8], mut offset: usize) -> (usize, usize) {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = text[offset];
        offset += 1;
        value |= (byte as usize & 0x7F) << shift;
        if byte < 0x80 {
            return (value, offset);
        }
        shift += 7;
    }
}

/// There are many small blocks: the slack of a doubling Vec would take a third of the store.
fn insert_tight<T>(values: &mut Vec<T>, index: usize, value: T) {
    reserve_tight(values, 1);
    values.insert(index, value);
}

fn reserve_tight<T>(values: &mut Vec<T>, more: usize) {
    if values.capacity() - values.len() < more {
        values.reserve_exact(more + (values.len() / 8).max(4));
    }
}

fn shrink<T>(values: &mut Vec<T>, slack_max: usize) {
    if values.capacity() - values.len() > slack_max {
        values.shrink_to(values.len() + slack_max / 4);
    }
}
