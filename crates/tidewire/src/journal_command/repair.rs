//! `tidewire journal repair`.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use journal::inspect::{Mode, Repaired};
use serde_json::{Value, json};

use super::holdings::Holdings;
use super::{Form, show};
use crate::config::files::chain;
use crate::output::print;

pub fn repair(data_dir: &Path, mode: Mode, form: Form) -> Result<ExitCode, String> {
    let repaired = journal::inspect::repair(data_dir, mode).map_err(|error| chain(&error))?;
    if form == Form::Json {
        return Ok(print(&format!("{}\n", json(data_dir, &repaired))));
    }
    let mut text = text(data_dir, &repaired, mode);
    if mode == Mode::Repair && !repaired.is_nothing() && !repaired.is_emptied {
        let (_, holdings) = Holdings::read(data_dir).map_err(|error| chain(&error))?;
        let _ = writeln!(text, "it holds: {holdings}");
    }
    Ok(print(&text))
}

fn text(data_dir: &Path, repaired: &Repaired, mode: Mode) -> String {
    if repaired.is_nothing() {
        return format!("there is nothing to repair in {}\n", show(data_dir));
    }
    let (is, begins) = match mode {
        Mode::Plan => ("would be", "would begin"),
        Mode::Repair => ("has been", "begins"),
    };
    let mut text = String::new();
    if let Some((segment, offset)) = &repaired.cut {
        let _ = writeln!(text, "{segment} {is} cut at offset {offset}");
    }
    for segment in &repaired.removed {
        let _ = writeln!(text, "{segment} {is} taken out");
    }
    if let Some(from) = repaired.replay_from {
        let _ = writeln!(text, "replay {begins} at {from}");
    }
    if repaired.is_emptied {
        let _ = writeln!(text, "nothing can be kept: the next start begins a new journal");
    }
    if let Some(saved_to) = &repaired.saved_to {
        let _ = writeln!(text, "the files as they were are in {}", show(saved_to));
    }
    text
}

fn json(data_dir: &Path, repaired: &Repaired) -> Value {
    let cut = repaired.cut.as_ref();
    json!({
        "data_dir": show(data_dir),
        "is_nothing": repaired.is_nothing(),
        "cut": cut.map(|(segment, offset)| json!({"segment": segment, "offset": offset})),
        "removed": repaired.removed,
        "replay_from": repaired.replay_from.map(|lsn| lsn.0),
        "is_emptied": repaired.is_emptied,
        "saved_to": repaired.saved_to.as_deref().map(show),
    })
}
