//! The last events per key, for a bounded number of keys. Beyond that, the key whose last event is the oldest is
//! removed.
//!
//! Keys are ordered by their last event, so that an insert does not scan them. Tracks which keys changed since they
//! were saved.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;

use serde::de::DeserializeOwned;

pub trait Timed {
    fn at_ms(&self) -> i64;
}

pub struct Recent<K, E> {
    keys_max: usize,
    events_max: usize,
    events: HashMap<K, VecDeque<E>, foldhash::fast::RandomState>,
    /// Keys by the time of their last event; as many as in `events`.
    order: BTreeSet<(i64, K)>,
    /// Keys changed since they were saved.
    changed: HashSet<K, foldhash::fast::RandomState>,
}

impl<K: Copy + Eq + Hash + Ord, E: Timed> Recent<K, E> {
    pub fn new(things_max: usize, events_max: usize) -> Recent<K, E> {
        Recent {
            keys_max: things_max,
            events_max,
            events: HashMap::default(),
            order: BTreeSet::new(),
            changed: HashSet::default(),
        }
    }

    pub fn put(&mut self, thing: K, event: E) {
        if !self.events.contains_key(&thing) {
            self.evict_oldest();
        }
        self.change(thing, |events, events_max| {
            if events.len() >= events_max {
                events.pop_front();
            }
            events.push_back(event);
        });
        self.changed.insert(thing);
    }

    /// Returns the key's events from the oldest to the newest.
    pub fn of(&self, thing: K) -> impl DoubleEndedIterator<Item = &E> {
        self.events.get(&thing).into_iter().flatten()
    }

    pub fn remove_if(&mut self, thing: K, is_meant: impl Fn(&E) -> bool) {
        if self.events.contains_key(&thing) {
            self.change(thing, |events, _| events.retain(|event| !is_meant(event)));
            self.changed.insert(thing);
        }
    }

    /// Returns the events to save: all events of each changed key, or `None` if it has none any more.
    pub fn take_changed(&mut self, to_bytes: impl Fn(&VecDeque<E>) -> Option<Vec<u8>>) -> Vec<(K, Option<Vec<u8>>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let bytes = |thing: K| (thing, self.events.get(&thing).and_then(&to_bytes));
        changed.map(bytes).collect()
    }

    /// Marks keys as changed again, after saving them failed.
    pub fn mark_changed(&mut self, things: impl Iterator<Item = K>) {
        self.changed.extend(things);
    }

    /// Loads the saved events of a key, as JSON.
    pub fn restore(&mut self, thing: K, bytes: &[u8]) -> Result<(), serde_json::Error>
    where
        E: DeserializeOwned,
    {
        let restored: VecDeque<E> = serde_json::from_slice(bytes)?;
        self.evict_oldest();
        self.change(thing, |events, _| *events = restored);
        Ok(())
    }

    /// Changes the events of a key. Removes a key without events.
    fn change(&mut self, thing: K, change: impl FnOnce(&mut VecDeque<E>, usize)) {
        let mut events = self.events.remove(&thing).unwrap_or_default();
        if let Some(last) = events.back() {
            self.order.remove(&(last.at_ms(), thing));
        }
        change(&mut events, self.events_max);
        if let Some(last) = events.back() {
            self.order.insert((last.at_ms(), thing));
            self.events.insert(thing, events);
        }
    }

    fn evict_oldest(&mut self) {
        while self.events.len() >= self.keys_max {
            let Some((_, oldest)) = self.order.pop_first() else {
                return;
            };
            self.events.remove(&oldest);
            self.changed.insert(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct TestEvent(i64);

    impl Timed for TestEvent {
        fn at_ms(&self) -> i64 {
            self.0
        }
    }

    fn bytes(events: &VecDeque<TestEvent>) -> Option<Vec<u8>> {
        serde_json::to_vec(events).ok()
    }

    fn held(recent: &Recent<u32, TestEvent>) -> Vec<u32> {
        assert_eq!(recent.order.len(), recent.events.len());
        let mut held: Vec<u32> = recent.events.keys().copied().collect();
        held.sort_unstable();
        held
    }

    #[test]
    fn key_with_the_oldest_last_event_is_evicted() {
        let mut recent = Recent::new(3, 2);
        for (thing, at_ms) in [(1, 10), (2, 20), (3, 30), (1, 40)] {
            recent.put(thing, TestEvent(at_ms));
        }
        recent.put(4, TestEvent(50));
        assert_eq!(held(&recent), [1, 3, 4]);
        // If the clock goes back, the new event becomes the oldest.
        recent.put(3, TestEvent(5));
        recent.put(5, TestEvent(60));
        assert_eq!(held(&recent), [1, 4, 5]);
        recent.put(1, TestEvent(70));
        assert_eq!(
            recent.of(1).collect::<Vec<_>>(),
            [&TestEvent(40), &TestEvent(70)],
            "two events per key"
        );
        let mut changed = recent.take_changed(bytes);
        changed.sort();
        let removed: Vec<u32> = changed
            .iter()
            .filter(|(_, events)| events.is_none())
            .map(|(thing, _)| *thing)
            .collect();
        assert_eq!((changed.len(), removed), (5, vec![2, 3]));
        assert!(recent.take_changed(bytes).is_empty());
    }

    #[test]
    fn saved_events_are_restored_and_bad_ones_reported() {
        let mut recent = Recent::new(2, 2);
        assert!(recent.restore(1, b"[1,2]").is_ok() && recent.restore(2, b"[3]").is_ok());
        assert!(recent.restore(3, b"nonsense").is_err());
        assert_eq!(held(&recent), [1, 2]);
        assert!(
            recent.take_changed(bytes).is_empty(),
            "restored events are not saved again"
        );
        recent.remove_if(1, |event| event.0 == 2);
        assert_eq!(recent.take_changed(bytes), [(1, Some(b"[1]".to_vec()))]);
        recent.remove_if(1, |_| true);
        assert_eq!((recent.take_changed(bytes), held(&recent)), (vec![(1, None)], vec![2]));
        recent.remove_if(9, |_| true);
        recent.mark_changed([2].into_iter());
        assert_eq!(recent.take_changed(bytes), [(2, Some(b"[3]".to_vec()))]);
    }
}
