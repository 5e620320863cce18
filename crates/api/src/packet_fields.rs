//! The fields of an MQTT packet as JSON, with the names of MQTT 5, for traces.
//!
//! Passwords and authentication data are never included, nor the user name of a device, which is its access token.
//! Payloads are shortened.

use base64ct::{Base64, Encoding};
use mqtt::{Ack, ConnAck, Connect, Packet, Properties, Property, Publish, QoS, ReasonCode, Subscribe, Will};
use serde_json::{Map, Value, json};

use crate::message_body::PayloadEncoding;

/// Replaces secret values.
const HIDDEN: &str = "***";

/// Limit of reason codes, filters and properties shown per packet. The rest is counted.
const ITEMS_MAX: usize = 64;

/// Options for showing a packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketViewOptions<'a> {
    /// Limit of a payload.
    pub payload_bytes_max: usize,
    /// The user name of CONNECT is a secret: that of a device.
    pub is_user_name_secret: bool,
    /// Topic of a PUBLISH that contains only a topic alias.
    pub topic: Option<&'a str>,
}

pub fn fields(packet: &Packet<'_>, style: PacketViewOptions<'_>) -> Map<String, Value> {
    let mut fields = Map::new();
    match packet {
        Packet::Connect(connect) => put_connect(&mut fields, connect, style),
        Packet::ConnAck(connack) => put_connack(&mut fields, connack),
        Packet::Publish(publish) => put_publish(&mut fields, publish, style),
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
            put_ack(&mut fields, ack);
        }
        Packet::Subscribe(subscribe) => put_subscribe(&mut fields, subscribe),
        Packet::SubAck(suback) => {
            put(&mut fields, "packet_id", suback.packet_id.get());
            put_reasons(&mut fields, suback.reasons);
            put_properties(&mut fields, suback.properties);
        }
        Packet::Unsubscribe(unsubscribe) => {
            put(&mut fields, "packet_id", unsubscribe.packet_id.get());
            put_some(&mut fields, "filters", unsubscribe.filters.iter().map(Value::from));
            put_properties(&mut fields, unsubscribe.properties);
        }
        Packet::UnsubAck(unsuback) => {
            put(&mut fields, "packet_id", unsuback.packet_id.get());
            put_reasons(&mut fields, unsuback.reasons);
            put_properties(&mut fields, unsuback.properties);
        }
        Packet::PingReq | Packet::PingResp => {}
        Packet::Disconnect(disconnect) => {
            put_reason(&mut fields, disconnect.reason);
            put_properties(&mut fields, disconnect.properties);
        }
        Packet::Auth(auth) => {
            put_reason(&mut fields, auth.reason);
            put_properties(&mut fields, auth.properties);
        }
    }
    fields
}

fn put(fields: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    fields.insert(name.to_owned(), value.into());
}

/// Adds the first items of a list, and their total number if some are omitted.
fn put_some(fields: &mut Map<String, Value>, name: &str, mut items: impl Iterator<Item = Value>) {
    let shown: Vec<Value> = items.by_ref().take(ITEMS_MAX).collect();
    put(fields, name, shown);
    let beyond = items.count();
    if beyond > 0 {
        put(fields, &format!("{name}_not_shown"), beyond);
    }
}

fn put_connect(fields: &mut Map<String, Value>, connect: &Connect<'_>, style: PacketViewOptions<'_>) {
    put(fields, "protocol_version", connect.version.to_string());
    put(fields, "client_id", connect.client_id);
    put(fields, "clean_start", connect.clean_start);
    put(fields, "keep_alive", connect.keep_alive);
    if let Some(user_name) = connect.user_name {
        put(
            fields,
            "user_name",
            if style.is_user_name_secret { HIDDEN } else { user_name },
        );
    }
    if connect.password.is_some() {
        put(fields, "password", HIDDEN);
    }
    if let Some(will) = &connect.will {
        put(fields, "will", will_fields(will, style));
    }
    put_properties(fields, connect.properties);
}

fn will_fields(will: &Will<'_>, style: PacketViewOptions<'_>) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "topic", will.topic);
    put(&mut fields, "qos", qos(will.qos));
    put(&mut fields, "retain", will.retain);
    put_payload(&mut fields, will.payload, style);
    put_properties(&mut fields, will.properties);
    fields.into()
}

fn put_connack(fields: &mut Map<String, Value>, connack: &ConnAck<'_>) {
    put(fields, "session_present", connack.session_present);
    put_reason(fields, connack.reason);
    put_properties(fields, connack.properties);
}

fn put_publish(fields: &mut Map<String, Value>, publish: &Publish<'_>, style: PacketViewOptions<'_>) {
    put(fields, "topic", style.topic.unwrap_or(publish.topic));
    put(fields, "qos", qos(publish.qos));
    put(fields, "retain", publish.retain);
    put(fields, "dup", publish.dup);
    if let Some(packet_id) = publish.packet_id {
        put(fields, "packet_id", packet_id.get());
    }
    put_payload(fields, publish.payload, style);
    put_properties(fields, publish.properties);
}

fn put_payload(fields: &mut Map<String, Value>, payload: &[u8], style: PacketViewOptions<'_>) {
    let start = &payload[..payload.len().min(style.payload_bytes_max)];
    let (text, encoding) = payload_text(start, start.len() < payload.len());
    put(fields, "payload", text);
    put(fields, "payload_encoding", json!(encoding));
    put(fields, "payload_bytes", payload.len());
}

/// Returns a payload or its first bytes as text if they are UTF-8. Drops a character at the end that was cut.
pub fn payload_text(start: &[u8], is_cut: bool) -> (String, PayloadEncoding) {
    match std::str::from_utf8(start) {
        Err(error) if error.error_len().is_none() && is_cut => {
            PayloadEncoding::encode(start[..error.valid_up_to()].to_vec())
        }
        _ => PayloadEncoding::encode(start.to_vec()),
    }
}

