//! What is recorded when. Nothing here happens without a journal.
//!
//! A session is durable while it outlives its connection (Session Expiry Interval above 0). A message is recorded when a durable
//! session or group gets it at QoS 1 or 2, when it is retained or `$delayed`, or when another shard may have such sessions: once,
//! with all of its shard's recipients; other shards record theirs when they route it. QoS 1 is sent at once, while the record is
//! on its way; QoS 2 only after it is kept, because what the client then says of the packet identifier has to be understood.

use std::sync::Arc;

use journal::Health;
use mqtt::{PacketId, PacketType, QoS, ReasonCode};

use crate::connection::Phase;
use crate::deliver::{Core, Forms, Link, Terms};
use crate::durable::ledger::Waiting;
use crate::durable::record;
use crate::durable::record::{
    GroupKey, MessageRecord, Position, Recipient, Record, RetainedTerms, Seq, SessionKey, SessionRecord,
    SubscriptionRecord, Target, Targets, WillRecord,
};
use crate::effect::{ConnSlot, Effect, Now};
use crate::fault::{Fault, is_planted};
use crate::message::{Message, Place, Publication};
use crate::parking::PendingAck;
use crate::session::{Replay, Session, Subscription, SubscriptionKind, Will};
use crate::shard::Shard;
use crate::subscribe::EXCLUSIVE;
use crate::tap::Receipt;

/// What a message's record says besides the message and its recipients.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keeping {
    /// Shards that have yet to route or retain it.
    pub others: u64,
    pub due_unix_ms: Option<u64>,
    pub retained: Option<RetainedTerms>,
    pub publisher: Option<(SessionKey, u16)>,
    /// Recorded even if nobody here gets it.
    pub is_needed: bool,
}

/// What has to be kept before something is said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait {
    /// What has been recorded so far.
    pub for_journal: bool,
    /// What the tap has taken.
    pub receipt: Option<Receipt>,
}

impl Wait {
    pub fn for_journal(is_recorded: bool) -> Wait {
        Wait {
            for_journal: is_recorded,
            receipt: None,
        }
    }
}

impl Core {
    /// Whether a message may be sent only after the commit: the client will remember its identifier, or its group must not give it
    /// to another member after a crash [MQTT-4.8.2-5].
    pub fn must_be_kept(&self, link: Link, terms: Terms<'_>) -> bool {
        let is_groups = terms.group.is_some_and(|group| group.key.0 != 0);
        let is_behind = || self.ledger.as_ref().is_some_and(|ledger| ledger.is_behind());
        terms.qos == QoS::ExactlyOnce && (link.is_durable || is_groups && is_behind())
    }

    /// Until it is recorded that messages have been routed, a crash has them routed once more.
    pub fn mind_routing(&mut self, is_routing: bool) {
        if let Some(ledger) = &mut self.ledger {
            ledger.is_routing = is_routing;
        }
    }

    /// A message of a durable group waits in the queue of a session that is not durable.
    fn note_member(&mut self, slot: u32, seq: u64, terms: Terms<'_>) {
        let (Some(group), Some(ledger)) = (terms.group, &mut self.ledger) else {
            return;
        };
        if group.key.0 == 0 || terms.qos != QoS::ExactlyOnce || seq == 0 {
            return;
        }
        let session = self.sessions[slot as usize].as_deref_mut().expect("the caller has it");
        match ledger.is_behind() {
            true => ledger.wait(Waiting::Send {
                slot,
                epoch: session.epoch,
                seq,
            }),
            false => session.outgoing.kept_seq = seq,
        }
    }

