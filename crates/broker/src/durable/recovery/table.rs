//! A hash table with its items in one dense list, which is also the result.

use crate::id_table::IdTable;

pub(super) struct RecoveryTable<T> {
    items: Vec<T>,
    ids: IdTable,
}

impl<T> Default for RecoveryTable<T> {
    fn default() -> Self {
        RecoveryTable {
            items: Vec::new(),
            ids: IdTable::default(),
        }
    }
}

impl<T> RecoveryTable<T> {
    pub fn find(&self, hash: u32, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        let id = self.ids.find(hash, |id| is_it(&self.items[id as usize]))?;
        Some(id as usize)
    }

    pub fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.items[at]
    }

    /// Requires that the item is not in the table.
    pub fn insert(&mut self, hash: u32, item: T) {
        let id = u32::try_from(self.items.len()).expect("memory is exhausted before 2^32 items");
        self.ids.insert(hash, id);
        self.items.push(item);
    }

    pub fn remove(&mut self, at: usize, hash: impl Fn(&T) -> u32) {
        let id = at as u32;
        self.ids.remove(hash(&self.items[at]), |other| other == id);
        self.items.swap_remove(at);
        if let Some(moved) = self.items.get(at) {
            self.ids.replace(hash(moved), self.items.len() as u32, id);
        }
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut()
    }

    pub fn into_items(self) -> Vec<T> {
        self.items
    }
}
