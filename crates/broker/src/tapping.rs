//! The shard's side of a tap (tap.rs): when it is asked and told, and what waits for it.

use mqtt::{Connect, ProtocolVersion, Publish, QoS, ReasonCode};

use crate::delayed::{Delay, strip_delay};
use crate::deliver::Core;
use crate::durable::keep::Wait;
use crate::effect::{ConnSlot, DropReason, Now};
use crate::fault::{Fault, is_planted};
use crate::message::Publication;
use crate::outgoing::Delivery;
use crate::parking::Parking;
use crate::provenance::{Provenance, Source};
use crate::session::Session;
use crate::shard::Shard;
use crate::tap::{Happening, Receipt, Tap, TapClient, TapMessage, Tapped, Wants};

/// Where a tap sits.
#[derive(Default)]
pub struct TapSeat {
    pub tap: Option<Box<dyn Tap>>,
    pub wants: Wants,
    /// What waits until it has kept what it took.
    pub parking: Parking,
    /// For what the server has published in this tick, until somebody asks when that is kept.
    pub of_server: Option<Receipt>,
    /// Something of it was recorded in the journal.
    pub is_server_recorded: bool,
    /// It was told something in this tick.
    is_used: bool,
    /// Sessions up to this one (`Session::epoch`) are of the process before.
    restored_epochs: u32,
    ids: u64,
}

impl TapSeat {
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// The tap, which is told something.
    pub fn used(&mut self) -> Option<&mut dyn Tap> {
        let tap = self.tap.as_deref_mut()?;
        self.is_used = true;
        Some(tap)
    }

    pub fn has_kept(&mut self, receipt: Receipt) -> bool {
        let kept = |tap: &mut Box<dyn Tap>| tap.kept(receipt.lane());
        self.tap.as_mut().is_none_or(|tap| kept(tap) >= receipt.number())
    }

    /// Of a new message.
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

impl Core {
    /// Tells the tap what happened to the client of a session, if it wants that.
    #[inline]
    pub fn tap_session(&mut self, now: Now, slot: u32, wanted: Wants, what: &Happening<'_>) {
        if self.tap.wants.has(wanted)
            && let Some(session) = self.sessions[slot as usize].as_deref()
            && session.device().is_none()
            && let Some(tap) = &mut self.tap.tap
        {
            self.tap.is_used = true;
            tap.happened(now, session.tap_client(), what);
        }
    }

    #[inline]
    pub fn tap_ping(&mut self, now: Now, slot: u32) {
        if self.tap.wants.has(Wants::PING) {
            let session = self.session(slot);
            let what = Happening::Ping {
                clean_start: session.clean_start,
                keep_alive_s: session.keep_alive_s,
                expiry_s: session.expiry_s,
                connected_at_ms: session.connected_at_ms,
            };
            self.tap_session(now, slot, Wants::PING, &what);
        }
    }

    /// Tells the tap what an authenticator has decided about who connects.
    pub fn tap_authenticated(
        &mut self,
        now: Now,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client_id: &str,
        reason: ReasonCode,
        is_superuser: bool,
    ) {
        if !self.tap.wants.has(Wants::AUTHENTICATED) {
            return;
        }
        let Some(connection) = self.connection_mut(conn) else {
            return;
        };
        let client = TapClient {
            client_id,
            user_name: connect.user_name,
            address: connection.peer.address,
            listener: Some(connection.peer.listener),
            version: connection.version,
        };
        let what = Happening::Authenticated {
            reason,
            is_superuser,
            is_anonymous: connect.user_name.is_none() && connect.password.is_none(),
        };
        self.tap_client(now, client, Wants::AUTHENTICATED, &what);
    }

    /// The same of a client that has a session.
    pub fn tap_authenticated_anew(&mut self, now: Now, conn: ConnSlot, reason: ReasonCode, is_superuser: bool) {
        if let Some(slot) = self.connection_mut(conn).map(|connection| connection.session) {
            let what = Happening::Authenticated {
                reason,
                is_superuser,
                is_anonymous: false,
            };
            self.tap_session(now, slot, Wants::AUTHENTICATED, &what);
        }
    }

    /// Tells the tap what happened to a client, which may have no session.
    pub fn tap_client(&mut self, now: Now, client: TapClient<'_>, wanted: Wants, what: &Happening<'_>) {
        if self.tap.wants.has(wanted)
            && let Some(tap) = &mut self.tap.tap
        {
            self.tap.is_used = true;
            tap.happened(now, client, what);
        }
    }

    /// Has the tap take a message of a client, or of the server where `slot` is none. The receipt is for what has to be kept before
    /// anybody is told that the message has been received.
    pub fn tap_message(
        &mut self,
        now: Now,
        slot: Option<u32>,
        p: &Publication<'_>,
        is_duplicate: bool,
    ) -> Option<Receipt> {
        self.tap_marked(now, slot, p, is_duplicate, 0)
    }

