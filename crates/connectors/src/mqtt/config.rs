//! Options of the MQTT connector, its action and its source.

use std::collections::BTreeMap;

use mqtt::{ProtocolVersion, SharedFilter, filters_overlap, validate_filter, validate_topic_name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::properties::{self, PublishUserProperties};
use crate::config::{RetryConfig, address, at_least, out_of_range};
use crate::secret::Secret;
use crate::sink::FieldTemplate;
use crate::tls::TlsConfig;

/// SUBSCRIBE and UNSUBSCRIBE use the packet identifiers above.
pub(super) const IN_FLIGHT_MAX: u16 = 60_000;

/// Connection to another MQTT broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttConnectorConfig {
    /// Address of the broker as `host:port`.
    pub server: String,
    /// Version of the protocol.
    #[serde(default)]
    pub version: MqttVersion,
    /// Client identifier. It must be unique at the broker, because it identifies the session.
    pub client_id: String,
    /// User name.
    #[serde(default)]
    pub user: Option<String>,
    /// Password.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Whether to discard the session when connecting. By default the broker stores messages for the sources while the
    /// connection is down.
    #[serde(default)]
    pub clean_start: bool,
    /// How long the broker stores the session while the connection is down, in seconds. MQTT 5 only; in older versions
    /// the session never expires.
    #[serde(default = "session_expiry_s")]
    pub session_expiry_s: u32,
    /// Keep-alive interval in seconds. 0 disables it.
    #[serde(default = "keep_alive_s")]
    pub keep_alive_s: u16,
    /// Maximum number of unacknowledged outgoing messages. The broker may allow fewer.
    #[serde(default = "in_flight_max")]
    #[schemars(range(min = 1, max = 60_000))]
    pub in_flight_max: u16,
    /// Maximum number of QoS 1 and 2 messages that are received and not yet accepted.
    #[serde(default = "receive_max")]
    #[schemars(range(min = 1))]
    pub receive_max: u16,
    /// Maximum size of a received packet in bytes. The connection is closed if the broker sends a longer packet.
    #[serde(default = "packet_bytes_max")]
    #[schemars(range(min = 1024))]
    pub packet_bytes_max: u32,
    /// Prevents message loops between brokers. A message that came from the broker is not sent back to it under the
    /// same topic. With MQTT 5, subscriptions use No Local, and messages in both directions carry the user property
    /// `tidewire-bridge` with an identifier of this connector. Messages that return with it are dropped and not sent
    /// again. With older versions, the connection sets the bridge flag of Mosquitto, so that the broker does not return
    /// our own messages. For brokers that do not support the flag, it connects again without the flag.
    #[serde(default = "yes")]
    pub loop_protection: bool,
    /// Maximum time to connect, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1))]
    pub connect_timeout_ms: u64,
    /// How long the broker may take to acknowledge a message, in milliseconds. Afterwards the connection is closed and
    /// established again.
    #[serde(default = "answer_timeout_ms")]
    #[schemars(range(min = 1))]
    pub answer_timeout_ms: u64,
    /// Pauses between connection attempts. `tries_max` has no effect.
    #[serde(default)]
    pub reconnect: RetryConfig,
    /// TLS settings. Without them, all data including the password is sent unencrypted.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MqttVersion {
    #[serde(rename = "3.1")]
    V3_1,
    #[serde(rename = "3.1.1")]
    V3_1_1,
    #[default]
    #[serde(rename = "5")]
    V5,
}

impl From<MqttVersion> for ProtocolVersion {
    fn from(version: MqttVersion) -> ProtocolVersion {
        match version {
            MqttVersion::V3_1 => ProtocolVersion::V3_1,
            MqttVersion::V3_1_1 => ProtocolVersion::V3_1_1,
            MqttVersion::V5 => ProtocolVersion::V5,
        }
    }
}

fn session_expiry_s() -> u32 {
    86_400
}

fn keep_alive_s() -> u16 {
    60
}

fn in_flight_max() -> u16 {
    1000
}

fn receive_max() -> u16 {
    1000
}

fn packet_bytes_max() -> u32 {
    1 << 20
}

fn yes() -> bool {
    true
}

fn answer_timeout_ms() -> u64 {
    30_000
}

/// Messages that the action publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MqttActionConfig {
    /// Template of the topic. For example, `site/7/${topic}` adds a prefix.
    pub topic: String,
    /// Template of the payload.
    pub payload: String,
    /// Template of the QoS: 0, 1 or 2.
    pub qos: String,
    /// Template of the retain flag: true or false, or 1 or 0.
    pub retain: String,
    /// Templates of the user properties. MQTT 5 only. A property is omitted if its template yields null. Default: the
    /// user properties of the message, if the rule outputs `pub_props`.
    pub user_properties: PublishUserProperties,
    /// Templates of `Content-Type`, `Correlation-Data`, `Message-Expiry-Interval`, `Payload-Format-Indicator` and
    /// `Response-Topic`. MQTT 5 only. A property is omitted if its template yields null. The time that a message waited
    /// in the buffer is subtracted from its expiry interval.
    pub mqtt_properties: BTreeMap<String, String>,
}

impl Default for MqttActionConfig {
    fn default() -> MqttActionConfig {
        MqttActionConfig {
            topic: "${topic}".to_owned(),
            payload: "${payload}".to_owned(),
            qos: "${qos}".to_owned(),
            retain: "${flags.retain}".to_owned(),
            user_properties: properties::message_user_properties(),
            mqtt_properties: properties::message_properties(),
        }
    }
}

