//! Members of share groups: sessions join, leave, connect and disconnect, and a group becomes durable with its first
//! durable member.

use mqtt::{SharedFilter, SubscriptionOptions};

use crate::access::MemberRights;
use crate::delivery::GroupRef;
use crate::durable::record::{JournalRecord, SizedMessage};
use crate::durable::recovery::RecoveredGroup;
use crate::effect::{DropReason, ShardId};
use crate::mail::MailRequest;
use crate::node_state::group_home_shard;
use crate::parsed_filter::ParsedFilter;
use crate::router::{InterestedSession, Router, Subscriber};
use crate::session::{Session, SubscriptionKind};
use crate::shared::ShareGroups;
use crate::shared::group::ShareGroup;
use crate::shared::member::ShareGroupMember;
use crate::slots::{GroupIndex, SessionRef, SessionSlot, SubscribeTicket};
use crate::tick::Tick;

/// A session of this shard subscribes to a shared filter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinRequest<'a> {
    pub session: SessionSlot,
    pub filter: SharedFilter<'a>,
    pub subscription: InterestedSession,
    /// SUBSCRIBE whose answer waits if the home shard of the group is another one.
    pub ticket: SubscribeTicket,
}

impl ShareGroups {
    /// Adds a session to a group. Returns true if another shard must answer with `MailRequest::Joined`.
    pub fn join(&mut self, tick: &mut Tick<'_>, router: &mut Router, request: JoinRequest<'_>) -> bool {
        let JoinRequest {
            session: slot,
            filter: shared,
            subscription,
            ticket,
        } = request;
        let session = tick.core.sessions.at(slot);
        let member = ShareGroupMember {
            rights: MemberRights::of(session.access.as_ref(), shared.filter),
            session: tick.session_ref(slot),
            options: subscription.options,
            identifier: subscription.identifier,
            is_online: session.conn.is_some(),
            is_durable: tick.core.sessions.link(slot).is_durable(),
            inflight: 0,
            full_until_ms: 0,
            full_for_ms: 0,
        };
        let home = home_of(tick, shared);
        if home == tick.core.id {
            self.add_member(tick, router, shared, member);
            return false;
        }
        tick.mail.request(
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
    pub fn leave(
        &mut self,
        tick: &mut Tick<'_>,
        router: &mut Router,
        slot: SessionSlot,
        shared: SharedFilter<'_>,
        ticket: Option<SubscribeTicket>,
    ) -> bool {
        let member = tick.session_ref(slot);
        let home = home_of(tick, shared);
        if home == tick.core.id {
            self.remove_member(tick, router, shared, member);
            return false;
        }
        let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
        tick.mail.request(
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
    pub fn announce_rights(&mut self, tick: &mut Tick<'_>, slot: SessionSlot) {
        let member = tick.session_ref(slot);
        for filter in shared_filters(tick.core.sessions.at(slot)) {
            let Ok(ParsedFilter::Shared(shared)) = ParsedFilter::parse(&filter) else {
                continue;
            };
            let rights = MemberRights::of(tick.core.sessions.at(slot).access.as_ref(), shared.filter);
            let home = home_of(tick, shared);
            if home == tick.core.id {
                self.set_rights(shared, member, rights);
            } else {
                let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
                let request = MailRequest::MemberRights {
                    share_name,
                    filter,
                    member,
                    rights,
                };
                tick.mail.request(home, request);
            }
        }
    }

    /// Informs the groups of a session that it has connected or disconnected.
    pub fn announce_state(&mut self, tick: &mut Tick<'_>, slot: SessionSlot, is_online: bool) {
        let member = tick.session_ref(slot);
        for filter in shared_filters(tick.core.sessions.at(slot)) {
            let Ok(ParsedFilter::Shared(shared)) = ParsedFilter::parse(&filter) else {
                continue;
            };
            let home = home_of(tick, shared);
            if home == tick.core.id {
                self.set_member_state(tick, shared, member, is_online);
            } else {
                let (share_name, filter) = (shared.share_name.into(), shared.filter.into());
                tick.mail.request(
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

    pub fn add_member(
        &mut self,
        tick: &mut Tick<'_>,
        router: &mut Router,
        shared: SharedFilter<'_>,
        member: ShareGroupMember,
    ) {
        let index = match self.table.find(shared.share_name, shared.filter) {
            Some(index) => index,
            None => self.create(tick, router, shared),
        };
        let Some(group) = self.table.get_mut(index) else {
            return;
        };
        let had_online = group.has_online();
        group.put(member);
        update_durability(tick, router, group);
        if !had_online {
            self.reclaim_from_disconnected(tick, index);
        }
        self.dispatch_queue(tick, index);
    }

    pub fn remove_member(
        &mut self,
        tick: &mut Tick<'_>,
        router: &mut Router,
        shared: SharedFilter<'_>,
        session: SessionRef,
    ) {
        let Some(index) = self.table.find(shared.share_name, shared.filter) else {
            return;
        };
        let Some(group) = self.table.get_mut(index) else {
            return;
        };
        if let Some(at) = group.position(session) {
            group.remove(at);
        }
        update_durability(tick, router, group);
        self.end_if_empty(tick, router, index);
    }

    /// Ends groups whose last member left before a crash without the commit of that record.
    pub fn end_empty(&mut self, tick: &mut Tick<'_>, router: &mut Router) {
        let mut index = GroupIndex::FIRST;
        while index < self.table.end() {
            if let Some(group) = self.table.get_mut(index) {
                update_durability(tick, router, group);
            }
            self.end_if_empty(tick, router, index);
            index = index.next();
        }
    }

    fn end_if_empty(&mut self, tick: &mut Tick<'_>, router: &mut Router, index: GroupIndex) {
        let Some(group) = self.table.get(index).filter(|group| group.members.is_empty()) else {
            return;
        };
        tick.core.invalidate_recipients();
        router.remove(&group.filter, Subscriber::Group(index));
        let stats = &mut tick.core.stats;
        if let Some(group) = self.table.remove(index) {
            stats.drops[DropReason::NoSharedMember as usize] += group.queue.len() as u64;
            stats.queued_messages -= group.queue.len() as u64;
            stats.queued_bytes -= group.queue.bytes() as u64;
        }
        stats.shared_groups = self.table.len() as u64;
    }

    /// Creates a group without members.
    fn create(&mut self, tick: &mut Tick<'_>, router: &mut Router, shared: SharedFilter<'_>) -> GroupIndex {
        let SharedFilter { share_name, filter } = shared;
        let config = &tick.core.config;
        let strategy = config.shared_strategies.get(share_name).copied();
        let index = self
            .table
            .create(share_name, filter, strategy.unwrap_or(config.shared_strategy));
        let interested = InterestedSession {
            identifier: 0,
            options: SubscriptionOptions::default(),
        };
        tick.core.invalidate_recipients();
        router.add(filter, Subscriber::Group(index), interested);
        tick.core.stats.shared_groups = self.table.len() as u64;
        index
    }

    /// Restores a durable group. The messages that it holds are read when a member needs them.
    pub fn restore(&mut self, tick: &mut Tick<'_>, router: &mut Router, recovered: RecoveredGroup) -> Option<GroupRef> {
        let shared = SharedFilter {
            share_name: &recovered.share_name,
            filter: &recovered.filter,
        };
        let index = self.create(tick, router, shared);
        router.update_durable(&recovered.filter, true);
        let group = self.table.get_mut(index)?;
        group.key = recovered.key;
        tick.core.stats.queued_messages += recovered.messages.len() as u64;
        group.queue.push_cold(recovered.messages.into());
        tick.core.stats.queued_bytes += group.queue.bytes() as u64;
        Some(group.reference(tick.core.id, index))
    }

    pub fn set_member_state(
        &mut self,
        tick: &mut Tick<'_>,
        shared: SharedFilter<'_>,
        session: SessionRef,
        is_online: bool,
    ) {
        let Some(index) = self.table.find(shared.share_name, shared.filter) else {
            return;
        };
        let Some(group) = self.table.get_mut(index) else {
            return;
        };
        let Some(at) = group.position(session) else { return };
        let had_online = group.has_online();
        group.set_online(at, is_online);
        let (reference, has_others) = (group.reference(tick.core.id, index), group.has_online());
        if is_online {
            if !had_online {
                self.reclaim_from_disconnected(tick, index);
            }
            self.dispatch_queue(tick, index);
        } else if has_others {
            self.reclaim(tick, session, reference);
        }
    }

    /// The first member has connected. It may receive messages that the disconnected members have not acknowledged.
    fn reclaim_from_disconnected(&mut self, tick: &mut Tick<'_>, index: GroupIndex) {
        let Some(group) = self.table.get(index).filter(|group| group.has_online()) else {
            return;
        };
        let reference = group.reference(tick.core.id, index);
        let absent = group.members.iter().filter(|member| !member.is_online);
        let absent: Vec<SessionRef> = absent.map(|member| member.session).collect();
        for member in absent {
            self.reclaim(tick, member, reference);
        }
    }

    /// Requests the return of the messages of a disconnected member.
    fn reclaim(&mut self, tick: &mut Tick<'_>, member: SessionRef, group: GroupRef) {
        if member.shard == tick.core.id {
            self.start_or_queue_return(tick, member.session, member.epoch, group);
        } else {
            let request = MailRequest::Reclaim {
                session: member.session,
                epoch: member.epoch,
                group,
            };
            tick.mail.request(member.shard, request);
        }
    }
}

/// Makes a group durable with its first durable member, and non-durable after the last.
fn update_durability(tick: &mut Tick<'_>, router: &mut Router, group: &mut ShareGroup) {
    let Some(ledger) = tick.core.ledger.records_mut() else {
        return;
    };
    let is_durable = group.members.iter().any(|member| member.is_durable);
    if is_durable == group.is_durable() {
        return;
    }
    if is_durable {
        group.key = ledger.next_group();
        ledger.record(&JournalRecord::Group {
            group: group.key,
            share_name: &group.share_name,
            filter: &group.filter,
        });
        // Queued for members that are or were not durable, and still being dispatched.
        let warm = group.queue.warm().filter_map(|message| message.recorded());
        let cold = group.queue.part(0, usize::MAX).into_iter().map(|(_, message)| message);
        ledger.record_held(group.key, &cold.chain(warm).collect::<Vec<SizedMessage>>());
    } else {
        let group = std::mem::take(&mut group.key);
        ledger.record(&JournalRecord::GroupEnded { group });
    }
    router.update_durable(&group.filter, is_durable);
}

fn home_of(tick: &Tick<'_>, shared: SharedFilter<'_>) -> ShardId {
    group_home_shard(shared.share_name, shared.filter, tick.core.shards)
}

fn shared_filters(session: &Session) -> Vec<String> {
    let subscriptions = session.subscriptions.iter();
    let shared = subscriptions.filter(|(_, subscription)| subscription.kind == SubscriptionKind::Shared);
    shared.map(|(filter, _)| filter.to_owned()).collect()
}
