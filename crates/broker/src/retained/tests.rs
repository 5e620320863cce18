//! Compares the retained store with a plain map: scans, budgets, limits, expiry, and memory.

use proptest::prelude::*;

use super::*;
use crate::subscriptions::tests::{any_filter, any_topic, naive_matches};

const UNLIMITED: RetainedLimits = RetainedLimits {
    count_max: usize::MAX,
    bytes_max: u64::MAX,
};
const ALL: ScanBudget = ScanBudget {
    matches_max: usize::MAX,
    steps_max: usize::MAX,
};

fn store_of(topics: impl IntoIterator<Item = String>) -> RetainedStore<u32> {
    let mut retained = RetainedStore::new(UNLIMITED);
    for (n, topic) in topics.into_iter().enumerate() {
        retained.set(&topic, n as u32, 1000, None).unwrap();
    }
    retained
}

fn matches(retained: &RetainedStore<u32>, filter: &str) -> Vec<String> {
    let mut topics = Vec::new();
    assert_eq!(
        retained.scan(filter, None, 0, ALL, |topic, _| topics.push(topic.to_owned())),
        None
    );
    topics
}

/// Returns the number of keys that a whole scan visits, without the last one.
fn steps(retained: &RetainedStore<u32>, filter: &str) -> usize {
    let (mut cursor, mut steps) = (None, 0);
    loop {
        cursor = retained.scan(
            filter,
            cursor,
            0,
            ScanBudget {
                matches_max: usize::MAX,
                steps_max: 1,
            },
            |_, _| {},
        );
        if cursor.is_none() {
            return steps;
        }
        steps += 1;
    }
}

#[test]
fn leading_wildcard_matches_no_dollar_topic() {
    let topics = ["$", "$SYS/broker/version", "$SYS", "#x", "a/$SYS", "%", "a", "/"];
    let retained = store_of(topics.map(String::from));
    assert_eq!(matches(&retained, "#"), ["/", "#x", "%", "a", "a/$SYS"]);
    assert_eq!(matches(&retained, "+/#"), ["/", "#x", "%", "a", "a/$SYS"]);
    assert_eq!(matches(&retained, "+"), ["#x", "%", "a"]);
    assert_eq!(matches(&retained, "+/+"), ["/", "a/$SYS"]);
    assert_eq!(matches(&retained, "$SYS/#"), ["$SYS", "$SYS/broker/version"]);
    assert_eq!(matches(&retained, "$SYS/+/version"), ["$SYS/broker/version"]);
}

#[test]
fn topic_precedes_its_subtree_which_precedes_siblings() {
    let topics = ["a b", "a/b", "a", "a\u{1}", "a/", "a!/b", "a/\u{1}"];
    let retained = store_of(topics.map(String::from));
    assert_eq!(
        matches(&retained, "#"),
        ["a", "a/", "a/\u{1}", "a/b", "a\u{1}", "a b", "a!/b"]
    );
    assert_eq!(matches(&retained, "a/#"), ["a", "a/", "a/\u{1}", "a/b"]);
    assert_eq!(matches(&retained, "+/b"), ["a/b", "a!/b"]);
}

#[test]
fn cursor_behind_the_filter_is_past_it() {
    let retained = store_of(["a/x", "a/y", "ab/x", "b"].map(String::from));
    let budget = ScanBudget { matches_max: 1, ..ALL };
    for (filter, is_past) in [
        ("a/#", false),
        ("a/+", false),
        ("a/x", true),
        ("ab/#", true),
        ("#", false),
    ] {
        let cursor = retained.scan(filter, None, 0, budget, |_, _| {}).unwrap();
        assert_eq!(cursor.is_past(filter), is_past, "{filter}");
    }
}

#[test]
fn scan_skips_subtrees_that_cannot_match() {
    let topics = (0..100).flat_map(|a| (0..1000).map(move |b| format!("site/{a}/sensor/{b}")));
    let retained = store_of(topics);
    assert_eq!(matches(&retained, "site/+/sensor/7").len(), 100);
    assert!(steps(&retained, "site/+/sensor/7") <= 400);
    assert!(steps(&retained, "site/+/state") <= 200);
    assert!(steps(&retained, "+/5/sensor/3") <= 10);
    assert!(steps(&retained, "nothing/#") <= 1);
    assert_eq!(steps(&retained, "site/5/#"), 1000);
}

