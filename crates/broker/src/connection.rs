//! A network connection in the shard: its phase, its limits, and its topic aliases.

use std::collections::HashMap;

use mqtt::{Auth, Connect, Decoded, ProtocolVersion, Publish, ReasonCode};

use crate::access::{AuthExchange, ConnectCredentials, LoginGrant};
use crate::config::ShardConfig;
use crate::effect::{Now, Peer};
use crate::exchange_memory::ReservedMemory;
use crate::login::Login;
use crate::publish_limits::PublishLimit;
use crate::publish_quota::PublishQuota;
use crate::session::Session;
use crate::slots::{AuthAttempt, ConnEpoch, ConnSlot, SessionSlot};
use crate::stream_role::StreamRole;

pub struct Connection {
    pub peer: Peer,
    phase: ConnectionPhase,
    pub version: ProtocolVersion,
    /// Slot of the session; `SessionSlot::NONE` before CONNECT is accepted.
    pub session: SessionSlot,
    /// Number of the last question to the authenticator. Numbers are unique, so that a late answer, also one for an
    /// earlier connection in the slot, is recognised.
    attempt: AuthAttempt,
    /// Distinguishes this connection from earlier ones in the same slot.
    pub epoch: ConnEpoch,
    last_packet_ms: u64,
    /// Monotonic time at which the login of the client expires. Before CONNACK, the time at which an enhanced
    /// authentication must be complete.
    pub login_expires_at_ms: Option<u64>,
    /// Maximum Packet Size of CONNECT (MQTT 5).
    pub maximum_packet_size: u32,
    /// Receive Maximum sent in CONNACK. It stays in force if the configuration changes.
    pub receive_maximum: u16,
    /// QoS 2 messages received on this connection and not released. Those of earlier connections do not count, because
    /// each connection starts with the full quota (section 4.9).
    pub open_exactly_once: u16,
    pub topic_alias_maximum: u16,
    /// Authentication Method of CONNECT. Re-authentication must use the same one [MQTT-4.12.1-1].
    method: Option<Box<str>>,
    /// The first User Properties of CONNECT in wire format, for operators to see.
    user_properties: Box<[u8]>,
    pub aliases: Option<Box<Aliases>>,
    pending: Option<Box<PendingConnect>>,
    /// `None` if no publish limit applies to the client.
    pub publish_quota: Option<Box<PublishQuota>>,
    /// Acknowledgements that wait for the journal. Later ones wait behind them.
    pub waiting_acks: u32,
    /// Acknowledgements that wait for the tap, after the journal.
    pub acks_waiting_for_tap: u32,
    /// Reading is paused until some of these acknowledgements have been sent.
    pub is_held_by_acks: bool,
    /// Reading is paused until the journal accepts records again.
    pub is_held_by_journal: bool,
    /// Reading is paused until another system has answered a question.
    pub is_held_by_question: bool,
    /// The access rules of the session may ask another system.
    pub asks_access: bool,
    /// The answer for the next packet has arrived.
    pub has_asked: bool,
    pub streams: StreamRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPhase {
    /// Waits for CONNECT.
    New,
    /// Waits for `Shard::authenticated`.
    Authenticating,
    /// Waits for AUTH of the client in an enhanced authentication.
    AwaitingAuth,
    Online,
    /// Closing was requested; received data is ignored [MQTT-3.14.4-2].
    Closing,
}

/// A CONNECT that waits for a decision, or a re-authentication of an online client.
pub struct PendingConnect {
    /// The packet as received. It is decoded again after the decision.
    pub packet: Box<[u8]>,
    pub client_id: Box<str>,
    pub method: Option<Box<str>>,
    /// Waits for the authenticator, not for the client.
    pub is_decision_pending: bool,
    /// State of the authenticator while the client is asked.
    pub exchange: Option<AuthExchange>,
    /// Memory of the packet and the state of an enhanced authentication before CONNACK. `None` if it is small.
    pub memory: Option<ReservedMemory>,
    /// The client is authenticated, and waits for the answer to a question about its access rules.
    pub login: Option<Box<Login>>,
}

impl PendingConnect {
    /// Returns a CONNECT that waits. `packet` is the packet as received.
    pub fn new(client_id: &str, connect: &Connect<'_>, packet: &[u8]) -> PendingConnect {
        PendingConnect {
            packet: packet.into(),
            client_id: client_id.into(),
            method: connect.properties.authentication_method().map(Into::into),
            is_decision_pending: true,
            exchange: None,
            memory: None,
            login: None,
        }
    }

