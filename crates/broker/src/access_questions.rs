//! Questions to another system: whether a client may publish or subscribe, and the access rules of a client that
//! connects.
//!
//! The shard does not wait. A connection whose packet needs an answer is paused at this packet, which stays in the
//! driver's buffer with everything behind it. After the answer, the driver passes the same bytes again, so the packets
//! of a client are handled in order. A connection has at most one open question. Its epoch identifies it: the answer to
//! a question of an earlier connection in the slot is ignored.

use std::borrow::Cow;
use std::collections::HashSet;

use mqtt::{Connect, Packet, Publish, QoS, ReasonCode, Subscribe};

use crate::accept::Admission;
use crate::access::{AccessQuestion, AccessRequest, AdmissionStep};
use crate::connack::Rejection;
use crate::connection::PendingConnect;
use crate::connection_end::ConnectionEnd;
use crate::deliver::ShardCore;
use crate::effect::{DisconnectReason, Effect};
use crate::exclusive::EXCLUSIVE;
use crate::login::Login;
use crate::message::is_reserved;
use crate::parsed_filter::ParsedFilter;
use crate::publish_delay::{PublishDelay, strip_delay};
use crate::session::{Session, SubscriptionKind};
use crate::slots::{ConnEpoch, ConnSlot, SessionSlot};

/// The stored decisions of a session may be this many more than twice its subscriptions.
const SPARE_FILTERS: usize = 64;

const INTERRUPTED: &str = "a question about the access rules of the client was interrupted";

impl Admission<'_> {
    /// Accepts an authenticated client, or asks about it first. `packet` is the CONNECT as received.
    pub fn begin(&mut self, conn: ConnSlot, connect: &Connect<'_>, packet: &[u8], login: Login) {
        if let Some(question) = self.admit_or_ask(conn, connect, &login) {
            let client_id = login.terms(connect).1.client_id;
            let stored = Box::new(PendingConnect::new(client_id, connect, packet));
            self.wait_for_answer(conn, stored, login, question);
        }
    }

    /// Continues with a CONNECT that was stored.
    pub fn resume(&mut self, conn: ConnSlot, stored: Box<PendingConnect>, login: Login) {
        let Some(connect) = stored.connect() else { return };
        match self.admit_or_ask(conn, &connect, &login) {
            Some(question) => self.wait_for_answer(conn, stored, login, question),
            None => self.lifecycle.tick.core.effects.push(Effect::Resume { conn }),
        }
    }

    /// Accepts or rejects an authenticated client, or returns the question that must be answered before.
    fn admit_or_ask(&mut self, conn: ConnSlot, connect: &Connect<'_>, login: &Login) -> Option<AccessQuestion> {
        match self.step(conn, connect, login) {
            AdmissionStep::Admit => self.admit(conn, connect, login),
            AdmissionStep::Deny { reason, detail } => self.reject(conn, connect, login, Rejection(reason, detail)),
            AdmissionStep::Ask(question) => return Some(question),
        }
        None
    }

    fn wait_for_answer(&mut self, conn: ConnSlot, stored: Box<PendingConnect>, login: Login, question: AccessQuestion) {
        let core = &mut *self.lifecycle.tick.core;
        if let Some(connection) = core.connections.get_mut(conn) {
            let epoch = connection.epoch;
            connection.store_login(stored, login);
            core.effects.push(Effect::Authorize { conn, epoch, question });
        }
    }

    /// Continues after the answer to a question, or disconnects the client if there will be none.
    pub fn answered(&mut self, conn: ConnSlot, epoch: ConnEpoch, is_answered: bool) {
        let tick = &mut self.lifecycle.tick;
        let Some(connection) = tick.core.connections.live(conn, epoch).filter(|c| !c.is_closing()) else {
            return;
        };
        if let Some((stored, login)) = connection.take_login() {
            if is_answered {
                return self.resume(conn, stored, login);
            }
            if let Some(connect) = stored.connect() {
                let rejection = Rejection(ReasonCode::ServerUnavailable, INTERRUPTED);
                self.reject(conn, &connect, &login, rejection);
            }
            return;
        }
        if !std::mem::take(&mut connection.is_held_by_question) {
            return;
        }
        connection.heard(tick.now);
        if is_answered {
            tick.core.effects.push(Effect::Resume { conn });
            return;
        }
        let (reason, code) = (DisconnectReason::NotAuthorized, ReasonCode::ServerBusy);
        let ending = ConnectionEnd::by_server(reason, code, INTERRUPTED);
        self.lifecycle.end_connection(conn, ending);
    }
}

/// Asks if another system must authorize a packet. Returns whether the connection must wait for the answer.
pub(crate) fn must_ask(core: &mut ShardCore, conn: ConnSlot, packet: &Packet<'_>) -> bool {
    let question = match packet {
        Packet::Publish(publish) => question_of_publish(core, conn, publish),
        Packet::Subscribe(subscribe) => question_of_subscribe(core, conn, subscribe),
        _ => None,
    };
    let Some((question, connection)) = question.zip(core.connections.get_mut(conn)) else {
        return false;
    };
    connection.is_held_by_question = true;
    connection.has_asked = true;
    let epoch = connection.epoch;
    core.effects.push(Effect::Authorize { conn, epoch, question });
    true
}

