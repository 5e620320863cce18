//! `tidewire journal repair`.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use journal::inspect::{RepairMode, RepairReport};
use serde_json::{Value, json};

use super::holdings::JournalSummary;
use super::{OutputForm, show};
use crate::config::files::chain;
use crate::output::print;

pub fn repair(data_dir: &Path, mode: RepairMode, form: OutputForm) -> Result<ExitCode, String> {
    let repaired = journal::inspect::repair(data_dir, mode).map_err(|error| chain(&error))?;
    if form == OutputForm::Json {
        return Ok(print(&format!("{}\n", json(data_dir, &repaired))));
    }
    let mut text = text(data_dir, &repaired, mode);
    if mode == RepairMode::Repair && !repaired.is_empty() && !repaired.is_emptied {
        let (_, holdings) = JournalSummary::read(data_dir).map_err(|error| chain(&error))?;
        let _ = writeln!(text, "contents: {holdings}");
    }
    Ok(print(&text))
}

fn text(data_dir: &Path, repaired: &RepairReport, mode: RepairMode) -> String {
    if repaired.is_empty() {
        return format!("nothing to repair in {}\n", show(data_dir));
    }
    let (is, begins) = match mode {
        RepairMode::Plan => ("would be", "would begin"),
        RepairMode::Repair => ("has been", "begins"),
    };
    let mut text = String::new();
    if let Some((segment, offset)) = &repaired.cut {
        let _ = writeln!(text, "{segment} {is} cut at offset {offset}");
    }
    for segment in &repaired.removed {
        let _ = writeln!(text, "{segment} {is} removed");
    }
    if let Some(from) = repaired.replay_from {
        let _ = writeln!(text, "replay {begins} at {from}");
    }
    if repaired.is_emptied {
        let _ = writeln!(text, "no record can be recovered: the next start creates a new journal");
    }
    if let Some(saved_to) = &repaired.saved_to {
        let _ = writeln!(text, "copies of the original files are in {}", show(saved_to));
    }
    text
}

fn json(data_dir: &Path, repaired: &RepairReport) -> Value {
    let cut = repaired.cut.as_ref();
    json!({
        "data_dir": show(data_dir),
        "is_intact": repaired.is_empty(),
        "truncated": cut.map(|(segment, offset)| json!({"segment": segment, "offset": offset})),
        "removed": repaired.removed,
        "replay_from": repaired.replay_from.map(|lsn| lsn.0),
        "is_emptied": repaired.is_emptied,
        "saved_to": repaired.saved_to.as_deref().map(show),
    })
}
