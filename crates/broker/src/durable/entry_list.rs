//! A compressed queue of entries. An entry stores the difference to its predecessor: two to five bytes instead of
//! sixteen, and two more if the size of the message differs.
//!
//! The list consists of chunks of up to `CHUNK_MAX` entries that decode independently. A short queue is one chunk
//! without slack; removing an entry from the front rewrites it.
//!
//! ```text
//! chunk     := count u8, count entries
//! entry     := difference of positions, zigzag << 1 | is_other;
//!              if is_other: flags u8, [difference of numbers, zigzag], [size u8], [tag]
//! flags     := terms (StoredEntry::terms), 32: the number is not the previous number plus 1,
//!              64: the message has another size than the previous one (since record version 3)
//! tag       := count of identifiers << 1 | has_group, identifiers, [shard, index, epoch, key]
//! ```
//! Without `is_other`, an entry has the terms, the size and the tag of its predecessor, and the next number. The first
//! entry of a chunk is compared with position 0, number 0, QoS 1, an unknown size and no tag. A page in the journal is
//! a sequence of chunks without groups. An entry without a message has no position and no size, and the differences
//! skip it.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::ShardId;
use crate::delivery::{DeliveryTag, GroupRef};
use crate::durable::entry::StoredEntry;
use crate::durable::record::{
    GroupKey, NotARecord, PackedEntries, Reader, RecordPosition, Seq, SessionEntry, put_integer,
};
use crate::message_size::MessageSize;
use crate::slots::{GroupEpoch, GroupIndex};

/// A chunk is decoded as a whole to add or remove an entry, which takes some hundred nanoseconds.
const CHUNK_MAX: u8 = 64;

const JUMP: u8 = 1 << 5;
const OTHER_SIZE: u8 = 1 << 6;

#[derive(Debug, Default)]
pub struct EntryList {
    /// Empty if the list is empty.
    first: Box<[u8]>,
    rest: Option<Box<EncodedEntries>>,
}

#[derive(Debug, Default)]
struct EncodedEntries {
    chunks: VecDeque<Box<[u8]>>,
    /// Number of entries in all `chunks`.
    len: usize,
}

/// An entry and its tag.
pub type TaggedEntry = (StoredEntry, DeliveryTag);

/// Returns the bytes that an entry counts for the limit of a queue. A delivery in memory counts the same.
pub fn bytes_of((entry, tag): &TaggedEntry) -> usize {
    entry.size().bytes() + tag.stored_bytes()
}

pub fn sum_of_bytes<'a>(items: impl IntoIterator<Item = &'a TaggedEntry>) -> usize {
    items.into_iter().map(bytes_of).sum()
}

impl EntryList {
    pub fn len(&self) -> usize {
        count(&self.first) + self.rest.as_ref().map_or(0, |rest| rest.len)
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    pub fn front(&self) -> Option<StoredEntry> {
        ChunkReader::of(&self.first).next().map(|(entry, _)| entry)
    }

    pub fn back(&self) -> Option<StoredEntry> {
        ChunkReader::of(self.chunks().next_back()?)
            .last()
            .map(|(entry, _)| entry)
    }

    pub fn iter(&self) -> impl Iterator<Item = TaggedEntry> {
        self.chunks().flat_map(ChunkReader::of)
    }

    /// Returns the entries with a higher number. Entries are sorted by number.
    pub fn iter_behind(&self, seq: Seq) -> impl Iterator<Item = TaggedEntry> {
        // The last chunk that starts at or below `seq` may contain higher numbers, so the search starts there.
        let begin = self.rest.as_ref().map_or(0, |rest| rest.begin_up_to(seq));
        let first = (begin == 0 && !self.first.is_empty()).then_some(&*self.first);
        let rest = self
            .rest
            .iter()
            .flat_map(move |rest| rest.chunks.range(begin.saturating_sub(1)..));
        let chunks = first.into_iter().chain(rest.map(|chunk| &**chunk));
        chunks
            .flat_map(ChunkReader::of)
            .skip_while(move |(entry, _)| entry.seq() <= seq)
    }

    /// Adds up the bytes that the entries count for the limit of the queue.
    pub fn bytes(&self) -> usize {
        self.iter().map(|item| bytes_of(&item)).sum()
    }

    fn chunks(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let first = (!self.first.is_empty()).then_some(&*self.first);
        let rest = self.rest.iter().flat_map(|rest| &rest.chunks);
        first.into_iter().chain(rest.map(|chunk| &**chunk))
    }

    pub fn extend(&mut self, items: impl IntoIterator<Item = TaggedEntry>) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_none() {
            return;
        }
        let mut writer = ChunkWriter::after(self.take_last());
        for (entry, tag) in items {
            if writer.count() == CHUNK_MAX {
                self.push_chunk(std::mem::take(&mut writer).finish());
            }
            writer.put(entry, tag);
        }
        self.push_chunk(writer.finish());
    }

