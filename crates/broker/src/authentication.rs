//! Authentication of clients: checks CONNECT, asks the authenticator, exchanges AUTH packets before and after CONNACK,
//! and rejects clients.
//!
//! Nothing that follows a CONNECT is handled before it has been accepted: the connection is paused while a decision is
//! pending, and closing after a rejection. `accept` finds the session of an accepted client.

use std::sync::Arc;

use mqtt::{
    Auth, ConnAck, Connect, DecodeError, DecodeErrorKind, Disconnect, Packet, PacketType, Properties, Property,
    PropertyWriter, ProtocolVersion, ReasonCode,
};

use crate::access::{
    AcceptedClient, AccessControl, AccessRequest, AdmissionStep, AuthOutcome, ClientIdentity, ConnectIdentity,
    LoginGrant, SessionAccess,
};
use crate::config::ShardConfig;
use crate::connack::{RejectedConnect, Rejection};
use crate::connection::{ConnectionPhase, PendingConnect};
use crate::deliver::ShardCore;
use crate::effect::{ConnectionEvent, Effect, Now};
use crate::exchange_memory::{ExchangeMemory, SMALL_EXCHANGE_BYTES_MAX};
use crate::login::Login;
use crate::node_state::home_shard;
use crate::owners::OwnerLimit;
use crate::rejected_connections::{RejectedConnection, RejectedConnections};
use crate::session::Session;
use crate::slots::{AuthAttempt, ConnEpoch, ConnSlot, SessionSlot};
use crate::tap::{GrantedConnect, TapClient, TapEvent, TapEventMask};
use crate::tick::Tick;
use crate::timers::ShardTimer;

/// Time from CONNECT to CONNACK that an enhanced authentication may take, as long as the server waits for the client.
pub(crate) const EXCHANGE_MS_MAX: u64 = 30_000;

/// The answer if the exchanges that are not complete use too much memory.
const TOO_MANY_EXCHANGES: AuthOutcome = AuthOutcome::Deny {
    reason: ReasonCode::ServerBusy,
    detail: OwnerLimit::ExchangeBytes.rejection(),
};

/// Asks the authenticator, and remembers whom it has rejected.
pub(crate) struct Authentication {
    access: Arc<dyn AccessControl>,
    exchange_memory: ExchangeMemory,
    rejected: RejectedConnections,
    /// Buffer for the properties of CONNACK.
    buffer: Vec<u8>,
}

/// Result of the AUTH of a client.
pub(crate) enum AuthStep {
    NotAllowed,
    /// The authenticator decides later.
    Asked,
    Decided(AuthAttempt, AuthOutcome),
}

/// Consequence of a decision of the authenticator.
pub(crate) enum AuthDecision {
    /// Accept a CONNECT that was stored.
    Accept(Box<PendingConnect>, Login),
    /// Disconnect a client whose re-authentication has failed.
    Disconnect(ReasonCode, &'static str),
    /// The re-authentication has given the session other access rules.
    RightsChanged(SessionSlot),
}

impl Authentication {
    pub fn new(access: Arc<dyn AccessControl>, exchange_memory: ExchangeMemory) -> Authentication {
        Authentication {
            access,
            exchange_memory,
            rejected: RejectedConnections::default(),
            buffer: Vec::new(),
        }
    }

    /// Returns the client id of the session that a CONNECT leads to, if it differs from that of CONNECT.
    pub fn session_name(&self, offered: &ConnectIdentity<'_>) -> Option<Box<str>> {
        self.access.session_name(offered)
    }

    /// Returns the access rules of a session; `None` if everything is allowed.
    pub fn rights_of(&self, session: &Session) -> Option<Arc<dyn SessionAccess>> {
        self.access.session(&session.identity())
    }

    /// Returns the grant of a session after a new login.
    pub fn renewed_grant(&self, old: &LoginGrant, new: LoginGrant) -> LoginGrant {
        self.access.renewed_grant(old, new)
    }

    /// Returns whether each login has a grant.
    pub fn requires_grants(&self) -> bool {
        self.access.requires_grants()
    }

