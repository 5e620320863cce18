//! Shared subscriptions: one member of a group gets each message [MQTT-4.8.2].
//!
//! A group (share name and filter) lives on the shard that their hash names; members are sessions of any shard. The group
//! chooses among members that are connected, and keeps messages in a bounded queue of its own while none is. What a member
//! was given and cannot finish comes back: its queue and its unacknowledged QoS 1 messages, as soon as it goes away and
//! another is there; QoS 2 messages in flight stay with the member they were sent to [MQTT-4.8.2-4], [MQTT-4.8.2-5]. The queue
//! of a durable group is positions in the journal (`queue`), and so is what a member gives back and has there only (`returning`):
//! both are given out as they are read, a part at a time (`giving`).

mod dispatch;
mod giving;
mod group;
mod queue;
mod returning;

use std::sync::Arc;

use mqtt::{SharedFilter, SubscriptionOptions};

use crate::deliver::Forms;
use crate::durable::record::GroupKey;
use crate::effect::{DropReason, Now, ShardId};
use crate::mail::{Envelope, Letter, SessionRef};
use crate::message::{Message, Publication};
use crate::outgoing::GroupRef;
use crate::session::SubscriptionKind;
use crate::shard::{Shard, hash};
use crate::subscribe::Target;

pub use giving::{GIVER, GivenBack};
pub(crate) use group::{Group, Groups, Member};
pub(crate) use returning::{RETURNED_WINDOWS, Returns};

/// Marks a key of the subscription tree as a group's.
pub(crate) const GROUP_KEY: u32 = 1 << 31;

/// Where a group lives among so many shards.
pub(crate) fn group_home(share_name: &str, filter: &str, shards: u16) -> ShardId {
    ShardId((hash(share_name).wrapping_add(hash(filter)) % u64::from(shards)) as u16)
}

impl Shard {
    pub(crate) fn group_home(&self, share_name: &str, filter: &str) -> ShardId {
        group_home(share_name, filter, self.core.shards)
    }

    /// True when another shard has to answer with `Letter::Joined`.
    pub(crate) fn join_group(
        &mut self,
        now: Now,
        slot: u32,
        shared: SharedFilter<'_>,
        options: SubscriptionOptions,
        identifier: u32,
        ticket: u32,
    ) -> bool {
        let is_online = self.core.session(slot).conn.is_some();
        let member = Member {
            session: self.session_ref(slot),
            options,
            identifier,
            is_online,
            is_durable: self.core.link(slot).is_durable,
            inflight: 0,
            full_until_ms: 0,
            full_for_ms: 0,
        };
        let home = self.group_home(shared.share_name, shared.filter);
        if home == self.core.id {
            self.add_member(now, shared.share_name, shared.filter, member);
            return false;
        }
        self.mail_out[usize::from(home.0)].letter(Letter::Join {
            share_name: shared.share_name.into(),
            filter: shared.filter.into(),
            member,
            ticket,
        });
        true
    }

    /// True when another shard has to answer the ticket with `Letter::Joined`.
    pub(crate) fn leave_group(&mut self, slot: u32, shared: SharedFilter<'_>, ticket: Option<u32>) -> bool {
        let member = self.session_ref(slot);
        let home = self.group_home(shared.share_name, shared.filter);
        if home == self.core.id {
            self.remove_member(shared.share_name, shared.filter, member);
            return false;
        }
        let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
        self.mail_out[usize::from(home.0)].letter(Letter::Leave {
            share_name,
            filter,
            member,
            ticket,
        });
        ticket.is_some()
    }

    /// Tells the groups of a session that it has come or gone.
    pub(crate) fn announce_member_state(&mut self, now: Now, slot: u32, is_online: bool) {
        let session = self.core.session(slot);
        let shared = session
            .subscriptions
            .iter()
            .filter(|(_, s)| s.kind == SubscriptionKind::Shared);
        let filters: Vec<String> = shared.map(|(filter, _)| filter.to_owned()).collect();
        let member = self.session_ref(slot);
        for filter in filters {
            let Ok(Target::Shared(shared)) = Target::parse(&filter) else {
                continue;
            };
            let home = self.group_home(shared.share_name, shared.filter);
            if home == self.core.id {
                self.set_member_state(now, shared.share_name, shared.filter, member, is_online);
            } else {
                let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
                self.mail_out[usize::from(home.0)].letter(Letter::MemberState {
                    share_name,
                    filter,
                    member,
                    is_online,
                });
            }
        }
    }

    pub(crate) fn add_member(&mut self, now: Now, share_name: &str, filter: &str, member: Member) {
        let index = match self.groups.find(share_name, filter) {
            Some(index) => index,
            None => self.create_group(share_name, filter),
        };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let had_online = group.has_online();
        group.put(member);
        self.keep_group(index);
        if !had_online {
            self.reclaim_from_absent(now, index);
        }
        self.give_out(now, index);
    }

    pub(crate) fn remove_member(&mut self, share_name: &str, filter: &str, session: SessionRef) {
        let Some(index) = self.groups.find(share_name, filter) else {
            return;
        };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        if let Some(at) = group.position(session) {
            group.remove(at);
        }
        self.keep_group(index);
        self.end_if_empty(index);
    }

    /// Of groups whose last member left right before a crash: that they ended was not kept.
    pub(crate) fn end_empty_groups(&mut self) {
        for index in 0..self.groups.slots() as u32 {
            self.keep_group(index);
            self.end_if_empty(index);
        }
    }