    /// The same with the mark of a message that a tap has made.
    pub fn tap_marked(
        &mut self,
        now: Now,
        slot: Option<u32>,
        p: &Publication<'_>,
        is_duplicate: bool,
        mark: u64,
    ) -> Option<Receipt> {
        if !self.tap.wants.has(Wants::MESSAGES) || p.topic.starts_with("$SYS/") {
            return None;
        }
        let known = tap_message(now, p);
        let session = slot.and_then(|slot| self.sessions[slot as usize].as_deref());
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
            Tapped::Passed => None,
            Tapped::Kept(receipt) => Some(receipt),
        }
    }

    /// For both, if there are two.
    pub fn join_receipts(&mut self, one: Option<Receipt>, other: Option<Receipt>) -> Option<Receipt> {
        match (one, other, &mut self.tap.tap) {
            (Some(one), Some(other), Some(tap)) if one != other => Some(tap.join(one, other)),
            _ => one.or(other),
        }
    }

    /// What is kept beside a message so that its fate can be told; nothing unless one of these is wanted.
    pub fn provenance(&mut self, now: Now, slot: Option<u32>, mark: u64, wanted: Wants) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.tap.wants.has(wanted) {
            let id = self.tap.next_id(now, self.id.0);
            let session = slot.and_then(|slot| self.sessions[slot as usize].as_deref());
            let source = Source {
                id,
                received_at_ms: now.unix_ms,
                mark,
                client: session.map(Session::tap_client),
            };
            source.put(&mut bytes);
        }
        bytes
    }

    /// Tells the tap of a message that nobody gets.
    pub fn tap_dropped(&mut self, now: Now, slot: Option<u32>, p: &Publication<'_>, reason: DropReason) {
        if let Some(slot) = slot {
            self.tap_fate(now, slot, Wants::DROPPED, p, |message| Happening::Dropped {
                message,
                reason,
            });
        }
    }

    /// Tells the tap of a message that is on its way to a client.
    #[inline]
    pub fn tap_delivered(
        &mut self,
        now: Now,
        slot: u32,
        p: &Publication<'_>,
        qos: QoS,
        retain: bool,
        is_duplicate: bool,
    ) {
        if self.tap.wants.has(Wants::DELIVERED) {
            let sent = Publication { qos, retain, ..*p };
            self.tap_fate(now, slot, Wants::DELIVERED, &sent, |message| Happening::Delivered {
                message: TapMessage {
                    is_duplicate,
                    ..message
                },
            });
        }
    }

    /// Tells the tap what a client answered to a message.
    #[inline]
    pub fn tap_acked(&mut self, now: Now, slot: u32, delivery: &Delivery, properties: &[u8]) {
        if self.tap.wants.has(Wants::ACKED) {
            self.tap_fate(now, slot, Wants::ACKED, &delivery.publication(), |message| {
                Happening::Acked { message, properties }
            });
        }
    }

    /// Tells the tap of a message that was given up for a client; without it where it is in the journal only.
    pub fn tap_delivery_dropped(&mut self, now: Now, slot: u32, p: Option<&Publication<'_>>, reason: DropReason) {
        let wanted = Wants::DELIVERY_DROPPED;
        match p {
            Some(p) => self.tap_fate(now, slot, wanted, p, |message| Happening::DeliveryDropped {
                message: Some(message),
                reason,
            }),
            None => {
                let what = Happening::DeliveryDropped { message: None, reason };
                self.tap_session(now, slot, wanted, &what);
            }
        }
    }

    /// Tells the tap of the messages that a session which ends leaves behind, as far as they are in memory.
    pub fn tap_undelivered(&mut self, now: Now, slot: u32) {
        if !self.tap.wants.has(Wants::DELIVERY_DROPPED) {
            return;
        }
        let session = self.sessions[slot as usize].as_deref();
        let session = session.filter(|session| session.device().is_none());
        let (Some(session), Some(tap)) = (session, &mut self.tap.tap) else {
            return;
        };
        self.tap.is_used = true;
        for delivery in session.outgoing.in_memory() {
            let what = Happening::DeliveryDropped {
                message: Some(tap_message(now, &delivery.publication())),
                reason: DropReason::SessionEnded,
            };
            tap.happened(now, session.tap_client(), &what);
        }
    }

    /// Tells the tap what became of a message for the client of a session.
    fn tap_fate<'m>(
        &mut self,
        now: Now,
        slot: u32,
        wanted: Wants,
        p: &Publication<'m>,
        what: impl FnOnce(TapMessage<'m>) -> Happening<'m>,
    ) {
        if self.tap.wants.has(wanted) && !p.topic.starts_with("$SYS/") {
            self.tap_session(now, slot, wanted, &what(tap_message(now, p)));
        }
    }

    /// Whether every delivery of a message has to be looked at.
    #[inline]
    pub fn is_each_delivery_told(&self) -> bool {
        self.tap.wants.has(Wants::DELIVERED | Wants::DELIVERY_DROPPED)
    }

    /// Whether the tap is asked before a message is accepted, and cannot take this one.
    pub fn tap_refuses(&mut self, now: Now, slot: Option<u32>, p: &Publication<'_>) -> bool {
        if !self.tap.wants.has(Wants::TO_BE_ASKED) || p.qos == QoS::AtMostOnce {
            return false;
        }
        let session = slot.and_then(|slot| self.sessions[slot as usize].as_deref());
        let message = TapMessage {
            client: session.map(Session::tap_client),
            received_at_ms: now.unix_ms,
            ..tap_message(now, p)
        };
        self.tap.tap.as_mut().is_some_and(|tap| tap.is_full(now, &message))
    }
}

