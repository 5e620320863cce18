//! Shared subscriptions: one member of a group gets each message [MQTT-4.8.2].
//!
//! A group (share name and filter) lives on the shard that their hash names; members are sessions of any shard. The group
//! chooses among members that are connected, and keeps messages in a bounded queue of its own while none is. What a member
//! was given and cannot finish comes back: its queue and its unacknowledged QoS 1 messages, as soon as it goes away and
//! another is there; QoS 2 messages in flight stay with the member they were sent to [MQTT-4.8.2-4], [MQTT-4.8.2-5].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mqtt::{QoS, SharedFilter, SubscriptionOptions};

use crate::config::{QueueDrop, ShareStrategy};
use crate::deliver::{Delivered, Forms, NO_CONN, Terms};
use crate::effect::{ConnSlot, DropReason, Now, ShardId};
use crate::lifecycle::granted;
use crate::mail::{Envelope, Letter, SessionRef};
use crate::message::{Message, Publication};
use crate::outgoing::GroupRef;
use crate::session::SubscriptionKind;
use crate::shard::{Interested, Shard, hash};
use crate::subscribe::Target;

/// So many members are asked whether they have room for a message; if none has, the first of them gets it.
const CANDIDATES_MAX: usize = 16;

/// Marks a key of the subscription tree as a group's.
pub(crate) const GROUP_KEY: u32 = 1 << 31;

#[derive(Default)]
pub(crate) struct Groups {
    by_name: HashMap<Box<str>, u32>,
    groups: Vec<Option<Box<Group>>>,
    free: Vec<u32>,
    epochs: u32,
}

pub(crate) struct Group {
    pub share_name: Box<str>,
    pub filter: Box<str>,
    pub epoch: u32,
    pub strategy: ShareStrategy,
    /// In the order in which they came.
    pub members: Vec<Member>,
    /// Where in `members` those are that are connected, ascending: the others cost a message nothing.
    online: Vec<u32>,
    /// Where round robin goes on; the member that sticky stays with.
    next: usize,
    pub queue: VecDeque<Arc<Message>>,
    pub queued_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub session: SessionRef,
    pub options: SubscriptionOptions,
    pub identifier: u32,
    pub is_online: bool,
    /// Given and not acknowledged, as far as the strategy counts it.
    pub inflight: u32,
}

impl Groups {
    fn key(share_name: &str, filter: &str) -> Box<str> {
        // A share name has no slash, so the first one ends it.
        format!("{share_name}/{filter}").into()
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().flatten().map(|g| &**g)
    }

    fn find(&self, share_name: &str, filter: &str) -> Option<u32> {
        self.by_name.get(&Self::key(share_name, filter)).copied()
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Group> {
        self.groups.get_mut(index as usize)?.as_deref_mut()
    }

    fn get_live(&mut self, index: u32, epoch: u32) -> Option<&mut Group> {
        self.get_mut(index).filter(|g| g.epoch == epoch)
    }

    fn create(&mut self, share_name: &str, filter: &str, strategy: ShareStrategy) -> u32 {
        self.epochs = self.epochs.wrapping_add(1);
        let group = Group {
            share_name: share_name.into(),
            filter: filter.into(),
            epoch: self.epochs,
            strategy,
            members: Vec::new(),
            online: Vec::new(),
            next: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() as u32 - 1
        });
        self.groups[index as usize] = Some(Box::new(group));
        self.by_name.insert(Self::key(share_name, filter), index);
        index
    }

    fn remove(&mut self, index: u32) -> Option<Box<Group>> {
        let group = self.groups[index as usize].take()?;
        self.by_name.remove(&Self::key(&group.share_name, &group.filter));
        self.free.push(index);
        Some(group)
    }
}

impl Group {
    fn position(&self, session: SessionRef) -> Option<usize> {
        self.members.iter().position(|m| m.session == session)
    }

    fn has_online(&self) -> bool {
        !self.online.is_empty()
    }

    /// Adds a member, or replaces it.
    fn put(&mut self, member: Member) {
        let at = match self.position(member.session) {
            Some(at) => {
                let inflight = self.members[at].inflight;
                self.members[at] = Member { inflight, ..member };
                at
            }
            None => {
                self.members.push(member);
                self.members.len() - 1
            }
        };
        self.set_online(at, member.is_online);
    }

