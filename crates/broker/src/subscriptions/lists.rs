//! The entries of each filter: one inline, several in a Vec, many with an additional index from key to position.
//!
//! Most filters of a large broker have one subscriber, so a list of one is 20 bytes (with a 12-byte entry) and nothing
//! else. A list with more than [`INDEXED_FROM`] entries finds a key in constant time, so that removing 100,000
//! subscribers of one filter takes linear time. Removal moves the last entry into the gap, so entries have no order.
//!
//! Invariants: a live list has at least one entry; keys are unique in a list; `place` is where the trie or the literal
//! table stores the list's id.

use super::slab::{Slab, SlabSlot};
use super::{ListId, ListLocation, SubscriberKey, SubscriptionEntry};
use crate::id_table::{IdTable, raw_ids};

pub(super) struct Lists<T> {
    lists: Slab<ListId, List<T>>,
    many: Slab<EntriesId, EntrySlot<T>>,
    entries: usize,
}

/// Id of the entries of a list that has several.
#[derive(Clone, Copy)]
struct EntriesId(u32);

raw_ids!(EntriesId);

enum List<T> {
    Vacant {
        next: u32,
    },
    One {
        place: ListLocation,
        entry: SubscriptionEntry<T>,
    },
    Many {
        place: ListLocation,
        many: EntriesId,
    },
}

enum EntrySlot<T> {
    Vacant {
        next: u32,
    },
    Entries {
        entries: Vec<SubscriptionEntry<T>>,
        index: Option<Box<IdTable>>,
    },
}

/// A list with more entries than this has an index. The index is dropped below half of this.
const INDEXED_FROM: usize = 64;

/// Result of [`Lists::remove`].
pub(super) struct RemovedEntry<T> {
    pub(super) value: T,
    /// Place of the list, if its last entry was removed.
    pub(super) abandoned: Option<ListLocation>,
}

