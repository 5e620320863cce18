//! End of connections and sessions, and what happens when time passes: wills, expiry, keep-alive.

use mqtt::{Disconnect, Packet, PacketType, Properties, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode};

use crate::access::ClientIdentity;
use crate::connack::RejectedConnect;
use crate::connection::ConnectionPhase;
use crate::deliver::SessionLink;
use crate::effect::{ConnectionEvent, DisconnectReason, DropReason, Effect, Now};
use crate::exclusive::EXCLUSIVE;
use crate::inbox::InboxEvent;
use crate::message::{MessageOrigin, Publication, RecordLocation};
use crate::node_state::hash;
use crate::provenance::Provenance;
use crate::session::{Session, SessionWill};
use crate::sessions::LOOK_MAX;
use crate::shard::Shard;
use crate::slots::{ConnEpoch, ConnSlot, ConnectNumber, ReplayNumber, SessionSlot};
use crate::tap::{TapEvent, TapEventMask};
use crate::timers::ShardTimer;

impl SessionWill {
    pub(crate) fn from_connect(will: &mqtt::Will<'_>) -> SessionWill {
        let mut properties = Vec::new();
        will.properties.append_forwarded(&mut properties);
        SessionWill {
            topic: will.topic.into(),
            payload: will.payload.into(),
            properties: properties.into(),
            qos: will.qos,
            retain: will.retain,
            delay_s: will.properties.will_delay_interval().unwrap_or(0),
            message_expiry_s: will.properties.message_expiry_interval(),
        }
    }
}

/// How a connection ends.
pub(crate) struct ConnectionEnd<'a> {
    pub reason: DisconnectReason,
    /// Reason code of the DISCONNECT, sent by either side.
    pub code: Option<ReasonCode>,
    /// Another connection takes over the client id with Clean Start.
    pub is_discarded: bool,
    pub detail: &'a str,
    /// Properties of the client's DISCONNECT.
    pub properties: Properties<'a>,
}

impl<'a> ConnectionEnd<'a> {
    /// The server ends the connection.
    pub(crate) fn by_server(reason: DisconnectReason, code: ReasonCode, detail: &'a str) -> ConnectionEnd<'a> {
        ConnectionEnd {
            reason,
            code: Some(code),
            is_discarded: false,
            detail,
            properties: Properties::EMPTY,
        }
    }
}

impl Shard {
    /// Handles a protocol violation: sends DISCONNECT to an MQTT 5 client and closes the connection [MQTT-4.13.1-1].
    pub(crate) fn protocol_error(&mut self, now: Now, conn: ConnSlot, code: ReasonCode, detail: &str) {
        let Some(connection) = self.core.connections.get_mut(conn) else {
            return;
        };
        if connection.phase != ConnectionPhase::Online {
            let client_id = connection
                .pending
                .as_ref()
                .map(|p| p.client_id.clone())
                .unwrap_or_default();
            let rejected = RejectedConnect {
                client_id: &client_id,
                connect: None,
                reason: code,
                detail,
                is_authenticated: false,
            };
            return self.reject_connect(now, conn, rejected);
        }
        let reason = match code {
            ReasonCode::MalformedPacket => DisconnectReason::MalformedPacket,
            ReasonCode::PacketTooLarge => DisconnectReason::PacketTooLarge,
            ReasonCode::ReceiveMaximumExceeded => DisconnectReason::ReceiveMaximumExceeded,
            ReasonCode::TopicAliasInvalid => DisconnectReason::TopicAliasInvalid,
            ReasonCode::TopicNameInvalid => DisconnectReason::TopicNameInvalid,
            ReasonCode::NotAuthorized => DisconnectReason::NotAuthorized,
            ReasonCode::QuotaExceeded => DisconnectReason::QuotaExceeded,
            _ => DisconnectReason::ProtocolError,
        };
        self.end_connection(now, conn, reason, code, detail);
    }

