//! `tidewire backup` and `tidewire restore`, and the copy that the API makes. A backup contains the whole data
//! directory: the journal and other files, definitions of rules and connectors, action buffers, the device platform,
//! the charts of the console, and the account and the certificate of `tls.acme` with their private keys.
//!
//! A backup is copied from the files, also while a server uses them. It contains everything that was acknowledged
//! before it began. Both commands verify the copied files, never overwrite a file, and remove an incomplete copy. The
//! file that is written last ([`mark`]) states that a backup is complete; an incomplete one is restored only on
//! request. A restore by the API replaces the data at the next start ([`switch`]).

mod mark;
pub mod switch;

pub use mark::check_data_dir;

use std::fmt::Write;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use journal::inspect::{InspectError, copy_around};
use storage::copy::sync_directory;

use crate::config::files::chain;
use crate::device_platform;
use crate::journal_command::summary::{JournalSummary, count};
use crate::journal_command::{data_dir_args, readable_bytes};
use crate::output::{EXIT_FAILURE, fail, print};
use crate::stores;

pub fn backup_command() -> Command {
    Command::new("backup")
        .about("Copy the data directory, also while the server runs")
        .args(data_dir_args())
        .arg(directory("to", "Target directory; it must be empty or missing"))
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
                .help("Also restore an incomplete backup: one that was interrupted, or was made by an earlier version"),
        )
        .arg(tied())
}

/// For the server: the copying process must end with it, otherwise it would write into the directory of the next copy.
pub const TIED: &str = "--tied-to-stdin";

fn tied() -> Arg {
    Arg::new("tied")
        .long(TIED.trim_start_matches('-'))
        .action(ArgAction::SetTrue)
        .hide(true)
}

/// Ends this process when its standard input is closed.
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
            .map_err(|message| format!("cannot restore the backup {}: {message}", from.display()))
    });
    report("restored", from, data_dir, restored)
}

fn restore_into(from: &Path, data_dir: &Path, is_whole: bool) -> Result<CopyResult, String> {
    mark::check_data_dir(data_dir)?;
    let copied = copy(from, data_dir, mark::begin_restore)?;
    if is_whole && let Err(message) = mark::check_copied(from, data_dir) {
        empty(data_dir);
        return Err(message);
    }
    if !is_whole {
        stores::forget(data_dir)?;
    }
    mark::end_restore(data_dir).map(|()| copied)
}

/// Copies the data directory and marks the copy as complete.
fn back_up(data_dir: &Path, to: &Path) -> Result<CopyResult, String> {
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

fn report(what: &str, from: &Path, to: &Path, result: Result<CopyResult, String>) -> ExitCode {
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
        let _ = writeln!(text, "other files: {}", copied.files.join(", "));
    }
    if copied.integration.buffers > 0 {
        let BackedUpBuffers { buffers, bytes } = copied.integration;
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
    let _ = writeln!(text, "{HOLDS}{}", copied.summary);
    print(&text)
}

const HOLDS: &str = "contents: ";

/// The last line of the output of the command.
pub fn summary_line(printed: &str) -> &str {
    printed
        .lines()
        .find_map(|line| line.strip_prefix(HOLDS))
        .unwrap_or_default()
}

struct CopyResult {
    segments: usize,
    journal_bytes: u64,
    /// Files outside the journal.
    files: Vec<String>,
    integration: BackedUpBuffers,
    platform_bytes: Option<u64>,
    summary: JournalSummary,
}

/// Buffers of actions.
#[derive(Default)]
struct BackedUpBuffers {
    buffers: usize,
    bytes: u64,
}

/// `begin` is called before anything is created.
fn copy(from: &Path, to: &Path, begin: fn(&Path) -> Result<(), String>) -> Result<CopyResult, String> {
    check_target_is_empty(to)?;
    fs::create_dir_all(to).map_err(|error| format!("cannot create {}: {error}", to.display()))?;
    let copied = begin(to).and_then(|()| copy_all(from, to));
    if copied.is_err() {
        empty(to);
    }
    copied
}

/// An incomplete copy looks like a complete one, so it is removed. The first error is reported.
fn empty(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ = match path.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
    }
}

fn copy_all(from: &Path, to: &Path) -> Result<CopyResult, String> {
    journal::inspect::copy_to(from, to).map_err(|error| chain(&error))?;
    let recorded = stores::recorded_stores(from)?;
    let mut files = copy_files(from, to)?;
    stores::complete_copy(to, &recorded)?;
    let integration = copy_integration(from, to, &mut files)?;
    let platform_bytes = device_platform::copy_to(from, to)?;
    timeseries::copy_to(from, api::HISTORY_NAME, to).map_err(|error| chain(&error))?;
    files.extend(copy_acme(from, to)?);
    let (report, summary) = JournalSummary::read(to).map_err(|error| chain(&error))?;
    Ok(CopyResult {
        segments: report.segments.len(),
        journal_bytes: report.file_bytes,
        files,
        integration,
        platform_bytes,
        summary,
    })
}

/// Copies the account and the certificate of `tls.acme`. The server replaces each of these files atomically.
fn copy_acme(from: &Path, to: &Path) -> Result<Vec<String>, String> {
    let name = certificates::ACME_DIRECTORY;
    let (from, to) = (from.join(name), to.join(name));
    if !from.is_dir() {
        return Ok(Vec::new());
    }
    // The files contain private keys.
    let created = DirBuilder::new().mode(0o700).create(&to);
    created.map_err(|error| format!("cannot create {}: {error}", to.display()))?;
    let files = copy_files(&from, &to)?;
    Ok(files.into_iter().map(|file| format!("{name}/{file}")).collect())
}

