//! `tidewire journal`: inspects and verifies the journal of a data directory, and repairs damaged logs.
//!
//! Inspecting and verifying work while a server uses the journal. Repairing needs exclusive access. It does not ask
//! for confirmation and destroys no data: it first copies everything that it removes.

mod inspect;
mod repair;
pub mod summary;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use journal::inspect::{DamagePolicy, RepairMode, RepairOptions};

use crate::output::{EXIT_FAILURE, fail};
use repair::RepairRequest;

const REPAIR_HELP: &str = "\
Repair the journal of a data directory, the buffers of its actions and the log of its device platform, after copying the \
files that change. Stop the server first.

By default, a damaged journal is truncated at the damage, which loses all later records. With --skip-damaged, only damaged \
records are lost.

With --accept-loss, the server starts again although a store, an action buffer, transactions of the entity database or files \
of the time series are missing or damaged, or an earlier copy has replaced a store or a buffer.";

pub fn command() -> Command {
    Command::new("journal")
        .about("Inspect, verify and repair the journal")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("inspect")
                .about("Print the contents of the journal and the damage of all logs, also while a server uses them")
                .args(data_dir_args())
                .arg(json_arg()),
        )
        .subcommand(
            Command::new("verify")
                .about("Verify every record of the journal, the action buffers and the device log; fails if one is damaged or missing")
                .args(data_dir_args())
                .arg(json_arg()),
        )
        .subcommand(
            Command::new("repair")
                .about("Repair damaged journals, action buffers and device logs, after copying the files that change")
                .long_about(REPAIR_HELP)
                .args(data_dir_args())
                .arg(json_arg())
                .arg(
                    Arg::new("skip-damaged")
                        .long("skip-damaged")
                        .action(ArgAction::SetTrue)
                        .help("Keep all intact records behind the damage, and list the lost ones"),
                )
                .arg(
                    Arg::new("accept-loss")
                        .long("accept-loss")
                        .action(ArgAction::SetTrue)
                        .help("Also accept that missing stores, buffers and transactions are lost"),
                )
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
        _ => repair::repair(&data_dir, &request(own), form),
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

fn request(matches: &ArgMatches) -> RepairRequest {
    RepairRequest {
        options: RepairOptions {
            mode: match matches.get_flag("dry-run") {
                true => RepairMode::Plan,
                false => RepairMode::Repair,
            },
            damage: match matches.get_flag("skip-damaged") {
                true => DamagePolicy::Skip,
                false => DamagePolicy::Truncate,
            },
        },
        accepts_loss: matches.get_flag("accept-loss"),
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