#[test]
fn exceeded_limit_is_reported() {
    let mut retained = RetainedStore::new(RetainedLimits {
        count_max: 2,
        bytes_max: 100,
    });
    assert_eq!(retained.set("a", 1, 60, None), Ok(None));
    assert_eq!(retained.set("b", 2, 41, None), Err(RetainedLimit::Bytes));
    assert_eq!(retained.set("b", 2, 40, None), Ok(None));
    assert_eq!(retained.set("c", 3, 0, None), Err(RetainedLimit::Count));
    assert_eq!(retained.set("a", 4, 61, None), Err(RetainedLimit::Bytes));
    assert_eq!(retained.get("a", 0), Some(&1));
    assert_eq!(retained.set("a", 5, 10, None), Ok(Some(1)));
    assert_eq!((retained.count(), retained.bytes()), (2, 50));
    retained.set_limits(RetainedLimits {
        count_max: 1,
        bytes_max: 10,
    });
    // A lower limit still lets entries shrink.
    assert_eq!(retained.set("b", 6, 41, None), Err(RetainedLimit::Bytes));
    assert_eq!(retained.set("b", 7, 40, None), Ok(Some(2)));
    assert_eq!(retained.remove("a"), Some(5));
    assert_eq!((retained.count(), retained.bytes()), (1, 40));
}

#[test]
fn expired_entry_is_hidden_at_once_and_freed_on_demand() {
    let mut retained = RetainedStore::new(UNLIMITED);
    for n in 0..1000u32 {
        retained
            .set(&format!("a/{n}"), n, 10, (n % 2 == 0).then_some(n as u64))
            .unwrap();
    }
    retained.set("a/10", 10, 10, Some(5_000)).unwrap();
    assert!(retained.next_expiry_ms().unwrap() <= 2);
    assert_eq!(retained.get("a/500", 499), Some(&500));
    assert_eq!(retained.get("a/500", 500), None);
    let mut seen = 0;
    retained.scan("a/+", None, 500, ALL, |_, _| seen += 1);
    assert_eq!(seen, 1000 - 250);
    let mut removed = Vec::new();
    while retained.expire(500, 7, |topic, value| {
        assert_eq!(topic, format!("a/{value}"));
        removed.push(value);
    }) {}
    removed.sort();
    assert_eq!(
        removed,
        (0..=500).filter(|n| n % 2 == 0 && *n != 10).collect::<Vec<_>>()
    );
    assert_eq!((retained.count(), retained.bytes()), (750, 7500));
    retained.expire(u64::MAX - 1, usize::MAX, |_, _| {});
    assert_eq!((retained.count(), retained.next_expiry_ms()), (500, None));
}

#[test]
fn large_scan_visits_topics_once_and_removal_frees_all() {
    let topics: Vec<String> = (0..20_000)
        .map(|n| format!("line/{}/cell/{}", n % 37, n * 7919 % 20_000))
        .collect();
    let mut retained = store_of(topics.iter().cloned());
    let (mut seen, mut cursor, mut calls) = (Vec::new(), None, 0);
    loop {
        let budget = ScanBudget {
            matches_max: 100,
            steps_max: 1000,
        };
        cursor = retained.scan("#", cursor, 0, budget, |topic, _| seen.push(topic.to_owned()));
        calls += 1;
        if cursor.is_none() {
            break;
        }
    }
    assert!((200..=201).contains(&calls));
    seen.sort();
    let mut expected = topics.clone();
    expected.sort();
    assert_eq!(seen, expected);
    topics
        .iter()
        .for_each(|topic| assert!(retained.remove(topic).is_some()));
    assert_eq!((retained.count(), retained.bytes(), retained.index.len()), (0, 0, 1));
    assert!(
        retained
            .blocks
            .iter()
            .flatten()
            .all(|leaf| leaf.block.has_no_allocation())
    );
}

