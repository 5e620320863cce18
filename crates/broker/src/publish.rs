//! PUBLISH from clients: authorization, topic aliases, publish quota, and the acknowledgements of both directions.

use mqtt::{
    Ack, Packet, PacketId, PacketType, Properties, Property, PropertyWriter, ProtocolVersion, Publish, QoS, ReasonCode,
};

use crate::config::{PublishRate, ShardConfig};
use crate::connection::PublishQuota;
use crate::delayed::{PublishDelay, strip_delay};
use crate::durable::journaling::PendingCommits;
use crate::durable::pending_records::CommitAction;
use crate::effect::{ConnectionEvent, DisconnectReason, DropReason, Effect, Now};
use crate::fault::{Fault, is_planted};
use crate::inbox::InboxKey;
use crate::inbox_sessions::publish_to_inbox;
use crate::lifecycle::{ConnectionEnd, is_reserved};
use crate::message::{MessageOrigin, Publication, RecordLocation};
use crate::message_limits::LimitedMessage;
use crate::node_state::hash;
use crate::outgoing::{AckResult, Delivery};
use crate::owners::Holding;
use crate::provenance::Provenance;
use crate::receipt_actions::{OpenId, ReceiptAction};
use crate::route::PublishResult;
use crate::shard::Shard;
use crate::slots::{ConnEpoch, ConnSlot, SessionSlot};
use crate::tap::{Receipt, TapEvent, TapEventMask};
use crate::timers::ShardTimer;

/// Result of resolving the topic name or alias of a PUBLISH.
enum ResolvedTopic {
    /// The topic name in the packet.
    InPacket,
    /// The topic name that this connection has set for the alias.
    Alias(Box<str>),
    Refused {
        code: ReasonCode,
        detail: &'static str,
    },
}

impl Shard {
    pub(crate) fn publish_received(
        &mut self,
        now: Now,
        conn: ConnSlot,
        slot: SessionSlot,
        publish: &Publish<'_>,
        packet_bytes: usize,
    ) {
        self.core.stats.packets_received[PacketType::Publish as usize] += 1;
        self.charge_quota(conn, packet_bytes);
        let properties = publish.properties;
        if !properties.is_forwarded_whole()
            && properties
                .iter()
                .any(|p| matches!(p, Property::SubscriptionIdentifier(_)))
        {
            // [MQTT-3.3.4-6]
            let detail = "a client must not send a Subscription Identifier";
            return self.protocol_error(now, conn, ReasonCode::ProtocolError, detail);
        }
        let topic = match self.resolve_topic(conn, publish) {
            ResolvedTopic::InPacket => None,
            ResolvedTopic::Alias(topic) => Some(topic),
            ResolvedTopic::Refused { code, detail } => return self.protocol_error(now, conn, code, detail),
        };
        let publish = Publish {
            topic: topic.as_deref().unwrap_or(publish.topic),
            ..publish.clone()
        };
        if publish.qos > self.core.config.max_qos {
            // [MQTT-3.2.2-11]
            return self.protocol_error(now, conn, ReasonCode::QoSNotSupported, "the QoS is above mqtt.max_qos");
        }
        if publish.retain && !self.core.config.retain_available {
            // [MQTT-3.2.2-14]
            return self.protocol_error(
                now,
                conn,
                ReasonCode::RetainNotSupported,
                "mqtt.retain_available is off",
            );
        }
        match (publish.qos, publish.packet_id) {
            (QoS::AtMostOnce, _) | (_, None) => {
                let _ = self.authorize_and_route(now, slot, &publish);
            }
            (QoS::AtLeastOnce, Some(id)) => {
                let (reason, commits) = self.authorize_and_route(now, slot, &publish);
                self.acknowledge_when_committed(conn, PacketType::PubAck, id, reason, commits);
            }
            (QoS::ExactlyOnce, Some(id)) => self.publish_exactly_once(now, conn, slot, &publish, id),
        }
    }