fn put_ack(fields: &mut Map<String, Value>, ack: &Ack<'_>) {
    put(fields, "packet_id", ack.packet_id.get());
    put_reason(fields, ack.reason);
    put_properties(fields, ack.properties);
}

fn put_subscribe(fields: &mut Map<String, Value>, subscribe: &Subscribe<'_>) {
    put(fields, "packet_id", subscribe.packet_id.get());
    let filters = subscribe.filters.iter().map(|one| {
        json!({
            "filter": one.filter,
            "maximum_qos": qos(one.options.maximum_qos),
            "no_local": one.options.no_local,
            "retain_as_published": one.options.retain_as_published,
            "retain_handling": one.options.retain_handling as u8,
        })
    });
    put_some(fields, "filters", filters);
    put_properties(fields, subscribe.properties);
}

fn put_reason(fields: &mut Map<String, Value>, reason: ReasonCode) {
    put(fields, "reason_code", reason.to_u8());
    put(fields, "reason", reason.name());
}

fn put_reasons(fields: &mut Map<String, Value>, reasons: &[u8]) {
    put_some(fields, "reason_codes", reasons.iter().map(|code| (*code).into()));
}

fn qos(qos: QoS) -> u8 {
    qos as u8
}

fn put_properties(fields: &mut Map<String, Value>, properties: Properties<'_>) {
    if properties.is_empty() {
        return;
    }
    put_some(
        fields,
        "properties",
        properties.iter().map(|property| {
            let (name, value) = property_field(property);
            json!({ "name": name, "value": value })
        }),
    );
}

/// In a list, because properties may repeat and their order matters.
fn property_field(property: Property<'_>) -> (&'static str, Value) {
    match property {
        Property::PayloadFormatIndicator(value) => ("payload_format_indicator", value.into()),
        Property::MessageExpiryInterval(value) => ("message_expiry_interval", value.into()),
        Property::ContentType(value) => ("content_type", value.into()),
        Property::ResponseTopic(value) => ("response_topic", value.into()),
        Property::CorrelationData(value) => ("correlation_data", Base64::encode_string(value).into()),
        Property::SubscriptionIdentifier(value) => ("subscription_identifier", value.into()),
        Property::SessionExpiryInterval(value) => ("session_expiry_interval", value.into()),
        Property::AssignedClientIdentifier(value) => ("assigned_client_identifier", value.into()),
        Property::ServerKeepAlive(value) => ("server_keep_alive", value.into()),
        Property::AuthenticationMethod(value) => ("authentication_method", value.into()),
        Property::AuthenticationData(_) => ("authentication_data", HIDDEN.into()),
        Property::RequestProblemInformation(value) => ("request_problem_information", value.into()),
        Property::WillDelayInterval(value) => ("will_delay_interval", value.into()),
        Property::RequestResponseInformation(value) => ("request_response_information", value.into()),
        Property::ResponseInformation(value) => ("response_information", value.into()),
        Property::ServerReference(value) => ("server_reference", value.into()),
        Property::ReasonString(value) => ("reason_string", value.into()),
        Property::ReceiveMaximum(value) => ("receive_maximum", value.into()),
        Property::TopicAliasMaximum(value) => ("topic_alias_maximum", value.into()),
        Property::TopicAlias(value) => ("topic_alias", value.into()),
        Property::MaximumQoS(value) => ("maximum_qos", value.into()),
        Property::RetainAvailable(value) => ("retain_available", value.into()),
        Property::UserProperty(name, value) => ("user_property", json!([name, value])),
        Property::MaximumPacketSize(value) => ("maximum_packet_size", value.into()),
        Property::WildcardSubscriptionAvailable(value) => ("wildcard_subscription_available", value.into()),
        Property::SubscriptionIdentifierAvailable(value) => ("subscription_identifier_available", value.into()),
        Property::SharedSubscriptionAvailable(value) => ("shared_subscription_available", value.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_cut_between_characters() {
        let text = "grün".as_bytes();
        assert_eq!(payload_text(&text[..3], true), ("gr".into(), PayloadEncoding::Plain));
        assert_eq!(payload_text(&text[..4], true), ("grü".into(), PayloadEncoding::Plain));
        assert_eq!(
            payload_text(&[0xff, 0xfe], true),
            ("//4=".into(), PayloadEncoding::Base64)
        );
        // An incomplete character that the sender sent is not text.
        assert_eq!(
            payload_text(&[b'a', 0xc3], false),
            ("YcM=".into(), PayloadEncoding::Base64)
        );
    }

    #[test]
    fn secrets_are_never_shown() {
        let mut bytes = Vec::new();
        let mut writer = mqtt::PropertyWriter::new(&mut bytes);
        writer.put(Property::AuthenticationMethod("m"));
        writer.put(Property::AuthenticationData(b"sesame"));
        let properties = writer.finish();
        let connect = Packet::Connect(Connect {
            version: mqtt::ProtocolVersion::V5,
            clean_start: true,
            is_bridge: false,
            keep_alive: 60,
            properties,
            client_id: "c",
            will: None,
            user_name: Some("token-of-a-device"),
            password: Some(b"sesame"),
        });
        let style = |is_user_name_secret| PacketViewOptions {
            payload_bytes_max: 10,
            is_user_name_secret,
            topic: None,
        };
        let text = Value::from(fields(&connect, style(true))).to_string();
        assert!(!text.contains("sesame") && !text.contains("token-of"), "{text}");
        assert_eq!(fields(&connect, style(false))["user_name"], "token-of-a-device");
    }
}
