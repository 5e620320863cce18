//! Changes that no packet causes. An operator disconnects clients, applies access rules and changes subscriptions. The
//! driver changes the address of a client.
//!
//! The driver calls it between ticks on the shard's thread.

use std::net::SocketAddr;

use mqtt::{Properties, QoS, ReasonCode, SubscribeFilter, SubscriptionOptions};

use crate::access::{AccessQuestion, AccessRequest, ClientIdentity, LoginGrant};
use crate::access_questions;
use crate::authentication::Authentication;
use crate::connection_end::ConnectionEnd;
use crate::effect::{ConnectionEvent, DisconnectReason, Effect};
use crate::lifecycle::Lifecycle;
use crate::parsed_filter::ParsedFilter;
use crate::session::Session;
use crate::sessions::LOOK_MAX;
use crate::slots::{ConnSlot, SessionSlot, SubscribeTicket};
use crate::subscribe::RequestedSubscription;
use crate::trace::{TraceFilter, TraceSink};

/// The components that an operator changes.
pub struct Operator<'a> {
    pub(crate) lifecycle: Lifecycle<'a>,
    pub(crate) authentication: &'a Authentication,
}

impl Operator<'_> {
    /// Starts a trace. Returns false if there are too many traces.
    pub fn trace(&mut self, filter: TraceFilter, sink: Box<dyn TraceSink>) -> bool {
        self.lifecycle.tick.core.traces.start(filter, sink)
    }

    /// Disconnects a client on behalf of an operator. Returns false if there is no such session.
    pub fn kick(&mut self, client_id: &str, end_session: bool) -> bool {
        let Some(slot) = self.lifecycle.tick.core.sessions.slot_of(client_id) else {
            return false;
        };
        let epoch = self.lifecycle.tick.core.sessions.at(slot).epoch;
        if let Some(conn) = self.lifecycle.tick.core.sessions.at(slot).conn {
            self.kick_connection(conn, "disconnected by an operator");
        }
        if end_session && self.lifecycle.tick.core.sessions.live(slot, epoch).is_some() {
            self.lifecycle.end_session(slot, "ended by an operator");
        }
        true
    }

    /// Closes a connection, authenticated or not. The session stays.
    pub fn kick_connection(&mut self, conn: ConnSlot, detail: &str) {
        let (reason, code) = (DisconnectReason::Kicked, ReasonCode::AdministrativeAction);
        self.lifecycle
            .end_connection(conn, ConnectionEnd::by_server(reason, code, detail));
    }

    /// Records that a connection has another address, at which its client receives. Operators, rules and traces see it.
    /// Access decisions and limits use the address of CONNECT until the next one.
    pub fn set_client_address(&mut self, conn: ConnSlot, address: SocketAddr) {
        let core = &mut *self.lifecycle.tick.core;
        let Some(connection) = core.connections.get(conn).filter(|connection| connection.is_online()) else {
            return;
        };
        let slot = connection.session;
        let session = core.sessions.at_mut(slot);
        let from = session.current_address();
        session.set_current_address(Some(address));
        let client_id = session.client_id.clone();
        core.effects.push(Effect::Event(ConnectionEvent::AddressChanged {
            client_id,
            from,
            address,
        }));
        for stream in self.streams_of(slot) {
            let sessions = &mut self.lifecycle.tick.core.sessions;
            sessions.at_mut(stream).set_current_address(Some(address));
        }
    }

    /// Disconnects users whose name `is_meant`, among the sessions from slot `from` on. The sessions stay. Visits a
    /// bounded number of slots and returns the slot to continue at.
    pub fn kick_users(&mut self, from: SessionSlot, is_meant: impl Fn(&str) -> bool) -> Option<SessionSlot> {
        self.kick_where(from, "the user must authenticate again", true, |session| {
            session.inbox_key().is_none() && session.user_name.as_deref().is_some_and(&is_meant)
        })
    }

    /// Disconnects banned clients, in the same way. The user name of an inbox client is ignored, because it is a
    /// secret.
    pub fn kick_banned(
        &mut self,
        from: SessionSlot,
        is_banned: impl Fn(&ClientIdentity) -> bool,
    ) -> Option<SessionSlot> {
        let publishes_will = self.lifecycle.tick.core.config.publish_will_of_banned;
        self.kick_where(from, "banned by an operator", publishes_will, |session| {
            let mut who = session.identity();
            who.user_name = who.user_name.filter(|_| session.inbox_key().is_none());
            is_banned(&who)
        })
    }

    /// Disconnects clients whose access rules are not known any more, among the sessions from slot `from` on. Their
    /// sessions stay, with rights as after a restart: the next login decides about them. A will is dropped, because it
    /// is not known whether the client may publish it. Visits a bounded number of slots and returns the slot to
    /// continue at.
    pub fn forget_logins(
        &mut self,
        from: SessionSlot,
        is_meant: impl Fn(&ClientIdentity) -> bool,
    ) -> Option<SessionSlot> {
        let (slots, next) = self.next_slots(from);
        for slot in slots {
            let Some(session) = self.lifecycle.tick.core.sessions.get(slot) else {
                continue;
            };
            if session.inbox_key().is_some() || !is_meant(&session.identity()) {
                continue;
            }
            let (epoch, conn) = (session.epoch, session.conn);
            self.drop_will(slot);
            if let Some(conn) = conn {
                self.kick_connection(conn, "the rights of the user have changed");
            }
            // Without an expiry interval, the session has ended with its connection.
            let sessions = &mut self.lifecycle.tick.core.sessions;
            if let Some(session) = sessions.live(slot, epoch) {
                session.set_grant(LoginGrant::Forgotten);
                sessions.resize_holding(slot);
            }
        }
        next
    }

    /// Returns a bounded number of slots from `from` on, and the slot to continue at.
    fn next_slots(&self, from: SessionSlot) -> (impl Iterator<Item = SessionSlot> + use<>, Option<SessionSlot>) {
        let end = self.lifecycle.tick.core.sessions.end();
        let until = SessionSlot(from.0.saturating_add(LOOK_MAX as u32)).min(end);
        (from.until(until), (until < end).then_some(until))
    }

    /// Drops the will of a session. Recovery must not publish it either.
    fn drop_will(&mut self, slot: SessionSlot) {
        let core = &mut *self.lifecycle.tick.core;
        if core.sessions.at_mut(slot).will.take().is_some() {
            core.ledger.record_will_published(core.sessions.at(slot));
            core.sessions.resize_holding(slot);
        }
    }

    fn kick_where(
        &mut self,
        from: SessionSlot,
        detail: &str,
        publishes_will: bool,
        is_meant: impl Fn(&Session) -> bool,
    ) -> Option<SessionSlot> {
        let (slots, next) = self.next_slots(from);
        for slot in slots {
            let Some(session) = self.lifecycle.tick.core.sessions.get(slot) else {
                continue;
            };
            if let Some(conn) = session.conn
                && is_meant(session)
            {
                if !publishes_will {
                    self.drop_will(slot);
                }
                self.kick_connection(conn, detail);
            }
        }
        next
    }

    /// Applies changed access rules to every session.
    pub fn access_changed(&mut self) {
        for slot in SessionSlot::FIRST.until(self.lifecycle.tick.core.sessions.end()) {
            let Some(session) = self.lifecycle.tick.core.sessions.get(slot) else {
                continue;
            };
            if session.inbox_key().is_none() {
                self.session_rights_changed(slot);
            }
        }
    }

    /// Returns the sessions of a client's data streams.
    fn streams_of(&self, slot: SessionSlot) -> Vec<SessionSlot> {
        let core = &*self.lifecycle.tick.core;
        let conn = core.sessions.at(slot).conn.unwrap_or(ConnSlot::NONE);
        let streams = core.connections.data_streams_of(conn).into_iter();
        let sessions = streams.filter_map(|conn| Some(core.connections.get(conn)?.session));
        sessions.filter(|slot| core.sessions.get(*slot).is_some()).collect()
    }

    /// Applies a new login of a client to the session of one of its data streams. The decisions about the subscriptions
    /// of the stream stay, as those of the client do.
    fn renew_stream(&mut self, client: SessionSlot, stream: SessionSlot) {
        let sessions = &mut self.lifecycle.tick.core.sessions;
        let own = sessions.at(client);
        let (is_superuser, grant) = (own.is_superuser, own.grant().for_data_stream());
        let session = sessions.at_mut(stream);
        let grant = self.authentication.renewed_grant(session.grant(), grant);
        session.is_superuser = is_superuser;
        session.set_grant(grant);
        sessions.resize_holding(stream);
    }

    /// Applies changed access rules to a session that does not use the inbox, and to its data streams.
    pub(crate) fn session_rights_changed(&mut self, slot: SessionSlot) {
        self.apply_rights(slot);
        for stream in self.streams_of(slot) {
            self.renew_stream(slot, stream);
            self.apply_rights(stream);
        }
    }

    fn apply_rights(&mut self, slot: SessionSlot) {
        let session = self.lifecycle.tick.core.sessions.at_mut(slot);
        session.access = self.authentication.rights_of(session);
        let asks_access = session.access.as_ref().is_some_and(|access| access.asks());
        let Lifecycle { tick, router, to } = &mut self.lifecycle;
        router.recheck_subscriptions(tick, to.groups, slot);
        if let Some(conn) = tick.core.sessions.at(slot).conn {
            if let Some(connection) = tick.core.connections.get_mut(conn) {
                connection.asks_access = asks_access;
            }
            // A replay whose subscription was removed may have held messages.
            tick.core.continue_later(conn, slot);
        }
    }

    /// Deletes a retained message without publishing. Returns false if there was none on this shard.
    pub fn delete_retained(&mut self, topic: &str) -> bool {
        let Lifecycle { tick, to, .. } = &mut self.lifecycle;
        to.retained.delete(tick.core, topic)
    }

    /// Returns the question that another system must answer before `subscribe_client` can decide about the filter.
    /// `None` if there is none, and if the client is not on this shard.
    pub fn subscription_question(&self, client_id: &str, filter: &str, qos: QoS) -> Option<AccessQuestion> {
        let sessions = &self.lifecycle.tick.core.sessions;
        let session = sessions.get(sessions.slot_of(client_id)?)?;
        let filter = ParsedFilter::parse(filter).ok()?.filter();
        session
            .access
            .as_ref()?
            .question(&[AccessRequest::Subscribe { filter, qos }])
    }

    /// Subscribes a client on behalf of an operator. The filter is a full one: it begins with the client's mountpoint.
    /// `None` if the client is not on this shard.
    pub fn subscribe_client(
        &mut self,
        client_id: &str,
        filter: &str,
        options: SubscriptionOptions,
    ) -> Option<ReasonCode> {
        let slot = self.lifecycle.tick.core.sessions.slot_of(client_id)?;
        let mountpoint = self.lifecycle.tick.core.sessions.at(slot).mountpoint();
        if mountpoint.is_some_and(|mountpoint| !mountpoint.contains(filter)) {
            return Some(ReasonCode::TopicFilterInvalid);
        }
        let requested = RequestedSubscription {
            asked: SubscribeFilter { filter, options },
            properties: Properties::EMPTY,
            ticket: SubscribeTicket::NONE,
        };
        let Lifecycle { tick, router, to } = &mut self.lifecycle;
        let (reason, _) = router.subscribe(tick, to.groups, to.retained, slot, requested);
        access_questions::operator_subscribed(tick.core, slot);
        to.retained.pump(tick, slot);
        Some(reason)
    }

    /// Unsubscribes a client. Returns false if there was no such subscription, and `None` if the client is not on this
    /// shard.
    pub fn unsubscribe_client(&mut self, client_id: &str, filter: &str) -> Option<bool> {
        let slot = self.lifecycle.tick.core.sessions.slot_of(client_id)?;
        let Lifecycle { tick, router, to } = &mut self.lifecycle;
        let removed = router.unsubscribe(tick, to.groups, slot, filter, None);
        Some(removed.is_some())
    }
}
