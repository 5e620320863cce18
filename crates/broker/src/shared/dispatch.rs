//! Dispatches a message of a shared subscription to one member, or queues it in the group while no member is connected.

use std::sync::Arc;

use mqtt::QoS;

use crate::config::{QueueDropPolicy, ShareStrategy};
use crate::deliver::{DeliverResult, DeliveryOptions, EncodedForms, ShardCore};
use crate::durable::journaling::RecordFields;
use crate::durable::record::GroupKey;
use crate::effect::{DropReason, Now};
use crate::lifecycle::granted;
use crate::mail::{Envelope, MemberSubscription};
use crate::message::{Message, Publication, RecordLocation};
use crate::outgoing::GroupRef;
use crate::shard::Shard;
use crate::shared::group::{ShareGroup, ShareGroupMember};
use crate::shared::group_home;
use crate::slots::{ConnSlot, GroupIndex, SessionSlot};

/// Number of members that are checked for an open in-flight window. If none has one, the first member with queue space
/// receives the message. If no member has queue space either, the remaining members are checked as well, because any
/// number of them may have stopped acknowledging.
const CANDIDATES_MAX: usize = 16;

/// Why a group dispatches a message.
#[derive(Clone, Copy, Debug)]
enum DispatchCause {
    /// The message has been published.
    Live,
    /// The group has received the message before. `is_held` means that it holds the message in the journal.
    Again { is_held: bool },
}

/// A member of a group, by its position.
#[derive(Clone, Copy, Debug)]
struct ChosenMember {
    group: GroupIndex,
    at: usize,
    /// The member is not available, but its session gets the message.
    is_assigned: bool,
}

/// Result of dispatching a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DispatchResult {
    /// Delivered to a session of this shard.
    Local,
    /// Assigned to a session of this shard. The group does not hold the message any more.
    Assigned,
    /// Forwarded to another shard, queued in the group, or retained by the group until the member acknowledges it.
    Pending,
    Dropped,
}

impl Shard {
    /// Dispatches a live message to a member of a group.
    pub(crate) fn dispatch(&mut self, now: Now, index: GroupIndex, p: &Publication<'_>, forms: &mut EncodedForms) {
        if !self.must_queue(now, index, p) {
            self.select_and_dispatch(now, index, p, forms, DispatchCause::Live);
        } else if self.make_space_in_group(now, index, p.stored_bytes()) {
            self.queue_in_group(now, index, p, forms, false);
        }
    }

    /// Returns whether a live message must be queued because the group is still dispatching earlier ones.
    fn must_queue(&self, now: Now, index: GroupIndex, p: &Publication<'_>) -> bool {
        let Some(group) = self.groups.get(index).filter(|group| !group.queue.is_empty()) else {
            return false;
        };
        !p.is_expired(now)
            && !self.is_routed_by_former_home(group)
            && group.members.iter().any(|member| member.can_wait_for(p))
    }

    /// Returns whether the group's former home shard had already routed this message before the restart.
    fn is_routed_by_former_home(&self, group: &ShareGroup) -> bool {
        self.core
            .home_filter
            .is_some_and(|(shards, mask)| mask >> group_home(&group.share_name, &group.filter, shards).0 & 1 == 0)
    }

    /// Dispatches a message again. `is_held` means that the group holds it in the journal.
    pub(crate) fn dispatch_again(
        &mut self,
        now: Now,
        index: GroupIndex,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
        is_held: bool,
    ) {
        let key = self
            .groups
            .get_mut(index)
            .map_or(GroupKey::default(), |group| group.key);
        let cause = DispatchCause::Again { is_held };
        match self.select_and_dispatch(now, index, p, forms, cause) {
            DispatchResult::Local if is_held => self.core.ledger.record_group_delivery(now, key, p, forms),
            DispatchResult::Dropped if is_held => self.core.ledger.record_group_dropped(key, p.place),
            result => {
                let place = self
                    .core
                    .ledger
                    .record_message(now, p, forms.stored(), RecordFields::default());
                if result == DispatchResult::Assigned && is_held {
                    self.core.ledger.record_group_dropped(key, p.place);
                }
                self.mail.send_to_members(&Publication { place, ..*p });
            }
        }
    }

