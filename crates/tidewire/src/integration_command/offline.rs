//! `tidewire rule test`: evaluates a rule for a message or an event without a server. It uses the code of the server
//! and sends nothing.

use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use integration::{DryRun, DryRunResult, EngineError, ErrorPosition, FileProblem, read_rule};
use serde_json::{Map, Value};

use super::{finish, print_json, read_file, word};
use crate::output::{EXIT_FAILURE, print, print_error};
use crate::remote::ApiError;

/// The rule works, and this message is not for it.
const EXIT_NO_OUTPUT: u8 = 3;

pub fn command() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .allow_hyphen_values(true)
            .help(help)
    };
    Command::new("test")
        .about("Try a rule file on one message, without a server")
        .after_help(
            "Prints what the rule puts out, a line of JSON for each output. Exit code 0: there is output; 3: there is none, \
             because the message is not for the rule; 1: the rule fails on this message; 2: the file is not a rule.",
        )
        .arg(word("file", "FILE.sql", "The rule; - for standard input"))
        .arg(text("message", "PAYLOAD", "The message's payload"))
        .arg(text("topic", "TOPIC", "Topic of the message [default: a topic that FROM matches]"))
        .arg(text("clientid", "ID", "Client ID of the publisher"))
        .arg(text("username", "NAME", "User name of the publisher"))
        .arg(text("qos", "QOS", "Its QoS").value_parser(value_parser!(u8).range(0..=2)))
        .arg(text(
            "event",
            "JSON",
            "Columns of the message or event by name, such as {\"clientid\": \"c\", \"reason\": \"normal\"}",
        ))
}

pub fn run(own: &ArgMatches) -> ExitCode {
    finish(test(own))
}

fn test(own: &ArgMatches) -> Result<ExitCode, ApiError> {
    let file: &String = own.get_one("file").expect("clap requires it");
    let source = read_file(file)?;
    let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str());
    let rule = read_rule(&source, stem.unwrap_or_default()).map_err(|problems| wrong_file(file, &source, &problems))?;
    let run = DryRun {
        sql: rule.sql.clone(),
        event: event(own)?,
    };
    let result = integration::dry_run(&run).map_err(|error| match error {
        EngineError::Invalid(problems) => ApiError::Usage(problems.join("\n")),
        other => ApiError::Usage(other.to_string()),
    })?;
    if own.get_flag("json") {
        print_json(&serde_json::to_value(&result).expect("a result is plain data"));
    } else {
        print_result(file, &source, &rule.sql, &result);
    }
    Ok(match result {
        DryRunResult { error: Some(_), .. } => ExitCode::from(EXIT_FAILURE),
        DryRunResult {
            is_matched: true,
            is_passed: true,
            ..
        } => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_NO_OUTPUT),
    })
}

fn print_result(file: &str, source: &str, sql: &str, result: &DryRunResult) {
    let lines: String = result.outputs.iter().map(|output| format!("{output}\n")).collect();
    if !lines.is_empty() && result.is_matched {
        print(&lines);
    }
    match &result.error {
        Some(error) => print_error(&failed(file, source, sql, error, result.error_position)),
        None if !result.is_matched => print_error(&format!("{file}: FROM names neither this topic nor this event")),
        None if !result.is_passed => {
            print_error(&format!(
                "{file}: no output: WHERE is false, or FOREACH selected no element"
            ));
        }
        None => {}
    }
}

/// Where in the file, and what; positions count from the beginning of the SQL.
fn failed(file: &str, source: &str, sql: &str, error: &str, at: Option<ErrorPosition>) -> String {
    let Some(ErrorPosition { line, column }) = at else {
        return format!("{file}: the rule fails on this message: {error}");
    };
    let above = source.find(sql).map_or(0, |at| source[..at].matches('\n').count());
    let what = error.split_once(": ").map_or(error, |(_, what)| what);
    let line = above + line as usize;
    let under = mark_error_position(source, line, Some(column as usize));
    format!("{file}:{line}:{column}: the rule fails on this message: {what}{under}")
}

/// The event that was typed; `None` means the example of the first source of the rule.
fn event(own: &ArgMatches) -> Result<Option<Value>, ApiError> {
    let mut columns = match own.get_one::<String>("event").map(|text| serde_json::from_str(text)) {
        None => Map::new(),
        Some(Ok(Value::Object(columns))) => columns,
        Some(Ok(_)) => {
            return Err(ApiError::Usage(
                "--event: must be a JSON object of columns by name".into(),
            ));
        }
        Some(Err(error)) => return Err(ApiError::Usage(format!("--event: {error}"))),
    };
    for (name, column) in [
        ("message", "payload"),
        ("topic", "topic"),
        ("clientid", "clientid"),
        ("username", "username"),
    ] {
        if let Some(value) = own.get_one::<String>(name) {
            columns.insert(column.into(), value.as_str().into());
        }
    }
    if let Some(qos) = own.get_one::<u8>("qos") {
        columns.insert("qos".into(), (*qos).into());
    }
    Ok((!columns.is_empty()).then_some(Value::Object(columns)))
}

/// Every mistake of a rule file with the line that has it.
pub fn wrong_file(file: &str, source: &str, problems: &[FileProblem]) -> ApiError {
    let messages: Vec<String> = problems
        .iter()
        .map(|problem| {
            let FileProblem { line, column, message } = problem;
            let column_text = column.map(|column| format!(":{column}")).unwrap_or_default();
            format!(
                "{file}:{line}{column_text}: {message}{}",
                mark_error_position(source, *line, *column)
            )
        })
        .collect();
    ApiError::Usage(messages.join("\n"))
}

/// The line, and under it a mark at the column.
fn mark_error_position(source: &str, line: usize, column: Option<usize>) -> String {
    let Some(text) = source.lines().nth(line.wrapping_sub(1)) else {
        return String::new();
    };
    let mut shown = format!("\n{line:>4} | {}", text.replace('\t', " "));
    if let Some(column) = column {
        shown.push_str(&format!("\n     | {}^", " ".repeat(column.saturating_sub(1))));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_pointed_at() {
        let source = "-- name: x\nSELECT *\nFORM \"t\"\n";
        let problems = read_rule(source, "r").expect_err("a mistake");
        let message = wrong_file("r.sql", source, &problems).to_string();
        assert!(message.starts_with("r.sql:3:1: found"), "{message}");
        assert!(message.ends_with("\n   3 | FORM \"t\"\n     | ^"), "{message}");
    }
}