    /// Routes a QoS 2 message on first receipt, and stores its packet identifier until PUBREL [MQTT-4.3.3-10].
    fn publish_exactly_once(
        &mut self,
        now: Now,
        conn: ConnSlot,
        slot: SessionSlot,
        publish: &Publish<'_>,
        id: PacketId,
    ) {
        let is_quota_used_up = self
            .core
            .connections
            .get_mut(conn)
            .is_none_or(|c| c.open_exactly_once >= c.receive_maximum);
        let session = self.core.sessions.at_mut(slot);
        if session.received.contains(id.get()) {
            // A duplicate gets the same answer and is not delivered again.
            let mut commits = PendingCommits::for_journal(session.key.0 != 0);
            commits.tap = match self.core.taps.must_repeat(self.core.sessions.at(slot)) {
                true => self.repeat_to_tap(now, slot, publish),
                false => self.core.taps.receipt_of(self.open_id(slot, id)),
            };
            return self.acknowledge_when_committed(conn, PacketType::PubRec, id, ReasonCode::Success, commits);
        }
        if session.version == ProtocolVersion::V5 && is_quota_used_up {
            // [MQTT-3.3.4-9]
            let detail = "more QoS 2 messages are open than the server's receive maximum";
            return self.protocol_error(now, conn, ReasonCode::ReceiveMaximumExceeded, detail);
        }
        let (reason, commits) = self.authorize_and_route(now, slot, publish);
        if !reason.is_error() {
            self.core.sessions.at_mut(slot).received.insert(id.get());
            if let Some(connection) = self.core.connections.get_mut(conn) {
                connection.open_exactly_once = connection.open_exactly_once.saturating_add(1);
            }
            if let Some(receipt) = commits.tap {
                let id = self.open_id(slot, id);
                self.core.taps.add_open(receipt, id);
            }
        }
        self.acknowledge_when_committed(conn, PacketType::PubRec, id, reason, commits);
    }

    fn publish_to_inbox(
        &mut self,
        now: Now,
        slot: SessionSlot,
        from: InboxKey,
        publish: &Publish<'_>,
    ) -> (ReasonCode, PendingCommits) {
        let conn = self.core.sessions.at(slot).conn;
        let (mut tick, _) = self.split(now);
        match publish_to_inbox(&mut tick, slot, from, publish) {
            Ok(commits) => (ReasonCode::Success, commits),
            Err(refusal) => {
                if let (Some(conn), Some(detail)) = (conn, refusal.disconnect) {
                    let reason = DisconnectReason::QuotaExceeded;
                    self.end_connection(now, conn, ConnectionEnd::by_server(reason, refusal.reason, detail));
                }
                (refusal.reason, PendingCommits::default())
            }
        }
    }

    fn open_id(&self, slot: SessionSlot, id: PacketId) -> OpenId {
        OpenId {
            session: slot,
            epoch: self.core.sessions.at(slot).epoch,
            id: id.get(),
        }
    }

