//! `tidewire journal`: looks at the journal of a data directory, checks it, and makes a damaged one usable again.
//!
//! Looking and checking work while a server uses the journal. Repairing needs it alone, asks nothing and destroys nothing: what it
//! gives up is copied beside the journal first.

pub mod holdings;
mod inspect;
mod repair;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use journal::inspect::Mode;

use crate::output::{EXIT_FAILURE, fail};

pub fn command() -> Command {
    Command::new("journal")
        .about("Look at the journal, check it, repair it")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("inspect")
                .about("Say what the journal holds, also while a server uses it")
                .args(data_dir_args())
                .arg(json_arg()),
        )
        .subcommand(
            Command::new("verify")
                .about("Check every record; fails if something is damaged or missing")
                .args(data_dir_args())
                .arg(json_arg()),
        )
        .subcommand(
            Command::new("repair")
                .about("Cut a damaged journal where the damage begins, after copying what is cut off")
                .args(data_dir_args())
                .arg(json_arg())
                .arg(
                    Arg::new("dry-run")
                        .long("dry-run")
                        .action(ArgAction::SetTrue)
                        .help("Only say what would be done"),
                ),
        )
}

/// Where the data are: said outright, or by the configuration.
pub fn data_dir_args() -> [Arg; 3] {
    let [config, set] = crate::cli::config_args();
    let data_dir = Arg::new("data-dir")
        .long("data-dir")
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .help("Data directory [default: that of the configuration]");
    [data_dir, config, set]
}

fn json_arg() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON")
}

/// `data_dir` is told by options or configuration.
pub fn run(matches: &ArgMatches, data_dir: impl FnOnce(&ArgMatches) -> Result<PathBuf, ExitCode>) -> ExitCode {
    let Some((name, own)) = matches.subcommand() else {
        unreachable!("clap requires a command");
    };
    let data_dir = match data_dir(own) {
        Ok(data_dir) => data_dir,
        Err(code) => return code,
    };
    let form = Form::of(own);
    let result = match name {
        "inspect" => inspect::inspect(&data_dir, form),
        "verify" => inspect::verify(&data_dir, form),
        _ => repair::repair(&data_dir, mode(own), form),
    };
    result.unwrap_or_else(|message| fail(EXIT_FAILURE, &message))
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

impl Form {
    fn of(matches: &ArgMatches) -> Form {
        match matches.get_flag("json") {
            true => Form::Json,
            false => Form::Text,
        }
    }
}

fn mode(matches: &ArgMatches) -> Mode {
    match matches.get_flag("dry-run") {
        true => Mode::Plan,
        false => Mode::Repair,
    }
}

/// Bytes for people: two or three digits and a unit.
pub fn readable_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}
