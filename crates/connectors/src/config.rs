//! Settings that every action has: buffer, batch and retry. The console's forms and the reference pages show the doc
//! comments of the fields.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Buffering, batching and retry settings of an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeliveryConfig {
    pub buffer: BufferConfig,
    pub batch: BatchConfig,
    pub retry: RetryConfig,
    /// When the server acknowledges a publisher's QoS 1 or 2 message.
    pub query_mode: QueryMode,
    /// Maximum number of batches that are sent and not yet confirmed. A higher value increases throughput to a distant
    /// target. Two batches in flight never contain records with the same ordering key, unless the target preserves the
    /// order itself.
    #[schemars(range(min = 1, max = 1024))]
    pub in_flight: u32,
    /// Template of the ordering key. Messages with the same key are sent in order. The default keeps the order of each
    /// client.
    pub ordering_key: String,
    /// How long the server waits for the target's response to a request, in milliseconds. Afterwards it sends the
    /// request again.
    #[schemars(range(min = 1))]
    pub request_timeout_ms: u64,
    /// Maximum age of a buffered message, in milliseconds. Older messages are dropped as expired. The age is measured
    /// with the system's clock: if the clock is set back, buffered messages remain longer by that time. Default: no
    /// limit.
    pub request_ttl_ms: Option<u64>,
    /// How often the server checks that an idle target is reachable, in milliseconds.
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
    /// When the message is in the buffer. With a disk buffer, this means on the disk.
    #[default]
    Async,
    /// When the target has confirmed the message.
    Sync,
}

/// Where messages wait until the target has confirmed them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BufferConfig {
    pub mode: BufferMode,
    /// Maximum size of buffered messages in bytes, in memory or on the disk.
    #[schemars(range(min = 65536))]
    pub max_bytes: u64,
    /// The behaviour when the buffer is full.
    pub overflow: Overflow,
    /// Memory for buffered messages, in bytes. With `disk`, the newest messages stay in memory as well, so that the
    /// sender need not read them from the disk. With `hybrid`, messages go to the disk only beyond this size.
    #[schemars(range(min = 65536))]
    pub memory_bytes: u64,
    /// Size of one buffer file in bytes, at most a quarter of `max_bytes`. The buffer allocates and frees disk space in
    /// whole files, and always has at least two.
    #[schemars(range(min = 65536))]
    pub segment_bytes: u64,
    /// When a message counts as written to the disk.
    pub sync: SyncMode,
}

/// Minimum size of a buffer file, and of a buffer.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;

impl BufferConfig {
    /// Returns the maximum size of buffered messages, for any mode.
    pub fn quota_bytes(&self) -> u64 {
        match self.mode {
            BufferMode::Memory => self.memory_bytes,
            BufferMode::Disk | BufferMode::Hybrid => self.max_bytes,
        }
    }

    /// Returns the size of one file. A small buffer has small files; otherwise it would take several times its quota.
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
    /// In memory only. Messages are lost when the process ends.
    Memory,
    /// On the disk. Messages survive a crash of the process, and with `fsync` a power failure.
    #[default]
    Disk,
    /// In memory up to `memory_bytes`, then on the disk. Messages are lost when the process ends.
    Hybrid,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "BufferOverflow")]
