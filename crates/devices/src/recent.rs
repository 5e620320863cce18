//! The last events of each of many things: so many of each, of so many things; of more, the one whose last event is the oldest is forgotten.
//! No event looks at all things: they are in the order of their last events. Knows what has changed since it was kept.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;

use serde::de::DeserializeOwned;

pub trait Timed {
    fn at_ms(&self) -> i64;
}

pub struct Recent<K, E> {
    things_max: usize,
    events_max: usize,
    events: HashMap<K, VecDeque<E>, foldhash::fast::RandomState>,
    /// By the time of the last event of each: as many as there are in `events`.
    order: BTreeSet<(i64, K)>,
    /// Since they were kept.
    changed: HashSet<K, foldhash::fast::RandomState>,
}

impl<K: Copy + Eq + Hash + Ord, E: Timed> Recent<K, E> {
    pub fn new(things_max: usize, events_max: usize) -> Recent<K, E> {
        Recent {
            things_max,
            events_max,
            events: HashMap::default(),
            order: BTreeSet::new(),
            changed: HashSet::default(),
        }
    }

    pub fn put(&mut self, thing: K, event: E) {
        if !self.events.contains_key(&thing) {
            self.make_room();
        }
        self.change(thing, |events, events_max| {
            if events.len() >= events_max {
                events.pop_front();
            }
            events.push_back(event);
        });
        self.changed.insert(thing);
    }

    /// From the oldest to the newest.
    pub fn of(&self, thing: K) -> impl DoubleEndedIterator<Item = &E> {
        self.events.get(&thing).into_iter().flatten()
    }

    pub fn remove_if(&mut self, thing: K, is_meant: impl Fn(&E) -> bool) {
        if self.events.contains_key(&thing) {
            self.change(thing, |events, _| events.retain(|event| !is_meant(event)));
            self.changed.insert(thing);
        }
    }

    /// What is to be kept: all of a thing anew, or nothing of it any more.
    pub fn take_changed(&mut self, to_bytes: impl Fn(&VecDeque<E>) -> Option<Vec<u8>>) -> Vec<(K, Option<Vec<u8>>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let bytes = |thing: K| (thing, self.events.get(&thing).and_then(&to_bytes));
        changed.map(bytes).collect()
    }

    /// They could not be kept.
    pub fn keep_later(&mut self, things: impl Iterator<Item = K>) {
        self.changed.extend(things);
    }

    /// What was kept of a thing, as JSON.
    pub fn restore(&mut self, thing: K, bytes: &[u8]) -> Result<(), serde_json::Error>
    where
        E: DeserializeOwned,
    {
        let kept: VecDeque<E> = serde_json::from_slice(bytes)?;
        self.make_room();
        self.change(thing, |events, _| *events = kept);
        Ok(())
    }

    /// Things without events are not held.
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

    fn make_room(&mut self) {
        while self.events.len() >= self.things_max {
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
    struct At(i64);

    impl Timed for At {
        fn at_ms(&self) -> i64 {
            self.0
        }
    }

    fn bytes(events: &VecDeque<At>) -> Option<Vec<u8>> {
        serde_json::to_vec(events).ok()
    }

    fn held(recent: &Recent<u32, At>) -> Vec<u32> {
        assert_eq!(recent.order.len(), recent.events.len());
        let mut held: Vec<u32> = recent.events.keys().copied().collect();
        held.sort_unstable();
        held
    }

    #[test]
    fn the_thing_whose_last_event_is_the_oldest_makes_room() {
        let mut recent = Recent::new(3, 2);
        for (thing, at_ms) in [(1, 10), (2, 20), (3, 30), (1, 40)] {
            recent.put(thing, At(at_ms));
        }
        recent.put(4, At(50));
        assert_eq!(held(&recent), [1, 3, 4]);
        // A clock that goes back makes its event the oldest.
        recent.put(3, At(5));
        recent.put(5, At(60));
        assert_eq!(held(&recent), [1, 4, 5]);
        recent.put(1, At(70));
        assert_eq!(recent.of(1).collect::<Vec<_>>(), [&At(40), &At(70)], "two of each");
        let mut changed = recent.take_changed(bytes);
        changed.sort();
        let gone: Vec<u32> = changed
            .iter()
            .filter(|(_, kept)| kept.is_none())
            .map(|(thing, _)| *thing)
            .collect();
        assert_eq!((changed.len(), gone), (5, vec![2, 3]));
        assert!(recent.take_changed(bytes).is_empty());
    }

    #[test]
    fn what_was_kept_is_restored_and_what_cannot_be_read_is_said() {
        let mut recent = Recent::new(2, 2);
        assert!(recent.restore(1, b"[1,2]").is_ok() && recent.restore(2, b"[3]").is_ok());
        assert!(recent.restore(3, b"nonsense").is_err());
        assert_eq!(held(&recent), [1, 2]);
        assert!(recent.take_changed(bytes).is_empty(), "nothing is to be kept again");
        recent.remove_if(1, |event| event.0 == 2);
        assert_eq!(recent.take_changed(bytes), [(1, Some(b"[1]".to_vec()))]);
        recent.remove_if(1, |_| true);
        assert_eq!((recent.take_changed(bytes), held(&recent)), (vec![(1, None)], vec![2]));
        recent.remove_if(9, |_| true);
        recent.keep_later([2].into_iter());
        assert_eq!(recent.take_changed(bytes), [(2, Some(b"[3]".to_vec()))]);
    }
}
