//! Retained messages that arrive through the owner of their topic, because this shard had no matching subscription when
//! they were routed.
//!
//! Before that, a later message of the same publisher's shard may have arrived directly. Then the earlier one is
//! dropped: the subscription is newer than it, and a subscriber that receives it last would take it for the current
//! value [MQTT-4.6.0-5].

use crate::effect::ShardId;
use crate::node_state::hash;

/// Number of topics that are tracked. When two topics share an entry, the one without it receives all messages, in any
/// order.
const KNOWN: usize = 1024;

#[derive(Default)]
pub(super) struct LateRetained {
    /// Empty before the first message.
    newest: Vec<Option<RoutedRetained>>,
}

#[derive(Clone, Copy)]
struct RoutedRetained {
    topic: u64,
    from: ShardId,
    stamp: u64,
}

impl LateRetained {
    /// Registers a retained message that arrived directly from a shard, with that shard's number for it.
    pub fn routed(&mut self, topic: &str, from: ShardId, stamp: u64) {
        let topic = hash(topic);
        if self.newest.is_empty() {
            self.newest = vec![None; KNOWN];
        }
        self.newest[topic as usize % KNOWN] = Some(RoutedRetained { topic, from, stamp });
    }

    /// Returns whether a later message of this topic has arrived directly from that shard.
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
    fn only_later_messages_of_same_topic_and_shard_overtake() {
        let mut late = LateRetained::default();
        assert!(!late.is_overtaken("a", ShardId(1), 1));
        late.routed("a", ShardId(1), 5);
        assert!(late.is_overtaken("a", ShardId(1), 4));
        assert!(!late.is_overtaken("a", ShardId(1), 6));
        assert!(!late.is_overtaken("a", ShardId(2), 4));
        assert!(!late.is_overtaken("b", ShardId(1), 4));
    }
}
