//! A queue of positions, packed: an entry takes the difference to the one before it, so two to five bytes and not sixteen.
//!
//! Chunks of up to `CHUNK_MAX` entries, each readable by itself. A short queue is one chunk, exactly as long as it has to be; it is
//! written anew when something is taken from its front.
//!
//! ```text
//! chunk     := count u8, count entries
//! entry     := difference of positions, zigzag << 1 | is_other; if is_other: flags u8, [difference of numbers, zigzag], [tag]
//! flags     := terms (StoredEntry::terms), 32: the number is not the one after the last
//! tag       := count of identifiers << 1 | has_group, identifiers, [shard, index, epoch, key]
//! ```
//! What is not other has the terms and the tag of the entry before it, and the next number. The first is compared with position 0,
//! number 0, QoS 1 and no tag. A page in the journal is chunks one after the other, of entries without a group. An entry
//! whose message is gone has none, and no part in the differences.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::ShardId;
use crate::durable::entry::StoredEntry;
use crate::durable::record::{Entry, GroupKey, NotARecord, Packed, Position, Reader, Seq, put_integer};
use crate::outgoing::{GroupRef, Tag};

/// Decoded as a whole to add or take one, which is some hundred nanoseconds.
const CHUNK_MAX: u8 = 64;

const JUMP: u8 = 1 << 5;

#[derive(Debug, Default)]
pub struct EntryList {
    /// Empty if there is no entry.
    first: Box<[u8]>,
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Default)]
struct Rest {
    chunks: VecDeque<Box<[u8]>>,
    /// Entries in all of them.
    len: usize,
}

/// Entry and tag.
pub type Item = (StoredEntry, Tag);

impl EntryList {
    pub fn len(&self) -> usize {
        count(&self.first) + self.rest.as_ref().map_or(0, |rest| rest.len)
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    pub fn front(&self) -> Option<StoredEntry> {
        Chunk::of(&self.first).next().map(|(entry, _)| entry)
    }

    pub fn back(&self) -> Option<StoredEntry> {
        Chunk::of(self.chunks().next_back()?).last().map(|(entry, _)| entry)
    }

    pub fn iter(&self) -> impl Iterator<Item = Item> {
        self.chunks().flat_map(Chunk::of)
    }

    /// The entries behind a number; all are in the order of their numbers.
    pub fn iter_behind(&self, seq: Seq) -> impl Iterator<Item = Item> {
        // A chunk that begins at or before the number may end behind it: the last of those is the first that is looked at.
        let begin = self.rest.as_ref().map_or(0, |rest| rest.begin_up_to(seq));
        let first = (begin == 0 && !self.first.is_empty()).then_some(&*self.first);
        let rest = self
            .rest
            .iter()
            .flat_map(move |rest| rest.chunks.range(begin.saturating_sub(1)..));
        let chunks = first.into_iter().chain(rest.map(|chunk| &**chunk));
        chunks
            .flat_map(Chunk::of)
            .skip_while(move |(entry, _)| entry.seq() <= seq)
    }

    fn chunks(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let first = (!self.first.is_empty()).then_some(&*self.first);
        let rest = self.rest.iter().flat_map(|rest| &rest.chunks);
        first.into_iter().chain(rest.map(|chunk| &**chunk))
    }

    pub fn extend(&mut self, items: impl IntoIterator<Item = Item>) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_none() {
            return;
        }
        let mut writer = Writer::after(self.take_last());
        for (entry, tag) in items {
            if writer.count() == CHUNK_MAX {
                self.push_chunk(std::mem::take(&mut writer).finish());
            }
            writer.put(entry, tag);
        }
        self.push_chunk(writer.finish());
    }

    /// Puts entries before all others.
    pub fn prepend(&mut self, items: impl IntoIterator<Item = Item>) {
        let before = std::mem::take(self);
        self.extend(items);
        // Together, so that queues which are sent and come back bit by bit do not become many small chunks.
        let mut chunks = [before.first]
            .into_iter()
            .chain(before.rest.into_iter().flat_map(|rest| rest.chunks));
        let joined = chunks.next().unwrap_or_default();
        self.extend(Chunk::of(&joined));
        chunks.for_each(|chunk| self.push_chunk(chunk));
    }

    /// Takes entries off the front as long as they are wanted.
    pub fn take_while(&mut self, mut is_wanted: impl FnMut(&StoredEntry) -> bool) -> Vec<Item> {
        self.take_items_while(|(entry, _)| is_wanted(entry))
    }

