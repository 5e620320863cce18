//! The shard's side of a tap (tap.rs) and an inbox (inbox.rs): when they are called, and which replies wait for them.
//!
//! `Taps` calls the tap and the inbox, and holds the actions that wait for them. It knows no other part of the
//! shard: callers pass the session or connection that an event is about.

use mqtt::{Connect, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::access::AcceptedClient;
use crate::connection::Connection;
use crate::delivery::{Delivery, DeliveryOptions};
use crate::durable::record_fields::PendingCommits;
use crate::effect::{DropReason, Now};
use crate::fault::{Fault, is_planted};
use crate::inbox::{INBOX_LANE, Inbox};
use crate::message::Publication;
use crate::message_limits::MessageLimits;
use crate::mountpoint::Mountpoint;
use crate::provenance::DecodedProvenance;
use crate::publish_delay::{PublishDelay, strip_delay};
use crate::receipt_actions::{OpenId, PendingAck, ReceiptAction, ReceiptActions};
use crate::session::Session;
use crate::slots::{ConnSlot, SessionEpoch};
use crate::tap::{
    OffloadedResult, Receipt, Tap, TapClient, TapEvent, TapEventMask, TapMessage, TapPublication, TapResult,
};
use crate::{ConnEpoch, ShardId};

/// The tap and the inbox of a shard, with their state.
pub struct Taps {
    shard: ShardId,
    tap: Option<Box<dyn Tap>>,
    wants: TapEventMask,
    inbox: Option<Box<dyn Inbox>>,
    is_inbox_full: bool,
    /// Actions that wait until the tap or the inbox has stored a message.
    actions: ReceiptActions,
    /// Commits that the messages of the server in this tick wait for.
    server_commits: PendingCommits,
    /// The tap was called in this tick.
    is_used: bool,
    /// Sessions up to this epoch (`Session::epoch`) were restored from the journal.
    restored_epochs: SessionEpoch,
    /// Limits of messages that the tap or the server publishes.
    message_limits: MessageLimits,
    ids: u64,
}

impl Session {
    fn tap_client(&self) -> TapClient<'_> {
        TapClient {
            client_id: &self.client_id,
            user_name: self.user_name.as_deref(),
            address: self.current_address(),
            listener: self.listener,
            version: self.version,
            grant: self.grant(),
            mountpoint: self.mountpoint().map(Mountpoint::as_str),
        }
    }
}

impl Taps {
    pub fn new(shard: ShardId, message_limits: MessageLimits) -> Taps {
        Taps {
            shard,
            message_limits,
            tap: None,
            wants: TapEventMask::default(),
            inbox: None,
            is_inbox_full: false,
            actions: ReceiptActions::default(),
            server_commits: PendingCommits::default(),
            is_used: false,
            restored_epochs: SessionEpoch::default(),
            ids: 0,
        }
    }

    /// Attaches a tap. Sessions up to this epoch were restored from the journal.
    pub(crate) fn attach(&mut self, tap: Box<dyn Tap>, restored_epochs: SessionEpoch) {
        self.tap = Some(tap);
        self.restored_epochs = restored_epochs;
    }

    /// Returns the limits of messages that taps and the server publish.
    pub fn message_limits(&self) -> MessageLimits {
        self.message_limits
    }

    pub(crate) fn set_message_limits(&mut self, limits: MessageLimits) {
        self.message_limits = limits;
        if let Some(tap) = &mut self.tap {
            tap.set_message_limits(limits);
        }
    }

    /// Attaches an inbox.
    pub(crate) fn attach_inbox(&mut self, inbox: Box<dyn Inbox>) {
        self.inbox = Some(inbox);
    }

    /// Begins a tick. Returns whether the tap and the inbox accept messages again after one was full.
    pub(crate) fn begin_tick(&mut self, now: Now) -> bool {
        let was_full = self.is_full();
        self.server_commits = PendingCommits::default();
        if let Some(tap) = &mut self.tap {
            self.wants = tap.begin_tick(now);
        }
        if let Some(inbox) = &mut self.inbox {
            self.is_inbox_full = inbox.begin_tick(now);
        }
        was_full && !self.is_full()
    }

