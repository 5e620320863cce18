//! Sessions of the clients of the inbox (inbox.rs).
//!
//! An inbox client has no will, no retained messages and no access rules, and its session ends with the connection; the
//! inbox stores all persistent state. The authenticator assigns the client id, which identifies the client. So a client
//! has one connection at a time, and one cannot take over another's session.

use mqtt::{Connect, ProtocolVersion, Publish, QoS, ReasonCode, Subscribe, Unsubscribe};

use crate::access::{AcceptedClient, LoginGrant, SessionAccess, SubscribeAccess};
use crate::deliver::{DeliverResult, ShardCore};
use crate::delivery::{Delivery, DeliveryOptions};
use crate::durable::record_fields::PendingCommits;
use crate::effect::{DropReason, Now};
use crate::encode::EncodedForms;
use crate::inbox::{INBOX_LANE, InboxClient, InboxEvent, InboxKey, InboxMessage, InboxResult};
use crate::message::Publication;
use crate::session::Session;
use crate::slots::{ConnSlot, SessionSlot};
use crate::tap::Receipt;
use crate::taps::Taps;
use crate::tick::Tick;

/// Bytes of messages that a client has not received or acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxBacklog {
    /// Queued, or in the output buffer.
    pub unsent_bytes: usize,
    /// In flight, whether sent or not.
    pub unacknowledged_bytes: usize,
}

/// Access rules of an inbox client: it may not use topics of other clients.
pub(crate) struct InboxAccess(pub InboxKey);

impl SessionAccess for InboxAccess {
    fn can_publish(&self, _: &str, _: QoS, _: bool) -> bool {
        false
    }

    fn can_subscribe(&self, _: &str) -> SubscribeAccess {
        SubscribeAccess::Denied
    }

    /// Messages for the client are addressed to it.
    fn can_receive(&self, _: &str) -> bool {
        true
    }

    fn inbox_key(&self) -> Option<InboxKey> {
        Some(self.0)
    }
}

impl InboxClient {
    /// Returns the CONNECT with the terms of an inbox session: clean start, no will, and another user name.
    pub(crate) fn terms<'a>(&'a self, connect: &Connect<'a>) -> (Connect<'a>, AcceptedClient<'a>) {
        let connect = Connect {
            clean_start: true,
            will: None,
            user_name: Some(&self.name),
            password: None,
            ..connect.clone()
        };
        let client = AcceptedClient {
            client_id: &self.client_id,
            is_superuser: false,
            grant: &LoginGrant::None,
            inbox_key: Some(self.key),
        };
        (connect, client)
    }
}

/// Why a PUBLISH to the inbox was rejected.
pub(crate) struct InboxRefusal {
    pub reason: ReasonCode,
    drop: DropReason,
    /// The connection is closed for this reason.
    pub disconnect: Option<&'static str>,
}

impl InboxRefusal {
    fn new(reason: ReasonCode, drop: DropReason) -> InboxRefusal {
        InboxRefusal {
            reason,
            drop,
            disconnect: None,
        }
    }
}

/// Passes a PUBLISH of an inbox client to the inbox. Returns the commits that its acknowledgement waits for.
pub(crate) fn publish_to_inbox(
    tick: &mut Tick<'_>,
    slot: SessionSlot,
    from: InboxKey,
    publish: &Publish<'_>,
) -> Result<PendingCommits, InboxRefusal> {
    let core = &mut *tick.core;
    let session = core.sessions.at_mut(slot);
    let is_v5 = session.version == ProtocolVersion::V5;
    session.messages_received += 1;
    session.bytes_received += publish.payload.len() as u64;
    core.stats.messages_received[publish.qos as usize] += 1;
    core.stats.publish_bytes_received += publish.payload.len() as u64;
    let message = InboxMessage {
        from,
        topic: publish.topic,
        payload: publish.payload,
        qos: publish.qos,
        is_v5,
    };
    let result = core.taps.inbox_message(tick.now, &message);
    if let Err(refusal) = &result {
        core.dropped(tick.now, slot, refusal.drop);
    }
    result
}