    /// Authorizes a PUBLISH, strips `$delayed`, and routes it. Returns the reason code of the acknowledgement, and the
    /// commits that it waits for.
    fn authorize_and_route(
        &mut self,
        now: Now,
        slot: SessionSlot,
        publish: &Publish<'_>,
    ) -> (ReasonCode, PendingCommits) {
        if let Some(from) = self.core.sessions.inbox_key(slot) {
            return self.publish_to_inbox(now, slot, from, publish);
        }
        let (topic, delay_s) = match strip_delay(publish.topic) {
            PublishDelay::None => (publish.topic, None),
            PublishDelay::Seconds(seconds, topic) if seconds <= self.core.config.max_delay_s => (topic, Some(seconds)),
            _ => {
                return self.reject(now, slot, DropReason::TopicInvalid, ReasonCode::TopicNameInvalid);
            }
        };
        let config = &self.core.config;
        if topic.len() > config.max_topic_levels
            && topic.bytes().filter(|b| *b == b'/').count() >= config.max_topic_levels
        {
            return self.reject(now, slot, DropReason::TopicInvalid, ReasonCode::TopicNameInvalid);
        }
        if !config.allows_characters(topic) {
            return self.reject(now, slot, DropReason::TopicInvalid, ReasonCode::TopicNameInvalid);
        }
        let session = self.core.sessions.at_mut(slot);
        session.messages_received += 1;
        session.bytes_received += publish.payload.len() as u64;
        let is_allowed = !topic.starts_with('$') || !is_reserved(topic);
        let is_allowed = is_allowed
            && session
                .access
                .as_ref()
                .is_none_or(|a| a.can_publish(topic, publish.qos, publish.retain));
        let tap_event = TapEvent::Authorized {
            is_publish: true,
            topic,
            is_allowed,
        };
        self.core
            .taps
            .session_event(now, self.core.sessions.at(slot), TapEventMask::AUTHORIZED, &tap_event);
        if !is_allowed {
            return self.reject(now, slot, DropReason::NotAuthorizedToPublish, ReasonCode::NotAuthorized);
        }
        if self.core.ledger.is_unavailable()
            && (delay_s.is_some() || self.needs_journal(Some(slot), topic, publish.qos, publish.retain))
        {
            return self.reject(now, slot, DropReason::JournalFull, ReasonCode::QuotaExceeded);
        }
        let publisher_hash = hash(&self.core.sessions.at(slot).client_id) as u32;
        let stored_as = match delay_s {
            Some(_) => Some(Holding::Delayed),
            // A message without payload deletes the retained one.
            None => (publish.retain && !publish.payload.is_empty()).then_some(Holding::Retained),
        };
        let holding = stored_as.and_then(|_| self.core.sessions.holding_mut(slot));
        let owner = holding.and_then(|holding| holding.client(publisher_hash));
        let mut forwarded = Vec::new();
        let properties = if publish.properties.is_forwarded_whole() {
            publish.properties.as_bytes()
        } else {
            publish.properties.append_forwarded(&mut forwarded);
            &forwarded
        };
        let wanted = match delay_s {
            None => TapEventMask::MESSAGE_EVENTS,
            Some(_) => TapEventMask::MESSAGE_EVENTS | TapEventMask::MESSAGES,
        };
        let provenance = self.core.taps.provenance(now, self.core.sessions.get(slot), 0, wanted);
        let p = Publication {
            topic,
            payload: publish.payload,
            properties,
            qos: publish.qos,
            retain: publish.retain,
            expires_at_ms: self
                .core
                .config
                .message_expiry_ms(now, publish.properties.message_expiry_interval()),
            origin: MessageOrigin {
                shard: self.core.id,
                epoch: self.core.sessions.at(slot).epoch,
            },
            publisher_hash,
            place: RecordLocation::NONE,
            provenance: Provenance::from_written(&provenance),
            owner: owner.as_ref(),
        };
        if let Some(holding) = stored_as
            && is_over_share(self, now, slot, holding, &p)
        {
            return self.reject(now, slot, DropReason::OverShare, ReasonCode::QuotaExceeded);
        }
        if self.core.taps.rejects(now, self.core.sessions.get(slot), &p) {
            return self.reject(now, slot, DropReason::BufferFull, ReasonCode::QuotaExceeded);
        }
        self.core.stats.messages_received[publish.qos as usize] += 1;
        self.core.stats.publish_bytes_received += publish.payload.len() as u64;
        let key = self.core.sessions.at(slot).key;
        let publisher = match (publish.qos, publish.packet_id) {
            (QoS::ExactlyOnce, Some(id)) if key.0 != 0 => Some((key, id.get())),
            _ => None,
        };
        if let Some(seconds) = delay_s {
            return self.delay(now, slot, &p, seconds, publisher);
        }
        let receipt = self
            .core
            .taps
            .message(now, self.core.sessions.get(slot), &p, publish.dup);
        let published = self.publish(now, &p, publisher);
        let commits = self.wait_for(now, published, receipt);
        match published.has_recipient {
            true => (ReasonCode::Success, commits),
            false => {
                self.core
                    .taps
                    .dropped(now, self.core.sessions.get(slot), &p, DropReason::NoSubscriber);
                (ReasonCode::NoMatchingSubscribers, commits)
            }
        }
    }

    /// Returns the commits that an acknowledgement waits for. Publishes the messages that the tap has created from this
    /// one.
    fn wait_for(&mut self, now: Now, published: PublishResult, receipt: Option<Receipt>) -> PendingCommits {
        let mut commits = PendingCommits {
            journal: published.is_recorded,
            tap: receipt,
        };
        if self.core.taps.is_used() {
            let made = self.publish_tap_messages(now);
            commits.journal |= made.journal;
            commits.tap = self.core.taps.join(receipt, made.tap);
        }
        commits
    }

