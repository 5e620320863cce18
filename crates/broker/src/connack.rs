//! CONNACK: the values granted to a client, or the reason for rejecting it.

use mqtt::{ConnAck, Connect, Packet, Properties, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode};

use crate::accept::AcceptedClient;
use crate::config::ShardConfig;
use crate::connection::ConnectionPhase;
use crate::effect::{ConnectionEvent, Effect, Now};
use crate::inbox::InboxKey;
use crate::owners::OwnerLimit;
use crate::rejected_connections::RejectedConnection;
use crate::shard::Shard;
use crate::slots::ConnSlot;
use crate::tap::{GrantedConnect, TapClient, TapEvent, TapEventMask};

/// Reason for rejecting a CONNECT: the reason code for the client and the text for the operator.
pub(crate) struct Rejection(pub ReasonCode, pub &'static str);

/// A CONNECT that is rejected.
#[derive(Clone, Copy)]
pub(crate) struct RejectedConnect<'a> {
    pub client_id: &'a str,
    /// `None` if the packet could not be decoded.
    pub connect: Option<&'a Connect<'a>>,
    pub reason: ReasonCode,
    pub detail: &'a str,
    /// The client may learn the detail, because it has shown its credentials.
    pub is_authenticated: bool,
}

impl Shard {
    pub(crate) fn granted_keep_alive(&self, connect: &Connect<'_>) -> u16 {
        let config = &self.core.config;
        let asked = match config.server_keep_alive_s {
            Some(own) if connect.version == ProtocolVersion::V5 => own,
            _ => connect.keep_alive,
        };
        match config.max_keep_alive_s {
            Some(max) if asked == 0 || asked > max => max,
            _ => asked,
        }
    }

    /// Returns the granted session expiry. Sessions of inbox clients end with their connection.
    pub(crate) fn granted_expiry(&self, connect: &Connect<'_>, inbox_key: Option<InboxKey>) -> u32 {
        if inbox_key.is_some() {
            return 0;
        }
        let config = &self.core.config;
        match connect.version {
            ProtocolVersion::V5 => connect
                .properties
                .session_expiry_interval()
                .unwrap_or(0)
                .min(config.max_session_expiry_s),
            _ if connect.clean_start => 0,
            _ => config.default_session_expiry_s.min(config.max_session_expiry_s),
        }
    }

    /// Writes the properties of a successful CONNACK. Fails if they exceed the client's Maximum Packet Size
    /// [MQTT-3.1.2-24].
    pub(crate) fn write_connack_properties(
        &mut self,
        conn: ConnSlot,
        connect: &Connect<'_>,
        client: AcceptedClient<'_>,
        auth_data: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        out.clear();
        let connection = self.core.connections.get_mut(conn).expect("the connection is open");
        let room = connection.maximum_packet_size as usize;
        let limit = connection.peer.maximum_packet_size;
        if connect.version == ProtocolVersion::V5 {
            let mut writer = PropertyWriter::new(out);
            self.write_granted(connect, client, limit, &mut writer);
            write_unavailable_features(&self.core.config, client.inbox_key.is_some(), &mut writer);
            write_requested_values(&self.core.config, connect, auth_data, &mut writer);
        }
        let head_bytes = if out.len() < 125 { 5 } else { 7 };
        if out.len() + head_bytes > room {
            let detail = "CONNACK exceeds the client's Maximum Packet Size";
            return Err(Rejection(ReasonCode::PacketTooLarge, detail));
        }
        Ok(())
    }

    /// Writes the values that differ from the protocol's defaults or from the client's request.
    fn write_granted(
        &self,
        connect: &Connect<'_>,
        client: AcceptedClient<'_>,
        maximum_packet_size: Option<u32>,
        w: &mut PropertyWriter<'_>,
    ) {
        let config = &self.core.config;
        let expiry_s = self.granted_expiry(connect, client.inbox_key);
        if expiry_s != connect.properties.session_expiry_interval().unwrap_or(0) {
            w.put(Property::SessionExpiryInterval(expiry_s));
        }
        w.put(Property::ReceiveMaximum(config.receive_maximum));
        let limit = maximum_packet_size.unwrap_or(config.max_packet_size);
        w.put(Property::MaximumPacketSize(limit));
        if connect.client_id.is_empty() {
            w.put(Property::AssignedClientIdentifier(client.client_id));
        }
        if config.max_topic_alias_in > 0 {
            w.put(Property::TopicAliasMaximum(config.max_topic_alias_in));
        }
        let keep_alive_s = self.granted_keep_alive(connect);
        if keep_alive_s != connect.keep_alive {
            // [MQTT-3.2.2-21]
            w.put(Property::ServerKeepAlive(keep_alive_s));
        }
    }

