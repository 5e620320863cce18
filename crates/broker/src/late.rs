//! Retained messages that come by way of their topic's owner, because no subscription was known here when they were routed.
//!
//! What the same shard has published later may have come straight from it meanwhile. The earlier message is not needed then: the
//! subscription is younger than it, and who got it last would take it for the state of things [MQTT-4.6.0-5].

use crate::effect::ShardId;
use crate::shard::hash;

/// Of the topics that such messages came of. Where two have the same place, the one of which nothing is known gets all, in whatever order.
const KNOWN: usize = 1024;

#[derive(Default)]
pub(crate) struct Late {
    /// None before the first message.
    newest: Vec<Option<Routed>>,
}

#[derive(Clone, Copy)]
struct Routed {
    topic: u64,
    from: ShardId,
    stamp: u64,
}

impl Late {
    /// A retained message has come straight from the shard that numbers its own by `stamp`.
    pub fn routed(&mut self, topic: &str, from: ShardId, stamp: u64) {
        let topic = hash(topic);
        if self.newest.is_empty() {
            self.newest = vec![None; KNOWN];
        }
        self.newest[topic as usize % KNOWN] = Some(Routed { topic, from, stamp });
    }

    /// Whether a later one of its topic has come straight from that shard.
    pub fn is_overtaken(&self, topic: &str, from: ShardId, stamp: u64) -> bool {
        let topic = hash(topic);
        let newest = self.newest.get(topic as usize % KNOWN).copied().flatten();
        newest.is_some_and(|it| (it.topic, it.from) == (topic, from) && it.stamp > stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_one_of_the_same_topic_and_shard_overtakes() {
        let mut late = Late::default();
        assert!(!late.is_overtaken("a", ShardId(1), 1));
        late.routed("a", ShardId(1), 5);
        assert!(late.is_overtaken("a", ShardId(1), 4));
        assert!(!late.is_overtaken("a", ShardId(1), 6));
        assert!(!late.is_overtaken("a", ShardId(2), 4));
        assert!(!late.is_overtaken("b", ShardId(1), 4));
    }
}
