//! Shared subscriptions: one member of a group receives each message [MQTT-4.8.2].
//!
//! A group (share name and filter) is owned by the shard that the hash of both selects. Its members are sessions of any
//! shard. The group selects among connected members, and queues messages in a bounded queue while there is none. When a
//! member disconnects and another one is connected, its queued messages and its unacknowledged QoS 1 messages return to
//! the group. QoS 2 messages in flight stay with their member [MQTT-4.8.2-4], [MQTT-4.8.2-5].
//!
//! The queue of a durable group consists of journal positions (`queue`), as do returned messages that are only in the
//! journal (`return_queue`). Both are read and dispatched in parts (`queue_dispatch`).

mod dispatch;
mod group;
mod queue;
mod queue_dispatch;
mod return_queue;

use std::sync::Arc;

use mqtt::SharedFilter;

use crate::access::MemberRights;
use crate::deliver::EncodedForms;
use crate::durable::journaling::ReturnedEntry;
use crate::effect::{DropReason, Now, ShardId};
use crate::mail::{Envelope, GroupHold, MailRequest};
use crate::message::{Message, Publication};
use crate::node_state::hash;
use crate::outgoing::GroupRef;
use crate::router::{InterestedSession, Subscriber};
use crate::session::{Session, SubscriptionKind};
use crate::shard::Shard;
use crate::slots::{GroupIndex, SessionRef, SessionSlot, SubscribeTicket};
use crate::subscribe::ParsedFilter;

pub(crate) use group::{ShareGroup, ShareGroupMember, ShareGroups};
pub use queue_dispatch::ReturnedMessage;
pub(crate) use return_queue::{RETURNED_WINDOWS, ReturnQueue};

/// Returns the home shard of a group.
pub(crate) fn group_home(share_name: &str, filter: &str, shards: u16) -> ShardId {
    ShardId((hash(share_name).wrapping_add(hash(filter)) % u64::from(shards)) as u16)
}

fn shared_filters(session: &Session) -> Vec<String> {
    let subscriptions = session.subscriptions.iter();
    let shared = subscriptions.filter(|(_, subscription)| subscription.kind == SubscriptionKind::Shared);
    shared.map(|(filter, _)| filter.to_owned()).collect()
}

impl Shard {
    pub(crate) fn home_of_share_group(&self, share_name: &str, filter: &str) -> ShardId {
        group_home(share_name, filter, self.core.shards)
    }

    /// Adds a session to a group. Returns true if another shard must answer with `MailRequest::Joined`.
    pub(crate) fn join_group(
        &mut self,
        now: Now,
        slot: SessionSlot,
        shared: SharedFilter<'_>,
        subscription: InterestedSession,
        ticket: SubscribeTicket,
    ) -> bool {
        let session = self.core.sessions.at(slot);
        let is_online = session.conn.is_some();
        let member = ShareGroupMember {
            rights: MemberRights::of(session.access.as_ref(), shared.filter),
            session: self.session_ref(slot),
            options: subscription.options,
            identifier: subscription.identifier,
            is_online,
            is_durable: self.core.sessions.link(slot).is_durable,
            inflight: 0,
            full_until_ms: 0,
            full_for_ms: 0,
        };
        let home = self.home_of_share_group(shared.share_name, shared.filter);
        if home == self.core.id {
            self.add_member(now, shared.share_name, shared.filter, member);
            return false;
        }
        self.mail.request(
            home,
            MailRequest::Join {
                share_name: shared.share_name.into(),
                filter: shared.filter.into(),
                member,
                ticket,
            },
        );
        true
    }

    /// Removes a session from a group. Returns true if another shard must answer the ticket with `MailRequest::Joined`.
    pub(crate) fn leave_group(
        &mut self,
        slot: SessionSlot,
        shared: SharedFilter<'_>,
        ticket: Option<SubscribeTicket>,
    ) -> bool {
        let member = self.session_ref(slot);
        let home = self.home_of_share_group(shared.share_name, shared.filter);
        if home == self.core.id {
            self.remove_member(shared.share_name, shared.filter, member);
            return false;
        }
        let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
        self.mail.request(
            home,
            MailRequest::Leave {
                share_name,
                filter,
                member,
                ticket,
            },
        );
        ticket.is_some()
    }

    /// Informs the groups of a session that its access rules have changed.
    pub(crate) fn announce_member_rights(&mut self, slot: SessionSlot) {
        let member = self.session_ref(slot);
        for filter in shared_filters(self.core.sessions.at(slot)) {
            let Ok(ParsedFilter::Shared(shared)) = ParsedFilter::parse(&filter) else {
                continue;
            };
            let rights = MemberRights::of(self.core.sessions.at(slot).access.as_ref(), shared.filter);
            let home = self.home_of_share_group(shared.share_name, shared.filter);
            if home == self.core.id {
                self.groups.set_rights(shared, member, rights);
            } else {
                let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
                let request = MailRequest::MemberRights {
                    share_name,
                    filter,
                    member,
                    rights,
                };
                self.mail.request(home, request);
            }
        }
    }

