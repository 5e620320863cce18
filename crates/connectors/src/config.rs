//! What every action has beside its target: buffer, batches, retries. The doc comments of the fields are what forms and reference
//! pages show.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How an action buffers and sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeliveryConfig {
    pub buffer: BufferConfig,
    pub batch: BatchConfig,
    pub retry: RetryConfig,
    /// When a publisher's QoS 1 or 2 message is acknowledged.
    pub query_mode: QueryMode,
    /// Batches that are sent and not yet confirmed. With several, records of one ordering key are never in two of them,
    /// unless the target keeps the order itself.
    #[schemars(range(min = 1, max = 1024))]
    pub in_flight: u32,
    /// Template. Messages for which it gives the same text are sent in their order.
    pub ordering_key: String,
    /// How long the target may take to answer a request, in milliseconds. Then the request is sent again.
    #[schemars(range(min = 1))]
    pub request_timeout_ms: u64,
    /// A message that waits longer than this is dropped as expired, in milliseconds. None: it waits for ever.
    pub request_ttl_ms: Option<u64>,
    /// How often the target is asked whether it is there while nothing is sent, in milliseconds.
    #[schemars(range(min = 100))]
    pub health_check_interval_ms: u64,
}

impl Default for DeliveryConfig {
    fn default() -> DeliveryConfig {
        DeliveryConfig {
            buffer: BufferConfig::default(),
            batch: BatchConfig::default(),
            retry: RetryConfig::default(),
            query_mode: QueryMode::Async,
            in_flight: 4,
            ordering_key: "${clientid}".to_owned(),
            request_timeout_ms: 30_000,
            request_ttl_ms: None,
            health_check_interval_ms: 15_000,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueryMode {
    /// When the message is in the buffer: on the disk, if the buffer is.
    #[default]
    Async,
    /// When the target has confirmed it.
    Sync,
}

/// Where messages wait for the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BufferConfig {
    pub mode: BufferMode,
    /// Bytes that may wait, in memory or on the disk.
    #[schemars(range(min = 65536))]
    pub max_bytes: u64,
    /// What happens to a message when that is reached.
    pub overflow: Overflow,
    /// Bytes of what waits that are kept in memory: with `disk`, so that they need not be read again; with `hybrid`, before
    /// messages go to the disk.
    #[schemars(range(min = 65536))]
    pub memory_bytes: u64,
    /// Bytes of one file of the buffer, at most a quarter of `max_bytes`. Space is taken and given back in files; two are there from the start.
    #[schemars(range(min = 65536))]
    pub segment_bytes: u64,
    /// When a message counts as written to the disk.
    pub sync: SyncMode,
}

/// Of a file, and of what may wait.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;

impl BufferConfig {
    /// What may wait, whatever the mode.
    pub fn quota_bytes(&self) -> u64 {
        match self.mode {
            BufferMode::Memory => self.memory_bytes,
            BufferMode::Disk | BufferMode::Hybrid => self.max_bytes,
        }
    }

    /// Of one file: a small buffer has small ones, else it would take several times its quota.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.segment_bytes.min((self.max_bytes / 4).max(SEGMENT_BYTES_MIN))
    }
}

impl Default for BufferConfig {
    fn default() -> BufferConfig {
        BufferConfig {
            mode: BufferMode::Disk,
            max_bytes: 8 << 30,
            overflow: Overflow::BackPressure,
            memory_bytes: 32 << 20,
            segment_bytes: 16 << 20,
            sync: SyncMode::Fsync,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BufferMode {
    /// Lost with the process.
    Memory,
    /// Survives the process, and with `fsync` a power cut.
    #[default]
    Disk,
    /// In memory up to `memory_bytes`, then on the disk. Lost with the process.
    Hybrid,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// Publishers are held back until there is room. Nothing is dropped.
    #[default]
    BackPressure,
    /// The oldest messages that wait are dropped, and counted; fallback actions get them.
    DropOldest,
    /// The new message is dropped, and counted; fallback actions get it.
    DropNewest,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SyncMode {
    /// On the disk: survives a power cut.
    #[default]
    Fsync,
    /// With the operating system: survives the end of the process.
    Os,
}

/// What is sent together. A batch goes when one of the limits is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchConfig {
    /// Messages.
    #[schemars(range(min = 1, max = 100_000))]
    pub records_max: u32,
    /// Bytes. A longer message is a batch of its own.
    #[schemars(range(min = 1))]
    pub bytes_max: u64,
    /// How long the first message waits for others, in milliseconds.
    pub linger_ms: u64,
}

impl Default for BatchConfig {
    fn default() -> BatchConfig {
        BatchConfig {
            records_max: 1000,
            bytes_max: 1 << 20,
            linger_ms: 0,
        }
    }
}

/// What happens to what could not be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryConfig {
    /// How often a message is tried that the target turns away while it takes others. Then it is dropped as failed. None: for
    /// ever. While the target cannot be reached at all, tries do not count.
    #[schemars(range(min = 1))]
    pub tries_max: Option<u32>,
    /// The first pause, in milliseconds. Each one after it is twice as long, give or take a fifth.
    #[schemars(range(min = 1))]
    pub first_ms: u64,
    /// No pause is longer, in milliseconds.
    #[schemars(range(min = 1))]
    pub longest_ms: u64,
}

impl Default for RetryConfig {
    fn default() -> RetryConfig {
        RetryConfig {
            tries_max: None,
            first_ms: 100,
            longest_ms: 10_000,
        }
    }
}

impl DeliveryConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let (batch, retry, buffer) = (&self.batch, &self.retry, &self.buffer);
        let least_buffer = at_least(SEGMENT_BYTES_MIN);
        out_of_range([
            ("in_flight", self.in_flight.into(), 1..=1024),
            ("request_timeout_ms", self.request_timeout_ms, at_least(1)),
            ("health_check_interval_ms", self.health_check_interval_ms, at_least(100)),
            ("batch.records_max", batch.records_max.into(), 1..=100_000),
            ("batch.bytes_max", batch.bytes_max, at_least(1)),
            ("retry.first_ms", retry.first_ms, at_least(1)),
            ("retry.longest_ms", retry.longest_ms, at_least(retry.first_ms)),
            ("retry.tries_max", retry.tries_max.unwrap_or(1).into(), at_least(1)),
            ("buffer.max_bytes", buffer.max_bytes, least_buffer.clone()),
            ("buffer.memory_bytes", buffer.memory_bytes, least_buffer.clone()),
            ("buffer.segment_bytes", buffer.segment_bytes, least_buffer),
        ])
    }
}

pub(crate) fn at_least(least: u64) -> RangeInclusive<u64> {
    least..=u64::MAX
}

/// What is wrong with numbers: field, value, and what it may be.
pub(crate) fn out_of_range<const N: usize>(numbers: [(&str, u64, RangeInclusive<u64>); N]) -> Vec<String> {
    let wrong = numbers.iter().filter(|(_, value, range)| !range.contains(value));
    let told = wrong.map(|(field, value, range)| match (range.start(), range.end()) {
        (least, &u64::MAX) => format!("{field}: is {value}, must be at least {least}"),
        (least, most) => format!("{field}: is {value}, must be {least} to {most}"),
    });
    told.collect()
}

/// How long connecting may take if nothing is said: of all connectors.
pub(crate) fn connect_timeout_ms() -> u64 {
    5_000
}

/// Host and port.
pub(crate) fn address(server: &str) -> Option<(&str, u16)> {
    let (host, port) = server.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    let port = port.parse().ok().filter(|&port| port != 0)?;
    (!host.is_empty()).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound_and_come_back_from_json() {
        let config = DeliveryConfig::default();
        assert_eq!(config.problems(), Vec::<String>::new());
        let json = serde_json::to_value(&config).expect("plain data");
        assert_eq!(serde_json::from_value::<DeliveryConfig>(json).expect("its own"), config);
        let empty: DeliveryConfig = serde_json::from_str("{}").expect("all has defaults");
        assert_eq!(empty, config);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = r#"{"in_flight": 0, "batch": {"records_max": 0}, "retry": {"first_ms": 500, "longest_ms": 100}}"#;
        let config: DeliveryConfig = serde_json::from_str(wrong).expect("the right types");
        let problems = config.problems().join("\n");
        for field in ["in_flight", "batch.records_max", "retry.longest_ms"] {
            assert!(problems.contains(field), "{problems}");
        }
        let unknown = serde_json::from_str::<DeliveryConfig>(r#"{"bacth": {}}"#).expect_err("unknown field");
        assert!(unknown.to_string().contains("bacth"), "{unknown}");
    }
}
