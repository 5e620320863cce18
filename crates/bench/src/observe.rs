//! The interfaces between the orchestrator and its surroundings: [`RunObserver`], which the live displays implement,
//! and [`UsageSource`], which the meters of the broker's cost implement.

use crate::driver::{LoadCounts, LoadInterval};
use crate::histogram::Histogram;
use crate::result::{RunResult, Second};

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPhase {
    Connecting,
    WarmUp,
    Measuring,
    /// Publishing has ended; the clients that were absent connect.
    Returning,
    /// Waiting for missing messages, then comparing.
    Comparing,
}

/// One second of a run, summed over all drivers.
#[derive(Clone, Copy, Debug)]
pub struct RunSecond<'a> {
    pub phase: RunPhase,
    /// Time since the command to connect.
    pub elapsed_s: f64,
    /// Time until the planned end of publishing; `None` while connecting, after publishing, and if there is no planned
    /// end.
    pub remaining_s: Option<f64>,
    /// Number of clients that the run connects in all.
    pub clients: u64,
    pub second: &'a Second,
    /// The figures of this second alone.
    pub interval: &'a LoadInterval,
    /// Sums since the beginning of the run.
    pub totals: &'a LoadCounts,
    /// Latencies since the beginning of the measured time; before it, those of the warm-up.
    pub end_to_end: &'a Histogram,
}

/// Displays a run while it executes. The orchestrator calls it between events, so it must not block.
pub trait RunObserver {
    fn phase(&mut self, phase: RunPhase);
    /// Called once per second, when all drivers have reported that second.
    fn second(&mut self, moment: &RunSecond<'_>);
    /// Called once, at the end of the run.
    fn end(&mut self, result: &RunResult);
}

/// Reads what the broker has used so far.
pub trait UsageSource {
    /// The process id, if the broker is a process of this machine.
    fn pid(&self) -> Option<u32>;
    /// The name of the process, or of the source of the figures.
    fn name(&self) -> &str;
    fn read(&mut self) -> Result<BrokerUsage, String>;
}

/// Resource use since the broker was started; `None` for figures that the source does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BrokerUsage {
    /// User and system time together.
    pub cpu_s: f64,
    pub user_s: Option<f64>,
    pub system_s: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub resident_peak_bytes: Option<u64>,
    pub voluntary_switches: Option<u64>,
    pub involuntary_switches: Option<u64>,
}

/// An observer that displays nothing.
#[derive(Debug, Default)]
pub struct NoDisplay;

impl RunObserver for NoDisplay {
    fn phase(&mut self, _: RunPhase) {}
    fn second(&mut self, _: &RunSecond<'_>) {}
    fn end(&mut self, _: &RunResult) {}
}
