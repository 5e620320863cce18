//! Nodes that send a message to an external system and continue with its result: REST calls, Kafka, MQTT.

use std::sync::Arc;

use base64ct::{Base64, Encoding};
use serde_json::{Value as Json, json};

use super::{NodeOutcome, NodePosition};
use crate::chain::host::{ExternalCall, Host, KafkaRecord, KafkaServer, MqttMessage, MqttServer, NodeError, RestCall};
use crate::chain::message::{ChainMessage, PatternFiller, fill, has_pattern, plain};

/// Default and longest timeout of a REST call.
const REST_TIMEOUT_MS: u64 = 60_000;
const REST_TIMEOUT_MS_MAX: u64 = 600_000;
/// Timeout of a Kafka record or MQTT message.
const DELIVERY_MS: i64 = 60_000;
/// Default and largest response of a REST call, in KiB.
const ANSWER_KIB: u64 = 256;
const ANSWER_KIB_MAX: u64 = 4096;

#[derive(Debug)]
pub enum ExternalNode {
    Rest(RestNode),
    Kafka(KafkaNode),
    Mqtt(MqttNode),
}

#[derive(Debug)]
pub struct RestNode {
    /// `http://host:port`.
    server: String,
    /// Pattern of path and query.
    path: String,
    method: String,
    headers: Vec<(String, String)>,
    has_body: bool,
    is_plain: bool,
    timeout_ms: u64,
    answer_bytes_max: usize,
}

#[derive(Debug)]
pub struct KafkaNode {
    server: KafkaServer,
    topic: String,
    key: String,
    has_headers: bool,
}

#[derive(Debug)]
pub struct MqttNode {
    server: MqttServer,
    topic: String,
    is_retained: bool,
    is_plain: bool,
}

const MQTT_VERSIONS: [&str; 3] = ["MQTT_3_1", "MQTT_3_1_1", "MQTT_5"];

const METHODS: [&str; 7] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"];

/// Kafka producer options that this server supports.
const KAFKA_PROPERTIES: [&str; 8] = [
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "compression.type",
    "enable.idempotence",
    "max.request.size",
    "request.timeout.ms",
    "delivery.timeout.ms",
];

