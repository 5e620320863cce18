//! `tidewire backup` and `restore`, and the copy that the API makes: the data directory as a whole, the journal and the files beside it,
//! definitions of rules and connectors, what waits in the buffers of actions, the device platform, and the console's charts.
//!
//! A backup is taken from the files, also while a server runs on them: it holds all that was acknowledged before it began. It is
//! verified, and so is what is restored. Neither overwrites anything, and what cannot be finished is removed. That a backup is whole is said
//! by a file that is written last ([`mark`]); nothing else is restored without being told to. What the API restores takes the place of the
//! data at a start ([`switch`]).

mod mark;
pub mod switch;

pub use mark::check_data_dir;

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use journal::inspect::{InspectError, copy_around};
use storage::copy::sync_directory;

use crate::config::files::chain;
use crate::journal_command::holdings::{Holdings, count};
use crate::journal_command::{data_dir_args, readable_bytes};
use crate::output::{EXIT_FAILURE, fail, print};

pub fn backup_command() -> Command {
    Command::new("backup")
        .about("Copy the data directory, also while the server runs")
        .args(data_dir_args())
        .arg(directory("to", "Where to; it must be empty or not there yet"))
        .arg(tied())
}

pub fn restore_command() -> Command {
    Command::new("restore")
        .about("Fill an empty data directory from a backup")
        .args(data_dir_args())
        .arg(directory("from", "The backup"))
        .arg(
            Arg::new("incomplete")
                .long("incomplete")
                .action(ArgAction::SetTrue)
                .help("Also what is not known to be whole: a backup that was interrupted, or of an earlier version"),
        )
        .arg(tied())
}

/// For the server, whose copies nobody wants when it has ended: they would go on writing where the next one makes its own.
pub const TIED: &str = "--tied-to-stdin";

fn tied() -> Arg {
    Arg::new("tied")
        .long(TIED.trim_start_matches('-'))
        .action(ArgAction::SetTrue)
        .hide(true)
}

/// This process ends when its standard input does.
fn end_with_stdin(matches: &ArgMatches) {
    if matches.get_flag("tied") {
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            std::process::exit(EXIT_FAILURE.into());
        });
    }
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
    end_with_stdin(matches);
    let to: &PathBuf = matches.get_one("to").expect("clap requires it");
    report("backed up", data_dir, to, back_up(data_dir, to))
}

pub fn restore(matches: &ArgMatches, data_dir: &Path) -> ExitCode {
    end_with_stdin(matches);
    let from: &PathBuf = matches.get_one("from").expect("clap requires it");
    let is_whole = !matches.get_flag("incomplete");
    let checked = if is_whole { mark::check(from) } else { Ok(()) };
    let restored = checked.and_then(|()| {
        restore_into(from, data_dir, is_whole)
            .map_err(|message| format!("the backup {} cannot be restored: {message}", from.display()))
    });
    report("restored", from, data_dir, restored)
}

fn restore_into(from: &Path, data_dir: &Path, is_whole: bool) -> Result<Copied, String> {
    mark::check_data_dir(data_dir)?;
    let copied = copy(from, data_dir, mark::begin_restore)?;
    if is_whole && let Err(message) = mark::check_copied(from, data_dir) {
        empty(data_dir);
        return Err(message);
    }
    mark::end_restore(data_dir).map(|()| copied)
}

/// Copies the data directory, and says that the copy is whole.
fn back_up(data_dir: &Path, to: &Path) -> Result<Copied, String> {
    mark::check_data_dir(data_dir)?;
    let copied = copy(data_dir, to, |_| Ok(()))?;
    match mark::write(to) {
        Ok(()) => Ok(copied),
        Err(message) => {
            empty(to);
            Err(message)
        }
    }
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
    let _ = writeln!(text, "{HOLDS}{}", copied.holdings);
    print(&text)
}

const HOLDS: &str = "it holds: ";

/// Of what the command has printed.
pub fn holdings_of(printed: &str) -> &str {
    printed
        .lines()
        .find_map(|line| line.strip_prefix(HOLDS))
        .unwrap_or_default()
}