/// Topics that the source subscribes to, and how it rewrites them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttSourceConfig {
    /// Subscriptions. Subscriptions of the sources on one connector must not overlap: the sources share a session,
    /// which receives each message once.
    pub subscriptions: Vec<MqttSubscription>,
    /// Prefix that is removed from topics that begin with it.
    #[serde(default)]
    pub strip_prefix: String,
    /// Prefix that is added to topics, after `strip_prefix` was removed.
    #[serde(default)]
    pub add_prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttSubscription {
    /// Topic filter. `$share/GROUP/FILTER` shares the messages with other subscribers.
    pub filter: String,
    /// Highest QoS of the subscription.
    #[serde(default = "one")]
    #[schemars(range(max = 2))]
    pub qos: u8,
}

fn one() -> u8 {
    1
}

impl MqttConnectorConfig {
    /// Number of packet identifiers of messages. Twice the messages in flight, because an identifier stays in use until
    /// all earlier messages are acknowledged.
    pub(super) fn message_ids(&self) -> u16 {
        self.in_flight_max.saturating_mul(2).min(IN_FLIGHT_MAX)
    }

    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.address().is_none() {
            problems.push(format!("server: found {:?}, expected host:port", self.server));
        }
        if self.client_id.is_empty() || self.client_id.len() > 65_535 || self.client_id.contains('\0') {
            problems.push("client_id: must have 1 to 65535 bytes without NUL".to_owned());
        }
        if self.version == MqttVersion::V3_1 && self.client_id.len() > 23 {
            problems.push("client_id: must have at most 23 bytes in MQTT 3.1".to_owned());
        }
        if self.user.is_none() && self.password.is_some() && self.version != MqttVersion::V5 {
            problems.push("user: missing; before MQTT 5 a password needs a user".to_owned());
        }
        problems.extend(out_of_range([
            ("in_flight_max", self.in_flight_max.into(), 1..=IN_FLIGHT_MAX.into()),
            ("receive_max", self.receive_max.into(), at_least(1)),
            ("packet_bytes_max", self.packet_bytes_max.into(), at_least(1024)),
            ("connect_timeout_ms", self.connect_timeout_ms, at_least(1)),
            ("answer_timeout_ms", self.answer_timeout_ms, at_least(1)),
        ]));
        problems.extend(self.tls.as_ref().and_then(|tls| tls.client().err()));
        problems
    }

    pub(super) fn address(&self) -> Option<(&str, u16)> {
        address(&self.server)
    }
}

impl MqttActionConfig {
    /// Returns the templates: topic, payload, QoS, retain, then properties.
    pub fn templates(&self) -> Vec<FieldTemplate> {
        let mut templates = vec![
            FieldTemplate::new("topic", &self.topic),
            FieldTemplate::document("payload", &self.payload),
            FieldTemplate::new("qos", &self.qos),
            FieldTemplate::new("retain", &self.retain),
        ];
        templates.extend(self.slots().0);
        templates
    }

    pub(super) fn slots(&self) -> (Vec<FieldTemplate>, Vec<properties::FieldRole>) {
        properties::slots(&self.user_properties, &self.mqtt_properties)
    }

    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::from_iter(properties::problem(&self.mqtt_properties));
        // Checks the fixed part of the topic.
        if let Err(error) = validate_topic_name(&literal(&self.topic)) {
            problems.push(format!("topic: {error}"));
        }
        let is_fixed = |text: &str| !text.contains("${");
        if is_fixed(&self.qos) && !matches!(self.qos.as_str(), "0" | "1" | "2") {
            problems.push(format!("qos: is `{}`, must be 0, 1 or 2", self.qos));
        }
        if is_fixed(&self.retain) && !matches!(self.retain.as_str(), "true" | "false" | "1" | "0") {
            problems.push(format!("retain: is `{}`, must be true or false", self.retain));
        }
        problems
    }
}

/// Returns the text with each placeholder replaced by a letter.
fn literal(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, template)) = rest.split_once("${") {
        let Some((name, after)) = template.split_once('}') else {
            break;
        };
        out.push_str(before);
        out.push(if name == "$" { '$' } else { 'x' });
        rest = after;
    }
    out + rest
}

impl MqttSourceConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.subscriptions.is_empty() {
            problems.push("subscriptions: must name at least one topic filter".to_owned());
        }
        for MqttSubscription { filter, qos } in &self.subscriptions {
            if validate_filter(filter).is_err() || SharedFilter::parse(filter).is_err() {
                problems.push(format!("subscriptions: `{filter}` is not a valid topic filter"));
            }
            if *qos > 2 {
                problems.push(format!(
                    "subscriptions: the QoS of `{filter}` is {qos}, must be 0, 1 or 2"
                ));
            }
        }
        if self.add_prefix.contains(['+', '#', '\0']) {
            problems.push("add_prefix: must not contain +, # or NUL".to_owned());
        }
        problems
    }

    /// Returns the index of the first subscription that overlaps one of `other`, and that one's filter.
    pub fn overlap<'a>(&self, other: &'a MqttSourceConfig) -> Option<(usize, &'a str)> {
        let mine = self.subscriptions.iter().enumerate();
        mine.flat_map(|(index, mine)| other.subscriptions.iter().map(move |theirs| (index, mine, theirs)))
            .find(|(_, mine, theirs)| {
                filters_overlap(without_share_prefix(&mine.filter), without_share_prefix(&theirs.filter))
            })
            .map(|(index, _, theirs)| (index, theirs.filter.as_str()))
    }

    pub(super) fn rewrite(&self, topic: &str) -> String {
        let rest = topic.strip_prefix(self.strip_prefix.as_str()).unwrap_or(topic);
        format!("{}{rest}", self.add_prefix)
    }
}

/// Returns the filter without `$share/GROUP/`.
pub(super) fn without_share_prefix(filter: &str) -> &str {
    match SharedFilter::parse(filter) {
        Ok(Some(shared)) => shared.filter,
        _ => filter,
    }
}