fn question_of_publish(core: &ShardCore, conn: ConnSlot, publish: &Publish<'_>) -> Option<AccessQuestion> {
    let connection = core.connections.get(conn)?;
    let session = core.sessions.get(connection.session)?;
    let is_duplicate =
        publish.qos == QoS::ExactlyOnce && publish.packet_id.is_some_and(|id| session.received.contains(id.get()));
    if is_duplicate {
        return None;
    }
    let topic = connection.topic_of(publish)?;
    let topic = match strip_delay(topic) {
        PublishDelay::None => topic,
        PublishDelay::Seconds(_, topic) => topic,
        PublishDelay::Malformed => return None,
    };
    let full = session.mountpoint().map(|mountpoint| mountpoint.prefixed(topic));
    let topic = full.as_deref().unwrap_or(topic);
    if topic.starts_with('$') && is_reserved(topic) {
        return None;
    }
    session.access.as_ref()?.question(&[AccessRequest::Publish {
        topic,
        qos: publish.qos,
        retain: publish.retain,
    }])
}

fn question_of_subscribe(core: &ShardCore, conn: ConnSlot, subscribe: &Subscribe<'_>) -> Option<AccessQuestion> {
    let session = core.sessions.get(core.connections.get(conn)?.session)?;
    let mountpoint = session.mountpoint();
    let asked = subscribe.filters.iter().filter_map(|asked| {
        let filter = ParsedFilter::parse(asked.filter).ok()?.filter();
        let full = match mountpoint {
            Some(mountpoint) => Cow::Owned(mountpoint.prefixed(filter)),
            None => Cow::Borrowed(filter),
        };
        Some((full, asked.options.maximum_qos))
    });
    let asked: Vec<(Cow<'_, str>, QoS)> = asked.collect();
    let requests = asked
        .iter()
        .map(|(filter, qos)| AccessRequest::Subscribe { filter, qos: *qos });
    let requests: Vec<AccessRequest<'_>> = requests.collect();
    session.access.as_ref()?.question(&requests)
}

/// A packet that may have needed an answer was handled.
pub(crate) fn packet_handled(core: &mut ShardCore, conn: ConnSlot, packet: &Packet<'_>) {
    let Some(connection) = core.connections.get_mut(conn) else {
        return;
    };
    let has_asked = std::mem::take(&mut connection.has_asked);
    let Some(session) = core.sessions.get(connection.session) else {
        return;
    };
    let Some(access) = session.access.as_ref().filter(|_| has_asked) else {
        return;
    };
    access.packet_handled();
    let is_subscribe = matches!(packet, Packet::Subscribe(_));
    if is_subscribe && access.stored_filters() > 2 * session.subscriptions.len() + SPARE_FILTERS {
        retain_decisions(session);
    }
}

/// A subscription was handled that an operator has requested, so the answer to the question about it is not needed any
/// more. If a packet of the client has asked as well, its answers are still needed.
pub(crate) fn operator_subscribed(core: &ShardCore, slot: SessionSlot) {
    let Some(session) = core.sessions.get(slot) else {
        return;
    };
    let connection = session.conn.and_then(|conn| core.connections.get(conn));
    let has_asked = connection.is_some_and(|connection| connection.has_asked);
    if let Some(access) = session.access.as_ref().filter(|access| access.asks() && !has_asked) {
        access.packet_handled();
    }
}

/// Deletes the stored decisions about filters that the session does not have.
pub(crate) fn retain_decisions(session: &Session) {
    let Some(access) = session.access.as_ref().filter(|access| access.stored_filters() > 0) else {
        return;
    };
    let filters = session.subscriptions.iter();
    let filters = filters.filter_map(|(filter, _)| Some(ParsedFilter::parse(filter).ok()?.filter()));
    let subscribed: HashSet<&str> = filters.collect();
    access.retain_filters(&|filter| subscribed.contains(filter));
}

/// A subscription was removed. Unless the session has the filter in another way as well, the decision about it allows
/// no more deliveries.
pub(crate) fn unsubscribed(session: &Session, filter: &str) {
    let Some(access) = session.access.as_ref().filter(|access| access.stored_filters() > 0) else {
        return;
    };
    let Ok(removed) = ParsedFilter::parse(filter) else {
        return;
    };
    let (bare, subscriptions) = (removed.filter(), &session.subscriptions);
    let has = |filter: &str, kind| subscriptions.get(filter).is_some_and(|held| held.kind == kind);
    let is_member = || {
        let mut shared = subscriptions
            .iter()
            .filter(|(_, held)| held.kind == SubscriptionKind::Shared);
        shared.any(|(other, _)| ParsedFilter::parse(other).is_ok_and(|other| other.filter() == bare))
    };
    let is_subscribed = has(bare, SubscriptionKind::Plain)
        || has(&format!("{EXCLUSIVE}{bare}"), SubscriptionKind::Exclusive)
        || is_member();
    if !is_subscribed {
        access.set_subscribed(bare, false);
    }
}
