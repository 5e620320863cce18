//! Compares the sorted lists with a map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Key, value, and whether the item is a tombstone.
#[derive(Clone, Debug, PartialEq)]
struct OrderItem(u64, u32, bool);

impl SortedItem for OrderItem {
    fn order(&self) -> u64 {
        self.0
    }

    fn is_tombstone(&self) -> bool {
        self.2
    }

    fn make_tombstone(&mut self) {
        self.2 = true;
    }
}

fn assert_same(list: &VecDeque<OrderItem>, map: &BTreeMap<u64, u32>) {
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
    fn list_with_runs_behaves_like_a_map(steps in prop::collection::vec((0..8u8, 0..40u64, any::<u32>()), 0..200)) {
        let (mut list, mut map) = (SortedWithRuns::default(), BTreeMap::new());
        for (action, order, what) in steps {
            match action {
                0 => prop_assert_eq!(list.remove(order), map.remove(&order).is_some()),
                1 => assert_same(list.whole(), &map),
                2 => for order in order..40 {
                    list.put(OrderItem(order, what, false));
                    map.insert(order, what);
                },
                _ => {
                    list.put(OrderItem(order, what, false));
                    map.insert(order, what);
                }
            }
        }
        assert_same(list.whole(), &map);
    }

    #[test]
    fn list_behaves_like_a_map(steps in prop::collection::vec((0..4u8, 0..40u64, any::<u32>()), 0..200)) {
        let (mut list, mut map) = (VecDeque::new(), BTreeMap::new());
        for (action, order, what) in steps {
            match action {
                0 => prop_assert_eq!(remove(&mut list, order), map.remove(&order).is_some()),
                1 => {
                    let found = find(&mut list, order).map(|item: &mut OrderItem| std::mem::replace(&mut item.1, what));
                    prop_assert_eq!(found, map.get_mut(&order).map(|old| std::mem::replace(old, what)));
                }
                2 => {
                    put(&mut list, OrderItem(order, what, false));
                    map.insert(order, what);
                }
                _ => {
                    let new = (order..40).step_by(1 + what as usize % 5).map(|order| OrderItem(order, what, false));
                    map.extend(new.clone().map(|item| (item.0, item.1)));
                    let middle = new.filter_map(|item| try_put(&mut list, item)).collect();
                    insert_all(&mut list, middle);
                }
            }
            assert_same(&list, &map);
        }
        compact(&mut list);
        prop_assert_eq!(list.len(), map.len());
    }
}

#[test]
fn tombstones_do_not_let_a_list_grow() {
    let mut list = VecDeque::new();
    for order in 0..100_000 {
        put(&mut list, OrderItem(order, 0, false));
        if order >= 100 {
            // The first item stays, so the tombstones behind it cannot be removed with it.
            assert!(remove(&mut list, order - 50));
        }
    }
    assert!(list.capacity() < 500, "{}", list.capacity());
}

/// Returned messages arrive in order, and all newer messages stay in place.
#[test]
fn long_run_inserted_in_the_middle_moves_the_list_once() {
    const LONG: u64 = 200_000;
    let mut list = SortedWithRuns::default();
    (0..LONG).for_each(|order| list.put(OrderItem(2 * LONG + order, 0, false)));
    let began = std::time::Instant::now();
    (0..LONG).for_each(|order| list.put(OrderItem(order, 0, false)));
    assert_eq!(list.whole().len() as u64, 2 * LONG);
    // Moving the newer messages for each insertion takes minutes.
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}