    /// Decodes the packet.
    pub fn connect(&self) -> Option<Connect<'_>> {
        match mqtt::decode_connect(&self.packet, self.packet.len()) {
            Ok(Decoded::Complete { packet, .. }) => Some(packet),
            _ => None,
        }
    }
}

/// Topic aliases. Each direction has its own limit [MQTT-3.3.2-8], [MQTT-3.3.2-11].
#[derive(Default)]
pub struct Aliases {
    pub incoming: IncomingAliases,
    /// Topics to which the server has assigned an alias.
    pub outgoing: HashMap<Box<str>, u16>,
    pub outgoing_max: u16,
}

/// Bytes of User Properties of CONNECT that are stored for operators to see.
pub(crate) const USER_PROPERTIES_BYTES_MAX: usize = 4096;

/// Shorter topics do not get an alias, because the alias itself takes three bytes.
const ALIAS_TOPIC_BYTES_MIN: usize = 4;

/// Marks an alias that the client already knows. The server assigns fewer aliases than this bit.
pub const KNOWN_ALIAS: u16 = 0x8000;

/// Total length of topic names that a connection may store under aliases. The maximum of 65,535 aliases could use 4 GiB
/// otherwise.
pub(crate) const INCOMING_ALIAS_BYTES_MAX: usize = 4 * 1024 * 1024;

impl Aliases {
    /// Returns an alias for the topic, marked with `KNOWN_ALIAS` if the client knows it already [MQTT-3.3.2-9].
    pub fn for_topic(&mut self, topic: &str) -> Option<u16> {
        if let Some(alias) = self.outgoing.get(topic) {
            return Some(alias | KNOWN_ALIAS);
        }
        let next = self.outgoing.len() as u16 + 1;
        if next > self.outgoing_max || topic.len() < ALIAS_TOPIC_BYTES_MIN {
            return None;
        }
        self.outgoing.insert(topic.into(), next);
        Some(next)
    }
}

/// Aliases set by the client. Sparse, because a client may start with alias 65,535.
#[derive(Default)]
pub struct IncomingAliases {
    topics: HashMap<u16, Box<str>>,
    bytes: usize,
}

impl IncomingAliases {
    pub fn get(&self, alias: u16) -> Option<&str> {
        self.topics.get(&alias).map(AsRef::as_ref)
    }

    /// Sets an alias. Returns false if the length limit is exceeded.
    pub fn set(&mut self, alias: u16, topic: &str) -> bool {
        let before = self.topics.get(&alias);
        if before.is_some_and(|before| **before == *topic) {
            return true;
        }
        let bytes = self.bytes - before.map_or(0, |before| before.len()) + topic.len();
        if bytes > INCOMING_ALIAS_BYTES_MAX {
            return false;
        }
        self.bytes = bytes;
        self.topics.insert(alias, topic.into());
        true
    }
}

impl Connection {
    pub fn new(peer: Peer, epoch: ConnEpoch, now_ms: u64) -> Connection {
        Connection {
            peer,
            phase: ConnectionPhase::New,
            version: ProtocolVersion::V3_1_1,
            session: SessionSlot::NONE,
            attempt: AuthAttempt::default(),
            user_properties: Box::default(),
            epoch,
            last_packet_ms: now_ms,
            login_expires_at_ms: None,
            maximum_packet_size: u32::MAX,
            receive_maximum: 0,
            open_exactly_once: 0,
            topic_alias_maximum: 0,
            method: None,
            aliases: None,
            pending: None,
            publish_quota: None,
            waiting_acks: 0,
            acks_waiting_for_tap: 0,
            is_held_by_acks: false,
            is_held_by_journal: false,
            is_held_by_question: false,
            asks_access: false,
            has_asked: false,
            streams: StreamRole::Only,
        }
    }

    /// Returns the connection of a data stream, which is online at once. `self` is the connection of the control
    /// stream, in the slot `control`. The caller sets the session.
    pub(crate) fn for_data_stream(&self, control: ConnSlot, epoch: ConnEpoch, now: Now) -> Connection {
        let outgoing_max = self.aliases.as_ref().map(|aliases| aliases.outgoing_max);
        let aliases = outgoing_max.map(|outgoing_max| Aliases {
            outgoing_max,
            ..Aliases::default()
        });
        let quota = self.publish_quota.as_ref().map(|quota| quota.for_data_stream());
        Connection {
            phase: ConnectionPhase::Online,
            version: self.version,
            maximum_packet_size: self.maximum_packet_size,
            receive_maximum: self.receive_maximum,
            topic_alias_maximum: self.topic_alias_maximum,
            aliases: aliases.map(Box::new),
            publish_quota: quota.map(Box::new),
            streams: StreamRole::Data(control),
            ..Connection::new(self.peer.clone(), epoch, now.monotonic_ms)
        }
    }

