//! CONNECT to CONNACK: is it allowed, whose session is it, what is granted.
//!
//! Nothing that follows a CONNECT is handled before it has been accepted: while a decision is awaited the connection is
//! paused, and a refused one is closing.

use mqtt::{
    Auth, ConnAck, Connect, DecodeError, DecodeErrorKind, Decoded, Packet, PacketType, Properties, Property,
    PropertyWriter, ProtocolVersion, ReasonCode,
};

use crate::access::{AuthOutcome, Credentials, Identity};
use crate::connection::{Aliases, PendingConnect, Phase, PublishQuota};
use crate::deliver::Link;
use crate::effect::{ConnSlot, DisconnectReason, Effect, Event, Now};
use crate::inspect::Refusal;
use crate::outgoing::Outgoing;
use crate::session::{FilterMap, Replays, Session, Will};
use crate::shard::{REFUSALS_KEPT, Shard};
use crate::timers::Timer;

/// Why a CONNECT is refused: the code for the client and the sentence for the operator.
struct Refused(ReasonCode, &'static str);

impl Shard {
    /// A well-formed CONNECT; `bytes` is the packet itself.
    pub(crate) fn connect(&mut self, now: Now, conn: ConnSlot, connect: &Connect<'_>, bytes: &[u8]) {
        let connection = self
            .core
            .connection_mut(conn)
            .expect("a packet comes from an open connection");
        connection.version = connect.version;
        connection.last_packet_ms = now.monotonic_ms;
        connection.maximum_packet_size = connect.properties.maximum_packet_size().unwrap_or(u32::MAX);
        if let Err(Refused(reason, because)) = self.check_connect(connect) {
            return self.refuse(now, conn, connect.client_id, connect.user_name, reason, because);
        }
        let client_id: Box<str> = if connect.client_id.is_empty() {
            self.assign_client_id()
        } else {
            connect.client_id.into()
        };
        let credentials = self.credentials(conn, connect, &client_id);
        match self.access.authenticate_now(&credentials) {
            Some(AuthOutcome::Allow { is_superuser, data }) => {
                self.accept(now, conn, connect, &client_id, is_superuser, data.as_deref());
            }
            Some(AuthOutcome::Deny { reason, because }) => {
                self.refuse(now, conn, &client_id, connect.user_name, reason, because);
            }
            Some(outcome @ AuthOutcome::Continue { .. }) => {
                self.keep_connect(conn, connect, client_id, bytes);
                self.authentication_decided(now, conn, outcome);
            }
            None => {
                let attempt = self.keep_connect(conn, connect, client_id, bytes);
                self.core.effects.push(Effect::Authenticate {
                    conn,
                    attempt,
                    credentials: Box::new(credentials),
                });
            }
        }
    }

    fn keep_connect(&mut self, conn: ConnSlot, connect: &Connect<'_>, client_id: Box<str>, bytes: &[u8]) -> u32 {
        self.epochs = self.epochs.wrapping_add(1);
        let attempt = self.epochs;
        let connection = self
            .core
            .connection_mut(conn)
            .expect("a packet comes from an open connection");
        connection.phase = Phase::Authenticating;
        connection.attempt = attempt;
        let method = connect.properties.authentication_method().map(Into::into);
        connection.pending = Some(Box::new(PendingConnect {
            packet: bytes.into(),
            client_id,
            method,
            is_asked: true,
        }));
        attempt
    }

    fn check_connect(&self, connect: &Connect<'_>) -> Result<(), Refused> {
        let config = &self.core.config;
        if self.is_shutting_down {
            return Err(Refused(ReasonCode::ServerUnavailable, "the server is shutting down"));
        }
        if connect.client_id.is_empty() && connect.version != ProtocolVersion::V5 && !connect.clean_start {
            // [MQTT-3.1.3-8]
            return Err(Refused(
                ReasonCode::ClientIdentifierNotValid,
                "an empty client id needs Clean Session 1",
            ));
        }
        if connect.client_id.is_empty() && connect.version == ProtocolVersion::V3_1 {
            return Err(Refused(
                ReasonCode::ClientIdentifierNotValid,
                "MQTT 3.1 has no empty client ids",
            ));
        }
        if connect.client_id.len() > config.maximum_client_id_bytes {
            return Err(Refused(
                ReasonCode::ClientIdentifierNotValid,
                "the client id is longer than mqtt.max_client_id_length",
            ));
        }
        if let Some(will) = &connect.will {
            if will.qos > config.maximum_qos {
                // [MQTT-3.2.2-12]
                return Err(Refused(
                    ReasonCode::QoSNotSupported,
                    "the will's QoS is above mqtt.max_qos",
                ));
            }
            if will.retain && !config.is_retain_available {
                // [MQTT-3.2.2-13]
                return Err(Refused(
                    ReasonCode::RetainNotSupported,
                    "the will is retained and mqtt.retain_available is off",
                ));
            }
            if mqtt::validate_topic_name(will.topic).is_err()
                || mqtt::levels(will.topic).count() > config.maximum_topic_levels
            {
                return Err(Refused(
                    ReasonCode::TopicNameInvalid,
                    "the will's topic is not a valid topic name",
                ));
            }
        }
        match connect.properties.authentication_method() {
            // [MQTT-4.12.0-1]
            Some(method) if !self.access.knows_method(method) => Err(Refused(
                ReasonCode::BadAuthenticationMethod,
                "the authentication method is not configured",
            )),
            _ => Ok(()),
        }
    }

    fn credentials(&mut self, conn: ConnSlot, connect: &Connect<'_>, client_id: &str) -> Credentials {
        let peer = &self
            .core
            .connection_mut(conn)
            .expect("a packet comes from an open connection")
            .peer;
        Credentials {
            client_id: client_id.into(),
            user_name: connect.user_name.map(Into::into),
            password: connect.password.map(Into::into),
            address: peer.address.ip(),
            listener: peer.listener,
            certificate_common_name: peer.certificate_common_name.clone(),
            method: connect.properties.authentication_method().map(Into::into),
            data: connect.properties.authentication_data().map(Into::into),
        }
    }

    /// A client id that nobody has and whose home is this shard [MQTT-3.1.3-6], [MQTT-3.2.2-16].
    fn assign_client_id(&mut self) -> Box<str> {
        loop {
            let id = format!("auto-{:016X}{:04X}", self.next_random(), self.next_random() as u16);
            if Shard::home(&id, self.core.shards) == Some(self.core.id) && !self.by_client_id.contains_key(&*id) {
                return id.into();
            }
        }
    }

    /// What the authenticator decided about a CONNECT, an AUTH, or a re-authentication.
    pub(crate) fn authentication_decided(&mut self, now: Now, conn: ConnSlot, outcome: AuthOutcome) {
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        let phase = connection.phase;
        let Some(pending) = connection.pending.take() else {
            return;
        };
        match (phase, outcome) {
            (Phase::Closing, _) => {}
            (_, AuthOutcome::Continue { data }) => self.continue_authentication(conn, pending, phase, &data),
            (Phase::Online, AuthOutcome::Allow { data, .. }) => {
                self.send_auth(conn, ReasonCode::Success, pending.method.as_deref(), data.as_deref());
                self.core.effects.push(Effect::Resume { conn });
            }
            (Phase::Online, AuthOutcome::Deny { reason, because }) => {
                self.end_connection(now, conn, DisconnectReason::ReAuthenticationFailed, reason, because);
            }
            (_, outcome) => self.connect_decided(now, conn, &pending, outcome),
        }
    }

    fn connect_decided(&mut self, now: Now, conn: ConnSlot, pending: &PendingConnect, outcome: AuthOutcome) {
        let Ok(Decoded::Complete { packet: connect, .. }) = mqtt::decode_connect(&pending.packet, pending.packet.len())
        else {
            return;
        };
        match outcome {
            AuthOutcome::Allow { is_superuser, data } => {
                self.accept(now, conn, &connect, &pending.client_id, is_superuser, data.as_deref());
                self.core.effects.push(Effect::Resume { conn });
            }
            AuthOutcome::Deny { reason, because } => {
                self.refuse(now, conn, &pending.client_id, connect.user_name, reason, because);
            }
            AuthOutcome::Continue { .. } => {}
        }
    }

    fn continue_authentication(&mut self, conn: ConnSlot, mut pending: Box<PendingConnect>, phase: Phase, data: &[u8]) {
        // [MQTT-4.12.0-2]
        self.send_auth(
            conn,
            ReasonCode::ContinueAuthentication,
            pending.method.as_deref(),
            Some(data),
        );
        let connection = self.core.connection_mut(conn).expect("the caller found it");
        pending.is_asked = false;
        connection.pending = Some(pending);
        if phase != Phase::Online {
            connection.phase = Phase::AwaitingAuth;
        }
        self.core.effects.push(Effect::Resume { conn });
    }

    fn send_auth(&mut self, conn: ConnSlot, reason: ReasonCode, method: Option<&str>, data: Option<&[u8]>) {
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        if let Some(method) = method {
            writer.put(Property::AuthenticationMethod(method));
        }
        if let Some(data) = data {
            writer.put(Property::AuthenticationData(data));
        }
        let properties = writer.finish();
        self.send(conn, &Packet::Auth(Auth { reason, properties }));
    }

    /// AUTH from a client: the next step of an exchange, or the start of a re-authentication.
    pub(crate) fn auth_received(&mut self, now: Now, conn: ConnSlot, auth: &Auth<'_>) {
        self.core.stats.packets_received[PacketType::Auth as usize] += 1;
        let connection = self
            .core
            .connection_mut(conn)
            .expect("a packet comes from an open connection");
        let session = connection.session;
        let (phase, address, listener) = (connection.phase, connection.peer.address.ip(), connection.peer.listener);
        let is_expected = match phase {
            Phase::AwaitingAuth => auth.reason == ReasonCode::ContinueAuthentication,
            Phase::Online => match &connection.pending {
                Some(pending) => !pending.is_asked && auth.reason == ReasonCode::ContinueAuthentication,
                None => auth.reason == ReasonCode::ReAuthenticate,
            },
            _ => false,
        };
        let method = auth.properties.authentication_method();
        let known = match (&connection.pending, phase) {
            (Some(pending), _) => pending.method.as_deref() == method,
            // Only a client that connected with a method may authenticate anew, and with no other [MQTT-4.12.1-1].
            (None, Phase::Online) => method.is_some() && connection.method.as_deref() == method,
            _ => false,
        };
        if !is_expected || !known {
            // [MQTT-4.12.0-5], [MQTT-4.12.0-7]
            return self.protocol_error(now, conn, ReasonCode::ProtocolError, "an AUTH that no exchange expects");
        }
        self.epochs = self.epochs.wrapping_add(1);
        let attempt = self.epochs;
        let connection = self
            .core
            .connection_mut(conn)
            .expect("a packet comes from an open connection");
        connection.attempt = attempt;
        if phase == Phase::AwaitingAuth {
            connection.phase = Phase::Authenticating;
        }
        let client_id: Box<str> = match &connection.pending {
            Some(pending) => pending.client_id.clone(),
            None => self.core.session(session).client_id.clone(),
        };
        let connection = self
            .core
            .connection_mut(conn)
            .expect("a packet comes from an open connection");
        let pending = connection.pending.get_or_insert_with(|| {
            Box::new(PendingConnect {
                packet: Box::default(),
                client_id: client_id.clone(),
                method: method.map(Into::into),
                is_asked: true,
            })
        });
        pending.is_asked = true;
        let credentials = Credentials {
            client_id,
            user_name: None,
            password: None,
            address,
            listener,
            certificate_common_name: None,
            method: method.map(Into::into),
            data: auth.properties.authentication_data().map(Into::into),
        };
        self.core.effects.push(Effect::Authenticate {
            conn,
            attempt,
            credentials: Box::new(credentials),
        });
    }

    /// The CONNECT is allowed: make or find the session and answer.
    fn accept(
        &mut self,
        now: Now,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client_id: &str,
        is_superuser: bool,
        auth_data: Option<&[u8]>,
    ) {
        let existing = self.by_client_id.get(client_id).copied();
        if let Some(slot) = existing
            && self.core.config.is_client_id_owned
            && !is_superuser
            && self.core.session(slot).user_name.as_deref() != connect.user_name
        {
            let because = "the client id belongs to a session of another user";
            return self.refuse(
                now,
                conn,
                client_id,
                connect.user_name,
                ReasonCode::NotAuthorized,
                because,
            );
        }
        if existing.is_none() && self.by_client_id.len() >= self.core.config.sessions_max {
            let because = "limits.max_sessions is reached";
            return self.refuse(
                now,
                conn,
                client_id,
                connect.user_name,
                ReasonCode::QuotaExceeded,
                because,
            );
        }
        let keep_alive_s = self.granted_keep_alive(connect);
        let mut properties = std::mem::take(&mut self.bytes);
        properties.clear();
        if connect.version == ProtocolVersion::V5 {
            self.write_connack_properties(conn, connect, client_id, keep_alive_s, auth_data, &mut properties);
        }
        let room = self
            .core
            .connection_mut(conn)
            .map_or(0, |c| c.maximum_packet_size as usize);
        if properties.len() + if properties.len() < 125 { 5 } else { 7 } > room {
            // [MQTT-3.1.2-24]
            self.bytes = properties;
            let because = "the client's Maximum Packet Size leaves no room for a CONNACK";
            return self.refuse(
                now,
                conn,
                client_id,
                connect.user_name,
                ReasonCode::PacketTooLarge,
                because,
            );
        }
        let resumed = existing.and_then(|slot| self.take_over(now, slot, connect.clean_start));
        let session_present = resumed.is_some();
        let slot = resumed.unwrap_or_else(|| self.create_session(now, conn, client_id));
        self.attach(now, conn, slot, connect, is_superuser, keep_alive_s);
        let connack = ConnAck {
            session_present,
            reason: ReasonCode::Success,
            properties: Properties::from_validated(&properties),
        };
        self.send(conn, &Packet::ConnAck(connack));
        self.bytes = properties;
        self.set_keep_alive(now, conn, keep_alive_s);
        self.connected(now, slot, session_present);
    }

    /// Ends the connection that a session has, and the session itself when a clean start is asked for. Returns the slot if
    /// the session goes on.
    fn take_over(&mut self, now: Now, slot: u32, clean_start: bool) -> Option<u32> {
        let old = self.core.session(slot).conn;
        if let Some(old) = old {
            self.core.stats.takeovers += 1;
            let session = self.core.session_mut(slot);
            if !clean_start && session.expiry_s > 0 && session.will.as_ref().is_some_and(|w| w.delay_s > 0) {
                // The session goes on before the delay has passed [MQTT-3.1.3-9].
                session.will = None;
            }
            let expiry_s = std::mem::replace(&mut self.core.session_mut(slot).expiry_s, u32::MAX);
            // [MQTT-3.1.4-3]
            self.end_connection(
                now,
                old,
                DisconnectReason::TakenOver,
                ReasonCode::SessionTakenOver,
                "another connection uses the client id",
            );
            self.core.session_mut(slot).expiry_s = expiry_s;
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
        // Back before the delay has passed [MQTT-3.1.3-9].
        self.core.session_mut(slot).will = None;
        Some(slot)
    }

    fn create_session(&mut self, now: Now, conn: ConnSlot, client_id: &str) -> u32 {
        self.epochs = self.epochs.wrapping_add(1);
        let address = self
            .core
            .connection_mut(conn)
            .expect("the caller answers it")
            .peer
            .address;
        let session = Box::new(Session {
            client_id: client_id.into(),
            user_name: None,
            address,
            epoch: self.epochs,
            conn: None,
            version: ProtocolVersion::V3_1_1,
            is_superuser: false,
            is_bridge: false,
            clean_start: true,
            wants_problem_information: true,
            keep_alive_s: 0,
            window: 0,
            expiry_s: 0,
            connects: 0,
            connected_at_ms: now.unix_ms,
            disconnected_at_ms: 0,
            left_at_ms: 0,
            created_at_ms: now.unix_ms,
            last_disconnect: None,
            will: None,
            subscriptions: FilterMap::default(),
            access: None,
            outgoing: Outgoing::default(),
            received: Default::default(),
            replays: Replays::default(),
            drops: None,
            messages_received: 0,
            bytes_received: 0,
            is_unfinished: false,
            subacks: Vec::new(),
        });
        let slot = match self.free_sessions.pop() {
            Some(slot) => slot,
            None => self.core.add_session_slot(),
        };
        self.core.sessions[slot as usize] = Some(session);
        *self.core.link_mut(slot) = Link::default();
        self.by_client_id.insert(client_id.into(), slot);
        self.core.stats.sessions = self.by_client_id.len() as u64;
        self.core.stats.sessions_max = self.core.stats.sessions_max.max(self.core.stats.sessions);
        slot
    }

    /// Ties a connection and a session together on the terms of this CONNECT.
    fn attach(
        &mut self,
        now: Now,
        conn: ConnSlot,
        slot: u32,
        connect: &Connect<'_>,
        is_superuser: bool,
        keep_alive_s: u16,
    ) {
        let config = self.core.config.clone();
        self.epochs = self.epochs.wrapping_add(1);
        let connects = self.epochs;
        let properties = connect.properties;
        let expiry_s = self.granted_expiry(connect);
        let is_v5 = connect.version == ProtocolVersion::V5;
        let connection = self.core.connection_mut(conn).expect("the caller answers it");
        connection.session = slot;
        connection.phase = Phase::Online;
        connection.method = properties.authentication_method().map(Into::into);
        let outgoing_max = properties
            .topic_alias_maximum()
            .unwrap_or(0)
            .min(config.topic_alias_maximum_outgoing);
        if is_v5 && outgoing_max > 0 {
            connection.aliases = Some(Box::new(Aliases {
                outgoing_max,
                ..Aliases::default()
            }));
        }
        if config.limits_publishers() {
            connection.publish_quota = Some(Box::new(PublishQuota::full(&config, now.monotonic_ms)));
        }
        let address = connection.peer.address;
        let session = self.core.session_mut(slot);
        session.conn = Some(conn);
        session.address = address;
        session.version = connect.version;
        session.user_name = connect.user_name.map(Into::into);
        session.is_superuser = is_superuser;
        session.is_bridge = connect.is_bridge;
        session.clean_start = connect.clean_start;
        session.wants_problem_information = properties.request_problem_information().unwrap_or(true);
        session.keep_alive_s = keep_alive_s;
        session.window = properties
            .receive_maximum()
            .unwrap_or(u16::MAX)
            .min(config.inflight_max)
            .max(1);
        session.expiry_s = expiry_s;
        session.connects = connects;
        session.connected_at_ms = now.unix_ms;
        session.outgoing.sent = 0;
        session.will = connect.will.as_ref().map(|will| Box::new(Will::from_connect(will)));
        let identity = Identity {
            client_id: session.client_id.clone(),
            user_name: session.user_name.clone(),
            address: address.ip(),
            is_superuser,
        };
        let access = self.access.session(&identity);
        let is_filtered = self.core.link(slot).is_filtered;
        self.core.session_mut(slot).access = access;
        let is_replaying = !self.core.session(slot).replays.is_empty();
        let link = self.core.link_mut(slot);
        link.conn = conn.0;
        link.is_v5 = is_v5;
        link.is_filtered = is_filtered;
        link.is_replaying = is_replaying;
        link.uses_aliases = is_v5 && outgoing_max > 0;
        link.maximum_packet_size = properties.maximum_packet_size().unwrap_or(u32::MAX);
    }

    fn granted_keep_alive(&self, connect: &Connect<'_>) -> u16 {
        let config = &self.core.config;
        let asked = match config.server_keep_alive_s {
            Some(own) if connect.version == ProtocolVersion::V5 => own,
            _ => connect.keep_alive,
        };
        match config.keep_alive_max_s {
            Some(max) if asked == 0 || asked > max => max,
            _ => asked,
        }
    }

    fn granted_expiry(&self, connect: &Connect<'_>) -> u32 {
        let config = &self.core.config;
        match connect.version {
            ProtocolVersion::V5 => connect
                .properties
                .session_expiry_interval()
                .unwrap_or(0)
                .min(config.session_expiry_max_s),
            _ if connect.clean_start => 0,
            _ => config.session_expiry_v3_s.min(config.session_expiry_max_s),
        }
    }

    fn set_keep_alive(&mut self, now: Now, conn: ConnSlot, keep_alive_s: u16) {
        if keep_alive_s > 0 {
            let epoch = self.core.connection_mut(conn).map_or(0, |c| c.epoch);
            let allowed_ms = u64::from(keep_alive_s) * 10 * self.core.config.keep_alive_percent;
            let timer = Timer::KeepAlive { conn: conn.0, epoch };
            self.core.wake(now, now.monotonic_ms + allowed_ms, timer);
        }
    }

    /// What the client must know because it is not the protocol's default, or not what it asked for.
    fn write_connack_properties(
        &mut self,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client_id: &str,
        keep_alive_s: u16,
        auth_data: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) {
        let config = self.core.config.clone();
        let limit = self
            .core
            .connection_mut(conn)
            .and_then(|c| c.peer.maximum_packet_size)
            .unwrap_or(config.maximum_packet_size);
        let expiry_s = self.granted_expiry(connect);
        let mut w = PropertyWriter::new(out);
        if expiry_s != connect.properties.session_expiry_interval().unwrap_or(0) {
            w.put(Property::SessionExpiryInterval(expiry_s));
        }
        w.put(Property::ReceiveMaximum(config.receive_maximum));
        if config.maximum_qos < mqtt::QoS::ExactlyOnce {
            w.put(Property::MaximumQoS(config.maximum_qos as u8));
        }
        if !config.is_retain_available {
            w.put(Property::RetainAvailable(false));
        }
        w.put(Property::MaximumPacketSize(limit));
        if connect.client_id.is_empty() {
            w.put(Property::AssignedClientIdentifier(client_id));
        }
        if config.topic_alias_maximum > 0 {
            w.put(Property::TopicAliasMaximum(config.topic_alias_maximum));
        }
        for (is_available, property) in [
            (
                config.is_wildcard_available,
                Property::WildcardSubscriptionAvailable(false),
            ),
            (
                config.is_identifier_available,
                Property::SubscriptionIdentifierAvailable(false),
            ),
            (config.is_shared_available, Property::SharedSubscriptionAvailable(false)),
        ] {
            if !is_available {
                w.put(property);
            }
        }
        if keep_alive_s != connect.keep_alive {
            // [MQTT-3.2.2-21]
            w.put(Property::ServerKeepAlive(keep_alive_s));
        }
        if connect.properties.request_response_information() == Some(true)
            && let Some(information) = &config.response_information
        {
            w.put(Property::ResponseInformation(information));
        }
        if let Some(method) = connect.properties.authentication_method() {
            w.put(Property::AuthenticationMethod(method));
            if let Some(data) = auth_data {
                w.put(Property::AuthenticationData(data));
            }
        }
    }

    fn connected(&mut self, now: Now, slot: u32, session_present: bool) {
        let stats = &mut self.core.stats;
        stats.connections += 1;
        stats.connections_total += 1;
        stats.connections_max = stats.connections_max.max(stats.connections);
        let session = self.core.session(slot);
        let (connects, is_v5) = (session.connects, session.version == ProtocolVersion::V5);
        let event = Event::Connected {
            client_id: session.client_id.clone(),
            user_name: session.user_name.clone(),
            address: session.address,
            session_present,
        };
        self.event(event);
        if let Some(retry_ms) = self.core.config.retry_interval_ms
            && !is_v5
        {
            self.core.timers.insert(
                now.monotonic_ms + retry_ms,
                Timer::Retry {
                    session: slot,
                    connects,
                },
            );
        }
        if session_present {
            self.recheck_subscriptions(slot);
            self.announce_member_state(now, slot, true);
            self.pump(now, slot);
        }
    }

    /// CONNACK with a failure code where the version has one, then close [MQTT-3.1.4-2], [MQTT-3.2.2-7].
    pub(crate) fn refuse(
        &mut self,
        now: Now,
        conn: ConnSlot,
        client_id: &str,
        user_name: Option<&str>,
        reason: ReasonCode,
        because: &str,
    ) {
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        let room = self
            .core
            .connection_mut(conn)
            .map_or(0, |c| c.maximum_packet_size as usize);
        let is_secret = matches!(reason, ReasonCode::NotAuthorized | ReasonCode::BadUserNameOrPassword);
        // [MQTT-3.2.2-19]
        if !is_secret && because.len() + 16 < room {
            writer.put(Property::ReasonString(because));
        }
        if matches!(reason, ReasonCode::UseAnotherServer | ReasonCode::ServerMoved)
            && let Some(reference) = &self.core.config.server_reference
        {
            writer.put(Property::ServerReference(reference));
        }
        let properties = Properties::from_validated(&bytes);
        self.send(
            conn,
            &Packet::ConnAck(ConnAck {
                session_present: false,
                reason,
                properties,
            }),
        );
        self.refused(now, conn, client_id, user_name, reason, because);
    }

    /// Records a refusal for the operator and closes.
    pub(crate) fn refused(
        &mut self,
        now: Now,
        conn: ConnSlot,
        client_id: &str,
        user_name: Option<&str>,
        reason: ReasonCode,
        because: &str,
    ) {
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        connection.phase = Phase::Closing;
        connection.pending = None;
        let address = connection.peer.address;
        let transport = connection.peer.transport;
        self.core.stats.refused_connections += 1;
        if self.refusals.len() == REFUSALS_KEPT {
            self.refusals.pop_front();
        }
        self.refusals.push_back(Refusal {
            at_unix_ms: now.unix_ms,
            client_id: client_id.into(),
            user_name: user_name.map(Into::into),
            address,
            transport,
            reason,
            because: because.into(),
        });
        self.event(Event::Refused {
            client_id: client_id.into(),
            user_name: user_name.map(Into::into),
            address,
            reason,
            because: because.into(),
        });
        self.core.effects.push(Effect::Close { conn });
    }

    /// The first bytes are no CONNECT that this server understands.
    pub(crate) fn connect_malformed(&mut self, now: Now, conn: ConnSlot, bytes: &[u8], error: DecodeError) {
        // A version that is not spoken here is answered in the nearest form [MQTT-3.1.2-2]; of the rest only 5 has codes, and
        // 3.1.1 wants the connection closed without an answer.
        let is_other_version = matches!(error.kind, DecodeErrorKind::UnsupportedProtocolVersion(_));
        let version = mqtt::connect_answer_version(bytes).filter(|v| is_other_version || *v == ProtocolVersion::V5);
        let because = error.kind.to_string();
        match version {
            Some(version) => {
                self.core.connection_mut(conn).expect("the caller found it").version = version;
                self.refuse(now, conn, "", None, error.reason, &because);
            }
            None => self.refused(now, conn, "", None, error.reason, &because),
        }
    }
}
