//! The retained messages of the topics that a shard owns: limits, expiry and statistics. `replay` sends them to new
//! subscriptions, `late` drops messages that arrive in the wrong order.
//!
//! The limits are those of the node and of the message's owner. They count the messages of all shards, because a
//! publisher selects the shard with its topics.

mod late;
mod replay;

use std::sync::Arc;

use crate::config::ShardConfig;
use crate::deliver::ShardCore;
use crate::effect::{DropReason, Now, ShardId};
use crate::message::{Message, MessageOrigin, Publication};
use crate::node_state::{NodeState, hash};
use crate::owners::{ClientAccount, Holding, Owners};
use crate::retained::{RetainedLimits, RetainedStore};
use crate::retained_messages::late::LateRetained;
use crate::retained_messages::replay::STEPS_PER_TICK;
use crate::tick::Tick;
use crate::timers::ShardTimer;

/// Expired retained messages removed per timer.
const EXPIRE_BATCH: usize = 1024;

pub(crate) struct RetainedMessages {
    shard: ShardId,
    node: Arc<NodeState>,
    store: RetainedStore<Arc<Message>>,
    /// Time of the next expiry timer; `u64::MAX` if none is set.
    timer_ms: u64,
    /// Number of retained messages that this shard has published.
    published: u64,
    late: LateRetained,
    /// Remaining part of `replay::STEPS_PER_TICK`.
    replay_steps_left: usize,
}

impl RetainedMessages {
    pub fn new(shard: ShardId, node: Arc<NodeState>) -> RetainedMessages {
        RetainedMessages {
            shard,
            node,
            store: RetainedStore::new(RetainedLimits::NONE),
            timer_ms: u64::MAX,
            published: 0,
            late: LateRetained::default(),
            replay_steps_left: STEPS_PER_TICK,
        }
    }

    /// Returns the shard that owns the retained message of a topic.
    pub fn owner_of(&self, topic: &str) -> ShardId {
        ShardId((hash(topic) % u64::from(self.node.shards())) as u16)
    }

    /// Announces to all shards that the owner of a topic will have a retained message.
    pub fn announce(&self, topic: &str) {
        if self.node.shards() > 1 {
            self.node.register_retaining(self.owner_of(topic));
        }
    }

    /// Returns the number of the next retained message that this shard publishes.
    pub fn next_stamp(&mut self) -> u64 {
        self.published += 1;
        self.published
    }

    /// Registers a retained message that arrived directly from a shard, with that shard's number for it.
    pub fn arrived(&mut self, topic: &str, from: ShardId, stamp: u64) {
        self.late.routed(topic, from, stamp);
    }

    /// Returns whether a later message of this topic has arrived directly from that shard.
    pub fn is_overtaken(&self, topic: &str, from: ShardId, stamp: u64) -> bool {
        self.late.is_overtaken(topic, from, stamp)
    }

    /// Returns the messages for queries.
    pub fn store(&self) -> &RetainedStore<Arc<Message>> {
        &self.store
    }

    /// Returns whether a message can be retained. If not, it is not recorded as retained either: recovery would store
    /// it, in place of the message that is stored now.
    pub fn has_space(&self, config: &ShardConfig, p: &Publication<'_>) -> bool {
        if p.payload.is_empty() {
            return true;
        }
        let before = self.store.entry(p.topic);
        let before = before.map(|(message, bytes)| (message.owner(), u64::from(bytes)));
        let bytes = p.stored_bytes() as u64;
        p.payload.len() <= config.retained_max_payload
            && self.has_space_in_node(config, before.map(|(_, bytes)| bytes), bytes)
            && self
                .node
                .owners
                .exceeded(&config.shares, Holding::Retained, p.owner, before, bytes)
                .is_none()
    }

    /// Returns whether the limits of the node allow another message. A message that is not larger than the one that it
    /// replaces is always allowed.
    fn has_space_in_node(&self, config: &ShardConfig, before: Option<u64>, bytes: u64) -> bool {
        let total = self.node.owners.total();
        let growth = bytes.saturating_sub(before.unwrap_or(0));
        let has_count = before.is_some() || total.count(Holding::Retained) < config.retained_max_messages as u64;
        has_count && (growth == 0 || total.bytes(Holding::Retained) + growth <= config.retained_max_bytes as u64)
    }

    /// Stores the retained message, or clears the topic if the payload is empty [MQTT-3.3.1-6], [MQTT-3.3.1-7].
    /// `has_space` is the result with which the message was recorded: another shard can use the space in the meantime.
    pub fn retain(&mut self, core: &mut ShardCore, now: Now, p: &Publication<'_>, has_space: bool) {
        if p.payload.is_empty() {
            self.remove(p.topic);
        } else if !has_space {
            core.stats.drop_message(DropReason::RetainedFull);
        } else {
            self.set(core, now, p);
        }
        self.update_stats(core);
    }

