//! `tidewire journal inspect` and `verify`.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use journal::inspect::{InspectError, InspectionReport, SegmentReport, inspect_log};
use journal::{Damage, OpenError};
use serde_json::{Value, json};

use super::repair::{self, Log};
use super::summary::{JournalSummary, count};
use super::{OutputForm, readable_bytes, show};
use crate::config::files::chain;
use crate::output::{EXIT_FAILURE, print, print_error};

/// Prints the contents and the damage of the journal, and the damage of the other logs.
pub fn inspect(data_dir: &Path, form: OutputForm) -> Result<ExitCode, String> {
    let (report, summary) = JournalSummary::read(data_dir).map_err(|error| chain(&error))?;
    let others = other_logs(data_dir)?;
    Ok(match form {
        OutputForm::Text => print(&(text(data_dir, &report, &summary) + &others_text(&others))),
        OutputForm::Json => print(&format!("{}\n", json(data_dir, &report, &summary, &others))),
    })
}

/// The log of the device platform, or the buffer of an action.
struct OtherLog {
    /// Path within the data directory.
    path: String,
    report: InspectionReport,
}

impl OtherLog {
    fn problems(&self) -> impl Iterator<Item = String> + '_ {
        let problems = self.report.problems.iter();
        problems.map(|problem| format!("{}: {}", self.path, chain(problem)))
    }

    fn contents(&self) -> String {
        let InspectionReport { records, segments, .. } = &self.report;
        format!(
            "{} in {}",
            count(*records as usize, "record"),
            count(segments.len(), "segment")
        )
    }
}

/// Reads the logs besides the journal.
fn other_logs(data_dir: &Path) -> Result<Vec<OtherLog>, String> {
    let mut others = Vec::new();
    for Log {
        path,
        parent,
        name,
        is_journal,
    } in repair::logs(data_dir, false)?
    {
        if is_journal {
            continue;
        }
        match inspect_log(&parent, name, &mut |_, _| ()) {
            Ok(report) => others.push(OtherLog { path, report }),
            // Nothing was written yet.
            Err(InspectError::NoJournal { .. }) => {}
            Err(error) => return Err(format!("{path}: {}", chain(&error))),
        }
    }
    Ok(others)
}

fn others_text(others: &[OtherLog]) -> String {
    let mut text = String::new();
    for other in others {
        let _ = writeln!(text, "{:<12}{}: {}", "other log", other.path, other.contents());
    }
    for problem in others.iter().flat_map(OtherLog::problems) {
        let _ = writeln!(text, "{:<12}{problem}", "problem");
    }
    text
}

/// Fails if anything is wrong.
pub fn verify(data_dir: &Path, form: OutputForm) -> Result<ExitCode, String> {
    let (report, summary) = JournalSummary::read(data_dir).map_err(|error| chain(&error))?;
    let others = other_logs(data_dir)?;
    if form == OutputForm::Json {
        print(&format!("{}\n", json(data_dir, &report, &summary, &others)));
    }
    let of_others = others.iter().flat_map(OtherLog::problems);
    let problems: Vec<String> = problems(&report).chain(summary.problem).chain(of_others).collect();
    for problem in &problems {
        print_error(problem);
    }
    Ok(match (problems.is_empty(), form) {
        (false, _) => ExitCode::from(EXIT_FAILURE),
        (true, OutputForm::Json) => ExitCode::SUCCESS,
        (true, OutputForm::Text) => {
            let mut text = format!(
                "the journal in {} is intact: {} in {}\n",
                show(data_dir),
                count(report.records as usize, "record"),
                count(report.segments.len(), "segment")
            );
            for other in &others {
                let _ = writeln!(text, "{} is intact: {}", other.path, other.contents());
            }
            print(&text)
        }
    })
}

fn problems(report: &InspectionReport) -> impl Iterator<Item = String> + '_ {
    let replay_from = report.replay_from.unwrap_or(report.first);
    report.problems.iter().map(move |problem| match problem {
        OpenError::Damaged {
            file,
            offset,
            lsn,
            damage: what @ Damage::Block(_),
            ..
        } if *lsn < replay_from => format!(
            "{file}, offset {offset} (position {lsn}): {what}. The damage is before the checkpoint, so the server can start. \
             Queued messages in this block are lost and counted as `damaged`; clients get all others. A backup may contain them"
        ),
        problem => chain(problem),
    })
}

fn text(data_dir: &Path, report: &InspectionReport, summary: &JournalSummary) -> String {
    let mut text = String::new();
    let id = report.journal_id.map_or("unknown".into(), |id| format!("{id:016x}"));
    let mut line = |name: &str, value: String| _ = writeln!(text, "{name:<12}{value}");
    line("directory", show(data_dir));
    line("journal", id);
    let from = report.replay_from.unwrap_or(report.first);
    line(
        "positions",
        format!("{} to {}, replay begins at {from}", report.first, report.next),
    );
    line(
        "files",
        format!(
            "{}, {}",
            count(report.segments.len(), "segment"),
            readable_bytes(report.file_bytes)
        ),
    );
    line(
        "records",
        format!("{} in {}", report.records, count(report.blocks as usize, "block")),
    );
    if report.lost_records > 0 {
        let records = report.lost_records;
        line("lost", format!("{records} damaged records, which a repair replaced"));
    }
    if report.torn_bytes > 0 {
        let bytes = report.torn_bytes;
        line(
            "unfinished",
            format!("{bytes} incomplete bytes at the end, which the next start removes"),
        );
    }
    line("contents", summary.to_string());
    for (kind, number) in &summary.kinds {
        line("", format!("{number:>12} {kind}"));
    }
    for segment in &report.segments {
        line("segment", segment_text(segment));
    }
    if report.problems.is_empty() {
        line("problems", "none".into());
    }
    for problem in problems(report) {
        line("problem", problem);
    }
    text
}

fn segment_text(segment: &SegmentReport) -> String {
    let SegmentReport {
        name,
        base,
        end,
        file_bytes,
        records,
        ..
    } = segment;
    format!(
        "{name}  {base} to {end}, {records} records, {}",
        readable_bytes(*file_bytes)
    )
}

fn json(data_dir: &Path, report: &InspectionReport, summary: &JournalSummary, others: &[OtherLog]) -> Value {
    let others = others.iter().map(|other| {
        json!({
            "path": other.path,
            "records": other.report.records,
            "segments": other.report.segments.len(),
            "problems": other.problems().collect::<Vec<_>>(),
        })
    });
    let segments = report.segments.iter().map(|segment| {
        json!({
            "name": segment.name,
            "base": segment.base.0,
            "end": segment.end.0,
            "file_bytes": segment.file_bytes,
            "created_unix_ms": segment.created_unix_ms,
            "blocks": segment.blocks,
            "records": segment.records,
        })
    });
    json!({
        "data_dir": show(data_dir),
        "journal_id": report.journal_id.map(|id| format!("{id:016x}")),
        "first": report.first.0,
        "next": report.next.0,
        "replay_from": report.replay_from.map(|lsn| lsn.0),
        "blocks": report.blocks,
        "records": report.records,
        "lost_records": report.lost_records,
        "file_bytes": report.file_bytes,
        "torn_bytes": report.torn_bytes,
        "segments": segments.collect::<Vec<_>>(),
        "contents": summary.json(),
        "problems": problems(report).collect::<Vec<_>>(),
        "other_logs": others.collect::<Vec<_>>(),
    })
}
