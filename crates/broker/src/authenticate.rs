//! Authentication results, and the exchange of AUTH packets before and after CONNACK.

use mqtt::{Auth, Connect, Decoded, Packet, PacketType, Property, PropertyWriter, ReasonCode};

use crate::accept::AcceptedClient;
use crate::access::{AuthOutcome, ConnectCredentials};
use crate::connack::RejectedConnect;
use crate::connection::{Connection, ConnectionPhase, PendingConnect};
use crate::effect::{DisconnectReason, Effect, Now};
use crate::shard::Shard;
use crate::slots::{AuthAttempt, ConnSlot};

impl Shard {
    /// Handles the authenticator's decision about a CONNECT, an AUTH, or a re-authentication.
    pub(crate) fn authentication_decided(&mut self, now: Now, conn: ConnSlot, outcome: AuthOutcome) {
        let Some(connection) = self.core.connections.get_mut(conn) else {
            return;
        };
        let phase = connection.phase;
        let Some(pending) = connection.pending.take() else {
            return;
        };
        match (phase, outcome) {
            (ConnectionPhase::Closing, _) => {}
            (_, AuthOutcome::Continue { data }) => self.continue_authentication(conn, pending, phase, &data),
            (ConnectionPhase::Online, AuthOutcome::Allow { data, is_superuser }) => {
                self.core
                    .report_reauthenticated(now, conn, ReasonCode::Success, is_superuser);
                self.send_auth(conn, ReasonCode::Success, pending.method.as_deref(), data.as_deref());
                self.core.effects.push(Effect::Resume { conn });
            }
            (ConnectionPhase::Online, AuthOutcome::Inbox(_)) => {
                let detail = "a re-authentication cannot change the kind of the client";
                let reason = ReasonCode::NotAuthorized;
                self.end_connection(now, conn, DisconnectReason::ReAuthenticationFailed, reason, detail);
            }
            (ConnectionPhase::Online, AuthOutcome::Deny { reason, detail }) => {
                self.core.report_reauthenticated(now, conn, reason, false);
                self.end_connection(now, conn, DisconnectReason::ReAuthenticationFailed, reason, detail);
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
                let client = AcceptedClient::of(&pending.client_id, is_superuser);
                self.core
                    .report_authenticated(now, conn, &connect, client, ReasonCode::Success);
                self.admit(now, conn, &connect, client, data.as_deref());
                self.core.effects.push(Effect::Resume { conn });
            }
            AuthOutcome::Deny { reason, detail } => {
                self.report_rejected(now, conn, &connect, &pending.client_id, reason);
                let rejected = RejectedConnect {
                    client_id: &pending.client_id,
                    connect: Some(&connect),
                    reason,
                    detail,
                    is_authenticated: false,
                };
                self.reject_connect(now, conn, rejected);
            }
            AuthOutcome::Inbox(client) => {
                let (connect, client) = client.terms(&connect);
                self.admit(now, conn, &connect, client, None);
                self.core.effects.push(Effect::Resume { conn });
            }
            AuthOutcome::Continue { .. } => {}
        }
    }

    /// Reports a rejected login to the tap, with the user name that events may show.
    pub(crate) fn report_rejected(
        &mut self,
        now: Now,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client_id: &str,
        reason: ReasonCode,
    ) {
        let user_name = connect.user_name.map(|name| self.access.shown_user_name(name));
        let shown = Connect {
            user_name: user_name.as_deref(),
            ..connect.clone()
        };
        let client = AcceptedClient::of(client_id, false);
        self.core.report_authenticated(now, conn, &shown, client, reason);
    }

    fn continue_authentication(
        &mut self,
        conn: ConnSlot,
        mut pending: Box<PendingConnect>,
        phase: ConnectionPhase,
        data: &[u8],
    ) {
        // [MQTT-4.12.0-2]
        self.send_auth(
            conn,
            ReasonCode::ContinueAuthentication,
            pending.method.as_deref(),
            Some(data),
        );
        let connection = self.core.connections.get_mut(conn).expect("the connection is open");
        pending.is_decision_pending = false;
        connection.pending = Some(pending);
        if phase != ConnectionPhase::Online {
            connection.phase = ConnectionPhase::AwaitingAuth;
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

    /// Handles AUTH of a client: the next step of an exchange, or the start of a re-authentication.
    pub(crate) fn auth_received(&mut self, now: Now, conn: ConnSlot, auth: &Auth<'_>) {
        self.core.stats.packets_received[PacketType::Auth as usize] += 1;
        let connection = self
            .core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection");
        if !is_expected(connection, auth) {
            // [MQTT-4.12.0-5], [MQTT-4.12.0-7]
            return self.protocol_error(
                now,
                conn,
                ReasonCode::ProtocolError,
                "AUTH is not allowed in this state",
            );
        }
        let client_id = match (&connection.pending, connection.session) {
            (Some(pending), _) => pending.client_id.clone(),
            (None, session) => self.core.sessions.at(session).client_id.clone(),
        };
        self.request_authentication(conn, client_id, auth);
    }

    /// Sends an AUTH of a client to the authenticator.
    fn request_authentication(&mut self, conn: ConnSlot, client_id: Box<str>, auth: &Auth<'_>) {
        let attempt = AuthAttempt(self.numbers.next());
        let method: Option<Box<str>> = auth.properties.authentication_method().map(Into::into);
        let connection = self.core.connections.get_mut(conn).expect("the connection is open");
        connection.attempt = attempt;
        if connection.phase == ConnectionPhase::AwaitingAuth {
            connection.phase = ConnectionPhase::Authenticating;
        }
        let begin = || PendingConnect {
            packet: Box::default(),
            client_id: client_id.clone(),
            method: method.clone(),
            is_decision_pending: true,
        };
        connection
            .pending
            .get_or_insert_with(|| Box::new(begin()))
            .is_decision_pending = true;
        let credentials = Box::new(ConnectCredentials {
            client_id,
            user_name: None,
            password: None,
            address: connection.peer.address.ip(),
            listener: connection.peer.listener,
            certificate_common_name: None,
            certificate: None,
            method,
            data: auth.properties.authentication_data().map(Into::into),
        });
        self.core.effects.push(Effect::Authenticate {
            conn,
            attempt,
            credentials,
        });
    }
}

/// Returns whether the client may send this AUTH now.
fn is_expected(connection: &Connection, auth: &Auth<'_>) -> bool {
    let method = auth.properties.authentication_method();
    let is_continuation = auth.reason == ReasonCode::ContinueAuthentication;
    match (&connection.pending, connection.phase) {
        (Some(pending), ConnectionPhase::AwaitingAuth) => is_continuation && pending.method.as_deref() == method,
        (Some(pending), ConnectionPhase::Online) => {
            is_continuation && !pending.is_decision_pending && pending.method.as_deref() == method
        }
        // Re-authentication needs the method of CONNECT [MQTT-4.12.1-1].
        (None, ConnectionPhase::Online) => {
            auth.reason == ReasonCode::ReAuthenticate && method.is_some() && connection.method.as_deref() == method
        }
        _ => false,
    }
}
