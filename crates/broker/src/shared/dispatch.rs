//! A message for a shared subscription: to one member, or into the group's queue while none is connected.

use std::sync::Arc;

use mqtt::QoS;

use crate::config::{QueueDrop, ShareStrategy};
use crate::deliver::{Core, Delivered, Forms, NO_CONN, Terms};
use crate::durable::keep::Keeping;
use crate::durable::record::GroupKey;
use crate::effect::{ConnSlot, DropReason, Now};
use crate::lifecycle::granted;
use crate::mail::Envelope;
use crate::message::{Message, Publication};
use crate::outgoing::GroupRef;
use crate::shard::Shard;
use crate::shared::group::Member;
use crate::shared::group_home;

/// Where a message of a group has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    /// To a session of this shard.
    Here,
    /// To another shard's, or into the group's queue; or lent.
    Elsewhere,
    ToNobody,
}

impl Shard {
    /// Gives a message that has just been published to one member of a group.
    pub(crate) fn dispatch(&mut self, now: Now, index: u32, p: &Publication<'_>, forms: &mut Forms) {
        self.give(now, index, p, forms, false);
    }

    /// Gives a message to another member. `is_held`: the group has it in the journal.
    pub(crate) fn dispatch_again(
        &mut self,
        now: Now,
        index: u32,
        p: &Publication<'_>,
        forms: &mut Forms,
        is_held: bool,
    ) {
        let key = self
            .groups
            .get_mut(index)
            .map_or(GroupKey::default(), |group| group.key);
        match self.give(now, index, p, forms, is_held) {
            Given::Here if is_held => self.keep_given(now, key, p, forms),
            Given::ToNobody if is_held => self.keep_dropped(key, p.place),
            _ => {
                let place = self.core.keep(now, p, forms.kept(), Keeping::default());
                self.send_member_mail(&Publication { place, ..*p });
            }
        }
    }

    fn give(&mut self, now: Now, index: u32, p: &Publication<'_>, forms: &mut Forms, is_held: bool) -> Given {
        if p.is_expired(now) {
            self.core.stats.drop_message(DropReason::Expired);
            return Given::ToNobody;
        }
        let random = self.next_random();
        let Some(group) = self.groups.get_mut(index) else {
            return Given::ToNobody;
        };
        if let Some((shards, mask)) = self.core.only_homes
            && mask >> group_home(&group.share_name, &group.filter, shards).0 & 1 == 0
        {
            return Given::Elsewhere;
        }
        if group.members.is_empty() {
            return Given::ToNobody;
        }
        let first = group.first_choice(p, random);
        let mut choice = None;
        for at in group.candidates(first) {
            let member = group.members[at];
            choice = choice.or(Some(at));
            // A member of this shard that could not take it now is passed over as long as there is another.
            if member.session.shard != self.core.id || has_room(&self.core, member, p.qos) {
                choice = Some(at);
                break;
            }
        }
        match choice {
            Some(at) => self.dispatch_to(now, index, at, p, forms, is_held),
            None => self.keep_in_group(now, index, p, forms, is_held),
        }
    }

    fn dispatch_to(
        &mut self,
        now: Now,
        index: u32,
        at: usize,
        p: &Publication<'_>,
        forms: &mut Forms,
        is_held: bool,
    ) -> Given {
        let must_note = self.must_note(is_held);
        let Some(group) = self.groups.get_mut(index) else {
            return Given::ToNobody;
        };
        if matches!(group.strategy, ShareStrategy::Sticky | ShareStrategy::RoundRobin) {
            group.next = at;
        }
        let counts = group.strategy == ShareStrategy::LeastInflight;
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
        let member = *member;
        if member.session.shard == self.core.id {
            let is_lent = self.core.is_lent(member.session.session, qos, reference.key);
            if is_held && !member.is_durable && !is_lent {
                self.keep_dropped(reference.key, p.place);
            }
            let delivered = self.deliver_member(
                now,
                member.session.session,
                p,
                reference,
                member.options.maximum_qos,
                member.options.retain_as_published,
                member.identifier,
                forms,
            );
            return match delivered {
                Delivered::Dropped(_) if is_lent => Given::ToNobody,
                _ if is_lent => {
                    if self.must_note(is_held) {
                        self.core.note_group(reference.key);
                    }
                    Given::Elsewhere
                }
                _ => Given::Here,
            };
        }
        if must_note && qos != QoS::AtMostOnce {
            // Until the member's shard has recorded it.
            self.core.note_group(reference.key);
        }
        let envelope = Envelope::Member {
            session: member.session.session,
            epoch: member.session.epoch,
            group: reference,
            maximum_qos: member.options.maximum_qos,
            retain_as_published: member.options.retain_as_published,
            identifier: member.identifier,
        };
        self.member_mail.push((member.session.shard, envelope));
        Given::Elsewhere
    }

