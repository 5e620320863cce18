//! A worker's connections, by slot. Slots are dense and reused; a generation tells a connection from a later one in its slot, so that
//! timers and decisions that come too late find nobody.

use crate::connection::Connection;

/// A connection as something outside of the table remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Generic so that the bookkeeping can be tested without sockets.
pub(crate) struct Slots<T = Connection> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    live: usize,
    /// Counts insertions, whatever the slot: an emptied table can be given back to the allocator.
    generation: u32,
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A table that was larger than this is freed when its last connection has gone.
const KEEP_ENTRIES: usize = 1024;

impl<T> Slots<T> {
    pub(crate) fn new() -> Slots<T> {
        Slots {
            entries: Vec::new(),
            free: Vec::new(),
            live: 0,
            generation: 0,
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> SlotRef {
        self.generation = self.generation.wrapping_add(1);
        self.live += 1;
        let entry = Entry {
            generation: self.generation,
            value: Some(value),
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("fewer connections than file descriptors")
            }
        };
        SlotRef {
            slot,
            generation: self.generation,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.value.as_mut()
    }

    pub(crate) fn reference(&self, slot: u32) -> Option<SlotRef> {
        let entry = self.entries.get(slot as usize)?;
        entry.value.is_some().then_some(SlotRef {
            slot,
            generation: entry.generation,
        })
    }

    /// Whether it is still the same connection.
    pub(crate) fn is_current(&self, reference: SlotRef) -> bool {
        self.reference(reference.slot) == Some(reference)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.entries.get_mut(slot as usize)?.value.take()?;
        self.live -= 1;
        self.free.push(slot);
        if self.live == 0 && self.entries.len() > KEEP_ENTRIES {
            self.entries = Vec::new();
            self.free = Vec::new();
        }
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// The occupied slots, now.
    pub(crate) fn occupied(&self) -> Vec<u32> {
        (0u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.value.is_some())
            .map(|(slot, _)| slot)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_is_not_the_old_connection() {
        let mut slots = Slots::new();
        let first = slots.insert("first");
        let other = slots.insert("other");
        assert_eq!(slots.remove(first.slot), Some("first"));
        assert!(!slots.is_current(first));
        assert_eq!(slots.remove(first.slot), None);
        let second = slots.insert("second");
        assert_eq!(second.slot, first.slot, "slots stay dense");
        assert!(slots.is_current(second) && slots.is_current(other) && !slots.is_current(first));
        assert_eq!(slots.get_mut(second.slot), Some(&mut "second"));
        assert_eq!(slots.len(), 2);
    }

    #[test]
    fn an_emptied_table_is_freed_and_still_knows_old_from_new() {
        let mut slots = Slots::new();
        let references: Vec<_> = (0..KEEP_ENTRIES + 1).map(|n| slots.insert(n)).collect();
        for reference in &references {
            slots.remove(reference.slot);
        }
        assert_eq!((slots.entries.capacity(), slots.occupied().len()), (0, 0));
        let reference = slots.insert(7);
        assert_eq!(reference.slot, 0);
        assert!(!slots.is_current(references[0]));
        assert_eq!(slots.occupied(), [0]);
    }

    #[test]
    fn a_connection_costs_a_cache_line_and_a_half_at_most() {
        assert!(
            size_of::<Entry<Connection>>() <= 96,
            "{}",
            size_of::<Entry<Connection>>()
        );
    }
}
