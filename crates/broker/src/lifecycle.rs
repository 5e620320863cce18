//! How connections and sessions end, and what happens when time passes: wills, expiry, keep-alive.

use mqtt::{Disconnect, Packet, PacketType, Properties, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode};

use crate::access::Identity;
use crate::connection::Phase;
use crate::deliver::{Link, NO_CONN};
use crate::effect::{ConnSlot, DisconnectReason, DropReason, Effect, Event, Now};
use crate::inspect::LOOK_MAX;
use crate::message::{Origin, Place, Publication};
use crate::provenance::Provenance;
use crate::session::{Session, Will};
use crate::shard::{Shard, hash};
use crate::tap::{DeviceHappening, Happening, Wants};
use crate::timers::Timer;

impl Will {
    pub(crate) fn from_connect(will: &mqtt::Will<'_>) -> Will {
        let mut properties = Vec::new();
        will.properties.append_forwarded(&mut properties);
        Will {
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
pub(crate) struct Ending<'a> {
    pub reason: DisconnectReason,
    /// Of DISCONNECT, whichever side sends it.
    pub code: Option<ReasonCode>,
    /// Another connection takes the client id over with a clean start.
    pub is_discarded: bool,
    pub because: &'a str,
    /// Of the client's DISCONNECT.
    pub properties: Properties<'a>,
}

impl<'a> Ending<'a> {
    /// From this side.
    pub(crate) fn ours(reason: DisconnectReason, code: ReasonCode, because: &'a str) -> Ending<'a> {
        Ending {
            reason,
            code: Some(code),
            is_discarded: false,
            because,
            properties: Properties::EMPTY,
        }
    }
}

impl Shard {
    /// A client did what the protocol forbids: tell it, in 5, and close [MQTT-4.13.1-1].
    pub(crate) fn protocol_error(&mut self, now: Now, conn: ConnSlot, code: ReasonCode, because: &str) {
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        if connection.phase != Phase::Online {
            let client_id = connection
                .pending
                .as_ref()
                .map(|p| p.client_id.clone())
                .unwrap_or_default();
            return self.refuse(now, conn, &client_id, None, code, because);
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
        self.end_connection(now, conn, reason, code, because);
    }

    /// Ends a connection from this side: DISCONNECT with the reason for a 5 client [MQTT-3.14.0-1], then close.
    pub(crate) fn end_connection(
        &mut self,
        now: Now,
        conn: ConnSlot,
        reason: DisconnectReason,
        code: ReasonCode,
        because: &str,
    ) {
        self.end_connection_as(now, conn, Ending::ours(reason, code, because));
    }

    pub(crate) fn end_connection_as(&mut self, now: Now, conn: ConnSlot, ending: Ending<'_>) {
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        if connection.phase == Phase::Closing {
            return;
        }
        if let Some(code) = ending.code
            && connection.phase == Phase::Online
            && connection.version == ProtocolVersion::V5
        {
            self.send_disconnect(conn, code, ending.because);
        }
        self.detach(now, conn, ending);
        if let Some(connection) = self.core.connection_mut(conn) {
            connection.phase = Phase::Closing;
        }
        self.core.effects.push(Effect::Close {
            conn,
            has_said_goodbye: false,
        });
    }

    fn send_disconnect(&mut self, conn: ConnSlot, code: ReasonCode, because: &str) {
        let slot = self.core.connection_mut(conn).map_or(u32::MAX, |c| c.session);
        let link = if slot == u32::MAX {
            Link::default()
        } else {
            self.core.link(slot)
        };
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        // Only if the client has room for it [MQTT-3.14.2-3].
        if because.len() + 16 < link.maximum_packet_size as usize {
            writer.put(Property::ReasonString(because));
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

    /// DISCONNECT from the client.
    pub(crate) fn disconnect_received(&mut self, now: Now, conn: ConnSlot, slot: u32, disconnect: &Disconnect<'_>) {
        self.core.stats.packets_received[PacketType::Disconnect as usize] += 1;
        let Some(session) = self.core.sessions.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            // Gave up in the middle of an enhanced authentication.
            return self.refused(
                now,
                conn,
                "",
                None,
                disconnect.reason,
                "the client disconnected while it authenticated",
            );
        };
        if let Some(expiry_s) = disconnect.properties.session_expiry_interval() {
            if session.expiry_s == 0 && expiry_s > 0 {
                // [MQTT-3.14.2-2]
                let because = "the session expiry interval was 0 in CONNECT and cannot be raised";
                return self.protocol_error(now, conn, ReasonCode::ProtocolError, because);
            }
            session.expiry_s = expiry_s.min(self.core.config.session_expiry_max_s);
        }
        let reason = if disconnect.reason == ReasonCode::Success {
            // [MQTT-3.14.4-3]
            session.will = None;
            DisconnectReason::ByClient
        } else {
            DisconnectReason::ByClientWithWill
        };
        let ending = Ending {
            reason,
            code: Some(disconnect.reason),
            is_discarded: false,
            because: disconnect.reason.name(),
            properties: disconnect.properties,
        };
        self.detach(now, conn, ending);
        if let Some(connection) = self.core.connection_mut(conn) {
            connection.phase = Phase::Closing;
        }
        self.core.effects.push(Effect::Close {
            conn,
            has_said_goodbye: true,
        });
    }

    /// Takes a connection off its session: the will, the session's expiry, its shared groups. Does nothing a second time.
    pub(crate) fn detach(&mut self, now: Now, conn: ConnSlot, ending: Ending<'_>) {
        let Ending { reason, because, .. } = ending;
        self.core.trace_leaving(conn);
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        let slot = std::mem::replace(&mut connection.session, u32::MAX);
        let was_online = connection.phase == Phase::Online;
        connection.phase = Phase::Closing;
        if !was_online || slot == u32::MAX {
            return;
        }
        self.core.stats.connections -= 1;
        self.core.stats.disconnects[reason as usize] += 1;
        self.core.link_mut(slot).conn = NO_CONN;
        let session = self.core.session_mut(slot);
        session.conn = None;
        session.disconnected_at_ms = now.unix_ms;
        session.left_at_ms = now.monotonic_ms;
        session.last_disconnect = Some(reason);
        session.subacks.take();
        if let Some(replay) = session.replays.first_mut().filter(|r| r.is_waiting) {
            // What was asked for arrives too late to be told from what the next connection asks for.
            self.epochs = self.epochs.wrapping_add(1);
            replay.number = self.epochs;
            replay.is_waiting = false;
        }
        let expiry_s = session.expiry_s;
        self.core.release(now, slot);
        let session = self.core.session(slot);
        let event = Event::Disconnected {
            client_id: session.client_id.clone(),
            address: session.address.get(),
            reason,
            because: because.into(),
        };
        self.event(event);
        let what = Happening::Disconnected {
            reason,
            code: ending.code,
            is_discarded: ending.is_discarded,
            because,
            connected_at_ms: self.core.session(slot).connected_at_ms,
            properties: ending.properties.as_bytes(),
        };
        self.core.tap_session(now, slot, Wants::DISCONNECTED, &what);
        self.core.tap_device(now, slot, DeviceHappening::Disconnected);
        if expiry_s == 0 {
            return self.end_session(now, slot, "its expiry interval is 0");
        }
        self.keep_disconnected(now, slot);
        self.will_after_disconnect(now, slot);
        self.announce_member_state(now, slot, false);
        self.expiry_after_disconnect(now, slot);
    }

    /// Ends a session whose expiry interval has passed, or waits for it [MQTT-3.1.2-23].
    pub(crate) fn expiry_after_disconnect(&mut self, now: Now, slot: u32) {
        let session = self.core.session(slot);
        let connects = session.connects;
        match session.expires_at_ms() {
            None => {}
            Some(at_ms) if at_ms <= now.monotonic_ms => self.end_session(now, slot, "its expiry interval has passed"),
            Some(at_ms) => {
                let timer = Timer::SessionExpiry {
                    session: slot,
                    connects,
                };
                self.core.wake(now, at_ms, timer);
            }
        }
    }

    /// The will is published at once, or after its delay [MQTT-3.1.2-8].
    pub(crate) fn will_after_disconnect(&mut self, now: Now, slot: u32) {
        let session = self.core.session(slot);
        let connects = session.connects;
        match session.will_due_ms() {
            None => {}
            Some(at_ms) if at_ms <= now.monotonic_ms => self.publish_will(now, slot),
            Some(at_ms) => {
                let timer = Timer::Will {
                    session: slot,
                    connects,
                };
                self.core.wake(now, at_ms, timer);
            }
        }
    }

    /// Publishes the will if it is still there, on the session's own rights; never twice [MQTT-3.1.2-10].
    fn publish_will(&mut self, now: Now, slot: u32) {
        let Some(will) = self.core.session_mut(slot).will.take() else {
            return;
        };
        self.keep_will_done(slot);
        let session = self.core.session(slot);
        let is_allowed = session
            .access
            .as_ref()
            .is_none_or(|a| a.may_publish(&will.topic, will.qos, will.retain));
        if !is_allowed || is_reserved(&will.topic) {
            self.core.dropped(now, slot, DropReason::NotAuthorizedToPublish);
            return;
        }
        let publisher_hash = hash(&session.client_id) as u32;
        let epoch = session.epoch;
        self.core.stats.wills_published += 1;
        let provenance = self.core.provenance(now, Some(slot), 0, Wants::FATES);
        let p = Publication {
            topic: &will.topic,
            payload: &will.payload,
            properties: &will.properties,
            qos: will.qos,
            retain: will.retain,
            expires_at_ms: self.expiry_deadline(now, will.message_expiry_s),
            origin: Origin {
                shard: self.core.id,
                epoch,
            },
            publisher_hash,
            place: Place::NONE,
            provenance: Provenance::from_written(&provenance),
        };
        self.core.tap_message(now, Some(slot), &p, false);
        self.publish(now, &p, None);
    }

    /// When a message with this Message Expiry Interval is too old, under the configuration's default and maximum.
    pub(crate) fn expiry_deadline(&self, now: Now, interval_s: Option<u32>) -> Option<u64> {
        let interval_s = interval_s.or(self.core.config.message_expiry_default_s);
        let interval_s = match (interval_s, self.core.config.message_expiry_max_s) {
            (Some(asked), Some(max)) => Some(asked.min(max)),
            (asked, max) => asked.or(max),
        }?;
        Some(now.monotonic_ms + u64::from(interval_s) * 1000)
    }

    /// The end of a session: its will at the latest now [MQTT-3.1.2-8], its subscriptions, its queue, its name.
    pub(crate) fn end_session(&mut self, now: Now, slot: u32, because: &'static str) {
        // First it stops being a member of its groups, so that nothing of what follows is given to it.
        self.drop_subscriptions(slot);
        self.core.release(now, slot);
        self.return_shared(now, slot, usize::MAX, |_| true);
        self.publish_will(now, slot);
        self.keep_ended(slot);
        self.core.tap_undelivered(now, slot);
        let Some(session) = self.core.sessions[slot as usize].take() else {
            return;
        };
        let out = &session.outgoing;
        let kept = out.queued() + out.undelivered();
        let stats = &mut self.core.stats;
        stats.drops[DropReason::SessionEnded as usize] += kept as u64;
        stats.queued_messages -= out.queued() as u64;
        stats.queued_bytes -= out.queued_bytes as u64;
        stats.inflight_messages -= out.unacknowledged() as u64;
        self.client_ids.remove(&session.client_id, slot);
        self.core.stats.sessions = self.client_ids.len() as u64;
        self.core.link_mut(slot).conn = NO_CONN;
        self.free_sessions.push(slot);
        self.event(Event::SessionEnded {
            client_id: session.client_id,
            because,
        });
    }

    pub(crate) fn timer_due(&mut self, now: Now, timer: Timer) {
        match timer {
            Timer::KeepAlive { conn, epoch } => self.check_keep_alive(now, ConnSlot(conn), epoch),
            Timer::SessionExpiry { session, connects } if self.is_away(session, connects) => {
                self.expiry_after_disconnect(now, session);
            }
            Timer::Will { session, connects } if self.is_away(session, connects) => {
                self.will_after_disconnect(now, session);
            }
            Timer::SessionExpiry { .. } | Timer::Will { .. } => {}
            Timer::Delayed { index } => self.delayed_due(now, index),
            Timer::Retry { session, connects } => self.retry_due(now, session, connects),
            Timer::Quota { conn, epoch } => self.quota_due(now, ConnSlot(conn), epoch),
            Timer::RetainedExpiry => self.retained_expiry_due(now),
            Timer::Space { index, epoch } => self.look_for_space(now, index, epoch),
        }
    }

    /// The session that a timer was set for has not been connected since.
    fn is_away(&self, slot: u32, connects: u32) -> bool {
        self.core.sessions[slot as usize]
            .as_ref()
            .is_some_and(|s| s.connects == connects && s.conn.is_none())
    }

    /// [MQTT-3.1.2-22]: only whole packets count as a sign of life. A client that is not listened to is not silent.
    fn check_keep_alive(&mut self, now: Now, conn: ConnSlot, epoch: u32) {
        let Some(connection) = self
            .core
            .connection_mut(conn)
            .filter(|c| c.epoch == epoch && c.phase == Phase::Online)
        else {
            return;
        };
        let is_over_quota = connection.publish_quota.as_ref().is_some_and(|quota| quota.is_paused);
        let is_held = connection.is_held_by_journal || connection.is_held_by_acks;
        let (slot, last_ms) = (connection.session, connection.last_packet_ms);
        let mut last_ms = last_ms.max(self.core.deaf_ms);
        if is_over_quota || is_held || self.is_slow_reader(conn) {
            last_ms = now.monotonic_ms;
        }
        let keep_alive_s = u64::from(self.core.session(slot).keep_alive_s);
        let deadline = last_ms + keep_alive_s * 10 * self.core.config.keep_alive_percent;
        if deadline > now.monotonic_ms {
            let timer = Timer::KeepAlive { conn: conn.0, epoch };
            self.core.wake(now, deadline, timer);
            return;
        }
        let because = "nothing came for one and a half keep-alive intervals";
        self.end_connection(
            now,
            conn,
            DisconnectReason::KeepAliveTimeout,
            ReasonCode::KeepAliveTimeout,
            because,
        );
    }

    /// Its packets wait until it has taken more of its own, and it has taken some since it was last looked at.
    fn is_slow_reader(&mut self, conn: ConnSlot) -> bool {
        let outbox = &mut self.core.outbox;
        outbox.take_progress(conn) && outbox.queued_bytes(conn) > self.core.config.output_buffer_bytes
    }

    /// Sends again what a 3.1 or 3.1.1 client has not acknowledged in time.
    fn retry_due(&mut self, now: Now, slot: u32, connects: u32) {
        let Some(retry_ms) = self.core.config.retry_interval_ms else {
            return;
        };
        let Some(session) = self.core.sessions[slot as usize].as_deref() else {
            return;
        };
        if session.connects != connects || session.conn.is_none() {
            return;
        }
        let link = self.core.link(slot);
        for at in 0..session.outgoing.sent {
            let Some(entry) = self.core.session(slot).outgoing.inflight.get(at) else {
                break;
            };
            let (id, delivery) = (entry.id(), entry.delivery.clone());
            if self.core.outbox.queued_bytes(ConnSlot(link.conn)) > self.core.config.output_buffer_bytes {
                break;
            }
            self.core.resend(now, slot, link, id, delivery);
        }
        self.core.timers.insert(
            now.monotonic_ms + retry_ms,
            Timer::Retry {
                session: slot,
                connects,
            },
        );
    }

    /// Ends a client's connection on an operator's word. False when it has none.
    pub fn kick(&mut self, now: Now, client_id: &str, end_session: bool) -> bool {
        let Some(slot) = self.slot_of(client_id) else {
            return false;
        };
        let epoch = self.core.session(slot).epoch;
        if let Some(conn) = self.core.session(slot).conn {
            self.end_connection(
                now,
                conn,
                DisconnectReason::Kicked,
                ReasonCode::AdministrativeAction,
                "disconnected by an operator",
            );
        }
        if end_session && self.core.live_session(slot, epoch).is_some() {
            self.end_session(now, slot, "ended by an operator");
        }
        true
    }

    /// Ends one connection, whoever has logged in on it, or nobody yet; the session stays.
    pub fn kick_connection(&mut self, now: Now, conn: ConnSlot, because: &str) {
        self.end_connection(
            now,
            conn,
            DisconnectReason::Kicked,
            ReasonCode::AdministrativeAction,
            because,
        );
    }

    /// Ends the connections of users whose name `is_meant`, among the sessions from slot `from` on; sessions stay. Looks at
    /// a bounded number of them: the next call begins at the slot that comes back.
    pub fn kick_users(&mut self, now: Now, from: u32, is_meant: impl Fn(&str) -> bool) -> Option<u32> {
        self.kick_where(now, from, "the user has to log in again", |session| {
            session.device().is_none() && session.user_name.as_deref().is_some_and(&is_meant)
        })
    }

    /// The same of clients that are banned. A device has no user name: its own is its secret.
    pub fn kick_banned(&mut self, now: Now, from: u32, is_banned: impl Fn(&Identity) -> bool) -> Option<u32> {
        self.kick_where(now, from, "banned by an operator", |session| {
            let mut who = session.identity();
            who.user_name = who.user_name.filter(|_| session.device().is_none());
            is_banned(&who)
        })
    }

    fn kick_where(&mut self, now: Now, from: u32, because: &str, is_meant: impl Fn(&Session) -> bool) -> Option<u32> {
        let end = self.core.sessions.len() as u32;
        let until = from.saturating_add(LOOK_MAX as u32).min(end);
        for slot in from..until {
            let Some(session) = self.core.sessions[slot as usize].as_deref() else {
                continue;
            };
            if let Some(conn) = session.conn
                && is_meant(session)
            {
                self.end_connection(
                    now,
                    conn,
                    DisconnectReason::Kicked,
                    ReasonCode::AdministrativeAction,
                    because,
                );
            }
        }
        (until < end).then_some(until)
    }

    /// Access rules changed: every session is looked at again.
    pub fn access_changed(&mut self) {
        for slot in 0..self.core.sessions.len() as u32 {
            let Some(session) = self.core.sessions[slot as usize].as_deref() else {
                continue;
            };
            if session.device().is_some() {
                continue;
            }
            let access = self.access.session(&session.identity());
            self.core.session_mut(slot).access = access;
            self.recheck_subscriptions(slot);
            if let Some(conn) = self.core.session(slot).conn {
                // A replay that is over because its subscription is gone may have held messages up.
                self.core.continue_later(conn, slot);
            }
        }
    }
}

/// Topics that only the server may publish to.
pub(crate) fn is_reserved(topic: &str) -> bool {
    ["$SYS", "$CONTROL", "$share"].iter().any(|reserved| {
        topic
            .strip_prefix(reserved)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// The lower of what was published and what a subscription allows.
pub(crate) fn granted(published: QoS, maximum: QoS) -> QoS {
    published.min(maximum)
}
