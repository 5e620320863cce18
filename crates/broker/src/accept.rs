//! Accepts a CONNECT: finds, takes over or creates the session, and attaches the connection to it.

use std::net::SocketAddr;
use std::sync::Arc;

use mqtt::{ConnAck, Connect, Packet, Properties, ProtocolVersion, ReasonCode};

use crate::connack::{RejectedConnect, Rejection};
use crate::connection::{Aliases, ConnectionPhase, PublishQuota};
use crate::effect::{ConnectionEvent, DisconnectReason, Now};
use crate::fault::{Fault, is_planted};
use crate::inbox::{InboxEvent, InboxKey};
use crate::inbox_sessions::InboxAccess;
use crate::lifecycle::ConnectionEnd;
use crate::owners::{Holding, OwnerLimit, SessionHolding, owner_name};
use crate::session::{Session, SessionWill};
use crate::shard::Shard;
use crate::slots::{ConnEpoch, ConnSlot, ConnectNumber, SessionEpoch, SessionSlot};
use crate::tap::{GrantedConnect, TapEvent, TapEventMask};
use crate::timers::ShardTimer;

/// Bytes of User Properties of CONNECT that are stored for operators to see.
pub(crate) const USER_PROPERTIES_BYTES_MAX: usize = 4096;

/// Identity of an accepted client.
#[derive(Clone, Copy)]
pub(crate) struct AcceptedClient<'a> {
    pub client_id: &'a str,
    pub is_superuser: bool,
    /// Set for a client of the inbox.
    pub inbox_key: Option<InboxKey>,
}

impl<'a> AcceptedClient<'a> {
    /// Returns the identity of a client that does not use the inbox.
    pub(crate) fn of(client_id: &'a str, is_superuser: bool) -> AcceptedClient<'a> {
        AcceptedClient {
            client_id,
            is_superuser,
            inbox_key: None,
        }
    }
}

impl Shard {
    /// Accepts a CONNECT: finds or creates the session and sends CONNACK.
    pub(crate) fn admit(
        &mut self,
        now: Now,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client: AcceptedClient<'_>,
        auth_data: Option<&[u8]>,
    ) {
        let mut properties = std::mem::take(&mut self.bytes);
        let result = self
            .check_session_allowed(conn, connect, client)
            .and_then(|()| self.write_connack_properties(conn, connect, client, auth_data, &mut properties));
        match result {
            Ok(()) => self.open_session(now, conn, connect, client, &properties),
            Err(Rejection(reason, detail)) => {
                let rejected = RejectedConnect {
                    client_id: client.client_id,
                    connect: Some(connect),
                    reason,
                    detail,
                    is_authenticated: true,
                };
                self.reject_connect(now, conn, rejected);
            }
        }
        self.bytes = properties;
    }

    fn check_session_allowed(
        &self,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client: AcceptedClient<'_>,
    ) -> Result<(), Rejection> {
        let config = &self.core.config;
        let existing = self.core.sessions.slot_of(client.client_id);
        let needs_journal = || {
            self.granted_expiry(connect, client.inbox_key) > 0
                || existing.is_some_and(|slot| self.core.sessions.link(slot).is_durable)
                || self.core.ledger.is_end_pending(client.client_id)
        };
        if self.core.ledger.has_failed() && needs_journal() {
            // CONNACK would wait forever, because neither a session nor its end can be committed.
            let detail = "the journal has failed, and the session needs it";
            return Err(Rejection(ReasonCode::ServerUnavailable, detail));
        }
        if let Some(limit) = exceeded_by_session(self, conn, connect, client, existing) {
            return Err(Rejection(ReasonCode::QuotaExceeded, limit.rejection()));
        }
        let Some(slot) = existing else {
            let sessions = self.shared.owners.total().count(Holding::Session);
            return match sessions < config.max_sessions as u64 {
                true => Ok(()),
                false => Err(Rejection(ReasonCode::QuotaExceeded, "limits.max_sessions is reached")),
            };
        };
        let is_own = self.core.sessions.at(slot).user_name.as_deref() == connect.user_name;
        if config.is_client_id_owned && !client.is_superuser && client.inbox_key.is_none() && !is_own {
            let detail = "the client id belongs to a session of another user; an administrator can delete it";
            return Err(Rejection(ReasonCode::NotAuthorized, detail));
        }
        Ok(())
    }

