//! `tidewire import`: imports sessions and messages of another broker.
//!
//! It reads a file of the other broker and writes a new journal. The journal is renamed to its final name when all of
//! it is on the disk, so that an interrupted import has no effect. It never adds to an existing journal.

mod convert;
mod mosquitto;
mod queue;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgMatches, Command, value_parser};
use journal::{DIRECTORY_NAME, LogBatch, LogConfig, RecordLog, StorageDirectory};

use crate::config::files::chain;
use crate::journal_command::data_dir_args;
use crate::journal_command::summary::{JournalSummary, count};
use crate::output::{EXIT_FAILURE, fail, print};
use convert::{Conversion, NotImported};
use mosquitto::Database;

/// Directory of the journal until it is complete, in the data directory.
const UNFINISHED: &str = "import.unfinished";

/// A batch is flushed at this size.
const BATCH_BYTES: usize = 4 << 20;

pub fn command() -> Command {
    Command::new("import")
        .about("Import sessions, messages and settings from another broker")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("mosquitto")
                .about("Make a journal from Mosquitto's persistence file")
                .long_about(
                    "Makes a journal from Mosquitto's persistence file, as versions 1.6 to 2.1 write it: retained messages, sessions \
                     with their subscriptions, queued messages and those in flight. Stop Mosquitto first: it writes the file when it ends. \
                     Mosquitto 2.0 leaves shared subscriptions out: their clients have to subscribe again.",
                )
                .arg(
                    Arg::new("file")
                        .value_name("FILE")
                        .value_parser(value_parser!(PathBuf))
                        .required(true)
                        .help("mosquitto.db"),
                )
                .args(data_dir_args()),
        )
}

pub fn run(matches: &ArgMatches, data_dir: impl FnOnce(&ArgMatches) -> Result<PathBuf, ExitCode>) -> ExitCode {
    let Some(("mosquitto", own)) = matches.subcommand() else {
        unreachable!("clap requires a command");
    };
    let data_dir = match data_dir(own) {
        Ok(data_dir) => data_dir,
        Err(code) => return code,
    };
    let file: &PathBuf = own.get_one("file").expect("clap requires it");
    match import(file, &data_dir) {
        Ok(text) => print(&text),
        Err(message) => fail(EXIT_FAILURE, &message),
    }
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
    let in_file = |error: &dyn std::error::Error| format!("{}: {}", file.display(), chain(error));
    let database = Database::read(&bytes).map_err(|error| in_file(&error))?;
    let now_unix_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64);
    let unfinished = data_dir.join(UNFINISHED);
    let left = write(&database, &unfinished, now_unix_ms)?;
    put_in_place(&unfinished, &target)?;
    let (_, summary) = JournalSummary::read(data_dir).map_err(|error| chain(&error))?;
    Ok(report(file, &target, &summary, &left))
}

fn write(database: &Database<'_>, directory: &Path, now_unix_ms: u64) -> Result<NotImported, String> {
    let io = |error| format!("{} cannot be written: {error}", directory.display());
    if directory.exists() {
        // Deletes the rest of an interrupted import.
        fs::remove_dir_all(directory).map_err(io)?;
    }
    fs::create_dir_all(directory).map_err(io)?;
    let storage = StorageDirectory::open(directory, DIRECTORY_NAME).map_err(|error| chain(&error))?;
    let config = LogConfig {
        max_bytes: u64::MAX,
        reserve_bytes: 0,
        record_version: broker::durable::record::RECORD_VERSION,
        ..LogConfig::default()
    };
    let opened = RecordLog::open(Arc::new(storage), config, &mut |_, _| Ok(()), &mut |_, _| {});
    let (mut log, _) = opened.map_err(|error| chain(&error))?;
    let mut batch = LogBatch::new();
    let mut failure = None;
    let left = Conversion::new(database, now_unix_ms).write(&mut |record| {
        batch.record(|out| record.put(out));
        if batch.len() >= BATCH_BYTES && failure.is_none() {
            log.append(&mut batch);
            failure = log.flush().err();
        }
    });
    log.append(&mut batch);
    match failure {
        Some(error) => Err(chain(&error)),
        None => log.close().map(|()| left).map_err(|error| chain(&error)),
    }
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