    /// Inserts entries before all others.
    pub fn prepend(&mut self, items: impl IntoIterator<Item = TaggedEntry>) {
        let before = std::mem::take(self);
        self.extend(items);
        // Joins them with the first chunk. Otherwise repeated partial evictions would create many small chunks.
        let mut chunks = [before.first]
            .into_iter()
            .chain(before.rest.into_iter().flat_map(|rest| rest.chunks));
        let joined = chunks.next().unwrap_or_default();
        self.extend(ChunkReader::of(&joined));
        chunks.for_each(|chunk| self.push_chunk(chunk));
    }

    /// Removes entries from the front while `is_wanted` returns true.
    pub fn take_while(&mut self, mut is_wanted: impl FnMut(&StoredEntry) -> bool) -> Vec<TaggedEntry> {
        self.take_items_while(|(entry, _)| is_wanted(entry))
    }

    pub fn take_items_while(&mut self, mut is_wanted: impl FnMut(&TaggedEntry) -> bool) -> Vec<TaggedEntry> {
        let mut taken = Vec::new();
        while !self.first.is_empty() {
            let chunk = self.pop_chunk();
            let mut items = ChunkReader::of(&chunk).peekable();
            while let Some(item) = items.next_if(&mut is_wanted) {
                taken.push(item);
            }
            if items.peek().is_some() {
                let mut writer = ChunkWriter::default();
                items.for_each(|(entry, tag)| writer.put(entry, tag));
                self.push_chunk_front(writer.finish());
                break;
            }
        }
        taken
    }

    /// Splits off all entries after the first `count`.
    pub fn split_off(&mut self, count: usize) -> EntryList {
        let mut left = count;
        let first = self.take_while(|_| left.checked_sub(1).inspect(|rest| left = *rest).is_some());
        let mut list = EntryList::default();
        list.extend(first);
        std::mem::replace(self, list)
    }

    /// Appends the list in the format of the journal.
    pub fn pack(&self, out: &mut Vec<u8>) {
        self.chunks().for_each(|chunk| out.extend_from_slice(chunk));
    }

    pub fn pop_front(&mut self) -> Option<TaggedEntry> {
        let mut is_first = true;
        self.take_while(|_| std::mem::take(&mut is_first)).pop()
    }

    /// Updates entries. `change` returns true if it modified the entry. Returns the modified entries.
    pub fn change(&mut self, mut change: impl FnMut(&mut StoredEntry) -> bool) -> Vec<TaggedEntry> {
        let mut changed = Vec::new();
        let rest = self.rest.iter_mut().flat_map(|rest| &mut rest.chunks);
        for chunk in [&mut self.first].into_iter().chain(rest) {
            let (before, mut writer) = (changed.len(), ChunkWriter::default());
            for (mut entry, tag) in ChunkReader::of(chunk) {
                if change(&mut entry) {
                    changed.push((entry, tag.clone()));
                }
                writer.put(entry, tag);
            }
            if changed.len() > before {
                *chunk = writer.finish();
            }
        }
        changed
    }

    /// Updates the entries with these numbers. Requires that the numbers of the list are consecutive. `change` returns
    /// true if it modified the entry.
    pub fn change_consecutive(
        &mut self,
        numbers: RangeInclusive<Seq>,
        mut change: impl FnMut(&mut StoredEntry) -> bool,
    ) {
        let begin = self.rest.as_ref().map_or(0, |rest| rest.begin_up_to(*numbers.start()));
        let rest = self.rest.iter_mut();
        let rest = rest.flat_map(|rest| rest.chunks.range_mut(begin.saturating_sub(1)..));
        for chunk in [&mut self.first].into_iter().chain(rest) {
            let Some((first, _)) = ChunkReader::of(chunk).next() else {
                return;
            };
            if first.seq() > *numbers.end() {
                return;
            }
            if first.seq() + count(chunk) as Seq <= *numbers.start() {
                continue;
            }
            let (mut has_changed, mut writer) = (false, ChunkWriter::default());
            for (mut entry, tag) in ChunkReader::of(chunk) {
                has_changed |= numbers.contains(&entry.seq()) && change(&mut entry);
                writer.put(entry, tag);
            }
            if has_changed {
                *chunk = writer.finish();
            }
        }
    }

