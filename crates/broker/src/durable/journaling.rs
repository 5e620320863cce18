//! Decides which messages and session changes are written to the journal, and which replies wait for the commit.
//!
//! Runs only on a node with a journal. A session is durable if its Session Expiry Interval is above 0.
//!
//! A shard writes one record per message, with all recipients on that shard, if
//! - a durable session or share group receives it at QoS 1 or 2,
//! - it is retained or delayed, or
//! - another shard may have such recipients. That shard writes its own record when it routes the message.
//!
//! A QoS 1 delivery is sent before its record is committed. A QoS 2 delivery waits for the commit: after a crash the
//! server must still recognise the packet identifier [MQTT-4.3.3].

use std::sync::Arc;

use journal::LogHealth;
use mqtt::QoS;

use crate::delivery::DeliveryOptions;
use crate::durable::pending_records::{CommitAction, Ledger, PendingRecords};
use crate::durable::record;
use crate::durable::record::{
    GroupKey, JournalRecord, MessageRecord, Recipient, RecordPosition, RecordTarget, SessionKey, SessionRecord,
    SubscriptionRecord, Targets, WillRecord,
};
use crate::durable::record_fields::{RecordFields, ReturnedEntry};
use crate::effect::Now;
use crate::exclusive::EXCLUSIVE;
use crate::fault::{Fault, is_planted};
use crate::message::{Message, Publication, RecordLocation};
use crate::mountpoint::Mountpoint;
use crate::session::{RetainedReplay, Session, SessionWill, Subscription, SubscriptionKind};
use crate::session_link::SessionLink;
use crate::sessions::Sessions;
use crate::slots::SessionSlot;

impl Ledger {
    /// Returns whether a delivery must wait for the commit. At QoS 2 the client remembers the packet identifier, and a
    /// group must not select another member after a crash [MQTT-4.8.2-5].
    pub fn must_wait_for_commit(&self, link: SessionLink, terms: DeliveryOptions<'_>) -> bool {
        let is_of_durable_group = terms.group.is_some_and(|group| group.key.0 != 0);
        let is_behind = || self.records().is_some_and(PendingRecords::has_uncommitted);
        terms.qos == QoS::ExactlyOnce && (link.is_durable() || is_of_durable_group && is_behind())
    }

    /// Marks routing as started or finished. Recovery repeats unfinished routing.
    pub fn set_routing_in_progress(&mut self, is_routing: bool) {
        if let Some(records) = self.records_mut() {
            records.set_routing(is_routing);
        }
    }

    /// A non-durable session has queued a QoS 2 message of a durable group. Its delivery waits for the commit.
    fn await_group_commit(&mut self, sessions: &mut Sessions, slot: SessionSlot, seq: u64, terms: DeliveryOptions<'_>) {
        let (Some(group), Some(records)) = (terms.group, self.records_mut()) else {
            return;
        };
        if group.key.0 == 0 || terms.qos != QoS::ExactlyOnce || seq == 0 {
            return;
        }
        let session = sessions.at_mut(slot);
        match records.has_uncommitted() {
            true => records.wait(CommitAction::Deliver {
                slot,
                epoch: session.epoch,
                seq,
            }),
            false => session.outgoing.committed_seq = seq,
        }
    }

    /// Adds a recipient to the record that is being built.
    pub fn add_recipient(&mut self, sessions: &mut Sessions, slot: SessionSlot, seq: u64, terms: DeliveryOptions<'_>) {
        if !sessions.link(slot).is_durable() {
            return self.await_group_commit(sessions, slot, seq, terms);
        }
        let session = sessions.at(slot);
        let (key, epoch) = (session.key, session.epoch);
        let group = terms.group.map(|group| group.key).filter(|key| key.0 != 0);
        let Some(records) = self.records_mut() else { return };
        let target = RecordTarget {
            to: Recipient::Session(key),
            seq,
            qos: terms.qos,
            retain: terms.retain,
            group,
            identifiers: terms.identifiers.to_vec(),
        };
        target.put(records.targets_mut());
        if terms.qos == QoS::ExactlyOnce && seq != 0 {
            records.wait(CommitAction::Deliver { slot, epoch, seq });
        }
    }

