//! A queue that takes one pointer until it is first used. Most sessions have several that stay empty.
//!
//! Dereferences to a `VecDeque`. An emptied queue keeps its memory, so that a busy queue does not allocate for each
//! message. `take` frees the memory.

use std::collections::VecDeque;
use std::ops::{Deref, IndexMut};

/// An emptied queue frees its memory if its capacity exceeds this.
const KEPT_MAX: usize = 64;

// Boxed so that an empty queue does not take the 32 bytes of the list.
#[allow(clippy::box_collection)]
#[derive(Debug)]
pub struct LazyDeque<T>(Option<Box<VecDeque<T>>>);

impl<T> Default for LazyDeque<T> {
    fn default() -> Self {
        LazyDeque(None)
    }
}

impl<T: 'static> LazyDeque<T> {
    const EMPTY: &'static VecDeque<T> = &VecDeque::new();
}

impl<T: 'static> Deref for LazyDeque<T> {
    type Target = VecDeque<T>;

    #[inline]
    fn deref(&self) -> &VecDeque<T> {
        self.0.as_deref().unwrap_or(Self::EMPTY)
    }
}

impl<T: 'static> LazyDeque<T> {
    #[inline]
    pub fn push_back(&mut self, item: T) {
        self.0.get_or_insert_default().push_back(item);
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        let list = self.0.as_deref_mut()?;
        let item = list.pop_front();
        if list.is_empty() && list.capacity() > KEPT_MAX {
            self.0 = None;
        }
        item
    }

    pub fn remove(&mut self, at: usize) -> Option<T> {
        self.0.as_deref_mut()?.remove(at)
    }

    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.0.as_deref_mut()?.get_mut(at)
    }

    /// Removes and returns all items. Frees the memory.
    pub fn take(&mut self) -> VecDeque<T> {
        self.0.take().map_or(VecDeque::new(), |list| *list)
    }
}

impl<T: 'static> std::ops::Index<usize> for LazyDeque<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &(**self)[at]
    }
}

impl<T: 'static> IndexMut<usize> for LazyDeque<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        self.get_mut(at).expect("the index is within bounds")
    }
}

impl<T: 'static> Extend<T> for LazyDeque<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_some() {
            self.0.get_or_insert_default().extend(items);
        }
    }
}

impl<T: 'static + PartialEq> PartialEq for LazyDeque<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: 'static> From<VecDeque<T>> for LazyDeque<T> {
    fn from(list: VecDeque<T>) -> Self {
        LazyDeque((!list.is_empty()).then(|| Box::new(list)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_queue_takes_one_pointer() {
        let mut list = LazyDeque::default();
        assert_eq!(size_of_val(&list), size_of::<usize>());
        assert_eq!((list.len(), list.pop_front(), list.front()), (0, None, None));
        list.extend([1, 2, 3]);
        list.push_back(4);
        list[0] = 7;
        assert_eq!((list.pop_front(), list.remove(1)), (Some(7), Some(3)));
        assert_eq!(list.take(), [2, 4]);
        assert!(list.0.is_none() && list.is_empty());
    }

    #[test]
    fn long_queue_frees_memory_when_emptied() {
        let mut list = LazyDeque::from(VecDeque::from_iter(0..1000));
        while list.pop_front().is_some() {}
        assert!(list.0.is_none());
    }
}