    /// A durable session gets a message: part of the next record.
    pub fn note_target(&mut self, slot: u32, seq: u64, terms: Terms<'_>) {
        if !self.links[slot as usize].is_durable {
            return self.note_member(slot, seq, terms);
        }
        let session = self.sessions[slot as usize].as_deref().expect("the caller has it");
        let (key, epoch) = (session.key, session.epoch);
        let group = terms.group.map(|group| group.key).filter(|key| key.0 != 0);
        let Some(ledger) = &mut self.ledger else { return };
        let target = Target {
            to: Recipient::Session(key),
            seq,
            qos: terms.qos,
            retain: terms.retain,
            group,
            identifiers: terms.identifiers.to_vec(),
        };
        target.put(&mut ledger.targets);
        if terms.qos == QoS::ExactlyOnce && seq != 0 {
            ledger.wait(Waiting::Send { slot, epoch, seq });
        }
    }

    /// Whether a durable group that gives a message to this session keeps it until that has acknowledged it: the session ends with its
    /// connection, and the message then goes to another member. Not at QoS 2, where it must go to no other [MQTT-4.8.2-5].
    pub fn is_lent(&self, slot: u32, qos: QoS, group: GroupKey) -> bool {
        qos == QoS::AtLeastOnce && group.0 != 0 && self.ledger.is_some() && !self.links[slot as usize].is_durable
    }

    /// A durable group has a message, and no member yet.
    pub fn note_group(&mut self, group: GroupKey) {
        if let Some(ledger) = &mut self.ledger {
            put_group_target(group, &mut ledger.targets);
        }
    }

    /// Records who got a message, and the message itself if the journal does not have it. `kept` is the message if somebody keeps
    /// it. Returns where it stands.
    pub fn keep(&mut self, now: Now, p: &Publication<'_>, kept: Option<&Arc<Message>>, keeping: Keeping) -> Place {
        let Some(ledger) = &mut self.ledger else {
            return Place::NONE;
        };
        if ledger.targets.is_empty() && !keeping.is_needed {
            return p.place;
        }
        let targets = std::mem::take(&mut ledger.targets);
        let mut place = p.place;
        if place.is_none() {
            place = kept.map_or(Place::NONE, |kept| kept.place());
        }
        if !place.is_none() {
            let targets = Targets::from_written(&targets);
            ledger.record_of(place, |message| Record::Queued { message, targets });
        } else {
            let record = MessageRecord {
                topic: p.topic,
                payload: p.payload,
                properties: p.properties,
                qos: p.qos,
                retain: p.retain,
                expires_unix_ms: p.expires_at_ms.map(|at| now.unix_at(at)),
                publisher_hash: p.publisher_hash,
                shard: self.id.0,
                others: keeping.others,
                due_unix_ms: keeping.due_unix_ms,
                retained: keeping.retained,
                publisher: keeping.publisher,
                provenance: p.provenance,
                targets: Targets::from_written(&targets),
            };
            place = Place::pending(ledger.batch.record(|out| record.put(out)));
            if let Some(kept) = kept {
                ledger.place_later(kept, place);
            }
        }
        ledger.targets = targets;
        ledger.targets.clear();
        place
    }

    /// A session is done with a message, or has come so far with it that only its identifier is still taken.
    pub fn keep_settled(&mut self, slot: u32, seq: u64, is_release: bool) {
        if self.links[slot as usize].is_durable
            && !is_planted(Fault::ForgetSettled)
            && let Some(ledger) = &mut self.ledger
            && let Some(session) = self.sessions[slot as usize].as_deref()
        {
            ledger.settle(session.key, seq, is_release);
        }
    }

    pub fn record(&mut self, record: &Record<'_>) -> Place {
        self.ledger.as_mut().map_or(Place::NONE, |ledger| ledger.record(record))
    }

