//! Sorted lists that grow at the end and shrink at the front.
//!
//! Appending and removing the first item take O(1). Finding an item and removing it from the middle take O(log n): a
//! removed item leaves a tombstone, which disappears when the list is full or the front reaches it. Inserting in the
//! middle moves one side of the list.
//!
//! Invariant: the first and the last item are not tombstones.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

pub(super) trait SortedItem {
    fn order(&self) -> u64;
    fn is_tombstone(&self) -> bool;
    /// Turns the item into a tombstone.
    fn make_tombstone(&mut self);
}

/// Adds an item, or replaces the item with the same key.
pub(super) fn put<T: SortedItem>(list: &mut VecDeque<T>, item: T) {
    if let Some(item) = try_put(list, item) {
        insert_all(list, vec![item]);
    }
}

/// Like `put`, but returns the item instead of inserting it in the middle.
pub(super) fn try_put<T: SortedItem>(list: &mut VecDeque<T>, item: T) -> Option<T> {
    if list.back().is_none_or(|last| last.order() < item.order()) {
        push(list, item);
        return None;
    }
    match list.binary_search_by_key(&item.order(), T::order) {
        Ok(at) => {
            list[at] = item;
            None
        }
        Err(_) => Some(item),
    }
}

/// Inserts sorted items that are not in the list. Moves the rest of the list once.
pub(super) fn insert_all<T: SortedItem>(list: &mut VecDeque<T>, items: Vec<T>) {
    let Some(first) = items.first() else { return };
    let at = list.partition_point(|other| other.order() < first.order());
    let mut rest = list.split_off(at).into_iter().peekable();
    for item in items {
        while let Some(earlier) = rest.next_if(|other| other.order() < item.order()) {
            push(list, earlier);
        }
        push(list, item);
    }
    for later in rest {
        push(list, later);
    }
}

/// Removes an item. Returns false if it is missing.
pub(super) fn remove<T: SortedItem>(list: &mut VecDeque<T>, order: u64) -> bool {
    if list.front().is_some_and(|first| first.order() == order) {
        list.pop_front();
    } else {
        match find(list, order) {
            None => return false,
            Some(item) => item.make_tombstone(),
        }
    }
    while list.pop_front_if(|item| item.is_tombstone()).is_some() {}
    while list.pop_back_if(|item| item.is_tombstone()).is_some() {}
    true
}

/// Removes all items of a range.
pub(super) fn remove_range<T: SortedItem>(list: &mut VecDeque<T>, range: &RangeInclusive<u64>) {
    if list.back().is_some_and(|last| last.order() >= *range.start()) {
        list.retain(|item| !item.is_tombstone() && !range.contains(&item.order()));
    }
}

pub(super) fn find<T: SortedItem>(list: &mut VecDeque<T>, order: u64) -> Option<&mut T> {
    let at = match list.front() {
        Some(first) if first.order() == order => 0,
        _ => list.binary_search_by_key(&order, T::order).ok()?,
    };
    Some(&mut list[at]).filter(|item| !item.is_tombstone())
}

/// Removes the tombstones, and frees memory if most of it is unused.
pub(super) fn compact<T: SortedItem>(list: &mut VecDeque<T>) {
    list.retain(|item| !item.is_tombstone());
    if list.capacity() > 2 * list.len() + FIRST {
        list.shrink_to_fit();
    }
}

/// A sorted list for insertions in the middle that come in ascending runs. The current run is stored separately until
/// the next one begins.
pub(super) struct SortedWithRuns<T> {
    list: VecDeque<T>,
    run: VecDeque<T>,
}

impl<T> Default for SortedWithRuns<T> {
    fn default() -> Self {
        SortedWithRuns {
            list: VecDeque::new(),
            run: VecDeque::new(),
        }
    }
}

impl<T: SortedItem> SortedWithRuns<T> {
    /// Adds an item, or replaces the item with the same key.
    pub fn put(&mut self, item: T) {
        if let Ok(at) = self.run.binary_search_by_key(&item.order(), T::order) {
            self.run[at] = item;
        } else if let Some(item) = try_put(&mut self.list, item)
            && let Some(item) = try_put(&mut self.run, item)
        {
            self.whole();
            push(&mut self.run, item);
        }
    }

    /// Removes an item. Returns false if it is missing.
    pub fn remove(&mut self, order: u64) -> bool {
        remove(&mut self.run, order) || remove(&mut self.list, order)
    }

    pub fn whole(&mut self) -> &mut VecDeque<T> {
        let run = std::mem::take(&mut self.run);
        insert_all(
            &mut self.list,
            run.into_iter().filter(|item| !item.is_tombstone()).collect(),
        );
        &mut self.list
    }
}

const FIRST: usize = 4;

/// Grows by half instead of doubling, because a short list for each of a million sessions makes up most of recovery's
/// memory.
fn push<T: SortedItem>(list: &mut VecDeque<T>, item: T) {
    if list.len() == list.capacity() {
        list.retain(|item| !item.is_tombstone());
        if list.len() + list.len() / 4 >= list.capacity() {
            list.reserve_exact((list.len() / 2).max(FIRST));
        }
    }
    list.push_back(item);
}

#[cfg(test)]
mod tests;
