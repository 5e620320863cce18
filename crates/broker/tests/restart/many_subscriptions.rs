//! Recovery takes time in proportion to the subscriptions of a session.

use std::time::{Duration, Instant};

use tidewire_broker::*;

use super::node::Node;
use super::queue_bytes::START;

/// Returns the shortest of two restarts.
fn recovery_time(subscriptions: usize) -> Duration {
    let config = ShardConfig {
        max_subscriptions: subscriptions,
        ..ShardConfig::default()
    };
    let mut node = Node::new(&format!("subscriptions-{subscriptions}"), config.clone());
    let client = node.connect("client", true, u32::MAX);
    for number in 0..subscriptions {
        node.subscribe(client, &format!("meters/{number}/power"));
        if number % 1_000 == 0 {
            node.end_tick();
        }
    }
    node.end_tick();
    let mut shortest = Duration::MAX;
    for _ in 0..2 {
        let start = Instant::now();
        node = node.restart(config.clone(), START);
        shortest = shortest.min(start.elapsed());
        assert_eq!(node.shard.inspect().stats().subscriptions, subscriptions as u64);
    }
    std::fs::remove_dir_all(node.crash()).unwrap();
    shortest
}

#[test]
fn recovery_time_is_linear_in_the_subscriptions_of_a_session() {
    let (few, many) = (recovery_time(4_000), recovery_time(80_000));
    // Twenty times as many. A quadratic recovery would take 400 times as long.
    assert!(many < few * 100, "{few:?} for 4,000 and {many:?} for 80,000");
}