    pub fn take_items_while(&mut self, mut is_wanted: impl FnMut(&Item) -> bool) -> Vec<Item> {
        let mut taken = Vec::new();
        while !self.first.is_empty() {
            let chunk = self.pop_chunk();
            let mut items = Chunk::of(&chunk).peekable();
            while let Some(item) = items.next_if(&mut is_wanted) {
                taken.push(item);
            }
            if items.peek().is_some() {
                let mut writer = Writer::default();
                items.for_each(|(entry, tag)| writer.put(entry, tag));
                self.push_chunk_front(writer.finish());
                break;
            }
        }
        taken
    }

    /// Takes all but the first `count` entries.
    pub fn split_off(&mut self, count: usize) -> EntryList {
        let mut left = count;
        let first = self.take_while(|_| left.checked_sub(1).inspect(|rest| left = *rest).is_some());
        let mut list = EntryList::default();
        list.extend(first);
        std::mem::replace(self, list)
    }

    /// As the journal has it.
    pub fn pack(&self, out: &mut Vec<u8>) {
        self.chunks().for_each(|chunk| out.extend_from_slice(chunk));
    }

    pub fn pop_front(&mut self) -> Option<Item> {
        let mut is_first = true;
        self.take_while(|_| std::mem::take(&mut is_first)).pop()
    }

