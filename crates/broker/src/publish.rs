//! PUBLISH from a client: who may, to where, how often, and the acknowledgements of both directions.

use mqtt::{
    Ack, Packet, PacketId, PacketType, Properties, Property, PropertyWriter, ProtocolVersion, Publish, QoS, ReasonCode,
};

use crate::config::{PublishRate, ShardConfig};
use crate::connection::PublishQuota;
use crate::delayed::{Delay, strip_delay};
use crate::durable::keep::Wait;
use crate::durable::ledger::Waiting;
use crate::effect::{ConnSlot, DropReason, Effect, Now};
use crate::fault::{Fault, is_planted};
use crate::lifecycle::is_reserved;
use crate::message::{Origin, Place, Publication};
use crate::outgoing::{Acknowledged, Delivery};
use crate::parking::{OpenId, Parked};
use crate::provenance::Provenance;
use crate::route::Published;
use crate::shard::{Shard, hash};
use crate::tap::{Happening, Receipt, Wants};
use crate::timers::Timer;

/// What a topic name or alias of a PUBLISH came to.
enum Topic {
    /// As it stands in the packet.
    Here,
    /// Kept for this connection under an alias.
    Alias(Box<str>),
    Refused {
        code: ReasonCode,
        because: &'static str,
    },
}