    /// Passes a repeated message to the tap again.
    fn repeat_to_tap(&mut self, now: Now, slot: SessionSlot, publish: &Publish<'_>) -> Option<Receipt> {
        let mut properties = Vec::new();
        publish.properties.append_forwarded(&mut properties);
        let p = Publication {
            properties: &properties,
            qos: publish.qos,
            retain: publish.retain,
            ..Publication::from_server(publish.topic, publish.payload)
        };
        self.core
            .taps
            .message(now, self.core.sessions.get(slot), &p, publish.dup)
    }

    pub(crate) fn reject(
        &mut self,
        now: Now,
        slot: SessionSlot,
        drop: DropReason,
        reason: ReasonCode,
    ) -> (ReasonCode, PendingCommits) {
        self.core.dropped(now, slot, drop);
        (reason, PendingCommits::default())
    }

    /// Publishes a message of the server or of an operator, without session and authorization. Returns false if no
    /// recipient is known. Drops a message beyond the limits of clients, except one of `$SYS`.
    pub fn publish_from_server(&mut self, now: Now, message: ServerMessage<'_>) -> bool {
        let is_limited = !message.topic.starts_with("$SYS/");
        if is_limited && self.core.taps.message_limits().check(&message.limited()).is_err() {
            self.core.stats.drop_message(DropReason::TopicInvalid);
            return false;
        }
        let provenance = self
            .core
            .taps
            .provenance(now, None, message.mark, TapEventMask::MESSAGE_EVENTS);
        let p = Publication {
            provenance: Provenance::from_written(&provenance),
            properties: message.properties,
            qos: message.qos,
            retain: message.retain,
            expires_at_ms: message.expiry_s.map(|s| now.monotonic_ms + u64::from(s) * 1000),
            ..Publication::from_server(message.topic, message.payload)
        };
        let receipt = self.core.taps.marked(now, None, &p, false, message.mark);
        let published = self.publish(now, &p, None);
        let commits = self.wait_for(now, published, receipt);
        self.core.taps.add_server_commits(commits);
        published.has_recipient
    }

    /// Returns whether a message at QoS 1 or 2, or a retained one, can be stored everywhere that it must be.
    pub fn can_store(&mut self, now: Now, message: &ServerMessage<'_>) -> bool {
        let p = Publication {
            properties: message.properties,
            qos: message.qos,
            retain: message.retain,
            ..Publication::from_server(message.topic, message.payload)
        };
        let is_journal_full = self.core.ledger.is_unavailable() && self.needs_journal(None, p.topic, p.qos, p.retain);
        !is_journal_full && !self.core.taps.rejects(now, None, &p)
    }

    /// Calls `done` when all messages published from the server in this tick are stored; immediately if they are.
    pub fn call_when_stored(&mut self, done: Box<dyn FnOnce() + Send>) {
        let commits = self.core.taps.take_server_commits();
        match commits.journal {
            true => self.call_when_all_stored(commits.tap, done),
            false => self.call_when_tap_stored(commits.tap, done),
        }
    }

    /// Like `call_when_stored`, for all records written so far.
    pub fn call_when_all_stored(&mut self, receipt: Option<Receipt>, done: Box<dyn FnOnce() + Send>) {
        match self.core.ledger.records_mut() {
            Some(ledger) if ledger.has_uncommitted() && !is_planted(Fault::TellBeforeCommit) => {
                ledger.wait(CommitAction::Call(receipt, done));
            }
            _ => self.call_when_tap_stored(receipt, done),
        }
    }

    pub(crate) fn call_when_tap_stored(&mut self, receipt: Option<Receipt>, done: Box<dyn FnOnce() + Send>) {
        match receipt.filter(|receipt| !self.core.taps.has_stored(*receipt)) {
            Some(receipt) => self.core.taps.run_when_stored(receipt, ReceiptAction::Call(done)),
            None => done(),
        }
    }