    /// Returns whether a share group keeps the message until this member acknowledges it. True for QoS 1 and a
    /// non-durable member: if it disconnects, another member gets the message. A QoS 2 message must not change the
    /// member [MQTT-4.8.2-5].
    pub fn group_retains(&self, member: SessionLink, qos: QoS, group: GroupKey) -> bool {
        qos == QoS::AtLeastOnce && group.0 != 0 && self.is_active() && !member.is_durable()
    }

    /// Adds a share group that has no available member as a recipient.
    pub fn add_group_recipient(&mut self, group: GroupKey) {
        if let Some(records) = self.records_mut() {
            put_group_recipient(group, records.targets_mut());
        }
    }

    /// Records the recipients of a message and, if the journal does not contain it, the message itself. `stored` is the
    /// message if a session or store holds it. Returns the place of the message record.
    pub fn record_message(
        &mut self,
        now: Now,
        p: &Publication<'_>,
        stored: Option<&Arc<Message>>,
        record_fields: RecordFields,
    ) -> RecordLocation {
        let shard = self.shard();
        let Some(records) = self.records_mut() else {
            return RecordLocation::NONE;
        };
        if !records.has_targets() && !record_fields.is_required {
            return p.place;
        }
        let mut targets = std::mem::take(records.targets_mut());
        let mut place = p.place;
        if place.is_none() {
            place = stored.map_or(RecordLocation::NONE, |stored| stored.place());
        }
        if !place.is_none() {
            let (targets, size) = (Targets::from_written(&targets), p.size());
            records.record_of(place, |message| JournalRecord::Queued { message, size, targets });
        } else {
            let record = MessageRecord {
                topic: p.topic,
                payload: p.payload,
                properties: p.properties,
                qos: p.qos,
                retain: p.retain,
                expires_unix_ms: p.expires_at_ms.map(|at| now.unix_at(at)),
                publisher_hash: p.publisher_hash,
                shard: shard.0,
                others: record_fields.pending_shards,
                due_unix_ms: record_fields.due_unix_ms,
                retained: record_fields.retained,
                publisher: record_fields.publisher,
                provenance: p.provenance,
                owner: p.owner.map(|owner| owner.owner()),
                targets: Targets::from_written(&targets),
            };
            place = records.record_message(&record);
            if let Some(stored) = stored {
                records.set_place_when_appended(stored, place);
            }
        }
        targets.clear();
        *records.targets_mut() = targets;
        place
    }

    /// Records that a session acknowledged a message. At QoS 2, `is_release` means that only PUBCOMP is outstanding.
    pub fn record_acknowledged(&mut self, sessions: &Sessions, slot: SessionSlot, seq: u64, is_release: bool) {
        if sessions.link(slot).is_durable()
            && !is_planted(Fault::ForgetSettled)
            && let Some(records) = self.records_mut()
            && let Some(session) = sessions.get(slot)
        {
            records.acknowledge(session.key, seq, is_release);
        }
    }

    pub fn record(&mut self, record: &JournalRecord<'_>) -> RecordLocation {
        self.records_mut()
            .map_or(RecordLocation::NONE, |records| records.record(record))
    }

