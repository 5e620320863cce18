//! Nodes that hand a message to another system and go on with what that says: REST calls, Kafka, MQTT.

use std::rc::Rc;

use base64ct::{Base64, Encoding};
use serde_json::{Value as Json, json};

use super::{At, Outcome};
use crate::chain::host::{Host, KafkaRecord, KafkaServer, MqttMessage, MqttServer, NodeError, Outbound, RestCall};
use crate::chain::message::{Filler, Message, fill, plain};

/// How long a REST call may take whose node says nothing, and at most.
const REST_TIMEOUT_MS: u64 = 60_000;
const REST_TIMEOUT_MS_MAX: u64 = 600_000;
/// How long a record or a message may take.
const DELIVERY_MS: i64 = 60_000;
/// Of an answer to a REST call, in KiB, if the node says nothing, and at most.
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
    url: String,
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

const METHODS: [&str; 7] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"];

/// Options of Kafka's producer that have their like here.
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
            return Err(format!("{method:?} is no method of a request"));
        }
        if json["enableProxy"].as_bool() == Some(true) {
            return Err("requests by a proxy are not supported".to_owned());
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
        let number = |name: &str| json[name].as_u64().filter(|number| *number > 0);
        let answer_kib = number("maxInMemoryBufferSizeInKb")
            .unwrap_or(ANSWER_KIB)
            .min(ANSWER_KIB_MAX);
        Ok(ExternalNode::Rest(RestNode {
            url: text(json, "restEndpointUrlPattern").ok_or("restEndpointUrlPattern should be specified")?,
            has_body: has_body && json["ignoreRequestBody"].as_bool() != Some(true),
            method,
            headers,
            is_plain: flag(json, "parseToPlainText") || flag(json, "trimDoubleQuotes"),
            timeout_ms: number("readTimeoutMs")
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
                linger_ms: json["linger"].as_u64().unwrap_or(0),
                properties,
            },
            topic: text(json, "topicPattern").ok_or("topicPattern should be specified")?,
            key: text(json, "keyPattern").unwrap_or_default(),
            has_headers: flag(json, "addMetadataKeyValuesAsKafkaHeaders"),
        }))
    }

    pub fn mqtt(json: &Json) -> Result<ExternalNode, String> {
        let port = json["port"].as_u64().unwrap_or(1883);
        let credentials = credentials(&json["credentials"])?;
        let seconds = json["connectTimeoutSec"].as_u64().filter(|seconds| *seconds > 0);
        // A suffix is for several nodes of a cluster with one rule chain.
        Ok(ExternalNode::Mqtt(MqttNode {
            server: MqttServer {
                host: text(json, "host").ok_or("host should be specified")?,
                port: u16::try_from(port).map_err(|_| format!("port is {port}"))?,
                is_tls: flag(json, "ssl"),
                client_id: text(json, "clientId").unwrap_or_default(),
                user: credentials.as_ref().map(|(user, _)| user.clone()),
                password: credentials.map(|(_, password)| password),
                version: text(json, "protocolVersion").unwrap_or_else(|| "MQTT_3_1_1".to_owned()),
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
        at: At<'_>,
        message: &Rc<Message<'a>>,
        host: &mut dyn Host,
    ) -> Result<Outcome<'a>, NodeError> {
        let (outbound, within_ms) = match self {
            ExternalNode::Rest(node) => (
                Outbound::Rest(node.call(message)?),
                i64::try_from(node.timeout_ms).unwrap_or(i64::MAX),
            ),
            ExternalNode::Kafka(node) => (Outbound::Kafka(node.record(message)?), DELIVERY_MS),
            ExternalNode::Mqtt(node) => (Outbound::Mqtt(node.message(message)?), DELIVERY_MS),
        };
        host.send(outbound, within_ms, at.then(message))?;
        Ok(Outcome::Ends)
    }
}

impl RestNode {
    fn call(&self, message: &Message<'_>) -> Result<RestCall, NodeError> {
        let mut filler = Filler::new(message);
        let mut headers = Vec::with_capacity(self.headers.len() + 1);
        for (name, value) in &self.headers {
            headers.push((filler.fill(name)?, filler.fill(value)?));
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
            url: filler.fill(&self.url)?,
            headers,
            body,
            timeout_ms: self.timeout_ms,
            answer_bytes_max: self.answer_bytes_max,
        })
    }
}

impl KafkaNode {
    fn record(&self, message: &Message<'_>) -> Result<KafkaRecord, NodeError> {
        let header = |(name, value): (&str, &str)| (format!("tb_msg_md_{name}"), value.to_owned());
        let mut filler = Filler::new(message);
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
    fn message(&self, message: &Message<'_>) -> Result<MqttMessage, NodeError> {
        Ok(MqttMessage {
            server: self.server.clone(),
            topic: fill(&self.topic, message)?,
            payload: data_text(message, self.is_plain),
            is_retained: self.is_retained,
        })
    }
}

/// Plain: a text without its quotation marks.
fn data_text(message: &Message<'_>, is_plain: bool) -> String {
    let json = message.json();
    if is_plain { plain(&json) } else { json.to_string() }
}

/// User and password, if there are any.
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
