//! One run: the drivers led through its phases together, their reports put together, and a [`RunResult`] made of it.
//!
//! ```text
//! Connect ─► all Ready ─► Publish at one moment ─► all Sent ─► [Return ─► all Ready] ─► Reconcile ─► all Outcome
//! ```
//! It runs on the caller's thread and does nothing but wait for events; a driver that dies, or the user, ends the run early, and what is
//! known by then is still reported.

mod broker;
mod stop;
mod timeline;
mod verdicts;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::driver::{Command, Counts, Driver, Event, Outcome, Sent};
use crate::load::conclude_shares;
use crate::observe::{Gauge, Moment, Observer, Phase};
use crate::plan::{self, Hand};
use crate::result::{Agent, FORMAT, Latencies, Machine, Measured, Replay, RunResult, Throughput, Verdict};
use crate::scenario::{Presence, Scenario};
use crate::target::Target;
use broker::Broker;
pub use stop::Stop;
use timeline::{Done, Part, Timeline, Window};

/// Between the command to publish and the first message: the command must be everywhere by then.
const LEAD_LOCAL: Duration = Duration::from_millis(50);
const LEAD_AGENTS: Duration = Duration::from_millis(500);
/// How long a driver may keep the others waiting when it is asked for an event.
const PATIENCE: Duration = Duration::from_millis(20);
/// Longer runs have no planned end to count down to.
pub const FOREVER_S: f64 = 1e7;
const EXAMPLES_MAX: usize = 10;

/// What is run, where.
#[derive(Clone, Debug)]
pub struct Setup {
    pub scenario: Scenario,
    pub target: Target,
    /// As typed, for the report.
    pub command: String,
    /// Distinguishes this run's messages and client ids.
    pub run: u16,
    /// 0 on the run clock.
    pub origin: Instant,
    pub started_at: String,
    pub machine: Machine,
}

/// A driver and what to know about it.
pub struct Member {
    pub driver: Box<dyn Driver>,
    pub hand: Hand,
    /// How far off its clock may be; none for this process.
    pub agent: Option<Agent>,
}

/// A run that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    pub result: RunResult,
    /// Why it ended early, if that was not wanted.
    pub failure: Option<String>,
}

pub fn run(
    setup: Setup,
    members: Vec<Member>,
    observer: &mut dyn Observer,
    gauge: Option<Box<dyn Gauge>>,
    stop: &Stop,
) -> Finished {
    let origin = setup.origin;
    let window = Window {
        warm_up_ns: (setup.scenario.warm_up_s * 1e9) as u64,
        duration_ns: (setup.scenario.duration_s * 1e9) as u64,
        ..Window::default()
    };
    let mut run = Run {
        timeline: Timeline::new(members.len(), window),
        states: members.iter().map(|_| State::default()).collect(),
        members,
        observer,
        broker: Broker::new(gauge, origin.elapsed().as_nanos() as u64),
        stop,
        phase: Phase::Connecting,
        clients: 0,
        connect_ns: 0,
        ready_ns: 0,
        threads: 0,
        last_arrival_ns: 0,
        is_interrupted: false,
        setup,
    };
    let failure = run.lead().err();
    run.finish(failure)
}

struct Run<'a> {
    setup: Setup,
    members: Vec<Member>,
    states: Vec<State>,
    observer: &'a mut dyn Observer,
    broker: Broker,
    stop: &'a Stop,
    timeline: Timeline,
    phase: Phase,
    clients: u64,
    connect_ns: u64,
    ready_ns: u64,
    threads: u32,
    last_arrival_ns: u64,
    is_interrupted: bool,
}

/// What a driver has answered.
#[derive(Default)]
struct State {
    is_ready: bool,
    sent: Option<Vec<Sent>>,
    outcome: Option<Outcome>,
}

