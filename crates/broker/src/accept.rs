//! Accepts a CONNECT: finds, takes over or creates the session, and attaches the connection to it.

use std::sync::Arc;

use mqtt::{ConnAck, Connect, Packet, Properties, ProtocolVersion, ReasonCode};

use crate::authentication::Login;
use crate::connack::{AcceptedConnect, RejectedConnect, Rejection};
use crate::connection_end::ConnectionEnd;
use crate::deliver::ShardCore;
use crate::effect::{ConnectionEvent, DisconnectReason, Effect, Now};
use crate::fault::{Fault, is_planted};
use crate::inbox::InboxEvent;
use crate::inbox_sessions::InboxAccess;
use crate::owners::{Holding, OwnerLimit, Owners, SessionHolding, owner_name};
use crate::session::{ConnectTerms, SessionWill};
use crate::shard::Shard;
use crate::slots::{ConnSlot, ConnectNumber, SessionEpoch, SessionSlot};
use crate::tap::{GrantedConnect, TapEvent, TapEventMask};
use crate::timers::ShardTimer;

impl AcceptedConnect<'_> {
    /// Checks whether the client may have a session, within the limits of the node and of the client's user.
    fn check_session(&self, core: &ShardCore, owners: &Owners, conn: ConnSlot) -> Result<(), Rejection> {
        let (config, client) = (&core.config, self.client);
        let existing = core.sessions.slot_of(client.client_id);
        let needs_journal = || {
            self.granted.expiry_s > 0
                || existing.is_some_and(|slot| core.sessions.link(slot).is_durable)
                || core.ledger.is_end_pending(client.client_id)
        };
        if core.ledger.has_failed() && needs_journal() {
            // CONNACK would wait forever, because neither a session nor its end can be committed.
            let detail = "the journal has failed, and the session needs it";
            return Err(Rejection(ReasonCode::ServerUnavailable, detail));
        }
        if let Some(limit) = self.exceeded_limit(core, owners, conn, existing) {
            return Err(Rejection(ReasonCode::QuotaExceeded, limit.rejection()));
        }
        let Some(slot) = existing else {
            return match owners.total().count(Holding::Session) < config.max_sessions as u64 {
                true => Ok(()),
                false => Err(Rejection(ReasonCode::QuotaExceeded, "limits.max_sessions is reached")),
            };
        };
        let is_own = core.sessions.at(slot).user_name.as_deref() == self.connect.user_name;
        if config.is_client_id_owned && !client.is_superuser && client.inbox_key.is_none() && !is_own {
            let detail = "the client id belongs to a session of another user; an administrator can delete it";
            return Err(Rejection(ReasonCode::NotAuthorized, detail));
        }
        Ok(())
    }

    /// Returns the limit of the user that the session would exceed. `existing` is the present session of the client id.
    /// A session of the same user is replaced.
    fn exceeded_limit(
        &self,
        core: &ShardCore,
        owners: &Owners,
        conn: ConnSlot,
        existing: Option<SessionSlot>,
    ) -> Option<OwnerLimit> {
        if self.client.inbox_key.is_some() {
            return None;
        }
        let address = core.connections.get(conn)?.peer.address.ip();
        let user = owners.user(&owner_name(self.connect.user_name, address));
        let holding = existing.and_then(|slot| core.sessions.holding(slot));
        let before = holding.filter(|holding| holding.user().is_some_and(|other| Arc::ptr_eq(other, &user)));
        let will = self.connect.will.as_ref();
        let will_bytes = will.map_or(0, |will| SessionWill::from_connect(will).bytes());
        let bytes = self.client.client_id.len() + will_bytes;
        let limits = &core.config.shares.user;
        user.exceeded_by_session(limits, before.map(SessionHolding::bytes), bytes as u64)
    }
}

impl Shard {
    /// Accepts the CONNECT of an authenticated client: finds or creates the session and sends CONNACK.
    pub(crate) fn admit(&mut self, now: Now, conn: ConnSlot, connect: &Connect<'_>, login: &Login) {
        let (connect, client) = login.terms(connect);
        let config = self.core.config.clone();
        let accepted = AcceptedConnect {
            connect: &connect,
            client,
            granted: GrantedConnect::of(&config, &connect, client.inbox_key),
        };
        let connection = self.core.connections.get(conn).expect("the connection is open");
        let mut properties = std::mem::take(&mut self.bytes);
        let result = accepted
            .check_session(&self.core, &self.shared.owners, conn)
            .and_then(|()| accepted.write_properties(&config, connection, login.data(), &mut properties));
        match result {
            Ok(()) => self.open_session(now, conn, &accepted, &properties),
            Err(Rejection(reason, detail)) => {
                let rejected = RejectedConnect {
                    client_id: client.client_id,
                    connect: Some(&connect),
                    reason,
                    detail,
                    is_authenticated: true,
                };
                let (mut tick, parts) = self.split(now);
                parts.authentication.reject(&mut tick, conn, rejected);
            }
        }
        self.bytes = properties;
    }

