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
use crate::message::{Message, Place, Publication};
use crate::outgoing::GroupRef;
use crate::shard::Shard;
use crate::shared::group::{Group, Member};
use crate::shared::group_home;

/// So many members are asked whether they have room for a message; if none has, the first with space gets it. As long as there is no
/// such member, the others are asked too: any number of members may have stopped to acknowledge.
const CANDIDATES_MAX: usize = 16;

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
        if !self.comes_behind(now, index, p) {
            self.give(now, index, p, forms, false, false);
        } else if self.make_room_in_group(now, index, p.kept_bytes()) {
            self.keep_in_group(now, index, p, forms, false);
        }
    }

    /// Whether a message that has just been published has to wait because the group is giving out what came before it.
    fn comes_behind(&self, now: Now, index: u32, p: &Publication<'_>) -> bool {
        let Some(group) = self.groups.get(index).filter(|group| !group.queue.is_empty()) else {
            return false;
        };
        !p.is_expired(now) && !self.is_another_homes(group) && group.members.iter().any(|member| is_kept_by(member, p))
    }

    /// At a start: whether the shard that had the group has routed this message.
    fn is_another_homes(&self, group: &Group) -> bool {
        self.core
            .only_homes
            .is_some_and(|(shards, mask)| mask >> group_home(&group.share_name, &group.filter, shards).0 & 1 == 0)
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
        match self.give(now, index, p, forms, is_held, true) {
            Given::Here if is_held => self.keep_given(now, key, p, forms),
            Given::ToNobody if is_held => self.keep_dropped(key, p.place),
            _ => {
                let place = self.core.keep(now, p, forms.kept(), Keeping::default());
                self.send_member_mail(&Publication { place, ..*p });
            }
        }
    }

    /// `is_again`: it has been given to the group before.
    fn give(
        &mut self,
        now: Now,
        index: u32,
        p: &Publication<'_>,
        forms: &mut Forms,
        is_held: bool,
        is_again: bool,
    ) -> Given {
        if p.is_expired(now) {
            self.core.stats.drop_message(DropReason::Expired);
            return Given::ToNobody;
        }
        let random = self.next_random();
        if self.groups.get(index).is_some_and(|group| self.is_another_homes(group)) {
            return Given::Elsewhere;
        }
        let Some(group) = self.groups.get_mut(index).filter(|group| !group.members.is_empty()) else {
            return Given::ToNobody;
        };
        let first = group.first_choice(p, random);
        let mut choice = None;
        for (asked, at) in group.candidates(first).enumerate() {
            if asked >= CANDIDATES_MAX && choice.is_some() {
                break;
            }
            let member = group.members[at];
            if !may_have_space(&self.core, now, member, p.qos, p.kept_bytes()) {
                continue;
            }
            choice = choice.or(Some(at));
            // A member of this shard that could not take it now is passed over as long as there is another.
            if member.session.shard != self.core.id || has_room(&self.core, member, p.qos) {
                choice = Some(at);
                break;
            }
        }
        match choice {
            Some(at) => self.dispatch_to(now, index, at, p, forms, is_held),
            // What the group has had before is not measured again.
            None if !is_again && !self.make_room_in_group(now, index, p.kept_bytes()) => Given::ToNobody,
            None => {
                let given = self.keep_in_group(now, index, p, forms, is_held);
                self.wait_for_space(now, index);
                given
            }
        }
    }

    /// Whether any of the members that are connected could take a message of the group, as far as that is known.
    pub(super) fn has_taker(&mut self, now: Now, index: u32, bytes: usize) -> bool {
        let core = &self.core;
        let Some(group) = self.groups.get(index) else {
            return false;
        };
        let mut candidates = group.candidates(group.next).map(|at| group.members[at]);
        candidates.any(|member| may_have_space(core, now, member, QoS::AtLeastOnce, bytes))
    }

    /// The same, for each message that is published: not asked again before the timer does that.
    fn is_giving(&mut self, now: Now, index: u32, bytes: usize) -> bool {
        let waits_for_space = self.groups.get(index).is_some_and(|group| group.queue.waits_for_space);
        !waits_for_space && self.has_taker(now, index, bytes)
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

    /// Nobody is connected, or earlier ones are still to be given out: the group keeps it until then.
    fn keep_in_group(&mut self, now: Now, index: u32, p: &Publication<'_>, forms: &mut Forms, is_held: bool) -> Given {
        let Some(group) = self.groups.get_mut(index) else {
            return Given::ToNobody;
        };
        let key = group.key;
        if !group.members.iter().any(|member| is_kept_by(member, p)) {
            self.core.stats.drop_message(DropReason::NoSharedMember);
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
            group.queue.push(message);
            group.queue.published += usize::from(group.has_online());
            let window = self.core.config.group_window;
            let is_long = group.queue.warm_len() >= 2 * window;
            // What is about to be given out is not let go of just before.
            if is_long && (!group.queue.is_all_warm() || !self.is_giving(now, index, 0)) {
                self.cool_group(index, window);
            }
        }
        Given::Elsewhere
    }

    /// Drops what has to go from a group's queue, expired messages first; false if that is the new one.
    fn make_room_in_group(&mut self, now: Now, index: u32, bytes: usize) -> bool {
        let config = self.core.config.clone();
        while let Some(group) = self.groups.get_mut(index) {
            let (max, all, new) = (config.queued_messages_max, group.queue.len(), group.queue.new_len());
            // What members have given back does not go, and takes the place of what is new.
            let new_max = max.saturating_sub(all - new);
            let is_all_warm = group.queue.is_all_warm();
            let has_bytes = group.queue.bytes() + bytes <= config.queued_bytes_max;
            // As long as members take it, it becomes shorter with the next tick.
            let is_taken = is_all_warm && has_bytes && all / 2 < max;
            let is_full = new >= new_max && !(is_taken && self.is_giving(now, index, bytes));
            if !is_full && has_bytes {
                return true;
            }
            if !is_full && self.cool_group(index, 0) {
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
            let may_go = is_any && (is_expired || config.queue_drop == QueueDrop::Oldest);
            self.core.stats.drop_message(match (is_expired, is_full) {
                (true, _) => DropReason::Expired,
                (false, true) => DropReason::QueueFullByCount,
                (false, false) => DropReason::QueueFullByBytes,
            });
            if !may_go {
                return false;
            }
            // What is in the journal only takes no bytes.
            let is_warm = !is_full || is_all_warm;
            self.drop_oldest_of_group(index, is_warm);
        }
        false
    }

    fn drop_oldest_of_group(&mut self, index: u32, is_warm: bool) {
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let key = group.key;
        let place = match is_warm {
            true => self.pop_warm(index).map(|message| message.place()),
            false => group
                .queue
                .pop_cold()
                .map(Place::at)
                .inspect(|_| self.core.stats.queued_messages -= 1),
        };
        self.keep_dropped(key, place.unwrap_or_default());
    }

    /// Lets go of all but the newest messages of a durable group, as far as the journal has them. False if that is nothing.
    fn cool_group(&mut self, index: u32, kept: usize) -> bool {
        let Some(group) = self.groups.get_mut(index).filter(|group| group.is_durable()) else {
            return false;
        };
        let freed = group.queue.cool(kept);
        self.core.stats.queued_bytes -= freed as u64;
        freed > 0
    }

    pub(super) fn pop_warm(&mut self, index: u32) -> Option<Arc<Message>> {
        let message = self.groups.get_mut(index)?.queue.pop_warm()?;
        self.core.stats.queued_messages -= 1;
        self.core.stats.queued_bytes -= message.kept_bytes() as u64;
        Some(message)
    }
}

/// Whether a message could go to a member without another's having to go, as far as that is known here.
fn may_have_space(core: &Core, now: Now, member: Member, qos: QoS, bytes: usize) -> bool {
    let is_queued = granted(qos, member.options.maximum_qos) != QoS::AtMostOnce;
    let has_space = match member.session.shard == core.id {
        true => core.has_space(member.session.session, bytes),
        false => member.full_until_ms <= now.monotonic_ms,
    };
    has_space || !is_queued
}

fn is_kept_by(member: &Member, p: &Publication<'_>) -> bool {
    granted(p.qos, member.options.maximum_qos) != QoS::AtMostOnce
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