    /// Adds a record that refers to a message.
    pub fn record_of<'r>(&mut self, place: RecordLocation, record: impl FnOnce(RecordPosition) -> JournalRecord<'r>) {
        if let Some(records) = self.records_mut() {
            records.record_of(place, record);
        }
    }

    /// Records that a held message was dropped from a session's queue.
    pub fn record_dropped(&mut self, session: &Session, place: RecordLocation) {
        if let Some(session) = self.durable_key(session) {
            self.record_of(place, |message| JournalRecord::HeldDropped { session, message });
        }
    }

    /// Returns the highest key that this shard has assigned.
    pub fn last_key(&self) -> u64 {
        self.records().map_or(0, PendingRecords::last_key)
    }

    /// Returns whether the journal accepts no records, because it is full or has failed.
    pub fn is_unavailable(&self) -> bool {
        self.records().is_some_and(|records| records.health() != LogHealth::Ok)
    }

    pub fn has_failed(&self) -> bool {
        self.records()
            .is_some_and(|records| records.health() == LogHealth::Failed)
    }

    /// Returns whether a session of this client has ended without the commit of that record, so that a crash would
    /// restore it.
    pub fn is_end_pending(&self, client_id: &str) -> bool {
        self.records().is_some_and(|records| records.is_end_pending(client_id))
    }

    /// Returns the key of a durable session.
    fn durable_key(&self, session: &Session) -> Option<SessionKey> {
        (self.is_active() && session.key.0 != 0).then_some(session.key)
    }

    pub(crate) fn record_disconnected(&mut self, now: Now, state: &Session) {
        let Some(session) = self.durable_key(state) else {
            return;
        };
        let record = JournalRecord::Disconnected {
            session,
            unix_ms: now.journal_ms,
            expiry_s: state.expiry_s,
            has_will: state.will.is_some(),
            started: state.outgoing.started(),
        };
        self.record(&record);
    }

    pub(crate) fn record_will_published(&mut self, session: &Session) {
        if let Some(session) = self.durable_key(session) {
            self.record(&JournalRecord::WillPublished { session });
        }
    }

    pub(crate) fn record_session_ended(&mut self, session: &Session) {
        if let Some(key) = self.durable_key(session)
            && let Some(records) = self.records_mut()
        {
            records.record_end(key, &session.client_id);
        }
    }

    pub(crate) fn record_subscribed(
        &mut self,
        session: &Session,
        filter: &str,
        subscription: &Subscription,
        is_replaying: bool,
    ) {
        if let Some(session) = self.durable_key(session) {
            let subscription = SubscriptionRecord {
                filter,
                options: subscription.options,
                identifier: subscription.identifier,
                is_replaying: is_replaying && subscription.options.maximum_qos != QoS::AtMostOnce,
            };
            self.record(&JournalRecord::Subscribed { session, subscription });
        }
    }

    /// Records that a replay has queued all its messages. Written after those.
    pub(crate) fn record_replayed(&mut self, session: &Session, replay: &RetainedReplay) {
        if let Some(session) = self.durable_key(session)
            && replay.options.maximum_qos != QoS::AtMostOnce
        {
            let filter = &replay.filter;
            self.record(&JournalRecord::Replayed { session, filter });
        }
    }

    pub(crate) fn record_unsubscribed(&mut self, session: &Session, filter: &str) {
        if let Some(session) = self.durable_key(session)
            && !is_planted(Fault::ForgetUnsubscribed)
        {
            self.record(&JournalRecord::Unsubscribed { session, filter });
        }
    }

    /// Records PUBREL. Returns true if PUBCOMP must wait for the commit.
    pub(crate) fn record_packet_id_freed(&mut self, session: &Session, packet_id: u16) -> bool {
        let Some(session) = self.durable_key(session) else {
            return false;
        };
        if !is_planted(Fault::ForgetFreed) {
            self.record(&JournalRecord::PacketIdFreed { session, packet_id });
        }
        true
    }

    /// Records that a session returns a message to its group. Returns the group that holds the message in the journal
    /// from now on.
    pub(crate) fn record_returned(
        &mut self,
        sessions: &Sessions,
        slot: SessionSlot,
        entry: ReturnedEntry,
        group: GroupKey,
    ) -> GroupKey {
        let place = entry.place;
        let Some(session) = self.durable_key(sessions.at(slot)).filter(|_| group.0 != 0) else {
            self.record_acknowledged(sessions, slot, entry.seq, false);
            let group_retains = self.group_retains(sessions.link(slot), entry.qos, group) && !place.is_none();
            return if group_retains { group } else { GroupKey::default() };
        };
        self.record_of(place, |message| JournalRecord::Returned {
            session,
            seq: entry.seq,
            group,
            message,
            size: entry.size,
        });
        group
    }

    /// Records that a member of this shard received a message that its group holds in the journal. If the member is not
    /// durable, the journal drops the message.
    pub(crate) fn record_group_delivery(
        &mut self,
        now: Now,
        group: GroupKey,
        p: &Publication<'_>,
        stored: Option<&Arc<Message>>,
    ) {
        let is_recorded = self.records().is_some_and(PendingRecords::has_targets);
        self.record_message(now, p, stored, RecordFields::default());
        if !is_recorded {
            self.record_group_dropped(group, p.place);
        }
    }

    pub(crate) fn record_group_dropped(&mut self, group: GroupKey, place: RecordLocation) {
        if group.0 != 0 {
            self.record_of(place, |message| JournalRecord::GroupDropped { group, message });
        }
    }

    /// Records that the owner of a topic stores a message that another shard has recorded, or clears the topic.
    pub(crate) fn record_retained(&mut self, now: Now, p: &Publication<'_>) {
        if p.payload.is_empty() {
            return self.record_retained_cleared(p.topic);
        }
        let expires_unix_ms = p.expires_at_ms.map(|at| now.unix_at(at));
        self.record_of(p.place, |message| JournalRecord::Retained {
            message,
            expires_unix_ms,
            topic: p.topic,
        });
    }

    pub(crate) fn record_retained_cleared(&mut self, topic: &str) {
        if !is_planted(Fault::ForgetCleared) {
            self.record(&JournalRecord::RetainedCleared { topic });
        }
    }
}