    fn set_online(&mut self, at: usize, is_online: bool) {
        self.members[at].is_online = is_online;
        match (self.online.binary_search(&(at as u32)), is_online) {
            (Err(gap), true) => self.online.insert(gap, at as u32),
            (Ok(found), false) => _ = self.online.remove(found),
            (Ok(_), true) | (Err(_), false) => {}
        }
    }

    fn remove(&mut self, at: usize) {
        self.set_online(at, false);
        self.members.remove(at);
        for later in self.online.iter_mut().filter(|later| **later > at as u32) {
            *later -= 1;
        }
        if at < self.next {
            // The member that sticky stays with has moved.
            self.next -= 1;
        }
    }

    /// Connected members, beginning with the one at or after `first`; a few of them.
    fn candidates(&self, first: usize) -> impl Iterator<Item = usize> {
        let start = self.online.partition_point(|at| (*at as usize) < first);
        let (before, after) = self.online.split_at(start);
        after.iter().chain(before).take(CANDIDATES_MAX).map(|at| *at as usize)
    }

    /// Where to begin looking for an online member.
    fn first_choice(&mut self, p: &Publication<'_>, random: u64) -> usize {
        let n = self.members.len();
        match self.strategy {
            ShareStrategy::RoundRobin => {
                self.next = (self.next + 1) % n;
                self.next
            }
            ShareStrategy::Sticky => self.next % n,
            ShareStrategy::Random => (random % n as u64) as usize,
            ShareStrategy::HashClient => p.publisher_hash as usize % n,
            ShareStrategy::HashTopic => (hash(p.topic) % n as u64) as usize,
            ShareStrategy::LeastInflight => {
                let online = self.online.iter().map(|at| *at as usize);
                online.min_by_key(|at| self.members[*at].inflight).unwrap_or(0)
            }
        }
    }
}

