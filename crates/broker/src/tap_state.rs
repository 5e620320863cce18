//! The shard's side of a tap (tap.rs): when the tap is called, and which replies wait for it.

use mqtt::{Connect, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::accept::AcceptedClient;
use crate::delayed::{PublishDelay, strip_delay};
use crate::deliver::{DeliveryOptions, ShardCore};
use crate::durable::journaling::PendingCommits;
use crate::effect::{DropReason, Now};
use crate::fault::{Fault, is_planted};
use crate::message::Publication;
use crate::outgoing::Delivery;
use crate::provenance::{DecodedProvenance, Provenance};
use crate::receipt_actions::ReceiptActions;
use crate::session::Session;
use crate::shard::Shard;
use crate::slots::{ConnSlot, SessionEpoch, SessionSlot};
use crate::tap::{OffloadedResult, Receipt, Tap, TapClient, TapEvent, TapEventMask, TapMessage, TapResult};

/// The tap of a shard, with its state.
#[derive(Default)]
pub struct TapState {
    pub tap: Option<Box<dyn Tap>>,
    pub wants: TapEventMask,
    /// Actions that wait until the tap has stored a message.
    pub receipt_actions: ReceiptActions,
    /// Receipt for the messages that the server has published in this tick, until `call_when_stored` takes it.
    pub server_receipt: Option<Receipt>,
    /// A message of the server was recorded in the journal in this tick.
    pub is_server_recorded: bool,
    /// The tap was called in this tick.
    is_used: bool,
    /// Sessions up to this epoch (`Session::epoch`) were restored from the journal.
    restored_epochs: SessionEpoch,
    ids: u64,
}

impl TapState {
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Returns the tap for a call that counts as use in this tick.
    pub fn used(&mut self) -> Option<&mut dyn Tap> {
        let tap = self.tap.as_deref_mut()?;
        self.is_used = true;
        Some(tap)
    }

    pub fn take_offloaded(&mut self, now: Now) -> Option<OffloadedResult> {
        let result = self.tap.as_mut()?.take_offloaded(now)?;
        self.is_used = true;
        Some(result)
    }

    pub fn has_stored(&mut self, receipt: Receipt) -> bool {
        let stored_up_to = |tap: &mut Box<dyn Tap>| tap.stored_up_to(receipt.lane());
        self.tap
            .as_mut()
            .is_none_or(|tap| stored_up_to(tap) >= receipt.number())
    }

    /// Returns the id of a new message.
    fn next_id(&mut self, now: Now, shard: u16) -> u128 {
        self.ids += 1;
        u128::from(now.unix_ms) << 64 | u128::from(shard) << 48 | u128::from(self.ids & 0xFFFF_FFFF_FFFF)
    }
}

impl Session {
    fn tap_client(&self) -> TapClient<'_> {
        TapClient {
            client_id: &self.client_id,
            user_name: self.user_name.as_deref(),
            address: self.address.get(),
            listener: self.listener,
            version: self.version,
        }
    }
}

impl ShardCore {
    /// Reports an event of a session's client to the tap, if the tap wants such events.
    #[inline]
    pub fn tap_session(&mut self, now: Now, slot: SessionSlot, wanted: TapEventMask, tap_event: &TapEvent<'_>) {
        if self.tap.wants.has(wanted)
            && let Some(session) = self.sessions.get(slot)
            && session.device().is_none()
            && let Some(tap) = &mut self.tap.tap
        {
            self.tap.is_used = true;
            tap.client_event(now, session.tap_client(), tap_event);
        }
    }

    #[inline]
    pub fn tap_ping(&mut self, now: Now, slot: SessionSlot) {
        if self.tap.wants.has(TapEventMask::PING) {
            let session = self.sessions.at(slot);
            let tap_event = TapEvent::Ping {
                clean_start: session.clean_start,
                keep_alive_s: session.keep_alive_s,
                expiry_s: session.expiry_s,
                connected_at_ms: session.connected_at_ms,
            };
            self.tap_session(now, slot, TapEventMask::PING, &tap_event);
        }
    }

    /// Reports the result of authenticating a CONNECT to the tap.
    pub fn tap_authenticated(
        &mut self,
        now: Now,
        conn: ConnSlot,
        connect: &Connect<'_>,
        accepted: AcceptedClient<'_>,
        reason: ReasonCode,
    ) {
        if !self.tap.wants.has(TapEventMask::AUTHENTICATED) {
            return;
        }
        let Some(connection) = self.connections.get_mut(conn) else {
            return;
        };
        let client = TapClient {
            client_id: accepted.client_id,
            user_name: connect.user_name,
            address: connection.peer.address,
            listener: Some(connection.peer.listener),
            version: connection.version,
        };
        let tap_event = TapEvent::Authenticated {
            reason,
            is_superuser: accepted.is_superuser,
            is_anonymous: connect.user_name.is_none() && connect.password.is_none(),
        };
        self.tap_client(now, client, TapEventMask::AUTHENTICATED, &tap_event);
    }