#[test]
fn longest_topics_are_stored_and_found() {
    let long = |n: usize| format!("{}{n}", "/x".repeat(32_760));
    let retained = store_of((0..300).map(long));
    assert_eq!(retained.get(&long(299), 0), Some(&299));
    assert_eq!(matches(&retained, "/+/#").len(), 300);
    assert_eq!(matches(&retained, &long(7)), [long(7)]);
    assert_eq!(
        matches(&store_of(["/".repeat(65_535)]), &format!("{}/+", "+/".repeat(65_534))).len(),
        1
    );
}

#[derive(Clone, Debug)]
enum RetainedStep {
    Set(String, u32, u32, Option<u64>),
    Remove(String),
    RemovePresent(usize),
    Expire(u64, usize),
    Get(String),
    Scan(String, usize, usize),
}

/// A few shared prefixes and many endings, which gives full blocks and neighbours that share much or little.
fn any_key() -> impl Strategy<Value = String> {
    prop_oneof![
        any_topic(),
        (0..400u32).prop_map(|n| format!("sensors/{n}/temperature")),
        (any_topic(), 0..100u32).prop_map(|(topic, n)| format!("{topic}/{n}")),
        (0..30usize).prop_map(|n| "ab".repeat(n * 40)),
    ]
}

fn any_step() -> impl Strategy<Value = RetainedStep> {
    let expiry = prop::option::weighted(0.3, 0..1000u64);
    prop_oneof![
        6 => (any_key(), any::<u32>(), 0..50u32, expiry).prop_map(|(topic, value, bytes, at)| RetainedStep::Set(topic, value, bytes, at)),
        1 => any_key().prop_map(RetainedStep::Remove),
        2 => any::<usize>().prop_map(RetainedStep::RemovePresent),
        1 => (0..200u64, 0..20usize).prop_map(|(by, max)| RetainedStep::Expire(by, max)),
        1 => any_key().prop_map(RetainedStep::Get),
        1 => (any_filter(), 1..20usize, 1..20usize).prop_map(|(filter, matches, steps)| RetainedStep::Scan(filter, matches, steps)),
        1 => (any_key(), 1..20usize, 1..20usize).prop_map(|(filter, matches, steps)| RetainedStep::Scan(filter, matches, steps)),
        1 => Just(RetainedStep::Scan("sensors/+/temperature".into(), 7, 30)),
    ]
}

/// The store and a plain map: topic -> (value, bytes, deadline).
struct StoreAndModel {
    retained: RetainedStore<u32>,
    model: BTreeMap<String, (u32, u32, u64)>,
    now_ms: u64,
}

const LIMITS: RetainedLimits = RetainedLimits {
    count_max: 500,
    bytes_max: 12_000,
};

impl StoreAndModel {
    fn apply(&mut self, step: RetainedStep) {
        match step {
            RetainedStep::Set(topic, value, bytes, expires_at_ms) => self.set(topic, value, bytes, expires_at_ms),
            RetainedStep::Remove(topic) => self.remove(&topic),
            RetainedStep::RemovePresent(n) => {
                if let Some(topic) = self.model.keys().nth(n % self.model.len().max(1)).cloned() {
                    self.remove(&topic);
                }
            }
            RetainedStep::Expire(by, removals_max) => self.expire(by, removals_max),
            RetainedStep::Get(topic) => {
                let now_ms = self.now_ms;
                let live = self.model.get(&topic).filter(|item| item.2 > now_ms);
                assert_eq!(self.retained.get(&topic, now_ms), live.map(|item| &item.0));
            }
            RetainedStep::Scan(filter, matches_max, steps_max) => {
                self.scan(&filter, ScanBudget { matches_max, steps_max })
            }
        }
        assert_eq!(self.retained.count(), self.model.len());
        assert_eq!(
            self.retained.bytes(),
            self.model.values().map(|item| item.1 as u64).sum::<u64>()
        );
    }