impl Shard {
    fn group_home(&self, share_name: &str, filter: &str) -> ShardId {
        ShardId((hash(share_name).wrapping_add(hash(filter)) % u64::from(self.core.shards)) as u16)
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
            inflight: 0,
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

    pub(crate) fn leave_group(&mut self, slot: u32, shared: SharedFilter<'_>) {
        let member = self.session_ref(slot);
        let home = self.group_home(shared.share_name, shared.filter);
        if home == self.core.id {
            return self.remove_member(shared.share_name, shared.filter, member);
        }
        let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
        self.mail_out[usize::from(home.0)].letter(Letter::Leave {
            share_name,
            filter,
            member,
        });
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

    fn add_member(&mut self, now: Now, share_name: &str, filter: &str, member: Member) {
        let index = match self.groups.find(share_name, filter) {
            Some(index) => index,
            None => {
                let config = &self.core.config;
                let strategy = config
                    .share_strategies
                    .get(share_name)
                    .copied()
                    .unwrap_or(config.share_strategy);
                let index = self.groups.create(share_name, filter, strategy);
                self.index(
                    filter,
                    GROUP_KEY | index,
                    Interested {
                        identifier: 0,
                        options: SubscriptionOptions::default(),
                    },
                );
                self.core.stats.shared_groups = self.groups.len() as u64;
                index
            }
        };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let had_online = group.has_online();
        group.put(member);
        if !had_online {
            self.reclaim_from_absent(now, index);
        }
        self.drain_group(now, index);
    }

    fn remove_member(&mut self, share_name: &str, filter: &str, session: SessionRef) {
        let Some(index) = self.groups.find(share_name, filter) else {
            return;
        };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        if let Some(at) = group.position(session) {
            group.remove(at);
        }
        if group.members.is_empty() {
            self.unindex(filter, GROUP_KEY | index);
            while self.pop_from_group(index).is_some() {
                self.core.stats.drop_message(DropReason::NoSharedMember);
            }
            self.groups.remove(index);
            self.core.stats.shared_groups = self.groups.len() as u64;
        }
    }

    fn set_member_state(&mut self, now: Now, share_name: &str, filter: &str, session: SessionRef, is_online: bool) {
        let Some(index) = self.groups.find(share_name, filter) else {
            return;
        };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let Some(at) = group.position(session) else { return };
        let had_online = group.has_online();
        group.set_online(at, is_online);
        let (epoch, has_others) = (group.epoch, group.has_online());
        if is_online {
            if !had_online {
                self.reclaim_from_absent(now, index);
            }
            self.drain_group(now, index);
        } else if has_others {
            let group = GroupRef {
                shard: self.core.id,
                index,
                epoch,
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
            self.reclaim_here(now, member.session, member.epoch, group);
        } else {
            let letter = Letter::Reclaim {
                session: member.session,
                epoch: member.epoch,
                group,
            };
            self.mail_out[usize::from(member.shard.0)].letter(letter);
        }
    }

    fn reclaim_here(&mut self, now: Now, slot: u32, epoch: u32, group: GroupRef) {
        if self.core.live_session(slot, epoch).is_some_and(|s| s.conn.is_none()) {
            self.return_shared(now, slot, |from| from == group);
        }
    }

    /// Gives back to their groups what a session holds of them.
    pub(crate) fn return_shared(&mut self, now: Now, slot: u32, wanted: impl Fn(GroupRef) -> bool) {
        let stats = &mut self.core.stats;
        let session = self.core.sessions[slot as usize]
            .as_deref_mut()
            .expect("the caller has it");
        let (queued, inflight, bytes) = (
            session.outgoing.queue.len(),
            session.outgoing.inflight.len(),
            session.outgoing.queued_bytes,
        );
        let returned = session.outgoing.extract(|d| d.tag.group().is_some_and(&wanted));
        let out = &session.outgoing;
        stats.queued_messages -= (queued - out.queue.len()) as u64;
        stats.queued_bytes -= (bytes - out.queued_bytes) as u64;
        stats.inflight_messages -= (inflight - out.inflight.len()) as u64;
        for delivery in returned {
            let Some(group) = delivery.tag.group() else { continue };
            self.member_acknowledged(slot, group);
            if group.shard == self.core.id {
                self.redispatch(
                    now,
                    group.index,
                    group.epoch,
                    &delivery.message.publication(),
                    Some(delivery.message.clone()),
                );
            } else {
                let envelope = Envelope::Return {
                    index: group.index,
                    epoch: group.epoch,
                };
                self.mail_out[usize::from(group.shard.0)].publication(envelope, &delivery.message.publication());
            }
        }
    }

    fn redispatch(&mut self, now: Now, index: u32, epoch: u32, p: &Publication<'_>, message: Option<Arc<Message>>) {
        if self.groups.get_live(index, epoch).is_some() {
            let mut forms = message.map_or_else(Forms::default, Forms::of);
            self.dispatch(now, index, p, &mut forms);
        } else {
            self.core.stats.drop_message(DropReason::NoSharedMember);
        }
    }

    /// Gives a message to one member of a group.
    pub(crate) fn dispatch(&mut self, now: Now, index: u32, p: &Publication<'_>, forms: &mut Forms) {
        if p.is_expired(now) {
            return self.core.stats.drop_message(DropReason::Expired);
        }
        let random = self.next_random();
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        if group.members.is_empty() {
            return;
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
            Some(at) => self.dispatch_to(now, index, at, p, forms),
            None => self.keep_in_group(now, index, p, forms),
        }
    }

    fn dispatch_to(&mut self, now: Now, index: u32, at: usize, p: &Publication<'_>, forms: &mut Forms) {
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        if matches!(group.strategy, ShareStrategy::Sticky | ShareStrategy::RoundRobin) {
            group.next = at;
        }
        let counts = group.strategy == ShareStrategy::LeastInflight;
        let reference = GroupRef {
            shard: self.core.id,
            index,
            epoch: group.epoch,
        };
        let member = &mut group.members[at];
        let qos = granted(p.qos, member.options.maximum_qos);
        if counts && qos != QoS::AtMostOnce {
            member.inflight += 1;
        }
        let member = *member;
        if member.session.shard == self.core.id {
            self.deliver_member(
                now,
                member.session.session,
                p,
                reference,
                member.options.maximum_qos,
                member.options.retain_as_published,
                member.identifier,
                forms,
            );
            return;
        }
        let envelope = Envelope::Member {
            session: member.session.session,
            epoch: member.session.epoch,
            group: reference,
            maximum_qos: member.options.maximum_qos,
            retain_as_published: member.options.retain_as_published,
            identifier: member.identifier,
        };
        self.mail_out[usize::from(member.session.shard.0)].publication(envelope, p);
    }

    #[allow(clippy::too_many_arguments)]
    fn deliver_member(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        group: GroupRef,
        maximum_qos: QoS,
        retain_as_published: bool,
        identifier: u32,
        forms: &mut Forms,
    ) {
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
    }

    /// Nobody is connected: the group keeps it until somebody is.
    fn keep_in_group(&mut self, now: Now, index: u32, p: &Publication<'_>, forms: &mut Forms) {
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let is_kept = |m: &Member| granted(p.qos, m.options.maximum_qos) != QoS::AtMostOnce;
        if !group.members.iter().any(is_kept) {
            return self.core.stats.drop_message(DropReason::NoSharedMember);
        }
        if !self.make_room_in_group(now, index, p.kept_bytes()) {
            return;
        }
        let message = forms.message(p);
        self.core.stats.queued_messages += 1;
        self.core.stats.queued_bytes += message.kept_bytes() as u64;
        if let Some(group) = self.groups.get_mut(index) {
            group.queued_bytes += message.kept_bytes();
            group.queue.push_back(message);
        }
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
            self.pop_from_group(index);
        }
        false
    }

    fn pop_from_group(&mut self, index: u32) -> Option<Arc<Message>> {
        let group = self.groups.get_mut(index)?;
        let message = group.queue.pop_front()?;
        group.queued_bytes -= message.kept_bytes();
        self.core.stats.queued_messages -= 1;
        self.core.stats.queued_bytes -= message.kept_bytes() as u64;
        Some(message)
    }

    fn drain_group(&mut self, now: Now, index: u32) {
        loop {
            let Some(group) = self.groups.get_mut(index) else {
                return;
            };
            if !group.has_online() {
                return;
            }
            let Some(message) = self.pop_from_group(index) else {
                return;
            };
            if message.is_expired(now) {
                self.core.stats.drop_message(DropReason::Expired);
                continue;
            }
            let mut forms = Forms::of(message.clone());
            self.dispatch(now, index, &message.publication(), &mut forms);
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

    fn count_acknowledged(&mut self, index: u32, epoch: u32, member: SessionRef) {
        if let Some(group) = self.groups.get_live(index, epoch)
            && let Some(at) = group.position(member)
        {
            let member = &mut group.members[at];
            member.inflight = member.inflight.saturating_sub(1);
        }
    }

    /// Publications of the mail that are for one session or one group.
    pub(crate) fn shared_publication(&mut self, now: Now, envelope: Envelope, p: &Publication<'_>) {
        match envelope {
            Envelope::Member {
                session,
                epoch,
                group,
                maximum_qos,
                retain_as_published,
                identifier,
            } => {
                let is_online = self.core.live_session(session, epoch).map(|s| s.conn.is_some());
                let is_kept = granted(p.qos, maximum_qos) != QoS::AtMostOnce;
                if is_online == Some(true) {
                    let mut forms = Forms::default();
                    self.deliver_member(
                        now,
                        session,
                        p,
                        group,
                        maximum_qos,
                        retain_as_published,
                        identifier,
                        &mut forms,
                    );
                } else if is_kept {
                    // It left while the message was on its way.
                    if self.core.config.counts_inflight() {
                        self.member_done(
                            SessionRef {
                                shard: self.core.id,
                                session,
                                epoch,
                            },
                            group,
                        );
                    }
                    let envelope = Envelope::Return {
                        index: group.index,
                        epoch: group.epoch,
                    };
                    self.mail_out[usize::from(group.shard.0)].publication(envelope, p);
                } else {
                    self.core.stats.drop_message(DropReason::NoSharedMember);
                }
            }
            Envelope::Return { index, epoch } => self.redispatch(now, index, epoch, p, None),
            Envelope::Replay { session, epoch, number } => self.replayed(now, session, epoch, number, p),
            Envelope::Route | Envelope::Retain { .. } => {}
        }
    }

    pub(crate) fn letter(&mut self, now: Now, letter: Letter) {
        match letter {
            Letter::Join {
                share_name,
                filter,
                member,
                ticket,
            } => {
                let session = member.session;
                self.add_member(now, &share_name, &filter, member);
                let joined = Letter::Joined {
                    session: session.session,
                    epoch: session.epoch,
                    ticket,
                };
                self.mail_out[usize::from(session.shard.0)].letter(joined);
            }
            Letter::Joined { session, epoch, ticket } => self.joined(now, session, epoch, ticket),
            Letter::Leave {
                share_name,
                filter,
                member,
            } => self.remove_member(&share_name, &filter, member),
            Letter::MemberState {
                share_name,
                filter,
                member,
                is_online,
            } => {
                self.set_member_state(now, &share_name, &filter, member, is_online);
            }
            Letter::Reclaim { session, epoch, group } => self.reclaim_here(now, session, epoch, group),
            Letter::Acknowledged { index, epoch, member } => self.count_acknowledged(index, epoch, member),
            Letter::ReplayRequest {
                session,
                epoch,
                number,
                filter,
                cursor,
                from,
            } => {
                self.replay_for(now, session, epoch, number, &filter, cursor, from);
            }
            Letter::ReplayEnd {
                session,
                epoch,
                number,
                cursor,
            } => self.replay_ended(now, session, epoch, number, cursor),
        }
    }
}

fn has_room(core: &crate::deliver::Core, member: Member, qos: QoS) -> bool {
    let slot = member.session.session;
    let link = core.link(slot);
    if link.conn == NO_CONN || core.outbox.queued_bytes(ConnSlot(link.conn)) > core.config.output_buffer_bytes {
        return false;
    }
    let out = &core.session(slot).outgoing;
    granted(qos, member.options.maximum_qos) == QoS::AtMostOnce
        || (out.queue.is_empty() && out.inflight.len() < usize::from(core.session(slot).window))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(session: u32, is_online: bool) -> Member {
        let session = SessionRef {
            shard: ShardId(0),
            session,
            epoch: 1,
        };
        Member {
            session,
            options: SubscriptionOptions::default(),
            identifier: 0,
            is_online,
            inflight: 0,
        }
    }

    fn group(groups: &mut Groups) -> &mut Group {
        let index = groups.create("name", "filter", ShareStrategy::Sticky);
        groups.get_mut(index).unwrap()
    }

    #[test]
    fn who_is_connected_is_known_through_all_that_members_do() {
        let mut groups = Groups::default();
        let group = group(&mut groups);
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (who, what) = ((random >> 33) as u32 % 40, (random >> 60) % 4);
            match (group.position(member(who, true).session), what) {
                (Some(at), 0) => group.remove(at),
                (Some(at), 1) => group.set_online(at, !group.members[at].is_online),
                _ => group.put(member(who, what == 2)),
            }
            let expected = (0..group.members.len()).filter(|at| group.members[*at].is_online);
            assert!(expected.eq(group.online.iter().map(|at| *at as usize)));
        }
    }

    #[test]
    fn candidates_are_the_connected_ones_in_a_circle() {
        let mut groups = Groups::default();
        let group = group(&mut groups);
        for who in 0..6 {
            group.put(member(who, who % 2 == 1));
        }
        for (first, expected) in [(0, [1, 3, 5]), (2, [3, 5, 1]), (5, [5, 1, 3]), (6, [1, 3, 5])] {
            assert!(group.candidates(first).eq(expected));
        }
    }

    #[test]
    fn sticky_stays_when_a_member_before_it_leaves() {
        let mut groups = Groups::default();
        let group = group(&mut groups);
        for who in 0..4 {
            group.put(member(who, true));
        }
        group.next = 2;
        group.remove(0);
        assert_eq!(group.members[group.next].session.session, 2);
    }
}