    /// Selects a member and dispatches to it.
    fn select_and_dispatch(
        &mut self,
        now: Now,
        index: GroupIndex,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
        cause: DispatchCause,
    ) -> DispatchResult {
        let (is_held, is_again) = match cause {
            DispatchCause::Live => (false, false),
            DispatchCause::Again { is_held } => (is_held, true),
        };
        if p.is_expired(now) {
            self.core.stats.drop_message(DropReason::Expired);
            return DispatchResult::Dropped;
        }
        let random = self.random.next();
        if self
            .groups
            .get(index)
            .is_some_and(|group| self.is_routed_by_former_home(group))
        {
            return DispatchResult::Pending;
        }
        let Some(group) = self.groups.get_mut(index).filter(|group| !group.members.is_empty()) else {
            return DispatchResult::Dropped;
        };
        let first = group.first_choice(p, random);
        let (mut choice, mut is_forbidden_to_any) = (None, false);
        for (asked, at) in group.candidates(first).enumerate() {
            if asked >= CANDIDATES_MAX && choice.is_some() {
                break;
            }
            let member = &group.members[at];
            if !member.rights.can_receive(p.topic) {
                is_forbidden_to_any = true;
                continue;
            }
            if !can_queue(&self.core, now, member, p.qos, p.stored_bytes()) {
                continue;
            }
            choice = choice.or(Some(at));
            // A member of this shard with a full in-flight window is skipped while another member is available.
            if member.session.shard != self.core.id || has_open_window(&self.core, member, p.qos) {
                choice = Some(at);
                break;
            }
        }
        let chosen = |at, is_assigned| ChosenMember {
            group: index,
            at,
            is_assigned,
        };
        match choice {
            Some(at) => self.dispatch_to(now, chosen(at, false), p, forms, is_held),
            // Such a message does not wait in the group, where it would delay messages for the connected members.
            None if is_forbidden_to_any => match group.reader(first, p, |member| {
                can_queue(&self.core, now, member, p.qos, p.stored_bytes())
            }) {
                Some(at) => self.dispatch_to(now, chosen(at, true), p, forms, is_held),
                None => {
                    self.core.stats.drop_message(group.reason_without_member(p));
                    DispatchResult::Dropped
                }
            },
            // A message that no member may receive evicts no other.
            None if !group.members.iter().any(|member| member.rights.can_receive(p.topic)) => {
                self.core.stats.drop_message(DropReason::NotAuthorizedToReceive);
                DispatchResult::Dropped
            }
            // Messages that the group has received before are exempt from the queue limit.
            None if !is_again && !self.make_space_in_group(now, index, p.stored_bytes()) => DispatchResult::Dropped,
            None => {
                let given = self.queue_in_group(now, index, p, forms, is_held);
                self.wait_for_space(now, index);
                given
            }
        }
    }

    /// Returns whether a connected member can receive a message, as far as this shard knows.
    pub(super) fn has_available_member(&mut self, now: Now, index: GroupIndex, bytes: usize) -> bool {
        let core = &self.core;
        let Some(group) = self.groups.get(index) else {
            return false;
        };
        let mut candidates = group.candidates(group.next).map(|at| &group.members[at]);
        candidates.any(|member| can_queue(core, now, member, QoS::AtLeastOnce, bytes))
    }

    /// Like `has_available_member`, for live messages. Returns false without a check while the timer for full members
    /// is running.
    fn is_dispatching(&mut self, now: Now, index: GroupIndex, bytes: usize) -> bool {
        let waits_for_space = self.groups.get(index).is_some_and(|group| group.queue.waits_for_space);
        !waits_for_space && self.has_available_member(now, index, bytes)
    }

