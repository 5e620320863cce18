//! Options of the MQTT connector, its action and its source.

use std::collections::BTreeMap;

use mqtt::{ProtocolVersion, SharedFilter, filters_overlap, validate_filter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::properties::{self, UserProperties};
use crate::config::{RetryConfig, address, at_least, out_of_range};
use crate::secret::Secret;
use crate::sink::Template;
use crate::tls::TlsConfig;

/// Packet identifiers above are for SUBSCRIBE and UNSUBSCRIBE.
pub(super) const IN_FLIGHT_MAX: u16 = 60_000;

/// Which broker, and as whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttConnectorConfig {
    /// `host:port`.
    pub server: String,
    #[serde(default)]
    pub version: MqttVersion,
    /// Must be nobody else's: the broker knows the session by it.
    pub client_id: String,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub password: Option<Secret>,
    /// Forget the session when connecting. Without, the broker keeps what arrives for the sources while we are away.
    #[serde(default)]
    pub clean_start: bool,
    /// How long the broker keeps the session while we are away, in seconds. MQTT 5 only; before, it is for ever.
    #[serde(default = "session_expiry_s")]
    pub session_expiry_s: u32,
    /// Seconds of silence after which one side asks whether the other is there. 0: never.
    #[serde(default = "keep_alive_s")]
    pub keep_alive_s: u16,
    /// Messages sent and not yet confirmed. The broker may allow fewer.
    #[serde(default = "in_flight_max")]
    #[schemars(range(min = 1, max = 60_000))]
    pub in_flight_max: u16,
    /// Messages received at QoS 1 and 2 and not yet accepted.
    #[serde(default = "receive_max")]
    #[schemars(range(min = 1))]
    pub receive_max: u16,
    /// Bytes of a packet that is received. A broker that sends a longer one is disconnected.
    #[serde(default = "packet_bytes_max")]
    #[schemars(range(min = 1024))]
    pub packet_bytes_max: u32,
    /// Loop protection. MQTT 5: messages that go through here, in either direction, carry a user property `tidewire-bridge` that names
    /// us. What comes back with it is not taken in, and not sent once more. Before: tells the broker that we are a bridge, in the way of Mosquitto; it then sends us nothing that came
    /// from us. A broker that does not know this is told no more.
    #[serde(default = "yes")]
    pub loop_protection: bool,
    /// How long connecting may take, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1))]
    pub connect_timeout_ms: u64,
    /// How long the broker may take to confirm a message, in milliseconds. Then the connection counts as lost.
    #[serde(default = "answer_timeout_ms")]
    #[schemars(range(min = 1))]
    pub answer_timeout_ms: u64,
    /// Pauses between tries to connect. `tries_max` has no meaning here.
    #[serde(default)]
    pub reconnect: RetryConfig,
    /// TLS. None: what is sent, the password included, can be read on the way.
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

/// What is published for each message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MqttActionConfig {
    /// Template. `site/7/${topic}` puts a prefix before the topic.
    pub topic: String,
    /// Template.
    pub payload: String,
    /// Template that gives 0, 1 or 2.
    pub qos: String,
    /// Template that gives true or false, or 1 or 0.
    pub retain: String,
    /// MQTT 5 only. One whose template gives null is left out. By default those that the message has, where the rule puts out `pub_props`.
    pub user_properties: UserProperties,
    /// Templates of `Content-Type`, `Correlation-Data`, `Message-Expiry-Interval`, `Payload-Format-Indicator` and `Response-Topic`; the same
    /// holds for them. Of the expiry interval the time is taken off that the message has waited here.
    pub mqtt_properties: BTreeMap<String, String>,
}

impl Default for MqttActionConfig {
    fn default() -> MqttActionConfig {
        MqttActionConfig {
            topic: "${topic}".to_owned(),
            payload: "${payload}".to_owned(),
            qos: "${qos}".to_owned(),
            retain: "${flags.retain}".to_owned(),
            user_properties: properties::user_properties_of_the_message(),
            mqtt_properties: properties::properties_of_the_message(),
        }
    }
}

