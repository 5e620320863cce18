//! One run: leads all drivers through the phases together, combines their reports and makes a [`RunResult`] of them.
//!
//! ```text
//! Connect ─► all Ready ─► Publish at one time ─► all Sent ─► [Return ─► all Ready] ─► Reconcile ─► all Outcome
//! ```
//! It runs on the caller's thread and only waits for events. A driver that fails or the user can end the run early; the
//! result then contains the figures until that time.

mod broker;
mod stop;
mod timeline;
mod verdicts;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::driver::{Driver, DriverCommand, DriverEvent, LoadCounts, ReconcileOutcome, SentCounts};
use crate::load::conclude_shares;
use crate::observe::{RunObserver, RunPhase, RunSecond, UsageSource};
use crate::plan::{self, DriverSettings};
use crate::result::{
    Agent, FORMAT, Latencies, Machine, MeasuredLatency, ReplayResult, RunResult, ThresholdVerdict, Throughput,
};
use crate::scenario::{GroupPresence, Scenario};
use crate::target::LoadTarget;
use broker::Broker;
pub use stop::StopFlag;
use timeline::{CompleteSecond, IntervalSum, RunTimes, Timeline};

/// Time between the command to publish and the first message: all drivers must have the command by then.
const LEAD_LOCAL: Duration = Duration::from_millis(50);
const LEAD_AGENTS: Duration = Duration::from_millis(500);
/// Total wait for events per round over all drivers.
const EVENT_WAIT: Duration = Duration::from_millis(20);
/// A duration from here on means that the run has no planned end.
pub const FOREVER_S: f64 = 1e7;
const EXAMPLES_MAX: usize = 10;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct RunSetup {
    pub scenario: Scenario,
    pub target: LoadTarget,
    /// The command as the user typed it, for the report.
    pub command: String,
    /// Distinguishes the messages and client ids of this run.
    pub run: u16,
    /// Time 0 of the run clock.
    pub origin: Instant,
    pub started_at: String,
    pub machine: Machine,
}

/// A driver with its settings.
pub struct RunDriver {
    pub driver: Box<dyn Driver>,
    pub settings: DriverSettings,
    /// The accuracy of the agent's clock; `None` for this process.
    pub agent: Option<Agent>,
}

/// The result of a run that has ended.
#[derive(Clone, Debug)]
pub struct FinishedRun {
    pub result: RunResult,
    /// Why it ended early, unless the user asked for it.
    pub failure: Option<String>,
}

/// Executes a run with these drivers and returns its result.
pub fn run(
    setup: RunSetup,
    members: Vec<RunDriver>,
    observer: &mut dyn RunObserver,
    gauge: Option<Box<dyn UsageSource>>,
    stop: &StopFlag,
) -> FinishedRun {
    let origin = setup.origin;
    let window = RunTimes {
        warm_up_ns: (setup.scenario.warm_up_s * 1e9) as u64,
        duration_ns: (setup.scenario.duration_s * 1e9) as u64,
        ..RunTimes::default()
    };
    let mut run = BenchmarkRun {
        timeline: Timeline::new(members.len(), window),
        states: members.iter().map(|_| DriverState::default()).collect(),
        members,
        observer,
        broker: Broker::new(gauge, origin.elapsed().as_nanos() as u64),
        stop,
        phase: RunPhase::Connecting,
        clients: 0,
        connect_ns: 0,
        ready_ns: 0,
        threads: 0,
        last_arrival_ns: 0,
        is_interrupted: false,
        setup,
    };
    let failure = run.run_phases().err();
    run.finish(failure)
}

struct BenchmarkRun<'a> {
    setup: RunSetup,
    members: Vec<RunDriver>,
    states: Vec<DriverState>,
    observer: &'a mut dyn RunObserver,
    broker: Broker,
    stop: &'a StopFlag,
    timeline: Timeline,
    phase: RunPhase,
    clients: u64,
    connect_ns: u64,
    ready_ns: u64,
    threads: u32,
    last_arrival_ns: u64,
    is_interrupted: bool,
}