struct Copied {
    segments: usize,
    journal_bytes: u64,
    /// Beside the journal.
    files: Vec<String>,
    integration: Integration,
    platform_bytes: Option<u64>,
    holdings: Holdings,
}

/// What waits for actions.
#[derive(Default)]
struct Integration {
    buffers: usize,
    bytes: u64,
}

/// `begin`: before anything is there.
fn copy(from: &Path, to: &Path, begin: fn(&Path) -> Result<(), String>) -> Result<Copied, String> {
    refuse_what_is_there(to)?;
    fs::create_dir_all(to).map_err(|error| format!("{} cannot be made: {error}", to.display()))?;
    let copied = begin(to).and_then(|()| copy_all(from, to));
    if copied.is_err() {
        empty(to);
    }
    copied
}

/// Half a copy looks like one. The first error is the one to report.
fn empty(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ = match path.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
    }
}

fn copy_all(from: &Path, to: &Path) -> Result<Copied, String> {
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
    copy_buffer_while(from, to, || {})
}

/// The same while `meanwhile` happens.
fn copy_buffer_while(from: &Path, to: &Path, mut meanwhile: impl FnMut()) -> Result<Option<u64>, String> {
    if !from.join(journal::DIRECTORY_NAME).is_dir() {
        return Ok(None);
    }
    let between = || {
        meanwhile();
        Ok::<_, InspectError>(())
    };
    let report = copy_around(from, journal::DIRECTORY_NAME, to, between)
        .map_err(|error| format!("{}: {}", from.display(), chain(&error)))?;
    // After the journal: what is set aside stands beside it before the cursor moves on. So what the journal's copy is through with is
    // there, or has been delivered; and what both have is left out when the buffer is opened.
    copy_beside(from, to)?;
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
        let name = entry.file_name().to_string_lossy().into_owned();
        // It speaks of the directory that it is in.
        if name == mark::NAME {
            continue;
        }
        let target = to.join(entry.file_name());
        // With its permissions: some are secret.
        match fs::copy(entry.path(), &target).and_then(|_| fs::File::open(&target)?.sync_all()) {
            Ok(()) => names.push(name),
            Err(_) if !entry.path().exists() => _ = fs::remove_file(&target),
            Err(error) => return Err(format!("{} cannot be copied: {error}", entry.path().display())),
        }
    }
    sync_directory(to).map_err(|error| format!("{} cannot be synced: {error}", to.display()))?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;

    use journal::{Batch, Directory, Log, LogConfig};

    use super::*;

    /// What is set aside while a buffer is copied is in the journal that has been copied by then, or beside it: never in neither.
    #[test]
    fn what_stands_beside_a_buffers_journal_is_not_older_than_the_copy_of_that() {
        let directory = std::env::temp_dir().join(format!("tidewire-backup-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let (from, changed, gone) = (directory.join("from"), directory.join("a"), directory.join("b"));
        fs::create_dir_all(&from).unwrap();
        let storage = Directory::open(&from, journal::DIRECTORY_NAME).unwrap();
        let config = LogConfig {
            segment_bytes: 64 << 10,
            ..LogConfig::default()
        };
        let (mut log, _) = Log::open(Arc::new(storage), config, &mut |_, _| Ok(()), &mut |_, _| ()).unwrap();
        let mut batch = Batch::new();
        batch.record(|bytes| bytes.extend_from_slice(b"record"));
        log.append(&mut batch);
        log.flush().unwrap();
        let aside = from.join("aside");
        fs::write(&aside, "before").unwrap();
        copy_buffer_while(&from, &changed, || fs::write(&aside, "after").unwrap()).unwrap();
        assert_eq!(fs::read(changed.join("aside")).unwrap(), b"after");
        // What has been delivered meanwhile is not delivered once more.
        copy_buffer_while(&from, &gone, || fs::remove_file(&aside).unwrap()).unwrap();
        assert!(!gone.join("aside").exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
