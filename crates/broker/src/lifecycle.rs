//! End of connections and sessions, with all that follows: wills, share groups, expiry.

use mqtt::{Disconnect, Packet, PacketType, Properties, ProtocolVersion, ReasonCode};

use crate::connection::Connection;
use crate::connection_end::ConnectionEnd;
use crate::deliver::ShardCore;
use crate::effect::{ConnectionEvent, DisconnectReason, DropReason, Effect, Now};
use crate::inbox::InboxEvent;
use crate::message::{MessageOrigin, Publication, RecordLocation, is_reserved};
use crate::node_state::hash;
use crate::provenance::Provenance;
use crate::router::{Destinations, Router};
use crate::slots::{ConnEpoch, ConnSlot, ReplayNumber, SessionSlot};
use crate::stream_role::StreamRole;
use crate::subscribe::Violation;
use crate::tap::{TapEvent, TapEventMask};
use crate::tick::Tick;
use crate::timers::{SessionDeadline, ShardTimer};

/// Ends connections and sessions.
pub(crate) struct Lifecycle<'a> {
    pub tick: Tick<'a>,
    pub router: &'a mut Router,
    pub to: Destinations<'a>,
}

impl Lifecycle<'_> {
    /// Ends a connection from the server's side: sends DISCONNECT to an MQTT 5 client [MQTT-3.14.0-1] and closes the
    /// connection.
    pub fn end_connection(&mut self, conn: ConnSlot, ending: ConnectionEnd<'_>) {
        let Some(connection) = self.tick.core.connections.get(conn) else {
            return;
        };
        if connection.is_closing() {
            return;
        }
        if connection.is_data_stream() {
            report_stream_end(self.tick.core, conn, ending.reason, ending.detail);
        } else if let Some(code) = ending.code
            && connection.is_online()
            && connection.version == ProtocolVersion::V5
        {
            let mut bytes = Vec::new();
            ending.write_properties(connection.maximum_packet_size, &mut bytes);
            let disconnect = Disconnect {
                reason: code,
                properties: Properties::from_validated(&bytes),
            };
            self.tick.core.send(conn, &Packet::Disconnect(disconnect));
        }
        self.detach(conn, ending);
        self.tick.core.effects.push(Effect::Close {
            conn,
            has_sent_disconnect: false,
        });
    }

    /// Closes the present connection of a session. With a reason to discard the session, such as Clean Start, also ends
    /// it. Returns the slot if the session continues.
    pub fn take_over(&mut self, slot: SessionSlot, discarded: Option<&'static str>) -> Option<SessionSlot> {
        let old = self.tick.core.sessions.at(slot).conn;
        if let Some(old) = old {
            self.tick.core.stats.takeovers += 1;
            let session = self.tick.core.sessions.at_mut(slot);
            if discarded.is_none() && session.expiry_s > 0 && session.will.as_ref().is_some_and(|w| w.delay_s > 0) {
                // The session continues before the delay has passed [MQTT-3.1.3-9].
                session.will = None;
            }
            let expiry_s = std::mem::replace(&mut self.tick.core.sessions.at_mut(slot).expiry_s, u32::MAX);
            // [MQTT-3.1.4-3]
            let ending = ConnectionEnd {
                is_discarded: discarded.is_some(),
                ..ConnectionEnd::by_server(
                    DisconnectReason::TakenOver,
                    ReasonCode::SessionTakenOver,
                    "another connection uses the client id",
                )
            };
            self.end_connection(old, ending);
            self.tick.core.sessions.at_mut(slot).expiry_s = expiry_s;
            if expiry_s == 0 {
                self.end_session(slot, "taken over by a new connection");
                return None;
            }
        }
        if let Some(detail) = discarded {
            // [MQTT-3.1.2-4]
            self.end_session(slot, detail);
            return None;
        }
        // The client is back before the delay has passed [MQTT-3.1.3-9].
        self.tick.core.sessions.at_mut(slot).will = None;
        Some(slot)
    }

    /// Handles DISCONNECT of a client that has a session.
    pub fn disconnect_received(
        &mut self,
        conn: ConnSlot,
        slot: SessionSlot,
        disconnect: &Disconnect<'_>,
    ) -> Result<(), Violation> {
        let core = &mut *self.tick.core;
        core.stats.packets_received[PacketType::Disconnect as usize] += 1;
        let session = core.sessions.at_mut(slot);
        let Some(reason) = session.disconnect_received(disconnect, core.config.max_session_expiry_s) else {
            let detail = "the Session Expiry Interval was 0 in CONNECT and must stay 0";
            return Err(Violation::new(ReasonCode::ProtocolError, detail));
        };
        let ending = ConnectionEnd {
            reason,
            code: Some(disconnect.reason),
            is_discarded: false,
            detail: disconnect.reason.name(),
            properties: disconnect.properties,
        };
        self.detach(conn, ending);
        self.tick.core.effects.push(Effect::Close {
            conn,
            has_sent_disconnect: true,
        });
        Ok(())
    }

    /// Detaches a connection from its session, which affects the will, the session's expiry, and its shared
    /// subscriptions. Also ends its data streams. Does nothing if it is detached already.
    pub fn detach(&mut self, conn: ConnSlot, ending: ConnectionEnd<'_>) {
        let Some(connection) = self.tick.core.connections.get_mut(conn) else {
            return;
        };
        if let StreamRole::Data(control) = connection.streams {
            return self.detach_stream(control, conn);
        }
        let streams = connection.streams.take_data_streams();
        self.detach_client(conn, ending);
        for stream in streams {
            self.detach_stream(conn, stream);
        }
    }

    /// Detaches a data stream, and ends its session. Does nothing if it is detached already.
    fn detach_stream(&mut self, control: ConnSlot, conn: ConnSlot) {
        let now = self.tick.now;
        let core = &mut *self.tick.core;
        let (traces, clients) = core.traced();
        traces.leaving(clients, conn);
        if let Some(own) = core.connections.get_mut(control) {
            own.streams.remove(conn);
        }
        let Some(slot) = core.connections.get_mut(conn).and_then(Connection::detach) else {
            return;
        };
        core.link_mut(slot).conn = ConnSlot::NONE;
        let reason = DisconnectReason::ConnectionLost;
        let session = core.sessions.at_mut(slot);
        session.detach(now, reason, || ReplayNumber(self.tick.numbers.next()));
        core.release(now, slot);
        self.end_session(slot, "the data stream has ended");
    }

    fn detach_client(&mut self, conn: ConnSlot, ending: ConnectionEnd<'_>) {
        let now = self.tick.now;
        let ConnectionEnd { reason, detail, .. } = ending;
        let core = &mut *self.tick.core;
        let (traces, clients) = core.traced();
        traces.leaving(clients, conn);
        let Some(slot) = core.connections.get_mut(conn).and_then(Connection::detach) else {
            return;
        };
        core.stats.connections -= 1;
        core.stats.disconnects[reason as usize] += 1;
        core.link_mut(slot).conn = ConnSlot::NONE;
        let session = core.sessions.at_mut(slot);
        session.detach(now, reason, || ReplayNumber(self.tick.numbers.next()));
        core.release(now, slot);
        let session = core.sessions.at(slot);
        core.effects.push(Effect::Event(ConnectionEvent::Disconnected {
            client_id: session.client_id.clone(),
            address: session.current_address(),
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
            return self.end_session(slot, "session expiry interval is 0");
        }
        // A client that has disconnected regularly has no will any more.
        core.sessions.resize_holding(slot);
        core.ledger.record_disconnected(now, core.sessions.at(slot));
        core.sessions.evict_later(&mut core.ledger, slot);
        self.meet_deadline(slot, SessionDeadline::Will);
        self.to.groups.announce_state(&mut self.tick, slot, false);
        self.meet_deadline(slot, SessionDeadline::ExclusiveRelease);
        self.meet_deadline(slot, SessionDeadline::Expiry);
    }

    /// Meets a deadline of a disconnected session, or starts its timer: publishes the will [MQTT-3.1.2-8], releases the
    /// exclusive subscriptions, or ends the session [MQTT-3.1.2-23].
    pub fn meet_deadline(&mut self, slot: SessionSlot, deadline: SessionDeadline) {
        let now = self.tick.now;
        let core = &mut *self.tick.core;
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
            SessionDeadline::Will => self.publish_will(slot),
            SessionDeadline::ExclusiveRelease => {
                let filters: Vec<String> = session.exclusive_filters().map(str::to_owned).collect();
                for filter in filters {
                    self.router
                        .unsubscribe(&mut self.tick, self.to.groups, slot, &filter, None);
                }
            }
            SessionDeadline::Expiry => self.end_session(slot, "session expiry interval has passed"),
        }
    }

    /// Publishes the will with the access rules of the session, at most once [MQTT-3.1.2-10].
    fn publish_will(&mut self, slot: SessionSlot) {
        let now = self.tick.now;
        let Some(will) = self.tick.core.sessions.at_mut(slot).will.take() else {
            return;
        };
        self.tick.core.sessions.resize_holding(slot);
        self.tick
            .core
            .ledger
            .record_will_published(self.tick.core.sessions.at(slot));
        let session = self.tick.core.sessions.at(slot);
        let is_allowed = session
            .access
            .as_ref()
            .is_none_or(|a| a.can_publish_will(&will.topic, will.qos, will.retain));
        if !is_allowed || is_reserved(&will.topic) {
            self.tick.core.dropped(now, slot, DropReason::NotAuthorizedToPublish);
            return;
        }
        let publisher_hash = hash(&session.client_id) as u32;
        let epoch = session.epoch;
        let holding = self.tick.core.sessions.holding_mut(slot).filter(|_| will.retain);
        let owner = holding.and_then(|holding| holding.client(publisher_hash));
        self.tick.core.stats.wills_published += 1;
        let provenance =
            self.tick
                .core
                .taps
                .provenance(now, self.tick.core.sessions.get(slot), 0, TapEventMask::MESSAGE_EVENTS);
        let p = Publication {
            topic: &will.topic,
            payload: &will.payload,
            properties: &will.properties,
            qos: will.qos,
            retain: will.retain,
            expires_at_ms: self.tick.core.config.message_expiry_ms(now, will.message_expiry_s),
            origin: MessageOrigin {
                shard: self.tick.core.id,
                epoch,
            },
            publisher_hash,
            place: RecordLocation::NONE,
            provenance: Provenance::from_written(&provenance),
            owner: owner.as_ref(),
        };
        self.tick
            .core
            .taps
            .message(now, self.tick.core.sessions.get(slot), &p, false);
        self.router.publish(&mut self.tick, &mut self.to, &p, None);
    }

    /// Ends a session: publishes a pending will [MQTT-3.1.2-8] and removes subscriptions, queue and client id.
    pub fn end_session(&mut self, slot: SessionSlot, detail: &'static str) {
        let now = self.tick.now;
        // Leaves its groups first, so that they do not select it for its own messages.
        self.router.drop_subscriptions(&mut self.tick, self.to.groups, slot);
        self.tick.core.release(now, slot);
        self.to.groups.return_shared(&mut self.tick, slot, usize::MAX, |_| true);
        self.publish_will(slot);
        self.tick
            .core
            .ledger
            .record_session_ended(self.tick.core.sessions.at(slot));
        self.tick.core.taps.undelivered(now, self.tick.core.sessions.at(slot));
        self.tick.core.invalidate_recipients();
        let Some(session) = self.tick.core.sessions.remove(slot) else {
            return;
        };
        let out = &session.outgoing;
        let undelivered = out.queued() + out.undelivered();
        let stats = &mut self.tick.core.stats;
        stats.drops[DropReason::SessionEnded as usize] += undelivered as u64;
        stats.queued_messages -= out.queued() as u64;
        stats.queued_bytes -= out.queued_bytes.get() as u64;
        stats.inflight_messages -= out.unacknowledged() as u64;
        self.tick.core.stats.set_sessions(self.tick.core.sessions.len());
        if session.is_data_stream() {
            return;
        }
        self.tick
            .core
            .effects
            .push(Effect::Event(ConnectionEvent::SessionEnded {
                client_id: session.client_id,
                detail,
            }));
    }

    /// Ends a connection whose client is silent for too long, or starts the timer again. The time during which the
    /// server did not read from the client does not count.
    pub fn check_keep_alive(&mut self, conn: ConnSlot, epoch: ConnEpoch) {
        let now = self.tick.now;
        let core = &mut *self.tick.core;
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
        let silent_since_ms = silent_since_ms.max(streams_heard_ms(core, now, conn));
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
        self.end_connection(conn, ending);
    }

    /// Ends a connection whose login has expired, or starts the timer again.
    pub fn check_login(&mut self, conn: ConnSlot, epoch: ConnEpoch) {
        let now = self.tick.now;
        let core = &mut *self.tick.core;
        let connection = core.connections.live(conn, epoch).filter(|c| c.is_online());
        let Some(expires_at_ms) = connection.and_then(|connection| connection.login_expires_at_ms) else {
            return;
        };
        if expires_at_ms > now.monotonic_ms {
            core.timers
                .wake(now, expires_at_ms, ShardTimer::LoginExpiry { conn, epoch });
            return;
        }
        let ending = ConnectionEnd::by_server(
            DisconnectReason::LoginExpired,
            ReasonCode::MaximumConnectTime,
            "the login has expired; connect with a new token",
        );
        self.end_connection(conn, ending);
    }
}

