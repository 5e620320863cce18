//! Queues messages in a group, within its limits, while no member is connected or earlier messages are queued.

use std::sync::Arc;

use mqtt::QoS;

use crate::config::{QueueDropPolicy, ShardConfig};
use crate::deliver::ShardCore;
use crate::effect::DropReason;
use crate::encode::EncodedForms;
use crate::message::{Message, Publication, RecordLocation, granted};
use crate::message_size::MessageSize;
use crate::node_state::group_home_shard;
use crate::session::Session;
use crate::shared::group::ShareGroup;
use crate::shared::member::ShareGroupMember;
use crate::stats::ShardStats;
use crate::tick::Tick;

impl ShareGroup {
    /// Returns whether a live message must be queued because the group is still dispatching earlier ones.
    pub(super) fn must_queue(&self, tick: &Tick<'_>, p: &Publication<'_>) -> bool {
        !self.queue.is_empty()
            && !p.is_expired(tick.now)
            && !self.is_routed_by_former_home(tick.core)
            && self.members.iter().any(|member| member.can_wait_for(p))
    }

    /// Returns whether the group's former home shard had already routed this message before the restart.
    pub(super) fn is_routed_by_former_home(&self, core: &ShardCore) -> bool {
        core.home_filter
            .is_some_and(|(shards, mask)| mask >> group_home_shard(&self.share_name, &self.filter, shards).0 & 1 == 0)
    }

    /// Returns whether a connected member can receive a message, as far as this shard knows.
    pub(super) fn has_available_member(&self, tick: &Tick<'_>, bytes: usize) -> bool {
        let mut candidates = self.candidates(self.next).map(|at| &self.members[at]);
        candidates.any(|member| can_queue(tick, member, QoS::AtLeastOnce, bytes))
    }

    /// Like `has_available_member`, for live messages. Returns false without a check while the timer for full members
    /// is running.
    fn is_dispatching(&self, tick: &Tick<'_>, bytes: usize) -> bool {
        !self.queue.waits_for_space && self.has_available_member(tick, bytes)
    }

    /// Queues a message. Returns false if no member may receive it later. Then it is dropped.
    pub(super) fn enqueue(
        &mut self,
        tick: &mut Tick<'_>,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
        is_held: bool,
    ) -> bool {
        if !self.members.iter().any(|member| member.can_wait_for(p)) {
            tick.core.stats.drop_message(self.reason_without_member(p));
            return false;
        }
        if must_record_holder(tick, is_held) {
            tick.core.ledger.add_group_recipient(self.key);
        }
        // A copy of its own: a checkpoint that moves the session's message records no position for the group.
        let message = match is_held && p.place.position().is_some() {
            true => p.to_message(),
            false => forms.message(p),
        };
        tick.core.stats.queued_messages += 1;
        tick.core.stats.queued_bytes += message.size().bytes() as u64;
        self.queue.push(message);
        self.queue.published += usize::from(self.has_online());
        let window = tick.core.config.group_window;
        let is_long = self.queue.warm_len() >= 2 * window;
        // Messages that will be dispatched soon are not evicted.
        if is_long && (!self.queue.is_all_warm() || !self.is_dispatching(tick, 0)) {
            self.evict(window);
        }
        true
    }

    /// Makes space in the queue by dropping messages, expired ones first. Returns false if the new message must be
    /// dropped.
    pub(super) fn make_space(&mut self, tick: &mut Tick<'_>, bytes: usize) -> bool {
        let config = tick.core.config.clone();
        let counted_bytes = MessageSize::of(bytes).bytes();
        if counted_bytes > config.max_queued_bytes {
            tick.core.stats.drop_message(DropReason::QueueFullByBytes);
            return false;
        }
        loop {
            let (max, all, new) = (config.max_queued_messages, self.queue.len(), self.queue.new_len());
            // Returned messages are not dropped. Their number reduces the number of new ones. Their bytes do not:
            // they were within the limit of a member's queue.
            let new_max = max.saturating_sub(all - new);
            let is_all_warm = self.queue.is_all_warm();
            let has_bytes = self.queue.new_bytes() + counted_bytes <= config.max_queued_bytes;
            // While members receive messages, the queue shrinks in the next tick.
            let is_taken = is_all_warm && has_bytes && all / 2 < max;
            let is_full = new >= new_max && !(is_taken && self.is_dispatching(tick, bytes));
            if !is_full && has_bytes {
                return true;
            }
            let is_expired = self.queue.is_oldest_expired(tick.now);
            let is_any = new > 0 && (new_max > 0 || !is_full);
            let may_go = is_any && (is_expired || config.queue_drop == QueueDropPolicy::Oldest);
            tick.core.stats.drop_message(match (is_expired, is_full) {
                (true, _) => DropReason::Expired,
                (false, true) => DropReason::QueueFullByCount,
                (false, false) => DropReason::QueueFullByBytes,
            });
            if !may_go {
                return false;
            }
            self.drop_oldest(tick, is_all_warm);
        }
    }

    fn drop_oldest(&mut self, tick: &mut Tick<'_>, is_warm: bool) {
        let stats = &mut tick.core.stats;
        let place = match is_warm {
            true => self.pop_warm(stats).map(|message| message.place()),
            false => self.queue.pop_cold().map(|message| {
                stats.queued_messages -= 1;
                stats.queued_bytes -= message.size.bytes() as u64;
                RecordLocation::at(message.position)
            }),
        };
        tick.core
            .ledger
            .record_group_dropped(self.key, place.unwrap_or_default());
    }

    /// Evicts all but the newest messages of a durable group, as far as they are in the journal.
    fn evict(&mut self, newest: usize) {
        if self.is_durable() {
            self.queue.evict(newest);
        }
    }

    /// Removes and returns the first message in memory.
    pub(super) fn pop_warm(&mut self, stats: &mut ShardStats) -> Option<Arc<Message>> {
        let message = self.queue.pop_warm()?;
        stats.queued_messages -= 1;
        stats.queued_bytes -= message.size().bytes() as u64;
        Some(message)
    }
}

/// Returns whether the group must be recorded as the holder of the message. For a held message that is necessary only
/// during a checkpoint: on its way to a member of another shard and back, it may be in neither snapshot.
pub(super) fn must_record_holder(tick: &Tick<'_>, is_held: bool) -> bool {
    !is_held || tick.is_checkpointing
}

/// Returns whether a member's queue can receive a message without dropping another, as far as this shard knows.
pub(super) fn can_queue(tick: &Tick<'_>, member: &ShareGroupMember, qos: QoS, bytes: usize) -> bool {
    let is_queued = granted(qos, member.options.maximum_qos) != QoS::AtMostOnce;
    let has_space = match member.session.shard == tick.core.id {
        true => has_space(tick.core.sessions.at(member.session.session), bytes, &tick.core.config),
        false => member.full_until_ms <= tick.now.monotonic_ms,
    };
    has_space || !is_queued
}

/// Returns whether a session can receive a message of a group without dropping another.
pub(super) fn has_space(session: &Session, bytes: usize, config: &ShardConfig) -> bool {
    let window = session.conn.map_or(0, |_| session.window);
    session.outgoing.has_space(bytes, window, config)
}