    /// Attaches the connection to its session and sends CONNACK before any other packet.
    fn open_session(
        &mut self,
        now: Now,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client: AcceptedClient<'_>,
        properties: &[u8],
    ) {
        let existing = self.core.sessions.slot_of(client.client_id);
        let wills = self.core.stats.wills_published;
        let resumed = existing.and_then(|slot| self.take_over(now, slot, connect.clean_start));
        let session_present = resumed.is_some();
        let slot = resumed.unwrap_or_else(|| self.create_session(now, conn, client.client_id));
        self.attach_connection(now, conn, slot, connect);
        self.attach_session(now, conn, slot, connect, client);
        self.record_session(now, slot);
        let has_published_will = self.core.stats.wills_published > wills;
        let must_wait = self.core.sessions.link(slot).is_durable
            || self.core.ledger.is_end_pending(client.client_id)
            || has_published_will;
        if must_wait && !is_planted(Fault::ConnackBeforeCommit) {
            // The client relies on the state that CONNACK reports, so it must survive a crash.
            self.core.hold_until_committed(conn);
        }
        let connack = ConnAck {
            session_present,
            reason: ReasonCode::Success,
            properties: Properties::from_validated(properties),
        };
        self.send(conn, &Packet::ConnAck(connack));
        let session = self.core.sessions.at(slot);
        let tap_event = TapEvent::ConnAck {
            reason: ReasonCode::Success,
            granted: Some(GrantedConnect {
                clean_start: session.clean_start,
                keep_alive_s: session.keep_alive_s,
                expiry_s: session.expiry_s,
            }),
            properties: connect.properties.as_bytes(),
        };
        self.core
            .taps
            .session_event(now, self.core.sessions.at(slot), TapEventMask::CONNACK, &tap_event);
        self.set_keep_alive(now, conn, self.core.sessions.at(slot).keep_alive_s);
        self.connected(now, slot, session_present, connect);
    }

    /// Closes the present connection of a session. With Clean Start it also discards the session. Returns the slot if
    /// the session continues.
    fn take_over(&mut self, now: Now, slot: SessionSlot, clean_start: bool) -> Option<SessionSlot> {
        let old = self.core.sessions.at(slot).conn;
        if let Some(old) = old {
            self.core.stats.takeovers += 1;
            let session = self.core.sessions.at_mut(slot);
            if !clean_start && session.expiry_s > 0 && session.will.as_ref().is_some_and(|w| w.delay_s > 0) {
                // The session continues before the delay has passed [MQTT-3.1.3-9].
                session.will = None;
            }
            let expiry_s = std::mem::replace(&mut self.core.sessions.at_mut(slot).expiry_s, u32::MAX);
            // [MQTT-3.1.4-3]
            let ending = ConnectionEnd {
                is_discarded: clean_start,
                ..ConnectionEnd::by_server(
                    DisconnectReason::TakenOver,
                    ReasonCode::SessionTakenOver,
                    "another connection uses the client id",
                )
            };
            self.end_connection_as(now, old, ending);
            self.core.sessions.at_mut(slot).expiry_s = expiry_s;
            if expiry_s == 0 {
                self.end_session(now, slot, "taken over by a new connection");
                return None;
            }
        }
        if clean_start {
            // [MQTT-3.1.2-4]
            self.end_session(now, slot, "clean start");
            return None;
        }
        // The client is back before the delay has passed [MQTT-3.1.3-9].
        self.core.sessions.at_mut(slot).will = None;
        Some(slot)
    }

