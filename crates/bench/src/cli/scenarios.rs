//! `bench run`, `bench list` and `bench show`.

use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::execute::{self, RunOrder, RunOutputStyle};
use super::{CommandFailure, connection, kafka, outputs, platform};
use crate::output;
use crate::scenario::diagnostic::lines;
use crate::scenario::document::{Document, to_toml};
use crate::scenario::{Scenario, presets};

pub fn run_command() -> Command {
    Command::new("run")
        .about("Run a scenario against a broker")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(Arg::new("help").long("help").action(ArgAction::Help).help("Print help"))
        .args(scenario_args())
        .mut_arg("scenario", |arg| arg.required(false).required_unless_present("list"))
        .arg(
            Arg::new("list")
                .long("list")
                .action(ArgAction::SetTrue)
                .help("Show the scenarios and exit"),
        )
        .arg(
            Arg::new("without-it")
                .long("without-it")
                .action(ArgAction::SetTrue)
                .help("Run only the MQTT part of a scenario that needs Kafka or a device platform"),
        )
        .args(connection::args())
        .args(execute::args())
        .args(kafka::args())
        .args(platform::args())
        .args(outputs::args())
}

pub fn list_command() -> Command {
    Command::new("list").about("Show the built-in scenarios")
}

pub fn show_command() -> Command {
    Command::new("show")
        .about("Print a scenario as TOML, as a start for a file of your own")
        .args(scenario_args())
}

fn scenario_args() -> Vec<Arg> {
    let seconds = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("SECONDS")
            .value_parser(value_parser!(f64))
            .help(help)
    };
    vec![
        Arg::new("scenario")
            .value_name("NAME|FILE")
            .required(true)
            .help("A preset, or a TOML file"),
        Arg::new("set")
            .long("set")
            .value_name("GROUP.KEY=VALUE")
            .action(ArgAction::Append)
            .help("Change one value, for example --set publishers.publish.rate=20; can be repeated"),
        Arg::new("scale")
            .long("scale")
            .value_name("FACTOR")
            .value_parser(value_parser!(f64))
            .help("Multiply the clients of all groups that scale"),
        seconds("duration", "Time to measure"),
        seconds("warm-up", "Time to publish before measuring"),
    ]
}

pub fn run(matches: &ArgMatches) -> Result<u8, CommandFailure> {
    if matches.get_flag("list") {
        return list();
    }
    let scenario = scenario(matches)?;
    let kafka = kafka::access(&scenario, matches)?;
    let platform = platform::access(&scenario, matches)?;
    execute::run(RunOrder {
        scenario,
        kafka,
        platform,
        target: connection::target(matches)?,
        options: execute::options(matches)?,
        outputs: outputs::parse(matches)?,
        display: RunOutputStyle::Run,
    })
}

pub fn list() -> Result<u8, CommandFailure> {
    for scenario in presets::all() {
        output::line(format_args!("{:<20} {}", scenario.name, scenario.about));
        if scenario.kafka.is_some() {
            output::line(format_args!("{:<20} needs --kafka and --api", ""));
        }
        if scenario.platform.is_some() {
            output::line(format_args!("{:<20} needs --platform", ""));
        }
    }
    Ok(0)
}

pub fn show(matches: &ArgMatches) -> Result<u8, CommandFailure> {
    output::print(&to_toml(&scenario(matches)?));
    Ok(0)
}

fn scenario(matches: &ArgMatches) -> Result<Scenario, CommandFailure> {
    let name = matches.get_one::<String>("scenario").expect("clap requires it");
    let mut document = document(name)?;
    if let Some(&factor) = matches.get_one::<f64>("scale") {
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(CommandFailure::usage(format!(
                "--scale {factor}: expected a factor above 0"
            )));
        }
        document.scale(factor);
    }
    for (flag, key) in [("duration", "duration_s"), ("warm-up", "warm_up_s")] {
        if let Some(seconds) = matches.get_one::<f64>(flag) {
            let set = document.set(&format!("{key}={seconds}"));
            set.map_err(|_| CommandFailure::usage(format!("--{flag} {seconds}: expected a number of seconds")))?;
        }
    }
    let assignments = matches.get_many::<String>("set").into_iter().flatten();
    let wrong: Vec<_> = assignments
        .filter_map(|assignment| document.set(assignment).err())
        .collect();
    if !wrong.is_empty() {
        return Err(CommandFailure::usage(lines(&wrong)));
    }
    document.resolve().map_err(|wrong| CommandFailure::usage(lines(&wrong)))
}

/// Finds a preset by its name, or reads a file. A file needs a slash or a dot in its name, because preset names take
/// precedence.
fn document(name: &str) -> Result<Document, CommandFailure> {
    match presets::document(name) {
        Ok(document) => Ok(document),
        Err(_) if name.contains(['/', '.']) || Path::new(name).is_file() => {
            Document::of_file(Path::new(name)).map_err(|wrong| CommandFailure::usage(lines(&wrong)))
        }
        Err(message) => Err(CommandFailure::usage(message)),
    }
}
