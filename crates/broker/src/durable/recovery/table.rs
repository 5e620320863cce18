//! Things that are found by a hash of their name, close together in memory: the list is also the result.

use crate::id_table::IdTable;

pub(super) struct Table<T> {
    items: Vec<T>,
    ids: IdTable,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table {
            items: Vec::new(),
            ids: IdTable::default(),
        }
    }
}

impl<T> Table<T> {
    pub fn find(&self, hash: u32, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        let id = self.ids.find(hash, |id| is_it(&self.items[id as usize]))?;
        Some(id as usize)
    }

    pub fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.items[at]
    }

    /// The caller has looked that it is not there.
    pub fn insert(&mut self, hash: u32, item: T) {
        let id = u32::try_from(self.items.len()).expect("memory ends before 2^32 of anything that is kept here");
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
