//! From a scenario to its result: drivers, displays, outputs, exit code. The same for `run` and the commands of
//! emqtt-bench.

use std::io;
use std::process;
use std::thread;
use std::time::Instant;

use clap::{Arg, ArgMatches, value_parser};

use super::lines::{CounterLines, JsonLines, TextProgress};
use super::live::LiveProgress;
use super::outputs::Outputs;
use super::{CommandFailure, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_REQUIRED, agents};
use crate::cost::metrics::MetricsPage;
use crate::cost::process::Process;
use crate::fleet::{self, RunDevices};
use crate::kafka::{KafkaAccess, KafkaRun};
use crate::load::LocalDriver;
use crate::observe::{NoDisplay, RunObserver, UsageSource};
use crate::orchestrator::{self, RunDriver, RunSetup, StopFlag};
use crate::plan::{self, DriverSettings};
use crate::scenario::Scenario;
use crate::target::LoadTarget;
use crate::{machine, output};

/// All parameters of a run from the command line.
#[derive(Debug)]
pub struct RunOrder {
    pub scenario: Scenario,
    pub target: LoadTarget,
    pub options: RunOptions,
    pub outputs: Outputs,
    /// Present if the messages of the scenario are counted in Kafka.
    pub kafka: Option<KafkaAccess>,
    /// Present if the clients of the scenario are devices of a platform.
    pub platform: Option<fleet::PlatformLogin>,
    pub display: RunOutputStyle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutputStyle {
    Run,
    /// The output of emqtt-bench. If such a run has no end, Ctrl-C ends it without an error.
    Verb,
    /// The commands of emqtt-bench with the result only.
    QuietVerb,
}

#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// `None`: one per core.
    pub threads: Option<u16>,
    /// At most one of these two is set.
    pub broker_pid: Option<u32>,
    pub broker_metrics: Option<String>,
    /// Print the progress as JSON.
    pub prints_json: bool,
    pub agents: agents::Agents,
}

pub fn args() -> Vec<Arg> {
    let mut args = vec![
        Arg::new("threads")
            .long("threads")
            .value_name("COUNT")
            .value_parser(value_parser!(u16).range(1..=1024))
            .help("Worker threads [default: one per core]"),
        Arg::new("broker-pid")
            .long("broker-pid")
            .value_name("PID")
            .value_parser(value_parser!(u32).range(1..))
            .group("broker-cost")
            .help("Measure the CPU and memory use of this process of this machine"),
        Arg::new("broker-metrics")
            .long("broker-metrics")
            .value_name("URL")
            .group("broker-cost")
            .help("Read the CPU and memory use of the broker from its metrics, for example http://HOST:18083/metrics"),
        Arg::new("progress")
            .long("progress")
            .value_name("FORMAT")
            .value_parser(["json"])
            .help("Print a line of JSON per second, for programs; the run ends when standard input does"),
    ];
    args.extend(agents::orchestrator_args());
    args
}

pub fn options(matches: &ArgMatches) -> Result<RunOptions, CommandFailure> {
    Ok(RunOptions {
        threads: matches.get_one("threads").copied(),
        broker_pid: matches.get_one("broker-pid").copied(),
        broker_metrics: matches.get_one("broker-metrics").cloned(),
        prints_json: matches.contains_id("progress"),
        agents: agents::parse(matches)?,
    })
}