impl Taps {
    fn inbox_message(&mut self, now: Now, message: &InboxMessage<'_>) -> Result<PendingCommits, InboxRefusal> {
        if self.is_inbox_full() {
            // Only MQTT 5 at QoS 1 and 2 reaches this point. Reading is paused for all others.
            return Err(InboxRefusal::new(ReasonCode::QuotaExceeded, DropReason::BufferFull));
        }
        let Some(inbox) = self.inbox_used() else {
            return Err(InboxRefusal::new(ReasonCode::ServerUnavailable, DropReason::BufferFull));
        };
        match inbox.message(now, message) {
            InboxResult::Accepted(number) => Ok(PendingCommits {
                journal: false,
                tap: number.map(|number| Receipt::new(INBOX_LANE, number)),
            }),
            InboxResult::Refused(reason) => {
                let drop = match reason {
                    ReasonCode::PayloadFormatInvalid => DropReason::NotUnderstood,
                    ReasonCode::TopicNameInvalid => DropReason::TopicInvalid,
                    _ => DropReason::NotAuthorizedToPublish,
                };
                Err(InboxRefusal::new(reason, drop))
            }
            InboxResult::Disconnect { reason, detail } => Err(InboxRefusal {
                disconnect: Some(detail),
                ..InboxRefusal::new(reason, DropReason::OverLimit)
            }),
        }
    }

    /// Returns the reason codes of a SUBACK.
    pub(crate) fn inbox_subscribed(
        &mut self,
        now: Now,
        client: InboxKey,
        subscribe: &Subscribe<'_>,
    ) -> Vec<ReasonCode> {
        let mut reasons = Vec::new();
        for asked in subscribe.filters.iter() {
            let (filter, qos) = (asked.filter, asked.options.maximum_qos);
            let inbox = self.inbox_used();
            let granted = inbox.and_then(|inbox| inbox.subscribe(now, client, filter, qos));
            reasons.push(match granted {
                Some(QoS::AtMostOnce) => ReasonCode::Success,
                Some(QoS::AtLeastOnce) => ReasonCode::GrantedQoS1,
                Some(QoS::ExactlyOnce) => ReasonCode::GrantedQoS2,
                None => ReasonCode::TopicFilterInvalid,
            });
        }
        reasons
    }

    /// Returns the reason codes of an UNSUBACK.
    pub(crate) fn inbox_unsubscribed(
        &mut self,
        now: Now,
        client: InboxKey,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Vec<ReasonCode> {
        let mut reasons = Vec::new();
        for filter in unsubscribe.filters.iter() {
            let inbox = self.inbox_used();
            let existed = inbox.is_some_and(|inbox| inbox.unsubscribe(now, client, filter));
            reasons.push(match existed {
                true => ReasonCode::Success,
                false => ReasonCode::NoSubscriptionExisted,
            });
        }
        reasons
    }

    /// Reports an event of an inbox client. Does nothing for other sessions.
    pub(crate) fn inbox_event(&mut self, now: Now, session: &Session, event: InboxEvent) {
        if let Some(client) = session.inbox_key()
            && let Some(inbox) = self.inbox_used()
        {
            inbox.connection_event(now, client, event);
        }
    }

    /// Reports that an inbox client has acknowledged a message. Does nothing for other sessions.
    pub(crate) fn inbox_acked(&mut self, session: &Session, delivery: &Delivery) {
        if self.has_inbox()
            && let Some(client) = session.inbox_key()
            && let Some(inbox) = self.inbox_used()
        {
            let message = delivery.publication();
            inbox.acknowledged(client, message.topic, message.payload);
        }
    }
}

/// The session of an inbox client, for the component that sends to it.
pub struct InboxSession<'a> {
    core: &'a mut ShardCore,
    slot: SessionSlot,
}

impl InboxSession<'_> {
    pub(crate) fn of<'a>(core: &'a mut ShardCore, client_id: &str) -> Option<InboxSession<'a>> {
        let slot = core.sessions.slot_of(client_id)?;
        core.sessions.inbox_key(slot)?;
        Some(InboxSession { core, slot })
    }

    /// Returns the connection of the client.
    pub fn connection(&self) -> Option<ConnSlot> {
        self.core.sessions.at(self.slot).conn
    }

    /// Sends a message. Returns false if it is dropped.
    pub fn send(&mut self, now: Now, topic: &str, payload: &[u8], qos: QoS) -> bool {
        let p = Publication {
            qos,
            ..Publication::from_server(topic, payload)
        };
        let terms = DeliveryOptions {
            qos,
            retain: false,
            identifiers: &[],
            group: None,
        };
        let mut forms = EncodedForms::default();
        let delivered = self.core.deliver(now, self.slot, &p, terms, &mut forms);
        !matches!(delivered, DeliverResult::Dropped(_))
    }

    /// Returns the messages that the client has not received or acknowledged. `None` if it is not connected.
    pub fn backlog(&self) -> Option<InboxBacklog> {
        let session = self.core.sessions.at(self.slot);
        let out = &session.outgoing;
        let in_flight = out.inflight.iter().filter_map(|message| message.delivery.as_ref());
        Some(InboxBacklog {
            unsent_bytes: self.core.outbox.queued_bytes(session.conn?) + out.queued_bytes.get(),
            unacknowledged_bytes: in_flight.map(Delivery::stored_bytes).sum(),
        })
    }
}
