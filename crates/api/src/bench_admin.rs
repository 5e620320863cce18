//! Benchmarks of this node with the load tool. The binary implements this trait: it starts a process for each run, so
//! that the server's threads do not generate the load, and stores the results.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Called on threads that may block (disk, processes), never on a shard's thread.
pub trait BenchAdmin: Send + Sync + 'static {
    fn state(&self) -> Benchmarks;

    /// Starts a run and returns its name.
    fn start(&self, order: BenchOrder) -> Result<String, BenchError>;

    /// Stops the run early; it still writes a report.
    fn stop(&self) -> Result<(), BenchError>;

    fn result(&self, name: &str) -> Result<BenchResult, BenchError>;

    /// Returns the file of the report page.
    fn page(&self, name: &str) -> Result<PathBuf, BenchError>;

    fn remove(&self, name: &str) -> Result<(), BenchError>;
}

/// Scenario and size of a run.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BenchmarkRequest")]
pub struct BenchOrder {
    /// Name of a listed scenario.
    pub scenario: String,
    /// Factor for the number of clients.
    #[serde(default = "unscaled")]
    pub scale: f64,
    /// Duration of the measurement in seconds.
    pub duration_s: f64,
    /// Must be `true`: the load slows down all other work of this node.
    #[serde(default)]
    pub confirmed: bool,
}

fn unscaled() -> f64 {
    1.0
}

/// Scenarios, the benchmark that runs, and reports.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Benchmarks {
    /// Why benchmarks are disabled. `null`: they are enabled.
    pub disabled_reason: Option<String>,
    pub clients_max: u64,
    pub duration_max_s: f64,
    pub scenarios: Vec<BenchScenario>,
    pub running: Option<RunningBenchmark>,
    /// The last benchmark that produced no report.
    pub failure: Option<FailedBenchmark>,
    /// Newest first.
    pub items: Vec<Benchmark>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RunningBenchmark {
    pub name: String,
    pub scenario: String,
    pub scale: f64,
    pub duration_s: f64,
    pub started_at_unix_ms: u64,
    /// `connecting`, `warm_up`, `measuring`, `returning` or `comparing`.
    pub phase: String,
    pub is_stopping: bool,
    pub seconds: Vec<BenchSecond>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FailedBenchmark {
    pub name: String,
    pub at_unix_ms: u64,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Benchmark {
    pub name: String,
    pub at_unix_ms: u64,
    pub scenario: String,
    pub scale: f64,
    pub duration_s: f64,
    /// No message was lost or duplicated, and the load tool's other checks passed.
    pub is_good: bool,
    /// The benchmark was stopped before its end.
    pub is_interrupted: bool,
}

/// A scenario with scale 1.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkScenario")]
pub struct BenchScenario {
    pub name: String,
    pub about: String,
    pub clients: u64,
    pub publishers: u64,
    pub duration_s: f64,
}

/// One second of a run, as reported by the load tool.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkSecond")]
pub struct BenchSecond {
    /// `connecting`, `warm_up`, `measuring`, `returning` or `comparing`.
    pub phase: String,
    pub elapsed_s: f64,
    /// Time until publishing ends.
    pub remaining_s: Option<f64>,
    /// Number of clients that the run connects.
    pub clients: u64,
    pub connected: u64,
    pub published_per_s: f64,
    pub delivered_per_s: f64,
    /// Latency from the scheduled time of a message to its arrival at the subscriber.
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Rejected connections, subscriptions and messages, and lost connections, since the start of the run.
    pub errors: u64,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkResult")]
pub struct BenchResult {
    pub name: String,
    pub started_at: String,
    pub scenario: String,
    pub about: String,
    pub clients: u64,
    pub measured_s: f64,
    pub is_interrupted: bool,
    pub measures: Vec<BenchMeasure>,
    pub verdicts: Vec<BenchVerdict>,
    pub errors: Vec<BenchErrors>,
}

/// A measured number. All results have the same numbers in the same order.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkMeasure")]
pub struct BenchMeasure {
    pub name: String,
    pub about: String,
    /// `count`, `per_second`, `milliseconds`, `seconds`, `bytes`, `share` or `cores`.
    pub unit: String,
    /// `more`, `less` or `neither`.
    pub better: String,
    /// `null`: not measured.
    pub value: Option<f64>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkVerdict")]
pub struct BenchVerdict {
    /// The requirement, such as `nothing lost`.
    pub rule: String,
    /// The measured value, such as `3 of 1000 lost`.
    pub found: String,
    pub is_met: bool,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkErrors")]
pub struct BenchErrors {
    /// Kind of error, such as a rejected connection.
    pub error: String,
    pub count: u64,
}

#[derive(Debug)]
pub enum BenchError {
    /// Disabled by the configuration.
    Off {
        reason: String,
    },
    Unknown,
    Running,
    NotRunning,
    TooMany {
        max: usize,
    },
    /// An invalid field of the request.
    Order {
        field: &'static str,
        reason: String,
    },
    /// No listener, process or file could be used.
    Failed {
        reason: String,
    },
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Unknown => f.write_str("no benchmark has this name"),
            BenchError::Running => f.write_str("a benchmark is running; wait until it has finished"),
            BenchError::NotRunning => f.write_str("no benchmark is running"),
            BenchError::TooMany { max } => write!(f, "the limit of {max} reports is reached; delete a report first"),
            BenchError::Off { reason } | BenchError::Order { reason, .. } | BenchError::Failed { reason } => {
                f.write_str(reason)
            }
        }
    }
}

impl std::error::Error for BenchError {}