    /// Informs the groups of a session that it has connected or disconnected.
    pub(crate) fn announce_member_state(&mut self, now: Now, slot: SessionSlot, is_online: bool) {
        let member = self.session_ref(slot);
        for filter in shared_filters(self.core.sessions.at(slot)) {
            let Ok(ParsedFilter::Shared(shared)) = ParsedFilter::parse(&filter) else {
                continue;
            };
            let home = self.home_of_share_group(shared.share_name, shared.filter);
            if home == self.core.id {
                self.set_member_state(now, shared.share_name, shared.filter, member, is_online);
            } else {
                let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
                self.mail.request(
                    home,
                    MailRequest::MemberState {
                        share_name,
                        filter,
                        member,
                        is_online,
                    },
                );
            }
        }
    }

    pub(crate) fn add_member(&mut self, now: Now, share_name: &str, filter: &str, member: ShareGroupMember) {
        let index = match self.groups.find(share_name, filter) {
            Some(index) => index,
            None => self.create_group(share_name, filter),
        };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let had_online = group.has_online();
        group.put(member);
        self.update_group_durability(index);
        if !had_online {
            self.reclaim_from_disconnected(now, index);
        }
        self.dispatch_queue(now, index);
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
        self.update_group_durability(index);
        self.end_if_empty(index);
    }

    /// Ends groups whose last member left before a crash without the commit of that record.
    pub(crate) fn end_empty_groups(&mut self) {
        let mut index = GroupIndex::FIRST;
        while index < self.groups.end() {
            self.update_group_durability(index);
            self.end_if_empty(index);
            index = index.next();
        }
    }

    fn end_if_empty(&mut self, index: GroupIndex) {
        let Some(group) = self.groups.get_mut(index).filter(|group| group.members.is_empty()) else {
            return;
        };
        let filter = group.filter.clone();
        self.core.invalidate_recipients();
        self.router.remove(&filter, Subscriber::Group(index));
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
                self.reclaim_from_disconnected(now, index);
            }
            self.dispatch_queue(now, index);
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

    /// The first member has connected. It may receive messages that the disconnected members have not acknowledged.
    fn reclaim_from_disconnected(&mut self, now: Now, index: GroupIndex) {
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

    /// Requests the return of the messages of a disconnected member.
    fn reclaim(&mut self, now: Now, member: SessionRef, group: GroupRef) {
        if member.shard == self.core.id {
            self.start_or_queue_reclaim(now, member.session, member.epoch, group);
        } else {
            let request = MailRequest::Reclaim {
                session: member.session,
                epoch: member.epoch,
                group,
            };
            self.mail.request(member.shard, request);
        }
    }

    /// Returns messages of a session to their groups, at most `max` cold ones. Returns the number of cold ones.
    pub(crate) fn return_shared(
        &mut self,
        now: Now,
        slot: SessionSlot,
        max: usize,
        wanted: impl Fn(GroupRef) -> bool,
    ) -> usize {
        let stats = &mut self.core.stats;
        let session = self.core.sessions.get_mut(slot).expect("the session exists");
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
            let held_by = self.core.ledger.record_returned(
                &self.core.sessions,
                slot,
                ReturnedEntry {
                    seq: delivery.seq,
                    qos: delivery.qos,
                    place,
                },
                group.key,
            );
            let hold = GroupHold::of(group, held_by);
            if group.shard == self.core.id {
                let p = delivery.message.publication();
                self.redispatch(now, hold, &p, Some(delivery.message.clone()));
            } else {
                let envelope = Envelope::Return(hold);
                self.mail
                    .publication(group.shard, envelope, &delivery.message.publication());
            }
        }
        if !cold.is_empty() {
            self.return_cold(now, slot, cold);
        }
        count
    }

    pub(crate) fn redispatch(&mut self, now: Now, hold: GroupHold, p: &Publication<'_>, message: Option<Arc<Message>>) {
        let GroupHold { index, epoch, held_by } = hold;
        if let Some(group) = self.groups.get_current(index, epoch) {
            // A group that ended and became durable again has another key in the journal.
            let is_held = held_by.0 != 0 && held_by == group.key;
            let mut forms = message.map_or_else(EncodedForms::default, EncodedForms::of);
            self.dispatch_again(now, index, p, &mut forms, is_held);
        } else {
            self.core.stats.drop_message(DropReason::NoSharedMember);
        }
    }

    /// Counts an acknowledgement of a member, if the strategy needs it.
    pub(crate) fn member_acknowledged(&mut self, slot: SessionSlot, group: GroupRef) {
        if self.core.config.counts_inflight() {
            self.count_member_acknowledgement(self.session_ref(slot), group);
        }
    }

    pub(crate) fn count_member_acknowledgement(&mut self, member: SessionRef, group: GroupRef) {
        if group.shard == self.core.id {
            self.groups.member_acknowledged(group.index, group.epoch, member);
        } else {
            let request = MailRequest::Acknowledged {
                index: group.index,
                epoch: group.epoch,
                member,
            };
            self.mail.request(group.shard, request);
        }
    }
}
