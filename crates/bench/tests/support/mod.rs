//! What the tests of the load share: a run through the driver from its first command to its outcome.

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

use bench::driver::{Command, Counts, Driver, Event, Interval, Job, Outcome, Sent};
use bench::histogram::Histogram;
use bench::load::{LocalDriver, conclude_shares};
use bench::scenario::{Group, Payload, Presence, Publish, Scenario, Subscribe};
use bench::target::Target;

/// Longer than any run here; a run that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(60);
pub const RUN: u16 = 0x5EED;

pub struct Report {
    pub totals: Counts,
    pub end_to_end: Histogram,
    pub acknowledgement: Histogram,
    pub connect: Histogram,
    pub subscribe: Histogram,
    pub connected_at_most: u64,
    pub sent: Vec<Sent>,
    pub outcome: Outcome,
}

pub fn target(port: u16) -> Target {
    Target {
        hosts: vec!["127.0.0.1".into()],
        port,
        ..Target::default()
    }
}

pub fn scenario(group: Vec<Group>) -> Scenario {
    Scenario {
        name: "test".into(),
        duration_s: 0.5,
        warm_up_s: 0.0,
        drain_s: 1.0,
        group,
        ..Scenario::default()
    }
}

pub fn subscribers(clients: u32, filter: &str, qos: u8) -> Group {
    Group {
        name: "subscribers".into(),
        clients,
        subscribe: vec![Subscribe {
            filter: filter.into(),
            qos,
        }],
        ..Group::default()
    }
}

/// Each sends so many messages, in the closed model.
pub fn publishers(clients: u32, topic: &str, qos: u8, messages: u64) -> Group {
    Group {
        name: "publishers".into(),
        clients,
        publish: Some(Publish {
            topic: topic.into(),
            qos,
            messages,
            window: 10,
            payload: Payload::Bytes(40),
            ..Publish::default()
        }),
        ..Group::default()
    }
}

pub fn run(scenario: Scenario, target: Target, threads: u16) -> Report {
    try_run(scenario, target, threads).unwrap_or_else(|reason| panic!("the run failed: {reason}"))
}

pub fn try_run(scenario: Scenario, target: Target, threads: u16) -> Result<Report, String> {
    try_run_spread(scenario, target, threads, 1)
}

/// The clients spread over several drivers, as over several machines.
pub fn try_run_spread(scenario: Scenario, target: Target, threads: u16, drivers: u32) -> Result<Report, String> {
    let mut drive = Drive::begin(scenario, target, threads, drivers)?;
    drive.wait(|drive| drive.ready)?;
    let start_ns = (drive.origin.elapsed() + Duration::from_millis(20)).as_nanos() as u64;
    drive.command(|| Command::Publish { start_ns })?;
    drive.wait(|drive| drive.sent_answers)?;
    if drive
        .scenario
        .group
        .iter()
        .any(|group| group.presence != Presence::Always)
    {
        drive.ready = 0;
        drive.command(|| Command::Return)?;
        drive.wait(|drive| drive.ready)?;
    }
    let sent = drive.sent.clone();
    drive.command(|| Command::Reconcile { sent: sent.clone() })?;
    drive.wait(|drive| drive.outcomes)?;
    Ok(drive.into_report())
}

/// Drivers on their way through a run, and their answers.
pub struct Drive {
    pub origin: Instant,
    scenario: Scenario,
    drivers: Vec<LocalDriver>,
    pub ready: usize,
    pub sent_answers: usize,
    pub outcomes: usize,
    pub sum: Interval,
    pub sent: Vec<Sent>,
    outcome: Outcome,
    connected_at_most: u64,
}

impl Drive {
    pub fn begin(scenario: Scenario, target: Target, threads: u16, drivers: u32) -> Result<Drive, String> {
        let origin = Instant::now();
        let mut all = Vec::new();
        for number in 0..drivers {
            let share = |clients: u32| clients * number / drivers..clients * (number + 1) / drivers;
            let job = Job {
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
            driver.command(Command::Connect(Box::new(job)))?;
            all.push(driver);
        }
        Ok(Drive {
            origin,
            scenario,
            drivers: all,
            ready: 0,
            sent_answers: 0,
            outcomes: 0,
            sum: Interval::default(),
            sent: Vec::new(),
            outcome: Outcome::default(),
            connected_at_most: 0,
        })
    }

    pub fn command(&mut self, make: impl Fn() -> Command) -> Result<(), String> {
        self.drivers.iter_mut().try_for_each(|driver| driver.command(make()))
    }

    /// Takes events until all drivers have given an answer.
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

    fn take(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Failed(reason) => return Err(reason),
            Event::Progress(interval) => self.add(&interval),
            Event::Ready(interval) => {
                self.ready += 1;
                self.add(&interval);
            }
            Event::Sent { sent } => {
                self.sent_answers += 1;
                self.sent.extend(sent);
            }
            Event::Outcome(outcome) => {
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

    fn add(&mut self, interval: &Interval) {
        self.connected_at_most = self.connected_at_most.max(interval.counts.connected);
        add(&mut self.sum, interval);
    }
}

fn add_outcome(sum: &mut Outcome, outcome: Outcome) {
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

fn add(sum: &mut Interval, interval: &Interval) {
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

/// `(flows, expected, lost, duplicated, reordered, corrupt, unverified)`.
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
