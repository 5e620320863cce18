//! The result of a run: all data that a report, a comparison or a threshold may use. `RunResult` is the format of the
//! JSON file.
//!
//! Rates cover the measured time (after the warm-up, until publishing ended). Loss, duplicates and order cover the
//! whole run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::driver::{LoadCounts, ReconciledCounts};
use crate::histogram::{Histogram, Latency};
use crate::scenario::Scenario;
use crate::target::LoadTarget;

/// Version of the format; it changes when a field changes its meaning.
pub const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub format: u32,
    pub tool: String,
    /// Start of the run, RFC 3339, UTC.
    pub started_at: String,
    pub command: String,
    pub scenario: Scenario,
    pub target: LoadTarget,
    pub machine: Machine,
    pub measured_s: f64,
    /// Whether the run ended early: by Ctrl-C or by a failure.
    pub is_interrupted: bool,
    /// Deliveries after the end of publishing, to late subscribers and to resumed sessions.
    #[serde(default)]
    pub replay: Option<ReplayResult>,
    /// Counts of the measured time.
    pub counts: LoadCounts,
    /// Counts of the whole run, connecting included.
    pub totals: LoadCounts,
    pub throughput: Throughput,
    pub latency: Latencies,
    pub truth: ReconciledCounts,
    pub examples: Vec<String>,
    pub errors: Vec<(String, u64)>,
    pub generator: Generator,
    pub broker: Option<BrokerCost>,
    pub ceiling: Option<Ceiling>,
    /// The records that a rule has sent to Kafka.
    #[serde(default)]
    pub kafka: Option<KafkaResult>,
    /// The points that a device platform has stored.
    #[serde(default)]
    pub fleet: Option<FleetResult>,
    /// One entry per second, warm-up included.
    pub series: Vec<Second>,
    pub agents: Vec<Agent>,
    /// The thresholds of `--require`, and the checks that the tool always makes (loss, saturation).
    pub verdicts: Vec<ThresholdVerdict>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub host: String,
    pub cpu: String,
    pub cores: u32,
    pub memory_bytes: u64,
    pub kernel: String,
    pub load_average: f64,
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    pub published: f64,
    pub acknowledged: f64,
    pub delivered: f64,
    /// Connects per second: while connecting, or over the measured time if clients come and go. The same holds for both
    /// TLS rates.
    pub connects: f64,
    #[serde(default)]
    pub tls_full: f64,
    #[serde(default)]
    pub tls_resumed: f64,
    pub bytes_out: f64,
    pub bytes_in: f64,
    /// Mean size of the TCP segments in which the broker's data arrived.
    pub segment_bytes: f64,
}

/// Delivery of retained or queued messages to the clients that connect when publishing has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplayResult {
    pub clients: u64,
    pub delivered: u64,
    /// Time from the command to connect until the last message arrived.
    pub seconds: f64,
    pub delivered_per_s: f64,
}

/// Latencies, each with its histogram, so that result files can be merged and drawn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    pub end_to_end: MeasuredLatency,
    pub acknowledgement: MeasuredLatency,
    pub connect: MeasuredLatency,
    pub handshake: MeasuredLatency,
    pub subscribe: MeasuredLatency,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLatency {
    pub summary: Latency,
    pub histogram: Histogram,
}

/// How much the load generator itself influenced the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generator {
    pub threads: u32,
    pub cores_used: f64,
    /// Share of the measured time for which the busiest thread was on a core.
    pub busiest_thread: f64,
    /// Share of the measured time for which one thread was ready to run but had no core: the largest of all threads; 0
    /// if the kernel does not report it.
    pub longest_wait: f64,
    /// Open model: messages due per second.
    pub offered: f64,
    /// Open model: the share of the due messages that was sent.
    pub kept_up: f64,
    pub lateness: Latency,
    /// Open model: the share of the messages that the generator sent more than a millisecond late, for reasons of its
    /// own.
    pub late_share: f64,
    /// Whether the generator reached a limit of its own; the verdict names it.
    pub is_saturated: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BrokerCost {
    /// The process id, if the broker is a process of the orchestrator's machine.
    pub pid: Option<u32>,
    /// The name of the process, or the URL of its metrics.
    pub name: String,
    pub cores_used: f64,
    /// Absent, like the fields below, if the source of the figures does not report it.
    pub user_s: Option<f64>,
    pub system_s: Option<f64>,
    /// CPU seconds per million deliveries; per million publishes if nothing is delivered.
    pub cpu_s_per_million: f64,
    pub resident_before_bytes: Option<u64>,
    pub resident_bytes: Option<u64>,
    /// Peak resident memory; if the source is a metrics page, the largest value that was read.
    pub resident_peak_bytes: Option<u64>,
    pub voluntary_switches: Option<u64>,
    pub involuntary_switches: Option<u64>,
}

/// The measurement of bare sockets that move the same bytes in writes of the same mean size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    pub sockets: u32,
    pub write_bytes: f64,
    /// CPU seconds that a million deliveries of the run cost without a broker.
    pub cpu_s_per_million: f64,
    pub deliveries_per_s: f64,
    /// Deliveries per CPU second of the broker divided by those of the bare sockets.
    pub ratio: f64,
}

/// The records that arrived in Kafka.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KafkaResult {
    pub kafka_topic: String,
    /// Messages that the broker acknowledged in the whole run, without those that it refused.
    pub acknowledged: u64,
    /// Records that the run added to the Kafka topic.
    pub records: u64,
    pub by_partition: Vec<u64>,
    /// Time from the end of the run until Kafka had as many records as were acknowledged; `None` if it never had.
    pub all_there_s: Option<f64>,
    /// The metrics of the broker's action.
    pub action: BTreeMap<String, u64>,
    pub producer: Option<ProducerCeiling>,
}

/// The stored and the expected points of the devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetResult {
    pub devices: u64,
    /// Points of the messages that were acknowledged, or that were sent at QoS 0.
    pub expected_points: u64,
    /// Points that the platform counts over REST.
    pub stored_points: u64,
    /// Points from devices that the platform counts as usage of the tenant; `None` if it does not report it.
    #[serde(default)]
    pub counted_points: Option<u64>,
    /// Time from the end of the run until as many points were stored as expected; `None` if they never were.
    pub all_there_s: Option<f64>,
    /// Alarms that were created during the run.
    pub alarms: u64,
}

/// The measurement of a plain producer on this machine with records of the same size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProducerCeiling {
    pub records: u64,
    pub records_per_s: f64,
    pub cpu_s_per_million: f64,
}

/// The figures of one second, for charts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Time since the start of publishing; negative while connecting.
    pub at_s: f64,
    pub connected: u64,
    pub published: f64,
    pub acknowledged: f64,
    pub delivered: f64,
    pub end_to_end: Latency,
    pub acknowledgement: Latency,
    pub broker_cores: Option<f64>,
    pub broker_resident_bytes: Option<u64>,
    pub generator_cores: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    pub name: String,
    pub clients: u32,
    pub clock_offset_ms: f64,
    /// Half of the shortest round trip: the error of the offset is at most this.
    pub clock_error_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThresholdVerdict {
    /// The rule, for example `p99<10ms` or `nothing lost`.
    pub rule: String,
    pub found: String,
    pub is_met: bool,
}