impl<T: Copy> Lists<T> {
    pub(super) fn new() -> Self {
        Self {
            lists: Slab::new(),
            many: Slab::new(),
            entries: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Returns the number of entries in all lists.
    pub(super) fn entry_count(&self) -> usize {
        self.entries
    }

    pub(super) fn create(&mut self, place: ListLocation, entry: SubscriptionEntry<T>) -> ListId {
        self.entries += 1;
        self.lists.insert(List::One { place, entry })
    }

    pub(super) fn entries(&self, id: ListId) -> &[SubscriptionEntry<T>] {
        match self.lists.get(id) {
            List::One { entry, .. } => std::slice::from_ref(entry),
            List::Many { many, .. } => self.many.get(*many).entries(),
            List::Vacant { .. } => &[],
        }
    }

    pub(super) fn get(&self, id: ListId, key: SubscriberKey) -> Option<T> {
        match self.lists.get(id) {
            List::One { entry, .. } => (entry.key == key).then_some(entry.value),
            List::Many { many, .. } => self.many.get(*many).get(key),
            List::Vacant { .. } => None,
        }
    }

    pub(super) fn insert(&mut self, id: ListId, entry: SubscriptionEntry<T>) -> Option<T> {
        let replaced = match self.lists.get_mut(id) {
            List::Many { many, .. } => self.many.get_mut(*many).insert(entry),
            List::One { entry: present, .. } if present.key == entry.key => {
                Some(std::mem::replace(&mut present.value, entry.value))
            }
            one @ List::One { .. } => {
                let (place, first) = one.single_entry().expect("matched");
                let many = self.many.insert(EntrySlot::of(first, entry));
                *one = List::Many { place, many };
                None
            }
            List::Vacant { .. } => unreachable!("callers hold ids of live lists"),
        };
        self.entries += usize::from(replaced.is_none());
        replaced
    }

    pub(super) fn remove(&mut self, id: ListId, key: SubscriberKey) -> Option<RemovedEntry<T>> {
        let taken = match self.lists.get_mut(id) {
            List::One { place, entry } if entry.key == key => {
                let taken = RemovedEntry {
                    value: entry.value,
                    abandoned: Some(*place),
                };
                self.lists.remove(id);
                taken
            }
            &mut List::Many { place, many } => {
                let value = self.many.get_mut(many).remove(key)?;
                if let &[entry] = self.many.get(many).entries() {
                    self.many.remove(many);
                    *self.lists.get_mut(id) = List::One { place, entry };
                }
                RemovedEntry { value, abandoned: None }
            }
            List::One { .. } | List::Vacant { .. } => return None,
        };
        self.entries -= 1;
        Some(taken)
    }

    pub(super) fn place(&self, id: ListId) -> ListLocation {
        match self.lists.get(id) {
            List::One { place, .. } | List::Many { place, .. } => *place,
            List::Vacant { .. } => unreachable!("callers hold ids of live lists"),
        }
    }

    pub(super) fn set_place(&mut self, id: ListId, to: ListLocation) {
        match self.lists.get_mut(id) {
            List::One { place, .. } | List::Many { place, .. } => *place = to,
            List::Vacant { .. } => unreachable!("callers hold ids of live lists"),
        }
    }

    /// Returns the first live list at or after `from`.
    pub(super) fn next(&self, from: ListId) -> Option<ListId> {
        self.lists.next_occupied(from)
    }
}

impl<T: Copy> List<T> {
    fn single_entry(&self) -> Option<(ListLocation, SubscriptionEntry<T>)> {
        match self {
            List::One { place, entry } => Some((*place, *entry)),
            List::Many { .. } | List::Vacant { .. } => None,
        }
    }
}

impl<T: Copy> EntrySlot<T> {
    fn of(first: SubscriptionEntry<T>, second: SubscriptionEntry<T>) -> Self {
        EntrySlot::Entries {
            entries: vec![first, second],
            index: None,
        }
    }

    fn entries(&self) -> &[SubscriptionEntry<T>] {
        match self {
            EntrySlot::Entries { entries, .. } => entries,
            EntrySlot::Vacant { .. } => &[],
        }
    }

    fn position(&self, key: SubscriberKey) -> Option<usize> {
        let EntrySlot::Entries { entries, index } = self else {
            return None;
        };
        match index {
            Some(index) => index
                .find(hash(key), |at| entries[at as usize].key == key)
                .map(|at| at as usize),
            None => entries.iter().position(|entry| entry.key == key),
        }
    }

    fn get(&self, key: SubscriberKey) -> Option<T> {
        self.position(key).map(|at| self.entries()[at].value)
    }

    fn insert(&mut self, entry: SubscriptionEntry<T>) -> Option<T> {
        let present = self.position(entry.key);
        let EntrySlot::Entries { entries, index } = self else {
            unreachable!("lists refer to live entries")
        };
        if let Some(at) = present {
            return Some(std::mem::replace(&mut entries[at].value, entry.value));
        }
        entries.push(entry);
        let at = entries.len() - 1;
        match index {
            Some(index) => index.insert(hash(entry.key), at as u32),
            None if at >= INDEXED_FROM => *index = Some(Box::new(indexed(entries))),
            None => {}
        }
        None
    }

    fn remove(&mut self, key: SubscriberKey) -> Option<T> {
        let at = self.position(key)?;
        let EntrySlot::Entries { entries, index } = self else {
            return None;
        };
        let removed = entries.swap_remove(at);
        if let Some(positions) = index {
            positions.remove(hash(key), |position| position as usize == at);
            if let Some(moved) = entries.get(at) {
                positions.replace(hash(moved.key), entries.len() as u32, at as u32);
            }
            if entries.len() <= INDEXED_FROM / 2 {
                *index = None;
            }
        }
        if entries.len() < entries.capacity() / 4 {
            entries.shrink_to(entries.len() * 2);
        }
        Some(removed.value)
    }
}

fn indexed<T>(entries: &[SubscriptionEntry<T>]) -> IdTable {
    let mut index = IdTable::default();
    for (at, entry) in entries.iter().enumerate() {
        index.insert(hash(entry.key), at as u32);
    }
    index
}

/// A bijection that spreads consecutive keys. Keys are session numbers that the broker assigns.
fn hash(key: SubscriberKey) -> u32 {
    key.0.wrapping_mul(0x9E37_79B1)
}

impl<T> SlabSlot for List<T> {
    fn vacant(next: u32) -> Self {
        List::Vacant { next }
    }

    fn next_vacant(&self) -> Option<u32> {
        match self {
            List::Vacant { next } => Some(*next),
            List::One { .. } | List::Many { .. } => None,
        }
    }
}

impl<T> SlabSlot for EntrySlot<T> {
    fn vacant(next: u32) -> Self {
        EntrySlot::Vacant { next }
    }

    fn next_vacant(&self) -> Option<u32> {
        match self {
            EntrySlot::Vacant { next } => Some(*next),
            EntrySlot::Entries { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_one_entry_takes_20_bytes() {
        assert_eq!(size_of::<List<[u32; 2]>>(), 20);
    }
}