    /// Ends a connection from the server's side: sends DISCONNECT to an MQTT 5 client [MQTT-3.14.0-1] and closes the
    /// connection.
    pub(crate) fn end_connection(
        &mut self,
        now: Now,
        conn: ConnSlot,
        reason: DisconnectReason,
        code: ReasonCode,
        detail: &str,
    ) {
        self.end_connection_as(now, conn, ConnectionEnd::by_server(reason, code, detail));
    }

    pub(crate) fn end_connection_as(&mut self, now: Now, conn: ConnSlot, ending: ConnectionEnd<'_>) {
        let Some(connection) = self.core.connections.get_mut(conn) else {
            return;
        };
        if connection.phase == ConnectionPhase::Closing {
            return;
        }
        if let Some(code) = ending.code
            && connection.phase == ConnectionPhase::Online
            && connection.version == ProtocolVersion::V5
        {
            self.send_disconnect(conn, code, ending.detail);
        }
        self.detach(now, conn, ending);
        if let Some(connection) = self.core.connections.get_mut(conn) {
            connection.phase = ConnectionPhase::Closing;
        }
        self.core.effects.push(Effect::Close {
            conn,
            has_sent_disconnect: false,
        });
    }

    fn send_disconnect(&mut self, conn: ConnSlot, code: ReasonCode, detail: &str) {
        let slot = self
            .core
            .connections
            .get_mut(conn)
            .map_or(SessionSlot::NONE, |c| c.session);
        let link = if slot == SessionSlot::NONE {
            SessionLink::default()
        } else {
            self.core.sessions.link(slot)
        };
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        // Omitted if it exceeds the client's Maximum Packet Size [MQTT-3.14.2-3].
        if detail.len() + 16 < link.maximum_packet_size as usize {
            writer.put(Property::ReasonString(detail));
        }
        let properties = Properties::from_validated(&bytes);
        self.send(
            conn,
            &Packet::Disconnect(Disconnect {
                reason: code,
                properties,
            }),
        );
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
            return self.close_rejected(now, conn, rejected);
        };
        if let Some(expiry_s) = disconnect.properties.session_expiry_interval() {
            if session.expiry_s == 0 && expiry_s > 0 {
                // [MQTT-3.14.2-2]
                let detail = "the Session Expiry Interval was 0 in CONNECT and must stay 0";
                return self.protocol_error(now, conn, ReasonCode::ProtocolError, detail);
            }
            session.expiry_s = expiry_s.min(self.core.config.max_session_expiry_s);
        }
        let reason = if disconnect.reason == ReasonCode::Success {
            // [MQTT-3.14.4-3]
            session.will = None;
            DisconnectReason::ByClient
        } else {
            DisconnectReason::ByClientWithWill
        };
        let ending = ConnectionEnd {
            reason,
            code: Some(disconnect.reason),
            is_discarded: false,
            detail: disconnect.reason.name(),
            properties: disconnect.properties,
        };
        self.detach(now, conn, ending);
        if let Some(connection) = self.core.connections.get_mut(conn) {
            connection.phase = ConnectionPhase::Closing;
        }
        self.core.effects.push(Effect::Close {
            conn,
            has_sent_disconnect: true,
        });
    }