/// Copies definitions before buffers: an action that is created in the meantime is in neither, or has an empty buffer.
/// Messages that were acknowledged before the backup began are in the buffers, or have reached their target.
fn copy_integration(from: &Path, to: &Path, files: &mut Vec<String>) -> Result<BackedUpBuffers, String> {
    let name = integration::DIRECTORY_NAME;
    let (from, to) = (from.join(name), to.join(name));
    let mut copied = BackedUpBuffers::default();
    if !from.is_dir() {
        return Ok(copied);
    }
    let definitions = copy_other_files(&from, &to)?;
    files.extend(definitions.into_iter().map(|file| format!("{name}/{file}")));
    let buffers = from.join(integration::BUFFERS_NAME);
    if buffers.is_dir() {
        // Also without a buffer: a data directory that has had this directory does not start without it.
        let target = to.join(integration::BUFFERS_NAME);
        fs::create_dir_all(&target).map_err(|error| format!("cannot create {}: {error}", target.display()))?;
    }
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
            // Its action was deleted in the meantime.
            Err(_) if !buffer.exists() => _ = fs::remove_dir_all(&target),
            Err(message) => return Err(message),
        }
    }
    Ok(copied)
}

/// Returns the size of the journal of a buffer. A buffer in memory has none.
fn copy_buffer(from: &Path, to: &Path) -> Result<Option<u64>, String> {
    copy_buffer_while(from, to, || {})
}

/// Like `copy_buffer`, and calls the closure during the copy. For tests.
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
    // After the journal: a message that failed is written to its own file before the cursor moves on. So a message
    // behind the cursor of the copied journal is in that file or was delivered, and a message in both is ignored when
    // the buffer is opened.
    copy_other_files(from, to)?;
    Ok(Some(report.file_bytes))
}

fn copy_other_files(from: &Path, to: &Path) -> Result<Vec<String>, String> {
    fs::create_dir_all(to).map_err(|error| format!("cannot create {}: {error}", to.display()))?;
    copy_files(from, to)
}

fn directories(parent: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = match fs::read_dir(parent) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot read {}: {error}", parent.display())),
    };
    let mut directories: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    directories.sort();
    Ok(directories)
}

fn check_target_is_empty(to: &Path) -> Result<(), String> {
    match fs::read_dir(to).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} is not empty: nothing was copied", to.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("cannot read {}: {error}", to.display())),
    }
}

/// Copies the files of a directory itself: administrators, changes made at run time, definitions.
fn copy_files(from: &Path, to: &Path) -> Result<Vec<String>, String> {
    let unreadable = |error: io::Error| format!("cannot read {}: {error}", from.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(from).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // Also through a link: operators may link `users` or `admins` to another directory.
        if !fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        // The mark belongs to its directory.
        if name == mark::NAME {
            continue;
        }
        let target = to.join(entry.file_name());
        // With its permissions, because some files are secret.
        match fs::copy(entry.path(), &target).and_then(|_| fs::File::open(&target)?.sync_all()) {
            Ok(()) => names.push(name),
            Err(_) if !entry.path().exists() => _ = fs::remove_file(&target),
            Err(error) => return Err(format!("cannot copy {}: {error}", entry.path().display())),
        }
    }
    sync_directory(to).map_err(|error| format!("cannot sync {}: {error}", to.display()))?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;

    use journal::{LogBatch, LogConfig, RecordLog, StorageDirectory};

    use super::*;

    /// A message that fails while its buffer is copied is in the copied journal or in the copied file, never in
    /// neither.
    #[test]
    fn what_stands_beside_a_buffers_journal_is_not_older_than_the_copy_of_that() {
        let directory = std::env::temp_dir().join(format!("tidewire-backup-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let (from, changed, gone) = (directory.join("from"), directory.join("a"), directory.join("b"));
        fs::create_dir_all(&from).unwrap();
        let storage = StorageDirectory::open(&from, journal::DIRECTORY_NAME).unwrap();
        let config = LogConfig {
            segment_bytes: 64 << 10,
            ..LogConfig::default()
        };
        let (mut log, _) = RecordLog::open(Arc::new(storage), config, &mut |_, _| Ok(()), &mut |_, _| ()).unwrap();
        let mut batch = LogBatch::new();
        batch.record(|bytes| bytes.extend_from_slice(b"record"));
        log.append(&mut batch);
        log.flush().unwrap();
        let aside = from.join("aside");
        fs::write(&aside, "before").unwrap();
        copy_buffer_while(&from, &changed, || fs::write(&aside, "after").unwrap()).unwrap();
        assert_eq!(fs::read(changed.join("aside")).unwrap(), b"after");
        // A message that was delivered in the meantime is not delivered again.
        copy_buffer_while(&from, &gone, || fs::remove_file(&aside).unwrap()).unwrap();
        assert!(!gone.join("aside").exists());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn linked_files_are_copied() {
        let directory = std::env::temp_dir().join(format!("tidewire-backup-links-{}", std::process::id()));
        let [from, to, elsewhere] = ["from", "to", "elsewhere"].map(|name| directory.join(name));
        for each in [&from, &to, &elsewhere] {
            fs::create_dir_all(each).unwrap();
        }
        fs::write(elsewhere.join("users"), "content").unwrap();
        std::os::unix::fs::symlink(elsewhere.join("users"), from.join("users")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, from.join("directory")).unwrap();
        std::os::unix::fs::symlink(elsewhere.join("missing"), from.join("nothing")).unwrap();
        assert_eq!(copy_files(&from, &to).unwrap(), ["users"]);
        assert_eq!(fs::read(to.join("users")).unwrap(), b"content");
        fs::remove_dir_all(&directory).unwrap();
    }
}