/// Reports to operators that the server ends a data stream, or rejects one. `conn` is any stream of the client.
pub(crate) fn report_stream_end(core: &mut ShardCore, conn: ConnSlot, reason: DisconnectReason, detail: &str) {
    let slot = core
        .connections
        .get(conn)
        .map_or(SessionSlot::NONE, |connection| connection.session);
    let Some(session) = core.sessions.get(slot) else {
        return;
    };
    core.effects.push(Effect::Event(ConnectionEvent::StreamEnded {
        client_id: session.client_id.clone(),
        address: session.current_address(),
        reason,
        detail: detail.into(),
    }));
}

/// Returns the last time at which the data streams of a connection have shown that their client is alive; 0 for
/// never. While reading from a stream is paused, its data may fill the window of the connection, so that PINGREQ
/// cannot arrive.
fn streams_heard_ms(core: &mut ShardCore, now: Now, control: ConnSlot) -> u64 {
    let mut heard_ms = 0;
    for conn in core.connections.data_streams_of(control) {
        let has_progress = core.outbox.take_progress(conn);
        let is_slow = has_progress && core.outbox.queued_bytes(conn) > core.config.output_buffer_bytes;
        let Some(stream) = core.connections.get(conn) else {
            continue;
        };
        heard_ms = match is_slow || stream.is_reading_paused() {
            true => now.monotonic_ms,
            false => stream.silent_since_ms(heard_ms),
        };
    }
    heard_ms
}