    fn push_chunk(&mut self, chunk: Box<[u8]>) {
        if self.first.is_empty() {
            self.first = chunk;
        } else if !chunk.is_empty() {
            let rest = self.rest.get_or_insert_default();
            rest.len += count(&chunk);
            rest.chunks.push_back(chunk);
        }
    }

    fn push_chunk_front(&mut self, chunk: Box<[u8]>) {
        let second = std::mem::replace(&mut self.first, chunk);
        if !second.is_empty() {
            let rest = self.rest.get_or_insert_default();
            rest.len += count(&second);
            rest.chunks.push_front(second);
        }
    }

    fn pop_chunk(&mut self) -> Box<[u8]> {
        let next = self.rest.as_mut().and_then(|rest| {
            let chunk = rest.chunks.pop_front()?;
            rest.len -= count(&chunk);
            Some(chunk)
        });
        self.rest.take_if(|rest| rest.chunks.is_empty());
        std::mem::replace(&mut self.first, next.unwrap_or_default())
    }

    fn take_last(&mut self) -> Box<[u8]> {
        let Some(rest) = &mut self.rest else {
            return std::mem::take(&mut self.first);
        };
        let last = rest.chunks.pop_back().unwrap_or_default();
        rest.len -= count(&last);
        last
    }
}

impl EncodedEntries {
    /// Returns how many chunks start at or below this number. Chunks are sorted.
    fn begin_up_to(&self, seq: Seq) -> usize {
        self.chunks.partition_point(|chunk| {
            ChunkReader::of(chunk)
                .next()
                .is_some_and(|(entry, _)| entry.seq() <= seq)
        })
    }
}

fn count(chunk: &[u8]) -> usize {
    chunk.first().map_or(0, |count| usize::from(*count))
}

/// The predecessor that an entry is compared with.
struct Predecessor {
    position: u64,
    seq: Seq,
    terms: u8,
    size: MessageSize,
    tag: DeliveryTag,
}

impl Default for Predecessor {
    fn default() -> Self {
        Predecessor {
            position: 0,
            seq: 0,
            terms: mqtt::QoS::AtLeastOnce as u8,
            size: MessageSize::UNKNOWN,
            tag: DeliveryTag::None,
        }
    }
}

#[derive(Default)]
struct ChunkWriter {
    bytes: Vec<u8>,
    before: Predecessor,
}

impl ChunkWriter {
    /// Continues after the last entry of a chunk.
    fn after(chunk: Box<[u8]>) -> ChunkWriter {
        let mut entries = ChunkReader::of(&chunk);
        entries.by_ref().for_each(drop);
        let before = entries.before;
        ChunkWriter {
            bytes: chunk.into_vec(),
            before,
        }
    }

    fn count(&self) -> u8 {
        self.bytes.first().copied().unwrap_or(0)
    }

    fn put(&mut self, entry: StoredEntry, tag: DeliveryTag) {
        if self.bytes.is_empty() {
            self.bytes.push(0);
        }
        self.bytes[0] += 1;
        let (out, before) = (&mut self.bytes, &mut self.before);
        let entry = entry.tagged(!matches!(tag, DeliveryTag::None));
        let (position, size) = match entry.is_released() {
            true => (before.position, before.size),
            false => (entry.message().0, entry.size()),
        };
        let difference = zigzag(position.wrapping_sub(before.position));
        let is_next = entry.seq() == before.seq + 1;
        let is_other = !is_next || entry.terms() != before.terms || size != before.size || tag != before.tag;
        put_integer(out, difference << 1 | u64::from(is_other));
        if is_other {
            let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
            out.push(entry.terms() | flag(!is_next, JUMP) | flag(size != before.size, OTHER_SIZE));
            if !is_next {
                put_integer(out, zigzag(entry.seq().wrapping_sub(before.seq)));
            }
            if size != before.size {
                out.push(size.0);
            }
            if entry.is_tagged() {
                put_tag(out, &tag);
            }
        }
        *before = Predecessor {
            position,
            seq: entry.seq(),
            terms: entry.terms(),
            size,
            tag,
        };
    }

    fn finish(self) -> Box<[u8]> {
        self.bytes.into_boxed_slice()
    }
}

/// Decodes the entries of a chunk.
struct ChunkReader<'a> {
    reader: Reader<'a>,
    left: u8,
    before: Predecessor,
}