    /// Reports the result of a re-authentication to the tap.
    pub fn tap_reauthenticated(&mut self, now: Now, conn: ConnSlot, reason: ReasonCode, is_superuser: bool) {
        if let Some(slot) = self.connections.get_mut(conn).map(|connection| connection.session) {
            let tap_event = TapEvent::Authenticated {
                reason,
                is_superuser,
                is_anonymous: false,
            };
            self.tap_session(now, slot, TapEventMask::AUTHENTICATED, &tap_event);
        }
    }

    /// Reports an event of a client, which may have no session, to the tap.
    pub fn tap_client(&mut self, now: Now, client: TapClient<'_>, wanted: TapEventMask, tap_event: &TapEvent<'_>) {
        if self.tap.wants.has(wanted)
            && let Some(tap) = &mut self.tap.tap
        {
            self.tap.is_used = true;
            tap.client_event(now, client, tap_event);
        }
    }

    /// Passes a message of a client to the tap, or one of the server if `slot` is `None`. Returns a receipt if the
    /// acknowledgement must wait until the tap has stored the message.
    pub fn tap_message(
        &mut self,
        now: Now,
        slot: Option<SessionSlot>,
        p: &Publication<'_>,
        is_duplicate: bool,
    ) -> Option<Receipt> {
        self.tap_marked(now, slot, p, is_duplicate, 0)
    }

    /// Like `tap_message`, with the mark of a message that the tap has created.
    pub fn tap_marked(
        &mut self,
        now: Now,
        slot: Option<SessionSlot>,
        p: &Publication<'_>,
        is_duplicate: bool,
        mark: u64,
    ) -> Option<Receipt> {
        if !self.tap.wants.has(TapEventMask::MESSAGES) || p.topic.starts_with("$SYS/") {
            return None;
        }
        let known = tap_message(now, p);
        let session = slot.and_then(|slot| self.sessions.get(slot));
        let message = TapMessage {
            id: match known.id {
                0 => self.tap.next_id(now, self.id.0),
                id => id,
            },
            received_at_ms: match known.received_at_ms {
                0 => now.unix_ms,
                at_ms => at_ms,
            },
            client: session.map(Session::tap_client).or(known.client),
            is_duplicate,
            mark,
            ..known
        };
        let tap = self.tap.tap.as_mut()?;
        self.tap.is_used = true;
        match tap.message(now, &message) {
            TapResult::AckNow => None,
            TapResult::AckWhenStored(receipt) => Some(receipt),
        }
    }

    /// Combines two receipts into one.
    pub fn join_receipts(&mut self, one: Option<Receipt>, other: Option<Receipt>) -> Option<Receipt> {
        match (one, other, &mut self.tap.tap) {
            (Some(one), Some(other), Some(tap)) if one != other => Some(tap.join(one, other)),
            _ => one.or(other),
        }
    }