/// A message with what is known of where it comes from.
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
    /// From now on `tap` sees what this shard does. What came before it, it does not.
    pub fn set_tap(&mut self, tap: Box<dyn Tap>) {
        self.core.tap.tap = Some(tap);
        self.core.tap.restored_epochs = self.epochs;
    }

    pub fn begin_tap_tick(&mut self, now: Now) {
        let Some(tap) = &mut self.core.tap.tap else { return };
        self.core.tap.of_server = None;
        self.core.tap.is_server_recorded = false;
        let wants = tap.begin_tick(now);
        let before = std::mem::replace(&mut self.core.tap.wants, wants);
        if before.has(Wants::TO_BE_ASKED) && !wants.has(Wants::TO_BE_ASKED) {
            self.resume_held_publishers();
        }
    }

    /// Whether the tap has been told something since the tick began.
    pub fn is_tap_used(&self) -> bool {
        self.core.tap.is_used
    }

    /// Whether publishers may be held until the tap can take more.
    pub fn is_tap_full(&self) -> bool {
        self.core.tap.wants.has(Wants::TO_BE_ASKED)
    }

    /// Publishes what the tap has made, and what it makes of that. Returns what what is said of what it was made of has to wait for.
    pub(crate) fn publish_made(&mut self, now: Now) -> Wait {
        let mut wait = Wait::default();
        loop {
            let made = self.core.tap.tap.as_mut().map_or(Vec::new(), |tap| tap.take_made());
            if made.is_empty() {
                return wait;
            }
            for message in made {
                let provenance = self.core.provenance(now, None, message.mark, Wants::FATES);
                let p = Publication {
                    properties: &message.properties,
                    qos: message.qos,
                    retain: message.retain,
                    expires_at_ms: message.expiry_s.map(|s| now.monotonic_ms + u64::from(s) * 1000),
                    provenance: Provenance::from_written(&provenance),
                    ..Publication::of_server(&message.topic, &message.payload)
                };
                // Its publisher cannot be refused any more, and would be sent away by each try. What is to be retained of it is looked at elsewhere.
                if self.core.has_journal_failed() && self.needs_journal(None, p.topic, p.qos, false) {
                    self.core.stats.drop_message(DropReason::JournalFull);
                    continue;
                }
                let receipt = self.core.tap_marked(now, None, &p, false, message.mark);
                wait.receipt = self.core.join_receipts(wait.receipt, receipt);
                wait.for_journal |= self.publish(now, &p, None).is_kept;
            }
        }
    }

    /// The end of a tick, before `journal_batch`.
    pub fn end_tap_tick(&mut self, now: Now) {
        if !self.core.tap.is_used {
            return;
        }
        self.publish_made(now);
        self.core.tap.is_used = false;
        let Some(tap) = &mut self.core.tap.tap else { return };
        tap.end_tick();
    }

    /// Whether the tap has to be given a QoS 2 message that the journal says has been received: it may have been received and not
    /// been taken by the tap before the process ended.
    pub(crate) fn may_tap_have_missed(&self, slot: u32) -> bool {
        let is_wanted = self.core.tap.wants.has(Wants::MESSAGES) && !is_planted(Fault::ForgetTap);
        is_wanted && self.core.session(slot).epoch <= self.core.tap.restored_epochs
    }

    /// A client of 3.1 or 3.1.1 cannot be told that the tap takes nothing: it is not read from until it does.
    pub(crate) fn must_hold_for_tap(
        &mut self,
        now: Now,
        conn: ConnSlot,
        version: ProtocolVersion,
        publish: &Publish<'_>,
    ) -> bool {
        if version == ProtocolVersion::V5 || !self.is_tap_full() || publish.qos == QoS::AtMostOnce {
            return false;
        }
        let Some(slot) = self.core.connection_mut(conn).map(|connection| connection.session) else {
            return false;
        };
        if self.core.sessions.get(slot as usize).is_none_or(Option::is_none) {
            return false;
        }
        let topic = match strip_delay(publish.topic) {
            Delay::Seconds(_, topic) => topic,
            Delay::None | Delay::Malformed => publish.topic,
        };
        let p = Publication {
            qos: publish.qos,
            retain: publish.retain,
            ..Publication::of_server(topic, publish.payload)
        };
        self.core.tap_refuses(now, Some(slot), &p)
    }
}
