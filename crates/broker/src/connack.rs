//! CONNACK: what a client is granted, or why it is turned away.

use mqtt::{ConnAck, Connect, Packet, Properties, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode};

use crate::accept::Admitted;
use crate::config::ShardConfig;
use crate::connection::Phase;
use crate::device::DeviceKey;
use crate::effect::{ConnSlot, Effect, Event, Now};
use crate::inspect::Refusal;
use crate::shard::{REFUSALS_KEPT, Shard};
use crate::tap::{Granted, Happening, TapClient, Wants};

/// Why a CONNECT is refused: the code for the client and the sentence for the operator.
pub(crate) struct Refused(pub ReasonCode, pub &'static str);

impl Shard {
    pub(crate) fn granted_keep_alive(&self, connect: &Connect<'_>) -> u16 {
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

    /// Nothing of a device's session outlives its connection.
    pub(crate) fn granted_expiry(&self, connect: &Connect<'_>, device: Option<DeviceKey>) -> u32 {
        if device.is_some() {
            return 0;
        }
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

    /// The properties of a CONNACK with success, unless they are more than the client takes [MQTT-3.1.2-24].
    pub(crate) fn write_connack_properties(
        &mut self,
        conn: ConnSlot,
        connect: &Connect<'_>,
        who: Admitted<'_>,
        auth_data: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        out.clear();
        let connection = self.core.connection_mut(conn).expect("the caller answers it");
        let room = connection.maximum_packet_size as usize;
        let limit = connection.peer.maximum_packet_size;
        if connect.version == ProtocolVersion::V5 {
            let mut writer = PropertyWriter::new(out);
            self.write_granted(connect, who, limit, &mut writer);
            write_unavailable(&self.core.config, who.device.is_some(), &mut writer);
            write_asked_for(&self.core.config, connect, auth_data, &mut writer);
        }
        let head_bytes = if out.len() < 125 { 5 } else { 7 };
        if out.len() + head_bytes > room {
            let because = "the client's Maximum Packet Size leaves no room for a CONNACK";
            return Err(Refused(ReasonCode::PacketTooLarge, because));
        }
        Ok(())
    }

    /// What is not the protocol's default, or not what the client asked for.
    fn write_granted(
        &self,
        connect: &Connect<'_>,
        who: Admitted<'_>,
        maximum_packet_size: Option<u32>,
        w: &mut PropertyWriter<'_>,
    ) {
        let config = &self.core.config;
        let expiry_s = self.granted_expiry(connect, who.device);
        if expiry_s != connect.properties.session_expiry_interval().unwrap_or(0) {
            w.put(Property::SessionExpiryInterval(expiry_s));
        }
        w.put(Property::ReceiveMaximum(config.receive_maximum));
        let limit = maximum_packet_size.unwrap_or(config.maximum_packet_size);
        w.put(Property::MaximumPacketSize(limit));
        if connect.client_id.is_empty() {
            w.put(Property::AssignedClientIdentifier(who.client_id));
        }
        if config.topic_alias_maximum > 0 {
            w.put(Property::TopicAliasMaximum(config.topic_alias_maximum));
        }
        let keep_alive_s = self.granted_keep_alive(connect);
        if keep_alive_s != connect.keep_alive {
            // [MQTT-3.2.2-21]
            w.put(Property::ServerKeepAlive(keep_alive_s));
        }
    }

    /// CONNACK with a failure code where the version has one, then close [MQTT-3.1.4-2], [MQTT-3.2.2-7].
    pub(crate) fn refuse(
        &mut self,
        now: Now,
        conn: ConnSlot,
        client_id: &str,
        connect: Option<&Connect<'_>>,
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
        self.refused(now, conn, client_id, connect, reason, because);
    }

    /// Records a refusal for the operator and closes. `connect`: if it could be read.
    pub(crate) fn refused(
        &mut self,
        now: Now,
        conn: ConnSlot,
        client_id: &str,
        connect: Option<&Connect<'_>>,
        reason: ReasonCode,
        because: &str,
    ) {
        let Some(connection) = self.core.connection_mut(conn) else {
            return;
        };
        connection.phase = Phase::Closing;
        connection.pending = None;
        let version = connection.version;
        let user_name = connect.and_then(|connect| connect.user_name);
        let listener = connection.peer.listener;
        let refusal = Refusal {
            at_unix_ms: now.unix_ms,
            client_id: client_id.into(),
            user_name: user_name.map(Into::into),
            address: connection.peer.address,
            transport: connection.peer.transport,
            reason,
            because: because.into(),
        };
        let client = TapClient {
            client_id,
            user_name,
            address: refusal.address,
            listener: Some(listener),
            version,
        };
        let what = Happening::ConnAck {
            reason,
            granted: connect.map(|connect| Granted {
                clean_start: connect.clean_start,
                keep_alive_s: self.granted_keep_alive(connect),
                expiry_s: self.granted_expiry(connect, None),
            }),
            properties: connect.map_or(&[], |connect| connect.properties.as_bytes()),
        };
        self.core.tap_client(now, client, Wants::CONNACK, &what);
        self.event(Event::Refused {
            client_id: refusal.client_id.clone(),
            user_name: refusal.user_name.clone(),
            address: refusal.address,
            reason,
            because: because.into(),
        });
        self.keep_refusal(refusal);
        self.core.effects.push(Effect::Close {
            conn,
            has_said_goodbye: false,
        });
    }

    fn keep_refusal(&mut self, refusal: Refusal) {
        self.core.stats.refused_connections += 1;
        if self.refusals.len() == REFUSALS_KEPT {
            self.refusals.pop_front();
        }
        self.refusals.push_back(refusal);
    }
}

/// A device's subscriptions are those of its interface, and nobody shares them.
fn write_unavailable(config: &ShardConfig, is_device: bool, w: &mut PropertyWriter<'_>) {
    if config.maximum_qos < QoS::ExactlyOnce {
        w.put(Property::MaximumQoS(config.maximum_qos as u8));
    }
    for (is_available, property) in [
        (config.is_retain_available, Property::RetainAvailable(false)),
        (
            config.is_wildcard_available,
            Property::WildcardSubscriptionAvailable(false),
        ),
        (
            config.is_identifier_available && !is_device,
            Property::SubscriptionIdentifierAvailable(false),
        ),
        (
            config.is_shared_available && !is_device,
            Property::SharedSubscriptionAvailable(false),
        ),
    ] {
        if !is_available {
            w.put(property);
        }
    }
}

fn write_asked_for(config: &ShardConfig, connect: &Connect<'_>, auth_data: Option<&[u8]>, w: &mut PropertyWriter<'_>) {
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