pub enum Overflow {
    /// The server stops reading from publishers until there is space. Nothing is dropped.
    #[default]
    BackPressure,
    /// The oldest waiting messages are dropped and counted. Fallback actions receive them.
    DropOldest,
    /// The new message is dropped and counted. Fallback actions receive it.
    DropNewest,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SyncMode {
    /// Synced to the disk. Survives a power failure.
    #[default]
    Fsync,
    /// Handed to the operating system. Survives a crash of the process, but not a power failure.
    Os,
}

/// How many messages are sent together. A batch is sent when one of the limits is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchConfig {
    /// Maximum number of messages in a batch.
    #[schemars(range(min = 1, max = 100_000))]
    pub records_max: u32,
    /// Maximum size of a batch in bytes. A longer message forms a batch of its own.
    #[schemars(range(min = 1))]
    pub bytes_max: u64,
    /// How long the first message of a batch waits for others, in milliseconds. With 0, a batch contains the messages
    /// that are already waiting.
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

/// How failed messages are retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryConfig {
    /// Maximum number of attempts for a message that the target rejects while it accepts others. Afterwards the message
    /// is dropped as failed. Default: no limit. Attempts do not count while the target is unreachable.
    #[schemars(range(min = 1))]
    pub tries_max: Option<u32>,
    /// Pause before the first retry, in milliseconds. Each further pause is twice as long, with a random variation of
    /// 20 %.
    #[schemars(range(min = 1))]
    pub first_ms: u64,
    /// Maximum pause between two retries, in milliseconds.
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
    /// Returns one message per invalid field: the field, its value and the allowed range.
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

/// Returns one message per number outside its range.
pub(crate) fn out_of_range<const N: usize>(numbers: [(&str, u64, RangeInclusive<u64>); N]) -> Vec<String> {
    let invalid = numbers.iter().filter(|(_, value, range)| !range.contains(value));
    let problems = invalid.map(|(field, value, range)| match (range.start(), range.end()) {
        (least, &u64::MAX) => format!("{field}: is {value}, must be at least {least}"),
        (least, most) => format!("{field}: is {value}, must be {least} to {most}"),
    });
    problems.collect()
}

/// Default connect timeout of all connectors, in milliseconds.
pub(crate) fn connect_timeout_ms() -> u64 {
    5_000
}

/// Splits `host:port` or `[IPv6 address]:port` into host, without brackets, and port. Returns `None` for any other
/// text.
pub(crate) fn address(server: &str) -> Option<(&str, u16)> {
    let (host, digits) = server.rsplit_once(':')?;
    let port = port(digits)?;
    is_host(host).then(|| (host.trim_matches(['[', ']']), port))
}

/// Parses a port from 1 to 65535. Rejects signs and spaces.
pub(crate) fn port(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&port| is_number && port != 0)
}

/// Returns whether the text is a host name, an IPv4 address, or an IPv6 address in brackets, with or without a zone.
pub(crate) fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let (address, zone) = inner.split_once('%').unwrap_or((inner, "0"));
        return address.parse::<std::net::Ipv6Addr>().is_ok() && is_name(zone);
    }
    is_name(host)
}

fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
    !text.is_empty() && text.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_survive_a_json_round_trip() {
        let config = DeliveryConfig::default();
        assert_eq!(config.problems(), Vec::<String>::new());
        let json = serde_json::to_value(&config).expect("plain data");
        assert_eq!(
            serde_json::from_value::<DeliveryConfig>(json).expect("its own JSON"),
            config
        );
        let empty: DeliveryConfig = serde_json::from_str("{}").expect("every field has a default");
        assert_eq!(empty, config);
    }

    #[test]
    fn addresses_are_host_and_port() {
        for (text, expected) in [
            ("h:1", Some(("h", 1))),
            ("a-b.c_d:65535", Some(("a-b.c_d", 65_535))),
            ("127.0.0.1:80", Some(("127.0.0.1", 80))),
            ("[::1]:80", Some(("::1", 80))),
            ("[fe80::1%eth0]:80", Some(("fe80::1%eth0", 80))),
            ("h", None),
            ("h:", None),
            ("h:0", None),
            ("h:99999", None),
            ("h:abc", None),
            ("h:+80", None),
            ("h: 80", None),
            (":80", None),
            ("::1:80", None),
            ("[h]:80", None),
            ("[::1:80", None),
            ("u@h:80", None),
            ("h/x:80", None),
            ("http://h:80", None),
            ("h,i:80", None),
            ("h i:80", None),
            ("${host}:80", None),
            ("", None),
        ] {
            assert_eq!(address(text), expected, "{text}");
        }
    }

    #[test]
    fn problems_name_the_field() {
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
