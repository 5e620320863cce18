//! Compares the subscription tree with a naive matcher: matching, stability of lists, and memory.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// The rules of MQTT 5 section 4.7, implemented literally.
pub(crate) fn naive_matches(filter: &str, topic: &str) -> bool {
    // [MQTT-4.7.2-1]
    if topic.starts_with('$') && (filter.starts_with('+') || filter.starts_with('#')) {
        return false;
    }
    let filter: Vec<&str> = filter.split('/').collect();
    let topic: Vec<&str> = topic.split('/').collect();
    if let Some((&"#", parents)) = filter.split_last() {
        // The parent level matches too.
        return topic.len() >= parents.len() && levels_match(parents, &topic[..parents.len()]);
    }
    filter.len() == topic.len() && levels_match(&filter, &topic)
}

fn levels_match(filter: &[&str], topic: &[&str]) -> bool {
    filter
        .iter()
        .zip(topic)
        .all(|(filter, topic)| *filter == "+" || filter == topic)
}

fn texts_of(tree: &SubscriptionTree<u64>, topic: &str) -> Vec<String> {
    let mut lists = Vec::new();
    tree.matching(topic, &mut lists);
    let mut filters: Vec<String> = lists.iter().map(|&list| text_of(tree, list)).collect();
    filters.sort();
    filters
}

fn text_of(tree: &SubscriptionTree<u64>, list: ListId) -> String {
    let mut text = String::new();
    tree.write_filter(list, &mut text);
    text
}

fn tree_of(filters: &[&str]) -> SubscriptionTree<u64> {
    let mut tree = SubscriptionTree::new();
    for (key, filter) in filters.iter().enumerate() {
        tree.insert(filter, SubscriberKey(key as u32), 0);
    }
    tree
}

#[test]
fn matches_the_examples_of_the_standard() {
    let filters = [
        "sport/tennis/player1/#",
        "sport/#",
        "#",
        "sport/tennis/+",
        "sport/+",
        "+",
        "+/+",
        "/+",
        "+/tennis/#",
    ];
    let tree = tree_of(&filters);
    let topics = [
        "sport/tennis/player1",
        "sport/tennis/player1/ranking",
        "sport/tennis/player1/score/wimbledon",
        "sport",
        "sport/",
        "/finance",
        "sport/tennis",
        "//",
        "/",
    ];
    for topic in topics {
        let mut expected: Vec<_> = filters.iter().filter(|filter| naive_matches(filter, topic)).collect();
        expected.sort();
        assert_eq!(texts_of(&tree, topic).iter().collect::<Vec<_>>(), expected, "{topic}");
    }
}

#[test]
fn leading_wildcard_matches_no_dollar_topic() {
    let tree = tree_of(&[
        "#",
        "+/#",
        "+/+",
        "+/broker/+",
        "$SYS/#",
        "$SYS/+",
        "$SYS/broker",
        "+",
        "$share",
    ]);
    assert_eq!(texts_of(&tree, "$SYS/broker"), ["$SYS/#", "$SYS/+", "$SYS/broker"]);
    assert_eq!(texts_of(&tree, "$SYS"), ["$SYS/#"]);
    assert_eq!(texts_of(&tree, "a/$SYS"), ["#", "+/#", "+/+"]);
}

#[test]
fn replacing_keeps_one_entry_per_key() {
    let mut tree = SubscriptionTree::new();
    for value in 0..1000u64 {
        let inserted = tree.insert("#", SubscriberKey(7), value);
        assert_eq!(inserted.replaced, value.checked_sub(1));
        assert_eq!(inserted.is_new_filter, value == 0);
    }
    assert_eq!((tree.filters(), tree.subscriptions(), tree.generation()), (1, 1, 1));
    assert_eq!(
        tree.entries(tree.find("#").unwrap()),
        [SubscriptionEntry {
            key: SubscriberKey(7),
            value: 999
        }]
    );
}

#[test]
fn wildcards_within_a_level_are_ordinary_characters() {
    let tree = tree_of(&["a+/b", "a/#/b", "a#"]);
    assert_eq!(tree.literal_filters(), 3);
    assert_eq!(texts_of(&tree, "ax/b"), [""; 0]);
}