    /// Adds a record that speaks of a message.
    pub fn record_of<'r>(&mut self, place: Place, record: impl FnOnce(Position) -> Record<'r>) {
        if let Some(ledger) = &mut self.ledger {
            ledger.record_of(place, record);
        }
    }

    /// A message that was held for a session will not be sent.
    pub fn keep_unheld(&mut self, slot: u32, place: Place) {
        if let Some(session) = self.durable_key(slot) {
            self.record_of(place, |message| Record::Unheld { session, message });
        }
    }

    /// No session or group of this shard has a higher key.
    pub fn last_key(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| ledger.last_key())
    }

    /// Whether the journal cannot take more.
    pub fn is_journal_stuck(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.health != Health::Ok)
    }

    pub fn has_journal_failed(&self) -> bool {
        self.ledger
            .as_ref()
            .is_some_and(|ledger| ledger.health == Health::Failed)
    }

    /// Holds back all that a connection is sent from now on until the journal has what was recorded so far.
    pub fn hold_until_kept(&mut self, conn: ConnSlot) {
        let Some(epoch) = self.connection_mut(conn).map(|c| c.epoch) else {
            return;
        };
        if let Some(ledger) = &mut self.ledger
            && ledger.is_behind()
        {
            self.outbox.hold(conn);
            ledger.wait(Waiting::Release { conn, epoch });
        }
    }

    /// A session that a client had has ended, and may come back with a crash.
    pub fn is_end_pending(&self, client_id: &str) -> bool {
        self.ledger
            .as_ref()
            .is_some_and(|ledger| ledger.is_end_pending(client_id))
    }

    /// The key of a session that outlives its connection.
    fn durable_key(&self, slot: u32) -> Option<SessionKey> {
        let session = self.sessions[slot as usize].as_deref()?;
        (self.ledger.is_some() && session.key.0 != 0).then_some(session.key)
    }
}

impl Shard {
    /// An acknowledgement, when what it has to wait for is kept, and never before earlier ones.
    pub(crate) fn acknowledge_when_kept(
        &mut self,
        conn: ConnSlot,
        kind: PacketType,
        id: PacketId,
        reason: ReasonCode,
        wait: Wait,
    ) {
        let Some(connection) = self.core.connections[conn.0 as usize].as_deref_mut() else {
            return;
        };
        if reason.is_error() && connection.phase == Phase::Closing {
            // What was refused has ended the connection.
            return;
        }
        let ack = PendingAck {
            conn,
            epoch: connection.epoch,
            kind,
            id,
            reason,
            receipt: wait.receipt,
        };
        if let Some(ledger) = &mut self.core.ledger
            && (connection.waiting_acks > 0 || wait.for_journal && ledger.is_behind())
            && !(is_planted(Fault::AcknowledgeBeforeCommit) && kind != PacketType::PubRel)
            && !(is_planted(Fault::ReleaseBeforeCommit) && kind == PacketType::PubRel)
        {
            connection.waiting_acks += 1;
            return ledger.wait(Waiting::Ack(ack));
        }
        self.acknowledge_or_park(ack);
    }

    /// The terms of a CONNECT are in force: the session becomes durable, or stays so. Also one that is now to end with its connection: the
    /// journal may lose this CONNECT, and then has to have what came for the session since.
    pub(crate) fn keep_session(&mut self, slot: u32) {
        let Some(session) = self.core.sessions[slot as usize].as_deref_mut() else {
            return;
        };
        let Some(ledger) = &mut self.core.ledger else { return };
        if session.key.0 != 0 {
            let terms = terms_of(session);
            let session = session.key;
            ledger.record(&Record::Connected { session, terms });
            return;
        }
        if session.expiry_s == 0 {
            return;
        }
        session.key = ledger.next_session();
        let record = session_record(session);
        ledger.record(&Record::Session(record));
        self.core.link_mut(slot).is_durable = true;
    }

    pub(crate) fn keep_disconnected(&mut self, now: Now, slot: u32) {
        let Some(session) = self.core.durable_key(slot) else {
            return;
        };
        let state = self.core.session(slot);
        let record = Record::Disconnected {
            session,
            unix_ms: now.unix_ms,
            expiry_s: state.expiry_s,
            has_will: state.will.is_some(),
            started: state.outgoing.started(),
        };
        self.core.record(&record);
        self.core.cool_later(slot);
    }

    pub(crate) fn keep_will_done(&mut self, slot: u32) {
        if let Some(session) = self.core.durable_key(slot) {
            self.core.record(&Record::WillDone { session });
        }
    }

