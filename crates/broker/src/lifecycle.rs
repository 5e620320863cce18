//! End of connections and sessions, and what happens when time passes: wills, expiry, keep-alive.

use mqtt::{Disconnect, Packet, PacketType, Properties, ProtocolVersion, ReasonCode};

use crate::access::ClientIdentity;
use crate::connack::RejectedConnect;
use crate::connection::Connection;
use crate::connection_end::ConnectionEnd;
use crate::effect::{ConnectionEvent, DisconnectReason, DropReason, Effect, Now};
use crate::inbox::InboxEvent;
use crate::message::{MessageOrigin, Publication, RecordLocation, is_reserved};
use crate::node_state::hash;
use crate::provenance::Provenance;
use crate::router::Destinations;
use crate::session::Session;
use crate::sessions::LOOK_MAX;
use crate::shard::{Components, Shard};
use crate::slots::{ConnEpoch, ConnSlot, ReplayNumber, SessionSlot};
use crate::subscribe::{AnswerState, Violation};
use crate::tap::{TapEvent, TapEventMask};
use crate::timers::{SessionDeadline, ShardTimer};

impl Shard {
    /// Handles a protocol violation: sends DISCONNECT to an MQTT 5 client and closes the connection [MQTT-4.13.1-1].
    pub(crate) fn protocol_error(&mut self, now: Now, conn: ConnSlot, code: ReasonCode, detail: &str) {
        let Some(connection) = self.core.connections.get(conn) else {
            return;
        };
        if !connection.is_online() {
            let client_id = connection.pending_client_id().unwrap_or_default().to_owned();
            let rejected = RejectedConnect {
                client_id: &client_id,
                connect: None,
                reason: code,
                detail,
                is_authenticated: false,
            };
            let (mut tick, parts) = self.split(now);
            return parts.authentication.reject(&mut tick, conn, rejected);
        }
        self.end_connection(now, conn, ConnectionEnd::by_violation(code, detail));
    }

    /// The answer to a SUBSCRIBE or UNSUBSCRIBE has been sent, or waits, or the packet was a violation. A replay that
    /// starts or ends with it may have to send messages.
    pub(crate) fn answered(&mut self, now: Now, slot: SessionSlot, result: Result<AnswerState, Violation>) {
        match result {
            Ok(AnswerState::Sent) => self.pump(now, slot),
            Ok(AnswerState::Waiting) => {}
            Err(Violation { code, detail }) => {
                if let Some(conn) = self.core.sessions.at(slot).conn {
                    self.protocol_error(now, conn, code, &detail);
                }
            }
        }
    }

    /// Ends a connection from the server's side: sends DISCONNECT to an MQTT 5 client [MQTT-3.14.0-1] and closes the
    /// connection.
    pub(crate) fn end_connection(&mut self, now: Now, conn: ConnSlot, ending: ConnectionEnd<'_>) {
        let Some(connection) = self.core.connections.get(conn) else {
            return;
        };
        if connection.is_closing() {
            return;
        }
        if let Some(code) = ending.code
            && connection.is_online()
            && connection.version == ProtocolVersion::V5
        {
            let mut bytes = Vec::new();
            ending.write_properties(connection.maximum_packet_size, &mut bytes);
            let disconnect = Disconnect {
                reason: code,
                properties: Properties::from_validated(&bytes),
            };
            self.core.send(conn, &Packet::Disconnect(disconnect));
        }
        self.detach(now, conn, ending);
        self.core.effects.push(Effect::Close {
            conn,
            has_sent_disconnect: false,
        });
    }

    /// Handles DISCONNECT of the client.
    pub(crate) fn disconnect_received(
        &mut self,
        now: Now,
        conn: ConnSlot,
        slot: SessionSlot,
        disconnect: &Disconnect<'_>,
    ) {
        self.core.stats.packets_received[PacketType::Disconnect as usize] += 1;
        let Some(session) = self.core.sessions.get_mut(slot) else {
            // The client disconnected during an enhanced authentication.
            let rejected = RejectedConnect {
                client_id: "",
                connect: None,
                reason: disconnect.reason,
                detail: "the client disconnected during authentication",
                is_authenticated: false,
            };
            let (mut tick, parts) = self.split(now);
            return parts.authentication.close_rejected(&mut tick, conn, rejected);
        };
        let Some(reason) = session.disconnect_received(disconnect, self.core.config.max_session_expiry_s) else {
            let detail = "the Session Expiry Interval was 0 in CONNECT and must stay 0";
            return self.protocol_error(now, conn, ReasonCode::ProtocolError, detail);
        };
        let ending = ConnectionEnd {
            reason,
            code: Some(disconnect.reason),
            is_discarded: false,
            detail: disconnect.reason.name(),
            properties: disconnect.properties,
        };
        self.detach(now, conn, ending);
        self.core.effects.push(Effect::Close {
            conn,
            has_sent_disconnect: true,
        });
    }

