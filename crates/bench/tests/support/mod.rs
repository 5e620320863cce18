//! Helpers of the load tests: they run the driver completely, from its first command to its outcome.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers, of which not every test needs all"
)]

pub mod broker;
pub mod mosquitto;
#[path = "../../../../tests/support/ports.rs"]
pub mod ports;

use std::time::{Duration, Instant};

use bench::driver::{
    Driver, DriverCommand, DriverEvent, DriverJob, LoadCounts, LoadInterval, ReconcileOutcome, SentCounts,
};
use bench::histogram::Histogram;
use bench::load::{LocalDriver, conclude_shares};
use bench::scenario::{ClientGroup, GroupPresence, Payload, PublishSpec, Scenario, SubscribeSpec};
use bench::target::LoadTarget;

/// Longer than any run of these tests. A run that hangs fails after this time.
const PATIENCE: Duration = Duration::from_secs(60);
pub const RUN: u16 = 0x5EED;

pub struct Report {
    pub totals: LoadCounts,
    pub end_to_end: Histogram,
    pub acknowledgement: Histogram,
    pub connect: Histogram,
    pub subscribe: Histogram,
    pub connected_at_most: u64,
    pub sent: Vec<SentCounts>,
    pub outcome: ReconcileOutcome,
}

pub fn target(port: u16) -> LoadTarget {
    LoadTarget {
        hosts: vec!["127.0.0.1".into()],
        port,
        ..LoadTarget::default()
    }
}

pub fn scenario(group: Vec<ClientGroup>) -> Scenario {
    Scenario {
        name: "test".into(),
        duration_s: 0.5,
        warm_up_s: 0.0,
        drain_s: 1.0,
        group,
        ..Scenario::default()
    }
}

pub fn subscribers(clients: u32, filter: &str, qos: u8) -> ClientGroup {
    ClientGroup {
        name: "subscribers".into(),
        clients,
        subscribe: vec![SubscribeSpec {
            filter: filter.into(),
            qos,
        }],
        ..ClientGroup::default()
    }
}

/// Returns publishers that send this many messages each, in the closed model.
pub fn publishers(clients: u32, topic: &str, qos: u8, messages: u64) -> ClientGroup {
    ClientGroup {
        name: "publishers".into(),
        clients,
        publish: Some(PublishSpec {
            topic: topic.into(),
            qos,
            messages,
            window: 10,
            payload: Payload::Bytes(40),
            ..PublishSpec::default()
        }),
        ..ClientGroup::default()
    }
}

pub fn run(scenario: Scenario, target: LoadTarget, threads: u16) -> Report {
    try_run(scenario, target, threads).unwrap_or_else(|reason| panic!("the run failed: {reason}"))
}

pub fn try_run(scenario: Scenario, target: LoadTarget, threads: u16) -> Result<Report, String> {
    try_run_spread(scenario, target, threads, 1)
}

/// Distributes the clients over several drivers, as over several machines.
pub fn try_run_spread(scenario: Scenario, target: LoadTarget, threads: u16, drivers: u32) -> Result<Report, String> {
    let mut drive = Drive::begin(scenario, target, threads, drivers)?;
    drive.wait(|drive| drive.ready)?;
    let start_ns = (drive.origin.elapsed() + Duration::from_millis(20)).as_nanos() as u64;
    drive.command(|| DriverCommand::Publish { start_ns })?;
    drive.wait(|drive| drive.sent_answers)?;
    if drive
        .scenario
        .group
        .iter()
        .any(|group| group.presence != GroupPresence::Always)
    {
        drive.ready = 0;
        drive.command(|| DriverCommand::Return)?;
        drive.wait(|drive| drive.ready)?;
    }
    let sent = drive.sent.clone();
    drive.command(|| DriverCommand::Reconcile { sent: sent.clone() })?;
    drive.wait(|drive| drive.outcomes)?;
    Ok(drive.into_report())
}

/// Drivers during a run, and their answers.
pub struct Drive {
    pub origin: Instant,
    scenario: Scenario,
    drivers: Vec<LocalDriver>,
    pub ready: usize,
    pub sent_answers: usize,
    pub outcomes: usize,
    pub sum: LoadInterval,
    pub sent: Vec<SentCounts>,
    outcome: ReconcileOutcome,
    connected_at_most: u64,
}