    pub(crate) fn keep_ended(&mut self, slot: u32) {
        if let Some(key) = self.core.durable_key(slot)
            && let (Some(ledger), Some(session)) = (&mut self.core.ledger, self.core.sessions[slot as usize].as_deref())
        {
            ledger.record_end(key, &session.client_id);
        }
    }

    pub(crate) fn keep_subscribed(&mut self, slot: u32, filter: &str, subscription: &Subscription, is_replaying: bool) {
        if let Some(session) = self.core.durable_key(slot) {
            let subscription = SubscriptionRecord {
                filter,
                options: subscription.options,
                identifier: subscription.identifier,
                is_replaying: is_replaying && subscription.options.maximum_qos != QoS::AtMostOnce,
            };
            self.core.record(&Record::Subscribed { session, subscription });
        }
    }

    /// After all that the replay has queued.
    pub(crate) fn keep_replayed(&mut self, slot: u32, replay: &Replay) {
        if let Some(session) = self.core.durable_key(slot)
            && replay.options.maximum_qos != QoS::AtMostOnce
        {
            let filter = &replay.filter;
            self.core.record(&Record::Replayed { session, filter });
        }
    }

    pub(crate) fn keep_unsubscribed(&mut self, slot: u32, filter: &str) {
        if let Some(session) = self.core.durable_key(slot)
            && !is_planted(Fault::ForgetUnsubscribed)
        {
            self.core.record(&Record::Unsubscribed { session, filter });
        }
    }

    /// PUBREL: true if that has to be kept before it is answered.
    pub(crate) fn keep_freed(&mut self, slot: u32, packet_id: u16) -> bool {
        let Some(session) = self.core.durable_key(slot) else {
            return false;
        };
        if !is_planted(Fault::ForgetFreed) {
            self.core.record(&Record::Freed { session, packet_id });
        }
        true
    }

    /// A group becomes durable with its first durable member, and is so no longer after the last.
    pub(crate) fn keep_group(&mut self, index: u32) {
        let Some(ledger) = &mut self.core.ledger else { return };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let is_durable = group.members.iter().any(|member| member.is_durable);
        if is_durable == group.is_durable() {
            return;
        }
        let filter = group.filter.clone();
        if is_durable {
            group.key = ledger.next_group();
            ledger.record(&Record::Group {
                group: group.key,
                share_name: &group.share_name,
                filter: &filter,
            });
            // Of members that are not durable, or that were, and that are still being given it.
            let warm = group.queue.warm().filter_map(|message| message.place().position());
            let cold = group.queue.part(0, usize::MAX).into_iter().map(|(_, message)| message);
            ledger.record_held(group.key, &cold.chain(warm).collect::<Vec<_>>());
        } else {
            let group = std::mem::take(&mut group.key);
            ledger.record(&Record::GroupEnded { group });
        }
        self.mind_durable(&filter, is_durable);
    }

    /// A session gives a message back to its group. Returns of which the journal has it from now on.
    pub(crate) fn keep_returned(&mut self, slot: u32, seq: Seq, qos: QoS, place: Place, group: GroupKey) -> GroupKey {
        let Some(session) = self.core.durable_key(slot).filter(|_| group.0 != 0) else {
            self.core.keep_settled(slot, seq, false);
            let is_lent = self.core.is_lent(slot, qos, group) && !place.is_none();
            return if is_lent { group } else { GroupKey::default() };
        };
        self.core.record_of(place, |message| Record::Returned {
            session,
            seq,
            group,
            message,
        });
        group
    }

    /// A member of this shard was given a message that its group has in the journal. If the member is not durable, nobody has it
    /// there any more.
    pub(crate) fn keep_given(&mut self, now: Now, group: GroupKey, p: &Publication<'_>, forms: &Forms) {
        let is_recorded = self
            .core
            .ledger
            .as_ref()
            .is_some_and(|ledger| !ledger.targets.is_empty());
        self.core.keep(now, p, forms.kept(), Keeping::default());
        if !is_recorded {
            self.keep_dropped(group, p.place);
        }
    }

