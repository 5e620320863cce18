//! What a user says about Kafka: the connector, the action, the source. The doc comments are what forms and reference pages show.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{BatchConfig, DeliveryConfig, at_least, out_of_range};
use crate::secret::Secret;
use crate::sink::Template;

/// Where Kafka is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaConnectorConfig {
    /// Some of the brokers, `host:port`, separated by commas. The others are found through them.
    pub bootstrap_hosts: String,
    #[serde(default)]
    pub authentication: Authentication,
    /// Without, the connection is not encrypted.
    #[serde(default)]
    pub tls: Option<KafkaTls>,
    /// How long a connection may take, with authentication, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1000))]
    pub connect_timeout_ms: u64,
    /// How long a broker may take to answer, in milliseconds. Then the connection is closed and the request sent again.
    #[serde(default = "request_timeout_ms")]
    #[schemars(range(min = 1000))]
    pub request_timeout_ms: u64,
    /// How brokers call us in their logs and quotas.
    #[serde(default = "client_id")]
    pub client_id: String,
}

fn request_timeout_ms() -> u64 {
    30_000
}

fn client_id() -> String {
    "tidewire".to_owned()
}

/// How we prove who we are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mechanism", rename_all = "snake_case", deny_unknown_fields)]
pub enum Authentication {
    #[default]
    None,
    /// The password goes over the wire: use it with TLS only.
    Plain {
        username: String,
        password: Secret,
    },
    ScramSha256 {
        username: String,
        password: Secret,
    },
    ScramSha512 {
        username: String,
        password: Secret,
    },
    /// Kerberos; only in builds with it.
    Gssapi {
        /// Of the brokers.
        service_name: String,
        /// Ours.
        principal: String,
        keytab_file: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaTls {
    /// File with the certificates to trust, in PEM. None: those that the operating system trusts.
    pub ca_file: Option<String>,
    /// File with our certificate, in PEM, for brokers that ask for one. Needs `key_file`.
    pub cert_file: Option<String>,
    /// File with the key of our certificate, in PEM.
    pub key_file: Option<String>,
    /// Of the key file.
    pub key_password: Option<Secret>,
    /// Whether the broker's certificate and its name are checked. Without, anybody on the way can read and change everything.
    pub verify: bool,
}

impl Default for KafkaTls {
    fn default() -> KafkaTls {
        KafkaTls {
            ca_file: None,
            cert_file: None,
            key_file: None,
            key_password: None,
            verify: true,
        }
    }
}

/// What is sent to Kafka for a message, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaActionConfig {
    /// Template of the Kafka topic, or its plain name.
    pub kafka_topic: String,
    /// Template of the key. A key that is not defined is null.
    #[serde(default = "key")]
    pub key: String,
    /// Template of the value. A value that is not defined is null.
    #[serde(default = "value")]
    pub value: String,
    /// Template of the timestamp, in milliseconds since 1970. What is no number becomes the time of arrival.
    #[serde(default)]
    pub timestamp: Option<String>,
    #[serde(default)]
    pub headers: Vec<Header>,
    #[serde(default)]
    pub partition_strategy: PartitionStrategy,
    /// How often the number of partitions is looked up, in milliseconds: new ones are used from then on.
    #[serde(default = "partition_refresh_ms")]
    #[schemars(range(min = 1000))]
    pub partition_refresh_ms: u64,
    #[serde(default)]
    pub required_acks: RequiredAcks,
    /// Whether brokers recognize a message that was sent twice after a lost answer. Needs `required_acks` all.
    #[serde(default = "yes")]
    pub idempotence: bool,
    #[serde(default)]
    pub compression: Compression,
    /// How long a batch for a partition waits for more messages, in milliseconds. Each batch is a request to Kafka; publishers
    /// wait for it with `query_mode` sync only.
    #[serde(default = "linger_ms")]
    pub linger_ms: u64,
    /// Bytes of a batch for a partition.
    #[serde(default = "batch_bytes_max")]
    #[schemars(range(min = 1024, max = 2_147_483_647))]
    pub batch_bytes_max: u32,
    /// Bytes of the largest request; the brokers' `message.max.bytes` has to allow it. A longer message is refused.
    #[serde(default = "message_bytes_max")]
    #[schemars(range(min = 1024, max = 1_000_000_000))]
    pub message_bytes_max: u32,
    /// Requests that are sent to a broker before it has answered the first. With idempotence at most 5.
    #[serde(default = "requests_in_flight")]
    #[schemars(range(min = 1, max = 1000))]
    pub requests_in_flight: u32,
    /// What happens to messages for a Kafka topic that does not exist. Default: `wait` for a plain name, `refuse` for a template.
    #[serde(default)]
    pub unknown_topic: Option<UnknownTopic>,
    /// Whether Kafka may create topics that do not exist, if the brokers do that.
    #[serde(default)]
    pub allow_auto_topic_creation: bool,
}

fn key() -> String {
    "${clientid}".to_owned()
}

fn value() -> String {
    "${.}".to_owned()
}

fn partition_refresh_ms() -> u64 {
    60_000
}

fn yes() -> bool {
    true
}

fn linger_ms() -> u64 {
    20
}

fn batch_bytes_max() -> u32 {
    896 << 10
}

fn message_bytes_max() -> u32 {
    1_000_000
}

fn requests_in_flight() -> u32 {
    5
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub name: String,
    /// Template. A value that is not defined leaves the header out.
    pub value: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartitionStrategy {
    /// By the hash of the key that Kafka's own clients use. Messages without a key go anywhere.
    #[default]
    KeyHash,
    /// In turn.
    RoundRobin,
    Random,
    /// All messages of a client to one partition, whatever the key.
    Client,
    /// All messages of an MQTT topic to one partition, whatever the key.
    Topic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequiredAcks {
    /// All replicas that are in sync.
    #[default]
    All,
    Leader,
    /// Messages may be lost without anybody noticing.
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownTopic {
    /// All wait until it is there.
    Wait,
    /// The message counts as failed.
    Refuse,
}

/// What is fetched from Kafka.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaSourceConfig {
    pub kafka_topics: Vec<String>,
    /// Consumer group. Sources of the same group share the partitions.
    pub group_id: String,
    /// Where to begin when the group has no offset yet.
    #[serde(default)]
    pub offset_reset: OffsetReset,
    /// Messages that are handed over together.
    #[serde(default = "batch_records_max")]
    #[schemars(range(min = 1, max = 10_000))]
    pub batch_records_max: u32,
    /// How often offsets are committed, in milliseconds.
    #[serde(default = "commit_interval_ms")]
    #[schemars(range(min = 10))]
    pub commit_interval_ms: u64,
    /// Kafka gives our partitions to others when it has not heard of us for so long, in milliseconds.
    #[serde(default = "session_timeout_ms")]
    #[schemars(range(min = 6000, max = 3_600_000))]
    pub session_timeout_ms: u64,
    /// Bytes that are fetched ahead.
    #[serde(default = "fetch_bytes_max")]
    #[schemars(range(min = 65536, max = 1_073_741_824))]
    pub fetch_bytes_max: u64,
}

fn batch_records_max() -> u32 {
    500
}

fn commit_interval_ms() -> u64 {
    1000
}

fn session_timeout_ms() -> u64 {
    30_000
}

fn fetch_bytes_max() -> u64 {
    16 << 20
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OffsetReset {
    /// What is written from now on.
    #[default]
    Latest,
    /// All that Kafka still has.
    Earliest,
}

/// Which field of a record is what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub kafka_topic: Option<usize>,
    pub timestamp: Option<usize>,
    pub partition_key: Option<usize>,
    pub headers: usize,
}

pub(super) const VALUE: usize = 0;
pub(super) const KEY: usize = 1;

impl KafkaActionConfig {
    /// In the order in which records have their fields.
    pub fn templates(&self) -> Vec<Template> {
        self.layout().0
    }

    pub(super) fn fields(&self) -> Fields {
        self.layout().1
    }

    /// The Kafka topic is made from each message.
    pub fn is_topic_dynamic(&self) -> bool {
        self.kafka_topic.contains("${")
    }

    pub(super) fn unknown_topic(&self) -> UnknownTopic {
        self.unknown_topic.unwrap_or(match self.is_topic_dynamic() {
            true => UnknownTopic::Refuse,
            false => UnknownTopic::Wait,
        })
    }

    /// What suits Kafka: many batches on their way, which are not worth a look for a message each.
    pub fn default_delivery() -> DeliveryConfig {
        DeliveryConfig {
            in_flight: 32,
            batch: BatchConfig {
                records_max: 1000,
                linger_ms: 5,
                ..BatchConfig::default()
            },
            ..DeliveryConfig::default()
        }
    }

    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.is_topic_dynamic()
            && let Err(problem) = check_topic(&self.kafka_topic)
        {
            problems.push(format!("kafka_topic: {problem}"));
        }
        if self.idempotence && self.required_acks != RequiredAcks::All {
            problems.push("required_acks: must be all with idempotence; set idempotence to false for less".to_owned());
        }
        if self.idempotence && self.requests_in_flight > 5 {
            problems.push(format!(
                "requests_in_flight: is {}, must be at most 5 with idempotence",
                self.requests_in_flight
            ));
        }
        // librdkafka's own limits.
        problems.extend(out_of_range([
            ("requests_in_flight", self.requests_in_flight.into(), 1..=1000),
            ("partition_refresh_ms", self.partition_refresh_ms, at_least(1000)),
            ("linger_ms", self.linger_ms, 0..=900_000),
            ("batch_bytes_max", self.batch_bytes_max.into(), 1024..=i32::MAX as u64),
            ("message_bytes_max", self.message_bytes_max.into(), 1024..=1_000_000_000),
        ]));
        for (index, header) in self.headers.iter().enumerate() {
            if header.name.is_empty() || header.name.contains('\0') {
                problems.push(format!(
                    "headers[{index}].name: must be a text that is not empty, without NUL"
                ));
            }
        }
        problems
    }

    fn layout(&self) -> (Vec<Template>, Fields) {
        let mut templates = vec![Template::new("value", &self.value), Template::new("key", &self.key)];
        let mut add = |field: &str, text: &str| {
            templates.push(Template::new(field, text));
            templates.len() - 1
        };
        let kafka_topic = self.is_topic_dynamic().then(|| add("kafka_topic", &self.kafka_topic));
        let timestamp = self.timestamp.as_deref().map(|text| add("timestamp", text));
        let partition_key = match self.partition_strategy {
            PartitionStrategy::Client => Some(add("partition_strategy", "${clientid}")),
            PartitionStrategy::Topic => Some(add("partition_strategy", "${topic}")),
            _ => None,
        };
        let headers = templates.len();
        for (index, header) in self.headers.iter().enumerate() {
            templates.push(Template::new(format!("headers[{index}].value"), &header.value));
        }
        let fields = Fields {
            kafka_topic,
            timestamp,
            partition_key,
            headers,
        };
        (templates, fields)
    }
}

/// Kafka's rule for names of topics.
pub(super) fn check_topic(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > 249 || name == "." || name == ".." || !name.bytes().all(is_allowed) {
        return Err(format!(
            "{name:?} is no name of a Kafka topic: it has 1 to 249 letters, digits, dots, underscores and dashes"
        ));
    }
    Ok(())
}