    /// Returns the encoded provenance that is stored with a message for later events. Empty unless the tap wants one of
    /// these events.
    pub fn provenance(&mut self, now: Now, slot: Option<SessionSlot>, mark: u64, wanted: TapEventMask) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.tap.wants.has(wanted) {
            let id = self.tap.next_id(now, self.id.0);
            let session = slot.and_then(|slot| self.sessions.get(slot));
            let source = DecodedProvenance {
                id,
                received_at_ms: now.unix_ms,
                mark,
                client: session.map(Session::tap_client),
            };
            source.put(&mut bytes);
        }
        bytes
    }

    /// Reports a message that is not delivered to any client.
    pub fn tap_dropped(&mut self, now: Now, slot: Option<SessionSlot>, p: &Publication<'_>, reason: DropReason) {
        if let Some(slot) = slot {
            self.tap_message_event(now, slot, TapEventMask::DROPPED, p, |message| TapEvent::Dropped {
                message,
                reason,
            });
        }
    }

    /// Reports a message that is sent to a client for the first time.
    #[inline]
    pub fn tap_delivered(&mut self, now: Now, slot: SessionSlot, p: &Publication<'_>, terms: DeliveryOptions<'_>) {
        if self.tap.wants.has(TapEventMask::DELIVERED) {
            let (qos, retain) = (terms.qos, terms.retain);
            let sent = Publication { qos, retain, ..*p };
            self.tap_message_event(now, slot, TapEventMask::DELIVERED, &sent, |message| {
                TapEvent::Delivered { message }
            });
        }
    }

    /// Reports a message that is sent to a client again.
    pub fn tap_redelivered(&mut self, now: Now, slot: SessionSlot, delivery: &Delivery) {
        let (wanted, sent) = (TapEventMask::DELIVERED, delivery.publication());
        self.tap_message_event(now, slot, wanted, &sent, |message| TapEvent::Delivered {
            message: TapMessage {
                is_duplicate: true,
                ..message
            },
        });
    }

    /// Reports the acknowledgement of a message.
    #[inline]
    pub fn tap_acked(&mut self, now: Now, slot: SessionSlot, delivery: &Delivery, properties: &[u8]) {
        if self.tap.wants.has(TapEventMask::ACKED) {
            self.tap_message_event(now, slot, TapEventMask::ACKED, &delivery.publication(), |message| {
                TapEvent::Acked { message, properties }
            });
        }
    }

    /// Reports a message that was dropped for a client. `p` is `None` if the message is only in the journal.
    pub fn tap_delivery_dropped(
        &mut self,
        now: Now,
        slot: SessionSlot,
        p: Option<&Publication<'_>>,
        reason: DropReason,
    ) {
        let wanted = TapEventMask::DELIVERY_DROPPED;
        match p {
            Some(p) => self.tap_message_event(now, slot, wanted, p, |message| TapEvent::DeliveryDropped {
                message: Some(message),
                reason,
            }),
            None => {
                let tap_event = TapEvent::DeliveryDropped { message: None, reason };
                self.tap_session(now, slot, wanted, &tap_event);
            }
        }
    }

    /// Reports the undelivered messages in memory of a session that ends.
    pub fn tap_undelivered(&mut self, now: Now, slot: SessionSlot) {
        if !self.tap.wants.has(TapEventMask::DELIVERY_DROPPED) {
            return;
        }
        let session = self.sessions.get(slot);
        let session = session.filter(|session| session.device().is_none());
        let (Some(session), Some(tap)) = (session, &mut self.tap.tap) else {
            return;
        };
        self.tap.is_used = true;
        for delivery in session.outgoing.in_memory() {
            let tap_event = TapEvent::DeliveryDropped {
                message: Some(tap_message(now, &delivery.publication())),
                reason: DropReason::SessionEnded,
            };
            tap.client_event(now, session.tap_client(), &tap_event);
        }
    }

    /// Reports what happened to a message for the client of a session.
    fn tap_message_event<'m>(
        &mut self,
        now: Now,
        slot: SessionSlot,
        wanted: TapEventMask,
        p: &Publication<'m>,
        tap_event: impl FnOnce(TapMessage<'m>) -> TapEvent<'m>,
    ) {
        if self.tap.wants.has(wanted) && !p.topic.starts_with("$SYS/") {
            self.tap_session(now, slot, wanted, &tap_event(tap_message(now, p)));
        }
    }

    /// Returns whether the tap wants an event for every delivery.
    #[inline]
    pub fn wants_every_delivery(&self) -> bool {
        self.tap
            .wants
            .has(TapEventMask::DELIVERED | TapEventMask::DELIVERY_DROPPED)
    }

    /// Returns whether the tap must be asked before a message is accepted, and cannot accept it.
    pub fn is_rejected_by_tap(&mut self, now: Now, slot: Option<SessionSlot>, p: &Publication<'_>) -> bool {
        if !self.tap.wants.has(TapEventMask::CHECK_FULL) || p.qos == QoS::AtMostOnce {
            return false;
        }
        let session = slot.and_then(|slot| self.sessions.get(slot));
        let message = TapMessage {
            client: session.map(Session::tap_client),
            received_at_ms: now.unix_ms,
            ..tap_message(now, p)
        };
        self.tap.tap.as_mut().is_some_and(|tap| tap.is_full(now, &message))
    }
}

/// Builds a tap message. Fills in the provenance if it is known.
fn tap_message<'a>(now: Now, p: &Publication<'a>) -> TapMessage<'a> {
    let source = p.provenance.source();
    TapMessage {
        id: source.map_or(0, |source| source.id),
        received_at_ms: source.map_or(0, |source| source.received_at_ms),
        client: source.and_then(|source| source.client),
        topic: p.topic,
        payload: p.payload,
        properties: p.properties,
        expiry_s: p
            .expires_at_ms
            .map(|at| at.saturating_sub(now.monotonic_ms).div_ceil(1000) as u32),
        qos: p.qos,
        retain: p.retain,
        is_duplicate: false,
        mark: source.map_or(0, |source| source.mark),
    }
}

impl Shard {
    /// Attaches a tap to this shard. It receives no earlier events.
    pub fn set_tap(&mut self, tap: Box<dyn Tap>) {
        self.core.tap.tap = Some(tap);
        self.core.tap.restored_epochs = SessionEpoch(self.numbers.last());
    }