    /// Detaches a connection from its session, which affects the will, the session's expiry, and its shared
    /// subscriptions. Does nothing if it is detached already.
    pub(crate) fn detach(&mut self, now: Now, conn: ConnSlot, ending: ConnectionEnd<'_>) {
        let ConnectionEnd { reason, detail, .. } = ending;
        let core = &mut self.core;
        let (traces, clients) = core.traced();
        traces.leaving(clients, conn);
        let Some(slot) = core.connections.get_mut(conn).and_then(Connection::detach) else {
            return;
        };
        core.stats.connections -= 1;
        core.stats.disconnects[reason as usize] += 1;
        core.link_mut(slot).conn = ConnSlot::NONE;
        let session = core.sessions.at_mut(slot);
        session.detach(now, reason, || ReplayNumber(self.numbers.next()));
        core.release(now, slot);
        let session = core.sessions.at(slot);
        core.effects.push(Effect::Event(ConnectionEvent::Disconnected {
            client_id: session.client_id.clone(),
            address: session.address.get(),
            reason,
            detail: detail.into(),
        }));
        let tap_event = TapEvent::Disconnected {
            reason,
            code: ending.code,
            is_discarded: ending.is_discarded,
            detail,
            connected_at_ms: session.connected_at_ms,
            properties: ending.properties.as_bytes(),
        };
        core.taps
            .session_event(now, session, TapEventMask::DISCONNECTED, &tap_event);
        core.taps.inbox_event(now, session, InboxEvent::Disconnected);
        if session.expiry_s == 0 {
            return self.end_session(now, slot, "session expiry interval is 0");
        }
        // A client that has disconnected regularly has no will any more.
        core.sessions.resize_holding(slot);
        core.ledger.record_disconnected(now, core.sessions.at(slot));
        core.sessions.evict_later(&mut core.ledger, slot);
        self.meet_deadline(now, slot, SessionDeadline::Will);
        let (mut tick, parts) = self.split(now);
        parts.groups.announce_state(&mut tick, slot, false);
        self.meet_deadline(now, slot, SessionDeadline::ExclusiveRelease);
        self.meet_deadline(now, slot, SessionDeadline::Expiry);
    }

    /// Does what is due for a disconnected session, or starts a timer: publishes the will [MQTT-3.1.2-8], releases the
    /// exclusive subscriptions, or ends the session [MQTT-3.1.2-23].
    pub(crate) fn meet_deadline(&mut self, now: Now, slot: SessionSlot, deadline: SessionDeadline) {
        let core = &mut self.core;
        let session = core.sessions.at(slot);
        let Some(at_ms) = session.deadline_ms(deadline, core.config.exclusive_release_ms) else {
            return;
        };
        if at_ms > now.monotonic_ms {
            let timer = ShardTimer::Session {
                deadline,
                session: slot,
                connect_number: session.connect_number,
            };
            core.timers.wake(now, at_ms, timer);
            return;
        }
        match deadline {
            SessionDeadline::Will => self.publish_will(now, slot),
            SessionDeadline::ExclusiveRelease => {
                let filters: Vec<String> = session.exclusive_filters().map(str::to_owned).collect();
                let (mut tick, parts) = self.split(now);
                for filter in filters {
                    parts.router.unsubscribe(&mut tick, parts.groups, slot, &filter, None);
                }
            }
            SessionDeadline::Expiry => self.end_session(now, slot, "session expiry interval has passed"),
        }
    }

