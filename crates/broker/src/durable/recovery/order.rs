//! Lists in ascending order that grow at the end and shrink at the front.
//!
//! Appending and taking the front cost O(1), finding and taking from the middle O(log n): what goes there leaves a mark that goes
//! when the list is full or the front comes to it. Inserting in the middle moves one side of the list.
//!
//! Invariant: neither the first nor the last item is a mark.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

pub(super) trait InOrder {
    fn order(&self) -> u64;
    fn is_gone(&self) -> bool;
    /// Leaves a mark in its place.
    fn go(&mut self);
}

/// Adds an item, or replaces the one in its place.
pub(super) fn put<T: InOrder>(list: &mut VecDeque<T>, item: T) {
    if let Some(item) = try_put(list, item) {
        insert_all(list, vec![item]);
    }
}

/// The same, unless that means to insert it in the middle: then it comes back.
pub(super) fn try_put<T: InOrder>(list: &mut VecDeque<T>, item: T) -> Option<T> {
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

/// Inserts items that are in order and not in the list, moving the rest of the list once.
pub(super) fn insert_all<T: InOrder>(list: &mut VecDeque<T>, items: Vec<T>) {
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

/// Takes an item out; false if it is not there.
pub(super) fn remove<T: InOrder>(list: &mut VecDeque<T>, order: u64) -> bool {
    if list.front().is_some_and(|first| first.order() == order) {
        list.pop_front();
    } else {
        match find(list, order) {
            None => return false,
            Some(item) => item.go(),
        }
    }
    while list.pop_front_if(|item| item.is_gone()).is_some() {}
    while list.pop_back_if(|item| item.is_gone()).is_some() {}
    true
}

/// Takes out all items of a range.
pub(super) fn remove_range<T: InOrder>(list: &mut VecDeque<T>, range: &RangeInclusive<u64>) {
    if list.back().is_some_and(|last| last.order() >= *range.start()) {
        list.retain(|item| !item.is_gone() && !range.contains(&item.order()));
    }
}

pub(super) fn find<T: InOrder>(list: &mut VecDeque<T>, order: u64) -> Option<&mut T> {
    let at = match list.front() {
        Some(first) if first.order() == order => 0,
        _ => list.binary_search_by_key(&order, T::order).ok()?,
    };
    Some(&mut list[at]).filter(|item| !item.is_gone())
}

/// Takes the marks out, and gives back memory if most of it is not used any more.
pub(super) fn tidy<T: InOrder>(list: &mut VecDeque<T>) {
    list.retain(|item| !item.is_gone());
    if list.capacity() > 2 * list.len() + FIRST {
        list.shrink_to_fit();
    }
}

/// A list in order that much is put into the middle of, in runs that ascend: what has come of a run stands apart until the next begins.
pub(super) struct InRuns<T> {
    list: VecDeque<T>,
    run: VecDeque<T>,
}

impl<T> Default for InRuns<T> {
    fn default() -> Self {
        InRuns {
            list: VecDeque::new(),
            run: VecDeque::new(),
        }
    }
}

impl<T: InOrder> InRuns<T> {
    /// Adds an item, or replaces the one in its place.
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

    /// Takes an item out; false if it is not there.
    pub fn remove(&mut self, order: u64) -> bool {
        remove(&mut self.run, order) || remove(&mut self.list, order)
    }

    pub fn whole(&mut self) -> &mut VecDeque<T> {
        let run = std::mem::take(&mut self.run);
        insert_all(&mut self.list, run.into_iter().filter(|item| !item.is_gone()).collect());
        &mut self.list
    }
}

const FIRST: usize = 4;

/// Grows by half, not to twice as much: a short list for each of a million sessions is most of what recovery needs.
fn push<T: InOrder>(list: &mut VecDeque<T>, item: T) {
    if list.len() == list.capacity() {
        list.retain(|item| !item.is_gone());
        if list.len() + list.len() / 4 >= list.capacity() {
            list.reserve_exact((list.len() / 2).max(FIRST));
        }
    }
    list.push_back(item);
}

#[cfg(test)]
mod tests;