    /// Sends a message to the members of other shards that it was given to, once it is known where the journal has it.
    pub(crate) fn send_member_mail(&mut self, p: &Publication<'_>) {
        for (shard, envelope) in self.member_mail.drain(..) {
            self.mail_out[usize::from(shard.0)].publication(envelope, p);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn deliver_member(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        group: GroupRef,
        maximum_qos: QoS,
        retain_as_published: bool,
        identifier: u32,
        forms: &mut Forms,
    ) -> Delivered {
        let identifiers = if identifier == 0 {
            &[][..]
        } else {
            std::slice::from_ref(&identifier)
        };
        let qos = granted(p.qos, maximum_qos);
        let terms = Terms {
            qos,
            retain: p.retain && retain_as_published,
            identifiers,
            group: (qos != QoS::AtMostOnce).then_some(group),
        };
        let delivered = self.core.deliver(now, slot, p, terms, forms);
        if matches!(delivered, Delivered::Dropped(_)) && qos != QoS::AtMostOnce {
            self.member_acknowledged(slot, group);
        }
        delivered
    }

    /// Whether that the group has a message is to be recorded: not again, except while a checkpoint is written. What goes from the
    /// group to a member of another shard and back may be met with neither.
    fn must_note(&self, is_held: bool) -> bool {
        !is_held || self.walk.is_some()
    }

    /// Nobody is connected: the group keeps it until somebody is.
    fn keep_in_group(&mut self, now: Now, index: u32, p: &Publication<'_>, forms: &mut Forms, is_held: bool) -> Given {
        let Some(group) = self.groups.get_mut(index) else {
            return Given::ToNobody;
        };
        let key = group.key;
        let is_kept = |m: &Member| granted(p.qos, m.options.maximum_qos) != QoS::AtMostOnce;
        if !group.members.iter().any(is_kept) {
            self.core.stats.drop_message(DropReason::NoSharedMember);
            return Given::ToNobody;
        }
        if !self.make_room_in_group(now, index, p.kept_bytes()) {
            return Given::ToNobody;
        }
        if self.must_note(is_held) {
            self.core.note_group(key);
        }
        // What the journal has as the group's is the group's own here too: a checkpoint that moves it for a session says nothing of groups.
        let message = match is_held && p.place.position().is_some() {
            true => p.to_message(),
            false => forms.message(p),
        };
        self.core.stats.queued_messages += 1;
        self.core.stats.queued_bytes += message.kept_bytes() as u64;
        if let Some(group) = self.groups.get_mut(index) {
            group.queued_bytes += message.kept_bytes();
            group.queue.push_back(message);
        }
        Given::Elsewhere
    }

    /// Drops what has to go from a group's queue, expired messages first; false if that is the new one.
    fn make_room_in_group(&mut self, now: Now, index: u32, bytes: usize) -> bool {
        let config = self.core.config.clone();
        while let Some(group) = self.groups.get_mut(index) {
            let reason = if group.queue.len() >= config.queued_messages_max {
                DropReason::QueueFullByCount
            } else if group.queued_bytes + bytes > config.queued_bytes_max {
                DropReason::QueueFullByBytes
            } else {
                return true;
            };
            let oldest = group.queue.front();
            let is_expired = oldest.is_some_and(|oldest| oldest.is_expired(now));
            let may_go = oldest.is_some() && (is_expired || config.queue_drop == QueueDrop::Oldest);
            self.core
                .stats
                .drop_message(if is_expired { DropReason::Expired } else { reason });
            if !may_go {
                return false;
            }
            let key = group.key;
            if let Some(message) = self.pop_from_group(index) {
                self.keep_dropped(key, message.place());
            }
        }
        false
    }

    pub(super) fn pop_from_group(&mut self, index: u32) -> Option<Arc<Message>> {
        let group = self.groups.get_mut(index)?;
        let message = group.queue.pop_front()?;
        group.queued_bytes -= message.kept_bytes();
        self.core.stats.queued_messages -= 1;
        self.core.stats.queued_bytes -= message.kept_bytes() as u64;
        Some(message)
    }

    pub(super) fn drain_group(&mut self, now: Now, index: u32) {
        loop {
            let Some(group) = self.groups.get_mut(index) else {
                return;
            };
            if !group.has_online() {
                return;
            }
            let is_held = group.is_durable();
            let Some(message) = self.pop_from_group(index) else {
                return;
            };
            let mut forms = Forms::of(message.clone());
            self.dispatch_again(now, index, &message.publication(), &mut forms, is_held);
        }
    }
}

fn has_room(core: &Core, member: Member, qos: QoS) -> bool {
    let slot = member.session.session;
    let link = core.link(slot);
    if link.conn == NO_CONN || core.outbox.queued_bytes(ConnSlot(link.conn)) > core.config.output_buffer_bytes {
        return false;
    }
    let out = &core.session(slot).outgoing;
    granted(qos, member.options.maximum_qos) == QoS::AtMostOnce
        || (out.queue.is_empty() && out.cold.is_none() && out.inflight.len() < usize::from(core.session(slot).window))
}
