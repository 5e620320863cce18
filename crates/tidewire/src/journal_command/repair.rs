//! `tidewire journal repair`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use broker::durable::record::{JournalRecord, RecordPosition};
use journal::inspect::{InspectError, LostRange, LostThing, RepairMode, RepairOptions, RepairReport, repair_log};
use serde_json::{Value, json};
use storage::DirectoryError;

use super::summary::{JournalSummary, kind_of};
use super::{OutputForm, show};
use crate::config::files::chain;
use crate::device_platform;
use crate::output::print;
use crate::stores;

pub struct RepairRequest {
    pub options: RepairOptions,
    pub accepts_loss: bool,
}

/// How long the repair waits for a log that another process uses.
const IN_USE_MAX: Duration = Duration::from_secs(2);
const IN_USE_PAUSE: Duration = Duration::from_millis(50);

/// A log that can be verified and repaired.
pub struct Log {
    /// Path within the data directory, for messages.
    pub path: String,
    pub parent: PathBuf,
    pub name: &'static str,
    /// The journal of the broker, whose records can be described.
    pub is_journal: bool,
}

/// A repaired log.
struct RepairedLog {
    log: Log,
    report: RepairReport,
}

/// Something missing whose loss is accepted.
struct AcceptedLoss {
    path: String,
    what: String,
}

pub fn repair(data_dir: &Path, request: &RepairRequest, form: OutputForm) -> Result<ExitCode, String> {
    let mode = request.options.mode;
    let mut repaired = Vec::new();
    for log in logs(data_dir, request.accepts_loss)? {
        match repair_when_free(&log, request.options) {
            Ok(report) => repaired.push(RepairedLog { log, report }),
            // Only the lock is left, as after a repair that removed all segments.
            Err(InspectError::NoJournal { .. }) if request.accepts_loss || !log.is_journal => {}
            Err(error) => return Err(format!("{}: {}", log.path, chain(&error))),
        }
    }
    let accepted = match request.accepts_loss {
        true => accept_loss(data_dir, mode)?,
        false => Vec::new(),
    };
    if mode == RepairMode::Repair {
        for one in repaired.iter().filter(|one| !one.report.is_empty()) {
            stores::forget_position(&one.log.parent.join(one.log.name))?;
        }
    }
    let is_emptied = |one: &RepairedLog| one.log.is_journal && one.report.is_emptied;
    if mode == RepairMode::Repair && repaired.iter().any(is_emptied) {
        // The next start creates a new journal.
        stores::missing_stores(data_dir, true)?;
    }
    if form == OutputForm::Json {
        return Ok(print(&format!("{}\n", json(data_dir, &repaired, &accepted))));
    }
    let mut text = text(data_dir, &repaired, &accepted, mode);
    let has_changed = |one: &RepairedLog| one.log.is_journal && !one.report.is_empty() && !one.report.is_emptied;
    if mode == RepairMode::Repair && repaired.iter().any(has_changed) {
        let (_, summary) = JournalSummary::read(data_dir).map_err(|error| chain(&error))?;
        let _ = writeln!(text, "contents: {summary}");
    }
    Ok(print(&text))
}

/// Repairs a log, also if another process uses it for a moment: a server opens a damaged buffer again and again, and
/// its alarm names this command.
fn repair_when_free(log: &Log, options: RepairOptions) -> Result<RepairReport, InspectError> {
    let deadline = Instant::now() + IN_USE_MAX;
    loop {
        match repair_log(&log.parent, log.name, options) {
            Err(InspectError::Directory(DirectoryError::InUse { .. })) if Instant::now() < deadline => {
                thread::sleep(IN_USE_PAUSE);
            }
            result => return result,
        }
    }
}

