//! What other shards' mail asks of this one, apart from messages to route and to retain.

use mqtt::QoS;

use crate::deliver::{Delivered, Forms};
use crate::effect::{DropReason, Now};
use crate::lifecycle::granted;
use crate::mail::{Envelope, Letter, SessionRef};
use crate::message::Publication;
use crate::outgoing::GroupRef;
use crate::shard::Shard;
use crate::shared::GivenBack;

impl Shard {
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
                self.answer_member(session, ticket);
            }
            Letter::Joined { session, epoch, ticket } => self.joined(now, session, epoch, ticket),
            Letter::Leave {
                share_name,
                filter,
                member,
                ticket,
            } => {
                self.remove_member(&share_name, &filter, member);
                if let Some(ticket) = ticket {
                    self.answer_member(member, ticket);
                }
            }
            Letter::MemberState {
                share_name,
                filter,
                member,
                is_online,
            } => {
                self.set_member_state(now, &share_name, &filter, member, is_online);
            }
            Letter::Barrier { is_end } => self.barriers[usize::from(is_end)] += 1,
            Letter::Reclaim { session, epoch, group } => self.reclaim_in_turn(now, session, epoch, group),
            Letter::TakeBack {
                index,
                epoch,
                given_back,
            } => self.take_back(now, index, epoch, &given_back),
            Letter::Full { index, epoch, member } => self.member_is_full(now, index, epoch, member),
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

    /// What a member has asked of its group is done.
    fn answer_member(&mut self, member: SessionRef, ticket: u32) {
        let (session, epoch) = (member.session, member.epoch);
        self.mail_out[usize::from(member.shard.0)].letter(Letter::Joined { session, epoch, ticket });
    }

    /// A member has no space for what its group has sent it: it goes before all else that the group has, because it is older.
    fn send_back(&mut self, session: u32, epoch: u32, group: GroupRef, p: &Publication<'_>) {
        let member = SessionRef {
            shard: self.core.id,
            session,
            epoch,
        };
        if self.core.config.counts_inflight() {
            self.member_done(member, group);
        }
        let mail = &mut self.mail_out[usize::from(group.shard.0)];
        let (index, epoch, held_by) = (group.index, group.epoch, group.key);
        mail.letter(Letter::Full { index, epoch, member });
        match p.place.position().filter(|_| held_by.0 != 0) {
            Some(message) => mail.letter(Letter::TakeBack {
                index,
                epoch,
                given_back: vec![GivenBack { message, held_by }],
            }),
            None => mail.publication(Envelope::Return { index, epoch, held_by }, p),
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
                let has_space = !is_kept || is_online.is_some() && self.core.has_space(session, p.kept_bytes());
                if is_online == Some(true) && !has_space {
                    self.send_back(session, epoch, group, p);
                } else if is_online == Some(true) {
                    let mut forms = Forms::default();
                    let is_lent = self.core.is_lent(session, granted(p.qos, maximum_qos), group.key);
                    if !self.core.link(session).is_durable && is_kept && !is_lent {
                        self.keep_dropped(group.key, p.place);
                    }
                    let delivered = self.deliver_member(
                        now,
                        session,
                        p,
                        group,
                        maximum_qos,
                        retain_as_published,
                        identifier,
                        &mut forms,
                    );
                    if !is_lent || matches!(delivered, Delivered::Dropped(_)) {
                        self.keep_given(now, group.key, p, &forms);
                    }
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
                        held_by: group.key,
                    };
                    self.mail_out[usize::from(group.shard.0)].publication(envelope, p);
                } else {
                    // Another member may have given it back to the group, which then has it in the journal.
                    self.keep_dropped(group.key, p.place);
                    self.core.stats.drop_message(DropReason::NoSharedMember);
                }
            }
            Envelope::Return { index, epoch, held_by } => self.redispatch(now, index, epoch, p, None, held_by),
            Envelope::Replay { session, epoch, number } => self.replayed(now, session, epoch, number, p),
            Envelope::Route { .. } | Envelope::Late { .. } | Envelope::Retain { .. } => {}
        }
    }
}
