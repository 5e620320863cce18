//! Messages of groups on other shards for members of this shard.

use mqtt::QoS;

use crate::deliver::DeliverResult;
use crate::delivery::GroupRef;
use crate::durable::record::{GroupKey, SizedMessage};
use crate::durable::record_fields::RecordFields;
use crate::effect::DropReason;
use crate::encode::EncodedForms;
use crate::mail::{Envelope, GroupHold, MailRequest, MemberSubscription, ReturnedMessage};
use crate::message::{Publication, granted};
use crate::shared::ShareGroups;
use crate::shared::enqueue::has_space;
use crate::slots::{SessionEpoch, SessionRef, SessionSlot};
use crate::tick::Tick;

impl ShareGroups {
    /// Delivers a message to the member that its group has selected, or returns it to the group.
    pub fn deliver_from_group(
        &mut self,
        tick: &mut Tick<'_>,
        session: SessionSlot,
        epoch: SessionEpoch,
        subscription: MemberSubscription,
        p: &Publication<'_>,
    ) {
        let MemberSubscription {
            group,
            maximum_qos,
            is_assigned,
            ..
        } = subscription;
        let is_online = tick.core.sessions.live(session, epoch).map(|s| s.conn.is_some());
        let needs_ack = granted(p.qos, maximum_qos) != QoS::AtMostOnce;
        let has_space = !needs_ack
            || is_online.is_some() && has_space(tick.core.sessions.at(session), p.stored_bytes(), &tick.core.config);
        if is_online.is_some() && tick.core.sessions.is_forbidden(session, p.topic) {
            // A right was revoked while the message was in transit. The group knows that when the message arrives, so
            // it selects another member.
            if needs_ack && !is_assigned {
                self.member_acknowledged(tick, session, group);
            }
            let held_by = if needs_ack { group.key } else { GroupKey::default() };
            return_to_group(tick, group, held_by, p);
        } else if is_online.is_some() && is_assigned {
            let mut forms = EncodedForms::default();
            self.deliver_member(tick, session, p, subscription, &mut forms);
            let ledger = &mut tick.core.ledger;
            ledger.record_message(tick.now, p, forms.stored(), RecordFields::default());
            ledger.record_group_dropped(group.key, p.place);
        } else if is_online == Some(true) && !has_space {
            self.send_back(tick, session, epoch, group, p);
        } else if is_online == Some(true) {
            self.deliver_to_online(tick, session, p, subscription);
        } else if needs_ack {
            // The member disconnected while the message was in transit.
            if tick.core.config.counts_inflight() && !is_assigned {
                let member = member_ref(tick, session, epoch);
                self.count_acknowledgement(tick, member, group);
            }
            return_to_group(tick, group, group.key, p);
        } else {
            // Another member may have returned it to the group, which then has it in the journal.
            tick.core.ledger.record_group_dropped(group.key, p.place);
            tick.core.stats.drop_message(DropReason::NoSharedMember);
        }
    }

    fn deliver_to_online(
        &mut self,
        tick: &mut Tick<'_>,
        session: SessionSlot,
        p: &Publication<'_>,
        subscription: MemberSubscription,
    ) {
        let (group, qos) = (subscription.group, granted(p.qos, subscription.maximum_qos));
        let link = tick.core.sessions.link(session);
        let group_retains = tick.core.ledger.group_retains(link, qos, group.key);
        if !link.is_durable() && qos != QoS::AtMostOnce && !group_retains {
            tick.core.ledger.record_group_dropped(group.key, p.place);
        }
        let mut forms = EncodedForms::default();
        let delivered = self.deliver_member(tick, session, p, subscription, &mut forms);
        if !group_retains || matches!(delivered, DeliverResult::Dropped(_)) {
            tick.core
                .ledger
                .record_group_delivery(tick.now, group.key, p, forms.stored());
        }
    }

    /// Returns a message to its group because the member's queue is full. The group queues it before all others,
    /// because it is older.
    fn send_back(
        &mut self,
        tick: &mut Tick<'_>,
        session: SessionSlot,
        epoch: SessionEpoch,
        group: GroupRef,
        p: &Publication<'_>,
    ) {
        let member = member_ref(tick, session, epoch);
        if tick.core.config.counts_inflight() {
            self.count_acknowledgement(tick, member, group);
        }
        let mail = tick.mail.to(group.shard);
        let (index, epoch, held_by) = (group.index, group.epoch, group.key);
        mail.request(MailRequest::Full { index, epoch, member });
        match p.place.position().filter(|_| held_by.0 != 0) {
            Some(position) => {
                let size = p.size();
                let message = SizedMessage { position, size };
                mail.request(MailRequest::ReturnCold {
                    index,
                    epoch,
                    returned: vec![ReturnedMessage { message, held_by }],
                });
            }
            None => return_to_group(tick, group, held_by, p),
        }
    }
}

fn return_to_group(tick: &mut Tick<'_>, group: GroupRef, held_by: GroupKey, p: &Publication<'_>) {
    let envelope = Envelope::Return(GroupHold::of(group, held_by));
    tick.mail.publication(group.shard, envelope, p);
}

/// The session may have ended, so its epoch is that of the message.
fn member_ref(tick: &Tick<'_>, session: SessionSlot, epoch: SessionEpoch) -> SessionRef {
    SessionRef {
        shard: tick.core.id,
        session,
        epoch,
    }
}
