//! PUBLISH from clients: checks, authorization, topic aliases, and the way to the tap and the router.

use mqtt::{PacketId, PacketType, Property, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::connection::Connection;
use crate::delayed::DelayedMessages;
use crate::durable::record_fields::PendingCommits;
use crate::effect::{ConnectionEvent, DropReason, Effect};
use crate::inbox::InboxKey;
use crate::inbox_sessions::publish_to_inbox;
use crate::message::{MessageOrigin, Publication, RecordLocation, is_reserved};
use crate::mountpoint::is_short_enough;
use crate::node_state::hash;
use crate::owners::{Holding, Owners};
use crate::provenance::Provenance;
use crate::publish_delay::{PublishDelay, strip_delay};
use crate::receipt_actions::OpenId;
use crate::router::{Destinations, Router};
use crate::slots::{ConnSlot, SessionSlot};
use crate::tap::{Receipt, TapEvent, TapEventMask};
use crate::tick::Tick;

/// Why the server closes the connection of a publisher.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PublishError {
    /// The client violates the protocol or the announced limits.
    Protocol { code: ReasonCode, detail: &'static str },
    /// The inbox accepts no more messages of this client.
    Overload { code: ReasonCode, detail: &'static str },
    /// The access rules deny the message, and `disconnect_denied` is set.
    Denied,
}

impl PublishError {
    fn protocol(code: ReasonCode, detail: &'static str) -> PublishError {
        PublishError::Protocol { code, detail }
    }
}

/// A message that is not published. The connection stays.
struct Rejected {
    drop: DropReason,
    code: ReasonCode,
}

/// Reason code of the acknowledgement, and the commits that it waits for.
type Answer = (ReasonCode, PendingCommits);

/// Where a message of a client is stored besides the queues of sessions.
#[derive(Clone, Copy)]
struct PublishTarget<'a> {
    /// Without `$delayed`.
    topic: &'a str,
    delay_s: Option<u32>,
    stored_as: Option<Holding>,
}

/// Handles PUBLISH of one client.
pub(crate) struct ClientPublisher<'a> {
    pub tick: Tick<'a>,
    pub router: &'a mut Router,
    pub to: Destinations<'a>,
    pub delayed: &'a mut DelayedMessages,
    pub owners: &'a Owners,
    pub conn: ConnSlot,
    pub slot: SessionSlot,
}