    fn end_if_empty(&mut self, index: u32) {
        let Some(group) = self.groups.get_mut(index).filter(|group| group.members.is_empty()) else {
            return;
        };
        let filter = group.filter.clone();
        self.unindex(&filter, GROUP_KEY | index);
        if let Some(group) = self.groups.remove(index) {
            let stats = &mut self.core.stats;
            stats.drops[DropReason::NoSharedMember as usize] += group.queue.len() as u64;
            stats.queued_messages -= group.queue.len() as u64;
            stats.queued_bytes -= group.queue.bytes() as u64;
        }
        self.core.stats.shared_groups = self.groups.len() as u64;
    }

    pub(crate) fn set_member_state(
        &mut self,
        now: Now,
        share_name: &str,
        filter: &str,
        session: SessionRef,
        is_online: bool,
    ) {
        let Some(index) = self.groups.find(share_name, filter) else {
            return;
        };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let Some(at) = group.position(session) else { return };
        let had_online = group.has_online();
        group.set_online(at, is_online);
        let (epoch, key, has_others) = (group.epoch, group.key, group.has_online());
        if is_online {
            if !had_online {
                self.reclaim_from_absent(now, index);
            }
            self.give_out(now, index);
        } else if has_others {
            let group = GroupRef {
                shard: self.core.id,
                index,
                epoch,
                key,
            };
            self.reclaim(now, session, group);
        }
    }

    /// The first member is there again: it may have what the others were given and left undone.
    fn reclaim_from_absent(&mut self, now: Now, index: u32) {
        let Some(group) = self.groups.get_mut(index).filter(|g| g.has_online()) else {
            return;
        };
        let reference = GroupRef {
            shard: self.core.id,
            index,
            epoch: group.epoch,
            key: group.key,
        };
        let absent: Vec<SessionRef> = group
            .members
            .iter()
            .filter(|m| !m.is_online)
            .map(|m| m.session)
            .collect();
        for member in absent {
            self.reclaim(now, member, reference);
        }
    }

    /// Asks for what a member that went away was given.
    fn reclaim(&mut self, now: Now, member: SessionRef, group: GroupRef) {
        if member.shard == self.core.id {
            self.reclaim_in_turn(now, member.session, member.epoch, group);
        } else {
            let letter = Letter::Reclaim {
                session: member.session,
                epoch: member.epoch,
                group,
            };
            self.mail_out[usize::from(member.shard.0)].letter(letter);
        }
    }

    /// Gives back to their groups what a session holds of them, so many at most of what is in the journal only. How many those were.
    pub(crate) fn return_shared(
        &mut self,
        now: Now,
        slot: u32,
        max: usize,
        wanted: impl Fn(GroupRef) -> bool,
    ) -> usize {
        let stats = &mut self.core.stats;
        let session = self.core.sessions[slot as usize]
            .as_deref_mut()
            .expect("the caller has it");
        let (queued, inflight, bytes) = (
            session.outgoing.queued(),
            session.outgoing.unacknowledged(),
            session.outgoing.queued_bytes,
        );
        let returned = session.outgoing.extract(|d| d.tag.group().is_some_and(&wanted));
        let cold = session.outgoing.extract_cold(max, wanted);
        let count = cold.len();
        let out = &session.outgoing;
        stats.queued_messages -= (queued - out.queued()) as u64;
        stats.queued_bytes -= (bytes - out.queued_bytes) as u64;
        stats.inflight_messages -= (inflight - out.unacknowledged()) as u64;
        for delivery in returned {
            let Some(group) = delivery.tag.group() else { continue };
            self.member_acknowledged(slot, group);
            let place = delivery.message.place();
            let held_by = self.keep_returned(slot, delivery.seq, delivery.qos, place, group.key);
            if group.shard == self.core.id {
                self.redispatch(
                    now,
                    group.index,
                    group.epoch,
                    &delivery.message.publication(),
                    Some(delivery.message.clone()),
                    held_by,
                );
            } else {
                let envelope = Envelope::Return {
                    index: group.index,
                    epoch: group.epoch,
                    held_by,
                };
                self.mail_out[usize::from(group.shard.0)].publication(envelope, &delivery.message.publication());
            }
        }
        if !cold.is_empty() {
            self.return_cold(now, slot, cold);
        }
        count
    }

    pub(crate) fn redispatch(
        &mut self,
        now: Now,
        index: u32,
        epoch: u32,
        p: &Publication<'_>,
        message: Option<Arc<Message>>,
        held_by: GroupKey,
    ) {
        if let Some(group) = self.groups.get_live(index, epoch) {
            // A group that has become durable anew since is another one in the journal.
            let is_held = held_by.0 != 0 && held_by == group.key;
            let mut forms = message.map_or_else(Forms::default, Forms::of);
            self.dispatch_again(now, index, p, &mut forms, is_held);
        } else {
            self.core.stats.drop_message(DropReason::NoSharedMember);
        }
    }

    /// A member is done with a message of a group: for the strategy that counts.
    pub(crate) fn member_acknowledged(&mut self, slot: u32, group: GroupRef) {
        if self.core.config.counts_inflight() {
            self.member_done(self.session_ref(slot), group);
        }
    }

    pub(crate) fn member_done(&mut self, member: SessionRef, group: GroupRef) {
        if group.shard == self.core.id {
            self.count_acknowledged(group.index, group.epoch, member);
        } else {
            let letter = Letter::Acknowledged {
                index: group.index,
                epoch: group.epoch,
                member,
            };
            self.mail_out[usize::from(group.shard.0)].letter(letter);
        }
    }

    pub(crate) fn count_acknowledged(&mut self, index: u32, epoch: u32, member: SessionRef) {
        if let Some(group) = self.groups.get_live(index, epoch)
            && let Some(at) = group.position(member)
        {
            let member = &mut group.members[at];
            member.inflight = member.inflight.saturating_sub(1);
        }
    }
}