pub fn run(order: RunOrder) -> Result<u8, CommandFailure> {
    let RunOrder {
        scenario,
        target,
        options,
        outputs,
        kafka,
        platform,
        display,
    } = order;
    let reach = plan::reach(&scenario).map_err(CommandFailure::usage)?;
    outputs.check()?;
    let gauge = gauge(&options)?;
    let stop = StopFlag::on_signals()
        .map_err(|error| CommandFailure::failure(format!("cannot install the signal handlers: {error}")))?;
    if options.prints_json {
        end_with_input(stop.clone());
    } else if display == RunOutputStyle::Run {
        output::line(format_args!(
            "{}: {} clients, {} of them publishers, {} flows",
            scenario.name, reach.clients, reach.publishers, reach.flows
        ));
    }
    let origin = Instant::now();
    let members = members(&options, origin)?;
    let setup = RunSetup {
        target,
        command: typed(),
        run: run_number(),
        origin,
        started_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        machine: machine::describe(),
        scenario,
    };
    let bridge = build_bridge(&setup, kafka.as_ref())?;
    let devices = make_devices(&setup, platform.as_ref())?;
    let is_endless = setup.scenario.duration_s >= orchestrator::FOREVER_S;
    let mut observer = match options.prints_json {
        true => Box::new(JsonLines) as Box<dyn RunObserver>,
        false => observer(display),
    };
    let finished = orchestrator::run(setup, members, observer.as_mut(), gauge, &stop);
    let mut result = finished.result;
    if let Some(bridge) = bridge {
        let counted = bridge.conclude(&mut result, outputs.measures_ceiling());
        counted.map_err(CommandFailure::failure)?;
    }
    if let Some(devices) = devices {
        devices.conclude(&mut result).map_err(CommandFailure::failure)?;
    }
    let is_met = outputs.conclude(&mut result)?;
    if let Some(failure) = finished.failure {
        output::error(failure);
        return Ok(EXIT_FAILURE);
    }
    Ok(match () {
        () if !is_met => EXIT_REQUIRED,
        () if result.is_interrupted && !is_endless => EXIT_INTERRUPTED,
        () => 0,
    })
}

/// Ends the run when standard input ends: a program that started it has no terminal for Ctrl-C, and may have died.
fn end_with_input(stop: StopFlag) {
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        stop.request();
    });
}

fn build_bridge(setup: &RunSetup, access: Option<&KafkaAccess>) -> Result<Option<KafkaRun>, CommandFailure> {
    let Some((to, access)) = setup.scenario.kafka.as_ref().zip(access) else {
        return Ok(None);
    };
    let bridge = KafkaRun::build(&setup.scenario, to, access, setup.run);
    bridge.map(Some).map_err(CommandFailure::failure)
}

fn make_devices(setup: &RunSetup, access: Option<&fleet::PlatformLogin>) -> Result<Option<RunDevices>, CommandFailure> {
    let Some((fleet, access)) = setup.scenario.platform.as_ref().zip(access) else {
        return Ok(None);
    };
    let devices = RunDevices::make(&setup.scenario, fleet, access, setup.run);
    devices.map(Some).map_err(CommandFailure::failure)
}

fn gauge(options: &RunOptions) -> Result<Option<Box<dyn UsageSource>>, CommandFailure> {
    if let Some(pid) = options.broker_pid {
        return Ok(Some(Box::new(Process::new(pid).map_err(CommandFailure::usage)?)));
    }
    let Some(url) = &options.broker_metrics else {
        return Ok(None);
    };
    let page = MetricsPage::new(url).map_err(|error| CommandFailure::usage(format!("--broker-metrics {error}")))?;
    Ok(Some(Box::new(page)))
}

fn observer(display: RunOutputStyle) -> Box<dyn RunObserver> {
    match display {
        RunOutputStyle::Run => match LiveProgress::on_terminal() {
            Some(live) => Box::new(live),
            None => Box::new(TextProgress),
        },
        RunOutputStyle::Verb => Box::new(CounterLines::default()),
        RunOutputStyle::QuietVerb => Box::new(NoDisplay),
    }
}

fn members(options: &RunOptions, origin: Instant) -> Result<Vec<RunDriver>, CommandFailure> {
    if !options.agents.addresses.is_empty() {
        return options.agents.connect(origin).map_err(CommandFailure::failure);
    }
    let threads = options.threads.unwrap_or_else(|| machine::cores().min(1024) as u16);
    Ok(vec![RunDriver {
        driver: Box::new(LocalDriver::new("this process", origin)),
        settings: DriverSettings {
            threads,
            clock_offset_ns: 0,
        },
        agent: None,
    }])
}

/// Returns the command line without passwords, for the report.
fn typed() -> String {
    let mut words = Vec::new();
    let mut hides_next = false;
    for word in std::env::args() {
        let hides = std::mem::replace(&mut hides_next, word == "-P" || word == "--password");
        words.push(match word.split_once('=') {
            _ if hides => "***".into(),
            Some(("--password", _)) => "--password=***".into(),
            _ if word.starts_with("-P") && word.len() > 2 => "-P***".into(),
            _ => word,
        });
    }
    words.join(" ")
}

/// Distinguishes the messages and client ids of this run from those of a concurrent one.
fn run_number() -> u16 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = since.map_or(0, |since| since.as_nanos() as u64);
    let mixed = (nanoseconds ^ (u64::from(process::id()) << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 48) as u16
}
