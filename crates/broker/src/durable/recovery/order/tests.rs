//! A list in order against a map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Its order, what it carries, and whether it is a mark.
#[derive(Clone, Debug, PartialEq)]
struct Item(u64, u32, bool);

impl InOrder for Item {
    fn order(&self) -> u64 {
        self.0
    }

    fn is_gone(&self) -> bool {
        self.2
    }

    fn go(&mut self) {
        self.2 = true;
    }
}

fn assert_same(list: &VecDeque<Item>, map: &BTreeMap<u64, u32>) {
    let left = list.iter().filter(|item| !item.2).map(|item| (item.0, item.1));
    assert!(
        left.eq(map.iter().map(|(order, what)| (*order, *what))),
        "{list:?} {map:?}"
    );
    assert!(list.iter().is_sorted_by(|a, b| a.0 < b.0));
    assert!(list.front().is_none_or(|first| !first.2));
    assert!(list.back().is_none_or(|last| !last.2));
}

proptest! {
    #[test]
    fn a_list_in_runs_does_what_a_map_does(steps in prop::collection::vec((0..8u8, 0..40u64, any::<u32>()), 0..200)) {
        let (mut list, mut map) = (InRuns::default(), BTreeMap::new());
        for (action, order, what) in steps {
            match action {
                0 => prop_assert_eq!(list.remove(order), map.remove(&order).is_some()),
                1 => assert_same(list.whole(), &map),
                2 => for order in order..40 {
                    list.put(Item(order, what, false));
                    map.insert(order, what);
                },
                _ => {
                    list.put(Item(order, what, false));
                    map.insert(order, what);
                }
            }
        }
        assert_same(list.whole(), &map);
    }

    #[test]
    fn a_list_does_what_a_map_does(steps in prop::collection::vec((0..4u8, 0..40u64, any::<u32>()), 0..200)) {
        let (mut list, mut map) = (VecDeque::new(), BTreeMap::new());
        for (action, order, what) in steps {
            match action {
                0 => prop_assert_eq!(remove(&mut list, order), map.remove(&order).is_some()),
                1 => {
                    let found = find(&mut list, order).map(|item: &mut Item| std::mem::replace(&mut item.1, what));
                    prop_assert_eq!(found, map.get_mut(&order).map(|old| std::mem::replace(old, what)));
                }
                2 => {
                    put(&mut list, Item(order, what, false));
                    map.insert(order, what);
                }
                _ => {
                    let new = (order..40).step_by(1 + what as usize % 5).map(|order| Item(order, what, false));
                    map.extend(new.clone().map(|item| (item.0, item.1)));
                    let middle = new.filter_map(|item| try_put(&mut list, item)).collect();
                    insert_all(&mut list, middle);
                }
            }
            assert_same(&list, &map);
        }
        tidy(&mut list);
        prop_assert_eq!(list.len(), map.len());
    }
}

#[test]
fn marks_do_not_let_a_list_grow() {
    let mut list = VecDeque::new();
    for order in 0..100_000 {
        put(&mut list, Item(order, 0, false));
        if order >= 100 {
            // The first one stays, and so the marks behind it cannot go with it.
            assert!(remove(&mut list, order - 50));
        }
    }
    assert!(list.capacity() < 500, "{}", list.capacity());
}

/// What members give back comes in order, and all that is newer stays where it is meanwhile.
#[test]
fn a_long_run_into_the_middle_is_moved_once() {
    const LONG: u64 = 200_000;
    let mut list = InRuns::default();
    (0..LONG).for_each(|order| list.put(Item(2 * LONG + order, 0, false)));
    let began = std::time::Instant::now();
    (0..LONG).for_each(|order| list.put(Item(order, 0, false)));
    assert_eq!(list.whole().len() as u64, 2 * LONG);
    // Moving the newer ones each time takes minutes.
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}
