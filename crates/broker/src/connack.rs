//! CONNACK: the values granted to a client, or the reason for rejecting it.

use mqtt::{Connect, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode};

use crate::access::AcceptedClient;
use crate::config::ShardConfig;
use crate::connection::Connection;
use crate::inbox::InboxKey;
use crate::mountpoint::Mountpoint;
use crate::tap::GrantedConnect;

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

/// A CONNECT of an authenticated client.
#[derive(Clone, Copy)]
pub(crate) struct AcceptedConnect<'a> {
    pub connect: &'a Connect<'a>,
    pub client: AcceptedClient<'a>,
    pub granted: GrantedConnect,
    /// Prefix of the client's topics.
    pub mountpoint: Option<&'a Mountpoint>,
}

impl GrantedConnect {
    /// Returns the values that a CONNECT is granted. Sessions of inbox clients end with their connection.
    pub(crate) fn of(config: &ShardConfig, connect: &Connect<'_>, inbox_key: Option<InboxKey>) -> GrantedConnect {
        GrantedConnect {
            clean_start: connect.clean_start,
            keep_alive_s: granted_keep_alive(config, connect),
            expiry_s: match inbox_key {
                Some(_) => 0,
                None => granted_expiry(config, connect),
            },
        }
    }
}

fn granted_keep_alive(config: &ShardConfig, connect: &Connect<'_>) -> u16 {
    let asked = match config.server_keep_alive_s {
        Some(own) if connect.version == ProtocolVersion::V5 => own,
        _ => connect.keep_alive,
    };
    match config.max_keep_alive_s {
        Some(max) if asked == 0 || asked > max => max,
        _ => asked,
    }
}

fn granted_expiry(config: &ShardConfig, connect: &Connect<'_>) -> u32 {
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

impl AcceptedConnect<'_> {
    /// Writes the properties of a successful CONNACK. Fails if they exceed the client's Maximum Packet Size
    /// [MQTT-3.1.2-24].
    pub fn write_properties(
        &self,
        config: &ShardConfig,
        connection: &Connection,
        auth_data: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        out.clear();
        if self.connect.version == ProtocolVersion::V5 {
            let mut writer = PropertyWriter::new(out);
            self.write_granted(config, connection.peer.maximum_packet_size, &mut writer);
            write_unavailable_features(config, self.client.inbox_key.is_some(), &mut writer);
            write_requested_values(config, self.connect, auth_data, &mut writer);
        }
        let head_bytes = if out.len() < 125 { 5 } else { 7 };
        if out.len() + head_bytes > connection.maximum_packet_size as usize {
            let detail = "CONNACK exceeds the client's Maximum Packet Size";
            return Err(Rejection(ReasonCode::PacketTooLarge, detail));
        }
        Ok(())
    }

    /// Writes the values that differ from the protocol's defaults or from the client's request.
    fn write_granted(&self, config: &ShardConfig, maximum_packet_size: Option<u32>, w: &mut PropertyWriter<'_>) {
        let (connect, granted) = (self.connect, self.granted);
        if granted.expiry_s != connect.properties.session_expiry_interval().unwrap_or(0) {
            w.put(Property::SessionExpiryInterval(granted.expiry_s));
        }
        w.put(Property::ReceiveMaximum(config.receive_maximum));
        let limit = maximum_packet_size.unwrap_or(config.max_packet_size);
        w.put(Property::MaximumPacketSize(limit));
        if connect.client_id.is_empty() {
            w.put(Property::AssignedClientIdentifier(self.client.client_id));
        }
        if config.max_topic_alias_in > 0 {
            w.put(Property::TopicAliasMaximum(config.max_topic_alias_in));
        }
        if granted.keep_alive_s != connect.keep_alive {
            // [MQTT-3.2.2-21]
            w.put(Property::ServerKeepAlive(granted.keep_alive_s));
        }
    }
}

impl RejectedConnect<'_> {
    /// Writes the properties of CONNACK. `packet_bytes_max` is the client's Maximum Packet Size.
    pub fn write_properties(&self, config: &ShardConfig, packet_bytes_max: u32, out: &mut Vec<u8>) {
        let mut writer = PropertyWriter::new(out);
        // The reason would help to guess credentials.
        let is_secret = matches!(
            self.reason,
            ReasonCode::NotAuthorized | ReasonCode::BadUserNameOrPassword
        ) && !self.is_authenticated;
        // [MQTT-3.2.2-19]
        if !is_secret && self.detail.len() + 16 < packet_bytes_max as usize {
            writer.put(Property::ReasonString(self.detail));
        }
        if matches!(self.reason, ReasonCode::UseAnotherServer | ReasonCode::ServerMoved)
            && let Some(reference) = &config.server_reference
        {
            writer.put(Property::ServerReference(reference));
        }
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