    pub fn is_data_stream(&self) -> bool {
        matches!(self.streams, StreamRole::Data(_))
    }

    #[inline]
    pub fn phase(&self) -> ConnectionPhase {
        self.phase
    }

    #[inline]
    pub fn is_online(&self) -> bool {
        self.phase == ConnectionPhase::Online
    }

    pub fn is_closing(&self) -> bool {
        self.phase == ConnectionPhase::Closing
    }

    /// A packet was received, or the server reads again after it has paused the client.
    #[inline]
    pub fn heard(&mut self, now: Now) {
        self.last_packet_ms = now.monotonic_ms;
    }

    /// Returns the first User Properties of CONNECT in wire format.
    pub fn user_properties(&self) -> &[u8] {
        &self.user_properties
    }

    /// A well-formed CONNECT was received.
    pub fn connect_received(&mut self, now: Now, connect: &Connect<'_>) {
        self.heard(now);
        self.version = connect.version;
        self.maximum_packet_size = connect.properties.maximum_packet_size().unwrap_or(u32::MAX);
    }

    /// Returns the credentials of a CONNECT. Moves the client certificate out of the connection.
    pub fn take_credentials(
        &mut self,
        connect: &Connect<'_>,
        client_id: &str,
        packet_bytes: usize,
    ) -> ConnectCredentials {
        ConnectCredentials {
            client_id: client_id.into(),
            user_name: connect.user_name.map(Into::into),
            password: connect.password.map(Into::into),
            address: self.peer.address.ip(),
            listener: self.peer.listener,
            certificate_common_name: self.peer.certificate_common_name.clone(),
            certificate: self.peer.certificate.take(),
            method: connect.properties.authentication_method().map(Into::into),
            data: connect.properties.authentication_data().map(Into::into),
            packet_bytes,
            session_grant: LoginGrant::None,
            exchange: None,
        }
    }

    /// Returns the credentials of an AUTH. Moves the state of the exchange out of the connection. `session` is `None`
    /// before CONNACK.
    pub fn auth_credentials(
        &mut self,
        client_id: Box<str>,
        session: Option<&Session>,
        auth: &Auth<'_>,
    ) -> ConnectCredentials {
        ConnectCredentials {
            client_id,
            user_name: session.and_then(|session| session.user_name.clone()),
            password: None,
            address: self.peer.address.ip(),
            listener: self.peer.listener,
            certificate_common_name: None,
            certificate: None,
            method: auth.properties.authentication_method().map(Into::into),
            data: auth.properties.authentication_data().map(Into::into),
            packet_bytes: self.pending.as_ref().map_or(0, |pending| pending.packet.len()),
            session_grant: session.map_or(LoginGrant::None, |session| session.grant().clone()),
            exchange: self.pending.as_mut().and_then(|pending| pending.exchange.take()),
        }
    }

    /// Stores a CONNECT until the authenticator has decided.
    pub fn store_connect(&mut self, attempt: AuthAttempt, pending: PendingConnect) {
        self.phase = ConnectionPhase::Authenticating;
        self.attempt = attempt;
        self.pending = Some(Box::new(pending));
    }

    /// Stores that an AUTH of the client waits for the authenticator.
    pub fn store_auth(&mut self, attempt: AuthAttempt, client_id: &str, auth: &Auth<'_>) {
        self.attempt = attempt;
        if self.phase == ConnectionPhase::AwaitingAuth {
            self.phase = ConnectionPhase::Authenticating;
        }
        let begin = || PendingConnect {
            packet: Box::default(),
            client_id: client_id.into(),
            method: auth.properties.authentication_method().map(Into::into),
            is_decision_pending: true,
            exchange: None,
            memory: None,
            login: None,
        };
        self.pending
            .get_or_insert_with(|| Box::new(begin()))
            .is_decision_pending = true;
    }

    /// Returns whether the last question to the authenticator has this number.
    pub fn is_attempt(&self, attempt: AuthAttempt) -> bool {
        self.attempt == attempt
    }

    /// Returns the client id of a CONNECT or re-authentication that waits for a decision.
    pub fn pending_client_id(&self) -> Option<&str> {
        self.pending.as_ref().map(|pending| &*pending.client_id)
    }

    /// Removes and returns the CONNECT or AUTH that waits for a decision.
    pub fn take_pending(&mut self) -> Option<Box<PendingConnect>> {
        self.pending.take()
    }