#[test]
fn filter_of_32767_levels_is_added_and_removed() {
    let deep = "/".repeat(65_534);
    let plus = vec!["+"; 32_767].join("/");
    let hash = format!("{}#", "/".repeat(32_766));
    let mut tree = tree_of(&[&deep, &plus, &hash]);
    assert_eq!(texts_of(&tree, &deep), [hash.clone(), deep.clone()]);
    assert_eq!(texts_of(&tree, &"/".repeat(32_766)), [plus.clone(), hash.clone()]);
    for (key, filter) in [&deep, &plus, &hash].iter().enumerate() {
        assert!(tree.remove(filter, SubscriberKey(key as u32)).unwrap().was_last);
    }
    assert_is_empty(&tree);
}

#[test]
fn plus_at_every_level_visits_each_node_at_most_once() {
    let mut tree = SubscriptionTree::new();
    for mask in 0..2048u32 {
        tree.insert(&masked(mask), SubscriberKey(mask), 0);
    }
    let topic = masked(0);
    let mut lists = Vec::new();
    for _ in 0..200 {
        lists.clear();
        tree.matching(&topic, &mut lists);
        assert_eq!(lists.len(), 2048);
    }
    // One node per combination and depth, and a list instead of a node for each final "+".
    assert!(tree.trie_nodes() <= 4096 - 1024);
}

/// Eleven levels; the ones in `mask` are a "+".
fn masked(mask: u32) -> String {
    let level = |at: u32| {
        if mask >> at & 1 == 1 {
            "+".to_owned()
        } else {
            format!("l{at}")
        }
    };
    (0..11).map(level).collect::<Vec<_>>().join("/")
}

#[test]
fn many_filters_of_one_key_are_added_and_removed() {
    let mut tree = SubscriptionTree::new();
    let filters: Vec<String> = (0..20_000)
        .map(|n| format!("site/{}/machine/{n}/{}", n % 100, ["#", "x", "+/y"][n % 3]))
        .collect();
    let lists: Vec<ListId> = filters
        .iter()
        .map(|filter| tree.insert(filter, SubscriberKey(1), 1u64).list)
        .collect();
    assert_eq!(tree.filters(), 20_000);
    for topic in 0..100 {
        assert_eq!(
            texts_of(&tree, &format!("site/{topic}/machine/{topic}/x")).len(),
            usize::from(topic % 3 < 2)
        );
    }
    for (list, filter) in lists.into_iter().zip(&filters) {
        assert_eq!(text_of(&tree, list), *filter);
        assert!(tree.remove_from(list, SubscriberKey(1)).unwrap().was_last);
    }
    assert_is_empty(&tree);
}

#[test]
fn many_subscribers_of_one_filter_leave_in_any_order() {
    let mut tree = SubscriptionTree::new();
    let list = tree.insert("fan/out", SubscriberKey(0), 0u64).list;
    for key in 1..100_000 {
        assert!(!tree.insert("fan/out", SubscriberKey(key), 0).is_new_filter);
    }
    for key in 0..100_000u32 {
        let key = SubscriberKey(key.wrapping_mul(7919) % 100_000);
        let removed = tree.remove_from(list, key).unwrap();
        assert_eq!(removed.was_last, tree.subscriptions() == 0);
    }
    assert_is_empty(&tree);
}

#[test]
fn listing_survives_changes_between_calls() {
    let mut tree = SubscriptionTree::new();
    let filters: BTreeSet<String> = (0..1000).map(|n| format!("a/{n}/{}", ["+", "b"][n % 2])).collect();
    for filter in &filters {
        tree.insert(filter, SubscriberKey(1), 0u64);
    }
    let (mut seen, mut cursor) = (BTreeSet::new(), Some(FilterCursor::default()));
    while let Some(at) = cursor {
        let before = seen.len();
        cursor = tree.for_each_filter(at, 10, |_, filter, entries| {
            assert_eq!(entries.len(), 1);
            assert!(seen.insert(filter.to_owned()), "{filter} twice");
        });
        assert!(seen.len() <= before + 10);
        tree.insert(&format!("new/{before}/+"), SubscriberKey(1), 0);
        tree.remove(&format!("new/{}/+", before.saturating_sub(30)), SubscriberKey(1));
    }
    assert!(filters.is_subset(&seen));
}