    /// Changes entries: `change` says whether it has changed one, which then comes back.
    pub fn change(&mut self, mut change: impl FnMut(&mut StoredEntry) -> bool) -> Vec<Item> {
        let mut changed = Vec::new();
        let rest = self.rest.iter_mut().flat_map(|rest| &mut rest.chunks);
        for chunk in [&mut self.first].into_iter().chain(rest) {
            let (before, mut writer) = (changed.len(), Writer::default());
            for (mut entry, tag) in Chunk::of(chunk) {
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

    /// Changes entries with these numbers; all of the list are in a row. `change` says whether it has changed one.
    pub fn change_in_row(&mut self, numbers: RangeInclusive<Seq>, mut change: impl FnMut(&mut StoredEntry) -> bool) {
        let begin = self.rest.as_ref().map_or(0, |rest| rest.begin_up_to(*numbers.start()));
        let rest = self.rest.iter_mut();
        let rest = rest.flat_map(|rest| rest.chunks.range_mut(begin.saturating_sub(1)..));
        for chunk in [&mut self.first].into_iter().chain(rest) {
            let Some((first, _)) = Chunk::of(chunk).next() else {
                return;
            };
            if first.seq() > *numbers.end() {
                return;
            }
            if first.seq() + count(chunk) as Seq <= *numbers.start() {
                continue;
            }
            let (mut has_changed, mut writer) = (false, Writer::default());
            for (mut entry, tag) in Chunk::of(chunk) {
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

impl Rest {
    /// How many of the chunks, which ascend, begin with this number or one before it.
    fn begin_up_to(&self, seq: Seq) -> usize {
        self.chunks
            .partition_point(|chunk| Chunk::of(chunk).next().is_some_and(|(entry, _)| entry.seq() <= seq))
    }
}

fn count(chunk: &[u8]) -> usize {
    chunk.first().map_or(0, |count| usize::from(*count))
}

/// What the next entry is compared with.
struct Before {
    position: u64,
    seq: Seq,
    terms: u8,
    tag: Tag,
}

impl Default for Before {
    fn default() -> Self {
        Before {
            position: 0,
            seq: 0,
            terms: mqtt::QoS::AtLeastOnce as u8,
            tag: Tag::None,
        }
    }
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    before: Before,
}

impl Writer {
    /// Goes on behind the last entry of a chunk.
    fn after(chunk: Box<[u8]>) -> Writer {
        let mut entries = Chunk::of(&chunk);
        entries.by_ref().for_each(drop);
        let before = entries.before;
        Writer {
            bytes: chunk.into_vec(),
            before,
        }
    }

    fn count(&self) -> u8 {
        self.bytes.first().copied().unwrap_or(0)
    }

    fn put(&mut self, entry: StoredEntry, tag: Tag) {
        if self.bytes.is_empty() {
            self.bytes.push(0);
        }
        self.bytes[0] += 1;
        let (out, before) = (&mut self.bytes, &mut self.before);
        let entry = entry.tagged(!matches!(tag, Tag::None));
        let position = if entry.is_released() {
            before.position
        } else {
            entry.message().0
        };
        let difference = zigzag(position.wrapping_sub(before.position));
        let is_next = entry.seq() == before.seq + 1;
        let is_other = !is_next || entry.terms() != before.terms || tag != before.tag;
        put_integer(out, difference << 1 | u64::from(is_other));
        if is_other {
            out.push(entry.terms() | if is_next { 0 } else { JUMP });
            if !is_next {
                put_integer(out, zigzag(entry.seq().wrapping_sub(before.seq)));
            }
            if entry.is_tagged() {
                put_tag(out, &tag);
            }
        }
        *before = Before {
            position,
            seq: entry.seq(),
            terms: entry.terms(),
            tag,
        };
    }

    fn finish(self) -> Box<[u8]> {
        self.bytes.into_boxed_slice()
    }
}

/// The entries of a chunk.
struct Chunk<'a> {
    reader: Reader<'a>,
    left: u8,
    before: Before,
}

impl Chunk<'_> {
    fn of(chunk: &[u8]) -> Chunk<'_> {
        let (left, bytes) = chunk.split_first().map_or((0, chunk), |(left, bytes)| (*left, bytes));
        Chunk {
            reader: Reader(bytes),
            left,
            before: Before::default(),
        }
    }

    fn read(&mut self) -> Result<Item, NotARecord> {
        let (reader, before) = (&mut self.reader, &mut self.before);
        let packed = reader.integer()?;
        before.position = before.position.wrapping_add(from_zigzag(packed >> 1));
        before.seq = before.seq.wrapping_add(1);
        if packed & 1 == 1 {
            let flags = reader.u8()?;
            if flags & JUMP != 0 {
                before.seq = before.seq.wrapping_sub(1).wrapping_add(from_zigzag(reader.integer()?));
            }
            before.terms = flags & !JUMP;
            before.tag = Tag::None;
        }
        let entry = StoredEntry::from_terms(Position(before.position), before.seq, before.terms);
        let entry = entry.ok_or(NotARecord {
            expected: "an entry of a queue",
        })?;
        if packed & 1 == 1 && entry.is_tagged() {
            before.tag = tag(reader)?;
        }
        let entry = if entry.is_released() {
            entry.without_message()
        } else {
            entry
        };
        Ok((entry, before.tag.clone()))
    }
}

impl Iterator for Chunk<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        self.left = self.left.checked_sub(1)?;
        Some(self.read().expect("`Writer` has written it"))
    }
}

impl Packed<'_> {
    /// All entries, if the bytes make sense.
    pub(super) fn items(self) -> Result<Vec<Item>, NotARecord> {
        let (mut items, mut rest) = (Vec::new(), self.0);
        while !rest.is_empty() {
            let mut chunk = Chunk::of(rest);
            for _ in 0..chunk.left {
                items.push(chunk.read()?);
            }
            rest = chunk.reader.0;
        }
        Ok(items)
    }
}

/// As it is recorded by itself.
pub fn entry_of((entry, tag): Item) -> Entry {
    Entry {
        message: entry.message(),
        seq: entry.seq(),
        qos: entry.qos(),
        retain: entry.retain(),
        is_released: entry.is_released(),
        group: tag.group_key(),
        identifiers: tag.identifiers().to_vec(),
    }
}

fn put_tag(out: &mut Vec<u8>, tag: &Tag) {
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
        for integer in [u64::from(shard.0), u64::from(index), u64::from(epoch), key.0] {
            put_integer(out, integer);
        }
    }
}

fn tag(reader: &mut Reader<'_>) -> Result<Tag, NotARecord> {
    let packed = reader.integer()?;
    let identifiers = (0..packed >> 1)
        .map(|_| reader.small())
        .collect::<Result<Vec<u32>, _>>()?;
    if packed & 1 == 0 {
        return Ok(Tag::new(&identifiers, None));
    }
    let group = GroupRef {
        shard: ShardId(reader.small()?),
        index: reader.small()?,
        epoch: reader.small()?,
        key: GroupKey(reader.integer()?),
    };
    Ok(Tag::new(&identifiers, Some(group)))
}

/// Small for small differences of either sign.
fn zigzag(difference: u64) -> u64 {
    difference << 1 ^ (difference as i64 >> 63) as u64
}

fn from_zigzag(packed: u64) -> u64 {
    packed >> 1 ^ (packed & 1).wrapping_neg()
}

#[cfg(test)]
mod tests;
