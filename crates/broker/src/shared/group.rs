//! A share group: its members, which of them are connected, and the selection of the next one. Independent of sessions.

use std::collections::HashMap;

use mqtt::SharedFilter;

use crate::access::MemberRights;
use crate::config::ShareStrategy;
use crate::delivery::GroupRef;
use crate::durable::record::GroupKey;
use crate::effect::{DropReason, ShardId};
use crate::message::Publication;
use crate::node_state::hash;
use crate::shared::member::ShareGroupMember;
use crate::shared::queue::GroupQueue;
use crate::slots::{GroupEpoch, GroupIndex, NumberSequence, SessionRef};

/// The groups of a shard, by name and by index.
#[derive(Default)]
pub(super) struct GroupTable {
    by_name: HashMap<Box<str>, GroupIndex>,
    groups: Vec<Option<Box<ShareGroup>>>,
    free: Vec<GroupIndex>,
    epochs: NumberSequence,
}

pub(crate) struct ShareGroup {
    pub(super) share_name: Box<str>,
    pub(super) filter: Box<str>,
    pub(super) epoch: GroupEpoch,
    /// Key in the journal while a durable session is a member; 0 otherwise.
    pub(super) key: GroupKey,
    pub(super) strategy: ShareStrategy,
    /// In the order in which they joined.
    pub(super) members: Vec<ShareGroupMember>,
    /// Indices of connected members in `members`, ascending, so that disconnected members cost nothing per message.
    online: Vec<u32>,
    /// Next index of the round robin strategy; selected member of the sticky strategy.
    pub(super) next: usize,
    pub(super) queue: GroupQueue,
}

