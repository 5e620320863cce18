//! `tidewire journal`: inspects and verifies the journal of a data directory, and repairs a damaged one.
//!
//! Inspecting and verifying work while a server uses the journal. Repairing needs exclusive access. It does not ask
//! for confirmation and destroys no data: it first copies everything that it removes.

pub mod holdings;
mod inspect;
mod repair;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use journal::inspect::RepairMode;

use crate::output::{EXIT_FAILURE, fail};

pub fn command() -> Command {
    Command::new("journal")
        .about("Inspect, verify and repair the journal")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("inspect")
                .about("Print the contents of the journal, also while a server uses it")
                .args(data_dir_args())
                .arg(json_arg()),
        )
        .subcommand(
            Command::new("verify")
                .about("Verify every record; fails if a record is damaged or missing")
                .args(data_dir_args())
                .arg(json_arg()),
        )
        .subcommand(
            Command::new("repair")
                .about("Truncate a damaged journal at the damage, after copying the removed part")
                .args(data_dir_args())
                .arg(json_arg())
                .arg(
                    Arg::new("dry-run")
                        .long("dry-run")
                        .action(ArgAction::SetTrue)
                        .help("Only print the planned changes"),
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

/// `data_dir` comes from an option or from the configuration.
pub fn run(matches: &ArgMatches, data_dir: impl FnOnce(&ArgMatches) -> Result<PathBuf, ExitCode>) -> ExitCode {
    let Some((name, own)) = matches.subcommand() else {
        unreachable!("clap requires a command");
    };
    let data_dir = match data_dir(own) {
        Ok(data_dir) => data_dir,
        Err(code) => return code,
    };
    let form = OutputForm::of(own);
    let result = match name {
        "inspect" => inspect::inspect(&data_dir, form),
        "verify" => inspect::verify(&data_dir, form),
        _ => repair::repair(&data_dir, mode(own), form),
    };
    result.unwrap_or_else(|message| fail(EXIT_FAILURE, &message))
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputForm {
    Text,
    Json,
}

impl OutputForm {
    fn of(matches: &ArgMatches) -> OutputForm {
        match matches.get_flag("json") {
            true => OutputForm::Json,
            false => OutputForm::Text,
        }
    }
}

fn mode(matches: &ArgMatches) -> RepairMode {
    match matches.get_flag("dry-run") {
        true => RepairMode::Plan,
        false => RepairMode::Repair,
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
