//! Publish quota: a client that exceeds its rate is slowed down. Its connection stays open, but is not read from until
//! the quota is refilled.

use crate::config::{PublishRate, ShardConfig};
use crate::connection::PublishQuota;
use crate::connections::Connections;
use crate::effect::{Effect, Now};
use crate::slots::{ConnEpoch, ConnSlot};
use crate::stats::ShardStats;
use crate::timers::{ShardTimer, Timers};

impl Connections {
    /// Charges a PUBLISH to the quota of its connection.
    pub(crate) fn charge_quota(&mut self, conn: ConnSlot, packet_bytes: usize) {
        if let Some(quota) = self.get_mut(conn).and_then(|c| c.publish_quota.as_mut()) {
            quota.messages -= 1.0;
            quota.bytes -= packet_bytes as f64;
        }
    }

    /// Returns whether reading from a connection must pause. Sets the timer at which it continues.
    pub(crate) fn is_over_quota(
        &mut self,
        now: Now,
        conn: ConnSlot,
        config: &ShardConfig,
        timers: &mut Timers,
        stats: &mut ShardStats,
    ) -> bool {
        let Some(connection) = self.get_mut(conn) else {
            return false;
        };
        let epoch = connection.epoch;
        let Some(quota) = connection.publish_quota.as_mut() else {
            return false;
        };
        quota.refill(config, now.monotonic_ms);
        let Some(wait_ms) = quota.wait_ms(config) else {
            return false;
        };
        if !quota.is_paused {
            quota.is_paused = true;
            stats.publishers_slowed += 1;
            let timer = ShardTimer::Quota { conn, epoch };
            timers.wake(now, now.monotonic_ms.saturating_add(wait_ms), timer);
        }
        true
    }

    /// Applies changed rates to all clients. Paused publishers resume, because their waiting time belongs to the old
    /// rates.
    pub(crate) fn renew_quotas(&mut self, config: &ShardConfig, effects: &mut Vec<Effect>) {
        if !config.limits_publishers() {
            return;
        }
        for (conn, connection) in self.iter_mut() {
            let full = || Box::new(PublishQuota::full(config, 0));
            let quota = connection.publish_quota.get_or_insert_with(full);
            if std::mem::take(&mut quota.is_paused) {
                effects.push(Effect::Resume { conn });
            }
        }
    }

    /// The quota of a paused connection has been refilled.
    pub(crate) fn quota_due(&mut self, now: Now, conn: ConnSlot, epoch: ConnEpoch, effects: &mut Vec<Effect>) {
        let Some(connection) = self.live(conn, epoch) else {
            return;
        };
        // The server has not read from it while it was paused.
        connection.heard(now);
        if let Some(quota) = connection.publish_quota.as_mut() {
            quota.is_paused = false;
            effects.push(Effect::Resume { conn });
        }
    }
}

impl PublishQuota {
    pub(crate) fn full(config: &ShardConfig, now_ms: u64) -> PublishQuota {
        let all = |rate: Option<PublishRate>| rate.map_or(0.0, |rate| rate.amount as f64);
        PublishQuota {
            messages: all(config.publish_rate),
            bytes: all(config.publish_bytes),
            refilled_ms: now_ms,
            is_paused: false,
        }
    }

    fn refill(&mut self, config: &ShardConfig, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.refilled_ms) as f64;
        self.refilled_ms = now_ms;
        for (tokens, rate) in [
            (&mut self.messages, config.publish_rate),
            (&mut self.bytes, config.publish_bytes),
        ] {
            if let Some(rate) = rate {
                *tokens = (*tokens + passed_ms * rate.per_ms()).min(rate.amount as f64);
            }
        }
    }

    /// Returns the time until both buckets are refilled to 0. `None` if neither is below.
    fn wait_ms(&self, config: &ShardConfig) -> Option<u64> {
        let lacking = |tokens: f64, rate: Option<PublishRate>| match rate {
            Some(rate) if tokens < 0.0 => ((-tokens / rate.per_ms()).ceil() as u64).saturating_add(1),
            _ => 0,
        };
        let commits = lacking(self.messages, config.publish_rate).max(lacking(self.bytes, config.publish_bytes));
        (commits > 0).then_some(commits)
    }
}