impl ExternalNode {
    pub fn rest(json: &Json) -> Result<ExternalNode, String> {
        let method = text(json, "requestMethod").unwrap_or_else(|| "POST".to_owned());
        if !METHODS.contains(&&*method) {
            return Err(format!("requestMethod {method:?} is not supported"));
        }
        if json["enableProxy"].as_bool() == Some(true) {
            return Err("requests through a proxy are not supported".to_owned());
        }
        let mut headers: Vec<(String, String)> = json["headers"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), plain(value)))
            .collect();
        if let Some((user, password)) = credentials(&json["credentials"])? {
            let both = Base64::encode_string(format!("{user}:{password}").as_bytes());
            headers.push(("Authorization".to_owned(), format!("Basic {both}")));
        }
        let has_body = matches!(&*method, "POST" | "PUT" | "PATCH" | "DELETE");
        let url = text(json, "restEndpointUrlPattern").ok_or("restEndpointUrlPattern should be specified")?;
        let (server, path) = split_url(&url)?;
        if let Some((name, _)) = headers.iter().find(|(name, value)| is_host(name) && has_pattern(value)) {
            return Err(format!("headers.{name}: found a pattern, expected a fixed host"));
        }
        let answer_kib = positive_number(json, "maxInMemoryBufferSizeInKb")?
            .unwrap_or(ANSWER_KIB)
            .min(ANSWER_KIB_MAX);
        Ok(ExternalNode::Rest(RestNode {
            server,
            path,
            has_body: has_body && json["ignoreRequestBody"].as_bool() != Some(true),
            method,
            headers,
            is_plain: flag(json, "parseToPlainText") || flag(json, "trimDoubleQuotes"),
            timeout_ms: positive_number(json, "readTimeoutMs")?
                .unwrap_or(REST_TIMEOUT_MS)
                .min(REST_TIMEOUT_MS_MAX),
            answer_bytes_max: usize::try_from(answer_kib << 10).unwrap_or(usize::MAX),
        }))
    }

    pub fn kafka(json: &Json, problems: &mut Vec<String>) -> Result<ExternalNode, String> {
        let acks = text(json, "acks").unwrap_or_else(|| "-1".to_owned());
        if !["0", "1", "-1", "all"].contains(&&*acks) {
            return Err(format!("acks is {acks:?}, expected 0, 1, -1 or all"));
        }
        let mut properties = Vec::new();
        for (name, value) in json["otherProperties"].as_object().into_iter().flatten() {
            match KAFKA_PROPERTIES.contains(&&**name) {
                true => properties.push((name.clone(), plain(value))),
                false if name.starts_with("ssl.") => return Err(format!("the property {name} is not supported")),
                false => problems.push(format!("the property {name} has no effect")),
            }
        }
        Ok(ExternalNode::Kafka(KafkaNode {
            server: KafkaServer {
                bootstrap_servers: text(json, "bootstrapServers").ok_or("bootstrapServers should be specified")?,
                acks,
                linger_ms: number(json, "linger")?.unwrap_or(0),
                properties,
            },
            topic: text(json, "topicPattern").ok_or("topicPattern should be specified")?,
            key: text(json, "keyPattern").unwrap_or_default(),
            has_headers: flag(json, "addMetadataKeyValuesAsKafkaHeaders"),
        }))
    }

    pub fn mqtt(json: &Json) -> Result<ExternalNode, String> {
        let port = number(json, "port")?.unwrap_or(1883);
        let credentials = credentials(&json["credentials"])?;
        let seconds = positive_number(json, "connectTimeoutSec")?;
        let version = text(json, "protocolVersion").unwrap_or_else(|| "MQTT_3_1_1".to_owned());
        if !MQTT_VERSIONS.contains(&&*version) {
            return Err(format!(
                "protocolVersion is {version:?}, expected one of {}",
                MQTT_VERSIONS.join(", ")
            ));
        }
        // A client id suffix is ignored. It is for several nodes of a cluster with one rule chain.
        Ok(ExternalNode::Mqtt(MqttNode {
            server: MqttServer {
                host: text(json, "host").ok_or("host should be specified")?,
                port: u16::try_from(port)
                    .ok()
                    .filter(|port| *port != 0)
                    .ok_or_else(|| format!("port is {port}"))?,
                is_tls: flag(json, "ssl"),
                client_id: text(json, "clientId").unwrap_or_default(),
                user: credentials.as_ref().map(|(user, _)| user.clone()),
                password: credentials.map(|(_, password)| password),
                version,
                is_clean: json["cleanSession"].as_bool() != Some(false),
                connect_timeout_ms: seconds.unwrap_or(10).min(200).saturating_mul(1000),
            },
            topic: text(json, "topicPattern").ok_or("topicPattern should be specified")?,
            is_retained: flag(json, "retainedMessage"),
            is_plain: flag(json, "parseToPlainText"),
        }))
    }

    pub fn process<'a>(
        &self,
        at: NodePosition<'_>,
        message: &Arc<ChainMessage<'a>>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        let (outbound, within_ms) = match self {
            ExternalNode::Rest(node) => (
                ExternalCall::Rest(node.call(message)?),
                i64::try_from(node.timeout_ms).unwrap_or(i64::MAX),
            ),
            ExternalNode::Kafka(node) => (ExternalCall::Kafka(node.record(message)?), DELIVERY_MS),
            ExternalNode::Mqtt(node) => (ExternalCall::Mqtt(node.message(message)?), DELIVERY_MS),
        };
        host.send(outbound, within_ms, at.continuation(message))?;
        Ok(NodeOutcome::Done)
    }
}

impl RestNode {
    fn call(&self, message: &ChainMessage<'_>) -> Result<RestCall, NodeError> {
        let mut filler = PatternFiller::new(message);
        let mut headers = Vec::with_capacity(self.headers.len() + 1);
        for (pattern, value) in &self.headers {
            let name = filler.fill(pattern)?;
            if has_pattern(pattern) && is_host(&name) {
                return Err(NodeError::new(format!(
                    "headers.{pattern}: a message must not set {name}"
                )));
            }
            headers.push((name, filler.fill(value)?));
        }
        let body = self.has_body.then(|| data_text(message, self.is_plain));
        let mut names = headers.iter().map(|(name, _): &(String, String)| name);
        let has_type = names.any(|name| name.eq_ignore_ascii_case("content-type"));
        if body.is_some() && !has_type {
            let kind = if self.is_plain {
                "text/plain;charset=UTF-8"
            } else {
                "application/json"
            };
            headers.push(("Content-Type".to_owned(), kind.to_owned()));
        }
        Ok(RestCall {
            method: self.method.clone(),
            server: self.server.clone(),
            path: filler.fill_url(&self.path)?,
            headers,
            body,
            timeout_ms: self.timeout_ms,
            answer_bytes_max: self.answer_bytes_max,
        })
    }
}