    /// Ends a tick in which the tap or the inbox was called.
    pub(crate) fn end_tick(&mut self) {
        self.is_used = false;
        if let Some(tap) = &mut self.tap {
            tap.end_tick();
        }
        if let Some(inbox) = &mut self.inbox {
            inbox.end_tick();
        }
    }

    /// Returns whether the tap or the inbox was called since the tick began.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Returns whether publishers may be paused until the tap or the inbox accepts messages again.
    pub fn is_full(&self) -> bool {
        self.is_inbox_full || self.wants.has(TapEventMask::CHECK_FULL)
    }

    /// Returns whether reading from inbox clients must stop. MQTT 5 clients get a reason code instead.
    pub(crate) fn is_inbox_full(&self) -> bool {
        self.is_inbox_full
    }

    /// Returns whether any action waits for the tap.
    pub fn is_waiting(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns whether the tap has work on other threads.
    pub fn is_offloading(&self) -> bool {
        self.tap.as_ref().is_some_and(|tap| tap.is_offloading())
    }

    /// Returns whether the tap wants any of these events.
    #[inline]
    pub(crate) fn wants(&self, wanted: TapEventMask) -> bool {
        self.wants.has(wanted)
    }

    #[inline]
    pub(crate) fn has_inbox(&self) -> bool {
        self.inbox.is_some()
    }

    /// Returns the inbox for a call that counts as use in this tick.
    pub(crate) fn inbox_used(&mut self) -> Option<&mut dyn Inbox> {
        let inbox = self.inbox.as_deref_mut()?;
        self.is_used = true;
        Some(inbox)
    }

    pub(crate) fn take_offloaded(&mut self, now: Now) -> Option<OffloadedResult> {
        let result = self.tap.as_mut()?.take_offloaded(now)?;
        self.is_used = true;
        Some(result)
    }

    /// Removes and returns the messages that the tap has created.
    pub(crate) fn take_publications(&mut self) -> Vec<TapPublication> {
        self.tap.as_mut().map_or(Vec::new(), |tap| tap.take_publications())
    }

    pub(crate) fn has_stored(&mut self, receipt: Receipt) -> bool {
        stored_up_to(&mut self.tap, &mut self.inbox, receipt.lane()) >= receipt.number()
    }

    /// Runs an action when the tap has stored the message of this receipt.
    pub(crate) fn run_when_stored(&mut self, receipt: Receipt, action: ReceiptAction) {
        self.actions.add(receipt, action);
    }

    /// Removes and returns the actions whose receipts the tap has stored.
    pub(crate) fn take_stored(&mut self) -> Vec<ReceiptAction> {
        let (tap, inbox) = (&mut self.tap, &mut self.inbox);
        self.actions.take_stored(|lane| stored_up_to(tap, inbox, lane))
    }

    /// Remembers a QoS 2 message until the tap has stored it.
    pub(crate) fn add_open(&mut self, receipt: Receipt, id: OpenId) {
        self.actions.add_open(receipt, id);
    }

    pub(crate) fn remove_open(&mut self, id: OpenId) {
        self.actions.remove_open(id);
    }

    /// Returns the receipt that the acknowledgement of a repeated QoS 2 message waits for.
    pub(crate) fn receipt_of(&self, id: OpenId) -> Option<Receipt> {
        self.actions.receipt_of(id)
    }

    /// Holds an acknowledgement back until the tap has stored its message and the acknowledgements before it are sent.
    pub(crate) fn hold_ack(&mut self, ack: PendingAck, is_first: bool) {
        self.actions.hold_ack(ack, is_first);
    }

    /// Removes and returns the next acknowledgement of a connection that can be sent.
    pub(crate) fn next_ack(&mut self, conn: ConnSlot, epoch: ConnEpoch) -> Option<PendingAck> {
        let ack = self.actions.next_behind((conn, epoch))?;
        match ack.receipt.filter(|receipt| !self.has_stored(*receipt)) {
            None => Some(ack),
            Some(receipt) => {
                self.actions.add(receipt, ReceiptAction::Ack(ack));
                None
            }
        }
    }

    /// Forgets the acknowledgements of a connection that has ended.
    pub(crate) fn drop_acks(&mut self, conn: ConnSlot, epoch: ConnEpoch) {
        self.actions.drop_behind((conn, epoch));
    }

    /// Adds the commits that a message of the server waits for.
    pub(crate) fn add_server_commits(&mut self, commits: PendingCommits) {
        self.server_commits.tap = self.join(self.server_commits.tap, commits.tap);
        self.server_commits.journal |= commits.journal;
    }

    /// Removes and returns the commits that the server's messages since the last call wait for.
    pub(crate) fn take_server_commits(&mut self) -> PendingCommits {
        std::mem::take(&mut self.server_commits)
    }

    /// Returns whether the tap must receive a QoS 2 message again that the journal lists as received. The process may
    /// have ended before the tap stored it.
    pub(crate) fn must_repeat(&self, session: &Session) -> bool {
        let is_wanted = self.wants.has(TapEventMask::MESSAGES) && !is_planted(Fault::ForgetTap);
        is_wanted && session.epoch <= self.restored_epochs
    }

    /// Returns the id of a new message.
    fn next_id(&mut self, now: Now) -> u128 {
        self.ids += 1;
        let shard = u128::from(self.shard.0);
        u128::from(now.unix_ms) << 64 | shard << 48 | u128::from(self.ids & 0xFFFF_FFFF_FFFF)
    }

    /// Reports an event of a session's client to the tap, if the tap wants such events.
    #[inline]
    pub(crate) fn session_event(
        &mut self,
        now: Now,
        session: &Session,
        wanted: TapEventMask,
        tap_event: &TapEvent<'_>,
    ) {
        if self.wants.has(wanted)
            && session.inbox_key().is_none()
            && let Some(tap) = &mut self.tap
        {
            self.is_used = true;
            tap.client_event(now, session.tap_client(), tap_event);
        }
    }

    #[inline]
    pub(crate) fn ping(&mut self, now: Now, session: &Session) {
        if self.wants.has(TapEventMask::PING) {
            let tap_event = TapEvent::Ping {
                clean_start: session.clean_start,
                keep_alive_s: session.keep_alive_s,
                expiry_s: session.expiry_s,
                connected_at_ms: session.connected_at_ms,
            };
            self.session_event(now, session, TapEventMask::PING, &tap_event);
        }
    }

    /// Reports the result of authenticating a CONNECT to the tap.
    pub(crate) fn authenticated(
        &mut self,
        now: Now,
        connection: &Connection,
        connect: &Connect<'_>,
        accepted: AcceptedClient<'_>,
        reason: ReasonCode,
    ) {
        if !self.wants.has(TapEventMask::AUTHENTICATED) {
            return;
        }
        let client = TapClient {
            client_id: accepted.client_id,
            user_name: connect.user_name,
            address: connection.peer.address,
            listener: Some(connection.peer.listener),
            version: connection.version,
            grant: accepted.grant,
            mountpoint: None,
        };
        let tap_event = TapEvent::Authenticated {
            reason,
            is_superuser: accepted.is_superuser,
            is_anonymous: connect.user_name.is_none() && connect.password.is_none(),
        };
        self.client_event(now, client, TapEventMask::AUTHENTICATED, &tap_event);
    }

    /// Reports the result of a re-authentication to the tap.
    pub(crate) fn reauthenticated(&mut self, now: Now, session: &Session, reason: ReasonCode, is_superuser: bool) {
        let tap_event = TapEvent::Authenticated {
            reason,
            is_superuser,
            is_anonymous: false,
        };
        self.session_event(now, session, TapEventMask::AUTHENTICATED, &tap_event);
    }

    /// Reports an event of a client, which may have no session, to the tap.
    pub(crate) fn client_event(
        &mut self,
        now: Now,
        client: TapClient<'_>,
        wanted: TapEventMask,
        tap_event: &TapEvent<'_>,
    ) {
        if self.wants.has(wanted)
            && let Some(tap) = &mut self.tap
        {
            self.is_used = true;
            tap.client_event(now, client, tap_event);
        }
    }

    /// Passes a message of a client to the tap, or one of the server if `session` is `None`. Returns a receipt if the
    /// acknowledgement must wait until the tap has stored the message.
    pub(crate) fn message(
        &mut self,
        now: Now,
        session: Option<&Session>,
        p: &Publication<'_>,
        is_duplicate: bool,
    ) -> Option<Receipt> {
        self.marked(now, session, p, is_duplicate, 0)
    }

    /// Like `message`, with the mark of a message that the tap has created.
    pub(crate) fn marked(
        &mut self,
        now: Now,
        session: Option<&Session>,
        p: &Publication<'_>,
        is_duplicate: bool,
        mark: u64,
    ) -> Option<Receipt> {
        if !self.wants.has(TapEventMask::MESSAGES) || p.topic.starts_with("$SYS/") {
            return None;
        }
        let known = tap_message(now, p);
        let message = TapMessage {
            id: match known.id {
                0 => self.next_id(now),
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
        let tap = self.tap.as_mut()?;
        self.is_used = true;
        match tap.message(now, &message) {
            TapResult::AckNow => None,
            TapResult::AckWhenStored(receipt) => Some(receipt),
        }
    }

    /// Combines two receipts into one.
    pub(crate) fn join(&mut self, one: Option<Receipt>, other: Option<Receipt>) -> Option<Receipt> {
        match (one, other, &mut self.tap) {
            (Some(one), Some(other), Some(tap)) if one != other => Some(tap.join(one, other)),
            _ => one.or(other),
        }
    }

    /// Returns the encoded provenance that is stored with a message for later events. Empty unless the tap wants one of
    /// these events.
    pub(crate) fn provenance(
        &mut self,
        now: Now,
        session: Option<&Session>,
        mark: u64,
        wanted: TapEventMask,
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.wants.has(wanted) {
            let id = self.next_id(now);
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
    pub(crate) fn dropped(&mut self, now: Now, session: Option<&Session>, p: &Publication<'_>, reason: DropReason) {
        if let Some(session) = session {
            self.message_event(now, session, TapEventMask::DROPPED, p, |message| TapEvent::Dropped {
                message,
                reason,
            });
        }
    }

    /// Reports a message that is sent to a client for the first time.
    pub(crate) fn delivered(&mut self, now: Now, session: &Session, p: &Publication<'_>, terms: DeliveryOptions<'_>) {
        let (wanted, qos, retain) = (TapEventMask::DELIVERED, terms.qos, terms.retain);
        let sent = Publication { qos, retain, ..*p };
        self.message_event(now, session, wanted, &sent, |message| TapEvent::Delivered { message });
    }

    /// Reports a QoS 1 or 2 message that is sent to a client for the first time, if the tap wants that.
    #[inline]
    pub(crate) fn started(&mut self, now: Now, session: &Session, delivery: &Delivery) {
        if self.wants(TapEventMask::DELIVERED) {
            self.delivered(now, session, &delivery.message.publication(), delivery.options());
        }
    }

    /// Reports a message that is sent to a client again.
    pub(crate) fn redelivered(&mut self, now: Now, session: &Session, delivery: &Delivery) {
        let (wanted, sent) = (TapEventMask::DELIVERED, delivery.publication());
        self.message_event(now, session, wanted, &sent, |message| TapEvent::Delivered {
            message: TapMessage {
                is_duplicate: true,
                ..message
            },
        });
    }

    /// Reports the acknowledgement of a message.
    #[inline]
    pub(crate) fn acked(&mut self, now: Now, session: &Session, delivery: &Delivery, properties: &[u8]) {
        if self.wants.has(TapEventMask::ACKED) {
            self.message_event(now, session, TapEventMask::ACKED, &delivery.publication(), |message| {
                TapEvent::Acked { message, properties }
            });
        }
    }

    /// Reports a message that was dropped for a client. `p` is `None` if the message is only in the journal.
    pub(crate) fn delivery_dropped(
        &mut self,
        now: Now,
        session: &Session,
        p: Option<&Publication<'_>>,
        reason: DropReason,
    ) {
        let wanted = TapEventMask::DELIVERY_DROPPED;
        match p {
            Some(p) => self.message_event(now, session, wanted, p, |message| TapEvent::DeliveryDropped {
                message: Some(message),
                reason,
            }),
            None => {
                let tap_event = TapEvent::DeliveryDropped { message: None, reason };
                self.session_event(now, session, wanted, &tap_event);
            }
        }
    }

    /// Reports the undelivered messages in memory of a session that ends.
    pub(crate) fn undelivered(&mut self, now: Now, session: &Session) {
        if !self.wants.has(TapEventMask::DELIVERY_DROPPED) {
            return;
        }
        let Some(tap) = self.tap.as_mut().filter(|_| session.inbox_key().is_none()) else {
            return;
        };
        self.is_used = true;
        for delivery in session.outgoing.in_memory() {
            let tap_event = TapEvent::DeliveryDropped {
                message: Some(tap_message(now, &delivery.publication())),
                reason: DropReason::SessionEnded,
            };
            tap.client_event(now, session.tap_client(), &tap_event);
        }
    }

    /// Reports what happened to a message for the client of a session.
    fn message_event<'m>(
        &mut self,
        now: Now,
        session: &Session,
        wanted: TapEventMask,
        p: &Publication<'m>,
        tap_event: impl FnOnce(TapMessage<'m>) -> TapEvent<'m>,
    ) {
        if self.wants.has(wanted) && !p.topic.starts_with("$SYS/") {
            self.session_event(now, session, wanted, &tap_event(tap_message(now, p)));
        }
    }

    /// Returns whether the tap wants an event for every delivery.
    #[inline]
    pub(crate) fn wants_every_delivery(&self) -> bool {
        self.wants.has(TapEventMask::DELIVERED | TapEventMask::DELIVERY_DROPPED)
    }

    /// Returns whether reading from a 3.1 or 3.1.1 client must be paused because the tap cannot accept its message.
    /// These versions have no reason codes.
    pub(crate) fn must_pause(
        &mut self,
        now: Now,
        session: Option<&Session>,
        version: ProtocolVersion,
        publish: &Publish<'_>,
    ) -> bool {
        if version == ProtocolVersion::V5 || !self.is_full() || publish.qos == QoS::AtMostOnce || session.is_none() {
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
        self.rejects(now, session, &p)
    }

    /// Returns whether the tap must be asked before a message is accepted, and cannot accept it.
    pub(crate) fn rejects(&mut self, now: Now, session: Option<&Session>, p: &Publication<'_>) -> bool {
        if !self.wants.has(TapEventMask::CHECK_FULL) || p.qos == QoS::AtMostOnce {
            return false;
        }
        let message = TapMessage {
            client: session.map(Session::tap_client),
            received_at_ms: now.unix_ms,
            ..tap_message(now, p)
        };
        self.tap.as_mut().is_some_and(|tap| tap.is_full(now, &message))
    }
}

/// Returns the number up to which all messages of a lane are stored.
fn stored_up_to(tap: &mut Option<Box<dyn Tap>>, inbox: &mut Option<Box<dyn Inbox>>, lane: u16) -> u64 {
    let stored = match lane {
        INBOX_LANE => inbox.as_mut().map(|inbox| inbox.stored_up_to()),
        lane => tap.as_mut().map(|tap| tap.stored_up_to(lane)),
    };
    stored.unwrap_or(u64::MAX)
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
