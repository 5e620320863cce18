//! CONNECT: checks the packet and starts authentication.
//!
//! Nothing that follows a CONNECT is handled before it has been accepted: the connection is paused while a decision is
//! pending, and closing after a rejection. `authenticate` handles the decision, `accept` finds the session, and
//! `connack` sends the answer.

use mqtt::{Connect, DecodeError, DecodeErrorKind, ProtocolVersion, ReasonCode};

use crate::accept::AcceptedClient;
use crate::access::{AuthOutcome, ConnectCredentials};
use crate::connack::{RejectedConnect, Rejection};
use crate::connection::{ConnectionPhase, PendingConnect};
use crate::effect::{Effect, Now};
use crate::owners::OwnerLimit;
use crate::shard::Shard;
use crate::slots::{AuthAttempt, ConnSlot};

impl Shard {
    /// Handles a well-formed CONNECT. `bytes` is the packet.
    pub(crate) fn connect(&mut self, now: Now, conn: ConnSlot, connect: &Connect<'_>, bytes: &[u8]) {
        let connection = self
            .core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection");
        connection.version = connect.version;
        connection.last_packet_ms = now.monotonic_ms;
        connection.maximum_packet_size = connect.properties.maximum_packet_size().unwrap_or(u32::MAX);
        if let Err(Rejection(reason, detail)) = self.check_connect(connect) {
            let rejected = RejectedConnect {
                client_id: connect.client_id,
                connect: Some(connect),
                reason,
                detail,
                is_authenticated: false,
            };
            return self.reject_connect(now, conn, rejected);
        }
        let client_id: Box<str> = if connect.client_id.is_empty() {
            self.assign_client_id()
        } else {
            connect.client_id.into()
        };
        let credentials = self.credentials(conn, connect, &client_id);
        match self.access.authenticate_now(&credentials) {
            Some(AuthOutcome::Allow { is_superuser, data }) => {
                let success = ReasonCode::Success;
                let client = AcceptedClient::of(&client_id, is_superuser);
                self.core.report_authenticated(now, conn, connect, client, success);
                self.admit(now, conn, connect, client, data.as_deref());
            }
            Some(AuthOutcome::Deny { reason, detail }) => {
                self.report_rejected(now, conn, connect, &client_id, reason);
                let rejected = RejectedConnect {
                    client_id: &client_id,
                    connect: Some(connect),
                    reason,
                    detail,
                    is_authenticated: false,
                };
                self.reject_connect(now, conn, rejected);
            }
            Some(AuthOutcome::Inbox(client)) => {
                let (connect, client) = client.terms(connect);
                self.admit(now, conn, &connect, client, None);
            }
            Some(outcome @ AuthOutcome::Continue { .. }) => {
                self.store_pending_connect(conn, connect, client_id, bytes);
                self.authentication_decided(now, conn, outcome);
            }
            None => {
                let attempt = self.store_pending_connect(conn, connect, client_id, bytes);
                self.core.effects.push(Effect::Authenticate {
                    conn,
                    attempt,
                    credentials: Box::new(credentials),
                });
            }
        }
    }

    fn store_pending_connect(
        &mut self,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client_id: Box<str>,
        bytes: &[u8],
    ) -> AuthAttempt {
        let attempt = AuthAttempt(self.numbers.next());
        let connection = self
            .core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection");
        connection.phase = ConnectionPhase::Authenticating;
        connection.attempt = attempt;
        let method = connect.properties.authentication_method().map(Into::into);
        connection.pending = Some(Box::new(PendingConnect {
            packet: bytes.into(),
            client_id,
            method,
            is_decision_pending: true,
        }));
        attempt
    }

    fn check_connect(&self, connect: &Connect<'_>) -> Result<(), Rejection> {
        if self.is_shutting_down {
            return Err(Rejection(ReasonCode::ServerUnavailable, "the server is shutting down"));
        }
        self.check_client_id(connect)?;
        connect.will.as_ref().map_or(Ok(()), |will| self.check_will(will))?;
        match connect.properties.authentication_method() {
            // [MQTT-4.12.0-1]
            Some(method) if !self.access.supports_auth_method(method) => Err(Rejection(
                ReasonCode::BadAuthenticationMethod,
                "the authentication method is not configured",
            )),
            _ => Ok(()),
        }
    }

    fn check_client_id(&self, connect: &Connect<'_>) -> Result<(), Rejection> {
        let detail = if connect.client_id.len() > self.core.config.max_client_id_length {
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

    fn check_will(&self, will: &mqtt::Will<'_>) -> Result<(), Rejection> {
        let config = &self.core.config;
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

    fn credentials(&mut self, conn: ConnSlot, connect: &Connect<'_>, client_id: &str) -> ConnectCredentials {
        let peer = &mut self
            .core
            .connections
            .get_mut(conn)
            .expect("a packet comes from an open connection")
            .peer;
        ConnectCredentials {
            client_id: client_id.into(),
            user_name: connect.user_name.map(Into::into),
            password: connect.password.map(Into::into),
            address: peer.address.ip(),
            listener: peer.listener,
            certificate_common_name: peer.certificate_common_name.clone(),
            certificate: peer.certificate.take(),
            method: connect.properties.authentication_method().map(Into::into),
            data: connect.properties.authentication_data().map(Into::into),
        }
    }

    /// Creates an unused client id whose home is this shard [MQTT-3.1.3-6], [MQTT-3.2.2-16].
    fn assign_client_id(&mut self) -> Box<str> {
        loop {
            let id = format!("auto-{:016X}{:04X}", self.random.next(), self.random.next() as u16);
            if Shard::home_shard(&id, self.core.shards) == Some(self.core.id)
                && self.core.sessions.slot_of(&id).is_none()
            {
                return id.into();
            }
        }
    }

    /// Rejects a malformed or unsupported CONNECT.
    pub(crate) fn connect_malformed(&mut self, now: Now, conn: ConnSlot, bytes: &[u8], error: DecodeError) {
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
                self.core
                    .connections
                    .get_mut(conn)
                    .expect("the connection is open")
                    .version = version;
                self.reject_connect(now, conn, rejected);
            }
            None => self.close_rejected(now, conn, rejected),
        }
    }
}
