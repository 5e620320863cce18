//! From a scenario to its result: drivers, displays, outputs, exit code. The same for `run` and the verbs.

use std::io;
use std::process;
use std::thread;
use std::time::Instant;

use clap::{Arg, ArgMatches, value_parser};

use super::lines::{Counters, Json, Seconds};
use super::live::Live;
use super::outputs::Outputs;
use super::{EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_REQUIRED, Refusal, agents};
use crate::cost::metrics::MetricsPage;
use crate::cost::process::Process;
use crate::fleet::{self, Devices};
use crate::kafka::{Access, Bridge};
use crate::load::LocalDriver;
use crate::observe::{Gauge, Observer, Silent};
use crate::orchestrator::{self, Member, Setup, Stop};
use crate::plan::{self, Hand};
use crate::scenario::Scenario;
use crate::target::Target;
use crate::{machine, output};

/// All that a command has to say about a run.
#[derive(Debug)]
pub struct Order {
    pub scenario: Scenario,
    pub target: Target,
    pub options: Options,
    pub outputs: Outputs,
    /// Where the scenario's messages are counted beside the broker.
    pub kafka: Option<Access>,
    /// Where the scenario's clients are devices.
    pub platform: Option<fleet::Access>,
    pub display: Display,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Display {
    Run,
    /// As emqtt-bench shows it. A verb without an end is ended by Ctrl-C, which is no failure then.
    Verb,
    /// A verb that shows nothing but the result.
    QuietVerb,
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// None: as many as there are cores.
    pub threads: Option<u16>,
    /// At most one of these two.
    pub broker_pid: Option<u32>,
    pub broker_metrics: Option<String>,
    /// Progress for programs.
    pub tells_json: bool,
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
            .help("Say what this process of this machine uses"),
        Arg::new("broker-metrics")
            .long("broker-metrics")
            .value_name("URL")
            .group("broker-cost")
            .help("Say what the broker uses by its own metrics, for example http://HOST:18083/metrics"),
        Arg::new("progress")
            .long("progress")
            .value_name("FORMAT")
            .value_parser(["json"])
            .help("Print a line of JSON per second, for programs; the run ends when standard input does"),
    ];
    args.extend(agents::orchestrator_args());
    args
}

pub fn options(matches: &ArgMatches) -> Result<Options, Refusal> {
    Ok(Options {
        threads: matches.get_one("threads").copied(),
        broker_pid: matches.get_one("broker-pid").copied(),
        broker_metrics: matches.get_one("broker-metrics").cloned(),
        tells_json: matches.contains_id("progress"),
        agents: agents::parse(matches)?,
    })
}

pub fn run(order: Order) -> Result<u8, Refusal> {
    let Order {
        scenario,
        target,
        options,
        outputs,
        kafka,
        platform,
        display,
    } = order;
    let reach = plan::reach(&scenario).map_err(Refusal::usage)?;
    outputs.check()?;
    let gauge = gauge(&options)?;
    let stop = Stop::on_signals().map_err(|error| Refusal::failure(format!("cannot listen for signals: {error}")))?;
    if options.tells_json {
        end_with_input(stop.clone());
    } else if display == Display::Run {
        output::line(format_args!(
            "{}: {} clients, {} of them publishers, {} flows",
            scenario.name, reach.clients, reach.publishers, reach.flows
        ));
    }
    let origin = Instant::now();
    let members = members(&options, origin)?;
    let setup = Setup {
        target,
        command: typed(),
        run: run_number(),
        origin,
        started_at: chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
        machine: machine::describe(),
        scenario,
    };
    let bridge = build_bridge(&setup, kafka.as_ref())?;
    let devices = make_devices(&setup, platform.as_ref())?;
    let is_endless = setup.scenario.duration_s >= orchestrator::FOREVER_S;
    let mut observer = match options.tells_json {
        true => Box::new(Json) as Box<dyn Observer>,
        false => observer(display),
    };
    let finished = orchestrator::run(setup, members, observer.as_mut(), gauge, &stop);
    let mut result = finished.result;
    if let Some(bridge) = bridge {
        let counted = bridge.conclude(&mut result, outputs.measures_ceiling());
        counted.map_err(Refusal::failure)?;
    }
    if let Some(devices) = devices {
        devices.conclude(&mut result).map_err(Refusal::failure)?;
    }
    let is_met = outputs.conclude(&mut result)?;
    if let Some(failure) = finished.failure {
        output::complain(failure);
        return Ok(EXIT_FAILURE);
    }
    Ok(match () {
        () if !is_met => EXIT_REQUIRED,
        () if result.is_interrupted && !is_endless => EXIT_INTERRUPTED,
        () => 0,
    })
}

/// Who watches by a program has no terminal for Ctrl-C, and may die.
fn end_with_input(stop: Stop) {
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        stop.ask();
    });
}

fn build_bridge(setup: &Setup, access: Option<&Access>) -> Result<Option<Bridge>, Refusal> {
    let Some((to, access)) = setup.scenario.kafka.as_ref().zip(access) else {
        return Ok(None);
    };
    let bridge = Bridge::build(&setup.scenario, to, access, setup.run);
    bridge.map(Some).map_err(Refusal::failure)
}

fn make_devices(setup: &Setup, access: Option<&fleet::Access>) -> Result<Option<Devices>, Refusal> {
    let Some((fleet, access)) = setup.scenario.platform.as_ref().zip(access) else {
        return Ok(None);
    };
    let devices = Devices::make(&setup.scenario, fleet, access, setup.run);
    devices.map(Some).map_err(Refusal::failure)
}

fn gauge(options: &Options) -> Result<Option<Box<dyn Gauge>>, Refusal> {
    if let Some(pid) = options.broker_pid {
        return Ok(Some(Box::new(Process::new(pid).map_err(Refusal::usage)?)));
    }
    let Some(url) = &options.broker_metrics else {
        return Ok(None);
    };
    let page = MetricsPage::new(url).map_err(|error| Refusal::usage(format!("--broker-metrics {error}")))?;
    Ok(Some(Box::new(page)))
}

fn observer(display: Display) -> Box<dyn Observer> {
    match display {
        Display::Run => match Live::on_terminal() {
            Some(live) => Box::new(live),
            None => Box::new(Seconds),
        },
        Display::Verb => Box::new(Counters::default()),
        Display::QuietVerb => Box::new(Silent),
    }
}

fn members(options: &Options, origin: Instant) -> Result<Vec<Member>, Refusal> {
    if !options.agents.addresses.is_empty() {
        return options.agents.connect(origin).map_err(Refusal::failure);
    }
    let threads = options.threads.unwrap_or_else(|| machine::cores().min(1024) as u16);
    Ok(vec![Member {
        driver: Box::new(LocalDriver::new("this process", origin)),
        hand: Hand {
            threads,
            clock_offset_ns: 0,
        },
        agent: None,
    }])
}

/// The command line without what must not be in a report.
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

/// Tells the messages and client ids of this run from those of another that goes on at the same time.
fn run_number() -> u16 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = since.map_or(0, |since| since.as_nanos() as u64);
    let mixed = (nanoseconds ^ (u64::from(process::id()) << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 48) as u16
}