    /// Detaches a connection from its session, which affects the will, the session's expiry, and its shared
    /// subscriptions. Does nothing if it is detached already.
    pub(crate) fn detach(&mut self, now: Now, conn: ConnSlot, ending: ConnectionEnd<'_>) {
        let ConnectionEnd { reason, detail, .. } = ending;
        self.core.trace_leaving(conn);
        let Some(connection) = self.core.connections.get_mut(conn) else {
            return;
        };
        let slot = std::mem::replace(&mut connection.session, SessionSlot::NONE);
        let was_online = connection.phase == ConnectionPhase::Online;
        connection.phase = ConnectionPhase::Closing;
        if !was_online || slot == SessionSlot::NONE {
            return;
        }
        self.core.stats.connections -= 1;
        self.core.stats.disconnects[reason as usize] += 1;
        self.core.link_mut(slot).conn = ConnSlot::NONE;
        let session = self.core.sessions.at_mut(slot);
        session.conn = None;
        session.disconnected_at_ms = now.unix_ms;
        session.left_at_ms = now.monotonic_ms;
        session.last_disconnect = Some(reason);
        session.subacks.take();
        session.replays.forget_request(|| ReplayNumber(self.numbers.next()));
        let expiry_s = session.expiry_s;
        self.core.release(now, slot);
        let session = self.core.sessions.at(slot);
        let event = ConnectionEvent::Disconnected {
            client_id: session.client_id.clone(),
            address: session.address.get(),
            reason,
            detail: detail.into(),
        };
        self.event(event);
        let tap_event = TapEvent::Disconnected {
            reason,
            code: ending.code,
            is_discarded: ending.is_discarded,
            detail,
            connected_at_ms: self.core.sessions.at(slot).connected_at_ms,
            properties: ending.properties.as_bytes(),
        };
        self.core
            .taps
            .session_event(now, self.core.sessions.at(slot), TapEventMask::DISCONNECTED, &tap_event);
        let session = self.core.sessions.at(slot);
        self.core.taps.inbox_event(now, session, InboxEvent::Disconnected);
        if expiry_s == 0 {
            return self.end_session(now, slot, "session expiry interval is 0");
        }
        // A client that has disconnected regularly has no will any more.
        self.core.sessions.resize_holding(slot);
        self.core.ledger.record_disconnected(now, self.core.sessions.at(slot));
        self.core.evict_later(slot);
        self.will_after_disconnect(now, slot);
        let (mut tick, parts) = self.split(now);
        parts.groups.announce_state(&mut tick, slot, false);
        exclusives_after_disconnect(self, now, slot);
        self.expiry_after_disconnect(now, slot);
    }

    /// Ends a session whose expiry interval has passed, or starts a timer [MQTT-3.1.2-23].
    pub(crate) fn expiry_after_disconnect(&mut self, now: Now, slot: SessionSlot) {
        let session = self.core.sessions.at(slot);
        let connect_number = session.connect_number;
        match session.expires_at_ms() {
            None => {}
            Some(at_ms) if at_ms <= now.monotonic_ms => {
                self.end_session(now, slot, "session expiry interval has passed")
            }
            Some(at_ms) => {
                let timer = ShardTimer::SessionExpiry {
                    session: slot,
                    connect_number,
                };
                self.core.wake(now, at_ms, timer);
            }
        }
    }