    /// Begins a tick. Called before anything else of it.
    pub fn begin_tick(&mut self, now: Now) {
        self.core.outbox.begin_tick(now.monotonic_ms);
        if let Some(ledger) = &mut self.core.ledger {
            ledger.begin_tick(now);
        }
        self.begin_tap_tick(now);
    }

    fn begin_tap_tick(&mut self, now: Now) {
        let Some(tap) = &mut self.core.tap.tap else { return };
        self.core.tap.server_receipt = None;
        self.core.tap.is_server_recorded = false;
        let wants = tap.begin_tick(now);
        let before = std::mem::replace(&mut self.core.tap.wants, wants);
        if before.has(TapEventMask::CHECK_FULL) && !wants.has(TapEventMask::CHECK_FULL) {
            self.resume_paused_publishers();
        }
    }

    /// Returns whether the tap was called since the tick began.
    pub fn was_tap_called(&self) -> bool {
        self.core.tap.is_used
    }

    /// Returns whether publishers may be paused until the tap accepts messages again.
    pub fn is_tap_full(&self) -> bool {
        self.core.tap.wants.has(TapEventMask::CHECK_FULL)
    }

    /// Publishes the messages that the tap has created, and those that it creates from them. Returns the commits that
    /// the acknowledgement of the original message waits for.
    pub(crate) fn publish_tap_messages(&mut self, now: Now) -> PendingCommits {
        let mut commits = PendingCommits::default();
        loop {
            let made = self
                .core
                .tap
                .tap
                .as_mut()
                .map_or(Vec::new(), |tap| tap.take_publications());
            if made.is_empty() {
                return commits;
            }
            for message in made {
                let provenance = self
                    .core
                    .provenance(now, None, message.mark, TapEventMask::MESSAGE_EVENTS);
                let p = Publication {
                    properties: &message.properties,
                    qos: message.qos,
                    retain: message.retain,
                    expires_at_ms: message.expiry_s.map(|s| now.monotonic_ms + u64::from(s) * 1000),
                    provenance: Provenance::from_written(&provenance),
                    ..Publication::from_server(&message.topic, &message.payload)
                };
                // The publisher of the original cannot be rejected any more, and each retry would disconnect it.
                // Retained messages are checked in `publish`.
                if self.core.has_journal_failed() && self.needs_journal(None, p.topic, p.qos, false) {
                    self.core.stats.drop_message(DropReason::JournalFull);
                    continue;
                }
                let receipt = self.core.tap_marked(now, None, &p, false, message.mark);
                commits.tap = self.core.join_receipts(commits.tap, receipt);
                commits.journal |= self.publish(now, &p, None).is_recorded;
            }
        }
    }

    /// Ends a tick. Called before `journal_batch`.
    pub fn end_tap_tick(&mut self, now: Now) {
        if !self.core.tap.is_used {
            return;
        }
        self.publish_tap_messages(now);
        self.core.tap.is_used = false;
        let Some(tap) = &mut self.core.tap.tap else { return };
        tap.end_tick();
    }

    /// Returns whether the tap must receive a QoS 2 message again that the journal lists as received. The process may
    /// have ended before the tap stored it.
    pub(crate) fn must_repeat_to_tap(&self, slot: SessionSlot) -> bool {
        let is_wanted = self.core.tap.wants.has(TapEventMask::MESSAGES) && !is_planted(Fault::ForgetTap);
        is_wanted && self.core.sessions.at(slot).epoch <= self.core.tap.restored_epochs
    }

    /// Returns whether reading from a 3.1 or 3.1.1 client must be paused because the tap cannot accept its message.
    /// These versions have no reason codes.
    pub(crate) fn must_pause_for_tap(
        &mut self,
        now: Now,
        conn: ConnSlot,
        version: ProtocolVersion,
        publish: &Publish<'_>,
    ) -> bool {
        if version == ProtocolVersion::V5 || !self.is_tap_full() || publish.qos == QoS::AtMostOnce {
            return false;
        }
        let Some(slot) = self.core.connections.get_mut(conn).map(|connection| connection.session) else {
            return false;
        };
        if self.core.sessions.get(slot).is_none() {
            return false;
        }
        let topic = match strip_delay(publish.topic) {
            PublishDelay::Seconds(_, topic) => topic,
            PublishDelay::None | PublishDelay::Malformed => publish.topic,
        };
        let p = Publication {
            qos: publish.qos,
            retain: publish.retain,
            ..Publication::from_server(topic, publish.payload)
        };
        self.core.is_rejected_by_tap(now, Some(slot), &p)
    }
}