#[test]
fn emptied_tree_frees_its_memory() {
    let mut tree = SubscriptionTree::new();
    for round in 0..3u32 {
        for n in 0..5000u32 {
            let key = SubscriberKey(n);
            tree.insert(&format!("{round}/{n}/+/{}", "x".repeat(n as usize % 300)), key, 0u64);
            tree.insert(&format!("{round}/{n}/{}", "y".repeat(n as usize % 300)), key, 0u64);
        }
        for n in 0..5000u32 {
            let key = SubscriberKey(n);
            tree.remove(&format!("{round}/{n}/+/{}", "x".repeat(n as usize % 300)), key)
                .unwrap();
            tree.remove(&format!("{round}/{n}/{}", "y".repeat(n as usize % 300)), key)
                .unwrap();
        }
        assert_is_empty(&tree);
    }
}

fn assert_is_empty(tree: &SubscriptionTree<u64>) {
    assert_eq!(
        (tree.filters(), tree.subscriptions(), tree.literal_filters()),
        (0, 0, 0)
    );
    assert_eq!(tree.trie_nodes(), 1);
    assert_eq!(tree.text_page_bytes(), 0);
}

/// Few distinct levels, so that filters overlap, share nodes and repeat.
pub(crate) fn any_filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![
        Just("+"),
        Just("+"),
        Just("a"),
        Just("b"),
        Just(""),
        Just("$c"),
        Just("a+"),
        Just("longer level")
    ];
    (prop::collection::vec(level, 1..6), any::<bool>()).prop_map(|(mut levels, is_subtree)| {
        if is_subtree {
            levels.push("#");
        }
        levels.join("/")
    })
}

pub(crate) fn any_topic() -> impl Strategy<Value = String> {
    let level = prop_oneof![
        Just("a"),
        Just("b"),
        Just(""),
        Just("$c"),
        Just("other"),
        Just("longer level")
    ];
    prop::collection::vec(level, 1..7).prop_map(|levels| levels.join("/"))
}

#[derive(Clone, Debug)]
enum SubscriptionStep {
    Insert(String, SubscriberKey, u64),
    Remove(String, SubscriberKey),
    /// Removes the n-th of the present filters, so that removals often succeed.
    RemovePresent(usize),
    Match(String),
}

fn any_step() -> impl Strategy<Value = SubscriptionStep> {
    prop_oneof![
        4 => (any_filter(), any_key(), any::<u64>()).prop_map(|(filter, key, value)| SubscriptionStep::Insert(filter, key, value)),
        1 => (any_filter(), any_key()).prop_map(|(filter, key)| SubscriptionStep::Remove(filter, key)),
        3 => any::<usize>().prop_map(SubscriptionStep::RemovePresent),
        3 => any_topic().prop_map(SubscriptionStep::Match),
    ]
}

fn any_key() -> impl Strategy<Value = SubscriberKey> {
    (0..4u32).prop_map(SubscriberKey)
}

/// The tree and a map of (filter, key).
#[derive(Default)]
struct TreeAndModel {
    tree: SubscriptionTree<u64>,
    model: BTreeMap<(String, SubscriberKey), u64>,
    lists: BTreeMap<String, ListId>,
}

impl TreeAndModel {
    fn apply(&mut self, step: SubscriptionStep) {
        let generation = self.tree.generation();
        let filters = self.filters();
        match step {
            SubscriptionStep::Insert(filter, key, value) => self.insert(filter, key, value),
            SubscriptionStep::Remove(filter, key) => self.remove(filter, key),
            SubscriptionStep::RemovePresent(n) => {
                if let Some((filter, key)) = self.model.keys().nth(n % self.model.len().max(1)).cloned() {
                    self.remove(filter, key);
                }
            }
            SubscriptionStep::Match(topic) => self.check_match(&topic),
        }
        assert_eq!(self.tree.generation() != generation, self.filters() != filters);
        assert_eq!(self.tree.filters(), self.filters().len());
        assert_eq!(self.tree.subscriptions(), self.model.len());
    }

    fn filters(&self) -> BTreeSet<String> {
        self.model.keys().map(|(filter, _)| filter.clone()).collect()
    }

    fn insert(&mut self, filter: String, key: SubscriberKey, value: u64) {
        let is_new_filter = !self.filters().contains(&filter);
        let replaced = self.model.insert((filter.clone(), key), value);
        let inserted = self.tree.insert(&filter, key, value);
        let list = *self.lists.entry(filter).or_insert(inserted.list);
        assert_eq!(
            inserted,
            InsertedSubscription {
                list,
                replaced,
                is_new_filter
            }
        );
    }

