//! State that the shards of a node share: which shards have subscriptions, retained messages and exclusive subscribers,
//! what each user has stored, and the memory of logins.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::effect::ShardId;
use crate::exchange_memory::ExchangeMemory;
use crate::exclusive::Exclusives;
use crate::interest::Interest;
use crate::owners::Owners;
use crate::publish_buckets::SharedBuckets;

/// State shared by all shards of a node. Read for each message without a lock, and rarely changed.
pub struct NodeState {
    /// Number of shards of the node.
    shards: u16,
    pub interest: Interest,
    /// Like `interest`, for durable sessions and groups: messages for them are written to the journal.
    pub durable: Interest,
    pub exclusives: Exclusives,
    /// Counts the sessions and stored messages of users and clients.
    pub owners: Owners,
    /// Memory of the enhanced authentications that are not complete.
    pub(crate) exchange_memory: ExchangeMemory,
    /// Token buckets of the publish limits of users, addresses and listeners.
    pub(crate) publish_buckets: SharedBuckets,
    /// Shards that own a topic that ever had a retained message. Bits are never cleared.
    retaining: AtomicU64,
    /// Number of filters in all shards that `$SYS/brokers/<node>/clients/…` may match.
    client_event_filters: AtomicU64,
}

impl NodeState {
    pub fn new(shards: u16, seed: u64) -> NodeState {
        NodeState {
            shards,
            interest: Interest::new(usize::from(shards), seed),
            durable: Interest::new(usize::from(shards), seed),
            exclusives: Exclusives::default(),
            owners: Owners::default(),
            exchange_memory: ExchangeMemory::default(),
            publish_buckets: SharedBuckets::default(),
            retaining: AtomicU64::new(0),
            client_event_filters: AtomicU64::new(0),
        }
    }

    /// Returns the number of shards of the node.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// Returns whether any client may have subscribed to the topics of client events.
    pub fn are_client_events_wanted(&self) -> bool {
        self.client_event_filters.load(Ordering::Acquire) > 0
    }

    pub(crate) fn filter_added(&self, filter: &str) {
        if may_match_client_events(filter) {
            self.client_event_filters.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn filter_removed(&self, filter: &str) {
        if may_match_client_events(filter) {
            self.client_event_filters.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Registers that the owner of a topic will store a retained message. Called before the interest in the topic is
    /// looked up. A subscriber registers its interest before it reads this, so at least one of the two sees the other.
    pub(crate) fn register_retaining(&self, owner: ShardId) {
        let bit = 1 << owner.0;
        if self.retaining.load(Ordering::Relaxed) & bit == 0 {
            self.retaining.fetch_or(bit, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Returns the shards that may have retained messages; bit n is shard n.
    pub(crate) fn retaining(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.retaining.load(Ordering::SeqCst)
    }
}

/// Returns the hash that places client ids, topics and groups on shards. It is the same in every run, so placement is
/// reproducible.
pub(crate) fn hash(text: &str) -> u64 {
    foldhash::quality::FixedState::with_seed(0x7469_6465).hash_one(text)
}

/// Returns the home shard of a share group.
pub fn group_home_shard(share_name: &str, filter: &str, shards: u16) -> ShardId {
    ShardId((hash(share_name).wrapping_add(hash(filter)) % u64::from(shards.max(1))) as u16)
}

/// Returns the shard that owns a client's session. The driver moves a connection there after reading CONNECT. `None`
/// for an empty client id: the connection may stay.
pub fn home_shard(client_id: &str, shards: u16) -> Option<ShardId> {
    (!client_id.is_empty()).then(|| ShardId((hash(client_id) % u64::from(shards.max(1))) as u16))
}

/// Returns whether a filter may match the topics of client events. A filter that starts with a wildcard matches no
/// topic that starts with `$` [MQTT-4.7.2-1].
fn may_match_client_events(filter: &str) -> bool {
    let mut levels = filter.split('/');
    levels.next() == Some("$SYS") && matches!(levels.next(), Some("#" | "+" | "brokers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_may_match_client_events_are_recognised() {
        let all = [
            "$SYS/#",
            "$SYS/+/n/#",
            "$SYS/brokers/#",
            "$SYS/brokers/n/clients/+/connected",
        ];
        assert!(all.into_iter().all(may_match_client_events));
        let none = ["#", "+/brokers/#", "$SYS", "$SYS/broker/#", "brokers/$SYS/#"];
        assert!(!none.into_iter().any(may_match_client_events));
    }
}