    /// Publishes the will with the access rules of the session, at most once [MQTT-3.1.2-10].
    fn publish_will(&mut self, now: Now, slot: SessionSlot) {
        let Some(will) = self.core.sessions.at_mut(slot).will.take() else {
            return;
        };
        self.core.sessions.resize_holding(slot);
        self.core.ledger.record_will_published(self.core.sessions.at(slot));
        let session = self.core.sessions.at(slot);
        let is_allowed = session
            .access
            .as_ref()
            .is_none_or(|a| a.can_publish(&will.topic, will.qos, will.retain));
        if !is_allowed || is_reserved(&will.topic) {
            self.core.dropped(now, slot, DropReason::NotAuthorizedToPublish);
            return;
        }
        let publisher_hash = hash(&session.client_id) as u32;
        let epoch = session.epoch;
        let holding = self.core.sessions.holding_mut(slot).filter(|_| will.retain);
        let owner = holding.and_then(|holding| holding.client(publisher_hash));
        self.core.stats.wills_published += 1;
        let provenance = self
            .core
            .taps
            .provenance(now, self.core.sessions.get(slot), 0, TapEventMask::MESSAGE_EVENTS);
        let p = Publication {
            topic: &will.topic,
            payload: &will.payload,
            properties: &will.properties,
            qos: will.qos,
            retain: will.retain,
            expires_at_ms: self.core.config.message_expiry_ms(now, will.message_expiry_s),
            origin: MessageOrigin {
                shard: self.core.id,
                epoch,
            },
            publisher_hash,
            place: RecordLocation::NONE,
            provenance: Provenance::from_written(&provenance),
            owner: owner.as_ref(),
        };
        self.core.taps.message(now, self.core.sessions.get(slot), &p, false);
        self.publish(now, &p, None);
    }

    /// Ends a session: publishes a pending will [MQTT-3.1.2-8] and removes subscriptions, queue and client id.
    pub(crate) fn end_session(&mut self, now: Now, slot: SessionSlot, detail: &'static str) {
        // Leaves its groups first, so that they do not select it for its own messages.
        let (mut tick, parts) = self.split(now);
        parts.router.drop_subscriptions(&mut tick, parts.groups, slot);
        tick.core.release(now, slot);
        parts.groups.return_shared(&mut tick, slot, usize::MAX, |_| true);
        self.publish_will(now, slot);
        self.core.ledger.record_session_ended(self.core.sessions.at(slot));
        self.core.taps.undelivered(now, self.core.sessions.at(slot));
        self.core.invalidate_recipients();
        let Some(session) = self.core.sessions.remove(slot) else {
            return;
        };
        let out = &session.outgoing;
        let undelivered = out.queued() + out.undelivered();
        let stats = &mut self.core.stats;
        stats.drops[DropReason::SessionEnded as usize] += undelivered as u64;
        stats.queued_messages -= out.queued() as u64;
        stats.queued_bytes -= out.queued_bytes as u64;
        stats.inflight_messages -= out.unacknowledged() as u64;
        self.core.stats.set_sessions(self.core.sessions.len());
        self.core.effects.push(Effect::Event(ConnectionEvent::SessionEnded {
            client_id: session.client_id,
            detail,
        }));
    }

    pub(crate) fn timer_due(&mut self, now: Now, timer: ShardTimer) {
        match timer {
            ShardTimer::KeepAlive { conn, epoch } => self.check_keep_alive(now, conn, epoch),
            ShardTimer::Session {
                deadline,
                session,
                connect_number,
            } => {
                if self.core.sessions.is_offline_since(session, connect_number) {
                    self.meet_deadline(now, session, deadline);
                }
            }
            ShardTimer::Delayed { index } => {
                let (mut tick, parts) = self.split(now);
                let Components {
                    delayed,
                    router,
                    groups,
                    retained,
                    ..
                } = parts;
                delayed.due(&mut tick, router, &mut Destinations { groups, retained }, index);
            }
            ShardTimer::Retry {
                session,
                connect_number,
            } => {
                if let Some(retry_ms) = self.core.config.retry_interval_ms
                    && self.core.resend_unacknowledged(now, session, connect_number)
                {
                    self.core.timers.insert(now.monotonic_ms + retry_ms, timer);
                }
            }
            ShardTimer::Quota { conn, epoch } => {
                let core = &mut self.core;
                core.connections.quota_due(now, conn, epoch, &mut core.effects);
            }
            ShardTimer::RetainedExpiry => self.retained.expiry_due(&mut self.core, now),
            ShardTimer::Space { index, epoch } => {
                let (mut tick, parts) = self.split(now);
                parts.groups.retry_full_members(&mut tick, index, epoch);
            }
        }
    }

    /// Ends a connection whose client is silent for too long, or starts the timer again. The time during which the
    /// server did not read from the client does not count.
    fn check_keep_alive(&mut self, now: Now, conn: ConnSlot, epoch: ConnEpoch) {
        let core = &mut self.core;
        let not_reading_ms = core.connections.not_reading_ms();
        let Some(connection) = core.connections.live(conn, epoch).filter(|c| c.is_online()) else {
            return;
        };
        let is_paused = connection.is_reading_paused()
            || core.outbox.take_progress(conn) && core.outbox.queued_bytes(conn) > core.config.output_buffer_bytes;
        let silent_since_ms = match is_paused {
            true => now.monotonic_ms,
            false => connection.silent_since_ms(not_reading_ms),
        };
        let keep_alive_s = core.sessions.at(connection.session).keep_alive_s;
        let at_ms = silent_since_ms + core.config.keep_alive_ms(keep_alive_s);
        if at_ms > now.monotonic_ms {
            core.timers.wake(now, at_ms, ShardTimer::KeepAlive { conn, epoch });
            return;
        }
        let ending = ConnectionEnd::by_server(
            DisconnectReason::KeepAliveTimeout,
            ReasonCode::KeepAliveTimeout,
            "no packet within the keep-alive interval and its tolerance",
        );
        self.end_connection(now, conn, ending);
    }

