//! What the tests of the load share: a run through the driver from its first command to its outcome.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers, of which not every test needs all"
)]

pub mod broker;
pub mod mosquitto;

use std::time::{Duration, Instant};

use bench::driver::{Command, Counts, Driver, Event, Interval, Job, Outcome, Sent};
use bench::histogram::Histogram;
use bench::load::LocalDriver;
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
    let origin = Instant::now();
    let has_late_comers = scenario.group.iter().any(|group| group.presence != Presence::Always);
    let job = Job {
        clients: scenario.group.iter().map(|group| 0..group.clients).collect(),
        connect_rate: scenario.connect_rate,
        run: RUN,
        threads,
        clock_offset_ns: 0,
        scenario,
        target,
    };
    let mut driver = LocalDriver::new("test", origin);
    driver.command(Command::Connect(Box::new(job)))?;
    let mut sum = Interval::default();
    let (mut connected_at_most, mut is_first_ready, mut all_sent) = (0, true, Vec::new());
    loop {
        if origin.elapsed() > PATIENCE {
            return Err("it takes too long".into());
        }
        match driver.event(Duration::from_millis(100))? {
            None => {}
            Some(Event::Failed(reason)) => return Err(reason),
            Some(Event::Progress(interval)) => {
                connected_at_most = connected_at_most.max(interval.counts.connected);
                add(&mut sum, &interval);
            }
            Some(Event::Ready(interval)) => {
                connected_at_most = connected_at_most.max(interval.counts.connected);
                add(&mut sum, &interval);
                if std::mem::take(&mut is_first_ready) {
                    let start_ns = (origin.elapsed() + Duration::from_millis(20)).as_nanos() as u64;
                    driver.command(Command::Publish { start_ns })?;
                } else {
                    driver.command(Command::Reconcile { sent: all_sent.clone() })?;
                }
            }
            Some(Event::Sent { sent }) => {
                all_sent = sent;
                let next = if has_late_comers {
                    Command::Return
                } else {
                    Command::Reconcile { sent: all_sent.clone() }
                };
                driver.command(next)?;
            }
            Some(Event::Outcome(outcome)) => {
                return Ok(Report {
                    totals: sum.counts,
                    end_to_end: sum.end_to_end,
                    acknowledgement: sum.acknowledgement,
                    connect: sum.connect,
                    subscribe: sum.subscribe,
                    connected_at_most,
                    sent: all_sent,
                    outcome: *outcome,
                });
            }
        }
    }
}

fn add(sum: &mut Interval, interval: &Interval) {
    let (total, part) = (&mut sum.counts, &interval.counts);
    total.connects += part.connects;
    total.connects_failed += part.connects_failed;
    total.disconnects += part.disconnects;
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