    pub(crate) fn keep_dropped(&mut self, group: GroupKey, place: Place) {
        if group.0 != 0 {
            self.core
                .record_of(place, |message| Record::GroupDropped { group, message });
        }
    }

    /// The owner of a topic keeps a message that another shard has recorded, or clears the topic with it.
    pub(crate) fn keep_retained(&mut self, now: Now, p: &Publication<'_>) {
        if p.payload.is_empty() {
            return self.keep_retained_gone(p.topic);
        }
        let expires_unix_ms = p.expires_at_ms.map(|at| now.unix_at(at));
        self.core.record_of(p.place, |message| Record::Retained {
            message,
            expires_unix_ms,
            topic: p.topic,
        });
    }

    pub(crate) fn keep_retained_gone(&mut self, topic: &str) {
        if !is_planted(Fault::ForgetCleared) {
            self.core.record(&Record::RetainedGone { topic });
        }
    }

    /// Whether a message needs the journal, before anybody has got it. `slot`: the session that publishes it.
    pub(crate) fn needs_journal(&self, slot: Option<u32>, topic: &str, qos: QoS, retain: bool) -> bool {
        let is_acknowledged = qos != QoS::AtMostOnce;
        // That it has been received is remembered.
        let is_once = qos == QoS::ExactlyOnce && slot.is_some_and(|slot| self.core.session(slot).key.0 != 0);
        let is_kept = || self.core.config.is_all_kept || self.shared.durable.mask(topic) != 0;
        self.core.ledger.is_some() && (retain || is_once || is_acknowledged && is_kept())
    }

    /// Publishers of 3.1 and 3.1.1, who cannot be told to try again later, are read from again.
    pub(crate) fn resume_held_publishers(&mut self) {
        for conn in std::mem::take(&mut self.held_publishers) {
            if let Some(connection) = self.core.connection_mut(conn) {
                connection.is_held_by_journal = false;
            }
            self.core.effects.push(Effect::Resume { conn });
        }
    }
}

/// That a group has a message and no member yet: nothing, if the group is not durable.
pub(crate) fn put_group_target(group: GroupKey, targets: &mut Vec<u8>) {
    if group.0 == 0 {
        return;
    }
    Target {
        to: Recipient::Group(group),
        seq: 0,
        qos: QoS::AtLeastOnce,
        retain: false,
        group: None,
        identifiers: Vec::new(),
    }
    .put(targets);
}

fn terms_of(session: &Session) -> record::Terms<'_> {
    record::Terms {
        user_name: session.user_name.as_deref(),
        version: session.version as u8,
        is_superuser: session.is_superuser,
        is_bridge: session.is_bridge,
        expiry_s: session.expiry_s,
        will: session.will.as_deref().map(will_record),
    }
}

fn will_record(will: &Will) -> WillRecord<'_> {
    WillRecord {
        topic: &will.topic,
        payload: &will.payload,
        properties: &will.properties,
        qos: will.qos,
        retain: will.retain,
        delay_s: will.delay_s,
        message_expiry_s: will.message_expiry_s,
    }
}

/// A session as it is, apart from its queue.
pub(crate) fn session_record(session: &Session) -> SessionRecord<'_> {
    let subscriptions = session
        .subscriptions
        .iter()
        .map(|(filter, subscription)| SubscriptionRecord {
            filter,
            options: subscription.options,
            identifier: subscription.identifier,
            is_replaying: subscription.options.maximum_qos != QoS::AtMostOnce
                && subscription.kind != SubscriptionKind::Shared
                && session
                    .replays
                    .is_pending(filter.strip_prefix(EXCLUSIVE).unwrap_or(filter)),
        });
    SessionRecord {
        session: session.key,
        client_id: &session.client_id,
        created_unix_ms: session.created_at_ms,
        left_unix_ms: session.conn.is_none().then_some(session.disconnected_at_ms),
        terms: terms_of(session),
        next_seq: session.outgoing.last_seq + 1,
        started: session.outgoing.started(),
        subscriptions: subscriptions.collect(),
        received: session.received.iter().collect(),
    }
}