/// Returns the logs in a data directory, in a directory of the platform, or in one of a buffer. Without any, returns
/// the journal, whose repair then fails.
pub fn logs(data_dir: &Path, accepts_loss: bool) -> Result<Vec<Log>, String> {
    let log = |path: &Path, name: &'static str| Log {
        path: path.join(name).to_string_lossy().into_owned(),
        parent: data_dir.join(path),
        name,
        is_journal: path == Path::new("") && name == journal::DIRECTORY_NAME,
    };
    let mut all = vec![
        log(Path::new(""), journal::DIRECTORY_NAME),
        log(Path::new(""), device_platform::LOG_NAME),
        log(Path::new(device_platform::DIRECTORY_NAME), device_platform::LOG_NAME),
    ];
    let buffers = Path::new(integration::DIRECTORY_NAME).join(integration::BUFFERS_NAME);
    let mut names = Vec::new();
    match fs::read_dir(data_dir.join(&buffers)) {
        Ok(entries) => names.extend(entries.flatten().map(|entry| entry.file_name())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("cannot read {}: {error}", data_dir.join(buffers).display())),
    }
    names.sort();
    all.extend(
        names
            .iter()
            .map(|name| log(&buffers.join(name), journal::DIRECTORY_NAME)),
    );
    let is_there = |log: &Log| log.parent.join(log.name).is_dir();
    let has_none = !all.iter().any(is_there);
    all.retain(|log| is_there(log) || (has_none && log.is_journal && !accepts_loss));
    Ok(all)
}

fn accept_loss(data_dir: &Path, mode: RepairMode) -> Result<Vec<AcceptedLoss>, String> {
    let is_accepted = mode == RepairMode::Repair;
    // Time series first: if nothing of them can be used, they are moved aside and then missing.
    let history = timeseries::accept_loss(data_dir, api::HISTORY_NAME, is_accepted).map_err(|error| chain(&error))?;
    let mut accepted: Vec<AcceptedLoss> = history
        .losses()
        .map(|what| AcceptedLoss {
            path: api::HISTORY_NAME.to_owned(),
            what,
        })
        .collect();
    let platform = device_platform::missing_data(data_dir, is_accepted)?;
    accepted.extend(platform.into_iter().map(|(path, what)| AcceptedLoss { path, what }));

    let buffers = integration::missing_buffers(data_dir, is_accepted)
        .map_err(|error| format!("cannot read the buffers of actions: {error}"))?;
    let missing = stores::missing_stores(data_dir, is_accepted)?
        .into_iter()
        .chain(buffers);
    let missing = missing.map(|path| AcceptedLoss {
        path,
        what: "all of it".to_owned(),
    });
    // Last: because of the other losses, some stores may now have a lower position than the recorded one.
    let older = stores::older_stores(data_dir, is_accepted)?;
    let older = older.into_iter().map(|older| AcceptedLoss {
        what: format!("the data that an earlier copy lacks ({older})"),
        path: older.name,
    });
    for loss in missing.chain(older) {
        if accepted.iter().all(|known| known.path != loss.path) {
            accepted.push(loss);
        }
    }
    Ok(accepted)
}

fn text(data_dir: &Path, repaired: &[RepairedLog], accepted: &[AcceptedLoss], mode: RepairMode) -> String {
    let mut text = String::new();
    for RepairedLog { log, report } in repaired.iter().filter(|one| !one.report.is_empty()) {
        if !log.is_journal {
            let _ = writeln!(text, "{}:", log.path);
        }
        describe(&mut text, log, report, mode);
    }
    let is = match mode {
        RepairMode::Plan => "would be accepted as lost",
        RepairMode::Repair => "accepted as lost",
    };
    for AcceptedLoss { path, what } in accepted {
        let _ = writeln!(text, "{path} {is}: {what}");
    }
    if text.is_empty() {
        return format!("nothing to repair in {}\n", show(data_dir));
    }
    text
}

