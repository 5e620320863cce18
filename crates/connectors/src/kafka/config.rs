//! Options of the Kafka connector, action and source. The console's forms and the reference pages show the doc
//! comments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{BatchConfig, DeliveryConfig, at_least, out_of_range};
use crate::secret::Secret;
use crate::sink::FieldTemplate;

/// Connection to a Kafka cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaConnectorConfig {
    /// Bootstrap brokers as `host:port`, separated by commas, for example `kafka1:9092,kafka2:9092`. The client
    /// discovers the other brokers through them.
    pub bootstrap_hosts: String,
    #[serde(default)]
    pub authentication: Authentication,
    /// TLS settings. Without them, the connection is not encrypted.
    #[serde(default)]
    pub tls: Option<KafkaTls>,
    /// Maximum time to connect and authenticate, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1000))]
    pub connect_timeout_ms: u64,
    /// How long the client waits for a broker's response, in milliseconds. Afterwards it closes the connection and
    /// repeats the request.
    #[serde(default = "request_timeout_ms")]
    #[schemars(range(min = 1000))]
    pub request_timeout_ms: u64,
    /// Client ID in the brokers' logs and quotas.
    #[serde(default = "client_id")]
    pub client_id: String,
}

fn request_timeout_ms() -> u64 {
    30_000
}

fn client_id() -> String {
    "tidewire".to_owned()
}

