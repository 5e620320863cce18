//! `tidewire rule`: rules of a running server, and `rule test`, which needs none.

use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use integration::{RuleDefinition, read_rule, write_rule};
use serde_json::{Value, json};

use super::diff::diff;
use super::show::show;
use super::table::TextTable;
use super::{finish, id, joined, named_subcommand, offline, print_json, read_definition, read_file, tail, text, word};
use crate::config::ConfigSources;
use crate::output::print;
use crate::remote::{ApiClient, ApiError, args, path_part};

/// Fields of the response that are not part of the definition.
const VIEW_ONLY: &[&str] = &[
    "from",
    "metrics",
    "timing",
    "last_error",
    "missing_actions",
    "warnings",
    "version",
    "pinned_by",
];

pub fn command() -> Command {
    Command::new("rule")
        .about("Rules: try one without a server; list, change and watch those of a running one")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .args(args())
        .subcommand(offline::command())
        .subcommand(Command::new("list").about("List all rules with their counters"))
        .subcommand(named_subcommand("show", "ID", "One rule in full"))
        .subcommand(Command::new("put").about("Add or change a rule").arg(word(
            "file",
            "FILE",
            "A rule file (.sql), JSON, TOML (.toml), or - for JSON from standard input",
        )))
        .subcommand(named_subcommand("delete", "ID", "Delete a rule; its history stays"))
        .subcommand(named_subcommand("enable", "ID", "Put a rule in force again"))
        .subcommand(named_subcommand("disable", "ID", "Keep a rule, and let it see nothing"))
        .subcommand(tail::command())
        .subcommand(named_subcommand("history", "ID", "What a rule has been"))
        .subcommand(
            named_subcommand("diff", "ID", "Show the changes between two versions of a rule")
                .arg(version("from", "Version [default: the previous one]"))
                .arg(version("to", "Version [default: the latest]")),
        )
        .subcommand(
            named_subcommand("rollback", "ID", "Restore an earlier version of a rule").arg(
                version("version", "One of its history")
                    .value_name("VERSION")
                    .required(true),
            ),
        )
}

fn version(name: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name).value_parser(value_parser!(u64)).help(help);
    match name {
        "version" => arg,
        _ => arg.long(name).value_name("VERSION"),
    }
}

pub fn run(matches: &ArgMatches, sources: impl FnOnce(&ArgMatches) -> ConfigSources) -> ExitCode {
    let (name, own) = matches.subcommand().expect("clap requires it");
    if name == "test" {
        return offline::run(own);
    }
    let run = |api: ApiClient| match name {
        "list" => list(&api, own),
        "show" => shown(&api, own),
        "put" => put(&api, own),
        "delete" => delete(&api, own),
        "history" => history(&api, own),
        "diff" => differences(&api, own),
        "tail" => tail::run(&api, &path(id(own)), own),
        "rollback" => roll_back(&api, own),
        order => {
            let rule = api.call("POST", &format!("{}/{order}", path(id(own))), None)?;
            print_result(&format!("{order}d"), &rule, own)
        }
    };
    finish(ApiClient::connect(own, &sources(own)).and_then(run))
}

fn path(id: &str) -> String {
    format!("/api/v1/rules/{}", path_part(id))
}

fn list(api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let all = api.get("/api/v1/rules")?;
    if own.get_flag("json") {
        return Ok(print_json(&all));
    }
    let mut table = TextTable::new(&[
        "ID",
        "STATE",
        "FROM",
        "ACTIONS",
        "MATCHED",
        "PASSED",
        "FAILED",
        "LAST ERROR",
    ]);
    for rule in all.as_array().into_iter().flatten() {
        let count = |name: &str| rule["metrics"][name].to_string();
        table.row(vec![
            text(rule, "id").into(),
            state(rule),
            joined(&rule["from"]),
            actions(rule),
            count("matched"),
            count("passed"),
            count("failed"),
            text(rule, "last_error").into(),
        ]);
    }
    Ok(print(&table.render()))
}

fn state(rule: &Value) -> String {
    let missing = joined(&rule["missing_actions"]);
    match rule["enable"] == true {
        false => "disabled".into(),
        true if missing.is_empty() => "enabled".into(),
        true => format!("no action {missing}"),
    }
}

fn actions(rule: &Value) -> String {
    let word = |action: &Value| match action {
        Value::String(id) => id.clone(),
        function => text(function, "function").to_owned(),
    };
    let words: Vec<String> = rule["actions"].as_array().into_iter().flatten().map(word).collect();
    words.join(", ")
}