impl Ledger {
    /// Records the terms of a CONNECT. The session becomes or stays durable. That includes a session with a new
    /// expiry interval of 0: a crash may lose this CONNECT, and then its later messages must be in the journal.
    /// Returns true if the session has become durable.
    pub(crate) fn record_connected(&mut self, now: Now, session: &mut Session) -> bool {
        let Some(records) = self.records_mut() else {
            return false;
        };
        if session.key.0 != 0 {
            let terms = terms_of(session);
            let session = session.key;
            records.record(&JournalRecord::Connected { session, terms });
            return false;
        }
        if session.expiry_s == 0 {
            return false;
        }
        session.key = records.next_session();
        let record = session_record(now, session);
        records.record(&JournalRecord::Session(record));
        true
    }
}

/// Adds a group that has no available member. Does nothing if the group is not durable.
pub(crate) fn put_group_recipient(group: GroupKey, targets: &mut Vec<u8>) {
    if group.0 == 0 {
        return;
    }
    RecordTarget {
        to: Recipient::Group(group),
        seq: 0,
        qos: QoS::AtLeastOnce,
        retain: false,
        group: None,
        identifiers: Vec::new(),
    }
    .put(targets);
}

fn terms_of(session: &Session) -> record::ConnectSettings<'_> {
    record::ConnectSettings {
        user_name: session.user_name.as_deref(),
        address: session.owner_address(),
        version: session.version as u8,
        is_superuser: session.is_superuser,
        has_grant: session.grant().is_some(),
        is_bridge: session.is_bridge,
        expiry_s: session.expiry_s,
        mountpoint: session.mountpoint().map(Mountpoint::as_str),
        will: session.will.as_deref().map(will_record),
    }
}

fn will_record(will: &SessionWill) -> WillRecord<'_> {
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

/// Snapshot of a session without its queue.
pub(crate) fn session_record(now: Now, session: &Session) -> SessionRecord<'_> {
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
        left_unix_ms: session.conn.is_none().then(|| now.unix_at(session.left_at_ms)),
        terms: terms_of(session),
        next_seq: session.outgoing.last_seq + 1,
        started: session.outgoing.started(),
        subscriptions: subscriptions.collect(),
        received: session.received.iter().collect(),
    }
}