    /// Returns whether `admission` must be called before the client gets its session.
    pub fn must_prepare(&self, grant: &LoginGrant) -> bool {
        self.access.must_prepare(grant)
    }

    /// Returns the next step for an authenticated client.
    pub fn admission(&self, who: &ClientIdentity, requests: &[AccessRequest<'_>]) -> AdmissionStep {
        self.access.admission(who, requests)
    }

    /// Returns a buffer for the properties of CONNACK, to put back later.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    pub fn put_back_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// Returns the rejected connections, newest first.
    pub fn rejected(&self) -> impl Iterator<Item = &RejectedConnection> {
        self.rejected.newest_first()
    }

    /// Handles a well-formed CONNECT. `bytes` is the packet. Returns the client if it is authenticated now.
    pub fn connect(
        &mut self,
        tick: &mut Tick<'_>,
        conn: ConnSlot,
        connect: &Connect<'_>,
        bytes: &[u8],
    ) -> Option<Login> {
        let connection = tick
            .core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection");
        connection.connect_received(tick.now, connect);
        if let Err(Rejection(reason, detail)) = self.check_connect(tick.core, conn, connect) {
            let rejected = RejectedConnect {
                client_id: connect.client_id,
                connect: Some(connect),
                reason,
                detail,
                is_authenticated: false,
            };
            self.reject(tick, conn, rejected);
            return None;
        }
        let client_id = self.client_id(tick, conn, connect);
        let connection = tick
            .core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection");
        let credentials = connection.take_credentials(connect, &client_id, bytes.len());
        let outcome = match self.access.authenticate_now(&credentials) {
            outcome @ (None | Some(AuthOutcome::Continue { .. })) => outcome,
            Some(outcome) => return self.conclude(tick, conn, connect, client_id, outcome),
        };
        let mut pending = PendingConnect::new(&client_id, connect, bytes);
        // The state of the exchange has parts of the credentials.
        let memory_bytes = credentials.packet_bytes + credentials.memory_bytes();
        if credentials.method.is_some() && memory_bytes > SMALL_EXCHANGE_BYTES_MAX {
            let bytes_max = tick.core.config.max_exchange_bytes;
            pending.memory = self
                .exchange_memory
                .reserve(credentials.address, memory_bytes, bytes_max);
            if pending.memory.is_none() {
                return self.conclude(tick, conn, connect, client_id, TOO_MANY_EXCHANGES);
            }
        }
        let attempt = AuthAttempt(tick.numbers.next());
        connection.store_connect(attempt, pending);
        match outcome {
            // The client sends an AUTH next, so there is nothing else to do.
            Some(outcome) => drop(self.decided(tick, conn, outcome)),
            None => tick.core.effects.push(Effect::Authenticate {
                conn,
                attempt,
                credentials: Box::new(credentials),
            }),
        }
        None
    }

    /// Handles the authenticator's decision about a CONNECT, an AUTH, or a re-authentication.
    pub fn decided(&mut self, tick: &mut Tick<'_>, conn: ConnSlot, outcome: AuthOutcome) -> Option<AuthDecision> {
        let core = &mut *tick.core;
        let connection = core.connections.get_mut(conn)?;
        let (phase, slot) = (connection.phase(), connection.session);
        let pending = connection.take_pending()?;
        match (phase, outcome) {
            (ConnectionPhase::Closing, _) => None,
            (_, AuthOutcome::Continue { data, exchange }) => {
                continue_exchange(core, tick.now, conn, PendingConnect { exchange, ..*pending }, &data);
                None
            }
            (ConnectionPhase::Online, AuthOutcome::Allow(login)) => {
                let session = core.sessions.at_mut(slot);
                if login.user_name.is_some() && login.user_name != session.user_name {
                    let detail = "a re-authentication cannot change the user";
                    core.taps
                        .reauthenticated(tick.now, session, ReasonCode::NotAuthorized, false);
                    return Some(AuthDecision::Disconnect(ReasonCode::NotAuthorized, detail));
                }
                if login.mountpoint.as_ref() != session.mountpoint() {
                    // Its subscriptions begin with the present prefix.
                    let detail = "a re-authentication cannot change the mountpoint";
                    core.taps
                        .reauthenticated(tick.now, session, ReasonCode::NotAuthorized, false);
                    return Some(AuthDecision::Disconnect(ReasonCode::NotAuthorized, detail));
                }
                session.is_superuser = login.is_superuser;
                let grant = self.access.renewed_grant(session.grant(), login.grant.clone());
                session.set_grant(grant);
                core.taps
                    .reauthenticated(tick.now, session, ReasonCode::Success, login.is_superuser);
                core.sessions.resize_holding(slot);
                expire_login(core, tick.now, conn, login.expires_at_unix_ms);
                send_auth(
                    core,
                    conn,
                    ReasonCode::Success,
                    pending.method.as_deref(),
                    login.data.as_deref(),
                );
                core.effects.push(Effect::Resume { conn });
                Some(AuthDecision::RightsChanged(slot))
            }
            (ConnectionPhase::Online, AuthOutcome::Inbox(_)) => {
                let detail = "a re-authentication cannot change the kind of the client";
                Some(AuthDecision::Disconnect(ReasonCode::NotAuthorized, detail))
            }
            (ConnectionPhase::Online, AuthOutcome::Deny { reason, detail }) => {
                if let Some(session) = core.sessions.get(slot) {
                    core.taps.reauthenticated(tick.now, session, reason, false);
                }
                Some(AuthDecision::Disconnect(reason, detail))
            }
            (_, outcome) => {
                let client_id = pending.client_id.clone();
                let login = self.conclude(tick, conn, &pending.connect()?, client_id, outcome)?;
                Some(AuthDecision::Accept(pending, login))
            }
        }
    }

    /// Reports the outcome of a CONNECT to the tap. Rejects the client, or returns it if it is authenticated.
    fn conclude(
        &mut self,
        tick: &mut Tick<'_>,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client_id: Box<str>,
        outcome: AuthOutcome,
    ) -> Option<Login> {
        match outcome {
            AuthOutcome::Allow(login) => {
                let login = Login::Client { client_id, login };
                let (connect, client) = login.terms(connect);
                report(tick.core, tick.now, conn, &connect, client, ReasonCode::Success);
                Some(login)
            }
            AuthOutcome::Deny { reason, detail } => {
                // With the user name that events may show.
                let user_name = connect.user_name.map(|name| self.access.shown_user_name(name));
                let shown = Connect {
                    user_name: user_name.as_deref(),
                    ..connect.clone()
                };
                let client = AcceptedClient::of(&client_id, false);
                report(tick.core, tick.now, conn, &shown, client, reason);
                let rejected = RejectedConnect {
                    client_id: &client_id,
                    connect: Some(connect),
                    reason,
                    detail,
                    is_authenticated: false,
                };
                self.reject(tick, conn, rejected);
                None
            }
            AuthOutcome::Inbox(client) => Some(Login::Inbox(client)),
            AuthOutcome::Continue { .. } => None,
        }
    }

    /// Returns the client id of the session that a CONNECT asks for.
    fn client_id(&self, tick: &mut Tick<'_>, conn: ConnSlot, connect: &Connect<'_>) -> Box<str> {
        match self.assigned_client_id(tick.core, conn, connect) {
            Some(assigned) => assigned,
            None if connect.client_id.is_empty() => unused_client_id(tick),
            None => connect.client_id.into(),
        }
    }

    /// Returns the client id that replaces that of CONNECT.
    fn assigned_client_id(&self, core: &ShardCore, conn: ConnSlot, connect: &Connect<'_>) -> Option<Box<str>> {
        let peer = &core.connections.get(conn)?.peer;
        self.access.assigned_client_id(&ConnectIdentity {
            client_id: connect.client_id,
            user_name: connect.user_name,
            password: connect.password,
            certificate: peer.certificate.as_deref(),
            listener: peer.listener,
        })
    }

    fn check_connect(&self, core: &ShardCore, conn: ConnSlot, connect: &Connect<'_>) -> Result<(), Rejection> {
        if core.connections.are_shutting_down() {
            return Err(Rejection(ReasonCode::ServerUnavailable, "the server is shutting down"));
        }
        match self.assigned_client_id(core, conn, connect) {
            Some(assigned) if assigned.len() > core.config.max_client_id_length => {
                let detail = OwnerLimit::ClientIdBytes.rejection();
                return Err(Rejection(ReasonCode::ClientIdentifierNotValid, detail));
            }
            Some(_) => {}
            None => check_client_id(&core.config, connect)?,
        }
        if let Some(will) = &connect.will {
            check_will(&core.config, will)?;
        }
        match connect.properties.authentication_method() {
            // [MQTT-4.12.0-1]
            Some(method) if !self.access.supports_auth_method(method) => Err(Rejection(
                ReasonCode::BadAuthenticationMethod,
                "the authentication method is not configured",
            )),
            _ => Ok(()),
        }
    }

    /// Handles AUTH of a client: the next step of an exchange, or the start of a re-authentication.
    pub fn auth_received(&mut self, tick: &mut Tick<'_>, conn: ConnSlot, auth: &Auth<'_>) -> AuthStep {
        let core = &mut *tick.core;
        core.stats.packets_received[PacketType::Auth as usize] += 1;
        let connection = core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection");
        if !connection.expects(auth) {
            return AuthStep::NotAllowed;
        }
        let client_id: Box<str> = match connection.pending_client_id() {
            Some(client_id) => client_id.into(),
            None => core.sessions.at(connection.session).client_id.clone(),
        };
        let session = core.sessions.get(connection.session);
        let attempt = AuthAttempt(tick.numbers.next());
        connection.store_auth(attempt, &client_id, auth);
        let credentials = connection.auth_credentials(client_id, session, auth);
        if let Some(outcome) = self.access.authenticate_now(&credentials) {
            return AuthStep::Decided(attempt, outcome);
        }
        core.effects.push(Effect::Authenticate {
            conn,
            attempt,
            credentials: Box::new(credentials),
        });
        AuthStep::Asked
    }

    /// Rejects a client that has not completed its enhanced authentication in time. Does nothing while the
    /// authenticator decides.
    pub fn check_exchange(&mut self, tick: &mut Tick<'_>, conn: ConnSlot, epoch: ConnEpoch) {
        let Some(connection) = tick.core.connections.live(conn, epoch) else {
            return;
        };
        let is_late = connection
            .login_expires_at_ms
            .is_some_and(|at_ms| at_ms <= tick.now.monotonic_ms);
        if connection.phase() != ConnectionPhase::AwaitingAuth || !is_late {
            return;
        }
        let client_id: Box<str> = connection.pending_client_id().unwrap_or_default().into();
        let rejected = RejectedConnect {
            client_id: &client_id,
            connect: None,
            reason: ReasonCode::NotAuthorized,
            detail: "the client did not complete the enhanced authentication in time",
            is_authenticated: false,
        };
        self.reject(tick, conn, rejected);
    }

    /// The client has sent DISCONNECT instead of an AUTH.
    pub fn disconnect_received(&mut self, tick: &mut Tick<'_>, conn: ConnSlot, disconnect: &Disconnect<'_>) {
        tick.core.stats.packets_received[PacketType::Disconnect as usize] += 1;
        let rejected = RejectedConnect {
            client_id: "",
            connect: None,
            reason: disconnect.reason,
            detail: "the client disconnected during authentication",
            is_authenticated: false,
        };
        self.close_rejected(tick, conn, rejected);
    }

    /// Rejects a malformed or unsupported CONNECT.
    pub fn connect_malformed(&mut self, tick: &mut Tick<'_>, conn: ConnSlot, bytes: &[u8], error: DecodeError) {
        // An unsupported version is answered in the nearest supported one [MQTT-3.1.2-2]. For other errors only MQTT 5
        // has reason codes, and 3.1.1 requires closing the connection without an answer.
        let is_other_version = matches!(error.kind, DecodeErrorKind::UnsupportedProtocolVersion(_));
        let version = mqtt::connect_answer_version(bytes).filter(|v| is_other_version || *v == ProtocolVersion::V5);
        let detail = error.kind.to_string();
        let rejected = RejectedConnect {
            client_id: "",
            connect: None,
            reason: error.reason,
            detail: &detail,
            is_authenticated: false,
        };
        match version {
            Some(version) => {
                let connection = tick.core.connections.get_mut(conn);
                connection.expect("the connection is open").version = version;
                self.reject(tick, conn, rejected);
            }
            None => self.close_rejected(tick, conn, rejected),
        }
    }

    /// Sends CONNACK with a failure code where the version has one, and closes the connection [MQTT-3.1.4-2],
    /// [MQTT-3.2.2-7].
    pub fn reject(&mut self, tick: &mut Tick<'_>, conn: ConnSlot, rejected: RejectedConnect<'_>) {
        let core = &mut *tick.core;
        let connection = core.connections.get(conn);
        let packet_bytes_max = connection.map_or(0, |connection| connection.maximum_packet_size);
        let mut bytes = Vec::new();
        rejected.write_properties(&core.config, packet_bytes_max, &mut bytes);
        let connack = ConnAck {
            session_present: false,
            reason: rejected.reason,
            properties: Properties::from_validated(&bytes),
        };
        core.send(conn, &Packet::ConnAck(connack));
        self.close_rejected(tick, conn, rejected);
    }

    /// Records a rejected connection for operators and closes it.
    pub fn close_rejected(&mut self, tick: &mut Tick<'_>, conn: ConnSlot, rejected: RejectedConnect<'_>) {
        let RejectedConnect {
            client_id,
            connect,
            reason,
            detail,
            ..
        } = rejected;
        let core = &mut *tick.core;
        let Some(connection) = core.connections.get_mut(conn) else {
            return;
        };
        connection.close();
        let version = connection.version;
        let user_name = connect.and_then(|connect| connect.user_name);
        let user_name = user_name.map(|name| self.access.shown_user_name(name));
        let listener = connection.peer.listener;
        let refusal = RejectedConnection {
            at_unix_ms: tick.now.unix_ms,
            client_id: client_id.into(),
            user_name: user_name.clone(),
            address: connection.peer.address,
            transport: connection.peer.transport,
            listener,
            reason,
            detail: detail.into(),
        };
        let client = TapClient {
            client_id,
            user_name: user_name.as_deref(),
            address: refusal.address,
            listener: Some(listener),
            version,
            grant: &LoginGrant::None,
            mountpoint: None,
        };
        let tap_event = TapEvent::ConnAck {
            reason,
            granted: connect.map(|connect| GrantedConnect::of(&core.config, connect, None)),
            properties: connect.map_or(&[], |connect| connect.properties.as_bytes()),
        };
        core.taps
            .client_event(tick.now, client, TapEventMask::CONNACK, &tap_event);
        core.effects.push(Effect::Event(ConnectionEvent::Refused {
            client_id: refusal.client_id.clone(),
            user_name: refusal.user_name.clone(),
            address: refusal.address,
            reason,
            detail: detail.into(),
        }));
        core.stats.refused_connections += 1;
        if let Some(limit) = OwnerLimit::of_rejection(detail) {
            core.stats.limit_rejections[limit as usize] += 1;
        }
        self.rejected.add(refusal);
        core.effects.push(Effect::Close {
            conn,
            has_sent_disconnect: false,
        });
    }
}

fn check_client_id(config: &ShardConfig, connect: &Connect<'_>) -> Result<(), Rejection> {
    let detail = if connect.client_id.len() > config.max_client_id_length {
        OwnerLimit::ClientIdBytes.rejection()
    } else if !connect.client_id.is_empty() || connect.version == ProtocolVersion::V5 {
        return Ok(());
    } else if !connect.clean_start {
        // [MQTT-3.1.3-8]
        "an empty client id requires Clean Session 1"
    } else if connect.version == ProtocolVersion::V3_1 {
        "MQTT 3.1 requires a client id"
    } else {
        return Ok(());
    };
    Err(Rejection(ReasonCode::ClientIdentifierNotValid, detail))
}

fn check_will(config: &ShardConfig, will: &mqtt::Will<'_>) -> Result<(), Rejection> {
    if will.topic.len() + will.payload.len() + will.properties.as_bytes().len() > config.max_will_bytes {
        return Err(Rejection(ReasonCode::QuotaExceeded, OwnerLimit::WillBytes.rejection()));
    }
    if will.qos > config.max_qos {
        // [MQTT-3.2.2-12]
        let detail = "the will's QoS is above mqtt.max_qos";
        return Err(Rejection(ReasonCode::QoSNotSupported, detail));
    }
    if will.retain && !config.retain_available {
        // [MQTT-3.2.2-13]
        let detail = "the will is retained and mqtt.retain_available is off";
        return Err(Rejection(ReasonCode::RetainNotSupported, detail));
    }
    let is_shallow = mqtt::levels(will.topic).count() <= config.max_topic_levels;
    if mqtt::validate_topic_name(will.topic).is_err() || !is_shallow || !config.allows_characters(will.topic) {
        let detail = "the will's topic is not a valid topic name";
        return Err(Rejection(ReasonCode::TopicNameInvalid, detail));
    }
    Ok(())
}

/// Creates an unused client id whose home is this shard [MQTT-3.1.3-6], [MQTT-3.2.2-16].
fn unused_client_id(tick: &mut Tick<'_>) -> Box<str> {
    loop {
        let id = format!("auto-{:016X}{:04X}", tick.random.next(), tick.random.next() as u16);
        if home_shard(&id, tick.core.shards) == Some(tick.core.id) && tick.core.sessions.slot_of(&id).is_none() {
            return id.into();
        }
    }
}

/// Reports the result of authenticating a CONNECT to the tap.
fn report(
    core: &mut ShardCore,
    now: Now,
    conn: ConnSlot,
    connect: &Connect<'_>,
    client: AcceptedClient<'_>,
    reason: ReasonCode,
) {
    if let Some(connection) = core.connections.get(conn) {
        core.taps.authenticated(now, connection, connect, client, reason);
    }
}

/// Disconnects the client when its login expires. `None` for never.
pub(crate) fn expire_login(core: &mut ShardCore, now: Now, conn: ConnSlot, expires_at_unix_ms: Option<u64>) {
    let connection = core.connections.get_mut(conn).expect("the connection is open");
    let epoch = connection.epoch;
    let in_ms = expires_at_unix_ms.map(|at_unix_ms| at_unix_ms.saturating_sub(now.unix_ms));
    connection.login_expires_at_ms = in_ms.map(|in_ms| now.monotonic_ms.saturating_add(in_ms));
    if let Some(at_ms) = connection.login_expires_at_ms {
        core.timers.wake(now, at_ms, ShardTimer::LoginExpiry { conn, epoch });
    }
}

/// Sends the next step of an exchange to the client [MQTT-4.12.0-2].
fn continue_exchange(core: &mut ShardCore, now: Now, conn: ConnSlot, pending: PendingConnect, data: &[u8]) {
    let reason = ReasonCode::ContinueAuthentication;
    send_auth(core, conn, reason, pending.method.as_deref(), Some(data));
    let connection = core.connections.get_mut(conn).expect("the connection is open");
    connection.await_auth(Box::new(pending));
    // A session has its login until the re-authentication is complete.
    if connection.phase() == ConnectionPhase::AwaitingAuth {
        let epoch = connection.epoch;
        let ends_at_ms = now.monotonic_ms + EXCHANGE_MS_MAX;
        let ends_at_ms = *connection.login_expires_at_ms.get_or_insert(ends_at_ms);
        core.timers
            .wake(now, ends_at_ms, ShardTimer::LoginExpiry { conn, epoch });
    }
    core.effects.push(Effect::Resume { conn });
}

fn send_auth(core: &mut ShardCore, conn: ConnSlot, reason: ReasonCode, method: Option<&str>, data: Option<&[u8]>) {
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    if let Some(method) = method {
        writer.put(Property::AuthenticationMethod(method));
    }
    if let Some(data) = data {
        writer.put(Property::AuthenticationData(data));
    }
    let properties = writer.finish();
    core.send(conn, &Packet::Auth(Auth { reason, properties }));
}