    fn remove(&mut self, filter: String, key: SubscriberKey) {
        let value = self.model.remove(&(filter.clone(), key));
        let was_last = !self.filters().contains(&filter);
        assert_eq!(self.tree.get(&filter, key), value);
        assert_eq!(
            self.tree.remove(&filter, key),
            value.map(|value| RemovedSubscription { value, was_last })
        );
        if was_last {
            self.lists.remove(&filter);
        }
    }

    fn check_match(&self, topic: &str) {
        let expected: Vec<String> = self
            .filters()
            .into_iter()
            .filter(|filter| naive_matches(filter, topic))
            .collect();
        assert_eq!(texts_of(&self.tree, topic), expected, "{topic}");
    }

    fn check_entries(&self) {
        for (filter, &list) in &self.lists {
            assert_eq!(self.tree.find(filter), Some(list));
            assert_eq!(text_of(&self.tree, list), *filter);
            let mut entries: Vec<_> = self
                .tree
                .entries(list)
                .iter()
                .map(|entry| (entry.key, entry.value))
                .collect();
            entries.sort();
            let of_filter = self.model.iter().filter(|((of, _), _)| of == filter);
            assert_eq!(
                entries,
                of_filter.map(|((_, key), &value)| (*key, value)).collect::<Vec<_>>()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn behaves_like_a_list_of_filters(steps in prop::collection::vec(any_step(), 1..120)) {
        let mut pair = TreeAndModel::default();
        for step in steps {
            pair.apply(step);
        }
        pair.check_entries();
        for (filter, key) in pair.model.keys().cloned().collect::<Vec<_>>() {
            pair.remove(filter, key);
        }
        assert_is_empty(&pair.tree);
    }

    #[test]
    fn big_lists_behave_like_a_map(steps in prop::collection::vec((0..200u32, any::<bool>(), any::<u64>()), 1..1500)) {
        let mut tree = SubscriptionTree::new();
        let mut model = BTreeMap::new();
        for (key, is_insert, value) in steps {
            let (key, is_insert) = (SubscriberKey(key), is_insert || key > 120);
            if is_insert {
                prop_assert_eq!(tree.insert("a", key, value).replaced, model.insert(key, value));
            } else {
                prop_assert_eq!(tree.remove("a", key).map(|removed| removed.value), model.remove(&key));
            }
        }
        let entries = tree.find("a").map_or(&[][..], |list| tree.entries(list));
        let entries: BTreeMap<SubscriberKey, u64> = entries.iter().map(|entry| (entry.key, entry.value)).collect();
        prop_assert_eq!(entries, model);
    }

    #[test]
    fn id_table_behaves_like_a_multimap(steps in prop::collection::vec((0..40u32, 0..50u32, any::<bool>()), 1..800)) {
        let mut table = crate::id_table::IdTable::default();
        let mut model = BTreeSet::new();
        for (hash, id, is_insert) in steps {
            // Both ends of the range, and colliding hashes.
            let hash = if hash % 2 == 0 { u32::MAX - hash / 4 } else { hash * 0x0300_0000 };
            prop_assert_eq!(table.find(hash, |found| found == id).is_some(), model.contains(&(hash, id)));
            if is_insert {
                if model.insert((hash, id)) {
                    table.insert(hash, id);
                }
            } else {
                prop_assert_eq!(table.remove(hash, |found| found == id).is_some(), model.remove(&(hash, id)));
            }
            prop_assert_eq!(table.len(), model.len());
        }
        for (hash, id) in model {
            prop_assert_eq!(table.find(hash, |found| found == id), Some(id));
        }
    }

    #[test]
    fn texts_survive_a_round_trip(texts in prop::collection::vec("[a-z/é]{0,400}", 1..60)) {
        let mut store = texts::Texts::default();
        let ids: Vec<texts::TextId> = texts.iter().enumerate().map(|(tag, text)| store.insert(text.as_bytes(), tag as u32)).collect();
        for (tag, (&id, text)) in ids.iter().zip(&texts).enumerate() {
            prop_assert_eq!((store.text(id), store.tag(id)), (text.as_str(), tag as u32));
            prop_assert!(store.is_text(id, text.as_bytes()));
            let longer = format!("{text}x");
            prop_assert!(!store.is_text(id, longer.as_bytes()));
            if !text.is_empty() {
                prop_assert!(!store.is_text(id, &text.as_bytes()[..text.len() - 1]));
            }
        }
        ids.into_iter().for_each(|id| store.remove(id));
        prop_assert_eq!(store.page_bytes(), 0);
    }
}
