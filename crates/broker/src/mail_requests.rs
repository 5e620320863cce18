//! Handles mail of other shards, except messages to route and to retain.

use mqtt::{QoS, SharedFilter};

use crate::deliver::{DeliverResult, EncodedForms};
use crate::durable::journaling::RecordFields;
use crate::durable::record::GroupKey;
use crate::effect::{DropReason, Now};
use crate::lifecycle::granted;
use crate::mail::{Envelope, GroupHold, MailRequest, MemberSubscription};
use crate::message::Publication;
use crate::outgoing::GroupRef;
use crate::shard::Shard;
use crate::shared::ReturnedMessage;
use crate::slots::{ReplayId, SessionEpoch, SessionRef, SessionSlot, SubscribeTicket};

impl Shard {
    pub(crate) fn request(&mut self, now: Now, request: MailRequest) {
        match request {
            MailRequest::Join {
                share_name,
                filter,
                member,
                ticket,
            } => {
                let session = member.session;
                self.add_member(now, &share_name, &filter, member);
                self.confirm_membership(session, ticket);
            }
            MailRequest::Joined { session, epoch, ticket } => self.joined(now, session, epoch, ticket),
            MailRequest::Leave {
                share_name,
                filter,
                member,
                ticket,
            } => {
                self.remove_member(&share_name, &filter, member);
                if let Some(ticket) = ticket {
                    self.confirm_membership(member, ticket);
                }
            }
            MailRequest::MemberState {
                share_name,
                filter,
                member,
                is_online,
            } => {
                self.set_member_state(now, &share_name, &filter, member, is_online);
            }
            MailRequest::MemberRights {
                share_name,
                filter,
                member,
                rights,
            } => {
                let (share_name, filter) = (&*share_name, &*filter);
                self.groups
                    .set_rights(SharedFilter { share_name, filter }, member, rights);
            }
            MailRequest::Barrier { is_end } => self.checkpoints.barrier_reached(is_end),
            MailRequest::Reclaim { session, epoch, group } => self.start_or_queue_reclaim(now, session, epoch, group),
            MailRequest::ReturnCold { index, epoch, returned } => self.accept_returned(now, index, epoch, &returned),
            MailRequest::Full { index, epoch, member } => self.groups.member_is_full(now, index, epoch, member),
            MailRequest::Acknowledged { index, epoch, member } => self.groups.member_acknowledged(index, epoch, member),
            MailRequest::ReplayRequest(request) => {
                let (mut tick, parts) = self.split(now);
                parts.retained.answer(&mut tick, request);
            }
            MailRequest::ReplayEnd {
                session,
                epoch,
                number,
                cursor,
            } => {
                let id = ReplayId { session, epoch, number };
                let (mut tick, parts) = self.split(now);
                parts.retained.answer_ended(&mut tick, id, cursor);
            }
        }
    }

    /// Confirms that a member has joined or left its group.
    fn confirm_membership(&mut self, member: SessionRef, ticket: SubscribeTicket) {
        let (session, epoch) = (member.session, member.epoch);
        self.mail
            .request(member.shard, MailRequest::Joined { session, epoch, ticket });
    }

    /// Returns a message to its group because the member's queue is full. The group queues it before all others,
    /// because it is older.
    fn send_back(&mut self, session: SessionSlot, epoch: SessionEpoch, group: GroupRef, p: &Publication<'_>) {
        let member = SessionRef {
            shard: self.core.id,
            session,
            epoch,
        };
        if self.core.config.counts_inflight() {
            self.count_member_acknowledgement(member, group);
        }
        let mail = self.mail.to(group.shard);
        let (index, epoch, held_by) = (group.index, group.epoch, group.key);
        mail.request(MailRequest::Full { index, epoch, member });
        match p.place.position().filter(|_| held_by.0 != 0) {
            Some(message) => mail.request(MailRequest::ReturnCold {
                index,
                epoch,
                returned: vec![ReturnedMessage { message, held_by }],
            }),
            None => mail.publication(Envelope::Return(GroupHold::of(group, held_by)), p),
        }
    }

    /// Handles publications for one session or one group.
    pub(crate) fn shared_publication(&mut self, now: Now, envelope: Envelope, p: &Publication<'_>) {
        match envelope {
            Envelope::Member {
                session,
                epoch,
                subscription,
            } => {
                let MemberSubscription {
                    group,
                    maximum_qos,
                    is_assigned,
                    ..
                } = subscription;
                let is_online = self.core.sessions.live(session, epoch).map(|s| s.conn.is_some());
                let needs_ack = granted(p.qos, maximum_qos) != QoS::AtMostOnce;
                let has_space = !needs_ack || is_online.is_some() && self.core.has_space(session, p.stored_bytes());
                if is_online.is_some() && self.core.is_forbidden(session, p.topic) {
                    // A right was revoked while the message was in transit. The group knows that when the message
                    // arrives, so it selects another member.
                    if needs_ack && !is_assigned {
                        self.member_acknowledged(session, group);
                    }
                    let held_by = if needs_ack { group.key } else { GroupKey::default() };
                    let envelope = Envelope::Return(GroupHold::of(group, held_by));
                    self.mail.publication(group.shard, envelope, p);
                } else if is_online.is_some() && is_assigned {
                    let mut forms = EncodedForms::default();
                    self.deliver_member(now, session, p, subscription, &mut forms);
                    let ledger = &mut self.core.ledger;
                    ledger.record_message(now, p, forms.stored(), RecordFields::default());
                    ledger.record_group_dropped(group.key, p.place);
                } else if is_online == Some(true) && !has_space {
                    self.send_back(session, epoch, group, p);
                } else if is_online == Some(true) {
                    let mut forms = EncodedForms::default();
                    let group_retains = self.core.ledger.group_retains(
                        self.core.sessions.link(session),
                        granted(p.qos, maximum_qos),
                        group.key,
                    );
                    if !self.core.sessions.link(session).is_durable && needs_ack && !group_retains {
                        self.core.ledger.record_group_dropped(group.key, p.place);
                    }
                    let delivered = self.deliver_member(now, session, p, subscription, &mut forms);
                    if !group_retains || matches!(delivered, DeliverResult::Dropped(_)) {
                        self.core.ledger.record_group_delivery(now, group.key, p, &forms);
                    }
                } else if needs_ack {
                    // The member disconnected while the message was in transit.
                    if self.core.config.counts_inflight() && !is_assigned {
                        self.count_member_acknowledgement(
                            SessionRef {
                                shard: self.core.id,
                                session,
                                epoch,
                            },
                            group,
                        );
                    }
                    let envelope = Envelope::Return(GroupHold::of(group, group.key));
                    self.mail.publication(group.shard, envelope, p);
                } else {
                    // Another member may have returned it to the group, which then has it in the journal.
                    self.core.ledger.record_group_dropped(group.key, p.place);
                    self.core.stats.drop_message(DropReason::NoSharedMember);
                }
            }
            Envelope::Return(hold) => self.redispatch(now, hold, p, None),
            Envelope::Replay { session, epoch, number } => {
                let id = ReplayId { session, epoch, number };
                let (mut tick, parts) = self.split(now);
                parts.retained.deliver_answer(&mut tick, id, p);
            }
            Envelope::Route { .. } | Envelope::Late { .. } | Envelope::Retain { .. } => {}
        }
    }
}