    fn resolve_topic(&mut self, conn: ConnSlot, publish: &Publish<'_>) -> ResolvedTopic {
        if publish.properties.is_empty() {
            return ResolvedTopic::InPacket;
        }
        let Some(alias) = publish.properties.topic_alias() else {
            return ResolvedTopic::InPacket;
        };
        let connection = self
            .core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection");
        if alias == 0 || alias > connection.topic_alias_maximum {
            // [MQTT-3.3.2-8], [MQTT-3.3.2-9]
            let detail = "the topic alias is 0 or above the server's maximum";
            return ResolvedTopic::Refused {
                code: ReasonCode::TopicAliasInvalid,
                detail,
            };
        }
        let incoming = &mut connection.aliases.get_or_insert_default().incoming;
        if publish.topic.is_empty() {
            // Section 3.3.4: an unknown alias is a Protocol Error, not an invalid alias.
            let unknown = ResolvedTopic::Refused {
                code: ReasonCode::ProtocolError,
                detail: "the topic alias is unknown",
            };
            return incoming
                .get(alias)
                .map_or(unknown, |topic| ResolvedTopic::Alias(topic.into()));
        }
        if incoming.set(alias, publish.topic) {
            ResolvedTopic::InPacket
        } else {
            ResolvedTopic::Refused {
                code: ReasonCode::QuotaExceeded,
                detail: "the topic names of all aliases exceed the size limit",
            }
        }
    }

    /// Sends an acknowledgement. Success takes four bytes in every version. A failure has a reason code in MQTT 5;
    /// before that it looks like success [MQTT-3.3.5-2].
    pub(crate) fn acknowledge(&mut self, conn: ConnSlot, kind: PacketType, id: PacketId, reason: ReasonCode) {
        let Some(connection) = self.core.connections.get_mut(conn) else {
            return;
        };
        if reason == ReasonCode::Success || connection.version != ProtocolVersion::V5 {
            return self.core.send_ack(conn, kind, id);
        }
        let slot = connection.session;
        let wants_text = self
            .core
            .sessions
            .get(slot)
            .is_some_and(|s| s.wants_problem_information);
        let mut bytes = Vec::new();
        if wants_text && reason.is_error() && self.core.sessions.link(slot).maximum_packet_size > 256 {
            PropertyWriter::new(&mut bytes).put(Property::ReasonString(reason.name()));
        }
        let ack = Ack {
            packet_id: id,
            reason,
            properties: Properties::from_validated(&bytes),
        };
        let packet = match kind {
            PacketType::PubAck => Packet::PubAck(ack),
            PacketType::PubRec => Packet::PubRec(ack),
            PacketType::PubRel => Packet::PubRel(ack),
            _ => Packet::PubComp(ack),
        };
        self.core.send(conn, &packet);
    }

