//! `tidewire rule`, `connector`, `action` and `source`: commands that use the API, and tests of rules without a
//! server.
//!
//! Lists are tables for people; `--json` prints the response of the API. Errors of the API are printed as they are.

mod diff;
mod offline;
mod rule;
mod show;
mod table;
mod tail;
mod things;

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use serde_json::Value;

pub use rule::{command as rule_command, run as run_rule};
pub use things::{ACTIONS, CONNECTORS, SOURCES};

use crate::output::print;
use crate::remote::ApiError;

/// A definition is SQL, templates, certificates; the API takes no more.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

fn word(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_name(value).required(true).help(help)
}

/// A subcommand with one argument, the name of the item.
fn named_subcommand(name: &'static str, value: &'static str, help: &'static str) -> Command {
    let what = Arg::new("id").value_name(value).required(true).help("Name of the item");
    Command::new(name).about(help).arg(what)
}

fn id(matches: &ArgMatches) -> &str {
    matches.get_one::<String>("id").expect("clap requires it")
}

/// A file, or `-` for standard input.
fn read_file(path: &str) -> Result<String, ApiError> {
    let wrong = |error: io::Error| ApiError::Usage(format!("cannot read {path}: {error}"));
    let mut text = String::new();
    let input: Box<dyn Read> = match path {
        "-" => Box::new(io::stdin()),
        _ => Box::new(fs::File::open(path).map_err(wrong)?),
    };
    input
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(wrong)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(ApiError::Usage(format!("{path} is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

/// Reads a definition in JSON or TOML. Fields that the API only shows (`view_only`) are ignored, so that its output
/// can be used as input.
fn read_definition(path: &str, view_only: &[&str]) -> Result<Value, ApiError> {
    let text = read_file(path)?;
    let is_toml = Path::new(path).extension().is_some_and(|extension| extension == "toml");
    let (format, read) = match is_toml {
        true => ("TOML", toml::from_str(&text).map_err(|error| error.to_string())),
        false => ("JSON", serde_json::from_str(&text).map_err(|error| error.to_string())),
    };
    let wrong = |error: String| ApiError::Usage(format!("{path} is not valid {format}: {}", error.trim_end()));
    let mut definition: Value = read.map_err(wrong)?;
    if let Some(fields) = definition
        .as_object_mut()
        .filter(|fields| fields.contains_key("pinned_by"))
    {
        fields.retain(|name, _| !view_only.contains(&name.as_str()));
    }
    Ok(definition)
}

fn print_json(value: &Value) -> ExitCode {
    let text = serde_json::to_string_pretty(value).expect("a JSON value is plain data");
    print(&format!("{text}\n"))
}

/// A text of an answer, or nothing.
fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

/// `a, b` of a list of texts.
fn joined(value: &Value) -> String {
    let list: Vec<&str> = value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    list.join(", ")
}

fn finish(result: Result<ExitCode, ApiError>) -> ExitCode {
    result.unwrap_or_else(|error| error.report())
}