    /// Disconnects a client on behalf of an operator. Returns false if there is no such session.
    pub fn kick(&mut self, now: Now, client_id: &str, end_session: bool) -> bool {
        let Some(slot) = self.core.sessions.slot_of(client_id) else {
            return false;
        };
        let epoch = self.core.sessions.at(slot).epoch;
        if let Some(conn) = self.core.sessions.at(slot).conn {
            self.kick_connection(now, conn, "disconnected by an operator");
        }
        if end_session && self.core.sessions.live(slot, epoch).is_some() {
            self.end_session(now, slot, "ended by an operator");
        }
        true
    }

    /// Closes a connection, authenticated or not. The session stays.
    pub fn kick_connection(&mut self, now: Now, conn: ConnSlot, detail: &str) {
        let (reason, code) = (DisconnectReason::Kicked, ReasonCode::AdministrativeAction);
        self.end_connection(now, conn, ConnectionEnd::by_server(reason, code, detail));
    }

    /// Disconnects a client whose incomplete packet the driver cannot store.
    pub fn refuse_packet(&mut self, now: Now, conn: ConnSlot, detail: &str) {
        self.protocol_error(now, conn, ReasonCode::QuotaExceeded, detail);
    }

    /// Disconnects users whose name `is_meant`, among the sessions from slot `from` on. The sessions stay. Visits a
    /// bounded number of slots and returns the slot to continue at.
    pub fn kick_users(&mut self, now: Now, from: SessionSlot, is_meant: impl Fn(&str) -> bool) -> Option<SessionSlot> {
        self.kick_where(now, from, "the user must authenticate again", true, |session| {
            session.inbox_key().is_none() && session.user_name.as_deref().is_some_and(&is_meant)
        })
    }

    /// Disconnects banned clients, in the same way. The user name of an inbox client is ignored, because it
    /// is a secret.
    pub fn kick_banned(
        &mut self,
        now: Now,
        from: SessionSlot,
        is_banned: impl Fn(&ClientIdentity) -> bool,
    ) -> Option<SessionSlot> {
        let publishes_will = self.core.config.publish_will_of_banned;
        self.kick_where(now, from, "banned by an operator", publishes_will, |session| {
            let mut who = session.identity();
            who.user_name = who.user_name.filter(|_| session.inbox_key().is_none());
            is_banned(&who)
        })
    }

    fn kick_where(
        &mut self,
        now: Now,
        from: SessionSlot,
        detail: &str,
        publishes_will: bool,
        is_meant: impl Fn(&Session) -> bool,
    ) -> Option<SessionSlot> {
        let end = self.core.sessions.end();
        let until = SessionSlot(from.0.saturating_add(LOOK_MAX as u32)).min(end);
        for slot in from.until(until) {
            let Some(session) = self.core.sessions.get(slot) else {
                continue;
            };
            if let Some(conn) = session.conn
                && is_meant(session)
            {
                if !publishes_will && self.core.sessions.at_mut(slot).will.take().is_some() {
                    // Recovery must not publish it either.
                    self.core.ledger.record_will_published(self.core.sessions.at(slot));
                }
                self.kick_connection(now, conn, detail);
            }
        }
        (until < end).then_some(until)
    }

    /// Applies changed access rules to every session.
    pub fn access_changed(&mut self, now: Now) {
        for slot in SessionSlot::FIRST.until(self.core.sessions.end()) {
            let Some(session) = self.core.sessions.get(slot) else {
                continue;
            };
            if session.inbox_key().is_some() {
                continue;
            }
            let access = self.authentication.rights_of(session);
            self.core.sessions.at_mut(slot).access = access;
            let (mut tick, parts) = self.split(now);
            parts.router.recheck_subscriptions(&mut tick, parts.groups, slot);
            if let Some(conn) = self.core.sessions.at(slot).conn {
                // A replay whose subscription was removed may have held messages.
                self.core.continue_later(conn, slot);
            }
        }
    }
}
