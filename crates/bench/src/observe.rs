//! What the orchestrator tells while a run goes on, and what it asks about the broker: implemented by the live displays and by the
//! meters of the broker's cost.

use crate::driver::{Counts, Interval};
use crate::histogram::Histogram;
use crate::result::{RunResult, Second};

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Connecting,
    WarmUp,
    Measuring,
    /// Publishing has ended; who was away comes back.
    Returning,
    /// Waiting for what is missing, then comparing.
    Comparing,
}

/// One second of a run, all drivers together.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    pub phase: Phase,
    /// Since the command to connect.
    pub elapsed_s: f64,
    /// Until publishing ends as planned; none while connecting and afterwards, and where it has no planned end.
    pub remaining_s: Option<f64>,
    /// Clients that are to be connected in all.
    pub clients: u64,
    pub second: &'a Second,
    /// This second alone.
    pub interval: &'a Interval,
    /// Since the beginning of the run.
    pub totals: &'a Counts,
    /// Since the beginning of the measured time; of warm-up before that.
    pub end_to_end: &'a Histogram,
}

/// Shows a run while it goes on. Called between events, so it must not block.
pub trait Observer {
    fn phase(&mut self, phase: Phase);
    /// Once per second, when all drivers have reported it.
    fn second(&mut self, moment: &Moment<'_>);
    /// The last call.
    fn end(&mut self, result: &RunResult);
}

/// Says what the broker has used so far.
pub trait Gauge {
    /// Of a process of this machine.
    fn pid(&self) -> Option<u32>;
    /// Of the process, or where else the numbers come from.
    fn name(&self) -> &str;
    fn read(&mut self) -> Result<Usage, String>;
}

/// Since the broker was started; what nobody says is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system.
    pub cpu_s: f64,
    pub user_s: Option<f64>,
    pub system_s: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub resident_peak_bytes: Option<u64>,
    pub voluntary_switches: Option<u64>,
    pub involuntary_switches: Option<u64>,
}

/// For runs that nobody watches.
#[derive(Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn phase(&mut self, _: Phase) {}
    fn second(&mut self, _: &Moment<'_>) {}
    fn end(&mut self, _: &RunResult) {}
}
