//! Passes mail of other shards to the component that handles it, except messages to route and to retain.

use mqtt::SharedFilter;

use crate::effect::Now;
use crate::mail::{Envelope, MailRequest};
use crate::message::Publication;
use crate::outgoing_mail::OutgoingMail;
use crate::shard::Shard;
use crate::slots::{ReplayId, SessionRef, SubscribeTicket};

impl Shard {
    pub(crate) fn request(&mut self, now: Now, request: MailRequest) {
        let (mut tick, parts) = self.split(now);
        let (tick, groups, router) = (&mut tick, parts.groups, parts.router);
        match request {
            MailRequest::Join {
                share_name,
                filter,
                member,
                ticket,
            } => {
                let session = member.session();
                groups.add_member(tick, router, shared(&share_name, &filter), member);
                confirm_membership(tick.mail, session, ticket);
            }
            MailRequest::Joined { session, epoch, ticket } => self.joined(now, session, epoch, ticket),
            MailRequest::Leave {
                share_name,
                filter,
                member,
                ticket,
            } => {
                groups.remove_member(tick, router, shared(&share_name, &filter), member);
                if let Some(ticket) = ticket {
                    confirm_membership(tick.mail, member, ticket);
                }
            }
            MailRequest::MemberState {
                share_name,
                filter,
                member,
                is_online,
            } => groups.set_member_state(tick, shared(&share_name, &filter), member, is_online),
            MailRequest::MemberRights {
                share_name,
                filter,
                member,
                rights,
            } => groups.set_rights(shared(&share_name, &filter), member, rights),
            MailRequest::Barrier { is_end } => parts.checkpoints.barrier_reached(is_end),
            MailRequest::Reclaim { session, epoch, group } => {
                groups.start_or_queue_return(tick, session, epoch, group);
            }
            MailRequest::ReturnCold { index, epoch, returned } => {
                groups.accept_returned(tick, index, epoch, &returned);
            }
            MailRequest::Full { index, epoch, member } => groups.member_is_full(now, index, epoch, member),
            MailRequest::Acknowledged { index, epoch, member } => groups.count_acknowledged(index, epoch, member),
            MailRequest::ReplayRequest(request) => parts.retained.answer(tick, request),
            MailRequest::ReplayEnd {
                session,
                epoch,
                number,
                cursor,
            } => {
                let id = ReplayId { session, epoch, number };
                parts.retained.answer_ended(tick, id, cursor);
            }
        }
    }

    /// Handles publications for one session or one group.
    pub(crate) fn addressed_publication(&mut self, now: Now, envelope: Envelope, p: &Publication<'_>) {
        let (mut tick, parts) = self.split(now);
        match envelope {
            Envelope::Member {
                session,
                epoch,
                subscription,
            } => parts
                .groups
                .deliver_from_group(&mut tick, session, epoch, subscription, p),
            Envelope::Return(hold) => parts.groups.redispatch(&mut tick, hold, p, None),
            Envelope::Replay { session, epoch, number } => {
                let id = ReplayId { session, epoch, number };
                parts.retained.deliver_answer(&mut tick, id, p);
            }
            Envelope::Route { .. } | Envelope::Late { .. } | Envelope::Retain { .. } => {}
        }
    }
}

/// Confirms that a member has joined or left its group.
fn confirm_membership(mail: &mut OutgoingMail, member: SessionRef, ticket: SubscribeTicket) {
    let (session, epoch) = (member.session, member.epoch);
    mail.request(member.shard, MailRequest::Joined { session, epoch, ticket });
}

fn shared<'a>(share_name: &'a str, filter: &'a str) -> SharedFilter<'a> {
    SharedFilter { share_name, filter }
}
