//! Shared subscriptions: one member of a group receives each message [MQTT-4.8.2].
//!
//! A group (share name and filter) is owned by the shard that the hash of both selects. Its members are sessions of any
//! shard. The group selects among connected members, and queues messages in a bounded queue while there is none. When a
//! member disconnects and another one is connected, its queued messages and its unacknowledged QoS 1 messages return to
//! the group. QoS 2 messages in flight stay with their member [MQTT-4.8.2-4], [MQTT-4.8.2-5].
//!
//! Members join, leave, connect and disconnect in `membership`. `dispatch` selects the member for a message, and
//! `enqueue` queues it if there is none. The queue of a durable group consists of journal positions (`queue`), as do
//! returned messages that are only in the journal (`return_queue`). Both are read and dispatched in parts
//! (`queue_dispatch`). `member_mail` delivers the messages of
//! groups on other shards.

mod dispatch;
mod enqueue;
mod group;
pub(crate) mod member;
mod member_mail;
mod membership;
mod queue;
mod queue_dispatch;
mod return_queue;

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::SharedFilter;

use crate::access::MemberRights;
use crate::config::ShardConfig;
use crate::delivery::GroupRef;
use crate::effect::DropReason;
use crate::encode::EncodedForms;
use crate::mail::{GroupHold, MailRequest};
use crate::message::{Message, Publication};
use crate::shared::group::GroupTable;
use crate::shared::return_queue::ReturnQueue;
use crate::slots::{GroupEpoch, GroupIndex, SessionRef, SessionSlot};
use crate::tick::Tick;

pub(crate) use group::ShareGroup;
pub(crate) use membership::JoinRequest;

/// The share groups whose home is this shard, and the messages that sessions of this shard return to groups.
pub(crate) struct ShareGroups {
    table: GroupTable,
    /// Groups that continue to dispatch queued messages in the next tick.
    dispatching: VecDeque<GroupIndex>,
    returns: ReturnQueue,
}

impl ShareGroups {
    pub fn new(config: &ShardConfig) -> ShareGroups {
        ShareGroups {
            table: GroupTable::default(),
            dispatching: VecDeque::new(),
            returns: ReturnQueue::new(config.group_window),
        }
    }

    /// Continues with the work that did not fit into the last tick.
    pub fn run(&mut self, tick: &mut Tick<'_>) {
        for (member, group) in std::mem::take(&mut tick.core.released_members) {
            self.count_acknowledgement(tick, member, group);
        }
        self.start_return_tick(tick);
        self.continue_dispatch(tick);
    }

    /// Returns whether work is left for the next tick.
    pub fn has_work(&self) -> bool {
        !(self.dispatching.is_empty() && self.returns.is_empty())
    }

    /// Returns the index after the highest one.
    pub fn end(&self) -> GroupIndex {
        self.table.end()
    }

    pub fn iter(&self) -> impl Iterator<Item = &ShareGroup> {
        self.table.iter()
    }

    pub fn get(&self, index: GroupIndex) -> Option<&ShareGroup> {
        self.table.get(index)
    }

    /// Returns a group whose queue a checkpoint may rewrite.
    pub fn get_mut(&mut self, index: GroupIndex) -> Option<&mut ShareGroup> {
        self.table.get_mut(index)
    }

    /// Like `get_mut`, if the slot has not been reused since.
    pub fn get_current(&mut self, index: GroupIndex, epoch: GroupEpoch) -> Option<&mut ShareGroup> {
        self.table.get_current(index, epoch)
    }

    pub fn find(&self, share_name: &str, filter: &str) -> Option<&ShareGroup> {
        self.table.get(self.table.find(share_name, filter)?)
    }

    /// Changes the rights of a member, if the group still has it.
    pub fn set_rights(&mut self, shared: SharedFilter<'_>, session: SessionRef, rights: MemberRights) {
        self.table.set_rights(shared, session, rights);
    }

    /// Dispatches a returned message. `message` is the stored one, if this shard has it.
    pub fn redispatch(
        &mut self,
        tick: &mut Tick<'_>,
        hold: GroupHold,
        p: &Publication<'_>,
        message: Option<Arc<Message>>,
    ) {
        let GroupHold { index, epoch, held_by } = hold;
        if let Some(group) = self.table.get_current(index, epoch) {
            // A group that ended and became durable again has another key in the journal.
            let is_held = held_by.0 != 0 && held_by == group.key;
            let mut forms = message.map_or_else(EncodedForms::default, EncodedForms::of);
            self.dispatch_again(tick, index, p, &mut forms, is_held);
        } else {
            tick.core.stats.drop_message(DropReason::NoSharedMember);
        }
    }

    /// Counts an acknowledgement of a session of this shard, if the strategy needs it.
    pub fn member_acknowledged(&mut self, tick: &mut Tick<'_>, slot: SessionSlot, group: GroupRef) {
        if tick.core.config.counts_inflight() {
            let member = tick.session_ref(slot);
            self.count_acknowledgement(tick, member, group);
        }
    }

    fn count_acknowledgement(&mut self, tick: &mut Tick<'_>, member: SessionRef, group: GroupRef) {
        if group.shard == tick.core.id {
            self.count_acknowledged(group.index, group.epoch, member);
        } else {
            let request = MailRequest::Acknowledged {
                index: group.index,
                epoch: group.epoch,
                member,
            };
            tick.mail.request(group.shard, request);
        }
    }

    /// A member has acknowledged a message of a group of this shard.
    pub fn count_acknowledged(&mut self, index: GroupIndex, epoch: GroupEpoch, member: SessionRef) {
        self.table.member_acknowledged(index, epoch, member);
    }
}