    /// Attaches the connection to its session and sends CONNACK before any other packet.
    fn open_session(&mut self, now: Now, conn: ConnSlot, accepted: &AcceptedConnect<'_>, properties: &[u8]) {
        let AcceptedConnect { connect, client, .. } = *accepted;
        let existing = self.core.sessions.slot_of(client.client_id);
        let wills = self.core.stats.wills_published;
        let resumed = existing.and_then(|slot| self.take_over(now, slot, connect.clean_start));
        let session_present = resumed.is_some();
        let slot = resumed.unwrap_or_else(|| {
            let connection = self.core.connections.get(conn).expect("the connection is open");
            let (address, epoch) = (connection.peer.address, SessionEpoch(self.numbers.next()));
            self.core.add_session(now, client.client_id, address, epoch)
        });
        self.attach(now, conn, slot, accepted);
        if self.core.ledger.record_connected(now, self.core.sessions.at_mut(slot)) {
            self.core.link_mut(slot).is_durable = true;
        }
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
        self.core.send(conn, &Packet::ConnAck(connack));
        let session = self.core.sessions.at(slot);
        let tap_event = TapEvent::ConnAck {
            reason: ReasonCode::Success,
            granted: Some(accepted.granted),
            properties: connect.properties.as_bytes(),
        };
        self.core
            .taps
            .session_event(now, session, TapEventMask::CONNACK, &tap_event);
        self.connected(now, slot, session_present, accepted);
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
            self.end_connection(now, old, ending);
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

    /// Applies the terms of a CONNECT to the connection and the session.
    fn attach(&mut self, now: Now, conn: ConnSlot, slot: SessionSlot, accepted: &AcceptedConnect<'_>) {
        let AcceptedConnect { connect, client, .. } = *accepted;
        let config = self.core.config.clone();
        let connection = self.core.connections.get_mut(conn).expect("the connection is open");
        connection.attach(now, slot, &config, connect);
        let uses_aliases = connection.aliases.is_some();
        let address = connection.peer.address;
        let session = self.core.sessions.at_mut(slot);
        session.attach(ConnectTerms {
            now,
            conn,
            peer: &connection.peer,
            number: ConnectNumber(self.numbers.next()),
            max_inflight: config.max_inflight,
            connect,
            granted: accepted.granted,
            is_superuser: client.is_superuser,
        });
        session.access = match client.inbox_key {
            None => self.authentication.rights_of(session),
            Some(key) => Some(Arc::new(InboxAccess(key))),
        };
        let is_replaying = !session.replays.is_empty();
        let owner = client
            .inbox_key
            .is_none()
            .then(|| owner_name(connect.user_name, address.ip()));
        let holding = SessionHolding::new(&self.shared.owners, owner.as_deref(), session.holding_bytes());
        self.core.sessions.set_holding(slot, holding);
        let link = self.core.link_mut(slot);
        link.conn = conn;
        link.is_v5 = connect.version == ProtocolVersion::V5;
        link.is_replaying = is_replaying;
        link.uses_aliases = uses_aliases;
        link.maximum_packet_size = connect.properties.maximum_packet_size().unwrap_or(u32::MAX);
    }

    fn connected(&mut self, now: Now, slot: SessionSlot, session_present: bool, accepted: &AcceptedConnect<'_>) {
        let core = &mut self.core;
        core.stats.connected();
        let session = core.sessions.at(slot);
        let (connect_number, is_v5) = (session.connect_number, session.version == ProtocolVersion::V5);
        if let Some(conn) = session.conn.filter(|_| session.keep_alive_s > 0)
            && let Some(connection) = core.connections.get(conn)
        {
            let epoch = connection.epoch;
            let at_ms = now.monotonic_ms + core.config.keep_alive_ms(session.keep_alive_s);
            core.timers.wake(now, at_ms, ShardTimer::KeepAlive { conn, epoch });
        }
        core.effects.push(Effect::Event(ConnectionEvent::Connected {
            client_id: session.client_id.clone(),
            user_name: session.user_name.clone(),
            address: session.address.get(),
            session_present,
        }));
        let tap_event = TapEvent::Connected {
            session_present,
            clean_start: session.clean_start,
            keep_alive_s: session.keep_alive_s,
            expiry_s: session.expiry_s,
            is_bridge: session.is_bridge,
            connected_at_ms: session.connected_at_ms,
            properties: accepted.connect.properties.as_bytes(),
        };
        core.taps
            .session_event(now, session, TapEventMask::CONNECTED, &tap_event);
        core.taps.inbox_event(now, session, InboxEvent::Connected { is_v5 });
        if let Some(retry_ms) = core.config.retry_interval_ms
            && !is_v5
        {
            let timer = ShardTimer::Retry {
                session: slot,
                connect_number,
            };
            core.timers.insert(now.monotonic_ms + retry_ms, timer);
        }
        if session_present {
            let (mut tick, parts) = self.split(now);
            parts.router.recheck_subscriptions(&mut tick, parts.groups, slot);
            parts.groups.announce_state(&mut tick, slot, true);
            self.pump(now, slot);
        }
    }
}