impl GroupTable {
    pub fn key(share_name: &str, filter: &str) -> Box<str> {
        // A share name has no slash, so the first one ends it.
        format!("{share_name}/{filter}").into()
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the index after the highest one.
    pub fn end(&self) -> GroupIndex {
        GroupIndex(self.groups.len() as u32)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ShareGroup> {
        self.groups.iter().flatten().map(|g| &**g)
    }

    pub fn find(&self, share_name: &str, filter: &str) -> Option<GroupIndex> {
        self.by_name.get(&Self::key(share_name, filter)).copied()
    }

    pub fn get(&self, index: GroupIndex) -> Option<&ShareGroup> {
        self.groups.get(index.index())?.as_deref()
    }

    pub fn get_mut(&mut self, index: GroupIndex) -> Option<&mut ShareGroup> {
        self.groups.get_mut(index.index())?.as_deref_mut()
    }

    pub fn get_current(&mut self, index: GroupIndex, epoch: GroupEpoch) -> Option<&mut ShareGroup> {
        self.get_mut(index).filter(|g| g.epoch == epoch)
    }

    pub fn create(&mut self, share_name: &str, filter: &str, strategy: ShareStrategy) -> GroupIndex {
        let group = ShareGroup {
            share_name: share_name.into(),
            filter: filter.into(),
            epoch: GroupEpoch(self.epochs.next()),
            key: GroupKey::default(),
            strategy,
            members: Vec::new(),
            online: Vec::new(),
            next: 0,
            queue: GroupQueue::default(),
        };
        let index = self.free.pop().unwrap_or_else(|| {
            let added = self.end();
            self.groups.push(None);
            added
        });
        self.groups[index.index()] = Some(Box::new(group));
        self.by_name.insert(Self::key(share_name, filter), index);
        index
    }

    /// Returns a member, if the group still has it.
    pub fn member_mut(
        &mut self,
        index: GroupIndex,
        epoch: GroupEpoch,
        session: SessionRef,
    ) -> Option<&mut ShareGroupMember> {
        let group = self.get_current(index, epoch)?;
        let at = group.position(session)?;
        group.members.get_mut(at)
    }

    /// A member has acknowledged a message.
    pub fn member_acknowledged(&mut self, index: GroupIndex, epoch: GroupEpoch, session: SessionRef) {
        if let Some(member) = self.member_mut(index, epoch, session) {
            member.inflight = member.inflight.saturating_sub(1);
        }
    }

    /// Changes the rights of a member, if the group still has it.
    pub fn set_rights(&mut self, shared: SharedFilter<'_>, session: SessionRef, rights: MemberRights) {
        let index = self.find(shared.share_name, shared.filter);
        if let Some(group) = index.and_then(|index| self.get_mut(index))
            && let Some(at) = group.position(session)
        {
            group.members[at].rights = rights;
        }
    }

    pub fn remove(&mut self, index: GroupIndex) -> Option<Box<ShareGroup>> {
        let group = self.groups[index.index()].take()?;
        self.by_name.remove(&Self::key(&group.share_name, &group.filter));
        self.free.push(index);
        Some(group)
    }
}

impl ShareGroup {
    pub fn share_name(&self) -> &str {
        &self.share_name
    }

    pub fn filter(&self) -> &str {
        &self.filter
    }

    pub fn epoch(&self) -> GroupEpoch {
        self.epoch
    }

    pub fn key(&self) -> GroupKey {
        self.key
    }

    /// Returns the members in the order in which they joined.
    pub fn members(&self) -> &[ShareGroupMember] {
        &self.members
    }

    pub fn queue(&self) -> &GroupQueue {
        &self.queue
    }

    pub fn queue_mut(&mut self) -> &mut GroupQueue {
        &mut self.queue
    }

    /// Returns the reference to this group, which is in slot `index` of this shard.
    pub(super) fn reference(&self, shard: ShardId, index: GroupIndex) -> GroupRef {
        GroupRef {
            shard,
            index,
            epoch: self.epoch,
            key: self.key,
        }
    }

    pub fn is_durable(&self) -> bool {
        self.key.0 != 0
    }

    pub fn position(&self, session: SessionRef) -> Option<usize> {
        self.members.iter().position(|m| m.session == session)
    }

    pub fn has_online(&self) -> bool {
        !self.online.is_empty()
    }

    /// Adds or replaces a member.
    pub fn put(&mut self, member: ShareGroupMember) {
        let is_online = member.is_online;
        let at = match self.position(member.session) {
            Some(at) => {
                let inflight = self.members[at].inflight;
                self.members[at] = ShareGroupMember { inflight, ..member };
                at
            }
            None => {
                self.members.push(member);
                self.members.len() - 1
            }
        };
        self.set_online(at, is_online);
    }

    pub fn set_online(&mut self, at: usize, is_online: bool) {
        self.members[at].is_online = is_online;
        match (self.online.binary_search(&(at as u32)), is_online) {
            (Err(gap), true) => self.online.insert(gap, at as u32),
            (Ok(found), false) => _ = self.online.remove(found),
            (Ok(_), true) | (Err(_), false) => {}
        }
    }

    pub fn remove(&mut self, at: usize) {
        self.set_online(at, false);
        self.members.remove(at);
        for later in self.online.iter_mut().filter(|later| **later > at as u32) {
            *later -= 1;
        }
        if at < self.next {
            // The selected member of the sticky strategy has moved.
            self.next -= 1;
        }
    }

    /// Returns the connected members, starting at the first one at or after `first`.
    pub fn candidates(&self, first: usize) -> impl Iterator<Item = usize> {
        let start = self.online.partition_point(|at| (*at as usize) < first);
        let (before, after) = self.online.split_at(start);
        after.iter().chain(before).map(|at| *at as usize)
    }

    /// Returns a member whose session can queue a message. Members with space come first, then those that keep the
    /// message as long as the group would, then connected ones.
    pub fn reader(
        &self,
        first: usize,
        p: &Publication<'_>,
        has_space: impl Fn(&ShareGroupMember) -> bool,
    ) -> Option<usize> {
        let (before, after) = self.members.split_at(first.min(self.members.len()));
        let all = (first..).zip(after).chain((0..).zip(before));
        let offline = all.filter(|(_, member)| !member.is_online).map(|(at, _)| at);
        let readers = self.candidates(first).chain(offline);
        let rank = |at: &usize| {
            let member = &self.members[*at];
            (!has_space(member), self.is_durable() && !member.is_durable)
        };
        readers.filter(|at| self.members[*at].can_wait_for(p)).min_by_key(rank)
    }

    /// Returns why no member receives a message.
    pub fn reason_without_member(&self, p: &Publication<'_>) -> DropReason {
        match self.members.iter().any(|member| member.rights.can_receive(p.topic)) {
            true => DropReason::NoSharedMember,
            false => DropReason::NotAuthorizedToReceive,
        }
    }

    /// Returns the index at which the search for a connected member starts.
    pub fn first_choice(&mut self, p: &Publication<'_>, random: u64) -> usize {
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
                let readers = online.filter(|at| self.members[*at].rights.can_receive(p.topic));
                readers.min_by_key(|at| self.members[*at].inflight).unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mqtt::SubscriptionOptions;

    use super::*;
    use crate::{SessionEpoch, SessionSlot, ShardId};

    fn member(slot: u32, is_online: bool) -> ShareGroupMember {
        let session = SessionRef {
            shard: ShardId(0),
            session: SessionSlot(slot),
            epoch: SessionEpoch(1),
        };
        ShareGroupMember {
            session,
            rights: MemberRights::default(),
            options: SubscriptionOptions::default(),
            identifier: 0,
            is_online,
            is_durable: false,
            inflight: 0,
            full_until_ms: 0,
            full_for_ms: 0,
        }
    }

    fn group(groups: &mut GroupTable) -> &mut ShareGroup {
        let index = groups.create("name", "filter", ShareStrategy::Sticky);
        groups.get_mut(index).unwrap()
    }

    #[test]
    fn connected_members_are_tracked_through_all_changes() {
        let mut groups = GroupTable::default();
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
    fn candidates_are_the_connected_members_in_a_circle() {
        let mut groups = GroupTable::default();
        let group = group(&mut groups);
        for who in 0..6 {
            group.put(member(who, who % 2 == 1));
        }
        for (first, expected) in [(0, [1, 3, 5]), (2, [3, 5, 1]), (5, [5, 1, 3]), (6, [1, 3, 5])] {
            assert!(group.candidates(first).eq(expected));
        }
    }

    #[test]
    fn sticky_member_stays_selected_when_an_earlier_one_leaves() {
        let mut groups = GroupTable::default();
        let group = group(&mut groups);
        for who in 0..4 {
            group.put(member(who, true));
        }
        group.next = 2;
        group.remove(0);
        assert_eq!(group.members[group.next].session.session, SessionSlot(2));
    }
}
