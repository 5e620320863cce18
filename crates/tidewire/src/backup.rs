//! `tidewire backup` and `restore`, and the copy that the API makes: the data directory as a whole, the journal and the files beside it,
//! definitions of rules and connectors, what waits in the buffers of actions, the device platform, and the console's charts.
//!
//! A backup is taken from the files, also while a server runs on them: it holds all that was acknowledged before it began. It is
//! verified, and so is what is restored. Neither overwrites anything.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::config::files::chain;
use crate::journal_command::holdings::{Holdings, count};
use crate::journal_command::{data_dir_args, readable_bytes};
use crate::output::{EXIT_FAILURE, fail, print};

pub fn backup_command() -> Command {
    Command::new("backup")
        .about("Copy the data directory, also while the server runs")
        .args(data_dir_args())
        .arg(directory("to", "Where to; it must be empty or not there yet"))
}

pub fn restore_command() -> Command {
    Command::new("restore")
        .about("Fill an empty data directory from a backup")
        .args(data_dir_args())
        .arg(directory("from", "The backup"))
}

fn directory(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .required(true)
        .help(help)
}

pub fn backup(matches: &ArgMatches, data_dir: &Path) -> ExitCode {
    let to: &PathBuf = matches.get_one("to").expect("clap requires it");
    report("backed up", data_dir, to, copy(data_dir, to))
}

pub fn restore(matches: &ArgMatches, data_dir: &Path) -> ExitCode {
    let from: &PathBuf = matches.get_one("from").expect("clap requires it");
    report("restored", from, data_dir, copy(from, data_dir))
}

fn report(what: &str, from: &Path, to: &Path, result: Result<Copied, String>) -> ExitCode {
    let copied = match result {
        Ok(copied) => copied,
        Err(message) => return fail(EXIT_FAILURE, &message),
    };
    let mut text = format!("{what} {} to {}\n", from.display(), to.display());
    let _ = writeln!(
        text,
        "the journal: {}, {}, verified",
        count(copied.segments, "segment"),
        readable_bytes(copied.journal_bytes)
    );
    if !copied.files.is_empty() {
        let _ = writeln!(text, "beside it: {}", copied.files.join(", "));
    }
    if copied.integration.buffers > 0 {
        let Integration { buffers, bytes } = copied.integration;
        let _ = writeln!(
            text,
            "of actions: {}, {}, verified",
            count(buffers, "buffer"),
            readable_bytes(bytes)
        );
    }
    if let Some(bytes) = copied.platform_bytes {
        let _ = writeln!(text, "of the device platform: {}, verified", readable_bytes(bytes));
    }
    let _ = writeln!(text, "it holds: {}", copied.holdings);
    print(&text)
}

pub struct Copied {
    segments: usize,
    journal_bytes: u64,
    /// Beside the journal.
    files: Vec<String>,
    integration: Integration,
    platform_bytes: Option<u64>,
    pub holdings: Holdings,
}

/// What waits for actions.
#[derive(Default)]
struct Integration {
    buffers: usize,
    bytes: u64,
}

pub fn copy(from: &Path, to: &Path) -> Result<Copied, String> {
    refuse_what_is_there(to)?;
    fs::create_dir_all(to).map_err(|error| format!("{} cannot be made: {error}", to.display()))?;
    journal::inspect::copy_to(from, to).map_err(|error| chain(&error))?;
    let mut files = copy_files(from, to)?;
    let integration = copy_integration(from, to, &mut files)?;
    let platform_bytes = devices::backup::copy_to(from, to).map_err(|error| chain(&error))?;
    timeseries::copy_to(from, api::HISTORY_NAME, to).map_err(|error| chain(&error))?;
    let (report, holdings) = Holdings::read(to).map_err(|error| chain(&error))?;
    Ok(Copied {
        segments: report.segments.len(),
        journal_bytes: report.file_bytes,
        files,
        integration,
        platform_bytes,
        holdings,
    })
}

/// Definitions before buffers: an action that is made meanwhile is in neither or, with an empty buffer, in one. What was acknowledged
/// before the backup began is in the buffers, or has reached its target.
fn copy_integration(from: &Path, to: &Path, files: &mut Vec<String>) -> Result<Integration, String> {
    let name = integration::DIRECTORY_NAME;
    let (from, to) = (from.join(name), to.join(name));
    let mut copied = Integration::default();
    if !from.is_dir() {
        return Ok(copied);
    }
    let definitions = copy_beside(&from, &to)?;
    files.extend(definitions.into_iter().map(|file| format!("{name}/{file}")));
    let buffers = from.join(integration::BUFFERS_NAME);
    for buffer in directories(&buffers)? {
        let target = to
            .join(integration::BUFFERS_NAME)
            .join(buffer.file_name().unwrap_or_default());
        match copy_buffer(&buffer, &target) {
            Ok(Some(bytes)) => {
                copied.buffers += 1;
                copied.bytes += bytes;
            }
            Ok(None) => {}
            // Its action was deleted meanwhile.
            Err(_) if !buffer.exists() => _ = fs::remove_dir_all(&target),
            Err(message) => return Err(message),
        }
    }
    Ok(copied)
}

/// Bytes of its journal, if it has one: what is in memory ends with the process.
fn copy_buffer(from: &Path, to: &Path) -> Result<Option<u64>, String> {
    if !from.join(journal::DIRECTORY_NAME).is_dir() {
        return Ok(None);
    }
    // What stands beside a journal speaks of what is in it: an older word of it is never wrong.
    copy_beside(from, to)?;
    let report =
        journal::inspect::copy_to(from, to).map_err(|error| format!("{}: {}", from.display(), chain(&error)))?;
    Ok(Some(report.file_bytes))
}

fn copy_beside(from: &Path, to: &Path) -> Result<Vec<String>, String> {
    fs::create_dir_all(to).map_err(|error| format!("{} cannot be made: {error}", to.display()))?;
    copy_files(from, to)
}

fn directories(parent: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = match fs::read_dir(parent) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{} cannot be read: {error}", parent.display())),
    };
    let mut directories: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    directories.sort();
    Ok(directories)
}

fn refuse_what_is_there(to: &Path) -> Result<(), String> {
    match fs::read_dir(to).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is not empty: nothing has been copied", to.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("{} cannot be read: {error}", to.display())),
    }
}

/// The files of a directory itself: administrators, changes made at run time, definitions.
fn copy_files(from: &Path, to: &Path) -> Result<Vec<String>, String> {
    let unreadable = |error: io::Error| format!("{} cannot be read: {error}", from.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(from).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if !entry.file_type().map_err(unreadable)?.is_file() {
            continue;
        }
        let target = to.join(entry.file_name());
        fs::copy(entry.path(), &target)
            .and_then(|_| fs::File::open(&target)?.sync_all())
            .map_err(|error| format!("{} cannot be copied: {error}", entry.path().display()))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
