//! Selects one member of a group for each message, and delivers the message to that member's session.

use mqtt::QoS;

use crate::config::ShareStrategy;
use crate::deliver::{DeliverResult, ShardCore};
use crate::delivery::DeliveryOptions;
use crate::durable::record::GroupKey;
use crate::durable::record_fields::RecordFields;
use crate::effect::DropReason;
use crate::encode::EncodedForms;
use crate::mail::{Envelope, MemberSubscription};
use crate::message::{Publication, granted};
use crate::shared::ShareGroups;
use crate::shared::enqueue::{can_queue, must_record_holder};
use crate::shared::member::ShareGroupMember;
use crate::slots::{ConnSlot, GroupIndex, SessionSlot};
use crate::tick::Tick;

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

impl ShareGroups {
    /// Dispatches a live message to a member of a group.
    pub(crate) fn dispatch(
        &mut self,
        tick: &mut Tick<'_>,
        index: GroupIndex,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
    ) {
        match self.table.get_mut(index) {
            Some(group) if group.must_queue(tick, p) => {
                if group.make_space(tick, p.stored_bytes()) {
                    group.enqueue(tick, p, forms, false);
                }
            }
            _ => _ = self.select_and_dispatch(tick, index, p, forms, DispatchCause::Live),
        }
    }

    /// Dispatches a message again. `is_held` means that the group holds it in the journal.
    pub(super) fn dispatch_again(
        &mut self,
        tick: &mut Tick<'_>,
        index: GroupIndex,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
        is_held: bool,
    ) {
        let key = self.table.get(index).map_or(GroupKey::default(), |group| group.key);
        let cause = DispatchCause::Again { is_held };
        match self.select_and_dispatch(tick, index, p, forms, cause) {
            DispatchResult::Local if is_held => {
                tick.core.ledger.record_group_delivery(tick.now, key, p, forms.stored())
            }
            DispatchResult::Dropped if is_held => tick.core.ledger.record_group_dropped(key, p.place),
            result => {
                let place = tick
                    .core
                    .ledger
                    .record_message(tick.now, p, forms.stored(), RecordFields::default());
                if result == DispatchResult::Assigned && is_held {
                    tick.core.ledger.record_group_dropped(key, p.place);
                }
                tick.mail.send_to_members(&Publication { place, ..*p });
            }
        }
    }

    /// Selects a member and dispatches to it.
    fn select_and_dispatch(
        &mut self,
        tick: &mut Tick<'_>,
        index: GroupIndex,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
        cause: DispatchCause,
    ) -> DispatchResult {
        let (is_held, is_again) = match cause {
            DispatchCause::Live => (false, false),
            DispatchCause::Again { is_held } => (is_held, true),
        };
        if p.is_expired(tick.now) {
            tick.core.stats.drop_message(DropReason::Expired);
            return DispatchResult::Dropped;
        }
        let random = tick.random.next();
        let Some(group) = self.table.get_mut(index) else {
            return DispatchResult::Dropped;
        };
        if group.is_routed_by_former_home(tick.core) {
            return DispatchResult::Pending;
        }
        if group.members.is_empty() {
            return DispatchResult::Dropped;
        }
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
            if !can_queue(tick, member, p.qos, p.stored_bytes()) {
                continue;
            }
            choice = choice.or(Some(at));
            // A member of this shard with a full in-flight window is skipped while another member is available.
            if member.session.shard != tick.core.id || has_open_window(tick.core, member, p.qos) {
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
            Some(at) => self.dispatch_to(tick, chosen(at, false), p, forms, is_held),
            // Such a message does not wait in the group, where it would delay messages for the connected members.
            None if is_forbidden_to_any => {
                match group.reader(first, p, |member| can_queue(tick, member, p.qos, p.stored_bytes())) {
                    Some(at) => self.dispatch_to(tick, chosen(at, true), p, forms, is_held),
                    None => {
                        tick.core.stats.drop_message(group.reason_without_member(p));
                        DispatchResult::Dropped
                    }
                }
            }
            // A message that no member may receive evicts no other.
            None if !group.members.iter().any(|member| member.rights.can_receive(p.topic)) => {
                tick.core.stats.drop_message(DropReason::NotAuthorizedToReceive);
                DispatchResult::Dropped
            }
            // Messages that the group has received before are exempt from the queue limit.
            None if !is_again && !group.make_space(tick, p.stored_bytes()) => DispatchResult::Dropped,
            None => {
                let is_queued = group.enqueue(tick, p, forms, is_held);
                group.wait_for_space(tick, index);
                match is_queued {
                    true => DispatchResult::Pending,
                    false => DispatchResult::Dropped,
                }
            }
        }
    }

    fn dispatch_to(
        &mut self,
        tick: &mut Tick<'_>,
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
        let must_record_holder = must_record_holder(tick, is_held);
        let Some(group) = self.table.get_mut(index) else {
            return DispatchResult::Dropped;
        };
        if !is_assigned && matches!(group.strategy, ShareStrategy::Sticky | ShareStrategy::RoundRobin) {
            group.next = at;
        }
        let counts = !is_assigned && group.strategy == ShareStrategy::LeastInflight;
        let reference = group.reference(tick.core.id, index);
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
        if session.shard == tick.core.id {
            if is_assigned {
                self.deliver_member(tick, session.session, p, subscription, forms);
                return DispatchResult::Assigned;
            }
            let group_retains =
                tick.core
                    .ledger
                    .group_retains(tick.core.sessions.link(session.session), qos, reference.key);
            if is_held && !is_durable && !group_retains {
                tick.core.ledger.record_group_dropped(reference.key, p.place);
            }
            let delivered = self.deliver_member(tick, session.session, p, subscription, forms);
            return match delivered {
                DeliverResult::Dropped(_) if group_retains => DispatchResult::Dropped,
                _ if group_retains => {
                    if must_record_holder {
                        tick.core.ledger.add_group_recipient(reference.key);
                    }
                    DispatchResult::Pending
                }
                _ => DispatchResult::Local,
            };
        }
        if must_record_holder && qos != QoS::AtMostOnce {
            // The group holds the message until the member's shard has recorded it.
            tick.core.ledger.add_group_recipient(reference.key);
        }
        let envelope = Envelope::Member {
            session: session.session,
            epoch: session.epoch,
            subscription,
        };
        tick.mail.add_member(session.shard, envelope);
        DispatchResult::Pending
    }

    pub(super) fn deliver_member(
        &mut self,
        tick: &mut Tick<'_>,
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
        let delivered = tick.core.deliver(tick.now, slot, p, terms, forms);
        if matches!(delivered, DeliverResult::Dropped(_)) && terms.group.is_some() {
            self.member_acknowledged(tick, slot, group);
        }
        delivered
    }
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