    fn create_session(&mut self, now: Now, conn: ConnSlot, client_id: &str) -> SessionSlot {
        let connection = self.core.connections.get_mut(conn).expect("the connection is open");
        let address = connection.peer.address;
        self.add_session(now, client_id, address)
    }

    pub(crate) fn add_session(&mut self, now: Now, client_id: &str, address: SocketAddr) -> SessionSlot {
        let epoch = SessionEpoch(self.numbers.next());
        let session = Session::new(now, client_id, address, epoch);
        self.core.invalidate_recipients();
        let slot = self.core.sessions.add(session);
        self.core.stats.sessions = self.core.sessions.len() as u64;
        self.core.stats.sessions_max = self.core.stats.sessions_max.max(self.core.stats.sessions);
        slot
    }

    /// Applies the terms of a CONNECT to the connection.
    fn attach_connection(&mut self, now: Now, conn: ConnSlot, slot: SessionSlot, connect: &Connect<'_>) {
        let config = self.core.config.clone();
        let properties = connect.properties;
        let outgoing_max = properties
            .topic_alias_maximum()
            .unwrap_or(0)
            .min(config.max_topic_alias_out);
        let uses_aliases = connect.version == ProtocolVersion::V5 && outgoing_max > 0;
        let connection = self.core.connections.get_mut(conn).expect("the connection is open");
        connection.session = slot;
        connection.phase = ConnectionPhase::Online;
        connection.receive_maximum = config.receive_maximum;
        connection.topic_alias_maximum = config.max_topic_alias_in;
        connection.method = properties.authentication_method().map(Into::into);
        let mut shown = Vec::new();
        properties.append_user_properties(USER_PROPERTIES_BYTES_MAX, &mut shown);
        connection.user_properties = shown.into();
        if uses_aliases {
            connection.aliases = Some(Box::new(Aliases {
                outgoing_max,
                ..Aliases::default()
            }));
        }
        if config.limits_publishers() {
            connection.publish_quota = Some(Box::new(PublishQuota::full(&config, now.monotonic_ms)));
        }
        let is_replaying = !self.core.sessions.at(slot).replays.is_empty();
        let link = self.core.link_mut(slot);
        link.conn = conn;
        link.is_v5 = connect.version == ProtocolVersion::V5;
        link.is_replaying = is_replaying;
        link.uses_aliases = uses_aliases;
        link.maximum_packet_size = properties.maximum_packet_size().unwrap_or(u32::MAX);
    }

    /// Applies the terms of a CONNECT to the session.
    fn attach_session(
        &mut self,
        now: Now,
        conn: ConnSlot,
        slot: SessionSlot,
        connect: &Connect<'_>,
        client: AcceptedClient<'_>,
    ) {
        let connect_number = ConnectNumber(self.numbers.next());
        let max_inflight = self.core.config.max_inflight;
        let (expiry_s, keep_alive_s) = (
            self.granted_expiry(connect, client.inbox_key),
            self.granted_keep_alive(connect),
        );
        let properties = connect.properties;
        let peer = &self
            .core
            .connections
            .get_mut(conn)
            .expect("the connection is open")
            .peer;
        let (address, listener) = (peer.address, peer.listener);
        let session = self.core.sessions.at_mut(slot);
        session.conn = Some(conn);
        session.address = address.into();
        session.listener = Some(listener);
        session.version = connect.version;
        session.user_name = connect.user_name.map(Into::into);
        session.is_superuser = client.is_superuser;
        session.is_bridge = connect.is_bridge;
        session.clean_start = connect.clean_start;
        session.wants_problem_information = properties.request_problem_information().unwrap_or(true);
        session.keep_alive_s = keep_alive_s;
        let receive_maximum = properties.receive_maximum().unwrap_or(u16::MAX);
        session.window = receive_maximum.min(max_inflight).max(1);
        session.expiry_s = expiry_s;
        session.connect_number = connect_number;
        session.connected_at_ms = now.unix_ms;
        session.outgoing.sent = 0;
        if let Some(cold) = &mut session.outgoing.cold {
            cold.is_fetching = false;
        }
        session.will = connect
            .will
            .as_ref()
            .map(|will| Box::new(SessionWill::from_connect(will)));
        session.access = match client.inbox_key {
            None => self.access.session(&session.identity()),
            Some(key) => Some(Arc::new(InboxAccess(key))),
        };
        let owner = client
            .inbox_key
            .is_none()
            .then(|| owner_name(connect.user_name, address.ip()));
        let holding = SessionHolding::new(&self.shared.owners, owner.as_deref(), session.holding_bytes());
        self.core.sessions.set_holding(slot, holding);
    }