impl ChunkReader<'_> {
    fn of(chunk: &[u8]) -> ChunkReader<'_> {
        let (left, bytes) = chunk.split_first().map_or((0, chunk), |(left, bytes)| (*left, bytes));
        ChunkReader {
            reader: Reader(bytes),
            left,
            before: Predecessor::default(),
        }
    }

    fn read(&mut self) -> Result<TaggedEntry, NotARecord> {
        let (reader, before) = (&mut self.reader, &mut self.before);
        let packed = reader.integer()?;
        before.position = before.position.wrapping_add(from_zigzag(packed >> 1));
        before.seq = before.seq.wrapping_add(1);
        if packed & 1 == 1 {
            let flags = reader.u8()?;
            if flags & JUMP != 0 {
                before.seq = before.seq.wrapping_sub(1).wrapping_add(from_zigzag(reader.integer()?));
            }
            if flags & OTHER_SIZE != 0 {
                before.size = MessageSize(reader.u8()?);
            }
            before.terms = flags & !(JUMP | OTHER_SIZE);
            before.tag = DeliveryTag::None;
        }
        let entry = StoredEntry::from_terms(RecordPosition(before.position), before.seq, before.terms);
        let entry = entry.ok_or(NotARecord {
            expected: "a queue entry with valid flags",
        })?;
        if packed & 1 == 1 && entry.is_tagged() {
            before.tag = tag(reader)?;
        }
        let entry = match entry.is_released() {
            true => entry.without_message(),
            false => entry.sized(before.size),
        };
        Ok((entry, before.tag.clone()))
    }
}

impl Iterator for ChunkReader<'_> {
    type Item = TaggedEntry;

    fn next(&mut self) -> Option<TaggedEntry> {
        self.left = self.left.checked_sub(1)?;
        Some(self.read().expect("chunks are written by `Writer`"))
    }
}

impl PackedEntries<'_> {
    /// Decodes all entries. Fails on invalid bytes.
    pub(super) fn items(self) -> Result<Vec<TaggedEntry>, NotARecord> {
        let (mut items, mut rest) = (Vec::new(), self.0);
        while !rest.is_empty() {
            let mut chunk = ChunkReader::of(rest);
            for _ in 0..chunk.left {
                items.push(chunk.read()?);
            }
            rest = chunk.reader.0;
        }
        Ok(items)
    }
}

/// Converts an item into the form of an `Entries` record.
pub fn entry_of((entry, tag): TaggedEntry) -> SessionEntry {
    SessionEntry {
        message: entry.message(),
        seq: entry.seq(),
        qos: entry.qos(),
        retain: entry.retain(),
        is_released: entry.is_released(),
        size: entry.size(),
        group: tag.group_key(),
        identifiers: tag.identifiers().to_vec(),
    }
}

fn put_tag(out: &mut Vec<u8>, tag: &DeliveryTag) {
    let (identifiers, group) = (tag.identifiers(), tag.group());
    put_integer(out, (identifiers.len() as u64) << 1 | u64::from(group.is_some()));
    identifiers
        .iter()
        .for_each(|identifier| put_integer(out, u64::from(*identifier)));
    if let Some(group) = group {
        let GroupRef {
            shard,
            index,
            epoch,
            key,
        } = group;
        for integer in [u64::from(shard.0), u64::from(index.0), u64::from(epoch.0), key.0] {
            put_integer(out, integer);
        }
    }
}

fn tag(reader: &mut Reader<'_>) -> Result<DeliveryTag, NotARecord> {
    let packed = reader.integer()?;
    let identifiers = (0..packed >> 1)
        .map(|_| reader.small())
        .collect::<Result<Vec<u32>, _>>()?;
    if packed & 1 == 0 {
        return Ok(DeliveryTag::new(&identifiers, None));
    }
    let group = GroupRef {
        shard: ShardId(reader.small()?),
        index: GroupIndex(reader.small()?),
        epoch: GroupEpoch(reader.small()?),
        key: GroupKey(reader.integer()?),
    };
    Ok(DeliveryTag::new(&identifiers, Some(group)))
}

/// Maps differences close to 0, of either sign, to small integers.
fn zigzag(difference: u64) -> u64 {
    difference << 1 ^ (difference as i64 >> 63) as u64
}

fn from_zigzag(packed: u64) -> u64 {
    packed >> 1 ^ (packed & 1).wrapping_neg()
}

#[cfg(test)]
mod tests;
