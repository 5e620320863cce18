//! The seam through which the load tool is run against this node. The binary implements it: it starts a process of its own for each
//! run, so that the load is not made by the server's threads, and keeps the results.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Called on threads that may block (disk, processes), never on a shard's thread.
pub trait BenchAdmin: Send + Sync + 'static {
    fn state(&self) -> BenchState;

    /// Begins a run and returns its name.
    fn start(&self, order: BenchOrder) -> Result<String, BenchError>;

    /// Asks the run to end before its time; it still reports.
    fn stop(&self) -> Result<(), BenchError>;

    fn result(&self, name: &str) -> Result<BenchResult, BenchError>;

    /// The report as a page.
    fn page(&self, name: &str) -> Result<PathBuf, BenchError>;

    fn remove(&self, name: &str) -> Result<(), BenchError>;
}

/// Which scenario, and how large.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BenchmarkOrder")]
pub struct BenchOrder {
    /// One of those that are listed.
    pub scenario: String,
    /// Multiplies the clients.
    #[serde(default = "one")]
    pub scale: f64,
    /// Seconds for which publishing is measured.
    pub duration_s: f64,
    /// Has to be `true`: the load slows down whatever else this node does.
    #[serde(default)]
    pub confirmed: bool,
}

fn one() -> f64 {
    1.0
}

#[derive(Clone, Debug)]
pub struct BenchState {
    /// Why none can be run: by which configuration key.
    pub off_because: Option<String>,
    pub clients_max: u64,
    pub duration_max_s: f64,
    pub scenarios: Vec<BenchScenario>,
    pub running: Option<RunningBench>,
    pub failure: Option<FailedBench>,
    /// The newest first.
    pub finished: Vec<FinishedBench>,
}

/// A scenario as it is without a scale.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkScenario")]
pub struct BenchScenario {
    pub name: String,
    pub about: String,
    pub clients: u64,
    pub publishers: u64,
    pub duration_s: f64,
}

#[derive(Clone, Debug)]
pub struct RunningBench {
    pub name: String,
    pub order: BenchOrder,
    pub started_at: SystemTime,
    /// Where it is, such as `measuring`.
    pub phase: String,
    /// It was asked to end.
    pub is_stopping: bool,
    /// The last of them is now.
    pub seconds: Vec<BenchSecond>,
}

/// One second of a run, as the load tool tells it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkSecond")]
pub struct BenchSecond {
    /// `connecting`, `warm_up`, `measuring`, `returning` or `comparing`.
    pub phase: String,
    pub elapsed_s: f64,
    /// Until publishing ends.
    pub remaining_s: Option<f64>,
    /// That are to be connected.
    pub clients: u64,
    pub connected: u64,
    pub published_per_s: f64,
    pub delivered_per_s: f64,
    /// Latency from when a message was due to when a subscriber had it.
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Refused connections, subscriptions and messages, and lost connections, since the beginning.
    pub errors: u64,
}

#[derive(Clone, Debug)]
pub struct FailedBench {
    pub name: String,
    pub at: SystemTime,
    pub because: String,
}

#[derive(Clone, Debug)]
pub struct FinishedBench {
    pub name: String,
    pub at: SystemTime,
    pub order: BenchOrder,
    /// Nothing lost, nothing twice, and whatever else the load tool asks for by itself.
    pub is_good: bool,
    pub is_interrupted: bool,
}

/// What came of one.
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

/// One number; two results have the same ones in the same order.
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
    pub rule: String,
    pub found: String,
    pub is_met: bool,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "BenchmarkErrors")]
pub struct BenchErrors {
    pub what: String,
    pub count: u64,
}

#[derive(Debug)]
pub enum BenchError {
    /// By the configuration.
    Off {
        because: String,
    },
    Unknown,
    Running,
    NotRunning,
    TooMany {
        max: usize,
    },
    /// Of what was sent.
    Order {
        field: &'static str,
        because: String,
    },
    /// No listener, no process, no file.
    Failed {
        because: String,
    },
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Unknown => f.write_str("there is no benchmark of that name"),
            BenchError::Running => f.write_str("a benchmark is running; it has to end first"),
            BenchError::NotRunning => f.write_str("no benchmark is running"),
            BenchError::TooMany { max } => write!(f, "there are {max} reports, which is the limit; delete some first"),
            BenchError::Off { because } | BenchError::Order { because, .. } | BenchError::Failed { because } => {
                f.write_str(because)
            }
        }
    }
}

impl std::error::Error for BenchError {}