    fn set(&mut self, topic: String, value: u32, bytes: u32, expires_at_ms: Option<u64>) {
        let present = self.model.get(&topic).copied();
        let others = self.retained.bytes() - present.map_or(0, |item| item.1 as u64);
        let expected = if present.is_none() && self.model.len() == LIMITS.count_max {
            Err(RetainedLimit::Count)
        } else if others + bytes as u64 > LIMITS.bytes_max {
            Err(RetainedLimit::Bytes)
        } else {
            self.model
                .insert(topic.clone(), (value, bytes, expires_at_ms.unwrap_or(u64::MAX)));
            Ok(present.map(|item| item.0))
        };
        assert_eq!(self.retained.set(&topic, value, bytes, expires_at_ms), expected);
    }

    fn remove(&mut self, topic: &str) {
        assert_eq!(self.retained.remove(topic), self.model.remove(topic).map(|item| item.0));
    }

    fn expire(&mut self, by: u64, removals_max: usize) {
        self.now_ms += by;
        let mut removed = 0;
        let may_have_more = self.retained.expire(self.now_ms, removals_max, |topic, value| {
            let item = self.model.remove(topic).expect("removed once");
            assert_eq!(item.0, value);
            assert!(item.2 <= self.now_ms);
            removed += 1;
        });
        let due = self.model.values().filter(|item| item.2 <= self.now_ms).count();
        assert!(removed <= removals_max && (due == 0 || may_have_more));
        let earliest = self.model.values().map(|item| item.2).min().unwrap_or(u64::MAX);
        assert!(self.retained.next_expiry_ms().unwrap_or(u64::MAX) <= earliest);
    }

    fn scan(&self, filter: &str, budget: ScanBudget) {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let before = seen.len();
            cursor = self
                .retained
                .scan(filter, cursor, self.now_ms, budget, |topic, &value| {
                    seen.push((topic.to_owned(), value));
                });
            assert!(seen.len() <= before + budget.matches_max);
            if cursor.is_none() {
                break;
            }
        }
        let live = self.model.iter().filter(|(_, item)| item.2 > self.now_ms);
        let mut expected: Vec<_> = live
            .filter(|(topic, _)| naive_matches(filter, topic))
            .map(|(topic, item)| (topic.clone(), item.0))
            .collect();
        expected.sort_by_key(|(topic, _)| topic.replace('/', "\0"));
        assert_eq!(seen, expected, "{filter}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn behaves_like_a_plain_map(steps in prop::collection::vec(any_step(), 1..1200)) {
        let mut pair = StoreAndModel { retained: RetainedStore::new(LIMITS), model: BTreeMap::new(), now_ms: 0 };
        for step in steps {
            pair.apply(step);
        }
        pair.scan("#", ALL);
        for topic in pair.model.keys().cloned().collect::<Vec<_>>() {
            pair.remove(&topic);
        }
        prop_assert_eq!(pair.retained.index.len(), 1);
        prop_assert!(pair.retained.deadlines.len() <= 1);
    }

    #[test]
    fn scan_survives_changes_between_calls(
        stay in prop::collection::btree_set(any_topic(), 1..40),
        changes in prop::collection::vec((any_topic(), any::<bool>()), 1..60),
        filter in any_filter(),
        steps_max in 1..5usize,
    ) {
        let mut retained = store_of(stay.iter().cloned());
        let (mut seen, mut cursor, mut changes) = (Vec::new(), None, changes.into_iter());
        loop {
            let budget = ScanBudget { matches_max: 3, steps_max };
            cursor = retained.scan(&filter, cursor, 0, budget, |topic, _| seen.push(topic.to_owned()));
            if cursor.is_none() {
                break;
            }
            for (topic, is_set) in changes.by_ref().take(2).filter(|(topic, _)| !stay.contains(topic)) {
                if is_set {
                    retained.set(&topic, 0, 0, None).unwrap();
                } else {
                    retained.remove(&topic);
                }
            }
        }
        let visited = seen.len();
        seen.sort();
        seen.dedup();
        prop_assert_eq!(visited, seen.len());
        for topic in stay.iter().filter(|topic| naive_matches(&filter, topic)) {
            prop_assert!(seen.contains(topic), "{}", topic);
        }
    }
}