impl ClientPublisher<'_> {
    /// Handles a packet. Answers it, unless the connection must be closed.
    pub fn receive(&mut self, publish: &Publish<'_>) -> Result<(), PublishError> {
        let core = &mut *self.tick.core;
        core.stats.packets_received[PacketType::Publish as usize] += 1;
        let properties = publish.properties;
        if !properties.is_forwarded_whole()
            && properties
                .iter()
                .any(|p| matches!(p, Property::SubscriptionIdentifier(_)))
        {
            // [MQTT-3.3.4-6]
            let detail = "a client must not send a Subscription Identifier";
            return Err(PublishError::protocol(ReasonCode::ProtocolError, detail));
        }
        let connection = core
            .connections
            .get_mut(self.conn)
            .expect("a packet comes from an open connection");
        let topic = connection.resolve_topic(publish)?;
        let topic = topic.as_deref().unwrap_or(publish.topic);
        let full = core.sessions.at(self.slot).mounted_topic(topic);
        let publish = Publish {
            topic: full.as_deref().unwrap_or(topic),
            ..publish.clone()
        };
        if publish.qos > core.config.max_qos {
            // [MQTT-3.2.2-11]
            let detail = "the QoS is above mqtt.max_qos";
            return Err(PublishError::protocol(ReasonCode::QoSNotSupported, detail));
        }
        if publish.retain && !core.config.retain_available {
            // [MQTT-3.2.2-14]
            let detail = "mqtt.retain_available is off";
            return Err(PublishError::protocol(ReasonCode::RetainNotSupported, detail));
        }
        match (publish.qos, publish.packet_id) {
            (QoS::AtMostOnce, _) | (_, None) => _ = self.answer_to(&publish)?,
            (QoS::AtLeastOnce, Some(id)) => {
                let answer = self.answer_to(&publish)?;
                self.acknowledge(PacketType::PubAck, id, answer);
            }
            (QoS::ExactlyOnce, Some(id)) => {
                let answer = self.publish_exactly_once(&publish, id)?;
                self.acknowledge(PacketType::PubRec, id, answer);
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, kind: PacketType, id: PacketId, (reason, commits): Answer) {
        self.tick.core.acknowledge(self.conn, kind, id, reason, commits);
    }

    /// Routes a QoS 2 message on first receipt, and stores its packet identifier until PUBREL [MQTT-4.3.3-10].
    fn publish_exactly_once(&mut self, publish: &Publish<'_>, id: PacketId) -> Result<Answer, PublishError> {
        let core = &mut *self.tick.core;
        let is_quota_used_up = core
            .connections
            .get_mut(self.conn)
            .is_none_or(|c| c.open_exactly_once >= c.receive_maximum);
        let session = core.sessions.at(self.slot);
        if session.received.contains(id.get()) {
            // A duplicate gets the same answer and is not delivered again.
            let mut commits = PendingCommits::for_journal(session.key.0 != 0);
            commits.tap = match core.taps.must_repeat(session) {
                true => self.repeat_to_tap(publish),
                false => core.taps.receipt_of(OpenId::new(self.slot, session, id)),
            };
            return Ok((ReasonCode::Success, commits));
        }
        if session.version == ProtocolVersion::V5 && is_quota_used_up {
            // [MQTT-3.3.4-9]
            let detail = "more QoS 2 messages are open than the server's receive maximum";
            return Err(PublishError::protocol(ReasonCode::ReceiveMaximumExceeded, detail));
        }
        let (reason, commits) = self.answer_to(publish)?;
        if !reason.is_error() {
            let core = &mut *self.tick.core;
            core.sessions.at_mut(self.slot).received.insert(id.get());
            if let Some(connection) = core.connections.get_mut(self.conn) {
                connection.open_exactly_once = connection.open_exactly_once.saturating_add(1);
            }
            if let Some(receipt) = commits.tap {
                let id = OpenId::new(self.slot, core.sessions.at(self.slot), id);
                core.taps.add_open(receipt, id);
            }
        }
        Ok((reason, commits))
    }

    /// Passes a repeated message to the tap again.
    fn repeat_to_tap(&mut self, publish: &Publish<'_>) -> Option<Receipt> {
        let mut properties = Vec::new();
        publish.properties.append_forwarded(&mut properties);
        let p = Publication {
            properties: &properties,
            qos: publish.qos,
            retain: publish.retain,
            ..Publication::from_server(publish.topic, publish.payload)
        };
        let core = &mut *self.tick.core;
        let session = core.sessions.get(self.slot);
        core.taps.message(self.tick.now, session, &p, publish.dup)
    }

    /// Publishes a message, or rejects it. Returns the answer for the client.
    fn answer_to(&mut self, publish: &Publish<'_>) -> Result<Answer, PublishError> {
        if let Some(from) = self.tick.core.sessions.inbox_key(self.slot) {
            return self.publish_to_inbox(from, publish);
        }
        let published = self
            .check_topic(publish)
            .and_then(|target| self.authorize(publish, target))
            .and_then(|target| self.publish(publish, target));
        published.or_else(|rejected| {
            self.tick.core.dropped(self.tick.now, self.slot, rejected.drop);
            let is_denied = rejected.drop == DropReason::NotAuthorizedToPublish;
            match is_denied && self.tick.core.config.disconnect_denied {
                true => Err(PublishError::Denied),
                false => Ok((rejected.code, PendingCommits::default())),
            }
        })
    }

    fn publish_to_inbox(&mut self, from: InboxKey, publish: &Publish<'_>) -> Result<Answer, PublishError> {
        match publish_to_inbox(&mut self.tick, self.slot, from, publish) {
            Ok(commits) => Ok((ReasonCode::Success, commits)),
            Err(refusal) => match refusal.disconnect {
                Some(detail) => Err(PublishError::Overload {
                    code: refusal.reason,
                    detail,
                }),
                None => Ok((refusal.reason, PendingCommits::default())),
            },
        }
    }

    /// Strips `$delayed`, and checks the topic name.
    fn check_topic<'p>(&self, publish: &Publish<'p>) -> Result<PublishTarget<'p>, Rejected> {
        let config = &self.tick.core.config;
        let invalid = Rejected {
            drop: DropReason::TopicInvalid,
            code: ReasonCode::TopicNameInvalid,
        };
        let (topic, delay_s) = match strip_delay(publish.topic) {
            PublishDelay::None => (publish.topic, None),
            PublishDelay::Seconds(seconds, topic) if seconds <= config.max_delay_s => (topic, Some(seconds)),
            _ => return Err(invalid),
        };
        let has_too_many_levels = topic.len() > config.max_topic_levels
            && topic.bytes().filter(|b| *b == b'/').count() >= config.max_topic_levels;
        if has_too_many_levels || !is_short_enough(topic) || !config.allows_characters(topic) {
            return Err(invalid);
        }
        let stored_as = match delay_s {
            Some(_) => Some(Holding::Delayed),
            // A message without payload deletes the retained one.
            None => (publish.retain && !publish.payload.is_empty()).then_some(Holding::Retained),
        };
        Ok(PublishTarget {
            topic,
            delay_s,
            stored_as,
        })
    }

    /// Checks the access rules, and whether the journal accepts the message.
    fn authorize<'p>(
        &mut self,
        publish: &Publish<'_>,
        target: PublishTarget<'p>,
    ) -> Result<PublishTarget<'p>, Rejected> {
        let (topic, core) = (target.topic, &mut *self.tick.core);
        let session = core.sessions.at_mut(self.slot);
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
        core.taps
            .session_event(self.tick.now, session, TapEventMask::AUTHORIZED, &tap_event);
        if !is_allowed {
            return Err(Rejected {
                drop: DropReason::NotAuthorizedToPublish,
                code: ReasonCode::NotAuthorized,
            });
        }
        if core.ledger.is_unavailable()
            && (target.delay_s.is_some()
                || self
                    .router
                    .needs_journal(core, Some(self.slot), topic, publish.qos, publish.retain))
        {
            return Err(Rejected {
                drop: DropReason::JournalFull,
                code: ReasonCode::QuotaExceeded,
            });
        }
        Ok(target)
    }

    /// Checks the limits of the owner and of the tap, and passes the message to the tap and the router, or delays it.
    fn publish(&mut self, publish: &Publish<'_>, target: PublishTarget<'_>) -> Result<Answer, Rejected> {
        let now = self.tick.now;
        let core = &mut *self.tick.core;
        let publisher_hash = hash(&core.sessions.at(self.slot).client_id) as u32;
        let holding = target.stored_as.and_then(|_| core.sessions.holding_mut(self.slot));
        let owner = holding.and_then(|holding| holding.client(publisher_hash));
        let mut forwarded = Vec::new();
        let properties = if publish.properties.is_forwarded_whole() {
            publish.properties.as_bytes()
        } else {
            publish.properties.append_forwarded(&mut forwarded);
            &forwarded
        };
        let wanted = match target.delay_s {
            None => TapEventMask::MESSAGE_EVENTS,
            Some(_) => TapEventMask::MESSAGE_EVENTS | TapEventMask::MESSAGES,
        };
        let session = core.sessions.at(self.slot);
        let provenance = core.taps.provenance(now, Some(session), 0, wanted);
        let p = Publication {
            topic: target.topic,
            payload: publish.payload,
            properties,
            qos: publish.qos,
            retain: publish.retain,
            expires_at_ms: core
                .config
                .message_expiry_ms(now, publish.properties.message_expiry_interval()),
            origin: MessageOrigin {
                shard: core.id,
                epoch: session.client_epoch(),
            },
            publisher_hash,
            place: RecordLocation::NONE,
            provenance: Provenance::from_written(&provenance),
            owner: owner.as_ref(),
        };
        self.check_limits(target.stored_as, &p)?;
        let core = &mut *self.tick.core;
        core.stats.messages_received[publish.qos as usize] += 1;
        core.stats.publish_bytes_received += publish.payload.len() as u64;
        let key = core.sessions.at(self.slot).key;
        let publisher = match (publish.qos, publish.packet_id) {
            (QoS::ExactlyOnce, Some(id)) if key.0 != 0 => Some((key, id.get())),
            _ => None,
        };
        if let Some(seconds) = target.delay_s {
            let delayed = self.delayed.delay(&mut self.tick, &p, seconds, publisher);
            return delayed.map(|commits| (ReasonCode::Success, commits)).ok_or(Rejected {
                drop: DropReason::DelayedFull,
                code: ReasonCode::QuotaExceeded,
            });
        }
        let session = core.sessions.get(self.slot);
        let receipt = core.taps.message(now, session, &p, publish.dup);
        let published = self.router.publish(&mut self.tick, &mut self.to, &p, publisher);
        let commits = self.router.commits_of(&mut self.tick, &mut self.to, published, receipt);
        if published.has_recipient {
            return Ok((ReasonCode::Success, commits));
        }
        let core = &mut *self.tick.core;
        let session = core.sessions.get(self.slot);
        core.taps.dropped(now, session, &p, DropReason::NoSubscriber);
        Ok((ReasonCode::NoMatchingSubscribers, commits))
    }

    fn check_limits(&mut self, stored_as: Option<Holding>, p: &Publication<'_>) -> Result<(), Rejected> {
        let rejected = |drop| Rejected {
            drop,
            code: ReasonCode::QuotaExceeded,
        };
        if stored_as.is_some_and(|holding| self.is_over_share(holding, p)) {
            return Err(rejected(DropReason::OverShare));
        }
        let core = &mut *self.tick.core;
        let session = core.sessions.get(self.slot);
        match core.taps.rejects(self.tick.now, session, p) {
            true => Err(rejected(DropReason::BufferFull)),
            false => Ok(()),
        }
    }

    /// Returns whether the user or the client has used its share, and counts and reports that. A user may replace its
    /// own retained messages: the shard that retains the message knows the old one and checks the size of the new one.
    fn is_over_share(&mut self, holding: Holding, p: &Publication<'_>) -> bool {
        let core = &mut *self.tick.core;
        let bytes = p.stored_bytes() as u64;
        let exceeded = self.owners.exceeded(&core.config.shares, holding, p.owner, None, bytes);
        let Some(exceeded) = exceeded else { return false };
        if holding == Holding::Retained && p.owner.is_some_and(|owner| owner.has_topic(hash(p.topic))) {
            return false;
        }
        core.stats.limit_rejections[exceeded.limit as usize] += 1;
        if let Some(owner) = p.owner.filter(|owner| owner.can_report(self.tick.now.monotonic_ms)) {
            core.effects.push(Effect::Event(ConnectionEvent::OverLimit {
                client_id: core.sessions.at(self.slot).client_id.clone(),
                owner: owner.owner().into(),
                exceeded,
            }));
        }
        true
    }
}