/// How the client authenticates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mechanism", rename_all = "snake_case", deny_unknown_fields)]
pub enum Authentication {
    #[default]
    None,
    /// SASL PLAIN. The password is sent in clear text: use it only with TLS.
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
    /// Kerberos. Available only in builds with the feature `gssapi`.
    Gssapi {
        /// Kerberos service name of the brokers.
        service_name: String,
        /// Kerberos principal of this client.
        principal: String,
        keytab_file: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaTls {
    /// File with the trusted CA certificates, in PEM format. Default: the certificates that the operating system
    /// trusts.
    pub ca_file: Option<String>,
    /// File with the client certificate, in PEM format, for brokers that require one. Needs `key_file`.
    pub cert_file: Option<String>,
    /// File with the private key of the client certificate, in PEM format.
    pub key_file: Option<String>,
    /// Password of the key file.
    pub key_password: Option<Secret>,
    /// Whether the broker's certificate and host name are verified. Without verification, an attacker on the network
    /// path can read and change all messages.
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

/// Records that the action produces, and how it sends them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaActionConfig {
    /// Name of the Kafka topic, or a template of it.
    pub kafka_topic: String,
    /// Template of the record's key. An undefined key becomes null.
    #[serde(default = "key")]
    pub key: String,
    /// Template of the record's value. An undefined value becomes null.
    #[serde(default = "value")]
    pub value: String,
    /// Template of the record's timestamp, in Unix milliseconds. Default, and for values that are not numbers: the
    /// arrival time of the message.
    #[serde(default)]
    pub timestamp: Option<String>,
    /// Headers of the record.
    #[serde(default)]
    pub headers: Vec<KafkaHeaderConfig>,
    /// How the action selects the partition of a message.
    #[serde(default)]
    pub partition_strategy: PartitionStrategy,
    /// How often the client updates the number of partitions, in milliseconds. It uses new partitions after an update.
    #[serde(default = "partition_refresh_ms")]
    #[schemars(range(min = 1000))]
    pub partition_refresh_ms: u64,
    /// Which replicas must have a record before it is confirmed.
    #[serde(default)]
    pub required_acks: RequiredAcks,
    /// Whether brokers detect messages that were sent twice after a lost response. Needs `required_acks` all.
    #[serde(default = "yes")]
    pub idempotence: bool,
    /// Compression of batches.
    #[serde(default)]
    pub compression: Compression,
    /// How long a batch for a partition waits for more messages, in milliseconds. A longer time means fewer and larger
    /// requests. Publishers wait for it only with `query_mode` sync.
    #[serde(default = "linger_ms")]
    pub linger_ms: u64,
    /// Maximum size of a batch for a partition, in bytes.
    #[serde(default = "batch_bytes_max")]
    #[schemars(range(min = 1024, max = 2_147_483_647))]
    pub batch_bytes_max: u32,
    /// Maximum size of a request in bytes. The brokers' `message.max.bytes` must allow it. Longer messages are
    /// rejected.
    #[serde(default = "message_bytes_max")]
    #[schemars(range(min = 1024, max = 1_000_000_000))]
    pub message_bytes_max: u32,
    /// Maximum number of unanswered requests per broker. With idempotence at most 5.
    #[serde(default = "requests_in_flight")]
    #[schemars(range(min = 1, max = 1000))]
    pub requests_in_flight: u32,
    /// How to treat messages for a Kafka topic that does not exist. Default: `wait` for a plain name, `refuse` for a
    /// template.
    #[serde(default)]
    pub unknown_topic: Option<UnknownTopic>,
    /// Whether the brokers may create missing topics, if they support it.
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
#[schemars(rename = "Header")]
pub struct KafkaHeaderConfig {
    /// Name of the header.
    pub name: String,
    /// Template of the header's value. The header is omitted if the value is undefined.
    pub value: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartitionStrategy {
    /// By the hash of the key, as in Kafka's Java client. Messages without a key go to any partition.
    #[default]
    KeyHash,
    /// To each partition in turn.
    RoundRobin,
    /// To a random partition.
    Random,
    /// All messages of an MQTT client to the same partition, for any key.
    Client,
    /// All messages of an MQTT topic to the same partition, for any key.
    Topic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequiredAcks {
    /// All in-sync replicas.
    #[default]
    All,
    /// The leader of the partition.
    Leader,
    /// No acknowledgement. Messages may be lost without an error.
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownTopic {
    /// All messages of the action wait until the topic exists.
    Wait,
    /// The message counts as failed.
    Refuse,
}

/// Which records the source consumes, and how it fetches them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaSourceConfig {
    /// Kafka topics that the source reads.
    pub kafka_topics: Vec<String>,
    /// Consumer group. Sources with the same group share the partitions.
    pub group_id: String,
    /// Where the source begins if the group has no committed offset.
    #[serde(default)]
    pub offset_reset: OffsetReset,
    /// Maximum number of messages that are processed together.
    #[serde(default = "batch_records_max")]
    #[schemars(range(min = 1, max = 10_000))]
    pub batch_records_max: u32,
    /// How often offsets are committed, in milliseconds.
    #[serde(default = "commit_interval_ms")]
    #[schemars(range(min = 10))]
    pub commit_interval_ms: u64,
    /// Session timeout of the consumer group, in milliseconds. If Kafka receives no heartbeat for this time, it assigns
    /// the partitions to other members.
    #[serde(default = "session_timeout_ms")]
    #[schemars(range(min = 6000, max = 3_600_000))]
    pub session_timeout_ms: u64,
    /// Maximum size of prefetched messages in bytes.
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
    /// Only new messages.
    #[default]
    Latest,
    /// All messages that Kafka still stores.
    Earliest,
}

/// Indexes of the record's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldIndexes {
    pub kafka_topic: Option<usize>,
    pub timestamp: Option<usize>,
    pub partition_key: Option<usize>,
    pub headers: usize,
}

pub(super) const VALUE: usize = 0;
pub(super) const KEY: usize = 1;

impl KafkaActionConfig {
    /// Returns the templates in the order of the record's fields.
    pub fn templates(&self) -> Vec<FieldTemplate> {
        self.layout().0
    }

    pub(super) fn fields(&self) -> FieldIndexes {
        self.layout().1
    }

    /// Returns whether the Kafka topic is a template.
    pub fn is_topic_dynamic(&self) -> bool {
        self.kafka_topic.contains("${")
    }

    pub(super) fn unknown_topic(&self) -> UnknownTopic {
        self.unknown_topic.unwrap_or(match self.is_topic_dynamic() {
            true => UnknownTopic::Refuse,
            false => UnknownTopic::Wait,
        })
    }

    /// Returns delivery settings for Kafka: many batches in flight, and a linger time so that small batches do not
    /// dominate.
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

    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.is_topic_dynamic()
            && let Err(problem) = check_topic(&self.kafka_topic)
        {
            problems.push(format!("kafka_topic: {problem}"));
        }
        if self.idempotence && self.required_acks != RequiredAcks::All {
            problems.push(
                "required_acks: must be all with idempotence; set idempotence to false to use another value".to_owned(),
            );
        }
        if self.idempotence && self.requests_in_flight > 5 {
            problems.push(format!(
                "requests_in_flight: is {}, must be at most 5 with idempotence",
                self.requests_in_flight
            ));
        }
        // Limits of librdkafka.
        problems.extend(out_of_range([
            ("requests_in_flight", self.requests_in_flight.into(), 1..=1000),
            ("partition_refresh_ms", self.partition_refresh_ms, at_least(1000)),
            ("linger_ms", self.linger_ms, 0..=900_000),
            ("batch_bytes_max", self.batch_bytes_max.into(), 1024..=i32::MAX as u64),
            ("message_bytes_max", self.message_bytes_max.into(), 1024..=1_000_000_000),
        ]));
        for (index, header) in self.headers.iter().enumerate() {
            if header.name.is_empty() || header.name.contains('\0') {
                problems.push(format!("headers[{index}].name: must not be empty or contain NUL"));
            }
        }
        problems
    }

    fn layout(&self) -> (Vec<FieldTemplate>, FieldIndexes) {
        let mut templates = vec![
            FieldTemplate::document("value", &self.value),
            FieldTemplate::new("key", &self.key),
        ];
        let mut add = |field: &str, text: &str| {
            templates.push(FieldTemplate::new(field, text));
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
            templates.push(FieldTemplate::new(format!("headers[{index}].value"), &header.value));
        }
        let fields = FieldIndexes {
            kafka_topic,
            timestamp,
            partition_key,
            headers,
        };
        (templates, fields)
    }
}

/// Checks Kafka's rule for topic names.
pub(super) fn check_topic(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > 249 || name == "." || name == ".." || !name.bytes().all(is_allowed) {
        return Err(format!(
            "{name:?} is not a valid Kafka topic name: use 1 to 249 letters, digits, dots, underscores and dashes"
        ));
    }
    Ok(())
}
