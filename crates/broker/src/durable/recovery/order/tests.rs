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