impl Connection {
    /// Returns the topic name that the client has set for the alias of a PUBLISH. `None` if the packet has a topic
    /// name.
    fn resolve_topic(&mut self, publish: &Publish<'_>) -> Result<Option<Box<str>>, PublishError> {
        if publish.properties.is_empty() {
            return Ok(None);
        }
        let Some(alias) = publish.properties.topic_alias() else {
            return Ok(None);
        };
        if alias == 0 || alias > self.topic_alias_maximum {
            // [MQTT-3.3.2-8], [MQTT-3.3.2-9]
            let detail = "the topic alias is 0 or above the server's maximum";
            return Err(PublishError::protocol(ReasonCode::TopicAliasInvalid, detail));
        }
        let incoming = &mut self.aliases.get_or_insert_default().incoming;
        if publish.topic.is_empty() {
            // Section 3.3.4: an unknown alias is a Protocol Error, not an invalid alias.
            let unknown = PublishError::protocol(ReasonCode::ProtocolError, "the topic alias is unknown");
            return incoming.get(alias).map(|topic| Some(topic.into())).ok_or(unknown);
        }
        match incoming.set(alias, publish.topic) {
            true => Ok(None),
            false => Err(PublishError::protocol(
                ReasonCode::QuotaExceeded,
                "the topic names of all aliases exceed the size limit",
            )),
        }
    }
}