fn shown(api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let rule = api.get(&path(id(own)))?;
    Ok(match own.get_flag("json") {
        true => print_json(&rule),
        false => print(&show(&rule)),
    })
}

fn put(api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let file: &String = own.get_one("file").expect("clap requires it");
    let name = Path::new(file);
    let definition = if name.extension().is_some_and(|extension| extension == "sql") {
        let id = name.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let text = read_file(file)?;
        let rule = read_rule(&text, id).map_err(|problems| offline::wrong_file(file, &text, &problems))?;
        serde_json::to_value(rule).expect("a definition is plain data")
    } else {
        read_definition(file, VIEW_ONLY)?
    };
    let rule = api.call("PUT", &path(text(&definition, "id")), Some(&definition))?;
    print_result("in force", &rule, own)
}

fn print_result(what: &str, rule: &Value, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    if own.get_flag("json") {
        return Ok(print_json(rule));
    }
    let what = if rule["enable"] == false {
        "kept, disabled"
    } else {
        what
    };
    let mut line = format!("rule {}, version {}: {what}", text(rule, "id"), rule["version"]);
    let missing = joined(&rule["missing_actions"]);
    if !missing.is_empty() {
        line.push_str(&format!("; its action {missing} does not exist or is disabled"));
    }
    for warning in rule["warnings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        line.push_str(&format!("\nwarning: {warning}"));
    }
    Ok(print(&format!("{line}\n")))
}

fn delete(api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    api.call("DELETE", &path(id(own)), None)?;
    Ok(print(&format!(
        "rule {} deleted; `tidewire rule rollback` brings it back\n",
        id(own)
    )))
}

fn versions(api: &ApiClient, own: &ArgMatches) -> Result<Vec<Value>, ApiError> {
    let history = api.get(&format!("{}/history", path(id(own))))?;
    Ok(history.as_array().cloned().unwrap_or_default())
}

fn history(api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let versions = versions(api, own)?;
    if own.get_flag("json") {
        return Ok(print_json(&Value::Array(versions)));
    }
    let mut table = TextTable::new(&["VERSION", "SINCE", "CHANGED"]);
    let mut before = &Value::Null;
    for version in &versions {
        let now = &version["rule"];
        table.row(vec![
            version["version"].to_string(),
            time(version["since_unix_ms"].as_i64().unwrap_or(0)),
            changed(before, now),
        ]);
        before = now;
    }
    Ok(print(&table.render()))
}

fn time(unix_ms: i64) -> String {
    let time = jiff::Timestamp::from_millisecond(unix_ms).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// The fields in which two versions differ.
fn changed(before: &Value, now: &Value) -> String {
    match (before.as_object(), now.as_object()) {
        (_, None) => "deleted".into(),
        (None, Some(_)) => "made".into(),
        (Some(before), Some(now)) => {
            let fields = now.iter().filter(|(name, value)| before.get(*name) != Some(value));
            let names: Vec<&str> = fields.map(|(name, _)| name.as_str()).collect();
            names.join(", ")
        }
    }
}

fn differences(api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let versions = versions(api, own)?;
    let latest = versions.last().and_then(|last| last["version"].as_u64()).unwrap_or(0);
    let to = own.get_one("to").copied().unwrap_or(latest);
    let from = own.get_one("from").copied().unwrap_or(to.saturating_sub(1));
    let (old, new) = (as_text(&versions, from)?, as_text(&versions, to)?);
    if own.get_flag("json") {
        return Ok(print_json(&json!({"from": from, "to": to, "diff": diff(&old, &new)})));
    }
    Ok(print(&format!(
        "--- {id}, version {from}\n+++ {id}, version {to}\n{}",
        diff(&old, &new),
        id = id(own)
    )))
}

/// A version as a rule file; 0 and a deleted rule are empty.
fn as_text(versions: &[Value], version: u64) -> Result<String, ApiError> {
    if version == 0 {
        return Ok(String::new());
    }
    let found = versions.iter().find(|it| it["version"] == version);
    let found = found.ok_or_else(|| ApiError::Usage(format!("the history of the rule has no version {version}")))?;
    let rule: Option<RuleDefinition> = serde_json::from_value(found["rule"].clone())
        .map_err(|error| ApiError::Usage(format!("version {version} is not a rule: {error}")))?;
    Ok(rule.map(|rule| write_rule(&rule)).unwrap_or_default())
}

fn roll_back(api: &ApiClient, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let version: &u64 = own.get_one("version").expect("clap requires it");
    let rule = api.call(
        "POST",
        &format!("{}/roll-back", path(id(own))),
        Some(&json!({"version": version})),
    )?;
    print_result(&format!("as it was in version {version}"), &rule, own)
}