impl KafkaNode {
    fn record(&self, message: &ChainMessage<'_>) -> Result<KafkaRecord, NodeError> {
        let header = |(name, value): (&str, &str)| (format!("tb_msg_md_{name}"), value.to_owned());
        let mut filler = PatternFiller::new(message);
        Ok(KafkaRecord {
            server: self.server.clone(),
            topic: filler.fill(&self.topic)?,
            key: Some(filler.fill(&self.key)?).filter(|_| !self.key.is_empty()),
            value: message.json().to_string(),
            headers: if self.has_headers {
                message.metadata.iter().map(header).collect()
            } else {
                Vec::new()
            },
        })
    }
}

impl MqttNode {
    fn message(&self, message: &ChainMessage<'_>) -> Result<MqttMessage, NodeError> {
        Ok(MqttMessage {
            server: self.server.clone(),
            topic: fill(&self.topic, message)?,
            payload: data_text(message, self.is_plain),
            is_retained: self.is_retained,
        })
    }
}

/// The data as text. With `is_plain`, a string has no quotes.
fn data_text(message: &ChainMessage<'_>, is_plain: bool) -> String {
    let json = message.json();
    if is_plain { plain(&json) } else { json.to_string() }
}

/// User name and password, if any.
fn credentials(json: &Json) -> Result<Option<(String, String)>, String> {
    let member = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
    match json["type"].as_str() {
        None | Some("anonymous") => Ok(None),
        Some("basic") => Ok(Some((member("username"), member("password")))),
        Some(other) => Err(format!("credentials of type {other:?} are not supported")),
    }
}

fn text(json: &Json, name: &str) -> Option<String> {
    json[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn flag(json: &Json, name: &str) -> bool {
    json[name] == json!(true)
}

/// Reads a number, which may be a string. Any other value is an error, and does not select the default.
fn number(json: &Json, name: &str) -> Result<Option<u64>, String> {
    let found = match &json[name] {
        Json::Null => return Ok(None),
        Json::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    found
        .map(Some)
        .ok_or_else(|| format!("{name} is {}, expected a whole number that is not negative", json[name]))
}

/// As [`number`], but treats 0 as missing.
fn positive_number(json: &Json, name: &str) -> Result<Option<u64>, String> {
    Ok(number(json, name)?.filter(|number| *number > 0))
}

fn is_host(header: &str) -> bool {
    header.eq_ignore_ascii_case("host")
}

/// Splits a URL into `http://host:port` and the pattern of path and query.
///
/// ThingsBoard allows patterns everywhere. Here they are allowed only in path and query. Otherwise a device could
/// choose the host that receives the node's credentials, and reach hosts that are reachable only from the server.
fn split_url(url: &str) -> Result<(String, String), String> {
    const FIELD: &str = "restEndpointUrlPattern";
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|scheme| url.starts_with(scheme));
    let start = scheme.map_or(0, str::len);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |end| start + end);
    let (server, path) = url.split_at(end);
    if has_pattern(server) {
        return Err(format!(
            "{FIELD}: found a pattern in {server:?}, expected a fixed scheme, host and port; patterns are allowed only in path and query"
        ));
    }
    if scheme.is_none() {
        return Err(format!("{FIELD}: {url:?} is not an http or https URL"));
    }
    let port = match server[start..].rsplit_once(':') {
        // An IPv6 address without a port.
        Some((_, last)) if last.ends_with(']') => None,
        Some((_, digits)) => Some(digits),
        None => None,
    };
    let is_port = |digits: &str| {
        digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok_and(|port| port != 0)
    };
    match port {
        Some(digits) if !is_port(digits) => Err(format!("{FIELD}: found the port {digits:?}, expected 1 to 65535")),
        _ => Ok((server.to_owned(), path.to_owned())),
    }
}