    /// Stores a retained message that another shard has recorded, if it can be retained.
    pub fn retain_recorded(&mut self, tick: &mut Tick<'_>, p: &Publication<'_>) {
        let has_space = self.has_space(&tick.core.config, p);
        if has_space {
            tick.core.ledger.record_retained(tick.now, p);
        }
        self.retain(tick.core, tick.now, p, has_space);
    }

    /// Restores a retained message after a restart, regardless of the current limits.
    pub fn restore(&mut self, core: &mut ShardCore, now: Now, p: &Publication<'_>) {
        self.set(core, now, p);
        self.update_stats(core);
    }

    /// Deletes a message without publishing. Returns false if there was none.
    pub fn delete(&mut self, core: &mut ShardCore, topic: &str) -> bool {
        core.ledger.record_retained_cleared(topic);
        let existed = self.remove(topic);
        self.update_stats(core);
        existed
    }

    /// The expiry timer is due.
    pub fn expiry_due(&mut self, core: &mut ShardCore, now: Now) {
        if now.monotonic_ms < self.timer_ms {
            // This is an earlier timer. A later one is set.
            return;
        }
        let owners = &self.node.owners;
        self.store.expire(now.monotonic_ms, EXPIRE_BATCH, |topic, message| {
            removed(owners, topic, &message);
        });
        self.update_stats(core);
        self.timer_ms = u64::MAX;
        if let Some(at_ms) = self.store.next_expiry_ms() {
            self.expect_expiry(core, now, at_ms.max(now.monotonic_ms + 1));
        }
    }

    fn set(&mut self, core: &mut ShardCore, now: Now, p: &Publication<'_>) {
        let stored = Publication {
            origin: MessageOrigin::NONE,
            ..*p
        }
        .to_message();
        let bytes = stored.stored_bytes() as u64;
        if let Some(ledger) = core.ledger.records_mut() {
            ledger.set_place_when_appended(&stored, p.place);
        }
        match self.store.set(p.topic, stored, bytes as u32, p.expires_at_ms) {
            Err(_) => return core.stats.drop_message(DropReason::RetainedFull),
            Ok(None) => {
                // First the topic: until then, another shard refuses to replace a message of a user at its limit.
                set_topic(p.owner, p.topic, true);
                self.node.owners.add(Holding::Retained, p.owner, bytes);
            }
            Ok(Some(before)) => self.replaced(&before, p, bytes),
        }
        if let Some(at_ms) = p.expires_at_ms {
            self.expect_expiry(core, now, at_ms);
        }
    }

    /// The message now counts for its own owner, and the previous one no longer.
    fn replaced(&self, before: &Message, p: &Publication<'_>, bytes: u64) {
        let was = (before.owner(), before.stored_bytes() as u64);
        let is_same_user = match (before.owner(), p.owner) {
            (Some(before), Some(owner)) => before.is_same_user(owner),
            (None, None) => true,
            _ => false,
        };
        if !is_same_user {
            set_topic(p.owner, p.topic, true);
        }
        self.node.owners.replace(Holding::Retained, was, (p.owner, bytes));
        if !is_same_user {
            set_topic(before.owner(), p.topic, false);
        }
    }

    fn remove(&mut self, topic: &str) -> bool {
        let message = self.store.remove(topic);
        if let Some(message) = &message {
            removed(&self.node.owners, topic, message);
        }
        message.is_some()
    }

    fn expect_expiry(&mut self, core: &mut ShardCore, now: Now, at_ms: u64) {
        if at_ms < self.timer_ms {
            self.timer_ms = core.timers.wake(now, at_ms, ShardTimer::RetainedExpiry);
        }
    }

    fn update_stats(&self, core: &mut ShardCore) {
        core.stats.retained_messages = self.store.count() as u64;
        core.stats.retained_bytes = self.store.bytes();
    }
}

fn removed(owners: &Owners, topic: &str, message: &Message) {
    owners.remove(Holding::Retained, message.owner(), message.stored_bytes() as u64);
    set_topic(message.owner(), topic, false);
}

fn set_topic(owner: Option<&Arc<ClientAccount>>, topic: &str, is_retained: bool) {
    if let Some(owner) = owner {
        owner.set_topic(hash(topic), is_retained);
    }
}

/// Returns when a retained message expires: its own time or the configured default.
pub(crate) fn retained_until(config: &ShardConfig, now: Now, p: &Publication<'_>) -> Option<u64> {
    let default_s = config.retained_default_expiry_s;
    p.expires_at_ms
        .or(default_s.map(|s| now.monotonic_ms + u64::from(s) * 1000))
}