    fn set_keep_alive(&mut self, now: Now, conn: ConnSlot, keep_alive_s: u16) {
        if keep_alive_s > 0 {
            let epoch = self.core.connections.get_mut(conn).map_or(ConnEpoch(0), |c| c.epoch);
            let allowed_ms = u64::from(keep_alive_s) * 10 * self.core.config.keep_alive_percent;
            let timer = ShardTimer::KeepAlive { conn, epoch };
            self.core.wake(now, now.monotonic_ms + allowed_ms, timer);
        }
    }

    fn connected(&mut self, now: Now, slot: SessionSlot, session_present: bool, connect: &Connect<'_>) {
        let stats = &mut self.core.stats;
        stats.connections += 1;
        stats.connections_total += 1;
        stats.connections_max = stats.connections_max.max(stats.connections);
        let session = self.core.sessions.at(slot);
        let (connect_number, is_v5) = (session.connect_number, session.version == ProtocolVersion::V5);
        let event = ConnectionEvent::Connected {
            client_id: session.client_id.clone(),
            user_name: session.user_name.clone(),
            address: session.address.get(),
            session_present,
        };
        self.event(event);
        let session = self.core.sessions.at(slot);
        let tap_event = TapEvent::Connected {
            session_present,
            clean_start: session.clean_start,
            keep_alive_s: session.keep_alive_s,
            expiry_s: session.expiry_s,
            is_bridge: session.is_bridge,
            connected_at_ms: session.connected_at_ms,
            properties: connect.properties.as_bytes(),
        };
        self.core
            .taps
            .session_event(now, self.core.sessions.at(slot), TapEventMask::CONNECTED, &tap_event);
        let session = self.core.sessions.at(slot);
        self.core
            .taps
            .inbox_event(now, session, InboxEvent::Connected { is_v5 });
        if let Some(retry_ms) = self.core.config.retry_interval_ms
            && !is_v5
        {
            self.core.timers.insert(
                now.monotonic_ms + retry_ms,
                ShardTimer::Retry {
                    session: slot,
                    connect_number,
                },
            );
        }
        if session_present {
            self.recheck_subscriptions(now, slot);
            let (mut tick, parts) = self.split(now);
            parts.groups.announce_state(&mut tick, slot, true);
            self.pump(now, slot);
        }
    }
}

/// Returns the limit of the user that the session of a CONNECT would exceed. `existing` is the present session of the
/// client id. A session of the same user is replaced.
fn exceeded_by_session(
    shard: &Shard,
    conn: ConnSlot,
    connect: &Connect<'_>,
    client: AcceptedClient<'_>,
    existing: Option<SessionSlot>,
) -> Option<OwnerLimit> {
    if client.inbox_key.is_some() {
        return None;
    }
    let address = shard.core.connections.get(conn)?.peer.address.ip();
    let user = shard.shared.owners.user(&owner_name(connect.user_name, address));
    let holding = existing.and_then(|slot| shard.core.sessions.holding(slot));
    let before = holding.filter(|holding| holding.user().is_some_and(|other| Arc::ptr_eq(other, &user)));
    let will_bytes = connect
        .will
        .as_ref()
        .map_or(0, |will| SessionWill::from_connect(will).bytes());
    let bytes = client.client_id.len() + will_bytes;
    let limits = &shard.core.config.shares.user;
    user.exceeded_by_session(limits, before.map(SessionHolding::bytes), bytes as u64)
}