fn describe(text: &mut String, log: &Log, repaired: &RepairReport, mode: RepairMode) {
    let (is, begins) = match mode {
        RepairMode::Plan => ("would be", "would begin"),
        RepairMode::Repair => ("has been", "begins"),
    };
    if let Some((segment, offset)) = &repaired.cut {
        let _ = writeln!(text, "{segment} {is} cut at offset {offset}");
    }
    for segment in &repaired.removed {
        let _ = writeln!(text, "{segment} {is} removed");
    }
    for segment in &repaired.rewritten {
        let _ = writeln!(text, "{segment} {is} written again without its damaged records");
    }
    for lost in &repaired.lost {
        let LostRange {
            file,
            offset,
            lsn,
            bytes,
            ..
        } = lost;
        let what = thing_of(log, lost);
        let _ = writeln!(
            text,
            "lost: {file}, offset {offset} (position {lsn}), {bytes} bytes: {what}"
        );
    }
    if let Some(segment) = repaired.missing_newest {
        let _ = writeln!(
            text,
            "lost: all records from position {segment} on, because their segment is missing"
        );
    }
    if let Some((end, reached)) = repaired.missing_end {
        let _ = writeln!(text, "lost: all records between the positions {end} and {reached}");
    }
    if let Some(from) = repaired.replay_from {
        let _ = writeln!(text, "replay {begins} at {from}");
    }
    if repaired.is_emptied && log.is_journal {
        let _ = writeln!(text, "no record can be recovered: the next start creates a new journal");
    } else if repaired.is_emptied {
        let data_dir = stores::data_dir_of(&log.parent).unwrap_or_else(|| log.parent.clone());
        let _ = writeln!(
            text,
            "no record can be recovered. Accept the loss before the next start: tidewire journal repair --accept-loss \
             --data-dir {}",
            show(&data_dir)
        );
    }
    if let Some(saved_to) = &repaired.saved_to {
        let _ = writeln!(text, "copies of the original files are in {}", show(saved_to));
    }
}

/// Describes a loss. The contents of a damaged record are uncertain.
fn thing_of(log: &Log, lost: &LostRange) -> String {
    match lost.thing {
        LostThing::Missing => "missing in the file".to_owned(),
        LostThing::Records => "an unknown number of records of a damaged block".to_owned(),
        LostThing::Record if !log.is_journal => "a record".to_owned(),
        LostThing::Record => match JournalRecord::read_at(RecordPosition(lost.lsn.0), &lost.payload) {
            Ok(JournalRecord::Message(message)) => format!("a message, apparently with the topic {:?}", message.topic),
            Ok(record) => format!("a record, apparently of the kind {}", kind_of(&record)),
            Err(_) => "a record of an unknown kind".to_owned(),
        },
    }
}

fn json(data_dir: &Path, repaired: &[RepairedLog], accepted: &[AcceptedLoss]) -> Value {
    let empty = RepairReport::default();
    let journal = repaired.iter().find(|one| one.log.is_journal);
    let mut value = log_json(journal.map(|one| &one.log), journal.map_or(&empty, |one| &one.report));
    value["data_dir"] = json!(show(data_dir));
    let is_intact = repaired.iter().all(|one| one.report.is_empty()) && accepted.is_empty();
    value["is_intact"] = json!(is_intact);
    value["other_logs"] = repaired
        .iter()
        .filter(|one| !one.log.is_journal && !one.report.is_empty())
        .map(|one| log_json(Some(&one.log), &one.report))
        .collect();
    value["accepted"] = accepted
        .iter()
        .map(|accepted| json!({"path": accepted.path, "lost": accepted.what}))
        .collect();
    value
}

fn log_json(log: Option<&Log>, repaired: &RepairReport) -> Value {
    let cut = repaired.cut.as_ref();
    let lost = repaired.lost.iter().map(|lost| {
        json!({
            "segment": lost.file,
            "offset": lost.offset,
            "position": lost.lsn.0,
            "bytes": lost.bytes,
            "what": log.map(|log| thing_of(log, lost)),
        })
    });
    json!({
        "path": log.map(|log| &log.path),
        "truncated": cut.map(|(segment, offset)| json!({"segment": segment, "offset": offset})),
        "removed": repaired.removed,
        "rewritten": repaired.rewritten,
        "lost": lost.collect::<Vec<_>>(),
        "missing_from": repaired.missing_newest.or(repaired.missing_end.map(|(end, _)| end)).map(|lsn| lsn.0),
        "replay_from": repaired.replay_from.map(|lsn| lsn.0),
        "is_emptied": repaired.is_emptied,
        "saved_to": repaired.saved_to.as_deref().map(show),
    })
}
