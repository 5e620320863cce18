//! The retained messages of the topics that a shard owns: limits, expiry and statistics.

use std::sync::Arc;

use crate::config::ShardConfig;
use crate::deliver::ShardCore;
use crate::effect::{DropReason, Now};
use crate::message::{Message, MessageOrigin, Publication};
use crate::retained::{RetainedLimits, RetainedStore};
use crate::timers::ShardTimer;

/// Expired retained messages removed per timer.
const EXPIRE_BATCH: usize = 1024;

pub(crate) struct RetainedMessages {
    store: RetainedStore<Arc<Message>>,
    /// Time of the next expiry timer; `u64::MAX` if none is set.
    timer_ms: u64,
}

impl RetainedMessages {
    pub fn new(config: &ShardConfig) -> RetainedMessages {
        RetainedMessages {
            store: RetainedStore::new(limits(config)),
            timer_ms: u64::MAX,
        }
    }

    /// Returns the messages for queries.
    pub fn store(&self) -> &RetainedStore<Arc<Message>> {
        &self.store
    }

    /// Existing messages stay, even if they exceed a lower limit.
    pub fn set_limits(&mut self, config: &ShardConfig) {
        self.store.set_limits(limits(config));
    }

    /// Returns whether a message can be retained. If not, it is not recorded as retained either: recovery would store
    /// it, in place of the message that is stored now.
    pub fn has_space(&self, config: &ShardConfig, p: &Publication<'_>) -> bool {
        let is_allowed = p.payload.len() <= config.retained_max_payload;
        p.payload.is_empty() || is_allowed && self.store.has_space(p.topic, p.stored_bytes() as u32).is_ok()
    }

    /// Stores the retained message, or clears the topic if the payload is empty [MQTT-3.3.1-6], [MQTT-3.3.1-7].
    pub fn retain(&mut self, core: &mut ShardCore, now: Now, p: &Publication<'_>) {
        if p.payload.is_empty() {
            self.store.remove(p.topic);
        } else if p.payload.len() > core.config.retained_max_payload {
            core.stats.drop_message(DropReason::RetainedFull);
        } else {
            self.set(core, now, p);
        }
        self.update_stats(core);
    }

    /// Restores a retained message after a restart, regardless of the current limits and of the number of shards that
    /// share them.
    pub fn restore(&mut self, core: &mut ShardCore, now: Now, p: &Publication<'_>) {
        self.store.set_limits(RetainedLimits::NONE);
        self.set(core, now, p);
        self.store.set_limits(limits(&core.config));
        self.update_stats(core);
    }

    /// Deletes a message without publishing. Returns false if there was none.
    pub fn delete(&mut self, core: &mut ShardCore, topic: &str) -> bool {
        core.ledger.record_retained_cleared(topic);
        let existed = self.store.remove(topic).is_some();
        self.update_stats(core);
        existed
    }

    /// The expiry timer is due.
    pub fn expiry_due(&mut self, core: &mut ShardCore, now: Now) {
        if now.monotonic_ms < self.timer_ms {
            // This is an earlier timer. A later one is set.
            return;
        }
        self.store.expire(now.monotonic_ms, EXPIRE_BATCH, |_, _| {});
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
        let bytes = stored.stored_bytes();
        if let Some(ledger) = core.ledger.records_mut() {
            ledger.set_place_when_appended(&stored, p.place);
        }
        if self.store.set(p.topic, stored, bytes as u32, p.expires_at_ms).is_err() {
            core.stats.drop_message(DropReason::RetainedFull);
        } else if let Some(at_ms) = p.expires_at_ms {
            self.expect_expiry(core, now, at_ms);
        }
    }

    fn expect_expiry(&mut self, core: &mut ShardCore, now: Now, at_ms: u64) {
        if at_ms < self.timer_ms {
            self.timer_ms = core.wake(now, at_ms, ShardTimer::RetainedExpiry);
        }
    }

    fn update_stats(&self, core: &mut ShardCore) {
        core.stats.retained_messages = self.store.count() as u64;
        core.stats.retained_bytes = self.store.bytes();
    }
}

/// Returns when a retained message expires: its own time or the configured default.
pub(crate) fn retained_until(config: &ShardConfig, now: Now, p: &Publication<'_>) -> Option<u64> {
    let default_s = config.retained_default_expiry_s;
    p.expires_at_ms
        .or(default_s.map(|s| now.monotonic_ms + u64::from(s) * 1000))
}

fn limits(config: &ShardConfig) -> RetainedLimits {
    RetainedLimits {
        count_max: config.retained_max_messages,
        bytes_max: config.retained_max_bytes as u64,
    }
}