    /// Stores the CONNECT of an authenticated client until a question about its access rules is answered.
    pub fn store_login(&mut self, mut stored: Box<PendingConnect>, login: Login) {
        self.phase = ConnectionPhase::Authenticating;
        stored.login = Some(Box::new(login));
        self.pending = Some(stored);
    }

    /// Removes and returns the CONNECT of an authenticated client that waits for an answer.
    pub fn take_login(&mut self) -> Option<(Box<PendingConnect>, Login)> {
        let login = self.pending.as_mut()?.login.take()?;
        Some((self.pending.take()?, *login))
    }

    /// The authenticator needs another AUTH of the client.
    pub fn await_auth(&mut self, mut pending: Box<PendingConnect>) {
        pending.is_decision_pending = false;
        self.pending = Some(pending);
        if self.phase != ConnectionPhase::Online {
            self.phase = ConnectionPhase::AwaitingAuth;
        }
    }

    /// Returns the topic name of a PUBLISH. `None` if its alias is unknown.
    pub fn topic_of<'a>(&'a self, publish: &Publish<'a>) -> Option<&'a str> {
        if !publish.topic.is_empty() {
            return Some(publish.topic);
        }
        let alias = publish.properties.topic_alias()?;
        self.aliases.as_ref()?.incoming.get(alias)
    }

    /// Returns whether the client may send this AUTH now.
    pub fn expects(&self, auth: &Auth<'_>) -> bool {
        let method = auth.properties.authentication_method();
        let is_continuation = auth.reason == ReasonCode::ContinueAuthentication;
        match (&self.pending, self.phase) {
            (Some(pending), ConnectionPhase::AwaitingAuth) => is_continuation && pending.method.as_deref() == method,
            (Some(pending), ConnectionPhase::Online) => {
                is_continuation && !pending.is_decision_pending && pending.method.as_deref() == method
            }
            // Re-authentication needs the method of CONNECT [MQTT-4.12.1-1].
            (None, ConnectionPhase::Online) => {
                auth.reason == ReasonCode::ReAuthenticate && method.is_some() && self.method.as_deref() == method
            }
            _ => false,
        }
    }

    /// Attaches the connection to its session, with the terms of an accepted CONNECT.
    pub fn attach(&mut self, slot: SessionSlot, config: &ShardConfig, connect: &Connect<'_>) {
        let properties = connect.properties;
        self.session = slot;
        self.phase = ConnectionPhase::Online;
        self.receive_maximum = config.receive_maximum;
        self.topic_alias_maximum = config.max_topic_alias_in;
        self.method = properties.authentication_method().map(Into::into);
        let mut shown = Vec::new();
        properties.append_user_properties(USER_PROPERTIES_BYTES_MAX, &mut shown);
        self.user_properties = shown.into();
        let outgoing_max = properties
            .topic_alias_maximum()
            .unwrap_or(0)
            .min(config.max_topic_alias_out);
        if connect.version == ProtocolVersion::V5 && outgoing_max > 0 {
            self.aliases = Some(Box::new(Aliases {
                outgoing_max,
                ..Aliases::default()
            }));
        }
    }

    /// Detaches the connection from its session. Returns the session if the connection was online.
    pub fn detach(&mut self) -> Option<SessionSlot> {
        let slot = std::mem::replace(&mut self.session, SessionSlot::NONE);
        let was_online = self.is_online();
        self.phase = ConnectionPhase::Closing;
        self.publish_quota = None;
        (was_online && slot != SessionSlot::NONE).then_some(slot)
    }

    /// Closing was requested. Nothing that is received is handled any more.
    pub fn close(&mut self) {
        self.phase = ConnectionPhase::Closing;
        self.pending = None;
        self.publish_quota = None;
    }

    /// Returns since when the client is silent. `not_reading_ms` is the time until which the server did not read from
    /// clients. Only complete packets count [MQTT-3.1.2-22].
    pub fn silent_since_ms(&self, not_reading_ms: u64) -> u64 {
        self.last_packet_ms.max(not_reading_ms)
    }

    /// Returns the publish limit for which the client waits.
    pub fn throttled_by(&self) -> Option<PublishLimit> {
        self.publish_quota.as_ref()?.throttled_by()
    }

    /// Returns whether the server does not read from this client, so that its keep-alive time does not run.
    pub fn is_reading_paused(&self) -> bool {
        self.throttled_by().is_some() || self.is_held_by_journal || self.is_held_by_acks || self.is_held_by_question
    }
}