    /// Sends CONNACK with a failure code where the version has one, and closes the connection [MQTT-3.1.4-2],
    /// [MQTT-3.2.2-7].
    pub(crate) fn reject_connect(&mut self, now: Now, conn: ConnSlot, rejected: RejectedConnect<'_>) {
        let RejectedConnect { reason, detail, .. } = rejected;
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        let room = self
            .core
            .connections
            .get_mut(conn)
            .map_or(0, |c| c.maximum_packet_size as usize);
        // The reason would help to guess credentials.
        let is_secret = matches!(reason, ReasonCode::NotAuthorized | ReasonCode::BadUserNameOrPassword)
            && !rejected.is_authenticated;
        // [MQTT-3.2.2-19]
        if !is_secret && detail.len() + 16 < room {
            writer.put(Property::ReasonString(detail));
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
        self.close_rejected(now, conn, rejected);
    }

    /// Records a rejected connection for operators and closes it.
    pub(crate) fn close_rejected(&mut self, now: Now, conn: ConnSlot, rejected: RejectedConnect<'_>) {
        let RejectedConnect {
            client_id,
            connect,
            reason,
            detail,
            ..
        } = rejected;
        let Some(connection) = self.core.connections.get_mut(conn) else {
            return;
        };
        connection.phase = ConnectionPhase::Closing;
        connection.pending = None;
        let version = connection.version;
        let user_name = connect.and_then(|connect| connect.user_name);
        let user_name = user_name.map(|name| self.access.shown_user_name(name));
        let listener = connection.peer.listener;
        let refusal = RejectedConnection {
            at_unix_ms: now.unix_ms,
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
        };
        let tap_event = TapEvent::ConnAck {
            reason,
            granted: connect.map(|connect| GrantedConnect {
                clean_start: connect.clean_start,
                keep_alive_s: self.granted_keep_alive(connect),
                expiry_s: self.granted_expiry(connect, None),
            }),
            properties: connect.map_or(&[], |connect| connect.properties.as_bytes()),
        };
        self.core
            .taps
            .client_event(now, client, TapEventMask::CONNACK, &tap_event);
        self.event(ConnectionEvent::Refused {
            client_id: refusal.client_id.clone(),
            user_name: refusal.user_name.clone(),
            address: refusal.address,
            reason,
            detail: detail.into(),
        });
        self.core.stats.refused_connections += 1;
        if let Some(limit) = OwnerLimit::of_rejection(detail) {
            self.core.stats.limit_rejections[limit as usize] += 1;
        }
        self.refusals.add(refusal);
        self.core.effects.push(Effect::Close {
            conn,
            has_sent_disconnect: false,
        });
    }
}

/// The inbox handles subscriptions of its clients, without identifiers and shared subscriptions.
fn write_unavailable_features(config: &ShardConfig, is_for_inbox: bool, w: &mut PropertyWriter<'_>) {
    if config.max_qos < QoS::ExactlyOnce {
        w.put(Property::MaximumQoS(config.max_qos as u8));
    }
    for (is_available, property) in [
        (config.retain_available, Property::RetainAvailable(false)),
        (
            config.wildcard_subscription,
            Property::WildcardSubscriptionAvailable(false),
        ),
        (
            config.subscription_identifiers && !is_for_inbox,
            Property::SubscriptionIdentifierAvailable(false),
        ),
        (
            config.shared_subscription && !is_for_inbox,
            Property::SharedSubscriptionAvailable(false),
        ),
    ] {
        if !is_available {
            w.put(property);
        }
    }
}

fn write_requested_values(
    config: &ShardConfig,
    connect: &Connect<'_>,
    auth_data: Option<&[u8]>,
    w: &mut PropertyWriter<'_>,
) {
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