impl Run<'_> {
    /// All phases. An error ends the run.
    fn lead(&mut self) -> Result<(), String> {
        self.connect()?;
        if self.is_interrupted {
            return Ok(());
        }
        self.publish()?;
        if !self.is_interrupted && self.somebody_returns() {
            self.bring_back()?;
        }
        self.reconcile()?;
        self.somebody_came()
    }

    /// Clients that come and go begin with publishing: that none of them was let in is known at the end only.
    fn somebody_came(&self) -> Result<(), String> {
        let totals = &self.timeline.totals;
        if totals.connects > 0 || totals.connects_failed == 0 || self.is_interrupted {
            return Ok(());
        }
        let mut outcomes = self.states.iter().filter_map(|state| state.outcome.as_ref());
        let reason = outcomes.find_map(|outcome| outcome.errors.first());
        let reason = reason.map_or("unknown", |(reason, _)| reason);
        Err(format!(
            "no connection was accepted; the commonest reason was: {reason}"
        ))
    }

    fn now_ns(&self) -> u64 {
        self.setup.origin.elapsed().as_nanos() as u64
    }

    fn connect(&mut self) -> Result<(), String> {
        self.enter(Phase::Connecting);
        let hands: Vec<Hand> = self.members.iter().map(|member| member.hand).collect();
        let jobs = plan::split(&self.setup.scenario, &self.setup.target, self.setup.run, &hands);
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
            command(member, Command::Connect(Box::new(job)))?;
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
        self.command_all(|| Command::Publish { start_ns })?;
        let is_warm = self.timeline.window.warm_up_ns > 0;
        self.enter(if is_warm { Phase::WarmUp } else { Phase::Measuring });
        let mut has_stopped = false;
        self.wait(|run| {
            if run.is_interrupted && !has_stopped {
                has_stopped = true;
                // A driver that cannot be told is noticed when its next event is asked for.
                let _ = run.command_all(|| Command::Stop);
            }
            run.states.iter().all(|state| state.sent.is_some())
        })?;
        let now_ns = self.now_ns();
        self.timeline.window.sent_ns = Some(now_ns);
        self.broker.begin(now_ns);
        self.broker.end(now_ns);
        Ok(())
    }

    fn somebody_returns(&self) -> bool {
        let mut groups = self.setup.scenario.group.iter();
        groups.any(|group| group.presence != Presence::Always)
    }

    fn bring_back(&mut self) -> Result<(), String> {
        self.enter(Phase::Returning);
        for state in &mut self.states {
            state.is_ready = false;
        }
        self.timeline.window.return_ns = Some(self.now_ns());
        self.command_all(|| Command::Return)?;
        self.wait(|run| run.is_interrupted || run.states.iter().all(|state| state.is_ready))
    }

    fn reconcile(&mut self) -> Result<(), String> {
        self.enter(Phase::Comparing);
        let was_interrupted = self.is_interrupted;
        let sent: Vec<Sent> = self
            .states
            .iter_mut()
            .filter_map(|state| state.sent.clone())
            .flatten()
            .collect();
        self.command_all(|| Command::Reconcile { sent: sent.clone() })?;
        self.wait(|run| {
            (run.is_interrupted && !was_interrupted) || run.states.iter().all(|state| state.outcome.is_some())
        })
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.observer.phase(phase);
    }

    fn command_all(&mut self, make: impl Fn() -> Command) -> Result<(), String> {
        self.members.iter_mut().try_for_each(|member| command(member, make()))
    }

    /// Takes events until it is done.
    fn wait(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) -> Result<(), String> {
        loop {
            if is_done(self) {
                return Ok(());
            }
            for index in 0..self.members.len() {
                self.take_events(index)?;
            }
            self.look_at_clock();
            self.is_interrupted |= self.stop.is_wanted();
        }
    }

    fn take_events(&mut self, index: usize) -> Result<(), String> {
        let mut patience = PATIENCE / self.members.len() as u32;
        loop {
            let driver = &mut self.members[index].driver;
            let event = driver
                .event(patience)
                .map_err(|error| format!("{}: {error}", driver.name()))?;
            let Some(event) = event else { return Ok(()) };
            self.take(index, event)?;
            patience = Duration::ZERO;
        }
    }

    fn take(&mut self, index: usize, event: Event) -> Result<(), String> {
        match event {
            Event::Progress(interval) => self.advance(index, *interval),
            Event::Ready(interval) => {
                self.advance(index, *interval);
                self.states[index].is_ready = true;
            }
            Event::Sent { sent } => self.states[index].sent = Some(sent),
            Event::Outcome(outcome) => {
                self.last_arrival_ns = self.last_arrival_ns.max(outcome.last_arrival_ns);
                self.states[index].outcome = Some(*outcome);
                let done = self.timeline.end(index);
                self.show(done);
            }
            Event::Failed(reason) if self.members[index].agent.is_none() => return Err(reason),
            Event::Failed(reason) => return Err(format!("{}: {reason}", self.members[index].driver.name())),
        }
        Ok(())
    }

    fn advance(&mut self, index: usize, interval: crate::driver::Interval) {
        let done = self.timeline.add(index, interval);
        self.show(done);
    }

    /// What the clock alone decides.
    fn look_at_clock(&mut self) {
        let Window {
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
            if self.phase == Phase::WarmUp {
                self.enter(Phase::Measuring);
            }
        }
        if now_ns >= warm_ns.saturating_add(duration_ns) {
            self.broker.end(now_ns);
        }
    }

    fn show(&mut self, done: Vec<Done>) {
        for Done { mut second, interval } in done {
            let now_ns = self.now_ns();
            self.broker.second(now_ns, &mut second);
            self.timeline.keep(interval.end_ns, second);
            let window = &self.timeline.window;
            let end_ns = window
                .start_ns
                .map(|start_ns| start_ns + window.warm_up_ns + window.duration_ns);
            let is_publishing = matches!(self.phase, Phase::WarmUp | Phase::Measuring);
            let has_end = is_publishing && self.setup.scenario.duration_s < FOREVER_S;
            let measured = &self.timeline.measured.interval;
            let end_to_end = match measured.end_ns {
                0 => &self.timeline.warm_up.interval.end_to_end,
                _ => &measured.end_to_end,
            };
            self.observer.second(&Moment {
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

    fn finish(mut self, failure: Option<String>) -> Finished {
        for index in 0..self.members.len() {
            let done = self.timeline.end(index);
            self.show(done);
        }
        let rest = self.timeline.close();
        self.look_at_clocks();
        self.show(rest.into_iter().collect());
        let result = self.result(failure.as_deref());
        self.observer.end(&result);
        Finished { result, failure }
    }

    /// Clocks drift while a run goes on; what has moved since it began belongs to the error.
    fn look_at_clocks(&mut self) {
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
        let generator = verdicts::generator(&verdicts::Measured {
            threads: self.threads,
            seconds,
            counts: &counts,
            lateness: &measured.interval.lateness,
        });
        let outcome = self.outcome();
        let now_ns = self.now_ns();
        let mut verdicts = verdicts::of_run(&self.setup.scenario, &self.timeline.totals, &outcome.truth, &generator);
        if let Some(failure) = failure {
            verdicts.push(Verdict {
                rule: "the run comes to its end".into(),
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

    /// What all drivers have found.
    fn outcome(&mut self) -> Outcome {
        let mut whole = Outcome::default();
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
        let sent: Vec<Sent> = self
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

    fn throughput(&self, measured: &Part) -> Throughput {
        let seconds = measured.seconds();
        let counts = &measured.interval.counts;
        let per_s = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let has_cycles = self.setup.scenario.group.iter().any(|group| group.cycle.is_some());
        let connecting_s = self.ready_ns.saturating_sub(self.connect_ns) as f64 / 1e9;
        let while_connecting = |of: fn(&Counts) -> u64| match has_cycles || connecting_s <= 0.0 {
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
        let measure = |histogram: crate::histogram::Histogram| Measured {
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

    fn replay(&self) -> Option<Replay> {
        let return_ns = self.timeline.window.return_ns?;
        let groups = self.setup.scenario.group.iter();
        let late = groups.filter(|group| group.presence != Presence::Always);
        let delivered = self.timeline.replay.interval.counts.received;
        let seconds = self.last_arrival_ns.saturating_sub(return_ns) as f64 / 1e9;
        Some(Replay {
            clients: late.map(|group| u64::from(group.clients)).sum(),
            delivered,
            seconds,
            delivered_per_s: if seconds > 0.0 { delivered as f64 / seconds } else { 0.0 },
        })
    }
}

/// Nanoseconds since 1970 when `origin` was.
fn epoch_ns(origin: Instant) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ns = since.map_or(0, |since| since.as_nanos() as u64);
    now_ns.saturating_sub(origin.elapsed().as_nanos() as u64)
}

fn command(member: &mut Member, command: Command) -> Result<(), String> {
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
