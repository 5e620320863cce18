//! `tidewire import`: imports the configuration, users, sessions and messages of another broker.
//!
//! Configurations become a new directory with a configuration, its files and a data directory (`setup`). A persistence
//! file of Mosquitto alone becomes a journal in a data directory. In both cases everything is written to a temporary
//! name and renamed when all of it is on the disk, so that an interrupted import has no effect. An import never adds to
//! existing files.

mod access;
mod convert;
mod definition;
mod emqx;
mod hocon;
mod mosquitto;
mod mosquitto_conf;
mod nanomq;
mod options;
mod queue;
mod report;
mod retained;
mod settings;
mod setup;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use journal::DIRECTORY_NAME;

use crate::config::files::chain;
use crate::journal_command::data_dir_args;
use crate::journal_command::summary::{JournalSummary, count};
use crate::output::{EXIT_FAILURE, EXIT_USAGE, fail, print};
use convert::{Conversion, NotImported};
use mosquitto::Database;
use report::Report;
use setup::Setup;

/// Directory of the journal until it is complete, in the data directory.
const UNFINISHED: &str = "import.unfinished";

/// Maximum size of a configuration file of another broker.
const CONFIG_BYTES_MAX: u64 = 32 << 20;

pub fn command() -> Command {
    Command::new("import")
        .about("Import sessions, messages and settings from another broker")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("mosquitto")
                .about("Make a configuration from mosquitto.conf, or a journal from mosquitto.db")
                .long_about(
                    "Makes a configuration and a data directory from mosquitto.conf and the files that it names: options, listeners, \
                     users, access rules, dynamic security, bridges, and the persistence file. The report names everything that is not \
                     supported.\n\n\
                     From a persistence file alone, it makes a journal in the data directory: retained messages, sessions with their \
                     subscriptions, queued messages and those in flight, as Mosquitto 1.6 to 2.1 writes them. Stop Mosquitto first: it \
                     writes the file when it ends. Mosquitto 2.0 leaves shared subscriptions out: their clients have to subscribe again.",
                )
                .arg(file_arg("mosquitto.conf or mosquitto.db"))
                .args(setup_args())
                .args(data_dir_args()),
        )
        .subcommand(
            Command::new("emqx")
                .about("Make a configuration and a data directory from a backup archive of EMQX")
                .long_about(
                    "Makes a configuration and a data directory from a backup archive of EMQX 5 or 6, as `emqx ctl data export` or the \
                     dashboard writes it: options, listeners, users, access rules, bans, connectors, actions, sources, rules and \
                     retained messages. The report names everything that is not supported.",
                )
                .arg(file_arg("emqx-export-….tar.gz"))
                .args(setup_args()),
        )
        .subcommand(
            Command::new("nanomq")
                .about("Make a configuration from NanoMQ's configuration file")
                .long_about(
                    "Makes a configuration from NanoMQ's configuration file in HOCON, as versions 0.14 to 0.25 read it, with the files that \
                     it includes: options, listeners, users, access rules, bridges, rules and webhooks. The report names everything \
                     that is not supported.",
                )
                .arg(file_arg("nanomq.conf"))
                .args(setup_args()),
        )
}

fn file_arg(help: &'static str) -> Arg {
    Arg::new("file")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .required(true)
        .help(help)
}

fn setup_args() -> [Arg; 3] {
    let path = |name, value| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .value_parser(value_parser!(PathBuf))
    };
    [
        path("to", "DIR").help("New directory for tidewire.toml, its files and the data directory"),
        Arg::new("dry-run")
            .long("dry-run")
            .action(ArgAction::SetTrue)
            .help("Only print the report"),
        path("report", "FILE").help("Also write the report to this file [default: import-report.txt in DIR]"),
    ]
}

pub fn run(matches: &ArgMatches, data_dir: impl FnOnce(&ArgMatches) -> Result<PathBuf, ExitCode>) -> ExitCode {
    let Some((broker, own)) = matches.subcommand() else {
        unreachable!("clap requires a command");
    };
    let file: &PathBuf = own.get_one("file").expect("clap requires it");
    match broker {
        "emqx" => run_setup(own, "EMQX", file, &emqx::import),
        "nanomq" => run_setup(own, "NanoMQ", file, &nanomq::import),
        _ if !Database::is_named(file) => run_setup(own, "Mosquitto", file, &mosquitto_conf::import),
        _ => {
            let data_dir = match data_dir(own) {
                Ok(data_dir) => data_dir,
                Err(code) => return code,
            };
            match import(file, &data_dir) {
                Ok(text) => print(&text),
                Err(message) => fail(EXIT_FAILURE, &message),
            }
        }
    }
}

