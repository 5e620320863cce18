//! The subscriptions of a shard, and the shards that may have subscriptions that match a topic.
//!
//! A filter is announced to the other shards before its SUBACK is sent, and withdrawn after the last subscription has
//! left the tree.

mod route;

use std::sync::Arc;

use mqtt::QoS;

use crate::effect::ShardId;
use crate::interest::InterestCounts;
use crate::node_state::NodeState;
use crate::slots::{GroupIndex, SessionRef, SessionSlot};
use crate::subscriptions::{ListId, SubscriberKey, SubscriptionEntry, SubscriptionTree};

pub(crate) use route::{Destinations, RetainOrigin};

pub(crate) struct Router {
    shard: ShardId,
    node: Arc<NodeState>,
    /// Filters to sessions and groups. The keys are those of `Subscriber`.
    tree: SubscriptionTree<InterestedSession>,
    interest: InterestCounts,
    /// Filters of durable sessions and groups. `None` without a journal.
    durable: Option<InterestCounts>,
    scratch: RouteScratch,
}

/// Buffers of routing, reused to avoid allocations.
#[derive(Default)]
struct RouteScratch {
    lists: Vec<ListId>,
    groups: Vec<GroupIndex>,
    merged: Vec<MergedSubscription>,
}

/// The subscriptions of one session that match one message.
struct MergedSubscription {
    session: SessionSlot,
    maximum_qos: QoS,
    retain_as_published: bool,
    identifiers: Vec<u32>,
}

/// A subscriber in the subscription tree. Its key has the highest bit set for a share group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subscriber {
    Session(SessionSlot),
    Group(GroupIndex),
}

impl Subscriber {
    const GROUP_BIT: u32 = 1 << 31;

    #[inline]
    pub fn from_key(SubscriberKey(key): SubscriberKey) -> Subscriber {
        match key & Self::GROUP_BIT {
            0 => Subscriber::Session(SessionSlot(key)),
            _ => Subscriber::Group(GroupIndex(key & !Self::GROUP_BIT)),
        }
    }

    pub fn key(self) -> SubscriberKey {
        SubscriberKey(match self {
            Subscriber::Session(slot) => slot.0,
            Subscriber::Group(index) => index.0 | Self::GROUP_BIT,
        })
    }
}

/// Options of a subscription in the tree.
#[derive(Clone, Copy, Debug)]
pub struct InterestedSession {
    /// Subscription Identifier; 0 for none.
    pub identifier: u32,
    pub options: mqtt::SubscriptionOptions,
}

impl Router {
    pub(crate) fn new(shard: ShardId, node: Arc<NodeState>) -> Router {
        Router {
            shard,
            node,
            tree: SubscriptionTree::new(),
            interest: InterestCounts::new(usize::from(shard.0)),
            durable: None,
            scratch: RouteScratch::default(),
        }
    }

    /// Starts counting the filters of durable sessions and groups.
    pub(crate) fn start_journaling(&mut self) {
        self.durable = Some(InterestCounts::new(usize::from(self.shard.0)));
    }

    /// Pushes the list of every filter that matches `topic`.
    #[inline]
    pub(crate) fn matching(&self, topic: &str, lists: &mut Vec<ListId>) {
        self.tree.matching(topic, lists);
    }

    #[inline]
    pub(crate) fn entries(&self, list: ListId) -> &[SubscriptionEntry<InterestedSession>] {
        self.tree.entries(list)
    }

    /// Returns the other shards that may have subscriptions that match a topic; bit n is shard n.
    #[inline]
    pub(crate) fn other_shards(&self, topic: &str) -> u64 {
        match self.node.shards() {
            1 => 0,
            _ => self.node.interest.mask(topic) & !(1 << self.shard.0),
        }
    }

    /// Returns all shards that may have subscriptions that match a topic.
    fn interested_shards(&self, topic: &str) -> u64 {
        self.node.interest.mask(topic)
    }

    /// Returns the shards that may have durable recipients of a topic.
    pub(crate) fn durable_shards(&self, topic: &str) -> u64 {
        self.node.durable.mask(topic)
    }

    /// Adds a subscription, or replaces the one of this subscriber. Called before SUBACK is sent.
    pub(crate) fn add(&mut self, filter: &str, subscriber: Subscriber, value: InterestedSession) {
        let inserted = self.tree.insert(filter, subscriber.key(), value);
        if inserted.is_new_filter {
            self.node.filter_added(filter);
            if self.node.shards() > 1 {
                self.interest.add(&self.node.interest, filter);
            }
        }
    }

    pub(crate) fn remove(&mut self, filter: &str, subscriber: Subscriber) {
        let removed = self.tree.remove(filter, subscriber.key());
        if removed.is_some_and(|removed| removed.was_last) {
            self.node.filter_removed(filter);
            if self.node.shards() > 1 {
                self.interest.remove(&self.node.interest, filter);
            }
        }
    }

    /// Takes an exclusive subscription. Returns false if another session of the node holds it.
    pub(crate) fn claim_exclusive(&self, filter: &str, session: SessionRef) -> bool {
        self.node.exclusives.claim(filter, session)
    }

    pub(crate) fn release_exclusive(&self, filter: &str, session: SessionRef) {
        self.node.exclusives.release(filter, session);
    }

    /// Announces to all shards that a durable session or group has, or no longer has, this filter.
    pub(crate) fn update_durable(&mut self, filter: &str, is_added: bool) {
        let Some(durable) = &mut self.durable else { return };
        match is_added {
            true => durable.add(&self.node.durable, filter),
            false => durable.remove(&self.node.durable, filter),
        }
    }
}