    fn dispatch_to(
        &mut self,
        now: Now,
        chosen: ChosenMember,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
        is_held: bool,
    ) -> DispatchResult {
        let ChosenMember {
            group: index,
            at,
            is_assigned,
        } = chosen;
        let must_record_holder = self.must_record_holder(is_held);
        let Some(group) = self.groups.get_mut(index) else {
            return DispatchResult::Dropped;
        };
        if !is_assigned && matches!(group.strategy, ShareStrategy::Sticky | ShareStrategy::RoundRobin) {
            group.next = at;
        }
        let counts = !is_assigned && group.strategy == ShareStrategy::LeastInflight;
        let reference = GroupRef {
            shard: self.core.id,
            index,
            epoch: group.epoch,
            key: group.key,
        };
        let member = &mut group.members[at];
        let qos = granted(p.qos, member.options.maximum_qos);
        if counts && qos != QoS::AtMostOnce {
            member.inflight += 1;
        }
        let (session, is_durable) = (member.session, member.is_durable);
        let subscription = MemberSubscription {
            group: reference,
            maximum_qos: member.options.maximum_qos,
            retain_as_published: member.options.retain_as_published,
            identifier: member.identifier,
            is_assigned,
        };
        if session.shard == self.core.id {
            if is_assigned {
                self.deliver_member(now, session.session, p, subscription, forms);
                return DispatchResult::Assigned;
            }
            let group_retains =
                self.core
                    .ledger
                    .group_retains(self.core.sessions.link(session.session), qos, reference.key);
            if is_held && !is_durable && !group_retains {
                self.core.ledger.record_group_dropped(reference.key, p.place);
            }
            let delivered = self.deliver_member(now, session.session, p, subscription, forms);
            return match delivered {
                DeliverResult::Dropped(_) if group_retains => DispatchResult::Dropped,
                _ if group_retains => {
                    if self.must_record_holder(is_held) {
                        self.core.ledger.add_group_recipient(reference.key);
                    }
                    DispatchResult::Pending
                }
                _ => DispatchResult::Local,
            };
        }
        if must_record_holder && qos != QoS::AtMostOnce {
            // The group holds the message until the member's shard has recorded it.
            self.core.ledger.add_group_recipient(reference.key);
        }
        let envelope = Envelope::Member {
            session: session.session,
            epoch: session.epoch,
            subscription,
        };
        self.mail.add_member(session.shard, envelope);
        DispatchResult::Pending
    }

    pub(crate) fn deliver_member(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: &Publication<'_>,
        subscription: MemberSubscription,
        forms: &mut EncodedForms,
    ) -> DeliverResult {
        let MemberSubscription {
            group,
            maximum_qos,
            retain_as_published,
            identifier,
            is_assigned,
        } = subscription;
        let identifiers = if identifier == 0 {
            &[][..]
        } else {
            std::slice::from_ref(&identifier)
        };
        let qos = granted(p.qos, maximum_qos);
        let terms = DeliveryOptions {
            qos,
            retain: p.retain && retain_as_published,
            identifiers,
            group: (qos != QoS::AtMostOnce && !is_assigned).then_some(group),
        };
        let delivered = self.core.deliver(now, slot, p, terms, forms);
        if matches!(delivered, DeliverResult::Dropped(_)) && terms.group.is_some() {
            self.member_acknowledged(slot, group);
        }
        delivered
    }

    /// Returns whether the group must be recorded as the holder of the message. For a held message that is necessary
    /// only during a checkpoint: on its way to a member of another shard and back, it may be in neither snapshot.
    fn must_record_holder(&self, is_held: bool) -> bool {
        !is_held || self.checkpoints.is_running()
    }

    /// Queues a message in the group, because no member is connected or earlier messages are queued.
    fn queue_in_group(
        &mut self,
        now: Now,
        index: GroupIndex,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
        is_held: bool,
    ) -> DispatchResult {
        let Some(group) = self.groups.get_mut(index) else {
            return DispatchResult::Dropped;
        };
        let key = group.key;
        if !group.members.iter().any(|member| member.can_wait_for(p)) {
            self.core.stats.drop_message(group.reason_without_member(p));
            return DispatchResult::Dropped;
        }
        if self.must_record_holder(is_held) {
            self.core.ledger.add_group_recipient(key);
        }
        // A copy of its own: a checkpoint that moves the session's message records no position for the group.
        let message = match is_held && p.place.position().is_some() {
            true => p.to_message(),
            false => forms.message(p),
        };
        self.core.stats.queued_messages += 1;
        self.core.stats.queued_bytes += message.stored_bytes() as u64;
        if let Some(group) = self.groups.get_mut(index) {
            group.queue.push(message);
            group.queue.published += usize::from(group.has_online());
            let window = self.core.config.group_window;
            let is_long = group.queue.warm_len() >= 2 * window;
            // Messages that will be dispatched soon are not evicted.
            if is_long && (!group.queue.is_all_warm() || !self.is_dispatching(now, index, 0)) {
                self.evict_group(index, window);
            }
        }
        DispatchResult::Pending
    }