    pub(crate) fn puback(&mut self, now: Now, slot: SessionSlot, ack: &Ack<'_>) {
        self.core.stats.packets_received[PacketType::PubAck as usize] += 1;
        let out = &mut self.core.sessions.at_mut(slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        let result = out.puback(ack.packet_id);
        self.tap_client_ack(now, slot, &result, ack);
        self.acknowledged(now, slot, seq, result);
    }

    pub(crate) fn pubrec(&mut self, now: Now, conn: ConnSlot, slot: SessionSlot, ack: &Ack<'_>) {
        self.core.stats.packets_received[PacketType::PubRec as usize] += 1;
        let out = &mut self.core.sessions.at_mut(slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        if ack.reason.is_error() {
            let result = out.pubrec_failed(ack.packet_id);
            self.tap_client_ack(now, slot, &result, ack);
            return self.acknowledged(now, slot, seq, result);
        }
        let (result, delivery) = out.pubrec(ack.packet_id);
        let reason = match result {
            AckResult::Release => ReasonCode::Success,
            _ => ReasonCode::PacketIdentifierNotFound,
        };
        if let Some(delivery) = delivery {
            self.core
                .ledger
                .record_acknowledged(&self.core.sessions, slot, seq, true);
            self.core
                .taps
                .acked(now, self.core.sessions.at(slot), &delivery, ack.properties.as_bytes());
            self.group_acknowledged(now, slot, &delivery);
        }
        // The client forgets the identifier on PUBREL, so the journal must have committed PUBREC by then.
        let commits =
            PendingCommits::for_journal(reason == ReasonCode::Success && self.core.sessions.link(slot).is_durable);
        // An unknown identifier is answered as well, so that the client can release it [MQTT-4.3.3-4].
        self.acknowledge_when_committed(conn, PacketType::PubRel, ack.packet_id, reason, commits);
    }

    pub(crate) fn pubrel(&mut self, conn: ConnSlot, slot: SessionSlot, ack: &Ack<'_>) {
        self.core.stats.packets_received[PacketType::PubRel as usize] += 1;
        let was_open = self.core.sessions.at_mut(slot).received.remove(ack.packet_id.get());
        if let Some(connection) = self.core.connections.get_mut(conn).filter(|_| was_open) {
            connection.open_exactly_once = connection.open_exactly_once.saturating_sub(1);
        }
        let reason = if was_open {
            ReasonCode::Success
        } else {
            ReasonCode::PacketIdentifierNotFound
        };
        // The client may reuse the identifier after PUBCOMP.
        let commits = PendingCommits::for_journal(
            was_open
                && self
                    .core
                    .ledger
                    .record_packet_id_freed(self.core.sessions.at(slot), ack.packet_id.get()),
        );
        // [MQTT-4.3.3-11]
        self.acknowledge_when_committed(conn, PacketType::PubComp, ack.packet_id, reason, commits);
    }

    pub(crate) fn pubcomp(&mut self, now: Now, slot: SessionSlot, ack: &Ack<'_>) {
        self.core.stats.packets_received[PacketType::PubComp as usize] += 1;
        let out = &mut self.core.sessions.at_mut(slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        let result = out.pubcomp(ack.packet_id);
        self.acknowledged(now, slot, seq, result);
    }

    fn tap_client_ack(&mut self, now: Now, slot: SessionSlot, result: &AckResult, ack: &Ack<'_>) {
        if let AckResult::Done(Some(delivery)) = result {
            self.core
                .taps
                .acked(now, self.core.sessions.at(slot), delivery, ack.properties.as_bytes());
            self.core.taps.inbox_acked(self.core.sessions.at(slot), delivery);
        }
    }

    fn acknowledged(&mut self, now: Now, slot: SessionSlot, seq: u64, result: AckResult) {
        let AckResult::Done(delivery) = result else { return };
        self.core
            .ledger
            .record_acknowledged(&self.core.sessions, slot, seq, false);
        self.core.stats.inflight_messages -= 1;
        self.core.stats.messages_acknowledged += 1;
        if let Some(delivery) = delivery {
            self.group_acknowledged(now, slot, &delivery);
        }
        self.pump(now, slot);
    }

    fn group_acknowledged(&mut self, now: Now, slot: SessionSlot, delivery: &Delivery) {
        if let Some(group) = delivery.tag.group() {
            if self
                .core
                .ledger
                .group_retains(self.core.sessions.link(slot), delivery.qos, group.key)
            {
                self.core
                    .ledger
                    .record_group_dropped(group.key, delivery.message.place());
            }
            let (mut tick, parts) = self.split(now);
            parts.groups.member_acknowledged(&mut tick, slot, group);
        }
    }

    /// Sends what a session waits for: its queue, then retained messages for new subscriptions.
    pub(crate) fn pump(&mut self, now: Now, slot: SessionSlot) {
        self.core.pump(now, slot);
        if !self.core.sessions.at(slot).replays.is_done() {
            let (mut tick, parts) = self.split(now);
            parts.retained.replay(&mut tick, slot);
        }
    }

    // --- publish quota: exceeding it slows the publisher down; the connection stays ---

    fn charge_quota(&mut self, conn: ConnSlot, packet_bytes: usize) {
        if let Some(quota) = self
            .core
            .connections
            .get_mut(conn)
            .and_then(|c| c.publish_quota.as_mut())
        {
            quota.messages -= 1.0;
            quota.bytes -= packet_bytes as f64;
        }
    }

    pub(crate) fn is_over_quota(&mut self, now: Now, conn: ConnSlot) -> bool {
        let config = self.core.config.clone();
        let Some(connection) = self.core.connections.get_mut(conn) else {
            return false;
        };
        let epoch = connection.epoch;
        let Some(quota) = connection.publish_quota.as_mut() else {
            return false;
        };
        quota.refill(&config, now.monotonic_ms);
        let Some(wait_ms) = quota.wait_ms(&config) else {
            return false;
        };
        if !quota.is_paused {
            quota.is_paused = true;
            self.core.stats.publishers_slowed += 1;
            let timer = ShardTimer::Quota { conn, epoch };
            self.core
                .timers
                .wake(now, now.monotonic_ms.saturating_add(wait_ms), timer);
        }
        true
    }

    /// Applies changed rates to all clients. Paused publishers resume, because their waiting time belongs to the old
    /// rates.
    pub(crate) fn renew_quotas(&mut self) {
        let config = self.core.config.clone();
        if !config.limits_publishers() {
            return;
        }
        for (conn, connection) in self.core.connections.iter_mut() {
            let full = || Box::new(PublishQuota::full(&config, 0));
            let quota = connection.publish_quota.get_or_insert_with(full);
            if std::mem::take(&mut quota.is_paused) {
                self.core.effects.push(Effect::Resume { conn });
            }
        }
    }

    pub(crate) fn quota_due(&mut self, now: Now, conn: ConnSlot, epoch: ConnEpoch) {
        let Some(connection) = self.core.connections.live(conn, epoch) else {
            return;
        };
        // The server has not read from it while it was paused.
        connection.heard(now);
        if let Some(quota) = connection.publish_quota.as_mut() {
            quota.is_paused = false;
            self.core.effects.push(Effect::Resume { conn });
        }
    }
}

/// A message that no client sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerMessage<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// MQTT 5 properties that are forwarded unaltered, in wire format.
    pub properties: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Message Expiry Interval.
    pub expiry_s: Option<u32>,
    /// `MadeMessage::mark` if a tap has created it, else 0.
    pub mark: u64,
}

impl ServerMessage<'_> {
    /// Returns the limited parts.
    pub fn limited(&self) -> LimitedMessage<'_> {
        LimitedMessage {
            topic: self.topic,
            payload_bytes: self.payload.len(),
            property_bytes: self.properties.len(),
            qos: self.qos,
            retain: self.retain,
        }
    }
}

