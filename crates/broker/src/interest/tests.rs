//! Tests of the interest table: no shard is missing, removal empties it, other threads see updates.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::subscriptions::tests::{any_filter, any_topic, naive_matches};

#[test]
fn topic_finds_the_shards_of_matching_filters() {
    let interest = Interest::new(64, 1);
    let filters = ["a/b", "a/+", "a/b/#", "#", "+/b", "/a", "$SYS/#", "a/b/c/+/e"];
    let mut counts: Vec<InterestCounts> = (0..filters.len()).map(InterestCounts::new).collect();
    for (counts, filter) in counts.iter_mut().zip(filters) {
        counts.add(&interest, filter);
    }
    assert_eq!(interest.mask("a/b"), 0b0001_1111);
    // The prefix of "a/+" and "+/b" matches.
    assert_eq!(interest.mask("a/c"), 0b0001_1010);
    assert_eq!(interest.mask("$SYS/x"), 0b0101_1000);
    for (counts, filter) in counts.iter_mut().zip(filters) {
        counts.remove(&interest, filter);
    }
    assert_eq!(interest.mask("a/b"), 0);
    assert!(
        interest
            .slots
            .get()
            .into_iter()
            .flatten()
            .all(|word| word.load(Ordering::Relaxed) == 0)
    );
}

#[test]
fn counts_above_255_return_to_zero() {
    let (interest, mut counts) = (Interest::new(2, 1), InterestCounts::new(1));
    (0..1000).for_each(|n| counts.add(&interest, &format!("a/+/{n}")));
    for n in 0..1000 {
        assert_eq!(interest.mask("a/x"), 0b10);
        counts.remove(&interest, &format!("a/+/{n}"));
    }
    assert_eq!(interest.mask("a/x"), 0);
    assert!(counts.many.is_empty());
}

#[test]
fn publisher_sees_a_subscription_that_happened_before() {
    let interest = Interest::new(3, 1);
    for round in 0..200 {
        let (topic, is_announced) = (format!("t/{round}"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut counts = InterestCounts::new(2);
                counts.add(&interest, &topic);
                is_announced.store(true, Ordering::Release);
            });
            while !is_announced.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            assert_ne!(interest.mask(&topic) & 0b100, 0);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn mask_contains_every_matching_shard(
        shards in 1..=SHARDS_MAX,
        seed in any::<u64>(),
        filters in prop::collection::vec((any_filter(), any::<prop::sample::Index>(), any::<bool>()), 1..60),
        topics in prop::collection::vec(any_topic(), 1..40),
    ) {
        let interest = Interest::new(shards, seed);
        let mut counts: Vec<InterestCounts> = (0..shards).map(InterestCounts::new).collect();
        let filters: Vec<_> = filters.into_iter().map(|(filter, shard, stays)| (filter, shard.index(shards), stays)).collect();
        filters.iter().for_each(|(filter, shard, _)| counts[*shard].add(&interest, filter));
        for (filter, shard, _) in filters.iter().filter(|(_, _, stays)| !stays) {
            counts[*shard].remove(&interest, filter);
        }
        for topic in &topics {
            let mask = interest.mask(topic);
            for (filter, shard, _) in filters.iter().filter(|(_, _, stays)| *stays) {
                prop_assert!(!naive_matches(filter, topic) || mask >> shard & 1 == 1, "{} {}", filter, topic);
            }
        }
        for (filter, shard, _) in filters.iter().filter(|(_, _, stays)| *stays) {
            counts[*shard].remove(&interest, filter);
        }
        for topic in &topics {
            prop_assert_eq!(interest.mask(topic), 0);
        }
    }
}