type ImportSetup<'a> = &'a dyn Fn(&Path, &Report) -> Result<Setup, String>;

fn run_setup(own: &ArgMatches, broker: &str, file: &Path, import: ImportSetup<'_>) -> ExitCode {
    let target: Option<&PathBuf> = own.get_one("to");
    let is_dry_run = own.get_flag("dry-run");
    if target.is_none() && !is_dry_run {
        return fail(EXIT_USAGE, &"name a new directory with --to DIR, or use --dry-run");
    }
    let report = Report::default();
    let title = format!("Import from {broker}: {}", file.display());
    let target = target.filter(|_| !is_dry_run);
    let imported = import(file, &report).and_then(|mut setup| {
        setup.report_file = own.get_one::<PathBuf>("report").cloned();
        setup.install(target.map(PathBuf::as_path), &title, &report)
    });
    let mut text = match imported {
        Ok(text) => text,
        Err(message) => return fail(EXIT_FAILURE, &message),
    };
    match target {
        Some(target) => {
            let config = target.join(setup::CONFIG_NAME);
            let _ = writeln!(text, "\nStart the server: tidewire --config {}", config.display());
        }
        None => text.push_str("\nNothing was written.\n"),
    }
    print(&text)
}

/// Reads a file, unless it is too large.
pub fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    match bytes.len() as u64 > bytes_max {
        true => Err(format!("{} is larger than {bytes_max} bytes", path.display())),
        false => Ok(bytes),
    }
}

pub fn now_unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

fn import(file: &Path, data_dir: &Path) -> Result<String, String> {
    let target = data_dir.join(DIRECTORY_NAME);
    if target.exists() {
        return Err(format!(
            "{} is there already: nothing has been imported",
            target.display()
        ));
    }
    let bytes = fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let unfinished = data_dir.join(UNFINISHED);
    let io = |error| format!("{} cannot be written: {error}", unfinished.display());
    if unfinished.exists() {
        // Deletes the rest of an interrupted import.
        fs::remove_dir_all(&unfinished).map_err(io)?;
    }
    let left = write_mosquitto(&bytes, &unfinished).map_err(|error| format!("{}: {error}", file.display()))?;
    put_in_place(&unfinished, &target)?;
    let (_, summary) = JournalSummary::read(data_dir).map_err(|error| chain(&error))?;
    Ok(report(file, &target, &summary, &left))
}

/// Writes the journal of a persistence file of Mosquitto to a data directory.
fn write_mosquitto(bytes: &[u8], data_dir: &Path) -> Result<NotImported, String> {
    let database = Database::read(bytes).map_err(|error| chain(&error))?;
    fs::create_dir_all(data_dir).map_err(|error| format!("cannot create {}: {error}", data_dir.display()))?;
    setup::write_journal(data_dir, |put| Conversion::new(&database, now_unix_ms()).write(put))
}

fn put_in_place(unfinished: &Path, target: &Path) -> Result<(), String> {
    let rename = || {
        fs::rename(unfinished.join(DIRECTORY_NAME), target)?;
        fs::remove_dir(unfinished)?;
        match target.parent() {
            Some(data_dir) => fs::File::open(data_dir)?.sync_all(),
            None => Ok(()),
        }
    };
    rename().map_err(|error| format!("cannot create {}: {error}", target.display()))
}

fn report(file: &Path, target: &Path, summary: &JournalSummary, left: &NotImported) -> String {
    let mut text = format!("imported {} into {}\n", file.display(), target.display());
    let _ = writeln!(text, "contents: {summary}");
    let unrouted = left.released_by_arrival;
    if unrouted > 0 {
        let messages = count(unrouted, "message");
        let _ = writeln!(
            text,
            "{messages} that publishers had not released will be delivered at the first start"
        );
    }
    for (number, what) in [
        (left.expired_sessions, "expired session"),
        (left.messages_without_session, "message without a recipient"),
        (left.without_session, "subscription or message of no session"),
    ] {
        if number > 0 {
            let _ = writeln!(text, "left out: {}", plural(number, what));
        }
    }
    text
}

/// `what` begins with the noun.
fn plural(number: usize, what: &str) -> String {
    match what.split_once(' ') {
        Some((noun, rest)) if rest.starts_with("that") || rest.starts_with("or") => {
            format!("{} {rest}", count(number, noun))
        }
        _ => count(number, what),
    }
}
