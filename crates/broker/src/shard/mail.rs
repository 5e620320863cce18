//! Mail between shards: passes each item to the component that handles it.

use mqtt::SharedFilter;

use crate::durable::pending_records::PendingRecords;
use crate::durable::record::JournalRecord;
use crate::effect::{Now, ShardId};
use crate::mail::{Envelope, Mail, MailItem, MailRequest};
use crate::message::{Publication, RecordLocation};
use crate::outgoing_mail::OutgoingMail;
use crate::router::{Destinations, RetainOrigin};
use crate::shard::Shard;
use crate::slots::{ReplayId, SessionRef, SubscribeTicket};
use crate::subscribe;
use crate::tick::Tick;

impl Shard {
    /// Handles mail of another shard.
    pub fn mail(&mut self, now: Now, mail: Mail) {
        self.core.broadcast.open();
        let from = mail.from();
        let mut routed = RecordLocation::NONE;
        let mut reader = mail.read();
        while let Some(item) = reader.next() {
            if !matches!(item, MailItem::Publication(Envelope::Route { .. }, _)) {
                self.core.end_broadcast_run();
            }
            let (mut tick, parts) = self.split(now);
            let (router, mut to) = parts.routing();
            match item {
                MailItem::Publication(Envelope::Route { stamp }, p) => {
                    routed = routed.max(p.place);
                    if stamp > 0 {
                        to.retained.arrived(p.topic, ShardId(from), stamp);
                    }
                    let is_recorded = routed.position().is_some();
                    tick.core.ledger.set_routing_in_progress(is_recorded);
                    router.route_local(&mut tick, to.groups, &p);
                }
                MailItem::Publication(Envelope::Late { from, stamp }, p) => {
                    routed = routed.max(p.place);
                    if !to.retained.is_overtaken(p.topic, from, stamp) {
                        router.route_local(&mut tick, to.groups, &p);
                    }
                }
                MailItem::Publication(Envelope::Retain { routed_by, stamp }, p) => {
                    routed = routed.max(p.place);
                    let from = ShardId(from);
                    let origin = RetainOrigin { from, routed_by, stamp };
                    router.retain_from(&mut tick, &mut to, origin, &p);
                }
                MailItem::Publication(envelope, p) => deliver_addressed(&mut tick, &mut to, envelope, &p),
                MailItem::MailRequest(request) => self.request(now, request),
            }
        }
        if let Some(up_to) = routed.position() {
            let by = self.core.id.0;
            self.core.ledger.record(&JournalRecord::Routed { by, from, up_to });
            self.core.ledger.set_routing_in_progress(false);
        }
        self.core.close_broadcast();
    }

    /// Removes and returns the mail for another shard.
    pub fn take_mail(&mut self, to: ShardId) -> Option<Mail> {
        let base = self.core.ledger.records().map_or(0, PendingRecords::base);
        self.mail.take(to, self.core.id, base)
    }

    fn request(&mut self, now: Now, request: MailRequest) {
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
            MailRequest::Joined { session, epoch, ticket } => {
                let answered = subscribe::joined(tick, session, epoch, ticket);
                self.answered(now, session, answered);
            }
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
                empty,
            } => {
                let id = ReplayId { session, epoch, number };
                parts.retained.answer_ended(tick, id, cursor, &empty);
            }
        }
    }
}

/// Handles publications for one session or one group.
fn deliver_addressed(tick: &mut Tick<'_>, to: &mut Destinations<'_>, envelope: Envelope, p: &Publication<'_>) {
    match envelope {
        Envelope::Member {
            session,
            epoch,
            subscription,
        } => to.groups.deliver_from_group(tick, session, epoch, subscription, p),
        Envelope::Return(hold) => to.groups.redispatch(tick, hold, p, None),
        Envelope::Replay { session, epoch, number } => {
            let id = ReplayId { session, epoch, number };
            to.retained.deliver_answer(tick, id, p);
        }
        Envelope::Route { .. } | Envelope::Late { .. } | Envelope::Retain { .. } => {}
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