/// The answers of a driver.
#[derive(Default)]
struct DriverState {
    is_ready: bool,
    sent: Option<Vec<SentCounts>>,
    outcome: Option<ReconcileOutcome>,
}

impl BenchmarkRun<'_> {
    /// Executes all phases. An error ends the run.
    fn run_phases(&mut self) -> Result<(), String> {
        self.connect()?;
        if self.is_interrupted {
            return Ok(());
        }
        self.publish()?;
        if !self.is_interrupted && self.has_absent_clients() {
            self.connect_absent()?;
        }
        self.reconcile()?;
        self.check_any_connected()
    }

    /// Fails if every connection attempt was refused. Clients that come and go connect only while publishing, so this
    /// is known at the end.
    fn check_any_connected(&self) -> Result<(), String> {
        let totals = &self.timeline.totals;
        if totals.connects > 0 || totals.connects_failed == 0 || self.is_interrupted {
            return Ok(());
        }
        let mut outcomes = self.states.iter().filter_map(|state| state.outcome.as_ref());
        let reason = outcomes.find_map(|outcome| outcome.errors.first());
        let reason = reason.map_or("unknown", |(reason, _)| reason);
        Err(format!(
            "no connection was accepted; the most common reason was: {reason}"
        ))
    }

    fn now_ns(&self) -> u64 {
        self.setup.origin.elapsed().as_nanos() as u64
    }

    fn connect(&mut self) -> Result<(), String> {
        self.enter(RunPhase::Connecting);
        let drivers: Vec<DriverSettings> = self.members.iter().map(|member| member.settings).collect();
        let jobs = plan::split(&self.setup.scenario, &self.setup.target, self.setup.run, &drivers);
        self.connect_ns = self.now_ns();
        let epoch_ns = epoch_ns(self.setup.origin);
        for (member, mut job) in self.members.iter_mut().zip(jobs) {
            job.epoch_ns = epoch_ns;
            if member.agent.is_none() {
                plan::check_ports(&job)?;
            }
            let clients = plan::clients_of(&job);
            self.clients += clients;
            self.threads += u32::from(job.threads);
            if let Some(agent) = &mut member.agent {
                agent.clients = clients as u32;
            }
            command(member, DriverCommand::Connect(Box::new(job)))?;
        }
        self.wait(|run| run.is_interrupted || run.states.iter().all(|state| state.is_ready))?;
        self.ready_ns = self.now_ns();
        Ok(())
    }

    fn publish(&mut self) -> Result<(), String> {
        let has_agents = self.members.iter().any(|member| member.agent.is_some());
        let lead = if has_agents { LEAD_AGENTS } else { LEAD_LOCAL };
        let start_ns = self.now_ns() + lead.as_nanos() as u64;
        self.timeline.window.start_ns = Some(start_ns);
        self.command_all(|| DriverCommand::Publish { start_ns })?;
        let is_warm = self.timeline.window.warm_up_ns > 0;
        self.enter(if is_warm { RunPhase::WarmUp } else { RunPhase::Measuring });
        let mut has_stopped = false;
        self.wait(|run| {
            if run.is_interrupted && !has_stopped {
                has_stopped = true;
                // A driver that cannot be reached is noticed when its next event is read.
                let _ = run.command_all(|| DriverCommand::Stop);
            }
            run.states.iter().all(|state| state.sent.is_some())
        })?;
        let now_ns = self.now_ns();
        self.timeline.window.sent_ns = Some(now_ns);
        self.broker.begin(now_ns);
        self.broker.end(now_ns);
        Ok(())
    }

    fn has_absent_clients(&self) -> bool {
        let mut groups = self.setup.scenario.group.iter();
        groups.any(|group| group.presence != GroupPresence::Always)
    }

    fn connect_absent(&mut self) -> Result<(), String> {
        self.enter(RunPhase::Returning);
        for state in &mut self.states {
            state.is_ready = false;
        }
        self.timeline.window.return_ns = Some(self.now_ns());
        self.command_all(|| DriverCommand::Return)?;
        self.wait(|run| run.is_interrupted || run.states.iter().all(|state| state.is_ready))
    }

    fn reconcile(&mut self) -> Result<(), String> {
        self.enter(RunPhase::Comparing);
        let was_interrupted = self.is_interrupted;
        let sent: Vec<SentCounts> = self
            .states
            .iter_mut()
            .filter_map(|state| state.sent.clone())
            .flatten()
            .collect();
        self.command_all(|| DriverCommand::Reconcile { sent: sent.clone() })?;
        self.wait(|run| {
            (run.is_interrupted && !was_interrupted) || run.states.iter().all(|state| state.outcome.is_some())
        })
    }

    fn enter(&mut self, phase: RunPhase) {
        self.phase = phase;
        self.observer.phase(phase);
    }

    fn command_all(&mut self, make: impl Fn() -> DriverCommand) -> Result<(), String> {
        self.members.iter_mut().try_for_each(|member| command(member, make()))
    }

    /// Processes events until `is_done`.
    fn wait(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) -> Result<(), String> {
        loop {
            if is_done(self) {
                return Ok(());
            }
            for index in 0..self.members.len() {
                self.take_events(index)?;
            }
            self.update_phase();
            self.is_interrupted |= self.stop.is_requested();
        }
    }

    fn take_events(&mut self, index: usize) -> Result<(), String> {
        let mut timeout = EVENT_WAIT / self.members.len() as u32;
        loop {
            let driver = &mut self.members[index].driver;
            let event = driver
                .event(timeout)
                .map_err(|error| format!("{}: {error}", driver.name()))?;
            let Some(event) = event else { return Ok(()) };
            self.take(index, event)?;
            timeout = Duration::ZERO;
        }
    }

    fn take(&mut self, index: usize, event: DriverEvent) -> Result<(), String> {
        match event {
            DriverEvent::Progress(interval) => self.advance(index, *interval),
            DriverEvent::Ready(interval) => {
                self.advance(index, *interval);
                self.states[index].is_ready = true;
            }
            DriverEvent::Sent { sent } => self.states[index].sent = Some(sent),
            DriverEvent::Outcome(outcome) => {
                self.last_arrival_ns = self.last_arrival_ns.max(outcome.last_arrival_ns);
                self.states[index].outcome = Some(*outcome);
                let done = self.timeline.end(index);
                self.show(done);
            }
            DriverEvent::Failed(reason) if self.members[index].agent.is_none() => return Err(reason),
            DriverEvent::Failed(reason) => return Err(format!("{}: {reason}", self.members[index].driver.name())),
        }
        Ok(())
    }

    fn advance(&mut self, index: usize, interval: crate::driver::LoadInterval) {
        let done = self.timeline.add(index, interval);
        self.show(done);
    }

    /// Changes the phase and reads the broker's gauge at the times that the schedule sets.
    fn update_phase(&mut self) {
        let RunTimes {
            start_ns: Some(start_ns),
            warm_up_ns,
            duration_ns,
            ..
        } = self.timeline.window
        else {
            return;
        };
        let now_ns = self.now_ns();
        let warm_ns = start_ns + warm_up_ns;
        if now_ns >= warm_ns {
            self.broker.begin(now_ns);
            if self.phase == RunPhase::WarmUp {
                self.enter(RunPhase::Measuring);
            }
        }
        if now_ns >= warm_ns.saturating_add(duration_ns) {
            self.broker.end(now_ns);
        }
    }

    fn show(&mut self, done: Vec<CompleteSecond>) {
        for CompleteSecond { mut second, interval } in done {
            let now_ns = self.now_ns();
            self.broker.second(now_ns, &mut second);
            self.timeline.keep(interval.end_ns, second);
            let window = &self.timeline.window;
            let end_ns = window
                .start_ns
                .map(|start_ns| start_ns + window.warm_up_ns + window.duration_ns);
            let is_publishing = matches!(self.phase, RunPhase::WarmUp | RunPhase::Measuring);
            let has_end = is_publishing && self.setup.scenario.duration_s < FOREVER_S;
            let measured = &self.timeline.measured.interval;
            let end_to_end = match measured.end_ns {
                0 => &self.timeline.warm_up.interval.end_to_end,
                _ => &measured.end_to_end,
            };
            self.observer.second(&RunSecond {
                phase: self.phase,
                elapsed_s: now_ns.saturating_sub(self.connect_ns) as f64 / 1e9,
                remaining_s: end_ns
                    .filter(|_| has_end)
                    .map(|end_ns| end_ns.saturating_sub(now_ns) as f64 / 1e9),
                clients: self.clients,
                second: &second,
                interval: &interval,
                totals: &self.timeline.totals,
                end_to_end,
            });
        }
    }

    fn finish(mut self, failure: Option<String>) -> FinishedRun {
        for index in 0..self.members.len() {
            let done = self.timeline.end(index);
            self.show(done);
        }
        let rest = self.timeline.close();
        self.measure_clock_drift();
        self.show(rest.into_iter().collect());
        let result = self.result(failure.as_deref());
        self.observer.end(&result);
        FinishedRun { result, failure }
    }

    /// Measures the clocks of the agents again: a drift during the run is part of the error.
    fn measure_clock_drift(&mut self) {
        for (member, state) in self.members.iter_mut().zip(&self.states) {
            let Some(agent) = member.agent.as_mut().filter(|_| state.outcome.is_some()) else {
                continue;
            };
            if let Some(error_ns) = member.driver.clock_error_ns() {
                agent.clock_error_ms = error_ns as f64 / 1e6;
            }
        }
    }

    fn result(&mut self, failure: Option<&str>) -> RunResult {
        let measured = self.timeline.basis();
        let counts = measured.interval.counts;
        let seconds = measured.seconds();
        let generator = verdicts::generator(&verdicts::GeneratorLoad {
            threads: self.threads,
            seconds,
            counts: &counts,
            lateness: &measured.interval.lateness,
        });
        let outcome = self.outcome();
        let now_ns = self.now_ns();
        let mut verdicts = verdicts::of_run(&self.setup.scenario, &self.timeline.totals, &outcome.truth, &generator);
        if let Some(failure) = failure {
            verdicts.push(ThresholdVerdict {
                rule: "the run completes".into(),
                found: failure.into(),
                is_met: false,
            });
        }
        RunResult {
            format: FORMAT,
            tool: format!("tidewire bench {}", env!("CARGO_PKG_VERSION")),
            started_at: self.setup.started_at.clone(),
            command: self.setup.command.clone(),
            scenario: without_passwords(&self.setup.scenario),
            target: self.setup.target.clone(),
            machine: self.setup.machine.clone(),
            measured_s: seconds,
            is_interrupted: self.is_interrupted || failure.is_some(),
            replay: self.replay(),
            counts,
            totals: self.timeline.totals,
            throughput: self.throughput(&measured),
            latency: self.latencies(),
            truth: outcome.truth,
            examples: outcome.examples,
            errors: outcome.errors,
            generator,
            broker: self.broker.cost(counts.received, counts.published, now_ns),
            ceiling: None,
            kafka: None,
            fleet: None,
            series: self.timeline.take_series(),
            agents: self.members.iter().filter_map(|member| member.agent.clone()).collect(),
            verdicts,
        }
    }

    /// Combines the outcomes of all drivers.
    fn outcome(&mut self) -> ReconcileOutcome {
        let mut whole = ReconcileOutcome::default();
        for outcome in self.states.iter_mut().filter_map(|state| state.outcome.take()) {
            whole.truth += &outcome.truth;
            whole.examples.extend(outcome.examples);
            whole.shares.extend(outcome.shares);
            for (reason, count) in outcome.errors {
                match whole.errors.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, sum)) => *sum += count,
                    None => whole.errors.push((reason, count)),
                }
            }
        }
        let sent: Vec<SentCounts> = self
            .states
            .iter()
            .filter_map(|state| state.sent.clone())
            .flatten()
            .collect();
        conclude_shares(&mut whole, &sent, &self.setup.scenario);
        whole.examples.truncate(EXAMPLES_MAX);
        if let Some(reason) = &self.broker.failure {
            whole
                .errors
                .push((format!("the broker's cost is unknown: {reason}"), 1));
        }
        whole
    }

    fn throughput(&self, measured: &IntervalSum) -> Throughput {
        let seconds = measured.seconds();
        let counts = &measured.interval.counts;
        let per_s = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let has_cycles = self.setup.scenario.group.iter().any(|group| group.cycle.is_some());
        let connecting_s = self.ready_ns.saturating_sub(self.connect_ns) as f64 / 1e9;
        let while_connecting = |of: fn(&LoadCounts) -> u64| match has_cycles || connecting_s <= 0.0 {
            true => per_s(of(counts)),
            false => of(&self.timeline.connecting.interval.counts) as f64 / connecting_s,
        };
        Throughput {
            published: per_s(counts.published),
            acknowledged: per_s(counts.acknowledged),
            delivered: per_s(counts.received),
            connects: while_connecting(|counts| counts.connects),
            tls_full: while_connecting(|counts| counts.tls_full),
            tls_resumed: while_connecting(|counts| counts.tls_resumed),
            bytes_out: per_s(counts.bytes_out),
            bytes_in: per_s(counts.bytes_in),
            segment_bytes: match counts.segments_in {
                0 => 0.0,
                segments => counts.bytes_in as f64 / segments as f64,
            },
        }
    }

    fn latencies(&self) -> Latencies {
        let timed = self.timeline.latencies();
        let measure = |histogram: crate::histogram::Histogram| MeasuredLatency {
            summary: histogram.summary(),
            histogram,
        };
        let whole = &self.timeline.whole;
        Latencies {
            end_to_end: measure(timed.end_to_end),
            acknowledgement: measure(timed.acknowledgement),
            connect: measure(whole.connect.clone()),
            handshake: measure(whole.handshake.clone()),
            subscribe: measure(whole.subscribe.clone()),
        }
    }

    fn replay(&self) -> Option<ReplayResult> {
        let return_ns = self.timeline.window.return_ns?;
        let groups = self.setup.scenario.group.iter();
        let late = groups.filter(|group| group.presence != GroupPresence::Always);
        let delivered = self.timeline.replay.interval.counts.received;
        let seconds = self.last_arrival_ns.saturating_sub(return_ns) as f64 / 1e9;
        Some(ReplayResult {
            clients: late.map(|group| u64::from(group.clients)).sum(),
            delivered,
            seconds,
            delivered_per_s: if seconds > 0.0 { delivered as f64 / seconds } else { 0.0 },
        })
    }
}

/// Returns the nanoseconds from 1970 to `origin`.
fn epoch_ns(origin: Instant) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ns = since.map_or(0, |since| since.as_nanos() as u64);
    now_ns.saturating_sub(origin.elapsed().as_nanos() as u64)
}

fn command(member: &mut RunDriver, command: DriverCommand) -> Result<(), String> {
    let sent = member.driver.command(command);
    sent.map_err(|error| match member.agent {
        Some(_) => format!("{}: {error}", member.driver.name()),
        None => error,
    })
}

fn without_passwords(scenario: &Scenario) -> Scenario {
    let mut scenario = scenario.clone();
    for password in scenario.group.iter_mut().filter_map(|group| group.password.as_mut()) {
        *password = "***".into();
    }
    scenario
}