impl Drive {
    pub fn begin(scenario: Scenario, target: LoadTarget, threads: u16, drivers: u32) -> Result<Drive, String> {
        let origin = Instant::now();
        let mut all = Vec::new();
        for number in 0..drivers {
            let share = |clients: u32| clients * number / drivers..clients * (number + 1) / drivers;
            let job = DriverJob {
                clients: scenario.group.iter().map(|group| share(group.clients)).collect(),
                connect_rate: scenario.connect_rate / f64::from(drivers),
                run: RUN,
                threads,
                clock_offset_ns: 0,
                epoch_ns: 0,
                scenario: scenario.clone(),
                target: target.clone(),
            };
            let mut driver = LocalDriver::new(format!("test {number}"), origin);
            driver.command(DriverCommand::Connect(Box::new(job)))?;
            all.push(driver);
        }
        Ok(Drive {
            origin,
            scenario,
            drivers: all,
            ready: 0,
            sent_answers: 0,
            outcomes: 0,
            sum: LoadInterval::default(),
            sent: Vec::new(),
            outcome: ReconcileOutcome::default(),
            connected_at_most: 0,
        })
    }

    pub fn command(&mut self, make: impl Fn() -> DriverCommand) -> Result<(), String> {
        self.drivers.iter_mut().try_for_each(|driver| driver.command(make()))
    }

    /// Handles events until all drivers have answered.
    pub fn wait(&mut self, answers: impl Fn(&Drive) -> usize) -> Result<(), String> {
        while answers(self) < self.drivers.len() {
            if self.origin.elapsed() > PATIENCE {
                return Err("it takes too long".into());
            }
            for number in 0..self.drivers.len() {
                if let Some(event) = self.drivers[number].event(Duration::from_millis(5))? {
                    self.take(event)?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, event: DriverEvent) -> Result<(), String> {
        match event {
            DriverEvent::Failed(reason) => return Err(reason),
            DriverEvent::Progress(interval) => self.add(&interval),
            DriverEvent::Ready(interval) => {
                self.ready += 1;
                self.add(&interval);
            }
            DriverEvent::Sent { sent } => {
                self.sent_answers += 1;
                self.sent.extend(sent);
            }
            DriverEvent::Outcome(outcome) => {
                self.outcomes += 1;
                add_outcome(&mut self.outcome, *outcome);
            }
        }
        Ok(())
    }

    pub fn into_report(mut self) -> Report {
        conclude_shares(&mut self.outcome, &self.sent, &self.scenario);
        Report {
            totals: self.sum.counts,
            end_to_end: self.sum.end_to_end,
            acknowledgement: self.sum.acknowledgement,
            connect: self.sum.connect,
            subscribe: self.sum.subscribe,
            connected_at_most: self.connected_at_most,
            sent: self.sent,
            outcome: self.outcome,
        }
    }

    fn add(&mut self, interval: &LoadInterval) {
        self.connected_at_most = self.connected_at_most.max(interval.counts.connected);
        add(&mut self.sum, interval);
    }
}

fn add_outcome(sum: &mut ReconcileOutcome, outcome: ReconcileOutcome) {
    let (total, part) = (&mut sum.truth, &outcome.truth);
    total.flows += part.flows;
    total.expected += part.expected;
    total.received += part.received;
    total.lost += part.lost;
    total.duplicated += part.duplicated;
    total.reordered += part.reordered;
    total.corrupt += part.corrupt;
    total.unverified += part.unverified;
    sum.last_arrival_ns = sum.last_arrival_ns.max(outcome.last_arrival_ns);
    sum.examples.extend(outcome.examples);
    sum.errors.extend(outcome.errors);
    sum.shares.extend(outcome.shares);
}

fn add(sum: &mut LoadInterval, interval: &LoadInterval) {
    let (total, part) = (&mut sum.counts, &interval.counts);
    total.connects += part.connects;
    total.connects_failed += part.connects_failed;
    total.disconnects += part.disconnects;
    total.tls_full += part.tls_full;
    total.tls_resumed += part.tls_resumed;
    total.subscribes += part.subscribes;
    total.subscribes_failed += part.subscribes_failed;
    total.due += part.due;
    total.published += part.published;
    total.acknowledged += part.acknowledged;
    total.refused += part.refused;
    total.received += part.received;
    total.bytes_out += part.bytes_out;
    total.bytes_in += part.bytes_in;
    total.segments_in += part.segments_in;
    total.cpu_ns += part.cpu_ns;
    sum.end_to_end.add(&interval.end_to_end);
    sum.acknowledgement.add(&interval.acknowledgement);
    sum.connect.add(&interval.connect);
    sum.subscribe.add(&interval.subscribe);
}

/// Returns `(flows, expected, lost, duplicated, reordered, corrupt, unverified)`.
pub fn truth(report: &Report) -> (u64, u64, u64, u64, u64, u64, u64) {
    let truth = report.outcome.truth;
    assert_eq!(truth.received + truth.lost, truth.expected);
    (
        truth.flows,
        truth.expected,
        truth.lost,
        truth.duplicated,
        truth.reordered,
        truth.corrupt,
        truth.unverified,
    )
}