impl Shard {
    pub(crate) fn publish_received(
        &mut self,
        now: Now,
        conn: ConnSlot,
        slot: u32,
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
            let because = "a Subscription Identifier from a client";
            return self.protocol_error(now, conn, ReasonCode::ProtocolError, because);
        }
        let topic = match self.resolve_topic(conn, publish) {
            Topic::Here => None,
            Topic::Alias(topic) => Some(topic),
            Topic::Refused { code, because } => return self.protocol_error(now, conn, code, because),
        };
        let publish = Publish {
            topic: topic.as_deref().unwrap_or(publish.topic),
            ..publish.clone()
        };
        if publish.qos > self.core.config.maximum_qos {
            // [MQTT-3.2.2-11]
            return self.protocol_error(now, conn, ReasonCode::QoSNotSupported, "the QoS is above mqtt.max_qos");
        }
        if publish.retain && !self.core.config.is_retain_available {
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
                let _ = self.take_publish(now, slot, &publish);
            }
            (QoS::AtLeastOnce, Some(id)) => {
                let (reason, wait) = self.take_publish(now, slot, &publish);
                self.acknowledge_when_kept(conn, PacketType::PubAck, id, reason, wait);
            }
            (QoS::ExactlyOnce, Some(id)) => self.publish_exactly_once(now, conn, slot, &publish, id),
        }
    }

    /// QoS 2: routed when it first comes, remembered until it is released [MQTT-4.3.3-10].
    fn publish_exactly_once(&mut self, now: Now, conn: ConnSlot, slot: u32, publish: &Publish<'_>, id: PacketId) {
        let is_quota_used_up = self
            .core
            .connection_mut(conn)
            .is_none_or(|c| c.open_exactly_once >= c.receive_maximum);
        let session = self.core.session_mut(slot);
        if session.received.contains(id.get()) {
            // A duplicate: the same answer, no second delivery.
            let mut wait = Wait::for_journal(session.key.0 != 0);
            wait.receipt = match self.may_tap_have_missed(slot) {
                true => self.tap_again(now, slot, publish),
                false => self.core.tap.parking.receipt_of(self.open_id(slot, id)),
            };
            return self.acknowledge_when_kept(conn, PacketType::PubRec, id, ReasonCode::Success, wait);
        }
        if session.version == ProtocolVersion::V5 && is_quota_used_up {
            // [MQTT-3.3.4-9]
            let because = "more QoS 2 messages are open than the server's receive maximum";
            return self.protocol_error(now, conn, ReasonCode::ReceiveMaximumExceeded, because);
        }
        let (reason, wait) = self.take_publish(now, slot, publish);
        if !reason.is_error() {
            self.core.session_mut(slot).received.insert(id.get());
            if let Some(connection) = self.core.connection_mut(conn) {
                connection.open_exactly_once = connection.open_exactly_once.saturating_add(1);
            }
            if let Some(receipt) = wait.receipt {
                let id = self.open_id(slot, id);
                self.core.tap.parking.park_open(receipt, id);
            }
        }
        self.acknowledge_when_kept(conn, PacketType::PubRec, id, reason, wait);
    }

    fn open_id(&self, slot: u32, id: PacketId) -> OpenId {
        OpenId {
            session: slot,
            epoch: self.core.session(slot).epoch,
            id: id.get(),
        }
    }

    /// Checks rights, strips `$delayed`, routes. The reason is what an acknowledgement says, with what that has to wait for.
    fn take_publish(&mut self, now: Now, slot: u32, publish: &Publish<'_>) -> (ReasonCode, Wait) {
        if let Some(device) = self.device_of(slot) {
            return self.take_device_publish(now, slot, device, publish);
        }
        let (topic, delay_s) = match strip_delay(publish.topic) {
            Delay::None => (publish.topic, None),
            Delay::Seconds(seconds, topic) if seconds <= self.core.config.delayed_seconds_max => (topic, Some(seconds)),
            _ => {
                return self.reject(
                    now,
                    slot,
                    DropReason::NotAuthorizedToPublish,
                    ReasonCode::TopicNameInvalid,
                );
            }
        };
        let config = &self.core.config;
        if topic.len() > config.maximum_topic_levels
            && topic.bytes().filter(|b| *b == b'/').count() >= config.maximum_topic_levels
        {
            return self.reject(
                now,
                slot,
                DropReason::NotAuthorizedToPublish,
                ReasonCode::TopicNameInvalid,
            );
        }
        let session = self.core.session_mut(slot);
        session.messages_received += 1;
        session.bytes_received += publish.payload.len() as u64;
        let is_allowed = !topic.starts_with('$') || !is_reserved(topic);
        let is_allowed = is_allowed
            && session
                .access
                .as_ref()
                .is_none_or(|a| a.may_publish(topic, publish.qos, publish.retain));
        let what = Happening::Authorized {
            is_publish: true,
            topic,
            is_allowed,
        };
        self.core.tap_session(now, slot, Wants::AUTHORIZED, &what);
        if !is_allowed {
            return self.reject(now, slot, DropReason::NotAuthorizedToPublish, ReasonCode::NotAuthorized);
        }
        if self.core.is_journal_stuck()
            && (delay_s.is_some() || self.needs_journal(Some(slot), topic, publish.qos, publish.retain))
        {
            return self.reject(now, slot, DropReason::JournalFull, ReasonCode::QuotaExceeded);
        }
        let publisher_hash = hash(&self.core.session(slot).client_id) as u32;
        let mut forwarded = Vec::new();
        let properties = if publish.properties.is_forwarded_whole() {
            publish.properties.as_bytes()
        } else {
            publish.properties.append_forwarded(&mut forwarded);
            &forwarded
        };
        let told = match delay_s {
            None => Wants::FATES,
            Some(_) => Wants::FATES | Wants::MESSAGES,
        };
        let provenance = self.core.provenance(now, Some(slot), 0, told);
        let p = Publication {
            topic,
            payload: publish.payload,
            properties,
            qos: publish.qos,
            retain: publish.retain,
            expires_at_ms: self.expiry_deadline(now, publish.properties.message_expiry_interval()),
            origin: Origin {
                shard: self.core.id,
                epoch: self.core.session(slot).epoch,
            },
            publisher_hash,
            place: Place::NONE,
            provenance: Provenance::from_written(&provenance),
        };
        if self.core.tap_refuses(now, Some(slot), &p) {
            return self.reject(now, slot, DropReason::BufferFull, ReasonCode::QuotaExceeded);
        }
        self.core.stats.messages_received[publish.qos as usize] += 1;
        self.core.stats.publish_bytes_received += publish.payload.len() as u64;
        let key = self.core.session(slot).key;
        let publisher = match (publish.qos, publish.packet_id) {
            (QoS::ExactlyOnce, Some(id)) if key.0 != 0 => Some((key, id.get())),
            _ => None,
        };
        if let Some(seconds) = delay_s {
            return self.delay(now, slot, &p, seconds, publisher);
        }
        let receipt = self.core.tap_message(now, Some(slot), &p, publish.dup);
        let published = self.publish(now, &p, publisher);
        let wait = self.wait_for(now, published, receipt);
        match published.is_wanted {
            true => (ReasonCode::Success, wait),
            false => {
                self.core.tap_dropped(now, Some(slot), &p, DropReason::NoSubscriber);
                (ReasonCode::NoMatchingSubscribers, wait)
            }
        }
    }

    /// What has to be kept of a message that has been published, and of what the tap has made of it, which is published here.
    fn wait_for(&mut self, now: Now, published: Published, receipt: Option<Receipt>) -> Wait {
        let mut wait = Wait {
            for_journal: published.is_kept,
            receipt,
        };
        if self.core.tap.is_used() {
            let made = self.publish_made(now);
            wait.for_journal |= made.for_journal;
            wait.receipt = self.core.join_receipts(receipt, made.receipt);
        }
        wait
    }

    /// Gives the tap a message once more that came again.
    fn tap_again(&mut self, now: Now, slot: u32, publish: &Publish<'_>) -> Option<Receipt> {
        let mut properties = Vec::new();
        publish.properties.append_forwarded(&mut properties);
        let p = Publication {
            properties: &properties,
            qos: publish.qos,
            retain: publish.retain,
            ..Publication::of_server(publish.topic, publish.payload)
        };
        self.core.tap_message(now, Some(slot), &p, publish.dup)
    }

    pub(crate) fn reject(&mut self, now: Now, slot: u32, drop: DropReason, reason: ReasonCode) -> (ReasonCode, Wait) {
        self.core.dropped(now, slot, drop);
        (reason, Wait::default())
    }

    /// A message of the server itself or of an operator: no session, no rights to check. False when nobody is known to
    /// want it.
    pub fn publish_from_server(&mut self, now: Now, message: ServerMessage<'_>) -> bool {
        let provenance = self.core.provenance(now, None, message.mark, Wants::FATES);
        let p = Publication {
            provenance: Provenance::from_written(&provenance),
            properties: message.properties,
            qos: message.qos,
            retain: message.retain,
            expires_at_ms: message.expiry_s.map(|s| now.monotonic_ms + u64::from(s) * 1000),
            ..Publication::of_server(message.topic, message.payload)
        };
        let receipt = self.core.tap_marked(now, None, &p, false, message.mark);
        let published = self.publish(now, &p, None);
        let wait = self.wait_for(now, published, receipt);
        self.core.tap.of_server = self.core.join_receipts(self.core.tap.of_server, wait.receipt);
        self.core.tap.is_server_recorded |= wait.for_journal;
        published.is_wanted
    }

    /// Whether a message at QoS 1 or 2, or one that is to be retained, would be kept wherever it has to be, now.
    pub fn may_keep(&mut self, now: Now, message: &ServerMessage<'_>) -> bool {
        let p = Publication {
            properties: message.properties,
            qos: message.qos,
            retain: message.retain,
            ..Publication::of_server(message.topic, message.payload)
        };
        let is_journal_full = self.core.is_journal_stuck() && self.needs_journal(None, p.topic, p.qos, p.retain);
        !is_journal_full && !self.core.tap_refuses(now, None, &p)
    }

    /// Calls `done` when all that has been published from the server in this tick is kept wherever it has to be; at once if it is.
    pub fn when_kept(&mut self, done: Box<dyn FnOnce() + Send>) {
        let receipt = self.core.tap.of_server.take();
        match std::mem::take(&mut self.core.tap.is_server_recorded) {
            true => self.when_all_is_kept(receipt, done),
            false => self.tell_when_tapped(receipt, done),
        }
    }

    /// The same of all that has been recorded so far, whoever did it.
    pub fn when_all_is_kept(&mut self, receipt: Option<Receipt>, done: Box<dyn FnOnce() + Send>) {
        match &mut self.core.ledger {
            Some(ledger) if ledger.is_behind() && !is_planted(Fault::TellBeforeCommit) => {
                ledger.wait(Waiting::Tell(receipt, done));
            }
            _ => self.tell_when_tapped(receipt, done),
        }
    }

    pub(crate) fn tell_when_tapped(&mut self, receipt: Option<Receipt>, done: Box<dyn FnOnce() + Send>) {
        match receipt.filter(|receipt| !self.core.tap.has_kept(*receipt)) {
            Some(receipt) => self.core.tap.parking.park(receipt, Parked::Tell(done)),
            None => done(),
        }
    }

    fn resolve_topic(&mut self, conn: ConnSlot, publish: &Publish<'_>) -> Topic {
        if publish.properties.is_empty() {
            return Topic::Here;
        }
        let Some(alias) = publish.properties.topic_alias() else {
            return Topic::Here;
        };
        let connection = self
            .core
            .connection_mut(conn)
            .expect("a packet comes from an open connection");
        if alias == 0 || alias > connection.topic_alias_maximum {
            // [MQTT-3.3.2-8], [MQTT-3.3.2-9]
            let because = "the topic alias is 0 or above the server's maximum";
            return Topic::Refused {
                code: ReasonCode::TopicAliasInvalid,
                because,
            };
        }
        let incoming = &mut connection.aliases.get_or_insert_default().incoming;
        if publish.topic.is_empty() {
            // 3.3.4: without a mapping it is a Protocol Error, not an invalid alias.
            let unknown = Topic::Refused {
                code: ReasonCode::ProtocolError,
                because: "nothing was published under the topic alias",
            };
            return incoming.get(alias).map_or(unknown, |topic| Topic::Alias(topic.into()));
        }
        if incoming.set(alias, publish.topic) {
            Topic::Here
        } else {
            Topic::Refused {
                code: ReasonCode::QuotaExceeded,
                because: "the topics kept under aliases are too long together",
            }
        }
    }

    /// Answers a packet. Success is four bytes in every version; a failure has a code in 5 and looks like success before
    /// [MQTT-3.3.5-2].
    pub(crate) fn acknowledge(&mut self, conn: ConnSlot, kind: PacketType, id: PacketId, reason: ReasonCode) {
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        if reason == ReasonCode::Success || connection.version != ProtocolVersion::V5 {
            return self.core.send_ack(conn, kind, id);
        }
        let slot = connection.session;
        let wants_text = self
            .core
            .sessions
            .get(slot as usize)
            .and_then(Option::as_ref)
            .is_some_and(|s| s.wants_problem_information);
        let mut bytes = Vec::new();
        if wants_text && reason.is_error() && self.core.link(slot).maximum_packet_size > 256 {
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
        self.send(conn, &packet);
    }

    pub(crate) fn puback(&mut self, now: Now, slot: u32, ack: &Ack<'_>) {
        self.core.stats.packets_received[PacketType::PubAck as usize] += 1;
        let out = &mut self.core.session_mut(slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        let result = out.puback(ack.packet_id);
        self.tap_answer(now, slot, &result, ack);
        self.acknowledged(now, slot, seq, result);
    }

    pub(crate) fn pubrec(&mut self, now: Now, conn: ConnSlot, slot: u32, ack: &Ack<'_>) {
        self.core.stats.packets_received[PacketType::PubRec as usize] += 1;
        let out = &mut self.core.session_mut(slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        if ack.reason.is_error() {
            let result = out.pubrec_failed(ack.packet_id);
            self.tap_answer(now, slot, &result, ack);
            return self.acknowledged(now, slot, seq, result);
        }
        let (result, delivery) = out.pubrec(ack.packet_id);
        let reason = match result {
            Acknowledged::Release => ReasonCode::Success,
            _ => ReasonCode::PacketIdentifierNotFound,
        };
        if let Some(delivery) = delivery {
            self.core.keep_settled(slot, seq, true);
            self.core.tap_acked(now, slot, &delivery, ack.properties.as_bytes());
            self.group_acknowledged(slot, &delivery);
        }
        // The client forgets the identifier with PUBREL: the journal has to know by then that it has the message.
        let wait = Wait::for_journal(reason == ReasonCode::Success && self.core.link(slot).is_durable);
        // [MQTT-4.3.3-4]; an identifier that is not known is answered too, so that the client can let go of it.
        self.acknowledge_when_kept(conn, PacketType::PubRel, ack.packet_id, reason, wait);
    }

    pub(crate) fn pubrel(&mut self, conn: ConnSlot, slot: u32, ack: &Ack<'_>) {
        self.core.stats.packets_received[PacketType::PubRel as usize] += 1;
        let was_open = self.core.session_mut(slot).received.remove(ack.packet_id.get());
        if let Some(connection) = self.core.connection_mut(conn).filter(|_| was_open) {
            connection.open_exactly_once = connection.open_exactly_once.saturating_sub(1);
        }
        let reason = if was_open {
            ReasonCode::Success
        } else {
            ReasonCode::PacketIdentifierNotFound
        };
        // The client may use the identifier for another message once it has PUBCOMP.
        let wait = Wait::for_journal(was_open && self.keep_freed(slot, ack.packet_id.get()));
        // [MQTT-4.3.3-11]
        self.acknowledge_when_kept(conn, PacketType::PubComp, ack.packet_id, reason, wait);
    }

    pub(crate) fn pubcomp(&mut self, now: Now, slot: u32, ack: &Ack<'_>) {
        self.core.stats.packets_received[PacketType::PubComp as usize] += 1;
        let out = &mut self.core.session_mut(slot).outgoing;
        let seq = out.seq_of(ack.packet_id);
        let result = out.pubcomp(ack.packet_id);
        self.acknowledged(now, slot, seq, result);
    }

    fn tap_answer(&mut self, now: Now, slot: u32, result: &Acknowledged, ack: &Ack<'_>) {
        if let Acknowledged::Done(Some(delivery)) = result {
            self.core.tap_acked(now, slot, delivery, ack.properties.as_bytes());
            self.core.tap_device_acked(now, slot, delivery);
        }
    }

    fn acknowledged(&mut self, now: Now, slot: u32, seq: u64, result: Acknowledged) {
        let Acknowledged::Done(delivery) = result else { return };
        self.core.keep_settled(slot, seq, false);
        self.core.stats.inflight_messages -= 1;
        self.core.stats.messages_acknowledged += 1;
        if let Some(delivery) = delivery {
            self.group_acknowledged(slot, &delivery);
        }
        self.pump(now, slot);
    }

    fn group_acknowledged(&mut self, slot: u32, delivery: &Delivery) {
        if let Some(group) = delivery.tag.group() {
            if self.core.is_lent(slot, delivery.qos, group.key) {
                self.keep_dropped(group.key, delivery.message.place());
            }
            self.member_acknowledged(slot, group);
        }
    }

    /// Sends what a session waits for: its queue, then retained messages of new subscriptions.
    pub(crate) fn pump(&mut self, now: Now, slot: u32) {
        self.core.pump(now, slot);
        if !self.core.session(slot).replays.is_done() {
            self.replay(now, slot);
        }
    }

    // --- quota: a publisher over it is slowed, not killed ---

    fn charge_quota(&mut self, conn: ConnSlot, packet_bytes: usize) {
        if let Some(quota) = self.core.connection_mut(conn).and_then(|c| c.publish_quota.as_mut()) {
            quota.messages -= 1.0;
            quota.bytes -= packet_bytes as f64;
        }
    }

    pub(crate) fn is_over_quota(&mut self, now: Now, conn: ConnSlot) -> bool {
        let config = self.core.config.clone();
        let Some(connection) = self.core.connection_mut(conn) else {
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
            let timer = Timer::Quota { conn: conn.0, epoch };
            self.core.wake(now, now.monotonic_ms.saturating_add(wait_ms), timer);
        }
        true
    }

    /// The rates have changed: every client is held to the new ones, and who was slowed need not wait as long as the old
    /// ones asked for.
    pub(crate) fn renew_quotas(&mut self) {
        let config = self.core.config.clone();
        if !config.limits_publishers() {
            return;
        }
        for (slot, connection) in self.core.connections.iter_mut().enumerate() {
            let Some(connection) = connection.as_deref_mut() else {
                continue;
            };
            let full = || Box::new(PublishQuota::full(&config, 0));
            let quota = connection.publish_quota.get_or_insert_with(full);
            if std::mem::take(&mut quota.is_paused) {
                let conn = ConnSlot(slot as u32);
                self.core.effects.push(Effect::Resume { conn });
            }
        }
    }

    pub(crate) fn quota_due(&mut self, now: Now, conn: ConnSlot, epoch: u32) {
        let Some(connection) = self.core.connection_mut(conn).filter(|c| c.epoch == epoch) else {
            return;
        };
        // It could not be heard meanwhile.
        connection.last_packet_ms = now.monotonic_ms;
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
    /// MQTT 5 properties that are forwarded unaltered, as wire bytes.
    pub properties: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Message Expiry Interval.
    pub expiry_s: Option<u32>,
    /// `MadeMessage::mark`, if a tap has made it; else 0.
    pub mark: u64,
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

    /// How long until both buckets are out of debt; `None` when they are not in it.
    fn wait_ms(&self, config: &ShardConfig) -> Option<u64> {
        let lacking = |tokens: f64, rate: Option<PublishRate>| match rate {
            Some(rate) if tokens < 0.0 => ((-tokens / rate.per_ms()).ceil() as u64).saturating_add(1),
            _ => 0,
        };
        let wait = lacking(self.messages, config.publish_rate).max(lacking(self.bytes, config.publish_bytes));
        (wait > 0).then_some(wait)
    }
}
