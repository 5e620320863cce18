//! Sessions: their existence, content and lifetime.

use std::collections::BTreeMap;

use mqtt::QoS;

use super::delivery::ReceivedCounts;
use super::subscription::OracleSubscription;
use super::will::OracleWill;
use super::{Oracle, OracleMessage, SLACK_MS};
use crate::client::ClientIndex;
use crate::packets::ConnectFields;
use crate::plan::PlannedDurability;

/// The oracle's knowledge of a client's session.
#[derive(Clone, Debug)]
pub struct OracleSession {
    pub client: ClientIndex,
    pub exists: SessionExists,
    /// False if an unanswered CONNECT may have cleared the session, so that its content cannot be judged.
    pub is_sure: bool,
    pub is_online: bool,
    /// Number of the client's connections so far, so that a message can refer to one.
    pub connection: u64,
    /// Event at which the last connection was accepted.
    pub connected: u64,
    /// Connections of the client that the node has not closed.
    pub links: usize,
    /// Minimum and maximum in seconds; they differ if it is unknown which of two CONNECTs is in force.
    expiry_s: (u32, u32),
    /// Session expiry of a DISCONNECT that the node may not have read.
    disconnect_expiry_s: Option<u32>,
    is_disconnect_read: bool,
    /// Time from which the node may have closed the connection because of its keep-alive.
    pub silent_ms: u64,
    /// Time from which the client may have been disconnected.
    pub disconnected_ms: Option<u64>,
    /// Time at which the client was certainly disconnected.
    pub surely_disconnected_ms: Option<u64>,
    /// The disconnect is committed to the journal.
    pub is_disconnect_durable: bool,
    /// The unanswered CONNECT.
    pending: Option<ConnectFields>,
    /// Time at which it was sent.
    connecting_ms: u64,
    /// Time up to which the node had handled due timers at that time.
    ticked_ms: u64,
    pub will: Option<OracleWill>,
    pub subscriptions: Vec<OracleSubscription>,
    /// Group memberships from before a new session, while the node may not know that they ended.
    pub former_memberships: Vec<(&'static str, QoS)>,
    pub owed: Vec<u64>,
    /// Topics whose retained message is owed, each with the filter of the new subscription.
    pub retained_owed: Vec<(String, &'static str)>,
    /// Event of the last delivery per topic.
    pub last_received: BTreeMap<String, u64>,
    pub seen: BTreeMap<u64, ReceivedCounts>,
    /// Last serial received first, by publisher, topic, published QoS and delivered QoS.
    pub order: BTreeMap<(ClientIndex, String, QoS, QoS), u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionExists {
    No,
    Maybe,
    Yes,
}

/// How a client leaves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveMode {
    /// DISCONNECT and FIN, possibly with another Session Expiry Interval or with a request to publish the will.
    Disconnect { expiry_s: Option<u32>, with_will: bool },
    /// Connection lost without DISCONNECT, or closed by the node.
    ConnectionLost,
}

impl OracleSession {
    pub fn new(client: ClientIndex) -> OracleSession {
        OracleSession {
            client,
            exists: SessionExists::No,
            is_sure: true,
            is_online: false,
            connection: 0,
            connected: 0,
            links: 0,
            expiry_s: (0, 0),
            disconnect_expiry_s: None,
            is_disconnect_read: false,
            silent_ms: u64::MAX,
            disconnected_ms: None,
            surely_disconnected_ms: None,
            is_disconnect_durable: false,
            pending: None,
            connecting_ms: 0,
            ticked_ms: 0,
            will: None,
            subscriptions: Vec::new(),
            former_memberships: Vec::new(),
            owed: Vec::new(),
            retained_owed: Vec::new(),
            last_received: BTreeMap::new(),
            seen: BTreeMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// Returns whether the session outlives its connection for some time.
    pub fn outlives_connection(&self) -> bool {
        self.exists == SessionExists::Yes && self.expiry_s.0 > 0
    }

    pub fn shortest_expiry_ms(&self) -> u64 {
        lifetime_ms(self.expiry_s.0)
    }

    pub fn longest_expiry_ms(&self) -> u64 {
        lifetime_ms(self.expiry_s.1)
    }

    pub fn has_seen(&self, serial: u64) -> bool {
        self.seen.contains_key(&serial)
    }

    pub fn has_wanted_at_most_once(&self, message: &OracleMessage) -> bool {
        self.is_sure
            && self.subscriptions.iter().any(|s| {
                let is_unchanged = |other: &OracleSubscription| other.filter != s.filter || other.sent == s.sent;
                s.share.is_none()
                    && s.covers(message, self.client)
                    && s.acked.is_some_and(|at| at < message.sent)
                    && s.unsent.is_none()
                    && self.subscriptions.iter().all(is_unchanged)
            })
    }

    /// Returns the groups of which it may be a member, with the QoS.
    pub fn memberships(&self) -> impl Iterator<Item = (&'static str, QoS)> {
        self.subscriptions
            .iter()
            .filter(|s| s.share.is_some())
            .map(|s| (s.filter, s.qos))
    }

    fn clear_expected(&mut self) {
        self.owed.clear();
        self.retained_owed.clear();
    }

    fn start_new(&mut self) {
        self.is_sure = true;
        self.subscriptions.clear();
        self.clear_expected();
        self.seen.clear();
        self.order.clear();
    }

    /// Returns whether a CONNECT is in transit.
    pub fn is_connecting(&self) -> bool {
        self.pending.is_some()
    }

    pub fn connecting_ms(&self) -> u64 {
        self.connecting_ms
    }

    /// Returns whether a CONNECT that ends the session is in transit.
    pub fn may_be_ending(&self) -> bool {
        self.pending.as_ref().is_some_and(|terms| terms.clean_start)
    }

    /// Returns whether CONNACK may report that the session is present, and that it is not.
    fn may_be_present(&self, now_ms: u64, slop_ms: u64) -> (bool, bool) {
        match self.exists {
            SessionExists::No => (false, true),
            SessionExists::Maybe => (true, true),
            // A take-over: the end of the old connection has ended the session.
            SessionExists::Yes if self.expiry_s == (0, 0) => (false, true),
            SessionExists::Yes => {
                let Some(disconnected_ms) = self.disconnected_ms else {
                    return (true, self.expiry_s.0 == 0);
                };
                let may_be_over = now_ms + slop_ms >= disconnected_ms.saturating_add(self.shortest_expiry_ms());
                let is_over = self.surely_disconnected_ms.is_some_and(|at| {
                    self.ticked_ms
                        >= at
                            .saturating_add(self.longest_expiry_ms())
                            .saturating_add(SLACK_MS + slop_ms)
                });
                (!is_over, may_be_over)
            }
        }
    }

    /// A client that was connected when the process ended, as far as the journal knows, is now disconnected.
    pub fn booted(&mut self, now_ms: u64) {
        if self.disconnected_ms.is_some() && (self.surely_disconnected_ms.is_none() || !self.is_disconnect_durable) {
            self.surely_disconnected_ms = Some(now_ms);
        }
    }
}

fn lifetime_ms(expiry_s: u32) -> u64 {
    match expiry_s {
        u32::MAX => u64::MAX / 4,
        seconds => u64::from(seconds) * 1000,
    }
}

impl Oracle {
    /// A connection has been opened and CONNECT written. `ticked_ms` is the time up to which due timers were handled.
    pub fn connecting(&mut self, client: ClientIndex, terms: &ConnectFields, ticked_ms: u64) {
        self.event();
        if self.sessions[client.index()].exists == SessionExists::No {
            self.session_leaves_groups(client);
            let session = &mut self.sessions[client.index()];
            if session.links > 0 {
                session.former_memberships = session.memberships().collect();
            }
            session.start_new();
        }
        let now_ms = self.now_ms;
        let session = &mut self.sessions[client.index()];
        session.connecting_ms = now_ms;
        session.links += 1;
        session.connection += 1;
        session.disconnect_expiry_s = None;
        session.is_disconnect_read = false;
        session.pending = Some(terms.clone());
        session.ticked_ms = ticked_ms;
        if terms.clean_start {
            self.session_leaves_groups(client);
        }
    }

    /// CONNACK with success was received.
    pub fn connected(&mut self, client: ClientIndex, is_present: bool) {
        let at = self.event();
        let (now_ms, slop_ms) = (self.now_ms, self.slop_ms);
        let session = &mut self.sessions[client.index()];
        let Some(terms) = session.pending.take() else {
            return self.violated(|| format!("client {client} received a second CONNACK"));
        };
        let (may, may_not) = if terms.clean_start {
            (false, true)
        } else {
            session.may_be_present(now_ms, slop_ms)
        };
        let text = format!("client {client}: session present {is_present} [MQTT-3.2.2-2], {session:?}");
        if (is_present && !may) || (!is_present && !may_not) {
            self.violated(|| text);
        }
        self.resolve_previous_will(client, &terms, is_present);
        if !is_present {
            self.session_leaves_groups(client);
            self.sessions[client.index()].start_new();
        }
        let session = &mut self.sessions[client.index()];
        session.exists = SessionExists::Yes;
        session.is_online = true;
        session.connected = at;
        session.expiry_s = (terms.expiry_s, terms.expiry_s);
        session.disconnected_ms = None;
        session.surely_disconnected_ms = None;
        session.is_disconnect_durable = false;
        let armed = |will| OracleWill::armed(will, terms.expiry_s > 0);
        session.will = terms.will.as_ref().map(armed);
    }

    /// The client gives up before CONNACK, so it is unknown whether the server received the CONNECT. Returns whether
    /// there may be a session of unknown content.
    pub fn connect_abandoned(&mut self, client: ClientIndex) -> bool {
        self.event();
        let (now_ms, slop_ms) = (self.now_ms, self.slop_ms);
        self.loosen_will(client);
        let session = &mut self.sessions[client.index()];
        let Some(terms) = session.pending.take() else {
            return false;
        };
        let may_be_new = terms.clean_start || session.may_be_present(now_ms, slop_ms).1;
        if may_be_new && session.exists != SessionExists::No {
            session.is_sure = false;
            session.clear_expected();
        }
        let before = if session.exists == SessionExists::No {
            terms.expiry_s
        } else {
            session.expiry_s.0
        };
        if terms.expiry_s > 0 || session.exists == SessionExists::Yes {
            let is_there = session.exists == SessionExists::Yes && terms.expiry_s > 0 && session.expiry_s.0 > 0;
            session.exists = if is_there {
                SessionExists::Yes
            } else {
                SessionExists::Maybe
            };
        }
        session.expiry_s = (before.min(terms.expiry_s), session.expiry_s.1.max(terms.expiry_s));
        session.disconnected_ms = Some(session.disconnected_ms.unwrap_or(now_ms));
        session.surely_disconnected_ms = (session.links == 0).then_some(now_ms);
        let may_have_new_will = terms.will.as_ref().map(|will| OracleWill::loose(will.serial));
        session.will = session.will.take().or(may_have_new_will);
        may_be_new
    }

    /// The client has left an accepted connection, or found it closed by the node.
    pub fn left(&mut self, client: ClientIndex, how: LeaveMode) {
        self.event();
        let now_ms = self.now_ms;
        let session = &mut self.sessions[client.index()];
        session.is_online = false;
        session.disconnected_ms = Some(session.disconnected_ms.unwrap_or(now_ms.min(session.silent_ms)));
        if session.links == 0 && session.surely_disconnected_ms.is_none() {
            session.surely_disconnected_ms = Some(now_ms);
        }
        if let LeaveMode::Disconnect {
            expiry_s: Some(expiry_s),
            ..
        } = how
        {
            // The DISCONNECT may be lost with the process.
            let (low, high) = session.expiry_s;
            session.expiry_s = (low.min(expiry_s), high.max(expiry_s));
            session.disconnect_expiry_s = Some(expiry_s);
        }
        self.will_after_departure(client, how);
        let session = &mut self.sessions[client.index()];
        if session.expiry_s.0 == 0 {
            // The session ends with its connection.
            session.clear_expected();
            if session.expiry_s.1 == 0 {
                session.exists = SessionExists::No;
            } else if session.exists == SessionExists::Yes {
                session.exists = SessionExists::Maybe;
            }
            self.session_leaves_groups(client);
        }
    }

    /// The node has closed one of the client's connections.
    pub fn link_closed(&mut self, client: ClientIndex, is_current: bool) {
        self.event();
        let now_ms = self.now_ms;
        let session = &mut self.sessions[client.index()];
        session.links = session.links.saturating_sub(1);
        if is_current && session.is_online {
            session.disconnected_ms = Some(session.disconnected_ms.unwrap_or(now_ms.min(session.silent_ms)));
        }
        if session.links == 0 && session.disconnected_ms.is_some() {
            session.surely_disconnected_ms = Some(now_ms);
            // The node may have read a later CONNECT first, or closed the connection because of its keep-alive.
            let is_in_time = session.disconnected_ms.is_some_and(|at| at < session.silent_ms);
            session.is_disconnect_read = session.pending.is_none() && is_in_time;
        }
        if self.durability == PlannedDurability::None {
            self.disconnect_durable(client);
        }
        if !self.sessions[client.index()].outlives_connection() {
            self.session_leaves_groups(client);
        }
        let session = &self.sessions[client.index()];
        // The membership may belong to an older connection that the client has abandoned, too.
        if !is_current && session.links <= usize::from(session.is_online || session.pending.is_some()) {
            self.former_memberships_ended(client);
        }
    }

    /// The client does not know the content of its session.
    pub fn mark_unsure(&mut self, client: ClientIndex) {
        self.sessions[client.index()].is_sure = false;
        self.sessions[client.index()].clear_expected();
    }

    /// The last packets of the client have been read, and their effects are durable.
    pub(super) fn disconnect_durable(&mut self, client: ClientIndex) {
        let session = &mut self.sessions[client.index()];
        session.is_disconnect_durable = session.surely_disconnected_ms.is_some() && session.links == 0;
        if !std::mem::take(&mut session.is_disconnect_read) {
            return;
        }
        if let Some(expiry_s) = session.disconnect_expiry_s.take() {
            session.expiry_s = (expiry_s, expiry_s);
        }
        self.will_disconnect_durable(client);
    }

    pub(super) fn session_crashed(&mut self, client: ClientIndex, keeps_acknowledged: bool) {
        let now_ms = self.now_ms;
        self.will_crashed(client, keeps_acknowledged);
        let session = &mut self.sessions[client.index()];
        if session.exists != SessionExists::No && session.disconnected_ms.is_none() {
            session.disconnected_ms = Some(now_ms.min(session.silent_ms));
        }
        if session.links > 0 {
            session.surely_disconnected_ms = None;
            session.is_disconnect_durable = false;
        }
        session.links = 0;
        session.is_disconnect_read = false;
        if session.disconnect_expiry_s.take() == Some(0) {
            // The client assumes that the session has ended.
            session.is_sure = false;
        }
        if !keeps_acknowledged {
            session.exists = SessionExists::No;
            session.start_new();
        } else if session.expiry_s.0 == 0 {
            session.exists = if session.expiry_s.1 == 0 {
                SessionExists::No
            } else {
                SessionExists::Maybe
            };
            session.clear_expected();
        }
    }

    /// Returns whether QoS 2 guarantees can be checked.
    pub(super) fn is_exact(&self, client: ClientIndex, qos: QoS) -> bool {
        qos == QoS::ExactlyOnce && self.sessions[client.index()].is_sure
    }
}