impl PublishQuota {
    pub(crate) fn full(config: &ShardConfig, now_ms: u64) -> PublishQuota {
        let all = |rate: Option<PublishRate>| rate.map_or(0.0, |rate| rate.amount as f64);
        PublishQuota {
            messages: all(config.publish_rate),
            bytes: all(config.publish_bytes),
            refilled_ms: now_ms,
            is_paused: false,
        }
    }

    fn refill(&mut self, config: &ShardConfig, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.refilled_ms) as f64;
        self.refilled_ms = now_ms;
        for (tokens, rate) in [
            (&mut self.messages, config.publish_rate),
            (&mut self.bytes, config.publish_bytes),
        ] {
            if let Some(rate) = rate {
                *tokens = (*tokens + passed_ms * rate.per_ms()).min(rate.amount as f64);
            }
        }
    }

    /// Returns the time until both buckets are refilled to 0. `None` if neither is below.
    fn wait_ms(&self, config: &ShardConfig) -> Option<u64> {
        let lacking = |tokens: f64, rate: Option<PublishRate>| match rate {
            Some(rate) if tokens < 0.0 => ((-tokens / rate.per_ms()).ceil() as u64).saturating_add(1),
            _ => 0,
        };
        let commits = lacking(self.messages, config.publish_rate).max(lacking(self.bytes, config.publish_bytes));
        (commits > 0).then_some(commits)
    }
}

/// Returns whether the user or the client has used its share, and counts and reports that. A user may replace its own
/// retained messages: the shard that retains the message knows the old one and checks the size of the new one.
fn is_over_share(shard: &mut Shard, now: Now, slot: SessionSlot, holding: Holding, p: &Publication<'_>) -> bool {
    let core = &mut shard.core;
    let bytes = p.stored_bytes() as u64;
    let owners = &shard.shared.owners;
    let Some(exceeded) = owners.exceeded(&core.config.shares, holding, p.owner, None, bytes) else {
        return false;
    };
    let is_own_topic = || p.owner.is_some_and(|owner| owner.has_topic(hash(p.topic)));
    if holding == Holding::Retained && is_own_topic() {
        return false;
    }
    core.stats.limit_rejections[exceeded.limit as usize] += 1;
    if let Some(owner) = p.owner.filter(|owner| owner.can_report(now.monotonic_ms)) {
        core.effects.push(Effect::Event(ConnectionEvent::OverLimit {
            client_id: core.sessions.at(slot).client_id.clone(),
            owner: owner.owner().into(),
            exceeded,
        }));
    }
    true
}
