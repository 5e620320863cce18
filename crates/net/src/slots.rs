//! A worker's connections, by slot. Slots are dense and reused. A generation distinguishes a connection from a later
//! one in the same slot, so that late timers and decisions do not reach the wrong connection.

use broker::ConnSlot;

use crate::connection::SocketConnection;

/// Number of an insertion into any slot of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnGeneration(pub(crate) u32);

/// A reference to a connection from outside of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) slot: ConnSlot,
    pub(crate) generation: ConnGeneration,
}

/// Generic, so that tests need no sockets.
pub(crate) struct SlotTable<T = SocketConnection> {
    entries: Vec<SlotEntry<T>>,
    free: Vec<ConnSlot>,
    live: usize,
    /// Number of the last insertion. It survives the table being freed.
    generation: ConnGeneration,
}

struct SlotEntry<T> {
    generation: ConnGeneration,
    value: Option<T>,
}

/// A table that was larger than this is freed when its last connection is removed.
const KEEP_ENTRIES: usize = 1024;

impl<T> SlotTable<T> {
    pub(crate) fn new() -> SlotTable<T> {
        SlotTable {
            entries: Vec::new(),
            free: Vec::new(),
            live: 0,
            generation: ConnGeneration::default(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> SlotRef {
        self.generation = ConnGeneration(self.generation.0.wrapping_add(1));
        self.live += 1;
        let entry = SlotEntry {
            generation: self.generation,
            value: Some(value),
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot.index()] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                let index = u32::try_from(self.entries.len() - 1).expect("fewer connections than file descriptors");
                ConnSlot(index)
            }
        };
        SlotRef {
            slot,
            generation: self.generation,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: ConnSlot) -> Option<&mut T> {
        self.entries.get_mut(slot.index())?.value.as_mut()
    }

    /// Returns the connections in two different slots.
    #[cfg_attr(not(feature = "quic"), expect(dead_code, reason = "QUIC needs the function"))]
    pub(crate) fn pair_mut(&mut self, one: ConnSlot, other: ConnSlot) -> Option<(&mut T, &mut T)> {
        let [one, other] = self.entries.get_disjoint_mut([one.index(), other.index()]).ok()?;
        Some((one.value.as_mut()?, other.value.as_mut()?))
    }

    pub(crate) fn reference(&self, slot: ConnSlot) -> Option<SlotRef> {
        let entry = self.entries.get(slot.index())?;
        entry.value.is_some().then_some(SlotRef {
            slot,
            generation: entry.generation,
        })
    }

    /// Returns whether the slot still has the same connection.
    pub(crate) fn is_current(&self, reference: SlotRef) -> bool {
        self.reference(reference.slot) == Some(reference)
    }

    pub(crate) fn remove(&mut self, slot: ConnSlot) -> Option<T> {
        let value = self.entries.get_mut(slot.index())?.value.take()?;
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

    /// Returns the occupied slots.
    pub(crate) fn occupied(&self) -> Vec<ConnSlot> {
        (0u32..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.value.is_some())
            .map(|(index, _)| ConnSlot(index))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_slot_does_not_match_the_old_reference() {
        let mut slots = SlotTable::new();
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
    fn emptied_table_is_freed_and_old_references_stay_invalid() {
        let mut slots = SlotTable::new();
        let references: Vec<_> = (0..KEEP_ENTRIES + 1).map(|n| slots.insert(n)).collect();
        for reference in &references {
            slots.remove(reference.slot);
        }
        assert_eq!((slots.entries.capacity(), slots.occupied().len()), (0, 0));
        let reference = slots.insert(7);
        assert_eq!(reference.slot, ConnSlot(0));
        assert!(!slots.is_current(references[0]));
        assert_eq!(slots.occupied(), [ConnSlot(0)]);
    }

    #[test]
    fn connection_takes_at_most_96_bytes() {
        // With debug assertions, each socket of mio has a field of this size more.
        let debug_bytes = if cfg!(debug_assertions) { size_of::<usize>() } else { 0 };
        let bytes = size_of::<SlotEntry<SocketConnection>>() - debug_bytes;
        assert!(bytes <= 96, "{bytes}");
    }
}