/// What is subscribed to, and how its topics are rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttSourceConfig {
    /// Those of the sources of one connector must not overlap: the sources share a session, in which a message comes once.
    pub subscriptions: Vec<MqttSubscription>,
    /// Taken off the front of topics that begin with it.
    #[serde(default)]
    pub strip_prefix: String,
    /// Put before topics, after `strip_prefix`.
    #[serde(default)]
    pub add_prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttSubscription {
    /// `$share/GROUP/FILTER` shares the messages with other subscribers.
    pub filter: String,
    #[serde(default = "one")]
    #[schemars(range(max = 2))]
    pub qos: u8,
}

fn one() -> u8 {
    1
}

impl MqttConnectorConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.address().is_none() {
            problems.push("server: must be host:port".to_owned());
        }
        if self.client_id.is_empty() || self.client_id.len() > 65_535 || self.client_id.contains('\0') {
            problems.push("client_id: must have 1 to 65535 bytes and no zero byte".to_owned());
        }
        if self.version == MqttVersion::V3_1 && self.client_id.len() > 23 {
            problems.push("client_id: must have 23 bytes at most in MQTT 3.1".to_owned());
        }
        if self.user.is_none() && self.password.is_some() && self.version != MqttVersion::V5 {
            problems.push("user: is missing; before MQTT 5 a password needs it".to_owned());
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
    /// The templates to fill in for each message: topic, payload, QoS, retain, then properties.
    pub fn templates(&self) -> Vec<Template> {
        let mut templates = vec![
            Template::new("topic", &self.topic),
            Template::new("payload", &self.payload),
            Template::new("qos", &self.qos),
            Template::new("retain", &self.retain),
        ];
        templates.extend(self.slots().0);
        templates
    }

    pub(super) fn slots(&self) -> (Vec<Template>, Vec<properties::Slot>) {
        properties::slots(&self.user_properties, &self.mqtt_properties)
    }

    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::from_iter(properties::problem(&self.mqtt_properties));
        if self.topic.is_empty() {
            problems.push("topic: must not be empty".to_owned());
        }
        let is_fixed = |text: &str| !text.contains("${");
        if is_fixed(&self.qos) && !matches!(self.qos.as_str(), "0" | "1" | "2") {
            problems.push(format!("qos: is `{}`, must give 0, 1 or 2", self.qos));
        }
        if is_fixed(&self.retain) && !matches!(self.retain.as_str(), "true" | "false" | "1" | "0") {
            problems.push(format!("retain: is `{}`, must give true or false", self.retain));
        }
        problems
    }
}

impl MqttSourceConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.subscriptions.is_empty() {
            problems.push("subscriptions: must have one at least".to_owned());
        }
        for MqttSubscription { filter, qos } in &self.subscriptions {
            if validate_filter(filter).is_err() || SharedFilter::parse(filter).is_err() {
                problems.push(format!("subscriptions: `{filter}` is no topic filter"));
            }
            if *qos > 2 {
                problems.push(format!(
                    "subscriptions: the QoS of `{filter}` is {qos}, must be 0, 1 or 2"
                ));
            }
        }
        if mqtt::has_wildcards(&self.add_prefix) {
            problems.push("add_prefix: must have no wildcard".to_owned());
        }
        problems
    }

    /// The first of its subscriptions that fits a topic which one of the other's fits too, and the filter of that one.
    pub fn overlap<'a>(&self, other: &'a MqttSourceConfig) -> Option<(usize, &'a str)> {
        let mine = self.subscriptions.iter().enumerate();
        mine.flat_map(|(index, mine)| other.subscriptions.iter().map(move |theirs| (index, mine, theirs)))
            .find(|(_, mine, theirs)| filters_overlap(bare(&mine.filter), bare(&theirs.filter)))
            .map(|(index, _, theirs)| (index, theirs.filter.as_str()))
    }

    pub(super) fn rewrite(&self, topic: &str) -> String {
        let rest = topic.strip_prefix(self.strip_prefix.as_str()).unwrap_or(topic);
        format!("{}{rest}", self.add_prefix)
    }
}

/// Without `$share/GROUP/`.
pub(super) fn bare(filter: &str) -> &str {
    match SharedFilter::parse(filter) {
        Ok(Some(shared)) => shared.filter,
        _ => filter,
    }
}
