//! What a run found out: all that a report, a comparison or a threshold may look at. `RunResult` is the JSON file.
//!
//! Rates are over the measured time (after the warm-up, until publishing ended), truth over the whole run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::driver::{Counts, Truth};
use crate::histogram::{Histogram, Latency};
use crate::scenario::Scenario;
use crate::target::Target;

/// Changes when a field changes its meaning.
pub const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub format: u32,
    pub tool: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub command: String,
    pub scenario: Scenario,
    pub target: Target,
    pub machine: Machine,
    pub measured_s: f64,
    /// Ended by Ctrl-C.
    pub is_interrupted: bool,
    /// What came after publishing had ended: to late subscribers, and to sessions that came back.
    #[serde(default)]
    pub replay: Option<Replay>,
    /// Over the measured time.
    pub counts: Counts,
    /// Over all of the run, connecting included.
    pub totals: Counts,
    pub throughput: Throughput,
    pub latency: Latencies,
    pub truth: Truth,
    pub examples: Vec<String>,
    pub errors: Vec<(String, u64)>,
    pub generator: Generator,
    pub broker: Option<BrokerCost>,
    pub ceiling: Option<Ceiling>,
    /// What a rule has taken to Kafka.
    #[serde(default)]
    pub kafka: Option<KafkaResult>,
    /// What a device platform has stored.
    #[serde(default)]
    pub fleet: Option<FleetResult>,
    /// One per second, warm-up included.
    pub series: Vec<Second>,
    pub agents: Vec<Agent>,
    /// Thresholds of `--require`, and what the tool says by itself (loss, saturation).
    pub verdicts: Vec<Verdict>,
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

/// Per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    pub published: f64,
    pub acknowledged: f64,
    pub delivered: f64,
    /// While connecting; over the measured time where clients come and go. The same for the two kinds of TLS handshakes.
    pub connects: f64,
    #[serde(default)]
    pub tls_full: f64,
    #[serde(default)]
    pub tls_resumed: f64,
    pub bytes_out: f64,
    pub bytes_in: f64,
    /// Mean size of the segments in which the broker's bytes arrived.
    pub segment_bytes: f64,
}

/// Retained or queued messages on their way to those who came when publishing was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    pub clients: u64,
    pub delivered: u64,
    /// From the command to connect until the last message came.
    pub seconds: f64,
    pub delivered_per_s: f64,
}

/// Each with its histogram, so that files can be merged and drawn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    pub end_to_end: Measured,
    pub acknowledgement: Measured,
    pub connect: Measured,
    pub handshake: Measured,
    pub subscribe: Measured,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub summary: Latency,
    pub histogram: Histogram,
}

/// How honest the load was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generator {
    pub threads: u32,
    pub cores_used: f64,
    /// Of the measured time, on a core.
    pub busiest_thread: f64,
    /// Of the measured time, ready to run but without a core, the thread that waited longest; 0 where the kernel does not say.
    pub longest_wait: f64,
    /// Open model: messages due per second, and what share of them left.
    pub offered: f64,
    pub kept_up: f64,
    pub lateness: Latency,
    /// Open model: what share of the messages left more than a millisecond after they were due, for reasons of the generator.
    pub late_share: f64,
    /// At a limit of its own; the verdict says at which.
    pub is_saturated: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BrokerCost {
    /// Of a process of the orchestrator's machine.
    pub pid: Option<u32>,
    /// Of the process, or the URL of its metrics.
    pub name: String,
    pub cores_used: f64,
    /// Absent, like all that follows, where the source of the numbers does not say it.
    pub user_s: Option<f64>,
    pub system_s: Option<f64>,
    /// CPU seconds per million deliveries; per million publishes where nothing is delivered.
    pub cpu_s_per_million: f64,
    pub resident_before_bytes: Option<u64>,
    pub resident_bytes: Option<u64>,
    /// Most ever; of a page of metrics, the most that was read.
    pub resident_peak_bytes: Option<u64>,
    pub voluntary_switches: Option<u64>,
    pub involuntary_switches: Option<u64>,
}

/// Bare sockets moving the same bytes in writes of the same mean size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    pub sockets: u32,
    pub write_bytes: f64,
    /// What the deliveries of the run would have cost without a broker.
    pub cpu_s_per_million: f64,
    pub deliveries_per_s: f64,
    /// Deliveries per CPU second of the broker over those of the bare sockets.
    pub ratio: f64,
}

/// What Kafka got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KafkaResult {
    pub kafka_topic: String,
    /// By the broker, of all of the run, without those that it has refused.
    pub acknowledged: u64,
    /// What stands in Kafka that was not there before the run.
    pub records: u64,
    pub by_partition: Vec<u64>,
    /// From the end of the run until Kafka had as many as were acknowledged. None: it never had.
    pub all_there_s: Option<f64>,
    /// What the broker's action says of itself.
    pub action: BTreeMap<String, u64>,
    pub producer: Option<ProducerCeiling>,
}

/// What became of the points of devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetResult {
    pub devices: u64,
    /// Of the messages that were acknowledged, or sent at QoS 0.
    pub expected_points: u64,
    /// As the platform counts them over REST.
    pub stored_points: u64,
    /// As the platform counts for the tenant's usage what came from devices. None: it does not say.
    #[serde(default)]
    pub counted_points: Option<u64>,
    /// From the end of the run until as many were stored as were expected. None: they never were.
    pub all_there_s: Option<f64>,
    /// That were made during the run.
    pub alarms: u64,
}

/// A plain producer on this machine, with records of the same size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProducerCeiling {
    pub records: u64,
    pub records_per_s: f64,
    pub cpu_s_per_million: f64,
}

/// For charts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Since the start of publishing; negative while connecting.
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
    /// Half of the shortest round trip: the offset is known within this.
    pub clock_error_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// `p99<10ms`, `nothing lost`.
    pub rule: String,
    pub found: String,
    pub is_met: bool,
}