    /// Publishes the will, or starts a timer for its delay [MQTT-3.1.2-8].
    pub(crate) fn will_after_disconnect(&mut self, now: Now, slot: SessionSlot) {
        let session = self.core.sessions.at(slot);
        let connect_number = session.connect_number;
        match session.will_due_ms() {
            None => {}
            Some(at_ms) if at_ms <= now.monotonic_ms => self.publish_will(now, slot),
            Some(at_ms) => {
                let timer = ShardTimer::Will {
                    session: slot,
                    connect_number,
                };
                self.core.wake(now, at_ms, timer);
            }
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
            expires_at_ms: self.expiry_deadline(now, will.message_expiry_s),
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

    /// Returns when a message with this Message Expiry Interval expires. Applies the configured default and maximum.
    pub(crate) fn expiry_deadline(&self, now: Now, interval_s: Option<u32>) -> Option<u64> {
        let interval_s = interval_s.or(self.core.config.default_message_expiry_s);
        let interval_s = match (interval_s, self.core.config.max_message_expiry_s) {
            (Some(asked), Some(max)) => Some(asked.min(max)),
            (asked, max) => asked.or(max),
        }?;
        Some(now.monotonic_ms + u64::from(interval_s) * 1000)
    }

    /// Ends a session: publishes a pending will [MQTT-3.1.2-8] and removes subscriptions, queue and client id.
    pub(crate) fn end_session(&mut self, now: Now, slot: SessionSlot, detail: &'static str) {
        // Leaves its groups first, so that they do not select it for its own messages.
        self.drop_subscriptions(now, slot);
        self.core.release(now, slot);
        let (mut tick, parts) = self.split(now);
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
        self.core.stats.sessions = self.core.sessions.len() as u64;
        self.event(ConnectionEvent::SessionEnded {
            client_id: session.client_id,
            detail,
        });
    }

    pub(crate) fn timer_due(&mut self, now: Now, timer: ShardTimer) {
        match timer {
            ShardTimer::KeepAlive { conn, epoch } => self.check_keep_alive(now, conn, epoch),
            ShardTimer::SessionExpiry {
                session,
                connect_number,
            } if self.is_offline(session, connect_number) => {
                self.expiry_after_disconnect(now, session);
            }
            ShardTimer::ExclusiveRelease {
                session,
                connect_number,
            } if self.is_offline(session, connect_number) => {
                exclusives_after_disconnect(self, now, session);
            }
            ShardTimer::Will {
                session,
                connect_number,
            } if self.is_offline(session, connect_number) => {
                self.will_after_disconnect(now, session);
            }
            ShardTimer::SessionExpiry { .. } | ShardTimer::ExclusiveRelease { .. } | ShardTimer::Will { .. } => {}
            ShardTimer::Delayed { index } => self.delayed_due(now, index),
            ShardTimer::Retry {
                session,
                connect_number,
            } => self.retry_due(now, session, connect_number),
            ShardTimer::Quota { conn, epoch } => self.quota_due(now, conn, epoch),
            ShardTimer::RetainedExpiry => self.retained.expiry_due(&mut self.core, now),
            ShardTimer::Space { index, epoch } => {
                let (mut tick, parts) = self.split(now);
                parts.groups.retry_full_members(&mut tick, index, epoch);
            }
        }
    }

    /// Returns whether the session has not been connected since the timer was set.
    fn is_offline(&self, slot: SessionSlot, connect_number: ConnectNumber) -> bool {
        self.core
            .sessions
            .get(slot)
            .is_some_and(|s| s.connect_number == connect_number && s.conn.is_none())
    }

    /// Only complete packets count [MQTT-3.1.2-22]. The time during which the server did not read from the client does
    /// not count.
    fn check_keep_alive(&mut self, now: Now, conn: ConnSlot, epoch: ConnEpoch) {
        let Some(connection) = self
            .core
            .connections
            .get_mut(conn)
            .filter(|c| c.epoch == epoch && c.phase == ConnectionPhase::Online)
        else {
            return;
        };
        let is_over_quota = connection.publish_quota.as_ref().is_some_and(|quota| quota.is_paused);
        let is_held = connection.is_held_by_journal || connection.is_held_by_acks;
        let (slot, last_ms) = (connection.session, connection.last_packet_ms);
        let mut last_ms = last_ms.max(self.core.not_reading_ms);
        if is_over_quota || is_held || self.is_slow_reader(conn) {
            last_ms = now.monotonic_ms;
        }
        let keep_alive_s = u64::from(self.core.sessions.at(slot).keep_alive_s);
        let deadline = last_ms + keep_alive_s * 10 * self.core.config.keep_alive_percent;
        if deadline > now.monotonic_ms {
            let timer = ShardTimer::KeepAlive { conn, epoch };
            self.core.wake(now, deadline, timer);
            return;
        }
        let detail = "no packet within the keep-alive interval and its tolerance";
        self.end_connection(
            now,
            conn,
            DisconnectReason::KeepAliveTimeout,
            ReasonCode::KeepAliveTimeout,
            detail,
        );
    }

    /// Returns whether reading is paused because the client reads too slowly, but it has read something since the last
    /// check.
    fn is_slow_reader(&mut self, conn: ConnSlot) -> bool {
        let outbox = &mut self.core.outbox;
        outbox.take_progress(conn) && outbox.queued_bytes(conn) > self.core.config.output_buffer_bytes
    }

    /// Resends messages that a 3.1 or 3.1.1 client has not acknowledged in time.
    fn retry_due(&mut self, now: Now, slot: SessionSlot, connect_number: ConnectNumber) {
        let Some(retry_ms) = self.core.config.retry_interval_ms else {
            return;
        };
        let Some(session) = self.core.sessions.get(slot) else {
            return;
        };
        if session.connect_number != connect_number || session.conn.is_none() {
            return;
        }
        let link = self.core.sessions.link(slot);
        for at in 0..session.outgoing.sent {
            let Some(entry) = self.core.sessions.at(slot).outgoing.inflight.get(at) else {
                break;
            };
            let (id, delivery) = (entry.id(), entry.delivery.clone());
            if self.core.outbox.queued_bytes(link.conn) > self.core.config.output_buffer_bytes {
                break;
            }
            self.core.resend(now, slot, link, id, delivery);
        }
        self.core.timers.insert(
            now.monotonic_ms + retry_ms,
            ShardTimer::Retry {
                session: slot,
                connect_number,
            },
        );
    }

    /// Disconnects a client on behalf of an operator. Returns false if there is no such session.
    pub fn kick(&mut self, now: Now, client_id: &str, end_session: bool) -> bool {
        let Some(slot) = self.core.sessions.slot_of(client_id) else {
            return false;
        };
        let epoch = self.core.sessions.at(slot).epoch;
        if let Some(conn) = self.core.sessions.at(slot).conn {
            self.end_connection(
                now,
                conn,
                DisconnectReason::Kicked,
                ReasonCode::AdministrativeAction,
                "disconnected by an operator",
            );
        }
        if end_session && self.core.sessions.live(slot, epoch).is_some() {
            self.end_session(now, slot, "ended by an operator");
        }
        true
    }

    /// Closes a connection, authenticated or not. The session stays.
    pub fn kick_connection(&mut self, now: Now, conn: ConnSlot, detail: &str) {
        self.end_connection(
            now,
            conn,
            DisconnectReason::Kicked,
            ReasonCode::AdministrativeAction,
            detail,
        );
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
                self.end_connection(
                    now,
                    conn,
                    DisconnectReason::Kicked,
                    ReasonCode::AdministrativeAction,
                    detail,
                );
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
            let access = self.access.session(&session.identity());
            self.core.sessions.at_mut(slot).access = access;
            self.recheck_subscriptions(now, slot);
            if let Some(conn) = self.core.sessions.at(slot).conn {
                // A replay whose subscription was removed may have held messages.
                self.core.continue_later(conn, slot);
            }
        }
    }
}

/// Removes the exclusive subscriptions of a session that has been offline for long enough, or starts a timer.
pub(crate) fn exclusives_after_disconnect(shard: &mut Shard, now: Now, slot: SessionSlot) {
    let Some(release_ms) = shard.core.config.exclusive_release_ms else {
        return;
    };
    let session = shard.core.sessions.at(slot);
    let filters = session.subscriptions.iter().map(|(filter, _)| filter);
    let exclusive: Vec<String> = filters
        .filter(|filter| filter.starts_with(EXCLUSIVE))
        .map(str::to_owned)
        .collect();
    if exclusive.is_empty() {
        return;
    }
    let at_ms = session.left_at_ms.saturating_add(release_ms);
    if at_ms > now.monotonic_ms {
        let timer = ShardTimer::ExclusiveRelease {
            session: slot,
            connect_number: session.connect_number,
        };
        shard.core.wake(now, at_ms, timer);
        return;
    }
    for filter in exclusive {
        shard.unsubscribe_filter(now, slot, &filter);
    }
}

/// Returns whether only the server may publish to a topic.
pub(crate) fn is_reserved(topic: &str) -> bool {
    ["$SYS", "$CONTROL", "$share"].iter().any(|reserved| {
        topic
            .strip_prefix(reserved)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Returns the lower of the published QoS and the maximum QoS of a subscription.
pub(crate) fn granted(published: QoS, maximum: QoS) -> QoS {
    published.min(maximum)
}