    /// Makes space in a group's queue by dropping messages, expired ones first. Returns false if the new message must
    /// be dropped.
    fn make_space_in_group(&mut self, now: Now, index: GroupIndex, bytes: usize) -> bool {
        let config = self.core.config.clone();
        while let Some(group) = self.groups.get_mut(index) {
            let (max, all, new) = (config.max_queued_messages, group.queue.len(), group.queue.new_len());
            // Returned messages are not dropped, and reduce the space for new ones.
            let new_max = max.saturating_sub(all - new);
            let is_all_warm = group.queue.is_all_warm();
            let has_bytes = group.queue.bytes() + bytes <= config.max_queued_bytes;
            // While members receive messages, the queue shrinks in the next tick.
            let is_taken = is_all_warm && has_bytes && all / 2 < max;
            let is_full = new >= new_max && !(is_taken && self.is_dispatching(now, index, bytes));
            if !is_full && has_bytes {
                return true;
            }
            if !is_full && self.evict_group(index, 0) {
                continue;
            }
            let Some(group) = self.groups.get_mut(index) else {
                return false;
            };
            let is_expired = group.queue.is_oldest_expired(now);
            let is_any = if is_full {
                new > 0 && new_max > 0
            } else {
                group.queue.warm_len() > 0
            };
            let may_go = is_any && (is_expired || config.queue_drop == QueueDropPolicy::Oldest);
            self.core.stats.drop_message(match (is_expired, is_full) {
                (true, _) => DropReason::Expired,
                (false, true) => DropReason::QueueFullByCount,
                (false, false) => DropReason::QueueFullByBytes,
            });
            if !may_go {
                return false;
            }
            // Cold messages use no memory that the byte limit counts.
            let is_warm = !is_full || is_all_warm;
            self.drop_oldest_of_group(index, is_warm);
        }
        false
    }

    fn drop_oldest_of_group(&mut self, index: GroupIndex, is_warm: bool) {
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let key = group.key;
        let place = match is_warm {
            true => self.pop_warm(index).map(|message| message.place()),
            false => group
                .queue
                .pop_cold()
                .map(RecordLocation::at)
                .inspect(|_| self.core.stats.queued_messages -= 1),
        };
        self.core.ledger.record_group_dropped(key, place.unwrap_or_default());
    }

    /// Evicts all but the newest messages of a durable group, as far as they are in the journal. Returns false if that
    /// frees nothing.
    fn evict_group(&mut self, index: GroupIndex, newest: usize) -> bool {
        let Some(group) = self.groups.get_mut(index).filter(|group| group.is_durable()) else {
            return false;
        };
        let freed = group.queue.evict(newest);
        self.core.stats.queued_bytes -= freed as u64;
        freed > 0
    }

    pub(super) fn pop_warm(&mut self, index: GroupIndex) -> Option<Arc<Message>> {
        let message = self.groups.get_mut(index)?.queue.pop_warm()?;
        self.core.stats.queued_messages -= 1;
        self.core.stats.queued_bytes -= message.stored_bytes() as u64;
        Some(message)
    }
}

/// Returns whether a member's queue can receive a message without dropping another, as far as this shard knows.
fn can_queue(core: &ShardCore, now: Now, member: &ShareGroupMember, qos: QoS, bytes: usize) -> bool {
    let is_queued = granted(qos, member.options.maximum_qos) != QoS::AtMostOnce;
    let has_space = match member.session.shard == core.id {
        true => core.has_space(member.session.session, bytes),
        false => member.full_until_ms <= now.monotonic_ms,
    };
    has_space || !is_queued
}

fn has_open_window(core: &ShardCore, member: &ShareGroupMember, qos: QoS) -> bool {
    let slot = member.session.session;
    let link = core.sessions.link(slot);
    if link.conn == ConnSlot::NONE || core.outbox.queued_bytes(link.conn) > core.config.output_buffer_bytes {
        return false;
    }
    let out = &core.sessions.at(slot).outgoing;
    granted(qos, member.options.maximum_qos) == QoS::AtMostOnce
        || (out.queue.is_empty()
            && out.cold.is_none()
            && out.inflight.len() < usize::from(core.sessions.at(slot).window))
}
